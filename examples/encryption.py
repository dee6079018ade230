"""Saves a model encrypted with a random key, and another one encrypted with a passphrase.

Run it with `python examples/encryption.py`. Options contain the name of a key, not the key itself.
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

        # A key of 32 bytes. A function may be given instead, which is called for each file.
        tensorizer_ops.keys.add("release", key=secrets.token_bytes(32))
        tensorizer_ops.save(path, tensors, options={"key": "named:release"})
        loaded = tensorizer_ops.load(path, options={"key": "named:release"})
        assert torch.equal(loaded["weight"], tensors["weight"])
        print("encrypted and decrypted with a key")

        try:
            tensorizer_ops.load(path)
        except tensorizer_ops.errors.Crypto as error:
            print("without the key:", error)

        # A passphrase from the environment, as in a deployment.
        os.environ["MODEL_PASSPHRASE"] = secrets.token_urlsafe()
        options = {"key": "passphrase-env:MODEL_PASSPHRASE"}
        tensorizer_ops.save(path, tensors, options={**options, "kdf": "interactive"})
        assert torch.equal(tensorizer_ops.load(path, options=options)["bias"], tensors["bias"])
        print("encrypted and decrypted with a passphrase")


if __name__ == "__main__":
    main()
