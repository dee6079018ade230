"""Loads and saves tensors in ``.tensors`` files.

Importing this package registers ``torch.ops.tensorizer`` and ``torch.classes.tensorizer``;
:func:`load` and :func:`save` are typed Python fronts of the same.
"""

from tensorizer_ops import errors
from tensorizer_ops._library import load_library as _load_library

__version__ = "0.1.0"

_load_library()

from tensorizer_ops import _fakes as _fakes  # noqa: E402
from tensorizer_ops._front import load, save  # noqa: E402

__all__ = ["__version__", "errors", "load", "save"]
