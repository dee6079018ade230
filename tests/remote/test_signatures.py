"""Signed models: what loads take, and what they refuse."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from cryptography.hazmat.primitives import serialization

import tensorizer_ops
from local_servers.redis_server import RedisServer, redis_server
from local_servers.s3_server import S3
from local_servers.web import Web
from support.command import run
from support.samples import assert_same
from support.scripted import Asked, scripted
from support.signer import Signer
from tensorizer_ops import TensorDeserializer, _core, checkpoint, errors, trust
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.signed_folder import refuse_changed
from tensorizer_ops._front import serving
from tensorizer_ops.checkpoint import Chain

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


def test_a_deserializer_opens_no_other_signed_model(tmp_path: Path, signer: Signer) -> None:
    for name, value in (("model", 1.0), ("other", 2.0)):
        tensorizer_ops.save(tmp_path / name / "m.tensors", {"w": torch.full((6,), value)})
        tensorizer_ops.sign(tmp_path / name / "m.tensors", key=signer.private)
    file = tmp_path / "model" / "m.tensors"
    given = {"device": "cpu", "dtype": torch.float64, "options": signer.options}
    with TensorDeserializer(file, **given) as tensors:
        (read,) = tensors.read_numpy_arrays()
        assert read[3].tolist() == tensors["w"].tolist() == [1.0] * 6
        for each in (tmp_path / "other").iterdir():
            shutil.copy(each, file.parent)
        for read_again in (
            lambda: list(tensors.read_numpy_arrays()),
            lambda: tensors.to_redis(None, "m"),
        ):
            with pytest.raises(errors.HashMismatch, match="it was replaced"):
                read_again()


def test_a_deserializer_opens_no_other_file_of_the_bundle(tmp_path: Path, signer: Signer) -> None:
    for step in (1, 2):
        tensors = {"w": torch.full((6,), float(step))}
        tensorizer_ops.save(tmp_path / "run" / f"step-{step}.tensors", tensors)
    tensorizer_ops.sign(tmp_path / "run", key=signer.private)
    second = (tmp_path / "run" / "step-2.tensors").rename(tmp_path / "step-2.tensors")
    given = {"device": "cpu", "dtype": torch.float64, "options": signer.options}
    with TensorDeserializer(tmp_path / "run", **given) as tensors:
        assert tensors["w"].tolist() == [1.0] * 6
        (tmp_path / "run" / "step-1.tensors").unlink()
        second.rename(tmp_path / "run" / "step-2.tensors")
        with pytest.raises(errors.HashMismatch, match="it was replaced"):
            list(tensors.read_numpy_arrays())


def test_file_objects_have_no_signature(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    content = (model / "m.tensors").read_bytes()
    for source in (io.BytesIO(content), bytearray(content)):
        with pytest.raises(ValueError, match="option 'trust' is for files with a signature"):
            tensorizer_ops.load(source, options=signer.options)
        with pytest.raises(ValueError, match=r"'subject'.* are for loads with the option 'trust'"):
            tensorizer_ops.load(source, options={"subject": "0" * 64})
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
@pytest.mark.parametrize("make", [os.mkfifo, partial(os.symlink, "/proc/version")])
def test_a_bundle_is_no_pipe(
    model: Path, signer: Signer, name: str, make: Callable[[Path], None]
) -> None:
    """Nobody may ever write to it, or to the log of the kernel, which has a file as well."""
    tensorizer_ops.sign(model, key=signer.private)
    (model / name).unlink(missing_ok=True)
    make(model / name)
    with pytest.raises(errors.Crypto, match=f"{name}': a bundle is a file, and this is empty, or"):
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
    folder = model / "other"
    folder.mkdir()
    shutil.copy(model / "m.tensors", folder)
    tensorizer_ops.sign(folder, key=signer.private)
    folder = folder.rename(model / "other.tensors")
    with pytest.raises(errors.Crypto, match="a folder with the name of a file"):
        read(folder, options=signer.options)
    read(folder)
    read(f"{folder}/", options=signer.options)
    for name in ("Other.TENSORS", "last.ckpt", "m.bin", "m.gguf", "m.tensors. ", "m.json;a"):
        folder = folder.rename(model / name)
        with pytest.raises(errors.Crypto, match="a folder with the name of a file"):
            read(folder, options=signer.options)


@pytest.mark.parametrize("name", ["weights.odd", "model-00001-of-00002", "weights"])
@pytest.mark.parametrize("on_server", [False, True])
def test_a_folder_in_the_place_of_a_file_of_any_name(
    tmp_path: Path, signer: Signer, web: Web, name: str, on_server: bool
) -> None:
    """Another file that was signed together with it is in the folder."""
    folder = web.root / f"any-{name}"
    shutil.rmtree(folder, ignore_errors=True)

    def place(end: str) -> str:
        return web.url(f"{folder.name}/{end}") if on_server else f"{folder}/{end}"

    tensorizer_ops.save(folder / name, {"w": torch.ones(1)}, options={"format": "safetensors"})
    tensorizer_ops.save(folder / "model.safetensors", {"w": torch.zeros(1)})
    options = {**signer.options, "subject": tensorizer_ops.sign(folder, key=signer.private)}
    assert tensorizer_ops.load(place(name), options=options)["w"].tolist() == [1]
    (folder / name).rename(tmp_path / "file")
    (folder / name).mkdir()
    for file in ("model.safetensors", "model.sig"):
        shutil.copy(folder / file, folder / name)
    uses: list[Callable[[], object]] = [
        lambda: tensorizer_ops.load(place(name), options=options),
        lambda: trust.verify(
            place(name), policy=options["trust"], options={"subject": options["subject"]}
        ),
        lambda: tensorizer_ops.download(place(name), tmp_path / "copy", options=options),
    ]
    for use in uses:
        with pytest.raises(errors.Crypto, match="a folder with the name of a file"):
            use()
    assert tensorizer_ops.load(place(f"{name}/"), options=options)["w"].tolist() == [0]


@pytest.mark.parametrize("name", ["m.tensors#1", "m%2Etensors", "M.Tensors?a=b"])
def test_a_folder_in_the_place_of_a_file_on_a_server(
    tmp_path: Path, signer: Signer, web: Web, name: str
) -> None:
    for place in ("", "m.tensors", "M.Tensors"):
        tensorizer_ops.save(web.root / "files" / place / "model.tensors", {"w": torch.ones(3)})
        tensorizer_ops.sign(web.root / "files" / place / "model.tensors", key=signer.private)
    with pytest.raises((FileNotFoundError, PermissionError)):
        tensorizer_ops.load(web.url(f"files/{name}"), options=signer.options)


@pytest.mark.parametrize(
    ("end", "is_file"),
    [
        ("m.tensors", True),
        ("m.tensors%20", True),
        ("m.tensors%2F", True),
        ("m.tensors%2f.%00?a=b", True),
        ("m.tensors;a=b;c=d#e", True),
        ("m.tensors%3Fa=b", True),
        ("m.tensors%252F", True),
        ("tokenizer.model", True),
        ("vocab.txt", True),
        ("m.sft", True),
        ("m.ST", True),
        ("m.tensors.enc", True),
        ("m.tensors.zst", True),
        ("m.tensors/", False),
        ("m.tensors/?a=b%2F", False),
        ("m.tensors/b", False),
        ("m-tensors", False),
    ],
)
def test_names_of_files(end: str, is_file: bool) -> None:
    assert _core.has_name_of_file(f"https://host/{end}") == is_file


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
    for place in (model, model / "m.tensors"):
        how = {"policy": signer.options["trust"], "signature": model / "model.sig"}
        assert trust.verify(place, **how, options={"subject": newer.upper()}).subject == newer
        with pytest.raises(errors.HashMismatch, match=older):
            trust.verify(place, **how, options={"subject": older})
    wrong = ("-o", f"subject={older}", model)
    assert older in run("verify", "--trust", signer.public, *wrong, status=1).stderr
    with pytest.raises(errors.HashMismatch, match=older):
        tensorizer_ops.download(model, model / "copy", options=pinned)
    trust.remove("pinned")
    with pytest.raises(ValueError, match="there is no policy named"):
        tensorizer_ops.load(model / "m.tensors", options={"trust": "named:pinned"})


@pytest.mark.parametrize("pem", [b"-----BEGIN \xff", "-----BEGIN \udcff", Path("key")], ids=repr)
def test_text_that_is_not_unicode(tmp_path: Path, signer: Signer, pem: Any) -> None:
    around = b"Issuer: M\xfcller\n"
    if isinstance(pem, Path):
        (pem := tmp_path / pem).write_bytes(b"-----BEGIN \xff")
    with pytest.raises(errors.InvalidArgument, match="is PEM of another kind"):
        trust.add("odd", keys=[pem])
    with pytest.raises(errors.InvalidArgument, match="there is no certificate"):
        trust.add("odd", roots=[pem], identities=["a"])
    trust.add("odd", keys=[around + signer.public.read_bytes()])
    trust.remove("odd")


def test_a_policy_in_a_file(model: Path, signer: Signer) -> None:
    root = tensorizer_ops.sign(model, key=signer.private)
    policy = signer.folder / "policy.json"
    policy.write_text(json.dumps({"keys": ["release.pub"], "subject": root}))
    options = {"trust": f"file:{policy}"}
    assert tensorizer_ops.load(model / "m.tensors", options=options)
    root_pem = signer.certificates()[1].read_text()
    for text, message in [
        ("{", "JSON is malformed"),
        ("{}", "nobody is trusted to sign"),
        ('{"keys": ["release.pub"], "identities": ["a"]}', "an identity needs a root"),
        (json.dumps({"roots": [root_pem], "identities": ["a\n"]}), "a control character"),
        ('{"keys": [], "key": []}', "the key 'key'"),
        (json.dumps({"keys": ["none.pub"]}), "No such file"),
        (json.dumps({"keys": ["release.pem"]}), "private|PUBLIC KEY"),
        (json.dumps({"keys": ["release.pub"], "at": "soon"}), "the time must be"),
    ]:
        policy.write_text(text)
        with pytest.raises(errors.Error, match=message) as caught:
            tensorizer_ops.load(model / "m.tensors", options=options)
        assert str(signer.folder) in str(caught.value)
        assert "PRIVATE" not in str(caught.value)
    pem = json.dumps({"keys": [signer.public.read_text()]})
    policy.write_text(pem, encoding="utf-8-sig")
    assert tensorizer_ops.load(model / "m.tensors", options=options)
    with pytest.raises(errors.InvalidArgument, match="the policy 'of none': nobody is trusted"):
        trust.add("of none")


def test_names_of_keys_end_where_they_end(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    for policy in (f"file:{signer.public}\0.old", f"file:{signer.public}\0"):
        with pytest.raises(OSError, match="Invalid argument"):
            tensorizer_ops.load(model / "m.tensors", options={"trust": policy})
    with pytest.raises(errors.InvalidArgument, match="has no variable"):
        tensorizer_ops.sign(model, key="env:HOME\0")


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


def test_no_bundle_is_written_through_a_link(model: Path, signer: Signer, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("precious")
    for place, bundle in ((model, "model.sig"), (model / "m.tensors", "m.tensors.sig")):
        (model / bundle).symlink_to(tmp_path / "foreign")
        tensorizer_ops.sign(place, key=signer.private)
        assert not (model / bundle).is_symlink()
    assert (tmp_path / "foreign").read_text() == "precious"


@pytest.mark.parametrize("method", ["shards", "files"])
def test_links_are_not_verified(model: Path, signer: Signer, tmp_path: Path, method: Any) -> None:
    """What they lead to may change later."""
    tensorizer_ops.sign(model, key=signer.private, method=method)
    (tmp_path / "later").touch()
    link = model / "template.jinja"
    link.symlink_to(tmp_path / "later")
    with pytest.raises(errors.Crypto, match=r"not signed, such as 'template\.jinja'"):
        trust.verify(model, policy=signer.options["trust"])
    link.unlink()
    (model / "m.tensors").rename(tmp_path / "m.tensors")
    (model / "m.tensors").symlink_to(tmp_path / "m.tensors")
    verify = {"policy": signer.options["trust"], "ignore_unsigned_files": True}
    with pytest.raises(errors.Crypto, match="is a symbolic link"):
        trust.verify(model, **verify)
    (model / "m.tensors").unlink()
    shutil.copytree(model, model / "sub")
    tensorizer_ops.sign(model, key=signer.private, method=method)
    assert trust.verify(model, **verify)
    (model / "sub").rename(tmp_path / "sub")
    (model / "sub").symlink_to(tmp_path / "sub")
    with pytest.raises(errors.Crypto, match="sub' is a symbolic link"):
        trust.verify(model, **verify)


@pytest.mark.parametrize("method", ["shards", "files"])
def test_empty_files(model: Path, signer: Signer, method: Any) -> None:
    """Shards cannot list them, and libraries would take some: an empty template is one, too."""
    harmless = [".gitkeep", "code/__init__.py", ".cache/huggingface/config.json.lock"]
    (model / "code").mkdir()
    (model / "code" / "a.py").write_text("pass")
    (model / ".cache" / "huggingface" / "download").mkdir(parents=True)
    for name in harmless:
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).touch()
    tensorizer_ops.sign(model, key=signer.private, method=method)
    trust.verify(model, policy=signer.options["trust"])
    for name in (
        ".tokenizer.model.x",
        "additional_chat_templates/.jinja",
        "chat_template.jinja",
        "code/config.json",
        "generation_config.json",
        "tekken.json/__init__.py",
    ):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).touch()
        with pytest.raises(errors.Crypto, match=f"not signed, such as '{name}'"):
            trust.verify(model, policy=signer.options["trust"])
        if method == "files":
            tensorizer_ops.sign(model, key=signer.private, method=method)
            trust.verify(model, policy=signer.options["trust"])
        else:
            with pytest.raises(ValueError, match=f"{name}' is empty, and has no shards to sign"):
                tensorizer_ops.sign(model, key=signer.private)
            (model / name).unlink()
            if "/" in name and not any((model / name).parent.iterdir()):
                (model / name).parent.rmdir()
    for name in harmless:
        (model / name).write_text("not empty")
    if method == "shards":
        with pytest.raises(errors.Crypto, match="files that are not signed"):
            trust.verify(model, policy=signer.options["trust"])


@pytest.mark.parametrize("place", [".git", ".github", ".gitignore", ".cache"])
@pytest.mark.parametrize("name", ["consolidated.safetensors", "tokenizer.model.v3"])
def test_what_tools_keep(model: Path, signer: Signer, place: str, name: str) -> None:
    """Servers find weights in every folder, and take another tokenizer for some of them."""
    tensorizer_ops.sign(model, key=signer.private)
    found = model / place / "a" / name
    found.parent.mkdir(parents=True)
    (model / place / "a.lock").touch()
    trust.verify(model, policy=signer.options["trust"], ignore_unsigned_files=True)
    for kind in (Path.touch, Path.mkdir):
        kind(found)
        with pytest.raises(errors.Crypto, match=f"not signed, such as '{place}/a/{name}"):
            trust.verify(model, policy=signer.options["trust"])
        with pytest.raises(errors.Crypto, match=f"not signed, such as '{place}/a/{name}"):
            refuse_changed(Folder(model, signer.options), [])
        with pytest.raises(ValueError, match=f"{name}/?' is "):
            tensorizer_ops.sign(model, key=signer.private)
        found.unlink() if kind is Path.touch else found.rmdir()
    trust.verify(model, policy=signer.options["trust"])


@pytest.mark.parametrize("name", ["tekken.json", "code/nested"])
def test_empty_folders(model: Path, signer: Signer, name: str) -> None:
    """Transformers asks which names there are, and takes a folder for a file."""
    tensorizer_ops.sign(model, key=signer.private)
    (model / name).mkdir(parents=True)
    with pytest.raises(errors.Crypto, match=f"not signed, such as '{name}/'"):
        trust.verify(model, policy=signer.options["trust"])
    with pytest.raises(ValueError, match=f"{name}/' is empty"):
        tensorizer_ops.sign(model, key=signer.private)
    tensorizer_ops.sign(model, key=signer.private, ignore=[name])
    trust.verify(model, policy=signer.options["trust"])


def test_links_are_not_signed(model: Path, signer: Signer) -> None:
    (model / "link.json").symlink_to(model / "config.json")
    for place in (model, model / "link.json"):
        with pytest.raises(ValueError, match=r"link\.json' is a symbolic link"):
            tensorizer_ops.sign(place, key=signer.private)
    tensorizer_ops.sign(model, key=signer.private, ignore=["link.json"])


def test_a_folder_that_was_put_in_the_place_of_a_file_is_not_signed(
    model: Path, signer: Signer, tmp_path: Path
) -> None:
    (tmp_path / "shared.tensors").symlink_to(model)
    with pytest.raises(ValueError, match=r"shared\.tensors' is a folder with the name of a file"):
        tensorizer_ops.sign(tmp_path / "shared.tensors", key=signer.private)
    assert not (model / "model.sig").exists()


@pytest.mark.parametrize("name", [".", "..", "../model/config.json", "/config.json", ""])
def test_names_to_ignore_that_are_not_in_the_model(model: Path, signer: Signer, name: str) -> None:
    with pytest.raises(ValueError, match=f"ignore has '{re.escape(name)}', which is no file"):
        tensorizer_ops.sign(model, key=signer.private, ignore=["config.json", name])


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


def test_a_folder_whose_name_is_not_utf_8(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    folder = model.rename(os.fsdecode(os.fsencode(model.parent) + b"/\xff"))
    found = trust.verify(folder, policy=signer.options["trust"])
    assert "m.tensors" in found.files
    tensorizer_ops.download(folder, model, options=signer.options)
    assert trust.verify(model, policy=signer.options["trust"]) == found
    for place in (folder, (folder / "m.tensors").rename(folder / os.fsdecode(b"\xff.tensors"))):
        with pytest.raises(ValueError, match="its name is not UTF-8"):
            tensorizer_ops.sign(place, key=signer.private)


def test_commands(model: Path, signer: Signer) -> None:
    root = run("sign", model, "--key-file", signer.private).stdout.strip()
    done = run("verify", "--trust", signer.public, model)
    assert f"root digest {root}" in done.stdout
    (model / "config.json").write_text("[]")
    assert "config.json" in run("verify", "--trust", signer.public, model, status=1).stderr
    trusting = ("verify", "-o", f"trust=file:{signer.public}")
    assert "config.json" in run(*trusting, model, status=1).stderr
    run(*trusting, model / "m.tensors")
    bundle = (model / "model.sig").rename(model.parent / "elsewhere.sig")
    run(*trusting, "--signature", bundle, "-o", f"signed_folder={model}", model / "m.tensors")
    bundle.write_text("{}")
    run(*trusting, "--signature", bundle, model / "m.tensors", status=1)
    assert (
        "--signature is for --trust" in run("verify", "--signature", bundle, model, status=2).stderr
    )
    run(*trusting, model / "m.tensors", status=1)


def test_a_file_on_a_server_is_verified(model: Path, signer: Signer, web: Web) -> None:
    for name in ("last.ckpt", "m.pth", "m"):
        shutil.copy(model / "m.tensors", web.root / name)
        tensorizer_ops.sign(web.root / name, key=signer.private)
        assert "OK" in run("verify", "--trust", signer.public, web.url(name)).stdout
        trusting = ("verify", "-o", f"trust=file:{signer.public}", web.url(name))
        if name == "m":  # what has such a name is a folder, whatever the server says
            assert "m/model.sig' answers with status 404" in run(*trusting, status=3).stderr
        else:
            assert "OK" in run(*trusting).stdout


def test_commands_show_no_secrets(model: Path, signer: Signer, web: Web) -> None:
    shutil.copytree(model, web.root / "shown")
    tensorizer_ops.sign(web.root / "shown", key=signer.private)
    uri = web.url("shown/m.tensors?X-Amz-Signature=hunter22").replace("://", "://me:hunter22@")
    done = run("verify", "--trust", signer.public, uri)
    assert "m.tensors?...: 1 file, signed by" in done.stdout
    assert "hunter22" not in done.stdout + done.stderr


def test_errors_show_no_parameters_of_a_key(
    signer: Signer, tensors: dict[str, torch.Tensor], s3: S3
) -> None:
    folder = s3.root / "bucket" / "keys"
    tensorizer_ops.save(folder / "m.tensors?X-Amz-Signature=hunter22", tensors)
    uri = "s3://bucket/keys/m.tensors?X-Amz-Signature=hunter22"
    for said in ("neither 'm.tensors?...' nor", "has no 'm.tensors?...' among its 1 files"):
        with pytest.raises(errors.Crypto, match=re.escape(said)) as error:
            tensorizer_ops.load(uri, options=s3.options() | signer.options)
        assert "hunter22" not in str(error.value)
        tensorizer_ops.save(folder / "others" / "other.tensors", tensors)
        tensorizer_ops.sign(folder / "others", key=signer.private)
        (folder / "others" / "model.sig").rename(folder / "model.sig")


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
        uri, bundle = server.url("m.tensors"), other.url("m.tensors.sig")
        tensorizer_ops.load(uri, options=signer.options | given | {"signature": bundle})
        trust.verify(uri, policy=signer.options["trust"], signature=bundle, options=given)
    for asked in other.asked:
        assert [name for name in secrets if name in asked.headers] == sent
    assert len(other.asked) > 1
    assert all(name in asked.headers for name in secrets for asked in server.asked)


def test_a_store(signer: Signer, tensors: dict[str, torch.Tensor], s3: S3) -> None:
    uri, options = "s3://bucket/signed/m.tensors", s3.options()
    tensorizer_ops.save(uri, tensors, options=options)
    root = tensorizer_ops.sign(uri, key=signer.private, options=options)
    found = trust.verify(uri, policy=signer.options["trust"], options=options)
    assert (found.subject, found.files) == (root, ["m.tensors"])
    assert_same(tensorizer_ops.load(uri, options=options | signer.options), tensors)


@pytest.mark.parametrize("place", ["what?/x", "exp#1/x", "a?b=1"])
def test_keys_with_the_characters_of_parameters(
    signer: Signer, tensors: dict[str, torch.Tensor], s3: S3, tmp_path: Path, place: str
) -> None:
    folder, options = f"s3://bucket/{place}/folder", s3.options()
    trusted = options | signer.options
    uri = f"{folder}/model.tensors"
    tensorizer_ops.save(uri, tensors, options=options)
    with pytest.raises(errors.Crypto, match=re.escape(repr(uri))):
        tensorizer_ops.load(uri, options=trusted)
    tensorizer_ops.sign(uri, key=signer.private, options=options)
    found = trust.verify(uri, policy=signer.options["trust"], options=options)
    assert found.files == ["model.tensors"]
    for model in (uri, folder):
        assert_same(tensorizer_ops.load(model, options=trusted), tensors)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    reader = checkpoint.HuggingFaceStorageReader(uri, options=trusted)
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    assert_same(loaded, tensors)
    words = [word for pair in options.items() for word in ("-o", "=".join(pair))]
    run("copy", *words, uri, tmp_path)
    assert (tmp_path / "model.tensors").exists()


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


@pytest.mark.parametrize(
    ("parameters", "folder"),
    [
        ("prefix=m.tensors", ""),
        ("prefix=a%2Fm%2Etensors&db=1", "?prefix=a"),
        ("db=1&prefix=a/m.tensors", "?db=1&prefix=a%2F"),
    ],
)
def test_a_file_behind_a_socket(
    tmp_path: Path,
    signer: Signer,
    tensors: dict[str, torch.Tensor],
    parameters: str,
    folder: str,
) -> None:
    """Its name is that in the prefix."""
    socket, bundle = tmp_path / "r.sock", tmp_path / "bundle.sig"
    given: dict[str, str] = {**signer.options, "signature": str(bundle)}
    with redis_server(tmp_path, "--unixsocket", str(socket)):
        uri = f"unix://{socket}?{parameters}"
        tensorizer_ops.save(uri, tensors)
        tensorizer_ops.sign(uri, key=signer.private, signature=bundle)
        assert_same(tensorizer_ops.load(uri, options=given), tensors)
        found = trust.verify(uri, policy=signer.options["trust"], signature=bundle)
        assert found.files == ["m.tensors"]
        counted = given | {"signed_folder": f"unix://{socket}{folder}"}
        assert_same(tensorizer_ops.load(uri, options=counted), tensors)
        with pytest.raises(errors.Crypto, match="not in the folder that was signed"):
            tensorizer_ops.load(uri, options=given | {"signed_folder": "unix:///tmp?prefix=b"})
        other = f"unix://{socket}?prefix=other.tensors"
        tensorizer_ops.save(other, tensors)
        with pytest.raises(errors.Crypto, match="it is not signed"):
            tensorizer_ops.load(other, options=given)


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


def test_a_folder_elsewhere_whose_uri_has_a_password(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    place = {"signature": str(model / "model.sig"), "signed_folder": "s3://key:hunter2@bucket/a"}
    with pytest.raises(errors.Crypto, match="not in the folder that was signed") as caught:
        tensorizer_ops.load(model / "m.tensors", options=signer.options | place)
    assert "hunter2" not in str(caught.value)
    assert _core.signed_path("redis://key:hunter2@host/a") == "redis://host/a"


@pytest.mark.parametrize("host", ["host:99999", "a b"])
def test_a_password_that_is_escaped_stays_hidden(model: Path, signer: Signer, host: str) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    url = f"https://me:S3C%40R%2F3T%40PW@{host}/release"
    uses: list[Callable[[], object]] = [
        lambda: tensorizer_ops.load(
            model / "m.tensors",
            options={**signer.options, "signature": str(model / "model.sig"), "signed_folder": url},
        ),
        lambda: tensorizer_ops.load(f"{url}/model.json", options=signer.options),
        lambda: tensorizer_ops.checkpoint.load(f"{url}/model.json", options=signer.options),
        lambda: trust.verify(f"{url}/model.json", policy=signer.options["trust"]),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"host|a b") as caught:
            use()
        assert not re.search("S3C|3T|PW", str(caught.value))


def test_a_changed_file_on_a_server_without_ranges(
    tmp_path: Path, signer: Signer, web: Web
) -> None:
    """It is known to be changed, although it cannot be asked for again."""
    file = web.root / "whole.tensors"
    tensorizer_ops.save(file, {"w": torch.ones(5000)})
    tensorizer_ops.sign(file, key=signer.private)
    tensorizer_ops.save(file, {"w": torch.zeros(5000)})
    with pytest.raises(errors.HashMismatch, match="bytes from 0 to"):
        tensorizer_ops.load(web.url("no-ranges/whole.tensors"), options=signer.options)


def test_an_index_is_verified_with_its_files(model: Path, signer: Signer) -> None:
    (model / "m.safetensors.index.json").rename(model / "index")
    tensorizer_ops.sign(model, key=signer.private)
    with pytest.raises(ValueError, match="the index of a model in several files: give their"):
        trust.verify(model / "index", policy=signer.options["trust"])
    assert "index" in trust.verify(model, policy=signer.options["trust"]).files


@pytest.mark.parametrize("before", [0, 9_000_000])
def test_an_index_whose_key_is_escaped(model: Path, signer: Signer, before: int) -> None:
    index = model / "m.json"
    text = (model / "m.safetensors.index.json").read_bytes()
    key = b'"a": "' + before * b"b" + rb'", "weight\u005fmap"'
    index.write_bytes(text.replace(b'"weight_map"', key))
    tensorizer_ops.sign(index, key=signer.private)
    with pytest.raises(ValueError, match="index of a model in several files"):
        trust.verify(index, policy=signer.options["trust"])
    (model / "config.json").write_text('{"a": 1}')
    tensorizer_ops.sign(model / "config.json", key=signer.private)
    trust.verify(model / "config.json", policy=signer.options["trust"])


def test_a_signature_that_is_empty(model: Path, signer: Signer) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    for file in (model, model / "m.tensors"):
        with pytest.raises(ValueError, match="signature is empty"):
            trust.verify(file, policy=signer.options["trust"], signature="")
        with pytest.raises(ValueError, match="signature is empty"):
            tensorizer_ops.sign(file, key=signer.private, signature="")


@pytest.mark.parametrize("option", ["trust", "signature"])
def test_options_that_verify_has_as_arguments(model: Path, signer: Signer, option: str) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    options = {option: signer.options["trust"]}
    with pytest.raises(ValueError, match=f"option '{option}' is for loads: give"):
        trust.verify(model, policy=signer.options["trust"], options=options)


def test_folders_that_are_nested_deeply(tmp_path: Path, signer: Signer) -> None:
    """Deeper than functions can be."""
    top = folder = tmp_path / "top"
    for _ in range(1200):
        folder.mkdir()
        folder = folder / "d"
    file = folder.with_suffix(".tensors")
    tensorizer_ops.save(file, {"w": torch.ones(3)})
    tensorizer_ops.sign(top, key=signer.private)
    found = trust.verify(top, policy=signer.options["trust"])
    assert [name[-9:] for name in found.files] == ["d.tensors"]
    file.unlink()
    while (folder := folder.parent) != tmp_path:  # which pytest could not do
        shutil.rmtree(folder)


def test_folders_whose_paths_are_too_long(
    model: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorizer_ops.sign(model, key=signer.private)
    monkeypatch.chdir(model)
    for _ in range(20):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    policy = signer.options["trust"]
    for call in (
        lambda: trust.verify(model, policy=policy),
        lambda: tensorizer_ops.sign(model, key=signer.private),
        lambda: refuse_changed(Folder(model, signer.options), []),
        lambda: tensorizer_ops.upload(model, f"{model}-copy"),
    ):
        with pytest.raises(errors.FileError, match=r"/dddd.*File name too long"):
            call()
    os.chdir(model)
    subprocess.run(["rm", "-r", "d" * 250], check=True)  # which pytest could not do


def _checkpoint_reader(folder: Path, options: dict[str, str]) -> Callable[[], object]:
    reader = checkpoint.TensorizerStorageReader(folder, options=options)
    return lambda: dcp.load({"w": torch.zeros(3)}, storage_reader=reader, no_dist=True)


def _plugin(folder: Path, options: dict[str, str]) -> Callable[[], object]:
    pytest.importorskip("pytorch_lightning")
    from tensorizer_ops.lightning import TensorizerCheckpointIO

    plugin = TensorizerCheckpointIO(options=options)
    return lambda: plugin.load_checkpoint(folder / "m.ckpt")


def _deserializer(folder: Path, options: dict[str, str]) -> Callable[[], object]:
    found = TensorDeserializer(folder / "m.ckpt", device="cpu", options=options)
    redis = types.SimpleNamespace(exists=lambda key: False, set=lambda key, value: None)
    return lambda: found.to_redis(redis, "m")  # opens the file again


def _class(folder: Path, options: dict[str, str]) -> Callable[[], object]:
    reader = torch.classes.tensorizer.Reader(str(folder / "m.ckpt"), options)
    return lambda: reader.names()


def _served(folder: Path, options: dict[str, str]) -> Callable[[], object]:
    settings = serving.Settings({"options": options})
    return lambda: [*serving.weights(settings, str(folder / "m.ckpt"))]


def _follower(folder: Path, options: dict[str, str]) -> Callable[[], object]:
    versions = tensorizer_ops.follow(folder / "versions", {}, patience=0, options=options)
    return lambda: [*versions]


@pytest.mark.parametrize(
    "made",
    [
        lambda folder, options: tensorizer_ops.Reader(folder / "m.ckpt", options=options).load,
        lambda folder, options: Chain(folder / "chain", options=options).load,
        _checkpoint_reader,
        _plugin,
        _deserializer,
        _class,
        _served,
        _follower,
    ],
)
def test_whom_to_trust_is_found_where_options_were_given(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    """And not in the working directory that the program has when it opens a file."""
    state = {"w": torch.ones(3)}
    folder = tmp_path / "m"
    dcp.save(state, storage_writer=checkpoint.TensorizerStorageWriter(folder), no_dist=True)
    tensorizer_ops.sign(folder, key=signer.private)
    checkpoint.save(folder / "m.ckpt", state, options={"format": "tensors"})
    tensorizer_ops.sign(folder / "m.ckpt", key=signer.private)
    Chain(folder / "chain", sign=signer.private).save(1, state)
    with tensorizer_ops.Publisher(folder / "versions", sign=signer.private) as publisher:
        publisher.publish(state, step=1)
    monkeypatch.chdir(tmp_path)
    options = {"trust": f"file:{signer.public.relative_to(tmp_path)}"}
    load = made(folder, options)
    Signer(folder / "keys")  # of somebody else
    monkeypatch.chdir(folder)
    load()
