"""More servers that a module of tests shares, and a model to sign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure, azure_server
from local_servers.dav_server import dav_server
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web
from support.aws_server import Aws, aws_server
from support.places import World


@pytest.fixture(scope="module")
def azure() -> Iterator[Azure]:
    with azure_server() as server:
        yield server


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """A server with the same ETags as AWS, which heeds conditions."""
    with aws_server(tmp_path_factory.mktemp("aws")) as server:
        yield server


@pytest.fixture(scope="module")
def dav(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dav_server(tmp_path_factory.mktemp("dav")) as url:
        yield url


@pytest.fixture
def world(tmp_path: Path, web: Web, s3: S3, redis: RedisServer, azure: Azure) -> World:
    return World(tmp_path, web, s3, redis, azure)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {f"layers.{i}": torch.randn(600, 500, generator=generator) for i in range(5)}
    return {"scale": torch.ones(3), **tensors, "empty": torch.empty(0)}


@pytest.fixture
def model(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A folder with the same tensors in two formats, and what else repositories have."""
    folder = tmp_path / "model"
    folder.mkdir()
    tensorizer_ops.save(folder / "m.tensors", tensors)
    tensorizer_ops.save(folder / "m.safetensors", tensors, options={"max_shard_size": 3_000_000})
    (folder / "config.json").write_text("{}")
    (folder / ".gitattributes").write_text("*.tensors filter=lfs")
    return folder
