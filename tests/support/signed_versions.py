"""Versions that a publisher signs, and nodes that follow them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import tensorizer_ops
from tensorizer_ops import Publisher
from tensorizer_ops._versions.listing import FILE
from tensorizer_ops._versions.node import Node

KEY = "tensorizer_ops.versions"


def state_of(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(40_000) + step, "kept": torch.ones(100_000)}


def publish(place: Path, steps: range, sign: Path | None, **how: Any) -> None:
    with Publisher(place, sign=sign, **({"grace": 0} | how)) as publisher:
        for step in steps:
            publisher.publish(state_of(step), step=step)


def list_of(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tensorizer_ops.metadata(place / FILE)[KEY])
    return found


@contextmanager
def nodes(*given: tuple[Path | str, Path, dict[str, str]]) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        made = [Node(place, str(shm), options, interval=0.01) for place, shm, options in given]
        for node in made:
            stack.callback(node.close)
        yield made


def folder_of(node: Node) -> Path:
    return node.file(1, patience=60).parent
