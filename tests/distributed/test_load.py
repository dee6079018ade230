"""Loads that several ranks share: the same tensors everywhere, and every byte read once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.web import free_port, nginx
from support.ranks import run_ranks
from tensorizer_ops import errors

# Loads on every rank, and compares each byte with what one process loads.
COMPARE = """
uri, how, *rest = given
how = json.loads(how)
dtype = getattr(torch, how.pop("dtype")) if "dtype" in how else None
gathers = how.pop("gathers", False)
if gathers:
    from tensorizer_ops._distributed import peers
    peers.host = lambda: str(rank)
loaded = distributed.load(uri, dtype=dtype, **how)
expected = tensorizer_ops.load(uri, dtype=dtype, names=how.get("names"),
                               options=how.get("options"))
assert list(loaded) == list(expected)
for name, tensor in expected.items():
    assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
    ours, theirs = (t.reshape(-1).view(torch.uint8) for t in (loaded[name], tensor))
    assert torch.equal(ours, theirs), name
"""


def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = {"large": (40_000, 257), "wide": (1, 3_000_001), "scalar": (), "empty": (0, 5)}
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=torch.float32)
        for name, shape in sizes.items()
    }
    small = {f"layer.{i}.weight": torch.full((i % 7, 33), i / 3).half() for i in range(200)}
    return {**small, **tensors}


HOWS = {
    "plain": ({}, {}),
    "verified": ({}, {"verify": "all"}),
    "verified in chunks": ({"hashes": "chunked"}, {"verify": "all"}),
    "cast": ({}, {"dtype": "bfloat16"}),
    "names": ({}, {"names": ["scalar", "large", "layer.3.weight"]}),
    "encrypted": ({"options": {"key": "env:MODEL_KEY"}}, {"options": {"key": "env:MODEL_KEY"}}),
    "encrypted and verified": (
        {"options": {"key": "env:MODEL_KEY"}},
        {"options": {"key": "env:MODEL_KEY"}, "verify": "all"},
    ),
    "little memory": ({}, {"options": {"memory_ceiling": str(1 << 20)}}),
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", bytes(range(32)).hex())


@pytest.mark.parametrize("gathers", [False, True], ids=["one host", "several hosts"])
@pytest.mark.parametrize("how", HOWS)
def test_every_rank_has_what_one_process_loads(tmp_path: Path, how: str, gathers: bool) -> None:
    saved, loaded = HOWS[how]
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, model(), **saved)
    given = json.dumps({**loaded, "gathers": gathers})
    run_ranks(tmp_path / "ranks", COMPARE, path, given, count=3)


@pytest.mark.parametrize("verify", ["all", "none"])
def test_a_server_sends_the_file_once(tmp_path: Path, verify: str) -> None:
    """Each rank reads the index, and no byte of the data is sent twice, nor read ahead."""
    with nginx(tmp_path) as web:
        path = web.root / "model.tensors"
        # A share is read in several pieces.
        tensorizer_ops.save(path, {"one": torch.arange(4e7)}, hashes="chunked")
        os.utime(path, (1e9, 1e9))  # the beginning of a new file is read again, to see it unchanged
        for gathers in (False, True):
            web.requests()
            how = json.dumps({"verify": verify, "gathers": gathers})
            run_ranks(tmp_path / str(gathers), ALONE, web.url("model.tensors"), how)
            requests = web.requests()
            sent = sum(int(line.split('"')[2].split()[-1]) for line in requests)
            assert 0 <= sent - path.stat().st_size < 4 * (2 << 20)
            # A CPU that hashes fewer chunks at a time asks for fewer of them.
            assert len(requests) <= 4 * (1 + 10 + 4), "they ask for less than 4 MiB at a time"


ALONE = """
how = json.loads(given[1])
if how.pop("gathers"):
    from tensorizer_ops._distributed import peers
    peers.host = lambda: str(rank)
loaded = distributed.load(given[0], **how)
assert loaded["one"].numel() == 40_000_000 and loaded["one"][-1] != 0
"""

# The peak begins at what the rank uses before the load, which has warmed everything up.
MEMORY = """
from tensorizer_ops._distributed import peers
peers.host = lambda: str(rank)
def memory(field):
    return int(open("/proc/self/status").read().partition(f"{field}:")[2].split()[0]) << 10
