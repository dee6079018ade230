"""Private names of tensorizer that its own examples and tests use have the same meaning here.

Their behaviour is compared with that of the real library.
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import mmap
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import tensorizer._crypt
import tensorizer._syscalls
import torch

import tensorizer_ops
from support.modules import Model
from tensorizer_ops import _crypt, _syscalls, serialization, stream_io, torch_compat, utils

BOTH = {"ours": tensorizer_ops, "theirs": tensorizer}
S3CFG = """[default]
access_key = AKIAEXAMPLE
secret_key = a/secret+key
host_base = store.example:443
use_https = {use_https}
"""


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result, or the builtin class of the exception."""
    try:
        return function(*arguments)
    except Exception as error:
        return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")


GIVEN = [(None, None), ("id", None), (None, "secret"), ("id", "secret"), ("", "")]


@pytest.mark.parametrize("file", ["default", "given", "neither", "given and not there"])
def test_credentials_are_inferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    place = tmp_path / "s3cfg"
    if file in ("default", "given"):
        place.write_text(S3CFG.format(use_https="False"))
    found = []
    for module in BOTH.values():
        defaults = (str(tmp_path / "first"), str(place)) if file == "default" else ()
        monkeypatch.setattr(module.stream_io, "_s3_default_config_paths", defaults)
        getattr(module.stream_io, "_get_s3cfg_values", Cleared).cache_clear()
        path = str(place) if file.startswith("given") else None
        found.append([outcome(module.stream_io._infer_credentials, *keys, path) for keys in GIVEN])
    assert found[0] == found[1]
    if file == "default":
        ours = found[0][0]
        assert ours.s3_endpoint == "store.example:443" and ours.use_https is False
        assert "secret+key" not in repr(ours)


class Cleared:
    @staticmethod
    def cache_clear() -> None:
        pass


@pytest.mark.parametrize(
    "endpoint", ["host", "https://host:1/x", "HTTP://host", "http://h/", "x://h"]
)
def test_schemes_are_enforced(endpoint: str) -> None:
    for flags in ((), (True,), (False, True), (True, True)):
        ours, theirs = (
            outcome(m.stream_io._enforce_scheme, endpoint, *flags) for m in BOTH.values()
        )
        assert str(ours).lower() == str(theirs).lower(), flags


def test_who_replaces_the_check_of_schemes_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def allow(endpoint: str, *flags: bool) -> str:
        asked.append((endpoint, *flags))
        return endpoint

    monkeypatch.setattr(stream_io, "_enforce_scheme", allow)
    keys = {"s3_access_key_id": "X", "s3_secret_access_key": "X"}
    with pytest.raises(ConnectionError):
        stream_io.open_stream("s3://b/k", s3_endpoint="http://127.0.0.1:1", **keys)
    assert asked == [("http://127.0.0.1:1", False, False)]


@pytest.mark.parametrize("kind", ["plain", "encrypted", "long"])
@pytest.mark.parametrize("lazy", [True, False])
def test_file_headers(path: str, kind: str, lazy: bool) -> None:
    key = tensorizer.EncryptionParams.random() if kind == "encrypted" else None
    serializer = tensorizer.TensorSerializer(path, encryption=key)
    size = 1 << 32 if kind == "long" else 3
    serializer.write_state_dict({"x": torch.empty(size, 2, device="meta"), "y": torch.ones(2)})
    serializer.close()
    seen = []
    for name, module in BOTH.items():
        params = key and module.DecryptionParams.from_key(key.key)
        filter_func = "y".__eq__  # the other one has gigabytes of zeros
        options = {"device": "cpu", "lazy_load": lazy, "encryption": params}
        with module.TensorDeserializer(path, filter_func=filter_func, **options) as deserializer:
            flags = deserializer._file_flags
            of_module = module.serialization._FileFeatureFlags
            assert isinstance(flags, of_module), name
            assert (of_module.encrypted in flags) == (kind == "encrypted")
            header = deserializer._file_header
            assert header.feature_flags == flags
            seen.append(
                (
                    *(header.version_number, int(flags), header.tensor_size, header.tensor_count),
                    deserializer._device,
                )
            )
    assert seen[0] == seen[1]


def test_the_functions_of_torch_keep_their_signatures() -> None:
    assert torch_compat._LOAD_WRAPPER_DEFAULT_MODULE is None
    assert torch_compat._FileLike == tensorizer.torch_compat._FileLike
    for saves, loads in (
        (torch_compat.tensorizer_saving, torch_compat.tensorizer_loading),
        (tensorizer.torch_compat.tensorizer_saving, tensorizer.torch_compat.tensorizer_loading),
    ):
        original = torch.save, torch.load
        with saves(), loads():
            for was, function in zip(original, (torch.save, torch.load), strict=True):
                here, there = (
                    [(p.name, p.default) for p in signature.parameters.values()][:3]
                    for signature in (
                        inspect.signature(function, follow_wrapped=False),
                        inspect.signature(was),
                    )
                )
                # Three parameters, because load() has no more positional ones.
                assert here == there


