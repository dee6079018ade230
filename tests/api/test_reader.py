"""Reader: a file that is open for loading."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from support.process import feed, ticking
from support.raw_parse import parse
from support.samples import assert_same, random_bytes, same, sample, zoo
from tensorizer_ops import errors

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer


def load(reader: Any, names: list[str] | None = None, **changes: Any) -> dict[str, torch.Tensor]:
    arguments = {"device": None, "dtype": None, "verify": "none", "copy": False, "threads": 0}
    return dict(reader.load(names, *(arguments | changes).values()))


def test_reader_tells_what_is_there(path: str) -> None:
    tensors = {**zoo(), "scalar": torch.tensor(1), "empty": torch.empty(0, 3, dtype=torch.bfloat16)}
    ops.save(path, tensors)
    reader = Reader(path, None)
    assert reader.names() == list(tensors)
    for name, tensor in tensors.items():
        assert reader.shape(name) == list(tensor.shape)
        assert same_dtype(reader.dtype(name), tensor.dtype)
    for attempt in (reader.shape, reader.dtype, reader.stored):
        with pytest.raises(errors.NoSuchTensor, match=r"'missing'"):
            attempt("missing")


def same_dtype(given: Any, dtype: torch.dtype) -> bool:
    """Whether `given` is `dtype`. Script methods return a dtype as its number."""
    if isinstance(given, torch.dtype):
        return given == dtype
    return bool(given == dtype_number(dtype))


@torch.jit.script
def dtype_number(dtype: int) -> int:
    return dtype


def test_reader_knows_how_a_tensor_is_stored(path: str) -> None:
    writer = Writer(path, {"hashes": "sha256"})
    writer.add(".x", torch.arange(5), 1, 7)
    writer.close()
    entry = parse(Path(path).read_bytes())[".x"]
    assert dict(Reader(path, None).stored("x")) == {
        "name": ".x",
        "type": "buffer",
        "module_index": "7",
        "header_offset": str(entry.header_offset),
        "data_offset": str(entry.data_offset),
        "data_size": "40",
        "sha256": entry.digests()[1].hex(),
    }
    ops.save(path, {"y": torch.arange(5)}, hashes="crc32")
    stored = Reader(path, None).stored("y")
    assert stored["type"] == "state_dict"
    assert stored["crc32"] == parse(Path(path).read_bytes())["y"].digests()[0][::-1].hex()


def test_arguments_have_defaults(path: str) -> None:
    ops.save(path, zoo())
    reader = Reader(path)
    assert_same(dict(reader.load()), zoo())
    assert_same(dict(reader.load(["int8"], copy=True)), {"int8": zoo()["int8"]})
    writer = Writer(path)
    writer.add("x", torch.ones(3), module_index=4)
    writer.close()
    assert parse(Path(path).read_bytes())["x"].module_index == 4


def test_reader_loads(path: str) -> None:
    ops.save(path, zoo())
    reader = Reader(path, {})
    assert_same(load(reader), zoo())
    assert_same(load(reader, copy=True, verify="all", threads=1), zoo())
    for names in (["uint7"], ["int8", "bool"], [], list(reversed(zoo()))):
        assert_same(load(reader, names), {name: zoo()[name] for name in names})
    assert load(reader, ["float32"], dtype=torch.float16)["float32"].dtype == torch.float16
    assert load(reader, ["float32"], device=torch.device("cpu"))["float32"].device.type == "cpu"
    out = [torch.zeros(5, 7), torch.zeros(7, 5, dtype=torch.int16).t()]
    reader.load_into(["float32", "int16"], out)
    assert same(out[0], zoo()["float32"])
    assert same(out[1], zoo()["int16"])


def test_reader_arguments_are_checked(path: str) -> None:
    ops.save(path, zoo())
    reader = Reader(path, None)
    for changes in ({"verify": "md5"}, {"threads": -1}):
        with pytest.raises(errors.InvalidArgument):
            load(reader, **changes)
    with pytest.raises(errors.InvalidArgument, match=r"'no such'"):
        Reader(path, {"no such": "1"}).names()
    with pytest.raises(errors.InvalidArgument, match=r"'no such'"):
        Writer(path + ".new", {"no such": "1"})
    assert not os.path.exists(path + ".new")


def test_it_has_only_public_methods(path: str) -> None:
    methods = Reader(path, None)._method_names()
    private = [name for name in methods if name.startswith("_") and not name.endswith("__")]
    assert "load" in methods and not private


def test_numbers_and_data_are_checked(path: str) -> None:
    ops.save(path, zoo())
    with pytest.raises(ValueError, match="has no tensor number"):
        torch.classes.tensorizer._Internals(Reader(path, None)).load_numbered(
            [0, len(zoo())], None, None, "none", False, 0
        )
    data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    for wrong in (data.char(), data[None], data[::2], data.to("meta")):
        with pytest.raises(ValueError, match="contiguous, one-dimensional uint8"):
            ops.open(wrong)


def test_reader_opens_on_first_use(path: str) -> None:
    reader = Reader(path, None)
    with pytest.raises(FileNotFoundError):
        reader.names()
    ops.save(path, zoo())
    assert reader.names() == list(zoo())
    ops.save(path, {"other": torch.ones(1)})
    # An open reader keeps reading the file that it opened.
    assert_same(load(reader), zoo())


def test_stats_and_progress(path: str) -> None:
    tensors = {str(index): random_bytes(1 << 20, index) for index in range(5)}
    ops.save(path, tensors)
    reader = Reader(path, None)
    before = reader.stats()
    assert all(isinstance(value, float) for value in before.values())
    load(reader, copy=True)
    load(reader, ["0"], copy=True)
    after = reader.stats()
    assert after["bytes"] - before["bytes"] >= 6 << 20
    assert after["seconds"] > 0
    done, total = reader.progress()
    assert done == total >= 1 << 20


def test_use_after_close(path: str) -> None:
    ops.save(path, zoo())
    reader = Reader(path, None)
    loaded = load(reader)
    reader.close()
    reader.close()
    assert_same(loaded, zoo())
    for attempt in (reader.names, lambda: load(reader), lambda: reader.shape("int8")):
        with pytest.raises(errors.Error, match=r"closed"):
            attempt()


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancel_from_another_thread(tmp_path: Path, end: str) -> None:
    fifo = str(tmp_path / "fifo")
    ops.save(str(tmp_path / "file"), {"x": random_bytes(1 << 20)})
    stalls, stop = threading.Event(), threading.Event()

    def stall() -> None:
        with open(fifo, "wb") as stream:
            stream.write((tmp_path / "file").read_bytes()[:100_000])
            stream.flush()
            stalls.set()
            stop.wait()

    os.mkfifo(fifo)
    writer = threading.Thread(target=stall)
    writer.start()
    reader = Reader(fifo, None)
    asked = 0

    def cancel() -> None:
        nonlocal asked
        stalls.wait()
        asked = ticks()
        getattr(reader, end)()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with ticking() as ticks:
            with pytest.raises(errors.Cancelled):
                load(reader)
            assert ticks() - asked <= 10
    finally:
        stop.set()
        writer.join()
        canceller.join()


def test_many_threads(path: str) -> None:
    """Threads share one reader and call the ops, on a shared file and on one file per thread."""
    for place in (path, *(f"{path}.{number}" for number in range(8))):
        ops.save(place, {str(i): sample(torch.float32, (100, 99), i) for i in range(50)})
    reader = Reader(path, None)
    failures = []

    def work(number: int) -> None:
        try:
            for index in range(number * 6, number * 6 + 50):
                name = str(index % 50)
                how = {"copy": bool(index % 2), "verify": "all"}
                own = f"{path}.{number}"
                for got in (
                    load(reader, [name], **how)[name],
                    ops.load(path, names=[name], **how)[name],
                    ops.load(own, names=[name], **how)[name],
                ):
                    assert same(got, sample(torch.float32, (100, 99), int(name)))
                ops.save(own, ops.load(own, copy=bool(index % 2)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_reader_pickles_what_it_was_made_of(path: str) -> None:
    ops.save(path, zoo())
    reader = Reader(path, None)
    reader.names()
    for twin in (pickle.loads(pickle.dumps(reader)), copy.deepcopy(reader)):
        assert_same(load(twin), zoo())
    data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    assert_same(load(pickle.loads(pickle.dumps(ops.open(data)))), zoo())


def test_names_through_a_pipe_then_load(tmp_path: Path) -> None:
    ops.save(str(tmp_path / "file"), zoo())
    fifo = str(tmp_path / "fifo")
    with feed(fifo, (tmp_path / "file").read_bytes()):
        reader = Reader(fifo, None)
        assert reader.names() == list(zoo())
        assert_same(load(reader), zoo())
        with pytest.raises(errors.Error):
            load(reader)
