"""The helpers for loading models, compared with those of PyPI's tensorizer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import tensorizer.utils as classic
import torch

from support.process import run_python
from tensorizer_ops import utils


@pytest.mark.parametrize("decimal", [True, False])
def test_bytes_in_words(decimal: bool) -> None:
    sizes = [0, 1, 999, 1000, 1023, 1024, 1.5, 123456789, -5000, 2**40, 10**15, 10**19, 2**70]
    for size in sizes:
        assert utils.convert_bytes(size, decimal) == classic.convert_bytes(size, decimal)


def test_the_machine() -> None:
    assert utils.get_device() == classic.get_device()
    assert utils.get_gpu_name() == classic.get_gpu_name()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("CPUMemoryUsage", (5 << 30, 7 << 20)),
        ("GlobalGPUMemoryUsage", (80 << 30, 79 << 30, 1 << 30)),
        ("TorchGPUMemoryUsage", (5 << 20, 6 << 30, 7 << 20, 8 << 30)),
    ],
)
def test_memory_in_words(name: str, values: tuple[int, ...]) -> None:
    ours, theirs = getattr(utils, name), getattr(classic, name)
    assert ours._fields == theirs._fields
    assert str(ours(*values)) == str(theirs(*values))


def test_memory_as_it_is() -> None:
    ours, theirs = utils.MemoryUsage.now(), classic.MemoryUsage.now()
    assert ours._fields == theirs._fields
    assert (ours.gpu, ours.torch) == (None, None) or torch.cuda.is_available()
    assert 0 <= theirs.cpu.maxrss - ours.cpu.maxrss < 64 << 20
    assert abs(ours.cpu.free - theirs.cpu.free) < 1 << 30
    assert utils.get_mem_usage().startswith("CPU: (maxrss: ")


def test_parts_that_are_not_there_are_left_out() -> None:
    parts = ((1 << 20, 2 << 20), None, (1 << 20, 1 << 20, 1 << 20, 1 << 20))
    ours = utils.MemoryUsage(
        utils.CPUMemoryUsage(*parts[0]), None, utils.TorchGPUMemoryUsage(*parts[2])
    )
    theirs = classic.MemoryUsage(
        classic.CPUMemoryUsage(*parts[0]), None, classic.TorchGPUMemoryUsage(*parts[2])
    )
    assert str(ours) == str(theirs)


def test_importing_leaves_cuda_alone() -> None:
    run_python("import torch, tensorizer_ops.utils; assert not torch.cuda.is_initialized()")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.linear = torch.nn.Linear(4, 3)
        self.norm = torch.nn.LayerNorm(3)
        self.conv = torch.nn.Conv1d(1, 1, 1)
        self.made = torch.nn.Parameter(torch.zeros(2))


def where(module: torch.nn.Module) -> dict[str, str]:
    return {name: tensor.device.type for name, tensor in module.state_dict().items()}


@pytest.fixture
def originals() -> Iterator[None]:
    """Checks that everything is restored afterwards."""
    before = (torch.empty, torch.nn.Linear.reset_parameters, torch.nn.LayerNorm.reset_parameters)
    yield
    after = (torch.empty, torch.nn.Linear.reset_parameters, torch.nn.LayerNorm.reset_parameters)
    assert after == before
    assert torch.empty(1).device.type == "cpu"


@pytest.mark.usefixtures("originals")
def test_modules_without_memory() -> None:
    state = torch.get_rng_state()
    ours = utils.no_init_or_tensor(Net)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    theirs = classic.no_init_or_tensor(Net)
    assert where(ours) == where(theirs)
    assert {"meta", "cpu"} == set(where(ours).values())
    # As many random numbers were drawn as in tensorizer.
    assert torch.equal(after, torch.get_rng_state())
    with utils.no_init_or_tensor():
        again = Net()
    assert where(again) == where(theirs)


@pytest.mark.usefixtures("originals")
def test_weights_that_are_there_are_not_initialized() -> None:
    linear = torch.nn.Linear(2, 2)
    weight = linear.weight.detach().clone()
    with utils.no_init_or_tensor():
        linear.reset_parameters()
    assert torch.equal(linear.weight, weight)
    linear.reset_parameters()
    assert not torch.equal(linear.weight, weight)


@pytest.mark.usefixtures("originals")
def test_blocks_in_blocks_and_errors() -> None:
    with utils.no_init_or_tensor():
        with pytest.raises(KeyError), utils.no_init_or_tensor():
            raise KeyError
        assert torch.empty(1).device.type == "meta"
        assert utils.no_init_or_tensor(lambda: torch.empty(1)).device.type == "meta"
    assert torch.empty(1).device.type == "cpu"


@pytest.mark.usefixtures("originals")
def test_other_threads_are_not_concerned() -> None:
    inside, seen = threading.Event(), threading.Event()
    devices = []

    def other() -> None:
        with utils.no_init_or_tensor():
            inside.set()
            seen.wait(20)
            devices.append(torch.empty(1).device.type)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(20)
    assert torch.empty(1).device.type == "cpu"
    # A block that begins later and ends earlier leaves the other thread's block unchanged.
    with utils.no_init_or_tensor():
        assert torch.empty(1).device.type == "meta"
    assert torch.empty(1).device.type == "cpu"
    seen.set()
    thread.join()
    assert devices == ["meta"]


@pytest.mark.usefixtures("originals")
def test_other_tasks_are_not_concerned() -> None:
    inside, looked = asyncio.Event(), asyncio.Event()

    async def make() -> str:
        with utils.no_init_or_tensor():
            inside.set()
            await looked.wait()
            return torch.empty(1).device.type

    async def look() -> str:
        await inside.wait()
        found: str = torch.empty(1).device.type
        looked.set()
        return found

    async def both() -> list[str]:
        return await asyncio.gather(make(), look())

    assert asyncio.run(both()) == ["meta", "cpu"]


def test_what_others_replaced_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", torch.empty)  # so that monkeypatch restores it

    def replacement(*args: object) -> str:
        return "theirs"

    with utils.no_init_or_tensor():
        torch.empty = replacement
    assert torch.empty(1) == "theirs"


def test_not_a_function() -> None:
    with pytest.raises(TypeError):
        classic.no_init_or_tensor(3)
    with pytest.raises(TypeError, match="'int'"):
        utils.no_init_or_tensor(3)
