"""Versions that a publisher signs, and what somebody can do who may write the place, but not sign.

The list of versions is not signed, so all of it may be forged.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import assert_same
from support.signed_versions import KEY, list_of, publish, state_of
from support.signer import IDENTITY, Signer
from tensorizer_ops import Publisher, _core, errors, follow
from tensorizer_ops._versions import follower as follower_module
from tensorizer_ops._versions.listing import FILE


def forge(place: Path, versions: list[dict[str, Any]]) -> None:
    listed = list_of(place) | {"versions": versions}
    tensorizer_ops.save(place / FILE, {}, metadata={KEY: json.dumps(listed)})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


class Follower:
    """A file that follows."""

    def __init__(self, place: Path, file: Path, options: dict[str, str]) -> None:
        self.file = file
        self._versions: Iterator[Any] = iter(())
        self._again: Callable[[], Iterator[Any]] = lambda: follow(
            place, file, patience=0, options=options
        )

    def now(self) -> list[int]:
        return [version.number for version in self._again()]

    def step(self) -> int:
        return int(tensorizer_ops.load(self.file, verify="all")["w"][0])


@pytest.fixture
def follower(place: Path, tmp_path: Path, signer: Signer) -> Follower:
    return Follower(place, tmp_path / "copy.tensors", signer.options)


def test_signed_versions(place: Path, signer: Signer, follower: Follower) -> None:
    memory: dict[str, torch.Tensor] = {}
    for step in (1, 2, 3):
        publish(place, range(step, step + 1), signer.private)
        assert follower.now() == [step]
        assert follower.step() == step
        assert list(follow(place, memory, patience=0, options=signer.options))
        assert memory["w"].equal(state_of(step)["w"])
    # Also those who trust nobody can follow.
    assert list(follow(place, {}, patience=0))


def test_certificates_behind_the_key(place: Path, signer: Signer, tmp_path: Path) -> None:
    leaf, root = signer.certificates()
    both = tmp_path / "both.pem"
    both.write_bytes(signer.private.read_bytes() + leaf.read_bytes())
    publish(place, range(1, 3), both)
    tensorizer_ops.trust.add("certified", roots=[root], identities=[IDENTITY])
    (found,) = follow(place, {}, patience=0, options={"trust": "named:certified"})
    assert found.number == 2
    both.write_bytes(signer.private.read_bytes() + leaf.read_bytes()[:-40])
    with pytest.raises(errors.InvalidArgument, match=r"both\.pem.*certificate 1 is damaged"):
        publish(place, range(3, 4), both)


def test_signatures_go_with_their_files(place: Path, signer: Signer, tmp_path: Path) -> None:
    publish(place, range(1, 9), signer.private, whole_every=2, scratch=tmp_path / "scratch")
    named = {name for each in list_of(place)["versions"] for name in (each["delta"], each["whole"])}
    unlisted = {each["name"] for each in list_of(place)["unlisted"]}
    found = {path.name for path in place.iterdir() if path.suffix == ".sig"}
    assert len(found) < 8
    assert {name + ".sig" for name in named - {None}} <= found
    assert found <= {name + ".sig" for name in (named - {None}) | unlisted}


@pytest.mark.parametrize("other", ["nobody", "somebody else"])
def test_versions_of_others(
    place: Path, signer: Signer, follower: Follower, tmp_path: Path, other: str
) -> None:
    publish(place, range(1, 2), signer.private)
    assert follower.now() == [1]
    sign = None if other == "nobody" else Signer(tmp_path / "others").private
    publish(place, range(2, 3), sign)
    names = [path.name for path in place.glob("00000002-*.tensors")]
    with pytest.raises(errors.Crypto, match=r"it is not signed|expected is the key") as caught:
        follower.now()
    assert any(name in str(caught.value) for name in names)
    with pytest.raises(errors.Crypto):
        list(follow(place, {}, patience=0, options=signer.options))
    assert follower.step() == 1
    publish(place, range(3, 4), signer.private)
    assert follower.now() == [3]


@pytest.mark.parametrize("how", ["in place", "on disk"])
def test_an_older_version_under_a_newer_number(
    place: Path, signer: Signer, follower: Follower, how: str
) -> None:
    publish(place, range(1, 3), signer.private, whole_every=1)
    assert follower.now() == [2]
    first, second = list_of(place)["versions"]
    if how == "in place":
        forge(place, [first, second, first | {"number": 3}])
        with pytest.raises(errors.InvalidFormat, match="the list of versions is damaged"):
            follower.now()
    # The name is part of what is signed.
    renamed = "00000003" + first["whole"][8:]
    for end in ("", ".sig"):
        shutil.copy(place / (first["whole"] + end), place / (renamed + end))
    forge(place, [first, second, first | {"number": 3, "whole": renamed}])
    with pytest.raises(errors.Crypto, match=renamed):
        follower.now()
    assert follower.step() == 2


def test_a_number_that_the_target_would_get_for_nothing(
    place: Path, signer: Signer, follower: Follower
) -> None:
    """The file is that version already, says the list, so nothing needs to be read."""
    publish(place, range(1, 3), signer.private, whole_every=1)
    assert follower.now() == [2]
    first, second = list_of(place)["versions"]
    number = f"{3:08d}-{second['whole'][9:]}"
    for new in (
        {"whole": number, "delta": None},
        {"whole": None, "delta": number.replace(".", ".delta.", 1)},
    ):
        forge(place, [first, second, second | {"number": 3} | new])
        with pytest.raises((FileNotFoundError, errors.Crypto)):
            follower.now()
    forge(place, [first, second])
    assert follower.now() == [2]


def test_lists_that_go_back(
    place: Path, signer: Signer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(place, range(1, 3), signer.private)
    older = (place / FILE).read_bytes()
    publish(place, range(3, 4), signer.private)
    memory: dict[str, torch.Tensor] = {}
    versions = follow(place, memory, interval=0.01, patience=0.1, options=signer.options)
    assert next(versions).number == 3
    newer = (place / FILE).read_bytes()
    (place / FILE).write_bytes(older)
    assert list(versions) == []
    assert caplog.text.count("ends with version 2, and version 3 was here before") == 1
    assert memory["w"].equal(state_of(3)["w"])
    (place / FILE).write_bytes(newer)
    # A follower that begins has not seen the newer one.
    assert [each.number for each in follow(place, {}, patience=0, options=signer.options)] == [3]


@pytest.fixture(params=["memory", "file"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What a follower is given: a dict, or a file."""
    return {} if request.param == "memory" else tmp_path / "copy.tensors"


