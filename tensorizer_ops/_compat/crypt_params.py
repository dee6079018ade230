"""``EncryptionParams`` and ``DecryptionParams``: the key objects of ``tensorizer``'s API."""

from __future__ import annotations

import copy
import hmac
import secrets
import sys
from enum import IntEnum
from typing import Any

from tensorizer_ops import _core

_KEY_SIZE = 32
_SALT_SIZE = 16

_Bytes = bytes | bytearray | memoryview


def _checked_key(key: _Bytes) -> bytes:
    if not isinstance(key, bytes | bytearray | memoryview):
        raise TypeError(
            f"a key is {type(key).__name__}, and must be bytes; from_string() derives one from text"
        )
    if len(key) != _KEY_SIZE:
        raise ValueError(
            f"a key has {_KEY_SIZE} bytes, and this one has {len(key)}; from_string() derives one "
            "from text"
        )
    return bytes(key)


def _checked_source(source: str | bytes, encoding: str) -> bytes:
    if not source:
        raise ValueError("the passphrase must not be empty")
    if isinstance(source, str):
        return source.encode(encoding)
    if not isinstance(source, bytes):
        raise TypeError(f"the passphrase is {type(source).__name__}, and must be str or bytes")
    return source


class _Secret:
    """What can be copied and pickled, but not by ``torch.save``: checkpoints are shared."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Any:
        return copy.copy(self)  # its attributes are immutable

    def __reduce_ex__(self, protocol: Any) -> Any:
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_globals.get("__name__") == "torch.serialization":
                raise TypeError(
                    f"{type(self).__name__} cannot be saved by torch.save: it contains a secret"
                )
        return super().__reduce_ex__(max(protocol, 2))


class EncryptionParams(_Secret):
    """The key to encrypt a file with.

    :meth:`random` makes a new key, which the program has to store (:attr:`key`);
    :meth:`from_string` derives one from a passphrase; and ``EncryptionParams(key=…)`` uses the
    given 32 bytes.
    """

    __slots__ = ("_derivation", "key")

    class OpsLimit(IntEnum):
        """The number of passes over memory that a key derivation makes."""

        MIN = 1
        INTERACTIVE = 2
        MODERATE = 3
        SENSITIVE = 4

    class MemLimit(IntEnum):
        """The number of bytes of memory that a key derivation uses."""

        MIN = 8 << 10
        INTERACTIVE = 64 << 20
        MODERATE = 256 << 20
        SENSITIVE = 1 << 30

    key: bytes
    # Passes, bytes of memory and salt; None if the key was not derived.
    _derivation: tuple[int, int, bytes] | None

    def __init__(self, key: bytes) -> None:
        self.key = _checked_key(key)
        self._derivation = None

    @classmethod
    def random(cls) -> EncryptionParams:
        """Return a new random key."""
        return cls(secrets.token_bytes(_KEY_SIZE))

    @classmethod
    def from_string(
        cls,
        source: str | bytes,
        opslimit: OpsLimit | int | None = None,
        memlimit: MemLimit | int | None = None,
        salt: str | bytes | None = None,
        *,
        encoding: str = "utf-8",
    ) -> EncryptionParams:
        """Derive a key from a passphrase, by Argon2id.

        Encrypted files store the parameters of the derivation, so that the passphrase alone opens
        them: see :meth:`DecryptionParams.from_string`.

        Args:
            source: the passphrase.
            opslimit: the number of passes; ``OpsLimit.MODERATE`` by default.
            memlimit: the number of bytes of memory; ``MemLimit.MODERATE`` by default.
            salt: 16 bytes; random by default, so that every call returns another key.
            encoding: how to encode a passphrase that is a string.

        Raises:
            ValueError: the passphrase is empty, the salt does not have 16 bytes, or libsodium does
                not accept a limit.
        """
        passphrase = _checked_source(source, encoding)
        if isinstance(opslimit, cls.MemLimit) or not isinstance(opslimit, int | None):
            raise TypeError(f"opslimit is {type(opslimit).__name__}, and must be OpsLimit or int")
        if isinstance(memlimit, cls.OpsLimit) or not isinstance(memlimit, int | None):
            raise TypeError(f"memlimit is {type(memlimit).__name__}, and must be MemLimit or int")
        passes = int(cls.OpsLimit.MODERATE if opslimit is None else opslimit)
        memory = int(cls.MemLimit.MODERATE if memlimit is None else memlimit)
        for name, value, least, most in (
            ("opslimit", passes, cls.OpsLimit.MIN, 0xFFFFFFFF),
            ("memlimit", memory, cls.MemLimit.MIN, 4398046510080),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}, and must be from {int(least)} to {most}")
        if salt is None:
            salt = secrets.token_bytes(_SALT_SIZE)
        elif not isinstance(salt, bytes | bytearray | memoryview):
            raise TypeError(f"a salt is {type(salt).__name__}, and must be bytes")
        if len(salt) != _SALT_SIZE:
            raise ValueError(f"a salt has {_SALT_SIZE} bytes, and this one has {len(salt)}")
        derivation = (passes, memory, bytes(salt))
        params = cls(_core.derive_key(passphrase, *derivation))
        params._derivation = derivation
        return params

    @property
    def salt(self) -> bytes:
        """The salt that the key was derived with. It is not a secret."""
        if self._derivation is None:
            raise ValueError("the key was not derived from a passphrase, so it has no salt")
        return self._derivation[2]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncryptionParams):
            return NotImplemented
        return hmac.compare_digest(self.key, other.key) and self._derivation == other._derivation

    def __repr__(self) -> str:
        derived = "" if self._derivation is None else ", from a passphrase"
        return f"<EncryptionParams: a key{derived}>"

    def __copy__(self) -> EncryptionParams:
        copied = type(self)(self.key)
        copied._derivation = self._derivation
        return copied


class DecryptionParams(_Secret):
    """The key or passphrase to open an encrypted file with."""

    key: bytes | None
    source: bytes | None

    def __init__(self) -> None:
        self.key = None
        self.source = None

    @classmethod
    def from_string(cls, source: str | bytes, *, encoding: str = "utf-8") -> DecryptionParams:
        """Return params with a passphrase, for files whose key was derived from it."""
        params = cls()
        params.source = _checked_source(source, encoding)
        return params

    @classmethod
    def from_key(cls, key: bytes) -> DecryptionParams:
        """Return params with a key of 32 bytes (``EncryptionParams.key``), random or derived."""
        if not key:
            raise ValueError("a key must not be empty")
        params = cls()
        params.key = _checked_key(key)
        return params

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecryptionParams):
            return NotImplemented
        return all(
            hmac.compare_digest(mine or b"", theirs or b"")
            for mine, theirs in ((self.key, other.key), (self.source, other.source))
        )

    def __repr__(self) -> str:
        what = "a key" if self.key is not None else "a passphrase" if self.source else "nothing"
        return f"<DecryptionParams: {what}>"

    def __copy__(self) -> DecryptionParams:
        copied = type(self)()
        copied.key = self.key
        copied.source = self.source
        return copied