options = {"memory_ceiling": given[1]}
distributed.load(given[0], names=["tiny"], options=options)
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
loaded = distributed.load(given[0], options=options)
report(memory("VmHWM") - before - sum(tensor.nbytes for tensor in loaded.values()))
"""


def test_a_rank_takes_the_memory_of_its_tensors_and_the_ceiling(tmp_path: Path) -> None:
    """On several hosts, from a server, which is read ahead."""
    ceiling, slack = 16 << 20, 8 << 20
    with nginx(tmp_path) as web:
        state = {"large": torch.ones(32 << 20), "tiny": torch.ones(1)}
        tensorizer_ops.save(web.root / "model.tensors", state, hashes="none")
        outcome = run_ranks(tmp_path / "ranks", MEMORY, web.url("model.tensors"), ceiling, count=3)
    assert all(0 < report < ceiling + slack for report in outcome.reports), outcome.reports


# A failure on one rank: all raise it, within seconds, and the group can still be used.
FAILS = """
from tensorizer_ops._distributed import peers
if given[1] == "gathers":
    peers.host = lambda: str(rank)
start = time.monotonic()
try:
    distributed.load(given[0], verify=given[2])
except Exception as error:
    report([type(error).__name__, str(error), time.monotonic() - start])
if given[3] == "goes on":
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
"""


@pytest.mark.parametrize("gathers", ["gathers", "shares"])
def test_damage_that_one_rank_finds(tmp_path: Path, gathers: str) -> None:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"a": torch.ones(1 << 22), "b": torch.ones(9)}, hashes="chunked")
    data = bytearray(path.read_bytes())
    data[3 * len(data) // 8] ^= 1
    path.write_bytes(data)
    outcome = run_ranks(tmp_path / "ranks", FAILS, path, gathers, "all", "goes on")
    for rank, (kind, text, took) in enumerate(outcome.reports):
        assert kind == "HashMismatch" and "'a'" in text and took < 20
        assert text.startswith("rank 1: ") == (rank != 1)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path / "ranks", FAILS, tmp_path / "none", "shares", "none", "goes on")
    assert {report[0] for report in outcome.reports} == {"NotFound"}


DIFFERENT = """
try:
    distributed.load(given[rank])
except ValueError as error:
    report(str(error))
"""


def test_ranks_that_load_different_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a.tensors", tmp_path / "b.tensors"]
    for path in paths:
        tensorizer_ops.save(path, {path.stem: torch.ones(4)})
    outcome = run_ranks(tmp_path / "ranks", DIFFERENT, *paths, count=2)
    assert all("rank 1 loads something else" in report for report in outcome.reports)


# A stale copy on one rank, which has the same names and shapes.
STALE = """
os.makedirs(given[0] + f"/{rank}")
os.chdir(given[0] + f"/{rank}")
value = 2.0 if rank == 0 else float(given[1])
model = {name: torch.full((100_000,), value) for name in "ab"}
tensorizer_ops.save("m.tensors", model, hashes=given[2])
try:
    loaded = distributed.load("m.tensors", verify=given[3])
except ValueError as error:
    report(str(error))
else:
    report([tensor.unique().tolist() for tensor in loaded.values()])
"""


@pytest.mark.parametrize(
    ("hashes", "verify"), [("chunked", "all"), ("all", "all"), ("none", "none")]
)
def test_copies_of_other_versions(tmp_path: Path, hashes: str, verify: str) -> None:
    for value in (1, 2):
        given = (tmp_path / str(value), value, hashes, verify)
        reports = run_ranks(tmp_path / f"ranks {value}", STALE, *given, count=2).reports
        if value == 1:
            assert all("rank 1 loads something else" in report for report in reports)
        else:
            assert reports == [[[2.0], [2.0]]] * 2


META = """
model = {"a": torch.ones(4), "f4": torch.empty(2, 0, dtype=torch.float4_e2m1fn_x2)}
if rank == 0:
    tensorizer_ops.save(given[0], model)
dist.barrier()
loaded = distributed.load(given[0], device="meta")
assert loaded["a"].is_meta and loaded["a"].shape == (4,)
try:
    distributed.load(given[0], device="meta" if rank == 1 else "cpu")
except ValueError as error:
    report(str(error))
from tensorizer_ops._distributed import peers
peers.host = lambda: str(rank)
assert distributed.load(given[0])["f4"].shape == (2, 0)
"""


def test_the_meta_device(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path / "ranks", META, tmp_path / "m.tensors", count=2)
    assert all("meta on some ranks only" in report for report in outcome.reports)


# Wrong arguments on one rank: the others must not wait for it.
WRONG = """
if rank == 0:
    tensorizer_ops.save(given[0], {"a": torch.ones(4)})
dist.barrier()
found = []
for how in ({"verify": 3}, {"names": [1]}, {"device": "nope"}, {"options": {"nope": "1"}}):
    start = time.monotonic()
    try:
        distributed.load(given[0], **(how if rank == 1 else {}))
    except Exception as error:
        found.append([type(error).__name__, str(error), time.monotonic() - start])
