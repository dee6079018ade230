"""A key that signs models."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Signer:
    """A private key in a file, and the options of loads that trust its public key."""

    def __init__(self, folder: Path, name: str = "release") -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        self.private, self.public = folder / f"{name}.pem", folder / f"{name}.pub"
        self.private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        self.options = {"trust": f"file:{self.public}"}
