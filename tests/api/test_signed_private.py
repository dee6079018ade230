"""Signed versions on a machine of several users: what others can change or put in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import ONLY_ROOT
from support.signed_versions import folder_of, list_of, nodes, publish, state_of
from support.signer import Signer
from tensorizer_ops import Publisher, errors, follow
from tensorizer_ops._dcp import one_process
from tensorizer_ops._front.inspection import File
from tensorizer_ops._versions import follower as follower_module
from tensorizer_ops._versions.listing import FILE
from tensorizer_ops._versions.node import Node
from tensorizer_ops.checkpoint import Chain


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def mode(path: Path) -> None:
    path.chmod(0o777)


def readable(path: Path) -> None:
    path.chmod(0o755)


def owner(path: Path) -> None:
    os.chown(path, 65534, 65534)


OWNER = pytest.param(owner, marks=ONLY_ROOT)


def link(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("change", [mode, readable, OWNER, link])
def test_folders_of_others_are_not_used(
    place: Path, signer: Signer, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Others know the name of the folder, and can make it first."""
    publish(place, range(1, 2), signer.private)
    folder = tmp_path / "shm"
    node = Node(place, str(folder), signer.options, interval=0.01)
    shared = node.file(1, patience=60).parent
    assert shared.stat().st_mode & 0o777 == 0o700
    node.close()
    shared.mkdir()
    change(shared)
    with pytest.raises(PermissionError, match="not a folder of this user"):
        Node(place, str(folder), signer.options, interval=0.01)
    with Publisher(place, sign=signer.private) as publisher:
        with pytest.raises(PermissionError, match="not a folder of this user"):
            Publisher(place, sign=signer.private, scratch=shared)
        publisher.publish(state_of(2), step=2)  # which was not taken over


@pytest.mark.parametrize("inside", [".", "inner", "inner/deeper"])
@pytest.mark.parametrize("change", [mode, OWNER])
def test_folders_that_others_can_replace_are_not_used(
    place: Path,
    signer: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    inside: str,
) -> None:
    """Also not where others can replace a folder further above."""
    publish(place, range(1, 2), signer.private)
    above = tmp_path / "above"
    given = above / inside
    given.mkdir(parents=True)
    change(above)
    monkeypatch.setattr("tempfile.tempdir", str(given))
    why = r"above' (is a folder in which others may|belongs to another user, who may) replace"
    with pytest.raises(PermissionError, match=why):
        Node(place, str(given), signer.options)
    for scratch in (given / "scratch", None):
        with pytest.raises(PermissionError, match=why):
            Publisher(place, sign=signer.private, scratch=scratch)
    Publisher(tmp_path / "unsigned", scratch=given / "unsigned").close()
    with pytest.raises(PermissionError, match=why):
        Chain(tmp_path / "chain", sign=signer.private).save(1, state_of(1))
    assert not [path for path in above.rglob("*") if path.is_file()]
    if change is mode:
        above.chmod(0o1777)  # as /dev/shm and /tmp
        Node(place, str(given), signer.options).close()
        for scratch in (given / "scratch", None):
            Publisher(place, sign=signer.private, scratch=scratch).close()


def replace_folder(folder: Path) -> None:
    """Do what a cleaner does, and then somebody who has waited for it."""
    folder.rename(folder.parent / "cleaned")
    shutil.copytree(folder.parent / "cleaned", folder)
    folder.chmod(0o700)


