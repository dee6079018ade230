"""Chains of checkpoints whose steps are signed, and what is done to those that are not."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure, azure_server
from local_servers.s3_server import S3
from support.command import run
from support.scripted import Asked, scripted
from support.signer import Signer
from tensorizer_ops import checkpoint, errors
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._chain.listing import Entry, Listing
from tensorizer_ops._chain.store import Store
from tensorizer_ops._dcp import one_process, storage
from tensorizer_ops._dcp.steps import STEP_KEY, step_named
from tensorizer_ops.checkpoint import Chain

KEY = "tensorizer_ops.chain"
LISTS = ("chain.tensors", "chain-copy.tensors")


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.full((500,), float(step)), "step": step}


def forge(root: Path, change: Any) -> None:
    """Changes the list of steps, as somebody without the key can."""
    listed = json.loads(tensorizer_ops.metadata(root / LISTS[0])[KEY])
    change(listed["saved"])
    for name in LISTS:
        tensorizer_ops.save(root / name, {}, metadata={KEY: json.dumps(listed)})


@pytest.fixture(scope="module")
def azure() -> Iterator[Azure]:
    with azure_server() as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def signed(root: Path, signer: Signer, *steps: int, **how: Any) -> Chain:
    chain = Chain(root, sign=signer.private, options=signer.options, **({"grace": 0} | how))
    for step in steps:
        chain.save(step, state_of(step))
    return chain


def test_signed_steps(root: Path, signer: Signer) -> None:
    chain = signed(root, signer, 1, 2, keep=2)
    assert chain.load().state["step"] == 2
    state = state_of(0)
    assert chain.load(state, step=1).step == 1
    assert (state["w"] == 1).all()
    chain.save_async(3, state_of(3)).result()
    assert chain.load(state).step == 3
    assert Chain(root).load().step == 3  # who trusts nobody can load it, too
    for step in chain.steps():
        assert checkpoint.load(step.uri, options=signer.options)["step"] == step.step
    run("verify", "-o", f"trust=file:{signer.public}", root)


def test_a_relative_path_of_the_key(
    root: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(signer.private, tmp_path / "key")
    monkeypatch.chdir(tmp_path)
    chain = Chain(root, sign="file:key", options=signer.options)
    publisher = tensorizer_ops.Publisher(tmp_path / "versions", sign=Path("key"))
    monkeypatch.chdir("/")
    chain.save(1, state_of(1))
    assert chain.load().step == 1
    with publisher:
        publisher.publish({"w": torch.ones(3)}, step=1)
    (file,) = (tmp_path / "versions").glob("[0-9]*.tensors")
    assert tensorizer_ops.load(file, options=signer.options)["w"].sum() == 3


def test_signatures_go_with_their_steps(root: Path, signer: Signer) -> None:
    signed(root, signer, 1, 2, 3, keep=1)
    signed(root, signer, 4)
    signatures = {path.name.split("-")[1] for path in root.glob("step-*.sig")}
    assert signatures == {path.name.split("-")[1] for path in root.glob("step-*.tensors")}
    assert signatures == {"3", "4"}


@pytest.mark.parametrize("other", ["nobody", "somebody else"])
def test_steps_of_others_are_passed_over(
    root: Path, signer: Signer, tmp_path: Path, other: str
) -> None:
    signed(root, signer, 1)
    sign = None if other == "nobody" else Signer(tmp_path / "others").private
    Chain(root, sign=sign).save(2, state_of(2))
    for state in (None, state_of(0)):
        found = Chain(root, options=signer.options).load(state)
        assert found.step == found.state["step"] == 1
        assert [each.step for each in found.passed_over] == [2]
        assert "step-2-" in found.passed_over[0].reason
    with pytest.raises(errors.InvalidFormat, match=r"step 2 .* is damaged: .*step-2-"):
        Chain(root, options=signer.options).load(step=2)
    done = run("verify", "-o", f"trust=file:{signer.public}", root, status=1)
    assert "step-2-" in done.stderr


def test_lists_of_nothing(root: Path, signer: Signer) -> None:
    chain = signed(root, signer, 1)

    def longer(saved: list[dict[str, Any]]) -> None:
        for step in range(2, 300):
            saved.append(saved[0] | {"step": step, "name": f"step-{step}-{step:016x}"})

    forge(root, longer)
    with pytest.raises(errors.InvalidFormat, match="none of the last 100 steps"):
        chain.load()
    forge(root, list.clear)
    done = run("verify", "-o", f"trust=file:{signer.public}", root, status=1)
    assert "has no steps" in done.stderr


def test_lists_that_are_forged(root: Path, signer: Signer) -> None:
    chain = signed(root, signer, 1, 2)

    def newer(saved: list[dict[str, Any]]) -> None:
        saved.append(saved[0] | {"step": 3})

    copy = {name: (root / name).read_bytes() for name in LISTS}
    forge(root, newer)
    with pytest.raises(errors.InvalidFormat, match="the list of steps is damaged"):
        chain.load()
    for name, content in copy.items():
        (root / name).write_bytes(content)

    # The name of a file is part of what is signed, and the name of the step is in it.
    older = json.loads(tensorizer_ops.metadata(root / LISTS[0])[KEY])["saved"][0]["name"]
    renamed = "step-3" + older[6:]
    for end in (".tensors", ".tensors.sig"):
        shutil.copy(root / (older + end), root / (renamed + end))
    forge(root, lambda saved: saved.append(saved[0] | {"step": 3, "name": renamed}))
    found = chain.load()
    assert found.step == 2
    assert "has no 'step-3-" in found.passed_over[0].reason


def test_a_chain_beside_a_model(root: Path, signer: Signer) -> None:
    """It does not hide what else is in the folder, which may have been changed."""
    command = ("verify", "-o", f"trust=file:{signer.public}", root)
    tensorizer_ops.save(root / "model.safetensors", {"w": torch.ones(3)})
    tensorizer_ops.sign(root, key=signer.private)
    assert "run: 1 file, signed by" in run(*command).stdout
    signed(root, signer, 1)
    assert "files that are not signed, such as" in run(*command, status=1).stderr


def test_a_checkpoint_beside_a_model(root: Path, signer: Signer) -> None:
    writer = checkpoint.TensorizerStorageWriter(root)
    torch.distributed.checkpoint.save(state_of(1), storage_writer=writer, no_dist=True)
    tensorizer_ops.sign(root, key=signer.private)
    command = ("verify", "-o", f"trust=file:{signer.public}", root)
    assert "checkpoint.tensors: OK" in run(*command).stdout
    tensorizer_ops.save(root / "model.safetensors", {"w": torch.ones(3)})
    assert "such as 'model.safetensors'" in run(*command, status=1).stderr


def test_checkpoints_whose_files_have_their_own_signatures(root: Path, signer: Signer) -> None:
    """They hide no model that was changed, and no other file in their place hides them."""
    writer = checkpoint.TensorizerStorageWriter(root)
    writer.sign = signer.private
    torch.distributed.checkpoint.save(state_of(1), storage_writer=writer, no_dist=True)
    command = ("verify", "-o", f"trust=file:{signer.public}", root)
    assert "checkpoint.tensors: OK" in run(*command).stdout
    model = root / "model.safetensors"
    tensorizer_ops.save(model, {"w": torch.ones(3)})
    tensorizer_ops.sign(model, key=signer.private)
    assert "model.safetensors: OK" in run(*command).stdout
    (root / "config.json").touch()
    assert "files that are not signed, such as 'config.json'" in run(*command, status=1).stderr
    (root / "config.json").unlink()
    (root / "checkpoint.tensors").unlink()
    (root / "checkpoint.tensors").symlink_to("checkpoint.tensors")
    assert "checkpoint.tensors" in run(*command, status=3).stderr
    (root / "checkpoint.tensors").unlink()
    tensorizer_ops.save(model, {"w": torch.zeros(3)})
    run(*command, status=1)


def test_checkpoints_whose_files_were_signed_one_by_one(root: Path, signer: Signer) -> None:
    writer = checkpoint.TensorizerStorageWriter(root)
    torch.distributed.checkpoint.save(state_of(1), storage_writer=writer, no_dist=True)
    for file in [*root.iterdir()]:
        tensorizer_ops.sign(file, key=signer.private)
    refused = "does not list what is signed of 'rank-0-"
    assert refused in run("verify", "-o", f"trust=file:{signer.public}", root, status=1).stderr
    with pytest.raises(errors.Crypto, match=refused):
        checkpoint.load(root, options=signer.options)


@pytest.mark.parametrize("what", ["checkpoint", "chain"])
def test_a_file_of_another_signed_checkpoint(
    root: Path, signer: Signer, tmp_path: Path, what: str
) -> None:
    """The bundle of a folder does not take the place of the signature that the list names."""
    (entry,) = signed_of_ranks(root, signer, 1)
    (file,) = (root / entry.name).glob("rank-*.tensors")
    place = root if what == "chain" else root / entry.name
    command = ("verify", "-o", f"trust=file:{signer.public}", place)
    run(*command)
    other = tmp_path / "other"
    metadata = tensorizer_ops.metadata(file)
    changed = {name: tensor + 1 for name, tensor in tensorizer_ops.load(file, copy=True).items()}
    tensorizer_ops.save(other / file.name, changed, metadata=metadata)
    tensorizer_ops.sign(other, key=signer.private)
    shutil.copytree(other, file.parent, dirs_exist_ok=True)
    file.with_name(file.name + ".sig").unlink()
    assert f"{file.name}.sig" in run(*command, status=1).stderr


def test_a_step_that_is_replaced_after_it_was_verified(
    root: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another checkpoint of the same signer is not loaded as that step."""
    chain = signed(root, signer, 1, 2, keep=2)
    writer = checkpoint.TensorizerStorageWriter(tmp_path / "other")
    writer.sign = signer.private
    torch.distributed.checkpoint.save(state_of(7), storage_writer=writer, no_dist=True)
    verify = Store.verify

    def replace_after(store: Store, entry: Any, *how: Any) -> None:
        verify(store, entry, *how)
        if entry.step == 2:
            (root / entry.file).unlink()
            shutil.copytree(tmp_path / "other", root / entry.file)

    monkeypatch.setattr(Store, "verify", replace_after)
    found = chain.load(state_of(0))
    assert found.step == found.state["step"] == 1
    assert "a folder with the name of a file" in found.passed_over[0].reason


