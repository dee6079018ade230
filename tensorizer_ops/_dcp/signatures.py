"""How the files of a checkpoint of ranks are signed."""

from __future__ import annotations

from collections.abc import Mapping

from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.options import SecretOptions
from tensorizer_ops._dcp import FILE


class Signatures:
    """Says what loads of the files must trust: a signature of each file, or one bundle of all.

    Which of them it is, the file that lists the others says, once: the signature of another one may
    be missing, because somebody has removed it.
    """

    def __init__(self, folder: Folder) -> None:
        folder.refuse_name_of_file()
        self._folder = folder
        self._are_own = folder.policy is not None and folder.has_signature(FILE)

    def loads(self, file: str, roots: Mapping[str, str] | None = None) -> SecretOptions:
        """Return the options to load a file with, which let no other take its place.

        ``roots`` are the root digests that the list has of the other files.
        """
        if not self._are_own:
            return self._folder.loads
        if file == FILE:
            return self._folder.own_loads(file)
        root = (roots or {}).get(file)
        if root is None:
            raise errors.Crypto(
                f"{FILE!r} in {self._folder.label} does not list what is signed of {file!r}: sign "
                "the folder, and remove the signatures of its files"
            )
        return self._folder.own_loads(file, root)
