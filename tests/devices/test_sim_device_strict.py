"""The simulated device itself: it detects misuse, and any of its waits can be left out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support import sim_device as sim
from support.process import run_python
from support.sim_samples import FREED, NEW, is_all, pattern, pinned, upload


@pytest.fixture(autouse=True)
def fresh_device() -> Iterator[None]:
    with sim.fresh():
        yield


# Misuse is detected.


@pytest.mark.parametrize("wait", ["stream", "event", "device"])
def test_lazy_streams_show_a_missing_wait(wait: str) -> None:
    source = pattern(5000).to("sim")
    target = pinned(5000).fill_(0)
    target.copy_(source, non_blocking=True)
    event = torch.Event("sim")
    event.record()
    assert is_all(target, 0)
    if wait == "stream":
        torch.accelerator.current_stream().synchronize()
    elif wait == "event":
        event.synchronize()
    else:
        torch.accelerator.synchronize()
    assert torch.equal(target, pattern(5000))
    name = f"{wait}.synchronize"
    assert sim.counter(name) == 1


def test_asking_is_enough_to_get_work_done() -> None:
    target = pinned(5000)
    torch.zeros(5000, dtype=torch.uint8, device="sim").copy_(target, non_blocking=True)
    stream = torch.accelerator.current_stream()
    assert not stream.query()
    while not stream.query():
        pass
    assert sim.counter("stream.query") >= 2


def test_pinned_sources_are_read_late_and_others_at_once() -> None:
    for source, expected in ((pinned(5000), 1), (pattern(5000), 2)):
        there = torch.empty(5000, dtype=torch.uint8, device="sim")
        source.fill_(2)
        there.copy_(source, non_blocking=True)
        source.fill_(1)
        assert is_all(there, expected)
    assert sim.counter("copies.async_to_device") == 1
    assert sim.counter("copies.staged") == 1 + 2  # the last two are those of is_all()


def test_pinned_memory_that_needs_converting_is_staged() -> None:
    there = torch.empty(100, 50, device="sim")
    there.copy_(torch.ones(100, 50, dtype=torch.half, pin_memory=True), non_blocking=True)
    there.copy_(torch.ones(50, 100, pin_memory=True).t(), non_blocking=True)
    assert (sim.counter("copies.async_to_device"), sim.counter("copies.staged")) == (0, 2)
    there.t().copy_(torch.ones(50, 100, pin_memory=True), non_blocking=True)
    assert sim.counter("copies.async_to_device") == 1


SEGFAULT = """
import ctypes, sys, torch
from support import sim_device
tensor = torch.zeros(10, device="sim")
torch.accelerator.synchronize()
print("before", flush=True)
if sys.argv[1] == "read":
    ctypes.string_at(tensor.data_ptr(), 1)
else:
    ctypes.memset(tensor.data_ptr(), 0, 1)
