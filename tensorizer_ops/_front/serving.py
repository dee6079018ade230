"""The weights of a model for servers of models, such as vLLM: which files have them."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.folder import Folder, inside, model_of, names_in
from tensorizer_ops._base.options import SecretOptions, kept
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.signed_folder import refuse_changed
from tensorizer_ops._base.targets import local_path
from tensorizer_ops._distributed.together import Together
from tensorizer_ops._front.iterate import iterate
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.weight import Stored, Weight, stored_in

# What the command lines of the servers call this library.
LOAD_FORMAT = "tensorizer_ops"
_ARGUMENT = "--model-loader-extra-config"

# For how many seconds, at least, what this process has fetched stays on the node for others.
_FOR_OTHERS = 60.0

# What the names of this library's files end in.
_OWN = ".tensors"

# One of several files of a model.
_PART = re.compile(r"(.*?)\d+-of-(\d+)\.tensors")


class Settings:
    """What ``--model-loader-extra-config`` says: where the weights are, and how to load them."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise wrong(_ARGUMENT, given, "a dict")
        known = ("uri", "model", "verify", "threads", "options")
        if unknown := sorted(given.keys() - set(known)):
            raise errors.InvalidArgument(
                f"{_ARGUMENT} has {unknown[0]!r}, which is none of {', '.join(known)}",
            )
        for name in ("uri", "model"):
            if not isinstance(given.get(name), str | None):
                raise wrong(f"{name} in {_ARGUMENT}", given[name], "str")
        self.uri: str | None = given.get("uri")
        self.model: str | None = given.get("model")
        self.options = kept(given.get("options", {}))
        if self.model is not None and "trust" not in self.options:
            raise errors.InvalidArgument(f"model in {_ARGUMENT} is only for the option 'trust'")
        # Checked by what they are passed to.
        how = {name: given[name] for name in ("verify", "threads") if name in given}
        self.how: dict[str, Any] = {**how, "options": self.options, "device": "cpu"}


