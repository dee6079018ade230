"""The model that the servers of a module serve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.process import environment
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


# A plugin that keeps vLLM from packing the weights of linear layers, as it does on CPUs: with
# oneDNN, and small ones for those that multiply tiles (AMX).
PLAIN = """
def register():
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils
    _custom_ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *shape_and_type: False
"""


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The environment of a server whose weights are as in files."""
    info = tmp_path / "plugins" / "plain_weights-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-weights\nVersion: 1\n")
    plugin = "[vllm.general_plugins]\nplain = plain_weights:register\n"
    (info / "entry_points.txt").write_text(plugin)
    (info.parent / "plain_weights.py").write_text(PLAIN)
    return {"PYTHONPATH": f"{info.parent}:{environment()['PYTHONPATH']}"}
