"""Folders whose files are signed together, as one model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from local_servers.s3_server import S3
from local_servers.web import Web
from support.command import run
from support.process import run_python
from support.recorder import DENIED, recorder
from support.samples import assert_same
from support.scripted import Asked, scripted
from support.signer import Signer
from tensorizer_ops import _core, checkpoint, errors, trust
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.signed_folder import refuse_changed
from tensorizer_ops._cli.main import main
from tensorizer_ops._dcp import hugging_face
from tensorizer_ops._front import serving
from tensorizer_ops._hf import downloads, hashing


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


def test_temporary_folders_that_others_can_replace(
    llama: tuple[Path, Any], signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compared with a signature is not read again where others may have replaced it."""
    folder, _ = llama
    tensorizer_ops.sign(folder, key=signer.private)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    for load in (tensorizer_ops.hf.from_pretrained, tensorizer_ops.hf.tokenizer):
        with pytest.raises(PermissionError, match="set TMPDIR to another folder"):
            load(folder, options=signer.options)


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
        assert dict(serving.weights(serving.Settings(weights), str(first)))
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


def test_what_is_never_signed_in_a_folder_of_a_signed_one(model: Path, signer: Signer) -> None:
    """Only at the top of what was signed may there be such files."""
    above = model.parent / "above"
    shutil.copytree(model, above / "inner")
    tensorizer_ops.sign(above, key=signer.private)
    (above / ".git").mkdir()
    (above / ".git" / "config").touch()
    given = {"policy": signer.options["trust"], "signature": above / "model.sig"}
    assert ".gitattributes" in trust.verify(above / "inner", **given).files
    for name in (".git", ".gitignore", ".github/a", "model.sig"):
        added = above / "inner" / name
        added.parent.mkdir(exist_ok=True)
        added.write_text("not signed")
        for place in (above, above / "inner"):
            with pytest.raises(errors.Crypto, match=f"such as '.*{re.escape(name)}'"):
                trust.verify(place, **given)
        unlink_with_folder(added)
    assert trust.verify(above, **given)


@pytest.mark.parametrize("name", ["model.sig", "other.sig"])
@pytest.mark.parametrize("moved", [False, True])
def test_what_has_the_name_of_a_bundle(model: Path, signer: Signer, name: str, moved: bool) -> None:
    """It is not the one in use, and what is in a folder of this name is not signed."""
    bundle, place = model.parent / "elsewhere.sig", model / name
    tensorizer_ops.sign(model, key=signer.private, signature=place if moved else bundle)
    if moved:
        shutil.copy(place, bundle)
    policy = signer.options["trust"]
    folder = Folder(model, signer.options | {"signature": str(bundle)})

    def verify() -> None:
        assert trust.verify(model, policy=policy, signature=bundle)
        refuse_changed(folder, [])
        run("verify", "--trust", signer.public, "--signature", bundle, model)

    verify()  # what is where the bundle was is a file
    place.unlink(missing_ok=True)
    (model.parent / "linked").mkdir()
    for make in (place.mkdir, lambda: place.symlink_to(model.parent / "linked")):
        make()
        (place / "code.py").write_text("import os")
        for refused in (
            lambda: trust.verify(model, policy=policy, signature=bundle),
            lambda: refuse_changed(folder, []),
        ):
            with pytest.raises(errors.Crypto, match=rf"not signed, such as '{re.escape(name)}"):
                refused()
        arguments = ("--signature", bundle, model)
        assert name in run("verify", "--trust", signer.public, *arguments, status=1).stderr
        (place / "code.py").unlink()
        place.unlink() if place.is_symlink() else place.rmdir()
    verify()


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
        place = web.url("of%20a%20server")
        settings = {"uri": place, "model": "its config", "options": options}
        return dict(serving.weights(serving.Settings(settings), "its config"))

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
    settings = {"uri": str(place), "model": "its config", "options": signer.options}
    list(serving.weights(serving.Settings(settings), "its config"))


def verify(place: Path | str, signer: Signer) -> None:
    trust.verify(place, policy=signer.options["trust"])


def read_with_command(place: Path | str, signer: Signer) -> None:
    assert main(["verify", "-o", f"trust={signer.options['trust']}", str(place)]) == 0


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


@pytest.mark.parametrize("reading", [hugging_face, serving])
def test_a_signed_file_that_is_taken_away_after_the_check(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, reading: Any
) -> None:
    """Another one of the same bundle does not take its place."""
    folder = tmp_path / "model"
    for name in ("model.safetensors", "adapter.safetensors"):
        options = {"max_shard_size": 20} if name.startswith("model") else {}
        tensors = {"v": torch.ones(3), "w": torch.ones(3)}
        tensorizer_ops.save(folder / name, tensors, options=options)
    tensorizer_ops.sign(folder, key=signer.private)
    find = reading.model_of

    def take_away(*given: Any, **how: Any) -> Any:
        found = find(*given, **how)
        for file in folder.glob("model-*"):
            file.unlink()
        (folder / "model.safetensors.index.json").unlink()
        return found

    monkeypatch.setattr(reading, "model_of", take_away)
    read = read_with_dcp if reading is hugging_face else read_with_server
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        read(folder, signer)


