"""Measures deltas of steps of training: their sizes, beside other codes, and their speed.

    python -m benchmarks.local.deltas [--quick] [--mib 128] [--rounds 5]

The weights have a normal distribution with a deviation of 0.02, and a step adds one with that of
the learning rate, as AdamW does; both are rounded to the type. `dense` has matrices of 4096 columns
and as many rows, `experts` many of 512 by 1024. All work is on one thread, with files in /dev/shm.
Every file that is applied is compared with the new model. The best round counts.

  changed   elements that differ
  delta     the file that tensorizer_ops.delta() writes, against the model
  code      what of it is codes of changes
  entropy   of positions, signs and steps, if the exponents of the base are known

and what others send for the same tensors, without names, shapes and checksums:

  values    for each element that differs, its number as int32 and its value: the sparse engine of
            vLLM
  gaps      the same with the gaps between these elements, as uint16, or as uint32 in a tensor where
            one is larger: pull request 5937 of TRL
  xor       for each tensor, the XOR of both versions by Zstandard at level 1: SkyRL and slime

  encode, decode    the codec alone, in memory
  delta, apply      from file to file, with everything checked
  hashes            SHA-256 of the chunks of both versions, in memory: a part of both
  convert           writes the model anew, checked: what apply does without a delta
"""

from __future__ import annotations

from pathlib import Path

import torch
import zstandard

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.bare import run_changes
from benchmarks.harness.results import Best, Found, measured

RATES = (1e-7, 1e-6, 1e-5, 1e-4)
TYPES = {"bfloat16": torch.int16, "float16": torch.int16, "float32": torch.int32}
SHAPES = {"dense": (4096, 4096), "experts": (512, 1024)}
CHUNK = 1 << 20
CASES = [
    *(("dense", "bfloat16", rate) for rate in RATES),
    *(("dense", dtype, 1e-6) for dtype in TYPES if dtype != "bfloat16"),
    ("experts", "bfloat16", 1e-6),
]
Model = dict[str, torch.Tensor]


def step(shape: str, dtype: str, rate: float, size: int) -> tuple[Model, Model]:
    """Return a model before a step of training and after it."""
    torch.manual_seed(0)
    rows, columns = SHAPES[shape]
    rows = min(rows, size // columns // 4)
    kind = getattr(torch, dtype)
    older, newer = {}, {}
    for i in range(max(1, size // (rows * columns * kind.itemsize))):
        master = torch.randn(rows, columns) * 0.02
        older[f"layers.{i}"] = master.to(kind)
        newer[f"layers.{i}"] = (master + rate * torch.randn(rows, columns)).to(kind)
    return older, newer


def raw(model: Model, dtype: str) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1).view(TYPES[dtype]) for tensor in model.values()])


def entropy(base: torch.Tensor, new: torch.Tensor, mantissa: int) -> float:
    """Return the bytes of positions and steps if the exponents of the base are known."""
    bits = 0.0
    ordered = [torch.where(x < 0, x ^ torch.iinfo(x.dtype).max, x).long() for x in (base, new)]
    steps = ordered[1] - ordered[0]
    exponents = (base.long() >> mantissa) & 0xFF
    for exponent in exponents.unique():
        _, counts = steps[exponents == exponent].unique(return_counts=True)
        shares = counts / counts.sum()
        bits -= float((counts * shares.log2()).sum())
    return bits / 8


def values(base: torch.Tensor, new: torch.Tensor) -> int:
    return int((base != new).sum()) * (4 + base.element_size())


def gaps(base: torch.Tensor, new: torch.Tensor) -> int:
    changed = (base != new).nonzero()[:, 0]
    between = changed.diff(prepend=torch.tensor([-1])) - 1
    width = 2 if changed.numel() == 0 or int(between.max()) < 1 << 16 else 4
    return changed.numel() * (width + base.element_size())


def xor(base: torch.Tensor, new: torch.Tensor) -> int:
    both = (base ^ new).numpy()
    return len(zstandard.ZstdCompressor(level=1).compress(both)) if both.any() else 0


def sizes(older: Model, newer: Model, dtype: str) -> dict[str, float]:
    base, new = raw(older, dtype), raw(newer, dtype)
    mantissa = {"bfloat16": 7, "float16": 10, "float32": 23}[dtype]
    found = {
        "changed": int((base != new).sum()) / base.numel(),
        "entropy": entropy(base, new, mantissa) / base.nbytes,
    }
    for code in (values, gaps, xor):
        tensors = ([raw({name: model[name]}, dtype) for model in (older, newer)] for name in older)
        found[code.__name__] = sum(code(*both) for both in tensors) / base.nbytes
    return found


def case(folder: Path, older: Model, newer: Model, dtype: str, rounds: int) -> Found:
    base, new = (raw(model, dtype) for model in (older, newer))
    files = [folder / name for name in ("base.raw", "new.raw")]
    for file, data in zip(files, (base, new), strict=True):
        data.numpy().tofile(file)
    codes, encode, decode = run_changes((base.element_size(), True), *files, rounds)
    for file in files:
        file.unlink()
    places = [folder / f"{name}.tensors" for name in ("base", "new", "delta", "out", "copy")]
    for place, model in zip(places, (older, newer), strict=False):
        tensorizer_ops.save(place, model)
    best = Best({"encode": encode, "decode": decode})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(rounds):
        best.time("delta", lambda: tensorizer_ops.delta(*places[:3], threads=1))
        best.time("apply", lambda: tensorizer_ops.apply(places[2], places[0], places[3], threads=1))
        best.time("convert", lambda: tensorizer_ops.convert(places[0], places[4], threads=1))
        best.time(
            "hashes",
            lambda: [torch.ops.tensorizer.sha256_chunks(data, CHUNK) for data in (base, new)],
        )
    torch.set_num_threads(threads)
    assert places[3].read_bytes() == places[1].read_bytes()
    size = places[2].stat().st_size / base.nbytes
    for place in places:
        place.unlink()
    speeds = {name: base.nbytes / seconds / 1e9 for name, seconds in best.items()}
    return {"delta": size, "code": codes / base.nbytes, "GB/s": speeds}


def measure(_: Path, mebibytes: int, rounds: int) -> Found:
    import tempfile

    found: Found = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for shape, dtype, rate in CASES:
            older, newer = step(shape, dtype, rate, mebibytes << 20)
            found[f"{shape}, {dtype}, {rate:g}"] = {
                **sizes(older, newer, dtype),
                **case(Path(folder), older, newer, dtype, rounds),
            }
    return found


def main() -> None:
    found = measured(__doc__, ("mib", 128, 4), 5, measure, "deltas")
    names = ("changed", "delta", "code", "entropy", "values", "gaps", "xor")
    lines = [[name, *(f"{100 * one[each]:.2f} %" for each in names)] for name, one in found.items()]
    print(tables.table(["against the model", *names], lines) + "\n")
    speeds = list(next(iter(found.values()))["GB/s"])
    lines = [[name, *(f"{one['GB/s'][s]:.2f}" for s in speeds)] for name, one in found.items()]
    print(tables.table(["GB/s", *speeds], lines))


if __name__ == "__main__":
    main()
