"""Loads the compiled library into the process."""

from __future__ import annotations

import os

import torch


def _version(torch_version: str) -> str:
    """The X.Y of X.Y.Z+anything: what binary compatibility depends on."""
    return ".".join(torch_version.partition("+")[0].split(".")[:2])


def load_library() -> None:
    try:
        from tensorizer_ops import _build
    except ModuleNotFoundError:
        raise ImportError(
            "tensorizer_ops is not built: run `pip install .` or `make build` in its sources"
        ) from None
    running = _version(torch.__version__)
    if running != _build.TORCH:
        raise ImportError(
            f"tensorizer_ops was built for torch {_build.TORCH}, and this is torch "
            f"{torch.__version__}: install tensorizer_ops again to build it for torch {running}"
        )
    torch.ops.load_library(os.path.join(os.path.dirname(__file__), "libtensorizer_ops.so"))
    # Only now: it is linked against the library.
    from tensorizer_ops import _python  # noqa: F401
