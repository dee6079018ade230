"""The functions of the ``safetensors`` library: change the import, and code runs here.

::

    from tensorizer_ops.safetensors import safe_open
    from tensorizer_ops.safetensors.torch import save_file  # or .numpy

The functions for torch are here as well.
Names, arguments, results and files are the same. Files may also be on servers and of either format,
and errors are those of :mod:`tensorizer_ops.errors`, whose base class is ``SafetensorError`` here.
"""

from tensorizer_ops.safetensors.torch import (
    Device as Device,
    SafetensorError,
    Slice,
    load,
    load_file,
    load_model,
    safe_open,
    save,
    save_file,
    save_model,
)

__all__ = [
    "SafetensorError",
    "Slice",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
]
