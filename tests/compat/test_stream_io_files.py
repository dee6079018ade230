"""Streams of local files, compared with PyPI's tensorizer: they are Python's own files."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import tensorizer.stream_io as classic

from support.process import feed
from support.streams import SMALL
from tensorizer_ops import stream_io
from tensorizer_ops.stream_io import open_stream


@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "wb+", "w+b", "ab", "ab+", "xb", "bx+"])
def test_files_as_there(tmp_path: Path, mode: str) -> None:
    seen = []
    for module in (classic, stream_io):
        path = tmp_path / module.__name__ / "folder" / "file"
        if "r" in mode or "a" in mode:
            path.parent.mkdir(parents=True)
            path.write_bytes(b"0123456789")
        with module.open_stream(str(path), mode, begin=3) as stream:
            steps = [stream.tell(), stream.readable(), stream.writable(), type(stream)]
            if stream.readable():
                steps.append(stream.read(2))
            if stream.writable():
                steps += [stream.write(b"abc"), stream.tell()]
        seen.append([*steps, path.read_bytes()])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("mode", ["rb", "rb+"])
def test_a_read_makes_no_folders(tmp_path: Path, mode: str) -> None:
    with pytest.raises(FileNotFoundError):
        open_stream(tmp_path / "folder" / "file", mode)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("mode", ["r", "w", "wt", "r+", "rwb", "b", ""])
def test_modes_that_are_none(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    for module in (classic, stream_io):
        with pytest.raises(ValueError, match="mode"):
            module.open_stream(str(path), mode)
    assert path.read_bytes() == b"kept"


def test_unbuffered_files(tmp_path: Path) -> None:
    with open_stream(str(tmp_path / "file"), "wb", buffer_size=0) as stream:
        assert isinstance(stream, io.FileIO)


def test_paths_are_never_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_stream(Path("http://nowhere/x"), "wb") as stream:
        stream.write(b"here")
    assert (tmp_path / "http:" / "nowhere" / "x").read_bytes() == b"here"
    name = os.fsencode(tmp_path) + b"/\xff"
    with open_stream(name, "wb") as stream:
        stream.write(b"there")
    assert Path(os.fsdecode(name)).read_bytes() == b"there"


def test_a_pipe(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    with feed(fifo, SMALL), open_stream(fifo) as stream:
        assert stream.read() == SMALL


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_stream(str(tmp_path / "nothing"))
    with pytest.raises(IsADirectoryError):
        open_stream(str(tmp_path))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((OSError, ValueError)):
        open_stream(str(tmp_path / "file"), begin=-1)


@pytest.mark.parametrize("uri", ["gs://bucket/key", "az://account/key", "file:///tmp/x"])
def test_uris_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.chdir(tmp_path)
    for mode in ("rb", "wb"):
        with pytest.raises(ValueError, match=f"no file object for {uri.partition(':')[0]}://"):
            open_stream(uri, mode)
    assert not list(tmp_path.iterdir())
