"""After a failed check, each output of load_into is a whole verified tensor or all zeros."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.process import feed
from support.raw_parse import parse
from support.samples import random_bytes, raw, same, sample
from tensorizer_ops.errors import Error, HashMismatch

ops = torch.ops.tensorizer

TENSORS = {
    "small": sample(torch.int64, (50,)),
    "cut": sample(torch.float32, (1500, 1000), 1),
    "odd": sample(torch.float8_e4m3fn, (300, 7)),
    "last": random_bytes(3 << 20).view(1024, -1),
}
NAMES = list(TENSORS)

# For each check: the arguments of the save, and `verify` of the load.
CHECKS = {
    "crc32": ({}, "crc32"),
    "crc32 by sha256": ({"hashes": "sha256"}, "crc32"),
    "all": ({}, "all"),
    "pinned": ({}, "none"),
    "pinned, with a list": ({"options": {"digests": "true"}}, "none"),
}


def outputs(step: int = 1) -> list[torch.Tensor]:
    """Returns outputs filled with other bytes. Each uses every `step`-th element of its memory."""
    return [
        torch.full((tensor.numel() * step * tensor.itemsize,), 0xEE, dtype=torch.uint8)
        .view(tensor.dtype)
        .view(*tensor.shape, step)[..., 0]
        for tensor in TENSORS.values()
    ]


def is_zero(output: torch.Tensor) -> bool:
    return not any(raw(output))


def spoil(path: str, name: str) -> None:
    content = bytearray(Path(path).read_bytes())
    entry = parse(bytes(content))[name]
    content[entry.data_offset + entry.data_length - 2] ^= 1
    Path(path).write_bytes(content)


@pytest.mark.parametrize("threads", [1, 0])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("check", CHECKS)
def test_a_changed_byte(path: str, check: str, step: int, threads: int) -> None:
    saved, verify = CHECKS[check]
    ops.save(path, TENSORS, **saved)
    options = {"digest": tensorizer_ops.digest(path)} if "pinned" in check else {}
    for name in NAMES:
        spoil(path, name)
        out = outputs(step)
        with pytest.raises(HashMismatch):
            ops.load_into(path, NAMES, out, verify=verify, threads=threads, options=options)
        spoil(path, name)
        for other, output in zip(NAMES, out, strict=True):
            whole = other != name and check != "pinned" and same(output, TENSORS[other])
            assert whole or is_zero(output)
    out = outputs(step)
    ops.load_into(path, NAMES, out, verify=verify, threads=threads, options=options)
    assert all(same(output, TENSORS[name]) for name, output in zip(NAMES, out, strict=True))


@pytest.mark.parametrize("check", CHECKS)
def test_bytes_that_do_not_come(path: str, check: str) -> None:
    """The input ends early: no check has failed, but unchecked outputs must become zeros too."""
    saved, verify = CHECKS[check]
    ops.save(path, TENSORS, **saved)
    options = {"digest": tensorizer_ops.digest(path)} if "pinned" in check else {}
    content = Path(path).read_bytes()
    entry = parse(content)["last"]
    out = outputs()
    fifo = f"{path}.fifo"
    with feed(fifo, content[: entry.data_offset + entry.data_length - 5]), pytest.raises(Error):
        ops.load_into(fifo, NAMES, out, verify=verify, options=options)
    assert is_zero(out[-1])
    for name, output in list(zip(NAMES, out, strict=True))[:-1]:
        assert is_zero(output) or (check != "pinned" and same(output, TENSORS[name]))


def test_nothing_is_taken_back_that_nothing_checks(path: str) -> None:
    ops.save(path, TENSORS)
    spoil(path, "cut")
    out = outputs()
    ops.load_into(path, NAMES, out)
    assert same(out[0], TENSORS["small"]) and not same(out[1], TENSORS["cut"])


@pytest.mark.parametrize("check", CHECKS)
def test_modules(path: str, check: str) -> None:
    saved, verify = CHECKS[check]
    source = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 5))
    tensorizer_ops.save(path, source.state_dict(), **saved)
    options = {"digest": tensorizer_ops.digest(path)} if "pinned" in check else {}
    spoil(path, "1.bias")
    module = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 5))
    with pytest.raises(HashMismatch):
        tensorizer_ops.load_into(module, path, verify=verify, options=options)
    for name, tensor in module.state_dict().items():
        whole = name != "1.bias" and torch.equal(tensor, source.state_dict()[name])
        assert whole or not tensor.any()
