"""Signed models: what loads take, and what other tools for OpenSSF Model Signing take."""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import verifying

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web
from support.command import run
from support.process import environment
from support.raw_format import INDEX_START, Block, pack
from support.recorder import DENIED, recorder
from support.samples import assert_same
from support.scripted import Asked, scripted
from support.signer import DAY, IDENTITY, NOW, Signer
from tensorizer_ops import checkpoint, errors, trust
from tensorizer_ops._front import serving

CURVES = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}


def others(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run PyPI's model_signing."""
    return subprocess.run(
        [sys.executable, "-m", "model_signing", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {f"layers.{i}": torch.randn(600, 500, generator=generator) for i in range(5)}
    return {"scale": torch.ones(3), **tensors, "empty": torch.empty(0)}


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path / "keys")


@pytest.fixture
def model(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tensorizer_ops.save(folder / "m.tensors", tensors)
    tensorizer_ops.save(folder / "m.safetensors", tensors, options={"max_shard_size": 3_000_000})
    (folder / "config.json").write_text("{}")
    (folder / ".gitattributes").write_text("*.tensors filter=lfs")
    return folder


FILES = ("m.tensors", "m.safetensors.index.json")


@pytest.mark.parametrize("method", ["shards", "files"])
@pytest.mark.parametrize("file", FILES)
def test_signed_files_are_loaded(
    model: Path, signer: Signer, tensors: dict[str, torch.Tensor], file: str, method: Any
) -> None:
    tensorizer_ops.sign(model, key=signer.private, method=method)
    loaded = tensorizer_ops.load(model / file, names=[*tensors], options=signer.options)
    assert_same(loaded, tensors)
    part = tensorizer_ops.load(model / file, names=["layers.3"], options=signer.options)
    assert_same(part, {"layers.3": tensors["layers.3"]})
    sliced = tensorizer_ops.load(
        model / file, slices={"layers.1": (slice(None), slice(7, 9))}, options=signer.options
    )
    assert torch.equal(sliced["layers.1"], tensors["layers.1"][:, 7:9])


@pytest.mark.parametrize("size", [1, 1000, 1 << 16, (1 << 20) + 7, 65 << 20])
def test_shards_of_any_size(
    model: Path, signer: Signer, tensors: dict[str, torch.Tensor], size: int
) -> None:
    file = model / "m.tensors"
    if size == 1:  # a bundle of megabytes
        tensors = {"w": torch.ones(3)}
        tensorizer_ops.save(file, tensors)
    tensorizer_ops.sign(file, key=signer.private, shard_size=size)
    assert_same(tensorizer_ops.load(file, options=signer.options), tensors)
    content = file.read_bytes()
    for at in (0, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        begin = at // size * size
        end = min(begin + size, len(content))
        with pytest.raises(errors.HashMismatch, match=f"its bytes from {begin} to {end} are not"):
            tensorizer_ops.load(file, options=signer.options)


READS: dict[str, Callable[[Path, dict[str, str]], object]] = {
    "load": lambda file, options: tensorizer_ops.load(file, options=options),
    "verified load": lambda file, options: tensorizer_ops.load(file, verify="all", options=options),
    "a part": lambda file, options: tensorizer_ops.load(file, names=["layers.2"], options=options),
    "names": lambda file, options: tensorizer_ops.names(file, options=options),
    "info": lambda file, options: tensorizer_ops.info(file, options=options),
    "iterate": lambda file, options: list(tensorizer_ops.iterate(file, options=options)),
    "reader": lambda file, options: tensorizer_ops.Reader(file, options=options).load(),
    "op": lambda file, options: torch.ops.tensorizer.load(str(file), options=options),
    "digest": lambda file, options: tensorizer_ops.digest(file, options=options),
    "verify": lambda file, options: tensorizer_ops.verify(file, verify="all", options=options),
    "attest": lambda file, options: tensorizer_ops.attest({}, file, options=options),
    "server": lambda file, options: dict(
        serving.weights(serving.Settings({"uri": str(file), "options": options}), str(file))
    ),
    "update": lambda file, options: tensorizer_ops.update(
        file, file.parent / "out.tensors", source_options=options
    ),
    "delta": lambda file, options: tensorizer_ops.delta(
        file, file, file.parent / "out.tensors", new_options=options
    ),
    "convert": lambda file, options: tensorizer_ops.convert(
        file, file.parent / "out.tensors", source_options=options
    ),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("file", FILES)
def test_what_is_not_signed_is_refused(
    tmp_path: Path, model: Path, signer: Signer, file: str, read: str
) -> None:
    for bundle in ("nobody", "others", "another"):
        if bundle == "others":
            tensorizer_ops.sign(model, key=Signer(tmp_path / "others").private)
        if bundle == "another":
            tensorizer_ops.sign(model, key=signer.private, ignore=[file])
        with pytest.raises(errors.Crypto, match=r"it is not signed|expected is the key"):
            READS[read](model / file, signer.options)
    assert not (model / "out.tensors").exists()


@pytest.mark.parametrize("file", FILES)
def test_every_changed_byte_is_refused(model: Path, signer: Signer, file: str) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    changed = (
        [model / file, *model.glob("*-of-*.safetensors")] if "index" in file else [model / file]
    )
    for path in changed:
        whole = path.read_bytes()
        for at in {0, 9, len(whole) // 3, len(whole) - 1}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(errors.HashMismatch, match=f"the key {'[0-9a-f]' * 64} signed"):
                tensorizer_ops.load(model / file, options=signer.options)
        for other in (whole[:-1], whole + b"\0"):
            path.write_bytes(other)
            with pytest.raises(errors.HashMismatch, match=f"has {len(other)} bytes, and .* signed"):
                tensorizer_ops.load(model / file, options=signer.options)
        path.write_bytes(whole)
    tensorizer_ops.load(model / file, options=signer.options)


def test_file_objects_have_no_signature(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    content = (model / "m.tensors").read_bytes()
    for source in (io.BytesIO(content), bytearray(content)):
        with pytest.raises(ValueError, match="option 'trust' is for files with a signature"):
            tensorizer_ops.load(source, options=signer.options)
    with pytest.raises(ValueError, match="option 'trust' applies when a file is loaded only"):
        tensorizer_ops.save(model / "x.tensors", {}, options=signer.options)


def test_open_files_have_no_signature(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    with (
        open(model / "m.tensors", "rb") as file,
        pytest.raises(ValueError, match="option 'trust' is for files with a signature"),
    ):
        tensorizer_ops.load(file, options=signer.options)


@pytest.mark.parametrize("name", ["model.sig", "m.tensors.sig"])
def test_a_bundle_is_no_pipe(model: Path, signer: Signer, name: str) -> None:
    """Nobody may ever write to it."""
    tensorizer_ops.sign(model, key=signer.private)
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(ValueError, match=f"{name}': a bundle is a file, and this is a pipe"):
        tensorizer_ops.load(model / "m.tensors", options=signer.options)


def test_a_bundle_from_a_server_without_ranges(model: Path, signer: Signer, web: Web) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    shutil.copy(model / "model.sig", web.root / "elsewhere.sig")
    bundle = {"signature": web.url("no-ranges/elsewhere.sig")}
    with pytest.raises(errors.Crypto, match="is in another folder than its bundle"):
        tensorizer_ops.load(model / "m.tensors", options=signer.options | bundle)
    file = model / "m.tensors"
    tensorizer_ops.sign(file, key=signer.private, signature=web.root / "elsewhere.sig")
    tensorizer_ops.load(file, options=signer.options | bundle)
    found = trust.verify(file, policy=signer.options["trust"], signature=bundle["signature"])
    assert found.files == ["m.tensors"]


def test_the_same_file_under_another_name(model: Path, signer: Signer) -> None:
    """Whoever can write into the folder cannot show one signed file as another."""
    tensorizer_ops.sign(model, key=signer.private)
    (model / "other.tensors").write_bytes((model / "m.tensors").read_bytes())
    with pytest.raises(errors.Crypto, match=r"has no 'other\.tensors' among its"):
        tensorizer_ops.load(model / "other.tensors", options=signer.options)


@pytest.mark.parametrize("read", [tensorizer_ops.load, tensorizer_ops.names, tensorizer_ops.digest])
def test_a_folder_in_the_place_of_a_file(
    model: Path, signer: Signer, read: Callable[..., object]
) -> None:
    """A load of a folder finds the file in it, which may have been signed under any name."""
    folder = model / "other.tensors"
    folder.mkdir()
    shutil.copy(model / "m.tensors", folder)
    tensorizer_ops.sign(folder, key=signer.private)
    with pytest.raises(errors.Crypto, match="a folder with the name of a file"):
        read(folder, options=signer.options)
    read(folder)
    read(f"{folder}/", options=signer.options)
    folder = folder.rename(model / "Other.TENSORS")
    with pytest.raises(errors.Crypto, match="a folder with the name of a file"):
        read(folder, options=signer.options)


@pytest.mark.parametrize("name", ["m.tensors#1", "m%2Etensors", "M.Tensors?a=b"])
def test_a_folder_in_the_place_of_a_file_on_a_server(
    tmp_path: Path, signer: Signer, web: Web, name: str
) -> None:
    for place in ("", "m.tensors", "M.Tensors"):
        tensorizer_ops.save(web.root / "files" / place / "model.tensors", {"w": torch.ones(3)})
        tensorizer_ops.sign(web.root / "files" / place / "model.tensors", key=signer.private)
    with pytest.raises((FileNotFoundError, PermissionError)):
        tensorizer_ops.load(web.url(f"files/{name}"), options=signer.options)


def test_only_the_model_that_is_pinned(
    model: Path, signer: Signer, tensors: dict[str, torch.Tensor]
) -> None:
    older = tensorizer_ops.sign(model, key=signer.private)
    tensorizer_ops.save(model / "m.tensors", {"w": torch.ones(1)})
    newer = tensorizer_ops.sign(model, key=signer.private)
    trust.add("pinned", keys=[signer.public], subject=newer)
    assert "w" in tensorizer_ops.load(model / "m.tensors", options={"trust": "named:pinned"})
    trust.add("pinned", keys=[signer.public], subject=older)
    with pytest.raises(errors.HashMismatch, match=f"(?s){newer}.*{older}|{older}.*{newer}"):
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:pinned"})
    pinned = signer.options | {"subject": older}
    with pytest.raises(errors.HashMismatch, match=older):
        tensorizer_ops.load(model / "m.tensors", options=pinned)
    assert tensorizer_ops.load(model / "m.tensors", options=pinned | {"subject": newer})
    both = {"trust": "named:pinned", "subject": newer}
    with pytest.raises(ValueError, match="another root digest than that of the policy"):
        tensorizer_ops.load(model / "m.tensors", options=both)
    with pytest.raises(ValueError, match="are for loads with the option 'trust'"):
        tensorizer_ops.load(model / "m.tensors", options={"subject": newer})
    trust.remove("pinned")
    with pytest.raises(ValueError, match="there is no policy named"):
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:pinned"})


def test_a_policy_in_a_file(model: Path, signer: Signer) -> None:
    root = tensorizer_ops.sign(model, key=signer.private)
    policy = signer.folder / "policy.json"
    policy.write_text(json.dumps({"keys": ["release.pub"], "subject": root}))
    options = {"trust": f"file:{policy}"}
    assert tensorizer_ops.load(model / "m.tensors", options=options)
    for text, message in [
        ("{", "JSON is malformed"),
        ("{}", "nobody is trusted to sign"),
        ('{"keys": [], "key": []}', "the key 'key'"),
        (json.dumps({"keys": ["none.pub"]}), "No such file"),
        (json.dumps({"keys": ["release.pem"]}), "private|PUBLIC KEY"),
        (json.dumps({"keys": ["release.pub"], "at": "soon"}), "the time must be"),
    ]:
        policy.write_text(text)
        with pytest.raises(errors.Error, match=message) as caught:
            tensorizer_ops.load(model / "m.tensors", options=options)
        assert "PRIVATE" not in str(caught.value)


def test_keys_with_text_before_them(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    text = "The key of releases:\n" + signer.public.read_text()
    (model.parent / "text.pub").write_text(text)
    for key in (text, text.encode(), model.parent / "text.pub"):
        trust.add("with text", keys=[key])
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:with text"})
    (model.parent / "text.pub").write_text("The key {of releases}:\n" + text)
    options = {"trust": f"file:{model.parent / 'text.pub'}"}
    tensorizer_ops.load(model / "m.tensors", options=options)
    with pytest.raises(errors.InvalidArgument, match="there are several keys in one text"):
        trust.add("two", keys=[text + text])


def test_signed_files_without_hashes_are_verified(
    tmp_path: Path, signer: Signer, tensors: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "m.safetensors"
    safetensors.torch.save_file(tensors, file)
    tensorizer_ops.sign(file, key=signer.private)
    loaded = tensorizer_ops.load(file, verify="all", options=signer.options)
    assert_same({name: loaded[name] for name in tensors}, tensors)
    columns = {"layers.0": (slice(None), slice(100, 200))}
    loaded = tensorizer_ops.load(file, verify="all", slices=columns, options=signer.options)
    assert loaded["layers.0"].equal(tensors["layers.0"][columns["layers.0"]])
    with pytest.raises(ValueError, match="there is nothing to verify"):
        tensorizer_ops.load(file, verify="all")


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


def test_whole_models_are_verified(model: Path, signer: Signer) -> None:
    root = tensorizer_ops.sign(model, key=signer.private)
    policy = f"file:{signer.public}"
    found = trust.verify(model, policy=policy)
    assert found.subject == root
    assert found.files == sorted(
        p.name for p in model.iterdir() if p.suffix in (".json", ".tensors", ".safetensors")
    )
    (model / "code.py").write_text("import os")
    with pytest.raises(errors.Crypto, match=r"files that are not signed, such as 'code.py'"):
        trust.verify(model, policy=policy)
    assert trust.verify(model, policy=policy, ignore_unsigned_files=True) == found
    (model / "code.py").unlink()
    (model / "config.json").write_text("[]")
    with pytest.raises(errors.HashMismatch, match=r"config\.json"):
        trust.verify(model, policy=policy)
    (model / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        trust.verify(model, policy=policy)


def test_links_are_not_signed(model: Path, signer: Signer) -> None:
    (model / "link.json").symlink_to(model / "config.json")
    with pytest.raises(ValueError, match=r"link\.json' is a symbolic link"):
        tensorizer_ops.sign(model, key=signer.private)
    tensorizer_ops.sign(model, key=signer.private, ignore=["link.json"])


def test_a_folder_that_cannot_be_listed(model: Path, signer: Signer, tmp_path: Path) -> None:
    """What is in it would be neither signed nor noticed."""
    tensorizer_ops.sign(model, key=signer.private)
    place = model
    for _ in range(15):  # paths have up to 4096 bytes
        (place / ("x" * 250)).mkdir()
        place = place / ("x" * 250)
    folder = os.open(place, os.O_RDONLY)
    for _ in range(3):
        os.mkdir("x" * 250, dir_fd=folder)
        inside = os.open("x" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inside
    os.close(folder)
    try:
        with pytest.raises(OSError, match="too long"):
            trust.verify(model, policy=signer.options["trust"])
        with pytest.raises(OSError, match="too long"):
            tensorizer_ops.sign(model, key=signer.private)
    finally:
        subprocess.run(["rm", "-r", model / ("x" * 250)], check=True)


@pytest.mark.parametrize("name", [b"a\\b.json", b"\xff.json"])
def test_names_that_nobody_could_verify(model: Path, signer: Signer, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/" + name)).write_text("{}")
    with pytest.raises(ValueError, match="its name has a backslash, or is not UTF-8"):
        tensorizer_ops.sign(model, key=signer.private)


def test_commands(model: Path, signer: Signer) -> None:
    root = run("sign", model, "--key-file", signer.private).stdout.strip()
    done = run("verify", "--trust", signer.public, model)
    assert f"root digest {root}" in done.stdout
    (model / "config.json").write_text("[]")
    assert "config.json" in run("verify", "--trust", signer.public, model, status=1).stderr
    run("verify", "-o", f"trust=file:{signer.public}", model / "m.tensors")


def test_a_key_that_is_encrypted(
    model: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = serialization.load_pem_private_key(signer.private.read_bytes(), None)
    monkeypatch.setenv(
        "RELEASE_KEY",
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"very secret"),
        ).decode(),
    )
    monkeypatch.setenv("PASSPHRASE", "very secret")
    monkeypatch.setenv("WRONG", "quite secret")
    tensorizer_ops.sign(model, key="env:RELEASE_KEY", passphrase="env:PASSPHRASE")
    tensorizer_ops.load(model / "m.tensors", options=signer.options)
    for passphrase in ("env:WRONG", None):
        with pytest.raises(errors.Crypto, match="passphrase") as caught:
            tensorizer_ops.sign(model, key="env:RELEASE_KEY", passphrase=passphrase)
        assert "secret" not in str(caught.value).replace("a secret", "")


def test_parts_from_a_server_are_a_few_shards(tmp_path: Path, web: Web, signer: Signer) -> None:
    folder = web.root / "signed"
    folder.mkdir()
    tensors = {f"t{i}": torch.randn(16 << 18) for i in range(4)}  # 16 MiB each
    tensors |= {f"small{i}": torch.randn(1000) for i in range(40)}
    file = folder / "m.safetensors"
    tensorizer_ops.save(file, tensors)
    os.utime(file, (1_600_000_000, 1_600_000_000))
    tensorizer_ops.sign(file, key=signer.private)
    bundle = (folder / "m.safetensors.sig").stat().st_size
    uri = web.url("signed/m.safetensors")
    web.requests()
    assert_same(tensorizer_ops.load(uri, names=[*tensors], options=signer.options), tensors)
    assert web.served() - bundle <= 1.01 * file.stat().st_size
    loaded = tensorizer_ops.load(uri, names=["t2"], options=signer.options)
    assert torch.equal(loaded["t2"], tensors["t2"])
    assert web.served() - bundle <= 1.07 * (16 << 20) + (1 << 20)  # and the shard of the index
    small = [f"small{i}" for i in range(40)]
    loaded = tensorizer_ops.load(uri, names=small, options=signer.options)
    assert_same(loaded, {name: tensors[name] for name in small})
    assert web.served() - bundle <= 3 << 20


@pytest.fixture
def large(web: Web, signer: Signer) -> Iterator[tuple[Path, dict[str, torch.Tensor]]]:
    """A model on a web server that is too large to be one shard, signed in whole."""
    folder = web.root / "whole"
    folder.mkdir()
    tensors = {f"t{i}": torch.randn(8 << 18) for i in range(3)}
    tensors |= {f"small{i}": torch.randn(1000) for i in range(40)}
    tensors["last"] = torch.randn(5, 7)
    file = folder / "m.tensors"
    tensorizer_ops.save(file, tensors)
    os.utime(file, (1_600_000_000, 1_600_000_000))
    tensorizer_ops.sign(file, key=signer.private, method="files")
    yield file, tensors
    shutil.rmtree(folder)


Large = tuple[Path, dict[str, torch.Tensor]]


def filled(uri: Path | str, tensors: dict[str, torch.Tensor], **how: Any) -> dict[str, Any]:
    outputs = {name: torch.zeros_like(value) for name, value in tensors.items()}
    tensorizer_ops.load_into(outputs, uri, **how)
    return outputs


def test_files_that_were_signed_in_whole_are_read_once(
    large: Large, web: Web, signer: Signer, tmp_path: Path
) -> None:
    file, tensors = large
    uri, options = web.url("whole/m.tensors"), signer.options
    bundle = file.with_name("m.tensors.sig").stat().st_size

    def served_once() -> bool:
        return 1 <= (web.served() - bundle) / file.stat().st_size <= 1.02

    web.served()
    for verify in ("none", "all"):
        assert_same(tensorizer_ops.load(uri, options=options, verify=verify), tensors)
        assert served_once()
    assert_same(filled(uri, tensors, options=options), tensors)
    assert served_once()
    tensorizer_ops.verify(uri, options=options)
    assert served_once()
    assert tensorizer_ops.digest(uri, options=options) == tensorizer_ops.digest(file)
    assert served_once()
    copy = tmp_path / "copy.tensors"
    tensorizer_ops.convert(uri, copy, source_options=options)
    assert served_once()
    assert_same(tensorizer_ops.load(copy), tensors)
    trust.verify(uri, policy=options["trust"])
    assert served_once()
    reader = torch.classes.tensorizer.Reader(uri, options)
    assert_same(reader.load(None, torch.device("cpu"), None, "none", False, 0), tensors)
    assert reader.names() == [*tensors]  # what was checked is known
    last = reader.load(["last"], torch.device("cpu"), None, "none", False, 0)["last"]
    assert torch.equal(last, tensors["last"])
    assert_same(tensorizer_ops.load(file, options=options), tensors)


def test_parts_of_files_that_were_signed_in_whole(
    large: Large, web: Web, signer: Signer, tmp_path: Path
) -> None:
    file, tensors = large
    uri = web.url("whole/m.tensors")
    first = signer.options | {"hash_first": "true"}
    out = torch.empty(5, 7)
    model = torch.nn.Module()
    model.last = torch.nn.Parameter(torch.zeros(5, 7))

    def read(place: Path | str, options: dict[str, str]) -> Any:
        with tensorizer_ops.Reader(place, options=options) as reader:
            return reader["last"]

    parts: list[Callable[[Path | str, dict[str, str]], Any]] = [
        read,
        lambda place, options: tensorizer_ops.load(place, names=["last"], options=options)["last"],
        lambda place, options: tensorizer_ops.load(
            place, slices={"t0": slice(0, 5)}, options=options
        ),
        lambda place, options: tensorizer_ops.load_into(
            {"last": out}, place, strict=False, options=options
        ),
        lambda place, options: tensorizer_ops.load_into(
            model, place, strict=False, options=options
        ),
        lambda place, options: tensorizer_ops.info(place, options=options),
        lambda place, options: torch.ops.tensorizer.names(str(place), options=options),
        lambda place, options: tensorizer_ops.update(
            place, tmp_path / "updated.tensors", source_options=options
        ),
        lambda place, options: tensorizer_ops.convert(
            place, tmp_path / "part.tensors", names=["last"], source_options=options
        ),
    ]
    for place in (file, uri):
        for part in parts:
            with pytest.raises(ValueError, match=r"it was signed in whole.*hash_first=\"true\""):
                part(place, signer.options)
            part(place, first)
    assert torch.equal(out, tensors["last"])
    assert torch.equal(model.last, tensors["last"])
    assert torch.equal(read(uri, first), tensors["last"])
    with pytest.raises(ValueError, match="'hash_first' are for loads with the option 'trust'"):
        tensorizer_ops.load(file, options={"hash_first": "true"})


@pytest.mark.parametrize("at", [3 << 20, -1])
def test_changed_files_that_were_signed_in_whole(
    large: Large, web: Web, signer: Signer, tmp_path: Path, at: int
) -> None:
    """Nothing is returned, and no file is written."""
    file, tensors = large
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    target = tmp_path / "target"
    uri, options = web.url("whole/m.tensors"), signer.options
    takes: list[Callable[[], Any]] = [
        lambda: tensorizer_ops.load(uri, options=options),
        lambda: tensorizer_ops.load(file, options=options),
        lambda: tensorizer_ops.convert(uri, target / "c.tensors", source_options=options),
        lambda: tensorizer_ops.convert(uri, target / "c.safetensors", source_options=options),
        lambda: tensorizer_ops.digest(file, options=options),
        lambda: trust.verify(uri, policy=options["trust"]),
    ]
    for take in takes:
        with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
            take()
    assert not target.exists() or not [*target.iterdir()]
    outputs = {name: torch.zeros_like(value) for name, value in tensors.items()}
    with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
        tensorizer_ops.load_into(outputs, uri, options=options)


@pytest.mark.parametrize("form", ["tensors", "safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "descriptor"])
def test_nobody_sees_a_changed_file_that_was_signed_in_whole(
    large: Large, signer: Signer, tmp_path: Path, kind: str, form: str
) -> None:
    """Nor a part of it, in a target that others see while it is written."""
    file, _ = large
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    target = tmp_path / f"target.{form}"
    if kind == "pipe":
        os.mkfifo(target)
    with open(os.open(target, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK), "rb", buffering=0) as out:
        uri = target if kind == "pipe" else f"fd:{out.fileno()}"
        with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
            tensorizer_ops.convert(
                file,
                uri,
                hashes="none",
                source_options=signer.options,
                target_options={"format": form},
            )
        assert not out.read(1)


def test_headers_in_any_order(signer: Signer, tmp_path: Path) -> None:
    """An index that nobody has compared yet cannot make a load read a file again and again."""
    dtype = b"<V2\0torch.bfloat16"
    blocks = [
        Block(f"{i:04}", "<V2", (1,), bytes(2), header={"dtype": dtype}, hashes=())
        for i in range(1000)
    ]
    content = pack(blocks, terminator=bytes(17 << 20))
    begin, size = INDEX_START, int.from_bytes(content[INDEX_START - 8 : INDEX_START], "little")
    entries = [content[at : at + size // 1000] for at in range(begin, begin + size, size // 1000)]
    content = content[:begin] + b"".join(reversed(entries)) + content[begin + size :]
    file = tmp_path / "m.tensors"
    file.write_bytes(content)
    tensorizer_ops.sign(file, key=signer.private, method="files")
    served = {f"/{path.name}": path.read_bytes() for path in (file, tmp_path / "m.tensors.sig")}
    sent = []

    def answer(asked: Asked) -> None:
        asked.say_range(served[asked.path], ETag='"1"')
        begin, last = asked.headers["range"].removeprefix("bytes=").split("-")
        sent.append(min(int(last) + 1, len(served[asked.path])) - int(begin))

    with scripted(answer) as server:
        assert len(tensorizer_ops.load(server.url(), options=signer.options)) == 1000
    assert sum(sent) < 3 * len(content)


def test_names_with_escapes(model: Path, signer: Signer, web: Web) -> None:
    """The file of a URL is signed and verified, and none whose name has the same letters."""
    folder = web.root / "escapes"
    folder.mkdir()
    shutil.copy(model / "m.tensors", folder / "a b.tensors")
    (folder / "a%20b.tensors").write_bytes(b"another file")
    uri = web.url("escapes/a%20b.tensors")
    bundle = folder / "a b.tensors.sig"
    tensorizer_ops.sign(uri, key=signer.private, signature=bundle)
    assert trust.verify(uri, policy=signer.options["trust"]).files == ["a b.tensors"]
    tensorizer_ops.load(uri, options=signer.options)
    with pytest.raises(ValueError, match=r"'c/b\.tensors' is not the name of a file"):
        trust.verify(web.url("escapes/c%2fb.tensors"), policy=signer.options["trust"])


@pytest.mark.parametrize(
    ("more", "sent"),
    [({}, []), ({"header_everywhere": "true"}, ["X-Kind"])],
)
def test_headers_stay_with_the_server_of_the_file(
    model: Path, signer: Signer, more: dict[str, str], sent: list[str]
) -> None:
    """A bundle on another server gets those that a redirect to it would get."""
    file = model / "m.tensors"
    tensorizer_ops.sign(file, key=signer.private)
    secrets = {"Authorization": "Bearer one", "Cookie": "two", "X-Kind": "three"}
    given = {f"header.{name}": value for name, value in secrets.items()} | more

    def answer(asked: Asked) -> None:
        asked.say_range((model / asked.path[1:]).read_bytes(), ETag='"1"')

    with scripted(answer) as server, scripted(answer) as other:
        bundle = {"signature": other.url("m.tensors.sig")}
        tensorizer_ops.load(server.url(), options=signer.options | given | bundle)
    assert [name for name in secrets if name in other.asked[0].headers] == sent
    assert all(name in server.asked[0].headers for name in secrets)


def test_a_store(signer: Signer, tensors: dict[str, torch.Tensor], s3: S3) -> None:
    uri, options = "s3://bucket/signed/m.tensors", s3.options()
    tensorizer_ops.save(uri, tensors, options=options)
    root = tensorizer_ops.sign(uri, key=signer.private, options=options)
    found = trust.verify(uri, policy=signer.options["trust"], options=options)
    assert (found.subject, found.files) == (root, ["m.tensors"])
    assert_same(tensorizer_ops.load(uri, options=options | signer.options), tensors)


def test_a_place_without_other_files(
    tmp_path: Path, signer: Signer, tensors: dict[str, torch.Tensor], redis: RedisServer
) -> None:
    """The bundle is elsewhere, and lists one file."""
    uri = redis.url("signed")
    tensorizer_ops.save(uri, tensors)
    with pytest.raises(errors.Crypto, match="no option 'signature' names a bundle"):
        tensorizer_ops.load(uri, options=signer.options)
    bundle = tmp_path / "signed.sig"
    tensorizer_ops.sign(uri, key=signer.private, signature=bundle)
    options = signer.options | {"signature": str(bundle)}
    assert_same(tensorizer_ops.load(uri, options=options), tensors)


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, Any]:
    pytest.importorskip("transformers")
    from support.hf_models import llama

    model = llama()
    tensorizer_ops.hf.save_pretrained(model, tmp_path / "llama")
    return tmp_path / "llama", model


@pytest.mark.parametrize("place", ["here", "on a server"])
def test_models_of_transformers(
    llama: tuple[Path, Any], signer: Signer, web: Web, place: str
) -> None:
    """Config and weights are signed, and nothing else is used."""
    folder, model = llama
    tensorizer_ops.sign(folder, key=signer.private)
    where = web.root / "llama"
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(folder, where)
    uri = where if place == "here" else web.url("llama")

    def load() -> dict[str, torch.Tensor]:
        loaded = tensorizer_ops.hf.from_pretrained(uri, options=signer.options)
        state: dict[str, torch.Tensor] = loaded.state_dict()
        return state

    assert_same(load(), model.state_dict())
    for name in ("config.json", "generation_config.json", "model.tensors"):
        content = (where / name).read_bytes()
        (where / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(errors.HashMismatch, match=re.escape(name)):
            load()
        # Nor can anybody take a file away, so that a default takes its place.
        (where / name).unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(name)):
            load()
        (where / name).write_bytes(content)
    (where / "tokenizer_config.json").write_text("{}")
    with pytest.raises(errors.Crypto, match=r"tokenizer_config\.json': it is not signed"):
        tensorizer_ops.hf.tokenizer(uri, options=signer.options)


def test_a_store_that_denies_access_to_a_signed_file(model: Path, signer: Signer, s3: S3) -> None:
    """It may deny access to files that do not exist, but signed ones do."""
    (model / "generation_config.json").write_text("{}")
    tensorizer_ops.sign(model, key=signer.private)
    uri, options = "s3://bucket/signed folder", s3.options()
    tensorizer_ops.upload(model, uri, options=options)
    with recorder(s3.port) as between:
        between.answers = lambda request: DENIED if "generation" in request.path else None
        options |= signer.options | {"s3_endpoint": f"http://127.0.0.1:{between.port}"}
        with pytest.raises(PermissionError, match=r"generation_config\.json"):
            tensorizer_ops.hf.fetch(uri, model.parent / "copy", options=options)


@pytest.fixture
def two(llama: tuple[Path, Any], signer: Signer) -> tuple[Path, Path]:
    """Two models in folders that were signed by the same key."""
    first, model = llama
    (first / "chat_template.jinja").write_text("of the first")
    second = first.parent / "second"
    for parameter in model.parameters():
        parameter.data.add_(1)
    tensorizer_ops.hf.save_pretrained(model, second)
    for folder in (first, second):
        tensorizer_ops.sign(folder, key=signer.private)
    return first, second


def own_bundle(folder: Path, *names: str, of: Path | None = None) -> None:
    """Give files the bundle of all, under the name of the bundle of one."""
    for name in names:
        (folder / f"{name}.sig").write_bytes(((of or folder) / "model.sig").read_bytes())


def test_files_of_a_folder_are_of_one_model(two: tuple[Path, Path], signer: Signer) -> None:
    """Nobody can take a file away, or replace it by one of another model, by moving bundles."""
    first, second = two
    uses: list[Callable[..., object]] = [
        tensorizer_ops.hf.from_pretrained,
        lambda folder, **how: tensorizer_ops.hf.fetch(folder, folder.parent / "copy", **how),
        tensorizer_ops.hf.tokenizer,
    ]
    root = trust.verify(first, policy=signer.options["trust"]).subject
    own_bundle(first, "config.json", "model.tensors")
    older = (second / "model.sig").read_bytes()
    for name in ("chat_template.jinja", "generation_config.json", "model.sig"):
        (first / name).unlink()
    for use in uses:
        for options in (signer.options, signer.options | {"subject": root}):
            with pytest.raises(errors.Crypto, match=r"there is no 'model\.sig' in it"):
                use(first, options=options)
    (first / "model.sig").write_bytes(older)  # which does not list the template
    for use in uses:
        with pytest.raises(errors.HashMismatch, match="with the root digest"):
            use(first, options=signer.options | {"subject": root})
        with pytest.raises((errors.HashMismatch, FileNotFoundError)):
            use(first, options=signer.options)
    assert not (first.parent / "copy").exists()


@pytest.mark.parametrize("place", ["here", "on a server"])
def test_a_bundle_of_the_folder_above(
    two: tuple[Path, Path], signer: Signer, web: Web, place: str
) -> None:
    first, _ = two
    (first / "model.sig").unlink()
    above = first.parent / "above"
    shutil.copytree(first, above / "a model")
    (above / "config.json").write_text("{}")
    tensorizer_ops.sign(above, key=signer.private)
    where = web.root / "above"
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(above, where)
    uri = where / "a model" if place == "here" else web.url("above/a%20model")
    bundle = where / "model.sig" if place == "here" else web.url("above/model.sig")
    options = signer.options | {"signature": str(bundle)}
    assert tensorizer_ops.hf.from_pretrained(uri, options=options)
    target = first.parent / "target"
    copied = tensorizer_ops.download(uri, target, options=options)
    assert {each.name for each in copied} == {path.name for path in first.iterdir()}
    (where / "a model" / "generation_config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"generation_config\.json"):
        tensorizer_ops.hf.from_pretrained(uri, options=options)


@pytest.mark.parametrize("place", ["here", "on a server"])
@pytest.mark.parametrize("name", ["elsewhere/model.sig", "first.sig"])
def test_a_bundle_elsewhere(
    two: tuple[Path, Path], signer: Signer, web: Web, place: str, name: str
) -> None:
    first, second = two
    (first / "model.sig").unlink()
    (first.parent / "elsewhere").mkdir()
    bundle = first.parent / name
    subject = tensorizer_ops.sign(first, key=signer.private, signature=bundle)
    uri: Path | str = first
    where = first
    if place == "on a server":
        where = web.root / "signed elsewhere"
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(first, where)
        uri = web.url("signed%20elsewhere/")
    policy = signer.options["trust"]
    options = signer.options | {"signature": str(bundle)}
    found = trust.verify(uri, policy=policy, signature=bundle)
    assert found.subject == subject
    assert found.files == sorted(path.name for path in first.iterdir())
    assert tensorizer_ops.hf.from_pretrained(uri, options=options)
    copied = tensorizer_ops.download(uri, first.parent / "target", options=options)
    assert [each.name for each in copied] == found.files
    if place == "here":
        weights = {"uri": str(first), "options": options}
        assert dict(serving.weights(serving.Settings(weights), ""))
        done = run("verify", first, "--trust", signer.public, "--signature", bundle)
        assert done.returncode == 0, done.stderr
        above = options | {"signed_folder": str(first.parent)}
        with pytest.raises(errors.Crypto, match="its bundle lists no files that are in it"):
            tensorizer_ops.hf.from_pretrained(uri, options=above)
    # Another folder has other files.
    with pytest.raises(FileNotFoundError, match=r"chat_template\.jinja"):
        trust.verify(second, policy=policy, signature=bundle, ignore_unsigned_files=True)
    (where / "vocabulary").write_bytes((first / "config.json").read_bytes())
    if place == "here":
        with pytest.raises(errors.Crypto, match="files that are not signed, such as 'vocabulary'"):
            trust.verify(uri, policy=policy, signature=bundle)
    (where / "config.json").write_bytes((first / "generation_config.json").read_bytes())
    for use in (trust.verify, tensorizer_ops.hf.from_pretrained):
        given = {"policy": policy, "signature": bundle, "ignore_unsigned_files": True}
        with pytest.raises(errors.HashMismatch, match=r"config\.json"):
            use(uri, **(given if use is trust.verify else {"options": options}))
    (where / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        trust.verify(uri, policy=policy, signature=bundle, ignore_unsigned_files=True)


@pytest.mark.parametrize("pinned", [False, True])
def test_folders_that_are_spelled_otherwise(
    two: tuple[Path, Path],
    signer: Signer,
    web: Web,
    pinned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names count from the same folder, and all of its files must be there."""
    first, _ = two
    inner = web.root / "top" / "sub"
    shutil.rmtree(inner.parent, ignore_errors=True)
    shutil.copytree(first, inner)
    bundle = first.parent / "elsewhere.sig"
    subject = tensorizer_ops.sign(inner.parent, key=signer.private, signature=bundle)
    options = signer.options | {"signature": str(bundle)} | ({"subject": subject} if pinned else {})
    monkeypatch.chdir(inner)
    spelled = [
        ("../../top/sub", "../../top"),
        (inner, f"/{inner.parent}"),
        (web.url("top/sub"), web.url("t%6fp/").replace("http://", "HTTP://user@")),
    ]
    for uri, folder in spelled:
        assert tensorizer_ops.hf.from_pretrained(uri, options=options | {"signed_folder": folder})
    (inner / "generation_config.json").unlink()
    for uri, folder in spelled:
        with pytest.raises(FileNotFoundError, match=r"generation_config\.json"):
            tensorizer_ops.hf.from_pretrained(uri, options=options | {"signed_folder": folder})
    with pytest.raises(errors.Crypto, match="it is not in the folder that was signed"):
        tensorizer_ops.hf.from_pretrained(inner, options=options | {"signed_folder": str(first)})


@pytest.mark.parametrize("pinned", [False, True])
def test_a_folder_that_is_given_with_dots(
    two: tuple[Path, Path], signer: Signer, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    bundle = first.parent / "elsewhere.sig"
    # The folder has a model.sig already, which is not signed again.
    subject = tensorizer_ops.sign(first, key=signer.private, signature=bundle)
    monkeypatch.chdir(second)
    folder = f"../{first.name}"
    options = signer.options | {"signature": str(bundle)} | ({"subject": subject} if pinned else {})
    assert trust.verify(folder, policy=options["trust"], signature=bundle).subject == subject
    assert tensorizer_ops.hf.from_pretrained(folder, options=options)
    copied = tensorizer_ops.download(folder, first.parent / "target", options=options)
    assert "model.sig" not in [each.name for each in copied]


def test_a_bundle_of_no_file_of_the_folder(two: tuple[Path, Path], signer: Signer) -> None:
    first, second = two
    above = first.parent / "above"
    shutil.copytree(first, above / "first")
    shutil.copytree(second, above / "second")
    bundle = above / "model.sig"
    with pytest.raises(ValueError, match=r"'model.sig' in a folder above '.*' is that of all"):
        tensorizer_ops.sign(above / "first", key=signer.private, signature=bundle)
    tensorizer_ops.sign(above, key=signer.private, ignore=["second"])
    policy = signer.options["trust"]
    for ignore in (False, True):
        found = trust.verify(
            above / "first", policy=policy, signature=bundle, ignore_unsigned_files=ignore
        )
        assert "config.json" in found.files
        with pytest.raises(errors.Crypto, match="its bundle lists no files that are in it"):
            trust.verify(
                above / "second", policy=policy, signature=bundle, ignore_unsigned_files=ignore
            )


@pytest.mark.parametrize("pinned", [False, True])
def test_a_server_loads_no_other_file_of_a_folder(
    tmp_path: Path, signer: Signer, web: Web, pinned: bool
) -> None:
    """Another file of the folder, or of another model, does not take its place."""
    where = web.root / "of a server"
    shutil.rmtree(where, ignore_errors=True)
    for folder in (where, tmp_path / "other"):
        for name in ("model.tensors", "model.safetensors"):
            tensorizer_ops.save(folder / name, {"w": torch.full((3,), len(name + folder.name))})
        tensorizer_ops.sign(folder, key=signer.private)
    root = trust.verify(where, policy=signer.options["trust"]).subject
    options = signer.options | ({"subject": root} if pinned else {})

    def load() -> dict[str, torch.Tensor]:
        settings = serving.Settings({"uri": web.url("of%20a%20server"), "options": options})
        return dict(serving.weights(settings, ""))

    assert_same(load(), tensorizer_ops.load(where / "model.tensors"))
    (where / "model.tensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.tensors"):
        load()
    shutil.copy(tmp_path / "other" / "model.tensors", where)
    own_bundle(where, "model.tensors", of=tmp_path / "other")
    with pytest.raises(errors.HashMismatch, match="are not those that the key"):
        load()


def read_with_dcp(place: Path | str, signer: Signer) -> None:
    checkpoint.HuggingFaceStorageReader(place, options=signer.options).read_metadata()


def read_with_server(place: Path | str, signer: Signer) -> None:
    settings = serving.Settings({"uri": str(place), "options": signer.options})
    list(serving.weights(settings, ""))


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server])
def test_a_folder_gives_no_other_model(
    tmp_path: Path, signer: Signer, web: Web, read: Callable[[Path | str, Signer], None]
) -> None:
    """Neither another one that is signed in it, nor one with a bundle of its own."""
    where = web.root / "one model"
    shutil.rmtree(where, ignore_errors=True)
    for folder in (where, tmp_path / "other"):
        tensors = {"v": torch.ones(3), "w": torch.full((3,), len(folder.name))}
        tensorizer_ops.save(folder / "model.safetensors", tensors, options={"max_shard_size": 20})
        tensorizer_ops.save(folder / "consolidated.safetensors", {"w": torch.zeros(3)})
        tensorizer_ops.sign(folder, key=signer.private)
    places = (where, web.url("one%20model"))
    for place in places:
        read(place, signer)
    shards = list(where.glob("model*safetensors*"))
    for file in shards:
        file.unlink()
    for place in places:
        with pytest.raises(FileNotFoundError):
            read(place, signer)
    for file in shards:
        shutil.copy(tmp_path / "other" / file.name, where)
        own_bundle(where, file.name, of=tmp_path / "other")
    for place in places:
        with pytest.raises(errors.HashMismatch, match="are not those that the key"):
            read(place, signer)


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server])
def test_a_folder_that_was_a_file(
    tmp_path: Path, signer: Signer, read: Callable[[Path | str, Signer], None]
) -> None:
    """What a server first has as a file has no other model in it a moment later."""
    file = tmp_path / "model.safetensors"
    tensorizer_ops.save(file, {"w": torch.ones(3)})
    tensorizer_ops.sign(file, key=signer.private)

    def answer(asked: Asked) -> None:
        if asked.path == "/model" and len(asked.server.asked) == 1:
            asked.say("200 OK", b"a file")
        elif asked.path in ("/model/model.safetensors", "/model/model.safetensors.sig"):
            asked.say_range((tmp_path / asked.path.rpartition("/")[2]).read_bytes())
        else:
            asked.say("404 Not Found")

    with scripted(answer) as server, pytest.raises(errors.Crypto, match="it is not signed"):
        read(server.url("model"), signer)


def verify_folder(place: Path | str, signer: Signer) -> None:
    trust.verify(place, policy=signer.options["trust"])


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server, verify_folder])
def test_a_signed_folder_in_the_place_of_a_file(
    tmp_path: Path, signer: Signer, read: Callable[[Path | str, Signer], None]
) -> None:
    folder = tmp_path / "model.tensors"
    for name in ("x.tensors", "shard-00001-model-00001-of-00001.safetensors"):
        tensorizer_ops.save(folder / name, {"w": torch.ones(3)})
    tensorizer_ops.sign(folder.rename(tmp_path / "m"), key=signer.private)
    (tmp_path / "m").rename(folder)
    with pytest.raises(errors.Crypto, match="a folder with the name of a file"):
        read(folder, signer)


@pytest.mark.parametrize("taken", ["one", "another's"])
def test_files_of_ranks_are_of_one_model(tmp_path: Path, signer: Signer, taken: str) -> None:
    """No tensor is made of parts of two models."""
    names = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in range(2)]
    for model in ("old", "new"):
        for rank, name in enumerate(names):
            offsets = json.dumps({"w": {"saved_offsets": [2 * rank]}})
            part = {"w": torch.full((2,), rank + 10 * (model == "new"))}
            metadata = {"DCP_SHARDING_INFO": offsets}
            tensorizer_ops.save(tmp_path / model / name, part, metadata=metadata)
        tensorizer_ops.sign(tmp_path / model, key=signer.private)

    reader = checkpoint.HuggingFaceStorageReader(tmp_path / "new", options=signer.options)
    state = {"w": torch.zeros(4, dtype=torch.int64)}
    torch.distributed.checkpoint.load(state, storage_reader=reader, no_dist=True)
    assert state["w"].tolist() == [10, 10, 11, 11]
    if taken == "one":
        (tmp_path / "new" / names[1]).unlink()
    else:
        shutil.copy(tmp_path / "old" / names[1], tmp_path / "new")
        own_bundle(tmp_path / "new", names[1], of=tmp_path / "old")
    with pytest.raises(FileNotFoundError if taken == "one" else errors.HashMismatch):
        reader.read_metadata()


def test_files_of_a_server_are_of_one_model(tmp_path: Path, signer: Signer) -> None:
    for name, value in (("old", 1), ("new", 2)):
        for file in "ab":
            tensorizer_ops.save(
                tmp_path / name / f"{file}.tensors", {file: torch.full((3,), value)}
            )
        tensorizer_ops.sign(tmp_path / name, key=signer.private)
    folder = tmp_path / "new"

    def load() -> dict[str, torch.Tensor]:
        settings = serving.Settings({"uri": str(folder), "options": signer.options})
        return dict(serving.weights(settings, ""))

    assert {name: tensor[0].item() for name, tensor in load().items()} == {"a": 2, "b": 2}
    content = (folder / "b.tensors").read_bytes()
    (folder / "b.tensors").write_bytes((tmp_path / "old" / "b.tensors").read_bytes())
    own_bundle(folder, "b.tensors", of=tmp_path / "old")
    with pytest.raises(errors.HashMismatch, match="are not those that the key"):
        load()
    (folder / "b.tensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.tensors"):
        load()
    (folder / "b.tensors").write_bytes(content)
    own_bundle(folder, "a.tensors", "b.tensors")
    (folder / "model.sig").unlink()
    with pytest.raises(errors.Crypto, match=r"there is no 'model\.sig' in it"):
        load()


def test_a_model_of_transformers_that_was_signed_in_whole(tmp_path: Path, signer: Signer) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20_000, hidden_size=256, intermediate_size=64, num_hidden_layers=1
    )
    model = transformers.LlamaForCausalLM(config)
    folder = tmp_path / "llama"
    tensorizer_ops.hf.save_pretrained(model, folder)
    file = folder / "model.tensors"
    assert file.stat().st_size > 16 << 20
    tensorizer_ops.sign(folder, key=signer.private, method="files")
    loaded = tensorizer_ops.hf.from_pretrained(folder, options=signer.options)
    assert_same(loaded.state_dict(), model.state_dict())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(errors.HashMismatch, match=r"model\.tensors"):
        tensorizer_ops.hf.from_pretrained(folder, options=signer.options)


def test_downloads(llama: tuple[Path, Any], signer: Signer, web: Web, tmp_path: Path) -> None:
    folder, _ = llama
    tensorizer_ops.sign(folder, key=signer.private)
    where = web.root / "download"
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(folder, where)
    (where / "code.py").write_text("import os")
    (where / "SHA256SUMS").write_text("0" * 64 + "  code.py")
    target = tmp_path / "target"
    copied = tensorizer_ops.download(web.url("download"), target, options=signer.options)
    assert {each.name: each.checked.partition(",")[0] for each in copied} == {
        path.name: "signature" for path in folder.iterdir()
    }
    assert trust.verify(target, policy=signer.options["trust"])
    shutil.rmtree(target)
    (where / "config.json").write_text("{}")
    with pytest.raises(errors.HashMismatch, match=r"config\.json"):
        tensorizer_ops.download(web.url("download"), target, options=signer.options)
    assert not (target / "config.json").exists()


def test_a_download_with_folders(model: Path, signer: Signer, tmp_path: Path) -> None:
    """A copy of the bundle in a folder says nothing about the files there."""
    (model / "a").mkdir()
    tensorizer_ops.save(model / "a" / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(model, key=signer.private)
    tensorizer_ops.download(model, tmp_path / "copy", options=signer.options)
    copied = tmp_path / "copy" / "a" / "m.tensors"
    assert copied.read_bytes() == (model / "a" / "m.tensors").read_bytes()
    for name in ("m.tensors", "model.sig"):
        shutil.copy(model / name, model / "a")
    with pytest.raises(errors.HashMismatch, match="and the key"):
        tensorizer_ops.download(model, tmp_path / "again", options=signer.options)
    assert not (tmp_path / "again" / "a" / "m.tensors").exists()


@pytest.mark.parametrize("change", ["another", "no bundle", "endless"])
def test_a_bundle_that_changes_during_a_download(
    tmp_path: Path, model: Path, signer: Signer, change: str
) -> None:
    """The copy of the bundle is the one that was checked."""
    other = tmp_path / "other"
    tensorizer_ops.save(other / "m.tensors", {"w": torch.ones(3)})
    for folder in (model, other):
        tensorizer_ops.sign(folder, key=signer.private)
    reads, right = 0, 1000

    def answer(asked: Asked) -> None:
        nonlocal reads
        name = asked.path.rpartition("/")[2]
        folder = model
        if name == "model.sig":
            reads += 1
            if reads > right:
                if change == "endless":
                    asked.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                    asked.never_end(bytes(1 << 20))
                    return
                folder = other
        if not (folder / name).exists():
            asked.say("404 Not Found")
            return
        content = (folder / name).read_bytes()
        if folder is other and change == "no bundle":
            content = b"no bundle"
        asked.say_range(content) if "range" in asked.headers else asked.say("200 OK", content)

    kinds = {"another": errors.HashMismatch, "no bundle": errors.InvalidFormat}
    with scripted(answer) as server:
        # How often the bundle is read before it is copied.
        tensorizer_ops.download(server.url("model"), tmp_path / "right", options=signer.options)
        reads, right = 0, reads - 1
        with pytest.raises(kinds.get(change, errors.InvalidFormat)):
            tensorizer_ops.download(server.url("model"), tmp_path / "copy", options=signer.options)
    assert not [path for path in (tmp_path / "copy").iterdir() if "model.sig" in path.name]


def test_copies_and_saves_take_options_of_loads(
    llama: tuple[Path, Any], signer: Signer, tmp_path: Path
) -> None:
    """What is written is signed afterwards. Files that are replaced are not written to."""
    folder, model = llama
    tensorizer_ops.sign(folder, key=signer.private)
    tensorizer_ops.upload(folder, tmp_path / "uploaded", options=signer.options)
    saved = tmp_path / "saved"
    tensorizer_ops.hf.save_pretrained(model, saved, options=signer.options)
    other = tmp_path / "other.json"
    other.write_text("of somebody else")
    target = tmp_path / "fetched"
    target.mkdir()
    (target / "config.json").symlink_to(other)
    tensorizer_ops.hf.fetch(tmp_path / "uploaded", target, options=signer.options)
    assert other.read_text() == "of somebody else"
    assert (target / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_keys_in_the_place_of_their_names_are_not_shown(model: Path, signer: Signer) -> None:
    pem = signer.private.read_text()
    uses: list[Callable[[], object]] = [
        lambda: tensorizer_ops.load(model / "m.tensors", options={"trust": pem}),
        lambda: trust.verify(model, policy=pem),
        lambda: tensorizer_ops.hf.fetch(model, model / "copy", options={"trust": pem}),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="the name of a policy") as caught:
            use()
        assert pem.splitlines()[1][:20] not in str(caught.value)


def test_links_in_the_cache_of_the_hub(tmp_path: Path, model: Path, signer: Signer) -> None:
    """They lead to the blobs of the same model, which count as files."""
    repository = tmp_path / "hub" / "models--example--m"
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in model.glob("*.*"):
        content = path.read_bytes()
        blob = blobs / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    root = tensorizer_ops.sign(snapshot, key=signer.private)
    found = trust.verify(snapshot, policy=signer.options["trust"])
    assert found.subject == root
    assert "m.tensors" in found.files
    for file in FILES:
        assert "scale" in tensorizer_ops.load(snapshot / file, options=signer.options)
    blob = (snapshot / "m.tensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
        tensorizer_ops.load(snapshot / "m.tensors", options=signer.options)
    for elsewhere in (tmp_path / "keys" / "release.pub", tmp_path / "hub" / "blobs" / "0"):
        (snapshot / "link.json").unlink(missing_ok=True)
        (snapshot / "link.json").symlink_to(elsewhere)
        with pytest.raises(ValueError, match=r"link\.json' is a symbolic link"):
            tensorizer_ops.sign(snapshot, key=signer.private)
