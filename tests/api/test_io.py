"""The option `io`: how the bytes of a local file come into memory."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tensorizer_ops
from local_servers.web import nginx
from support.preload import preloaded
from support.process import fork_python, run_python
from support.samples import assert_same, zoo
from tensorizer_ops import errors

WAYS = ("auto", "buffered", "direct", "mmap")
READS = ("buffered", "direct")


def model() -> dict[str, torch.Tensor]:
    large = {f"large{i}": torch.randn(300_000 + i) for i in range(4)}
    return {**zoo(), **large, "odd": torch.arange(200_001, dtype=torch.uint8)}


def drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def skip_without_direct_access(path: Path) -> None:
    """Skip a test if the file system of a file, which is not in use, has none, or is memory."""
    drop_cache(path)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system cannot be read around the page cache")
    if cached(path):
        pytest.skip("the file lies in memory")


def cached(path: Path) -> int:
    """Return how many pages of a file are in the page cache."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as pages:
        count = -(-size // mmap.PAGESIZE)
        resident = (ctypes.c_ubyte * count)()
        # The module takes the address of a writable buffer only.
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), resident) == 0
        return sum(page & 1 for page in resident)


@pytest.mark.parametrize("io", WAYS)
@pytest.mark.parametrize("name", ["m.tensors", "m.safetensors"])
def test_loads_are_the_same(tmp_path: Path, io: str, name: str) -> None:
    tensors = model()
    path = tmp_path / name
    verify = "all"
    if name.endswith(".safetensors"):  # whose tensors begin anywhere
        tensors = {n: t for n, t in tensors.items() if n.startswith(("large", "odd", "bool"))}
        save_file(tensors, path)
        tensors = {n: tensors[n] for n in tensorizer_ops.names(path)}
        verify = "none"
    else:
        tensorizer_ops.save(path, tensors, hashes="chunked")
    options = {"io": io}
    drop_cache(path)
    assert_same(tensorizer_ops.load(path, options=options, verify=verify), tensors)
    assert_same(tensorizer_ops.load(path, options=options), tensors)
    part = tensorizer_ops.load(path, slices={"large0": slice(5, 299_000, 7)}, options=options)
    assert torch.equal(part["large0"], tensors["large0"][5:299_000:7])
    with tensorizer_ops.Reader(path, options=options) as reader:
        assert torch.equal(reader["odd"], tensors["odd"])
    filled = {n: torch.empty_like(t) for n, t in tensors.items()}
    if io != "mmap":
        tensorizer_ops.load_into(filled, path, options=options)
        assert_same(filled, tensors)
        half = tensorizer_ops.load(path, dtype=torch.float16, options=options)
        assert torch.equal(half["large1"], tensors["large1"].half())


@pytest.mark.parametrize("io", WAYS)
def test_whether_tensors_are_pages_of_the_file(tmp_path: Path, io: str) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"w": torch.ones(500_000)})
    loaded = tensorizer_ops.load(path, options={"io": io})["w"]
    with open("/proc/self/maps") as maps:
        mapped = str(path) in maps.read()
    assert mapped == (io in ("auto", "mmap")) and loaded.sum() == 500_000


@pytest.mark.parametrize("name", ["m.tensors", "m.safetensors"])
def test_direct_reads_leave_nothing_in_the_page_cache(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    tensors = {f"t{i}": torch.arange(400_003 + i) for i in range(5)}
    tensorizer_ops.save(path, tensors)
    skip_without_direct_access(path)
    assert_same(tensorizer_ops.load(path, options={"io": "direct"}), tensors)
    assert cached(path) == 0
    assert_same(tensorizer_ops.load(path, options={"io": "buffered"}), tensors)
    assert cached(path) > 0.9 * path.stat().st_size / mmap.PAGESIZE


def test_encrypted_files_and_several_files(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.arange(300_001 + i) for i in range(5)}
    tensorizer_ops.keys.add("io", key=bytes(range(32)))
    options = {"key": "named:io"}
    tensorizer_ops.save(tmp_path / "m.tensors", tensors, options=options)
    shards = {"max_shard_size": "5000000"}
    tensorizer_ops.save(tmp_path / "hf" / "model.safetensors", tensors, options=shards)
    for io in READS:
        given = {**options, "io": io}
        assert_same(tensorizer_ops.load(tmp_path / "m.tensors", options=given), tensors)
        assert_same(tensorizer_ops.load(tmp_path / "hf", options={"io": io}), tensors)


def test_a_file_that_lies_in_memory(tmp_path: Path) -> None:
    with open(tmp_path / "m.tensors", "wb") as file:
        tensorizer_ops.save(file, {"w": torch.arange(100_000)})
    memory = os.memfd_create("m")
    os.write(memory, (tmp_path / "m.tensors").read_bytes())
    for io in WAYS:
        os.lseek(memory, 0, os.SEEK_SET)
        loaded = tensorizer_ops.load(f"fd:{memory}", options={"io": io})
        assert torch.equal(loaded["w"], torch.arange(100_000))
    os.close(memory)


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"w": torch.ones(3)})
    with pytest.raises(ValueError, match=r"'io' is 'dirct'.*'buffered', 'direct' or 'mmap'"):
        tensorizer_ops.load(path, options={"io": "dirct"})
    with pytest.raises(ValueError, match="'io' is 'mmap', and these tensors cannot be pages"):
        tensorizer_ops.load(path, copy=True, options={"io": "mmap"})
    none = "option 'io' says how files of this machine are read, and this is none"
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    with pytest.raises(ValueError, match=none):
        torch.ops.tensorizer.open(data, options={"io": "direct"}).names()
    with nginx(tmp_path) as web:
        (web.root / "m.tensors").write_bytes(path.read_bytes())
        with pytest.raises(errors.InvalidArgument, match=none):
            tensorizer_ops.load(web.url("m.tensors"), options={"io": "buffered"})


