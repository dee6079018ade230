"""tensorizer_ops.Reader: a file that is open for loading, as a mapping."""

from __future__ import annotations

import copy
import io
import os
import pickle
import pydoc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.file_objects import OnlyRead, Reads
from support.raw_parse import parse
from support.samples import assert_same, random_bytes, same, zoo
from tensorizer_ops import Reader, errors


@pytest.fixture
def saved(path: str) -> str:
    tensorizer_ops.save(path, zoo(), metadata={"step": "7"})
    return path


def test_it_is_a_mapping_in_the_order_of_the_file(saved: str) -> None:
    with Reader(saved) as reader:
        assert isinstance(reader, Mapping)
        assert list(reader) == list(reader.keys()) == list(zoo())
        assert len(reader) == len(zoo())
        assert "int8" in reader
        for other in ("int9", "", 8, None, ("int8",), "\udc80"):
            assert other not in reader
        unhashable: Any = ["int8"]
        for attempt in (reader.__contains__, reader.__getitem__, reader.get):
            with pytest.raises(TypeError, match="unhashable"):  # as of a dict
                attempt(unhashable)
        assert same(reader["int8"], zoo()["int8"])
        assert_same(dict(reader), zoo())
        assert_same(dict(reader.items()), zoo())
        assert all(map(same, reader.values(), zoo().values()))
        found = reader.get("int8")
        assert found is not None and same(found, zoo()["int8"])
        assert reader.get("int9") is None
        assert reader._ipython_key_completions_() == list(zoo())


def test_names_and_shapes_read_no_data(saved: str) -> None:
    with Reader(saved) as reader:
        for name, tensor in zoo().items():
            assert reader.shape(name) == tensor.shape
            assert isinstance(reader.shape(name), torch.Size)
            assert reader.dtype(name) is tensor.dtype
        assert len(list(reader)) == len(reader)
        assert reader.metadata() == {"step": "7"}
        assert reader.stats()["loads"] == 0
        assert reader.stored("int8")["type"] == "state_dict"


def test_a_missing_name_says_what_is_there(path: str) -> None:
    tensorizer_ops.save(path, {"weight": torch.ones(2), "a\nb": torch.ones(2)})
    with Reader(path) as reader:
        for attempt in (reader.__getitem__, reader.shape, reader.dtype, reader.stored):
            for name, words in (
                ("wieght", r"has no tensor 'wieght' among its 2: did you mean 'weight'\?$"),
                ("bias", r"has no tensor 'bias' among its 2: 'weight', 'a\\x0ab'$"),
            ):
                with pytest.raises(KeyError, match=words) as e:
                    attempt(name)
                assert isinstance(e.value, errors.NoSuchTensor)
        other: Any
        for other in (7, "\udc80", None):
            with pytest.raises(KeyError, match=r"has no tensor .*, because names are str"):
                reader[other]
    tensorizer_ops.save(path, {f"{i}" * 999: torch.ones(1) for i in range(500)})
    with pytest.raises(KeyError) as many:
        Reader(path)["x"]
    assert "and others, which names() lists" in str(many.value)
    assert len(str(many.value)) < 3000


def test_loads_take_the_defaults_of_the_reader(path: str) -> None:
    tensorizer_ops.save(path, {"x": torch.ones(3, 4), "n": torch.arange(3)})
    reader = Reader(path, dtype=torch.float16, device="meta", copy=True, verify="crc32", threads=1)
    assert reader["x"].dtype == torch.float16
    assert reader["x"].is_meta
    loaded = reader.load(["x"], dtype=torch.bfloat16, device="cpu")
    assert_same(loaded, {"x": torch.ones(3, 4, dtype=torch.bfloat16)})
    part = reader.load(slices={"x": (1, slice(2))}, device="cpu", verify="none")
    assert_same(part, {"x": torch.ones(2, dtype=torch.float16), "n": torch.arange(3)})
    part = tensorizer_ops.load_slices(reader, {"x": (1, slice(2))})
    assert_same(part, {"x": torch.ones(2)})
    assert list(reader.load(["n", "x"])) == ["n", "x"]
    with pytest.raises(TypeError, match="names is str, and must be a list of str or None"):
        reader.load("x")
    calls: list[tuple[int, int]] = []
    reader.load(device="cpu", progress=lambda *numbers: calls.append(numbers))
    assert calls[-1] == reader.progress() == (72, 72)
    reader.cancel()  # nothing runs
    reader.close()


