"""Sharded safetensors models: an index and its files load as one file."""

from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tensorizer_ops
from support.process import fork_python
from support.samples import DTYPES, SAFETENSORS_NAMES, assert_same, random_model, raw, sample
from support.shards import Tensors, split, write_shards

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader


def tensors() -> Tensors:
    return {
        **{f"{name}.weight": sample(DTYPES[name], (40, 50)) for name in SAFETENSORS_NAMES},
        "large": sample(torch.float32, (700, 1000)),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "ü \n": torch.ones(3),
    }


@pytest.fixture
def index(tmp_path: Path) -> str:
    return str(write_shards(tmp_path / "model", split(tensors(), 4), {"format": "pt"}))


def is_mapped(tensor: torch.Tensor, folder: str) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in fields[0].split("-"))
        if low <= tensor.data_ptr() < high:
            return fields[5:] != [] and fields[5].startswith(folder)
    return False


@pytest.mark.parametrize("seed", range(20))
def test_random_models_load_as_safetensors_loads_them(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    model = random_model(dice)
    path = write_shards(tmp_path / "model", split(model, dice.randrange(1, 5), seed))
    theirs: Tensors = {}
    for shard in sorted(path.parent.glob("*.safetensors")):
        theirs.update(load_file(shard))
    ours = tensorizer_ops.load(path, copy=dice.random() < 0.5)
    assert_same(dict(sorted(ours.items())), dict(sorted(theirs.items())))


@pytest.mark.parametrize("copy", [False, True])
def test_every_way_to_load(index: str, copy: bool) -> None:
    wanted = dict(sorted(tensors().items()))
    folder = os.path.dirname(index)
    for uri in (index, folder, Path(folder), f"file://{index}", folder + "/"):
        assert_same(dict(sorted(tensorizer_ops.load(uri, copy=copy).items())), wanted)
    names = ["large", "int8.weight", "scalar", "bfloat16.weight"]
    some = {name: wanted[name] for name in names}
    assert_same(tensorizer_ops.load(index, names=names, copy=copy), some)
    assert_same(dict(zip(names, ops.load_tensors(index, names), strict=True)), some)
    outputs = {name: torch.zeros_like(tensor) for name, tensor in some.items()}
    ops.load_into(index, names, list(outputs.values()))
    assert_same(outputs, some)
    assert sorted(ops.names(folder)) == sorted(wanted)
    loaded = tensorizer_ops.load(index, names=names, dtype=torch.float64, device="cpu")
    assert_same(loaded, {n: t.double() if t.is_floating_point() else t for n, t in some.items()})


def test_names_come_shard_by_shard(tmp_path: Path) -> None:
    shards = [{"b": torch.ones(2), "d": torch.ones(3)}, {"a": torch.ones(1), "c": torch.ones(4)}]
    path = write_shards(tmp_path / "model", shards)
    assert ops.names(str(path)) == ["b", "d", "a", "c"]


def test_a_reader_gives_everything(index: str) -> None:
    reader = Reader(index, None)
    assert reader.shape("large") == [700, 1000]
    assert reader.metadata() == {"format": "pt"}
    assert tensorizer_ops.metadata(index) == {"format": "pt"}
    assert pickle.loads(pickle.dumps(reader)).names() == reader.names()
    with pytest.raises(KeyError, match="no tensor 'none'"):
        reader.shape("none")


def test_slices(index: str) -> None:
    wanted = tensors()
    parts = tensorizer_ops.load(
        index,
        names=["large", "int8.weight"],
        slices={"large": (slice(100, 200), slice(3, 900, 7)), "int8.weight": (slice(5, 7),)},
    )
    assert_same(
        parts,
        {"large": wanted["large"][100:200, 3:900:7], "int8.weight": wanted["int8.weight"][5:7]},
    )


def test_scripts_and_compiled_code_load(index: str) -> None:
    @torch.jit.script
    def scripted(path: str) -> torch.Tensor:
        return torch.ops.tensorizer.load(path, names=["int64.weight"])["int64.weight"] + 1

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(path: str) -> torch.Tensor:
        return tensorizer_ops.load(path, names=["int64.weight"])["int64.weight"] + 1

    wanted = tensors()["int64.weight"] + 1
    assert torch.equal(scripted(index), wanted)
    assert torch.equal(compiled(index), wanted)
    assert torch.equal(compiled(os.path.dirname(index)), wanted)


def test_modules(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    path = write_shards(tmp_path / "model", split(module.state_dict(), 3))
    other = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    tensorizer_ops.load_into(other, path)
    assert_same(other.state_dict(), module.state_dict())


def test_aligned_data_is_mapped_side_by_side(index: str) -> None:
    loaded = tensorizer_ops.load(index)
    folder = os.path.dirname(index)
    assert all(is_mapped(tensor, folder) for tensor in loaded.values() if tensor.numel())
    loaded["large"].zero_()  # a private page
    assert_same(tensorizer_ops.load(index, names=["large"]), {"large": tensors()["large"]})
    kept = loaded["large"]
    del loaded
    gc.collect()
    assert is_mapped(kept, folder)


def test_digests_are_verified(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    path = write_shards(folder, split(tensors(), 3))
    with pytest.raises(ValueError, match="nothing to verify"):
        tensorizer_ops.load(path, verify="all")
    single = str(tmp_path / "one.safetensors")
    tensorizer_ops.save(single, tensors())
    for shard in folder.glob("*.safetensors"):
        tensorizer_ops.save(shard, load_file(shard), hashes="all")
    assert_same(
        dict(sorted(tensorizer_ops.load(path, verify="all").items())),
        dict(sorted(tensors().items())),
    )
    ops.verify(str(path))
    assert tensorizer_ops.digest(path) == tensorizer_ops.digest(single)
    pin = {"digest": tensorizer_ops.digest(path)}
    assert_same(
        tensorizer_ops.load(path, names=["large"], options=pin), {"large": tensors()["large"]}
    )
    shard = sorted(folder.glob("*.safetensors"))[1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(tensorizer_ops.errors.HashMismatch):
        tensorizer_ops.load(path, verify="all")


def test_damage_is_named_by_its_shard_and_the_offset_there(tmp_path: Path) -> None:
    model = {f"t{i}": torch.full((1000,), float(i)) for i in range(6)}
    target = tmp_path / "model.safetensors"
    tensorizer_ops.save(target, model, options={"max_shard_size": "8000"})
    wanted = []
    for number, name in ((1, "t1"), (3, "t4")):
        shard = tmp_path / f"model-0000{number}-of-00003.safetensors"
        place = Reader(str(shard), None).stored(name)["data_offset"]
        data = bytearray(shard.read_bytes())
        data[int(place) + 5] ^= 1
        shard.write_bytes(data)
        wanted.append(rf"tensor '{name}' \(.*: its 4000 bytes from offset {place} of '{shard}' on")
    for name, match in zip(("t1", "t4"), wanted, strict=True):
        for work in (
            lambda: tensorizer_ops.load(tmp_path, names=[name], verify="all"),  # noqa: B023
            lambda: tensorizer_ops.load(tmp_path, names=[name], verify="all", copy=True),  # noqa: B023
        ):
            with pytest.raises(tensorizer_ops.errors.HashMismatch, match=match):
                work()
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match=".*\n".join(wanted)):
        ops.verify(str(tmp_path))
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match=wanted[0]):
        tensorizer_ops.convert(tmp_path, tmp_path / "m.tensors")


def test_models_are_converted_to_one_file(index: str, tmp_path: Path) -> None:
    for name in ("m.tensors", "m.safetensors"):
        tensorizer_ops.convert(index, tmp_path / name)
        assert_same(
            dict(sorted(tensorizer_ops.load(tmp_path / name, verify="all").items())),
            dict(sorted(tensors().items())),
        )
        assert tensorizer_ops.metadata(tmp_path / name) == {"format": "pt"}


def test_a_missing_shard_is_named(index: str) -> None:
    shard = os.path.join(os.path.dirname(index), "model-00002-of-00004.safetensors")
    os.unlink(shard)
    with pytest.raises(
        FileNotFoundError, match=r"model-00002-of-00004.*one of its 4 shards"
    ) as info:
        tensorizer_ops.load(index)
    assert info.value.filename == shard


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"without a \.tensors file and without"):
        tensorizer_ops.load(tmp_path)
    for name in "ab":
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match="several safetensors files"):
        tensorizer_ops.load(tmp_path)
    os.unlink(tmp_path / "b.safetensors")
    assert list(tensorizer_ops.load(tmp_path)) == ["a"]


