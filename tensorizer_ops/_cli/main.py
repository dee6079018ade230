"""Runs a subcommand: its errors become one line on stderr, and an exit status."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorizer_ops import errors
from tensorizer_ops._base.tables import safe
from tensorizer_ops._cli.parsers import (
    DIFFERENT,
    FAILED,
    WRONG_USAGE,
    UsageError,
    complaint,
    make_parser,
)
from tensorizer_ops._front.selection import NothingMatches

# The names of arguments in messages of the library, and those that the command has for them.
_ARGUMENTS = {
    "name one with the option 'key'": "give --key-file or --passphrase-file",
    "entry=": "--entry",
    "rename: ": "--map: ",
    "prefix: ": "--prefix: ",
    "overwrite=True": "--overwrite",
    " (pathlib.Path drops one)": "",
}
# Options that may stand in front of the command.
_FOR_ALL = ("-q", "--quiet", "-v", "--verbose")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the arguments of this process, and return its exit status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # It was closed, as by `>&-`: the lowest free descriptor. No other file must get that,
            # and a copy to fd:1 must fail.
            os.open(os.devnull, os.O_RDONLY)
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        # Names may have characters that the locale lacks.
        getattr(sys, name).reconfigure(errors="backslashreplace")
    verbose = False
    try:
        try:
            parser = make_parser()
            words = sys.argv[1:] if arguments is None else arguments
            if not words:
                parser.print_help(sys.stderr)
                return WRONG_USAGE
            given = parser.parse_args(_in_order(words))
            verbose = given.verbose
            with interrupts_that_end():
                module = importlib.import_module(f"tensorizer_ops._cli.{given.file}")
            status: int = getattr(module, given.run)(given)
        finally:
            flush()
    except KeyboardInterrupt:
        return interrupted()
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not isinstance(error, errors.Error):
            # The reader of the output has closed it, as in `tensorizer-ops info ... | head`.
            return 128 + signal.SIGPIPE
        report(error, verbose)
        return status_of(error)
    return status


def _in_order(words: Sequence[str]) -> list[str]:
    """Return arguments as the parser takes them: options that all commands have behind these."""
    first = [*itertools.takewhile(lambda word: word in _FOR_ALL, words)]
    rest = words[len(first) :]
    if rest[:1] == ["help"]:
        rest = [*rest[1:2], "--help"]
    return [*rest[:1], *first, *rest[1:]]


@contextmanager
def interrupts_that_end() -> Iterator[None]:
    """Let Ctrl-C end the process at once, while there is nothing to undo.

    A KeyboardInterrupt would be lost in some places of the import of torch.
    """

    def end(number: int, frame: object) -> None:
        status = interrupted()
        sys.stderr.flush()
        os._exit(status)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # such as ignored ones of background jobs
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted() -> int:
    """Say that Ctrl-C has ended the command, and return its exit status."""
    # On a terminal, ^C is at the begin of the line.
    print(f"{chr(10) * sys.stderr.isatty()}{complaint('interrupted')}", file=sys.stderr)
    return 128 + signal.SIGINT


def flush() -> None:
    """Write what was printed, here where a failure is reported."""
    try:
        sys.stdout.flush()
    except OSError:
        # At exit Python would flush it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def report(error: Exception, verbose: bool) -> None:
    """Print the message of an error, in one line for each thing that is damaged."""
    if verbose:
        for line in "".join(traceback.format_exception(error)).split("\n"):
            print(safe(line), file=sys.stderr)
    for line in describe(error):
        print(complaint(line), file=sys.stderr)


def describe(error: Exception) -> list[str]:
    lines = str(error).split("\n")
    if isinstance(error, errors.HashMismatch):
        return lines
    text = as_arguments(" ".join(lines))
    if isinstance(error, OSError) and not isinstance(error, errors.Error):
        text = f"{error.filename!r}: {error.strerror}" if error.filename is not None else text
    elif not isinstance(error, errors.Error | UsageError | ImportError | ValueError):
        text = f"{type(error).__name__}: {text}"
    return [text]


def as_arguments(text: str) -> str:
    """Return a message of the library with the names that arguments have here."""
    for ours, name in _ARGUMENTS.items():
        text = text.replace(ours, name)
    return text


def status_of(error: Exception) -> int:
    if isinstance(error, errors.HashMismatch | NothingMatches):
        return DIFFERENT
    return WRONG_USAGE if isinstance(error, UsageError | errors.InvalidArgument) else FAILED
