"""Signing files of a folder when they are written to it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorizer_ops import _core, errors
from tensorizer_ops._base.folder import SIGNATURE, Folder, has_no_folders
from tensorizer_ops._base.options import Options, SecretOptions, as_pairs, as_text, kept
from tensorizer_ops._base.private import temporary_folder
from tensorizer_ops._base.targets import to_uri

# A private key that signs: the path of its file, or ``file:PATH``, ``env:NAME`` or ``named:NAME``.
Key = str | os.PathLike[str]

# The options of saves that say what is in a file, and not where it is.
_OF_CONTENT = ("key", "kdf", "plain_digests", "digests", "digest_chunk")


@dataclass
class ToSign:
    """A file of this machine that is copied into a folder, and signed, when it has been saved."""

    path: Path
    options: SecretOptions  # of the save
    root: str = ""  # the root digest, once it is signed


def kept_key(key: Key | None, folder: Folder) -> str | None:
    """Return the name of a key that is to sign files of a folder later; a path in it is absolute.

    Raises if signatures cannot be beside the files of the folder.
    """
    if key is None:
        return None
    if has_no_folders(folder.name):
        raise errors.InvalidArgument(
            f"sign is for files with a signature beside them, and {folder.label} is in Redis, "
            "which keeps tensors only"
        )
    return kept({"key": key_name(key)})["key"]


@contextlib.contextmanager
def signed(folder: Folder, name: str, key: Key, options: Options) -> Iterator[ToSign]:
    """Give a file of this machine to save to; afterwards, copy it into the folder, signed."""
    with temporary_folder(is_signed=True) as own:
        of_content = {n: v for n, v in as_text(options).items() if n in _OF_CONTENT}
        file = ToSign(own.path / "file.tensors", SecretOptions(of_content))
        yield file
        own.check()
        file.root = copy_signed(folder, name, file.path, key, options)


def copy_signed(
    folder: Folder, name: str, path: Path, key: Key, options: Options, threads: int = 0
) -> str:
    """Copy a file of this machine into a folder, and sign it under its name there.

    Returns the root digest. What is in the folder is not read: others may have replaced it.
    """
    inside = name.rpartition("/")[2]
    signing = _core.Signing(inside, [(inside, to_uri(path))], None, [])
    text = signing.start(key_name(key), "", [], [], threads)
    write_signature(text, folder.below(name + SIGNATURE), options)
    _core.upload(to_uri(path), folder.below(name), as_pairs(options))
    return root_of(text)


def key_name(key: Key) -> str:
    """Return the name of a key that signs: a path is that of a file."""
    return f"file:{os.fspath(key)}" if isinstance(key, os.PathLike) else key


def root_of(text: str) -> str:
    """Return the root digest in a bundle that was just made."""
    root: str = _statement_of(text)["subject"][0]["digest"]["sha256"]
    return root


def listed_by(path: str) -> set[str]:
    """Return the names of the files in a bundle, whoever signed it; none if it is damaged."""
    damage = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
    with contextlib.suppress(*damage), open(path, "rb") as file:
        signed = _statement_of(file.read(_core.MOST_BUNDLE_BYTES))["predicate"]
        # Names of shards end with their range: "a/model.safetensors:0:4096".
        ends = 2 if signed["serialization"]["method"] == "shards" else 0
        return {each["name"].rsplit(":", ends)[0] for each in signed["resources"]}
    return set()


def _statement_of(bundle: str | bytes) -> Any:
    return json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))


def write_signature(text: str, uri: str, options: Options) -> None:
    """Write a bundle."""
    with open(os.memfd_create("tensorizer_ops bundle"), "wb") as file:
        file.write(text.encode())
        file.seek(0)
        _core.upload(f"fd:{file.fileno()}", uri, as_pairs(options))
