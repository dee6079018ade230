"""Staging to an asynchronous device: the order of its work, and the memory it takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support import sim_device as sim
from support.samples import same, sample

ops = torch.ops.tensorizer

MIB = 1 << 20
# Two pieces of 256 KiB for each of two workers.
SMALL = {"staging": str(MIB)}
PIECE = MIB // 4


@pytest.fixture(autouse=True)
def fresh_device() -> Iterator[None]:
    with sim.fresh():
        yield


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Large tensors of several pieces, and small ones that share a piece."""
    sizes = [5 * PIECE + 4, 7 * PIECE, *[1000] * 40, 3 * PIECE]
    return {f"t{i}": sample(torch.float32, (size // 4,), i) for i, size in enumerate(sizes)}


@pytest.fixture
def saved(path: str, tensors: dict[str, torch.Tensor]) -> str:
    ops.save(path, tensors)
    return path


def load(path: str, **how: object) -> dict[str, torch.Tensor]:
    how = {"device": "sim", "threads": 2, "options": SMALL, **how}
    loaded: dict[str, torch.Tensor] = ops.load(path, **how)
    return loaded


def is_right(loaded: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> bool:
    """Whether the tensors are right, as work in the current stream sees them."""
    right = [same(loaded[name].cpu(), tensor) for name, tensor in tensors.items()]
    loaded.clear()
    torch.accelerator.synchronize()
    return all(right) and not sim.violations()


# Loading.


def test_every_copy_is_asynchronous(saved: str, tensors: dict[str, torch.Tensor]) -> None:
    loaded = load(saved)
    assert sim.counter("copies.async_to_device") >= 6 + 7 + 40 + 3
    assert sim.counter("copies.staged") == sim.counter("copies.blocking") == 0
    assert is_right(loaded, tensors)


def test_the_host_waits_for_nothing_but_its_ring(saved: str) -> None:
    """The last pieces are still being copied when the call returns."""
    loaded = load(saved, options=None)
    assert sim.counter("event.synchronize") == 0, "the ring has more pieces than are needed"
    del loaded
    loaded = load(saved)
    assert sim.counter("event.synchronize") > 0
    assert sim.counter("stream.synchronize") == sim.counter("device.synchronize") == 0
    stream = torch.accelerator.current_stream()
    assert not stream.query()
    del loaded


def test_the_ring_is_small_and_goes_back(saved: str, tensors: dict[str, torch.Tensor]) -> None:
    for _ in range(3):
        assert is_right(load(saved), tensors)
        assert sim.counter("pinned.peak_bytes") <= MIB
    assert sim.alive()[1] == 0


def test_the_ring_has_its_usual_size(path: str) -> None:
    ops.save(path, {"x": torch.zeros(300 * MIB, dtype=torch.uint8)}, hashes="none")
    for threads in (1, 2, 3):
        ops.load(path, device="sim", threads=threads)
        torch.accelerator.synchronize()
        assert 0 < sim.counter("pinned.peak_bytes") <= 128 * MIB


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
def test_a_load_waits_in_order(
    saved: str, tensors: dict[str, torch.Tensor], verify: tensorizer_ops.Verify
) -> None:
    """A load runs after the earlier work of the stream, and before its later work."""
    out = {name: torch.full_like(tensor, 7, device="sim") for name, tensor in tensors.items()}
    tensorizer_ops.load_into(out, saved, verify=verify, threads=2, options=SMALL)
    copies = {name: tensor.clone() for name, tensor in out.items()}
    for tensor in out.values():
        tensor.fill_(8)
    assert is_right(copies, tensors)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 1])
def test_ranges_that_have_arrived_are_on_the_device(
    saved: str, tensors: dict[str, torch.Tensor], start: int, threads: int
) -> None:
    outputs = [torch.empty_like(tensor[start:], device="sim") for tensor in tensors.values()]
    torch.accelerator.synchronize()
    reader = torch.classes.tensorizer.Reader(saved, SMALL)
    arrived = torch.zeros(len(outputs), dtype=torch.uint8)
    starts = [start] * len(outputs)
    torch.classes.tensorizer._Internals(reader).load_ranges(
        list(tensors), starts, outputs, arrived, "none", threads
    )
    assert arrived.all()
    with sim.use(torch.Stream("sim")):  # which waits for no copy
        copies = [output.cpu() for output in outputs]
    for copy, tensor in zip(copies, tensors.values(), strict=True):
        assert same(copy, tensor[start:])
    assert not sim.violations()


def test_on_a_stream_of_the_caller(saved: str, tensors: dict[str, torch.Tensor]) -> None:
    side = torch.Stream("sim")
    with sim.use(side):
        loaded = load(saved)
    torch.accelerator.current_stream().wait_stream(side)
    for tensor in loaded.values():
        tensor.record_stream(torch.accelerator.current_stream())
    assert is_right(loaded, tensors)


@pytest.mark.parametrize("options", [{}, {"key": "named:staging"}])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_parts_of_tensors(path: str, dtype: torch.dtype | None, options: dict[str, str]) -> None:
    tensorizer_ops.keys.add("staging", key=bytes(range(32)))
    matrix = sample(torch.float32, (700, 3000), 1)
    ops.save(path, {"m": matrix, "n": matrix}, options=options)
    columns, rows = (slice(None), slice(100, 2000)), (slice(0, 600, 7), slice(None, None, 3))
    loaded = tensorizer_ops.load(
        path,
        slices={"m": columns, "n": rows},
        device="sim",
        dtype=dtype,
        threads=2,
        options=SMALL | options,
    )
    assert sim.counter("pinned.peak_bytes") <= MIB
    expected = {"m": matrix[columns], "n": matrix[rows]}
    assert is_right(loaded, {n: t.to(dtype or t.dtype).contiguous() for n, t in expected.items()})


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("wait", ["event.block", "event.synchronize", "host.record_event"])
def test_a_load_that_does_not_wait_is_wrong(
    saved: str, tensors: dict[str, torch.Tensor], wait: str, dtype: torch.dtype | None
) -> None:
    with sim.skip(wait):
        loaded = load(saved, dtype=dtype)
        # A free pinned block is reused by the next allocation.
        others = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True).fill_(1) for _ in range(4)]
        right = is_right(loaded, {name: t.to(dtype or t.dtype) for name, t in tensors.items()})
    del others
    assert not right


