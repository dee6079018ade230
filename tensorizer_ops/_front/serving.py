"""The weights of a model for servers of models, such as vLLM: which files have them, and tensors
that are read when they are used."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map_only

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._base.boxes import strides_of
from tensorizer_ops._base.file_objects import label
from tensorizer_ops._base.folder import model_of
from tensorizer_ops._base.memory import identity
from tensorizer_ops._base.options import SecretOptions, as_text
from tensorizer_ops._base.targets import local_path
from tensorizer_ops._distributed.together import Together
from tensorizer_ops._front.iterate import iterate
from tensorizer_ops._front.reader import Reader

# What the command lines of the servers call this library.
LOAD_FORMAT = "tensorizer_ops"
_ARGUMENT = "--model-loader-extra-config"

# Tensors below this size, in bytes, are loaded whole: a request for a part takes longer.
_SMALL = 1 << 20
# Bytes of small tensors that are read at a time.
_GROUP = 32 << 20

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
        known = ("uri", "verify", "threads", "options")
        if unknown := sorted(given.keys() - set(known)):
            raise errors.InvalidArgument(
                f"{_ARGUMENT} has {unknown[0]!r}, which is none of {', '.join(known)}",
            )
        self.uri = given.get("uri")
        if not isinstance(self.uri, str | None):
            raise wrong(f"uri in {_ARGUMENT}", self.uri, "str")
        self.options = SecretOptions(as_text(given.get("options", {})))
        # Checked by what they are passed to.
        how = {name: given[name] for name in ("verify", "threads") if name in given}
        self.how: dict[str, Any] = {**how, "options": self.options, "device": "cpu"}


def weights(
    settings: Settings, model: str, group: dist.ProcessGroup | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each, of the files of a model, in the order of the files.

    If several ranks load the model, large tensors are a :class:`Weight`: each rank reads only the
    parts that it takes. Otherwise the next tensors are loaded while the caller uses those before.

    Args:
        model: the place of the files, unless the settings have one.
        group: the ranks that load the model together, if these are not all. If the files must be
            signed, they compare what they have opened.
    """
    files, how, readers = _opened(settings, settings.uri or model, group)
    if "node_folder" in settings.options:
        _keep_open([Reader(place, **how) for place in files])
    places: dict[str, str] = {}
    for number, place in enumerate(files):
        for name, tensor in _in_parts(readers[number]) if readers else iterate(place, **how):
            if name in places:
                raise errors.InvalidArgument(
                    f"the tensor {name!r} is in {label(places[name])} and in {label(place)}: give "
                    f"the URI of one file as uri in {_ARGUMENT}",
                )
            places[name] = place
            yield name, tensor


def _opened(
    settings: Settings, uri: str, group: dist.ProcessGroup | None
) -> tuple[list[str], dict[str, Any], list[Reader]]:
    """Return the files of a model, how to load them, and readers if there are several ranks."""
    alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)

    def opened() -> tuple[list[str], dict[str, Any], list[Reader]]:
        files, options = files_of(uri, settings.options)
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


def files_of(uri: str, options: Mapping[str, str]) -> tuple[list[str], SecretOptions]:
    """Return the URIs of the files of a model, and the options to load them with.

    A folder on a server is one URI, in which a load finds the file. If the files in a folder must
    be signed, all of them are, as one model, and none is missing.
    """
    path = local_path(uri)
    if path is not None and not os.path.exists(path):
        raise errors.NotFound(
            f"{label(uri)} is no file or folder of this machine: give the URI of the weights as "
            f"uri in {_ARGUMENT}",
        )
    model, loads, signed = model_of(uri, options, are_one=False)
    if path is None:
        return [model], loads
    # Those that are signed are not taken from the disk, where others may be at any moment.
    inside = os.listdir(path) if "trust" not in loads and os.path.isdir(path) else signed
    names = sorted(name for name in inside if name.endswith(_OWN))
    _check_parts(uri, names)
    return [os.path.join(path, name) for name in names] or [model], loads


def _check_parts(folder: str, inside: Sequence[str]) -> None:
    """Raise if files of a model are missing that has several by the names of the others."""
    parts = Counter(found.groups() for name in inside if (found := _PART.fullmatch(name)))
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


Index = tuple[range | int, ...]  # a part of a tensor, by dimension


