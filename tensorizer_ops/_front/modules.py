"""Functions for modules whose weights are in a file."""

from __future__ import annotations

import copy
import functools
import math
import operator
import os
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal, NamedTuple

import torch

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import checked, kind_of, wrong
from tensorizer_ops._base.devices import first_use, named_device
from tensorizer_ops._base.file_objects import open_source
from tensorizer_ops._base.internals import held_memory, load_constants as fill_constants
from tensorizer_ops._base.memory import identity, is_plain
from tensorizer_ops._base.options import Hashes, Options, SecretOptions, Verify, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.refill import refill
from tensorizer_ops._base.savable import (
    as_dict,
    plain_tensors,
    refuse_uninitialized,
    refuse_without_memory,
)
from tensorizer_ops._base.states import slots_of, tensors_of, trusted_state
from tensorizer_ops._base.tables import MOST_ROWS
from tensorizer_ops._base.targets import Source, Target, local_path, to_uri
from tensorizer_ops._front.load_save import save


class IncompatibleKeys(NamedTuple):
    """The names that only a module or only a file has, as ``load_state_dict()`` returns them.

    Tensors of the module that are tied count as one: they are missing if the file has none of their
    names, and the first one is listed.
    """

    missing_keys: list[str]  # of tensors that were not filled
    unexpected_keys: list[str]  # of tensors that only the file has

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"  # as torch says it
        missing, unexpected = map(_first_keys, self)
        return f"IncompatibleKeys(missing_keys={missing}, unexpected_keys={unexpected})"


def _first_keys(keys: list[str]) -> str:
    more = f", ... {len(keys) - MOST_ROWS} more" * (len(keys) > MOST_ROWS)
    return f"[{', '.join(map(repr, keys[:MOST_ROWS]))}{more}]"


