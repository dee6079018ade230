"""Streams that write to S3: the object exists once the stream is closed."""

from __future__ import annotations

import gc
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorizer.stream_io as classic
import torch

import tensorizer_ops
from local_servers.s3_server import KEY_ID, S3, SECRET
from support.process import fork, fork_python, wait
from support.recorder import Recorder, recorder
from support.s3_streams import BYTES, forget_settings, keys, stored, stream_store
from tensorizer_ops import stream_io
from tensorizer_ops.stream_io import open_stream, s3_download, s3_upload


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with stream_store(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(tmp_path / "home", monkeypatch)


@pytest.fixture
def recorded(s3: S3) -> Iterator[Recorder]:
    with recorder(s3.port) as between:
        yield between


@pytest.mark.parametrize("mode", ["wb", "wb+", "ab", "ab+"])
def test_writes(s3: S3, mode: str) -> None:
    with open_stream("s3://bucket/written", mode, **keys(s3)) as stream:
        assert (stream.readable(), stream.writable(), stream.seekable()) == (True, True, True)
        for at in range(0, len(BYTES), 1_000_003):
            stream.write(BYTES[at : at + 1_000_003])
        stream.seek(0)
        assert stream.read(100) == BYTES[:100]
        stream.seek(50)
        stream.write(b"overwritten")
        assert "written" not in s3.objects()
    expected = BYTES[:50] + b"overwritten" + BYTES[61:]
    assert stored(s3, "written") == expected
    (s3.root / "bucket" / "written").unlink()


@pytest.mark.parametrize("size", [0, 1, 8 << 20, (8 << 20) + 1, 19_999_999])
def test_sizes(s3: S3, size: int) -> None:
    with open_stream("s3://bucket/sized", "wb", **keys(s3)) as stream:
        stream.write(BYTES[:size])
    assert stored(s3, "sized") == BYTES[:size]


def test_json_keys_and_archives(s3: S3) -> None:
    """Writes of other libraries: small objects, and archives that seek back to their start."""
    with open_stream("s3://bucket/config.json", "wb+", **keys(s3)) as stream:
        stream.write(json.dumps({"a": 1}).encode())
    with open_stream("s3://bucket/config.json", "rb", **keys(s3)) as stream:
        assert json.loads(stream.read().decode()) == {"a": 1}
    with (
        open_stream("s3://bucket/tokenizer.zip", "wb+", **keys(s3)) as stream,
        zipfile.ZipFile(stream, "w") as archive,
    ):
        archive.writestr("vocabulary", "words" * 1000)
    with (
        open_stream("s3://bucket/tokenizer.zip", **keys(s3)) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        assert archive.read("vocabulary") == b"words" * 1000
    with open_stream("s3://bucket/state.pt", "wb", **keys(s3)) as stream:
        torch.save({"x": torch.arange(10)}, stream)
    with open_stream("s3://bucket/state.pt", **keys(s3)) as stream:
        assert torch.load(stream)["x"].tolist() == list(range(10))


def test_an_exception_leaves_the_old_object(s3: S3) -> None:
    (s3.root / "bucket" / "kept").write_bytes(b"old")
    with pytest.raises(KeyError), open_stream("s3://bucket/kept", "wb", **keys(s3)) as stream:
        stream.write(BYTES)
        stream.flush()
        raise KeyError
    assert stored(s3, "kept") == b"old"
    assert stream.closed


def test_refusals_when_it_closes(s3: S3) -> None:
    given = keys(s3, s3_secret_access_key="not the secret")
    stream = open_stream("s3://bucket/refused", "wb", **given)
    stream.write(b"x")
    with pytest.raises(PermissionError) as caught:
        stream.close()
    assert stream.closed and "not the secret" not in str(caught.value)
    stream.close()
    assert "refused" not in s3.objects()


def test_what_nobody_closed_is_uploaded_with_a_warning(s3: S3) -> None:
    stream = open_stream("s3://bucket/dropped", "wb", **keys(s3))
    stream.write(b"dropped")
    with pytest.warns(ResourceWarning, match="dropped"):
        del stream
        gc.collect()
    assert stored(s3, "dropped") == b"dropped"


def test_what_is_open_when_the_program_ends_is_uploaded(s3: S3) -> None:
    code = """
import sys
from tensorizer_ops.stream_io import open_stream
stream = open_stream(
    "s3://bucket/at-exit", "wb", sys.argv[1], sys.argv[2], sys.argv[3], force_http=True
)
stream.write(b"at exit")
"""
    fork_python(code, KEY_ID, SECRET, f"127.0.0.1:{s3.port}")
    assert stored(s3, "at-exit") == b"at exit"


def test_a_child_uploads_nothing(s3: S3, recorded: Recorder) -> None:
    given = keys(s3, s3_endpoint=f"127.0.0.1:{recorded.port}")
    with open_stream("s3://bucket/parent", "wb", **given) as stream:
        stream.write(b"of the parent")
        stream.flush()
        assert wait(fork(stream.close)) == 0
        assert recorded.take() == []
    assert stored(s3, "parent") == b"of the parent"


def test_uploads_and_what_is_not_there(s3: S3, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(BYTES)
    endpoint = f"http://127.0.0.1:{s3.port}"
    for module in (classic, stream_io):
        module.s3_upload(str(path), "s3://bucket/up", KEY_ID, SECRET, endpoint, "us-east-1")
        assert stored(s3, "up") == BYTES
        (s3.root / "bucket" / "up").unlink()
    with pytest.raises(FileNotFoundError):
        s3_upload(str(tmp_path / "nothing"), "s3://bucket/up", KEY_ID, SECRET, endpoint)
    with pytest.raises(ValueError, match="s3://"):
        s3_upload(str(path), "http://bucket/up", KEY_ID, SECRET, endpoint)
    with pytest.raises(ValueError, match="s3://"):
        s3_download("http://bucket/up", KEY_ID, SECRET, endpoint)


# Handing a file over to the engine.


def test_the_engine_reads_and_writes_in_its_place(s3: S3) -> None:
    tensors = {"x": torch.arange(1000)}
    stream = open_stream("s3://bucket/m.tensors", "wb+", **keys(s3))
    uri, options = stream._hand_over()
    writer = torch.classes.tensorizer.Writer(uri, options)
    writer.add("x", tensors["x"])
    with pytest.raises(ValueError):
        stream.write(b"x")
    stream.close()
    assert "m.tensors" not in s3.objects()
    writer.close()
    assert SECRET not in repr(options)
    assert stream._hand_over() is None
    with open_stream("s3://bucket/m.tensors", **keys(s3)) as reading:
        uri, options = reading._engine_place()
        loaded = torch.classes.tensorizer.Reader(uri, options).load()
        assert torch.equal(loaded["x"], tensors["x"])
    assert tensorizer_ops.load(str(s3.root / "bucket/m.tensors"))["x"].tolist() == list(range(1000))


@pytest.mark.parametrize("before", ["write", "seek", "write and seek back"])
def test_what_was_written_is_not_handed_over(s3: S3, before: str) -> None:
    with open_stream("s3://bucket/begun", "wb", **keys(s3)) as stream:
        stream.seek(5) if before == "seek" else stream.write(b"x")
        if before == "write and seek back":
            stream.seek(0)
        assert stream._hand_over() is None
        stream.write(b"y")
    assert stored(s3, "begun").endswith(b"y")
