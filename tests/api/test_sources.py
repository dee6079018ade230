"""Paths and URIs: str, bytes, path-like objects, file:// and what is refused."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

import tensorizer_ops
from support.samples import assert_same, zoo
from tensorizer_ops import checkpoint, errors, hf, safetensors, stream_io

ops = torch.ops.tensorizer


def tensors() -> dict[str, torch.Tensor]:
    return zoo()


class Named:
    """A path-like object that is neither str nor Path."""

    def __init__(self, path: str | bytes) -> None:
        self.path = path

    def __fspath__(self) -> str | bytes:
        return self.path


def test_path_like_objects(tmp_path: Path) -> None:
    for place in (
        tmp_path / "a path",
        Named(str(tmp_path / "named")),
        Named(os.fsencode(tmp_path / "named bytes")),
        os.fsencode(tmp_path / "bytes"),
        str(tmp_path / "str"),
    ):
        tensorizer_ops.save(place, tensors())
        assert Path(os.fsdecode(place)).is_file()
        assert_same(tensorizer_ops.load(place, verify="all"), tensors())


def test_paths_that_are_not_utf8(tmp_path: Path) -> None:
    raw_path = os.fsencode(tmp_path) + b"/\xff\xfe %41 \x80.tensors"
    for place in (raw_path, Path(os.fsdecode(raw_path)), Named(raw_path)):
        tensorizer_ops.save(place, tensors())
        assert os.listdir(os.fsencode(tmp_path)) == [os.path.basename(raw_path)]
        assert_same(tensorizer_ops.load(place), tensors())
        os.unlink(raw_path)
    with pytest.raises(FileNotFoundError) as caught:
        tensorizer_ops.load(raw_path)
    assert os.fsencode(caught.value.filename) == raw_path


def test_text_that_stands_for_bytes(tmp_path: Path) -> None:
    """A surrogate-escaped path, as os.listdir() and sys.argv return it."""
    text = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.tensors")
    tensorizer_ops.save(text, tensors())
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff.tensors"]
    assert_same(tensorizer_ops.load(text), tensors())


SECRET = "Wdcm3"
WAYS: dict[str, Callable[[Any], object]] = {
    "load": lambda uri: tensorizer_ops.load(uri),
    "save": lambda uri: tensorizer_ops.save(uri, {"x": torch.ones(2)}),
    "save_async": lambda uri: tensorizer_ops.save_async(uri, {"x": torch.ones(2)}).result(),
    "Reader": lambda uri: list(tensorizer_ops.Reader(uri)),
    "Writer": lambda uri: tensorizer_ops.Writer(uri).close(),
    "names": lambda uri: tensorizer_ops.names(uri),
    "metadata": lambda uri: tensorizer_ops.metadata(uri),
    "verify": lambda uri: tensorizer_ops.verify(uri),
    "digest": lambda uri: tensorizer_ops.digest(uri),
    "safetensors.save_file": lambda uri: safetensors.save_file({"x": torch.ones(2)}, uri),
    "safetensors.load_file": lambda uri: safetensors.load_file(uri),
    "checkpoint.save": lambda uri: checkpoint.save(uri, {"x": torch.ones(2)}),
    "hf.tokenizer": lambda uri: hf.tokenizer(uri),
    "open_stream": lambda uri: stream_io.open_stream(uri, "wb"),
    "TensorSerializer": lambda uri: tensorizer_ops.TensorSerializer(uri).close(),
    "TensorDeserializer": lambda uri: tensorizer_ops.TensorDeserializer(uri),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_meant_as_a_uri_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rest = f"://:{SECRET}@localhost:1/p"
    texts = [
        f"redis{rest}\udcff",
        f"REDIS{rest}\udcff",
        f"red\udcffis{rest}",
        f" redis{rest}\udcff",
        f"redis{rest}\ud800",  # which stands for no byte
        f"\ufeffredis{rest}",
        f"\0redis{rest}",
        f"other{rest}\udcff",
    ]
    places: list[object] = [*texts]
    if way != "open_stream":  # whose path-like objects are always paths, as in tensorizer
        places += [*map(Named, texts), *map(Path, texts[:4]), *map(os.fsencode, texts[:4])]
    for place in places:
        with pytest.raises(errors.InvalidArgument) as caught:
            WAYS[way](place)
        assert SECRET not in "".join(traceback.format_exception_only(caught.value)), place
    assert os.listdir() == []


@pytest.mark.parametrize("name", ["fd:0", "file:x", "http:", "%41", "a?b#c", "s3:x"])
def test_path_objects_are_never_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tensorizer_ops.save(Path(name), tensors())
    assert os.listdir() == [name]
    assert_same(tensorizer_ops.load(Path(name)), tensors())


@pytest.mark.parametrize("name", ["plain", "with space", "per%cent", "ümläut", "a?b#c"])
def test_file_uris(tmp_path: Path, name: str) -> None:
    uri = "file://" + quote(str(tmp_path / name))
    ops.save(uri, tensors())
    assert (tmp_path / name).is_file()
    assert_same(ops.load(uri, verify="all"), tensors())
    assert_same(ops.load(str(tmp_path / name)), tensors())


def test_file_uri_of_any_bytes(tmp_path: Path) -> None:
    ops.save(f"file://{tmp_path}/%ff%FE", tensors())
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff\xfe"]
    assert_same(ops.load(f"file://{tmp_path}/%ff%FE"), tensors())


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "nul\0byte",
        "file:///nul%00byte",
        "file:///bad%escape",
        "file:///cut%4",
        "file://elsewhere.example/x",
        "fd:",
        "fd:x",
        "fd:-1",
        "fd:99999999999999999999",
        "ftp://host/x",
        "gopher://host/x",
    ],
)
def test_malformed_uris(uri: str) -> None:
    for attempt in (ops.load, ops.names, ops.verify, tensorizer_ops.load):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument):
            attempt(uri)
    with pytest.raises(tensorizer_ops.errors.InvalidArgument):
        ops.save(uri, {"x": torch.ones(1)})


def test_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"ftp.*file://"):
        ops.load("ftp://host/x")


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ops.save("~/new/model.tensors", tensors())
    assert (tmp_path / "new/model.tensors").is_file()
    assert_same(ops.load("~/new/model.tensors"), tensors())
    assert_same(tensorizer_ops.load("~/new/model.tensors"), tensors())


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ops.save("model.tensors", tensors())
    ops.save("./deeper/model.tensors", tensors())
    assert_same(ops.load("../" + tmp_path.name + "/deeper/model.tensors"), tensors())
    assert (tmp_path / "model.tensors").is_file()


def test_shared_memory(shared_memory: Path) -> None:
    path = str(shared_memory / "model.tensors")
    ops.save(path, tensors())
    assert_same(ops.load(path, verify="all"), tensors())
    assert os.listdir(shared_memory) == ["model.tensors"]