report(found)
"""


def test_wrong_arguments_on_one_rank(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path / "ranks", WRONG, tmp_path / "m.tensors", count=3)
    for rank, found in enumerate(outcome.reports):
        assert [kind for kind, _, _ in found] == [
            *("TypeError", "TypeError", "InvalidArgument", "InvalidArgument")
        ]
        for _, text, took in found:
            assert text.startswith("rank 1: ") == (rank != 1) and took < 20


# Rank 1 does not make the call: all others say so, and blame no other.
ABSENT = """
from tensorizer_ops._distributed import peers
start = time.monotonic()
if rank != 1:
    group = dist.group.WORLD
    dist.distributed_c10d._get_process_group_store(group).set_timeout(
        datetime.timedelta(seconds=1))
    try:
        distributed.load(given[0])
    except Exception as error:
        report(str(error))
else:
    while not all(os.path.exists(f"{folder}/{other}.json") for other in (0, 2)):
        time.sleep(0.05)
os._exit(0)
"""


def test_a_rank_that_does_not_call(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "m.tensors", {"a": torch.ones(4)})
    outcome = run_ranks(tmp_path / "ranks", ABSENT, tmp_path / "m.tensors", count=3)
    for rank in (0, 2):
        assert "rank 1 has not made this call" in outcome.reports[rank]


# One rank ends at a random moment; the others must not wait for it.
KILLED = """
from tensorizer_ops._distributed import heartbeat, peers
heartbeat._BEAT, heartbeat._GONE, peers._GRACE = 0.1, 1.0, 0.3
if given[1] == "gathers":
    peers.host = lambda: str(rank)
dist.barrier()
start = time.monotonic()
if rank == int(given[2]):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(given[3]))
try:
    distributed.load(given[0], verify="all")
except Exception as error:
    report([type(error).__name__, str(error), time.monotonic() - start])
else:
    report(None)
os._exit(0)
"""


@pytest.mark.parametrize("gathers", ["gathers", "shares"])
def test_a_rank_that_is_killed_at_any_moment(tmp_path: Path, gathers: str) -> None:
    """13 moments in each of two ways: all others end within seconds, with an error or a load."""
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"a": torch.ones(1 << 23)}, hashes="chunked")
    ended_early = 0
    for moment in range(13):
        victim = moment % 3
        arguments = (path, gathers, victim, 0.001 + moment * 0.012)
        keeper = 0 if moment % 2 else None
        outcome = run_ranks(tmp_path / str(moment), KILLED, *arguments, count=3, keeper=keeper)
        if outcome.statuses[victim] == 0:  # it was faster
            continue
        ended_early += 1
        for rank, report in enumerate(outcome.reports):
            if rank == victim or report is None:
                continue
            kind, text, took = report
            assert issubclass(getattr(errors, kind), ConnectionError), text
            assert took < 20, (moment, text)
    assert ended_early > 2


# Ranks 1 and 2 are a group; another device is the default.
SUBGROUP = """
group = dist.new_group([1, 2])
if rank != 0:
    torch.set_default_device("meta")
    loaded = distributed.load(given[0], group, device="cpu", dtype=torch.float64)
    assert loaded["a"].device.type == "cpu" and loaded["a"].tolist() == [1, 2, 3]
    loaded["a"].fill_(rank)
    dist.barrier(group)
    assert loaded["a"].tolist() == [rank] * 3, "another rank has written to it"
else:
    try:
        distributed.load(given[0], group)
    except ValueError as error:
        report(str(error))
"""


def test_a_group_of_some_ranks(tmp_path: Path) -> None:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"a": torch.tensor([1.0, 2.0, 3.0])})
    outcome = run_ranks(tmp_path / "ranks", SUBGROUP, path, count=3)
    assert "rank 0 is not in the group" in outcome.reports[0]


# Rank 0 keeps the store, and ends.
WITHOUT_STORE = """
store = dist.TCPStore("127.0.0.1", int(given[1]), size, rank == 0, wait_for_workers=True)
dist.destroy_process_group()
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.barrier()
if rank == 0:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
start = time.monotonic()
try:
    while True:
        distributed.load(given[0], dtype=torch.float64)
except ConnectionError as error:
    report([str(error), time.monotonic() - start])
os._exit(0)
"""


def test_the_rank_that_keeps_the_store_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"a": torch.ones(1 << 20)})
    outcome = run_ranks(tmp_path / "ranks", WITHOUT_STORE, path, free_port(), count=3)
    assert outcome.statuses == [-signal.SIGALRM, 0, 0]
    for text, took in outcome.reports[1:]:
        assert took < 20 and ("store" in text or "ended" in text or "connection" in text)
