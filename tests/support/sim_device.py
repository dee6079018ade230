"""A simulated device that works asynchronously, as GPUs do (tests/cpp/sim_device).

Importing this module builds the device if its sources changed, and loads it as
`torch.device("sim:0")` and `"sim:1"`. Until `set_lazy(False)`, the device is lazy: it runs queued
work only when a wait requires it, so code that forgets to wait finds nothing done. A forked child
cannot use the device.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import subprocess
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "tests" / "cpp" / "sim_device"
TORCH = Path(torch.__file__).resolve().parent


def _fingerprint() -> str:
    """Returns a hash of all sources and settings that the library is built from."""
    digest = hashlib.sha256(f"{TORCH} {torch.__version__} {os.environ.get('CXX')}".encode())
    csrc = ROOT / "csrc"
    files = [SOURCES.parent / "common.cmake", *SOURCES.rglob("*"), *(csrc / "cuda").iterdir()]
    files += (csrc / "transfer" / "device").glob("cuda_library.*")
    for path in sorted(path for path in files if path.is_file()):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def build() -> Path:
    """Builds the library if it is out of date, and returns its path. Safe for concurrent use by
    multiple processes."""
    folder = ROOT / "build" / "sim_device"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libsim_device.so"
    stamp = folder / "built"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _fingerprint()
        if library.exists() and stamp.exists() and stamp.read_text() == wanted:
            return library
        stamp.unlink(missing_ok=True)
        configure = ["cmake", "-S", SOURCES, "-B", folder, "-G", "Ninja", f"-DTORCH={TORCH}"]
        compile_ = ["cmake", "--build", folder, "--parallel", os.environ.get("MAX_JOBS", "2")]
        for command in (configure, compile_):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                raise RuntimeError(f"{command} failed:\n{done.stdout.decode(errors='replace')}")
        stamp.write_text(wanted)
    return library


def _load() -> None:
    torch.ops.load_library(build())
    torch.utils.rename_privateuse1_backend("sim")
    module = types.ModuleType("torch.sim")
    # What torch expects of a device module. This device has no random number generator.
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=torch.ops.sim.device_count,
        current_device=torch.accelerator.current_device_index,
        device=lambda device: torch.accelerator.device_index(torch.device(device).index),
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=None: torch.empty(0, dtype=torch.uint8),
        set_rng_state=lambda state, device=None: None,
    )
    torch._register_device_module("sim", module)


_load()

# The waits that a test may leave out with `skip`, one at a time.
WAITS = torch.ops.sim.waits()

# Functions of torch.ops.sim: counter(name), counters(), violations(), set_lazy(bool),
# set_limit(bytes), set_codec(bool), set_pooled(bool), set_capturing(bool), reset().
counter = torch.ops.sim.counter
counters = torch.ops.sim.counters
violations = torch.ops.sim.violations
set_lazy = torch.ops.sim.set_lazy
set_limit = torch.ops.sim.set_limit
set_codec = torch.ops.sim.set_codec
set_pooled = torch.ops.sim.set_pooled
set_capturing = torch.ops.sim.set_capturing
reset = torch.ops.sim.reset


@contextmanager
def skip(wait: str, nth: int = 0) -> Iterator[None]:
    """Makes one kind of wait do nothing: all of its calls, or only the n-th."""
    torch.ops.sim.skip(wait, nth)
    try:
        yield
    finally:
        torch.ops.sim.skip("")


@contextmanager
def use(stream: torch.Stream) -> Iterator[None]:
    """Makes a stream and its device current."""
    device = torch.accelerator.current_device_index()
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def alive() -> list[int]:
    """Returns the numbers of device blocks, pinned blocks and events that exist now."""
    return [counter(name) for name in ("device.blocks", "pinned.blocks", "events")]


@contextmanager
def fresh() -> Iterator[None]:
    """Resets the devices. At the end, checks that nothing was left on them."""
    reset()
    before = alive()
    yield
    if alive() != before:
        gc.collect()
    reset()
    assert alive() == before
