"""Registers the ops, their fakes and the Dynamo handlers. Imported as soon as torch is."""

from __future__ import annotations

import torch

from tensorizer_ops import errors
from tensorizer_ops._base import library

library.load_library()
errors._derive_from_torch(torch.OutOfMemoryError)

from tensorizer_ops._compile import fakes as fakes  # noqa: E402
from tensorizer_ops._compile.dynamo import register_with_dynamo  # noqa: E402

register_with_dynamo()