def test_bytes_that_were_changed(root: Path, signer: Signer) -> None:
    signed(root, signer, 1, 2)
    (newest,) = root.glob("step-2-????????????????.tensors")
    newest.write_bytes(newest.read_bytes() + bytes(10))
    found = Chain(root, options=signer.options).load()
    assert found.step == 1
    assert "signed" in found.passed_over[0].reason


def test_a_save_that_fails_leaves_nothing(root: Path, signer: Signer, tmp_path: Path) -> None:
    chain = signed(root, signer, 1)
    with pytest.raises(TypeError):
        chain.save(2, {"bad": object()})
    with pytest.raises(TypeError):
        chain.save_async(2, {"bad": object()})
    with pytest.raises(FileNotFoundError, match=r"none\.pem"):
        Chain(root, sign=tmp_path / "none.pem").save(2, state_of(2))
    assert chain.load().step == 1
    assert not list(root.glob("step-2-*"))


@contextmanager
def served(root: Path, replaced: Callable[[str, int], bytes | None]) -> Iterator[str]:
    """Serve a folder. For the so many-th request of a file, something else may be in its place."""
    counts: dict[str, int] = {}

    def answer(asked: Asked) -> None:
        name = asked.path.removeprefix("/run/")
        counts[name] = counts.get(name, 0) + 1
        content = replaced(name, counts[name])
        if content is None and (root / name).is_file():
            content = (root / name).read_bytes()
        if content:
            asked.say_range(content)
        else:
            asked.say("404 Not Found")

    with scripted(answer) as server:
        yield server.url("run")


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def signed_of_ranks(root: Path, signer: Signer, *steps: int) -> list[Entry]:
    entries = [Entry(step, f"step-{step}-{step:016x}", 1, 0.0) for step in steps]
    for entry in entries:
        metadata = {STEP_KEY: entry.name}
        writer = checkpoint.TensorizerStorageWriter(root / entry.name, metadata=metadata)
        writer.file_id, writer.sign = entry.file_id, signer.private
        state = state_of(entry.step)
        torch.distributed.checkpoint.save(state, storage_writer=writer, no_dist=True)
    Store.at(root, None).write(Listing(saved=entries))
    return entries


