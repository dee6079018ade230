"""Options given to what both loads and saves, which takes those of either."""

from __future__ import annotations

from tensorizer_ops import _core
from tensorizer_ops._base.options import Options, SecretOptions, as_pairs


def for_loads(options: Options | None) -> SecretOptions:
    """Return options without those that only saves have."""
    return SecretOptions(_core.options_for(False, as_pairs(options)))


def for_saves(options: Options | None) -> SecretOptions:
    """Return options without those that only loads have."""
    return SecretOptions(_core.options_for(True, as_pairs(options)))
