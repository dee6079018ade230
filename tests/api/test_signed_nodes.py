"""Nodes that follow signed versions: who shares a file with whom, and when they end."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorizer_ops
from local_servers.waiting import wait_until
from support.signed_versions import folder_of, nodes, publish
from support.signer import Signer
from tensorizer_ops import errors
from tensorizer_ops._versions.listing import FILE
from tensorizer_ops._versions.node import Node


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_node(place: Path, signer: Signer, tmp_path: Path) -> None:
    """What vLLM's engine follows with, whose options are these."""
    folder = tmp_path / "node"
    publish(place, range(1, 2), signer.private)
    node = Node(place, str(folder), signer.options, interval=0.01)
    trusting = Node(place, str(folder), {}, interval=0.01)  # anybody
    for each in (node, trusting):
        assert tensorizer_ops.load(each.file(1, patience=60))["w"][0] == 1
    publish(place, range(2, 3), None)
    assert tensorizer_ops.load(trusting.file(2, patience=60))["w"][0] == 2
    with pytest.raises(errors.TimedOut, match=r"within 1 seconds: .*it is not signed"):
        node.file(2, patience=1)
    publish(place, range(3, 4), signer.private)
    assert tensorizer_ops.load(node.file(3, patience=60))["w"][0] == 3
    node.close()
    trusting.close()


def test_a_node_does_not_go_back_after_an_error(
    place: Path, signer: Signer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It follows anew then, and servers may have the newer version."""
    publish(place, range(1, 2), signer.private)
    older = (place / FILE).read_bytes()
    publish(place, range(2, 3), signer.private)
    with nodes((place, tmp_path / "shm", signer.options)) as (node,):
        newer = node.file(2, patience=60)
        (place / FILE).write_bytes(b"damaged")
        wait_until(lambda: "trying again" in caplog.text)
        (place / FILE).write_bytes(older)
        wait_until(lambda: "ends with version 1, and version 2 was here before" in caplog.text)
        assert tensorizer_ops.load(newer)["w"][0] == 2


def test_the_folder_of_a_node_is_removed_while_another_begins(
    place: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others could then make it, if it is in a folder as /dev/shm."""
    publish(place, range(1, 2), signer.private)
    first = Node(place, str(tmp_path / "shm"), signer.options, interval=0.01)
    shared = first.file(1, patience=60).parent
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        if how == fcntl.LOCK_SH:
            monkeypatch.undo()
            first.close()
        flock(file, how)

    monkeypatch.setattr("fcntl.flock", late)
    with nodes((place, tmp_path / "shm", signer.options)) as (second,):
        assert shared.is_dir()
        assert second.file(1, patience=60).parent == shared


def test_a_node_shares_only_with_those_who_trust_the_same(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    publish(place, range(1, 2), signer.private)
    other = Signer(tmp_path / "other")
    options = {"trust": "named:node"}
    shm = tmp_path / "shm"
    tensorizer_ops.trust.add("node", keys=[signer.public])
    # Under another name, and with other options of transfers.
    with nodes((place, shm, options), (place, shm, signer.options | {"retries": "7"})) as same:
        assert len({folder_of(node) for node in same}) == 1
    tensorizer_ops.trust.add("node", keys=[other.public])
    with (
        nodes((place, shm, options)) as (node,),
        pytest.raises(errors.TimedOut, match="expected is the key"),
    ):
        node.file(1, patience=1)
    tensorizer_ops.trust.remove("node")


def test_a_node_shares_only_with_those_who_pin_the_same(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    publish(place, range(1, 2), signer.private)
    shm = tmp_path / "shm"
    pinned = signer.options | {"subject": "0" * 64}
    with nodes((place, shm, signer.options), (place, shm, pinned)) as (any_model, one_model):
        assert folder_of(any_model)
        with pytest.raises(errors.TimedOut, match="expected is 0000"):
            one_model.file(1, patience=1)


def test_a_node_shares_only_with_those_who_have_the_same_key(place: Path, tmp_path: Path) -> None:
    for name, key in {"one": 1, "same": 1, "other": 2}.items():
        tensorizer_ops.keys.add(name, key=bytes([key]) * 32)
    one, same, other = ({"key": f"named:{name}"} for name in ("one", "same", "other"))
    publish(place, range(1, 2), None, options=one)
    shm = tmp_path / "shm"
    with nodes(*((place, shm, options) for options in (one, same, other, {}))) as made:
        assert folder_of(made[0]) == folder_of(made[1])
        for node in made[2:]:
            with pytest.raises(errors.TimedOut, match="key"):
                node.file(1, patience=1)
        tensorizer_ops.keys.add("one", key=bytes(32))
        with pytest.raises(errors.InvalidArgument, match=r"or the key for .* were replaced"):
            made[0].file(1, patience=1)
        assert folder_of(made[1])


def test_a_relative_place_of_a_node(
    signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    with ExitStack() as stack:
        for step, name in enumerate(("x", "y")):
            publish(tmp_path / name / "run", range(step, step + 1), signer.private)
            monkeypatch.chdir(tmp_path / name)
            (node,) = stack.enter_context(nodes(("run", tmp_path / "shm", signer.options)))
            found.append(tensorizer_ops.load(node.file(1, patience=60))["w"][0])
    assert found == [0, 1]


def test_a_policy_that_is_replaced_ends_following(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    """Those who share the folder still trust only the one before."""
    publish(place, range(1, 2), signer.private)
    policy = tmp_path / "policy.pub"
    shutil.copy(signer.public, policy)
    shm = tmp_path / "shm"
    replaced, kept = {"trust": f"file:{policy}"}, signer.options
    with nodes((place, shm, replaced)) as (following,):
        folder = folder_of(following)
        with nodes((place, shm, kept)) as (node,):
            other = Signer(tmp_path / "other")
            shutil.copy(other.public, policy)
            publish(place, range(2, 3), other.private)
            with pytest.raises(errors.TimedOut, match="expected is the key"):
                node.file(2, patience=3)
            assert [path.name[:9] for path in folder.glob("version-*")] == ["version-1"]
            with pytest.raises(errors.InvalidArgument, match=r"trusted signers .* were replaced"):
                following.file(1, patience=1)
            publish(place, range(3, 4), signer.private)
            assert tensorizer_ops.load(node.file(3, patience=60))["w"][0] == 3
