"""Encrypts or decrypts an existing `.tensors` file.

    python examples/encrypt_file.py encrypt model.tensors secret.tensors --new-key model.key
    python examples/encrypt_file.py encrypt model.tensors secret.tensors --key file:model.key
    python examples/encrypt_file.py encrypt model.tensors secret.tensors \\
        --key passphrase-file:words --opslimit sensitive --memlimit sensitive
    python examples/encrypt_file.py decrypt secret.tensors model.tensors --key file:model.key

--key says where the key is: file:PATH (32 bytes), env:NAME (64 hexadecimal digits, or base64),
passphrase-file:PATH or passphrase-env:NAME. --new-key writes a random key to a new file.

A key is derived from a passphrase by Argon2id. --opslimit sets the number of passes and --memlimit
the bytes of memory; both also accept min, interactive, moderate and sensitive. --salt is 32
hexadecimal digits, random by default. The file stores all three, so that the passphrase alone
decrypts it.

Source and target may be URIs, and may be the same file. The data is checked against its hashes, and
the target appears when it is complete.
"""

from __future__ import annotations

import argparse
import os
import secrets
from enum import IntEnum
from pathlib import Path

import tensorizer_ops
from tensorizer_ops import EncryptionParams


def make_key(path: str) -> str:
    """Write a new key to a file that only its owner can read, and return its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
    return f"file:{path}"


def derive_key(arguments: argparse.Namespace) -> str:
    """Derive a key with the limits and salt of the arguments, and return its name."""
    kind, _, place = arguments.key.partition(":")
    if kind == "passphrase-file":
        passphrase = Path(place).read_bytes().rstrip(b"\r\n")
    elif kind == "passphrase-env":
        passphrase = os.environb.get(os.fsencode(place), b"")
    else:
        raise ValueError("--opslimit, --memlimit and --salt need a passphrase")
    params = EncryptionParams.from_string(
        passphrase,
        opslimit=limit(arguments.opslimit, EncryptionParams.OpsLimit),
        memlimit=limit(arguments.memlimit, EncryptionParams.MemLimit),
        salt=None if arguments.salt is None else bytes.fromhex(arguments.salt),
    )
    print("salt:", params.salt.hex())
    tensorizer_ops.keys.add("derived", key=params)
    return "named:derived"


def limit(text: str, limits: type[IntEnum]) -> int:
    return limits[text.upper()] if text.upper() in limits.__members__ else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=["encrypt", "decrypt"])
    parser.add_argument("source")
    parser.add_argument("target")
    key = parser.add_mutually_exclusive_group(required=True)
    key.add_argument("--key", metavar="NAME")
    key.add_argument("--new-key", metavar="PATH")
    parser.add_argument("--opslimit", default="moderate")
    parser.add_argument("--memlimit", default="moderate")
    parser.add_argument("--salt")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress bar")
    arguments = parser.parse_args()
    derives = {"opslimit", "memlimit", "salt"} & {
        name for name, value in vars(arguments).items() if value != parser.get_default(name)
    }
    if arguments.new_key and derives:
        parser.error("--new-key is random, so --opslimit, --memlimit and --salt do not apply")
    if arguments.do == "decrypt" and (derives or arguments.new_key):
        parser.error("decrypt takes only --key: the file stores how its key is derived")
    rewrite = tensorizer_ops.encrypt if arguments.do == "encrypt" else tensorizer_ops.decrypt
    try:
        named = make_key(arguments.new_key) if arguments.new_key else arguments.key
        if derives:
            named = derive_key(arguments)
        rewrite(arguments.source, arguments.target, key=named, progress=not arguments.quiet)
    except (tensorizer_ops.errors.Error, ImportError, OSError, ValueError) as error:
        if arguments.new_key and not isinstance(error, FileExistsError):
            Path(arguments.new_key).unlink(missing_ok=True)  # nothing was encrypted with it
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
