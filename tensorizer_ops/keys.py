"""Keys that this process keeps under names, for the option ``key`` of loads and saves.

A key is named, and never given, so that no graph, script, pickle or message holds one::

    tensorizer_ops.keys.add("release", key=secrets.token_bytes(32))
    tensorizer_ops.save("model.tensors", tensors, options={"key": "named:release"})
"""

from __future__ import annotations

from collections.abc import Callable

from tensorizer_ops import _python
from tensorizer_ops._compat.crypt_params import EncryptionParams

__all__ = ["add", "remove"]

_Bytes = bytes | bytearray | memoryview


def add(
    name: str,
    *,
    key: _Bytes | EncryptionParams | Callable[[], bytes] | None = None,
    passphrase: str | _Bytes | Callable[[], str | _Bytes] | None = None,
) -> None:
    """Keep a key or a passphrase under a name, in the place of what was there.

    Args:
        name: what ``named:NAME`` refers to.
        key: 32 bytes, or what returns them whenever a file needs them: then they are kept only
            while that file is open. ``EncryptionParams`` that were derived from a passphrase write
            files that it opens.
        passphrase: what each file's key is derived from (Argon2id), or what returns it.

    Raises:
        ValueError: the key has not 32 bytes, or the passphrase none.
        TypeError: they are something else than bytes, or text for a passphrase.
    """
    if (key is None) == (passphrase is None):
        raise TypeError("a name is for either a key or a passphrase")
    # What is wrong would be printed otherwise, and with it the key.
    if not isinstance(name, str):
        raise TypeError(f"the name of a key is {type(name).__name__}, and must be str")
    if isinstance(key, EncryptionParams):
        if key._derivation is not None:
            _python.set_derived_key(name, key.key, *key._derivation)
        else:
            _python.set_key(name, key.key, False)
    elif callable(key):
        _python.set_key_function(name, key, False)
    elif key is not None:
        _python.set_key(name, _to_bytes(key), False)
    elif callable(passphrase):
        give = passphrase
        _python.set_key_function(name, lambda: _passphrase(give()), True)
    elif passphrase is not None:
        _python.set_key(name, _passphrase(passphrase), True)


def remove(name: str) -> None:
    """Forget what is kept under a name. Files that are open keep what they have."""
    _python.forget_key(name)


def _passphrase(text: str | _Bytes) -> bytes:
    return text.encode() if isinstance(text, str) else _to_bytes(text, "a passphrase", "str or ")


def _to_bytes(secret: _Bytes, what: str = "a key", text: str = "") -> bytes:
    # Of a number, bytes() would make so many zeros.
    if not isinstance(secret, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is {type(secret).__name__}, and must be {text}bytes")
    return bytes(secret)
