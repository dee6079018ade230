"""Tied tensors: saved once with the option `share`, and loaded under all of their names."""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.raw_parse import parse
from support.samples import assert_same, raw, same, sample
from support.tied import NAMES, SHARE, STORED, WEIGHT, outputs, share_memory, share_nothing, tied
from tensorizer_ops.errors import Cancelled, HashMismatch, NoSuchTensor

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader
Writer = torch.classes.tensorizer.Writer


@pytest.fixture
def shared(path: str) -> str:
    ops.save(path, tied(), options=SHARE)
    return path


# ---- what a save writes


def test_the_data_is_written_once(path: str) -> None:
    ops.save(path, tied())
    assert [entry.name.decode() for entry in parse(Path(path).read_bytes()).entries] == NAMES
    assert share_nothing(*ops.load(path).values())
    ops.save(path, tied(), options={"share": "false"})
    assert len(parse(Path(path).read_bytes()).entries) == len(NAMES)
    ops.save(path, tied(), options=SHARE)
    stored = parse(Path(path).read_bytes())
    assert [entry.name.decode() for entry in stored.entries] == STORED
    assert stored["w"].data == raw(WEIGHT)


def test_the_record_has_the_bytes_that_the_format_says(shared: str) -> None:
    def tie(number: int, entry: int, name: bytes) -> bytes:
        return struct.pack("<IIHBH", number, entry, 0, 2, len(name)) + name

    body = tie(2, 0, b"w.2") + tie(4, 0, b"w.3") + tie(5, 2, b"half.2")
    record = struct.pack("<HI", 5, len(body)) + body
    assert record in parse(Path(shared).read_bytes()).index_tail


