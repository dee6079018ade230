"""The simulated device itself: basic operation, threads and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from local_servers.waiting import LAST_RESORT
from support import sim_device as sim
from support.process import environment
from support.sim_samples import NEW, is_all, pattern, upload


@pytest.fixture(autouse=True)
def fresh_device() -> Iterator[None]:
    with sim.fresh():
        yield


# Basic operation.


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


# Threads, processes and programs without Python.


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
    done = subprocess.run(
        [program, *arguments], capture_output=True, timeout=LAST_RESORT, check=True
    )
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
    code = "import torch, support.sim_device; print(torch.ones(1, device='sim').cpu().item())"
    command = [sys.executable, "-W", "ignore", "-c", code]
    processes = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) for _ in range(2)
    ]
    for process in processes:
        assert process.communicate(timeout=LAST_RESORT)[0] == b"1.0\n"
        assert process.returncode == 0
