"""Loads and saves on every kind of device: a load returns what was saved, bit for bit."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.samples import SHAPES, same, sample, zoo

ops = torch.ops.tensorizer

# Devices whose tensors have data.
REAL = ["cpu", "sim", *(["cuda"] if torch.cuda.is_available() else [])]


def opened(name: str) -> Iterator[str]:
    if name != "sim":
        yield name
        return
    from support import sim_device

    with sim_device.fresh():
        yield name
        assert not sim_device.violations()


@pytest.fixture(params=[*REAL, "meta"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from opened(request.param)


@pytest.fixture(params=REAL)
def real_device(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from opened(request.param)


def assert_loaded(actual: torch.Tensor, expected: torch.Tensor, device: str) -> None:
    assert actual.device.type == device
    if device == "meta":
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    else:
        assert same(actual.cpu(), expected)
    assert not actual.requires_grad


def test_digests_of_memory(real_device: str) -> None:
    """In several pieces, if they come from a device."""
    data = torch.arange((20 << 18) + 3, dtype=torch.int32)
    there = data.to(real_device)
    assert ops.crc32(there) == ops.crc32(data)
    assert torch.equal(ops.sha256(there).cpu(), ops.sha256(data))
    for chunk in (65_536, 17 << 20):
        digests = ops.sha256_chunks(there, chunk)
        assert digests.device.type == real_device
        assert torch.equal(digests.cpu(), ops.sha256_chunks(data, chunk))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("copy", [False, True])
def test_loads_every_dtype_and_shape(
    path: str, device: str, shape: tuple[int, ...], copy: bool
) -> None:
    tensors = zoo(shape)
    ops.save(path, tensors)
    for verify in ("none", "crc32", "all"):
        loaded = ops.load(path, device=device, copy=copy, verify=verify)
        assert list(loaded) == list(tensors)
        for name, tensor in tensors.items():
            assert_loaded(loaded[name], tensor, device)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_saves_every_dtype_and_shape(path: str, device: str, shape: tuple[int, ...]) -> None:
    tensors = zoo(shape)
    ops.save(path, {name: tensor.to(device) for name, tensor in tensors.items()})
    for name, tensor in ops.load(path, verify="all").items():
        assert_loaded(
            tensor, tensors[name] if device != "meta" else zeros_like(tensors[name]), "cpu"
        )


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    return (
        torch.zeros(tensor.numel() * tensor.itemsize, dtype=torch.uint8)
        .view(tensor.dtype)
        .view(tensor.shape)
    )


LARGE = {
    "odd": (1_234_567,),
    "larger than a piece": (3, 1_000_003),
    "one column": (700_001, 1),
    **{f"small {i}": (i, 7) for i in range(200)},
}


@pytest.fixture(scope="module")
def large() -> dict[str, torch.Tensor]:
    return {name: sample(torch.int32, shape, i) for i, (name, shape) in enumerate(LARGE.items())}


@pytest.mark.parametrize("verify", ["none", "crc32", "all"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_tensors_in_small_pieces(
    path: str, device: str, large: dict[str, torch.Tensor], verify: str, threads: int
) -> None:
    ops.save(path, large)
    options = {"staging": str(1 << 20), "memory_ceiling": str(1 << 20)}
    loaded = ops.load(path, device=device, verify=verify, threads=threads, options=options)
    for name, tensor in large.items():
        assert_loaded(loaded[name], tensor, device)


@pytest.mark.parametrize("hashes", ["none", "crc32", "all"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_saves_large_tensors_in_small_pieces(
    path: str, real_device: str, large: dict[str, torch.Tensor], hashes: str, threads: int
) -> None:
    options = {"staging": str(1 << 20), "memory_ceiling": str(1 << 20)}
    there = {name: tensor.to(real_device) for name, tensor in large.items()}
    ops.save(path, there, hashes=hashes, threads=threads, options=options)
    expected = f"{path}.expected"
    ops.save(expected, large, hashes=hashes)
    assert Path(path).read_bytes() == Path(expected).read_bytes()


def test_a_writer_takes_them(path: str, real_device: str, large: dict[str, torch.Tensor]) -> None:
    writer = torch.classes.tensorizer.Writer(path, None)
    for name, tensor in large.items():
        writer.add(name, tensor.to(real_device), 2, 0)
    writer.close()
    for name, tensor in ops.load(path, verify="all").items():
        assert same(tensor, large[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_casts(path: str, device: str, dtype: torch.dtype) -> None:
    tensors = {
        "floats": torch.randn(1000, 1001),
        "halves": torch.randn(3, 5).half(),
        "integers": torch.arange(7),
        "complex": torch.randn(4, dtype=torch.complex64),
        "scalar": torch.tensor(1.5),
    }
    ops.save(path, tensors)
    loaded = ops.load(path, device=device, dtype=dtype, options={"staging": str(1 << 20)})
    for name, tensor in tensors.items():
        expected = tensor.to(dtype) if tensor.is_floating_point() else tensor
        assert_loaded(loaded[name], expected, device)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda t: t,
    "transposed": lambda t: t.t(),
    "every second column": lambda t: t[:, ::2],
    "rows inside": lambda t: t[3:-2],
    "conjugated": lambda t: t.conj(),
    "negated": lambda t: t.conj().imag,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_fills_any_layout(
    path: str, device: str, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    base = torch.zeros(700, 500, dtype=torch.complex64)
    wanted = sample(torch.int16, tuple(view(base).shape)).to(view(base).dtype)
    ops.save(path, {"x": wanted})
    there = torch.zeros_like(base, device=device)
    ops.load_into(path, ["x"], [view(there)], options={"staging": str(1 << 20)})
    if device != "meta":
        view(base).copy_(wanted)
        assert same(there.cpu(), base)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_saves_any_layout(
    path: str, real_device: str, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    base = torch.randn(700, 500, dtype=torch.complex64)
    ops.save(path, {"x": view(base.to(real_device))}, options={"staging": str(1 << 20)})
    assert same(ops.load(path, verify="all")["x"], view(base).resolve_conj().resolve_neg())


def test_subsets_and_repeated_names(path: str, device: str) -> None:
    tensors = zoo()
    ops.save(path, tensors)
    wanted = ["bits8", "float32", "bool", "float32"]
    loaded = ops.load_tensors(path, wanted, device=device)
    for name, tensor in zip(wanted, loaded, strict=True):
        assert_loaded(tensor, tensors[name], device)
    if device != "meta":
        loaded[1].zero_()
        assert same(loaded[3].cpu(), tensors["float32"])


def test_from_a_pipe(path: str, device: str, large: dict[str, torch.Tensor]) -> None:
    ops.save(path, large)
    reading, writing = os.pipe()

    def write() -> None:
        # A load to the meta device reads only the index.
        with contextlib.suppress(BrokenPipeError), open(writing, "wb") as pipe:
            pipe.write(Path(path).read_bytes())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        loaded = ops.load(f"fd:{reading}", device=device, verify="all")
    finally:
        os.close(reading)
        writer.join()
    for name, tensor in large.items():
        assert_loaded(loaded[name], tensor, device)


def test_damage_is_noticed(path: str, real_device: str, large: dict[str, torch.Tensor]) -> None:
    ops.save(path, large)
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(path).write_bytes(content)
    for verify in ("crc32", "all"):
        with pytest.raises(tensorizer_ops.errors.HashMismatch):
            ops.load(path, device=real_device, verify=verify)
    Path(path).write_bytes(content[: len(content) // 2])
    with pytest.raises(tensorizer_ops.errors.InvalidFormat):
        ops.load(path, device=real_device)


@pytest.fixture
def key() -> Iterator[dict[str, str]]:
    tensorizer_ops.keys.add("devices", key=bytes(range(32)))
    yield {"key": "named:devices"}
    tensorizer_ops.keys.remove("devices")


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("staging", [1 << 20, 64 << 20])
def test_what_is_encrypted(
    path: str,
    real_device: str,
    large: dict[str, torch.Tensor],
    key: dict[str, str],
    threads: int,
    staging: int,
) -> None:
    options = key | {"staging": str(staging)}
    there = {name: tensor.to(real_device) for name, tensor in large.items()}
    ops.save(path, there, threads=threads, options=options)
    for verify in ("none", "all"):
        loaded = ops.load(path, device=real_device, verify=verify, threads=threads, options=options)
        for name, tensor in large.items():
            assert_loaded(loaded[name], tensor, real_device)


def test_what_cannot_be_decrypted_becomes_zeros(
    path: str, real_device: str, large: dict[str, torch.Tensor], key: dict[str, str]
) -> None:
    """Also if the first chunks are valid, and are being copied to the device already."""
    ops.save(path, large, options=key)
    name = "larger than a piece"
    content = bytearray(Path(path).read_bytes())
    begin = int(torch.classes.tensorizer.Reader(path, None).stored(name)["data_offset"])
    content[begin + large[name].nbytes - 1] ^= 1
    Path(path).write_bytes(content)
    output = torch.ones_like(large[name]).to(real_device)
    with pytest.raises(tensorizer_ops.errors.Crypto, match=name):
        ops.load_into(path, [name], [output], options=key)
    assert not output.cpu().any()


def test_modules_are_filled(path: str, device: str) -> None:
    source = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    tensorizer_ops.save(path, source.state_dict())
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    tensorizer_ops.load_into(module, path, device=device)
    for name, tensor in module.state_dict().items():
        assert_loaded(tensor, source.state_dict()[name], device)


def test_default_device(path: str, device: str) -> None:
    ops.save(path, {"x": torch.ones(3)})
    with torch.device(device):
        assert tensorizer_ops.load(path)["x"].device.type == device
        assert ops.load(path)["x"].device.type == "cpu"
    for spelled in (device, torch.device(device)):
        assert tensorizer_ops.load(path, device=spelled)["x"].device.type == device


def test_devices_that_are_not_there(path: str) -> None:
    ops.save(path, {"x": torch.ones(3)})
    for device in ("xpu", "cuda:99", "hpu"):
        with pytest.raises(Exception) as torchs:
            torch.empty(3, device=device)
        with pytest.raises(Exception) as ours:
            tensorizer_ops.load(path, device=device)
        if isinstance(torchs.value, AssertionError | NotImplementedError):
            assert isinstance(ours.value, tensorizer_ops.errors.InvalidArgument)
            assert f"'{device}', for which this torch was not built" in str(ours.value)
        else:
            assert type(ours.value) is type(torchs.value)
            assert str(ours.value).splitlines()[0] == str(torchs.value).splitlines()[0]


@pytest.mark.parametrize("real_device", ["sim"], indirect=True)
@pytest.mark.parametrize("load", [tensorizer_ops.load, ops.load])
def test_a_number_that_no_device_has(
    real_device: str, path: str, load: Callable[..., object]
) -> None:
    ops.save(path, {"x": torch.ones(3)})
    with pytest.raises(RuntimeError, match="there is no device 7"):
        load(path, device=f"{real_device}:7")


@pytest.mark.parametrize("real_device", ["sim"], indirect=True)
def test_refused_while_a_graph_is_captured(real_device: str, path: str, tmp_path: Path) -> None:
    from support import sim_device as sim

    tensor = torch.zeros(3, device=real_device)
    ops.save(path, {"x": tensor})
    torch.accelerator.synchronize()
    sim.set_capturing(True)
    for call in (
        lambda: ops.load(path, device=real_device),
        lambda: ops.save(str(tmp_path / "new.tensors"), {"x": tensor}),
    ):
        with pytest.raises(ValueError, match=r"sim:0 is being captured .* before the capture"):
            call()
    sim.set_capturing(False)
    assert not (tmp_path / "new.tensors").exists()


def test_saves_a_snapshot_in_the_background(path: str, real_device: str) -> None:
    tensors = {name: tensor.to(real_device) for name, tensor in zoo((40, 30)).items()}
    expected = zoo((40, 30))
    base = torch.randn(40, 30, dtype=torch.complex64)
    for name, view in VIEWS.items():
        tensors[name], expected[name] = view(base.to(real_device, copy=True)), view(base)
    both = base.to(real_device, copy=True)
    tensors |= {"tied": both, "and conjugated": both.conj()}
    expected |= {"tied": base, "and conjugated": base.conj()}
    save = tensorizer_ops.save_async(path, tensors)
    for tensor in tensors.values():
        tensor.untyped_storage().fill_(0) if tensor.is_cpu else tensor.zero_()
    save.result(30)
    for name, tensor in tensorizer_ops.load(path, verify="all").items():
        assert same(tensor, expected[name])
