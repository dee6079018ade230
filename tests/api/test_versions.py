"""Versions that are published in a folder, and followed."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.signer import Signer
from tensorizer_ops import Publisher, errors, follow
from tensorizer_ops._versions import follower
from tensorizer_ops._versions.follower import Follower
from tensorizer_ops._versions.listing import FILE, Listing, Place
from tensorizer_ops._versions.node import Node

KILLS = int(os.environ.get("KILLS", "40"))


class Training:
    """Weights, and their steps."""

    def __init__(self, size: int = 20_000, rate: float = 1e-5) -> None:
        self.rate = rate
        self.generator = torch.Generator().manual_seed(0)
        self.weights = self._normal(size) * 0.02
        self.states: dict[int, dict[str, torch.Tensor]] = {}

    def _normal(self, size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.generator)

    def step(self) -> dict[str, torch.Tensor]:
        self.weights += self.rate * self._normal(len(self.weights))
        state = {"w": self.weights.bfloat16(), "step": torch.tensor(len(self.states) + 1)}
        self.states[len(self.states) + 1] = state
        return {name: tensor.clone() for name, tensor in state.items()}

    def publish(self, publisher: Publisher, count: int = 1) -> None:
        for _ in range(count):
            state = self.step()
            publisher.publish(state, step=len(self.states))


def same(found: Any, state: dict[str, torch.Tensor]) -> bool:
    return found.keys() == state.keys() and all(found[name].equal(state[name]) for name in state)


def now(place: Path, target: Any, **how: Any) -> list[tensorizer_ops.Version]:
    return list(follow(place, target, patience=0, **how))


def names(place: Path) -> set[str]:
    """Return what is there of each version: "1" for all of it, "1d" for a delta."""
    found = [path.name for path in place.iterdir() if path.name[:8].isdigit()]
    return {f"{int(name[:8])}{'d' * ('.delta.' in name)}" for name in found}


def listing_of(place: Path) -> Listing:
    there = Place(place, None)
    content = there.read()
    assert content is not None
    return there.understood(content)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def publisher(place: Path) -> Iterator[Publisher]:
    with Publisher(place, grace=0) as made:
        yield made


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(20_000, dtype=torch.bfloat16))
        self.register_buffer("step", torch.tensor(0))


@pytest.mark.parametrize("kind", ["file", "safetensors", "empty dict", "dict", "module"])
def test_each_version_arrives(publisher: Publisher, place: Path, tmp_path: Path, kind: str) -> None:
    training = Training()
    model = Model()
    zeros = {"w": torch.zeros(20_000, dtype=torch.bfloat16), "step": torch.tensor(0)}
    target: Any = {
        "file": tmp_path / "copy.tensors",
        "safetensors": tmp_path / "copy.safetensors",
        "empty dict": {},
        "dict": zeros,
        "module": model,
    }[kind]
    addresses = [tensor.data_ptr() for tensor in zeros.values()]
    versions = follow(place, target, interval=0.01)
    for step in range(1, 5):
        training.publish(publisher)
        version = next(versions)
        assert (version.number, version.step) == (step, step)
        found = tensorizer_ops.load(target) if isinstance(target, Path) else target
        found = found.state_dict() if found is model else found
        assert same(found, training.states[step])
    assert [tensor.data_ptr() for tensor in zeros.values()] == addresses
    if isinstance(target, Path):
        assert tensorizer_ops.digest(target, version=2) == version.digest


def test_versions_that_were_passed(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    training = Training()
    training.publish(publisher, 3)
    target = tmp_path / "copy.tensors"
    assert [version.step for version in now(place, target)] == [3]
    training.publish(publisher, 3)
    # Also by another follower, which finds out what the file is.
    assert [version.step for version in now(place, target)] == [6]
    assert same(tensorizer_ops.load(target), training.states[6])
    assert [version.step for version in now(place, target)] == [6]


def test_a_file_goes_by_deltas(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    """All of the model is not read again."""
    training = Training()
    training.publish(publisher)
    now(place, tmp_path / "copy.tensors")
    training.publish(publisher, 3)
    (whole,) = (place / name for name in os.listdir(place) if name.startswith("00000001"))
    whole.unlink()
    assert [version.step for version in now(place, tmp_path / "copy.tensors")] == [4]
    with pytest.raises(FileNotFoundError):
        now(place, tmp_path / "other.tensors")
    assert not (tmp_path / "other.tensors").exists()


def test_the_shorter_way(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    """Deltas that are larger together than the model are not read."""
    training = Training(rate=1e-4)
    training.publish(publisher)
    now(place, tmp_path / "copy.tensors")
    training.publish(publisher, 6)
    entries = listing_of(place).versions
    whole = [entry.number for entry in entries if entry.whole is not None]
    assert len(whole) == 2
    assert 3 < whole[1] < 7
    for entry in entries[1 : whole[1]]:
        assert entry.delta is not None
        assert entry.delta_size < entry.whole_size / 3
        (place / entry.delta).unlink()
    assert [version.step for version in now(place, tmp_path / "copy.tensors")] == [7]
    assert same(tensorizer_ops.load(tmp_path / "copy.tensors"), training.states[7])


def test_a_delta_that_would_be_larger_than_the_model(
    publisher: Publisher, place: Path, tmp_path: Path
) -> None:
    training = Training()
    for _ in range(3):
        training.weights = training._normal(len(training.weights))
        training.publish(publisher)
        now(place, tmp_path / "copy.tensors")
    assert names(place) == {"1", "2", "3"}
    assert same(tensorizer_ops.load(tmp_path / "copy.tensors"), training.states[3])


def test_old_versions_are_removed(place: Path) -> None:
    training = Training()
    with Publisher(place, whole_every=2, grace=0) as publisher:
        training.publish(publisher, 4)
        assert names(place) == {"1", "2d", "3", "3d", "4d"}
        training.publish(publisher)
        # Files of versions that have left the list stay until the next version.
        assert [entry.number for entry in listing_of(place).versions] == [3, 4, 5]
        assert names(place) == {"1", "2d", "3", "3d", "4d", "5", "5d"}
        training.publish(publisher)
        assert names(place) == {"3", "3d", "4d", "5", "5d", "6d"}
    with Publisher(place, whole_every=1, grace=3600) as publisher:
        training.publish(publisher, 3)
    assert {"3", "3d", "4d", "5", "5d", "6d"} < names(place)


def test_files_that_are_removed_while_they_are_needed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that has read an old list reads it again."""
    training = Training()
    with Publisher(place, whole_every=1, grace=0) as publisher:
        training.publish(publisher, 2)
        old = Place.read(Place(place, None))
        training.publish(publisher, 4)
        read = Place.read
        answers = [old]
        monkeypatch.setattr(Place, "read", lambda self: answers.pop() if answers else read(self))
        assert [version.step for version in now(place, tmp_path / "copy.tensors")] == [6]