def one_in_the_place_of_two(root: Path, signer: Signer) -> Entry:
    """Save two steps, put the first one in the place of the second, and return that."""
    one, two = signed_of_ranks(root, signer, 1, 2)
    shutil.rmtree(root / two.name)
    shutil.copytree(root / one.name, root / two.name)
    return two


@pytest.mark.parametrize("damaged", range(5))
def test_lists_that_are_whole_only_later(root: Path, signer: Signer, damaged: int) -> None:
    """A verification does not end well without the steps."""
    signed(root, signer, 1)
    change(next(root.glob("step-1-*.tensors")))
    asked: list[str] = []

    def replaced(name: str, count: int) -> bytes | None:
        asked.extend([name] if name in LISTS else [])
        return bytes(500) if name in LISTS and len(asked) <= damaged else None

    with served(root, replaced) as url:
        run("verify", "-o", f"trust=file:{signer.public}", url, status=1)


@pytest.mark.parametrize("missing", range(5))
def test_a_checkpoint_whose_signature_is_there_only_later(
    root: Path, signer: Signer, missing: int
) -> None:
    writer = checkpoint.TensorizerStorageWriter(root)
    torch.distributed.checkpoint.save(state_of(1), storage_writer=writer, no_dist=True)
    tensorizer_ops.sign(root, key=signer.private)
    change(next(root.glob("rank-*.tensors")))

    def replaced(name: str, count: int) -> bytes | None:
        return b"" if name == "model.sig" and count <= missing else None

    with served(root, replaced) as url:
        run("verify", "-o", f"trust=file:{signer.public}", url, status=1)


