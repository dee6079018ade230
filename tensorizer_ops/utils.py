"""Helpers for loading models: memory usage, devices, and modules without memory for weights."""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, overload

import torch

from tensorizer_ops._base.no_init import without_memory

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
    """Return pynvml, initialized, or ``None`` if it or NVIDIA's driver is not installed."""
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
    """Format a number of bytes in a suitable unit: ``123.4 MB``, or ``117.7 MiB``.

    Args:
        num: the number of bytes.
        decimal: whether units are powers of 1000 (MB) or of 1024 (MiB).
    """
    step, infix = (1000.0, "") if decimal else (1024.0, "i")
    power = 0
    while num >= step and power < len(_PREFIXES):
        num /= step
        power += 1
    unit = f"{_PREFIXES[power - 1]}{infix}B" if power else "bytes"
    return f"{num:3.1f} {unit}"


def get_device() -> torch.device:
    """Return the CUDA device if CUDA is available, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def get_gpu_name() -> str:
    """Return the name of the current GPU, or ``N/A``."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "N/A"


def _mib(size: int) -> str:
    return f"{size >> 20:,}MiB"


class GlobalGPUMemoryUsage(NamedTuple):
    """The memory of one GPU in bytes, used by any process."""

    total: int
    free: int
    used: int

    @classmethod
    def now(cls, device: Device = None) -> GlobalGPUMemoryUsage | None:
        """Measure a GPU, by default the current one; return ``None`` if CUDA is not available."""
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info(device)
        return cls(total, free, total - free)

    def __str__(self) -> str:
        return f"GPU: (U: {_mib(self.used)} F: {_mib(self.free)} T: {_mib(self.total)})"


class TorchGPUMemoryUsage(NamedTuple):
    """The memory of one GPU in bytes that torch has reserved, and that its tensors use."""

    reserved: int
    reserved_max: int
    used: int
    used_max: int

    @classmethod
    def now(cls, device: Device = None) -> TorchGPUMemoryUsage | None:
        """Measure a GPU, by default the current one; return ``None`` if CUDA is not available."""
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
    """Host memory in bytes: the peak of this process plus its children's, and what is available."""

    maxrss: int
    free: int

    @classmethod
    def now(cls) -> CPUMemoryUsage:
        """Measure this process."""
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
    """Memory usage of the host, of a GPU, and of torch on that GPU."""

    cpu: CPUMemoryUsage
    gpu: GlobalGPUMemoryUsage | None
    torch: TorchGPUMemoryUsage | None

    @classmethod
    def now(cls, device: Device = None) -> MemoryUsage:
        """Measure all three; those of the GPU are ``None`` if CUDA is not available."""
        gpu, of_torch = GlobalGPUMemoryUsage.now(device), TorchGPUMemoryUsage.now(device)
        return cls(CPUMemoryUsage.now(), gpu, of_torch)

    def __str__(self) -> str:
        return " ".join(str(part) for part in self if part)


def get_mem_usage() -> str:
    """Return the current memory usage in one line: ``str(MemoryUsage.now())``."""
    return str(MemoryUsage.now())


@overload
def no_init_or_tensor(loading_code: Callable[..., Model]) -> Model: ...
@overload
def no_init_or_tensor(loading_code: None = None) -> contextlib.AbstractContextManager[None]: ...
def no_init_or_tensor(
    loading_code: Callable[..., Model] | None = None,
) -> Model | contextlib.AbstractContextManager[None]:
    """Create modules quickly, without allocating or initializing their weights.

    Tensors created by ``torch.empty`` are on the meta device, and ``Linear``, ``Embedding`` and
    ``LayerNorm`` do not initialize their weights. Affects only the code in the block or in the
    function, not other threads or other ``asyncio`` tasks.

    Args:
        loading_code: a function that creates the model; omitted in a ``with`` statement.

    Returns:
        The model, or a context manager::

            with no_init_or_tensor():
                model = AutoModelForCausalLM.from_config(config)
            model = no_init_or_tensor(lambda: AutoModelForCausalLM.from_config(config))
    """
    if loading_code is None:
        return without_memory()
    if not callable(loading_code):
        raise TypeError(
            "no_init_or_tensor() takes a function that makes a model, or nothing in a `with` "
            f"statement, and was given {type(loading_code).__name__!r}"
        )
    with without_memory():
        return loading_code()
