"""The load format ``tensorizer_ops`` in a real vLLM, on CPUs: it serves what vLLM's own serves.

Tokens and their log-probabilities are compared. The folder of the model that the load format gets
has no weights, so they can only be those of the file. ``make test-vllm`` runs this.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import S3, s3_server
from local_servers.waiting import wait_until
from local_servers.web import Web, nginx
from support.process import run_python
from support.samples import assert_same
from support.signer import Signer
from support.vllm_server import (
    COMMON,
    PROMPTS,
    one_cpu_each,
    ours,
    serving,
    started,
    vllm_environment,
)
from tensorizer_ops import errors
from tensorizer_ops.vllm import register


@pytest.fixture(scope="module")
def file(model: Path) -> Path:
    path = model.with_name("m.tensors")
    tensors = tensorizer_ops.load(model)
    tensorizer_ops.save(path, tensors, hashes="chunked")
    return path


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, model: Path) -> list[Any]:
    """What vLLM answers with the weights that its own loader has loaded."""
    with serving(tmp_path_factory.mktemp("usual") / "server", model) as server:
        return server.complete()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        shutil.copy(file, server.root)
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        shutil.copy(file, server.root / "bucket")
        yield server


def verified(uri: object) -> tuple[str, ...]:
    return ours(uri, verify="all")


def test_a_file(tmp_path: Path, bare: Path, file: Path, usual: list[Any]) -> None:
    with serving(tmp_path / "server", bare, *verified(file)) as server:
        assert server.complete() == usual


def test_a_web_server(tmp_path: Path, bare: Path, web: Web, usual: list[Any]) -> None:
    web.requests()
    with serving(tmp_path / "server", bare, *verified(web.url("m.tensors"))) as server:
        assert server.complete() == usual
    assert any("GET /m.tensors" in line for line in web.requests())


def test_s3(tmp_path: Path, bare: Path, s3: S3, usual: list[Any]) -> None:
    keys = s3.environment()
    with serving(tmp_path / "server", bare, *verified(s3.uri("m.tensors")), **keys) as server:
        assert server.complete() == usual


IN_PROCESS = """
import json, sys
from vllm import LLM, SamplingParams
model, settings, common, prompts = sys.argv[1], *map(json.loads, sys.argv[2:])
llm = LLM(model, load_format="tensorizer_ops", model_loader_extra_config=settings, **common)
asked = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
found = []
for prompt in prompts:  # one by one, as the server gets them: sums of batches are rounded otherwise
    (request,) = llm.generate({"prompt_token_ids": prompt}, asked, use_tqdm=False)
    found.append(list(request.outputs[0].token_ids))