def has(held: Any) -> float:
    tensors = held if isinstance(held, dict) else tensorizer_ops.load(held)
    (value,) = tensors["w"].unique().tolist()
    return float(value)


def full_of(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((300_000,), value)}


def published(place: Path, signer: Signer, count: int) -> list[dict[str, Any]]:
    """Publish versions, each in whole and as a delta, and return how they are listed."""
    entries = []
    with Publisher(place, sign=signer.private, whole_every=1, grace=600) as publisher:
        for value in range(1, count + 1):
            publisher.publish(full_of(value), step=value)
            entries.append(list_of(place)["versions"][-1])
    return entries


@pytest.mark.parametrize("values", [(1, 2, 3), (1, 2, 1)])
@pytest.mark.parametrize("change", ["another digest", "no delta", "both"])
def test_no_older_version_on_the_way_to_a_newer_one(
    place: Path, signer: Signer, held: Any, change: str, values: tuple[int, ...]
) -> None:
    """Nothing may lead on from there."""
    with Publisher(place, sign=signer.private, whole_every=9) as publisher:
        for value in (*values, 4):
            if value == 4:
                versions = follow(place, held, interval=0.01, patience=0.1, options=signer.options)
                assert next(versions).number == 3
            publisher.publish(full_of(value), step=value)
    *older, third, fourth = list_of(place)["versions"]
    assert [each["whole"] is None for each in older] == [False, True]
    if change != "no delta":
        forge(place, [*older, third | {"digest": fourth["digest"]}, fourth])
    if change != "another digest":
        (place / fourth["delta"]).unlink()
    with pytest.raises((errors.InvalidFormat, errors.NotFound)):
        next(versions)
    assert has(held) == values[-1]


