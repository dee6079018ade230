"""The model that the servers of a module serve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.vllm_server import save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "whole"
    save_model(folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def bare(model: Path) -> Path:
    """The folder of the model without its weights."""
    folder = model.with_name("bare")
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder
