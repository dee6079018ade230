"""Small files in a folder, on this machine or on a server."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, TypeVar

from tensorizer_ops import _core, errors
from tensorizer_ops._base.option_uses import for_loads, for_saves
from tensorizer_ops._base.options import Options, SecretOptions, as_pairs, as_text
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.targets import Target, local_path, to_uri

_Result = TypeVar("_Result")
# The largest file that is read. The largest tokenizers have 40 MB.
LIMIT = 100_000_000
_READ_AHEAD = 1 << 20
# The options for files that are signed.
_SIGNED = ("trust", "signature", "signed_folder", "subject", "hash_first")
# The file in which the files of a folder are signed.
BUNDLE = "model.sig"
# At the top of what is signed.
NEVER_SIGNED = (".git", ".gitignore", ".gitattributes", ".github")
# The list that an upload writes beside the files, which nobody signs and no model reads.
LIST = "SHA256SUMS"
# What the names of the signatures of single files end in.
SIGNATURE = ".sig"
# The suffixes of files with weights, and of indexes of several, in the order in which they are
# looked for.
_WEIGHTS = (".tensors", ".safetensors.index.json", ".safetensors")
# The names that a model has in a folder on a server. The first that is there is loaded.
USUAL = ("model.tensors", "model.safetensors.index.json", "model.safetensors")
# The schemes of places without folders.
_NO_FOLDERS = ("redis://", "rediss://", "unix://")
# Codes of S3 that say that the keys are wrong, whatever object they are for.
_WRONG_KEYS = (
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
)


class Folder:
    """A folder, given by a path, or by a URI whose last segment is the name of the folder.

    Attributes:
        path: the path, or ``None`` if the folder is on a server.
        place: the URI, spelled as ``below()`` spells the files in it.
        name: the path, or the URI without secrets.
        label: the name as errors show it: in quotes.
        policy: who must have signed its files; ``None`` if nobody must.
        bundle: the name of the bundle among the files here; ``None`` if an option names another. A
            file of its name is one as all others then.
    """

    def __init__(self, uri: Target, options: Options | None = None) -> None:
        self._uri = to_uri(uri)
        if not self._uri:
            raise errors.InvalidArgument("the path is empty")
        if self._uri.startswith("fd:"):
            raise errors.InvalidArgument("uri is an open descriptor, and must be a folder")
        self.path = local_path(uri)
        self.place = self._uri if self.path is None else to_uri(self.path)
        self.name = self.path or _core.without_secrets(self._uri)
        self.label = repr(self.name)
        given = for_loads(options)
        self._given = given
        self._plain = as_pairs(unsigned(given))
        self.policy = _core.trust_in(as_pairs(given))
        self._bundle = given.get("signature")
        self.bundle = None if self._bundle else BUNDLE
        self._lock = threading.RLock()  # all threads of a load go by one bundle
        self._listed: list[str] | None = None
        self._left_out: list[str] = []
        self._ignored: list[str] = []
        self._saves = as_pairs(for_saves(options))
        # Files of the Hub are of one commit, whatever is pushed meanwhile.
        self._access = _core.SharedAccess()

    def uri(self, name: str) -> str:
        """Return the URI of a file in the folder."""
        refuse_path(name, self.label)
        return self.below(name)

    def below(self, name: str) -> str:
        """Return the URI of a file in the folder, or in one in it: ``folder/name``."""
        for part in name.split("/"):
            refuse_path(part, self.label)
        if self.path is not None:
            return to_uri(os.path.join(self.path, name))
        if not self._uri.lower().startswith(("http://", "https://")):
            return f"{self._uri.rstrip('/')}/{name}"
        place, query = _core.split_query(self._uri)
        return f"{place.rstrip('/')}/{urllib.parse.quote(name)}{query}"

    def shown(self, name: str) -> str:
        """Return the path of a file in the folder, or its URI without secrets."""
        if self.path is not None:
            return f"{self.path.rstrip('/')}/{name}"
        return _core.without_secrets(self.uri(name))

    @property
    def loads(self) -> SecretOptions:
        """The options of loads of files here: if they must be signed, all as parts of one model."""
        if self.policy is not None:
            self.signed_files()
        return self._given

    @property
    def is_read(self) -> bool:
        """Whether its bundle has been read, so that it was a folder."""
        return self._listed is not None

    def refuse_name_of_file(self) -> None:
        """Raise if it must be signed, and may have been put in the place of a file that was."""
        if self.policy is not None:
            _core.refuse_name_of_file(self.place)

    def signed_files(self) -> list[str]:
        """Return the names of all files here that are signed, and of the bundle if it is here.

        All are in one bundle. With one for each file, of several models, nobody has signed what
        they are together, and files could be missing.
        """
        with self._lock:
            return self._signed_files()

    def _signed_files(self) -> list[str]:
        if self._listed is None:
            self.refuse_name_of_file()
            bundle = self._bundle or self.uri(BUNDLE)
            try:
                found = _core.open_signature(
                    bundle, self.place, self.policy or "", as_pairs(self._given)
                )
            except FileNotFoundError as error:
                if self._bundle:
                    raise
                raise errors.Crypto(
                    f"{self.label}: it is not signed: there is no {BUNDLE!r} in it, which lists "
                    "all of its files, and no option 'signature' names a bundle elsewhere"
                ) from error
            _, root, _, files, ignored, model = found
            every = [name for name, _ in files]
            refuse_bundle_of_file(self.label, model, every)
            _core.refuse_name_of_file(self.place, every)
            prefix, counted = self.names_from(bundle, self._given.get("signed_folder"))
            # Not one that is beside a file, or in a folder in this one.
            self._given.update(counted, signature=bundle, subject=root)
            listed = self.listed(prefix, every)
            self._listed = [*listed, *([self.bundle] if self.bundle else [])]
            self._left_out = [*within(prefix, NEVER_SIGNED), *inside(self.path, bundle)]
            self._ignored = within(prefix, map(os.path.normpath, ignored))
        return self._listed

    def has_signature(self, name: str) -> bool:
        """Return whether a file has a signature of its own, which counts before that of all."""
        if self._bundle:
            return False
        place = self.uri(name + SIGNATURE)
        how = (self._plain, 0, 1, 1, self._access)
        found = self.if_there(name + SIGNATURE, lambda: _core.RemoteBytes(place, *how))
        return found is not None

    def own_loads(self, name: str, root: str | None = None) -> SecretOptions:
        """Return the options of loads of a file with a signature of its own, and that root."""
        own = {**self._given, "signature": self.uri(name + SIGNATURE)}
        return SecretOptions(own if root is None else {**own, "subject": root})

    @property
    def left_out(self) -> list[str]:
        """What is here, on this machine, that every bundle leaves out: also itself."""
        self.signed_files()
        return self._left_out

    @property
    def ignored(self) -> list[str]:
        """The files and folders here that the signer left out, on whatever machine they are."""
        self.signed_files()
        return self._ignored

    def signed_weights(self) -> list[str]:
        """Return the names of the weights here that are signed, and of their indexes."""
        return [n for n in self.signed_files() if n.endswith(_WEIGHTS) and "/" not in n]

    def check_bundle(self, copy: str) -> None:
        """Raise for a copy of the bundle that is not the one that was read before."""
        wanted = self._given["subject"]
        try:
            _, root, *_ = _core.open_signature(copy, copy, self.policy or "", [])
        except errors.Error as error:
            why = str(error).removeprefix(f"{copy!r}: ")
            raise type(error)(
                f"{BUNDLE!r} in {self.label} is not what it was before, and was replaced: {why}"
            ) from error
        if root != wanted:
            raise errors.HashMismatch(
                f"{BUNDLE!r} in {self.label} is about another model than before, with the root "
                f"digest {root}, expected is {wanted}: it was replaced meanwhile; try again"
            )

    def names_from(self, bundle: str, signed: str | None) -> tuple[str, dict[str, str]]:
        """Return what is in front of the names of files here in a bundle, and options of loads.

        Names count from the folder that was ``signed``, if that is given, else from here, wherever
        the bundle is; unless it is the ``model.sig`` of a folder above.
        """
        here = _core.signed_path(self.place).rstrip("/") + "/"
        if signed:
            root = _core.signed_path(signed).rstrip("/") + "/"
            if not here.startswith(root):
                where = repr(_core.without_secrets(signed))
                raise errors.Crypto(
                    f"{self.label}: it is not in the folder that was signed, {where}"
                )
            return here.removeprefix(root), {}
        above, _, name = _core.signed_path(bundle).rpartition("/")
        if name == BUNDLE and here.startswith(f"{above}/"):
            return here.removeprefix(f"{above}/"), {}
        if name == BUNDLE and self._may_be_above(bundle):
            raise errors.Crypto(
                f"{self.label}: its bundle, {_core.without_secrets(bundle)!r}, may be that of a "
                "folder above: spell both places alike, or say with signed_folder from which "
                "folder the names in it count"
            )
        return "", {"signed_folder": self.place}

    def _may_be_above(self, bundle: str) -> bool:
        """Return whether a bundle may be in a folder above, by another spelling of that."""
        path = local_path(bundle)
        if path is None or self.path is None:
            return path is None and self.path is None
        signed = os.path.dirname(path) or "."
        # The folder may be a link to one elsewhere, and have become that meanwhile.
        above = (
            *Path(os.path.realpath(self.path)).parents,
            *Path(os.path.abspath(self.path)).parents,
        )
        return os.path.isdir(signed) and any(os.path.samefile(each, signed) for each in above)

    def listed(self, prefix: str, names: Iterable[str]) -> list[str]:
        """Return the names of files here, of all names in a bundle."""
        found = within(prefix, names)
        if not found:
            raise errors.Crypto(f"{self.label}: its bundle lists no files that are in it")
        return found

    def _is_listed(self, name: str) -> bool:
        return name != self.bundle and name in self.signed_files()

    def read(self, name: str, most: int = LIMIT) -> bytes:
        """Return the bytes of a file, ``most`` at most.

        Raises ``FileNotFoundError`` if it does not exist.
        """
        try:
            source = self._bytes(self.uri(name))
        except FileNotFoundError:
            if self.path is not None and not os.path.exists(self.path):
                # The error says what may have been meant by the folder. It may be there by now.
                with contextlib.suppress(IsADirectoryError):
                    self._bytes(self._uri)
            raise
        size = source.size()
        end = most + 1 if size is None else size
        found = bytearray()
        while len(found) < end <= most + 1:
            piece = source.read(len(found), _READ_AHEAD)
            if not piece:
                break
            found += piece
        if max(len(found), size or 0) > most:
            raise errors.InvalidFormat(
                f"{name!r} in {self.label} has more than {most} bytes, too many for a file of "
                "this kind"
            )
        return bytes(found)

    def _bytes(self, uri: str) -> _core.RemoteBytes:
        options = as_pairs(self.loads)
        return _core.RemoteBytes(uri, options, 0, LIMIT + 1, _READ_AHEAD, self._access, whole=True)

    def open(
        self, name: str, read_ahead: int, end: int | None = None, *, whole: bool = False
    ) -> _core.RemoteBytes:
        """Open a file to read its bytes before ``end``.

        ``whole`` says that all are read before any is used, so that it may have been signed in
        whole.
        """
        if name == self.bundle:
            options, end = self._plain, _core.MOST_BUNDLE_BYTES + 1 if end is None else end
        else:
            options = as_pairs(self.loads)
        place = self.below(name)
        how = (options, 0, end, read_ahead, self._access)
        found = _core.RemoteBytes(place, *how, whole=whole)
        if name == self.bundle and self.path is not None and found.size() is None:
            raise errors.Crypto(f"{name!r} in {self.label}: a bundle is a file, and this is a pipe")
        return found

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return self.if_there(name, lambda: self.open(name, 1, 1)) is not None

    def size(self, name: str) -> int | None:
        """Return the size of a file; ``None`` if it does not exist, or its size is unknown."""
        return self.if_there(name, lambda: self.open(name, 1, 1).size())

    def read_if_there(self, name: str) -> bytes | None:
        """Return the bytes of a file, or ``None`` if it does not exist."""
        return self.if_there(name, lambda: self.read(name))

    def if_there(self, name: str, read: Callable[[], _Result]) -> _Result | None:
        """Return the result of a function, or ``None`` if it finds no file of this name.

        A file that is signed must be there. S3 denies access to objects that do not exist, if the
        keys may not list the bucket. Keys that it does not accept at all are an error.
        """
        try:
            return read()
        except (FileNotFoundError, PermissionError) as error:
            if self.policy is not None and self._is_listed(name):
                raise
            if isinstance(error, FileNotFoundError):
                return None
            if not self._uri.lower().startswith(("s3://", "gs://")):
                raise
            if any(f"{code}: " in str(error) for code in _WRONG_KEYS):
                raise
            return None

    def write(self, name: str, path: str) -> None:
        """Copy a file of this machine into the folder, under a name."""
        self.upload(name, path).start()

    def upload(self, name: str, path: str) -> _core.Upload:
        """Return what copies a file of this machine into the folder, under a name."""
        return _core.Upload(to_uri(Path(path)), self.below(name), self._saves)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        _core.remove(self.below(name), self._saves)

    def remove_signed(self, name: str) -> None:
        """Remove a file and its signature, if they exist."""
        self.remove(name)
        self.remove(name + SIGNATURE)


def model_of(
    uri: str, options: Options, folder: Folder | None = None, *, are_one: bool = True
) -> tuple[str, SecretOptions, list[str]]:
    """Return the URI of a model, the options to load it with, and its signed weights.

    If the files in a folder must be signed, all of them are, as one model, and no weights that are
    signed are missing. ``folder`` is the place, if it was read as one before, so that nothing else
    is read now. The URI is that of the file, so that no other is found in its place; not if
    none has a usual name on a server, or if there may be several of this library, unless they
    ``are_one`` each. Weights are listed for a folder of this machine.
    """
    loads = SecretOptions(as_text(options))
    path = local_path(uri)
    is_read = folder is not None and folder.is_read
    if "trust" not in loads or (not is_read and is_signed_file(uri)):
        return uri, loads, []
    folder = folder or Folder(uri, loads)
    if path is not None and not is_read and os.path.isfile(path):
        raise errors.InvalidArgument(
            f"{folder.label} is a file: with the option 'trust', its name must end in .tensors or "
            ".safetensors"
        )
    if path is None:
        found = [folder.uri(name) for name in USUAL if folder.has(name)]
        return (found or [uri])[0], folder.loads, []
    weights = folder.signed_weights()
    for name in weights:
        if not os.path.exists(os.path.join(path, name)):
            raise errors.NotFound(f"{folder.label} lacks {name!r}, which is signed")
    kinds = [[name for name in weights if name.endswith(kind)] for kind in _WEIGHTS]
    only = [folder.uri(those[0]) for those in kinds if len(those) == 1]
    if len(weights) > 1 and not only and (are_one or len(kinds[0]) < 2):
        raise errors.InvalidArgument(
            f"{folder.label} has several models that are signed, such as {weights[0]!r} and "
            f"{weights[1]!r}: give the path of one of them"
        )
    return (only or [uri])[0], folder.loads, weights


def has_no_folders(uri: str) -> bool:
    """Return whether nothing is beside a file."""
    return uri.startswith("fd:") or uri.lower().startswith(_NO_FOLDERS)


def refuse_bundle_of_file(label: str, model: str, files: list[str]) -> None:
    """Raise if the bundle of a file is in the place of that of a folder, which lists all files."""
    if files == [model]:
        raise errors.Crypto(
            f"{label}: its bundle is that of the file {quoted(model)}, and not of a folder: sign "
            "the folder, or give the path of the file"
        )


def is_signed_file(uri: str) -> bool:
    """Return whether what must be signed is a file, and no folder, by its name alone.

    What is there now, others may exchange before it is loaded.
    """
    return has_no_folders(uri) or _core.has_name_of_file(to_uri(uri))


def within(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the names that have a prefix, without it."""
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def inside(folder: str | None, uri: str) -> list[str]:
    """Return the path of a file from a folder, if both are on this machine."""
    path = local_path(uri)
    return [] if folder is None or path is None else [os.path.relpath(path, folder)]


def names_in(folder: str) -> list[str]:
    """Return the names of all that is in a folder of this machine."""
    try:
        return os.listdir(folder)
    except OSError as error:
        raise_own(error)


def raise_own(error: OSError) -> NoReturn:
    """Raise an error of the operating system about a path as one of the library."""
    kinds = {FileNotFoundError: errors.NotFound, PermissionError: errors.PermissionDenied}
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    kind = errors.OutOfSpace if is_full else kinds.get(type(error), errors.FileError)
    raise kind(error.errno, f"{error.filename!r}: {error.strerror}", error.filename) from error


def unsigned(options: Options | None) -> SecretOptions:
    """Return options without those that say who must have signed what is loaded."""
    return SecretOptions({n: v for n, v in as_text(options).items() if n not in _SIGNED})


def refuse_signed(options: Options | None) -> None:
    """Raise for options that say who must have signed what is loaded."""
    for name in as_text(options):
        if name in _SIGNED:
            raise errors.InvalidArgument(f"option {name!r} applies when a file is loaded only")


def refuse_path(name: str, folder: str) -> None:
    """Raise for a name that is not one of a file in its folder, which has this label."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise errors.InvalidArgument(f"{quoted(name)} is not the name of a file in {folder}")