print(json.dumps(found))
"""


def test_without_a_server(
    tmp_path: Path, bare: Path, file: Path, usual: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in vllm_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    given = [{"uri": str(file), "verify": "all"}, COMMON, PROMPTS]
    done = run_python(IN_PROCESS, str(bare), *map(json.dumps, given))
    assert json.loads(done.stdout.splitlines()[-1]) == [tokens for tokens, _ in usual]


def fetched(web: Web) -> int:
    """Return the bytes of the file that the server has sent."""
    lines = [line for line in web.requests() if "/m.tensors" in line]
    return sum(int(line.split('"')[2].split()[1]) for line in lines)


def test_two_ranks(tmp_path: Path, model: Path, bare: Path, file: Path, web: Web) -> None:
    """They are compared with two ranks: sums of halves are rounded in another way."""
    with serving(tmp_path / "usual", model, ranks=2) as server:
        usual = server.complete()
    with serving(tmp_path / "ours", bare, *verified(file), ranks=2) as server:
        assert server.complete() == usual
    fetched(web)
    with serving(tmp_path / "shared", bare, *shared(web, tmp_path / "node"), ranks=2) as server:
        assert server.complete() == usual
    assert fetched(web) <= 1.02 * file.stat().st_size


def shared(web: Web, node: Path) -> tuple[str, ...]:
    return ours(web.url("m.tensors"), verify="all", options={"node_folder": str(node)})


@pytest.mark.parametrize("kind", ["data-parallel-size", "pipeline-parallel-size"])
def test_engines_and_stages_fetch_each_byte_once(
    tmp_path: Path, bare: Path, file: Path, web: Web, usual: list[Any], kind: str
) -> None:
    fetched(web)
    arguments = [*shared(web, tmp_path / "node"), f"--{kind}", "2"]
    with serving(tmp_path / "server", bare, *arguments, **one_cpu_each()) as server:
        if kind == "data-parallel-size":  # stages only load here: vLLM cannot run them on CPUs
            assert server.complete() == usual
    assert fetched(web) <= 1.02 * file.stat().st_size


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_file_ends_the_server(tmp_path: Path, bare: Path, file: Path, ranks: int) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    data = bytearray(file.read_bytes())
    with tensorizer_ops.Reader(file) as reader:
        last = reader.load([name])[name].view(-1)[-64:]
    start = data.index(last.view(torch.uint8).numpy().tobytes())
    data[start] ^= 1
    damaged = tmp_path / "damaged.tensors"
    damaged.write_bytes(data)
    with started(tmp_path / "server", bare, *verified(damaged), ranks=ranks) as server:
        wait_until(lambda: server.process.poll() is not None or server.answers())
        assert server.process.poll() not in (None, 0)
        log = server.log.read_text()
        assert any(str(damaged) in line and name in line for line in log.splitlines()), log
        wait_until(lambda: not server.processes())


def test_a_config_that_leads_to_another_model(
    tmp_path: Path, model: Path, usual: list[Any], signer: Signer
) -> None:
    """vLLM serves the model that a config names as the one whose tokens it drafts."""
    folder, other = (shutil.copytree(model, tmp_path / name) for name in ("model", "other"))
    for each in (folder, other):
        tensorizer_ops.sign(each, key=signer.private)
    given = ours(folder, model=str(folder), options=signer.options)
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    asked = ("--speculative-config", json.dumps(drafts))
    with serving(tmp_path / "server", folder, *given, *asked) as server:
        assert [tokens for tokens, _ in server.complete()] == [tokens for tokens, _ in usual]
    config = json.loads((folder / "config.json").read_text())
    config["speculators_model_type"] = drafts["method"]
    config["transformer_layer_config"] = {}
    config["speculators_config"] = {
        "proposal_methods": [{"speculative_tokens": 2}],
        "verifier": {"name_or_path": str(other)},
    }
    (folder / "config.json").write_text(json.dumps(config))
    for uri in (folder, other):
        given = ours(uri, model=str(folder), options=signer.options)
        with started(tmp_path / f"led to {uri.name}", folder, *given) as server:
            wait_until(lambda: server.process.poll() is not None or server.answers())
            assert server.process.poll() not in (None, 0)
            assert f"was given {str(folder)!r}" in server.log.read_text()


def test_weights_that_are_loaded_again(tmp_path: Path, signer: Signer) -> None:
    """They are those of the model whose config vLLM has, also with another loader."""
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    register()
    config = LoadConfig(
        load_format="tensorizer_ops", model_loader_extra_config={"options": signer.options}
    )
    folder = tmp_path / "model"
    model_config: Any = SimpleNamespace(
        model=str(folder), model_weights="", runner_type="generate", quantization=None
    )

    def save(value: float) -> dict[str, torch.Tensor]:
        tensors = {"w": torch.full((3,), value)}
        tensorizer_ops.save(folder / "m.tensors", tensors)
        tensorizer_ops.sign(folder, key=signer.private)
        return tensors

    def load(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        return dict(get_model_loader(config).get_all_weights(model_config, model))

    first, model = save(1.0), torch.nn.Identity()
    for _ in range(2):
        assert_same(load(model), first)
    second = save(2.0)
    with pytest.raises(errors.HashMismatch, match="start the server anew"):
        load(model)
    assert_same(load(torch.nn.Identity()), second)
