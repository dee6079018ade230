"""Sources, sinks and objects that ops take by number."""

from __future__ import annotations

import io

import pytest
import torch

import tensorizer_ops
from tensorizer_ops import _core, errors
from tensorizer_ops._base.internals import reader_of

NOTHING = "nothing was handed over under the number"


def test_each_is_taken_once_and_only_as_what_it_is() -> None:
    internals = torch.classes.tensorizer._Internals
    saved = io.BytesIO()
    tensorizer_ops.save(saved, {"a": torch.ones(2)})
    source = _core.buffer_source(saved.getvalue(), 0)
    with pytest.raises(errors.InvalidArgument, match=NOTHING):
        internals.writer_to(source.number, None, None)
    with pytest.raises(errors.InvalidArgument, match=NOTHING):
        internals.load_constants(source.number, "m", True, "none", 0, None)
    assert reader_of(source, {}).names() == ["a"]
    with pytest.raises(errors.InvalidArgument, match=NOTHING):
        reader_of(source, {})


def test_what_nobody_took_is_gone_with_its_owner() -> None:
    source = _core.buffer_source(b"x", 0)
    number = source.number
    del source
    with pytest.raises(errors.InvalidArgument, match=NOTHING):
        torch.classes.tensorizer._Internals.reader_of(number, None, None)
