"""Registers the ops with torch: at once if the program has imported it, or when it does."""

from __future__ import annotations

import importlib
import sys
import warnings

from tensorizer_ops._base.import_hook import when_imported


def register_with_torch() -> None:
    """Import torch if necessary, and register the ops."""
    # In this order: the import hook below takes the two import locks in the same order.
    import torch  # noqa: F401

    importlib.import_module("tensorizer_ops._registration.with_torch")


def register_when_torch_is_imported() -> None:
    """Register the ops now if torch is imported, otherwise as soon as it is."""
    # With other threads, import torch at once: one of them may already be importing it, past the
    # point where the import hook would notice.
    if "torch" in sys.modules or len(sys._current_frames()) > 1:
        register_with_torch()
    else:
        when_imported("torch", _register_behind_torch)


def _register_behind_torch() -> None:
    try:
        register_with_torch()
    except Exception as error:
        # Importing torch must still succeed. Using this package raises the error.
        warnings.warn(f"torch.ops.tensorizer is missing: {error}", RuntimeWarning, stacklevel=2)