@pytest.mark.parametrize("scratch", ["scratch", None])
def test_a_publisher_whose_folder_was_replaced(
    place: Path,
    signer: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scratch: str | None,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    given = None if scratch is None else tmp_path / scratch
    with Publisher(place, sign=signer.private, scratch=given) as publisher:
        publisher.publish(state_of(1), step=1)
        (lock,) = tmp_path.glob("*/lock")
        files = sorted(place.iterdir())
        replace_folder(lock.parent)
        with pytest.raises(PermissionError, match="was removed or replaced by somebody else"):
            publisher.publish(state_of(2), step=2)
        assert sorted(place.iterdir()) == files


def test_a_publisher_whose_folder_is_replaced_while_it_writes(
    place: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher(place, sign=signer.private, scratch=tmp_path / "scratch") as publisher:
        write = publisher._write_new

        def written(*given: Any) -> None:
            write(*given)
            replace_folder(tmp_path / "scratch")

        monkeypatch.setattr(publisher, "_write_new", written)
        with pytest.raises(PermissionError, match="was removed or replaced by somebody else"):
            publisher.publish(state_of(1), step=1)
    assert not list(place.glob("0*"))


def test_a_node_whose_folder_was_replaced(place: Path, signer: Signer, tmp_path: Path) -> None:
    publish(place, range(1, 2), signer.private)
    with nodes((place, tmp_path / "shm", signer.options)) as (node,):
        older = folder_of(node) / "older"
        replace_folder(older.parent)
        for call in (lambda: node.file(1, patience=60), lambda: node.changes(older, older)):
            with pytest.raises(PermissionError, match="was removed or replaced by somebody else"):
                call()


def test_a_chain_whose_temporary_folder_is_replaced(
    signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    save = one_process.save

    def saved(place: Path, *given: Any, **how: Any) -> None:
        save(place, *given, **how)
        replace_folder(place.parent)

    monkeypatch.setattr(one_process, "save", saved)
    with pytest.raises(PermissionError, match="was removed or replaced by somebody else"):
        Chain(tmp_path / "chain", sign=signer.private).save(1, state_of(1))
    assert not list((tmp_path / "chain").glob("step-*"))


def test_links_to_folders_are_followed_once(place: Path, signer: Signer, tmp_path: Path) -> None:
    """Whoever may change a link above decides nothing after the start."""
    real, given = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    given.symlink_to(real)
    with Publisher(place, sign=signer.private, scratch=given / "scratch") as publisher:
        given.unlink()
        publisher.publish(state_of(1), step=1)
    given.symlink_to(real)
    with nodes((place, given, signer.options)) as (node,):
        given.unlink()
        assert node.file(1, patience=60).is_relative_to(real)


@pytest.fixture
def target(shared_memory: Path) -> Path:
    """Return a path in a folder in which all may create files."""
    shared_memory.chmod(0o1777)
    return shared_memory / "model.tensors"


def plant(place: Path, target: Path) -> None:
    """Put the first version there as another user, to whom it then belongs."""
    shutil.copy(place / list_of(place)["versions"][0]["whole"], target)
    os.chown(target, 65534, 65534)
    target.chmod(0o666)


@ONLY_ROOT
def test_a_version_that_belongs_to_another_user(place: Path, signer: Signer, target: Path) -> None:
    """It is the version now, and its owner could change it later."""
    publish(place, range(1, 2), signer.private)
    plant(place, target)
    (version,) = follow(place, target, patience=0, options=signer.options)
    assert version.number == 1
    assert (target.stat().st_uid, target.stat().st_mode & 0o022) == (0, 0)


@ONLY_ROOT
def test_a_link_of_another_user_to_a_version(
    place: Path, signer: Signer, target: Path, tmp_path: Path
) -> None:
    publish(place, range(1, 2), signer.private)
    elsewhere = tmp_path / "elsewhere"
    plant(place, elsewhere)
    target.symlink_to(elsewhere)
    os.lchown(target, 65534, 65534)
    with pytest.raises(PermissionError, match="a link of another user"):
        list(follow(place, target, patience=0, options=signer.options))


@ONLY_ROOT
def test_a_link_to_a_file_that_all_may_write(place: Path, signer: Signer, target: Path) -> None:
    """Who may write a file may give it another name, and it still belongs to its owner."""
    publish(place, range(1, 2), signer.private)
    other = target.parent / "other"
    plant(place, other)
    os.chown(other, 0, 0)
    os.link(other, target)
    (version,) = follow(place, target, patience=0, options=signer.options)
    assert version.number == 1
    assert (target.stat().st_nlink, target.stat().st_mode & 0o022) == (1, 0)


@ONLY_ROOT
def test_a_signed_delta_to_a_file_of_another_user(
    place: Path, signer: Signer, target: Path
) -> None:
    publish(place, range(1, 3), signer.private)
    plant(place, target)
    delta = place / list_of(place)["versions"][1]["delta"]
    assert tensorizer_ops.apply(delta, target, delta_options=signer.options)
    assert target.stat().st_uid == 0
    os.chown(target, 65534, 65534)  # as if he had put the newer version there
    why = "belongs to another user, who may change it"
    with pytest.raises(PermissionError, match=why):
        tensorizer_ops.apply(delta, target, delta_options=signer.options)
    with pytest.raises(PermissionError, match=why):
        torch.ops.tensorizer.apply(str(delta), str(target), delta_options=signer.options)
    assert not tensorizer_ops.apply(delta, target)


@pytest.mark.parametrize("kind", ["a folder", "several files"])
def test_a_target_that_is_no_single_file(
    place: Path, signer: Signer, target: Path, kind: str
) -> None:
    """Others may have put files there."""
    publish(place, range(1, 2), signer.private)
    model = target / "model.safetensors"
    target.mkdir()
    shards = {"max_shard_size": "1"} if kind == "several files" else {}
    tensorizer_ops.save(model, {**state_of(1), "more": torch.ones(2)}, options=shards)
    given = target if kind == "a folder" else model.with_name(f"{model.name}.index.json")
    assert given.exists()
    with pytest.raises(errors.InvalidArgument, match="is no single file"):
        list(follow(place, given, patience=0, options=signer.options))


@ONLY_ROOT
@pytest.mark.parametrize("is_away", [False, True])
def test_a_version_that_another_user_puts_there_meanwhile(
    place: Path, signer: Signer, target: Path, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    publish(place, range(1, 2), signer.private)

    class Planted(File):
        def __init__(self, *how: Any, **more: Any) -> None:
            plant(place, target)
            super().__init__(*how, **more)
            if is_away:
                target.unlink()

    monkeypatch.setattr(follower_module, "File", Planted)
    (version,) = follow(place, target, patience=0, options=signer.options)
    assert version.number == 1
    assert target.stat().st_uid == 0


@pytest.mark.parametrize("sign", [True, False])
def test_nothing_is_written_through_links(
    place: Path, signer: Signer, tmp_path: Path, sign: bool
) -> None:
    """Others may put links under the names of the next files."""
    foreign = tmp_path / "foreign"
    foreign.write_text("precious")
    place.mkdir()
    for name in (FILE, "fence"):
        (place / name).symlink_to(tmp_path / "missing")
    key = signer.private if sign else None
    with Publisher(place, whole_every=1, sign=key) as publisher:
        publisher.publish(state_of(1), step=1)
        own = publisher._id
        for kind in (".delta.tensors", ".tensors"):
            for end in ("", ".sig"):
                (place / f"00000002-{own}{kind}{end}").symlink_to(foreign)
        publisher.publish(state_of(2), step=2)
        (place / FILE).rename(tmp_path / "list")
        (place / FILE).symlink_to(tmp_path / "list")
        content = (tmp_path / "list").read_bytes()
        publisher.publish(state_of(3), step=3)
    assert foreign.read_text() == "precious"
    assert (tmp_path / "list").read_bytes() == content
    assert not (tmp_path / "missing").exists()
    left = {path.suffix for path in place.iterdir() if path.is_symlink()}
    assert left == (set() if sign else {".sig"})
    assert list_of(place)["versions"][-1]["number"] == 3