def test_two_publishers(place: Path) -> None:
    training = Training()
    first = Publisher(place, grace=0)
    training.publish(first, 2)
    second = Publisher(place, grace=0)
    with pytest.raises(FileExistsError, match=r"step 3 was not published to .*another publisher"):
        training.publish(first)
    training.publish(second)
    assert [entry.step for entry in listing_of(place).versions] == [1, 2, 4]
    with pytest.raises(FileExistsError):
        training.publish(first)
    # The second one has no base: it has written all of the model.
    assert names(place) == {"1", "2d", "3"}


def test_a_publisher_that_is_overtaken_while_it_writes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    first = Publisher(place, grace=0)
    training.publish(first)
    write = Place.write
    monkeypatch.setattr(Place, "write", lambda *all: (Publisher(place), write(*all))[1])
    monkeypatch.setattr(Publisher, "_claim", lambda self: _claim_with(self, write))
    with pytest.raises(FileExistsError):
        training.publish(first)
    assert names(place) == {"1"}


def _claim_with(publisher: Publisher, write: Any) -> None:
    known, listing = publisher._read()
    listing.publisher = publisher._id
    assert write(publisher._place, known, listing, True)


def test_the_folder_of_the_last_version_is_used_again(place: Path, tmp_path: Path) -> None:
    training = Training()
    with Publisher(place, scratch=tmp_path / "scratch") as publisher:
        training.publish(publisher)
    with Publisher(place, scratch=tmp_path / "scratch") as publisher:
        training.publish(publisher)
    assert names(place) == {"1", "2d"}
    assert sorted(os.listdir(tmp_path / "scratch")) == ["last.tensors", "lock"]
    assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o700
    (tmp_path / "scratch" / "last.tensors").write_bytes(b"damaged")
    with Publisher(place, scratch=tmp_path / "scratch") as publisher:
        training.publish(publisher)
    assert names(place) == {"1", "2d", "3"}


