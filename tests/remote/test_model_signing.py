"""Bundles of PyPI's model_signing, and what it says of those that are made here."""

from __future__ import annotations

import base64
import datetime
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import verifying

import tensorizer_ops
from support.process import environment
from support.samples import assert_same
from support.signer import DAY, IDENTITY, NOW, Signer
from tensorizer_ops import errors, trust

CURVES = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}


def others(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run PyPI's model_signing."""
    return subprocess.run(
        [sys.executable, "-m", "model_signing", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("curve", CURVES)
def test_model_signing_reads_what_is_signed_here(tmp_path: Path, model: Path, curve: str) -> None:
    signer = Signer(tmp_path / curve, CURVES[curve])
    bundle = model / "model.sig"
    tensorizer_ops.sign(model, key=signer.private, method="files")
    done = others("verify", "key", "--public_key", signer.public, "--signature", bundle, model)
    assert done.returncode == 0, done.stderr
    leaf, root = signer.certificates()
    tensorizer_ops.sign(model, key=signer.private, method="files", certificates=[leaf])
    done = others(
        *("verify", "certificate", "--certificate_chain", root, "--signature", bundle, model)
    )
    assert done.returncode == 0, done.stderr
    # It takes no bundles of shards as the specification spells them.
    tensorizer_ops.sign(model, key=signer.private)
    done = others("verify", "key", "--public_key", signer.public, "--signature", bundle, model)
    assert done.returncode != 0


def test_model_signing_reads_shards_whose_algorithm_it_spells(model: Path, signer: Signer) -> None:
    """Nothing else keeps it from reading them: its commands never do, also not its own."""
    bundle, size = model / "model.sig", 1 << 20
    tensorizer_ops.sign(model, key=signer.private, shard_size=size)
    trusting = verifying.Config().use_elliptic_key_verifier(public_key=signer.public)
    with pytest.raises(ValueError, match="algorithm='sha256'"):
        trusting.verify(model, bundle)
    text = json.loads(bundle.read_text())
    envelope = text["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    for resource in statement["predicate"]["resources"]:
        resource["algorithm"] = f"sha256-sharded-{size}"
    payload, kind = json.dumps(statement).encode(), envelope["payloadType"]
    message = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    signature = signer.key.sign(message, ec.ECDSA(hashes.SHA256()))
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    bundle.write_text(json.dumps(text))
    trusting = verifying.Config().use_elliptic_key_verifier(public_key=signer.public)
    trusting.verify(model, bundle)
    assert tensorizer_ops.load(model / "m.tensors", options=signer.options)
    (model / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="Hash mismatch for 'config"):
        trusting.verify(model, bundle)


@pytest.mark.parametrize("curve", CURVES)
def test_what_model_signing_has_signed_is_read_here(
    tmp_path: Path, model: Path, tensors: dict[str, torch.Tensor], curve: str
) -> None:
    signer = Signer(tmp_path / curve, CURVES[curve])
    bundle = model / "model.sig"
    done = others("sign", "key", "--private_key", signer.private, "--signature", bundle, model)
    assert done.returncode == 0, done.stderr
    assert_same(tensorizer_ops.load(model / "m.tensors", options=signer.options), tensors)
    assert trust.verify(model, policy=f"file:{signer.public}").files[0] == "config.json"


def test_a_bundle_beside_another_that_does_not_leave_it_out(model: Path, signer: Signer) -> None:
    bundle, place = model.parent / "elsewhere.sig", {"policy": signer.options["trust"]}
    done = others("sign", "key", "--private_key", signer.private, "--signature", bundle, model)
    assert done.returncode == 0, done.stderr
    assert trust.verify(model, **place, signature=bundle)
    tensorizer_ops.sign(model, key=signer.private)
    assert trust.verify(model, **place)
    with pytest.raises(errors.Crypto, match=r"not signed, such as 'model\.sig'"):
        trust.verify(model, **place, signature=bundle)


def test_the_list_of_an_upload(model: Path, signer: Signer, tmp_path: Path) -> None:
    """Whoever signed does not list it where it is made later, and may list it where it was."""
    bundle, place, policy = model / "model.sig", tmp_path / "place", signer.options["trust"]
    using = ("--private_key", signer.private, "--signature", bundle, model)
    assert others("sign", "key", *using).returncode == 0
    tensorizer_ops.upload(model, place)
    assert "SHA256SUMS" not in trust.verify(place, policy=policy).files
    shutil.copy(place / "SHA256SUMS", model)
    bundle.unlink()
    assert others("sign", "key", *using).returncode == 0
    assert "SHA256SUMS" in trust.verify(model, policy=policy).files
    assert tensorizer_ops.download(model, tmp_path / "target", options=signer.options)
    with pytest.raises(ValueError, match="lists 'SHA256SUMS', which an upload leaves out"):
        tensorizer_ops.upload(model, place)
    (model / "SHA256SUMS").write_text("changed")
    with pytest.raises(errors.HashMismatch, match="SHA256SUMS"):
        trust.verify(model, policy=policy)
    tensorizer_ops.sign(model, key=signer.private, method="files")
    using = ("--public_key", signer.public, "--signature", bundle, model)
    assert others("verify", "key", *using).returncode == 0


def test_a_name_that_no_file_can_have(model: Path, signer: Signer) -> None:
    (model / "a\\b").write_text("of Windows")
    bundle = model / "model.sig"
    done = others("sign", "key", "--private_key", signer.private, "--signature", bundle, model)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ValueError, match=re.escape(f"is not the name of a file in '{model}'")):
        trust.verify(model, policy=signer.options["trust"])


def certified(signer: Signer, model: Path, days: int = 30) -> Path:
    """Let model_signing sign with a certificate, and return its root."""
    leaf, root = signer.certificates(days)
    done = others(
        *("sign", "certificate", "--private_key", signer.private, "--signing_certificate", leaf),
        *("--certificate_chain", root, "--signature", model / "model.sig", model),
    )
    assert done.returncode == 0, done.stderr
    return root


def test_certificates(model: Path, signer: Signer, tensors: dict[str, torch.Tensor]) -> None:
    root = certified(signer, model)
    for identity in (IDENTITY, "CN=release"):
        trust.add("release", roots=[root], identities=[identity])
        loaded = tensorizer_ops.load(model / "m.tensors", options={"trust": "named:release"})
        assert_same(loaded, tensors)
    trust.add("release", roots=[root], identities=["somebody@example.com"])
    with pytest.raises(errors.Crypto, match=r"CN=release(?s:.)*somebody@example.com"):
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:release"})
    with pytest.raises(ValueError, match="identit"):
        trust.add("release", roots=[root])
    signer.certificates()  # by another root of the same name
    trust.add("release", roots=[signer.folder / "root.pem"], identities=[IDENTITY])
    with pytest.raises(errors.Crypto, match=r"was not issued|signature"):
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:release"})


def test_a_certificate_that_has_ended(model: Path, signer: Signer) -> None:
    """model_signing accepts it, because it asks whether it was valid on its first day."""
    root = certified(signer, model, days=-1)
    trust.add("release", roots=[root], identities=[IDENTITY])
    with pytest.raises(errors.Crypto, match="expired"):
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:release"})
    trust.add("release", roots=[root], identities=[IDENTITY], at=NOW - 2 * DAY)
    assert tensorizer_ops.load(model / "m.tensors", options={"trust": "named:release"})
    with pytest.raises(ValueError, match="time zone"):
        trust.add("release", keys=[signer.public], at=datetime.datetime(2026, 1, 1))
