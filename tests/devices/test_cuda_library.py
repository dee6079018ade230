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
from support.raw_crypt import MAC_SIZE, next_nonce, secretbox

# All of them use one library, which a worker builds.
pytestmark = pytest.mark.xdist_group("cuda library")

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
    sizes = [*SIZES, *range(1400), 0, 5000]
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


class Encrypted(ctypes.Structure):
    _fields_ = [
        *(("data", ctypes.c_void_p), ("size", ctypes.c_uint64), ("chunk", ctypes.c_uint64)),
        *(("key", ctypes.c_char_p), ("nonce", ctypes.c_char_p)),
    ]


class Sealed:
    """A piece of random bytes, encrypted by libsodium with a key and a nonce of its own."""

    def __init__(self, number: int, size: int, chunk: int) -> None:
        data = data_of(size)
        self.chunk = chunk
        self.key = bytes(range(number, number + 32))
        self.nonce = bytes([254] * 22 + [number, 1])
        self.plain = [data[at : at + chunk] for at in range(0, size, chunk)]
        boxes = [
            secretbox(self.key, next_nonce(self.nonce, i), plain)
            for i, plain in enumerate(self.plain)
        ]
        self.chunks = [out for out, _ in boxes]
        self.macs = [mac for _, mac in boxes]


def decrypt(library: ctypes.CDLL, pieces: list[Sealed]) -> tuple[list[bytes], list[int]]:
    """Decrypt pieces in one call. Return their bytes, and which chunks have a wrong MAC."""
    contents = [b"".join(piece.chunks) for piece in pieces]
    memories = [ctypes.create_string_buffer(content) for content in contents]  # and a zero
    given = (Encrypted * len(pieces))(
        *(
            Encrypted(
                ctypes.addressof(memory), len(memory) - 1, piece.chunk, piece.key, piece.nonce
            )
            for piece, memory in zip(pieces, memories, strict=True)
        )
    )
    macs = b"".join(mac for piece in pieces for mac in piece.macs)
    count = len(macs) // MAC_SIZE
    state = ctypes.create_string_buffer(b"\x55" * library.tensorizer_cuda_state_size(count))
    wrong = ctypes.create_string_buffer(b"\x77" * count)
    assert call(library, "decrypt", given, len(pieces), macs, state, wrong) == 0
    assert not any(state.raw), "keys are left"
    assert all(memory.raw[-1] == 0 for memory in memories)
    return [memory.raw[:-1] for memory in memories], list(wrong.raw[:count])


SHAPES = [(0, 100), (1, 100), (99, 100), (100, 100), (2501, 100), (9001, 4096), (100_003, 4096)]
SHAPES += [(100_003, 1 << 20), (0, 1)]
# More pieces than a launch has room for, and then as many that are empty.
MANY = [*((size, 9 + size % 9) for size in range(45)), *[(0, 8)] * 45]


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        *([shape] for shape in SHAPES),
        pytest.param(SHAPES, marks=pytest.mark.slow),
        pytest.param(MANY, marks=pytest.mark.slow),
    ],
)
def test_decryption(library: ctypes.CDLL, shapes: list[tuple[int, int]]) -> None:
    pieces = [Sealed(i, size, chunk) for i, (size, chunk) in enumerate(shapes)]
    chunks = [(piece, i) for piece in pieces for i in range(len(piece.chunks))]
    expected = [0] * len(chunks)
    assert decrypt(library, pieces) == ([b"".join(piece.plain) for piece in pieces], expected)
    # Damaged chunks, and those of a wrong MAC, stay as they are.
    for number in {*range(1, len(chunks), 7), *range(len(chunks))[-2:]}:
        piece, i = chunks[number]
        if number % 2:
            piece.chunks[i] = piece.chunks[i][:-1] + bytes([piece.chunks[i][-1] ^ 1])
        else:
            piece.macs[i] = bytes(MAC_SIZE)
        piece.plain[i] = piece.chunks[i]
        expected[number] = 1
    assert decrypt(library, pieces) == ([b"".join(piece.plain) for piece in pieces], expected)


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
