"""An AWS server for credentials: moto, with S3, roles and a machine's metadata service."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_servers.waiting import LAST_RESORT, listens, wait_until
from local_servers.web import free_port


@dataclass
class Aws:
    port: int
    key_id: str  # its user may only assume the role
    secret: str
    role: str  # allows all S3 actions

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self) -> dict[str, str]:
        """Return the options of tensorizer_ops to access the server."""
        return {
            "s3_endpoint": self.url,
            "force_http": "true",
            "s3_access_key_id": self.key_id,
            "s3_secret_access_key": self.secret,
            "s3_region": "us-east-1",
        }

    def client(self) -> Any:
        """Return a client of boto3 for S3."""
        return _client("s3", self.url)

    def check(self, wanted: bool) -> None:
        """Turns checks of signatures and permissions on or off."""
        url = f"{self.url}/moto-api/reset-auth"
        from_which_on = b"0" if wanted else b"1000000"
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(url, data=from_which_on, headers=plain)
        urllib.request.urlopen(request).close()


def _client(service: str, url: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    return boto3.client(service, endpoint_url=url, **keys)


def _policy(action: str, **more: object) -> str:
    statement = {"Effect": "Allow", "Action": action, **more}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _set_up(port: int) -> Aws:
    url = f"http://127.0.0.1:{port}"
    _client("s3", url).create_bucket(Bucket="bucket")
    iam = _client("iam", url)
    iam.create_user(UserName="user")
    may_take = _policy("sts:AssumeRole", Resource="*")
    iam.put_user_policy(UserName="user", PolicyName="p", PolicyDocument=may_take)
    trust = _policy("sts:AssumeRole", Principal={"AWS": "*"})
    role = iam.create_role(RoleName="role", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    may_load = _policy("s3:*", Resource="*")
    iam.put_role_policy(RoleName="role", PolicyName="p", PolicyDocument=may_load)
    key = iam.create_access_key(UserName="user")["AccessKey"]
    return Aws(port, key["AccessKeyId"], key["SecretAccessKey"], role)


@contextmanager
def aws_server(folder: Path) -> Iterator[Aws]:
    port = free_port()
    log = folder / "moto.log"
    program = Path(sys.executable).with_name("moto_server")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program), "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: listens(port), process, log)
        url = f"http://127.0.0.1:{port}/moto-api/"
        urllib.request.urlopen(url, timeout=LAST_RESORT).close()
        yield _set_up(port)
    finally:
        process.terminate()
        process.wait(LAST_RESORT)
