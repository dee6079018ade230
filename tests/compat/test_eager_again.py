"""Calls that need the file again after an eager load, and the byte counts of streams."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from local_servers.web import Web, nginx
from support.modules import Model
from support.samples import same
from tensorizer_ops import (
    DecryptionParams,
    EncryptionParams,
    TensorDeserializer,
    TensorSerializer,
    stream_io,
)

KEY = bytes(range(32))


class Client:
    """The methods of a Redis client that to_redis() calls."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = bytes(value)

    def exists(self, key: str) -> bool:
        return key in self.values


def to_redis(deserializer: Any) -> dict[str, bytes]:
    client = Client()
    deserializer.to_redis(client, "m")
    return client.values


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        for name, key in (("plain", None), ("encrypted", EncryptionParams(KEY))):
            with TensorSerializer(server.root / name, encryption=key) as serializer:
                serializer.write_module(Model())
        yield server


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
@pytest.mark.parametrize("where", ["path", "http", "stream"])
def test_to_redis_after_everything_was_loaded(web: Web, where: str, kind: str) -> None:
    key = DecryptionParams.from_key(KEY) if kind == "encrypted" else None
    source: Any = str(web.root / kind)
    theirs = tensorizer.TensorDeserializer(
        source,
        device="cpu",
        lazy_load=True,
        encryption=key and tensorizer.DecryptionParams.from_key(KEY),
    )
    if where != "path":
        source = web.url(kind)
    if where == "stream":
        source = stream_io.open_stream(source)
    ours = TensorDeserializer(source, "cpu", encryption=key)
    assert to_redis(ours) == to_redis(theirs)
    theirs.close()
    ours.load_into_module(Model(seed=1))
    assert to_redis(ours)
    ours.close()
    with pytest.raises(RuntimeError, match=r"is closed$"):
        to_redis(ours)


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_arrays_as_stored_after_a_load_that_cast(web: Web, kind: str) -> None:
    key = DecryptionParams.from_key(KEY) if kind == "encrypted" else None
    options: dict[str, Any] = {"encryption": key, "filter_func": lambda name: name != ".low"}
    cast = TensorDeserializer(web.root / kind, "cpu", dtype=torch.float16, **options)
    stored = TensorDeserializer(web.root / kind, "cpu", **options)
    for _ in range(2):
        arrays = {name: array for _, _, name, array, *_ in cast.read_numpy_arrays()}
        assert arrays.keys() == stored.keys()
        for name, array in arrays.items():
            assert same(torch.from_numpy(array), stored[name].detach())
    assert any(value.dtype == torch.float16 for value in cast.values())


def test_what_cannot_be_opened_again_says_so(web: Web) -> None:
    buffer = io.BytesIO((web.root / "plain").read_bytes())
    eager = TensorDeserializer(buffer, "cpu", dtype=torch.float16)
    for ask in (lambda: to_redis(eager), lambda: list(eager.read_numpy_arrays())):
        with pytest.raises(RuntimeError, match=r"cannot be opened again.*lazy_load=True"):
            ask()
    assert len(list(eager.read_tensors())) == len(eager)


def test_another_file_in_its_place_is_an_error(web: Web, path: str) -> None:
    shutil.copyfile(web.root / "plain", path)
    eager = TensorDeserializer(path, "cpu")
    tensorizer_ops.save(path, {"another": torch.ones(1)})
    with pytest.raises(RuntimeError, match="replaced"):
        to_redis(eager)


@pytest.mark.parametrize("name", ["~/m", "fd:9", "~", "fd:0"])
def test_paths_are_what_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for mine, other in ((tensorizer_ops, tensorizer), (tensorizer, tensorizer_ops)):
        serializer = mine.TensorSerializer(name)
        serializer.write_state_dict({"x": torch.arange(3)})
        serializer.close()
        assert (tmp_path / name).is_file()
        with other.TensorDeserializer(name, device="cpu") as loaded:
            assert loaded["x"].tolist() == [0, 1, 2]
        with mine.stream_io.open_stream(name) as stream:
            assert stream.read(5) == b"|TZR|"
        (tmp_path / name).unlink()


def test_bytes_that_were_read_are_counted(web: Web) -> None:
    with stream_io.open_stream(web.url("plain")) as stream:
        assert stream.bytes_read == 0
        stream.read(100)
        stream.seek(0)
        assert stream.bytes_read == 100
        stream.read(50)
        stream.seek(60)
        stream.peek(1)
        stream.seek(10)
        assert (stream.bytes_read, stream.bytes_skipped) == (150, 10)
        rest = len(stream.read())
        assert rest == (web.root / "plain").stat().st_size - 10
        stream.seek(0)
        assert stream.bytes_read == 150 + rest
        stream.read(1)
    assert stream.bytes_read == 151 + rest
    with stream_io.open_stream(web.url("plain"), begin=20, end=60) as stream:
        stream.read()
        assert (stream.bytes_read, stream.bytes_skipped) == (40, 0)


def test_servers_see_which_version_asks(web: Web) -> None:
    web.requests()
    with stream_io.open_stream(web.url("plain")) as stream:
        stream.read(1)
    agents = {line.rpartition(' "')[2].rstrip('"') for line in web.requests()}
    assert agents == {f"tensorizer_ops/{tensorizer_ops.__version__}"}
