"""Modules whose weights live in a ``.tensors`` file."""

from __future__ import annotations

import copy
import operator
import os
import tempfile
from collections.abc import Container, Iterator

import torch

from tensorizer_ops import _python, errors
from tensorizer_ops._load_save import first_use, save
from tensorizer_ops._memory import identity, plain_storage
from tensorizer_ops._options import Hashes, Options, Verify, as_pairs, as_text
from tensorizer_ops._progress import Progress, reported
from tensorizer_ops._refill import refill
from tensorizer_ops._targets import Target, local_path, to_uri


def _slots(
    module: torch.nn.Module, stored: Container[str] | None = None
) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Every tensor of a module: its name, its owner, its name there, and itself.

    With names that are stored: also buffers that are not persistent, where they are stored or have
    no memory and so should be.
    """
    persistent = module.state_dict(keep_vars=True).keys()
    for prefix, owner in module.named_modules(remove_duplicate=False):
        own = [
            *owner.named_parameters(recurse=False, remove_duplicate=False),
            *owner.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for leaf, tensor in own:
            name = f"{prefix}.{leaf}" if prefix else leaf
            wanted = stored is not None and (name in stored or tensor.is_meta)
            if name in persistent or wanted:
                yield name, owner, leaf, tensor


def load_into(
    module: torch.nn.Module,
    uri: Target,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    cast: bool = False,
    strict: bool = True,
    verify: Verify = "none",
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Fill a module's parameters and buffers from a ``.tensors`` file, in one call.

    What has memory is filled where it is. What has none (a module on the meta device, or one that
    :func:`externalize` wrote) gets a new tensor, on the CPU without a copy where nothing is cast.
    What goes to another device or type stays the object that it is, and gets other memory. Tied
    weights stay tied. Buffers that are not persistent are filled where the file has them, and must
    be in it where they have no memory. Works for any module, scripted ones included.

    Args:
        module: what to fill; its names are those of its ``state_dict()``.
        uri: as for :func:`load`.
        device: where the tensors shall be; where they are, unless said otherwise.
        dtype: what real floating tensors shall be, whatever they are in the module and in the file.
        cast: whether a real floating tensor may have another type in the file than in the module;
            it is cast to what the module has.
        strict: whether a tensor that only the module or only the file has is an error.
        verify: as for :func:`load`.
        threads: as for :func:`load`.
        options: as for :func:`load`.
        progress: as for :func:`load`.

    Raises:
        TypeError: ``module`` is no module.
        ValueError: missing, unexpected or different tensors, all of them listed. Nothing has been
            touched then.
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the module is {type(module).__name__}, and must be a torch.nn.Module")
    reader = torch.classes.tensorizer.Reader(
        to_uri(uri), None if options is None else as_text(options)
    )
    if not isinstance(dtype, torch.dtype | None):
        raise TypeError(f"dtype is {type(dtype).__name__}, and must be torch.dtype or None")
    where = None if device is None else torch.device(device)
    if where is not None:
        first_use(where)
    with reported(reader, progress):
        slots = list(_slots(module, set(reader.names())))
        names = [name for name, *_ in slots]
        given = [tensor.detach() for *_, tensor in slots]
        with torch._C.DisableTorchFunctionSubclass():
            filled = reader._fill(
                names, given, where, strict, verify, threads, cast or dtype is not None, dtype
            )
    made: dict[int, torch.Tensor] = {}  # so that what was one object stays one
    for (_, owner, leaf, tensor), old, new in zip(slots, given, filled, strict=True):
        if new is old:
            continue
        if id(tensor) not in made:
            made[id(tensor)] = _take(tensor, new)
        if made[id(tensor)] is not tensor:
            setattr(owner, leaf, made[id(tensor)])


def _take(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The same object with other memory, as of ``Module.to``; a new one for a placeholder."""
    if plain_storage(old) is not None and torch._has_compatible_shallow_copy_type(old, new):
        return refill(old, torch.nn.Parameter(new, requires_grad=old.requires_grad))
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=False)
    return new.requires_grad_(old.requires_grad)


