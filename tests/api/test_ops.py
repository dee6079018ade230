"""The ops that read, one argument at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.raw_parse import parse
from support.samples import DTYPES, assert_same, flip, raw, same, sample, zoo
from tensorizer_ops.errors import HashMismatch

ops = torch.ops.tensorizer

FLOATING = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
KEPT = ["bool", "uint8", "int8", "int64", "uint32", "complex64", "complex128", "complex32", "bits8"]
READS: dict[str, Any] = {
    "load": lambda path, **options: ops.load(path, **options),
    "load_tensors": lambda path, **options: ops.load_tensors(path, ["x", "y"], **options),
    "verify": lambda path, verify="all": ops.verify(path),
    "front": lambda path, **options: tensorizer_ops.load(path, **options),
}


def test_everything_in_file_order(path: str) -> None:
    ops.save(path, zoo())
    assert ops.names(path) == list(zoo())
    loaded = ops.load(path)
    assert isinstance(loaded, dict)
    assert_same(loaded, zoo())
    assert_same(tensorizer_ops.load(path), zoo())


@pytest.mark.parametrize("copy", [False, True])
def test_some_names_in_any_order(path: str, copy: bool) -> None:
    ops.save(path, zoo())
    for names in ([], ["int8"], ["uint7", "bool", "float32"], list(reversed(zoo()))):
        expected = {name: zoo()[name] for name in names}
        assert_same(ops.load(path, names=names, copy=copy), expected)
        assert_same(tensorizer_ops.load(path, names=names, copy=copy), expected)
        listed = ops.load_tensors(path, names, copy=copy)
        assert_same(dict(zip(names, listed, strict=True)), expected)


@pytest.mark.parametrize("copy", [False, True])
def test_one_name_twice_does_not_alias(path: str, copy: bool) -> None:
    ops.save(path, {"x": torch.ones(1000)})
    try:
        one, other = ops.load_tensors(path, ["x", "x"], copy=copy)
    except ValueError as error:
        assert "'x'" in str(error)
        return
    one.zero_()
    assert same(other, torch.ones(1000))


def test_missing_names(path: str) -> None:
    ops.save(path, zoo())
    for attempt in (
        lambda: ops.load(path, names=["int8", "missing\n", "int16"]),
        lambda: tensorizer_ops.load(path, names=["missing\n"]),
        lambda: ops.load_tensors(path, ["missing\n"]),
        lambda: ops.load_into(path, ["missing\n"], [torch.zeros(5, 7)]),
    ):
        with pytest.raises(KeyError) as caught:
            attempt()
        assert "'missing\\x0a'" in str(caught.value)
        assert path in str(caught.value)


@pytest.mark.parametrize("target", FLOATING)
@pytest.mark.parametrize("copy", [False, True])
def test_dtype_casts_real_floating_tensors(path: str, target: str, copy: bool) -> None:
    numbers = torch.linspace(-300, 300, 1001, dtype=torch.float64)
    tensors = {name: numbers.to(DTYPES[name]) for name in FLOATING}
    tensors |= {name: sample(DTYPES[name]) for name in KEPT}
    tensors["scalar"], tensors["empty"] = torch.tensor(1.5), torch.empty(0, 3)
    ops.save(path, tensors)
    dtype = DTYPES[target]
    expected = {
        name: tensor if name in KEPT else tensor.to(dtype) for name, tensor in tensors.items()
    }
    assert_same(ops.load(path, dtype=dtype, copy=copy, verify="all"), expected)
    assert_same(tensorizer_ops.load(path, dtype=dtype, copy=copy), expected)
    listed = ops.load_tensors(path, list(tensors), dtype=dtype, copy=copy)
    assert_same(dict(zip(tensors, listed, strict=True)), expected)


def test_device(path: str) -> None:
    ops.save(path, zoo())
    for device in ("cpu", torch.device("cpu"), torch.device("cpu", 0)):
        assert_same(ops.load(path, device=device), zoo())
    with torch.device("meta"):
        # The ops ignore torch's default device; the Python functions use it.
        assert {tensor.device.type for tensor in ops.load(path).values()} == {"cpu"}
        assert {tensor.device.type for tensor in tensorizer_ops.load(path).values()} == {"meta"}
    with pytest.raises((ValueError, RuntimeError)):
        ops.load(path, device="nonsense")


def corrupt(path: str, what: str) -> None:
    """Saves two tensors, and flips a bit of `y`."""
    ops.save(path, {"x": sample(torch.float32), "y": sample(torch.int16, (40_000,))}, hashes="all")
    entry = parse(Path(path).read_bytes())["y"]
    if what == "data":
        flip(path, entry.data_offset + 70_001)
    else:
        flip(path, entry.header_offset + entry.hash_at[{"crc32": 0, "sha256": 1}[what]] + 2)


@pytest.mark.parametrize("what", ["data", "crc32", "sha256"])
@pytest.mark.parametrize("mode", ["all", "crc32"])
@pytest.mark.parametrize("copy", [False, True])
def test_verify_finds_one_wrong_bit(path: str, what: str, mode: str, copy: bool) -> None:
    corrupt(path, what)
    assert set(ops.load(path, copy=copy)) == {"x", "y"}
    ops.load(path, names=["x"], verify=mode, copy=copy)
    if mode == "crc32" and what == "sha256":
        ops.load(path, verify=mode, copy=copy)
        return
    out = torch.zeros(40_000, dtype=torch.int16)
    for attempt in (
        lambda: ops.load(path, verify=mode, copy=copy),
        lambda: ops.load_tensors(path, ["x", "y"], verify=mode, copy=copy),
        lambda: tensorizer_ops.load(path, names=["y"], verify=mode, copy=copy),
        lambda: ops.load_into(path, ["y"], [out], verify=mode),
        lambda: ops.verify(path),
    ):
        with pytest.raises(HashMismatch, match=r"'y'") as caught:
            attempt()
        assert path in str(caught.value)


@pytest.mark.parametrize("mode", ["all", "crc32"])
def test_nothing_to_verify(path: str, mode: str) -> None:
    ops.save(path, {"x": torch.ones(3)}, hashes="none")
    assert same(ops.load(path)["x"], torch.ones(3))
    for attempt in (lambda: ops.load(path, verify=mode), lambda: ops.verify(path)):
        with pytest.raises(tensorizer_ops.errors.Error, match=r"'x'.*verify"):
            attempt()


@pytest.mark.parametrize("mode", ["all", "crc32"])
@pytest.mark.parametrize("hashes", ["crc32", "sha256"])
def test_verify_uses_the_hash_that_is_there(path: str, mode: str, hashes: str) -> None:
    ops.save(path, zoo(), hashes=hashes)
    assert_same(ops.load(path, verify=mode), zoo())
    flip(path, parse(Path(path).read_bytes())["int32"].data_offset)
    with pytest.raises(HashMismatch, match="'int32'"):
        ops.load(path, verify=mode)


@pytest.mark.parametrize("mode", ["", "ALL", "md5", "sha256"])
def test_unknown_verify(path: str, mode: str) -> None:
    ops.save(path, {"x": torch.ones(3), "y": torch.ones(3)})
    for read in ("load", "load_tensors", "front"):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"none.*crc32.*all"):
            READS[read](path, verify=mode)


@pytest.mark.parametrize("read", ["load", "load_tensors", "front"])
def test_threads(path: str, read: str) -> None:
    tensors = {"x": sample(torch.float32, (1000, 1001)), "y": torch.ones(3)}
    ops.save(path, tensors)
    for threads in (0, 1, 2, 7, 200):
        loaded = READS[read](path, threads=threads, verify="all", copy=True)
        loaded = list(loaded.values()) if isinstance(loaded, dict) else loaded
        assert [raw(tensor) for tensor in loaded] == [raw(t) for t in tensors.values()]
    for threads in (-1, 1025):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"threads"):
            READS[read](path, threads=threads)


@pytest.mark.parametrize("read", ["load", "load_tensors", "front"])
def test_unknown_options(path: str, read: str) -> None:
    ops.save(path, {"x": torch.ones(3), "y": torch.ones(3)})
    READS[read](path, options={})
    with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"'no such'"):
        READS[read](path, options={"no such": "1"})
    for attempt in (ops.names, ops.verify):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument, match=r"'no such'"):
            attempt(path, options={"no such": "1"})


@pytest.mark.parametrize("copy", [False, True])
def test_under_every_grad_mode(path: str, copy: bool) -> None:
    ops.save(path, zoo())
    with torch.no_grad():
        assert_same(ops.load(path, copy=copy), zoo())
    with torch.inference_mode():
        assert_same(ops.load(path, copy=copy), zoo())
        ops.save(path, ops.load(path, copy=copy))
    loaded = ops.load(path, copy=copy)["float32"].requires_grad_()
    loaded.nan_to_num(0, 0, 0).sum().backward()
    assert loaded.grad is not None


def test_saving_with_a_tensor_on_meta_among_others(path: str) -> None:
    tensors = {"a": torch.ones(3), "m": torch.empty(2, 2, device="meta"), "z": torch.ones(2)}
    expected = tensors | {"m": torch.zeros(2, 2)}
    ops.save(path, tensors)
    assert_same(ops.load(path), expected)
    Path(path).unlink()
    ops.save_tensors(path, list(tensors), list(tensors.values()))
    assert_same(ops.load(path), expected)
    Path(path).unlink()
    tensorizer_ops.save(path, tensors)
    assert_same(ops.load(path), expected)
    ops.save_tensors(path, ["m"], [torch.empty(3, device="meta")])
    assert_same(ops.load(path), {"m": torch.zeros(3)})
