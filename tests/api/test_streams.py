"""Descriptors, pipes, the standard streams, and bytes in memory."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorizer import TensorDeserializer, TensorSerializer

from support.process import Drain, feed, run_python
from support.raw_parse import parse
from support.samples import assert_same, raw, same, sample, zoo
from support.specimen import load_all
from tensorizer_ops import errors

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer


def tensors() -> dict[str, torch.Tensor]:
    return {**zoo(), "large": sample(torch.float32, (300, 700)), "last": torch.arange(5)}


@pytest.mark.parametrize("before", [0, 1, 64, 5000, 4096])
def test_descriptors_from_their_position(path: str, before: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(descriptor, b"#" * before)
        ops.save(f"fd:{descriptor}", tensors(), hashes="all")
        data = Path(path).read_bytes()
        assert data[:before] == b"#" * before
        parsed = parse(data, before)
        assert [entry.data for entry in parsed.entries] == [raw(t) for t in tensors().values()]
        for entry in parsed.entries:
            assert entry.data_offset % (4096 if entry.data_length >= 65536 else 64) == 0
            assert entry.hashes == entry.digests()

        for options in ({}, {"copy": True}, {"verify": "all"}, {"names": ["last", "large"]}):
            os.lseek(descriptor, before, os.SEEK_SET)
            loaded = ops.load(f"fd:{descriptor}", **options)
            names = options.get("names", list(tensors()))
            assert_same(loaded, {name: tensors()[name] for name in names})
        os.fstat(descriptor)  # still open

        with open(path, "rb") as stream:
            stream.seek(before)
            with TensorDeserializer(stream, device="cpu", verify_hash=True) as classic:
                assert_same(classic, tensors())
    finally:
        os.close(descriptor)


def test_descriptor_that_is_closed() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(errors.Error) as caught:
        ops.load(f"fd:{descriptor}")
    assert caught.value.errno == 9


READS: dict[str, tuple[list[str] | None, dict[str, Any]]] = {
    "everything": (None, {}),
    "verified": (None, {"verify": "all", "threads": 3}),
    "part": (["large"], {}),
    "any order": (["last", "int8", "large"], {"verify": "all"}),
}


@pytest.mark.parametrize(("names", "options"), READS.values(), ids=READS)
def test_loading_from_a_pipe(path: str, names: list[str] | None, options: dict[str, Any]) -> None:
    ops.save(path, tensors())
    expected = tensors() if names is None else {name: tensors()[name] for name in names}
    with feed(path + ".fifo", Path(path).read_bytes()):
        assert_same(ops.load(path + ".fifo", names=names, **options), expected)


def test_every_op_reads_pipes(path: str) -> None:
    ops.save(path, tensors())
    data = Path(path).read_bytes()
    with feed(path + ".names", data):
        assert ops.names(path + ".names") == list(tensors())
    with feed(path + ".verify", data):
        ops.verify(path + ".verify")
    with feed(path + ".reader", data):
        assert_same(load_all(Reader(path + ".reader", None), "all"), tensors())
    out = [torch.zeros(5, dtype=torch.int64), torch.zeros(300, 700)]
    with feed(path + ".into", data):
        ops.load_into(path + ".into", ["last", "large"], out)
    assert same(out[0], tensors()["last"])
    assert same(out[1], tensors()["large"])


def test_truncated_pipes(tmp_path: Path) -> None:
    ops.save(str(tmp_path / "file"), tensors())
    data = (tmp_path / "file").read_bytes()
    for size in (0, 3, 72, 73, 1000, len(data) // 2, len(data) - 2000):
        fifo = str(tmp_path / f"fifo {size}")
        with feed(fifo, data[:size]), pytest.raises(errors.InvalidFormat):
            ops.load(fifo)


def test_classic_bytes_through_a_pipe(tmp_path: Path) -> None:
    serializer = TensorSerializer(str(tmp_path / "classic"))
    serializer.write_state_dict(tensors())
    serializer.close()
    with feed(str(tmp_path / "fifo"), (tmp_path / "classic").read_bytes()):
        assert_same(ops.load(str(tmp_path / "fifo"), verify="all"), tensors())


def test_saving_into_a_pipe(tmp_path: Path) -> None:
    ops.save(str(tmp_path / "file"), tensors())
    fifo = str(tmp_path / "fifo")
    with Drain(fifo) as drain:
        ops.save(fifo, tensors())
    assert drain.data == (tmp_path / "file").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["fifo", "file"]


def test_a_reader_that_leaves_early(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def leave() -> None:
        with open(fifo, "rb") as stream:
            stream.read(10)

    reader = threading.Thread(target=leave)
    reader.start()
    with pytest.raises(BrokenPipeError, match=r"the reader of .*fifo' closed it") as error:
        ops.save(fifo, {"x": torch.zeros(1 << 20)})
    reader.join()
    assert error.value.errno == errno.EPIPE
    assert error.value.filename == fifo


def test_saving_into_a_descriptor_of_a_pipe(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    with Drain(fifo) as drain:
        descriptor = os.open(fifo, os.O_WRONLY)
        try:
            ops.save(f"fd:{descriptor}", tensors())
        finally:
            os.close(descriptor)
    assert [entry.data for entry in parse(drain.data).entries] == [
        raw(tensor) for tensor in tensors().values()
    ]


def test_writer_needs_a_file(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    with Drain(fifo), pytest.raises(errors.Error, match=r".{20,}"):
        writer = Writer(fifo, None)
        writer.add("x", torch.ones(3))
        writer.close()


LOAD_STDIN = """
import sys, torch, tensorizer_ops
loaded = torch.ops.tensorizer.load("/dev/stdin", verify="all")
torch.ops.tensorizer.save("/dev/stdout", {name: loaded[name] for name in loaded})
"""


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_streams(path: str, kind: str) -> None:
    ops.save(path, tensors())
    data = Path(path).read_bytes()
    if kind == "pipe":
        done = run_python(LOAD_STDIN, stdin=data)
    else:
        with open(path, "rb") as stream:
            done = run_python(LOAD_STDIN, stdin=stream.fileno())
    assert done.stdout == data


def test_bytes_in_memory(path: str) -> None:
    ops.save(path, tensors())
    data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    before = data.clone()
    reader = ops.open(data)
    loaded = load_all(reader, "all")
    assert_same(loaded, tensors())
    for tensor in loaded.values():
        if tensor.numel():
            tensor.view(-1).view(torch.uint8).fill_(7)
    assert torch.equal(data, before)
    again = load_all(reader)
    data.fill_(9)
    assert_same(again, tensors())


def test_bytes_in_memory_outlive_their_tensor(path: str) -> None:
    ops.save(path, tensors())
    reader = ops.open(torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8))
    torch.full((Path(path).stat().st_size,), 3, dtype=torch.uint8)
    assert_same(load_all(reader, "all"), tensors())


def test_bytes_in_memory_of_any_layout(path: str) -> None:
    ops.save(path, tensors())
    data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    spread = torch.zeros(data.numel(), 3, dtype=torch.uint8)
    spread[:, 1] = data
    behind = torch.cat([torch.zeros(5, dtype=torch.uint8), data])[5:]
    assert_same(load_all(ops.open(behind), "all"), tensors())
    for other in (spread[:, 1], data.reshape(1, -1), torch.zeros(100), data.to_sparse()):
        with pytest.raises(ValueError, match="contiguous, one-dimensional uint8"):
            ops.open(other)
