"""Chains of checkpoints of one process, on disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import same
from tensorizer_ops import checkpoint, errors
from tensorizer_ops._chain import lease
from tensorizer_ops._chain.files import remove_step
from tensorizer_ops._chain.listing import Entry
from tensorizer_ops._chain.store import Store
from tensorizer_ops._dcp import one_process
from tensorizer_ops.checkpoint import Chain

KEY = "tensorizer_ops.chain"
LISTS = ("chain.tensors", "chain-copy.tensors")


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.full((500,), float(step)), "step": step, "lr": [step / 7]}


def chain_of(root: Path, *steps: int, **how: Any) -> Chain:
    chain = Chain(root, **({"grace": 0} | how))
    for step in steps:
        chain.save(step, state_of(step))
    return chain


def numbers(chain: Chain) -> list[int]:
    return [each.step for each in chain.steps()]


def files(root: Path) -> set[str]:
    """Returns the names of the files of steps."""
    return {path.name.split("-")[1] for path in root.glob("step-*") if "-read" not in path.name}


def flip(uri: str, at: int = -100) -> None:
    path = Path(uri)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(root: Path, change: Any) -> None:
    """Changes the list of steps, as JSON, in both files."""
    listed = json.loads(tensorizer_ops.metadata(root / LISTS[0])[KEY])
    change(listed)
    for name in LISTS:
        tensorizer_ops.save(root / name, {}, metadata={KEY: json.dumps(listed)})


def test_the_newest_step_is_loaded(tmp_path: Path) -> None:
    chain = chain_of(tmp_path / "run", 10, 20)
    found = chain.load()
    assert (found.step, found.passed_over) == (20, [])
    assert same(found.state["w"], state_of(20)["w"])
    state = state_of(0)
    assert Chain(tmp_path / "run").load(state).state is state
    assert same(state["w"], state_of(20)["w"])
    assert (state["step"], state["lr"]) == (20, [20 / 7])
    for step in chain.steps():
        assert checkpoint.load(step.uri)["step"] == step.step
        assert not step.is_verified


def test_a_chosen_step(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 10, 20)
    assert chain.load(step=10).step == 10
    with pytest.raises(FileNotFoundError, match="has no step 15: it has 10, 20"):
        chain.load(step=15)
    flip(chain.steps()[1].uri)
    with pytest.raises(errors.InvalidFormat, match=r"step 20 of .* is damaged: .*SHA-256"):
        chain.load(step=20)


def test_damaged_steps_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chain = chain_of(tmp_path, 1, 2, 3, 4)
    places = [Path(each.uri) for each in chain.steps()]
    flip(str(places[3]))
    places[2].write_bytes(places[2].read_bytes()[:-1000])
    places[1].unlink()
    state = state_of(0)
    found = chain.load(state)
    assert (found.step, state["step"]) == (1, 1)
    assert [each.step for each in found.passed_over] == [4, 3, 2]
    for over, text in zip(found.passed_over, ("SHA-256", "truncated", "No such file"), strict=True):
        assert text in over.reason
        assert over.reason in caplog.text
    assert {record.name for record in caplog.records} == {"tensorizer_ops.checkpoint"}
    assert chain.load().step == 1
    flip(str(places[0]))
    with pytest.raises(errors.InvalidFormat, match=r"(?s)no step of .*step 4: .*step 1: "):
        chain.load(state_of(0))


def test_a_damaged_step_does_not_touch_the_state(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.save(1, {name: torch.ones(1 << 20) for name in "abc"})
    flip(chain.steps()[0].uri)  # in the last tensor
    state = {name: torch.zeros(1 << 20) for name in "abc"}
    with pytest.raises(errors.InvalidFormat, match="'c'"):
        chain.load(state)
    assert not any(tensor.any() for tensor in state.values())


def test_only_damage_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(tmp_path, 1, 2)
    with pytest.raises(RuntimeError, match="more"):
        chain.load({**state_of(0), "more": torch.zeros(1)})

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Store, "verify", broken)
    with pytest.raises(OSError, match="Input/output"):
        chain.load(state_of(0))


@pytest.mark.parametrize("damaged", LISTS)
def test_a_list_that_is_damaged_costs_nothing(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain = chain_of(tmp_path, 1, 2)
    flip(str(tmp_path / damaged), 200)
    assert numbers(chain) == [1, 2]
    assert "the other copy of the list is used" in caplog.text
    (tmp_path / damaged).unlink()
    assert numbers(chain) == [1, 2]
    chain.save(3, state_of(3))
    (tmp_path / LISTS[1 - LISTS.index(damaged)]).unlink()
    assert numbers(chain) == [1, 2, 3]


@pytest.mark.parametrize("name", LISTS)
def test_the_newer_list_counts(tmp_path: Path, name: str) -> None:
    """A save may die between the two."""
    chain = chain_of(tmp_path, 1)
    older = (tmp_path / name).read_bytes()
    chain.save(2, state_of(2))
    (tmp_path / name).write_bytes(older)
    assert numbers(chain) == [1, 2]


def test_no_list(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "run")
    assert chain.steps() == []
    for call in (chain.load, lambda: chain.prune(1)):
        with pytest.raises(FileNotFoundError, match="run' has no chain of checkpoints"):
            call()
    chain.save(1, state_of(1))
    for name in LISTS:
        flip(str(tmp_path / "run" / name), 200)
    for call in (chain.load, chain.steps, lambda: chain.prune(1), lambda: chain.save(2, {})):
        with pytest.raises((errors.InvalidFormat, errors.HashMismatch), match=LISTS[0]):
            call()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda found: found.pop("saved"), "'saved'"),
        (lambda found: found.update(version=2), "version 2, and this release reads 1"),
        (lambda found: found["saved"][0].update(name="../../etc"), "is called '../../etc'"),
        (lambda found: found["saved"][0].update(name="step-1-0123456789abcde/"), "is called"),
        (lambda found: found["saved"][0].update(ranks=1 << 40), "ranks"),
        (lambda found: found["saved"][0].update(step="1"), "step is '1'"),
        (lambda found: found["saved"][0].update(more=1), "other fields"),
        (lambda found: found.update(writes=1.5), "numbers"),
        (lambda found: found.update(writes=10**4300 - 1), "numbers"),
        (lambda found: found.update(writes=-1), "numbers"),
        (lambda found: found["saved"][0].update(since=float("nan")), "since is nan"),
        (lambda found: found["saved"][0].update(ranks=-1), "ranks is -1"),
        (lambda found: found.update(more=" " * 192 * 100_000), "more than 19200000 characters"),
        (lambda found: found.update(saved=5), "not iterable"),
    ],
    ids=range(14),
)
def test_hostile_lists(tmp_path: Path, change: Any, text: str) -> None:
    chain = chain_of(tmp_path, 1)
    edit(tmp_path, change)
    with pytest.raises(errors.InvalidFormat, match=f"chain.tensors' .*: the list .*{text}"):
        chain.load()


def test_keep(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1, 2, 3, 4, keep=2)
    assert [(each.step, each.is_verified) for each in chain.steps()] == [(3, True), (4, True)]
    assert files(tmp_path) == {"2", "3", "4"}  # the next save removes step 2
    chain.save(5, state_of(5))
    assert files(tmp_path) == {"3", "4", "5"}


def test_steps_that_do_not_verify_do_not_count(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1, 2, 3, 4)
    flip(chain.steps()[3].uri)
    flip(chain.steps()[1].uri)
    assert [each.step for each in chain.prune(2)] == []
    assert [(each.step, each.is_verified) for each in chain.steps()] == [
        (1, True),
        (2, False),
        (3, True),
        (4, False),
    ]
    assert [each.step for each in chain.prune(1)] == [1, 2]
    assert numbers(chain) == [3, 4]
    assert files(tmp_path) == {"3", "4"}


def test_the_last_good_step_is_never_removed(tmp_path: Path) -> None:
    """Also if the newer ones were good when they were verified."""
    chain = chain_of(tmp_path, 1, 2, 3, keep=3)
    for step in chain.steps()[1:]:
        flip(step.uri)
    assert chain.prune(1) == []
    assert chain.load().step == 1
    assert chain.prune(1) == []


def test_what_was_saved_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(tmp_path, 1, keep=1)
    save = one_process.save

    def save_badly(uri: str, *given: Any, **how: Any) -> None:
        save(uri, *given, **how)
        flip(uri)

    monkeypatch.setattr(one_process, "save", save_badly)
    with pytest.raises(errors.HashMismatch):
        chain.save(2, state_of(2))
    monkeypatch.undo()
    assert numbers(chain) == [1]
    chain.save(3, state_of(3))
    chain.save(4, state_of(4))
    assert numbers(chain) == [4]
    assert files(tmp_path) == {"3", "4"}


def test_what_a_save_has_left_is_removed(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1)

    def fail(done: int, total: int) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        chain.save(2, state_of(2), progress=fail)
    listed = json.loads(tensorizer_ops.metadata(tmp_path / LISTS[0])[KEY])["unfinished"]
    left = tmp_path / f"{listed[0]['name']}.tensors"
    left.write_bytes(b"a part of it")
    assert numbers(chain) == [1]
    chain.save(3, state_of(3))
    chain.save(4, state_of(4))
    assert not left.exists()


def unfinished(ranks: int) -> dict[str, Any]:
    name = f"step-9-{9:016x}"
    return {"step": 9, "name": name, "ranks": ranks, "since": 0.0, "is_verified": False}


def test_only_files_that_are_there_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that anybody can write names any number of ranks."""
    chain = chain_of(tmp_path, 1)
    edit(tmp_path, lambda found: found["unfinished"].append(unfinished(999_999)))
    left = tmp_path / f"step-9-{9:016x}"
    left.mkdir()
    names = [f"rank-{rank}-{9:016x}.tensors" for rank in (0, 7)]
    for name in (*names, "checkpoint.tensors", "checkpoint.tensors.sig", "notes"):
        (left / name).touch()
    removed: list[str] = []
    monkeypatch.setattr(chain._store.folder, "remove", removed.append)
    chain.save(2, state_of(2))
    assert removed == [f"{left.name}-read.tensors"]
    assert [path.name for path in left.iterdir()] == ["notes"]