@checked
def load_into(
    module: torch.nn.Module | MutableMapping[str, torch.Tensor],
    uri: Source,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    cast: bool = False,
    strict: bool = True,
    verify: Verify = "none",
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> IncompatibleKeys:
    """Fill a module's parameters and buffers, or a dict of tensors, from a file, in one call.

    Tensors that have memory are filled in place. Tensors without memory (of a module on the meta
    device, or of one that :func:`externalize` wrote) are replaced by new tensors, which on the CPU
    are made without a copy unless they are cast. Tensors that move to another device or type keep
    their object and get new memory. Tied weights stay tied, so the file must have the same values
    under all of their names. Non-persistent buffers are filled if the file contains them, and must
    be in the file if they have no memory. Works for any module, scripted ones included.

    Args:
        module: the module to fill, whose tensors have the names of its ``state_dict()``; or a dict
            of tensors, in which tensors without memory are replaced.
        uri: as for :func:`load`.
        device: the device to put the tensors on; by default each stays on its own.
        dtype: the type to give real floating-point tensors, regardless of their type in the module
            and in the file.
        cast: whether a real floating-point tensor may have another type in the file than in the
            module; it is cast to the module's type.
        strict: whether a tensor that only the module or only the file has is an error. If there are
            tensors on both sides, and none of their names is the same, that is always an error.
        verify: as for :func:`load`.
        threads: as for :func:`load`.
        options: as for :func:`load`.
        progress: as for :func:`load`.

    Returns:
        The names that only one side has: none if ``strict`` is true.

    Raises:
        TypeError: ``module`` is neither a module nor a dict of tensors.
        ValueError: missing, unexpected or different tensors, all of them listed. The module is
            unchanged then, unless only the values of tied weights differ, which a load shows.
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
    """
    opened = open_source(uri, options)
    with reported(opened.reader, progress):
        count = threads or opened.threads
        return fill(opened.reader, module, device, dtype, cast, strict, verify, count)


@checked
def verify_tensors(
    uri: Source,
    tensors: torch.nn.Module | Mapping[str, torch.Tensor],
    *,
    verify: Literal["crc32", "all"] = "all",
    options: Options | None = None,
) -> None:
    """Compare tensors in memory with the hashes that a file has of them.

    So a program knows that what it holds is still, or already, what was saved: after training, or
    when the weights came by another way. Of the file, only hashes are read. Those of chunks
    (``hashes="chunked"``) and CRC32s are computed where the tensors are; for SHA-256 of whole
    tensors, those on a device are copied to the host piece by piece.

    With the option ``trust``, tensors of which the file has no SHA-256 are loaded to be compared;
    with ``digest``, those in no chunks that make this digest.

    Args:
        uri: as for :func:`load`.
        tensors: a dict of tensors, or a module, whose tensors have the names of its
            ``state_dict()``. The file may have more, and of tied weights only one name; but there
            must be one to compare, if the file has any. Non-persistent buffers of a module are
            compared if the file has them.
        verify: ``"crc32"`` compares only CRC32s, where the file has them; not with ``trust``.
        options: as for :func:`load`.

    Raises:
        tensorizer_ops.errors.HashMismatch: values differ. It names all tensors, and with hashes of
            chunks the places.
        KeyError: the file has no tensor of a name.
        ValueError: a tensor has another type or shape in the file, or no hash there. With the
            option ``trust`` also: it is of a class that may have more than elements, such as a
            scale; or a module's ``state_dict()`` has other tensors than the module.
    """
    reader = open_source(uri, options).reader
    known = set(reader.names())
    if "trust" in as_text(options):
        tensors = trusted_state(tensors, known)
    elif isinstance(tensors, torch.nn.Module):
        tensors = tensors_of(tensors, known)
    given = as_dict(tensors)
    plain = plain_tensors(given, given.values(), done="verified")
    given = dict(zip(given, plain, strict=True))
    if known and not given:
        raise errors.InvalidArgument("tensors is empty: there is nothing to verify")
    seen = {identity(tensor) for name, tensor in given.items() if name in known}
    compared = {
        name: tensor
        for name, tensor in given.items()
        if name in known or identity(tensor) not in seen
    }
    with torch._C.DisableTorchFunctionSubclass():
        internals = torch.classes.tensorizer._Internals(reader)
        internals.verify_memory(list(compared), list(compared.values()), verify)


def fill(
    reader: Any,
    module: torch.nn.Module | MutableMapping[str, torch.Tensor],
    device: torch.device | str | int | None,
    dtype: torch.dtype | None,
    cast: bool,
    strict: bool,
    verify: str,
    threads: int,
) -> IncompatibleKeys:
    """Fill a module or a dict from an open ``torch.classes.tensorizer.Reader``.

    The arguments and the result are those of :func:`load_into`.
    """
    where = None if device is None else named_device(device)
    if where is not None:
        first_use(where)
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    puts: list[Callable[[torch.Tensor], None]] = []  # each puts another tensor in the same place
    internals = torch.classes.tensorizer._Internals(reader)
    if isinstance(module, torch.nn.Module):
        state = module.state_dict(keep_vars=True)
        for name, owner, leaf, tensor in slots_of(module, state, set(internals.names_to_fill())):
            names.append(name)
            tensors.append(tensor)
            puts.append(functools.partial(setattr, owner, leaf))
    else:
        for name, tensor in module.items():
            _refuse_item(name, tensor)
            names.append(name)
            tensors.append(tensor)
            puts.append(functools.partial(module.__setitem__, name))
    for name, tensor in zip(names, tensors, strict=True):
        refuse_uninitialized(name, tensor, "filled")
    with held_memory(tensors) as given, torch._C.DisableTorchFunctionSubclass():
        filled = internals.fill(
            names, given, where, strict, verify, threads, cast or dtype is not None, dtype
        )
    made: dict[int, torch.Tensor] = {}  # keeps a tensor with several names one object
    for tensor, old, new, put in zip(tensors, given, filled.tensors, puts, strict=True):
        if new is old:
            continue
        if id(tensor) not in made:
            made[id(tensor)] = _take(tensor, new)
        if made[id(tensor)] is not tensor:
            put(made[id(tensor)])
    return IncompatibleKeys(filled.missing_keys, filled.unexpected_keys)


def _refuse_item(name: object, tensor: object) -> None:
    """Raise for an item of a dict that is not a named tensor."""
    if not isinstance(name, str):
        raise TypeError(f"module has a name that is {kind_of(name)}, and must be str")
    if not isinstance(tensor, torch.Tensor):
        raise wrong(f"module[{name!r}]", tensor, "a tensor")


def _take(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the old object with new memory, as ``Module.to`` does; a new one for a placeholder."""
    if is_plain(old) and torch._has_compatible_shallow_copy_type(old, new):
        return refill(old, torch.nn.Parameter(new, requires_grad=old.requires_grad))
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=False)
    return new.requires_grad_(old.requires_grad)


@checked
def load_constants(
    model: object,
    uri: Target,
    *,
    strict: bool = True,
    verify: Verify = "none",
    threads: int = 0,
    options: Options | None = None,
) -> IncompatibleKeys:
    """Fill an AOTInductor package that was compiled without its weights, in one call.

    The weights are loaded directly into the memory that the program uses, on its device. A compiled
    program relies on the strides that the weights had during compilation, and a file stores no
    strides: so the weights must have been contiguous then.

    Args:
        model: the result of ``torch._inductor.aoti_load_package``, for a package that was compiled
            with the option ``aot_inductor.package_constants_in_so`` off.
        uri: as for :func:`load`.
        strict: whether a tensor that only the file has is an error. Compiled programs omit unused
            weights and embed small constants, so a ``state_dict()`` often has more tensors. A
            tensor that only the program has is always an error.
        verify: as for :func:`load`.
        threads: as for :func:`load`.
        options: as for :func:`load`.

    Returns:
        The names that only the file has: none if ``strict`` is true.

    Raises:
        TypeError: the model is not such a package.
        ValueError: missing, unexpected or different tensors, all of them listed. The weights are
            unchanged then.
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
    """
    loader = getattr(model, "loader", model)
    count = operator.index(threads)
    given = SecretOptions(as_text(options))
    unexpected = fill_constants(loader, to_uri(uri), bool(strict), verify, count, given)
    return IncompatibleKeys([], unexpected)


@checked
def externalize(
    module: torch.jit.ScriptModule,
    uri: Target,
    script: Target | None = None,
    *,
    hashes: Hashes = "chunked",
    options: Options | None = None,
) -> str:
    """Save a scripted module's weights to a file, and its code to a separate file.

    The code is a TorchScript file in which every weight has its shape and no data: load it with
    ``torch.jit.load`` and fill it with :func:`load_into`, or with ``tensorizer::load_into`` in C++.
    The module itself is not changed.

    Args:
        module: a scripted module that is not frozen: freezing turns weights into code.
        uri: where to save the weights, as for :func:`save`.
        script: the path for the code (missing directories are created); by default the path of the
            weights with the suffix ``.pt``.
        hashes: as for :func:`save`.
        options: as for :func:`save`.

    Returns:
        The path of the TorchScript file.

    Raises:
        TypeError: the module is not scripted.
        ValueError: the module has no weights to save, or both files would have the same path.
    """
    slots = list(slots_of(module, module.state_dict(keep_vars=True)))
    if not slots:
        raise errors.InvalidArgument(
            "the module has no parameters and no buffers; a frozen module keeps its weights in its "
            "code: externalize it before it is frozen",
        )
    place = _code_path(uri, script)
    weights: dict[str, torch.Tensor] = {}
    empty: dict[object, torch.Tensor] = {}
    for name, _, _, tensor in slots:
        refuse_without_memory(name, tensor)
        if identity(tensor) not in empty:
            empty[identity(tensor)] = _placeholder(tensor)
            weights[name] = tensor
    code = torch.jit._recursive.wrap_cpp_module(_copy(module._c))
    owners = dict(code.named_modules(remove_duplicate=False))
    for name, _, leaf, tensor in slots:
        owners[name.rpartition(".")[0]]._c.setattr(leaf, empty[identity(tensor)])
    folder = os.path.dirname(place) or "."
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        torch.jit.save(code, file)
        file.flush()
        save(uri, weights, hashes=hashes, options=options)
        _core.upload(f"fd:{file.fileno()}", to_uri(os.fsencode(place)), [])
    return place


def _copy(module: torch._C.ScriptModule) -> torch._C.ScriptModule:
    """Copy a module and its children, but share the tensors."""
    copied = copy.copy(module)
    for name, child in torch._C.ModuleDict(copied).items():
        copied.setattr(name, _copy(child))
    return copied


def _placeholder(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape whose storage holds a single element.

    The element is NaN if the type has one, so that no result of a model that has not been filled
    looks right.
    """
    element = torch.zeros((), dtype=tensor.dtype)
    if tensor.is_complex():
        element.fill_(complex(math.nan, math.nan))
    elif tensor.is_floating_point() and tensor.dtype != torch.float4_e2m1fn_x2:
        element.fill_(math.nan)
    return element.expand(tensor.shape).requires_grad_(tensor.requires_grad)


def _code_path(uri: Target, script: Target | None) -> str:
    weights = local_path(uri)
    if script is not None:
        code = local_path(script)
        if code is None:
            raise errors.InvalidArgument(
                "script= must be a local path: the code is saved to a file"
            )
    elif weights is not None:
        code = os.path.splitext(weights)[0] + ".pt"
    else:
        raise errors.InvalidArgument(
            "the weights are not saved to a local path: script= must say where to save the code",
        )
    if weights is not None and os.path.realpath(weights) == os.path.realpath(code):
        raise errors.InvalidArgument(
            f"the code would replace the weights at {code!r}: give another path with script=",
        )
    return code
