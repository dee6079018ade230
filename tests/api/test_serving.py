"""The weights that servers of models get: their files, and tensors that are read in parts.

``Weight`` is compared with plain tensors under the operations that weight loaders use. The servers
themselves are in ``tests/compat/test_servers.py``.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import types
from collections.abc import Callable, Iterator
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
from support.views import COLUMNS, ROWS, VIEWS
from tensorizer_ops._front import serving
from tensorizer_ops._front.serving import Settings, Stored, Weight, weights

READS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.t()[2:4],
    lambda x: x.reshape(-1),
    lambda x: x.view(torch.int32),
    lambda x: x[1:].to(torch.bfloat16),
    lambda x: x.clone() + x,
    lambda x: torch.cat([x[:3], x[5:]]),
    lambda x: x[x > 0],
    lambda x: x[torch.tensor([2, 0])],
    lambda x: torch.zeros(ROWS, COLUMNS).copy_(x),
    lambda x: torch.from_numpy(x[3].numpy()),
    lambda x: torch.tensor(x[3:5].tolist()),
    lambda x: torch.nn.Parameter(x, requires_grad=False) * 2,
    lambda x: x[:, 2:10].contiguous().view(-1),
    lambda x: x.narrow(1, 3, 7).reshape(-1),
    lambda x: x[2].view(2, -1).t(),
    lambda x: x[:4].clone().apply_(lambda value: value + 1),
    lambda x: copy.deepcopy(x[1]),
    lambda x: pickle.loads(pickle.dumps(x[:, 1])),
]


@pytest.fixture
def plain() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def make(tmp_path: Path, plain: torch.Tensor) -> Iterator[Callable[[], Weight]]:
    tensorizer_ops.save(tmp_path / "m.tensors", {"w": plain})
    with tensorizer_ops.Reader(tmp_path / "m.tensors") as reader:
        yield lambda: Weight(Stored(reader, "w"))


def test_operations_give_what_those_of_plain_tensors_give(
    make: Callable[[], Weight], plain: torch.Tensor
) -> None:
    read = make()
    read.t()
    for number, operation in enumerate([*VIEWS, *READS]):
        expected = operation(plain)
        for weight in (make(), read):
            found = operation(weight)
            assert isinstance(found, Weight) == (operation in VIEWS), number
            assert found.shape == expected.shape and found.dtype == expected.dtype, number
            assert torch.equal(found.clone(), expected), number
            if operation in VIEWS and found.numel():
                assert found.is_contiguous() == expected.is_contiguous(), number
                assert found.stride() == expected.stride(), number
                assert found.storage_offset() == expected.storage_offset(), number


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.split([10, 10]),
        lambda x: x.split([-1, 65]),
        lambda x: x.split([10, 54, 5]),
        lambda x: x.split(0),
        lambda x: x[0, 0].split(1),
        lambda x: x.narrow(0, 60, 5),
        lambda x: torch.ops.aten.slice.Tensor(x, 0, 0, 4, -1),
    ],
)
def test_wrong_views_raise_what_plain_tensors_raise(
    make: Callable[[], Weight], plain: torch.Tensor, operation: Callable[[torch.Tensor], Any]
) -> None:
    with pytest.raises(RuntimeError) as expected:
        operation(plain)
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value).partition("\n")[0])):
        operation(make())


def test_only_parts_are_read(
    make: Callable[[], Weight], monkeypatch: pytest.MonkeyPatch, plain: torch.Tensor
) -> None:
    read: list[int] = []
    load = tensorizer_ops.Reader.load

    def counted(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        found = load(*args, **kwargs)
        read.extend(tensor.numel() for tensor in found.values())
        return found

    monkeypatch.setattr(tensorizer_ops.Reader, "load", counted)
    weight = make()
    parts = [operation(weight) for operation in VIEWS]
    assert "'w'" in repr(parts[0]) and not read
    torch.empty(ROWS, COLUMNS, device="meta").copy_(weight)
    assert not read
    target = torch.empty(8, COLUMNS)
    target.copy_(weight[8:16])
    assert read == [8 * COLUMNS] and torch.equal(target, plain[8:16])
    half = weight[:, :24]
    assert half.sum() == half.sum()
    assert read[1:] == [ROWS * 24]  # once
    read.clear()
    with torch.inference_mode():
        for loaded in (weight, make()):
            target.copy_(loaded.narrow(0, 16, 24).chunk(3)[1])
            assert read == [8 * COLUMNS] and torch.equal(target, plain[24:32])
            assert loaded[1:3].reshape(-1).shape == (2 * COLUMNS,)
            read.clear()


def test_what_is_written_is_seen_by_all_parts(make: Callable[[], Weight]) -> None:
    weight = make()
    row, columns = weight[3], weight.narrow(1, 2, 5)
    columns.clone()  # has been read before
    row.zero_()
    assert not columns[3].clone().any() and not weight[3].clone().any() and weight[4].clone().any()
    weight[3:5] = 7
    assert (row.clone() == 7).all()
    torch.add(torch.ones(COLUMNS), 1, out=row)
    assert (weight[3].clone() == 2).all()


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[3].view(2, -1).mul_(2),
        lambda x: x[:4].t().zero_(),
        lambda x: x[5].apply_(lambda value: 2.0),
        lambda x: x[:, 1].map_(torch.zeros(ROWS), lambda one, other: other),
        lambda x: x[6:8].numpy().fill(3),
        lambda x: x.narrow(1, 4, 2).unsqueeze(0).copy_(torch.ones(1, ROWS, 2)),
    ],
)
def test_what_is_written_through_a_view_is_seen(
    make: Callable[[], Weight], plain: torch.Tensor, write: Callable[[torch.Tensor], Any]
) -> None:
    weight, expected = make(), plain.clone()
    seen = weight[2:9]
    seen.clone()  # has been read before
    write(weight)
    write(expected)
    assert torch.equal(seen.clone(), expected[2:9])
    assert torch.equal(weight.clone(), expected) and not torch.equal(expected, plain)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t_(),
        lambda x: x[2:4].transpose_(0, 1),
        lambda x: x.swapaxes_(0, 1),
        lambda x: x[:1].squeeze_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.as_strided_((4, 4), (1, 4)),
        lambda x: x.resize_(4, 4),
        lambda x: x.set_(torch.ones(4, 4)),
        lambda x: x.data.t_(),
        lambda x: setattr(x, "data", x.data.t().contiguous()),
    ],
)
def test_the_shape_and_the_memory_of_a_weight_stay(
    make: Callable[[], Weight], plain: torch.Tensor, change: Callable[[torch.Tensor], Any]
) -> None:
    weight = make()
    for mode in (False, True):
        with torch.inference_mode(mode), pytest.raises(ValueError, match=r"t\(\) in place of t_"):
            change(weight)
    assert weight.squeeze_().detach_() is weight  # which change nothing
    assert torch.equal(torch.zeros(ROWS, COLUMNS).copy_(weight), plain)


# Each rank takes half of the rows of one weight, and half of the columns of another.
HALVES = """
from tensorizer_ops._front.serving import Settings, Weight, weights
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
        ({"verfy": "all"}, ValueError, "has 'verfy', which is none of uri, verify"),
        ({"uri": 3}, TypeError, "uri in --model-loader-extra-config is int"),
        ({"uri": str(path), "threads": "2"}, TypeError, "threads"),
        ({"uri": str(path), "verify": "some"}, ValueError, "some"),
    ]:
        with pytest.raises(kind, match=message):
            read_all(wrong)


def test_the_servers_find_the_plugins_and_are_not_imported() -> None:
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        (found,) = entry_points(group=group, name="tensorizer_ops")
        assert callable(found.load())
    code = """
import sys, tensorizer_ops, tensorizer_ops.vllm, tensorizer_ops.sglang
assert not {"vllm", "sglang"} & set(sys.modules)
"""
    run_python(code)
