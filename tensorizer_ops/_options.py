"""What callers give loads and saves.

Some options are secrets: no error shows more than their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NoReturn

# An int is a float to a type checker, and a bool is an int.
Options = Mapping[str, str | float]

Verify = Literal["none", "crc32", "all"]
Hashes = Literal["all", "crc32", "sha256", "none"]


class SecretOptions(dict[str, str]):
    """Options of the ops, of which some are secrets: it shows their names only."""

    def __repr__(self) -> str:
        return f"<options: {', '.join(self)}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the options of a stream may hold secrets, and are not pickled")


class _SecretPairs(list[tuple[str, str]]):
    def __repr__(self) -> str:
        return f"<options: {', '.join(name for name, _ in self)}>"


def as_text(options: Options) -> dict[str, str]:
    """As the ops take them, which print all of them where one is of another type."""
    if not isinstance(options, Mapping):
        raise TypeError(f"options is {type(options).__name__}, and must be a mapping")
    given: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of an option is {type(name).__name__}, and must be str")
        if isinstance(value, bool):
            given[name] = "true" if value else "false"
        elif isinstance(value, str):
            given[name] = value
        elif isinstance(value, int | float):
            given[name] = str(value)
        else:
            raise TypeError(
                f"option {name!r} is {type(value).__name__}, and must be str, int, float or bool"
            )
    return given


def as_pairs(options: Options | None) -> list[tuple[str, str]]:
    """As the functions of ``_python`` take them, which print all that does not fit them."""
    return _SecretPairs(as_text(options or {}).items())