def test_system_calls(tmp_path: Path) -> None:
    assert _syscalls.has_fallocate() is tensorizer._syscalls.has_fallocate() is True
    sizes = []
    for i, module in enumerate((_syscalls, tensorizer._syscalls)):
        with open(tmp_path / str(i), "wb") as file:
            assert module.try_fallocate(file.fileno(), 50, 1000) is True
            sizes.append(os.fstat(file.fileno()).st_size)
            assert not module.try_fallocate(file.fileno(), -1, 0, suppress_all_errors=True)
            assert outcome(module.try_fallocate, file.fileno(), -1, 0) is OSError
    assert sizes == [1050, 1050]
    assert outcome(_syscalls.try_fallocate, -1, 0, 1) is OSError


def test_new_memory_gets_its_pages() -> None:
    with mmap.mmap(-1, 64 * mmap.PAGESIZE) as memory:
        pages = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        before = resident_pages(ctypes.addressof(pages), len(memory))
        _syscalls.prefault(ctypes.byref(pages), len(memory))
        assert (before, resident_pages(ctypes.addressof(pages), len(memory))) == (0, 64)
        del pages
    with pytest.raises(OSError):
        _syscalls.prefault(mmap.PAGESIZE, mmap.PAGESIZE)


def resident_pages(address: int, length: int) -> int:
    seen = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), seen) == 0
    return sum(page & 1 for page in seen)


def test_encryption_is_available() -> None:
    assert _crypt.available is tensorizer._crypt.available is True
    assert issubclass(tensorizer_ops.CryptographyError, _crypt.CryptographyError)


def test_what_a_program_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_io.curl_path == tensorizer.stream_io.curl_path
    assert serialization._enable_perf_stats is tensorizer.serialization._enable_perf_stats
    assert tensorizer_ops.protobuf.TensorPb is tensorizer_ops.tensors_pb2.Tensor
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for module in BOTH.values():
        assert module.serialization._resolve_cuda_device() == torch.device("cuda", 1)


@pytest.mark.parametrize("there", ["ready", "no driver", "not installed"])
def test_nvml(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    class NVMLError(Exception):
        pass

    started = []

    def start() -> None:
        if there == "no driver":
            raise NVMLError
        started.append(there)

    nvml = types.SimpleNamespace(nvmlInit=start, NVMLError=NVMLError)
    monkeypatch.setitem(sys.modules, "pynvml", None if there == "not installed" else nvml)
    monkeypatch.setattr(utils, "_nvml", utils._nvml.__wrapped__)
    assert utils.pynvml is (nvml if there == "ready" else None)
    assert started == (["ready"] if there == "ready" else [])


@pytest.mark.parametrize(
    "entry", [(4, "<f4", (2, 3), 0), (5, "<i2", (2, 3), 12), (1, "|b1", (), 0)]
)
def test_entries_of_an_index(entry: tuple[int, str, tuple[int, ...], int]) -> None:
    version, dtype, shape, length = entry
    ours, theirs = (
        module.serialization.TensorEntry(version, ("x",), 0, dtype, shape, 0, 0, length, None, None)
        for module in BOTH.values()
    )
    assert ours.deserialized_length == theirs.deserialized_length
    assert ours.is_long_tensor == theirs.is_long_tensor


def messages(source: str) -> dict[str, list[str]]:
    """Returns the fields and values of every message and enum in a .proto file."""
    text = re.sub(r"//.*", "", source)
    blocks = re.findall(r"(?:message|enum) (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text)
    return {name: re.findall(r"[\w ]+ = \d+(?=;)", body) for name, body in blocks}


def test_the_messages_as_a_file() -> None:
    ours, theirs = (
        (Path(module.__file__).parent / "tensors.proto").read_text() for module in BOTH.values()
    )
    assert len(messages(ours)) == 5
    squeezed = [
        {
            name: [" ".join(field.split()) for field in fields]
            for name, fields in messages(source).items()
        }
        for source in (ours, theirs)
    ]
    assert squeezed[0] == squeezed[1]
    assert "package tensors;" in ours and "oneof value {" in ours


def test_loggers_say_what_theirs_say(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tensorizer")
    heard = []
    for module in BOTH.values():
        caplog.clear()
        serializer = module.TensorSerializer(path)
        serializer.write_module(Model())
        serializer.close()
        module.TensorDeserializer(path, device="cpu", lazy_load=True).close()
        heard.append(caplog.record_tuples.copy())
    for ours, theirs in zip(*heard, strict=True):
        assert ours[:2] == theirs[:2] == ("tensorizer.serialization", logging.DEBUG)
        # tensorizer's last message has the file size, which our serializer does not know.
        assert set(numbers(ours[2])) & set(numbers(theirs[2])) or "complete" in theirs[2]
    for module in BOTH.values():
        for name in ("serialization", "stream_io", "torch_compat"):
            assert getattr(module, name).logger.name == f"tensorizer.{name}"


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)
