"""Kills saves of models in several files before any of their system calls, and checks what is left.

Runs in a process with preload.c.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
from functools import cache
from pathlib import Path

import torch

import tensorizer_ops
from support.process import fork, wait

# How many files each save before has, then the one that is killed, and options of that.
CASES: dict[str, tuple[list[int], int, dict[str, str]]] = {
    "the same count": ([3], 3, {}),
    "once more": ([3, 3], 3, {}),
    "more files, fsync": ([2], 3, {"fsync": "true"}),
    "fewer files": ([3], 2, {}),
    "the first save": ([], 2, {"fsync": "true"}),
    "of one file": ([1], 2, {}),
    "to one file": ([3], 1, {}),
    "a linked index": ([2], 2, {}),
    "after a save that was killed": ([2], 3, {}),
}
# They have names like those of the model, and are not its files.
OTHERS = ("model-00009-of-00009.safetensors", "model-abcd-00001-of-00002.safetensors")
# A save of the model that is killed.
NEW = 100
NEVER = 1 << 30

Found = tuple[int, int] | None


def save(folder: Path, value: int, files: int, options: dict[str, str]) -> None:
    model = {f"t{i}": torch.full((64,), value) for i in range(2 * files)}  # of 512 bytes
    most = {"max_shard_size": "1024" if files > 1 else "1000000"}
    tensorizer_ops.save(folder / "model.safetensors", model, threads=1, options=most | options)


def killed(folder: Path, point: int, files: int, options: dict[str, str]) -> int | None:
    """Saves in a fork, and kills it before a call. Returns how many there were if it was not."""
    calls = folder.parent / "calls"
    calls.unlink(missing_ok=True)

    def child() -> None:
        os.environ["KILL"] = str(point)
        save(folder, NEW, files, options)
        del os.environ["KILL"]
        calls.write_text(str(ctypes.c_long.in_dll(ctypes.CDLL(None), "calls").value))

    status = wait(fork(child))
    assert status in (0, -signal.SIGKILL), status
    return int(calls.read_text()) if status == 0 else None


def begin(folder: Path, older: list[int]) -> None:
    folder.mkdir(parents=True)
    for name in OTHERS:
        (folder / name).write_text("of a user")
    for value, count in enumerate(older):
        save(folder, value, count, {})


def prepare(folder: Path, case: str) -> None:
    older, files, options = CASES[case]
    begin(folder, older)
    if case == "a linked index":
        index = folder / "model.safetensors.index.json"
        index.rename(folder.parent / "blob")
        index.symlink_to("../blob")
    if case == "after a save that was killed":
        killed(folder, between_links(folder.parent), files, options)
        assert len(list(folder.glob("*-of-00003.safetensors"))) == 2


@cache
def between_links(work: Path) -> int:
    """Returns the number of a call before which two of three files are there."""
    low, high = 1, 1000
    while True:
        point, folder = (low + high) // 2, work / "searched"
        begin(folder, [2])
        killed(folder, point, 3, {})
        there = len(list(folder.glob("*-of-00003.safetensors")))
        shutil.rmtree(folder)
        if there == 2:
            return point
        low, high = (point, high) if there < 2 else (low, point)


def whole(uri: Path) -> Found:
    """Returns the value of all tensors of a model and how many there are; null if there is none."""
    try:
        loaded = tensorizer_ops.load(uri)
    except FileNotFoundError:
        return None
    values = {int(value) for tensor in loaded.values() for value in tensor.unique()}
    assert len(values) == 1, values
    return values.pop(), len(loaded)


def check(folder: Path, older: Found, files: int) -> None:
    one, several = (whole(folder / f"model.safetensors{end}") for end in ("", ".index.json"))
    new = (NEW, 2 * files)
    assert {one, several} <= {None, older, new}, (one, several)
    assert older is None or one or several, "neither model is there"
    if several and not one:
        assert whole(folder) == several
    save(folder, 1, 2, {})
    assert whole(folder) == (1, 4)
    index = {"model.safetensors.index.json"}
    left = {path.name for path in folder.iterdir()} - index - set(OTHERS)
    # A new index has such a name before it replaces the older one.
    left = {name for name in left if not name.startswith(".tensorizer-")}
    assert len(left) == 2 and all(name.endswith("-of-00002.safetensors") for name in left), left
    assert all((folder / name).read_text() == "of a user" for name in OTHERS)


def run(work: Path, wanted: str) -> int:
    """Tries so many calls, chosen at random, or "all". Returns how many that were."""
    points = []
    for case, (_, files, options) in CASES.items():
        prepare(work / "model", case)
        calls = killed(work / "model", NEVER, files, options)
        assert calls is not None and calls > 20
        points += [(case, point) for point in range(1, calls + 1)]
        shutil.rmtree(work / "model")
    if wanted != "all":
        points = random.Random(wanted).sample(points, int(wanted))
    for case, point in points:
        _, files, options = CASES[case]
        prepare(work / "model", case)
        older = whole(work / "model/model.safetensors.index.json")
        older = older or whole(work / "model/model.safetensors")
        assert killed(work / "model", point, files, options) is None, (case, point)
        try:
            check(work / "model", older, files)
        except BaseException as error:
            error.add_note(f"{case}, killed before call {point}")
            raise
        shutil.rmtree(work / "model")
    return len(points)