class Stored:
    """A tensor of a file, which all its parts share."""

    def __init__(self, reader: Reader, name: str) -> None:
        self.name = name
        shape = reader.shape(name)
        self.everything: Index = tuple(map(range, shape))
        self.strides = strides_of(shape)
        self.dtype = reader.dtype(name)
        self._reader = reader
        self._whole: torch.Tensor | None = None

    def load(self, index: Index, device: torch.device | str) -> torch.Tensor:
        """Load a part."""
        # Hashes of whole tensors cannot verify a part.
        slices = {} if index == self.everything else {self.name: as_slices(index)}
        with torch.inference_mode(False):
            return self._reader.load([self.name], slices=slices, device=device)[self.name]

    @property
    def is_read(self) -> bool:
        """Whether all of the tensor is in memory."""
        return self._whole is not None

    def keep(self, whole: torch.Tensor) -> None:
        """Take over all of the tensor."""
        self._whole = whole

    def whole(self) -> torch.Tensor:
        """Load the tensor, once."""
        if self._whole is None:
            self._whole = self.load(self.everything, "cpu")
        return self._whole

    def loaded(self, index: Index) -> torch.Tensor | None:
        """Return a part of the tensor if that has been loaded."""
        return None if self._whole is None else self._whole[as_slices(index)]


_Stored = TypeVar("_Stored", bound=Stored)


def stored_in(reader: Reader, names: Sequence[str], kind: type[_Stored]) -> Iterator[_Stored]:
    """Yield tensors of a file. Small ones have been read, many at a time."""
    listed = torch.classes.tensorizer._Internals(reader.script_object).list()
    sizes = dict(zip(reader, listed.memory_sizes, strict=True))
    small = iter([name for name in names if sizes[name] < _SMALL])
    loaded: dict[str, torch.Tensor] = {}
    for name in names:
        # Not only where the first is needed: between parts of large ones, it seems that the file
        # is read in order, and more would be read ahead.
        if not loaded and (group := _group(small, sizes)):
            with torch.inference_mode(False):
                loaded = reader.load(group, device="cpu")
        stored = kind(reader, name)
        if name in loaded:
            stored.keep(loaded.pop(name))
        yield stored


def _group(names: Iterator[str], sizes: Mapping[str, int]) -> list[str]:
    group, size = [], 0
    while size < _GROUP and (name := next(names, None)) is not None:
        group.append(name)
        size += sizes[name]
    return group


def as_slices(index: Index) -> tuple[slice | int, ...]:
    """Return what takes a part of a tensor."""
    return tuple(
        slice(part.start, part.stop, part.step) if isinstance(part, range) else part
        for part in index
    )


