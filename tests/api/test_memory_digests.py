"""Digests of what tensors hold: `crc32`, `sha256` and `sha256_chunks`, beside zlib and hashlib."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable

import pytest
import torch

import tensorizer_ops
from support.samples import zoo
from tensorizer_ops import errors

ops = torch.ops.tensorizer


def bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def chunks_of(data: bytes, chunk: int) -> bytes:
    parts = (data[at : at + chunk] for at in range(0, len(data), chunk))
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def check(tensor: torch.Tensor) -> None:
    data = bytes_of(tensor.cpu())
    assert ops.crc32(tensor) == zlib.crc32(data)
    digest = ops.sha256(tensor)
    assert digest.device == tensor.device and not digest.requires_grad
    assert bytes_of(digest.cpu()) == hashlib.sha256(data).digest()
    for chunk in (1000, 65536, 1 << 40):
        digests = ops.sha256_chunks(tensor, chunk)
        assert digests.device == tensor.device and digests.shape == (-(-len(data) // chunk), 32)
        assert bytes_of(digests.cpu()) == chunks_of(data, chunk)


def test_tensors_of_every_type() -> None:
    for tensor in zoo().values():
        check(tensor)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t(),
        lambda x: x[::3, 1:],
        lambda x: x.conj(),
        lambda x: x.conj().imag,
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: x.clone().requires_grad_(),
        lambda x: x.expand(2, *x.shape),
    ],
)
def test_the_elements_count_and_not_their_place(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    check(change(torch.randn(300, 70, dtype=torch.complex64)))


def test_more_than_one_thread_takes() -> None:
    check(torch.arange(5_000_001, dtype=torch.int32))


def test_what_has_no_digest() -> None:
    for op in (ops.crc32, ops.sha256, lambda x: ops.sha256_chunks(x, 64)):
        with pytest.raises(
            errors.InvalidArgument, match="data has no bytes to use: its layout is Sparse"
        ):
            op(torch.eye(3).to_sparse())
    for chunk in (0, -1):
        with pytest.raises(ValueError, match=f"chunk is {chunk}, and must be 1 or more"):
            ops.sha256_chunks(torch.ones(3), chunk)
    assert ops.sha256_chunks(torch.ones(100, device="meta"), 64).shape == (7, 32)


def test_scripts_traces_and_compilers() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([ops.sha256(x * 2), ops.sha256_chunks(x, 64).flatten()])

    @torch.jit.script
    def scripted(x: torch.Tensor) -> int:
        return torch.ops.tensorizer.crc32(x)

    x = torch.arange(100.0)
    assert scripted(x) == zlib.crc32(bytes_of(x))
    # A traced graph has no values but tensors, and keeps the number.
    traced = torch.jit.trace(lambda y: y + ops.crc32(x) % 7, torch.ones(100))
    assert torch.equal(traced(x), x + zlib.crc32(bytes_of(x)) % 7)
    expected = both(x)
    assert torch.equal(torch.jit.trace(both, torch.ones(100))(x), expected)
    assert torch.equal(torch.compile(both, fullgraph=True, backend="aot_eager")(x), expected)
    compiled = torch.compile(lambda y: ops.crc32(y), backend="aot_eager")
    assert compiled(x) == zlib.crc32(bytes_of(x))


@pytest.mark.parametrize("dtype", [torch.uint4, torch.int2, torch.bits8, torch.bits16])
def test_types_that_torch_does_not_copy(path: str, dtype: torch.dtype) -> None:
    stored = torch.arange(16, dtype=torch.uint8)
    tensor = stored.view(torch.int16).view(dtype) if dtype.itemsize == 2 else stored.view(dtype)
    turned = tensor.view(2, -1).t()
    rows = (stored.view(torch.int16) if dtype.itemsize == 2 else stored).view(2, -1).t()
    data = rows.contiguous().numpy().tobytes()
    assert ops.crc32(turned) == zlib.crc32(data)
    assert ops.sha256(turned).numpy().tobytes() == hashlib.sha256(data).digest()
    assert ops.sha256_chunks(turned, 64).numpy().tobytes() == hashlib.sha256(data).digest()
    tensorizer_ops.save(path, {"t": turned}, hashes="all+chunked")
    tensorizer_ops.verify_tensors(path, {"t": turned})
