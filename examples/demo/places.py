"""Where the demo keeps the model: files of several kinds, and servers that it starts itself."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from local_servers.redis_server import tls_redis_server
from local_servers.s3_server import s3_server
from local_servers.web import make_certificates, nginx


@dataclass(frozen=True)
class Place:
    """A URI with what a load and a save of it are told."""

    name: str
    uri: str
    options: dict[str, str] = field(default_factory=dict)
    verify: str = "none"
    hashes: str = "all"
    # The place to save to, if `uri` can only be read.
    target: str = ""
    copy: bool = True  # into new memory, and not mapped

    @property
    def is_of_torch(self) -> bool:
        return self.uri.endswith(".pt")


@contextmanager
def places(folder: Path) -> Iterator[list[Place]]:
    """Start the servers, and yield all places."""
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(32))
    plain = str(folder / "plain.tensors")
    found = [
        Place(".tensors file", plain),
        Place("  every SHA-256 verified", plain, verify="all"),
        Place("  chunks verified", str(folder / "chunked.tensors"), verify="all", hashes="chunked"),
        Place("  encrypted", str(folder / "encrypted.tensors"), {"key": f"file:{key}"}),
        Place("safetensors file", str(folder / "model.safetensors")),
        Place("  mapped, one read per page", str(folder / "model.safetensors"), copy=False),
        Place("file of torch.save", str(folder / "model.pt")),
    ]
    for name in ("web", "s3", "redis"):
        (folder / name).mkdir()
    make_certificates(folder / "redis")
    with ExitStack() as stack:
        web = stack.enter_context(nginx(folder / "web"))
        target = str(web.root / "model.tensors")
        found.append(Place("HTTP (nginx)", web.url("model.tensors"), target=target))
        s3 = stack.enter_context(s3_server(folder / "s3"))
        # Compiled programs refuse options with secrets, which they would keep.
        os.environ |= s3.environment()
        options = {"s3_endpoint": os.environ["AWS_ENDPOINT_URL_S3"], "force_http": "true"}
        found.append(Place("S3 (rclone)", "s3://bucket/model.tensors", options))
        redis = stack.enter_context(tls_redis_server(folder / "redis", folder / "redis"))
        found.append(Place("Redis over TLS", redis.url("model"), redis.options()))
        yield found
