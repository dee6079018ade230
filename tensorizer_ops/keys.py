"""Keys that this process keeps under names, for the option ``key`` of loads and saves.

A key is named, and never given, so that no graph, script, pickle or message holds one::

    tensorizer_ops.keys.add("release", key=secrets.token_bytes(32))
    tensorizer_ops.save("model.tensors", tensors, options={"key": "named:release"})
"""

from __future__ import annotations

from collections.abc import Callable

from tensorizer_ops import _python

__all__ = ["add", "remove"]


def add(
    name: str,
    *,
    key: bytes | Callable[[], bytes] | None = None,
    passphrase: str | bytes | Callable[[], str | bytes] | None = None,
) -> None:
    """Keep a key or a passphrase under a name, in the place of what was there.

    Args:
        name: what ``named:NAME`` refers to.
        key: 32 bytes, or what returns them whenever a file needs them: then they are kept only
            while that file is open.
        passphrase: what each file's key is derived from (Argon2id), or what returns it.

    Raises:
        ValueError: the key has not 32 bytes, or the passphrase none.
    """
    if (key is None) == (passphrase is None):
        raise TypeError("a name is for either a key or a passphrase")
    if key is not None:
        if callable(key):
            _python.set_key_function(name, key, False)
        else:
            _python.set_key(name, bytes(key), False)
    elif callable(passphrase):
        give = passphrase
        _python.set_key_function(name, lambda: _to_bytes(give()), True)
    elif passphrase is not None:
        _python.set_key(name, _to_bytes(passphrase), True)


def remove(name: str) -> None:
    """Forget what is kept under a name. Files that are open keep what they have."""
    _python.forget_key(name)


def _to_bytes(passphrase: str | bytes) -> bytes:
    return passphrase.encode() if isinstance(passphrase, str) else bytes(passphrase)
