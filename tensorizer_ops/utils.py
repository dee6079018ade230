"""Small helpers around loading models: memory in use, devices, and modules without memory."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, overload

import torch

__all__ = [
    "CPUMemoryUsage",
    "GlobalGPUMemoryUsage",
    "MemoryUsage",
    "TorchGPUMemoryUsage",
    "convert_bytes",
    "get_device",
    "get_gpu_name",
    "get_mem_usage",
    "no_init_or_tensor",
]

Device = torch.device | str | int | None
Model = TypeVar("Model")

_PREFIXES = "KMGTP"


def __getattr__(name: str) -> Any:
    if name == "pynvml":
        return _nvml()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _nvml() -> Any:
    """NVIDIA's module, ready for use; ``None`` without it or without its driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def convert_bytes(num: float, decimal: bool = True) -> str:
    """Say a number of bytes in the unit that fits: ``123.4 MB``, or ``117.7 MiB``.

    Args:
        num: how many bytes.
        decimal: whether a unit is 1000 of the one before, or 1024.
    """
    step, infix = (1000.0, "") if decimal else (1024.0, "i")
    power = 0
    while num >= step and power < len(_PREFIXES):
        num /= step
        power += 1
    unit = f"{_PREFIXES[power - 1]}{infix}B" if power else "bytes"
    return f"{num:3.1f} {unit}"


def get_device() -> torch.device:
    """The GPU where there is one, or else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def get_gpu_name() -> str:
    """The name of the current GPU, or ``N/A``."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "N/A"


def _mib(size: int) -> str:
    return f"{size >> 20:,}MiB"


class GlobalGPUMemoryUsage(NamedTuple):
    """Bytes of one GPU's memory, whoever uses them."""

    total: int
    free: int
    used: int

    @classmethod
    def now(cls, device: Device = None) -> GlobalGPUMemoryUsage | None:
        """What holds now for a GPU, the current one by default; ``None`` where there is none."""
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info(device)
        return cls(total, free, total - free)

    def __str__(self) -> str:
        return f"GPU: (U: {_mib(self.used)} F: {_mib(self.free)} T: {_mib(self.total)})"


class TorchGPUMemoryUsage(NamedTuple):
    """Bytes of one GPU's memory that torch has: from the driver, and in tensors."""

    reserved: int
    reserved_max: int
    used: int
    used_max: int

    @classmethod
    def now(cls, device: Device = None) -> TorchGPUMemoryUsage | None:
        """What holds now for a GPU, the current one by default; ``None`` where there is none."""
        if not torch.cuda.is_available():
            return None
        stats = torch.cuda.memory_stats(device)
        return cls(
            stats.get("reserved_bytes.all.current", 0),
            stats.get("reserved_bytes.all.peak", 0),
            stats.get("allocated_bytes.all.current", 0),
            stats.get("allocated_bytes.all.peak", 0),
        )

    def __str__(self) -> str:
        reserved = f"{_mib(self.reserved)}/{_mib(self.reserved_max)}"
        return f"TORCH: (R: {reserved}, A: {_mib(self.used)}/{_mib(self.used_max)})"


class CPUMemoryUsage(NamedTuple):
    """Bytes of ordinary memory: the most that this process and its children had, and the free."""

    maxrss: int
    free: int

    @classmethod
    def now(cls) -> CPUMemoryUsage:
        """What holds now."""
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return cls(sum(resource.getrusage(who).ru_maxrss for who in whose) << 10, _available())

    def __str__(self) -> str:
        return f"CPU: (maxrss: {_mib(self.maxrss)} F: {_mib(self.free)})"


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    raise OSError("/proc/meminfo does not say how much memory is available")


class MemoryUsage(NamedTuple):
    """All of it: of the CPU, of a GPU, and of torch on that GPU."""

    cpu: CPUMemoryUsage
    gpu: GlobalGPUMemoryUsage | None
    torch: TorchGPUMemoryUsage | None

    @classmethod
    def now(cls, device: Device = None) -> MemoryUsage:
        """What holds now; the parts for a GPU are ``None`` where there is none."""
        gpu, of_torch = GlobalGPUMemoryUsage.now(device), TorchGPUMemoryUsage.now(device)
        return cls(CPUMemoryUsage.now(), gpu, of_torch)

    def __str__(self) -> str:
        return " ".join(str(part) for part in self if part)


def get_mem_usage() -> str:
    """The memory in use, in one line: ``str(MemoryUsage.now())``."""
    return str(MemoryUsage.now())


@overload
def no_init_or_tensor(loading_code: Callable[..., Model]) -> Model: ...
@overload
def no_init_or_tensor(loading_code: None = None) -> contextlib.AbstractContextManager[None]: ...
def no_init_or_tensor(
    loading_code: Callable[..., Model] | None = None,
) -> Model | contextlib.AbstractContextManager[None]:
    """Make modules quickly: without memory for their weights, and without filling them.

    Weights that are made by ``torch.empty`` are on the meta device, and ``Linear``, ``Embedding``
    and ``LayerNorm`` do not initialize theirs. This holds for the code in the block, or in the
    function, and no other: not for other threads, nor for other tasks of ``asyncio``.

    Args:
        loading_code: what makes the model; without it, the call is for a ``with`` statement.

    Returns:
        The model, or the context manager::

            with no_init_or_tensor():
                model = AutoModelForCausalLM.from_config(config)
            model = no_init_or_tensor(lambda: AutoModelForCausalLM.from_config(config))
    """
    if loading_code is None:
        return _without_memory()
    if not callable(loading_code):
        raise TypeError(
            "no_init_or_tensor() takes a function that makes a model, or nothing in a `with` "
            f"statement, and was given {type(loading_code).__name__!r}"
        )
    with _without_memory():
        return loading_code()


_active = contextvars.ContextVar("no_init_or_tensor", default=False)
_blocks = 0  # that are active, in all threads
_blocks_lock = threading.RLock()  # a signal handler may make a model
_undo: list[Callable[[], None]] = []


@contextlib.contextmanager
def _without_memory() -> Iterator[None]:
    global _blocks
    # What has to be replaced is global; that it holds here only, the context says.
    with _blocks_lock:
        _blocks += 1
        if _blocks == 1:
            _replace(torch, "empty", _meta_empty)
            for module in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm):
                _replace(module, "reset_parameters", _skipped)
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
        with _blocks_lock:
            _blocks -= 1
            while _blocks == 0 and _undo:
                _undo.pop()()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    replacement = make(original)
    setattr(owner, name, replacement)

    def undo() -> None:
        # What somebody else has put in its place meanwhile stays, and has ours do nothing.
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)

    _undo.append(undo)


def _meta_empty(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        if _active.get():
            kwargs["device"] = "meta"
        return original(*args, **kwargs)

    return empty


def _skipped(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset_parameters(*args: Any, **kwargs: Any) -> None:
        if not _active.get():
            original(*args, **kwargs)

    return reset_parameters
