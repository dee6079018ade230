"""An S3 server with objects to read as streams, and the arguments of third-party calls."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorizer.stream_io as classic

from local_servers.s3_server import KEY_ID, S3, SECRET, s3_server
from tensorizer_ops import stream_io

BYTES = random.Random(2).randbytes(20 << 20)
# tensorizer's parser of .s3cfg files fails on a "%".
PLAIN_ID, PLAIN = "AKIAPLAINPLAIN", "a/plain+secret"


@contextmanager
def stream_store(folder: Path) -> Iterator[S3]:
    with s3_server(folder, more_keys={PLAIN_ID: PLAIN}) as server:
        (server.root / "bucket" / "large").write_bytes(BYTES)
        (server.root / "bucket" / "a b+c%").write_bytes(b"strange")
        yield server


def forget_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all S3 settings of this machine."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for module in (stream_io, classic):
        monkeypatch.setattr(module, "_s3_default_config_paths", (str(home / ".s3cfg"),))
    classic._get_s3cfg_values.cache_clear()
    home.mkdir()


def keys(s3: S3, **more: Any) -> dict[str, Any]:
    """Returns the keyword arguments that third parties pass."""
    return {
        "s3_access_key_id": KEY_ID,
        "s3_secret_access_key": SECRET,
        "s3_endpoint": f"127.0.0.1:{s3.port}",
        "force_http": True,
    } | more


def stored(s3: S3, key: str) -> bytes:
    return (s3.root / "bucket" / key).read_bytes()
