"""``sign``, which needs no torch."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tensorizer_ops import trust
from tensorizer_ops._cli.output import bar


def sign(given: Namespace) -> int:
    print(
        trust.sign(
            given.model,
            key=given.key or Path(given.key_file),
            passphrase=given.passphrase,
            certificates=[Path(file) for file in given.certificate],
            signature=given.signature,
            method=given.method,
            shard_size=given.shard_size,
            ignore=given.ignore,
            threads=given.threads,
            options=dict(given.options),
            progress=bar(given.quiet, given.model),
        )
    )
    return 0


def policy_of(text: str) -> str:
    """Return the name of a policy, which is given by a path or by its name."""
    return text if text.startswith("file:") else f"file:{text}"
