"""The simulated device itself: that it works, and that it does not forgive."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import sim_device as sim
from process import environment, run_python

NEW = 0xA5
FREED = 0xDD


@pytest.fixture(autouse=True)
def fresh_device() -> Iterator[None]:
    with sim.fresh():
        yield


def pattern(size: int) -> torch.Tensor:
    return (torch.arange(size) % 251).to(torch.uint8)


def pinned(size: int) -> torch.Tensor:
    """Memory that a stream reads late."""
    tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    assert tensor.is_pinned()
    return tensor.copy_(pattern(size))


def is_all(tensor: torch.Tensor, byte: int) -> bool:
    return bool((tensor.cpu().view(torch.uint8) == byte).all())


# It works.


DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex128, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.uint16, torch.bits8])
@pytest.mark.parametrize("lazy", [True, False])
def test_copies_there_and_back(dtype: torch.dtype, lazy: bool) -> None:
    sim.set_lazy(lazy)
    tensor = pattern(480).view(dtype) if dtype != torch.bool else pattern(480) % 2 == 0
    for non_blocking in (False, True):
        there = tensor.to("sim", non_blocking=non_blocking)
        assert there.device == torch.device("sim:0") and there.dtype == dtype
        back = there.cpu()
        assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    assert not sim.violations()


VIEWS = {
    "transposed": lambda t: t.transpose(0, 2),
    "sliced": lambda t: t[1:, ::2, 1],
    "narrowed": lambda t: t.narrow(1, 2, 2).select(0, 3),
    "reshaped": lambda t: t.permute(2, 0, 1).reshape(-1, 3),
    "strided": lambda t: t.as_strided((2, 3), (1, 7), 5),
    "another type": lambda t: t.view(torch.int16),
    "one element": lambda t: t[3, 2, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = torch.randn(6, 5, 4)
    there = tensor.to("sim")
    assert torch.equal(view(there).cpu(), view(tensor))
    moved = torch.empty_like(there).copy_(there)
    for target in (tensor, there, moved):
        view(target).copy_(torch.full_like(view(tensor), 3))
    assert torch.equal(there.cpu(), tensor)
    assert torch.equal(moved.cpu(), tensor)
    assert not sim.violations()


def test_broadcasts() -> None:
    row = torch.randn(4)
    there = torch.empty(3, 4, device="sim")
    assert torch.equal(there.copy_(row).cpu(), row.expand(3, 4))
    assert torch.equal(there.copy_(row.to("sim")).cpu(), row.expand(3, 4))
    assert torch.equal(torch.empty(3, 4).copy_(row.to("sim")), row.expand(3, 4))


def test_casts() -> None:
    tensor = torch.randn(7, 3)
    there = tensor.to("sim")
    assert torch.equal(there.to(torch.bfloat16).cpu(), tensor.to(torch.bfloat16))
    assert torch.equal(tensor.to("sim", torch.float64).cpu(), tensor.double())
    assert torch.equal(torch.empty(7, 3, dtype=torch.half).copy_(there), tensor.half())


def test_bits_that_conjugate_and_negate() -> None:
    tensor = torch.randn(5, 4, dtype=torch.complex64)
    there = tensor.to("sim")
    for view in (torch.conj, lambda t: t.conj().imag, lambda t: t.t().conj()):
        assert torch.equal(view(there).cpu(), view(tensor))
        assert torch.equal(view(there).clone().cpu(), view(tensor))
        assert torch.equal(view(tensor).to("sim").cpu(), view(tensor))
        target = torch.zeros_like(there)
        view(target).copy_(view(tensor))
        assert torch.equal(view(target).cpu(), view(tensor))


def test_filling_resizing_and_sharing_storage() -> None:
    tensor = torch.zeros(4, 5, device="sim")
    assert is_all(tensor, 0)
    tensor[1:3].fill_(2.5)
    assert tensor.cpu()[:, 0].tolist() == [0, 2.5, 2.5, 0]
    assert is_all(torch.empty(100, device="sim"), NEW)
    assert torch.full((2,), 7, device="sim").detach().clone().tolist() == [7, 7]
    tensor.resize_(6, 5)
    assert tensor.cpu()[1:3].eq(2.5).all() and is_all(tensor[4:], NEW)
    shared = torch.empty(0, device="sim").set_(tensor.untyped_storage(), 5, (2, 5), (5, 1))
    assert shared.cpu().eq(2.5).all()
    assert not sim.violations()


def test_what_is_missing_raises() -> None:
    tensor = torch.zeros(4, device="sim")
    with pytest.raises(NotImplementedError, match="sim"):
        tensor + tensor


def test_two_devices() -> None:
    assert torch.accelerator.device_count() == 2
    first = pattern(1000).to("sim:0")
    second = first.to("sim:1")
    assert second.device.index == 1
    with torch.device("sim:1"):
        assert torch.empty(1).device.index == 1
    torch.accelerator.set_device_index(1)
    try:
        assert torch.empty(1, device="sim").device.index == 1
    finally:
        torch.accelerator.set_device_index(0)
    assert torch.equal(second.cpu(), pattern(1000))
    with pytest.raises(RuntimeError, match="no device 2"):
        torch.empty(1, device="sim:2")
    assert not sim.violations()


def test_events_that_measure_time() -> None:
    first, second = (torch.Event("sim", enable_timing=True) for _ in range(2))
    first.record()
    torch.zeros(1 << 20, device="sim")
    second.record()
    second.synchronize()
    assert first.elapsed_time(second) > 0


# It does not forgive.


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
    assert sim.counter("copies.staged") == 1 + 2  # the last are those of cpu()


def test_pinned_memory_that_needs_converting_is_staged() -> None:
    there = torch.empty(100, 50, device="sim")
    there.copy_(torch.ones(100, 50, dtype=torch.half, pin_memory=True), non_blocking=True)
    there.copy_(torch.ones(50, 100, pin_memory=True).t(), non_blocking=True)
    assert (sim.counter("copies.async_to_device"), sim.counter("copies.staged")) == (0, 2)
    there.t().copy_(torch.ones(50, 100, pin_memory=True), non_blocking=True)
    assert sim.counter("copies.async_to_device") == 1


SEGFAULT = """
import ctypes, sys, torch, sim_device
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
    # The first stream is only coming to where it allocated the memory.
    assert is_all(tensor, NEW)