def test_a_folder_with_a_tensors_file_is_a_model(tmp_path: Path) -> None:
    model, target = {"a": torch.arange(3)}, tmp_path / "copy.safetensors"
    folder = tmp_path / "model"
    tensorizer_ops.save(folder / "model.tensors", model)
    save_file({"other": torch.ones(2)}, folder / "model.safetensors")
    assert_same(tensorizer_ops.load(folder, verify="all"), model)
    assert_same(dict(tensorizer_ops.iterate(folder)), model)
    assert tensorizer_ops.info(folder).tensors[0].name == "a"
    ops.verify(str(folder))
    tensorizer_ops.convert(folder, target)
    assert_same(load_file(target), model)
    shutil.copy(folder / "model.tensors", folder / "b.tensors")
    assert list(tensorizer_ops.load(folder)) == ["other"]
    os.unlink(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"several .tensors files: .*, such as '.*b.tensors' or"):
        tensorizer_ops.load(folder)
    os.rename(folder / "b.tensors", folder / "checkpoint.tensors")
    with pytest.raises(ValueError, match=r"of several ranks: load it with .*checkpoint.load\("):
        tensorizer_ops.load(folder)


def test_an_index_outside_of_its_place(index: str, tmp_path: Path) -> None:
    text = Path(index).read_bytes()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with pytest.raises(ValueError, match="index of a sharded safetensors model"):
        ops.open(data).names()
    with open(index, "rb") as stream, pytest.raises(ValueError, match="loaded by its path"):
        ops.load(f"fd:{stream.fileno()}")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cp", index, fifo]), pytest.raises(ValueError, match="by its path"):
        ops.load(str(fifo))


