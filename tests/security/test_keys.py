"""The names and sources of keys, and the places where their bytes must not appear."""

from __future__ import annotations

import base64
import os
import select
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import fork_python
from tensorizer_ops import keys
from tensorizer_ops.errors import Crypto, InvalidArgument, NotFound

ops = torch.ops.tensorizer

KEY = bytes(range(100, 132))


@pytest.fixture
def encrypted(path: str) -> str:
    keys.add("test", key=KEY)
    ops.save(path, {"x": torch.ones(3)}, options={"key": "named:test"})
    keys.remove("test")
    return path


def opens(path: str, key: str) -> bool:
    return bool(ops.load(path, options={"key": key})["x"].sum() == 3)


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.b64encode(KEY).decode().rstrip("="),
        base64.urlsafe_b64encode(KEY).decode(),
    ],
)
def test_keys_of_the_environment(
    encrypted: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORIZER_TEST_KEY", text)
    assert opens(encrypted, "env:TENSORIZER_TEST_KEY")
    for wrong in ("", text[:-2], text + "00", "?" + text[1:]):
        monkeypatch.setenv("TENSORIZER_TEST_KEY", wrong)
        with pytest.raises(InvalidArgument, match="64 hexadecimal digits") as error:
            opens(encrypted, "env:TENSORIZER_TEST_KEY")
        assert text[5:15] not in str(error.value)
    monkeypatch.delenv("TENSORIZER_TEST_KEY")
    with pytest.raises(InvalidArgument, match="has no variable 'TENSORIZER_TEST_KEY'"):
        opens(encrypted, "env:TENSORIZER_TEST_KEY")


def test_key_files(encrypted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY)
    assert opens(encrypted, f"file:{file}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert opens(encrypted, "file:~/key")
    for wrong in (b"", KEY[:-1], KEY + b"\n"):
        file.write_bytes(wrong)
        with pytest.raises(InvalidArgument, match="must have exactly 32 bytes"):
            opens(encrypted, f"file:{file}")
    file.unlink()
    with pytest.raises(NotFound, match=str(file)):
        opens(encrypted, f"file:{file}")


def test_keys_from_pipes(encrypted: str, tmp_path: Path) -> None:
    """A pipe made by a shell works. A FIFO without a writer is an error, and does not block."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with pytest.raises(InvalidArgument, match="must have exactly 32 bytes"):
        opens(encrypted, f"file:{fifo}")
    reading, writing = os.pipe()

    def write() -> None:
        os.write(writing, KEY[:10])
        while select.select([reading], [], [], 0)[0]:
            time.sleep(0.001)  # until the reader has these, and waits for more
        os.write(writing, KEY[10:])
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert opens(encrypted, f"file:/dev/fd/{reading}")
    finally:
        os.close(reading)
        writer.join()


def test_passphrases(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(b"open sesame\r\n")
    ops.save(path, {"x": torch.ones(3)}, options={"key": f"passphrase-file:{file}", "kdf": "min"})
    monkeypatch.setenv("TENSORIZER_TEST_PASSPHRASE", "open sesame")
    assert opens(path, "passphrase-env:TENSORIZER_TEST_PASSPHRASE")
    monkeypatch.setenv("TENSORIZER_TEST_PASSPHRASE", "open sesame ")
    with pytest.raises(Crypto):
        opens(path, "passphrase-env:TENSORIZER_TEST_PASSPHRASE")
    for wrong in (b"", b"\n", b"x" * 65537):
        file.write_bytes(wrong)
        with pytest.raises(InvalidArgument, match="passphrase file"):
            opens(path, f"passphrase-file:{file}")


def test_keys_of_the_process(encrypted: str) -> None:
    with pytest.raises(InvalidArgument, match="no key named 'test'"):
        opens(encrypted, "named:test")
    calls = []

    def give() -> bytes:
        calls.append(1)
        return KEY

    keys.add("test", key=give)
    assert not calls
    assert opens(encrypted, "named:test")
    assert len(calls) == 1
    keys.add("test", key=lambda: KEY[:-1])
    with pytest.raises(InvalidArgument, match="32 bytes, and this one has 31"):
        opens(encrypted, "named:test")
    text: Any = "text"
    keys.add("test", key=lambda: text)
    with pytest.raises(InvalidArgument, match="no bytes"):
        opens(encrypted, "named:test")

    class NoService(Exception):
        pass

    def fail() -> bytes:
        raise NoService

    keys.add("test", key=fail)
    with pytest.raises(NoService):
        opens(encrypted, "named:test")
    keys.add("test", passphrase=lambda: "text")
    with pytest.raises(Crypto, match="not with a passphrase"):
        opens(encrypted, "named:test")
    keys.remove("test")


def test_keys_that_are_none() -> None:
    for wrong in (b"", KEY[1:], KEY + b"x"):
        with pytest.raises(ValueError, match="a key must have 32 bytes"):
            keys.add("test", key=wrong)
    with pytest.raises(ValueError, match="empty"):
        keys.add("test", passphrase="")
    neither_or_both: list[dict[str, Any]] = [{}, {"key": KEY, "passphrase": "x"}]
    for both in neither_or_both:
        with pytest.raises(TypeError, match="either"):
            keys.add("test", **both)


def test_keys_of_wrong_types() -> None:
    """An int must not become that many zero bytes, and a refused value is not shown."""
    secret = "text that nobody may see"
    wrong: list[tuple[Any, dict[str, Any]]] = [
        *[("test", {kind: value}) for kind in ("key", "passphrase") for value in (32, [1] * 32)],
        ("test", {"key": secret}),
        (5, {"key": secret.encode()}),
        (5, {"passphrase": secret}),
        (None, {"passphrase": lambda: secret}),
    ]
    for name, what in wrong:
        with pytest.raises(
            TypeError, match=r"^(name|key|passphrase) is \w+, and must be "
        ) as error:
            keys.add(name, **what)
        assert secret not in str(error.value)
    names: list[tuple[Any, Any]] = [(None, secret), ("test", [secret]), (5, None)]
    for name, value in names:
        with pytest.raises(
            TypeError, match=r"^(name|secret) is \w+, and must be str( or None)?$"
        ) as error:
            tensorizer_ops.set_secret(name, value)
        assert secret not in str(error.value)


def test_a_passphrase_that_is_given_late_and_is_none(path: str) -> None:
    number: Any = 32
    keys.add("test", passphrase=lambda: number)
    with pytest.raises(TypeError, match="a passphrase is int, and must be str or bytes"):
        ops.save(path, {"x": torch.ones(3)}, options={"key": "named:test", "kdf": "min"})
    keys.remove("test")
    assert not os.path.exists(path)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_kinds_of_bytes(encrypted: str, kind: Any) -> None:
    keys.add("test", key=kind(KEY))
    assert opens(encrypted, "named:test")
    keys.remove("test")


@pytest.mark.parametrize("key", ["", "secret text", "env:", "named:", KEY.hex()])
def test_a_key_is_never_given(encrypted: str, key: str) -> None:
    with pytest.raises(InvalidArgument, match="option 'key' must be the name of a key") as error:
        opens(encrypted, key)
    assert not key or key.endswith(":") or key not in str(error.value)


# Finds the library's copy of the key in a mapping that core dumps omit (flag "dd").
DUMPED = """
import os, sys, torch, tensorizer_ops
secret = bytes(b ^ 255 for b in bytes.fromhex(sys.argv[2]))
def key():
    return bytes(b ^ 255 for b in secret)
tensorizer_ops.keys.add("test", key=key)
reader = torch.classes.tensorizer.Reader(sys.argv[1], {"key": "named:test"})
reader.load(None, None, None, "all", False, 0)
def regions():
    flags = ""
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0] and not line.startswith("VmFlags"):
            head = line.split()
        elif line.startswith("VmFlags"):
            yield head, line.split()[1:]
found = locked = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for (span, rights, *rest), flags in regions():
        if not rights.startswith("rw") or "dd" not in flags:
            continue
        begin, end = (int(part, 16) for part in span.split("-"))
        memory.seek(begin)
        if key() in memory.read(end - begin):
            found += 1
assert found == 1, found
"""


def test_keys_are_in_no_core_dump(encrypted: str) -> None:
    """Covers the library's own memory. Python's bytes objects are not excluded from dumps."""
    fork_python(DUMPED, encrypted, KEY.hex())


def test_the_order_of_keys_and_options(path: str) -> None:
    for name, value in (
        ("kdf", "hard"),
        ("kdf", "1"),
        ("kdf", "0,8192"),
        ("kdf", "1,100"),
        ("digests", "yes"),
    ):
        with pytest.raises(InvalidArgument, match=f"option '{name}' is '{value}'"):
            ops.save(path, {"x": torch.ones(3)}, options={name: value})
    for name, value in (
        ("kdf_limit", "min"),
        ("digest", "12"),
        ("digest", "x" * 64),
        ("require_authenticated", "1"),
    ):
        with pytest.raises(InvalidArgument, match=f"option '{name}' is '{value}'"):
            tensorizer_ops.load(path, options={name: value})
    assert not os.path.exists(path)
