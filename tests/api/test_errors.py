"""Errors of the library as Python exceptions."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.process import environment
from support.samples import zoo
from tensorizer_ops import errors

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer

WAYS_TO_READ: dict[str, Callable[[str], object]] = {
    "load": lambda path: ops.load(path),
    "load.default": lambda path: ops.load.default(path),
    "load_tensors": lambda path: ops.load_tensors(path, ["x"]),
    "load_slices": lambda path: ops.load_slices(path, ["x"], [0], [0], [0], [1]),
    "load_into": lambda path: ops.load_into(path, ["x"], [torch.zeros(3)]),
    "names": lambda path: ops.names(path),
    "verify": lambda path: ops.verify(path),
    "delta": lambda path: ops.delta(path, path, "unused"),
    "apply": lambda path: ops.apply(path, path, "unused"),
    "apply_into": lambda path: ops.apply_into(path, [], []),
    "front": lambda path: tensorizer_ops.load(path),
    "front, slices": lambda path: tensorizer_ops.load(path, slices={"x": 0}),
    "reader": lambda path: Reader(path, None).names(),
    "reader, loading": lambda path: Reader(path, None).load(None, None, None, "none", True, 1),
}
WAYS_TO_WRITE: dict[str, Callable[[str], object]] = {
    "save": lambda path: ops.save(path, {"x": torch.ones(3)}),
    "save_tensors": lambda path: ops.save_tensors(path, ["x"], [torch.ones(3)]),
    "front": lambda path: tensorizer_ops.save(path, {"x": torch.ones(3)}),
    "writer": lambda path: Writer(path, None),
}


@pytest.mark.parametrize("read", WAYS_TO_READ.values(), ids=WAYS_TO_READ)
def test_no_such_file(path: str, read: Callable[[str], object]) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read(path)
    assert isinstance(caught.value, errors.NotFound)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == path
    assert "tensorizer.NotFound" not in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize("write", WAYS_TO_WRITE.values(), ids=WAYS_TO_WRITE)
def test_below_a_file(path: str, write: Callable[[str], object]) -> None:
    Path(path).touch()
    with pytest.raises(errors.NotFound) as caught:
        write(path + "/below")
    assert caught.value.errno == errno.ENOTDIR
    assert Path(path).read_bytes() == b""


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.Error) as caught:
        ops.load(str(tmp_path))
    assert caught.value.errno == errno.EISDIR
    assert caught.value.filename == str(tmp_path)


def test_a_link_to_itself(path: str) -> None:
    os.symlink(path, path)
    for attempt in (*WAYS_TO_READ.values(), *WAYS_TO_WRITE.values()):
        with pytest.raises(errors.Error) as caught:
            attempt(path)
        assert caught.value.errno == errno.ELOOP


def test_a_file_name_that_is_too_long(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 300))
    for attempt in (ops.load, lambda path: ops.save(path, zoo())):
        with pytest.raises(errors.Error) as caught:
            attempt(path)
        assert caught.value.errno == errno.ENAMETOOLONG
    longest = str(tmp_path / ("x" * 255))
    ops.save(longest, zoo())
    assert os.listdir(tmp_path) == ["x" * 255]


def test_too_many_open_files(path: str) -> None:
    import resource

    ops.save(path, zoo())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    blocked = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        while True:
            try:
                blocked.append(os.dup(0))
            except OSError:
                break
        with pytest.raises(errors.Error) as caught:
            ops.load(path)
        assert caught.value.errno == errno.EMFILE
        with pytest.raises(errors.Error):
            ops.save(path, {"x": torch.ones(1)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in blocked:
            os.close(descriptor)
    assert ops.names(path) == list(zoo())


def failures(path: str) -> dict[str, tuple[type[BaseException], Callable[[], object]]]:
    Path(path + ".bad").write_bytes(b"nonsense, and nothing else but nonsense" * 10)
    ops.save(path, {"x": torch.arange(30)})
    data = bytearray(Path(path).read_bytes())
    data[-20] ^= 1
    Path(path + ".changed").write_bytes(data)
    return {
        "NotFound": (FileNotFoundError, lambda: ops.load(path + ".none")),
        "NoSuchTensor": (KeyError, lambda: ops.load(path, names=["none"])),
        "InvalidFormat": (ValueError, lambda: ops.load(path + ".bad")),
        "InvalidArgument": (ValueError, lambda: ops.load(path, threads=-1)),
        "OutOfSpace": (OSError, lambda: ops.save("/dev/full", {"x": torch.ones(9999)})),
        "HashMismatch": (errors.HashMismatch, lambda: ops.verify(path + ".changed")),
    }


KINDS = [
    "NotFound",
    "NoSuchTensor",
    "InvalidFormat",
    "InvalidArgument",
    "OutOfSpace",
    "HashMismatch",
]


@pytest.mark.parametrize("kind", KINDS)
def test_types_and_texts_survive_pickling(path: str, kind: str) -> None:
    expected, attempt = failures(path)[kind]
    with pytest.raises(expected) as caught:
        attempt()
    error = caught.value
    assert "tensorizer." not in str(error)
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    if isinstance(error, OSError):
        assert isinstance(twin, OSError)
        assert error.errno is not None
        assert (twin.errno, twin.filename) == (error.errno, error.filename)


def test_the_kind_stands_once_in_a_traceback(path: str) -> None:
    load = f"import tensorizer_ops; tensorizer_ops.load({path!r})"
    ended = subprocess.run([sys.executable, "-c", load], env=environment(), stderr=subprocess.PIPE)
    last = ended.stderr.decode().splitlines()[-1]
    assert last.startswith(f"tensorizer_ops.errors.NotFound: cannot open '{path}': No such ")


def test_messages_end_with_the_page_about_them(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(errors.NotFound):
        pass

    plain = {make: str(make("gone")) for make in (errors.NotFound, errors.NoSuchTensor, Own)}
    monkeypatch.setattr(errors, "_PAGE", "https://example.org/troubleshooting.html")
    for make, text in plain.items():
        name = "NotFound" if make is Own else make.__name__
        linked = f"{text}\nSee https://example.org/troubleshooting.html#{name}"
        assert str(make("gone")) == linked
        assert str(errors.InvalidFormat(f"it is not whole: {make('gone')}")).endswith(linked)
    with pytest.raises(FileNotFoundError, match=r"\.html#NotFound$") as caught:
        tensorizer_ops.load(path)
    assert "See" not in caught.value.strerror


def test_hash_mismatch_is_an_exception_of_our_own() -> None:
    assert issubclass(errors.HashMismatch, Exception)
    assert not issubclass(errors.HashMismatch, (ValueError, OSError, KeyError))
    assert errors.HashMismatch.__module__.startswith("tensorizer_ops")
    assert errors.HashMismatch.__doc__


def test_a_key_error_reads_like_its_message(path: str) -> None:
    ops.save(path, {"it's": torch.ones(1)})
    with pytest.raises(KeyError) as caught:
        ops.load(path, names=["not\there"])
    assert str(caught.value).startswith(f"'{path}' has no tensor ")
    assert "\\x09" in str(caught.value)
    assert "\t" not in str(caught.value)


def test_errors_of_workers_arrive_as_themselves(path: str) -> None:
    tensors = {str(index): torch.full((300_000,), index) for index in range(20)}
    ops.save(path, tensors)
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 4
    Path(path).write_bytes(data)
    for threads in (1, 2, 8):
        for copy in (False, True):
            with pytest.raises(errors.HashMismatch):
                ops.load(path, verify="all", copy=copy, threads=threads)


def test_wrong_python_types(path: str) -> None:
    for attempt in (
        lambda: tensorizer_ops.load(3),
        lambda: tensorizer_ops.load(None),
        lambda: tensorizer_ops.save(path, [torch.ones(1)]),
        lambda: tensorizer_ops.save(path, {"x": 3}),
        lambda: tensorizer_ops.save(path, {3: torch.ones(1)}),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            attempt()
    assert not os.path.exists(path)


def test_arguments_that_are_mixed_up_are_named(path: str) -> None:
    linear = torch.nn.Linear(2, 2)
    for others in (linear, [torch.ones(1)], torch.ones(2), 3):
        for save in (tensorizer_ops.save, tensorizer_ops.save_async):
            with pytest.raises(TypeError, match=rf"is {type(others).__name__},.*state_dict\(\)"):
                save(path, others)
    assert not os.path.exists(path)
    tensorizer_ops.save(path, linear.state_dict())
    with pytest.raises(TypeError, match="names is str"):
        tensorizer_ops.load(path, names="weight")
    with pytest.raises(TypeError, match=r"is str, and must be a torch\.nn\.Module or a dict"):
        tensorizer_ops.load_into(path, linear)  # type: ignore[arg-type]


SECRET = "a secret"


def ways_to_give_options(path: str) -> dict[str, Callable[[Any], object]]:
    tensors = {"x": torch.ones(3)}
    ops.save(path, tensors)
    target = path + ".other"
    package: dict[str, Callable[[Any], object]] = {
        "load": lambda options: tensorizer_ops.load(path, options=options),
        "save": lambda options: tensorizer_ops.save(target, tensors, options=options),
        "save, told": lambda options: tensorizer_ops.save(
            target, tensors, options=options, progress=lambda *far: None
        ),
        "save_async": lambda options: tensorizer_ops.save_async(
            target, tensors, options=options
        ).result(),
        "load_into": lambda options: tensorizer_ops.load_into(
            torch.nn.ParameterDict(tensors), path, options=options
        ),
        "digest": lambda options: tensorizer_ops.digest(path, options=options),
        "decrypt": lambda options: tensorizer_ops.decrypt(
            path, target, key="env:none", target_options=options
        ),
        "TensorSerializer": lambda options: tensorizer_ops.TensorSerializer(
            target, options=options
        ).close(),
        "TensorDeserializer": lambda options: tensorizer_ops.TensorDeserializer(
            path, "cpu", options=options
        ),
    }
    return package


WAYS_TO_GIVE_OPTIONS = [
    *("load", "save", "save, told", "save_async", "load_into", "digest", "decrypt"),
    *("TensorSerializer", "TensorDeserializer"),
]


@pytest.mark.parametrize("way", WAYS_TO_GIVE_OPTIONS)
def test_options_of_wrong_types_show_no_secret(path: str, way: str) -> None:
    give = ways_to_give_options(path)[way]
    for wrong in (None, b"text", ["text"]):
        options = {"s3_secret_access_key": SECRET, "s3_session_token": wrong}
        with pytest.raises(TypeError, match="'s3_session_token' is ") as caught:
            give(options)
        assert SECRET not in str(caught.value)
    with pytest.raises(TypeError, match="options has a name that is int") as caught:
        give({3: SECRET})
    assert SECRET not in str(caught.value)
    assert not os.path.exists(path + ".other")


@pytest.mark.parametrize("way", WAYS_TO_GIVE_OPTIONS)
def test_options_may_be_numbers_and_bools(path: str, way: str) -> None:
    give = ways_to_give_options(path)[way]
    if way != "decrypt":  # it needs a key first
        give({"memory_ceiling": 1 << 20, "connect_timeout": 2.5, "insecure": False})
    with pytest.raises(ValueError, match="option 'http2' is '5'"):
        give({"http2": 5})


def test_other_arguments_of_wrong_types_show_no_secret(path: str) -> None:
    options = {"s3_secret_access_key": SECRET}
    uri = f"redis://:{SECRET.replace(' ', '%20')}@127.0.0.1:9/x"
    tensors = {"x": torch.tensor([987654321])}
    wrong: list[dict[str, Any]] = [{"threads": "2"}, {"hashes": 3}, {"verify": 3}]
    for arguments in wrong:
        given: dict[str, Any] = {"options": options, **arguments}
        for attempt in (
            lambda given=given: tensorizer_ops.load_constants(None, uri, **given),
            lambda given=given: tensorizer_ops.save(uri, tensors, progress=print, **given),
            lambda given=given: tensorizer_ops.save_async(uri, tensors, **given).result(),
        ):
            with pytest.raises(TypeError) as caught:
                attempt()
            for hidden in (SECRET, SECRET.replace(" ", "%20"), "987654321"):
                assert hidden not in str(caught.value)
    stream = type("Stream", (io.BytesIO,), {"tell": lambda self: "here"})
    with pytest.raises(TypeError) as caught:
        tensorizer_ops.TensorDeserializer(stream(), options=options)
    assert SECRET not in str(caught.value)


def test_what_python_raises_is_of_the_same_classes(path: str) -> None:
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(2, 2).eval()))
    with pytest.raises(errors.InvalidArgument):
        tensorizer_ops.externalize(frozen, path)
    tensorizer_ops.save(path, {})
    with pytest.raises(errors.InvalidFormat):
        tensorizer_ops.TensorDeserializer(path)


@pytest.mark.parametrize("arguments", [(), ("text",), ("text", 5), (5, "text", "more")])
def test_errors_that_others_raise(arguments: tuple[Any, ...]) -> None:
    for name in ("HashMismatchError", "CryptographyError"):
        ours, theirs = (
            getattr(package.serialization, name) for package in (tensorizer_ops, tensorizer)
        )
        assert str(ours(*arguments)) == str(theirs(*arguments))
    assert str(errors.NoSuchTensor()) == str(KeyError())
    assert str(errors.FileError()) == str(OSError())
