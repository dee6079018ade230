"""Saves while the program goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import torch
from torch.nn.parameter import is_lazy

from tensorizer_ops import _python
from tensorizer_ops._load_save import as_dict, run_save
from tensorizer_ops._memory import INTEGERS, has_memory, identity
from tensorizer_ops._options import Hashes, Options, as_pairs
from tensorizer_ops._progress import Progress, reported
from tensorizer_ops._targets import Target, to_uri


class Save(Future[None]):
    """A save in the background: done when the file is there, or failed with what went wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._job = _python.BackgroundSave()

    def cancel(self) -> bool:
        """End it soon, with nothing written: :meth:`result` then raises ``errors.Cancelled``.

        Returns whether it was still running.
        """
        self._job.cancel()
        return not self.done()

    def progress(self) -> tuple[int, int]:
        """The bytes that are written, and those that are to be."""
        return self._job.progress()


class _Snapshot:
    """Copies of tensors, on the CPU; what is tied stays tied."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        made: dict[object, torch.Tensor] = {}
        self.copies: list[torch.Tensor] = []
        self._arrivals: dict[torch.device, torch.Event] = {}
        for tensor in tensors:
            # The save knows what it does about these.
            if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
                self.copies.append(tensor)
                continue
            if not has_memory(tensor):
                self.copies.append(tensor.detach())
                continue
            tied = identity(tensor)
            if tied not in made:
                made[tied] = _copy(tensor.detach())
            self.copies.append(made[tied])
            if not tensor.is_cpu:
                self._arrivals[tensor.device] = torch.Event(tensor.device)
        for device, arrival in self._arrivals.items():
            # Where the copies are; an event alone would ask the current device.
            arrival.record(torch.accelerator.current_stream(device))

    def wait(self) -> None:
        """Until all of it is there."""
        for arrival in self._arrivals.values():
            arrival.synchronize()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    # Integers have no such bits, and torch resolves them on the CPU before the bytes are there.
    tensor = tensor.resolve_conj().resolve_neg()
    # Torch copies no tensors of some types, but always those of integers in their place.
    elements = tensor if tensor.is_complex() else tensor.view(INTEGERS[tensor.itemsize])
    if tensor.is_cpu:
        copied = elements.clone()
    else:
        copied = torch.empty_like(elements, device="cpu", pin_memory=True)
        copied.copy_(elements, non_blocking=True)
    return copied if tensor.is_complex() else copied.view(tensor.dtype)


def save_async(
    uri: Target,
    tensors: Mapping[str, torch.Tensor],
    *,
    hashes: Hashes = "all",
    threads: int = 1,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Save:
    """Take a snapshot of tensors and save it in the background.

    What happens to the tensors after the call does not reach the file. The snapshot takes as much
    memory as they do until the save is done: pinned memory for tensors on an accelerator, whose
    copies are only begun here, on the current stream. The program does not end before the save
    does.

    Args:
        uri: as for :func:`save`.
        tensors: as for :func:`save`.
        hashes: as for :func:`save`.
        threads: how many threads compute; one by default, which leaves the others to the program.
        options: as for :func:`save`.
        progress: as for :func:`save`, called from another thread. What it raises ends the save.

    Returns:
        A future with ``cancel()`` and ``progress()``. Its result is ``None``, or raises what
        :func:`save` would.
    """
    future = Save()
    # No more of the tensors themselves stays here than their names.
    named = as_dict(tensors)
    names, snapshot = list(named), _Snapshot(named.values())
    given = as_pairs(options)
    target = to_uri(uri)

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            snapshot.wait()
            with reported(future._job, progress):
                run_save(future._job, target, names, snapshot.copies, hashes, threads, given)
        except BaseException as error:
            snapshot.copies.clear()  # an exception keeps what it has passed
            future.set_exception(error)
        else:
            snapshot.copies.clear()
            future.set_result(None)

    # No daemon: a program that ends waits for its file.
    threading.Thread(target=run, name="tensorizer_ops save").start()
    return future
