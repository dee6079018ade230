"""Safetensors files: everything that loads `.tensors` files loads them as safetensors does."""

from __future__ import annotations

import io
import json
import random
import resource
import struct
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save, save_file

import tensorizer_ops
from support.process import feed, fork_python
from support.samples import DTYPES, SAFETENSORS_NAMES, SHAPES, assert_same, raw, sample

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader


def pack(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensors() -> dict[str, torch.Tensor]:
    return {
        **{name: sample(DTYPES[name], (40, 50)) for name in SAFETENSORS_NAMES},
        "large": sample(torch.float32, (700, 1000)),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "": torch.ones(3),
        'quote " and \\ and \n and ü and \0': torch.ones(2),
    }


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "m.safetensors")


@pytest.mark.parametrize("copy", [False, True])
def test_every_type_and_shape_loads(path: str, copy: bool) -> None:
    wanted = {
        f"{dtype} {shape}": sample(DTYPES[dtype], SHAPES[shape])
        for dtype in SAFETENSORS_NAMES
        for shape in SHAPES
        if not (shape == "scalar" and dtype == "float4_e2m1fn_x2")  # half a byte
    }
    save_file(wanted, path)
    assert_same(
        dict(sorted(tensorizer_ops.load(path, copy=copy).items())), dict(sorted(wanted.items()))
    )


def test_empty_tensors_between_others_in_a_pipe(path: str, tmp_path: Path) -> None:
    """An empty tensor begins where the next one does, and comes before it."""
    wanted = {f"t{i:02}": torch.ones(0 if i == 0 else 100 + i) for i in range(20)}
    tensorizer_ops.save(path, wanted)
    fifo = str(tmp_path / "fifo")
    with feed(fifo, Path(path).read_bytes()):
        assert_same(tensorizer_ops.load(fifo, verify="all"), wanted)


def test_names_come_in_the_order_of_the_header(path: str) -> None:
    save_file(tensors(), path)
    with open(path, "rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
    assert list(ops.names(path)) == list(header)
    reader = Reader(path, None)
    assert reader.names() == list(header)
    for name, info in header.items():
        if info["dtype"] != "F4":
            assert list(reader.shape(name)) == info["shape"]
        stored = reader.stored(name)
        begin, end = info["data_offsets"]
        assert stored["data_offset"] == stored["header_offset"] == str(8 + size + begin)
        assert stored["data_size"] == str(end - begin)


def test_every_way_to_load(path: str) -> None:
    wanted = tensors()
    save_file(wanted, path)
    names = ["large", "int8", "bfloat16"]
    some = {name: wanted[name] for name in names}
    assert_same(ops.load(path, names=names), some)
    assert_same(dict(zip(names, ops.load_tensors(path, names), strict=True)), some)
    outputs = {name: torch.zeros_like(tensor) for name, tensor in some.items()}
    ops.load_into(path, names, list(outputs.values()))
    assert_same(outputs, some)
    with open(path, "rb") as stream:
        data = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8)
    assert_same(ops.open(data).load(names, None, None, "none", False, 0), some)
    loaded = tensorizer_ops.load(path, names=names, dtype=torch.float64, device="cpu")
    assert_same(loaded, {n: t.double() if t.is_floating_point() else t for n, t in some.items()})
    assert all(t.is_meta for t in tensorizer_ops.load(path, device="meta").values())


def test_a_module_is_filled(path: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    save_file(module.state_dict(), path)
    other = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    tensorizer_ops.load_into(other, path)
    assert_same(other.state_dict(), module.state_dict())


def test_scripts_and_compiled_code_load(path: str) -> None:
    save_file(tensors(), path)

    @torch.jit.script
    def scripted(path: str) -> torch.Tensor:
        return torch.ops.tensorizer.load(path, names=["int64"])["int64"] + 1

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(path: str) -> torch.Tensor:
        return tensorizer_ops.load(path, names=["int64"])["int64"] + 1

    assert torch.equal(scripted(path), tensors()["int64"] + 1)
    assert torch.equal(compiled(path), tensors()["int64"] + 1)


def test_aligned_data_is_mapped(path: str) -> None:
    save_file(tensors(), path)
    loaded = tensorizer_ops.load(path)
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if line.endswith(path)]
    for name, tensor in loaded.items():
        if tensor.numel():
            at = tensor.data_ptr()
            assert any(int(low, 16) <= at < int(high, 16) for low, high in ranges), name


def test_data_that_is_not_aligned_is_copied(path: str) -> None:
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "float": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    Path(path).write_bytes(pack(header, b"\7" + struct.pack("<ff", 1.5, -2.0)))
    loaded = tensorizer_ops.load(path)
    assert loaded["float"].tolist() == [1.5, -2.0] and loaded["float"].data_ptr() % 4 == 0
    assert loaded["byte"].tolist() == [7]


def test_metadata(path: str, tmp_path: Path) -> None:
    wanted = {"format": "pt", "ünicode \n": '"\\', "empty": "", "long": "x" * 100_000}
    save_file({"x": torch.ones(2)}, path, metadata=wanted)
    assert tensorizer_ops.metadata(path) == wanted
    assert Reader(path, None).metadata() == wanted
    assert list(ops.names(path)) == ["x"]
    save_file({"x": torch.ones(2)}, path)
    assert tensorizer_ops.metadata(path) == {}
    tensorizer_ops.save(tmp_path / "m.tensors", {"x": torch.ones(2)})
    assert tensorizer_ops.metadata(tmp_path / "m.tensors") == {}


