"""Chains of checkpoints of four ranks: all load the same step, or none does."""

from __future__ import annotations

from pathlib import Path

from support.ranks import run_ranks
from support.signer import Signer

PREPARE = """
from pathlib import Path
from support.chain_faults import state_of, step_of
from tensorizer_ops import errors
from tensorizer_ops.checkpoint import Chain
root = Path(given[0])
chain = Chain(root, keep=3, grace=0)

def files(step):
    (folder,) = filter(Path.is_dir, root.glob(f"step-{step}-*"))  # beside it may be a lease
    return sorted(folder.iterdir())

def outcome(call):
    try:
        return call()
    except BaseException as error:  # of which torch's is one
        return f"{type(error).__name__}: {error}"
"""


def test_all_ranks_go_back(tmp_path: Path) -> None:
    """Also for damage that one rank finds. The ranks share the files to verify."""
    body = (
        PREPARE
        + """
for step in (1, 2, 3):
    chain.save(step, state_of(step, size))
if rank == 0:
    newest = files(3)[2]
    newest.write_bytes(newest.read_bytes()[:-100])
dist.barrier()
state = state_of(0, size)
found = chain.load(state)
alone = chain.load(group=False)
second = step_of(state)
dist.barrier()
if rank == 0:
    next(iter(root.glob("step-2-*/checkpoint.tensors"))).unlink()
dist.barrier()
third = chain.load(state_of(0, size)).step
report([found.step, second, [each.step for each in found.passed_over], alone.step, third,
        chain.load(group=False).step])
"""
    )
    ranks = run_ranks(tmp_path / "ranks", body, tmp_path / "run")
    assert ranks.reports == [[2, 2, [3], 2, 1, 1]] * 4


def test_a_link_in_the_place_of_a_step(tmp_path: Path) -> None:
    """Others can make one when the list has the name of the step."""
    body = (
        PREPARE
        + """
from tensorizer_ops._chain.store import Store
write, other = Store.write, root / "other"
other.mkdir(parents=True, exist_ok=True)

def planted(store, listing):
    write(store, listing)
    for entry in listing.unfinished:
        (root / entry.name).symlink_to(other)

Store.write = planted
report([outcome(lambda: chain.save(1, state_of(1, size))), [*other.iterdir()]])
"""
    )
    for error, files in run_ranks(tmp_path / "ranks", body, tmp_path / "run").reports:
        assert "cannot make the folder of step 1: File exists" in error
        assert not files


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    body = (
        PREPARE
        + """
chain.save(1, state_of(1, size))
chain.save(2, state_of(2, size))
wrong = state_of(0, size) | ({"more": torch.zeros(1)} if rank == 2 else {})
load = outcome(lambda: chain.load(wrong))
bad = state_of(3, size) | ({"bad": object()} if rank == 1 else {})
save = outcome(lambda: chain.save(3, bad))
report([load, save, chain.load(group=False).step])
"""
    )
    for load, save, step in run_ranks(tmp_path / "ranks", body, tmp_path / "run").reports:
        assert load.startswith("RuntimeError: ")
        assert "more" in load
        assert save.startswith("CheckpointException: ")
        assert "only pickle could save" in save
        assert step == 2


def test_in_the_background(tmp_path: Path) -> None:
    body = (
        PREPARE
        + """
for step in (1, 2, 3, 4, 5):
    if step == 3 and rank == 0:  # it stays when the step is removed, and hinders nothing
        (files(1)[0].parent / "notes").write_text("of a user")
    state = state_of(step, size)
    saving = chain.save_async(step, state)
    state["model"]["t0"].to_local().zero_()
    saving.result()
state = state_of(0, size)
report([chain.load(state).step, step_of(state), [each.step for each in chain.steps()]])
"""
    )
    ranks = run_ranks(tmp_path / "ranks", body, tmp_path / "run")
    assert ranks.reports == [[5, 5, [3, 4, 5]]] * 4
    folders = [path for path in (tmp_path / "run").glob("step-*") if path.is_dir()]
    assert len(folders) == 5  # with a foreign file in one, and one that the next save removes


def test_signed_steps(tmp_path: Path) -> None:
    """A file of one rank that is not signed makes all go back."""
    signer = Signer(tmp_path)
    body = (
        PREPARE
        + """
chain = Chain(root, sign=Path(given[1]), options={"trust": "file:" + given[2]}, grace=0)
for step in (1, 2):
    chain.save(step, state_of(step, size))
chain.save_async(3, state_of(3, size)).result()
state = state_of(0, size)
first = [chain.load(state).step, step_of(state), sum(p.suffix == ".sig" for p in files(3))]
dist.barrier()
if rank == 0:
    next(iter(root.glob("step-3-*/rank-2-*.sig"))).unlink()
dist.barrier()
second = [chain.load(state).step, step_of(state), chain.load(group=False).step]
dist.barrier()
if rank == 0:  # an older step in the place of the newer one
    for file in files(1):
        (files(2)[0].parent / file.name).write_bytes(file.read_bytes())
dist.barrier()
third = chain.load(state_of(0, size)).step
chain.prune(1) if rank == 0 else None
dist.barrier()
report([first, second, third, len(list(root.glob("step-1-*/*.sig")))])
"""
    )
    where = (tmp_path / "run", signer.private, signer.public)
    ranks = run_ranks(tmp_path / "ranks", body, *where)
    assert ranks.reports == [[[3, 3, 5], [2, 2, 2], 1, 5]] * 4
