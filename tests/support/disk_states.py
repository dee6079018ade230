"""Every state that a disk can have after a power failure, from the calls that disk.c has logged.

Any of the writes to a file since its last sync may be missing. Of one that is there, the disk may
have all bytes, those before a sector, those from a page on, or only the new size, with zeros. Any
of the changes of names in a folder since its last sync may be missing, too.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SECTOR, PAGE = 512, 4096
FOLDER = -1

# Contents by path; a folder has none.
Tree = dict[str, bytes | None]


class Write(NamedTuple):
    """A change of a file's bytes, or of its size."""

    at: int
    data: bytes
    size: int | None = None  # if set, the file ends here

    def variants(self) -> list[Write]:
        """Return what may be on the disk of it."""
        if self.size is not None:
            return [NOTHING, self]
        length = len(self.data)
        parts = [(0, end) for end in range(SECTOR, length, SECTOR)]
        parts += [(begin, length) for begin in range(PAGE, length, PAGE)]
        torn = [Write(self.at + begin, self.data[begin:end]) for begin, end in parts]
        return [NOTHING, Write(self.at + length, b""), *torn, self]


NOTHING = Write(0, b"")


class Names(NamedTuple):
    """A change of names: the inode of each, FOLDER, or None if the name is gone."""

    entries: dict[str, int | None]


@dataclass
class Disk:
    """What is on the disk for certain, and what may be."""

    files: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int | None] = field(default_factory=dict)
    writes: dict[int, list[Write]] = field(default_factory=dict)
    changes: list[Names] = field(default_factory=list)

    def apply(self, call: list[str], data: memoryview) -> None:
        match call:
            case ["write", inode, at, _]:
                self.writes.setdefault(int(inode), []).append(Write(int(at), bytes(data)))
            case ["size", inode, size]:
                self.writes.setdefault(int(inode), []).append(Write(0, b"", int(size)))
            case ["sync", inode]:
                number = int(inode)
                written = self.writes.pop(number, [])
                self.files[number] = patched(self.files.get(number, b""), written)
            case ["name", path, inode]:
                self.changes.append(Names({path: int(inode) or None}))
            case ["rename", old, new, inode]:
                self.changes.append(Names({old: None, new: int(inode)}))
            case ["folder", path]:
                self.changes.append(Names({path: FOLDER}))
            case ["sync-folder", folder]:
                left = []
                for change in self.changes:
                    here = {n: i for n, i in change.entries.items() if os.path.dirname(n) == folder}
                    self.names |= here
                    if other := {n: i for n, i in change.entries.items() if n not in here}:
                        left.append(Names(other))
                self.changes = left
            case _:
                raise AssertionError(call)

    def trees(self, most: int, sample: int, dice: random.Random) -> Iterator[Tree]:
        """Yield the trees that may be there: all if they are not more than ``most``, else some."""
        writes = [(inode, write) for inode in sorted(self.writes) for write in self.writes[inode]]
        choices: list[list[Any]] = [
            *([True, False] for _ in self.changes),
            *(w.variants() for _, w in writes),
        ]
        if math.prod(map(len, choices)) <= most:
            chosen: Iterator[tuple[Any, ...]] = itertools.product(*choices)
        else:
            chosen = (tuple(map(dice.choice, choices)) for _ in range(sample))
        for each in chosen:
            names = dict(self.names)
            left: dict[int, list[Write]] = {inode: [] for inode in self.writes}
            for change, there in zip(self.changes, each, strict=False):
                if there:
                    names |= change.entries
            for (inode, _), write in zip(writes, each[len(self.changes) :], strict=True):
                left[inode].append(write)
            yield {
                path: None
                if inode == FOLDER
                else patched(self.files.get(inode, b""), left.get(inode, []))
                for path, inode in names.items()
                if inode is not None and is_there(path, names)
            }


def is_there(path: str, names: dict[str, int | None]) -> bool:
    """Whether a path has a name, and all folders that it is in have theirs, up to the first one."""
    if names.get(path) is None:
        return False
    return path == next(iter(names)) or is_there(os.path.dirname(path), names)


def patched(content: bytes, writes: list[Write]) -> bytes:
    made = content
    for at, data, size in writes:
        if size is not None:
            made = made[:size].ljust(size, b"\0")
        else:
            made = made[:at].ljust(at, b"\0") + data + made[at + len(data) :]
    return made


def read_tree(root: Path) -> tuple[Disk, list[int]]:
    """Return the disk as it is, and descriptors that keep its inodes."""
    disk, kept = Disk(), []
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            disk.names[str(path)] = FOLDER
            continue
        kept.append(os.open(path, os.O_PATH))
        inode = os.fstat(kept[-1]).st_ino
        disk.names[str(path)] = inode
        disk.files[inode] = path.read_bytes()
    return disk, kept


class Call(NamedTuple):
    """A call that disk.c has logged."""

    process: str
    fields: list[str]
    data: memoryview  # that it wrote


def take_log(log: Path) -> list[Call]:
    """Return the calls that disk.c has logged, and remove them."""
    left = memoryview(log.read_bytes())
    calls = []
    while left:
        line, _, _ = bytes(left[:9000]).partition(b"\n")
        left = left[len(line) + 1 :]
        process, *call = line.decode().split("\t")
        size = int(call[3]) if call[0] == "write" else 0
        calls.append(Call(process, call, left[:size]))
        left = left[size:]
    log.unlink()
    return calls


def orders(calls: list[Call], last: str) -> Iterator[list[Call]]:
    """Yield the calls of several processes in every order of their syncs.

    The file of the name ``last`` is written when all other calls have been made.
    """
    inodes = [
        call.fields[-1] for call in calls if last in (os.path.basename(f) for f in call.fields)
    ]
    at = next((i for i, call in enumerate(calls) if call.fields[1] in inodes[-1:]), len(calls))
    parts: dict[str, list[list[Call]]] = {}  # of each process, and each ends in a sync
    for call in calls[:at]:
        own = parts.setdefault(call.process, [[]])
        own[-1].append(call)
        if call.fields[0].startswith("sync"):
            own.append([])
    turns = [process for process, own in parts.items() for part in own if part]
    for order in sorted(set(itertools.permutations(turns))):
        left = {process: iter(own) for process, own in parts.items()}
        yield [call for process in order for call in next(left[process])] + calls[at:]


def states(
    disk: Disk,
    calls: list[Call],
    most: int,
    sample: int,
    seed: int = 1,
) -> Iterator[tuple[int, Tree]]:
    """Yield each tree that a failure can leave once, with how many calls had been made."""
    seen, dice = set(), random.Random(seed)
    for number in range(len(calls) + 1):
        for tree in disk.trees(most, sample, dice):
            key = hash(tuple(sorted(tree.items(), key=lambda item: item[0])))
            if key not in seen or number == len(calls):
                seen.add(key)
                yield number, tree
        if number < len(calls):
            disk.apply(calls[number].fields, calls[number].data)


def write_tree(tree: Tree, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in sorted(tree.items()):
        if content is None:
            Path(path).mkdir(parents=True, exist_ok=True)
    for path, content in tree.items():
        if content is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content)
