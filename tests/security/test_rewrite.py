"""Encrypting, decrypting and rekeying files, from any source to any target."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import Drain, feed
from support.raw_parse import parse
from support.samples import assert_same, raw, sample, zoo
from tensorizer_ops.errors import Crypto, HashMismatch, InvalidArgument

ops = torch.ops.tensorizer

TENSORS = {
    **zoo(),
    "large": sample(torch.float32, (1500, 1000), 1),
    "larger": sample(torch.float64, (1700, 1000), 2),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
}


@pytest.fixture(autouse=True)
def keys() -> Iterator[None]:
    tensorizer_ops.keys.add("old", key=bytes(range(32)))
    tensorizer_ops.keys.add("new", passphrase="new")
    yield
    tensorizer_ops.keys.remove("old")
    tensorizer_ops.keys.remove("new")


@pytest.fixture
def plain(tmp_path: Path) -> str:
    path = str(tmp_path / "plain.tensors")
    ops.save(path, TENSORS)
    return path


def test_there_and_back(plain: str, path: str, tmp_path: Path) -> None:
    tensorizer_ops.encrypt(plain, Path(path), key="named:old")
    assert_same(ops.load(path, verify="all", options={"key": "named:old"}), TENSORS)
    # The target may be the source.
    tensorizer_ops.rekey(path, path, old_key="named:old", new_key="named:new", kdf="min")
    with pytest.raises(Crypto):
        ops.load(path, options={"key": "named:old"})
    options = {"key": "named:new", "require_authenticated": "true"}
    assert_same(ops.load(path, verify="all", options=options), TENSORS)
    back = tmp_path / "back.tensors"
    tensorizer_ops.decrypt(path, back, key="named:new")
    assert back.read_bytes() == Path(plain).read_bytes()


@pytest.mark.parametrize("threads", [1, 4])
def test_without_hashes(plain: str, path: str, threads: int) -> None:
    tensorizer_ops.encrypt(plain, path, key="named:old", hashes="none", threads=threads)
    tensorizer_ops.decrypt(path, plain, key="named:old", hashes="none", threads=threads)
    assert_same(ops.load(plain), TENSORS)


def test_empty_tensors_hold_up_no_stream(plain: str, path: str, tmp_path: Path) -> None:
    tensors = {"a": TENSORS["large"], "none": torch.empty(0, 3), "b": TENSORS["larger"]}
    ops.save(plain, tensors)
    with feed(str(tmp_path / "in"), Path(plain).read_bytes()):
        tensorizer_ops.encrypt(str(tmp_path / "in"), path, key="named:old", threads=4)
    assert_same(ops.load(path, verify="all", options={"key": "named:old"}), tensors)


@pytest.mark.parametrize("threads", [1, 4])
def test_from_and_to_pipes(plain: str, path: str, tmp_path: Path, threads: int) -> None:
    fifo = str(tmp_path / "in")
    tensors = {name: tensor for name, tensor in TENSORS.items() if name != "empty"}
    ops.save(plain, tensors)
    with feed(fifo, Path(plain).read_bytes()):
        tensorizer_ops.encrypt(fifo, path, key="named:old", threads=threads)
    assert_same(ops.load(path, verify="all", options={"key": "named:old"}), tensors)
    drain = Drain(str(tmp_path / "out"))
    with drain:
        tensorizer_ops.decrypt(path, str(tmp_path / "out"), key="named:old", threads=threads)
        drain.wait()
    assert drain.data == Path(plain).read_bytes()
    drain = Drain(str(tmp_path / "encrypted"))
    with drain:
        tensorizer_ops.encrypt(plain, str(tmp_path / "encrypted"), key="named:old")
        drain.wait()
    Path(path).write_bytes(drain.data)
    options = {"key": "named:old", "require_authenticated": "true"}
    assert_same(ops.load(path, verify="all", options=options), tensors)


def test_a_pipe_into_a_pipe_is_refused(plain: str, tmp_path: Path) -> None:
    fifo = str(tmp_path / "in")
    drain = Drain(str(tmp_path / "out"))
    with (
        feed(fifo, Path(plain).read_bytes()),
        drain,
        pytest.raises(InvalidArgument, match="one of the two must be a regular file"),
    ):
        tensorizer_ops.encrypt(fifo, str(tmp_path / "out"), key="named:old")


def test_kinds_of_tensors_stay(plain: str, path: str) -> None:
    writer = torch.classes.tensorizer.Writer(plain, None)
    writer.add("a", torch.ones(3), 0, 0)
    writer.add("b", torch.ones(3), 1, 0)
    writer.add("m", torch.empty(2, 2, device="meta"), 2, 0)
    writer.close()
    tensorizer_ops.encrypt(plain, path, key="named:old")
    reader = torch.classes.tensorizer.Reader(path, {"key": "named:old"})
    assert [reader.stored(name)["type"] for name in "ab"] == ["parameter", "buffer"]
    assert reader.stored("m")["data_size"] == "0"
    assert tensorizer_ops.digest(path, options={"key": "named:old"}) == tensorizer_ops.digest(plain)


def test_damage_is_not_passed_on(plain: str, path: str) -> None:
    data = bytearray(Path(plain).read_bytes())
    data[parse(bytes(data))["larger"].data_offset + 5_000_000] ^= 1
    Path(plain).write_bytes(data)
    with pytest.raises(HashMismatch, match="larger"):
        tensorizer_ops.encrypt(plain, path, key="named:old")
    assert not os.path.exists(path)
    ops.save(plain, TENSORS, options={"key": "named:old"})
    data = bytearray(Path(plain).read_bytes())
    place = torch.classes.tensorizer.Reader(plain, None).stored("larger")["data_offset"]
    data[int(place) + 5_000_000] ^= 1
    Path(plain).write_bytes(data)
    with pytest.raises(Crypto, match="larger"):
        tensorizer_ops.decrypt(plain, path, key="named:old")
    assert not os.path.exists(path)
    with pytest.raises(Crypto, match="no key"):
        tensorizer_ops.encrypt(plain, path, key="named:old")


@pytest.mark.parametrize("way", ["files", "from a pipe", "into a pipe"])
@pytest.mark.parametrize("key", [{}, {"key": "named:old"}])
@pytest.mark.parametrize("hashes", ["all", "chunked"])
def test_the_header_of_an_empty_tensor_is_checked(
    plain: str, tmp_path: Path, hashes: str, key: dict[str, str], way: str
) -> None:
    ops.save(plain, {"a": torch.ones(4), "empty": torch.empty(0, 2)}, hashes=hashes, options=key)
    stored = torch.classes.tensorizer.Reader(plain, None).stored("empty")
    begin, end = (int(stored[f"{what}_offset"]) for what in ("header", "data"))
    whole = Path(plain).read_bytes()
    for at in range(begin, end, 1 if way == "files" else 8):
        data = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with ExitStack() as stack:
            source, target = str(tmp_path / "in"), str(tmp_path / "out")
            if way == "from a pipe":
                stack.enter_context(feed(source, data))
            else:
                Path(source).write_bytes(data)
            if way == "into a pipe":
                stack.enter_context(Drain(target))
            with pytest.raises(tensorizer_ops.errors.Error, match="empty"):
                tensorizer_ops.convert(source, target, source_options=key)
        assert way == "into a pipe" or not os.path.exists(target)
        for path in tmp_path.iterdir():
            path.unlink()


def test_plaintext_goes_nowhere_else(plain: str, path: str, tmp_path: Path) -> None:
    """After an encryption, only the source contains the plaintext."""
    code = (
        "import sys, tensorizer_ops; tensorizer_ops.keys.add('old', key=bytes(range(32)));"
        "tensorizer_ops.encrypt(sys.argv[1], sys.argv[2], key='named:old')"
    )
    subprocess.run(
        ["/bin/sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *_python(), code, plain, path], check=True
    )
    secret = raw(TENSORS["large"])[1000:1064]
    for left in tmp_path.iterdir():
        assert (secret in left.read_bytes()) == (str(left) == plain)


def _python() -> list[str]:
    import sys

    return [sys.executable, "-c"]


def test_progress(plain: str, path: str) -> None:
    seen: list[tuple[int, int]] = []
    tensorizer_ops.encrypt(
        plain, path, key="named:old", progress=lambda done, total: seen.append((done, total))
    )
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def test_who_is_told_can_end_it(tmp_path: Path, path: str) -> None:
    fifo = str(tmp_path / "in")
    os.mkfifo(fifo)

    class Enough(Exception):
        pass

    def report(done: int, total: int) -> None:
        raise Enough

    before = threading.active_count()
    with pytest.raises(Enough):
        # The FIFO never has a writer.
        tensorizer_ops.encrypt(fifo, path, key="named:old", progress=report)
    assert not os.path.exists(path)
    assert threading.active_count() == before


def test_onto_itself_where_that_is_written_in_place(plain: str) -> None:
    """The source would be overwritten while it is read."""
    before = Path(plain).read_bytes()
    with open(plain, "r+b") as target:
        for source in (plain, f"fd:{target.fileno()}"):
            with pytest.raises(InvalidArgument, match=r"is written in place.*another file"):
                tensorizer_ops.encrypt(source, f"fd:{target.fileno()}", key="named:old")
            assert Path(plain).read_bytes() == before