"""


@pytest.mark.parametrize("access", ["read", "write"])
def test_host_has_no_access(access: str) -> None:
    done = run_python(SEGFAULT, access, check=False)
    assert (done.stdout, done.returncode) == (b"before\n", -signal.SIGSEGV)


def test_memory_must_not_be_freed_under_a_stream() -> None:
    side = torch.Stream("sim")
    target = pinned(5000)
    tensor = torch.zeros(5000, dtype=torch.uint8, device="sim")
    side.wait_stream(torch.accelerator.current_stream())
    with sim.use(side):
        target.copy_(tensor, non_blocking=True)
    del tensor
    (violation,) = sim.violations()
    assert "which nobody has recorded" in violation
    torch.accelerator.current_stream().synchronize()
    side.synchronize()
    assert "works on 5000 bytes" in sim.violations()[1]
    assert is_all(target, FREED)


def test_freed_memory_goes_back_to_the_system() -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssShmem"))

    before = resident()
    for _ in range(8):
        torch.zeros(40 << 20, dtype=torch.uint8, device="sim")
        torch.accelerator.synchronize()
    assert resident() - before < 128 << 20


@pytest.mark.parametrize("how", ["record", "join", "synchronize"])
def test_memory_may_be_freed_when_that_is_safe(how: str) -> None:
    side = torch.Stream("sim")
    source = pinned(5000)
    tensor = torch.empty(5000, dtype=torch.uint8, device="sim")
    side.wait_stream(torch.accelerator.current_stream())
    with sim.use(side):
        tensor.copy_(source, non_blocking=True)
        if how == "record":
            tensor.record_stream(side)
    if how == "join":
        torch.accelerator.current_stream().wait_stream(side)
    if how == "synchronize":
        side.synchronize()
    del tensor
    torch.accelerator.synchronize()
    assert not sim.violations()


def test_memory_belongs_to_the_stream_that_allocated_it() -> None:
    side = torch.Stream("sim")
    tensor = torch.empty(5000, dtype=torch.uint8, device="sim")
    with sim.use(side):
        tensor.fill_(1)
    (violation,) = sim.violations()
    assert "has not waited for it" in violation
    side.synchronize()
    # Only now does the first stream fill the memory that it allocated.
    assert is_all(tensor, NEW)


def test_pinned_memory_comes_back_when_its_streams_are_done() -> None:
    there = torch.empty(5000, dtype=torch.uint8, device="sim")
    source = pinned(5000)
    address = source.data_ptr()
    there.copy_(source, non_blocking=True)
    del source
    other = pinned(5000)  # queries the stream, which starts its work
    assert other.data_ptr() != address
    assert torch.equal(there.cpu(), pattern(5000))
    del other
    blocks = [pinned(5000), pinned(5000)]
    assert address in [block.data_ptr() for block in blocks]


def test_a_view_inside_a_pinned_block_protects_nothing() -> None:
    """As on CUDA, a block is found only by its start address or its owner."""
    there = torch.empty(1000, dtype=torch.uint8, device="sim")
    source = pinned(5000)
    inside = torch.frombuffer(source.numpy(), dtype=torch.uint8)[1000:2000]
    assert inside.is_pinned()
    there.copy_(inside, non_blocking=True)
    del inside, source
    assert is_all(there, FREED)


def test_out_of_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate 4611686018427387904 bytes"):
        torch.empty(1 << 62, dtype=torch.uint8, device="sim")
    sim.set_limit(10_000)
    held = torch.empty(6_000, dtype=torch.uint8, device="sim")
    with pytest.raises(torch.OutOfMemoryError, match="6000 of 10000 bytes are taken"):
        torch.empty(6_000, dtype=torch.uint8, device="sim")
    torch.empty(6_000, dtype=torch.uint8, device="sim:1")
    del held
    torch.empty(6_000, dtype=torch.uint8, device="sim")
    assert sim.counter("device.peak_bytes") == 12_000


def test_nobody_waits_during_a_capture() -> None:
    stream = torch.accelerator.current_stream()
    tensor = torch.zeros(10, device="sim")
    sim.set_capturing(True)
    for wait in (stream.synchronize, torch.accelerator.synchronize, tensor.cpu):
        with pytest.raises(RuntimeError, match="not permitted when a stream is capturing"):
            wait()
    sim.set_capturing(False)
    stream.synchronize()


def test_counters_of_what_is_there() -> None:
    assert set(sim.WAITS) < set(sim.counters())
    names = ("device.blocks", "device.bytes", "pinned.blocks", "pinned.bytes", "events")
    before = [sim.counter(name) for name in names]
    tensor = torch.empty(1000, device="sim")
    host = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    event = torch.Event("sim")
    event.record()
    after = [sim.counter(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 4000, 1, 4096, 1]
    assert sim.counter("pinned.peak_bytes") >= 4096
    del tensor, host, event
    assert [sim.counter(name) for name in names] == before
    with pytest.raises(ValueError, match=r"no counter is named pins.*pinned\.bytes"):
        sim.counter("pins")


# Any wait can be left out.


def uploaded_rightly() -> bool:
    data = pattern(6000)
    tensors = [torch.empty(6000, dtype=torch.uint8, device="sim") for _ in range(2)]
    upload(tensors, data)
    right = all(torch.equal(tensor.cpu(), data) for tensor in tensors)
    del tensors
    torch.accelerator.synchronize()
    return right and not sim.violations()


def test_an_upload_through_a_ring() -> None:
    assert uploaded_rightly()
    assert sim.counter("copies.async_to_device") == 12
    assert sim.counter("event.synchronize") == 10
    assert sim.counter("pinned.peak_bytes") == 2 * 1024


@pytest.mark.parametrize("nth", range(1, 11))
def test_an_upload_without_a_wait_for_its_ring(nth: int) -> None:
    with sim.skip("event.synchronize", nth):
        assert not uploaded_rightly()
    assert sim.counter("skipped") == 1


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_an_upload_that_is_not_in_order_with_the_caller(nth: int) -> None:
    with sim.skip("event.block", nth):
        assert not uploaded_rightly()


def test_an_upload_whose_ring_is_not_protected() -> None:
    with sim.skip("host.record_event"):
        assert not uploaded_rightly()


def test_a_tensor_that_is_dropped_after_its_stream_was_not_recorded() -> None:
    side = torch.Stream("sim")
    side.wait_stream(torch.accelerator.current_stream())
    for left_out in (False, True):
        with sim.skip("record_data_ptr" if left_out else ""):
            tensor = torch.empty(100, device="sim")
            side.wait_stream(torch.accelerator.current_stream())
            with sim.use(side):
                tensor.zero_()
                tensor.record_stream(side)
            del tensor
        assert bool(sim.violations()) == left_out


@pytest.mark.parametrize("name", ["stream.synchronize", "device.synchronize", "event.synchronize"])
def test_waits_of_the_host_can_be_left_out(name: str) -> None:
    waits = {
        "stream.synchronize": lambda: torch.accelerator.current_stream().synchronize(),
        "device.synchronize": torch.accelerator.synchronize,
        "event.synchronize": lambda: event.synchronize(),
    }
    source = pattern(5000).to("sim")
    target = pinned(5000).fill_(0)
    target.copy_(source, non_blocking=True)
    event = torch.Event("sim")
    event.record()
    with sim.skip(name):
        waits[name]()
    assert is_all(target, 0)
    with sim.skip(name, 2):
        waits[name]()
    assert torch.equal(target, pattern(5000))


@pytest.mark.parametrize("name", ["stream.query", "event.query"])
def test_queries_can_be_made_to_lie(name: str) -> None:
    torch.zeros(5000, device="sim")
    event = torch.Event("sim")
    event.record()
    ask = event.query if name == "event.query" else torch.accelerator.current_stream().query
    with sim.skip(name):
        assert ask()
    assert not ask()


def test_only_waits_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="not a call that can be left out"):
        torch.ops.sim.skip("copies.staged")