def test_copy_is_a_default(path: str) -> None:
    tensorizer_ops.save(path, {"x": torch.zeros(9, dtype=torch.uint8)})
    with Reader(path) as mapping, Reader(path, copy=True) as copying:
        mapped, copied, again = mapping["x"], copying["x"], copying.load(copy=False)["x"]
        with open(path, "r+b") as file:
            file.seek(parse(file.read())["x"].data_offset)
            file.write(b"\1")
        assert [tensor[0].item() for tensor in (mapped, copied, again)] == [1, 0, 1]


def test_verify_is_a_default_and_a_method(path: str) -> None:
    tensorizer_ops.save(path, {"x": random_bytes(5000), "y": torch.ones(3)})
    with Reader(path) as reader:
        reader.verify()
    raw = bytearray(Path(path).read_bytes())
    raw[parse(bytes(raw))["x"].data_offset + 7] ^= 1
    Path(path).write_bytes(raw)
    with Reader(path) as careless:
        careless["x"]
        with pytest.raises(errors.HashMismatch, match="'x'"):
            careless.verify("crc32")
    with Reader(path, verify="all") as careful:
        assert same(careful["y"], torch.ones(3))
        with pytest.raises(errors.HashMismatch, match="'x'"):
            careful["x"]


def test_it_fills_rewrites_updates_and_digests(saved: str, tmp_path: Path) -> None:
    with Reader(saved) as reader:
        out = {name: torch.zeros_like(tensor) for name, tensor in zoo().items()}
        places = {name: tensor.data_ptr() for name, tensor in out.items()}
        reader.load_into(out)
        assert_same(out, zoo())
        assert {name: tensor.data_ptr() for name, tensor in out.items()} == places
        copied = tmp_path / "copy.tensors"
        reader.rewrite(copied, hashes="chunked")
        assert reader.digest() == tensorizer_ops.digest(copied)
        assert reader.digest(version=2) == tensorizer_ops.digest(copied, version=2)
    with Reader(copied) as newer:
        updated = newer.update(saved)
        assert isinstance(updated, tensorizer_ops.Updated)
    assert_same(tensorizer_ops.load(saved, verify="all"), zoo())


def test_use_after_close_is_a_value_error(saved: str) -> None:
    with Reader(saved) as reader:
        kept = reader["int8"]
        list(reader)
    reader.close()
    assert same(kept, zoo()["int8"])
    for attempt in (
        lambda: reader["int8"],
        lambda: len(reader),
        lambda: list(reader),
        lambda: "int8" in reader,
        lambda: reader.shape("int8"),
        reader.metadata,
        reader.load,
        reader.verify,
        reader.digest,
        reader.__enter__,
    ):
        with pytest.raises(errors.InvalidArgument, match=r"closed"):
            attempt()
    assert reader.stats()["loads"] == 1
    with pytest.raises(ZeroDivisionError), Reader(saved) as failing:
        raise ZeroDivisionError
    assert "closed" in repr(failing)


def test_repr_says_what_is_open_and_opens_nothing(saved: str) -> None:
    reader = Reader("nowhere.tensors")
    assert repr(reader) == "<tensorizer_ops.Reader of 'nowhere.tensors': not read yet>"
    with pytest.raises(FileNotFoundError):
        list(reader)
    reader = Reader(Path(saved))
    assert repr(reader) == f"<tensorizer_ops.Reader of {saved!r}: not read yet>"
    assert len(reader) == len(zoo())
    assert f"{saved!r}: tensors format " in repr(reader)
    assert f"{len(zoo())} tensors>" in repr(reader)
    reader.close()
    assert repr(reader) == f"<tensorizer_ops.Reader of {saved!r}: closed>"
    tensorizer_ops.save(saved, {"x": torch.ones(2)}, options={"format": "safetensors"})
    other = Reader(saved)
    list(other)
    assert ": safetensors, 1 tensor>" in repr(other)