@pytest.mark.parametrize("hashes", ["none", "all", "chunked"])
def test_a_save_to_stable_storage_is_the_same_file(tmp_path: Path, hashes: str) -> None:
    tensors = {**model(), "columns": torch.randn(900, 700).t()}
    tensorizer_ops.save(tmp_path / "plain", tensors, hashes=hashes)
    tensorizer_ops.save(tmp_path / "synced", tensors, hashes=hashes, options={"fsync": True})
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "synced").read_bytes()


FULL = """
import resource, signal, sys
import torch, tensorizer_ops
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    tensorizer_ops.save(sys.argv[1], {"w": torch.ones(3_000_000)}, options={"fsync": True})
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("limit", [4_096, 5_000_000, 12_000_000])
def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "m.tensors"
    path.write_bytes(b"old")
    printed = fork_python(FULL, path, limit).stdout
    assert "File too large" in printed and str(path) in printed
    assert os.listdir(tmp_path) == ["m.tensors"] and path.read_bytes() == b"old"


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preloaded(tmp_path_factory.mktemp("preload"))


LOADS = """
import json, os, sys
import torch, tensorizer_ops
path, faults = sys.argv[1], json.loads(sys.argv[2])
found = []
for fault in faults:
    for io in ("buffered", "direct"):
        tensorizer_ops.load(path, names=["t0"], options={"io": io})  # counts from 0 again
        if fault:
            os.environ["FAULT"] = fault
        try:
            loaded = tensorizer_ops.load(path, copy=True, threads=2, options={"io": io})
        except OSError as error:
            found.append([fault, io, f"{type(error).__name__} {error}"])
        else:
            same = (torch.equal(loaded[f"t{i}"], torch.arange(300_000 + i)) for i in range(4))
            found.append([fault, io, "right" if all(same) else "wrong"])
        os.environ.pop("FAULT", None)
print(json.dumps(found))
"""


def test_faults_of_a_disk(tmp_path: Path, preload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {f"t{i}": torch.arange(300_000 + i) for i in range(4)})
    monkeypatch.setenv("LD_PRELOAD", str(preload))
    faults = ["eio:1", "eio:4", "short:4096", "short:5000", "short:700000", "einval:1", "einval:3"]
    found = json.loads(run_python(LOADS, str(path), json.dumps(faults)).stdout)
    assert len(found) == 2 * len(faults)
    for fault, io, said in found:
        expected = f"FileError cannot read '{path}': Input/output error"
        assert said == (expected if fault.startswith("eio") else "right"), (fault, io)


AUTO = """
import os, sys
import torch, tensorizer_ops
os.environ["MEMINFO"] = sys.argv[2]
tensorizer_ops.load(sys.argv[1], copy=True)
"""


@pytest.mark.parametrize(("available", "direct"), [(9_000, True), (9_000_000, False)])
def test_what_does_not_fit_into_the_cache_goes_around_it(
    tmp_path: Path, preload: Path, monkeypatch: pytest.MonkeyPatch, available: int, direct: bool
) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {f"t{i}": torch.arange(300_000 + i) for i in range(4)})
    skip_without_direct_access(path)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 99 kB\nMemAvailable:   {available} kB\n")
    monkeypatch.setenv("LD_PRELOAD", str(preload))
    run_python(AUTO, str(path), str(meminfo))
    # Whether a file is in the cache is found out by reading some of it.
    assert (cached(path) < 0.5 * path.stat().st_size / mmap.PAGESIZE) == direct


@pytest.mark.parametrize("io", ["auto", "buffered", "direct"])
def test_what_is_fetched_in_advance(tmp_path: Path, io: str) -> None:
    """It goes to the page cache, or to memory if loads read around that."""
    path = tmp_path / "m.tensors"
    tensors = {f"t{i}": torch.arange(400_003 + i) for i in range(5)}
    tensorizer_ops.save(path, tensors)
    skip_without_direct_access(path)
    with tensorizer_ops.Reader(path, options={"io": io}) as reader:
        len(reader)
        drop_cache(path)
        reader.prefetch(["t1", "t3"]).result()
        pages = cached(path)
        if io == "direct":
            assert pages == 0
            path.write_bytes(bytes(path.stat().st_size))  # which the load does not read
        else:
            assert pages >= 2 * 400_003 * 8 // mmap.PAGESIZE
        assert torch.equal(reader["t3"], tensors["t3"])
