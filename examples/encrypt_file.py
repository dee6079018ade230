"""Encrypts a `.tensors` file that is there already, or decrypts it.

    python examples/encrypt_file.py encrypt model.tensors secret.tensors --key file:model.key
    python examples/encrypt_file.py decrypt secret.tensors model.tensors --key file:model.key

A key is named: file:PATH (32 bytes), env:NAME (64 hexadecimal digits, or base64),
passphrase-file:PATH or passphrase-env:NAME. Source and target may be URIs, and the same. What is
read is checked against its hashes on the way, and the target appears when all of it is written.
"""

from __future__ import annotations

import argparse

import tensorizer_ops


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=["encrypt", "decrypt"])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--key", required=True)
    arguments = parser.parse_args()
    rewrite = tensorizer_ops.encrypt if arguments.do == "encrypt" else tensorizer_ops.decrypt
    try:
        rewrite(arguments.source, arguments.target, key=arguments.key, progress=True)
    except (tensorizer_ops.errors.Error, ImportError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