@pytest.mark.parametrize("weights", ["model.tensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("given", ["folder", "link", "file"])
def test_what_a_server_reads_of_the_folder_that_it_serves(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, weights: str, given: str
) -> None:
    """Configs, templates and further weights, which it reads itself, are signed as well."""
    folder, tensors = tmp_path / "model", {"v": torch.ones(3), "w": torch.ones(3)}
    options = {"max_shard_size": 20} if weights.endswith(".json") else {}
    tensorizer_ops.save(folder / weights.removesuffix(".index.json"), tensors, options=options)
    tensorizer_ops.save(folder / "2_Dense" / "model.safetensors", tensors)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "empty").mkdir()
    ignored = ["README.md", ".cache", "tokenizer.json", "docs", "empty", "tokenizer.model.v3"]
    tensorizer_ops.sign(folder, key=signer.private, ignore=ignored)
    for name in ("README.md", ".cache/a.metadata", "docs/License", "docs/picture.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("anything")
    (tmp_path / "link").symlink_to(folder)
    where = {"folder": None, "link": str(tmp_path / "link"), "file": str(folder / weights)}
    place = {"uri": where[given]} if where[given] else {}

    def load() -> dict[str, torch.Tensor]:
        settings = serving.Settings({**place, "options": signer.options})
        return dict(serving.weights(settings, str(folder)))

    compared: list[str] = []
    open_file = Folder.open

    def note(self: Folder, name: str, *how: Any, **more: Any) -> Any:
        compared.append(name)
        return open_file(self, name, *how, **more)

    monkeypatch.setattr(Folder, "open", note)
    assert_same(load(), tensors)
    assert compared == ["2_Dense/model.safetensors", "config.json"]
    for name in compared[:2]:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(errors.HashMismatch, match=re.escape(name)):
            load()
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(name)):
            load()
        (tmp_path / "elsewhere").write_bytes(content)
        (folder / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(errors.Crypto, match="is a symbolic link"):
            load()
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    for name in (
        "chat_template.jinja",
        "docs/readme.json",
        "docs/tokenizer.model.v3.md",
        "docs/a.sig/picture.png",
        "docs/tekken.json/README",
        "tokenizer.json",
        "tokenizer.model.v3/README",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{{messages[0].content}}")
        with pytest.raises(errors.Crypto, match=f"not signed, such as '{re.escape(name)}'"):
            load()
        unlink_with_folder(folder / name)
    (folder / "tokenizer.json").mkdir()
    with pytest.raises(errors.Crypto, match=r"not signed, such as 'tokenizer.json/'"):
        load()
    (folder / "tokenizer.json").rmdir()
    assert_same(load(), tensors)


def test_a_served_folder_is_compared_before_it_is_loaded(tmp_path: Path, signer: Signer) -> None:
    """A server that loads it again would have dropped its own weights by then."""
    tensorizer_ops.save(tmp_path / "model" / "m.tensors", {"w": torch.ones(3)})
    with pytest.raises(errors.Crypto, match="it is not signed"):
        serving.weights(serving.Settings({"options": signer.options}), str(tmp_path / "model"))


@pytest.mark.parametrize(
    "spelling",
    ["../model.sig", "ROOT/sub/../model.sig", "file://ROOT/sub/%2e%2e/model.sig", "link/model.sig"],
)
def test_a_bundle_of_a_folder_above_that_is_spelled_otherwise(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """The files of that folder are none of the one below, where they may have been put."""
    signed, inner = tmp_path / "signed", tmp_path / "signed" / "sub"
    for folder in (signed, inner):
        tensorizer_ops.save(folder / "model.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(signed, key=signer.private)
    shutil.copy(signed / "model.safetensors", inner)
    (inner / "link").symlink_to(signed)
    monkeypatch.chdir(inner)
    bundle = spelling.replace("ROOT", str(signed))
    options = signer.options | {"signature": bundle}
    with pytest.raises(errors.Crypto, match="may be that of a folder above: spell both"):
        checkpoint.HuggingFaceStorageReader(inner, options=options).read_metadata()
    with pytest.raises(errors.Crypto, match="may be that of a folder above: spell both"):
        trust.verify(inner, policy=signer.options["trust"], signature=bundle)
    with pytest.raises(errors.Crypto, match="may be that of a folder above: spell both"):
        tensorizer_ops.sign(inner, key=signer.private, signature=bundle)


def test_a_folder_that_became_a_link_to_the_one_above(tmp_path: Path, signer: Signer) -> None:
    signed = tmp_path / "signed"
    tensorizer_ops.save(signed / "model.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(signed, key=signer.private)
    shutil.copytree(signed, tmp_path / "copy")
    (tmp_path / "link").symlink_to("signed")
    (signed / "sub").symlink_to("../copy")
    options = signer.options | {"signature": str(tmp_path / "link" / "model.sig")}
    with pytest.raises(errors.Crypto, match="may be that of a folder above: spell both"):
        checkpoint.HuggingFaceStorageReader(signed / "sub", options=options).read_metadata()


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server, read_with_command])
@pytest.mark.parametrize("place", ["m", "m\udcff"])
@pytest.mark.parametrize("file", ["WHERE/PLACE/x.safetensors", "../PLACE/x.safetensors"])
def test_the_spelling_of_a_signed_file(
    tmp_path: Path,
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Path | str, Signer], None],
    place: str,
    file: str,
) -> None:
    tensorizer_ops.save(tmp_path / "signed" / "x.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "signed", key=signer.private)
    (tmp_path / "signed").rename(tmp_path / place)
    monkeypatch.chdir(tmp_path / place)
    read(file.replace("WHERE", str(tmp_path)).replace("PLACE", place), signer)


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server])
def test_a_signed_file_without_an_ending(
    tmp_path: Path, signer: Signer, read: Callable[[Path | str, Signer], None]
) -> None:
    """What has such a name is a folder, whatever is there at this moment."""
    tensorizer_ops.save(tmp_path / "weights", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "weights", key=signer.private)
    with pytest.raises((errors.InvalidArgument, errors.Crypto, errors.NotFound)):
        read(tmp_path / "weights", signer)


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("read", [read_with_dcp, read_with_server])
def test_a_server_that_takes_a_folder_for_a_file(
    tmp_path: Path, signer: Signer, read: Callable[[Path | str, Signer], None], slash: str
) -> None:
    """For a moment, and then hides one of the models in it."""
    for name in ("model.tensors", "model.safetensors"):
        tensorizer_ops.save(tmp_path / name, {"w": torch.full((3,), len(name))})
    tensorizer_ops.sign(tmp_path, key=signer.private)

    def answer(asked: Asked) -> None:
        name = asked.path.removeprefix("/m").removeprefix("/")
        is_first = not any(other.path == asked.path for other in server.asked[:-1])
        if name == "" and is_first:
            asked.say_range((tmp_path / "model.tensors").read_bytes())
        elif name in ("model.sig", "model.safetensors"):
            asked.say_range((tmp_path / name).read_bytes())
        else:
            asked.say("404 Not Found")

    with scripted(answer) as server, pytest.raises(errors.NotFound):
        read(server.url("m") + slash, signer)


def test_a_command_does_not_take_a_file_for_a_signed_folder(tmp_path: Path, signer: Signer) -> None:
    """Its bundle may be away for a moment, and another file may be changed."""
    tensorizer_ops.save(tmp_path / "model.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path, key=signer.private)
    (tmp_path / "model.sig").rename(tmp_path / "model.safetensors.sig")
    (tmp_path / "modeling.py").touch()
    assert main(["verify", "-o", f"trust={signer.options['trust']}", str(tmp_path)]) != 0


def test_a_folder_named_as_descriptors_are(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ``fd:`` in lower case is one, which no file is beside."""
    tensorizer_ops.save(tmp_path / "FD:m" / "model.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "FD:m", key=signer.private)
    monkeypatch.chdir(tmp_path)
    given = ["verify", "-o", f"trust={signer.options['trust']}", "FD:m"]
    assert main(given) == 0
    (tmp_path / "FD:m" / "modeling.py").touch()
    assert main(given) != 0


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server, verify])
def test_the_bundle_of_a_file_in_the_place_of_that_of_its_folder(
    tmp_path: Path, signer: Signer, read: Callable[[Path | str, Signer], None]
) -> None:
    """Nobody has signed that the folder has no other files."""
    for name in ("a.safetensors", "b.safetensors"):
        tensorizer_ops.save(tmp_path / "m" / name, {name: torch.ones(3)})
        tensorizer_ops.sign(tmp_path / "m" / name, key=signer.private)
    (tmp_path / "m" / "a.safetensors.sig").rename(tmp_path / "m" / "model.sig")
    for name in ("b.safetensors", "b.safetensors.sig"):
        (tmp_path / "m" / name).unlink()
    with pytest.raises(errors.Crypto, match=r"bundle is that of the file 'a\.safetensors'"):
        read(tmp_path / "m", signer)


def test_a_folder_with_the_name_of_its_only_file(tmp_path: Path, signer: Signer) -> None:
    """Its bundle would be refused as that of the file."""
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "vocab").write_text("a")
    with pytest.raises(errors.InvalidArgument, match="has the name of its only file"):
        tensorizer_ops.sign(tmp_path / "vocab", key=signer.private)


@pytest.mark.parametrize("link", ["README.md", ".git/x"])
def test_a_link_to_a_folder_in_a_served_one(tmp_path: Path, signer: Signer, link: str) -> None:
    """Servers may list what is in it, whatever the name of the link says."""
    folder, other = tmp_path / "m", tmp_path / "other"
    for place in (folder, other):
        tensorizer_ops.save(place / "model.safetensors", {"w": torch.ones(3)})
    (folder / ".git").mkdir()
    tensorizer_ops.sign(folder, key=signer.private, ignore=["README.md"])
    (folder / link).symlink_to(other)
    with pytest.raises(errors.Crypto, match=r"such as .*a symbolic link to a folder"):
        settings = serving.Settings({"options": signer.options})
        list(serving.weights(settings, str(folder)))


@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
@pytest.mark.parametrize("link", ["link", "link\udcff"])
@pytest.mark.parametrize("name", ["model", "model/m.tensors"])
def test_a_path_with_dots_behind_a_link(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, kind: Any, link: str, name: str
) -> None:
    """What is verified is what the system opens by the path."""
    (tmp_path / "other" / "inner").mkdir(parents=True)
    for folder in (tmp_path / "model", tmp_path / "other" / "model"):
        tensorizer_ops.save(folder / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / name, key=signer.private)
    (tmp_path / link).symlink_to("other/inner")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.NotFound, match=r"/\.\./model/model\.sig"):
        trust.verify(kind(f"{link}/../{name}"), policy=signer.options["trust"])


def test_a_bundle_of_a_server_that_may_be_that_of_a_folder_above(signer: Signer, web: Web) -> None:
    signed = web.root / "signed"
    tensorizer_ops.save(signed / "sub" / "model.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(signed, key=signer.private)
    other = web.url("signed/model.sig").replace("127.0.0.1", "localhost")
    for bundle in (other, web.url("signed//model.sig"), web.url("signed/sub/%2e%2e/model.sig")):
        options = signer.options | {"signature": bundle}
        with pytest.raises(errors.Crypto, match="may be that of a folder above: spell both"):
            checkpoint.HuggingFaceStorageReader(
                web.url("signed/sub"), options=options
            ).read_metadata()


@pytest.mark.parametrize("uri", ["model", "model/w/m.tensors", "elsewhere/m.tensors", None])
@pytest.mark.parametrize("other", ["./other", "./anybody/other"])
def test_a_config_leads_to_another_model(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, uri: str | None, other: str
) -> None:
    """A config that somebody changed can name a model to serve, which also says to draft tokens."""
    monkeypatch.chdir(tmp_path)
    place = Path(uri or other)
    file = place if place.suffix else place / "m.tensors"
    tensorizer_ops.save(file, {"w": torch.ones(3)})
    tensorizer_ops.sign(file.parent, key=signer.private)
    settings: dict[str, Any] = {"uri": uri, "options": signer.options}

    def load(**given: str) -> list[tuple[str, torch.Tensor]]:
        return list(
            serving.weights(serving.Settings(settings | given), other, may_be_led=uri is None)
        )

    with pytest.raises(errors.InvalidArgument, match=r"lacks model: .* the server now reads"):
        load()
    with pytest.raises(errors.Crypto, match=r"given 'model', .* and reads .* of '\S*other'"):
        load(model="model")
    with pytest.raises(errors.Crypto, match="give the same text to both"):
        load(model=f"x/../{other}")  # in which x may be a link
    assert load(model=other) and load(model=f"{other}/")


@pytest.mark.parametrize("given", [None, "./given"])
def test_a_file_leads_to_another_signed_folder(
    tmp_path: Path, signer: Signer, given: str | None
) -> None:
    """Such as a pointer in the folder that a server was given, with a tokenizer beside it."""
    tensorizer_ops.save(tmp_path / "other" / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "other", key=signer.private)
    settings = serving.Settings({"model": given, "options": signer.options})
    with pytest.raises(errors.Crypto if given else errors.InvalidArgument, match=r"other'"):
        serving.weights(settings, str(tmp_path / "other"), may_be_led=True)


@pytest.mark.parametrize("start", ["~/", "file://"])
def test_a_server_reads_what_it_serves_as_it_is_written(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tensorizer_ops.save(tmp_path / "model" / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "model", key=signer.private)
    model = f"{start}{'' if start == '~/' else tmp_path}/model"
    with pytest.raises(errors.InvalidArgument, match=r"takes '.*model' as it is written"):
        serving.weights(serving.Settings({"options": signer.options}), model)


@pytest.mark.parametrize("model", ["model", "somebody/model"])
def test_a_server_may_take_files_for_a_folder_from_the_hub(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Those that the folder lacks, if it has the name of a repository."""
    monkeypatch.chdir(tmp_path)
    tensorizer_ops.save(tmp_path / model / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / model, key=signer.private)
    settings = serving.Settings({"options": signer.options})
    with pytest.raises(errors.InvalidArgument, match=f"may be a Hub name .* give it '\\./{model}'"):
        serving.weights(settings, model)
    for place in (f"./{model}", str(tmp_path / model)):
        assert list(serving.weights(settings, place))


@pytest.mark.parametrize(
    ("model", "uri"), [("x/link/..", "model/m.tensors"), ("model", "x/link/../m.tensors")]
)
@pytest.mark.parametrize("start", ["", "file://"])
def test_a_way_back_from_a_link_hides_what_is_served(
    tmp_path: Path, signer: Signer, start: str, model: str, uri: str
) -> None:
    """The config in the folder is not signed, and would be compared."""
    tensorizer_ops.save(tmp_path / "model" / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "model", key=signer.private)
    (tmp_path / "model" / "inner").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "link").symlink_to(tmp_path / "model" / "inner")
    served, place = str(tmp_path / model), f"{start}{tmp_path / uri}"
    settings = {"model": served, "uri": place, "options": signer.options}
    with pytest.raises(errors.InvalidArgument, match=r"'\S+link/\.\.\S*' has '\.\.' behind a name"):
        serving.weights(serving.Settings(settings), served)


@pytest.mark.parametrize("model", ["./model.bin", "./model.bin/"])
@pytest.mark.parametrize("uri", ["./model.bin", "./model.bin/"])
def test_a_server_of_a_folder_with_the_name_of_a_file(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, model: str, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tensorizer_ops.save("model.bin/m.tensors", {"w": torch.ones(3)})
    Path("model.bin/config.json").write_text("{}")
    tensorizer_ops.sign("model.bin/", key=signer.private)
    Path("model.bin/config.json").write_text("[]")
    settings = serving.Settings({"uri": uri, "options": signer.options})
    is_folder = model.endswith("/") or uri.endswith("/")
    with pytest.raises(errors.HashMismatch if is_folder else errors.Crypto):
        list(serving.weights(settings, model))


def test_the_model_that_a_server_was_given_is_compared_only_with_trust() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"model in .* is only for the option 'trust'"):
        serving.Settings({"model": "model"})
    with pytest.raises(TypeError, match=r"model in .* is int, and must be str"):
        serving.Settings({"model": 1})


def test_a_folder_that_is_served_is_loaded_again(tmp_path: Path, signer: Signer) -> None:
    """A server has the config of the model that was there first."""
    folder, settings = tmp_path / "model", serving.Settings({"options": signer.options})
    versions = [{"w": torch.full((3,), float(number))} for number in range(2)]
    for number, tensors in enumerate(versions):
        (version := tmp_path / f"{number}").mkdir()
        tensorizer_ops.save(version / "m.tensors", tensors)
        (version / "config.json").write_text(f"[{number}]")
        tensorizer_ops.sign(version, key=signer.private)
    roots: dict[str, str] = {}
    shutil.copytree(tmp_path / "0", folder)
    for _ in range(2):
        assert_same(dict(serving.weights(settings, str(folder), roots=roots)), versions[0])
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "1", folder)
    with pytest.raises(errors.HashMismatch, match="has another model than the one whose config"):
        dict(serving.weights(settings, str(folder), roots=roots))
    for other in ({}, None):  # another server
        assert_same(dict(serving.weights(settings, str(folder), roots=other)), versions[1])


def test_a_folder_that_is_served_and_has_links(tmp_path: Path, signer: Signer) -> None:
    """A link that others have put on the way to the weights hides no other file."""
    folder, tensors = tmp_path / "model", {"w": torch.ones(3)}
    tensorizer_ops.save(folder / "weights" / "m.tensors", tensors)
    (folder / "config.json").write_text("{}")
    tensorizer_ops.sign(folder, key=signer.private)
    bundle = {"signature": str(folder / "model.sig")}
    settings = serving.Settings(
        {"uri": str(folder / "weights" / "m.tensors"), "options": signer.options | bundle}
    )
    assert_same(dict(serving.weights(settings, str(folder))), tensors)
    (folder / "config.json").write_text("[]")
    (folder / "weights").rename(tmp_path / "weights")
    (folder / "weights").symlink_to(tmp_path / "weights")
    with pytest.raises(errors.Crypto, match="weights' is a symbolic link"):
        dict(serving.weights(settings, str(folder)))


def test_a_server_takes_one_bundle_for_all_of_a_folder(tmp_path: Path, signer: Signer) -> None:
    """A bundle of the weights alone would leave the rest of the folder to anybody."""
    folder = tmp_path / "model"
    tensorizer_ops.save(folder / "m.tensors", {"w": torch.zeros(3)})
    (folder / "config.json").write_text("{}")
    tensorizer_ops.sign(folder / "m.tensors", key=signer.private)
    old, own = ((folder / name).read_bytes() for name in ("m.tensors", "m.tensors.sig"))
    (folder / "m.tensors.sig").unlink()

    def load(**options: str) -> dict[str, torch.Tensor]:
        settings = {"uri": str(folder / "m.tensors"), "options": signer.options | options}
        return dict(serving.weights(serving.Settings(settings), str(folder)))

    tensors = {"w": torch.ones(3)}
    tensorizer_ops.save(folder / "m.tensors", tensors)
    root = tensorizer_ops.sign(folder, key=signer.private)
    assert_same(load(subject=root), tensors)
    with pytest.raises(errors.HashMismatch, match="expected"):
        load(subject="0" * 64)
    new = (folder / "m.tensors").read_bytes()
    (folder / "m.tensors").write_bytes(old)
    (tmp_path / "own.sig").write_bytes(own)
    with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
        load()
    with pytest.raises(errors.Crypto, match=r"bundle is that of the file 'm\.tensors'"):
        load(signature=str(tmp_path / "own.sig"))
    (folder / "m.tensors").write_bytes(new)
    (folder / "model.sig").rename(tmp_path / "elsewhere.sig")
    assert_same(load(signature=str(tmp_path / "elsewhere.sig")), tensors)
    (folder / "m.tensors.sig").write_bytes(own)
    with pytest.raises(errors.Crypto, match="it is not signed"):
        load()


@pytest.mark.parametrize("name", ["model.tensors", "model.safetensors"])
def test_a_model_whose_place_files_of_ranks_would_take(
    tmp_path: Path, signer: Signer, name: str
) -> None:
    rank = "shard-00000-model-00001-of-00001.safetensors"
    for file in (name, rank):
        tensorizer_ops.save(tmp_path / "m" / file, {"w": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "m", key=signer.private)
    (tmp_path / "m" / name).unlink()
    with pytest.raises(FileNotFoundError, match=name.replace(".", r"\.")):
        read_with_dcp(tmp_path / "m", signer)


def test_files_of_one_name_and_root(tmp_path: Path, signer: Signer) -> None:
    """The root digest is that of the contents in the order of their names."""
    contents = {value: tmp_path / f"{value}.tensors" for value in (1, 2)}
    for value, file in contents.items():
        tensorizer_ops.save(file, {"w": torch.full((3,), value)})
    readers, roots = [], set()
    for folder, names in (("one", ("m", "n")), ("other", ("k", "m"))):
        (tmp_path / folder).mkdir()
        for value, name in enumerate(names, 1):
            shutil.copy(contents[value], tmp_path / folder / f"{name}.tensors")
        roots.add(tensorizer_ops.sign(tmp_path / folder, key=signer.private))
        place = tmp_path / folder / "m.tensors"
        readers.append(tensorizer_ops.Reader(place, options=signer.options))
    assert len(roots) == 1
    one, other = serving.signed_contents(readers)
    assert one != other


@pytest.mark.parametrize("read", [read_with_dcp, read_with_server])
def test_a_folder_with_several_signed_models(
    tmp_path: Path, signer: Signer, read: Callable[[Path | str, Signer], None]
) -> None:
    """None is taken because the others are away when the folder is searched."""
    files = [tmp_path / "m" / f"step-{step}.safetensors" for step in (1, 2)]
    for file in files:
        tensorizer_ops.save(file, {"w": torch.ones(3)}, options={"max_shard_size": 40})
    tensorizer_ops.sign(tmp_path / "m", key=signer.private)
    with pytest.raises(errors.InvalidArgument, match="several models that are signed, such as"):
        read(tmp_path / "m", signer)
    readers = [tensorizer_ops.Reader(file, options=signer.options) for file in files]
    one, other = serving.signed_contents(readers)
    assert one != other  # as ranks compare them


def test_a_file_that_becomes_a_folder_after_the_check(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a folder, of which each was signed alone, do not take its place."""
    file, folder = tmp_path / "m.tensors", tmp_path / "folder"
    for place in (file, folder / "a.tensors", folder / "b.tensors"):
        tensorizer_ops.save(place, {place.stem: torch.ones(3)})
        tensorizer_ops.sign(place, key=signer.private)
    find = serving.model_of

    def exchange(*given: Any, **how: Any) -> Any:
        found = find(*given, **how)
        file.unlink()
        folder.rename(file)
        return found

    monkeypatch.setattr(serving, "model_of", exchange)
    with pytest.raises((errors.Crypto, ValueError)):
        read_with_server(file, signer)


def consolidate(place: Path, signer: Signer) -> None:
    checkpoint.consolidate(place, place.with_name("whole.tensors"), source_options=signer.options)


def load_checkpoint(place: Path, signer: Signer) -> None:
    checkpoint.load(place, options=signer.options)


def fill_with_dcp(place: Path, signer: Signer) -> None:
    reader = checkpoint.TensorizerStorageReader(place, options=signer.options)
    state = {"w": torch.zeros(3)}
    torch.distributed.checkpoint.load(state, storage_reader=reader, no_dist=True)


@pytest.mark.parametrize("name", ["last.ckpt", "m.tensors"])
@pytest.mark.parametrize("read", [load_checkpoint, consolidate, fill_with_dcp])
def test_a_checkpoint_of_ranks_in_the_place_of_a_file(
    tmp_path: Path, signer: Signer, name: str, read: Callable[[Path, Signer], None]
) -> None:
    writer = checkpoint.TensorizerStorageWriter(tmp_path / name)
    writer.sign = signer.private
    state = {"w": torch.ones(3)}
    torch.distributed.checkpoint.save(state, storage_writer=writer, no_dist=True)
    refused = torch.distributed.checkpoint.api.CheckpointException
    with pytest.raises((errors.Crypto, refused), match="a folder with the name of a file"):
        read(tmp_path / name, signer)
    command = ("verify", "-o", f"trust={signer.options['trust']}")
    run(*command, tmp_path / name, status=2)
    (tmp_path / name).rename(tmp_path / "m")
    read(tmp_path / "m", signer)
    run(*command, tmp_path / "m")


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


def test_a_signed_folder_with_the_name_of_a_file_on_a_server(
    tmp_path: Path, signer: Signer, web: Web
) -> None:
    shutil.rmtree(web.root / "wanted.tensors", ignore_errors=True)
    tensorizer_ops.save(web.root / "wanted" / "model.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(web.root / "wanted", key=signer.private)
    (web.root / "wanted").rename(web.root / "wanted.tensors")
    for name in ("wanted%2Etensors", "wanted.tensors?a=b"):
        for read in (read_with_server, verify_folder):
            with pytest.raises((errors.Crypto, ValueError, OSError)):
                read(web.url(name), signer)


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


@pytest.mark.parametrize("use", ["reader", "server", "command"])
def test_a_signed_folder_that_is_away_for_a_moment(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """It is no file then, in whose place a part of it would be loaded when it is back."""
    place = tmp_path / "m"
    for name in ("model", "old"):
        tensorizer_ops.save(place / f"{name}.safetensors", {"x": torch.ones(3)})
    tensorizer_ops.sign(place, key=signer.private)
    (place / "model.safetensors").unlink()
    is_folder = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != str(place) and is_folder(path))
    if use == "command":
        assert main(["verify", "-o", f"trust={signer.options['trust']}", str(place)]) != 0
        return
    with pytest.raises((errors.NotFound, errors.Crypto)):
        if use == "reader":
            checkpoint.HuggingFaceStorageReader(place, options=signer.options).read_metadata()
        else:
            found, options = serving.files_of(str(place), signer.options)
            list(tensorizer_ops.Reader(found[0], options=options))


@pytest.mark.parametrize("kind", ["model", "files of ranks"])
def test_files_of_ranks_are_of_the_bundle_that_lists_them(
    tmp_path: Path, signer: Signer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which files there are, and what is in them, is not said by two models."""
    here, there = tmp_path / "here", tmp_path / "there"
    name = "model" if kind == "model" else "shard-00000-model-00001-of-00001"
    for value, folder in enumerate((here, there)):
        tensors = {"w": torch.full((2,), value)}
        sharding = json.dumps({"w": {"saved_offsets": [0]}})
        metadata = {} if kind == "model" else {"DCP_SHARDING_INFO": sharding}
        tensorizer_ops.save(folder / f"{name}.safetensors", tensors, metadata=metadata)
        tensorizer_ops.sign(folder, key=signer.private)
    signed_weights = Folder.signed_weights

    def replaced(folder: Folder) -> list[str]:
        found = signed_weights(folder)
        shutil.copytree(there, here, dirs_exist_ok=True)
        return found

    monkeypatch.setattr(Folder, "signed_weights", replaced)
    with pytest.raises(errors.HashMismatch, match="root digest"):
        checkpoint.HuggingFaceStorageReader(here, options=signer.options).read_metadata()


def test_files_of_a_server_are_of_one_model(tmp_path: Path, signer: Signer) -> None:
    for name, value in (("old", 1), ("new", 2)):
        for file in "ab":
            tensorizer_ops.save(
                tmp_path / name / f"{file}.tensors", {file: torch.full((3,), value)}
            )
        tensorizer_ops.sign(tmp_path / name, key=signer.private)
    folder = tmp_path / "new"

    def load() -> dict[str, torch.Tensor]:
        settings = {"uri": str(folder), "model": "its config", "options": signer.options}
        return dict(serving.weights(serving.Settings(settings), "its config"))

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
    shutil.copy(folder / "config.json", where)
    (target / "config.json").write_text("mine")
    with pytest.raises(ValueError, match="would be lost"):
        tensorizer_ops.download(web.url("download"), target, options=signer.options)


def test_sign_upload_and_download(model: Path, signer: Signer, tmp_path: Path) -> None:
    """A folder may have the list of an earlier upload, and nothing takes that for signed."""
    policy, place, target = signer.options["trust"], tmp_path / "place", tmp_path / "target"
    (model / "SHA256SUMS").write_text(f"{'0' * 64}  m.tensors\n")
    tensorizer_ops.sign(model, key=signer.private)
    for _ in range(2):
        names = [file.name for file in tensorizer_ops.upload(model, place)][1:]  # .gitattributes
        assert "SHA256SUMS" not in trust.verify(place, policy=policy).files
        refuse_changed(Folder(place, signer.options), [])
        copied = tensorizer_ops.download(place, target, options=signer.options)
        assert sorted(file.name for file in copied) == names
        assert trust.verify(target, policy=policy)
    assert str(place) in run("verify", "--trust", signer.public, place).stdout
    (place / "config.json").write_text("[]")
    text = (place / "SHA256SUMS").read_text()
    was, now = (hashlib.sha256(content).hexdigest() for content in (b"{}", b"[]"))
    (place / "SHA256SUMS").write_text(text.replace(was, now))
    assert (place / "SHA256SUMS").read_text() != text
    shutil.rmtree(target)
    with pytest.raises(errors.HashMismatch, match=r"config\.json"):
        tensorizer_ops.download(place, target, options=signer.options)


@pytest.mark.parametrize("method", ["shards", "files"])
@pytest.mark.parametrize("name", [".cache/a/b", ".eval/a:0:1.yaml", ".0123456789abcdef.part"])
def test_an_upload_of_a_part_of_what_is_signed(
    model: Path, signer: Signer, tmp_path: Path, name: str, method: Any
) -> None:
    place = tmp_path / "place"
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).write_text("a: 1")
    tensorizer_ops.sign(model, key=signer.private, method=method)
    for folder in (model, f"{model}//", model.parent):
        with pytest.raises(ValueError, match=f"lists {name!r}, which an upload leaves out"):
            tensorizer_ops.upload(folder, place)
    assert not place.exists()
    (model / "model.sig").write_text("not a bundle")  # which is a file as others
    tensorizer_ops.upload(model, place)
    shutil.rmtree(place)
    tensorizer_ops.sign(model, key=signer.private, method=method, ignore=[name.split("/")[0]])
    tensorizer_ops.upload(model, place)
    assert trust.verify(place, policy=signer.options["trust"])
    assert tensorizer_ops.download(place, tmp_path / "target", options=signer.options)


@pytest.mark.parametrize("content", ["code.py", "README.txt", "a/b.png", ".cache/a"])
@pytest.mark.parametrize("name", ["SHA256SUMS", "model.sig", "z.sig"])
@pytest.mark.parametrize("spelled", ["{}", "{}/", "./{}", "sub/../{}"])
def test_a_folder_in_the_place_of_a_file_that_is_left_out(
    model: Path, signer: Signer, name: str, spelled: str, content: str
) -> None:
    """Nothing in it is signed, in whatever way the bundle spells its name."""
    bundle, ignored = model.parent / "elsewhere.sig", spelled.format(name)
    files = [(file.name, str(file)) for file in model.iterdir()]
    signing = _core.Signing("model", files, None, [ignored])
    bundle.write_text(signing.start(f"file:{signer.private}", "", [], [], 0))

    def sign() -> None:
        tensorizer_ops.sign(model, key=signer.private, signature=bundle, ignore=[ignored])

    def verify() -> None:
        trust.verify(model, policy=signer.options["trust"], signature=bundle)

    def refuse() -> None:
        refuse_changed(Folder(model, signer.options | {"signature": str(bundle)}), [])

    (model / name).write_text("a file")
    verify()
    refuse()
    (model / name).unlink()
    (model / name / content).parent.mkdir(parents=True)
    (model / name / content).write_text("import os")
    for refused in (verify, refuse):
        with pytest.raises(errors.Crypto, match=f"not signed, such as '{name}/{content}'"):
            refused()
    with pytest.raises(ValueError, match=f"{name}' is a folder, and only a file"):
        sign()
    shutil.rmtree(model / name)
    sign()
    verify()
    refuse()


def unlink_with_folder(path: Path) -> None:
    """Also removes the folder of the file, if it is empty then."""
    path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


# Some of the names under which libraries find files by themselves.
OF_ANOTHER_MODEL = (
    ".a.safetensors",
    ".m.tensors.01234567.part",
    ".cache/a/consolidated.safetensors",
    ".git/a.safetensors",
    "chat_template.jinja",
    "tokenizer.model.v3",
    "additional_chat_templates/.a.jinja",
    "custom_generate/generate.py",
    "m.tensors.sig",
    "sub/a.safetensors",
    "tiktoken.model/.0123456789abcdef.part",
)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("name", OF_ANOTHER_MODEL)
def test_a_download_over_another_model(
    model: Path, signer: Signer, tmp_path: Path, name: str, is_link: bool, overwrite: bool
) -> None:
    """What only the other one has would be used with the files of this one."""
    tensorizer_ops.save(model / "sub" / "m.tensors", {"w": torch.ones(3)})
    bundle = tmp_path / "target" / "bundle"
    tensorizer_ops.sign(model, key=signer.private, signature=bundle)
    target = tmp_path / "target"
    left = ".0123456789abcdef.part"
    for mine in (".git/a", ".cache/a/b", "SHA256SUMS", f"sub/{left}", "sub/__init__.py"):
        (target / mine).parent.mkdir(parents=True, exist_ok=True)
        (target / mine).write_text("" if mine.endswith(".py") else "{}")

    def download() -> None:
        how = {"options": signer.options | {"signature": str(bundle)}, "overwrite": overwrite}
        tensorizer_ops.download(model, target, **how)  # type: ignore[arg-type]

    download()
    (other := tmp_path / "other").write_text("{}")
    (target / name).parent.mkdir(exist_ok=True)
    (target / name).symlink_to(other) if is_link else (target / name).write_text("{}")
    with pytest.raises(ValueError, match=f"{name}' is none of the signed files"):
        download()
    assert (target / name).read_text() == "{}"
    unlink_with_folder(target / name)
    download()


@pytest.mark.parametrize("name", ["unet", ".unet", "parts/unet"])
def test_a_download_through_a_link(model: Path, signer: Signer, tmp_path: Path, name: str) -> None:
    """It would hide what is in the folder that it leads to, and leave it to be changed later."""
    tensorizer_ops.save(model / name / "m.tensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(model, key=signer.private)
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    (target / name).parent.mkdir(parents=True)
    elsewhere.mkdir()
    (target / name).symlink_to(elsewhere)
    with pytest.raises(errors.Crypto, match=f"{name}' is a symbolic link"):
        tensorizer_ops.download(model, target, options=signer.options)
    assert not [*elsewhere.iterdir()]
    (target / name).unlink()
    (target / "m.tensors").symlink_to(model / "m.tensors")  # which is replaced
    tensorizer_ops.download(model, target, options=signer.options)
    assert trust.verify(target, policy=signer.options["trust"])


@pytest.mark.parametrize("make", [os.mkfifo, lambda part: part.symlink_to("/dev/null")])
def test_another_thing_with_the_name_of_a_part(
    model: Path, signer: Signer, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """No download has left it."""
    tensorizer_ops.sign(model, key=signer.private)
    (part := tmp_path / "target" / ".0123456789abcdef.part").parent.mkdir()
    make(part)
    with pytest.raises(ValueError, match="part' is none of the signed files"):
        tensorizer_ops.download(model, part.parent, options=signer.options)


def test_a_file_of_another_size_in_the_place_of_a_signed_one(
    model: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read, as it may be sparse and have terabytes."""
    tensorizer_ops.sign(model, key=signer.private)
    (tmp_path / "target").mkdir()
    with open(tmp_path / "target" / "m.tensors", "wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(downloads, "hash_of", lambda *_: pytest.fail("reads it"))
    with pytest.raises(ValueError, match="would be lost"):
        tensorizer_ops.download(model, tmp_path / "target", options=signer.options)


@pytest.mark.parametrize("call", ["download", "fetch"])
def test_a_disk_without_space(tmp_path: Path, call: str) -> None:
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text(json.dumps({"text": "a" * 20000}))
    (model / "model.safetensors").write_bytes(safetensors.torch.save({"w": torch.ones(3)}))
    code = f"""
import resource, tensorizer_ops, tensorizer_ops.hf
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
try:
    tensorizer_ops{".hf" * (call == "fetch")}.{call}({str(model)!r}, {str(tmp_path / "target")!r})
except tensorizer_ops.errors.OutOfSpace as error:
    print(error.filename)
"""
    assert run_python(code).stdout.decode() == f"{tmp_path}/target/config.json\n"
    assert not os.listdir(tmp_path / "target")


def test_a_part_that_others_exchange_hides_no_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(job: object, part: BinaryIO) -> str:
        (path,) = (tmp_path / "target").glob(".*.part")
        path.unlink()
        path.mkdir()
        raise errors.HashMismatch("the first error")

    tensorizer_ops.upload(model, place := tmp_path / "place")
    monkeypatch.setattr(hashing.Hashing, "run", exchanged)
    with pytest.raises(errors.HashMismatch, match="the first error"):
        tensorizer_ops.download(place, tmp_path / "target")


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_that_becomes_a_link_during_a_download(
    model: Path, signer: Signer, tmp_path: Path, is_signed: bool, overwrite: bool, is_there: bool
) -> None:
    """Others who may write to the target may not write elsewhere by this."""
    (model / "sub" / "inner").mkdir(parents=True)
    (model / "sub" / "inner" / "config.json").write_text("of the server")
    (model / "z.json").write_text("{}")
    tensorizer_ops.sign(model, key=signer.private)
    tensorizer_ops.upload(model, place := tmp_path / "place")
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    swapped, kept = target / "sub", tmp_path / "kept"
    (elsewhere / "inner").mkdir(parents=True)
    (target / "sub" if is_there else target).mkdir(parents=True)
    if overwrite:
        (elsewhere / "inner" / "config.json").write_text("of the user")
    before = {path: path.is_file() and path.read_text() for path in elsewhere.rglob("*")}

    def answer(asked: Asked) -> None:
        name = asked.path.removeprefix("/m/")
        if name.startswith("sub/") and swapped.exists() and not kept.exists():
            swapped.rename(kept)
            swapped.symlink_to(elsewhere)
        if name == "z.json" and swapped.is_symlink():
            swapped.unlink()
            kept.rename(swapped)
        if not (place / name).is_file():
            return asked.say("404 Not Found")
        asked.say_range((place / name).read_bytes(), ETag='"1"')

    options = signer.options if is_signed else {}
    refused = pytest.raises(errors.InvalidArgument, match="target/sub' is a symbolic link or a fil")
    with scripted(answer) as server, refused if is_there else contextlib.nullcontext():
        tensorizer_ops.download(server.url("m"), target, options=options, overwrite=overwrite)
    assert before == {path: path.is_file() and path.read_text() for path in elsewhere.rglob("*")}
    assert is_there or (target / "sub/inner/config.json").read_text() == "of the server"


@pytest.mark.parametrize("name", [*OF_ANOTHER_MODEL, "model.tensors"])
def test_a_fetch_over_another_model(model: Path, signer: Signer, tmp_path: Path, name: str) -> None:
    (model / "config.json").write_text("{}")
    tensorizer_ops.sign(model, key=signer.private)
    target = tmp_path / "target"
    (target / name).parent.mkdir(parents=True)
    (target / name).write_text("of another model")
    (target / "config.json").write_text("of another model")
    with pytest.raises(ValueError, match=f"{name}' is none of the signed files"):
        tensorizer_ops.hf.fetch(model, target, options=signer.options)
    assert (target / "config.json").read_text() == "of another model"
    unlink_with_folder(target / name)
    for _ in range(2):
        tensorizer_ops.hf.fetch(model, target, options=signer.options)
        assert (target / "config.json").read_text() == "{}"


def test_files_of_a_fetch_are_of_one_bundle(model: Path, signer: Signer, tmp_path: Path) -> None:
    (model / "config.json").write_text("{}")
    tensorizer_ops.sign(model, key=signer.private)

    def answer(asked: Asked) -> None:
        file = model / asked.path.removeprefix("/")
        if not file.is_file():
            return asked.say("404 Not Found")
        asked.say_range(file.read_bytes(), ETag='"1"')

    with scripted(answer) as server:
        tensorizer_ops.hf.fetch(server.url(""), tmp_path / "target", options=signer.options)
        bundles = [asked for asked in server.asked if asked.path == "/model.sig"]
    assert len(bundles) == 2  # the second is compared with the first


@pytest.mark.parametrize("copy", [tensorizer_ops.download, tensorizer_ops.hf.fetch])
def test_two_copies_to_one_folder(
    model: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Any
) -> None:
    (model / "config.json").write_text("{}")
    tensorizer_ops.sign(model, key=signer.private)
    target = tmp_path / "target"
    replacing = downloads.replacing

    @contextlib.contextmanager
    def disturbed(*where: Any) -> Iterator[BinaryIO]:
        with replacing(*where) as file:
            yield file
        (target / "of_another.py").write_text("print()")

    for module in (downloads, tensorizer_ops.hf):
        monkeypatch.setattr(module, "replacing", disturbed)
    with pytest.raises(errors.InvalidArgument, match=r"of_another.py' is none of the signed files"):
        copy(model, target, options=signer.options)


@pytest.mark.parametrize("copy", [tensorizer_ops.download, tensorizer_ops.hf.fetch])
def test_a_folder_in_the_place_of_a_file(
    model: Path, signer: Signer, tmp_path: Path, copy: Any
) -> None:
    (model / "config.json").write_text("{}")
    tensorizer_ops.sign(model, key=signer.private)
    place = tmp_path / "target" / "config.json"
    place.mkdir(parents=True)
    with pytest.raises(errors.InvalidArgument, match=r"config.json' is a folder, in the place of"):
        copy(model, tmp_path / "target", options=signer.options)
    assert [*tmp_path.glob("target/.*")] == []


def test_a_bundle_that_another_one_lists(model: Path, signer: Signer, tmp_path: Path) -> None:
    """It is a file as all others, if the other bundle is asked for."""
    tensorizer_ops.sign(model, key=signer.private)
    tensorizer_ops.sign(tmp_path, key=signer.private, ignore=["keys"])
    options = signer.options | {"signature": str(tmp_path / "model.sig")}
    refuse_changed(Folder(model, options), [])
    copied = tensorizer_ops.download(model, tmp_path / "target", options=options)
    assert "model.sig" in [file.name for file in copied]
    text = (model / "model.sig").read_text()
    (model / "model.sig").write_text(text[:-1] + " ")
    with pytest.raises(errors.HashMismatch, match=r"model\.sig"):
        refuse_changed(Folder(model, options), [])
    with pytest.raises(errors.HashMismatch, match=r"model\.sig"):
        tensorizer_ops.download(model, tmp_path / "other", options=options)


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


def test_a_server_that_says_that_the_files_here_are_right(
    two: tuple[Path, Path], signer: Signer, tmp_path: Path
) -> None:
    """Nobody has signed that."""
    first, second = two
    here = tmp_path / "here"
    tensorizer_ops.download(first, here, options=signer.options)
    (here / "chat_template.jinja").unlink()  # which the second does not have

    def answer(asked: Asked) -> None:
        wanted = asked.path.rpartition("/")[2]
        if not (second / wanted).exists():
            return asked.say("404 Not Found", X_Error_Code="EntryNotFound")
        content = (first if wanted == "model.sig" else second) / wanted
        start = b"blob %d\0" % content.stat().st_size
        digest = hashlib.sha1(start + content.read_bytes()).hexdigest()
        asked.say_range((second / wanted).read_bytes(), ETag=f'"{digest}"', X_Repo_Commit="a")

    with scripted(answer) as server:
        options = {"hf_endpoint": server.url("").rstrip("/"), "force_http": "true"}
        with pytest.raises(errors.HashMismatch, match=r"model\.sig.*than its server says"):
            tensorizer_ops.download(
                "hf://org/m", here, options=signer.options | options, overwrite=True
            )


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
    said = {
        "another": "is about another model",
        "no bundle": "was replaced: this is not the bundle",
    }
    with scripted(answer) as server:
        # How often the bundle is read before it is copied.
        tensorizer_ops.download(server.url("model"), tmp_path / "right", options=signer.options)
        reads, right = 0, reads - 1
        why = f"'model.sig' in '{server.url('model')}.*{said.get(change, '')}"
        with pytest.raises(kinds.get(change, errors.InvalidFormat), match=why):
            tensorizer_ops.download(server.url("model"), tmp_path / "copy", options=signer.options)
    assert not [path for path in (tmp_path / "copy").iterdir() if "model.sig" in path.name]


@pytest.mark.parametrize("option", ["trust", "signature", "signed_folder", "subject", "hash_first"])
def test_an_upload_compares_no_signature(model: Path, tmp_path: Path, option: str) -> None:
    """It says so, as what is sent would seem to be verified."""
    with pytest.raises(ValueError, match=f"option '{option}' applies when a file is loaded only"):
        tensorizer_ops.upload(model, tmp_path / "uploaded", options={option: "true"})
    assert not (tmp_path / "uploaded").exists()


def test_saves_take_options_of_loads(
    llama: tuple[Path, Any], signer: Signer, tmp_path: Path
) -> None:
    """What is written is signed afterwards. Files that are replaced are not written to."""
    folder, model = llama
    tensorizer_ops.sign(folder, key=signer.private)
    saved = tmp_path / "saved"
    tensorizer_ops.hf.save_pretrained(model, saved, options=signer.options)
    other = tmp_path / "other.json"
    other.write_text("of somebody else")
    target = tmp_path / "fetched"
    target.mkdir()
    (target / "config.json").symlink_to(other)
    tensorizer_ops.hf.fetch(folder, target, options=signer.options)
    assert other.read_text() == "of somebody else"
    assert (target / "config.json").read_bytes() == (folder / "config.json").read_bytes()


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
    for file in ("m.tensors", "m.safetensors.index.json"):
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


def test_a_served_folder_that_is_away_for_a_moment(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may exchange it with a file while the server looks what it is."""
    served, roots = tmp_path / "served", dict[str, str]()
    settings = serving.Settings({"options": signer.options})
    for number in (1, 2):
        shutil.rmtree(served, ignore_errors=True)
        tensorizer_ops.save(served / "m.tensors", {"w": torch.ones(number)})
        tensorizer_ops.sign(served, key=signer.private)
        if number == 1:
            assert [*serving.weights(settings, str(served), roots=roots)]
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    with pytest.raises(errors.HashMismatch, match="has another model than the one whose config"):
        next(serving.weights(settings, str(served), roots=roots))
    (served / "tokenizer.py").write_text("nobody has signed this")
    with pytest.raises(errors.Crypto, match="has files that are not signed"):
        next(serving.weights(settings, str(served)))
    shutil.rmtree(served)
    with pytest.raises((errors.Crypto, errors.NotFound)):
        next(serving.weights(settings, str(served)))


def test_a_bundle_that_becomes_a_pipe_during_a_download(
    tmp_path: Path, model: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may ever write to it."""
    tensorizer_ops.sign(model, key=signer.private)
    receive = downloads._Download.receive

    def received(job: Any, name: str, *given: Any) -> tuple[int, str]:
        if name == "model.sig":
            (model / name).unlink()
            os.mkfifo(model / name)
        return receive(job, name, *given)

    monkeypatch.setattr(downloads._Download, "receive", received)
    with pytest.raises(
        errors.Crypto, match=r"'model\.sig' in .*: a bundle is a file, and this is a"
    ):
        tensorizer_ops.download(model, tmp_path / "copy", options=signer.options)
    assert not [path for path in (tmp_path / "copy").iterdir() if "model.sig" in path.name]
