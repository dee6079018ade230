"""Stores that the ranks of a test save to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_servers.azure_server import Azure, azure_server
from local_servers.s3_server import S3, s3_server


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with s3_server(tmp_path) as server:
        yield server


@pytest.fixture
def azure() -> Iterator[Azure]:
    with azure_server() as server:
        yield server
