"""Makes bundles of a small model with model_signing: python make_bundles.py FOLDER

Needs the openssl program. Private keys are made, used and deleted. tests/cpp/trust_vectors_test.cpp
says what the bundles must have.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from model_signing import hashing, signing

FILES = {
    "config.json": b"{}\n",
    "empty": b"",
    "model.safetensors": bytes(range(250)) * 120,
    "sub/a:0:4": b"four",
    'sub/\u00fcber "x"\u2028\U0001f600.txt': b"text\n",
    "extra": b"ignored",
}
CURVES = {"p256": "prime256v1", "p384": "secp384r1", "p521": "secp521r1"}
AUTHORITY = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n"
SIGNER = (
    "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
    "extendedKeyUsage=codeSigning\nsubjectAltName=email:signer@example.com\n"
)


def openssl(arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


def make_keys(folder: Path) -> None:
    for name, curve in CURVES.items():
        openssl(f"ecparam -name {curve} -genkey -noout -out {name}.key", folder)
        openssl(f"ec -in {name}.key -pubout -out {name}.pub", folder)
    for name, key, issuer, extensions in (
        ("root", "p256.key", "", AUTHORITY),
        ("intermediate", "p521.key", "root", AUTHORITY),
        ("signer", "p384.key", "intermediate", SIGNER),
    ):
        Path(folder, "extensions").write_text(extensions)
        openssl(f"req -new -key {key} -out request -subj /O=Example/CN={name}", folder)
        by = f"-CA {issuer}.pem -CAkey {issuer}.key -CAcreateserial" if issuer else f"-key {key}"
        Path(folder, f"{name}.key").write_bytes(Path(folder, key).read_bytes())
        openssl(
            f"x509 -req -in request {by} -days 36500 -extfile extensions -out {name}.pem", folder
        )


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = folder / "model"
        for name, content in FILES.items():
            (model / name).parent.mkdir(parents=True, exist_ok=True)
            (model / name).write_bytes(content)
        make_keys(folder)
        chain = [folder / "intermediate.pem", folder / "root.pem"]

        def sign(method: str, signer: str) -> None:
            hashes = hashing.Config().set_ignored_paths(paths=[model / "extra"])
            if method == "shards":
                hashes.use_shard_serialization(shard_size=4096)
            config = signing.Config().set_hashing_config(hashes)
            if signer == "certificate":
                config.use_certificate_signer(
                    private_key=folder / "signer.key",
                    signing_certificate=folder / "signer.pem",
                    certificate_chain=chain,
                )
            else:
                config.use_elliptic_key_signer(private_key=folder / f"{signer}.key")
            config.sign(model, out / f"{method}-{signer}.sig")

        for curve in CURVES:
            sign("files", curve)
        sign("files", "certificate")
        sign("shards", "p256")
        sign("shards", "certificate")
        for name in ("p256.pub", "p384.pub", "p521.pub", "root.pem"):
            (out / name).write_bytes((folder / name).read_bytes())


if __name__ == "__main__":
    main()
