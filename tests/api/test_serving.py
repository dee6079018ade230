"""The weights that servers of models get: which files have them, and what each rank reads.

The servers themselves are in ``tests/compat/test_servers.py``.
"""

from __future__ import annotations

import json
import os
import types
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.web import nginx
from support.process import run_python
from support.ranks import run_ranks
from support.samples import assert_same
from support.scripted import replaced_after_opening, scripted
from tensorizer_ops._front import serving
from tensorizer_ops._front.serving import Settings, weights
from tensorizer_ops._front.tied import Tied
from tensorizer_ops._front.weight import Weight

# Each rank takes half of the rows of one weight, and half of the columns of another.
HALVES = """
from tensorizer_ops._front.serving import Settings, weights
from tensorizer_ops._front.weight import Weight
settings = Settings(json.loads(given[0]))
found = {}
for name, tensor in weights(settings, "unused"):
    if name == "norm":
        assert type(tensor) is torch.Tensor
        continue
    dim = ["rows", "columns"].index(name)
    half = tensor.shape[dim] // size
    part = tensor.narrow(dim, rank * half, half)
    assert type(part) is Weight
    found[name] = torch.empty(part.shape).copy_(part)
whole = torch.arange(4 << 20).float()
for dim, (name, shape) in enumerate({"rows": (1024, -1), "columns": (64, -1)}.items()):
    expected = whole.reshape(shape).chunk(size, dim)[rank]
    assert torch.equal(found[name], expected), name
"""


@pytest.mark.parametrize("name", ["m.tensors", "m.safetensors"])
def test_each_of_two_ranks_reads_half_of_the_bytes(tmp_path: Path, name: str) -> None:
    whole = torch.arange(4 << 20).float()
    tensors = {
        "rows": whole.reshape(1024, -1),
        "norm": torch.ones(100),
        "columns": whole.reshape(64, -1),
    }
    with nginx(tmp_path) as web:  # nothing is mapped, so that every byte is counted
        tensorizer_ops.save(web.root / name, tensors, hashes="chunked")
        # The beginning of a new file is read again, to see that it is unchanged.
        os.utime(web.root / name, (1e9, 1e9))
        web.requests()
        run_ranks(tmp_path / "r", HALVES, json.dumps({"uri": web.url(name)}), count=2)
        sent = sum(int(line.split('"')[2].split()[-1]) for line in web.requests())
    # The ranks share the rows. Gaps between the parts of columns may be read along, and each time
    # that a rank opens the file, it receives 1 MiB with the index.
    assert 2 * whole.nbytes < sent < 3.7 * whole.nbytes