def test_the_removal_of_many_files_takes_little_memory() -> None:
    """On a server, where it is not known which are there."""

    class Server:
        path = None
        removed = 0

        def remove(self, name: str) -> None:
            self.removed += 1

    server: Any = Server()
    tracemalloc.start()
    remove_step(server, Entry(**unfinished(5000)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert server.removed == 2 * 5001 + 1
    assert peak < 1 << 20


def test_no_files_of_others_are_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chain = chain_of(tmp_path / "run", 1)
    edit(tmp_path / "run", lambda found: found["unfinished"].append(unfinished(1)))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "checkpoint.tensors").touch()
    (tmp_path / "run" / f"step-9-{9:016x}").symlink_to(foreign)
    chain.save(2, state_of(2))
    assert (foreign / "checkpoint.tensors").exists()
    assert "step 9 stays on disk for now: cannot remove" in caplog.text


def test_a_step_that_is_read_stays(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1, 2, 3)
    chain.load(step=1)
    assert [each.step for each in chain.prune(1)] == [1, 2]
    assert files(tmp_path) == {"1", "3"}
    (lease,) = tmp_path.glob("step-1-*-read.tensors")
    tensorizer_ops.save(lease, {}, metadata={f"{KEY}.read_until": str(time.time() - 1)})
    chain.prune(1)
    assert files(tmp_path) == {"3"}
    assert not lease.exists()
    (lease,) = (Path(each.uri).with_suffix("") for each in chain.steps())
    tensorizer_ops.save(
        f"{lease}-read.tensors", {}, metadata={f"{KEY}.read_until": str(time.time() + 1e6)}
    )
    chain.save(4, state_of(4))
    chain.prune(1)
    assert files(tmp_path) == {"4"}  # that clock was wrong


def test_grace(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1, 2, grace=3600)
    assert [each.step for each in chain.prune(1)] == [1]
    assert files(tmp_path) == {"1", "2"}

    def an_hour_ago(listed: Any) -> None:
        listed["removed"][0]["since"] -= 3600

    edit(tmp_path, an_hour_ago)
    assert chain.prune(1) == []
    assert files(tmp_path) == {"2"}


def test_a_step_that_is_removed_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease comes too late: the list says so."""
    chain = chain_of(tmp_path, 1, 2)
    other = Chain(tmp_path, grace=0)
    take = lease.take

    def save_and_prune(*given: Any) -> None:
        monkeypatch.undo()
        other.save(3, state_of(3))
        other.prune(1)
        take(*given)

    monkeypatch.setattr(lease, "take", save_and_prune)
    found = chain.load(state_of(0))
    assert (found.step, found.passed_over) == (3, [])


def test_two_that_save_at_the_same_time(tmp_path: Path) -> None:
    chain, other = chain_of(tmp_path, 1), Chain(tmp_path)
    saved: list[int] = []

    def save_too(done: int, total: int) -> None:
        if not saved:
            saved.append(3)
            other.save(3, state_of(3))

    with pytest.raises(errors.InvalidArgument, match="before that of step 2 had ended"):
        chain.save(2, state_of(2), progress=save_too)
    assert numbers(chain) == [1, 3]
    assert files(tmp_path) == {"1", "3"}


def test_many_that_save_and_prune(tmp_path: Path) -> None:
    """A save that has succeeded is in the list, whoever has changed that meanwhile."""
    chain_of(tmp_path, 1)
    saved: list[int] = []

    def save(first: int) -> None:
        chain = Chain(tmp_path, grace=0)
        for step in range(first, first + 8):
            try:
                chain.save(step, {"step": step})
            except errors.InvalidArgument:
                continue
            saved.append(step)

    def prune() -> None:
        for _ in range(20):
            Chain(tmp_path, grace=0).prune(100)

    with ThreadPoolExecutor() as pool:
        work = [pool.submit(save, 10), pool.submit(save, 20), pool.submit(prune)]
    for each in work:
        each.result()
    assert set(numbers(Chain(tmp_path))) == {1, *saved}
    assert files(tmp_path) == {str(step) for step in (1, *saved)}


def test_a_step_in_the_place_of_another(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1, 2, 3)
    one, two, three = (Path(each.uri) for each in chain.steps())
    shutil.copy(one, three)
    two.unlink()
    two.symlink_to(one)
    for state in (None, state_of(0)):
        found = chain.load(state)
        assert (found.step, found.state["step"]) == (1, 1)
        assert "is not what was saved as step 3" in found.passed_over[0].reason


def test_a_damaged_step_does_not_count(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, 1, 2, 3, keep=2)
    flip(chain.steps()[1].uri)
    assert chain.load().step == 2
    chain.save(4, state_of(4))
    assert [(each.step, each.is_verified) for each in chain.steps()] == [
        (2, True),
        (3, False),
        (4, True),
    ]


@pytest.mark.parametrize("what", ["list", "step", "lease"])
@pytest.mark.parametrize("how", ["fifo", "folder"])
def test_what_is_no_file(tmp_path: Path, what: str, how: str) -> None:
    chain = chain_of(tmp_path, 1, 2)
    step = Path(chain.steps()[1].uri)
    lease = step.with_name(f"{step.stem}-read.tensors")
    path = {"list": tmp_path / LISTS[0], "step": step, "lease": lease}[what]
    path.unlink(missing_ok=True)
    os.mkfifo(path) if how == "fifo" else path.mkdir()
    wanted = 1 if what == "step" else 2
    assert chain.load(state_of(0)).step == wanted
    assert chain.load().step == wanted
    if what == "list":
        if how == "folder":
            with pytest.raises(errors.IsADirectory):
                chain.save(3, state_of(3))
        else:
            chain.save(3, state_of(3))
            assert path.is_file()


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_links(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = chain_of(tmp_path / "run", 1)
    foreign = tmp_path / "foreign"
    if there:
        foreign.write_text("precious")
    step = Path(chain.steps()[0].uri)
    step.with_name(f"{step.stem}-read.tensors").symlink_to(foreign)
    assert chain.load(state_of(0)).step == 1
    (tmp_path / "run" / LISTS[1]).unlink()
    (tmp_path / "run" / LISTS[1]).symlink_to(foreign)
    monkeypatch.setattr("secrets.token_hex", lambda _: f"{7:016x}")  # known once it is listed
    (tmp_path / "run" / f"step-2-{7:016x}.tensors").symlink_to(foreign)
    chain.save(2, state_of(2))
    assert not any(path.is_symlink() for path in (tmp_path / "run").iterdir())
    assert foreign.exists() == there
    assert not there or foreign.read_text() == "precious"


def test_a_place_without_room(tmp_path: Path) -> None:
    """Loads go on where nothing can be written."""
    chain = chain_of(tmp_path, 1)
    (tmp_path / f"{Path(chain.steps()[0].uri).stem}-read.tensors").mkdir()
    assert chain.load().step == 1


def test_going_back(tmp_path: Path) -> None:
    """The newest step is the one that was saved last."""
    chain = chain_of(tmp_path, 10, 20)
    assert chain.load(step=10).step == 10
    chain.save(15, state_of(15))
    assert chain.load().step == 15
    chain.save(20, {"again": 1})
    assert chain.load(step=20).state == {"again": 1}


def test_in_the_background(tmp_path: Path) -> None:
    chain, state = Chain(tmp_path, keep=1, grace=0), state_of(1)
    saving = chain.save_async(1, state, metadata={"run": "a"})
    state["w"] += 1
    saving.result()
    found = chain.load()
    assert same(found.state["w"], state_of(1)["w"])
    assert tensorizer_ops.metadata(chain.steps()[0].uri)["run"] == "a"
    with pytest.raises(TypeError, match="which only pickle could save"):
        chain.save_async(2, {"x": object()}).result()
    assert numbers(chain) == [1]


def test_encrypted(tmp_path: Path) -> None:
    tensorizer_ops.keys.add("chain", passphrase="one")
    tensorizer_ops.keys.add("other", passphrase="two")
    options = {"key": "named:chain", "kdf": "interactive"}
    chain = chain_of(tmp_path, 1, 2, keep=2, options=options)
    assert chain.load().step == 2
    with pytest.raises(errors.Crypto, match=r"chain\.tensors.*wrong key"):
        Chain(tmp_path, options={"key": "named:other"}).load()
    without = Chain(tmp_path, keep=1)
    for call in (without.load, without.steps, without.prune, lambda: without.save(3, {})):
        with pytest.raises(errors.Crypto, match="are encrypted: name their key"):
            call()
    flip(chain.steps()[1].uri)
    assert chain.load(state_of(0)).step == 1


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="hashes is 'none'"):
        Chain(tmp_path, hashes="none")
    with pytest.raises(errors.InvalidArgument, match="keep is 0, and must be at least 1"):
        Chain(tmp_path, keep=0)
    chain = chain_of(tmp_path, 1)
    with pytest.raises(errors.InvalidArgument, match="verify is 'none'"):
        chain.load(verify="none")
    with pytest.raises(errors.InvalidArgument, match="step is -1, and must be at least 0"):
        chain.save(-1, {})
    with pytest.raises(errors.InvalidArgument, match="give keep="):
        chain.prune()
    with pytest.raises(errors.InvalidArgument, match=r"'tensorizer_ops\.chain\.step'"):
        chain.save(2, {}, metadata={"tensorizer_ops.chain.step": "x"})
    with pytest.raises(errors.InvalidArgument, match="is a file, and a chain is a folder"):
        Chain(tmp_path / LISTS[0])
    with pytest.raises(errors.InvalidArgument, match=r"is a chain: load it with checkpoint\.Chain"):
        checkpoint.load(tmp_path)
    assert repr(chain) == f"<tensorizer_ops.checkpoint.Chain: '{tmp_path}'>"
