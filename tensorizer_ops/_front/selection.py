"""Which tensors a conversion writes, and under which names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of, meant
from tensorizer_ops._base.quoting import quoted

Rename = Mapping[str, str] | Callable[[str], str]

# How many names are searched for the one that is most like a pattern.
_MOST_COMPARED = 2000


def known_names(names: Iterable[str], known: Sequence[str], label: str) -> list[str]:
    """Return names of tensors, each once; raise if the file does not have one of them."""
    chosen = dict.fromkeys(names)
    there = set(known)
    for name in chosen:
        if name not in there:
            raise errors.NoSuchTensor(
                f"{label} has no tensor {name!r} among its {len(there)}{meant(name, known)}"
            )
    return list(chosen)


def new_names(names: Sequence[str], rename: Rename | None) -> list[str]:
    """Return the new names of tensors; raise for two that are the same."""
    if rename is None:
        return list(names)
    renamed = [rename(name) for name in names] if callable(rename) else _renamed(names, rename)
    taken: dict[str, str] = {}
    for old, new in zip(names, renamed, strict=True):
        if not isinstance(new, str):
            raise TypeError(
                f"rename() returned {type(new).__name__} for {quoted(old)}, and must be str"
            )
        other = taken.setdefault(new, old)
        if other != old:
            raise errors.InvalidArgument(
                f"tensors {quoted(other)} and {quoted(old)} would both have the name {quoted(new)}"
            )
    return renamed


def _renamed(names: Sequence[str], rename: Mapping[str, str]) -> list[str]:
    for each in (*rename, *rename.values()):
        if not isinstance(each, str):
            raise TypeError(f"rename has {kind_of(each)}, and must have texts alone")
    unused = dict.fromkeys(rename)

    def renamed(name: str) -> str:
        for pattern, replacement in rename.items():
            try:
                new, count = re.subn(pattern, replacement, name)
            except (re.error, IndexError) as error:  # IndexError: no group of that name
                raise errors.InvalidArgument(
                    f"rename: {pattern!r} with {replacement!r} is no regular expression with a "
                    f"replacement: {error}"
                ) from None
            if count:
                unused.pop(pattern, None)
                return new
        return name

    found = [renamed(name) for name in names]
    for pattern in unused:
        raise nothing_matches("rename", pattern, names)
    return found


class NothingMatches(errors.InvalidArgument):
    """No name matches a pattern."""


def matching(what: str, globs: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the names that match some glob; raise for a glob that no name matches."""
    found: set[str] = set()
    for glob in globs:
        matched = [name for name in names if fnmatchcase(name, glob)]
        if not matched:
            raise nothing_matches(what, glob, names)
        found.update(matched)
    return [name for name in names if name in found]


def nothing_matches(what: str, pattern: str, names: Sequence[str]) -> NothingMatches:
    """Return the error for a pattern that no name matches."""
    plain = re.sub(r"\\(.)|[\^$*?()\[\]]", r"\1", pattern)
    close = difflib.get_close_matches(plain, names[:_MOST_COMPARED], 1, 0)
    advice = f": the name most like it is {quoted(close[0])}" if close else ""
    return NothingMatches(f"{what}: no tensor is left that {pattern!r} matches{advice}")
