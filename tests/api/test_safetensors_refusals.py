"""What saves of safetensors files, and copies between the formats, refuse."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from support.samples import assert_same

Writer = torch.classes.tensorizer.Writer


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "m.safetensors")


def test_other_formats_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="'format' is 'gguf', and must be 'tensors' or"):
        tensorizer_ops.save(path, {"x": torch.ones(1)}, options={"format": "gguf"})


@pytest.mark.parametrize("name", ["m.tensors", "m.safetensors"])
@pytest.mark.parametrize(
    "metadata, error, match",
    [
        ({"a": [1]}, TypeError, r"metadata\['a'\] is list, and must be str, int, float or bool"),
        ({1: "a"}, TypeError, "metadata has a key that is int, and must be str"),
        ({"a": "\0" * 100_000_001}, ValueError, "at most 100000000"),
    ],
    ids=["value", "key", "long"],
)
def test_other_metadata_is_refused(
    tmp_path: Path, name: str, metadata: dict[str, str], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        tensorizer_ops.save(tmp_path / name, {"x": torch.ones(1)}, metadata=metadata)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "state, hashes, match",
    [
        ({"x": torch.ones(2, dtype=torch.complex128)}, "all", "'x'.*no type for complex128"),
        ({"__metadata__": torch.ones(2)}, "all", "'__metadata__'.*uses this name"),
        ({"\x1e[0]": torch.ones(2)}, "all", "it is nested"),
        ({"x": torch.ones(2, device="meta")}, "all", "'x'.*meta device"),
        ({"x": torch.ones(2)}, "crc32", "stores no CRC32"),
    ],
    ids=["dtype", "metadata", "nested", "meta", "crc32"],
)
def test_what_the_format_cannot_hold_is_refused(
    path: str, state: dict[str, torch.Tensor], hashes: tensorizer_ops.Hashes, match: str
) -> None:
    Path(path).write_bytes(b"old")
    with pytest.raises(ValueError, match=match):
        tensorizer_ops.save(path, state, hashes=hashes)
    assert Path(path).read_bytes() == b"old"


@pytest.mark.parametrize("progress", [None, lambda done, total: None], ids=["", "watched"])
@pytest.mark.parametrize("end", ["tensors", "safetensors"])
def test_halves_of_characters_are_refused(
    tmp_path: Path, end: str, progress: tensorizer_ops.Progress | None
) -> None:
    path, x = tmp_path / f"m.{end}", torch.rand(30)
    why = "has half of a surrogate pair, which is not Unicode"
    with pytest.raises(ValueError) as error:
        tensorizer_ops.save(path, {"a": x, "b\ud800": x}, progress=progress)
    assert str(error.value).endswith(rf"tensor 'b\ud800' cannot be saved: its name {why}")
    for metadata in ({"a\udcff": "b"}, {"a\udcff": "\ud800"}, {"a": "\ud800"}):
        with pytest.raises(ValueError, match=r"metadata\['a.*'\] has half") as error:
            tensorizer_ops.save(path, {"a": x}, metadata=metadata, progress=progress)
        assert str(error.value).endswith(why)
    assert not path.exists()


@pytest.mark.parametrize("way", ["save", "convert"])
def test_a_pipe_is_opened_only_for_what_can_be_saved(tmp_path: Path, way: str) -> None:
    source = tmp_path / "m.tensors"
    tensorizer_ops.save(source, {"x": torch.ones(2)})
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ValueError, match="stores no CRC32"):
            if way == "save":
                tensorizer_ops.save(pipe, {"x": torch.ones(2)}, hashes="crc32")
            else:
                tensorizer_ops.convert(source, pipe, hashes="crc32")
        watch = select.poll()
        watch.register(reader)
        assert watch.poll(0) == []  # a writer that came and went would have hung up
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    "fine, name, dtype", [("\x1e[1]", "\x1e[0]", torch.float32), ("a", "c", torch.complex128)]
)
def test_conversion_refuses_by_name_and_writes_nothing(
    tmp_path: Path, path: str, fine: str, name: str, dtype: torch.dtype
) -> None:
    source = tmp_path / "m.tensors"
    tensorizer_ops.save(source, {name: torch.ones(2, dtype=dtype), fine: torch.ones(9)})
    with pytest.raises(ValueError, match="cannot be saved in a safetensors file") as error:
        tensorizer_ops.convert(source, path)
    assert f"'{source}': tensor {name!r} cannot" in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["m.tensors"]


def test_conversion_refuses_a_tensor_without_a_name(tmp_path: Path, path: str) -> None:
    safetensors.torch.save_file({"": torch.ones(1)}, path)
    with pytest.raises(ValueError, match=f"'{path}': tensor '' cannot be saved: its name is empty"):
        tensorizer_ops.convert(path, tmp_path / "m.tensors")


def test_tensor_serializer_refuses_another_format(path: str) -> None:
    with pytest.raises(ValueError, match=r"writes \.tensors files only"):
        tensorizer_ops.TensorSerializer(path, options={"format": "safetensors"})


def test_a_writer_refuses_what_its_header_has_no_room_for(path: str) -> None:
    x, y = torch.ones(3), torch.zeros(2)
    writer = Writer(path, {"hashes": "none"}, {"k": "x" * 99_999_700})
    writer.add("a", x)
    for names in (["b" * 300], ["b" * 50, "c" * 50, "d" * 50]):
        with pytest.raises(ValueError, match="the format allows 100000000: save fewer tensors"):
            writer._add_all(names, [x] * len(names), [2] * len(names), [0] * len(names))
    writer.add("b" * 50, y)
    writer.close()
    assert_same(tensorizer_ops.load(path), {"a": x, "b" * 50: y})
    assert_same(safetensors.torch.load_file(path), {"a": x, "b" * 50: y})
