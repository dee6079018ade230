"""Saves of safetensors models in several files: `max_shard_size`."""

from __future__ import annotations

import json
import os
import random
import re
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file

import tensorizer_ops
from support.process import feed, fork_python
from support.samples import assert_same, random_model, sample
from support.shards import Tensors

ops = torch.ops.tensorizer

INDEX = "model.safetensors.index.json"


def save(folder: Path, model: Tensors, most: int, **how: object) -> None:
    options = {"max_shard_size": str(most), **how.pop("options", {})}
    tensorizer_ops.save(folder / "model.safetensors", model, options=options, **how)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def shard_names(count: int) -> list[str]:
    return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


def read_with_safetensors(folder: Path) -> Tensors:
    """Load a sharded model as transformers does, and check that the index is right."""
    index = json.loads((folder / INDEX).read_text())
    loaded: Tensors = {}
    for shard in sorted(set(index["weight_map"].values())):
        part = load_file(folder / shard)
        assert all(index["weight_map"][name] == shard for name in part)
        assert not part.keys() & loaded.keys()
        loaded.update(part)
    assert loaded.keys() == index["weight_map"].keys()
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in loaded.values())}
    return loaded


def floats(**counts: int) -> Tensors:
    return {name: sample(torch.float32, (count,), count) for name, count in counts.items()}


def test_files_are_filled_in_the_order_of_the_tensors(tmp_path: Path) -> None:
    save(tmp_path, floats(d=10, a=20, c=31, b=300, f=40, g=60, h=1), 400)
    assert names_in(tmp_path) == [*shard_names(4), INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 462 * 4}
    assert list(index["weight_map"]) == sorted("abcdfgh")
    for name, group in zip(shard_names(4), ["acd", "b", "fg", "h"], strict=True):
        with safe_open(tmp_path / name, framework="pt") as opened:
            assert opened.keys() == list(group)
        assert all(index["weight_map"][tensor] == name for tensor in group)


