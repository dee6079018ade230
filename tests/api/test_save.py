"""Saves of any kind of tensor, to any path, over anything that exists there."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.process import ONLY_ROOT, fork, wait
from support.raw_parse import parse
from support.samples import DTYPES, assert_same, raw, same, sample, zoo
from tensorizer_ops import errors

ops = torch.ops.tensorizer

BASE = sample(torch.int32, (6, 8, 10))
COMPLEX = sample(torch.int16, (6, 8)).to(torch.complex64) + 1j
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: BASE.permute(2, 0, 1),
    "strided": lambda: BASE[::2, 1::3, ::4],
    "flipped": lambda: BASE.flip(0),
    "view into the middle": lambda: BASE[2:4],
    "row": lambda: BASE[3, 4],
    "element": lambda: BASE[1, 2, 3],
    "column": lambda: BASE[:, 0, 0],
    "expanded": lambda: BASE[:1, :1].expand(5, 3, 10),
    "expanded scalar": lambda: torch.tensor(2.5).expand(4, 4),
    "channels last": lambda: sample(torch.float16, (2, 3, 4, 5)).to(
        memory_format=torch.channels_last
    ),
    "overlapping": lambda: BASE.as_strided((4, 4), (2, 1)),
    "conjugated": lambda: COMPLEX.conj(),
    "conjugated, transposed": lambda: COMPLEX.mH,
    "negated": lambda: COMPLEX.conj().imag,
    "requires grad": lambda: torch.rand(3, 4, requires_grad=True),
    "result of a graph": lambda: torch.rand(3, 4, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.rand(3)),
    "empty, strided": lambda: BASE[:, 8:].transpose(0, 1),
    "large, transposed": lambda: sample(torch.int64, (700, 900)).t(),
    "odd bytes, transposed": lambda: sample(torch.uint8, (301, 77)).t(),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_is_written_as_what_it_is(path: str, make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    expected = tensor.detach().clone(memory_format=torch.contiguous_format)
    expected = expected.resolve_conj().resolve_neg()
    ops.save(path, {"x": tensor, "after": torch.ones(3)})
    assert parse(Path(path).read_bytes())["x"].data == raw(expected)
    loaded = ops.load(path, verify="all")["x"]
    assert same(loaded, expected)
    assert not loaded.is_conj()
    assert not loaded.is_neg()
    assert loaded.stride() == expected.stride() or not loaded.numel()


def test_elements_that_torch_does_not_copy_to_every_address(path: str) -> None:
    tensors = {
        "odd": torch.ones(6, dtype=torch.uint8)[::2],
        "x": torch.tensor([1 + 2j], dtype=torch.complex128).expand(3, 1, 1),
    }
    ops.save(path, tensors)
    assert same(ops.load(path)["x"], tensors["x"].contiguous())


def test_every_dtype_transposed(path: str) -> None:
    tensors = {name: sample(dtype, (33, 65)).t() for name, dtype in DTYPES.items()}
    ops.save(path, tensors)
    expected = {
        name: sample(dtype, (33, 65)).view(torch.uint8).reshape(33, 65, -1).transpose(0, 1)
        for name, dtype in DTYPES.items()
    }
    loaded = ops.load(path, verify="all")
    for name, tensor in expected.items():
        assert loaded[name].dtype == DTYPES[name]
        assert raw(loaded[name]) == raw(tensor), name


def test_shared_storage_is_written_for_each(path: str) -> None:
    tensors = {"a": BASE, "b": BASE, "part": BASE[1:], "other dtype": BASE.view(torch.float32)}
    ops.save(path, tensors)
    loaded = ops.load(path, verify="all")
    assert_same(loaded, tensors)
    loaded["a"].zero_()
    assert same(loaded["b"], BASE)


def test_the_tensors_themselves_are_not_changed(path: str) -> None:
    tensor = torch.rand(50, 60, requires_grad=True)
    before, version = tensor.detach().clone(), tensor._version
    ops.save(path, {"x": tensor.t(), "y": tensor})
    assert torch.equal(tensor, before)
    assert tensor._version == version
    assert tensor.requires_grad


def test_order_and_nothing(path: str) -> None:
    ops.save(path, {})
    assert ops.load(path) == {}
    names = [f"{index * 7919 % 1000}" for index in range(1000)]
    ops.save(path, {name: torch.tensor(int(name)) for name in names})
    assert ops.names(path) == names
    assert [int(tensor) for tensor in ops.load(path).values()] == [int(name) for name in names]


def test_parent_directories_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c/model.tensors"
    ops.save(str(path), {"x": BASE})
    assert same(ops.load(str(path))["x"], BASE)


def test_a_symlink_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/target")
    for tensor in (BASE, BASE + 1):  # a dangling link first, then one with a target
        ops.save(str(tmp_path / "link"), {"x": tensor})
        assert (tmp_path / "link").is_symlink()
        assert os.listdir(tmp_path / "real") == ["target"]
        assert same(ops.load(str(tmp_path / "real/target"))["x"], tensor)
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_hard_link_keeps_the_old_file(tmp_path: Path) -> None:
    ops.save(str(tmp_path / "a"), {"x": BASE})
    os.link(tmp_path / "a", tmp_path / "b")
    ops.save(str(tmp_path / "a"), {"x": BASE + 1})
    assert same(ops.load(str(tmp_path / "b"))["x"], BASE)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660, 0o444])
def test_the_mode_is_kept(path: str, mode: int) -> None:
    ops.save(path, {"x": BASE})
    os.chmod(path, mode)
    ops.save(path, {"x": BASE})
    assert stat.S_IMODE(os.stat(path).st_mode) == mode


@ONLY_ROOT
def test_the_owner_is_kept(path: str) -> None:
    ops.save(path, {"x": BASE})
    os.chown(path, 12345, 54321)
    ops.save(path, {"x": BASE + 1})
    status = os.stat(path)
    assert (status.st_uid, status.st_gid) == (12345, 54321)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_new_file_follows_the_umask(path: str, mask: int) -> None:
    def child() -> None:
        os.umask(mask)
        ops.save(path, {"x": torch.ones(3)})

    assert wait(fork(child)) == 0
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("options", [{"fsync": "true"}, {"fsync": "false"}, {}, None])
def test_fsync(path: str, options: dict[str, str] | None) -> None:
    ops.save(path, zoo(), options=options)
    assert_same(ops.load(path, verify="all"), zoo())


def test_over_a_file_whose_tensors_are_mapped(path: str) -> None:
    ops.save(path, zoo((100, 100)))
    for _ in range(3):
        loaded = ops.load(path)
        ops.save(path, {name: loaded[name] for name in reversed(loaded)})
        assert_same(loaded, {name: zoo((100, 100))[name] for name in loaded})
    assert set(ops.load(path, verify="all")) == set(zoo())


def test_in_place_over_the_mapped_file_is_refused(path: str) -> None:
    ops.save(path, zoo())
    before = Path(path).read_bytes()
    loaded = ops.load(path)
    with open(path, "r+b") as stream:
        with pytest.raises(errors.InvalidArgument):
            ops.save(f"fd:{stream.fileno()}", loaded)
        assert Path(path).read_bytes() == before
        copied = ops.load(path, copy=True)
        ops.save(f"fd:{stream.fileno()}", copied)
    assert_same(ops.load(path, verify="all"), zoo())


def test_over_a_longer_file_in_place(path: str) -> None:
    Path(path).write_bytes(b"\xff" * (4 << 20))
    with open(path, "r+b") as stream:
        ops.save(f"fd:{stream.fileno()}", zoo())
    assert_same(ops.load(path, verify="all"), zoo())


def test_loads_and_saves_of_one_path_at_once(path: str) -> None:
    """Each load sees the result of exactly one save."""
    versions = [{f"{i}": torch.full((20_000 + v,), v) for i in range(20)} for v in range(4)]
    ops.save(path, versions[0])
    failures: list[BaseException] = []
    turns: Counter[Callable[[], None]] = Counter()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                # A fast thread continues until every thread has had its 20 turns.
                while not failures and min(turns[other] for other in works) < 20:
                    work()
                    turns[work] += 1
            except BaseException as error:  # reported by the test
                failures.append(error)

        return run

    def load(**options: object) -> None:
        loaded = ops.load(path, **options)
        version = int(loaded["0"][0])
        assert_same(loaded, versions[version])

    works = [lambda version=version: ops.save(path, versions[version]) for version in range(4)]
    works += [load, lambda: load(copy=True), lambda: load(verify="all"), lambda: ops.verify(path)]
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(os.path.dirname(path)) == ["model.tensors"]


def test_savers_of_one_path_never_write_into_its_file(path: str) -> None:
    """An open file keeps its bytes, however often saves replace it under its path."""
    tensors = [{"x": torch.full((500,), float(index))} for index in range(6)]
    ops.save(path, tensors[0])
    saved = [0] * len(tensors)
    done = threading.Event()

    def save(index: int) -> None:
        while not done.is_set():
            ops.save(path, tensors[index], threads=1, hashes="none")
            saved[index] += 1

    threads = [threading.Thread(target=save, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    changed = 0
    for _ in range(300):
        with open(path, "rb") as stream:
            before = stream.read()
            enough = sum(saved) + 3
            while sum(saved) < enough and any(thread.is_alive() for thread in threads):
                time.sleep(0.0005)
            stream.seek(0)
            changed += stream.read() != before
    done.set()
    for thread in threads:
        thread.join()
    assert not changed
    assert os.listdir(os.path.dirname(path)) == ["model.tensors"]


def test_a_tensor_beyond_2_gib(shared_memory: Path) -> None:
    """One system call moves less than 2 GiB, so this tensor takes several."""
    size = (1 << 31) + 4099
    free = os.statvfs(shared_memory)
    if free.f_bavail * free.f_bsize < 2 * size:
        pytest.skip("/dev/shm is too small")
    path = str(shared_memory / "model.tensors")
    tensor = torch.zeros(size, dtype=torch.uint8)
    tensor[[0, 1 << 30, size - 1]] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    ops.save(path, {"x": tensor}, hashes="crc32")
    del tensor
    for copy in (False, True):
        loaded = ops.load(path, copy=copy, verify="crc32")["x"]
        assert loaded.shape == (size,)
        assert loaded[[0, 1 << 30, size - 1]].tolist() == [1, 2, 3]


def test_a_tensor_that_changes_meanwhile_does_no_harm(path: str) -> None:
    tensor = torch.zeros(4_000_000, dtype=torch.int32)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            tensor.add_(1)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            ops.save(path, {"x": tensor})
            assert ops.load(path)["x"].shape == tensor.shape
    finally:
        stop.set()
        thread.join()
