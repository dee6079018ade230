"""Conversions that cast, rename and leave out tensors, and those of PyTorch checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.command import run
from support.process import Drain, feed, fork_python
from support.samples import assert_same, flip, sample, zoo
from support.shards import split, write_shards
from support.tied import SHARE, share_memory, tied
from tensorizer_ops import convert, errors, keys, load

# Larger than a piece that moves at once, smaller, and without elements. They have no NaN, whose
# bits casts change in different ways.
TENSORS = {
    "model.large": sample(torch.float32, (3001, 1000), 1).nan_to_num(),
    "model.double": sample(torch.float64, (700, 999), 2).nan_to_num(),
    "model.small": sample(torch.float16, (3,), 3).nan_to_num(),
    "optimizer.step": torch.tensor(7),
    "optimizer.none": torch.empty(0, 3),
}


def cast(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


@pytest.fixture
def key() -> Iterator[dict[str, str]]:
    keys.add("changes", key=bytes(range(32)))
    yield {"key": "named:changes"}
    keys.remove("changes")


@pytest.fixture(params=["tensors", "safetensors", "shards"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "shards":
        return write_shards(tmp_path / "from", split(TENSORS, 3)).parent
    tensorizer_ops.save(tmp_path / f"from.{request.param}", TENSORS)
    return tmp_path / f"from.{request.param}"


@pytest.mark.parametrize("target", ["to.tensors", "to.safetensors", "to/model.safetensors"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_casts_floating_point_tensors(
    source: Path, tmp_path: Path, target: str, dtype: torch.dtype
) -> None:
    options = {"max_shard_size": "8MB"} if "/" in target else {}
    options["memory_ceiling"] = "1MiB"
    to = tmp_path / target
    convert(source, to, dtype=dtype, target_options=options, threads=3)
    to = to.parent if "/" in target else to
    found = load(to, verify="all")
    assert_same({name: found[name] for name in TENSORS}, cast(TENSORS, dtype))
    if to.suffix:
        assert tensorizer_ops.names(to) == tensorizer_ops.names(source)


def test_casts_every_type_as_a_load_does(path: str, tmp_path: Path) -> None:
    tensorizer_ops.save(path, zoo())
    for dtype in (torch.float32, torch.float8_e5m2):
        convert(path, tmp_path / "to.tensors", dtype=dtype)
        assert_same(load(tmp_path / "to.tensors", verify="all"), load(path, dtype=dtype))
    with pytest.raises(errors.InvalidArgument, match="dtype is int8, and must be a real floating"):
        convert(path, tmp_path / "none.tensors", dtype=torch.int8)
    assert not (tmp_path / "none.tensors").exists()


def test_encrypted_files_and_pipes(path: str, tmp_path: Path, key: dict[str, str]) -> None:
    changes: Any = {"dtype": torch.bfloat16, "rename": {"^model.": ""}, "names": list(TENSORS)[:3]}
    expected = {n.removeprefix("model."): t.bfloat16() for n, t in list(TENSORS.items())[:3]}
    tensorizer_ops.save(path, TENSORS, options=key)
    to = tmp_path / "to.tensors"
    convert(path, to, source_options=key, target_options=key, **changes)
    assert_same(load(to, verify="all", options=key), expected)
    fifo = str(tmp_path / "fifo")
    with feed(fifo, Path(path).read_bytes()):
        convert(fifo, to, source_options=key, threads=3, **changes)
    assert_same(load(to, verify="all"), expected)
    drain = Drain(str(tmp_path / "drain"))
    with drain:
        convert(path, str(tmp_path / "drain"), source_options=key, threads=3, **changes)
        drain.wait()
    assert drain.data == to.read_bytes()


@pytest.mark.parametrize("kind", ["tensors", "safetensors"])
def test_damage_is_found_in_tensors_that_are_cast(tmp_path: Path, kind: str) -> None:
    source, to = tmp_path / f"from.{kind}", tmp_path / "to.tensors"
    tensorizer_ops.save(source, TENSORS)
    place = torch.classes.tensorizer.Reader(str(source), None).stored("model.double")["data_offset"]
    flip(source, int(place) + 2_000_000)
    with pytest.raises(errors.HashMismatch, match=r"model\.double"):
        convert(source, to, dtype=torch.float16)
    assert not to.exists()
    convert(source, to, dtype=torch.float16, names=["model.large"])  # which is not damaged


def test_names_are_chosen_and_changed(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "to.tensors"
    convert(source, to, names=["optimizer.step", "model.small", "model.small"])
    assert sorted(tensorizer_ops.names(to)) == ["model.small", "optimizer.step"]
    with pytest.raises(KeyError, match=r"no tensor 'model\.smal'.*did you mean 'model\.small'"):
        convert(source, to, names=["model.smal"])
    first = {r"^model\.(\w)(\w*)$": r"\2.\1", "^model": "never", "optimizer": "o"}
    with pytest.raises(errors.InvalidArgument, match=r"'\^model' matches.* is 'model\."):
        convert(source, to, rename=first)
    del first["^model"]
    convert(source, to, rename=first)
    renamed = ["arge.l", "ouble.d", "mall.s", "o.step", "o.none"]
    assert_same(load(to, names=renamed), dict(zip(renamed, TENSORS.values(), strict=True)))
    convert(source, to, rename=str.upper)
    assert set(tensorizer_ops.names(to)) == set(map(str.upper, TENSORS))


REFUSED: dict[str, tuple[Any, str]] = {
    "one name": ({r"\..*": ""}, r"tensors '\S+' and '\S+' would both have the name '(mod|opt)"),
    "no pattern": ({"(": ""}, "no regular expression"),
    "no group": ({"model": r"\1"}, "no regular expression.*invalid group"),
    "nothing": ({r"^modle\.": ""}, r"'\^modle\\\\\.' matches: the name most like it is 'model\."),
}


@pytest.mark.parametrize(("rename", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(source: Path, tmp_path: Path, rename: Any, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        convert(source, tmp_path / "to.tensors", rename=rename)
    assert not (tmp_path / "to.tensors").exists()
    with pytest.raises(TypeError, match="returned int for"):
        convert(source, tmp_path / "to.tensors", rename=len)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [SHARE, {"share": "false"}], ids=["shared", "apart"])
@pytest.mark.parametrize("left", [["w.3", "w.2", "half"], ["w", "bias", "half.2", "w.3"]])
def test_ties_stay_without_the_first_name(
    path: str, tmp_path: Path, options: dict[str, str], left: list[str]
) -> None:
    tensorizer_ops.save(path, tied(), options=SHARE)
    to = tmp_path / "to.tensors"
    changes: Any = {"names": left, "rename": {"$": ".new"}, "dtype": torch.float16}
    convert(path, to, target_options=options, **changes)
    found = load(to, verify="all")
    wanted = {n: t for n, t in tied().items() if n in left}
    assert_same(found, {f"{n}.new": t for n, t in cast(wanted, torch.float16).items()})
    assert share_memory(found["w.3.new"], found[f"{min(left[:2])}.new"]) == (
        options == SHARE and "w.2" in left
    )


def test_a_pinned_digest_is_of_the_whole_file(path: str, tmp_path: Path) -> None:
    to = tmp_path / "to.tensors"
    tensorizer_ops.save(path, TENSORS, hashes="none")
    pin = {"digest": tensorizer_ops.digest(path)}
    convert(path, to, source_options=pin, dtype=torch.bfloat16)
    with pytest.raises(errors.InvalidArgument, match="'digest' is given, and only some"):
        convert(path, to, source_options=pin, names=["model.small"])
    tensorizer_ops.save(path, TENSORS, options={"digests": "true"})
    convert(path, to, source_options=pin, names=["model.small"])
    tensorizer_ops.save(path, TENSORS | {"more": torch.ones(1)}, options={"digests": "true"})
    with pytest.raises(errors.HashMismatch):
        convert(path, to, source_options=pin, names=["model.small"])


def test_pytorch_checkpoints(tmp_path: Path) -> None:
    source, to = tmp_path / "m.pt", tmp_path / "to.safetensors"
    torch.save({"model": {n: t.t() if t.dim() == 2 else t for n, t in TENSORS.items()}}, source)
    changes: Any = {"names": list(TENSORS)[:4], "rename": {r"^\w+\.": ""}}
    convert(source, to, dtype=torch.bfloat16, **changes, target_options={"memory_ceiling": "1MiB"})
    kept = {n: t.t() if t.dim() == 2 else t for n, t in list(TENSORS.items())[:4]}
    expected = {n.partition(".")[2]: t for n, t in cast(kept, torch.bfloat16).items()}
    assert_same(dict(sorted(load(to, verify="all").items())), dict(sorted(expected.items())))
    torch.save({"model": {"a": torch.ones(2)}, "ema": {"b": torch.ones(2)}}, source)
    with pytest.warns(UserWarning, match="entry= takes another one: 'ema'") as warned:
        convert(str(source).encode(), to)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="left out: model"):
        convert(source, to, entry="ema", progress=lambda done, total: None)
    assert tensorizer_ops.names(to) == ["b"]
    with pytest.warns(UserWarning), pytest.raises(KeyError, match="no tensor 'c' among its 1"):
        convert(source, to, entry="ema", names=["c"])
    with pytest.raises(errors.InvalidArgument, match="entry= is for PyTorch checkpoints"):
        convert(to, tmp_path / "x.tensors", entry="ema")
    with pytest.raises(errors.InvalidArgument, match="without options"):
        convert(source, to, entry="ema", source_options={"key": "env:X"})


def test_a_folder_that_becomes_a_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").touch()
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    with pytest.raises(errors.FileError, match="Not a directory"):
        convert(tmp_path / "m", tmp_path / "new.tensors")


def test_the_command(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "to.tensors"
    renames = ["--map", r"^model\.(?=s)=", "--map", r"model\.(.*)=\1.weight"]
    run("convert", source, to, "--dtype", "bfloat16", "--filter", "model.*", *renames)
    expected = cast(TENSORS, torch.bfloat16)
    expected = {
        "large.weight": expected["model.large"],
        "double.weight": expected["model.double"],
        "small": expected["model.small"],
    }
    found = load(to, verify="all")
    assert_same({name: found[name] for name in expected}, expected)
    assert len(found) == 3
    error = run("convert", source, to, "--filter", "modle.*", status=1).stderr
    assert "--filter: no tensor is left that 'modle.*' matches: the name most like it" in error
    error = run("convert", source, to, "--map", "modle=x", status=1).stderr
    assert "--map: no tensor is left" in error
    error = run("convert", source, to, "--map", "modle", status=2).stderr
    assert "a map is PATTERN=REPLACEMENT" in error
    error = run("convert", source, to, "--dtype", "bfloat", status=2).stderr
    assert "bfloat16" in error


PEAK = """
import sys, torch, tensorizer_ops

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10

source, target = sys.argv[1:]
tensors = {str(i): torch.ones(24 << 18) for i in range(4)}
if source.endswith(".pt"):
    torch.save(tensors, source)
else:
    tensorizer_ops.save(source, tensors)
del tensors
how = dict(rename={"^": "x."}, dtype=torch.float64)
small = {"0": torch.ones(100)}
tensorizer_ops.save(target, small)
tensorizer_ops.convert(target, target + ".2", **how)
before = status("RssAnon")
open("/proc/self/clear_refs", "w").write("5")
seen = []
tensorizer_ops.convert(source, target, **how, progress=lambda *_: seen.append(status("RssAnon")))
assert seen and max(seen) - before < 64 << 20, (max(seen) - before) >> 20
"""


@pytest.mark.parametrize("name", ["from.tensors", "from.pt"])
def test_memory_is_bounded(tmp_path: Path, name: str) -> None:
    fork_python(PEAK, str(tmp_path / name), str(tmp_path / "to.tensors"))