def test_a_list_older_than_what_was_reached(
    place: Path, signer: Signer, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version may be there that was never returned, as the way to a newer one has ended."""
    lists = []
    with Publisher(place, sign=signer.private, whole_every=1, grace=600) as publisher:
        for value in (1, 2, 3, 4):
            publisher.publish(full_of(value), step=value)
            lists.append(list_of(place)["versions"])
    forge(place, lists[1])
    versions = follow(place, held, interval=0.01, patience=0.1, options=signer.options)
    assert next(versions).number == 2
    third, fourth = lists[-1]
    forge(place, [third | {"delta": None}, fourth | {"whole": None}])
    opened = follower_module.Follower._delta_to

    def older_list(self: Any, entry: Any) -> Any:
        forge(place, lists[1])
        return away() if entry.number == 4 else opened(self, entry)

    with monkeypatch.context() as patched:
        patched.setattr(follower_module.Follower, "_delta_to", older_list)
        if isinstance(held, dict):
            with pytest.raises(errors.Unavailable):
                list(versions)
        else:  # which is another version only when that is the newest
            assert not list(versions)
    assert has(held) == (3 if isinstance(held, dict) else 2)


def test_a_way_that_ends_behind_deltas(
    place: Path, signer: Signer, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What deltas have reached is not replaced by an older version, which may lead no further.

    A file only has what was newest.
    """
    first, second, third, fourth = published(place, signer, 4)
    forge(place, [first])
    versions = follow(place, held, interval=0.01, patience=0.1, options=signer.options)
    assert next(versions).number == 1
    forge(place, [first, second, third | {"whole": None}, fourth | {"whole": None}])
    (place / fourth["delta"]).write_bytes(b"damaged")
    loaded, load = [], follower_module.Follower._load

    def then_damaged(self: Any, entry: Any, target: Any) -> None:
        loaded.append((entry.number, has(held)))
        load(self, entry, target)
        (place / third["delta"]).write_bytes(b"damaged")

    monkeypatch.setattr(follower_module.Follower, "_load", then_damaged)
    with pytest.raises(errors.HashMismatch, match="00000003"):
        list(versions)
    reached = 3 if isinstance(held, dict) else 1
    assert loaded == [(2, reached)]
    assert has(held) == reached


def test_what_is_between_versions_has_no_name(
    place: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So others cannot exchange it, and a process that is killed leaves nothing."""
    target = tmp_path / "served" / "copy.tensors"
    first, *others = published(place, signer, 4)
    forge(place, [first])
    versions = follow(place, target, interval=0.01, patience=0.1, options=signer.options)
    assert next(versions).number == 1
    forge(place, [first, *(each | {"whole": None} for each in others)])
    seen, apply = [], follower_module.Follower._apply

    def then_listed(self: Any, entry: Any, base: Any, target: Any = None) -> None:
        seen.append(os.listdir(tmp_path / "served"))
        apply(self, entry, base, target)
        seen.append(os.listdir(tmp_path / "served"))

    monkeypatch.setattr(follower_module.Follower, "_apply", then_listed)
    assert [each.number for each in versions] == [4]
    assert seen == [["copy.tensors"]] * 6
    assert has(target) == 4


def test_an_upload_whose_answer_was_lost(
    place: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has brought the target to a newer version than was returned."""
    target = tmp_path / "copy.tensors"
    first, second, third = published(place, signer, 3)
    forge(place, [first])
    versions = follow(place, target, interval=0.01, patience=0.1, options=signer.options)
    assert next(versions).number == 1
    forge(place, [first, second, third | {"delta": None}])
    convert = follower_module.convert

    def then_lost(*given: Any, **how: Any) -> None:
        convert(*given, **how)
        forge(place, [first, second])
        monkeypatch.undo()
        raise errors.Unavailable("the answer was lost")

    monkeypatch.setattr(follower_module, "convert", then_lost)
    assert not list(versions)
    assert has(target) == 3


def test_a_follower_that_begins_and_a_list_with_wrong_digests(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    """Nobody signs what it says of the file, which stays until the newest version is made."""
    target = tmp_path / "copy.tensors"
    with Publisher(place, sign=signer.private, whole_every=9) as publisher:
        for value in (1, 2, 3):
            publisher.publish(full_of(value), step=value)
    assert [each.number for each in follow(place, target, patience=0, options=signer.options)]
    first, second, third = list_of(place)["versions"]
    forge(place, [first, second, third | {"digest": "v2:" + "0" * 64}])
    (place / second["delta"]).write_bytes(b"damaged")
    with pytest.raises(errors.HashMismatch, match="00000002"):
        list(follow(place, target, patience=0, options=signer.options))
    assert has(target) == 3


@pytest.mark.parametrize("is_trusting", [True, False])
def test_a_follower_that_begins_and_a_delta_that_fails(
    place: Path, signer: Signer, tmp_path: Path, is_trusting: bool
) -> None:
    target = tmp_path / "copy.tensors"
    options = signer.options if is_trusting else None
    first, second, third, fourth = published(place, signer, 4)
    forge(place, [second | {"delta": None}, third])
    assert [each.number for each in follow(place, target, patience=0, options=options)] == [3]
    forge(place, [first, *({**each, "whole": None} for each in (second, third, fourth))])
    for entry in (second, fourth):
        (place / entry["delta"]).write_bytes(b"damaged")
    with pytest.raises(errors.Error, match="00000002"):
        list(follow(place, target, patience=0, options=options))
    assert has(target) == 3


@pytest.mark.parametrize("is_new", [True, False])
def test_a_file_that_another_follower_has_brought_on(
    place: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    target = tmp_path / "copy.tensors"
    one, two, three, four, five = published(place, signer, 5)
    versions = follow(place, target, interval=0.01, patience=0.1, options=signer.options)
    if not is_new:
        forge(place, [one])
        assert next(versions).number == 1
    forge(place, [two, three | {"whole": None}, four | {"whole": None}])
    assert [each.number for each in follow(place, target, patience=0, options=signer.options)]
    forge(place, [three, *(each | {"whole": None} for each in (four, five))])
    opened = follower_module.Follower._delta_to

    def away_then(self: Any, entry: Any) -> Any:
        return away() if entry.number == 4 else opened(self, entry)

    monkeypatch.setattr(follower_module.Follower, "_delta_to", away_then)
    assert not list(versions)
    assert has(target) == 4


def test_a_file_with_the_content_of_an_older_version(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    """A follower that begins may take it for that, and a list may lead no further from there."""
    target = tmp_path / "copy.tensors"
    with Publisher(place, sign=signer.private, whole_every=9) as publisher:
        for value in (1, 2, 1):
            publisher.publish(full_of(value), step=value)
        assert [each.number for each in follow(place, target, patience=0, options=signer.options)]
        publisher.publish(full_of(4), step=4)
    first, second, third, fourth = list_of(place)["versions"]
    forge(place, [first, second, third | {"digest": "v2:" + "0" * 64}, fourth])
    with pytest.raises(errors.InvalidFormat, match="00000003"):
        list(follow(place, target, patience=0, options=signer.options))
    assert has(target) == 1


def test_memory_that_the_program_has_changed(place: Path, signer: Signer) -> None:
    """It is brought on, over an older version that is not seen there."""
    held = full_of(1.0)
    with Publisher(place, sign=signer.private, whole_every=9) as publisher:
        publisher.publish(full_of(1.0), step=1)
        publisher.publish(full_of(2.0), step=2)
        versions = follow(place, held, interval=0.01, patience=0.1, options=signer.options)
        assert next(versions).number == 2
        held["w"][7] = 5
        publisher.publish(full_of(3.0), step=3)
        assert next(versions).number == 3
    assert has(held) == 3


def away(*given: Any, **how: Any) -> None:
    raise errors.Unavailable("the server does not answer")


@pytest.mark.parametrize("end", ["same list", "no list", "empty list", "older list", "stop"])
def test_memory_that_is_no_version_at_the_end(
    place: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    stop = threading.Event()
    patience = 60 if end == "stop" else 0.1
    how: dict[str, Any] = {"interval": 0.01, "patience": patience, "stop": stop}
    versions = follow(place, {}, options=signer.options, **how)
    with Publisher(place, sign=signer.private) as publisher:
        for step in (1, 2):
            publisher.publish(state_of(step), step=step)
        assert next(versions).number == 2
        publisher.publish(state_of(3), step=3)

    def fail(*given: Any, **how: Any) -> None:
        if end == "stop":
            stop.set()
        elif end == "no list":
            (place / FILE).unlink()
        elif end != "same list":
            forge(place, list_of(place)["versions"][:1] if end == "older list" else [])
        away()

    monkeypatch.setattr(follower_module, "apply_opened", fail)
    with pytest.raises(errors.Unavailable, match="does not answer"):
        list(versions)


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("second", ["damaged", "away"])
def test_a_way_from_an_older_version_that_ends(
    place: Path,
    signer: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    second: str,
) -> None:
    target: Any = tmp_path / "target" / "copy.tensors" if kind == "file" else {}
    versions = follow(place, target, interval=0.01, patience=0.1, options=signer.options)
    with Publisher(place, sign=signer.private) as publisher:
        for step in (1, 2, 3):
            publisher.publish(state_of(step), step=step)
    assert next(versions).number == 3
    first, older, last = list_of(place)["versions"]
    name = last["delta"].replace("00000003", "00000004")
    new = last | {"number": 4, "delta": name, "digest": "v2:" + "0" * 64}
    forge(place, [first, older, last, new])
    (place / name).write_bytes(b"damaged")
    if second == "damaged":
        (place / older["delta"]).write_bytes(b"damaged")
    else:
        opened = follower_module.Follower._delta_to

        def away_then(self: Any, entry: Any) -> Any:
            return away() if entry.number == 2 else opened(self, entry)

        monkeypatch.setattr(follower_module.Follower, "_delta_to", away_then)
    if second == "damaged":
        with pytest.raises((errors.Crypto, errors.HashMismatch)):
            list(versions)
    else:
        assert not list(versions)
    found = tensorizer_ops.load(target) if kind == "file" else target
    assert found["w"].equal(state_of(3)["w"])
    if kind == "file":
        assert list(target.parent.iterdir()) == [target]


def test_a_list_that_says_that_the_file_is_an_older_version(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    target = tmp_path / "copy.tensors"
    versions = follow(place, target, patience=0, options=signer.options)
    with Publisher(place, sign=signer.private, whole_every=1, grace=600) as publisher:
        for step in (1, 2, 3):
            publisher.publish(state_of(step), step=step)
    assert next(versions).number == 3
    second, third = list_of(place)["versions"][-2:]
    first = second | {"number": 1, "digest": third["digest"], "delta": None}
    first["whole"] = second["whole"].replace("00000002", "00000001")
    fourth = third | {"number": 4, "whole": None, "digest": "v2:" + "0" * 64}
    fourth["delta"] = third["delta"].replace("00000003", "00000004")
    forge(place, [first, second, third | {"whole": None, "digest": "v2:" + "1" * 64}, fourth])
    (place / third["delta"]).write_bytes(b"damaged")
    with pytest.raises(errors.HashMismatch, match="00000003"):
        next(versions)
    assert tensorizer_ops.load(target)["w"].equal(state_of(3)["w"])


def test_another_signed_delta_of_the_same_name(
    place: Path, signer: Signer, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was of a publish that failed."""
    with Publisher(place, sign=signer.private) as publisher:
        publisher.publish(state_of(1), step=1)
        assert follower.now() == [1]
        with monkeypatch.context() as patched:
            patched.setattr(publisher._place, "write", away)
            with pytest.raises(errors.Unavailable):
                publisher.publish(state_of(666), step=2)
        other = {path: path.read_bytes() for path in place.glob("00000002-*")}
        publisher.publish(state_of(2), step=2)
    assert len(other) == 2
    opened = follower_module.Follower._delta_to

    def exchanged(*given: Any) -> Any:
        delta = opened(*given)
        for path, content in other.items():
            path.unlink()
            path.write_bytes(content)
        return delta

    monkeypatch.setattr(follower_module.Follower, "_delta_to", exchanged)
    assert follower.now() == [2]
    assert follower.step() == 2


def test_links_that_are_left_out_or_are_of_another_chain(
    place: Path, signer: Signer, follower: Follower, tmp_path: Path
) -> None:
    publish(place, range(1, 2), signer.private)
    assert follower.now() == [1]
    publish(place, range(1, 4), signer.private, scratch=tmp_path / "scratch")
    versions = list_of(place)["versions"]
    whole = next(each for each in versions[1:] if each["whole"])
    last = versions[-1]
    assert last["delta"]
    assert not last["whole"]
    # The delta to the last version, as if it were made of the first one.
    forge(place, [versions[0], last | {"number": 2}])
    with pytest.raises(errors.InvalidFormat, match="is damaged"):
        follower.now()
    forge(place, [last])
    with pytest.raises(errors.InvalidFormat, match="no way leads to the newest version"):
        follower.now()
    # That of another chain by the same key.
    other = tmp_path / "other"
    with Publisher(other, sign=signer.private) as publisher:
        for step in (10, 20):
            publisher.publish(state_of(step) | {"other": torch.ones(1)}, step=step)
    theirs = list_of(other)["versions"][1]
    for path in other.iterdir():
        if path.name != FILE:
            shutil.copy(path, place)
    for digest in (whole["digest"], theirs["digest"]):
        forge(place, [versions[0], theirs | {"digest": digest}])
        with pytest.raises((errors.InvalidArgument, errors.InvalidFormat)):
            follower.now()
    assert follower.step() == 1


def test_files_that_were_changed(place: Path, signer: Signer, follower: Follower) -> None:
    publish(place, range(1, 2), signer.private)
    (version,) = list_of(place)["versions"]
    whole = place / version["whole"]
    content = whole.read_bytes()
    whole.write_bytes(content + bytes(1000))
    with pytest.raises(errors.HashMismatch, match=f"has {len(content) + 1000} bytes, and the key"):
        follower.now()
    whole.write_bytes(content)
    forge(place, [version | {"digest": "v2:" + "0" * 64}])
    with pytest.raises(errors.HashMismatch, match="digest"):
        follower.now()
    assert not follower.file.exists()


def test_a_damaged_delta_is_avoided(
    place: Path, signer: Signer, follower: Follower, tmp_path: Path
) -> None:
    with Publisher(place, sign=signer.private, whole_every=1) as publisher:
        publisher.publish(state_of(1), step=1)
        assert follower.now() == [1]
        publisher.publish(state_of(2), step=2)
    delta = list_of(place)["versions"][-1]["delta"]
    (place / f"{delta}.sig").unlink()
    assert follower.now() == [2]
    assert follower.step() == 2


def test_a_publisher_signs_no_number_twice(place: Path, signer: Signer) -> None:
    with Publisher(place, sign=signer.private) as publisher:
        publisher.publish(state_of(1), step=1)
        older = (place / FILE).read_bytes()
        publisher.publish(state_of(2), step=2)
        newer = (place / FILE).read_bytes()
        (place / FILE).write_bytes(older)
        files = sorted(place.iterdir())
        with pytest.raises(ValueError, match="whose last version is 1, and not 2"):
            publisher.publish(state_of(3), step=3)
        assert sorted(place.iterdir()) == files
        (place / FILE).write_bytes(newer)
        (first, _) = list_of(place)["versions"]
        renamed = first["whole"].replace("00000001", "00001000")
        forge(place, [first | {"number": 1000, "whole": renamed}])
        with pytest.raises(ValueError, match="whose last version is 1000, and not 2"):
            publisher.publish(state_of(3), step=3)
        assert sorted(place.iterdir()) == files
        (place / FILE).write_bytes(newer)
        assert publisher.publish(state_of(3), step=3).number == 3


def test_a_publisher_that_was_taken_over_stays_so(place: Path, signer: Signer) -> None:
    """Also if somebody puts its own last list back."""
    with Publisher(place, sign=signer.private) as first:
        first.publish(state_of(1), step=1)
        own = (place / FILE).read_bytes()
        with Publisher(place, sign=signer.private) as second:
            second.publish(state_of(2), step=2)
        for _ in range(2):
            with pytest.raises(FileExistsError, match="another publisher has begun since this one"):
                first.publish(state_of(3), step=3)
            (place / FILE).write_bytes(own)


def test_a_file_that_was_changed_is_not_the_same_model_again(
    place: Path, signer: Signer, tmp_path: Path
) -> None:
    target = tmp_path / "served.tensors"
    with Publisher(place, sign=signer.private) as publisher:
        publisher.publish(state_of(1), step=1)
        following = follow(place, target, patience=60, interval=0.01, options=signer.options)
        assert next(following).number == 1
        lying(target)
        publisher.publish(state_of(1), step=2)
        assert next(following).number == 2
    assert_same(tensorizer_ops.load(target), state_of(1))


def lying(file: Path) -> None:
    """Change a tensor, and not the digests that the file lists."""
    data = bytearray(file.read_bytes())
    at = data.index(tensorizer_ops.load(file)["w"].numpy().tobytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("digests", ["false", "true"])
def test_what_a_file_says_of_itself_is_not_believed(
    place: Path, signer: Signer, tmp_path: Path, digests: str
) -> None:
    older, newer, delta = (tmp_path / f"{name}.tensors" for name in ("older", "newer", "delta"))
    for number, file in ((1, older), (2, newer)):
        tensorizer_ops.save(file, state_of(number), options={"digests": digests})
    tensorizer_ops.delta(older, newer, delta)
    for file in (delta, newer):
        tensorizer_ops.sign(file, key=signer.private, shard_size=100)
    trusting = {"delta_options": signer.options, "base_options": signer.options}
    assert not tensorizer_ops.apply(delta, newer, **trusting)  # it is the newer one
    lying(newer)
    with pytest.raises(errors.HashMismatch, match="are not those that"):
        tensorizer_ops.apply(delta, newer, **trusting)
    with pytest.raises(ValueError, match="it is not what the delta was made from"):
        tensorizer_ops.apply(delta, newer, delta_options=signer.options)
    publish(place, range(2, 3), signer.private)
    for _ in follow(place, newer, patience=0, options=signer.options):
        pass
    assert torch.equal(tensorizer_ops.load(newer)["w"], state_of(2)["w"])


def test_nothing_is_signed_that_was_replaced_on_the_way(
    place: Path, signer: Signer, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher signs what it has written, and never what it finds in the place."""
    tensorizer_ops.save(place.parent / "bad.tensors", state_of(666))
    bad = (place.parent / "bad.tensors").read_bytes()
    upload = _core.upload

    def replaced(source: str, target: str, options: Any) -> None:
        upload(source, target, options)
        for path in place.glob("0*.tensors"):
            path.write_bytes(bad)

    monkeypatch.setattr(_core, "upload", replaced)
    publish(place, range(1, 2), signer.private)
    with pytest.raises(errors.HashMismatch, match=r"the key [0-9a-f]{64} signed"):
        follower.now()
    assert not follower.file.exists()


def test_a_wrong_key(place: Path, tmp_path: Path) -> None:
    with (
        Publisher(place, sign=tmp_path / "none.pem") as publisher,
        pytest.raises(FileNotFoundError, match=r"none\.pem"),
    ):
        publisher.publish(state_of(1), step=1)
    assert not list(follow(place, {}, patience=0))


def test_a_list_that_is_no_file(place: Path, signer: Signer) -> None:
    """A read of a FIFO would never end."""
    publish(place, range(1, 2), signer.private)
    (place / FILE).unlink()
    os.mkfifo(place / FILE)
    with pytest.raises(errors.InvalidFormat, match="is no file"):
        next(follow(place, {}, patience=0, options=signer.options))


@pytest.mark.parametrize("field", ["whole", "delta"])
def test_a_delta_is_no_whole_model(
    place: Path, signer: Signer, follower: Follower, field: str
) -> None:
    """Both are signed, and only their names say what they are."""
    publish(place, range(1, 3), signer.private, whole_every=1)
    last = list_of(place)["versions"][-1]
    name = last["delta" if field == "whole" else "whole"]
    digest = tensorizer_ops.digest(place / name, version=2)
    nothing = {"delta": None, "whole": None, "whole_size": 0, "delta_size": 0}
    forge(place, [last | nothing | {field: name, "digest": digest}])
    with pytest.raises(errors.InvalidFormat, match="the list of versions is damaged"):
        follower.now()


@pytest.mark.parametrize("whole_every", [1, 9])
def test_metadata_of_the_file_that_follows(
    place: Path, signer: Signer, follower: Follower, tmp_path: Path, whole_every: int
) -> None:
    """It says how the tensors of a checkpoint are nested, and is in no digest of a model."""
    state = tmp_path / "state.tensors"
    with Publisher(place, sign=signer.private, whole_every=whole_every) as publisher:
        for rate in (0.1, 0.2):
            tensorizer_ops.checkpoint.save(state, {"w": torch.ones(3), "rate": rate})
            publisher.publish(state, step=1)
    assert follower.now() == [2]
    assert follower.now() == [2]
    metadata = tensorizer_ops.metadata(follower.file)
    changed = {key: text.replace("0.2", "9.9") for key, text in metadata.items()}
    assert changed != metadata
    tensors = tensorizer_ops.load(follower.file, copy=True)
    tensorizer_ops.save(follower.file, tensors, metadata=changed)
    assert follower.now() == [2]
    assert tensorizer_ops.checkpoint.load(follower.file)["rate"] == 0.2


def test_ties_of_the_file_that_follows(place: Path, signer: Signer, follower: Follower) -> None:
    """What is written to one name of a tied tensor is seen by the other."""
    state = {"a": torch.ones(30), "b": torch.ones(30)}
    with Publisher(place, sign=signer.private) as publisher:
        publisher.publish(state, step=1)
    tied = {"a": state["a"], "b": state["a"]}
    tensorizer_ops.save(follower.file, tied, options={"share": "true"})
    assert follower.now() == [1]
    found = tensorizer_ops.load(follower.file)
    assert found["a"].data_ptr() != found["b"].data_ptr()


def test_a_delta_to_what_differs_in_what_no_digest_covers(tmp_path: Path, signer: Signer) -> None:
    older, newer, delta = (tmp_path / f"{name}.tensors" for name in ("older", "newer", "delta"))
    tensorizer_ops.save(older, state_of(1))
    tensorizer_ops.save(newer, state_of(2), metadata={"how": "right"})
    tensorizer_ops.delta(older, newer, delta)
    tensorizer_ops.sign(delta, key=signer.private)
    assert not tensorizer_ops.apply(delta, newer, delta_options=signer.options)
    for other in ({"how": "wrong"}, {"how": "right", "tensorizer_ops.delta_of": "nobody"}):
        tensorizer_ops.save(newer, state_of(2), metadata=other)
        with pytest.raises(errors.HashMismatch, match="but other metadata, names"):
            tensorizer_ops.apply(delta, newer, delta_options=signer.options)


@pytest.mark.parametrize("kind", ["tensors", "safetensors"])
def test_a_delta_to_what_has_ties_that_nobody_signed(
    tmp_path: Path, signer: Signer, kind: str
) -> None:
    """Also if the delta has a format that has no ties."""
    older, newer, delta = (tmp_path / f"{name}.{kind}" for name in ("older", "newer", "delta"))
    state = {name: torch.ones(300, 300) for name in "ab"}
    tensorizer_ops.save(newer, state)
    tensorizer_ops.save(older, {name: 0 * each for name, each in state.items()})
    tensorizer_ops.delta(older, newer, delta)
    tensorizer_ops.sign(delta, key=signer.private)
    file = tmp_path / "file.tensors"
    tensorizer_ops.save(file, state)
    assert not tensorizer_ops.apply(delta, file, delta_options=signer.options)
    tensorizer_ops.save(file, {"a": state["a"], "b": state["a"]}, options={"share": "true"})
    with pytest.raises(errors.HashMismatch, match="but other metadata, names"):
        tensorizer_ops.apply(delta, file, delta_options=signer.options)
