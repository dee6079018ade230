"""Copies of whole folders to and from servers. Neither function needs torch."""

from __future__ import annotations

from tensorizer_ops._base.arguments import checked
from tensorizer_ops._base.options import Options
from tensorizer_ops._base.progress import Bar, Progress
from tensorizer_ops._base.tables import safe
from tensorizer_ops._base.targets import Target
from tensorizer_ops._hf import downloads, uploads
from tensorizer_ops._hf.hashing import Copied as Copied, Show


@checked
def upload(
    folder: Target,
    uri: Target,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> list[Copied]:
    """Copy a folder to a server, as ``tensorizer-ops upload`` does; go on with one that stopped.

    Args:
        folder: the folder on this machine.
        uri: of the folder to write, such as ``s3://bucket/model``.
        options: as for :func:`tensorizer_ops.save`.
        progress: as for :func:`tensorizer_ops.save`, of one file after another.

    Returns:
        All files: those that were there already have no ``seconds``.
    """
    return list(uploads.upload(folder, uri, options, _show(progress)))


@checked
def download(
    uri: Target,
    folder: Target,
    *,
    overwrite: bool = False,
    options: Options | None = None,
    progress: Progress | None = None,
) -> list[Copied]:
    """Copy a folder from a server, as ``tensorizer-ops download`` does. Otherwise like ``upload``.

    Args:
        uri: of the folder to read, such as ``s3://bucket/model`` or ``hf://org/model``.
        folder: the folder on this machine.
        overwrite: replace also files that were changed here, which are an error otherwise. If
            files must be signed, others in the folder are an error even then.
        options: as for :func:`tensorizer_ops.load`.
        progress: as for :func:`tensorizer_ops.load`, of one file after another.
    """
    return list(downloads.download(uri, folder, options, _show(progress), overwrite))


def _show(progress: Progress | None) -> Show:
    return lambda what: Bar(safe(what)) if progress is True else progress
