"""Comparing what a loader would write to tensors with what they have."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch.nn.parameter import Parameter, is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tensorizer_ops import errors
from tensorizer_ops._attest.attributes import OTHER_MEMORY, Attributes, put_back
from tensorizer_ops._attest.compared import (
    Attestation,
    Compared,
    Comparing,
    difference,
    differing,
    usable,
    why_coarse,
)
from tensorizer_ops._attest.operations import is_divided, outputs_of, tensors_in, written_by
from tensorizer_ops._attest.origins import WRITES, Origins, is_compared
from tensorizer_ops._attest.watched import Owners, Watched, Write
from tensorizer_ops._base.coverage import Layout, uncovered
from tensorizer_ops._base.memory import Span, grown, has_memory, identity, is_plain, span
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.savable import refuse_without_memory
from tensorizer_ops._base.states import registered_in, why_more
from tensorizer_ops._front.weight import Weight

_aten = torch.ops.aten
# Methods that write to tensors by no operation.
_MAPS = ("apply_", "map_", "map2_")
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_COMPARED = "compared by load_weights="
_NOT_OF_FILE = "what the loader copies to it is not made of the file alone"


class Watch(TorchDispatchMode):
    """Compares what its block would write to tensors with what they have, and writes nothing.

    The block copies from a :class:`Weight` of a :class:`Compared`, or from what it makes of one.
    Only plain attributes are written, because loaders keep what they work with there; afterwards
    they are what they were before.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        unlisted: Mapping[str, torch.Tensor],
        attributes: Attributes,
        doubts: Mapping[str, str],
        stored: Mapping[str, int],
        dtypes: Collection[torch.dtype],
        parameters: Iterable[torch.Tensor],
    ) -> None:
        """Begin to watch tensors.

        Args:
            tensors: what is to be compared, by the names in a ``state_dict()``.
            unlisted: other tensors of the model. Only what differs of them is listed.
            attributes: the plain attributes of the modules.
            doubts: why some of ``tensors`` cannot be compared, by name.
            stored: how many elements the tensors of the file have.
            dtypes: the types of these tensors.
            parameters: those of the model, which a loader must fill.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.attestation = Attestation([], {}, {}, [])
        # The names that must be compared come first, also of tied tensors.
        self._tensors = {**usable(tensors, self.attestation), **unlisted}
        self._unlisted = unlisted.keys()
        self._attributes = attributes
        self._stored, self._dtypes = stored, dtypes
        self._parameters = set(map(identity, parameters))
        # A loader may write anything to buffers that no file has.
        self._optional = {
            name for name, each in unlisted.items() if identity(each) not in self._parameters
        }
        for name, tensor in self._tensors.items():
            if _lies_elsewhere(tensor):  # whose writes would be run
                refuse_without_memory(name, tensor, _COMPARED)
            if is_divided(tensor):
                raise errors.InvalidArgument(
                    f"tensor {name!r} cannot be {_COMPARED}: {why_more(tensor)}"
                )
        with torch._C.DisableTorchFunctionSubclass():  # for the memory itself
            self._data = {name: tensor.data for name, tensor in self._tensors.items()}
        self.used = set[str]()  # the names of the weights that operations have got
        self._comparing = Comparing()
        self._origins = Origins()
        # What operations have got in place of watched tensors that they may have changed.
        self._lent: list[tuple[Watched, torch.Tensor, torch.Tensor, Any]] = []
        tied: dict[Hashable, list[str]] = defaultdict(list)
        for name, tensor in self._tensors.items():
            tied[identity(tensor)].append(name)
        spans: list[tuple[list[str], Span]] = []
        for names in tied.values():
            where = span(self._data[names[0]])
            if where is None:
                self.attestation.not_compared[names[0]] = "it has no elements in memory of its own"
            else:
                spans.append((names, where))
        unknown = {name for name, tensor in unlisted.items() if why_more(tensor)}
        for name in doubts.keys() & self._tensors.keys():
            self.attestation.not_compared[name] = doubts[name]
            unknown.add(name)
        crc32s = self._comparing.crc32s(self._data[names[0]] for names, _ in spans)
        self._watched = [
            Watched(names, self._data[names[0]], where, crc32, set(), [{}], [], set(), {})
            for (names, where), crc32 in zip(spans, crc32s, strict=True)
        ]
        for watched in self._watched:
            if watched.names[0] in unknown:
                watched.sources.add(watched.names[0])  # so that it does not count as compared
        self._owners = Owners(self._watched)
        self._maps = _Maps(self)

    def __enter__(self) -> Watch:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._maps.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._maps.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        kept = {name: (self._tensors[name], data) for name, data in self._data.items()}
        put_back(kept, self.attestation)
        self._attributes.restore(self.attestation)
        with self._comparing:
            if kind is None:
                self._finish()

    def _finish(self) -> None:
        found = self.attestation
        # A storage can be resized, or moved to shared memory.
        moved = [watched for watched in self._watched if span(watched.tensor) != watched.span]
        for watched in moved:
            found.not_compared[watched.names[0]] = OTHER_MEMORY
            self._watched.remove(watched)
        for watched, tensor, copy, func in self._lent:
            if difference(copy, tensor.detach().resolve_conj().resolve_neg()):
                self._tell_change(watched, func)
        crc32s = self._comparing.crc32s(watched.tensor for watched in self._watched)
        complete: dict[str, Watched] = {}
        for watched, crc32 in zip(self._watched, crc32s, strict=True):
            name = watched.names[0]
            is_replaced = watched.compare()
            if differences := watched.differences.items():
                texts = [each.text(watched.tensor.shape, other) for other, each in differences]
                found.different[name] = "; ".join(texts)
            elif name in found.not_compared:
                continue
            elif is_replaced and (others := self._sharing_with(watched)):
                found.not_compared[name] = (
                    "the loader writes different values to it in turn, and its memory lies where "
                    f"{others} has some"
                )
            elif crc32 != watched.crc32:
                found.not_compared[name] = (
                    "it has changed meanwhile: the loader writes to it without torch, or on "
                    "another thread"
                )
            elif not (watched.parts or self._is_expected(watched)):
                continue  # a buffer that is in no file
            elif _repeats_elements(watched.tensor):
                if name not in self._optional:
                    found.not_compared[name] = "some of its elements are in the same memory"
            elif watched.tensor.numel() == 0:
                if any(map(self._stored.get, watched.names)):
                    found.not_compared[name] = "it has no elements, and in the file it has some"
                else:
                    complete[name] = watched
            elif missing := uncovered(Layout.of(watched.tensor), watched.parts):
                if name not in self._optional:
                    found.not_compared[name] = f"{missing} of its elements are from no file"
            else:
                complete[name] = watched
        self._list_compared(complete)

    def _sharing_with(self, watched: Watched) -> str:
        """Return the names of others that have some of the memory of one, and another layout."""
        others = (each for each in self._owners.of(watched.tensor) if each is not watched)
        return ", ".join(repr(each.names[0]) for each in others)

    def _is_expected(self, watched: Watched) -> bool:
        """Return whether a file should have it: a parameter, or what is stored by one of its names.

        A ``state_dict()`` may show a parameter as another tensor of its memory.
        """
        listed = set(watched.names) - self._unlisted
        return bool(listed) and (
            identity(watched.tensor) in self._parameters
            or any(
                name in self._stored or isinstance(self._tensors[name], Parameter)
                for name in listed
            )
        )

    def _list_compared(self, complete: dict[str, Watched]) -> None:
        """List tensors as compared that are copied from the file, or from listed ones."""
        found = self.attestation
        known: set[str] = set()
        while more := {n for n, each in complete.items() if each.sources <= known} - known:
            known |= more
        for name, watched in complete.items():
            if name in known:
                found.compared.append(name)
            elif name not in self._optional:
                other = min(watched.sources - known)
                found.not_compared[name] = (
                    f"the loader copies it from {other!r} in memory, which was not compared"
                )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        self.used |= {each.stored.name for each in given if isinstance(each, Weight)}
        written = list(written_by(func, args, kwargs))
        reached = _reached(func, written, kwargs)
        self._attributes.keep(reached)
        changed = [each for tensor in reached for each in self._owners.of(tensor)]
        if not changed:
            if types and any(map(is_divided, tensors_in((args, kwargs)))):
                return NotImplemented  # then the subclass runs others, which are seen, too
            args, kwargs = self._lend(func, args, kwargs)
            result = func(*args, **kwargs)
            self._origins.follow(func, args, kwargs, written, result)
            return result
        if func in WRITES:
            for watched in changed:
                self._compare(watched, func, *args)
            return args[0]
        for watched in changed:
            self._tell_change(watched, func)
        return self._run_on_copies(func, args, kwargs, written, reached)

    def _run_on_copies(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: list[torch.Tensor],
        reached: list[torch.Tensor],
    ) -> Any:
        """Run an operation that may also write to other tensors, or return some."""
        copies = {
            id(each): each.detach().clone()
            for each, memory in zip(written, reached, strict=True)
            if self._owners.of(memory)
        }
        originals = {id(copies[id(each)]): each for each in written if id(each) in copies}

        def swapped(value: Any, others: dict[int, torch.Tensor]) -> Any:
            return tree_map_only(torch.Tensor, lambda each: others.get(id(each), each), value)

        args, kwargs = self._lend(func, *swapped((args, kwargs), copies))
        result = func(*args, **kwargs)
        rest = [each for each in written if id(each) not in copies]
        self._origins.follow(func, args, kwargs, rest, result)
        return swapped(result, originals)

    def _lend(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with copies of watched tensors: not all declare what they write."""
        if func.namespace == "aten":
            return args, kwargs

        def lent(tensor: torch.Tensor) -> torch.Tensor:
            if not (owners := self._owners.of(tensor)):
                return tensor
            copy = tensor.detach().resolve_conj().resolve_neg().clone()
            self._lent += [(each, tensor, copy, func) for each in owners]
            return copy

        replaced: tuple[Any, ...] = tree_map_only(torch.Tensor, lent, args)
        return replaced, tree_map_only(torch.Tensor, lent, kwargs)

    def map(self, method: Any, tensor: torch.Tensor, *given: Any) -> torch.Tensor:
        """Run a method that writes to a tensor by no operation."""
        if owners := self._owners.of(tensor):
            for watched in owners:
                self._tell_change(watched, method.__name__)
            return tensor
        self._attributes.keep([tensor])
        method(tensor, *given)
        self._origins.forget(tensor)
        return tensor

    def _tell_change(self, watched: Watched, func: Any) -> None:
        self.attestation.not_compared[watched.names[0]] = f"the loader changes it by {func}"

    def _compare(self, watched: Watched, func: Any, target: torch.Tensor, *given: Any) -> None:
        name = watched.names[0]
        if is_divided(target):
            self._tell_change(watched, func)
            return
        own, why = watched.tensor.dtype, None
        if own not in self._dtypes:
            # The loader may have cast it, and casts no counters and the like to weights.
            is_float = own.is_floating_point
            why = why_coarse(own, [d for d in self._dtypes if not is_float or d.is_floating_point])
        if func is _aten.copy_.default:
            why = why or why_coarse(target.dtype, [given[0].dtype])
        if why and name not in self._optional:
            self._leave_out(watched, target, why)
            return
        for tensor in tensors_in(given):
            owners = self._owners.of(tensor)
            is_known = not is_divided(tensor) and (
                _is_within(tensor, owners) or self._origins.is_of_file(tensor)
            )
            if watched in owners or not is_known:
                if name not in self._optional:
                    self._leave_out(watched, target, _NOT_OF_FILE)
                    return
                watched.sources.add(name)
            for each in owners:
                watched.sources.add(each.names[0])
                each.settle()
        watched.write(self._write(func, target, *given))

    def _leave_out(self, watched: Watched, target: torch.Tensor, why: str) -> None:
        """Compare neither what is written to a part, nor what it replaces."""
        self.attestation.not_compared[watched.names[0]] = why
        watched.forget(target)

    def _write(self, func: Any, target: torch.Tensor, *given: Any) -> Write:
        """Begin to compare what an operation would write."""
        own = target.resolve_conj().resolve_neg()
        source = given[0] if func is _aten.copy_.default else None
        if isinstance(source, Weight) and source.shape == target.shape and is_compared(source):
            stored = source.stored
            assert isinstance(stored, Compared)
            result = self._comparing.difference(stored, source.which, target)
            other = f"{quoted(stored.name)} in the file"
            expected = stored.loaded(source.which)
            if expected is None:
                load = functools.partial(stored.load, source.which, own.device)
                return Write(target, other, result, lambda: differing(load(), own))
            found = result()
        else:
            other = "what the loader makes of the file"
            # All elements that are filled are equal.
            like = target if func is _aten.copy_.default else target.new_empty(())
            expected = func(torch.empty_like(like), *given).expand_as(target)
            found = difference(expected, own)
            if like is not target:
                return Write(target, other, lambda: found, lambda: differing(expected, own))
        # What is compared is not kept, and the loader may change it.
        mask = differing(expected, own) if found else torch.empty(0)
        return Write(target, other, lambda: found, lambda: mask)


