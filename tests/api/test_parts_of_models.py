"""A folder that has only some of the files of a model is not loaded as if they were all."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tensorizer_ops
from support.process import fork_python
from support.samples import assert_same
from support.shards import write_shards
from tensorizer_ops._front import serving

ops = torch.ops.tensorizer

WAYS = {
    "load": tensorizer_ops.load,
    "names": tensorizer_ops.names,
    "verify": tensorizer_ops.verify,
    "operator": lambda folder: ops.names(str(folder)),
    "reader": lambda folder: len(tensorizer_ops.Reader(folder)),
    "convert": lambda folder: tensorizer_ops.convert(folder, folder / "m.tensors"),
    "vLLM": lambda folder: list(serving.weights(serving.Settings({}), str(folder))),
}
PARTS = (
    "model-00001-of-00003.safetensors",
    "model-7f3a91c2-00001-of-00003.safetensors",
    "consolidated.00-of-02.safetensors",
    "00007-of-00008.safetensors",
)


@pytest.mark.parametrize("name", PARTS)
def test_a_shard_without_its_index_is_not_the_model_of_a_folder(tmp_path: Path, name: str) -> None:
    tensorizer_ops.save(tmp_path / name, {"a": torch.ones(2)})
    for way in WAYS if name == PARTS[0] else ("load",):
        with pytest.raises(ValueError, match=rf"has '.*{name}', one of the \d files of a model"):
            WAYS[way](tmp_path)
    assert_same(tensorizer_ops.load(tmp_path / name), {"a": torch.ones(2)})
    tensorizer_ops.verify(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_all_shards_without_their_index(tmp_path: Path) -> None:
    path = write_shards(tmp_path, [{"a": torch.ones(2)}, {"b": torch.ones(2)}])
    path.unlink()
    with pytest.raises(ValueError, match="one of the 2 files of a model"):
        tensorizer_ops.load(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "model-00001-of-00001.safetensors",
        "2-of-a.safetensors",
        "best-of-3.safetensors",
        "step-100-of-500.safetensors",
    ],
)
def test_the_only_file_of_a_model_is_the_model_of_its_folder(tmp_path: Path, name: str) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / name)
    assert_same(tensorizer_ops.load(tmp_path), {"a": torch.ones(2)})


def test_parts_of_models_in_several_tensors_files(tmp_path: Path) -> None:
    """Servers load all .tensors files of a folder."""
    parts = [f"model-0000{number}-of-00002.tensors" for number in (1, 2)]
    for name in parts:
        tensorizer_ops.save(tmp_path / name, {name: torch.ones(2)})

    def names() -> list[str]:
        settings = serving.Settings({})
        return [name for name, _ in serving.weights(settings, str(tmp_path))]

    assert names() == parts
    (tmp_path / parts[1]).unlink()
    with pytest.raises(ValueError, match=r"has 1 of the 2 files 'model-…-of-00002\.tensors'"):
        names()


SAVES = 40
SAVER = """
import sys, torch, tensorizer_ops
target, said, answered, saves = sys.argv[1:]
options = {"max_shard_size": "3200", "fsync": "true"}
with open(said, "wb", 0) as out, open(answered, "rb", 0) as answers:
    for version in range(int(saves)):
        model = {f"t{i}": torch.full((100,), version) for i in range(12)}
        tensorizer_ops.save(target, model, options=options)
        out.write(b"s")
        answers.read(1)
"""


def test_loads_while_another_process_saves(tmp_path: Path) -> None:
    """Every load has all tensors of one save. The saver waits for a load after each save."""
    folder, said, answered = tmp_path / "model", tmp_path / "said", tmp_path / "answered"
    os.mkfifo(said)
    os.mkfifo(answered)
    reading = os.open(said, os.O_RDONLY | os.O_NONBLOCK)
    answering = os.open(answered, os.O_RDWR)
    seen = set()
    with ThreadPoolExecutor() as pool:
        arguments = (folder / "model.safetensors", said, answered, SAVES)
        saver = pool.submit(fork_python, SAVER, *arguments)
        try:
            while not saver.done():
                if seen or (folder / "model.safetensors.index.json").exists():
                    found = tensorizer_ops.load(folder)
                    assert len(found) == 12
                    values = {int(value) for tensor in found.values() for value in tensor.unique()}
                    assert len(values) == 1
                    seen |= values
                with contextlib.suppress(BlockingIOError):
                    if os.read(reading, 1):
                        os.write(answering, b"a")
        finally:
            os.close(answering)
            os.close(reading)
        saver.result()
    assert len(seen) > SAVES // 2
