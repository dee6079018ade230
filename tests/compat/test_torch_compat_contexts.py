"""Which threads and tasks use the replaced torch.save and torch.load, and code that wraps them."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tensorizer_ops.torch_compat as ours
from local_servers.waiting import LAST_RESORT
from tensorizer_ops.torch_compat import tensorizer_loading, tensorizer_saving

SAVE, LOAD = torch.save, torch.load


@pytest.fixture
def pt(tmp_path: Path) -> str:
    return str(tmp_path / "model.pt")


@pytest.fixture(autouse=True)
def torch_is_left_alone() -> Iterable[None]:
    yield
    assert torch.save is SAVE
    assert torch.load is LOAD


def save(module: ModuleType, obj: object, f: Any, *, zipped: bool = True, **kwargs: Any) -> None:
    with module.tensorizer_saving(**kwargs):
        torch.save(obj, f, _use_new_zipfile_serialization=zipped)


def load(module: ModuleType, f: Any, **kwargs: Any) -> Any:
    with module.tensorizer_loading(**kwargs):
        return torch.load(f, weights_only=False)


def test_a_context_is_for_its_thread_alone(tmp_path: Path) -> None:
    meeting = threading.Barrier(3, timeout=LAST_RESORT)
    ways: list[tuple[str, Callable[[str], None]]] = [
        ("ours", lambda pt: in_context(pt)),
        ("elsewhere", lambda pt: in_context(pt, file_obj=pt + ".elsewhere")),
        ("torch", lambda pt: plain(pt)),
    ]

    def in_context(pt: str, **kwargs: Any) -> None:
        with tensorizer_saving(**kwargs), tensorizer_loading(**kwargs):
            plain(pt)

    def plain(pt: str) -> None:
        for number in range(10):
            meeting.wait()
            torch.save(torch.full((3,), number), pt)
            assert torch.load(pt).tolist() == [number] * 3
        meeting.wait()

    threads = [threading.Thread(target=work, args=(str(tmp_path / name),)) for name, work in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not meeting.broken
    assert sorted(os.listdir(tmp_path)) == [
        "elsewhere",
        "elsewhere.elsewhere",
        "ours",
        "ours.tensors",
        "torch",
    ]


def test_a_context_is_for_its_task_alone(tmp_path: Path) -> None:
    async def inside(name: str) -> None:
        with tensorizer_saving(tmp_path / f"{name}.sidecar"):
            await asyncio.sleep(0)
            torch.save(torch.ones(2), tmp_path / name)
            await asyncio.sleep(0)

    async def outside(name: str) -> None:
        await asyncio.sleep(0)
        torch.save(torch.ones(2), tmp_path / name)

    async def together() -> None:
        await asyncio.gather(inside("a"), outside("b"), inside("c"), outside("d"))

    asyncio.run(together())
    assert sorted(os.listdir(tmp_path)) == ["a", "a.sidecar", "b", "c", "c.sidecar", "d"]


def test_the_innermost_context_counts(tmp_path: Path) -> None:
    with tensorizer_saving(tmp_path / "outer.tensors"):
        with tensorizer_saving(tmp_path / "inner.tensors"):
            torch.save(torch.ones(1), tmp_path / "inner")
        with pytest.raises(ZeroDivisionError), tensorizer_saving():
            raise ZeroDivisionError
        torch.save(torch.zeros(1), tmp_path / "outer")
    torch.save(torch.zeros(1), tmp_path / "none")
    names = ["inner", "inner.tensors", "none", "outer", "outer.tensors"]
    assert sorted(os.listdir(tmp_path)) == names


class Nested:
    """Pickles its tensor as bytes that torch.save wrote."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        torch.save(self.tensor, file)
        return unpack, (file.getvalue(),)


def unpack(data: bytes) -> Nested:
    return Nested(torch.load(io.BytesIO(data)))


def test_objects_that_save_and_load_themselves(pt: str, tmp_path: Path) -> None:
    for where in (None, tmp_path / "fixed"):
        save(ours, [torch.ones(2), Nested(torch.arange(3)), torch.zeros(4)], pt, file_obj=where)
        ones, nested, zeros = load(ours, pt, file_obj=where)
        assert ones.tolist() == [1, 1]
        assert nested.tensor.tolist() == [0, 1, 2]
        assert zeros.tolist() == [0] * 4


def test_others_may_wrap_what_is_replaced(pt: str) -> None:
    calls = []
    with tensorizer_saving():
        within = torch.save

        def counted(*args: Any, **kwargs: Any) -> None:
            calls.append(args)
            within(*args, **kwargs)

        torch.save = counted
    try:
        assert torch.save is counted
        torch.save(torch.ones(2), pt)
        assert os.listdir(os.path.dirname(pt)) == ["model.pt"]
        save(ours, torch.ones(2), pt)
        assert os.path.exists(f"{pt}.tensors")
        assert torch.save is counted
        assert len(calls) == 2
    finally:
        torch.save = SAVE
