"""``encrypt``, ``decrypt``, ``rekey`` and ``keygen``. No argument ever contains a key."""

from __future__ import annotations

import os
import secrets
from argparse import Namespace
from typing import Any

from tensorizer_ops._cli.options import key_name
from tensorizer_ops._cli.output import bar

_KEY_BYTES = 32


def encrypt(given: Namespace) -> int:
    from tensorizer_ops._front.rewrite import encrypt

    encrypt(
        given.source,
        given.target,
        key=_key(given, given.target_options, twice=True),
        kdf=given.kdf,
        **_as_asked(given),
    )
    return 0


def decrypt(given: Namespace) -> int:
    from tensorizer_ops._front.rewrite import decrypt

    decrypt(
        given.source,
        given.target,
        key=_key(given, given.options),
        **_as_asked(given),
    )
    return 0


def rekey(given: Namespace) -> int:
    from tensorizer_ops._front.rewrite import rekey

    rekey(
        given.source,
        given.target,
        old_key=_key(given, given.options),
        new_key=_key(given, given.target_options, "new_", twice=True),
        kdf=given.kdf,
        **_as_asked(given),
    )
    return 0


def keygen(given: Namespace) -> int:
    if given.hex:
        print(secrets.token_hex(_KEY_BYTES))
        return 0
    # O_EXCL replaces nothing, and follows no link.
    descriptor = os.open(given.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(given.path)
        raise
    return 0


def _as_asked(given: Namespace) -> dict[str, Any]:
    return {
        "hashes": given.hashes,
        "threads": given.threads,
        "source_options": dict(given.options),
        "target_options": dict(given.target_options),
        "progress": bar(given.quiet, given.source),
    }


def _key(
    given: Namespace, options: list[tuple[str, str]], new: str = "", twice: bool = False
) -> str:
    """Return the name of a key: of an argument, of the option ``key``, or asked for."""
    named = dict(options).get("key")
    return key_name(given, new, ask=named is None, twice=twice) or str(named)
