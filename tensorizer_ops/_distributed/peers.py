"""The ranks of one call: they exchange what they know, and learn of each other's failures."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import select
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tensorizer_ops import errors
from tensorizer_ops._base.job import Job
from tensorizer_ops._distributed.heartbeat import Heartbeat
from tensorizer_ops._distributed.store import Store, first_line

_Result = TypeVar("_Result")

# Seconds between two looks at something that takes long, and at the other ranks.
_SHORTEST, _LONGEST, _LOOK = 0.0002, 0.01, 0.1
# Seconds to wait for the rank that has failed to say so, when only its connections are gone, and
# for all ranks to have seen the end.
_GRACE = 2.0

_calls: Counter[str] = Counter()  # by group


def host() -> str:
    """Return the same text in processes that see each other: of one kernel and PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


class Peers:
    """The ranks of a group during one call that all of them make.

    A context manager: it ends when all ranks have ended, and publishes the error of its body, which
    all of them raise. Used by one thread. ``call`` is the name of the function that they call.
    """

    def __init__(self, group: dist.ProcessGroup | None, call: str) -> None:
        self._call = call
        self.group = group or distributed_c10d._get_default_group()
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        _calls[self.group.group_name] += 1
        self._store = Store(self.group, f"tensorizer_ops/{_calls[self.group.group_name]}")
        # Called in the end, when the others can know of a failure.
        self.cleanup = contextlib.ExitStack()
        self._exchanges = 0
        self._said: list[str] = []  # keys that rank 0 deletes in the end
        self._greeting: dist.Work | None = None
        self._heartbeat: Heartbeat | None = None  # unless all ranks can be watched
        self.beside = 1  # how many ranks are on this host, this one included
        self.processes: list[int] | None = None  # of all ranks, if they are on one host
        self._watched: dict[int, int] = {}  # descriptors of processes on this host, and their ranks
        self._processes = select.poll()
        # A store answers some ten thousand requests in a second.
        self._look, self._slow = max(_LOOK, self.size / 2000), max(_LONGEST, self.size / 20_000)
        self._looked = 0.0
        # An error that another rank has published, and one that all ranks raise at the same place.
        self._told: BaseException | None = None
        self._agreed: BaseException | None = None
        self._loss: errors.Unavailable | None = None  # of another rank, as this one saw it

    @property
    def device(self) -> torch.device:
        """Where bytes must be for the backend of the group to send them."""
        if "cpu:" in dist.get_backend_config(self.group):
            return torch.device("cpu")
        found = torch.accelerator.current_accelerator()
        assert found is not None, "the backend of a group has a device"
        return torch.device(found.type, torch.accelerator.current_device_index())

    def __enter__(self) -> Peers:
        try:
            self._meet()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None or error is self._agreed:
                self._end()
            elif error is not self._told:
                self._publish(error)
        finally:
            self._stop_heartbeat()
            for descriptor in self._watched:
                os.close(descriptor)
            self.cleanup.close()

    def agree(self, value: Any, outcome: Callable[[list[Any]], _Result]) -> _Result:
        """Return ``outcome()`` of what all ranks pass to this method, by rank.

        Rank 0 computes it, and the others only receive the outcome. All ranks call this as often.
        """
        self._give(value)
        if self.rank == 0:
            self._say(f"all/{self._exchanges}", outcome(self._given()))
        found: _Result = self._received(f"all/{self._exchanges}", 0)
        return found

    def _say(self, key: str, value: Any) -> None:
        self._said.append(key)
        self._set(key, value)

    def _give(self, value: Any) -> None:
        self._exchanges += 1
        self._set(f"given/{self._exchanges}/{self.rank}", value)

    def _given(self) -> list[Any]:
        keys = [f"given/{self._exchanges}/{rank}" for rank in range(self.size)]
        values = [self._received(key, rank) for rank, key in enumerate(keys)]
        for key in keys:
            self._store.delete(key)
        return values

    def _meet(self) -> None:
        """Learn which processes the others are, and watch them.

        The connections of Gloo, where there are some, also show a rank that has ended before: it
        takes part in the greeting only after it has given its process ID.
        """
        self._heartbeat = Heartbeat(self._store, self.rank, self.size)
        here = host()
        self._give([self._call, here, os.getpid()])
        if "cpu:gloo" in dist.get_backend_config(self.group):
            nothing = torch.zeros(1, device="cpu")
            self._greeting = dist.all_reduce(nothing, group=self.group, async_op=True)
        if self.rank == 0:
            hosts: dict[str, list[tuple[int, int]]] = {}
            for rank, (call, where, pid) in enumerate(self._given()):
                if call != self._call:
                    raise errors.InvalidArgument(
                        f"rank {rank} calls {call}, and rank 0 {self._call}: all ranks of a group "
                        "make the same calls in the same order"
                    )
                hosts.setdefault(where, []).append((rank, pid))
            for where, processes in hosts.items():
                self._say(f"host/{where}", processes)
        beside = self._received(f"host/{here}", 0)
        if self._greeting is not None:
            self.finish(self._greeting)
            self._greeting = None
        for rank, pid in beside:
            if rank != self.rank:
                self._watch(rank, pid)
        self.beside = len(beside)
        if self.beside == self.size:
            self.processes = [pid for _, pid in beside]
        if len(self._watched) == self.size - 1:
            self._stop_heartbeat()

    def wait(self, is_done: Callable[[], bool], longest: float = _LONGEST) -> None:
        """Block until ``is_done()``, which is asked every ``longest`` seconds at the least.

        Raises what another rank has raised, soon after.
        """
        pause = _SHORTEST
        while not is_done():
            if (found := self._failure()) and not is_done():
                raise self._known(found)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def check(self) -> None:
        """Raise what another rank has raised, if one has."""
        if cause := self._cause():
            raise cause

    def _cause(self) -> BaseException | None:
        self._looked = 0.0
        found = self._failure()
        return found and self._known(found)

    def run(self, work: Callable[[], _Result], cancel: Callable[[], None]) -> _Result:
        """Return ``work()``, which runs in a thread. ``cancel()`` makes it end early."""
        job = Job(work)
        try:
            self.wait(job.is_done)
        except BaseException:
            cancel()
            raise
        finally:
            job.join()
        if job.error is not None:
            self.check()  # it may be the cause
        return job.result()

    def broadcast(self, tensor: Any, rank: int) -> dist.Work:
        """Start to send a tensor from a rank to all others."""
        try:
            work: dist.Work = dist.broadcast(
                tensor, group=self.group, group_src=rank, async_op=True
            )
            return work
        except RuntimeError as error:
            raise self._broken(error) from None

    def exchange(
        self, into: torch.Tensor, out: torch.Tensor, sizes: list[int], sent: list[int]
    ) -> dist.Work | None:
        """Start to send to all ranks, and to receive from them, as many elements of each as given.

        All ranks call this together.
        """
        try:
            work: dist.Work = dist.all_to_all_single(
                into, out, sizes, sent, group=self.group, async_op=True
            )
            return work
        except RuntimeError as error:
            raise self._broken(error) from None

    def finish(self, work: Any) -> None:
        """Block until a broadcast or an exchange is complete."""
        try:
            self.wait(work.is_completed)
            work.wait()
        except RuntimeError as error:
            if isinstance(error, errors.Error):
                raise
            raise self._broken(error) from None

    def explain(self, error: BaseException) -> None:
        """Keep why this rank fails, for :meth:`explained` on the others. Stops none of them."""
        self._set(f"why/{self.rank}", self._described(error))

    def explained(self, rank: int, own: BaseException | None) -> BaseException:
        """Return what to raise for a failure that all ranks know of, and wait for each other."""
        text = None if own else self._store.get(f"why/{rank}")
        self._agreed = own or self._error(text)
        return self._agreed

    def _described(self, error: BaseException) -> dict[str, Any]:
        kind = type(error).__name__
        rank = None if error is self._loss else self.rank  # its text names the rank
        return {"rank": rank, "kind": kind, "text": str(error) or kind}

    def _error(self, described: Any) -> BaseException:
        """Return an error that a rank has described."""
        found = json.loads(described)
        kind = getattr(errors, found["kind"], None) or getattr(builtins, found["kind"], None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = errors.Unavailable
        whose = "" if found["rank"] in (None, self.rank) else f"rank {found['rank']}: "
        return kind(f"{whose}{found['text']}")

    def _publish(self, error: BaseException) -> None:
        """Stop the other ranks. The first error of all ranks counts."""
        with contextlib.suppress(errors.Unavailable):  # the store is gone, as all others will see
            self._store.set_once("failed", json.dumps(self._described(error)))

    def _set(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))

    def _received(self, key: str, rank: int) -> Any:
        # Rank 0 may be waiting itself, and then says for whom.
        patience = self._store.timeout + (0 if self.rank == 0 else _GRACE)
        end = time.monotonic() + patience

        def is_there() -> bool:
            if time.monotonic() > end:
                raise errors.TimedOut(
                    f"rank {rank} has not made this call within {self._store.timeout:.0f} s of "
                    f"rank {self.rank}"
                )
            return self._store.has(key)

        self.wait(is_there, self._slow)
        return json.loads(self._store.get(key))

    def _watch(self, rank: int, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise self._has_ended(rank) from None
        except OSError:  # the kernel or the container does not have this call
            return
        self._watched[descriptor] = rank
        self._processes.register(descriptor, select.POLLIN)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def _has_ended(self, rank: int) -> errors.Unavailable:
        self._loss = errors.Unavailable(f"rank {rank} has ended in the middle of this call")
        return self._loss

    def _failure(self) -> BaseException | None:
        """Return the failure of another rank, if there is one. Looks a few times a second."""
        now = time.monotonic()
        if now - self._looked < self._look:
            return None
        self._looked = now
        if self._greeting is not None and self._greeting.is_completed():
            greeting, self._greeting = self._greeting, None
            try:
                greeting.wait()
            except RuntimeError as error:
                return self._broken(error)
        if published := self._published():
            return published
        gone = [self._watched[descriptor] for descriptor, _ in self._processes.poll(0)]
        if self._heartbeat and self._heartbeat.is_gone():
            gone.append(self._heartbeat.watched)
        if not gone:
            return None
        self._publish(self._has_ended(gone[0]))  # for those that do not watch it
        return self._published()

    def _published(self) -> BaseException | None:
        if not self._store.has("failed"):
            return None
        return self._error(self._store.get("failed"))

    def _broken(self, error: RuntimeError) -> BaseException:
        """Return the error for connections that are gone: why, if the other rank can still say."""
        end = time.monotonic() + _GRACE
        while time.monotonic() < end:
            if cause := self._cause():
                return cause
            time.sleep(_LONGEST)
        self._loss = errors.Unavailable(
            f"rank {self.rank} has lost its connection to another rank, which has perhaps ended "
            f"({first_line(error)})"
        )
        self._publish(self._loss)
        return self._known(self._loss)

    def _known(self, error: BaseException) -> BaseException:
        self._told = error
        return error

    def _end(self) -> None:
        """Block until all ranks have come here. Rank 0, which may keep the store, goes last."""
        if self._store.add("done", 1) == self.size:
            self._store.set("end", "")
        self.wait(lambda: self._store.has("end"), self._slow)
        if self._store.add("gone", 1) < self.size and self.rank == 0:
            late = time.monotonic() + _GRACE
            while time.monotonic() < late and self._store.add("gone", 0) < self.size:
                time.sleep(self._slow)
        if self.rank == 0:
            for key in ("done", "gone", *self._said):
                self._store.delete(key)


class Alone(Peers):
    """One process, which needs no group."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.cleanup = contextlib.ExitStack()

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup.close()

    def agree(self, value: Any, outcome: Callable[[list[Any]], _Result]) -> _Result:
        return outcome([value])

    def exchange(
        self, into: torch.Tensor, out: torch.Tensor, sizes: list[int], sent: list[int]
    ) -> None:
        into.copy_(out)

    def finish(self, work: object) -> None:
        pass

    def explain(self, error: BaseException) -> None:
        pass

    def _failure(self) -> None:
        return None
