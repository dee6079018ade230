"""Times the kernels that verify and decrypt on a GPU, on memory that is there.

    python -m benchmarks.local.gpu_kernels [--quick] [--json FILE]

The data for Poly1305 has wrong MACs, so it is authenticated and not decrypted. GB are 10^9 bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import tensorizer_ops  # noqa: F401 (registers the ops)
from benchmarks.harness.results import Found, parser, perform

CIPHER_CHUNK = 2 << 20


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the fewest milliseconds of several times."""
    work()
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return min(found)


def works(data: torch.Tensor) -> dict[str, Callable[[], object]]:
    ops = torch.ops.tensorizer_device
    macs = torch.zeros(16 * (data.numel() // CIPHER_CHUNK), dtype=torch.uint8)
    key, nonce = (torch.zeros(size, dtype=torch.uint8) for size in (32, 24))
    return {
        "SHA-256 of chunks of 64 KiB": partial(ops.sha256_chunks, [data], 64 << 10),
        "SHA-256 of chunks of 1 MiB": partial(ops.sha256_chunks, [data], 1 << 20),
        "CRC32": partial(ops.crc32, [data]),
        "Poly1305": partial(ops.decrypt, [data], [CIPHER_CHUNK], [key], [nonce], [macs]),
    }


def main() -> None:
    given = parser(__doc__).parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")

    def measure(_: Path) -> Found:
        found: Found = {}
        for mebibytes in (16,) if given.quick else (128, 1024, 4096):
            data = torch.randint(0, 256, (mebibytes << 20,), dtype=torch.uint8, device="cuda")
            torch.ops.tensorizer.crc32(data[:1])  # loads the kernels
            for name, work in works(data).items():
                took = milliseconds(work, given.rounds or 5)
                found[f"{name}, {mebibytes} MiB"] = took
                print(f"{name:28} {mebibytes:5} MiB {data.numel() / took / 1e6:7.1f} GB/s")
        return {"milliseconds": found, "device": torch.cuda.get_device_name()}

    perform(given, "", measure)


if __name__ == "__main__":
    main()
