"""A save that fails or is killed leaves the previous file intact, and no other files."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.process import ONLY_ROOT, fork, wait
from support.samples import assert_same, random_bytes, zoo

ops = torch.ops.tensorizer
Writer = torch.classes.tensorizer.Writer

OLD = zoo()
BIG = {f"{index}": random_bytes(3 << 20, index) for index in range(4)}


def untouched(path: str) -> None:
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
    assert_same(ops.load(path, verify="all"), OLD)


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def save_async(path: str, tensors: dict[str, torch.Tensor], **how: Any) -> None:
    tensorizer_ops.save_async(path, tensors, **how).result(120)


SAVES: dict[str, Callable[..., None]] = {
    "op": ops.save,
    "front": tensorizer_ops.save,
    "told": lambda *args, **how: tensorizer_ops.save(*args, **how, progress=lambda *far: None),
    "save_async": save_async,
}
every_save = pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)


UNREADABLE: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": sparse,
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": quantized,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "gone": lambda: gone(),
}


def gone() -> torch.Tensor:
    """Returns a tensor whose storage was freed."""
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("first", [True, False])
@every_save
def test_a_tensor_that_cannot_be_read(
    path: str, save: Callable[..., None], make: Callable[[], torch.Tensor], first: bool
) -> None:
    ops.save(path, OLD)
    bad = {"bad one": make()}
    tensors = {**bad, **BIG} if first else {**BIG, **bad}
    with pytest.raises((ValueError, TypeError, RuntimeError), match="'bad one'"):
        save(path, tensors)
    untouched(path)
    os.unlink(path)
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        save(path, tensors)
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize("save", list(SAVES.values())[1:], ids=list(SAVES)[1:])
def test_what_is_no_tensor(path: str, save: Callable[..., None]) -> None:
    ops.save(path, OLD)
    for bad in (None, 3, [torch.ones(1)]):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"tensor 'bad one' "):
            save(path, {"good": torch.ones(1), "bad one": bad})
    with pytest.raises(tensorizer_ops.errors.InvalidArgument, match="a name that is int"):
        save(path, {3: torch.ones(1)})
    untouched(path)


@pytest.mark.parametrize("save", list(SAVES.values())[1:], ids=list(SAVES)[1:])
def test_what_is_not_there_yet(path: str, save: Callable[..., None]) -> None:
    ops.save(path, OLD)
    with pytest.raises(ValueError, match="'weight' cannot be saved: it is not initialized"):
        save(path, torch.nn.LazyLinear(3).state_dict())
    untouched(path)


BAD_NAMES: dict[str, list[str]] = {
    "empty": [""],
    "mark alone": ["\x1e"],
    "bad JSON": ['\x1e["a"'],
    "too long": ["x" * 65536],
    "inside": ['\x1e["a"]', '\x1e["a","b"]'],
    "plain and nested": ["a", '\x1e["a"]'],
    "list and mapping": ["\x1e[0]", "a"],
}


@pytest.mark.parametrize("names", BAD_NAMES.values(), ids=BAD_NAMES)
@every_save
def test_names_that_cannot_be_written(
    path: str, save: Callable[..., None], names: list[str]
) -> None:
    ops.save(path, OLD)
    with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"tensor '"):
        save(path, {name: torch.ones(2) for name in names})
    with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"tensor '"):
        ops.save_tensors(path, [*names, "z"], [torch.ones(2)] * (len(names) + 1))
    untouched(path)


def test_the_same_name_twice(path: str) -> None:
    ops.save(path, OLD)
    with pytest.raises(ValueError, match="'x'"):
        ops.save_tensors(path, ["x", "y", "x"], [torch.ones(2)] * 3)
    with pytest.raises(tensorizer_ops.errors.InvalidArgument):
        ops.save_tensors(path, ["x", "y"], [torch.ones(2)] * 3)
    untouched(path)


@pytest.mark.parametrize(
    "options",
    [
        {"hashes": "md5"},
        {"hashes": ""},
        {"threads": -1},
        {"options": {"fsync": "perhaps"}},
        {"options": {"fsink": "true"}},
    ],
)
@every_save
def test_wrong_arguments(path: str, save: Callable[..., None], options: dict[str, Any]) -> None:
    ops.save(path, OLD)
    with pytest.raises(tensorizer_ops.errors.InvalidArgument):
        save(path, BIG, **options)
    untouched(path)


def test_an_unknown_option_lists_the_known_ones(path: str) -> None:
    with pytest.raises(ValueError, match=r"'fsink'.*fsync"):
        ops.save(path, BIG, options={"fsink": "true"})
    assert not os.path.exists(path)


@pytest.mark.parametrize("limit", [0, 4095, 5000, 1 << 20, 10 << 20])
def test_files_that_may_not_grow(path: str, limit: int) -> None:
    ops.save(path, OLD)

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(tensorizer_ops.errors.OutOfSpace) as caught:
            ops.save(path, BIG)
        assert caught.value.errno == 27
        assert caught.value.filename

    assert wait(fork(child)) == 0
    untouched(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    path = str(small_disk / "model.tensors")
    ops.save(path, OLD)
    for attempt in (lambda: ops.save(path, BIG), lambda: write(path, BIG)):
        with pytest.raises(tensorizer_ops.errors.OutOfSpace) as caught:
            attempt()
        assert caught.value.errno == 28
        untouched(path)
    free = os.statvfs(small_disk)
    assert free.f_bavail * free.f_bsize > 7 << 20


def write(path: str, tensors: dict[str, torch.Tensor]) -> None:
    writer = Writer(path, None)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()


def test_a_device_that_is_full() -> None:
    with pytest.raises(tensorizer_ops.errors.OutOfSpace) as caught:
        ops.save("/dev/full", BIG)
    assert caught.value.errno == 28
    ops.save("/dev/null", BIG)


def as_nobody(path: str, work: Callable[[], None]) -> None:
    """Runs `work` in a fork that has given up root."""
    # The parent directories belong to the user running the tests.
    for parent in Path(path).parents:
        if not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o5)

    def child() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        work()

    assert wait(fork(child)) == 0


@ONLY_ROOT
def test_a_read_only_directory(shared_memory: Path) -> None:
    path = str(shared_memory / "model.tensors")
    ops.save(path, OLD)
    os.chmod(path, 0o644)

    def refused() -> None:
        for place in (path, str(shared_memory / "new")):
            with pytest.raises(tensorizer_ops.errors.PermissionDenied) as caught:
                ops.save(place, BIG)
            assert caught.value.errno == 13
            assert caught.value.filename == place
        assert_same(ops.load(path), OLD)

    as_nobody(path, refused)
    untouched(path)


@ONLY_ROOT
def test_a_writable_file_in_a_read_only_directory(shared_memory: Path) -> None:
    path = str(shared_memory / "model.tensors")
    ops.save(path, BIG)
    os.chmod(path, 0o666)
    inode = os.stat(path).st_ino
    as_nobody(path, lambda: ops.save(path, OLD))
    assert os.stat(path).st_ino == inode  # written in place
    untouched(path)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(tensorizer_ops.errors.Error):
        ops.save(str(tmp_path), BIG)
    with pytest.raises((tensorizer_ops.errors.NotFound, tensorizer_ops.errors.FileError)) as caught:
        ops.save(f"{tmp_path}/x/", BIG)
    assert caught.value.errno
    (tmp_path / "file").touch()
    with pytest.raises(tensorizer_ops.errors.NotFound) as caught:
        ops.save(str(tmp_path / "file/below"), BIG)
    assert caught.value.errno == 20


def test_killed_at_any_moment(path: str) -> None:
    new = {name: tensor + 1 for name, tensor in BIG.items()}
    ops.save(path, BIG)
    size = os.path.getsize(path)
    chance = random.Random(1)
    seen: set[bool] = set()

    def child() -> None:
        while True:
            ops.save(path, new)
            ops.save(path, BIG)

    def written(pid: int) -> int:
        fields = Path(f"/proc/{pid}/io").read_text().split()
        return int(fields[fields.index("wchar:") + 1])

    for _ in range(40):
        pid = fork(child)
        moment = chance.randrange(3 * size)
        while written(pid) < moment:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) == -signal.SIGKILL
        loaded = ops.load(path, verify="all")
        expected = BIG if torch.equal(loaded["0"], BIG["0"]) else new
        assert_same(loaded, expected)
        seen.add(expected is BIG)
    assert seen == {True, False}
    # A killed save leaves at most its temporary name, which is not taken for a model.
    ops.save(path, OLD)
    assert_same(ops.load(path, verify="all"), OLD)


@pytest.mark.parametrize("option", [("overwrite", "false"), ("ttl", "9"), ("s3_version_id", "v")])
def test_what_a_place_cannot_do_is_refused(path: str, option: tuple[str, str]) -> None:
    ops.save(path, OLD)
    name, value = option
    for uri in (path, f"file://{path}", "https://127.0.0.1:1/x", "s3://bucket/x"):
        with pytest.raises(ValueError, match=f"'{name}' applies"):
            ops.save(uri, {"x": torch.zeros(3)}, options={name: value})
    if name == "s3_version_id":
        with pytest.raises(ValueError, match=f"'{name}' applies to s3:// and gs:// only"):
            ops.load(path, options={name: value})
    untouched(path)
