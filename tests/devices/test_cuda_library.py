"""The library of csrc/cuda, without a GPU: its kernels run on threads of the CPU.

Hipify makes plain C++ of them, and ``tests/cpp/host_hip`` has what they call. The digests and
ciphers are compared with those of hashlib, zlib and libsodium.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from support.process import ROOT
from support.raw_crypt import next_nonce, secretbox

# All of them use one library, which a worker builds.
pytestmark = pytest.mark.xdist_group("cuda library")

KEY, NONCE = bytes(range(32)), bytes([254] * 23 + [1])
SIZES = (0, 1, 63, 64, 1000, 4096, 4097, 70_001, 300_000)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("hip")
    tool = ROOT / "tools" / "hip_check.py"
    subprocess.run([sys.executable, tool, folder], check=True, capture_output=True)
    built = folder / "library.so"
    flags = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
    flags += ("-DTENSORIZER_GRID_HEIGHT=3",)
    undefined = ("-fsanitize=undefined", "-fno-sanitize-recover")
    places = (f"-I{ROOT / 'tests/cpp/host_hip'}", f"-I{folder}")
    source = folder / "hip" / "library.hip"
    command = ["c++", "-x", "c++", *flags, *undefined, *places, str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def call(library: ctypes.CDLL, name: str, *given: Any) -> int:
    """Call a function for device 0 and its default stream."""
    sizes = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in given]
    result: int = getattr(library, f"tensorizer_cuda_{name}")(0, None, *sizes)
    return result


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_uint64)]


@pytest.mark.parametrize("chunk", [64, 1000, 65_536])
@pytest.mark.parametrize("offset", [0, 1])
def test_sha256_of_chunks(library: ctypes.CDLL, chunk: int, offset: int) -> None:
    """More pieces than a launch has room for, some of them empty."""
    sizes = [*SIZES, *range(150), 0, 5000]
    pieces = [data_of(size) for size in sizes]
    memories = [ctypes.create_string_buffer(bytes(offset) + piece) for piece in pieces]
    given = (Bytes * len(pieces))(
        *(
            Bytes(ctypes.addressof(m) + offset, size)
            for m, size in zip(memories, sizes, strict=True)
        )
    )
    expected = b"".join(
        hashlib.sha256(piece[at : at + chunk]).digest()
        for piece in pieces
        for at in range(0, len(piece), chunk)
    )
    found = ctypes.create_string_buffer(len(expected) + 1)
    assert call(library, "sha256_chunks", given, len(pieces), chunk, found) == 0
    assert found.raw[:-1] == expected


def test_crc32(library: ctypes.CDLL) -> None:
    for size in (*SIZES, 3 << 20):
        data = data_of(size)
        found = ctypes.c_uint32(77)
        assert call(library, "crc32", data, size, ctypes.byref(found)) == 0
        assert found.value == zlib.crc32(data)


def sealed(data: bytes, chunk: int) -> tuple[bytes, bytes]:
    """Return the ciphertext and the MACs of all chunks, by libsodium."""
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    boxes = [secretbox(KEY, next_nonce(NONCE, i), plain) for i, plain in enumerate(chunks)]
    return b"".join(out for out, _ in boxes), b"".join(mac for _, mac in boxes)


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(0, 100), (1, 100), (99, 100), (2501, 100), (9001, 4096), (100_003, 4096), (100_003, 1 << 20)],
)
def test_decryption(library: ctypes.CDLL, size: int, chunk: int) -> None:
    data = data_of(size)
    ciphertext, macs = sealed(data, chunk)
    count = -(-size // chunk)
    state = ctypes.create_string_buffer(max(library.tensorizer_cuda_state_size(count), 1))

    def decrypt(ciphertext: bytes) -> tuple[bytes, list[int]]:
        memory = ctypes.create_string_buffer(ciphertext, size + 1)
        wrong = ctypes.create_string_buffer(b"\x77" * count, count + 1)
        given = (memory, size, chunk, KEY, NONCE, macs, state, wrong)
        assert call(library, "decrypt", *given) == 0
        assert not any(state.raw), "keys are left"
        return memory.raw[:size], list(wrong.raw[:count])

    assert decrypt(ciphertext) == (data, [0] * count)
    if size == 0:
        return
    # Damage in the last two chunks: they stay as they are.
    damaged = bytearray(ciphertext)
    places = sorted({max(size - 1 - chunk, 0), size - 1})
    for place in places:
        damaged[place] ^= 1
    found, wrong = decrypt(bytes(damaged))
    assert [i for i in range(count) if wrong[i]] == sorted({place // chunk for place in places})
    begin = places[0] // chunk * chunk
    assert found == data[:begin] + bytes(damaged[begin:])


def test_errors_and_the_version(library: ctypes.CDLL) -> None:
    result = library.tensorizer_cuda_crc32(7, None, b"", ctypes.c_uint64(0), b"1234")
    library.tensorizer_cuda_error.restype = ctypes.c_char_p
    assert library.tensorizer_cuda_error(result) == b"invalid device ordinal"
    header = (ROOT / "csrc" / "cuda" / "interface.h").read_text()
    assert f"TENSORIZER_CUDA_VERSION {library.tensorizer_cuda_version()}\n" in header
    assert library.tensorizer_cuda_device_count() == 1


def test_nothing_of_cuda_is_left_in_the_sources_for_amd(tmp_path: Path) -> None:
    sys.path.append(str(ROOT / "tools"))
    from hip_check import left

    source = tmp_path / "x.h"
    source.write_text("int tensorizer_cuda_crc32();\nint cudaNothing();  // of CUDA\n")
    assert left(source) == ["x.h:2: int cudaNothing();  "]
