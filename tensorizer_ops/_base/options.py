"""The option types of loads and saves, and their conversion to strings.

Some options are secrets, so errors show only the names of options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NoReturn

from tensorizer_ops._base.arguments import is_unicode, kind_of, not_unicode, wrong

# Type checkers accept an int for a float, and a bool for an int.
Options = Mapping[str, str | float]
Metadata = Mapping[str, str | float]

Verify = Literal["none", "crc32", "all"]
Hashes = Literal["all", "crc32", "sha256", "chunked", "all+chunked", "none"]


class SecretOptions(dict[str, str]):
    """Options of the ops. Some may be secrets, so its repr shows only their names."""

    def __repr__(self) -> str:
        return f"<options: {', '.join(self)}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("options cannot be pickled: they may contain secrets")


class _SecretPairs(list[tuple[str, str]]):
    def __repr__(self) -> str:
        return f"<options: {', '.join(name for name, _ in self)}>"


def _text(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def texts_of(metadata: Metadata | None) -> dict[str, str] | None:
    """Return metadata with numbers as texts; what else is no text stays, for who checks it."""
    return None if metadata is None else {key: _text(value) for key, value in metadata.items()}


def as_text(options: Options) -> dict[str, str]:
    """Convert options to the strings that the ops take.

    Checks types here because the dispatcher prints all options if one has the wrong type.
    """
    if not isinstance(options, Mapping):
        raise wrong("options", options, "a dict or None")
    given: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise TypeError(f"options has a name that is {kind_of(name)}, and must be str")
        if isinstance(value, str | int | float):
            given[name] = _text(value)
        else:
            raise TypeError(
                f"option {name!r} is {kind_of(value)}, and must be str, int, float or bool"
            )
        if not (is_unicode(name) and is_unicode(given[name])):
            raise not_unicode(f"option {name!r}")
    return given


def as_pairs(options: Options | None) -> list[tuple[str, str]]:
    """Convert options to the pairs that ``_core`` takes, whose repr shows only names."""
    return _SecretPairs(as_text({} if options is None else options).items())


def bytes_of(options: Options | None, name: str) -> int | None:
    """Return an option that is a number of bytes, perhaps with a unit; ``None`` if it is none."""
    from tensorizer_ops import _core  # which is loaded after this module

    return _core.parse_bytes(str((options or {}).get(name, "")))


def memory_ceiling(options: Options | None) -> int:
    """Return the bytes that a load may take beyond its tensors, of options that a reader took."""
    return bytes_of(options, "memory_ceiling") or 48 << 20


def kept(options: Options | None) -> dict[str, str]:
    """Return options for later, whose repr shows no values; they cannot be pickled if any."""
    given = as_text(options or {})
    return SecretOptions(given) if given else given