def test_repr_shows_no_secret() -> None:
    for uri in (
        "redis://user:hidden@localhost/x",
        "https://user:hidden@localhost/x",
        "https://localhost/x?X-Amz-Signature=hidden",
    ):
        reader = Reader(uri, options={"key": "named:hidden"})
        assert "localhost" in repr(reader)
        assert "hidden" not in repr(reader) + str(reader.keys())


def test_equality_is_identity(saved: str) -> None:
    one, two = Reader(saved), Reader(saved)
    assert one == one
    assert one != two
    assert one != dict(two)
    assert len({one, two}) == 2


def test_it_pickles_what_it_was_made_of(saved: str) -> None:
    reader = Reader(saved, dtype=torch.float16, verify="all")
    list(reader)
    for twin in (pickle.loads(pickle.dumps(reader)), copy.deepcopy(reader)):
        assert "not read yet" in repr(twin)
        assert twin["float32"].dtype == torch.float16
        reader.close()
        assert len(twin) == len(zoo())
    with pytest.raises(ValueError, match="secret"):
        pickle.dumps(Reader("https://user:hidden@localhost/x"))
    with pytest.raises(ValueError, match="only a Reader that was opened by its path or URI"):
        pickle.dumps(Reader(io.BytesIO(Path(saved).read_bytes())))
    with (
        open(saved, "rb") as file,
        pytest.raises(ValueError, match="only a Reader that was opened by its path or URI"),
    ):
        pickle.dumps(Reader(file))
    with (
        open(saved, "rb") as file,
        pytest.raises(ValueError, match="only a Reader that was opened by its path or URI"),
    ):
        pickle.dumps(Reader(f"fd:{file.fileno()}"))


def test_scripts_use_the_torch_object(saved: str) -> None:
    class Module(torch.nn.Module):
        def __init__(self, reader: Any) -> None:
            super().__init__()
            self.reader = reader

        def forward(self) -> torch.Tensor:
            return self.reader.load(["int8"], None, None, "none", False, 0)["int8"]

    with Reader(saved) as reader:
        assert same(torch.jit.script(Module(reader.script_object))(), zoo()["int8"])


def test_help_tells_what_each_method_does() -> None:
    for name in dir(Reader):
        if not name.startswith("_"):
            assert getattr(Reader, name).__doc__, name
    assert "slices" in pydoc.render_doc(Reader, renderer=pydoc.plaintext)


def test_what_can_seek_is_read_in_any_order(path: str) -> None:
    tensors = {name: random_bytes(4 << 20, number) for number, name in enumerate("ab")}
    tensorizer_ops.save(path, tensors, hashes="none")
    with Reader(Reads(Path(path).read_bytes())) as reader:
        for name in "baba":
            assert same(reader[name], tensors[name])


@pytest.mark.parametrize(
    "kind", ["BytesIO", "file", "bytearray", "memoryview", "methods", "in order"]
)
def test_it_reads_file_objects(saved: str, kind: str) -> None:
    data = Path(saved).read_bytes()
    source: Any = {
        "BytesIO": lambda: io.BytesIO(data),
        "file": lambda: io.BufferedReader(io.FileIO(saved)),
        "bytearray": lambda: bytearray(data),
        "memoryview": lambda: memoryview(data),
        "methods": lambda: Reads(data),
        "in order": lambda: OnlyRead(data),
    }[kind]()
    with Reader(source) as reader:
        assert type(source).__name__ in repr(reader)
        assert_same(reader.load(verify="all"), zoo())
        if kind != "in order":
            assert all(same(reader[name], zoo()[name]) for name in reversed(zoo()))
    if hasattr(source, "close"):
        assert not source.closed
        source.close()
    assert os.path.exists(saved)
