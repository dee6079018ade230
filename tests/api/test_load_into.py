"""load_into fills existing tensors in place. If it refuses an output, it changes none of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import tensorizer_ops
from support.raw_parse import parse
from support.samples import DTYPES, raw, same, sample

ops = torch.ops.tensorizer

MATRIX = sample(torch.float32, (60, 80))
COMPLEX = sample(torch.int16, (60, 80)).to(torch.complex64) + 1j


@pytest.fixture
def saved(path: str) -> str:
    ops.save(path, {"m": MATRIX, "c": COMPLEX, "i": torch.arange(5), "s": torch.tensor(2.5)})
    return path


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
def test_every_dtype_in_place(path: str, verify: str) -> None:
    tensors = {name: sample(dtype) for name, dtype in DTYPES.items()}
    ops.save(path, tensors)
    out = [
        torch.zeros_like(tensor.view(torch.uint8)).view(tensor.dtype) for tensor in tensors.values()
    ]
    places = [tensor.data_ptr() for tensor in out]
    assert ops.load_into(path, list(tensors), out, verify=verify) is None
    assert [tensor.data_ptr() for tensor in out] == places
    for filled, tensor in zip(out, tensors.values(), strict=True):
        assert same(filled, tensor)


def test_elements_that_torch_does_not_copy_from_every_address(path: str) -> None:
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "x": sample(torch.complex128, (3, 5))}
    ops.save(path, tensors)
    out = [torch.zeros(6, dtype=torch.uint8)[::2], torch.zeros(3, 5, dtype=torch.complex128).conj()]
    ops.load_into(path, list(tensors), out)
    assert same(out[1].resolve_conj(), tensors["x"])


OUTPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.zeros(60, 80),
    "transposed": lambda: torch.zeros(80, 60).t(),
    "every second column": lambda: torch.zeros(60, 160)[:, ::2],
    "a slice": lambda: torch.zeros(100, 80)[20:80],
    "a column of a cube": lambda: torch.zeros(60, 3, 80)[:, 1],
    "a view into a parameter": lambda: torch.nn.Parameter(torch.zeros(61, 80)).detach()[1:],
}


@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("threads", [0, 1])
def test_any_layout(saved: str, make: Callable[[], torch.Tensor], threads: int) -> None:
    out = make()
    base = out._base if out._base is not None else out
    place, version = out.data_ptr(), out._version
    ops.load_into(saved, ["m"], [out], threads=threads, verify="all")
    assert same(out, MATRIX)
    assert out.data_ptr() == place
    assert out._version > version
    # The memory around it is unchanged.
    out.zero_()
    assert not base.any()


def test_conjugated_and_negated_outputs(saved: str) -> None:
    out = torch.zeros(60, 80, dtype=torch.complex64).conj()
    ops.load_into(saved, ["c"], [out])
    assert torch.equal(out, COMPLEX)
    assert out.is_conj()
    negated = torch.zeros(60, 80, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    ops.save(saved, {"m": MATRIX.nan_to_num()})
    ops.load_into(saved, ["m"], [negated])
    assert torch.equal(negated, MATRIX.nan_to_num())


def test_a_conjugate_view_beside_what_it_views(path: str) -> None:
    tensors = {"x": torch.tensor([1 + 2j, 3 - 4j]), "mirrored": torch.tensor([1 - 2j, 3 + 4j])}
    ops.save(path, tensors)
    out = torch.zeros(2, dtype=torch.complex64)
    ops.load_into(path, ["x", "mirrored"], [out, out.conj()])
    assert torch.equal(out, tensors["x"])
    assert torch.equal(out.conj(), tensors["mirrored"])


def test_a_whole_module(path: str) -> None:
    source, target = torch.nn.Linear(30, 40), torch.nn.Linear(30, 40)
    ops.save(path, dict(source.state_dict()))
    state = target.state_dict()
    ops.load_into(path, list(state), list(state.values()))
    assert same(target.weight.detach(), source.weight.detach())
    assert same(target.bias.detach(), source.bias.detach())


def test_several_at_once_in_any_order(saved: str) -> None:
    out = [torch.zeros(()), torch.zeros(5, dtype=torch.int64), torch.zeros(60, 80)]
    ops.load_into(saved, ["s", "i", "m"], out)
    assert raw(out[0]) == raw(torch.tensor(2.5))
    assert out[1].tolist() == [0, 1, 2, 3, 4]
    assert same(out[2], MATRIX)
    ops.load_into(saved, [], [])


WRONG: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "dtype": (lambda: torch.zeros(60, 80, dtype=torch.float64), "float64|Double"),
    "dtype of the same size": (lambda: torch.zeros(60, 80, dtype=torch.int32), "int32|Int"),
    "shape": (lambda: torch.zeros(80, 60), "60"),
    "number of elements": (lambda: torch.zeros(60, 81), "81"),
    "number of dimensions": (lambda: torch.zeros(4800), "4800"),
    "expanded": (lambda: torch.zeros(1, 80).expand(60, 80), "overlap|memory|more than one"),
}


@pytest.mark.parametrize(("make", "says"), WRONG.values(), ids=WRONG)
def test_nothing_is_touched_when_one_is_wrong(
    saved: str, make: Callable[[], torch.Tensor], says: str
) -> None:
    first, wrong, last = torch.zeros(5, dtype=torch.int64), make(), torch.zeros(())
    for names, out in (
        (["i", "m", "s"], [first, wrong, last]),
        (["m", "i", "s"], [wrong, first, last]),
    ):
        with pytest.raises((ValueError, RuntimeError), match=rf"'m'.*({says})"):
            ops.load_into(saved, names, out)
        assert not first.any()
        assert not wrong.any()
        assert not last.any()
        assert first._version == wrong._version == last._version == 0


def shrunk(to: int, output: torch.Tensor | None = None) -> torch.Tensor:
    output = torch.zeros(60, 80) if output is None else output
    output.untyped_storage().resize_(to)
    return output


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(60, 80)


WITHOUT_MEMORY: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "a storage that is too small": (lambda: shrunk(64), "its storage has 64 of the 19200 bytes"),
    "an empty storage": (lambda: shrunk(0), "its storage has 0 of the 19200 bytes"),
    "a view that ends outside": (
        lambda: shrunk(4 * 4799, torch.zeros(80, 60).t()),
        "its storage has 19196 of the 19200 bytes",
    ),
    "two tensors that are one": (
        lambda: TwoTensor(torch.zeros(60, 80), torch.zeros(60, 80)),
        "a tensor subclass without memory of its own",
    ),
    "a fake": (fake, "a tensor subclass without memory of its own"),
}


@pytest.mark.parametrize(("make", "says"), WITHOUT_MEMORY.values(), ids=WITHOUT_MEMORY)
def test_outputs_whose_memory_is_not_what_they_say(
    saved: str, make: Callable[[], torch.Tensor], says: str
) -> None:
    first, wrong = torch.zeros(5, dtype=torch.int64), make()
    reader = torch.classes.tensorizer.Reader(saved, None)
    in_memory = ops.open(torch.frombuffer(bytearray(Path(saved).read_bytes()), dtype=torch.uint8))
    for opened in (reader, in_memory):
        with pytest.raises(ValueError, match=rf"'m' .*output.*{says}"):
            opened.load_into(["i", "m"], [first, wrong], "none", 1)
        assert not first.any()


def test_modules_whose_memory_is_not_what_they_say(saved: str) -> None:
    module = torch.nn.Module()
    module.register_buffer("m", TwoTensor(torch.zeros(60, 80), torch.zeros(60, 80)))
    with pytest.raises(ValueError, match=r"'m' .*a tensor subclass without memory of its own"):
        tensorizer_ops.load_into(module, saved, strict=False)


def test_one_output_for_two_tensors(path: str) -> None:
    """Overlapping outputs would hold a mix of both tensors. Interleaved outputs do not overlap."""
    ops.save(path, {"a": MATRIX, "b": -MATRIX})
    out = torch.zeros(60, 160)
    for names, twice in (
        (["a", "b"], [out[:, :80], out[:, :80]]),
        (["a", "a"], [out[:, ::2], out[:, ::2].detach()]),
    ):
        with pytest.raises(ValueError, match=rf"'{names[1]}' .* has the same output as another"):
            ops.load_into(path, names, twice)
        assert not out.any()
    ops.load_into(path, ["a", "b"], [out[:, ::2], out[:, 1::2]])
    assert same(out[:, ::2], MATRIX)
    assert same(out[:, 1::2], -MATRIX)


def test_names_and_outputs_must_pair(saved: str) -> None:
    out = torch.zeros(60, 80)
    for names in (["m", "i"], []):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument):
            ops.load_into(saved, names, [out])
    with pytest.raises(KeyError, match="missing"):
        ops.load_into(saved, ["m", "missing"], [out, out.clone()])
    assert not out.any()


def test_leaves_that_require_grad_are_refused(saved: str) -> None:
    leaf = torch.zeros(60, 80, requires_grad=True)
    first = torch.zeros(5, dtype=torch.int64)
    with pytest.raises((RuntimeError, ValueError), match="grad"):
        ops.load_into(saved, ["i", "m"], [first, leaf])
    assert not leaf.detach().any()
    assert not first.any()
    with torch.no_grad():
        ops.load_into(saved, ["m"], [leaf])
    assert same(leaf.detach(), MATRIX)


def test_autograd_sees_that_a_value_changed(saved: str) -> None:
    weight = torch.ones(60, 80, requires_grad=True)
    value = torch.zeros(60, 80)
    product = (weight * value).sum()
    ops.load_into(saved, ["m"], [value])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_empty_and_meta_tensors(path: str) -> None:
    empty = {name: torch.empty(0, 3, dtype=dtype) for name, dtype in DTYPES.items()}
    meta = {f"{n} m": torch.empty(3, dtype=d, device="meta") for n, d in DTYPES.items()}
    ops.save(path, empty | meta)
    out = [sample(tensor.dtype, tuple(tensor.shape)) for tensor in (empty | meta).values()]
    ops.load_into(path, list(empty | meta), out, verify="all")
    assert all(raw(tensor) == bytes(tensor.nbytes) for tensor in out)
    with pytest.raises(ValueError, match="'bfloat16'"):
        ops.load_into(path, ["bfloat16"], [torch.empty(0, 3, dtype=torch.bits16)])
    # Large tensors are zeroed by other code than small ones.
    meta = {name: torch.empty(300, 40, dtype=d, device="meta") for name, d in DTYPES.items()}
    ops.save(path, meta)
    out = [sample(tensor.dtype, (40, 300)).t() for tensor in meta.values()]
    ops.load_into(path, list(meta), out)
    assert not any(raw(tensor.t()).strip(b"\0") for tensor in out)


def test_outputs_without_memory_are_checked_as_well(saved: str) -> None:
    meta = torch.empty(60, 80, device="meta")
    for names, out in (
        ([], [meta]),
        (["m"], [torch.empty(60, 1, device="meta")]),
        (["m"], [torch.empty(60, 80, device="meta", dtype=torch.float64)]),
        (["m", "i"], [meta]),
        (["i", "m"], [torch.zeros(5, dtype=torch.int64), torch.empty(80, device="meta")]),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            ops.load_into(saved, names, out)


def test_a_mismatch_found_while_reading_names_the_tensor(saved: str) -> None:
    data = bytearray(Path(saved).read_bytes())
    data[parse(bytes(data))["m"].data_offset] ^= 1
    Path(saved).write_bytes(data)
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match=r"'m'"):
        ops.load_into(saved, ["m"], [torch.zeros(80, 60).t()], verify="crc32")


def test_an_output_that_cannot_be_written(path: str, tmp_path: Path) -> None:
    tensorizer_ops.save(path, {"w": torch.ones(5000)})
    mapped = tmp_path / "mapped"
    numpy.zeros(5000, "f4").tofile(mapped)
    array = numpy.memmap(mapped, mode="r", dtype="f4")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        output = torch.from_numpy(array)
    with pytest.raises(OSError, match="the memory of a tensor cannot be written; a file that it"):
        ops.load_into(path, ["w"], [output])