def weights(
    settings: Settings,
    model: str,
    group: dist.ProcessGroup | None = None,
    roots: dict[str, str] | None = None,
    may_be_led: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return an iterator of the names and tensors in the files of a model, in their order.

    The files are opened at once. If they must be signed, and are in the folder that is served, all
    that is in it must be of one bundle: the server reads its config and the like from there.

    If several ranks load the model, large tensors are a :class:`Weight`: each rank reads only the
    parts that it takes. Otherwise the next tensors are loaded while the caller uses those before.

    Args:
        model: what is served: the place of the files, unless the settings have one.
        group: the ranks that load the model together, if these are not all. If the files must be
            signed, they compare what they have opened.
        roots: the root digests of the signed folders that the same server has loaded from, to which
            this one is added. A folder must be the same again.
        may_be_led: whether files in a folder that was given may have led the server to ``model``,
            also if its weights are in a signed folder: such as a config that says to draft tokens.
    """
    opened = _opened(settings, model, group, {} if roots is None else roots, may_be_led)
    return _each(settings, *opened)  # what must be refused is, before a server drops what it has


def _each(
    settings: Settings, files: list[str], how: dict[str, Any], readers: list[Reader]
) -> Iterator[tuple[str, torch.Tensor]]:
    if "node_folder" in settings.options:
        _keep_open([Reader(place, **how) for place in files])
    places: dict[str, str] = {}
    for number, place in enumerate(files):
        for name, tensor in _in_parts(readers[number]) if readers else iterate(place, **how):
            if name in places:
                raise errors.InvalidArgument(
                    f"the tensor {quoted(name)} is in {label(places[name])} and in {label(place)}: "
                    f"give the URI of one file as uri in {_ARGUMENT}",
                )
            places[name] = place
            yield name, tensor


def _opened(
    settings: Settings,
    model: str,
    group: dist.ProcessGroup | None,
    roots: dict[str, str],
    may_be_led: bool,
) -> tuple[list[str], dict[str, Any], list[Reader]]:
    """Return the files of a model, how to load them, and readers if there are several ranks."""
    uri = settings.uri or model
    alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)

    def opened() -> tuple[list[str], dict[str, Any], list[Reader]]:
        _must_be_there(uri)
        served, place = _served_folder(model, uri, settings.options)
        if "trust" in settings.options:
            if may_be_led or (served is None and uri != model):
                _refuse_led_elsewhere(settings.model, model)
            _refuse_other_spelling(model, is_compared=served is not None)
        options = served.loads if served else settings.options
        is_served = served is not None and local_path(place) == served.path
        files, options = files_of(place, options, served if is_served else None)
        if served is not None:
            _refuse_another(served, roots)
            refuse_changed(served, _loaded_from(served, files))
        how = settings.how | {"options": options}
        return files, how, [] if alone else [Reader(place, **how) for place in files]

    if alone or "trust" not in settings.options:
        return opened()
    found: list[tuple[list[str], dict[str, Any], list[Reader]]] = []

    def signed() -> list[str]:
        found.append(opened())
        return signed_contents(found[0][2])

    Together(group, are_alone=False).same(signed, other_models(uri))
    return found[0]


def _served_folder(model: str, uri: str, options: Mapping[str, str]) -> tuple[Folder | None, str]:
    """Return the folder of a model if its weights are in it and signed, and where they are.

    This does not ask whether there is a folder at this moment, which others may exchange.
    """
    folder, path = local_path(model), local_path(uri)
    if "trust" not in options or not folder or path is None:
        return None, uri
    for place in (folder, path):
        _refuse_way_back(place)
    # The weights may be a link, or be given by a path with links: also with some that others have
    # put into the folder, which is refused later.
    path, folder = os.path.abspath(path), os.path.abspath(folder)
    parent, name = os.path.split(path)
    real = os.path.realpath(folder)
    for place, above in (
        (os.path.realpath(path), real),
        (os.path.join(os.path.realpath(parent), name), real),
        (path, folder),
    ):
        below = os.path.relpath(place, above)
        if below == ".":
            # No signed folder has the name of a file, unless a slash says that it is a folder.
            for each in (model, uri):
                if not _core.has_name_of_file(each):
                    return Folder(each, options), each
            return None, uri
        if below.split("/")[0] != "..":
            return Folder(model, options), os.path.normpath(os.path.join(folder, below))
    return None, uri


def _refuse_led_elsewhere(given: str | None, read: str) -> None:
    """Raise unless a server reads the config of the model that it was given.

    A config that somebody has changed can lead vLLM to another model, whose config it reads then.
    """
    if given is None:
        raise errors.InvalidArgument(
            f"{_ARGUMENT} lacks model: with the option 'trust', repeat there which model the "
            "server was given, as files in it can lead to another one, and the server now reads "
            f"that of {label(read)}"
        )
    if given.rstrip("/") != read.rstrip("/"):
        raise errors.Crypto(
            f"the server was given {label(given)}, as model in {_ARGUMENT} says, and reads the "
            f"config and the tokenizer of {label(read)}: a config has led it there, or the server "
            "was given another one, or found that in a cache: give the same text to both"
        )


def _refuse_other_spelling(model: str, is_compared: bool) -> None:
    """Raise for a path that a server reads in another way, as it knows no ``file://`` and no ``~``.

    It would read another folder than the one that is compared, or further files elsewhere: of what
    may be a Hub name it takes from its cache what the folder lacks.
    """
    if local_path(model) not in (model, None):
        raise errors.InvalidArgument(
            f"a server takes {label(model)} as it is written: give the path itself, without "
            "'file://' and '~'"
        )
    if is_compared and not model.startswith(("/", ".")):
        raise errors.InvalidArgument(
            f"{label(model)} may be a Hub name as well, of which a server takes from its cache "
            f"what the folder lacks: give it './{model}'"
        )


def _refuse_way_back(place: str) -> None:
    """Raise for a path with ``..`` behind a name, which leads elsewhere if that is a link."""
    names = [name for name in place.split("/") if name not in ("", ".")]
    if ".." in itertools.dropwhile("..".__eq__, names):
        raise errors.InvalidArgument(
            f"{label(place)} has '..' behind a name, and leads elsewhere if that is a link: with "
            "the option 'trust', give the path itself"
        )


def _refuse_another(folder: Folder, roots: dict[str, str]) -> None:
    """Raise if a folder has another model than before, whose config and the like the server has."""
    root = folder.loads["subject"]
    if (first := roots.setdefault(folder.name, root)) != root:
        raise errors.HashMismatch(
            f"{folder.label} has another model than the one whose config and tokenizer the server "
            f"has read: the root digest is {root}, and was {first}: start the server anew"
        )


def _loaded_from(folder: Folder, files: Sequence[str]) -> Iterator[str]:
    """Yield the names of files in a folder, and those of the files that indexes among them list."""
    for place in files:
        (name,) = inside(folder.path, place)
        yield name
        if name.endswith(".json"):
            above, last = os.path.split(os.path.join(folder.path or "", name))
            text = Folder(above, folder.loads).read(last)
            # The load says what is wrong.
            with suppress(AttributeError, KeyError, RecursionError, TypeError, ValueError):
                shards = set(json.loads(text)["weight_map"].values())
                yield from [os.path.join(os.path.dirname(name), shard) for shard in shards]


def signed_contents(readers: Sequence[Reader]) -> list[str]:
    """Return texts that differ for other files that are signed. Opens the files."""
    scripts = [reader.script_object for reader in readers]
    return [torch.classes.tensorizer._Internals(script).signed_as() for script in scripts]


def other_models(uri: str) -> str:
    """Return what to raise if ranks have opened different files that are signed."""
    return (
        f"{label(uri)}: ranks read different signed models: it was replaced meanwhile, or they do "
        "not see the same place"
    )


def _keep_open(readers: list[Reader]) -> None:
    def close() -> None:
        for reader in readers:
            reader.close()

    for reader in readers:
        len(reader)  # opens the file
    timer = threading.Timer(_FOR_OTHERS, close)
    timer.daemon = True
    timer.start()


def files_of(
    uri: str, options: Mapping[str, str], folder: Folder | None = None
) -> tuple[list[str], SecretOptions]:
    """Return the URIs of the files of a model, and the options to load them with.

    A folder on a server is one URI, in which a load finds the file. If the files in a folder must
    be signed, all of them are, as one model, and none is missing. ``folder`` is the place, if it
    was read as one before.
    """
    path = local_path(uri)
    _must_be_there(uri)
    model, loads, signed = model_of(uri, options, folder, are_one=False)
    if path is None:
        return [model], loads
    # Those that are signed are not taken from the disk, where others may be at any moment.
    listed = names_in(path) if "trust" not in loads and os.path.isdir(path) else signed
    names = sorted(name for name in listed if name.endswith(_OWN))
    _check_parts(uri, names)
    return [os.path.join(path, name) for name in names] or [model], loads


def _must_be_there(uri: str) -> None:
    path = local_path(uri)
    if path is not None and not os.path.exists(path):
        raise errors.NotFound(
            f"{label(uri)} is no file or folder of this machine: give the URI of the weights as "
            f"uri in {_ARGUMENT}",
        )


def _check_parts(folder: str, listed: Sequence[str]) -> None:
    """Raise if files of a model are missing that has several by the names of the others."""
    parts = Counter(found.groups() for name in listed if (found := _PART.fullmatch(name)))
    for (start, count), there in parts.items():
        if there < int(count):
            names = f"{start}…-of-{count}.tensors"
            raise errors.InvalidArgument(
                f"{label(folder)} has {there} of the {int(count)} files {names!r}: get the others, "
                f"or give the URI of one file as uri in {_ARGUMENT}",
            )


def _in_parts(reader: Reader) -> Iterator[tuple[str, torch.Tensor]]:
    for stored in stored_in(reader, list(reader), Stored):
        yield stored.name, stored.whole() if stored.is_read else Weight(stored)
