"""The names of the steps of a chain, which no other checkpoint can take."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorizer_ops import errors
from tensorizer_ops._dcp import FILE

if TYPE_CHECKING:
    from tensorizer_ops._base.folder import Folder

NAME = re.compile(r"step-[0-9]{1,19}-[0-9a-f]{16}")
# Of the metadata of a step: its name.
STEP_KEY = "tensorizer_ops.chain.step"


def check_step(folder: Folder, metadata: Mapping[str, str]) -> None:
    """Raise if a folder has the name of a step, and not the files that were saved as this step."""
    place = folder.path or folder.name.partition("?")[0].rstrip("/")
    name = os.path.basename(os.path.normpath(place))
    if NAME.fullmatch(name) and metadata.get(STEP_KEY) != name:
        raise errors.InvalidFormat(f"{FILE!r} in {folder.label} is not what was saved as {name!r}")
