"""Saving in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import torch

from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.internals import held_memory
from tensorizer_ops._base.memory import copyable, has_memory, identity
from tensorizer_ops._base.options import Hashes, Metadata, Options
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.savable import as_dict, plain_tensors
from tensorizer_ops._base.targets import Target, to_uri
from tensorizer_ops._front.load_save import run_save, save_request


class Save(Future[None]):
    """A save in the background: a future that is done when the file is complete or has failed."""

    def __init__(self) -> None:
        super().__init__()
        self._job = torch.classes.tensorizer._BackgroundSave()

    def cancel(self) -> bool:
        """Ask the save to stop soon and write no file; :meth:`result` raises ``errors.Cancelled``.

        Returns whether the save was still running.
        """
        self._job.cancel()
        return not self.done()

    def progress(self) -> tuple[int, int]:
        """Return the bytes written so far and the bytes to write in all."""
        done: tuple[int, int] = self._job.progress()
        return done


class _Snapshot:
    """Copies of plain tensors on the CPU. Tied tensors share one copy."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.copies: list[torch.Tensor] = []
        self._arrivals: dict[torch.device, torch.Event] = {}
        with held_memory(tensors) as held:
            self._copy(held)

    def _copy(self, tensors: Iterable[torch.Tensor]) -> None:
        made: dict[object, torch.Tensor] = {}
        for tensor in tensors:
            if not has_memory(tensor):  # the save itself handles or refuses these
                self.copies.append(tensor)
                continue
            tied = identity(tensor)
            if tied not in made:
                made[tied] = _copy(tensor)
            self.copies.append(made[tied])
            if not tensor.is_cpu:
                self._arrivals[tensor.device] = torch.Event(tensor.device)
        for device, arrival in self._arrivals.items():
            # On the stream of the copies; by default an event uses the current device's.
            arrival.record(torch.accelerator.current_stream(device))

    def wait(self) -> None:
        """Block until all copies from devices have arrived."""
        for arrival in self._arrivals.values():
            arrival.synchronize()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    elements = copyable(tensor)
    if tensor.is_cpu:
        copied = elements.clone()
    else:
        copied = torch.empty_like(elements, device="cpu", pin_memory=True)
        copied.copy_(elements, non_blocking=True)
    return copied.view(tensor.dtype)


@checked
def save_async(
    uri: Target,
    tensors: Mapping[str, torch.Tensor],
    *,
    hashes: Hashes = "chunked",
    threads: int = 1,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> Save:
    """Take a snapshot of tensors and save it in the background.

    Changes to the tensors after the call do not affect the file. The snapshot takes as much memory
    as the tensors until the save is done. For tensors on an accelerator it is pinned memory, and
    this call only starts their copies, on the current stream. The program does not exit before the
    save has ended.

    Args:
        uri: as for :func:`save`.
        tensors: as for :func:`save`.
        hashes: as for :func:`save`.
        threads: how many threads compute; one by default, which leaves the other CPUs to the
            program.
        options: as for :func:`save`.
        metadata: as for :func:`save`.
        progress: as for :func:`save`, called from another thread. An exception that it raises ends
            the save.

    Returns:
        A future with ``cancel()`` and ``progress()``. Its result is ``None``; if the save fails,
        ``result()`` raises the exception that :func:`save` would.
    """
    future = Save()
    # Keeps only the names, so that the save does not keep the tensors themselves alive.
    named = as_dict(tensors)
    try:
        plain = plain_tensors(named, named.values())
    except Exception as error:
        future.set_exception(error)
        return future
    names, snapshot = list(named), _Snapshot(plain)
    del plain
    request = save_request(hashes, threads, options, metadata)
    target = to_uri(uri)

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            snapshot.wait()
            with reported(future._job, progress):
                run_save(future._job, target, names, snapshot.copies, request)
        except BaseException as error:
            snapshot.copies.clear()  # the exception's traceback keeps the frames' variables alive
            future.set_exception(error)
        else:
            snapshot.copies.clear()
            future.set_result(None)

    # Not a daemon thread: a program that exits waits for its file.
    threading.Thread(target=run, name="tensorizer_ops save").start()
    return future
