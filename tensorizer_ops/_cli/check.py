"""``verify`` and ``digest``. Neither needs torch."""

from __future__ import annotations

import sys
from argparse import Namespace

from tensorizer_ops import errors
from tensorizer_ops._cli.main import describe, status_of
from tensorizer_ops._cli.options import reading
from tensorizer_ops._cli.output import bar, name_of
from tensorizer_ops._cli.parsers import DIFFERENT, PROGRAM
from tensorizer_ops._inspection import File
from tensorizer_ops._progress import reported


def verify(given: Namespace) -> int:
    """Verify all files, and go on after one that is damaged. A file that ends too soon is, too."""
    options = reading(given)
    worst = 0
    for uri in given.uri:
        try:
            file = File(uri, options)
            with reported(file, bar(given.quiet)):
                file.verify(given.check, given.threads)
        except errors.Error as error:
            print(f"{PROGRAM}: {describe(error)}", file=sys.stderr)
            damaged = isinstance(error, errors.InvalidFormat | errors.Crypto)
            worst = max(worst, DIFFERENT if damaged else status_of(error))
        else:
            if not given.quiet:
                print(f"{name_of(file)}: OK")
    return worst


def digest(given: Namespace) -> int:
    options = reading(given)
    for uri in given.uri:
        file = File(uri, options)
        with reported(file, bar(given.quiet)):
            found = file.digest(given.threads, given.version, given.listed)
        print(found if len(given.uri) == 1 else f"{found}  {name_of(file)}")
    return 0
