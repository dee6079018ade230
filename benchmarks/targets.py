"""What this project promises about loads and saves."""

from __future__ import annotations

import bare
from verdicts import Rows, Target, Verdict, at_most, judge_memory, judge_speeds

COPY = "us, copy"
COMPANION = "us, copy, the 32 MiB case"
MEMORY_CEILING = 64 << 20
IMPORT_CEILING_MS = 60

_MODELS = ("large", "transformer")
_CRC32 = "us, copy, verify crc32"
_ALL = "us, copy, verify all"
_SAVE = "us, save hashes=all"
_BARE = "bare libcrypto work"
_COLD = tuple(limit.name for limit in bare.COLD)

TARGETS = (
    Target("load by copy", COPY, "limit", (bare.READ.name,), 0.9, _MODELS),
    Target("load by copy", COPY, "tensorizer", ("tensorizer",), 2.5, _MODELS),
    Target("load by copy", COPY, "torch.load", ("torch.load",), 4, _MODELS),
    Target("load zero-copy, touch", "us, zero-copy", "safetensors", ("safetensors",), 1.0, _MODELS),
    Target("load, verify all", _ALL, _BARE, (bare.READ_ALL.name,), 1.35, _MODELS),
    Target("load, verify all", _ALL, "tensorizer", ("tensorizer, verify_hash",), 2.2, _MODELS),
    Target("load, verify crc32", _CRC32, "limit", (bare.READ_CRC32.name,), 0.9, _MODELS),
    Target("cold load by copy", COPY, "best cold pread", _COLD, 0.9, _MODELS, when="cold"),
    Target("save, both hashes", _SAVE, _BARE, (bare.WRITE_ALL.name,), 1.25, _MODELS),
    Target("save, both hashes", _SAVE, "tensorizer", ("tensorizer, save",), 2, _MODELS),
    Target("save, both hashes", _SAVE, "torch.save", ("torch.save",), 1.7, _MODELS),
    Target("save, crc32", "us, save hashes=crc32", "limit", (bare.WRITE_CRC32.name,), 0.9, _MODELS),
    Target("small tensors, load", "us, zero-copy", "safetensors", ("safetensors",), 5, ("small",)),
    Target("small tensors, save", _SAVE, "safetensors", ("safetensors, save",), 3, ("small",)),
    Target("one tensor, load by copy", COPY, "the 32 MiB case", (COMPANION,), 0.9, ("single",)),
)


def judge(results: dict[str, Rows], import_seconds: float | None) -> list[Verdict]:
    imported = import_seconds * 1000 if import_seconds is not None else None
    return [
        *judge_speeds(TARGETS, results),
        *(judge_memory(workload, rows, MEMORY_CEILING) for workload, rows in results.items()),
        at_most("import beyond torch", "", IMPORT_CEILING_MS, imported, "ms"),
    ]