def _reached(
    func: Any, written: list[torch.Tensor], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Return the memory that an operation may write to: an empty output grows in its storage."""
    outputs = {id(each) for each in tensors_in([kwargs.get(name) for name in outputs_of(func)])}
    return [grown(each) if id(each) in outputs else each for each in written]


class _Maps(TorchFunctionMode):
    """Shows a watch what dispatch modes do not see."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", None) in _MAPS:
            return self._watch.map(func, *args, *(kwargs or {}).values())
        if func == _SET_DATA and isinstance(args[1], Weight):
            args = (args[0], args[1].clone())  # which torch does not take for memory
        return func(*args, **(kwargs or {}))


def unlisted_in(
    state: Mapping[str, torch.Tensor], model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that a ``state_dict()`` leaves out."""
    return {
        name: tensor
        for name, tensor in registered_in(model).items()
        if name not in state and (has_memory(tensor) or _lies_elsewhere(tensor))
    }


def _repeats_elements(tensor: torch.Tensor) -> bool:
    """Return whether elements of a tensor have the same memory, so that one of them is lost."""
    is_expanded = any(
        not step and n > 1 for step, n in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return is_expanded or Layout.of(tensor).overlaps_itself()


def _lies_elsewhere(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements, but not in plain memory: a sparse one, or a wrapper."""
    return not (is_lazy(tensor) or tensor.is_meta or is_plain(tensor))


def _is_within(tensor: torch.Tensor, owners: list[Watched]) -> bool:
    """Return whether a tensor has no memory beside that of these."""
    parts = {Layout.of(each.tensor) for each in owners}
    return bool(parts) and not uncovered(Layout.of(tensor), parts)