DIFFERENT: dict[str, Any] = {
    "offset": lambda: [torch.arange(6)[:3], torch.arange(6)[3:]],
    "shape": lambda: [x := torch.arange(6), x.view(2, 3)],
    "strides": lambda: [x := torch.arange(9).view(3, 3), x.t()],
    "dtype": lambda: [x := torch.arange(6), x.view(torch.float64)],
    "conjugate": lambda: [x := torch.randn(3, dtype=torch.complex64), x.conj()],
    "empty": lambda: [x := torch.empty(0), x],
    "meta": lambda: [x := torch.empty(3, device="meta"), x],
    "scalar on meta": lambda: [x := torch.empty((), device="meta"), x],
    "17 dimensions": lambda: [x := torch.ones([1] * 17), x],
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_what_is_not_the_same_is_written_on_its_own(path: str, make: Any) -> None:
    first, second = make()
    ops.save(path, {"first": first, "second": second}, options=SHARE)
    assert len(parse(Path(path).read_bytes()).entries) == 2
    if not first.is_meta:
        assert_same(ops.load(path), {"first": first, "second": second.resolve_conj()})


def test_views_of_any_layout_are_tied(path: str) -> None:
    base = torch.arange(40.0).view(5, 8)
    views = {"a": base[:, ::2].t(), "b": base[:, ::2].t(), "deep": base.view([5, 8, *[1] * 14])}
    ops.save(path, {**views, "deeper": views["deep"]}, options=SHARE)
    loaded = ops.load(path)
    assert_same(loaded, {**views, "deeper": views["deep"]})
    assert share_memory(loaded["a"], loaded["b"])
    assert share_memory(loaded["deep"], loaded["deeper"])


def test_names_must_be_valid_and_different(path: str) -> None:
    for name in ("", "\x1e[", "n" * 65536):
        with pytest.raises(tensorizer_ops.errors.InvalidArgument):
            ops.save(path, {"w": WEIGHT, name: WEIGHT}, options=SHARE)
    with pytest.raises(ValueError, match="has the same name as"):
        ops.save_tensors(path, ["w", "w"], [WEIGHT, WEIGHT], options=SHARE)
    with pytest.raises(ValueError, match="'share' is 'yes', and must be 'true' or 'false'"):
        ops.save(path, tied(), options={"share": "yes"})
    assert not Path(path).exists()


def test_a_writer_ties_the_tensors_of_one_call(path: str) -> None:
    writer = Writer(path, SHARE)
    writer._add_all(NAMES, list(tied().values()), [2] * len(NAMES), [0] * len(NAMES))
    writer.add("later", WEIGHT)
    with pytest.raises(ValueError, match=r"'w\.2' was added before"):
        writer.add("w.2", WEIGHT)
    writer.close()
    loaded = ops.load(path, verify="all")
    assert list(loaded) == [*NAMES, "later"]
    assert same(loaded["later"], WEIGHT)
    assert share_memory(loaded["w"], loaded["w.3"])
    assert not share_memory(loaded["w"], loaded["later"])


def test_safetensors_files_refuse_it(tmp_path: Path) -> None:
    target = str(tmp_path / "m.safetensors")
    for save in (lambda: ops.save(target, tied(), options=SHARE), lambda: Writer(target, SHARE)):
        with pytest.raises(ValueError, match="stores the data of every name"):
            save()
    assert not Path(target).exists()


# ---- what other readers see


def test_tensorizer_misses_the_other_names_only(shared: str) -> None:
    with tensorizer.TensorDeserializer(shared, device="cpu", verify_hash=True) as classic:
        assert_same(dict(classic), {name: tied()[name] for name in STORED})


# ---- loads


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_loads_share_memory(
    shared: str, verify: str, copy: bool, dtype: torch.dtype | None
) -> None:
    expected = {
        name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        for name, tensor in tied().items()
    }
    for load in (ops.load, tensorizer_ops.load, load_by_reader):
        loaded = load(shared, verify=verify, copy=copy, dtype=dtype)
        assert_same(loaded, expected)
        assert share_memory(loaded["w"], loaded["w.2"], loaded["w.3"])
        assert share_memory(loaded["half"], loaded["half.2"])
        assert share_nothing(*(loaded[name] for name in STORED))
        loaded["w"].add_(1)
        assert same(loaded["w.2"], loaded["w"])
        assert loaded["w.2"]._version == loaded["w"]._version


def load_by_reader(path: str, **options: Any) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = Reader(path, None).load(None, None, **options)
    return loaded


def test_bytes_are_moved_once(shared: str) -> None:
    reader = Reader(shared, None)
    reader.load(["w", "w.2", "w.3"], None, None, "none", True, 1)
    assert reader.stats()["bytes"] == WEIGHT.nbytes


def test_the_index_has_all_names(shared: str) -> None:
    reader = Reader(shared, None)
    assert ops.names(shared) == list(reader.names()) == NAMES
    assert reader.shape("w.3") == [300, 70]
    assert reader.dtype("half.2") == reader.dtype("half")
    of_tie, of_tensor = reader.stored("w.2"), reader.stored("w")
    assert of_tie.pop("name") == "w.2"
    assert of_tensor.pop("name") == "w"
    assert of_tie == of_tensor
    with pytest.raises(KeyError):
        reader.shape("w.4")


@pytest.mark.parametrize("verify", ["none", "all"])
def test_selections(shared: str, verify: str) -> None:
    for names in (["w.2"], ["w.3", "w"], ["half.2", "bias", "w.2", "w.3", "w", "last", "half"]):
        loaded = ops.load(shared, names=names, verify=verify)
        assert_same(loaded, {name: tied()[name] for name in names})
        assert share_memory(*(loaded[name] for name in names if name.startswith("w")))
    # A name that is requested twice is two tensors.
    first, second, other = ops.load_tensors(shared, ["w", "w", "w.2"])
    assert share_nothing(first, second, other)
    with pytest.raises(NoSuchTensor):
        ops.load(shared, names=["w.2", "w.4"])


def test_a_round_trip_keeps_names_and_order(shared: str) -> None:
    before = Path(shared).read_bytes()
    ops.save(shared, ops.load(shared, copy=True), options=SHARE)
    assert Path(shared).read_bytes() == before


@pytest.mark.parametrize("verify", ["none", "all"])
@pytest.mark.parametrize("copy", [False, True])
def test_tensors_of_graphs_have_memory_of_their_own(shared: str, verify: str, copy: bool) -> None:
    loaded = ops.load_tensors(shared, NAMES, verify=verify, copy=copy)
    assert share_nothing(*loaded)
    assert_same(dict(zip(NAMES, loaded, strict=True)), tied())
    loaded = ops.load_slices(shared, ["w", "w.2", "w.3"], [1], [0], [0], [300], verify=verify)
    assert share_nothing(*loaded)
    assert same(loaded[2], WEIGHT)


def test_large_tensors_are_copied_in_whole(path: str) -> None:
    names = ["a", "b", "c"]
    for shape in ((5_000_001,), (3, 1_700_001), (1, 6, 999_983)):
        large = sample(torch.float32, shape)
        ops.save(path, dict.fromkeys(names, large), options=SHARE)
        outputs = [torch.zeros_like(large) for _ in names]
        outputs[1] = torch.zeros(*large.mT.shape).mT if large.dim() > 1 else outputs[1]
        ops.load_into(path, names, outputs)
        for tensor in [*outputs, *ops.load_tensors(path, names)]:
            assert same(tensor, large)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_and_exported_programs(shared: str, backend: str) -> None:
    class Load(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            loaded = tensorizer_ops.load(shared)
            out = torch.zeros(300, 70)
            ops.load_into(shared, ["w.3"], [out])
            parts = tensorizer_ops.load(shared, names=["w", "w.2"], slices={"w.2": slice(2)})
            return loaded["w"].add_(x), loaded["w.2"] + 0, out, parts["w.2"] + 0, parts["w"]

    expected = (WEIGHT + 1, WEIGHT, WEIGHT, WEIGHT[:2], WEIGHT)
    one = torch.ones(())
    torch.compiler.reset()
    for program in (
        torch.compile(Load(), fullgraph=True, backend=backend),
        torch.export.export(Load(), (one,), strict=False).module(),
    ):
        for found, wanted in zip(program(one), expected, strict=True):
            assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
    torch.compiler.reset()


def test_scripts(shared: str) -> None:
    @torch.jit.script
    def load(uri: str) -> tuple[torch.Tensor, torch.Tensor]:
        loaded = torch.ops.tensorizer.load(uri)
        return loaded["w"], loaded["w.2"]

    assert share_memory(*load(shared))


# ---- slices


def test_slices(shared: str) -> None:
    for names, slices in (
        (["w.2"], {"w.2": (slice(None), slice(3, 9))}),
        (["w", "w.2", "w.3"], {"w": slice(5), "w.3": (slice(None), slice(60, 70))}),
        (None, {"half.2": slice(1, 3), "w": slice(0, 300, 7)}),
    ):
        loaded = tensorizer_ops.load(shared, names=names, slices=slices)
        for name in names or NAMES:
            assert same(loaded[name], tied()[name][slices.get(name, ...)])
        assert share_nothing(*(tensor for name, tensor in loaded.items() if name in slices))
    loaded = tensorizer_ops.load(shared, slices={"w": slice(5)})
    assert share_memory(loaded["w.2"], loaded["w.3"])
    assert share_nothing(loaded["w"], loaded["w.2"])
    with pytest.raises(ValueError, match=r"tensor 'w\.3' \(index entry 0\) has the shape"):
        ops.load_slices(shared, ["w.3"], [0], [0], [0], [301])


# ---- load_into


@pytest.mark.parametrize("verify", ["none", "all"])
def test_load_into_fills_all_outputs(shared: str, verify: str) -> None:
    out = outputs()
    out["w.2"] = torch.zeros(70, 600)[:, ::2].t()
    memory = [tensor.data_ptr() for tensor in out.values()]
    versions = [tensor._version for tensor in out.values()]
    ops.load_into(shared, NAMES, list(out.values()), verify=verify)
    assert_same(out, tied())
    assert [tensor.data_ptr() for tensor in out.values()] == memory
    assert all(new._version > old for new, old in zip(out.values(), versions, strict=True))


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float16, torch.float32, torch.float64),
        (torch.float16, torch.bfloat16, torch.float16),
        (torch.float64, torch.float64, torch.bfloat16),
    ],
)
def test_load_into_casts_each_output_from_the_file(
    shared: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    out = [torch.zeros(300, 70, dtype=dtype) for dtype in dtypes]
    ops.load_into(shared, ["w", "w.2", "w.3"], out, cast=True)
    for tensor, dtype in zip(out, dtypes, strict=True):
        assert same(tensor, WEIGHT.to(dtype))


def test_tied_names_may_have_the_same_output(shared: str) -> None:
    out = torch.zeros(300, 70)
    ops.load_into(shared, ["w.2", "w"], [out, out.view(300, 70)], verify="all")
    assert same(out, WEIGHT)
    for names in (["w", "w"], ["w", "bias"]):
        other = out if names[1] == "w" else torch.zeros(9, dtype=torch.int64)
        wrong = [out, other] if other is out else [other, other]
        with pytest.raises(ValueError):
            ops.load_into(shared, names, wrong)
    with pytest.raises(ValueError, match=r"'w\.2' .*has the shape"):
        ops.load_into(shared, ["w", "w.2"], [out, torch.zeros(3)])


def test_outputs_on_meta_stay_so(shared: str) -> None:
    out = torch.zeros(300, 70)
    ops.load_into(shared, ["w", "w.2"], [torch.empty(300, 70, device="meta"), out])
    assert same(out, WEIGHT)


@pytest.mark.parametrize("damaged", ["w", "last"])
def test_outputs_of_a_failed_load_are_checked_or_zero(shared: str, damaged: str) -> None:
    data = bytearray(Path(shared).read_bytes())
    data[parse(bytes(data))[damaged].data_offset] ^= 1
    Path(shared).write_bytes(data)
    with pytest.raises(HashMismatch, match=f"'{damaged}'"):
        ops.verify(shared)
    for names in (NAMES, ["w.3", "w.2", "last"]):
        out = outputs()
        with pytest.raises(HashMismatch):
            ops.load_into(shared, names, [out[name] for name in names], verify="all")
        for name in names:
            assert same(out[name], tied()[name]) or not out[name].any(), name
        assert not any(out[name].any() for name in names if name == damaged)
    with pytest.raises(HashMismatch):
        ops.load(shared, names=["w.3", "last"], verify="all")


def test_copies_to_tied_outputs_are_cancelled(path: str) -> None:
    weight = sample(torch.float32, (2048, 2048))
    names = [f"t{i}" for i in range(30)]
    ops.save(path, dict.fromkeys(names, weight), options=SHARE)
    reader = Reader(path, None)
    # Not contiguous, because such copies take longer.
    out = [torch.full_like(weight, 7).t() for _ in names]
    out[0] = out[0].t()
    cancelled: list[float] = []

    def cancel() -> None:
        done, total = 0, 1
        while done < total:
            time.sleep(0.001)
            done, total = reader.progress()
            total = max(total, 1)
        cancelled.append(time.monotonic())
        reader.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        reader.load_into(names, out)
    end = time.monotonic()
    thread.join()
    assert same(out[0], weight)
    assert torch.all(out[-1] == 7), "what is not copied stays as it is"
    begin = time.monotonic()
    reader.load_into(names, out)
    whole = time.monotonic() - begin
    assert all(same(each, weight) for each in out)
    assert end - cancelled[0] < whole / 2