# The stream for copies waits for the caller's stream, which then waits for it.
@pytest.mark.parametrize("nth", [1, 2])
def test_each_join_counts(saved: str, tensors: dict[str, torch.Tensor], nth: int) -> None:
    def loads_rightly() -> bool:
        out = {name: torch.full_like(tensor, 7, device="sim") for name, tensor in tensors.items()}
        tensorizer_ops.load_into(out, saved, threads=2, options=SMALL)
        return is_right(out, tensors)

    assert loads_rightly()
    before = sim.counter("event.block")
    with sim.skip("event.block", nth):
        right = loads_rightly()
    assert sim.counter("event.block") - before == 2
    assert not right


def test_an_error_leaves_nothing_running(saved: str) -> None:
    content = bytearray(Path(saved).read_bytes())
    content[-PIECE] ^= 1  # in the last tensor
    Path(saved).write_bytes(content)
    with pytest.raises(tensorizer_ops.errors.HashMismatch):
        load(saved, verify="all", threads=1)
    assert sim.counter("copies.async_to_device") > 10
    assert sim.alive()[0] == 0
    others = [torch.full((5 * PIECE,), 3, dtype=torch.uint8, device="sim") for _ in range(4)]
    assert all((other.cpu() == 3).all() for other in others)
    assert not sim.violations()


def test_an_error_that_is_not_waited_for_is_noticed(saved: str) -> None:
    """Shows that the test above can fail."""
    with sim.skip("stream.synchronize"), pytest.raises(AssertionError):
        test_an_error_leaves_nothing_running(saved)