def test_a_truncated_shard_is_named(index: str) -> None:
    shard = os.path.join(os.path.dirname(index), "model-00003-of-00004.safetensors")
    os.truncate(shard, os.path.getsize(shard) - 1)
    with pytest.raises(ValueError, match="model-00003-of-00004"):
        tensorizer_ops.load(index)


def test_a_shard_that_shrinks_is_noticed(index: str) -> None:
    reader = Reader(index, None)
    names = reader.names()
    shard = os.path.join(os.path.dirname(index), "model-00001-of-00004.safetensors")
    os.truncate(shard, 100)
    with pytest.raises(ValueError, match=r"model-00001-of-00004.*truncated"):
        reader.load(names, None, None, "none", True, 0)


def test_a_key_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(32))
    with pytest.raises(tensorizer_ops.errors.Crypto, match="not encrypted"):
        tensorizer_ops.load(index, options={"key": f"file:{tmp_path / 'key'}"})


def test_memory_stays_within_the_ceiling(tmp_path: Path) -> None:
    model = {f"t{i}": torch.full((1 << 20,), float(i)) for i in range(24)}  # 96 MiB
    path = write_shards(tmp_path / "model", split(model, 6))
    code = f"""
import resource, torch, tensorizer_ops
from torch import ops
ops.tensorizer.names({str(path)!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ops.tensorizer.digest({str(path)!r}, options={{"memory_ceiling": str(8 << 20)}})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    assert int(fork_python(code).stdout) < 24 << 10


def test_interrupts_are_seen_while_shards_open(tmp_path: Path) -> None:
    """Opens a model again and again until Ctrl-C arrives."""
    path = write_shards(tmp_path / "model", split(tensors(), 8))
    code = f"""
import os, signal, threading, time, torch, tensorizer_ops
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.{signal.SIGINT.name})).start()
try:
    while True:
        torch.ops.tensorizer.names({str(path)!r})
except KeyboardInterrupt:
    print("stopped")
"""
    assert fork_python(code).stdout.strip() == "stopped"


def test_raw_bytes_are_those_of_the_shards(index: str) -> None:
    wanted = tensors()
    reader = Reader(index, None)
    for name in ("large", "int8.weight"):
        stored = reader.stored(name)
        assert int(stored["data_size"]) == wanted[name].nbytes
    loaded = reader.load(["large"], None, None, "none", True, 0)["large"]
    assert raw(loaded) == raw(wanted["large"])
