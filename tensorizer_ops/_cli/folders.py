"""``upload`` and ``download``. Neither needs torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from tensorizer_ops._base.tables import Table, safe, size_text
from tensorizer_ops._cli.output import bar, bold
from tensorizer_ops._hf.downloads import download as fetch
from tensorizer_ops._hf.hashing import Copied, Show
from tensorizer_ops._hf.uploads import upload as send


def upload(given: Namespace) -> int:
    return _shown(given, send(given.folder, given.uri, dict(given.options), _bars(given)))


def download(given: Namespace) -> int:
    copied = fetch(given.uri, given.folder, dict(given.options), _bars(given), given.overwrite)
    return _shown(given, copied)


def _bars(given: Namespace) -> Show:
    return lambda name: bar(given.quiet, name)


def _shown(given: Namespace, copied: Iterator[Copied]) -> int:
    """Wait until all files are copied, and print a table of them."""
    rows = [
        (
            safe(file.name),
            size_text(file.size),
            "already there" if file.seconds is None else f"{file.seconds:.1f} s",
            file.checked,
        )
        for file in copied
    ]
    if not given.quiet:
        print("\n".join(Table(("name", "size", "time", "checked"), rows, (1, 2)).lines(bold)))
    return 0