def load_constants(
    model: object,
    uri: Target,
    *,
    strict: bool = False,
    verify: Verify = "none",
    threads: int = 0,
    options: Options | None = None,
) -> None:
    """Fill a package of AOTInductor that was made without its weights, in one call.

    The weights go straight into the memory where the program uses them, on its device. A program
    believes that their strides are what they were when it was compiled, and a file has none: they
    have to be contiguous then.

    Args:
        model: what ``torch._inductor.aoti_load_package`` returned, for a package that was compiled
            with the option ``aot_inductor.package_constants_in_so`` off.
        uri: as for :func:`load`.
        strict: whether a tensor that only the file has is an error. Programs leave out what they do
            not use, and contain small constants themselves, so a ``state_dict()`` often has more.
            One that only the program has always is an error.
        verify: as for :func:`load`.
        threads: as for :func:`load`.
        options: as for :func:`load`.

    Raises:
        TypeError: the model is not such a package.
        ValueError: missing, unexpected or different tensors, all of them listed. No weight has been
            touched then.
        FileNotFoundError, PermissionError, OSError: the file cannot be read.
    """
    loader = getattr(model, "loader", model)
    if not isinstance(verify, str):
        raise TypeError(f"verify is {type(verify).__name__}, and must be str")
    count = operator.index(threads)
    _python.load_constants(loader, to_uri(uri), bool(strict), verify, count, as_pairs(options))


def externalize(
    module: torch.jit.ScriptModule,
    uri: Target,
    script: Target | None = None,
    *,
    hashes: Hashes = "all",
    options: Options | None = None,
) -> str:
    """Save a scripted module's weights to a ``.tensors`` file, and its code beside it.

    The code is a TorchScript file in which every weight has its shape and no data: load it with
    ``torch.jit.load`` and fill it with :func:`load_into`, or with ``tensorizer::load_into`` in C++.
    The module itself stays as it is.

    Args:
        module: not frozen: freezing turns weights into code.
        uri: where the weights go, as for :func:`save`.
        script: the path where the code goes (missing directories are made); by default beside the
            weights, with the suffix ``.pt``.
        hashes: as for :func:`save`.
        options: as for :func:`save`.

    Returns:
        The path of the TorchScript file.

    Raises:
        TypeError: the module is not scripted.
        ValueError: the module has no weights to save, or both files would be the same.
    """
    if not isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            f"the module is {type(module).__name__}, and must be scripted (torch.jit.script)"
        )
    slots = list(_slots(module))
    if not slots:
        raise errors._new(
            errors.InvalidArgument,
            "the module has no parameters and no buffers; a frozen module keeps its weights in its "
            "code: externalize it before it is frozen",
        )
    place = _code_path(uri, script)
    weights: dict[str, torch.Tensor] = {}
    empty: dict[object, torch.Tensor] = {}
    for name, _, _, tensor in slots:
        if identity(tensor) not in empty:
            empty[identity(tensor)] = _placeholder(tensor)
            weights[name] = tensor.detach()
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
        _python.upload(f"fd:{file.fileno()}", to_uri(os.fsencode(place)), [])
    return place


def _copy(module: torch._C.ScriptModule) -> torch._C.ScriptModule:
    """A module with slots of its own and the same tensors in them."""
    copied = copy.copy(module)
    for name, child in torch._C.ModuleDict(copied).items():
        copied.setattr(name, _copy(child))
    return copied


def _placeholder(tensor: torch.Tensor) -> torch.Tensor:
    """The shape of a tensor over the memory of one element."""
    element = torch.zeros((), dtype=tensor.dtype)
    return element.expand(tensor.shape).requires_grad_(tensor.requires_grad)


def _code_path(uri: Target, script: Target | None) -> str:
    weights = local_path(uri)
    if script is not None:
        code = local_path(script)
        if code is None:
            raise errors._new(errors.InvalidArgument, "the code goes to a file: script= is a path")
    elif weights is not None:
        code = os.path.splitext(weights)[0] + ".pt"
    else:
        raise errors._new(
            errors.InvalidArgument,
            "script= says where the code goes when the weights go to no path",
        )
    if weights is not None and os.path.realpath(weights) == os.path.realpath(code):
        raise errors._new(
            errors.InvalidArgument,
            f"the code would replace the weights at {code!r}: script= says where else it goes",
        )
    return code