def test_publishers_with_one_folder_for_temporary_files(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, training = tmp_path / "scratch", Training()
    second = Publisher(tmp_path / "other", scratch=scratch)
    with Publisher(place, scratch=scratch) as first:
        upload = Publisher._upload

        def meanwhile(self: Publisher, *given: Any) -> Any:
            with pytest.raises(FileExistsError, match=r"step 5 .* another publisher writes in"):
                second.publish(_constant(5), step=5)
            return upload(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(Publisher, "_upload", meanwhile)
            training.publish(first)
        second.publish(_constant(5), step=5)
        training.publish(first)
    assert same(load_newest(place), training.states[2])
    assert same(load_newest(tmp_path / "other"), _constant(5))


def load_newest(place: Path) -> dict[str, torch.Tensor]:
    target: dict[str, torch.Tensor] = {}
    now(place, target)
    return target


@pytest.mark.parametrize("name", ["last", "new", "delta"])
def test_what_is_no_file_in_the_folder_for_temporary_files(
    place: Path, tmp_path: Path, name: str
) -> None:
    scratch, training = tmp_path / "scratch", Training()
    with Publisher(place, scratch=scratch) as publisher:
        training.publish(publisher)
        path = scratch / f"{name}.tensors"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        training.publish(publisher)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(b"kept")
        path.unlink(missing_ok=True)
        path.symlink_to(elsewhere)
        training.publish(publisher)
    assert elsewhere.read_bytes() == b"kept"
    assert same(load_newest(place), training.states[3])
    assert not (scratch / "last.tensors").is_symlink()


def test_a_file_is_published(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    state = Training().step()
    tensorizer_ops.save(tmp_path / "new.safetensors", state, metadata={"a": "b"})
    publisher.publish(tmp_path / "new.safetensors", step=1)
    assert same(tensorizer_ops.load(tmp_path / "new.safetensors"), state)  # it is still there
    now(place, tmp_path / "copy.tensors")
    assert same(tensorizer_ops.load(tmp_path / "copy.tensors"), state)
    assert tensorizer_ops.info(tmp_path / "copy.tensors").metadata == {"a": "b"}
    with pytest.raises(errors.InvalidArgument, match="a file has its own"):
        publisher.publish(tmp_path / "new.safetensors", step=2, metadata={"c": "d"})


@pytest.mark.parametrize("is_signed", [False, True])
def test_versions_encrypted_with_a_passphrase(place: Path, signer: Signer, is_signed: bool) -> None:
    tensorizer_ops.keys.add("versions", passphrase="correct horse")
    options = {"key": "named:versions", "kdf": "min"}
    training = Training()
    sign = signer.private if is_signed else None
    with Publisher(place, sign=sign, options=options) as publisher:
        training.publish(publisher, 3)
    target: dict[str, torch.Tensor] = {}
    assert [version.step for version in now(place, target, options=options)] == [3]
    assert same(target, training.states[3])


def test_encrypted_versions(place: Path, tmp_path: Path) -> None:
    tensorizer_ops.keys.add("versions", key=bytes(range(32)))
    options = {"key": "named:versions"}
    training = Training()
    with Publisher(place, scratch=tmp_path / "scratch", options=options) as publisher:
        training.publish(publisher, 2)
        secret = training.states[2]["w"].view(torch.uint8).numpy().tobytes()[:64]
        for path in (*place.iterdir(), *(tmp_path / "scratch").iterdir()):
            assert secret not in path.read_bytes(), path
    target: dict[str, torch.Tensor] = {}
    assert [version.step for version in now(place, target, options=options)] == [2]
    assert same(target, training.states[2])
    with pytest.raises(errors.Crypto):
        now(place, {})
    # A publisher without the key does not take over.
    with pytest.raises(errors.Crypto, match=r"versions in .*run.* are encrypted: .* option 'key'"):
        Publisher(place)
    tensorizer_ops.keys.add("others", key=bytes(32))
    with pytest.raises(errors.Crypto, match=rf"^'{FILE}' in .*run"):
        now(place, {}, options={"key": "named:others"})
    assert now(place, target, options=options) != []
    # A list that somebody without the key has written.
    with Publisher(tmp_path / "forged") as forger:
        training.publish(forger)
    (place / FILE).write_bytes((tmp_path / "forged" / FILE).read_bytes())
    with pytest.raises(errors.Error, match=r"authenticated|encrypted"):
        now(place, {}, options=options)


def test_waiting(place: Path) -> None:
    """For a place, for a version, and no longer than asked for."""
    training = Training()
    target: dict[str, torch.Tensor] = {}
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        for version in follow(place, target, interval=0.01, stop=stop):
            found.put(version.step)

    with ThreadPoolExecutor(1) as pool, Publisher(place) as publisher:
        listening = pool.submit(listen)
        listening.add_done_callback(lambda _: found.put(-1))
        for step in (1, 2, 3):
            training.publish(publisher)
            assert found.get() == step, listening.result()
        stop.set()
        listening.result()
    assert same(target, training.states[3])
    assert list(follow(place, target, stop=stop)) == []


def test_the_last_look_is_when_patience_ends(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    read = Place.read

    def counted(self: Place) -> bytes | None:
        nonlocal looks
        looks += 1
        return read(self)

    monkeypatch.setattr(Place, "read", counted)
    assert list(follow(place, {}, patience=0)) == []
    assert (looks, caplog.text) == (1, "")
    assert list(follow(place, {}, patience=0.05, interval=60)) == []
    assert looks == 3
    assert f"nothing was published in '{place}' yet" in caplog.text


def test_damage(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = Training()
    target = tmp_path / "copy.tensors"
    with Publisher(place, whole_every=2, grace=0) as publisher:
        training.publish(publisher, 2)
        now(place, target)
        training.publish(publisher, 2)
    first, _, third, fourth = listing_of(place).versions
    assert third.delta and third.whole and fourth.delta and first.whole
    flip(place / third.delta)
    # All of the third version leads around it.
    assert [version.step for version in now(place, target)] == [4]
    assert "all of the model is loaded" in caplog.text
    assert same(tensorizer_ops.load(target), training.states[4])
    flip(place / third.whole)
    with pytest.raises((errors.InvalidFormat, errors.HashMismatch), match=third.whole):
        now(place, tmp_path / "other.tensors")
    assert not (tmp_path / "other.tensors").exists()


def test_tensors_between_two_versions(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first one was changed before the delta of the second turned out to be damaged."""
    first, second = Training(2_000_000), Training(2_000_000)
    model: dict[str, torch.Tensor] = {}
    versions = follow(place, model, interval=0.01, patience=0, threads=1)
    with Publisher(place, whole_every=1) as publisher:
        for step in (1, 2):
            state = {"1": first.step()["w"], "2": second.step()["w"]}
            publisher.publish(state, step=step)
            if step == 1:
                next(versions)
    (delta,) = (entry.delta for entry in listing_of(place).versions if entry.delta)
    flip(place / delta)
    assert next(versions).step == 2
    assert "between two models" in caplog.text
    assert same(model, state)


class Outage:
    """Makes a function of the follower change its target in part and then fail, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, after: Callable[[], object]):
        self._real, self._after, self.is_over = getattr(follower, name), after, False
        monkeypatch.setattr(follower, name, self._fail)

    def _fail(self, *given: Any, **how: Any) -> Any:
        result = self._real(*given, **how)
        if not self.is_over:
            self.is_over = True
            self._after()
            raise errors.Unavailable("the server does not answer")
        return result


@pytest.mark.parametrize("kind", ["dict", "module"])
def test_memory_that_an_outage_leaves_between_two_versions(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And then the list goes back to the version before."""
    training = Training()
    with Publisher(place) as publisher:
        training.publish(publisher)
        older = (place / FILE).read_bytes()
        model = torch.nn.Module()
        for name, tensor in training.states[1].items():
            model.register_buffer(name, torch.zeros_like(tensor))
        target: Any = {} if kind == "dict" else model
        tensors = target if kind == "dict" else dict(model.named_buffers())
        versions = follow(place, target, interval=0.01, patience=60)
        assert next(versions).number == 1
        training.publish(publisher)
    newer = (place / FILE).read_bytes()

    def mix() -> None:
        tensors["w"][::2] = training.states[1]["w"][::2]
        (place / FILE).write_bytes(older)

    Outage(monkeypatch, "apply_opened", mix)
    assert next(versions).number == 1  # once more
    assert same(tensors, training.states[1])
    (place / FILE).write_bytes(newer)
    assert next(versions).number == 2
    assert same(tensors, training.states[2])


def test_patience_that_ends_between_two_versions(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    with Publisher(place) as publisher:
        training.publish(publisher)
        target: dict[str, torch.Tensor] = {}
        versions = follow(place, target, patience=0)
        next(versions)
        training.publish(publisher)
    Outage(monkeypatch, "apply_opened", lambda: None)
    with pytest.raises(errors.Unavailable, match="does not answer"):
        next(versions)


def test_a_file_in_place_that_an_outage_leaves_between_two_versions(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists the digests of the version before, as its head is written last."""
    training = Training()
    target = tmp_path / "copy.tensors"
    with Publisher(place, whole_every=1) as publisher:
        training.publish(publisher)
        older = (place / FILE).read_bytes()
        versions = follow(place, target, interval=0.01, patience=60)
        assert next(versions).number == 1
        before = target.read_bytes()
        training.publish(publisher)

    def mix() -> None:
        target.write_bytes(before[:-100] + target.read_bytes()[-100:])
        (place / FILE).write_bytes(older)

    monkeypatch.setattr(follower, "apply_opened", refused)  # as in place
    Outage(monkeypatch, "convert", mix)
    assert next(versions).number == 1
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["copy.tensors", "copy.safetensors"])
def test_a_way_from_an_older_version(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The file never goes back on it."""
    training = Training()
    target = tmp_path / "target" / name
    seen = []
    with Publisher(place) as publisher:
        training.publish(publisher, 3)
        versions = follow(place, target, patience=0)
        assert next(versions).number == 3
        training.publish(publisher)
    real = follower.apply_opened

    def refused_once(*given: Any, **how: Any) -> Any:
        seen.append(int(tensorizer_ops.load(target)["step"]))
        if len(seen) == 1:
            raise errors.HashMismatch("the target is not what it was")
        return real(*given, **how)

    monkeypatch.setattr(follower, "apply_opened", refused_once)
    assert next(versions).number == 4
    assert seen == [3, 3, 3, 3]
    assert same(tensorizer_ops.load(target), training.states[4])
    assert list(target.parent.iterdir()) == [target]
    assert tensorizer_ops.info(target).format == target.suffix[1:]


def refused(*given: Any, **how: Any) -> None:
    raise errors.InvalidArgument("it is written in place")


def test_a_file_that_an_outage_does_not_change(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is still known, so a delta is enough."""
    training = Training()
    target = tmp_path / "copy.tensors"
    with Publisher(place) as publisher:
        training.publish(publisher)
        versions = follow(place, target, interval=0.01, patience=60)
        next(versions)
        kept = shutil.copy(target, tmp_path / "kept.tensors")
        training.publish(publisher)
    (place / listing_of(place).versions[0].files()[0]).unlink()
    Outage(monkeypatch, "apply_opened", lambda: shutil.copy(kept, target))
    assert next(versions).number == 2
    assert same(tensorizer_ops.load(target), training.states[2])


@pytest.mark.parametrize(
    ("uri", "options", "why"),
    [
        ("ftp://host/run", {}, "the scheme 'ftp' is unknown"),
        ("run", {"conections": 4}, "unknown option 'conections'"),
    ],
)
def test_a_node_refuses_what_can_never_come(
    tmp_path: Path, uri: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Node(uri, str(tmp_path), options)
    assert not list(tmp_path.iterdir())


def test_versions_of_a_node(place: Path, tmp_path: Path) -> None:
    """One of two followers works, and the other goes on when it ends."""
    training = Training()
    first, second = (Node(place, str(tmp_path), {}, interval=0.01) for _ in range(2))
    with Publisher(place) as publisher:
        for step in (1, 2, 3):
            training.publish(publisher)
            paths = {node.file(step, patience=60) for node in (first, second)}
            assert len(paths) == 1
            assert same(tensorizer_ops.load(paths.pop()), training.states[step])
        with pytest.raises(errors.NotFound, match=r"version 1 of .* was not kept: version 3"):
            second.file(1, patience=60)
        first.close()
        assert second.file(3, patience=0).exists()
        training.publish(publisher)
        assert same(tensorizer_ops.load(second.file(4, patience=60)), training.states[4])
        with pytest.raises(errors.TimedOut, match=r"version 5 of .* within 0\.05 seconds$"):
            second.file(5, patience=0.05)
        (place / FILE).write_bytes(b"damaged")
        with pytest.raises(errors.TimedOut, match=r"within 1 seconds: .*is damaged"):
            second.file(5, patience=1)
    (folder,) = (path for path in tmp_path.iterdir() if path.name.startswith("tensorizer_ops-"))
    second.close()
    assert not folder.exists()


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_run_that_begins_anew(place: Path, tmp_path: Path, is_followed: bool) -> None:
    """Its versions have the numbers of others, whose files the node still has."""
    old, new = Training(), Training(rate=1e-3)
    with Publisher(place) as publisher:
        old.publish(publisher, 3)
    node = Node(place, str(tmp_path), {}, interval=0.01 if is_followed else 60)
    assert same(tensorizer_ops.load(node.file(3, patience=60)), old.states[3])
    target: dict[str, torch.Tensor] = {}
    versions = follow(place, target, interval=0.01)
    assert next(versions).number == 3
    shutil.rmtree(place)
    with Publisher(place) as publisher:
        for step in (1, 2, 3):
            new.publish(publisher)
            if is_followed:
                assert same(tensorizer_ops.load(node.file(step, patience=60)), new.states[step])
        if not is_followed:  # the file of the old version is still there
            with pytest.raises(errors.TimedOut):
                node.file(3, patience=0.1)
    assert next(versions).number == 3
    assert same(target, new.states[3])
    node.close()


def test_a_node_goes_on_after_any_error(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def fail(*given: Any, **how: Any) -> Any:
        tries.append(given)
        if len(tries) <= 2:
            raise AssertionError
        return Follower(*given, **how)

    monkeypatch.setattr("tensorizer_ops._versions.node.Follower", fail)
    training = Training()
    with Publisher(place) as publisher:
        training.publish(publisher)
    node = Node(place, str(tmp_path / "node"), {}, interval=0.01)
    assert same(tensorizer_ops.load(node.file(1, patience=60)), training.states[1])
    node.close()
    assert caplog.messages.count("AssertionError(): trying again") == 1


def test_a_list_that_is_too_long(place: Path) -> None:
    """It is not read: a server could take hours to send it."""
    with Publisher(place):
        pass
    os.truncate(place / FILE, 90_000_000)
    with pytest.raises(ValueError, match=f"{FILE}' in .* has more than 10240000 bytes"):
        next(follow(place, {}))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_files_in_the_place_of_others(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    """An older or reordered delta, and another model, whose own hashes are right."""
    training = Training()
    training.publish(publisher)
    target = tmp_path / "copy.tensors"
    now(place, target)
    training.publish(publisher, 2)
    first, second, third = listing_of(place).versions
    assert first.whole and second.delta and third.delta
    (place / second.delta).write_bytes((place / third.delta).read_bytes())
    (place / first.whole).rename(place / "away")
    with pytest.raises(errors.Error):
        now(place, target)
    (place / "away").rename(place / first.whole)
    with pytest.raises(errors.InvalidFormat, match="is no delta to version 2"):
        now(place, target)
    assert same(tensorizer_ops.load(target), training.states[1])
    tensorizer_ops.save(place / first.whole, training.states[2])
    with pytest.raises(errors.Error, match="digest"):
        now(place, {})


def test_a_file_that_was_changed(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    training = Training()
    training.publish(publisher)
    target = tmp_path / "copy.tensors"
    for content in (b"", b"no file of tensors", bytes(10_000)):
        target.write_bytes(content)
        assert [version.step for version in now(place, target)] == [1]
        assert same(tensorizer_ops.load(target), training.states[1])
    tensorizer_ops.save(target, training.step())
    now(place, target)
    assert same(tensorizer_ops.load(target), training.states[1])


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"publisher": 1},
        {"publisher": ""},
        {"publisher": "\ud800"},
        {"versions": [{}]},
        {"versions": [{"number": 1}]},
        {"unlisted": [{"name": "../../etc/passwd", "since": 1}]},
        {"unlisted": [{"name": FILE, "since": 1}]},
        {"unlisted": [{"name": f"00000001-{0:016x}.tensors", "since": float("nan")}]},
        {"more": " " * 512 * 10_000},
        {"versions": None},
        "text",
    ],
)
def test_forged_lists(publisher: Publisher, place: Path, damage: Any) -> None:
    Training().publish(publisher)
    text = json.loads(listing_of(place).text())
    changes: list[dict[str, Any]] = [
        {"number": True},
        {"digest": "v2:x"},
        {"whole": "x"},
        {"delta_size": -1},
        {"delta": None, "whole": None},
        {"step": -1},
        {"step": 1 << 63},
        {"whole_size": 10**4000},
    ]
    for change in changes:
        forged = {**text, "versions": [{**text["versions"][0], **change}]}
        refuse_list(place, forged)
    refuse_list(place, {**text, "versions": text["versions"] * 2})
    refuse_list(place, damage if damage == "text" else text | damage)
    (place / FILE).write_bytes(b"x")
    with pytest.raises(errors.InvalidFormat, match=f"{FILE}.*is damaged"):
        now(place, {})


def forge(place: Path, changes: dict[str, Any]) -> None:
    texts = {"tensorizer_ops.versions": json.dumps(json.loads(listing_of(place).text()) | changes)}
    tensorizer_ops.save(place / FILE, {}, metadata=texts)


def test_lists_that_nobody_could_read_are_not_written(publisher: Publisher, place: Path) -> None:
    training = Training()
    training.publish(publisher)
    (version,) = json.loads(listing_of(place).text())["versions"]
    last = (1 << 63) - 1
    renamed = {"number": last, "whole": f"{last}-{'0' * 16}.tensors"}
    forge(place, {"versions": [version | renamed]})
    newer = Publisher(place)
    before = (place / FILE).read_bytes()
    with pytest.raises(errors.InvalidFormat, match=f"is damaged: number is {last + 1}"):
        training.publish(newer)
    assert (place / FILE).read_bytes() == before


def test_many_unlisted_files_are_removed_by_several_calls(
    publisher: Publisher, place: Path
) -> None:
    training = Training()
    training.publish(publisher)
    names = [f"{number:08d}-{0:016x}.tensors" for number in range(250)]
    (place / names[0]).mkdir()  # which no call removes
    (place / names[-1]).touch()
    forge(place, {"unlisted": [{"name": name, "since": 0} for name in names]})
    for left in (151, 51, 1):
        training.publish(publisher)
        assert [file.name for file in listing_of(place).unlisted][-1] == names[0]
        assert len(listing_of(place).unlisted) == left
    assert not (place / names[-1]).exists()


def refuse_list(place: Path, forged: Any) -> None:
    texts = {"tensorizer_ops.versions": json.dumps(forged)}
    tensorizer_ops.save(place / FILE, {}, metadata=texts)
    with pytest.raises(errors.InvalidFormat, match="the list of versions is damaged"):
        now(place, {})
    with pytest.raises(errors.InvalidFormat, match="the list of versions is damaged"):
        Publisher(place)


def test_wrong_arguments(place: Path, tmp_path: Path) -> None:
    for wrong in ({"whole_every": 0}, {"grace": -1}):
        with pytest.raises(errors.InvalidArgument, match=next(iter(wrong))):
            Publisher(place, **wrong)
    with pytest.raises(TypeError, match="interval"):
        follow(place, {}, interval="1")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="target_options is for files"):
        follow(place, {}, target_options={"key": "env:X"})
    (tmp_path / "file").touch()
    with pytest.raises(errors.Error):
        Publisher(tmp_path / "file")
    with pytest.raises(errors.InvalidArgument, match="a follow keeps one"):
        follow(place, place / "m.safetensors", target_options={"max_shard_size": "1"})
    digest = {"digest": f"v2:{'0' * 64}"}
    for given in ({"options": digest}, {"target_options": digest}):
        with pytest.raises(errors.InvalidArgument, match="'digest' is of one version"):
            follow(place, place / "m.tensors", **given)
    trust = {"trust": f"file:{tmp_path / 'key'}"}
    with pytest.raises(errors.InvalidArgument, match="nobody signs what a follow writes"):
        follow(place, place / "m.tensors", target_options=trust)


def test_a_pipe_is_no_target(publisher: Publisher, place: Path, tmp_path: Path) -> None:
    """A read of it would never end, and a write would wait for a reader."""
    Training().publish(publisher)
    target = tmp_path / "pipe.tensors"
    os.mkfifo(target)
    with pytest.raises(errors.InvalidArgument, match="is a pipe or a device"):
        now(place, target)
    target.unlink()
    versions = follow(place, target, patience=0)
    os.mkfifo(target)
    with pytest.raises(errors.InvalidArgument, match="is a pipe or a device"):
        next(versions)


def test_an_empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidArgument, match="the path is empty"):
        Publisher("")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_publisher(place: Path) -> None:
    with Publisher(place) as publisher:
        Training().publish(publisher)
    with pytest.raises(errors.InvalidArgument, match=r"step 2 .* this publisher is closed"):
        publisher.publish({"w": torch.ones(1)}, step=2)
    assert not publisher._last.parent.exists()
    assert [version.step for version in now(place, {})] == [1]


def test_a_list_that_was_removed(place: Path, tmp_path: Path) -> None:
    with Publisher(place) as publisher:
        publisher.publish(_constant(1), step=1)
        (place / FILE).unlink()
        with pytest.raises(FileNotFoundError, match=r"step 2 .* the list of versions was removed"):
            publisher.publish(_constant(2), step=2)
    with Publisher(place) as publisher:
        publisher.publish(_constant(3), step=3)
    assert [version.step for version in now(place, tmp_path / "copy.tensors")] == [3]


@pytest.mark.parametrize("how", [{"interval": -1}, {"patience": -0.5}])
def test_times_that_are_negative(place: Path, tmp_path: Path, how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="seconds, and must be 0 or more"):
        follow(place, tmp_path / "copy.tensors", **how)


def test_a_killed_publisher(place: Path, tmp_path: Path) -> None:
    """KILLS processes are killed while they publish; after each one the place is whole."""
    target = tmp_path / "copy.tensors"
    last = 0
    for kill in range(KILLS):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read_end)
                _publish_forever(place, tmp_path / "scratch", write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            for _ in range(1 + kill % 3):  # calls that have ended
                assert pipe.read(1)
            time.sleep(0.0007 * (kill % 17))  # anywhere in the next one
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        (version,) = now(place, target)
        assert version.number >= last
        last = version.number
        found = tensorizer_ops.load(target, verify="all")
        assert (found["w"] == version.step % 97).all()
    with Publisher(place, grace=0) as publisher:
        publisher.publish(_constant(1), step=1)
        publisher.publish(_constant(2), step=2)
        listed = {name for entry in listing_of(place).versions for name in entry.files()}
    # A process may be killed when a file has another name for a moment.
    left = {path.name for path in place.iterdir() if not path.name.startswith(".tensorizer-")}
    assert left == listed | {FILE, "fence"}


def _constant(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3000,), step % 97, dtype=torch.int16)}


def _publish_forever(place: Path, scratch: Path, pipe: int) -> None:
    with Publisher(place, scratch=scratch, whole_every=3, grace=0, threads=1) as publisher:
        for step in range(1000):
            publisher.publish(_constant(step), step=step)
            os.write(pipe, b".")
