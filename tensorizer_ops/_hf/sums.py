"""The file ``SHA256SUMS`` of a folder, which ``sha256sum -c`` understands.

An upload names in comments the files that are not there yet, and takes a file out of the list
before it replaces it. So a list without such comments belongs to a folder that is complete.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable

from tensorizer_ops import errors
from tensorizer_ops._base.folder import LIST, Folder
from tensorizer_ops._base.quoting import quoted

_INCOMPLETE = "# incomplete: "
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class Sums:
    """The content of a list: the SHA-256 of files, and the names of those that are not there."""

    def __init__(self, sums: dict[str, str], missing: Iterable[str] = ()) -> None:
        self.sums = sums
        self.missing = dict.fromkeys(missing)

    @classmethod
    def of(cls, folder: Folder) -> Sums | None:
        """Return the list of a folder, if it has one."""
        text = folder.read_if_there(LIST)
        return None if text is None else cls._parsed(text, f"{LIST!r} in {folder.label}")

    @classmethod
    def _parsed(cls, text: bytes, shown: str) -> Sums:
        found = cls({})
        for number, line in enumerate(text.decode("utf-8", "replace").split("\n"), start=1):
            if line.startswith(_INCOMPLETE):
                found.missing[line.removeprefix(_INCOMPLETE)] = None
            elif line and not line.startswith("#"):
                match = _LINE.fullmatch(line)
                if match is None:
                    raise errors.InvalidFormat(
                        f"{shown}: line {number} is no SHA-256 and a name: an upload has not "
                        "written it"
                    )
                if why := why_refused(match[2]):
                    raise errors.InvalidFormat(
                        f"{shown} has the name {quoted(match[2], 200)}, {why}"
                    )
                if match[2] in found.sums:
                    raise errors.InvalidFormat(f"{shown} has {quoted(match[2], 200)} twice")
                found.sums[match[2]] = match[1]
        return found

    def text(self) -> str:
        lines = [f"{digest}  {name}" for name, digest in sorted(self.sums.items())]
        return "".join(f"{line}\n" for line in [*lines, *(_INCOMPLETE + n for n in self.missing)])

    def write(self, folder: Folder) -> None:
        """Replace the list of a folder."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as made:
            made.write(self.text())
            made.flush()
            folder.write(LIST, made.name)

    def add(self, name: str, digest: str) -> None:
        self.missing.pop(name, None)
        self.sums[name] = digest

    def take_out(self, name: str) -> None:
        self.sums.pop(name, None)
        self.missing[name] = None


def why_refused(name: str) -> str:
    """Return why a list cannot have a name; empty if it can."""
    *folders, last = name.split("/")
    is_hidden = any(folder.startswith(".") for folder in folders)
    if name == LIST or is_hidden or "" in (*folders, last) or last in (".", ".."):
        return "which is not that of a file in the folder"
    return "" if name.isprintable() and "\\" not in name else "which is not plain text"
