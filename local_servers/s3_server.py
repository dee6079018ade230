"""An S3 server that checks signatures: rclone, serving a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_servers.waiting import LAST_RESORT, listens, wait_until
from local_servers.web import free_port, full_disk

KEY_ID = "AKIATESTTESTTEST"
SECRET = "a/secret+key=of%some&kind"


@dataclass
class S3:
    """A running server. Its buckets are the folders in `root`."""

    root: Path
    port: int
    process: subprocess.Popen[bytes]

    def options(self, **more: str) -> dict[str, str]:
        """Return the options of tensorizer_ops to access the server, overridden by `more`."""
        return {
            "s3_endpoint": f"http://127.0.0.1:{self.port}",
            "force_http": "true",
            "s3_access_key_id": KEY_ID,
            "s3_secret_access_key": SECRET,
            "s3_region": "us-east-1",
        } | more

    def uri(self, name: str) -> str:
        return f"s3://bucket/{name}"

    def stored(self, name: str) -> bytes:
        return (self.root / "bucket" / name).read_bytes()

    def environment(self) -> dict[str, str]:
        """Return environment variables for AWS's own tools to access the server."""
        return {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def objects(self, bucket: str = "bucket") -> list[str]:
        """Return the keys in a bucket."""
        folder = self.root / bucket
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

    def settle(self) -> None:
        """Block until the server has put into place what it has received.

        It goes on when the client has left, and removes an object before the new one is there. An
        upload that was cut off may leave a temporary file, which does not grow any more.
        """
        while any(_is_written(path) for path in self.root.rglob(".rclone_temp_*")):
            time.sleep(0.01)

    def uploads(self, *, abort: bool = False) -> list[str]:
        """Return the keys of the unfinished uploads, whose parts the server still has."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        try:
            found = client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])
        except client.exceptions.NoSuchUpload:  # what rclone says before the first upload
            return []
        for upload in found if abort else ():
            client.abort_multipart_upload(
                Bucket="bucket", Key=upload["Key"], UploadId=upload["UploadId"]
            )
        return [upload["Key"] for upload in found]


def _is_written(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < 0.3
    except FileNotFoundError:
        return False


def rclone() -> str:
    program = Path(sys.executable).with_name("rclone")
    return str(program) if program.exists() else shutil.which("rclone") or "rclone"


@contextmanager
def s3_server(
    folder: Path, largest: int | None = None, more_keys: dict[str, str] | None = None
) -> Iterator[S3]:
    """Start a server. `largest` limits the size of files: beyond it, the disk seems to be full."""
    root = folder / "buckets"
    (root / "bucket").mkdir(parents=True)
    port = free_port()
    log = folder / "rclone.log"
    command = [rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--config", "/dev/null"]
    # Without this it hashes the whole file for the ETag of every response.
    command += ["--etag-hash", ""]
    # Short, so that it sees files that tests put into its folder. Not 0: rclone then drops folders
    # in an endless loop, and sometimes deadlocks.
    command += ["--dir-cache-time", "1ms", str(root)]
    for key_id, secret in {KEY_ID: SECRET, **(more_keys or {})}.items():
        command += ["--auth-key", f"{key_id},{secret}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, preexec_fn=full_disk(largest)
        )
    try:
        wait_until(lambda: listens(port), process, log)
        yield S3(root, port, process)
    finally:
        process.kill()
        process.wait(LAST_RESORT)
