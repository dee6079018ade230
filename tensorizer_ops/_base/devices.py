"""The devices that callers name."""

from __future__ import annotations

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import meant

# What others call the devices of torch, and those that torch has.
_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "amd": "cuda", "metal": "mps"}
_NAMES = ("cpu", "cuda", "hpu", "meta", "mps", "npu", "xla", "xpu")


def named_device(given: torch.device | str | int) -> torch.device:
    """Return the device of a name; raise for a name that torch does not know."""
    try:
        return torch.device(given)
    except RuntimeError as error:
        name, colon, index = str(given).partition(":")
        known = _OTHER_NAMES.get(name.lower())
        advice = (
            f": did you mean {known + colon + index!r}?" if known else meant(name, _NAMES)
        ) or f": {str(error).splitlines()[0]}"
        raise errors.InvalidArgument(f"device is {given!r}{advice}") from None


def first_use(device: torch.device) -> None:
    """Initialize a device as torch does; raise if this torch has no such device."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0] if isinstance(error, AssertionError) else ""
        raise errors.InvalidArgument(
            f"device is {str(device)!r}, for which this torch was not built"
            + (f": {why}" if why else "")
        ) from None
