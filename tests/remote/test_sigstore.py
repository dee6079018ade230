"""Bundles of Sigstore, by an authority and logs of our own. The verifier is that of sigstore."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.own_sigstore import OwnSigstore
from support.signer import Signer
from tensorizer_ops import errors, trust

IDENTITY, ISSUER = "release@example.com", "https://issuer.invalid"


class Model:
    """A model whose bundle is one of Sigstore."""

    def __init__(self, folder: Path) -> None:
        self.sigstore = OwnSigstore()
        self.root = self.sigstore.trusted_root(folder / "trusted_root.json")
        self._signer = Signer(folder)
        self.folder = folder / "model"
        self.file, self.bundle = self.folder / "m.tensors", self.folder / "model.sig"
        self.save(1)

    def save(self, value: int) -> None:
        tensorizer_ops.save(self.file, {"w": torch.full((1000,), value)})
        self.digest = tensorizer_ops.sign(self.folder, key=self._signer.private)
        text = json.loads(self.bundle.read_text())["dsseEnvelope"]["payload"]
        self.write(self.sigstore.bundle(base64.b64decode(text), IDENTITY, ISSUER))

    def write(self, bundle: dict[str, Any]) -> None:
        self.bundle.write_text(json.dumps(bundle))

    def add(self, **how: Any) -> str:
        who = {"identity": IDENTITY, "issuer": ISSUER, "root": self.root}
        return trust.add_sigstore("release", self.bundle, **(who | how))

    def load(self) -> int:
        loaded = tensorizer_ops.load(self.file, options={"trust": "named:release"})
        return int(loaded["w"][0])


@pytest.fixture
def model(tmp_path: Path) -> Model:
    pytest.importorskip("sigstore")
    trust.remove("release")
    return Model(tmp_path)


def test_bundles_of_sigstore(model: Model) -> None:
    assert model.add() == model.digest
    assert model.load() == 1
    found = trust.verify(model.folder, policy="named:release")
    assert found.signer == f"{IDENTITY} of {ISSUER}"
    assert found.files == ["m.tensors"]
    content = bytearray(model.file.read_bytes())
    content[-1] ^= 1
    model.file.write_bytes(content)
    with pytest.raises(errors.HashMismatch, match=f"{IDENTITY} of {ISSUER} signed"):
        model.load()


def test_what_was_signed_as_something_else(model: Model) -> None:
    payload = base64.b64decode(json.loads(model.bundle.read_text())["dsseEnvelope"]["payload"])
    model.write(model.sigstore.bundle(payload, IDENTITY, ISSUER, "text/plain"))
    with pytest.raises(errors.InvalidFormat, match="its payload is 'text/plain', expected is"):
        model.add()


def test_only_the_model_that_was_checked(model: Model) -> None:
    model.add()
    model.save(2)  # by the same signer
    with pytest.raises(errors.Crypto, match=f"another one than the bundle of {IDENTITY}"):
        model.load()
    model.add()
    assert model.load() == 2
    tensorizer_ops.sign(model.folder, key=model._signer.private)
    with pytest.raises(errors.Crypto, match=f"expected is the bundle of Sigstore by {IDENTITY}"):
        model.load()


def test_other_signers(model: Model, tmp_path: Path) -> None:
    for how, message in (
        ({"identity": "somebody@example.com"}, r"SANs do not match"),
        ({"issuer": "https://other.invalid"}, r"OIDC.*[Ii]ssuer"),
        ({"root": OwnSigstore().trusted_root(tmp_path / "other.json")}, r"certificate chain"),
    ):
        with pytest.raises(errors.Crypto, match=message):
            model.add(**how)
        with pytest.raises(ValueError, match="there is no policy named"):
            model.load()
    with pytest.raises(errors.Crypto, match="which only Python can check"):
        tensorizer_ops.load(model.file, options={"trust": f"file:{model._signer.public}"})


def without_proof(bundle: dict[str, Any]) -> None:
    del bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"]


def many_values(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"]["hashes"] = [0] * 15_000


def odd_version(bundle: dict[str, Any]) -> None:
    kind = bundle["verificationMaterial"]["tlogEntries"][0]["kindVersion"]
    kind["version"] = "\x1b[8m\nINFO verified" + "x" * 1000


def other_payload(bundle: dict[str, Any]) -> None:
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"]).replace(
        b"m.tensors", b"n.tensors"
    )
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()


def other_time(bundle: dict[str, Any]) -> None:
    entry = bundle["verificationMaterial"]["tlogEntries"][0]
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 60)


def other_log(bundle: dict[str, Any]) -> None:
    entry = bundle["verificationMaterial"]["tlogEntries"][0]
    entry["inclusionProof"]["rootHash"] = base64.b64encode(bytes(32)).decode()


def unknown_version(bundle: dict[str, Any]) -> None:
    certificate = bundle["verificationMaterial"]["certificate"]
    der = base64.b64decode(certificate["rawBytes"])
    version = bytes.fromhex("a003020102")
    assert version in der
    der = der.replace(version, bytes.fromhex("a003020109"), 1)
    certificate["rawBytes"] = base64.b64encode(der).decode()


@pytest.mark.parametrize(
    "change",
    [
        *(without_proof, many_values, odd_version),
        *(other_payload, other_time, other_log, unknown_version),
    ],
)
def test_bundles_that_were_changed(model: Model, change: Any) -> None:
    bundle = json.loads(model.bundle.read_text())
    change(bundle)
    model.write(bundle)
    with pytest.raises(
        errors.Crypto, match=r"model\.sig': it is not a bundle of Sigstore by"
    ) as caught:
        model.add()
    text = str(caught.value)
    assert text.isprintable() and len(text) < 500
    assert "[type=" not in text and "root_hash" not in text
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    with pytest.raises(ValueError, match="there is no policy named"):
        model.load()


def many_entries(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"]["tlogEntries"] = [{}] * 300_000


def many_members(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"] |= {"x" * i: 0 for i in range(400)}


def many_signatures(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"] *= 100_000


def by_a_chain(bundle: dict[str, Any]) -> None:
    material = bundle["verificationMaterial"]
    chain = [material.pop("certificate")] * 5000
    material["x509CertificateChain"] = {"certificates": chain}


def nothing(bundle: dict[str, Any]) -> None:
    bundle.clear()


def a_secret(bundle: dict[str, Any]) -> None:
    bundle.clear()
    bundle["token"] = "sesame42"


@pytest.mark.parametrize(
    "change", [many_entries, many_members, many_signatures, by_a_chain, nothing, a_secret]
)
def test_sigstore_reads_no_other_files(
    model: Model, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make many objects of a few bytes, and repeat them in its errors."""
    bundle = json.loads(model.bundle.read_text())
    change(bundle)
    model.write(bundle)
    models = pytest.importorskip("sigstore.models")
    monkeypatch.setattr(models, "Bundle", None)
    with pytest.raises(errors.InvalidFormat, match=r"model\.sig'") as caught:
        model.add()
    text = str(caught.value)
    assert len(text) < 500 and "sesame42" not in text
    with pytest.raises(ValueError, match="there is no policy named"):
        model.load()


