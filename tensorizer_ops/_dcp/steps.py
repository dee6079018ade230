"""The names of the steps of a chain, which no other checkpoint can take."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tensorizer_ops import _core, errors
from tensorizer_ops._base.targets import local_path

NAME = re.compile(r"step-[0-9]{1,19}-[0-9a-f]{16}")
# Of the metadata of a step: its name.
STEP_KEY = "tensorizer_ops.chain.step"


def step_named(uri: str) -> str | None:
    """Return the name of the step whose folder this is; ``None`` if it is not one of a chain."""
    path = local_path(uri)
    if path is None:
        places = [_core.signed_path(uri).rstrip("/")]
    else:
        places = [os.path.normpath(path), os.path.realpath(path)]
    names = [os.path.basename(place) for place in places]
    return next((name for name in names if NAME.fullmatch(name)), None)


def check_step(name: str | None, shown: str, metadata: Mapping[str, str]) -> None:
    """Raise if what was read is not what was saved as the step of this name, if it has one."""
    if name is not None and metadata.get(STEP_KEY) != name:
        raise errors.InvalidFormat(f"{shown} is not what was saved as {name!r}")
