"""Whether files can be encrypted, as ``tensorizer._crypt`` says it: libsodium is always there."""

from tensorizer_ops.errors import Crypto

CryptographyError = Crypto
available: bool = True