class Weight(torch.Tensor):
    """A tensor of a file, or a part of it, which is read when an operation needs its elements.

    Slices, indices and the parts of ``split``, ``chunk`` and ``unbind`` are again such tensors, and
    read nothing. ``copy_`` from one reads it onto the device of its destination, and keeps nothing.
    Any other operation reads it once, onto the CPU, and goes on with a plain tensor. It reads the
    whole tensor if it writes to the part, or returns a view of it, because all parts share memory.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    stored: Stored
    which: Index
    _part: torch.Tensor | None

    @staticmethod
    def __new__(cls, stored: Stored, index: Index | None = None) -> Weight:
        index = stored.everything if index is None else index
        shape, strides, offset = [], [], 0
        for part, stride in zip(index, stored.strides, strict=True):
            if isinstance(part, range):
                shape.append(len(part))
                strides.append(part.step * stride)
            offset += (part.start if isinstance(part, range) else part) * stride
        # A tensor that is made in inference mode cannot be a view of one that is not.
        with torch.inference_mode(False):
            made: Weight = torch.Tensor._make_wrapper_subclass(
                cls,
                shape,
                strides=strides,
                storage_offset=offset,
                dtype=stored.dtype,
                device=torch.device("cpu"),
            )
        made.stored, made.which, made._part = stored, index, None
        return made

    def __init__(self, *arguments: object) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"<weight {self.stored.name!r}: {self.dtype}, {list(self.shape)}>"

    def _read(self) -> torch.Tensor:
        """Return the elements as a plain tensor on the CPU, to be read only."""
        if self.which == self.stored.everything:
            return self.stored.whole()
        part = self.stored.loaded(self.which)
        if part is None:
            if self._part is None:
                self._part = self.stored.load(self.which, "cpu")
            part = self._part
        return part

    def _unchangeable(self, how: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"{how} cannot change the shape or the memory of {self!r}: use what returns another "
            "tensor, such as t() in place of t_()"
        )

    def _set_data(self, data: torch.Tensor) -> None:
        raise self._unchangeable("an assignment to data")

    data = property(torch.Tensor.data.__get__, _set_data)  # type: ignore[attr-defined]

    def in_memory(self) -> list[torch.Tensor]:
        """Return the plain tensors that have been loaded for this one."""
        return [each for each in (self.stored._whole, self._part) if each is not None]

    def _shared(self) -> torch.Tensor:
        """Return the elements in memory that all parts of the tensor share."""
        return self.stored.whole()[as_slices(self.which)]

    def _copy_to(self, target: torch.Tensor, *rest: Any, **kwargs: Any) -> None:
        """Copy the elements, and keep nothing."""
        target.copy_(self._to_copy(target.device), *rest, **kwargs)

    def _to_copy(self, device: torch.device) -> torch.Tensor:
        if device.type == "meta":
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        part = self.stored.loaded(self.which)
        if part is None:
            part = self._part
        return self.stored.load(self.which, device) if part is None else part

    def _on_meta(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta")

    def _indexed(self, dim: int, index: slice | int) -> Weight:
        place = [i for i, part in enumerate(self.which) if isinstance(part, range)][dim]
        part = cast(range, self.which[place])[index]
        if isinstance(part, range) and not part:
            part = range(0)
        return type(self)(self.stored, (*self.which[:place], part, *self.which[place + 1 :]))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # In inference mode, operations come here that are otherwise divided into others before.
        divided = func.decompose(*args, **kwargs)
        if divided is not NotImplemented:
            return divided
        if func in _VIEWS and not kwargs:
            func(args[0]._on_meta(), *args[1:])  # raises for wrong arguments
            return _VIEWS[func](*args)
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], Weight):
            target, source, *rest = args
            source._copy_to(target, *rest, **kwargs)
            return target
        declared = func._schema.arguments
        shared = {argument.name for argument in declared if argument.alias_info is not None}
        names = [argument.name for argument in declared]
        plain = [_plain(value, name in shared) for name, value in zip(names, args, strict=False)]
        given = {n: _plain(value, n in shared) for n, value in kwargs.items()}
        returned = [each.alias_info for each in func._schema.returns if each.alias_info]
        is_view = any(not alias.is_write for alias in returned)
        pairs = zip(tree_leaves((args, kwargs)), tree_leaves((plain, given)), strict=True)
        own = [(weight, each, identity(each)) for weight, each in pairs if weight is not each]
        # As the weight itself is made.
        with torch.inference_mode(False) if is_view else nullcontext():
            result = func(*plain, **given)
        for weight, each, before in own:
            if identity(each) != before:
                raise weight._unchangeable(str(func))
        return result


def _plain(value: Any, shared: bool) -> Any:
    """Replace each weight in an argument by a plain tensor."""
    return tree_map_only(Weight, Weight._shared if shared else Weight._read, value)


def _split(weight: Weight, sizes: Sequence[int], dim: int = 0) -> list[Weight]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    ends = zip(starts, sizes, strict=True)
    return [weight._indexed(dim, slice(start, start + size)) for start, size in ends]


def _split_evenly(weight: Weight, size: int, dim: int = 0) -> list[Weight]:
    length = weight.shape[dim]
    return [weight._indexed(dim, slice(i, i + size)) for i in range(0, max(length, 1), size or 1)]


_aten = torch.ops.aten
# The operations that read nothing.
_VIEWS: dict[Any, Callable[..., Weight | list[Weight]]] = {
    _aten.alias.default: lambda weight: type(weight)(weight.stored, weight.which),
    _aten.detach.default: lambda weight: type(weight)(weight.stored, weight.which),
    _aten.select.int: lambda weight, dim, i: weight._indexed(dim, i),
    _aten.slice.Tensor: lambda weight, dim=0, start=None, end=None, step=1: weight._indexed(
        dim, slice(start, end, step)
    ),
    _aten.split.Tensor: _split_evenly,
    _aten.split_with_sizes.default: _split,
    _aten.unbind.int: lambda weight, dim=0: [
        weight._indexed(dim, i) for i in range(weight.shape[dim])
    ],
}


def _on_plain(name: str, shared: bool) -> Callable[..., Any]:
    def call(weight: Weight, *args: Any, **kwargs: Any) -> Any:
        return getattr(_plain(weight, shared), name)(*_plain(args, False), **kwargs)

    return call


# Methods that look into the memory of a tensor and are no operations.
for _name in ("__deepcopy__", "__reduce_ex__", "tolist"):
    setattr(Weight, _name, _on_plain(_name, shared=False))
for _name in (
    *("__array__", "__dlpack__", "apply_", "data_ptr", "map2_", "map_", "numpy", "storage"),
    "untyped_storage",
):
    setattr(Weight, _name, _on_plain(_name, shared=True))
