"""What is in a folder of this machine, compared with what of it is signed."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping

from tensorizer_ops import _core, errors
from tensorizer_ops._base.folder import LIMIT, LIST, NEVER_SIGNED, SIGNATURE, Folder, raise_own

PIECE = 4 << 20
# What programs that serve a model do not read.
_TEXTS = ("README", "LICENSE", "NOTICE")
_HARMLESS = (".md", ".rst", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", SIGNATURE)
# vLLM takes files whose names begin with this for Mistral's vocabularies, whatever they end in.
_VOCABULARY = "tokenizer.model.v"
# What Git and the client of the Hub keep in a folder.
OF_TOOLS = (*NEVER_SIGNED, ".cache")


def refuse_changed(folder: Folder, loaded: Iterable[str]) -> None:
    """Raise if the files in a folder are not those that are signed, and these alone.

    What the signer left out may be there if it is harmless. Those that are ``loaded`` are left to
    their load, which compares what it reads.
    """
    assert folder.path is not None
    names = folder.signed_files()
    refuse_links(folder.path, names)
    here = files_in(folder.path, folder.left_out)
    ignored = {*folder.ignored}
    harmless = [
        name.rstrip("/")
        for name in here
        if (name.rstrip("/") in ignored if name.endswith("/") else _is_below(name, ignored))
        and is_harmless(name)
    ]
    advice = (
        "remove them, or sign them (what the signer left out may be read as well, except READMEs, "
        "licenses and pictures)"
    )
    refuse_unsigned(folder.path, names, [*folder.left_out, *harmless], advice)
    for name in sorted({*names} - {folder.bundle, *loaded}):
        read_through(folder.open(name, PIECE, whole=True))


def read_through(source: _core.RemoteBytes) -> bytes:
    """Read a file, which compares all of it with what is signed; return it if it may be JSON."""
    piece, text = bytearray(PIECE), bytearray()
    at, may_be_json = 0, False
    while count := source.read_into(at, piece):
        if at == 0:
            may_be_json = piece[:count].lstrip().startswith(b"{")
        if may_be_json and at <= LIMIT:
            text += memoryview(piece)[:count]
        at += count
    return bytes(text)


def _is_below(name: str, places: set[str]) -> bool:
    """Return whether a file, or a folder that it is in, is one of these."""
    return any(part in places for part in itertools.accumulate(name.split("/"), os.path.join))


def is_harmless(name: str) -> bool:
    """Return whether programs that serve a model do not read a file of this name.

    Nor an empty folder, whose name ends in a slash. A folder in the place of a file is none.
    """
    *folders, last = name.split("/")
    if any(map(_is_for_file, folders)):
        return False
    if not {*OF_TOOLS}.isdisjoint([*folders, last]):
        return not _may_be_found(name)
    if _may_be_found("/".join(folders)):
        return False
    if not last:
        return True
    if last.lower().startswith(_VOCABULARY):
        return False
    stem, suffix = os.path.splitext(last)
    is_text = stem.upper().startswith(_TEXTS) and suffix.lower() in ("", ".txt")
    return is_text or suffix.lower() in _HARMLESS


def _may_be_found(name: str) -> bool:
    """Return whether a library may take a file by its name alone, in whatever folder it is.

    Servers such as vLLM list what is in all folders for this.
    """
    parts = (os.fsencode(part).decode(errors="replace") for part in name.split("/") if part)
    return any(
        part.lower().startswith(_VOCABULARY)
        or (_core.has_name_of_file(part) and not part.lower().endswith(_HARMLESS))
        for part in parts
    )


def files_in(folder: str, left_out: Iterable[str]) -> dict[str, str]:
    """Return the paths of all files in a folder by their names, which have slashes.

    The names of empty folders end in one: libraries ask which names there are.
    """
    ignored = {*left_out}
    found, folders = {}, [""]
    for inside in folders:
        try:
            with os.scandir(os.path.join(folder, inside)) as scanned:
                entries = [*scanned]
        except OSError as error:
            raise_own(error)
        for entry in entries:
            name = os.path.join(inside, entry.name)
            if name in ignored:
                continue
            if entry.is_symlink() and entry.is_dir():
                raise errors.Crypto(
                    f"{folder!r} has files that are not signed, such as {name!r}, a symbolic link "
                    "to a folder: put what it leads to there"
                )
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            else:
                found[name] = entry.path
        if not entries and inside:
            found[f"{inside}/"] = os.path.join(folder, inside)
    return dict(sorted(found.items()))


def refuse_links(folder: str, names: Iterable[str]) -> None:
    """Raise if a signed file is a link, or is in a folder that is one."""
    for name in names:
        for part in itertools.accumulate(name.split("/"), os.path.join):
            advice = "put what it leads to there"
            refuse_link(folder, os.path.join(folder, part), errors.Crypto, advice)


def refuse_link(folder: str, path: str, kind: type[errors.Error], advice: str) -> None:
    """Raise for a link, unless it is one in the cache of the Hub."""
    if os.path.islink(path) and not _is_in_cache_of_hub(folder, path):
        raise kind(f"{path!r} is a symbolic link, and may lead to other files later: {advice}")


def refuse_unsigned(
    folder: str, names: Iterable[str], left_out: Iterable[str], advice: str
) -> None:
    """Raise if there is a file in a folder that is not signed."""
    for name in others_in(folder, names, left_out):
        raise errors.Crypto(f"{folder!r} has files that are not signed, such as {name!r}: {advice}")


def others_in(folder: str, names: Iterable[str], left_out: Iterable[str]) -> Iterator[str]:
    """Yield the names of files in a folder, of links and of empty folders, that are not given."""
    left_out = [*left_out]
    ignored = {*left_out} - {*folders_for_files(folder, left_out)}
    yield from unlisted(files_in(folder, ignored), names)
    yield from found_of_tools(folder, ignored)


def folders_for_files(folder: str, left_out: Iterable[str]) -> Iterator[str]:
    """Yield what is left out only if it is a file, and is a folder: signatures and ``LIST``."""
    for name in left_out:
        if _is_for_file(name) and os.path.isdir(os.path.join(folder, name)):
            yield name


def _is_for_file(name: str) -> bool:
    return name == LIST or name.endswith(SIGNATURE)


def found_of_tools(folder: str, left_out: Iterable[str]) -> Iterator[str]:
    """Yield the names of files that tools keep in a folder, and that libraries may use."""
    for tool in left_out:
        place = os.path.join(folder, tool)
        if (
            os.path.basename(tool) in OF_TOOLS
            and os.path.isdir(place)
            and not os.path.islink(place)
        ):
            inside = (os.path.join(tool, name) for name in files_in(place, ()))
            yield from filter(_may_be_found, inside)


def unlisted(found: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    """Yield the names of what was found in a folder, but for those given and what means nothing.

    That is the list of an upload, an empty ``.gitkeep`` or ``__init__.py`` beside a given file, and
    what is empty in ``.cache``: shards cannot list these. Others mean something, if only by their
    names: an empty ``chat_template.jinja`` is the template, and transformers takes any
    ``….tiktoken.model`` or folder of that name for a kind of vocabulary.
    """
    known = {*names}
    folders = {"", *itertools.chain.from_iterable(map(_folders_of, known))}
    for name, path in found.items():
        place, _, last = name.rpartition("/")
        is_folder = not last
        keeps_place = place in folders and last in ("", ".gitkeep", "__init__.py")
        means_nothing = keeps_place or (name.startswith(".cache/") and not _may_be_found(name))
        if name.rstrip("/") in known or (means_nothing and (is_folder or is_empty(path))):
            continue
        if name == LIST and os.path.isfile(path):
            continue
        yield name


def _folders_of(name: str) -> Iterator[str]:
    return itertools.accumulate(name.split("/")[:-1], os.path.join)


def _is_in_cache_of_hub(folder: str, link: str) -> bool:
    """Return whether a link in ``models--NAME/snapshots/COMMIT`` leads to a file in ``blobs``."""
    snapshots, _ = os.path.split(os.path.realpath(folder))
    blobs = os.path.join(os.path.dirname(snapshots), "blobs")
    found = os.path.realpath(link)
    is_here = os.path.basename(snapshots) == "snapshots" and os.path.dirname(found) == blobs
    return is_here and os.path.isfile(found)


def is_empty(path: str) -> bool:
    """Return whether a path is that of a file without bytes."""
    try:
        found = os.lstat(path)  # what a link leads to may not stay empty
    except OSError as error:
        raise_own(error)
    return stat.S_ISREG(found.st_mode) and found.st_size == 0