def test_pinned_memory_comes_back_when_its_streams_are_done() -> None:
    there = torch.empty(5000, dtype=torch.uint8, device="sim")
    source = pinned(5000)
    address = source.data_ptr()
    there.copy_(source, non_blocking=True)
    del source
    other = pinned(5000)  # asks, so that the stream starts
    assert other.data_ptr() != address
    assert torch.equal(there.cpu(), pattern(5000))
    del other
    blocks = [pinned(5000), pinned(5000)]
    assert address in [block.data_ptr() for block in blocks]


def test_a_view_inside_a_pinned_block_protects_nothing() -> None:
    """As on CUDA: a block is found by its start or its owner only."""
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


# Every wait can be left out.


def upload(tensors: list[torch.Tensor], data: torch.Tensor, slots: int = 2) -> None:
    """What a loader does: through a ring of pinned memory, on a stream of its own."""
    chunk = 1000
    home = torch.accelerator.current_stream()
    side = torch.Stream("sim")
    ring = [torch.empty(chunk, dtype=torch.uint8, pin_memory=True) for _ in range(slots)]
    free = [torch.Event("sim") for _ in range(slots)]
    allocated = torch.Event("sim")
    allocated.record(home)
    side.wait_event(allocated)
    turn = 0
    with sim.use(side):
        for tensor in tensors:
            tensor.record_stream(side)
            for at in range(0, len(tensor), chunk):
                slot = turn % slots
                if turn >= slots:
                    free[slot].synchronize()
                ring[slot].copy_(data[at : at + chunk])
                tensor[at : at + chunk].copy_(ring[slot], non_blocking=True)
                free[slot].record(side)
                turn += 1
    done = torch.Event("sim")
    done.record(side)
    home.wait_event(done)


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


# It serves everyone.


@pytest.mark.parametrize("lazy", [True, False])
def test_threads(lazy: bool) -> None:
    sim.set_lazy(lazy)
    data = pattern(30_000)

    def work(number: int) -> bool:
        tensors = [torch.empty(len(data), dtype=torch.uint8, device="sim") for _ in range(3)]
        for _ in range(3):
            upload(tensors, data + number, slots=3)
        return all(torch.equal(tensor.cpu(), data + number) for tensor in tensors)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))
    assert not sim.violations()


def run_program(*arguments: str) -> list[str]:
    program = sim.build().parent / "upload"
    done = subprocess.run([program, *arguments], capture_output=True, timeout=60, check=True)
    return done.stdout.decode().splitlines()


def test_a_program_without_python() -> None:
    program = sim.build().parent / "upload"
    linked = subprocess.run(["ldd", program], capture_output=True, check=True)
    assert b"torch_cpu" in linked.stdout and b"torch_python" not in linked.stdout
    assert run_program("sim:0", "50000") == ["right"]
    assert run_program("sim:1", "5000000") == ["right"]


@pytest.mark.parametrize("nth", ["1", "2", "10", "0"])
def test_a_program_that_does_not_wait_for_its_ring(nth: str) -> None:
    assert run_program("sim:0", "50000", "event.synchronize", nth) == ["wrong"]


def test_a_program_that_is_not_in_order_with_its_stream() -> None:
    _, *violations = run_program("sim:0", "50000", "event.block", "1")
    assert len(violations) == 13 and "has not waited for it" in violations[0]
    assert run_program("sim:0", "50000", "event.block", "2")[0] == "wrong"
    assert run_program("sim:0", "50000", "host.record_event") == ["wrong"]


def test_processes_that_build_at_once() -> None:
    code = "import sim_device, torch; print(torch.ones(1, device='sim').cpu().item())"
    command = [sys.executable, "-W", "ignore", "-c", code]
    processes = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) for _ in range(2)
    ]
    for process in processes:
        assert process.communicate(timeout=300)[0] == b"1.0\n"
        assert process.returncode == 0