def test_bundles_by_keys_are_not_of_sigstore(model: Model) -> None:
    tensorizer_ops.sign(model.folder, key=model._signer.private)
    with pytest.raises(errors.Crypto, match=r"signed by a key, and not .*: use trust\.add\(\)"):
        model.add()


def test_what_is_no_model(model: Model, tmp_path: Path) -> None:
    model.write(model.sigstore.bundle(b'{"not": "a model"}', IDENTITY, ISSUER))
    with pytest.raises(errors.InvalidFormat, match=r"model\.sig'"):
        model.add()
    with pytest.raises(ValueError, match="there is no policy named"):
        model.load()
    (tmp_path / "root.json").write_text("{}")
    with pytest.raises(ValueError, match=r"root .*root\.json"):
        model.add(root=tmp_path / "root.json")


def test_a_bundle_of_any_size(model: Model) -> None:
    with model.bundle.open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(errors.InvalidFormat, match="a bundle has at most 256 MiB"):
        model.add()


@pytest.mark.parametrize("argument", ["identity", "issuer"])
def test_nobody_is_not_anybody(model: Model, argument: str) -> None:
    """A variable of the environment may be empty."""
    with pytest.raises(ValueError, match=f"{argument} is empty"):
        model.add(**{argument: ""})
    with pytest.raises(ValueError, match="there is no policy named"):
        model.load()
