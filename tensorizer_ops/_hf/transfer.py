"""Copies of whole folders to and from servers, with a list of the SHA-256 of every file.

The list is the file ``SHA256SUMS``, which ``sha256sum -c`` understands. An upload names in comments
the files that are not there yet, and takes a file out of the list before it replaces it. So a list
without such comments belongs to a folder that is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tensorizer_ops import errors
from tensorizer_ops._base.folder import (
    BUNDLE,
    LIST,
    Folder,
    inside,
    raise_own,
    refuse_path,
    refuse_signed,
)
from tensorizer_ops._base.options import Options
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.signed_folder import OF_TOOLS, others_in, refuse_links
from tensorizer_ops._base.signing import listed_by
from tensorizer_ops._base.targets import Target, is_uri
from tensorizer_ops._front.inspection import File
from tensorizer_ops._hf.files import (
    SMALL_FILES,
    TOKENIZER_CONFIG,
    found_weights,
    read_object,
    vocabulary_files,
)

_INCOMPLETE = "# incomplete: "
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
# The names of files that a killed download leaves behind. They do not contain the name of the file:
# transformers looks for parts of names, and would take the file for a vocabulary.
_PART = re.compile(r"\.[0-9a-f]{16}\.part")
# A folder in which files are written by its descriptor.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MODEL_FILES = (".tensors", ".safetensors")
# Bytes that are read at a time, and those that are fetched ahead; requests for small files.
_PIECE = 4 << 20
_READ_AHEAD = 16 << 20
_REQUESTS = 8
_MOST_NAMES = 5

# Returns what shows the progress of the work that a text names, such as "sending x".
Show = Callable[[str], Progress | None]


class Copied(NamedTuple):
    """A file of a folder that is complete."""

    name: str
    size: int
    seconds: float | None  # None if it was there already
    checked: str  # which hashes were compared


class _Sums:
    """The content of a list: the SHA-256 of files, and the names of those that are not there."""

    def __init__(self, sums: dict[str, str], missing: Iterable[str] = ()) -> None:
        self.sums = sums
        self.missing = dict.fromkeys(missing)

    @classmethod
    def of(cls, folder: Folder) -> _Sums | None:
        """Return the list of a folder, if it has one."""
        text = folder.read_if_there(LIST)
        return None if text is None else cls._parsed(text, f"{LIST!r} in {folder.label}")

    @classmethod
    def _parsed(cls, text: bytes, shown: str) -> _Sums:
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
                if why := _why_refused(match[2]):
                    raise errors.InvalidFormat(f"{shown} has the name {match[2]!r:.200}, {why}")
                if match[2] in found.sums:
                    raise errors.InvalidFormat(f"{shown} has {match[2]!r:.200} twice")
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


def upload(source: Target, uri: Target, options: Options | None, show: Show) -> Iterator[Copied]:
    """Copy the files of a folder on this machine, and yield each that is complete."""
    paths = _files_in(source)
    here = Folder(source)
    refuse_signed(options)  # the files here are not compared
    folder = Folder(uri, options)
    _refuse_forgotten_scheme(uri)
    there = _Sums.of(folder) or _Sums({})
    # Files that this folder does not have leave the list, so that a download is this folder.
    sums = {name: there.sums[name] for name in paths if name in there.sums}
    listed = _Sums(sums, [name for name in paths if name not in sums])
    if listed.text() != there.text():
        listed.write(folder)
    for name, path in paths.items():
        begin = time.monotonic()
        size = os.path.getsize(path)
        is_listed = name in listed.sums
        is_there = is_listed and folder.size(name) == size
        if is_there and _hash(here, name, "SHA-256", show) == listed.sums[name]:
            yield Copied(name, size, None, "SHA-256")  # own hashes were compared when it was sent
            continue
        checked = "SHA-256" + ", own hashes" * _has_right_hashes(name, Path(path), show)
        if is_listed:
            listed.take_out(name)
            listed.write(folder)
        job = folder.upload(name, path)
        with reported(job, show(f"sending {name}")):
            digest = job.start().hex()
        listed.add(name, digest)
        listed.write(folder)
        yield Copied(name, size, time.monotonic() - begin, checked)


def _refuse_forgotten_scheme(uri: Target) -> None:
    """Refuse to make a folder on this machine for what may be meant as one of a store."""
    if not isinstance(uri, str) or is_uri(uri) or uri.startswith(("/", ".", "~")):
        return
    if not os.path.exists(uri.partition("/")[0]):
        raise errors.InvalidArgument(
            f"there is no folder {uri!r} here: write s3://{uri} for one on S3, or ./{uri} to make "
            "it on this machine"
        )


def download(
    uri: Target, target: Target, options: Options | None, show: Show, overwrite: bool = False
) -> Iterator[Copied]:
    """Copy the files of a folder to this machine, and yield each that is complete."""
    folder = Folder(uri, options)
    here = Folder(target)
    if here.path is None:
        raise errors.InvalidArgument("the target of a download is a folder on this machine")
    listed = None if folder.policy else _Sums.of(folder)
    if listed is not None and listed.missing:
        names = [f"{name!r:.200}" for name in listed.missing]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise errors.InvalidFormat(
            f"{folder.label} is not complete, because an upload to it has not ended: it lacks "
            f"{', '.join(names[:_MOST_NAMES])}{more}; run the upload again, which goes on"
        )
    wanted: dict[str, str | None] = {}
    if folder.policy:
        wanted.update(dict.fromkeys(folder.signed_files()))
        refuse_others(folder, here.path, wanted)
    else:
        wanted.update(listed.sums if listed else dict.fromkeys(_model_files(folder)))
    right = _right_files(folder, here, wanted, show, overwrite)
    with opened(here.path) as place:
        for name, digest in wanted.items():
            path = os.path.join(here.path, name)
            if name in right:
                yield Copied(name, os.path.getsize(path), None, right[name])
                continue
            begin = time.monotonic()
            size, checked = _receive(folder, name, here, place, digest, show, overwrite)
            yield Copied(name, size, time.monotonic() - begin, checked)
        if folder.policy:  # another download may have written to the folder meanwhile
            refuse_others(folder, here.path, wanted)
        if listed:
            with replacing(place, here.path, LIST) as file:
                file.write(listed.text().encode())


def refuse_others(folder: Folder, target: str, names: Collection[str]) -> None:
    """Raise if there would be unsigned files beside signed ones that are copied to a target.

    Libraries find files in a folder by themselves, also hidden ones.
    """
    if not os.path.isdir(target):
        return
    folders = {"", *map(os.path.dirname, names)}
    # A link in the place of a file is replaced.
    refuse_links(target, folders - {""})
    left_out = [*OF_TOOLS, *inside(target, folder.loads["signature"])]
    for name in others_in(target, names, left_out):
        place, last = os.path.split(name)
        path = os.path.join(target, name)
        # In another folder, it would hide that this one is there.
        is_file = os.path.isfile(path) and not os.path.islink(path)
        if not (is_file and place in folders and _PART.fullmatch(last)):
            raise errors.InvalidArgument(
                f"{path!r} is none of the signed files that are copied from "
                f"{folder.label}, and may be used with them: move it away, or give another folder"
            )


def _right_files(
    folder: Folder, here: Folder, wanted: dict[str, str | None], show: Show, overwrite: bool
) -> dict[str, str]:
    """Return the files that need not be fetched, and what was compared.

    Raises for a file that is neither one of the folder nor one that an earlier download has
    written, unless it may be replaced.
    """
    if folder.policy is not None:  # what a server says of its files, nobody has signed
        return {}
    earlier = None if overwrite else _Sums.of(here)
    right: dict[str, str] = {}
    for name, digest in wanted.items():
        if not os.path.isfile(os.path.join(here.path or "", name)):
            continue
        kept = ("SHA-256", digest) if digest else folder.open(name, 1, 1).digest()
        if kept is None:
            continue
        kind, expected = kept
        found = _hash(here, name, kind, show)
        if found == expected:
            right[name] = kind if digest else f"the server's {kind}"
        elif not overwrite and not (earlier and earlier.sums.get(name) == found):
            raise _would_be_lost(os.path.join(here.path or "", name), folder)
    return right


def _would_be_lost(path: str, folder: Folder) -> errors.InvalidArgument:
    return errors.InvalidArgument(
        f"{path!r} exists with other content than in {folder.label}, and would be lost: move it "
        "away, or replace it with overwrite=True"
    )


def _receive(
    folder: Folder,
    name: str,
    here: Folder,
    place: int,
    digest: str | None,
    show: Show,
    overwrite: bool,
) -> tuple[int, str]:
    """Fetch a file, check it and put it into its place; return its size and what was compared."""
    job = _Hashing(folder, name, ("SHA-256", digest) if digest else None)
    kind, expected = job.kind, job.expected
    assert here.path is not None
    with replacing(place, here.path, name) as part:
        with reported(job, show(f"fetching {name}")):
            found = job.run(part)
        if expected is not None and found != expected:
            raise errors.HashMismatch(
                f"{name!r} in {folder.label} has another {kind} than "
                f"{f'{LIST!r} there' if digest else 'its server'} says: it is damaged, or was "
                "replaced meanwhile; try again, or upload it again"
            )
        if digest:
            return job.done, kind
        if folder.policy is not None and name == folder.bundle:
            folder.check_bundle(_read_again(part))
        try:
            own = ["own hashes"] * _has_right_hashes(name, _read_again(part), show)
        except (errors.HashMismatch, errors.InvalidFormat) as error:
            raise type(error)(f"{name!r} in {folder.label}: {error}") from error
        # Without a hash that was compared before, only the bytes show whether they are others.
        is_unknown = not overwrite and (expected is None or folder.policy is not None)
        path = os.path.join(here.path, name)
        if is_unknown and os.path.isfile(path):
            # Of another size, it may be a planted one of terabytes.
            is_same = os.path.getsize(path) == job.done and _hash(here, name, kind, show) == found
            if not is_same:
                raise _would_be_lost(path, folder)
        kept = [f"the server's {kind}"] * (expected is not None)
        kept += ["signature"] * (folder.policy is not None)
        return job.done, ", ".join(kept + own) or "no hash"


def _hash(folder: Folder, name: str, kind: str, show: Show) -> str:
    """Return the hash of a file in a folder."""
    job = _Hashing(folder, name, (kind, ""))
    with reported(job, show(f"comparing {name}")):
        return job.run(None)


class _Hashing:
    """Hashes a file while it is read, and writes it to another one.

    ``kept`` is the kind of the hash and its expected value; ``None`` for what the server keeps.
    """

    def __init__(self, folder: Folder, name: str, kept: tuple[str, str] | None) -> None:
        self._source = folder.open(name, _READ_AHEAD, whole=True)
        known = kept or self._source.digest()
        self.kind = known[0] if known else "SHA-256"
        self.expected = known[1] if known else None
        self._is_cancelled = False
        self.done = 0

    def progress(self) -> tuple[int, int]:
        return self.done, self._source.size() or 0

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self, copy: BinaryIO | None) -> str:
        """Read the file, and return its digest."""
        digest = hashlib.sha256()
        if self.kind != "SHA-256":  # that of git
            start = f"blob {self._source.size()}\0".encode()
            digest = hashlib.sha1(start, usedforsecurity=False)
        piece = memoryview(bytearray(_PIECE))
        while not self._is_cancelled and (count := self._source.read_into(self.done, piece)):
            digest.update(piece[:count])
            if copy is not None:
                copy.write(piece[:count])
            self.done += count
        return digest.hexdigest()


def _read_again(file: BinaryIO) -> str:
    """Return the URI of an open file that was written."""
    file.seek(0)
    return f"fd:{file.fileno()}"


@contextlib.contextmanager
def opened(target: str) -> Iterator[int]:
    """Open the folder of a copy until the block ends, and make it if it is missing."""
    try:
        os.makedirs(target, exist_ok=True)
        place = os.open(target, _FOLDER)
    except OSError as error:
        raise_own(error)
    try:
        yield place
    finally:
        os.close(place)


def _open_inner(path: str, place: int) -> int:
    """Open a folder in an open one, and make it if it is missing."""
    name = os.path.basename(path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=place)
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
    except NotADirectoryError:
        raise errors.InvalidArgument(
            f"{path!r} is a symbolic link or a file, in the place of a folder to write to: move it "
            "away, or give another target"
        ) from None
    except OSError as error:
        error.filename = path
        raise_own(error)


@contextlib.contextmanager
def replacing(place: int, target: str, name: str) -> Iterator[BinaryIO]:
    """Give a file that replaces another one, unless an exception leaves the block.

    The name counts from the open folder ``place``, whose path is ``target``. Links to folders are
    not followed, because others may make them at any time to have files elsewhere replaced.
    """
    *folders, last = name.split("/")
    part = f".{secrets.token_hex(8)}.part"
    with contextlib.ExitStack() as stack:
        for count in range(len(folders)):
            place = _open_inner(os.path.join(target, *folders[: count + 1]), place)
            stack.callback(os.close, place)
        path = os.path.join(target, name)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(last, dir_fd=place).st_mode):
                raise errors.InvalidArgument(
                    f"{path!r} is a folder, in the place of a file: move it away"
                )
        try:
            with open(part, "x+b", opener=partial(os.open, mode=0o666, dir_fd=place)) as file:
                yield file
            os.replace(part, last, src_dir_fd=place, dst_dir_fd=place)
        except BaseException as error:
            with contextlib.suppress(OSError):  # others may have put a folder there
                os.unlink(part, dir_fd=place)
            if isinstance(error, errors.Error) or not isinstance(error, OSError):
                raise
            error.filename = path
            raise_own(error)


def _files_in(source: Target) -> dict[str, str]:
    """Return the paths of the files in a folder, by the names that they have on a server."""
    root = Folder(source)
    if root.path is None or not os.path.isdir(root.path):
        raise errors.InvalidArgument(
            f"{root.label} is no folder on this machine: copy takes a file"
        )
    found: dict[str, str] = {}
    for base, folders, names in os.walk(root.path, onerror=raise_own):
        # Such as .git, and .cache of huggingface_hub.
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        for name in [*folders, *names]:
            path = os.path.join(base, name)
            if os.path.islink(path) and not _is_inside(path, root.path):
                raise errors.InvalidArgument(
                    f"{path!r} is a symbolic link to a folder or out of {root.label}: copy what it "
                    "leads to"
                )
        for name in names:
            path = os.path.join(base, name)
            short = os.path.relpath(path, root.path)
            if short == LIST or _PART.fullmatch(name):
                continue
            if why := _why_refused(short) or ("which is no file" * (not os.path.isfile(path))):
                raise errors.InvalidArgument(f"{root.label} has the name {short!r}, {why}")
            found[short] = path
    if not found:
        raise errors.NotFound(f"{root.label} has no files")
    for short in found:
        if os.path.basename(short) == BUNDLE:
            _refuse_to_part(root.path, short, found)
    return dict(sorted(found.items()))


def _refuse_to_part(folder: str, bundle: str, copied: Collection[str]) -> None:
    """Raise if a bundle lists a file that is here and is not copied with it."""
    for listed in listed_by(os.path.join(folder, bundle)):
        name = os.path.join(os.path.dirname(bundle), listed)
        if name not in copied and os.path.lexists(os.path.join(folder, name)):
            raise errors.InvalidArgument(
                f"{bundle!r} in {folder!r} lists {listed!r}, which an upload leaves out, so that "
                "the copy would be refused: sign again without it (ignore=), or move it away and "
                "sign again"
            )


def _is_inside(link: str, root: str) -> bool:
    """Return whether a link leads to a file in a folder, or in the cache of the Hub of that."""
    real, inside = os.path.realpath(link), os.path.realpath(root)
    snapshots = os.path.dirname(inside)
    blobs = os.path.join(os.path.dirname(snapshots), "blobs")
    is_blob = os.path.basename(snapshots) == "snapshots" and os.path.dirname(real) == blobs
    return not os.path.isdir(real) and (is_blob or os.path.commonpath([inside, real]) == inside)


def _why_refused(name: str) -> str:
    """Return why a list cannot have a name; empty if it can."""
    *folders, last = name.split("/")
    is_hidden = any(folder.startswith(".") for folder in folders)
    if name == LIST or is_hidden or "" in (*folders, last) or last in (".", ".."):
        return "which is not that of a file in the folder"
    return "" if name.isprintable() and "\\" not in name else "which is not plain text"


def _model_files(folder: Folder) -> list[str]:
    """Return the names of the files of a model in a folder without a list."""
    try:
        weights = found_weights(folder)
    except errors.NotFound:
        # The error of a wrong key or bucket was taken for that of a file that is not there.
        try:
            folder.open(LIST, 1, 1)
            why = ""
        except FileNotFoundError as error:
            why = f": {error}"
        raise errors.NotFound(
            f"{folder.label} has neither the list {LIST!r}, which upload writes, nor weights of a "
            f"model under a usual name{why}; copy takes a single file"
        ) from None
    shards: set[str] = set()
    if weights.endswith(".json"):
        index = read_object(folder, weights).get("weight_map")
        shards = set(index.values()) if isinstance(index, dict) else set()
        for name in shards:
            refuse_path(name, folder.label)
    small = dict.fromkeys(SMALL_FILES)
    if (config := folder.read_if_there(TOKENIZER_CONFIG)) is not None:
        with contextlib.suppress(ImportError):  # without transformers, the usual names
            small |= dict.fromkeys(sorted(vocabulary_files(config)))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        found = [n for n, there in zip(small, pool.map(folder.has, small), strict=True) if there]
    return [*found, weights, *sorted(shards)]


def _has_right_hashes(name: str, place: Target, show: Show) -> bool:
    """Compare a file of tensors with its own hashes; return whether it has some."""
    if not name.endswith(_MODEL_FILES):
        return False
    file = File(place)
    if file.format().encrypted or not file.kinds_of_hashes():
        return False
    file.verify("all", progress=show(f"verifying {name}"))
    return True