def test_a_rank_opens_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise small tensors could be of another file than large ones."""
    for name, value in (("old", 1.0), ("new", 2.0)):
        tensors = {"small": torch.full((4,), value), "large": torch.full((600_000,), value)}
        tensorizer_ops.save(tmp_path / name, tensors)
    files = [(tmp_path / name).read_bytes() for name in ("old", "new")]
    ranks = {"is_available": lambda: True, "is_initialized": lambda: True}
    monkeypatch.setattr(serving, "dist", types.SimpleNamespace(**ranks, get_world_size=lambda: 2))
    with scripted(replaced_after_opening(*files)) as server:
        found = read_all({"uri": server.url()})
        assert isinstance(found["large"], Weight)
        assert {name: tensor[0].item() for name, tensor in found.items()} == {
            "small": 1.0,
            "large": 1.0,
        }


def read_all(settings: dict[str, Any], model: str = "unused") -> dict[str, torch.Tensor]:
    return dict(weights(Settings(settings), model))


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((1000,), float(i)) for i in range(6)}
    shards = {"max_shard_size": str(9000)}
    tensorizer_ops.save(tmp_path / "hf" / "model.safetensors", tensors, options=shards)
    assert_same(read_all({}, str(tmp_path / "hf")), tensors)
    names = list(tensors)
    for part in (names[:2], names[2:]):
        some = {name: tensors[name] for name in part}
        tensorizer_ops.save(tmp_path / "two" / f"{part[0]}.tensors", some)
    assert_same(read_all({}, str(tmp_path / "two")), tensors)
    assert_same(read_all({"uri": str(tmp_path / "two")}), tensors)
    tensorizer_ops.save(tmp_path / "two" / "again.tensors", {"t5": tensors["t5"]})
    with pytest.raises(ValueError, match=r"'t5' is in '.*again.tensors' and in '.*t2.tensors'"):
        read_all({}, str(tmp_path / "two"))
    with pytest.raises(FileNotFoundError, match="'facebook/opt' is no file or folder"):
        read_all({}, "facebook/opt")


def test_the_files_of_a_prefix_on_a_server(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((1000,), float(i)) for i in range(6)}
    with nginx(tmp_path) as web:
        tensorizer_ops.save(web.root / "a" / "model.tensors", tensors)
        shards = {"max_shard_size": str(9000)}
        tensorizer_ops.save(web.root / "b" / "model.safetensors", tensors, options=shards)
        tensorizer_ops.save(web.root / "c", tensors)
        for place in (
            *("a", "a/", "a/model.tensors", "b", "b/model.safetensors.index.json"),
            *("a?version=1", "a/?version=1", "a/model.tensors?version=1", "c?file=1"),
        ):
            assert_same(read_all({"uri": web.url(place)}), tensors)
        with pytest.raises(FileNotFoundError, match="/d' answers with status 404"):
            read_all({"uri": web.url("d")})


def test_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", bytes(range(32)).hex())
    key = {"key": "env:MODEL_KEY"}
    tensors = {"w": torch.ones(10)}
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, tensors, options=key)
    given = {"uri": str(path), "verify": "all", "threads": 1, "options": key}
    assert_same(read_all(given), tensors)
    tensorizer_ops.save(tmp_path / "no.tensors", tensors, hashes="none")
    with pytest.raises(ValueError, match="saved without hashes"):
        read_all({"uri": str(tmp_path / "no.tensors"), "verify": "all"})
    for wrong, kind, message in [
        ({"verfy": "all"}, ValueError, "has 'verfy', which is none of uri, model"),
        ({"uri": 3}, TypeError, "uri in --model-loader-extra-config is int"),
        ({"uri": str(path), "threads": "2"}, TypeError, "threads"),
        ({"uri": str(path), "verify": "some"}, ValueError, "some"),
    ]:
        with pytest.raises(kind, match=message):
            read_all(wrong)


@pytest.mark.parametrize("as_one_module", [False, True])
def test_a_head_that_is_tied_and_differs(tmp_path: Path, as_one_module: bool) -> None:
    model = torch.nn.Module()
    model.lm_head, model.other = (torch.nn.Linear(4, 9, bias=False) for _ in range(2))
    model.embed_tokens = model.lm_head if as_one_module else torch.nn.Embedding(9, 4)
    model.embed_tokens.weight = model.lm_head.weight
    embed, head = torch.randn(9, 4), torch.randn(9, 4)
    place = tmp_path / "m.tensors"

    def names(tensors: dict[str, torch.Tensor]) -> list[str]:
        tensorizer_ops.save(place, tensors)
        tied = Tied(model)
        found = tied.refusing(weights(Settings({"uri": str(place)}), "unused"))
        model.lm_head.weight = torch.nn.Parameter(embed)  # as vLLM takes models apart
        try:
            taken = [name for name, _ in found]
            Tied(model).refuse(str(place))
            return taken
        finally:
            model.lm_head.weight = model.embed_tokens.weight

    same = {"model.embed_tokens.weight": embed, "a.lm_head.weight": embed.clone()}
    for tensors in (
        {"embed_tokens.weight": embed, "other.weight": head},
        {"lm_head.weight": head, "other.weight": embed},
        {**same, "layers.61.embed_tokens.weight": head},
        {**same, "draft.lm_head.weight": head, "draft.embed_tokens.weight": head},
    ):
        assert sorted(names(tensors)) == sorted(tensors)
    why = "'model.embed_tokens.weight' and 'lm_head.weight' differ, and the model ties them"
    draft = {f"draft.{name}.weight": torch.zeros(9, 4) for name in ("embed_tokens", "lm_head")}
    with pytest.raises(ValueError, match=r"'embed_tokens\.weight' and 'lm_head\.weight' differ"):
        names({"embed_tokens.weight": embed, "lm_head.weight": head, **draft})
    for other in (head, embed.half(), embed[:8]):
        with pytest.raises(ValueError, match=why):
            names({"model.embed_tokens.weight": embed, "lm_head.weight": other})
        with pytest.raises(ValueError, match=why):
            Tied(model).refuse(str(place))


@pytest.mark.parametrize("name", ["shared", "encoder.embed_tokens", "decoder.embed_tokens"])
def test_names_that_end_alike_and_are_tied(tmp_path: Path, name: str) -> None:
    model = torch.nn.Module()
    model.shared = torch.nn.Embedding(9, 4)
    model.encoder, model.decoder = torch.nn.Module(), torch.nn.Module()
    model.encoder.embed_tokens = model.decoder.embed_tokens = model.shared
    place = tmp_path / "m.tensors"
    tensorizer_ops.save(place, {key: each.clone() for key, each in model.state_dict().items()})
    Tied(model).refuse(str(place))
    other = {f"{name}.weight": torch.ones(9, 4)}
    tensorizer_ops.save(place, {**tensorizer_ops.load(place, copy=True), **other})
    with pytest.raises(ValueError, match=f"'{name}.weight'.* differ, and the model ties them"):
        Tied(model).refuse(str(place))


def test_the_servers_find_the_plugins_and_are_not_imported() -> None:
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        (found,) = entry_points(group=group, name="tensorizer_ops")
        assert callable(found.load())
    code = """
import sys, tensorizer_ops, tensorizer_ops.vllm, tensorizer_ops.sglang
assert not {"vllm", "sglang"} & set(sys.modules)
"""
    run_python(code)
