"""Saves an encrypted model with a key that only this process knows, and another with a passphrase.

Run it with `python examples/encryption.py`. A key is always named, and never stands in a program.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import torch

import tensorizer_ops


def main() -> None:
    tensors = torch.nn.Linear(512, 512).state_dict()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tensors"

        # 32 bytes, kept under a name. A function would be asked whenever a file needs the key.
        tensorizer_ops.keys.add("release", key=secrets.token_bytes(32))
        tensorizer_ops.save(path, tensors, options={"key": "named:release"})
        loaded = tensorizer_ops.load(path, options={"key": "named:release"})
        assert torch.equal(loaded["weight"], tensors["weight"])
        print("encrypted and decrypted with a key")

        try:
            tensorizer_ops.load(path)
        except tensorizer_ops.errors.Crypto as error:
            print("without it:", error)

        # A passphrase from the environment, as a deployment would have it.
        os.environ["MODEL_PASSPHRASE"] = secrets.token_urlsafe()
        options = {"key": "passphrase-env:MODEL_PASSPHRASE"}
        tensorizer_ops.save(path, tensors, options={**options, "kdf": "interactive"})
        assert torch.equal(tensorizer_ops.load(path, options=options)["bias"], tensors["bias"])
        print("encrypted and decrypted with a passphrase")


if __name__ == "__main__":
    main()