def test_out_of_memory(saved: str) -> None:
    sim.set_limit(2 * MIB)
    message = r"tensor '\w+' .*: \d+ bytes of memory on sim cannot be allocated: .*out of memory"
    with pytest.raises(tensorizer_ops.errors.OutOfMemory, match=message) as error:
        load(saved)
    assert isinstance(error.value, (MemoryError, torch.OutOfMemoryError))
    assert sim.alive() == [0, 0, 0]


def test_outputs_in_several_places(path: str) -> None:
    wanted = {name: sample(torch.int64, (PIECE // 8 * 3,), i) for i, name in enumerate("abcd")}
    ops.save(path, wanted)
    out = [torch.zeros(PIECE // 8 * 3, dtype=torch.int64, device=d) for d in ("cpu", "sim:1")]
    out += [torch.zeros(PIECE // 8 * 6, dtype=torch.int64)[::2], torch.zeros_like(out[0]).to("sim")]
    ops.load_into(path, list(wanted), out, options=SMALL)
    assert sim.counter("copies.staged") == 1, "the one that made an output"
    for tensor, expected in zip(out, wanted.values(), strict=True):
        assert same(tensor.cpu(), expected)
    copy = f"{path}.copy"
    ops.save(copy, dict(zip(wanted, out, strict=True)), options=SMALL)
    assert Path(copy).read_bytes() == Path(path).read_bytes()


def test_the_second_device(saved: str, tensors: dict[str, torch.Tensor]) -> None:
    loaded = load(saved, device="sim:1")
    assert {tensor.device.index for tensor in loaded.values()} == {1}
    assert torch.accelerator.current_device_index() == 0
    assert is_right(loaded, tensors)


def test_workers_leave_other_devices_alone(
    saved: str, path: str, tensors: dict[str, torch.Tensor]
) -> None:
    """A new thread starts on the first device, which another process may be using."""
    with torch.accelerator.device_index(1):
        loaded = load(saved, device="sim:1", threads=8)
        assert sim.counter("device.switches") == 0
        save(f"{path}.copy", loaded, threads=8)
        assert sim.counter("device.switches") == 0
        assert is_right(loaded, tensors)
    assert Path(f"{path}.copy").read_bytes() == Path(saved).read_bytes()


def test_threads_of_the_caller(saved: str, tensors: dict[str, torch.Tensor]) -> None:
    reader = torch.classes.tensorizer.Reader(saved, SMALL)

    def work(number: int) -> bool:
        device = f"sim:{number % 2}"
        with sim.use(torch.Stream(device)):
            loaded = reader.load(None, torch.device(device), None, "none", False, 2)
            right = [same(loaded[name].cpu(), tensor) for name, tensor in tensors.items()]
        return all(right)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
    assert not sim.violations()


# Saving.


def to_sim(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("sim") for name, tensor in tensors.items()}


def save(path: str, there: dict[str, torch.Tensor], **how: object) -> None:
    ops.save(path, there, **{"threads": 2, "options": SMALL, **how})


def test_a_save_sees_what_the_stream_was_given_before(path: str) -> None:
    x = torch.zeros(5 * PIECE, dtype=torch.uint8, device="sim")
    x.fill_(5)
    save(path, {"x": x})
    x.fill_(6)
    assert (ops.load(path)["x"] == 5).all()
    assert sim.counter("copies.async_to_host") == 10, "two pieces for each of four workers"
    assert not sim.violations()


@pytest.mark.parametrize("hashes", ["none", "crc32", "all"])
@pytest.mark.parametrize("wait", ["event.block", "event.synchronize"])
def test_a_save_that_does_not_wait_is_wrong(
    path: str, tensors: dict[str, torch.Tensor], wait: str, hashes: str
) -> None:
    there = to_sim(tensors)
    save(path, there, hashes=hashes)
    assert is_right(dict(ops.load(path)), tensors)
    for tensor in there.values():
        tensor.zero_()
        tensor.copy_(tensor.clone())
    with sim.skip(wait):
        save(path, there, hashes=hashes)
    saved = ops.load(path)
    torch.accelerator.synchronize()
    assert sim.violations() or any(tensor.any() for tensor in saved.values())


@pytest.mark.parametrize("what", ["load", "save"])
def test_each_wait_for_the_ring_counts(
    saved: str, tensors: dict[str, torch.Tensor], what: str
) -> None:
    there = to_sim(tensors)
    sim.reset()

    def moves_rightly() -> bool:
        if what == "load":
            return is_right(load(saved, threads=1), tensors)
        save(saved, there, threads=1)
        return is_right(dict(ops.load(saved)), tensors)

    assert moves_rightly()
    waits = sim.counter("event.synchronize")
    assert waits > 4

    def is_right_without(nth: int) -> bool:
        with sim.skip("event.synchronize", nth):
            return moves_rightly()

    # A save has two workers, and what one waits for can include what the other did not wait for.
    for nth in range(1, waits + 1):
        assert not all(is_right_without(nth) for _ in range(1 if what == "load" else 100)), nth


def test_the_ring_of_a_save(path: str, tensors: dict[str, torch.Tensor]) -> None:
    there = to_sim(tensors)
    sim.reset()
    save(path, there)
    assert 0 < sim.counter("pinned.peak_bytes") <= MIB
    assert sim.counter("copies.staged") == sim.counter("copies.blocking") == 0
    assert sim.alive()[1] == 0


def test_a_snapshot_of_another_device_than_the_current_one(path: str) -> None:
    there = {f"sim:{i}": sample(torch.int64, (PIECE,), i).to(f"sim:{i}") for i in (0, 1)}
    expected = {name: tensor.cpu() for name, tensor in there.items()}
    tensorizer_ops.save_async(path, there).result(30)
    assert is_right(dict(ops.load(path)), expected)
    side = torch.Stream("sim:1")
    there["sim:1"].zero_()
    side.wait_stream(torch.accelerator.current_stream("sim:1"))
    with sim.use(side), torch.accelerator.device_index(0):
        tensorizer_ops.save_async(path, {"x": there["sim:1"]}).result(30)
    assert is_right(dict(ops.load(path)), {"x": torch.zeros(PIECE, dtype=torch.int64)})


# A device without streams or pinned memory.


def test_a_device_without_a_pool_of_streams(
    saved: str, path: str, tensors: dict[str, torch.Tensor]
) -> None:
    sim.set_pooled(False)
    loaded = load(saved, verify="all")
    assert sim.counter("copies.async_to_device") == 0
    copy = f"{path}.copy"
    save(copy, loaded)
    assert Path(copy).read_bytes() == Path(saved).read_bytes()
    assert is_right(loaded, tensors)
    transposed = torch.zeros(1000, 1000, device="sim").t()
    ops.save(path, {"x": torch.randn(1000, 1000)})
    ops.load_into(path, ["x"], [transposed])
    assert same(transposed.cpu(), ops.load(path)["x"])


@pytest.mark.parametrize("pooled", [False, True])
def test_copies_of_the_host_follow_the_stream_of_the_caller(
    path: str, tensors: dict[str, torch.Tensor], pooled: bool
) -> None:
    """The copies run after the earlier work of the caller's stream, on any thread."""
    sim.set_pooled(pooled)
    small = SMALL | {"memory_ceiling": str(MIB)}
    names = list(tensors)
    side = torch.Stream("sim:1")
    with sim.use(side):
        there = [torch.zeros_like(tensor, device="sim:1") for tensor in tensors.values()]
        for to, tensor in zip(there, tensors.values(), strict=True):
            to.copy_(tensor)
        save(path, dict(zip(names, there, strict=True)), threads=8, options=small)
    assert is_right(dict(ops.load(path)), tensors)
    with sim.use(side):
        for tensor in there:
            tensor.fill_(7)
        ops.load_into(path, names, there, threads=8, options=small)
        copies = [tensor.clone() for tensor in there]
    side.synchronize()
    assert is_right(dict(zip(names, copies, strict=True)), tensors)