def test_there_is_nothing_to_verify(path: str) -> None:
    save_file({"x": torch.ones(2)}, path)
    for load in (lambda: ops.verify(path), lambda: tensorizer_ops.load(path, verify="all")):
        with pytest.raises(ValueError, match=r"'x'.*nothing to verify.*without hashes"):
            load()


def test_its_digest_is_that_of_the_same_tensors_elsewhere(path: str, tmp_path: Path) -> None:
    wanted = {name: tensor for name, tensor in tensors().items() if name}
    save_file(wanted, path)
    other = tmp_path / "m.tensors"
    tensorizer_ops.save(other, wanted)
    pin = tensorizer_ops.digest(path)
    assert pin == tensorizer_ops.digest(other)
    assert_same(
        dict(sorted(tensorizer_ops.load(path, options={"digest": pin}).items())),
        dict(sorted(wanted.items())),
    )
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match="its digest is"):
        tensorizer_ops.load(path, options={"digest": pin})


def test_it_can_be_encrypted_into_the_other_format(path: str, tmp_path: Path) -> None:
    wanted = {name: tensor for name, tensor in tensors().items() if name}
    save_file(wanted, path)
    tensorizer_ops.keys.add("safetensors", key=bytes(32))
    try:
        secret = tmp_path / "m.tensors"
        tensorizer_ops.encrypt(path, secret, key="named:safetensors")
        loaded = tensorizer_ops.load(secret, options={"key": "named:safetensors"})
        assert_same(loaded, {name: wanted[name] for name in loaded})
        assert loaded.keys() == wanted.keys()
    finally:
        tensorizer_ops.keys.remove("safetensors")


def random_state(dice: random.Random) -> dict[str, torch.Tensor]:
    state = {}
    for _ in range(dice.randrange(12)):
        name = "".join(
            dice.choice('abc.0_"\\/\n\té漢😀\x7f\0 ') for _ in range(dice.randrange(1, 20))
        )
        shape = tuple(dice.choice([0, 1, 2, 3, 17, 300]) for _ in range(dice.randrange(4)))
        dtype = DTYPES[dice.choice(SAFETENSORS_NAMES)]
        if shape or dtype != torch.float4_e2m1fn_x2:
            state[name] = sample(dtype, shape, dice.randrange(1000))
    return state


def as_bytes(state: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    return {name: (t.dtype, t.shape, raw(t)) for name, t in sorted(state.items())}


def test_random_files_load_as_safetensors_loads_them(path: str) -> None:
    dice = random.Random(20)
    for _ in range(500):
        state = random_state(dice)
        metadata = {str(i): dice.choice(["", "é", '"', "x" * 50]) for i in range(dice.randrange(3))}
        save_file(state, path, metadata or None)
        loaded = tensorizer_ops.load(path, copy=dice.random() < 0.5)
        assert as_bytes(loaded) == as_bytes(load_file(path)) == as_bytes(state)
        assert tensorizer_ops.metadata(path) == metadata


def is_accepted_by_safetensors(data: bytes, path: str) -> bool:
    Path(path).write_bytes(data)
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                opened.get_tensor(name)
    except Exception:
        return False
    return True


def test_damaged_headers_are_refused_at_least_where_safetensors_refuses_them(path: str) -> None:
    dice = random.Random(21)
    files = [save(random_state(dice), {"format": "pt"}) for _ in range(20)]
    tokens = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"0", b"9", b"-", b".", b"e", b" ", b"\\"]
    refused = 0
    for _ in range(2000):
        data = bytearray(dice.choice(files))
        (size,) = struct.unpack("<Q", data[:8])
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(8 + size)
            data[at : at + 1] = dice.choice(tokens) if at >= 8 else bytes([dice.randrange(256)])
        try:
            Path(path).write_bytes(data)
            tensorizer_ops.load(path)
        except ValueError as error:
            assert path in str(error)
            refused += 1
        else:
            assert is_accepted_by_safetensors(bytes(data), path)
    assert 1000 < refused < 2000


def test_a_million_tensors_take_400_bytes_each(path: str) -> None:
    count = 1_000_000
    text = io.StringIO()
    text.write("{")
    for i in range(count):
        text.write(
            f'{"," * (i > 0)}"model.layers.{i}.weight":{{"dtype":"F16","shape":[1,1],'
            f'"data_offsets":[{2 * i},{2 * i + 2}]}}'
        )
    text.write("}")
    header = text.getvalue().encode()
    Path(path).write_bytes(pack(header, bytes(2 * count)))
    code = f"""
import resource
from tensorizer_ops._front.inspection import File
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file = File({path!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(fork_python(code).stdout) * 1024
    assert grown < 400 * count


def test_a_claimed_header_takes_no_memory(path: str) -> None:
    Path(path).write_bytes(struct.pack("<Q", 100_000_000) + b'{"x":')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="claims 100000000 bytes, but the file ends at 13"):
        tensorizer_ops.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000
