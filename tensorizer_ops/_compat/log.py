"""The logger of ``tensorizer.serialization``, with tensorizer's name, which programs configure."""

from __future__ import annotations

import logging

logger = logging.getLogger("tensorizer.serialization")
