"""Named keys of this process, for the option ``key`` of loads and saves.

Options contain the name of a key, never the key itself, so that no graph, script, pickle or error
message contains one::

    tensorizer_ops.keys.add("release", key=secrets.token_bytes(32))
    tensorizer_ops.save("model.tensors", tensors, options={"key": "named:release"})
"""

from __future__ import annotations

from collections.abc import Callable

from tensorizer_ops import _core
from tensorizer_ops._base.arguments import checked, is_unicode, not_unicode
from tensorizer_ops._compat.crypt_params import EncryptionParams

__all__ = ["add", "remove"]

_Bytes = bytes | bytearray | memoryview


@checked
def add(
    name: str,
    *,
    key: _Bytes | EncryptionParams | Callable[[], bytes] | None = None,
    passphrase: str | _Bytes | Callable[[], str | _Bytes] | None = None,
) -> None:
    """Store a key or a passphrase under a name, replacing what the name stood for.

    Args:
        name: the name that ``named:NAME`` refers to.
        key: 32 bytes, or a function that returns them whenever a file needs them; then the key is
            kept only while that file is open. With ``EncryptionParams`` that were derived from a
            passphrase, saved files can be opened with that passphrase.
        passphrase: the passphrase that the key of each file is derived from (Argon2id), or a
            function that returns it.

    Raises:
        ValueError: the key does not have 32 bytes, or the passphrase is empty.
        TypeError: the key is not bytes, or the passphrase neither bytes nor str.
    """
    if (key is None) == (passphrase is None):
        raise TypeError("give either key= or passphrase=, and not both")
    if isinstance(key, EncryptionParams):
        if key._derivation is not None:
            _core.set_derived_key(name, key.key, *key._derivation)
        else:
            _core.set_key(name, key.key, False)
    elif callable(key):
        _core.set_key_function(name, key, False)
    elif key is not None:
        _core.set_key(name, _to_bytes(key), False)
    elif callable(passphrase):
        give = passphrase
        _core.set_key_function(name, lambda: _passphrase(give()), True)
    elif passphrase is not None:
        _core.set_key(name, _passphrase(passphrase), True)


@checked
def remove(name: str) -> None:
    """Remove the key or passphrase of a name. Open files keep theirs.

    Args:
        name: the name that was given to :func:`add`.
    """
    _core.forget_key(name)


def _passphrase(text: str | _Bytes) -> bytes:
    if not isinstance(text, str):
        return _to_bytes(text, "a passphrase", "str or ")
    if not is_unicode(text):  # the error of encode() would have the text
        raise not_unicode("a passphrase")
    return text.encode()


def _to_bytes(secret: _Bytes, what: str = "a key", text: str = "") -> bytes:
    # bytes() of a number n would return n zero bytes.
    if not isinstance(secret, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is {type(secret).__name__}, and must be {text}bytes")
    return bytes(secret)
