"""Putting changes of weights in place if that leaves what whole weights would."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorizer_ops._attest.operations import tensors_in, written_by
from tensorizer_ops._attest.watched import Owners
from tensorizer_ops._base.coverage import Layout, overlap
from tensorizer_ops._base.memory import Span, span
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._front.weight import Index
from tensorizer_ops._versions.checksums import tensors_of
from tensorizer_ops._versions.elements import ChangedWeight, NotInPlace


class _Put(NamedTuple):
    """A part of a weight whose changes were put in place."""

    name: str
    which: Index


class _Held(NamedTuple):
    """A tensor of a model, whose memory nothing else gets, and what was written there."""

    tensor: torch.Tensor
    span: Span
    written: dict[Layout, _Put | None]  # None is anything else


class InPlace(TorchDispatchMode):
    """Runs the loader of a model, which has the older version, with :func:`changed_weights`.

    Into other memory, where the loader has written something else before, and on other threads,
    whole weights are copied. What does not fit is raised at the end: loaders need not be ready for
    errors.

    Raises:
        NotInPlace: the older version was not there, or the loader also writes something else where
            changes were put.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        spans = [(tensor, span(tensor)) for tensor in tensors_of(model)]
        self._owners = Owners([_Held(tensor, where, {}) for tensor, where in spans if where])
        self._error: NotInPlace | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._error is not None:
            raise self._error

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default and isinstance(args[1], ChangedWeight):
            self._copy(*args[:2])
            return args[0]
        # Other operations than torch's do not always declare what they write.
        is_known = func.namespace == "aten"
        for tensor in written_by(func, args, kwargs) if is_known else tensors_in((args, kwargs)):
            self._note(tensor, None)
        return func(*args, **kwargs)

    def _copy(self, target: torch.Tensor, weight: ChangedWeight) -> None:
        put = _Put(weight.stored.name, weight.which)
        if self._has_older(target, put):
            try:
                weight.put_changes(target)
            except NotInPlace as error:
                self._error = self._error or error
            self._note(target, put)
        else:
            target.copy_(weight)
            self._note(target, None)

    def _has_older(self, target: torch.Tensor, put: _Put) -> bool:
        """Return whether a target is the model's, and nothing else was written there."""
        where, owners = span(target), self._owners.of(target)
        if where is None or not any(_is_within(where, held.span) for held in owners):
            return False
        made = Layout.of(target), put
        written = (other for held in owners for other in held.written.items())
        return not any(other != made and overlap(made[0], other[0]) for other in written)

    def _note(self, target: torch.Tensor, put: _Put | None) -> None:
        for held in self._owners.of(target):
            own = Layout.of(target)
            for layout, other in held.written.items():
                if other is not None and (layout, other) != (own, put) and overlap(own, layout):
                    why = (
                        f"the loader also writes something else where it puts {quoted(other.name)}"
                    )
                    self._error = self._error or NotInPlace(why)
            held.written[own] = put


def _is_within(part: Span, whole: Span) -> bool:
    return whole.begin <= part.begin and part.end <= whole.end
