"""The names of the steps of a chain, which no other checkpoint can take."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tensorizer_ops import _core, errors
from tensorizer_ops._base.targets import local_path

NAME = re.compile(r"step-[0-9]{1,19}-[0-9a-f]{16}")
# What servers may ignore behind a name: parameters, blanks and dots.
_IGNORED = re.compile(r"(;.*|[\s.\0])+\Z", re.DOTALL)
# Of the metadata of a step: its name.
STEP_KEY = "tensorizer_ops.chain.step"


def step_named(uri: str) -> str | None:
    """Return the name of the step whose folder this is; ``None`` if it is not one of a chain."""
    path = local_path(uri)
    if path is None:
        return _named_on_server(_core.signed_path(uri))
    names = [os.path.basename(place(path)) for place in (os.path.normpath, os.path.realpath)]
    return next((name for name in names if NAME.fullmatch(name)), None)


def _named_on_server(path: str) -> str | None:
    """Return the name in a path of a server, which may ignore dots and the like in it."""
    passed_over = 0
    for part in reversed(re.split(r"[/\\]", path)):
        name = _IGNORED.sub("", part).lower()
        if name and not passed_over:
            return name if NAME.fullmatch(name) else None
        if name or part.startswith(".."):
            passed_over += -1 if name else 1
    return None


def check_step(name: str | None, shown: str, metadata: Mapping[str, str]) -> None:
    """Raise if what was read is not what was saved as the step of this name, if it has one."""
    if name is not None and metadata.get(STEP_KEY) != name:
        raise errors.InvalidFormat(f"{shown} is not what was saved as {name!r}")
