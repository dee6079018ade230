"""``verify`` and ``digest``. Neither needs torch."""

from __future__ import annotations

import contextlib
from argparse import Namespace

from tensorizer_ops import errors
from tensorizer_ops._base.progress import reported
from tensorizer_ops._cli.main import report, status_of
from tensorizer_ops._cli.options import is_encrypted, reading
from tensorizer_ops._cli.output import bar, green, name_of
from tensorizer_ops._cli.parsers import DIFFERENT
from tensorizer_ops._front.inspection import File


def verify(given: Namespace) -> int:
    """Verify all files, and go on after one that is damaged. A file that ends too soon is, too."""
    options = reading(given)
    worst = 0
    for uri in given.uri:
        try:
            file = File(uri, options)
            file.verify(given.verify, given.threads, bar(given.quiet, uri))
        except errors.Error as error:
            report(error, given.verbose)
            damaged = isinstance(error, errors.InvalidFormat) or (
                isinstance(error, errors.Crypto)
                and "key" in options
                and _is_encrypted(uri, options)
            )
            worst = max(worst, DIFFERENT if damaged else status_of(error))
        else:
            if not given.quiet:
                print(f"{name_of(file)}: {green('OK')}")
    return worst


def _is_encrypted(uri: str, options: dict[str, str]) -> bool:
    with contextlib.suppress(errors.Error):
        return is_encrypted(uri, options)
    return True


def digest(given: Namespace) -> int:
    """Print the digests of all files, and go on after one that has none."""
    options = reading(given)
    worst = 0
    for uri in given.uri:
        try:
            file = File(uri, options)
            with reported(file, bar(given.quiet, uri)):
                found = file.digest(given.threads, given.version, given.listed)
        except errors.Error as error:
            report(error, given.verbose)
            worst = max(worst, status_of(error))
        else:
            print(found if len(given.uri) == 1 else f"{found}  {name_of(file)}")
    return worst