def test_a_step_of_ranks_in_the_place_of_another(
    root: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Step.uri`` is the name of a folder, which no signature of the files in it has."""
    two = one_in_the_place_of_two(root, signer)
    trusted = {"options": signer.options}
    step = Chain(root, **trusted).steps()[-1]
    assert step.uri.endswith(two.name)
    why = "is not what was saved as 'step-2-"
    with pytest.raises(errors.InvalidFormat, match=why):
        checkpoint.consolidate(step.uri, root / "all.tensors", source_options=signer.options)
    monkeypatch.chdir(root / two.name)
    for place in (step.uri, "."):
        with pytest.raises(errors.InvalidFormat, match=why):
            checkpoint.load(place, **trusted)
    done = run("verify", "-o", f"trust=file:{signer.public}", step.uri, status=1)
    assert why in done.stderr
    (root / two.name).rename(root / "best")
    assert checkpoint.load(root / "best", **trusted)["step"] == 1


@pytest.mark.parametrize("place", ["exp#1/run", "what?/run", "a?b#c", "a%3Fb"])
@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_a_step_of_ranks_in_the_place_of_another_in_a_store(
    root: Path, signer: Signer, kind: str, place: str, request: pytest.FixtureRequest
) -> None:
    """Its keys are taken as they are."""
    store: S3 | Azure = request.getfixturevalue(kind)
    one, two = signed_of_ranks(root, signer, 1, 2)
    uri, trusted = store.uri(f"{place}/{root.parent.name}"), store.options() | signer.options
    folder = Folder(uri, store.options())

    for file in root.rglob("*.*"):
        if file.is_file():
            folder.write(str(file.relative_to(root)), str(file))
    chain = Chain(uri, options=trusted)
    step = chain.steps()[-1]
    assert step.uri == f"{uri}/{two.name}"
    assert chain.load().step == checkpoint.load(step.uri, options=trusted)["step"] == 2
    options = [word for pair in trusted.items() for word in ("-o", "=".join(pair))]
    assert f"{uri}/{two.name}: OK" in run("verify", *options, uri).stdout
    for file in (root / two.name).iterdir():
        folder.remove(f"{two.name}/{file.name}")
    for file in (root / one.name).iterdir():
        folder.write(f"{two.name}/{file.name}", str(file))
    for state in (None, state_of(0)):
        assert chain.load(state).step == 1
        with pytest.raises(errors.InvalidFormat, match=f"{re.escape(place)}/.* as 'step-2-"):
            checkpoint.load(step.uri, state, options=trusted)
    with pytest.raises(errors.InvalidFormat, match="is not what was saved as 'step-2-"):
        checkpoint.consolidate(step.uri, root / "all.tensors", source_options=trusted)
    for where in (uri, step.uri):
        run("verify", *options, where, status=1)


@pytest.mark.parametrize(
    "uri",
    [
        "/a/NAME",
        "file:///a?b/NAME",
        "s3://b/exp#1/NAME",
        "gs://b/what?/NAME/",
        "az://a/c/#?/NAME",
        "hf://o/m/a?b/NAME",
        "redis://h/a/NAME",
        "unix:///s?db=1&prefix=run/NAME",
        "unix:///s?prefix=run%2FNAME",
        "https://h/a%2FNAME?x=1",
        "https://h/a%3F/NAME/#y",
        "https://h/%73tep-2-0000000000000002",
        "https://h/NAME/%2e",
        "https://h/NAME/x/%2e%2E/;v=1",
        "https://h/NAME;v=1/",
        "https://h/NAME%20.%5C./",
    ],
)
def test_names_of_steps_in_uris(uri: str) -> None:
    name = "step-2-0000000000000002"
    assert step_named(uri.replace("NAME", name)) == name
    assert step_named(uri.replace("NAME", "step-2") + "0") is None


def test_a_step_that_is_replaced_by_another_after_its_name_was_checked(
    root: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name in the list of the chain is compared once more, whatever the URI says."""
    one_in_the_place_of_two(root, signer)
    monkeypatch.setattr("tensorizer_ops._dcp.storage.step_named", lambda uri: None)
    monkeypatch.setattr(Store, "check_name", lambda *_: None)
    found = Chain(root, options=signer.options).load()
    assert (found.step, [each.step for each in found.passed_over]) == (1, [2])
    why = found.passed_over[0].reason
    assert "is not what was saved as 'step-2-" in why


def test_a_step_that_is_removed_while_it_is_opened(
    root: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed over, at whatever call of the operating system it is gone."""
    _, two = signed_of_ranks(root, signer, 1, 2)
    copy = root.parent / "copy"
    shutil.copytree(root, copy)
    calls: list[str] = []

    def loaded(at: int) -> int:
        """Load a step, and remove the second one before a call."""
        shutil.rmtree(root)
        shutil.copytree(copy, root)
        calls.clear()
        with monkeypatch.context() as patch:
            for name in ("stat", "lstat"):
                patch.setattr(os, name, partial(looking, at, getattr(os, name)))
            return Chain(root, options=signer.options).load().step

    def looking(at: int, real: Callable[..., Any], path: Any, *rest: Any, **how: Any) -> Any:
        if str(path).endswith(two.file):
            calls.append(path)
            if len(calls) == at:
                shutil.rmtree(root / two.name)
        return real(path, *rest, **how)

    assert loaded(0) == 2
    assert len(calls) > 1
    for at in range(1, len(calls) + 1):
        assert loaded(at) == 1


NO_FILES: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a long name": lambda path: path.symlink_to("x" * 300),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    # Its beginning cannot be read, and others, such as the log of the kernel, block.
    "link to a file without size": lambda path: path.symlink_to("/proc/self/mem"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["rank-*.tensors", "checkpoint.tensors", "*.sig", "."])
@pytest.mark.parametrize("state", [None, state_of(0)], ids=["new state", "state"])
def test_a_step_that_is_no_files(
    root: Path, signer: Signer, name: str, kind: str, state: dict[str, Any] | None
) -> None:
    """The step before it is loaded."""
    _, last = signed_of_ranks(root, signer, 1, 2)
    place = root / last.name
    for path in [place] if name == "." else [*place.glob(name)]:
        shutil.rmtree(path) if name == "." else path.unlink()
        if not (kind == "FIFO" and path.suffix == ".sig"):
            NO_FILES[kind](path)
    assert Chain(root, options=signer.options).load(state).step == 1


@pytest.mark.parametrize("state", [None, state_of(0)], ids=["new state", "state"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_step_that_is_exchanged_while_it_is_looked_at(
    root: Path,
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
    missing: bool,
    state: dict[str, Any] | None,
) -> None:
    _, last = signed_of_ranks(root, signer, 1, 2)

    def looked(path: str) -> str:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    if missing:  # the list already says that it is of ranks
        monkeypatch.setattr(one_process, "is_folder", lambda *_: False)
    else:
        monkeypatch.setattr(
            storage,
            "step_named",
            lambda path: looked(path) if path.endswith(last.name) else step_named(path),
        )
    assert Chain(root, options=signer.options).load(state).step == (2 if missing else 1)


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_list_that_is_no_file(root: Path, signer: Signer, kind: str) -> None:
    chain = signed(root, signer, 1)
    (root / LISTS[0]).unlink()
    NO_FILES[kind](root / LISTS[0])
    assert chain.load().step == 1


def test_a_list_of_too_many_bytes(root: Path, signer: Signer) -> None:
    """Its index would be read into memory."""
    chain = signed(root, signer, 1)
    os.truncate(root / LISTS[0], 1 << 30)
    assert chain.load().step == 1
    done = run("verify", root, status=1)
    assert "'chain.tensors' in" in done.stderr and "has more than" in done.stderr


def test_a_single_file_in_the_place_of_a_step_of_ranks(root: Path, signer: Signer) -> None:
    (step,) = signed_of_ranks(root, signer, 2)
    place = root / step.name
    shutil.rmtree(place)
    place.mkdir()
    one = place / "step-1-0000000000000001.tensors"
    checkpoint.save(one, state_of(1), metadata={STEP_KEY: one.stem})
    tensorizer_ops.sign(one, key=signer.private)
    for state in (None, state_of(0)):
        with pytest.raises(errors.InvalidFormat, match="is not what was saved as 'step-2-"):
            checkpoint.load(place, state, options=signer.options)
    run("verify", "-o", f"trust=file:{signer.public}", place, status=1)


@pytest.mark.parametrize("own", range(5))
def test_a_list_of_ranks_that_is_replaced_meanwhile(root: Path, signer: Signer, own: int) -> None:
    """What is verified are the files of the step whose name was checked."""
    changed, other = signed_of_ranks(root, signer, 1, 2)
    for file in (root / other.name).glob("rank-*"):
        shutil.copy(file, root / changed.name)
    change(root / changed.name / f"rank-0-{changed.file_id}.tensors")

    def replaced(name: str, count: int) -> bytes | None:
        signature = f"{changed.file}.sig"
        if (name == changed.file and count > own) or (name == signature and count > 1):
            return (root / name.replace(changed.name, other.name)).read_bytes()
        return None

    with served(root, replaced) as url:
        run("verify", "-o", f"trust=file:{signer.public}", url, status=1)
