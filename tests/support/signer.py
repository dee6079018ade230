"""A key that signs models."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)
IDENTITY = "release@example.com"


class Signer:
    """A private key in a file, options that trust it, and certificates for it."""

    def __init__(self, folder: Path, curve: ec.EllipticCurve | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.private, self.public = folder / "release.pem", folder / "release.pub"
        self.key = ec.generate_private_key(curve or ec.SECP256R1())
        self.private.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.public.write_bytes(
            self.key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        self.options = {"trust": f"file:{self.public}"}

    def certificates(self, days: int = 30) -> tuple[Path, Path]:
        """Return a certificate of this key, that ends after so many days, and its root."""
        root_key = ec.generate_private_key(ec.SECP256R1())
        root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
        begin = NOW - 60 * DAY
        root = (
            x509.CertificateBuilder(root_name, root_name, root_key.public_key())
            .serial_number(1)
            .not_valid_before(begin)
            .not_valid_after(NOW + 60 * DAY)
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .sign(root_key, hashes.SHA256())
        )
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "release")])
        usage = x509.KeyUsage(True, *[False] * 8)
        leaf = (
            x509.CertificateBuilder(root_name, name, self.key.public_key())
            .serial_number(2)
            .not_valid_before(begin)
            .not_valid_after(NOW + days * DAY)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(IDENTITY)]), False)
            .sign(root_key, hashes.SHA256())
        )
        paths = self.folder / "leaf.pem", self.folder / "root.pem"
        for path, certificate in zip(paths, (leaf, root), strict=True):
            path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return paths