@pytest.mark.parametrize("seed", range(20))
def test_random_models_are_read_by_safetensors(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    model = random_model(dice)
    total = sum(tensor.nbytes for tensor in model.values())
    save(tmp_path, model, max(total // dice.randrange(2, 9), 1), metadata={"format": "pt"})
    theirs = read_with_safetensors(tmp_path)
    assert_same({name: theirs[name] for name in model}, model)
    ours = tensorizer_ops.load(tmp_path, verify="all")
    assert_same({name: ours[name] for name in model}, model)
    assert tensorizer_ops.metadata(tmp_path) == {"format": "pt"}
    for shard in tmp_path.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as opened:
            assert opened.metadata()["format"] == "pt"


def test_the_index_is_written_as_transformers_writes_it(tmp_path: Path) -> None:
    save(tmp_path, {"b": torch.ones(2), 'quote " \\ \n': torch.ones(2)}, 8)
    text = (tmp_path / INDEX).read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_a_model_that_fits_is_one_file(tmp_path: Path) -> None:
    model = floats(a=10, b=20)
    for most in (120, 121, 1 << 40):
        save(tmp_path, model, most)
        assert names_in(tmp_path) == ["model.safetensors"]
        plain = tmp_path / "model.safetensors"
        assert_same(load_file(plain), model)
    tensorizer_ops.save(tmp_path / "plain", model, options={"format": "safetensors"})
    assert (tmp_path / "plain").read_bytes() == plain.read_bytes()
    save(tmp_path / "none", {}, 1)
    assert load_file(tmp_path / "none" / "model.safetensors") == {}


def test_the_last_way_to_save_counts(tmp_path: Path) -> None:
    """Neither one file nor an index of an earlier save is found instead of the new model."""
    one, two = floats(a=10, b=20), floats(c=11, d=21)
    save(tmp_path, one, 1000)
    save(tmp_path, two, 100)
    assert names_in(tmp_path) == [*shard_names(2), INDEX]
    assert_same(tensorizer_ops.load(tmp_path), two)
    save(tmp_path, one, 100)
    assert_same(tensorizer_ops.load(tmp_path), one)
    save(tmp_path, two, 1000)
    assert_same(tensorizer_ops.load(tmp_path), two)
    assert "model.safetensors" in names_in(tmp_path) and INDEX not in names_in(tmp_path)


def test_every_place_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = floats(a=10, b=20)
    monkeypatch.chdir(tmp_path)
    options = {"max_shard_size": "100"}
    for uri in ("m.safetensors", f"file://{tmp_path}/deep%20er/m.safetensors", "x/y/m.safetensors"):
        ops.save(uri, model, options=options)
        assert_same(ops.load(uri + ".index.json"), model)
    assert (tmp_path / "deep er" / "m-00002-of-00002.safetensors").exists()
    ops.save(str(tmp_path / "other"), model, options={"format": "tensors"})


def test_the_index_is_named_where_the_file_is_missing(tmp_path: Path) -> None:
    save(tmp_path, floats(a=10, b=20), 100)
    with pytest.raises(FileNotFoundError, match=r"several files: load .*index\.json"):
        tensorizer_ops.load(tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError) as info:
        tensorizer_ops.load(tmp_path / "other.safetensors")
    assert "several files" not in str(info.value)


def test_converts_to_several_files(tmp_path: Path) -> None:
    model = {f"t{i}": sample(torch.float32, (100, i), i) for i in range(20)}
    tensorizer_ops.save(tmp_path / "m.tensors", model, metadata={"a": "b"})
    for source in (tmp_path / "m.tensors", tmp_path / "one" / INDEX):
        folder = tmp_path / ("one" if source.suffix == ".tensors" else "two")
        tensorizer_ops.convert(
            source, folder / "model.safetensors", target_options={"max_shard_size": "20000"}
        )
        assert_same(
            dict(sorted(read_with_safetensors(folder).items())), dict(sorted(model.items()))
        )
        assert list(ops.names(str(folder))) == list(model)
        assert tensorizer_ops.metadata(folder) == {"a": "b"}
        ops.verify(str(folder))


def test_converts_from_a_pipe(tmp_path: Path) -> None:
    model = {f"t{i}": sample(torch.float32, (100, i), i) for i in range(1, 20)}
    save_file(model, tmp_path / "m.safetensors")
    fifo = tmp_path / "fifo"
    with feed(str(fifo), (tmp_path / "m.safetensors").read_bytes()):
        tensorizer_ops.convert(
            fifo, tmp_path / "to" / "model.safetensors", target_options={"max_shard_size": "9000"}
        )
    assert_same(
        dict(sorted(read_with_safetensors(tmp_path / "to").items())), dict(sorted(model.items()))
    )


def test_progress_counts_all_files(tmp_path: Path) -> None:
    model = {f"t{i}": torch.zeros(1 << 20) for i in range(8)}
    seen: list[tuple[int, int]] = []
    save(tmp_path, model, 5 << 20, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (32 << 20, 32 << 20)
    assert {total for _, total in seen} <= {0, 32 << 20}


def test_scripts_and_background_saves(tmp_path: Path) -> None:
    @torch.jit.script
    def scripted(path: str, x: torch.Tensor) -> None:
        torch.ops.tensorizer.save(path, {"x": x, "y": x + 1}, options={"max_shard_size": "16"})

    scripted(str(tmp_path / "model.safetensors"), torch.ones(4))
    assert_same(read_with_safetensors(tmp_path), {"x": torch.ones(4), "y": torch.ones(4) + 1})
    options = {"max_shard_size": "16"}
    job = tensorizer_ops.save_async(
        tmp_path / "b" / "model.safetensors", floats(a=4, b=4), options=options
    )
    job.result()
    assert_same(read_with_safetensors(tmp_path / "b"), floats(a=4, b=4))


REFUSED = {
    "a .tensors file": ("m.tensors", {}, "writes a .tensors file"),
    "another name": ("m.bin", {"format": "safetensors"}, "ends with .safetensors"),
    "no name": (".safetensors", {}, "ends with .safetensors"),
    "no size": ("m.safetensors", {"max_shard_size": "0"}, "a number of bytes, 1 or more"),
    "a size with no such unit": ("m.safetensors", {"max_shard_size": "5GX"}, "a number of bytes"),
    "a key": ("m.safetensors", {"key": "named:shards"}, "cannot be encrypted"),
    "too many files": ("m.safetensors", {"max_shard_size": "1"}, "a model can have 4096"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refusals(tmp_path: Path, why: str) -> None:
    name, options, message = REFUSED[why]
    tensorizer_ops.keys.add("shards", key=bytes(32))
    model = {f"{i}": torch.ones(1) for i in range(4100)}
    with pytest.raises(ValueError, match=message):
        ops.save(str(tmp_path / name), model, options={"max_shard_size": "1000"} | options)
    assert names_in(tmp_path) == []


def test_a_name_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Also where its tensors would be in two files."""
    path = str(tmp_path / "model.safetensors")
    x = torch.ones(4)
    for options in ({}, {"max_shard_size": "16"}, {"max_shard_size": "1000"}):
        with pytest.raises(ValueError, match="tensor 'x' is to be saved twice"):
            ops.save_tensors(path, ["x", "y", "x"], [x, x + 1, x + 2], options=options)
    assert names_in(tmp_path) == []


def test_targets_without_a_folder_are_refused(tmp_path: Path) -> None:
    model = floats(a=10, b=20)
    options = {"max_shard_size": "100"}
    fifo = tmp_path / "fifo.safetensors"
    os.mkfifo(fifo)
    with open(tmp_path / "open", "wb") as stream:
        for uri in (
            f"fd:{stream.fileno()}",
            f"/dev/fd/{stream.fileno()}",
            str(fifo),
            "redis://localhost:1/m.safetensors",
            "http://localhost:1/m.safetensors",
        ):
            with pytest.raises(ValueError, match="max_shard_size"):
                ops.save(uri, model, options=options | {"format": "safetensors"})
    with pytest.raises(ValueError, match="max_shard_size"):
        torch.classes.tensorizer.Writer(str(tmp_path / "m.safetensors"), options)
    assert names_in(tmp_path) == ["fifo.safetensors", "open"]


def test_a_tensor_that_cannot_be_saved_is_found_before_anything_is_written(tmp_path: Path) -> None:
    save(tmp_path, floats(a=10, b=20), 100)
    before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    with pytest.raises(ValueError, match="'z'"):
        save(tmp_path, floats(a=10, b=20) | {"z": torch.ones(2, dtype=torch.complex128)}, 100)
    assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == before


def test_a_full_disk_leaves_the_old_model(tmp_path: Path) -> None:
    save(tmp_path, floats(a=10, b=20), 100)
    before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    code = f"""
import resource, signal, torch, tensorizer_ops
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
model = {{"a": torch.ones(1000), "b": torch.ones(100000)}}
try:
    torch.ops.tensorizer.save({str(tmp_path / "model.safetensors")!r}, model,
                              options={{"max_shard_size": "4000"}})
except OSError as error:
    print("refused")
"""
    assert fork_python(code).stdout.strip() == "refused"
    assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == before


def test_new_files_keep_access_rights(tmp_path: Path) -> None:
    save(tmp_path, floats(a=10, b=20), 100)
    for name in shard_names(2):
        (tmp_path / name).chmod(0o640)
    save(tmp_path, floats(a=10, b=20), 100)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names_in(tmp_path)}
    assert modes.pop(INDEX) != 0o640
    assert not modes.keys() & set(shard_names(2)) and set(modes.values()) == {0o640}


def test_many_shards_hold_few_files_open(tmp_path: Path) -> None:
    code = f"""
import resource, torch, tensorizer_ops
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
model = {{str(i): torch.ones(4) for i in range(200)}}
torch.ops.tensorizer.save({str(tmp_path / "model.safetensors")!r}, model,
                          options={{"max_shard_size": "16"}})
assert len(torch.ops.tensorizer.load({str(tmp_path)!r})) == 200
"""
    fork_python(code)


def test_a_folder_with_an_older_index_is_refused(tmp_path: Path) -> None:
    older = {name: torch.zeros(1000) for name in "ab"}
    newer = {name: torch.ones(1000) for name in "ab"}
    file = tmp_path / "m.safetensors"
    tensorizer_ops.save(file, older, options={"max_shard_size": "4000"})
    tensorizer_ops.save(file, newer)
    with pytest.raises(ValueError, match=r"has a model in one file, .*m\.safetensors', and one in"):
        tensorizer_ops.load(tmp_path)
    assert_same(tensorizer_ops.load(file), newer)
    assert_same(tensorizer_ops.load(f"{file}.index.json"), older)
    tensorizer_ops.save(file, newer, options={"max_shard_size": "1000000"})
    assert_same(tensorizer_ops.load(tmp_path), newer)


def test_an_index_that_is_a_link(tmp_path: Path) -> None:
    """As in the cache of the Hub. The link stays, and what it points to is the new index."""
    target, folder = tmp_path / "blob", tmp_path / "model"
    tensors = {f"t{i}": torch.full((100,), i) for i in range(3)}
    options = {"max_shard_size": "1000"}
    tensorizer_ops.save(folder / "model.safetensors", tensors, options=options)
    index = folder / "model.safetensors.index.json"
    index.rename(target)
    index.symlink_to("../blob")
    new = {f"t{i}": torch.full((100,), -i) for i in range(4)}
    tensorizer_ops.save(folder / "model.safetensors", new, options=options)
    assert index.is_symlink() and not target.is_symlink()
    assert_same(tensorizer_ops.load(folder), new)
    tensorizer_ops.save(folder / "model.safetensors", new, options={"max_shard_size": "10000"})
    assert not index.is_symlink() and target.exists()
    assert_same(tensorizer_ops.load(folder / "model.safetensors"), new)


def test_transformers_loads_a_model_that_was_replaced(tmp_path: Path) -> None:
    """Its shards have other names than those of the older model had."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    config.save_pretrained(tmp_path)
    for _ in range(2):
        model = transformers.LlamaForCausalLM(config)
        save(tmp_path, model.state_dict(), 40_000, metadata={"format": "pt"})
    names = [path.name for path in tmp_path.glob("*.safetensors")]
    assert all(re.fullmatch(r"model-[0-9a-f]{8}-\d{5}-of-00003\.safetensors", n) for n in names)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert_same(loaded.state_dict(), model.state_dict())
    found = read_with_safetensors(tmp_path)
    assert_same({name: found[name] for name in model.state_dict()}, model.state_dict())
