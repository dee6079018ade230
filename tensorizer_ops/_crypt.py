"""The interface of ``tensorizer._crypt``: encryption is always available."""

from tensorizer_ops.errors import Crypto

CryptographyError = Crypto
available: bool = True
