"""``delta`` and ``apply``."""

from __future__ import annotations

from argparse import Namespace

from tensorizer_ops import _core
from tensorizer_ops._cli.options import reading, refuse_stream, without_useless_key
from tensorizer_ops._cli.output import bar, note


def delta(given: Namespace) -> int:
    from tensorizer_ops._front.deltas import delta as make

    make(
        given.base,
        given.new,
        given.target,
        hashes=given.hashes,
        threads=given.threads,
        base_options=_reading(given, given.base),
        new_options=_reading(given, given.new),
        target_options=dict(given.target_options),
        progress=bar(given.quiet, given.new),
    )
    return 0


def apply(given: Namespace) -> int:
    from tensorizer_ops._front.deltas import apply as apply_to

    changed = apply_to(
        given.delta,
        given.base,
        given.target,
        hashes=given.hashes,
        threads=given.threads,
        delta_options=_reading(given, given.delta),
        base_options=_reading(given, given.base),
        target_options=dict(given.target_options),
        progress=bar(given.quiet, given.base),
    )
    if not changed:
        note(given.quiet, f"{_core.without_secrets(given.base)} is the new version already")
    return 0


def _reading(given: Namespace, uri: str) -> dict[str, str]:
    refuse_stream(uri, "a delta needs more")
    return without_useless_key(uri, reading(given))
