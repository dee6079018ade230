"""save_async saves the values that tensors have when it is called, even if they change later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.waiting import LAST_RESORT
from support.process import run_python
from support.samples import OTHER_KINDS, freed, same, zoo
from tensorizer_ops import errors
from tensorizer_ops._front import background

PATIENCE = LAST_RESORT


def test_saves_a_snapshot(path: str) -> None:
    tensors = zoo((40, 30))
    tensors["view"] = torch.arange(600.0).view(20, 30).t()[3:]
    expected = zoo((40, 30)) | {"view": tensors["view"].clone()}
    save = tensorizer_ops.save_async(path, tensors)
    for tensor in tensors.values():
        tensor.untyped_storage().fill_(0)
    assert save.result(PATIENCE) is None
    loaded = tensorizer_ops.load(path, verify="all")
    assert list(loaded) == list(tensors)
    for name, tensor in loaded.items():
        assert same(tensor, expected[name])


def test_needs_no_gradient_and_no_memory(path: str) -> None:
    tensors = {"p": torch.nn.Parameter(torch.ones(3)), "m": torch.empty(5, device="meta")}
    tensorizer_ops.save_async(path, tensors).result(PATIENCE)
    loaded = tensorizer_ops.load(path)
    assert loaded["p"].tolist() == [1, 1, 1]
    assert loaded["m"].shape == (5,)


def test_tied_tensors_are_copied_once() -> None:
    tensor = torch.ones(3)
    one, other, tied = background._Snapshot([tensor, torch.ones(3), tensor.view(3)]).copies
    assert one is tied
    assert one.data_ptr() not in (other.data_ptr(), tensor.data_ptr())


def test_conjugate_views_are_not_tied_to_what_they_view(path: str) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    tensors = {"x": x, "conj": x.conj(), "again": x.conj()}
    tensorizer_ops.save_async(path, tensors).result(PATIENCE)
    loaded = tensorizer_ops.load(path)
    for name, tensor in tensors.items():
        assert same(loaded[name], tensor.resolve_conj())


def test_options_and_hashes(path: str) -> None:
    tensorizer_ops.save_async(
        path, {"x": torch.ones(3)}, hashes="crc32", threads=2, options={"fsync": "true"}
    ).result(PATIENCE)
    stored = torch.classes.tensorizer.Reader(path, None).stored("x")
    assert "crc32" in stored
    assert "sha256" not in stored
    with pytest.raises(errors.InvalidArgument, match="no_such"):
        tensorizer_ops.save_async(path, {}, options={"no_such": "1"}).result(PATIENCE)


def test_fails_as_a_save_does(tmp_path: Path) -> None:
    save = tensorizer_ops.save_async(tmp_path, {"x": torch.ones(3)})
    assert isinstance(save.exception(PATIENCE), IsADirectoryError)
    with pytest.raises(IsADirectoryError):
        save.result(PATIENCE)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [*OTHER_KINDS, "freed"])
def test_refuses_what_has_no_memory_to_copy(path: str, kind: str) -> None:
    make = OTHER_KINDS.get(kind, freed)
    tensors = {"a": torch.ones(2, 2), "b": make(torch.ones(2, 2))}
    error = tensorizer_ops.save_async(path, tensors).exception(PATIENCE)
    assert isinstance(error, errors.InvalidArgument)
    assert not os.path.exists(path)


def stalled(tmp_path: Path) -> tuple[str, int]:
    """Returns a pipe that is never read, and a descriptor that keeps it open."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    return pipe, os.open(pipe, os.O_RDWR)


def test_cancel(tmp_path: Path) -> None:
    pipe, both_ends = stalled(tmp_path)
    try:
        save = tensorizer_ops.save_async(pipe, {"x": torch.ones(1 << 20)})
        assert not save.done()
        assert save.cancel()
        with pytest.raises(errors.Cancelled):
            save.result(PATIENCE)
        assert save.done()
        assert not save.cancel()
    finally:
        os.close(both_ends)


def test_progress(tmp_path: Path, path: str) -> None:
    told: list[tuple[int, int]] = []
    save = tensorizer_ops.save_async(
        path, {"x": torch.ones(1 << 20)}, progress=lambda *far: told.append(far)
    )
    save.result(PATIENCE)
    assert told[-1] == save.progress() == (4 << 20, 4 << 20)

    def enough(done: int, total: int) -> None:
        raise ZeroDivisionError

    pipe, both_ends = stalled(tmp_path)
    try:
        with pytest.raises(ZeroDivisionError):
            tensorizer_ops.save_async(pipe, {"x": torch.ones(1 << 20)}, progress=enough).result(
                PATIENCE
            )
    finally:
        os.close(both_ends)


def test_a_program_that_ends_waits_for_its_file(path: str) -> None:
    run_python(
        """
import sys, torch, tensorizer_ops
tensorizer_ops.save_async(sys.argv[1], {"x": torch.ones(20 << 20)}, hashes="all")
""",
        path,
    )
    assert tensorizer_ops.load(path, verify="all")["x"].sum() == 20 << 20
