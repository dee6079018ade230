"""Gives a key object a temporary name while a file is being opened.

The library itself takes only names of keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tensorizer_ops import keys
from tensorizer_ops._compat.crypt_params import DecryptionParams, EncryptionParams


@contextmanager
def named(params: EncryptionParams | DecryptionParams | None) -> Iterator[dict[str, str]]:
    """Register a key under a random name while the block runs; yield the options that name it."""
    if params is None:
        yield {}
        return
    name = f"params {secrets.token_hex(16)}"
    if isinstance(params, EncryptionParams):
        keys.add(name, key=params)
    elif params.key is not None:
        keys.add(name, key=params.key)
    elif isinstance(params, DecryptionParams) and params.source is not None:
        keys.add(name, passphrase=params.source)
    else:
        raise ValueError("these params hold neither a key nor a passphrase")
    try:
        yield {"key": f"named:{name}"}
    finally:
        keys.remove(name)
