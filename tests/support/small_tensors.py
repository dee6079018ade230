"""Files of many small tensors, and a web server that serves them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from local_servers.web import Web, nginx
from tensorizer_ops import EncryptionParams, TensorSerializer

# 6 MiB in tensors of 4 KiB.
SMALL = {f"layers.{i // 10}.{i % 10}.weight": torch.randn(1024) for i in range(1500)}
NAMES = list(SMALL)
KEY = bytes(range(32))


def make_old(file: Path) -> None:
    """Sets an old mtime. A file with a recent one may change again within the same second, so each
    load would send another request."""
    os.utime(file, (1_600_000_000, 1_600_000_000))


@contextmanager
def small_server(folder: Path) -> Iterator[Web]:
    with nginx(folder) as server:
        save = tensorizer_ops.save
        save(str(server.root / "small.tensors"), SMALL)
        save(str(server.root / "few.tensors"), dict(list(SMALL.items())[:20]))
        # 96 MiB
        save(str(server.root / "large.tensors"), {f"t{i}": torch.rand(65536) for i in range(384)})
        encrypted = TensorSerializer(
            str(server.root / "encrypted.tensors"), encryption=EncryptionParams(KEY)
        )
        encrypted.write_state_dict(SMALL)
        encrypted.close()
        for file in server.root.glob("*.tensors"):
            make_old(file)
        yield server


def load(reader: Any, *names: str, verify: str = "none") -> dict[str, torch.Tensor]:
    return dict(reader.load(list(names), None, None, verify, True, 0))
