"""Deltas as another program reads them, which knows only docs/format.md."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import tensorizer_ops
from support.process import ROOT
from support.raw_delta import applied, new_block
from support.samples import raw

DTYPES = [
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int64, torch.uint8, torch.bool),
]


def weights(dtype: torch.dtype, count: int) -> bytearray:
    """Return the bytes of elements like weights, and some special ones."""
    values = torch.randn(count, dtype=torch.float64) * 0.02
    if dtype == torch.bool:
        return bytearray(raw(values > 0))
    if not (dtype.is_floating_point or dtype.is_complex):
        return bytearray(raw((values * 1000).to(dtype)))
    for i, value in enumerate((0.0, -0.0, float("inf"), float("-inf"), float("nan"))):
        if i < count:
            values[i] = value
    return bytearray(raw(values.float().to(dtype)))


def changed(data: bytearray, width: int, share: float, most: int) -> bytearray:
    """Return the bytes with a share of the elements changed, by up to `most` or to anything."""
    after = bytearray(data)
    for at in range(0, len(data), width):
        if random.random() >= share:
            continue
        number = int.from_bytes(data[at : at + width], "little")
        by = random.choice((-1, 1)) * random.randint(1, most) if most else random.getrandbits(64)
        after[at : at + width] = ((number + by) % (1 << 8 * width)).to_bytes(width, "little")
    return after


def tensor(data: bytearray, dtype: torch.dtype) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("ending", ["tensors", "safetensors"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_program_reads_deltas(tmp_path: Path, dtype: torch.dtype, ending: str) -> None:
    torch.manual_seed(0)
    random.seed(0)
    base, new = {}, {}
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    for i, count in enumerate((0, 1, 2, 63, 64, 65, 4095, 4097)):
        for j, (share, most) in enumerate(((0.03, 1), (0.3, 5), (0.9, 1), (1.0, 0), (0.0, 1))):
            data = weights(dtype, count)
            after = changed(data, width, share, most)
            if dtype == torch.bool:
                after = bytearray(each & 1 for each in after)
            base[f"{i}.{j}"], new[f"{i}.{j}"] = tensor(data, dtype), tensor(after, dtype)
    names = ("base.tensors", "new.tensors", f"delta.{ending}")
    files = [tmp_path / name for name in names]
    tensorizer_ops.save(files[0], base)
    tensorizer_ops.save(files[1], new)
    tensorizer_ops.delta(*files)
    load = safetensors.torch.load_file if ending == "safetensors" else tensorizer_ops.load
    found = load(files[2])
    kinds = {name.partition("/")[0] for name in found}
    assert "changes" in kinds and len(found) == len(base)
    for name, stored in found.items():
        kind, _, of = name.partition("/")
        data = raw(stored) if kind == "whole" else applied(raw(base[of]), raw(stored), dtype)
        assert data == raw(new[of]), name


def test_blocks_of_a_megabyte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = torch.randn(700_000).bfloat16()
    new = base.clone()
    new[::5000] += 0.5
    new[600_000] = torch.nan
    files = [tmp_path / f"{name}.tensors" for name in ("base", "new", "delta")]
    tensorizer_ops.save(files[0], {"w": base})
    tensorizer_ops.save(files[1], {"w": new})
    tensorizer_ops.delta(*files)
    changes = tensorizer_ops.load(files[2])["changes/w"]
    assert applied(raw(base), raw(changes), base.dtype) == raw(new)


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    (example,) = re.findall(r"^```python\n(changed = .*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, bytes] = {}
    exec(example, {}, names)
    base = np.tile(np.arange(1, 5, dtype=np.uint8), 100)
    new = base.copy()
    new[[1, 3]] = (3, 9)
    assert new_block(base.tobytes(), names["code"], 1, False) == new.tobytes()
    files = [tmp_path / f"{name}.tensors" for name in ("base", "new", "delta")]
    tensorizer_ops.save(files[0], {"w": torch.from_numpy(base)})
    tensorizer_ops.save(files[1], {"w": torch.from_numpy(new)})
    tensorizer_ops.delta(*files)
    assert raw(tensorizer_ops.load(files[2])["changes/w"])[68:] == names["code"]
