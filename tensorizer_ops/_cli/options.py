"""The options of loads and saves that the arguments ask for."""

from __future__ import annotations

import getpass
import os
import stat
from argparse import Namespace

from tensorizer_ops._base.targets import local_path
from tensorizer_ops._cli.parsers import UsageError
from tensorizer_ops._front.inspection import File


def reading(given: Namespace) -> dict[str, str]:
    """Return the options for reading: those of ``-o``, and the key if there is one."""
    options: dict[str, str] = dict(given.options)
    key = key_name(given)
    if key is not None:
        if "key" in options:
            raise UsageError("there are two keys: one is an option, and one an argument of its own")
        options["key"] = key
    return options


def is_encrypted(uri: str, options: dict[str, str]) -> bool:
    """Return whether a file is encrypted, which is an error to read with a key if it is not."""
    without = {name: value for name, value in options.items() if name != "key"}
    return File(uri, without).format().encrypted


def without_useless_key(uri: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options without the key if the file is not encrypted: another one may be."""
    if "key" not in options or is_encrypted(uri, options):
        return options
    return {name: value for name, value in options.items() if name != "key"}


def refuse_stream(source: str, instead: str) -> None:
    """Raise an error for a pipe or a terminal, which has its bytes only once."""
    name = source.removeprefix("fd:")
    try:
        path = int(name) if name != source else local_path(source)
        stream = path is not None and not stat.S_ISREG(os.stat(path).st_mode)
        folder = path is not None and stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return  # the library says what is wrong with it
    if stream and not folder:
        raise UsageError(f"{source!r} can be read only once, and {instead}")


def key_name(given: Namespace, new: str = "", ask: bool = False, twice: bool = False) -> str | None:
    """Return the name of the key that the arguments ask for, as the option ``key`` takes it.

    With ``ask``, a passphrase is read from the terminal if no argument names a key.
    """
    values = vars(given)
    if values[f"{new}key"] is not None:
        return str(values[f"{new}key"])
    if values[f"{new}key_file"] is not None:
        return f"file:{values[f'{new}key_file']}"
    if values[f"{new}passphrase_file"] is not None:
        return f"passphrase-file:{values[f'{new}passphrase_file']}"
    if ask or values[f"ask_{new}passphrase"]:
        return _asked(new.replace("_", " "), twice)
    return None


def _asked(which: str, twice: bool) -> str:
    """Ask for a passphrase, and return the name under which this process has it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:  # getpass would read it from standard input, where it may be shown
        raise UsageError(
            "there is no terminal to ask for the passphrase on: give --key-file or "
            "--passphrase-file"
        ) from None
    try:
        passphrase = getpass.getpass(f"{which}passphrase: ".capitalize())
        if not passphrase:
            raise UsageError("the passphrase is empty")
        if twice and getpass.getpass("The same again: ") != passphrase:
            raise UsageError("the two passphrases differ")
    except EOFError:  # Ctrl-D
        raise UsageError("no passphrase was typed") from None

    from tensorizer_ops import keys

    name = f"asked {which}passphrase"
    keys.add(name, passphrase=passphrase)
    return f"named:{name}"
