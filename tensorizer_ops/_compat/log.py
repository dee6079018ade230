"""The logger of ``tensorizer.serialization``, under the name by which programs ask for it."""

from __future__ import annotations

import logging

logger = logging.getLogger("tensorizer.serialization")
