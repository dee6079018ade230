"""Saves of safetensors files, and copies between the formats."""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from support.samples import DTYPES, SAFETENSORS_NAMES, SHAPES, assert_same, raw, sample

ops = torch.ops.tensorizer
Writer = torch.classes.tensorizer.Writer
DIGESTS = "tensorizer_ops.sha256"


def tensors() -> dict[str, torch.Tensor]:
    return {
        **{name: sample(DTYPES[name], (40, 50), i) for i, name in enumerate(SAFETENSORS_NAMES)},
        "large": sample(torch.float32, (3000, 1000)),
        "view": sample(torch.float16, (30, 20)).t(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        'quote " and \\ and \n and \x1f and \x7f and ü': torch.ones(2),
    }


def header_of(path: str) -> dict[str, dict[str, object]]:
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header: dict[str, dict[str, object]] = json.loads(data[8 : 8 + size])
    return header


def by_name(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(sorted(state.items()))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "m.safetensors")


def test_without_hashes_the_bytes_are_those_of_safetensors(path: str) -> None:
    dice = random.Random(22)
    for _ in range(200):
        state = {}
        for _ in range(dice.randrange(10)):
            name = "".join(dice.choice('ab.0"\\/\n\r\b\f\té漢😀\x7f\x01 ') for _ in range(9))
            shape = SHAPES[dice.choice([shape for shape in SHAPES if shape != "scalar"])]
            state[name] = sample(DTYPES[dice.choice(SAFETENSORS_NAMES)], shape)
        metadata = dice.choice([None, {}, {"format": "pt"}, {'"é\n': "\\\x00"}])
        if not state and metadata == {}:
            continue  # of which the other library makes text that is no JSON
        progress = dice.choice([None, lambda done, total: None])
        tensorizer_ops.save(path, state, hashes="none", metadata=metadata, progress=progress)
        assert Path(path).read_bytes() == safetensors.torch.save(state, metadata)


def test_metadata_without_text_and_no_tensors(path: str) -> None:
    tensorizer_ops.save(path, {}, hashes="none", metadata={})
    assert header_of(path) == {"__metadata__": {}}
    assert safetensors.torch.load_file(path) == {}
    tensorizer_ops.convert(path, path, hashes="none")
    assert header_of(path) == {"__metadata__": {}}


@pytest.mark.parametrize("hashes", ["all", "sha256"])
def test_with_hashes_both_libraries_load(path: str, hashes: tensorizer_ops.Hashes) -> None:
    tensorizer_ops.save(path, tensors(), hashes=hashes, metadata={"format": "pt"})
    assert_same(by_name(safetensors.torch.load_file(path)), by_name(tensors()))
    assert_same(by_name(tensorizer_ops.load(path, verify="all")), by_name(tensors()))
    assert_same(by_name(tensorizer_ops.load(path, verify="crc32")), by_name(tensors()))
    ops.verify(path)
    assert tensorizer_ops.metadata(path) == {"format": "pt"}
    assert len(str(header_of(path)["__metadata__"][DIGESTS])) == 64 * (len(tensors()) + 2)


def test_damage_is_found(path: str) -> None:
    tensorizer_ops.save(path, tensors())
    stored = torch.classes.tensorizer.Reader(path, None).stored("large")
    data = bytearray(Path(path).read_bytes())
    data[int(stored["data_offset"]) + 5_000_000] ^= 1
    Path(path).write_bytes(data)
    for verify in ("crc32", "all"):
        with pytest.raises(tensorizer_ops.errors.HashMismatch, match=r"'large'.*SHA-256"):
            ops.load(path, verify=verify)
    ops.load(path, names=["scalar", "view"], verify="all")


@pytest.mark.parametrize(("hashes", "version"), [("all", 1), ("chunked", 2)])
def test_a_part_is_pinned_by_the_digests_in_the_file(path: str, hashes: str, version: int) -> None:
    tensorizer_ops.save(path, tensors(), hashes=hashes)
    pin = {"digest": tensorizer_ops.digest(path, version=version)}
    loaded = tensorizer_ops.load(path, names=["view"], options=pin)
    assert raw(loaded["view"]) == raw(tensors()["view"])
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)
    last = list(ops.names(path))[-1]
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match=last):
        tensorizer_ops.load(path, names=[last], options=pin)


@pytest.mark.parametrize("save", [tensorizer_ops.save, ops.save], ids=["function", "operator"])
@pytest.mark.parametrize(
    "name, options, begin",
    [
        ("m.safetensors", {}, b"{"),
        ("m.tensors", {}, b"|"),
        ("m", {}, b"|"),
        ("m.safetensors", {"format": "tensors"}, b"|"),
        ("m.tensors", {"format": "safetensors"}, b"{"),
    ],
)
def test_the_option_decides_before_the_name(
    tmp_path: Path, save: Callable[..., None], name: str, options: dict[str, str], begin: bytes
) -> None:
    state = {"x": torch.ones(3)}
    save(str(tmp_path / name), state, options=options)
    data = (tmp_path / name).read_bytes()
    assert data[:1] == begin or (begin == b"{" and data[8:9] == begin)
    assert_same(tensorizer_ops.load(tmp_path / name), state)


def test_the_name_of_an_index_is_no_target(tmp_path: Path) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text("{}")
    with pytest.raises(ValueError, match="that of an index"):
        tensorizer_ops.save(index, {"x": torch.ones(1)})
    assert index.read_text() == "{}"


WANTED = {"format": "pt", "ünicode \n": '"\\\0', "empty": ""}


def by_writer(path: str, x: torch.Tensor) -> None:
    writer = Writer(path, None, WANTED)
    writer.add("x", x)
    writer.close()


@torch.jit.script
def scripted(path: str, x: torch.Tensor, metadata: dict[str, str]) -> None:
    torch.ops.tensorizer.save(path, {"x": x}, metadata=metadata)


@torch.compile(backend="eager", fullgraph=True)
def compiled(path: str, x: torch.Tensor) -> None:
    tensorizer_ops.save(path, {"x": x}, metadata={"format": "pt", "empty": ""})


WAYS_TO_SAVE: dict[str, Callable[[str, torch.Tensor], None]] = {
    "save": lambda path, x: tensorizer_ops.save(path, {"x": x}, metadata=WANTED),
    "watched": lambda path, x: tensorizer_ops.save(
        path, {"x": x}, metadata=WANTED, progress=lambda done, total: None
    ),
    "async": lambda path, x: tensorizer_ops.save_async(path, {"x": x}, metadata=WANTED).result(),
    "save_tensors": lambda path, x: ops.save_tensors(path, ["x"], [x], metadata=WANTED),
    "writer": by_writer,
    "scripted": lambda path, x: scripted(path, x, WANTED),
    "compiled": compiled,
}


@pytest.mark.parametrize("end", ["tensors", "safetensors"])
@pytest.mark.parametrize("way", WAYS_TO_SAVE)
def test_every_way_to_save_stores_metadata(tmp_path: Path, way: str, end: str) -> None:
    x = torch.arange(5)
    path = str(tmp_path / f"m.{end}")
    WAYS_TO_SAVE[way](path, x)
    wanted = {"format": "pt", "empty": ""} if way == "compiled" else WANTED
    assert tensorizer_ops.metadata(path) == wanted
    assert torch.classes.tensorizer.Reader(path, None).metadata() == wanted
    assert_same(tensorizer_ops.load(path, verify="all"), {"x": x})


def test_tensorizer_reads_files_with_metadata(tmp_path: Path) -> None:
    from tensorizer import TensorDeserializer

    state = {"x": sample(torch.float32, (50, 3)), "y": sample(torch.bfloat16, (7,))}
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, state, metadata={"format": "pt"}, options={"digests": "true"})
    with TensorDeserializer(str(path), verify_hash=True) as opened:
        assert_same(dict(opened), state)


def test_a_key_authenticates_metadata(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.keys.add("metadata", key=bytes(32))
    options = {"key": "named:metadata"}
    try:
        tensorizer_ops.save(path, {"x": torch.ones(2)}, options=options, metadata={"a": "trusted"})
        assert tensorizer_ops.metadata(path, options=options) == {"a": "trusted"}
        path.write_bytes(path.read_bytes().replace(b"trusted", b"twisted"))
        with pytest.raises(tensorizer_ops.CryptographyError, match="the file was modified"):
            tensorizer_ops.metadata(path, options=options)
    finally:
        tensorizer_ops.keys.remove("metadata")


def test_a_writer_writes_in_the_order_of_its_calls(path: str) -> None:
    state = {name: tensors()[name] for name in ("scalar", "int8", "large", "view", "empty")}
    writer = Writer(path, {"hashes": "sha256"}, {"format": "pt"})
    for name, tensor in state.items():
        writer.add(name, tensor)
    with pytest.raises(ValueError, match="'int8' was added before"):
        writer.add("int8", torch.ones(1))
    with pytest.raises(ValueError, match="no type for complex128"):
        writer.add("c", torch.ones(1, dtype=torch.complex128))
    writer.close()
    assert list(header_of(path))[1:] == list(state)
    assert_same(tensorizer_ops.load(path, verify="all"), state)
    assert_same(by_name(safetensors.torch.load_file(path)), by_name(state))


def test_a_writer_outgrows_its_room(path: str) -> None:
    state = {f"{i:04d}" * 20: torch.tensor([i]) for i in range(3000)}
    writer = Writer(path, {"hashes": "none"}, None)
    for name, tensor in state.items():
        writer.add(name, tensor)
    writer.close()
    assert_same(tensorizer_ops.load(path), state)


def test_room_for_more_tensors_stays_within_the_limit_of_the_format(path: str) -> None:
    state = {"a": torch.ones(3), "b": torch.zeros(2)}
    with open(path, "w+b") as stream:
        options = {"format": "safetensors", "hashes": "none"}
        writer = Writer(f"fd:{stream.fileno()}", options, {"k": "x" * 60_000_000})
        for name, tensor in state.items():
            writer.add(name, tensor)
        writer._flush()
        assert_same(tensorizer_ops.load(path), state)
        writer.close()
    assert_same(tensorizer_ops.load(path), state)
    assert_same(safetensors.torch.load_file(path), state)


def test_tensor_serializer_keeps_its_format(path: str) -> None:
    serializer = tensorizer_ops.TensorSerializer(path)
    serializer.write_state_dict({"x": torch.ones(2)})
    serializer.close()
    assert Path(path).read_bytes()[:5] == b"|TZR|"


def test_conversion_keeps_everything(tmp_path: Path, path: str) -> None:
    there = tmp_path / "m.tensors"
    back = tmp_path / "back.safetensors"
    metadata = {"format": "pt", "note": "ü"}
    tensorizer_ops.save(path, tensors(), metadata=metadata)
    tensorizer_ops.convert(path, there)
    tensorizer_ops.convert(there, back)
    assert there.read_bytes()[:5] == b"|TZR|"
    for copy in (there, back):
        assert list(ops.names(str(copy))) == list(ops.names(path))
        assert tensorizer_ops.metadata(copy) == metadata
        assert_same(by_name(tensorizer_ops.load(copy, verify="all")), by_name(tensors()))
        assert tensorizer_ops.digest(copy) == tensorizer_ops.digest(path)
    assert back.read_bytes() == Path(path).read_bytes()


@pytest.mark.parametrize("metadata", [None, {}])
def test_conversion_keeps_metadata_without_text(
    tmp_path: Path, path: str, metadata: dict[str, str] | None
) -> None:
    tensorizer_ops.save(path, tensors(), hashes="none", metadata=metadata)
    copy = tmp_path / "copy.safetensors"
    tensorizer_ops.convert(path, copy, hashes="none")
    assert copy.read_bytes() == Path(path).read_bytes()


def test_conversion_names_tensors_of_modules_as_a_state_dict_does(
    tmp_path: Path, path: str
) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    module.register_buffer("own", torch.ones(3))
    serializer = tensorizer_ops.TensorSerializer(tmp_path / "m.tensors")
    serializer.write_module(module)
    serializer.close()
    tensorizer_ops.convert(tmp_path / "m.tensors", path)
    assert_same(by_name(safetensors.torch.load_file(path)), by_name(module.state_dict()))


def test_conversion_checks_hashes_and_encrypts(tmp_path: Path, path: str) -> None:
    secret = tmp_path / "secret.tensors"
    tensorizer_ops.save(path, tensors())
    tensorizer_ops.keys.add("convert", key=bytes(32))
    try:
        options = {"key": "named:convert"}
        tensorizer_ops.convert(path, secret, target_options=options)
        again = tmp_path / "again.safetensors"
        tensorizer_ops.convert(secret, again, source_options=options)
        assert again.read_bytes() == Path(path).read_bytes()
        with pytest.raises(ValueError, match="a safetensors file cannot be encrypted"):
            tensorizer_ops.convert(path, again, target_options=options)
    finally:
        tensorizer_ops.keys.remove("convert")
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(tensorizer_ops.errors.HashMismatch):
        tensorizer_ops.convert(path, tmp_path / "bad.tensors")
    assert not (tmp_path / "bad.tensors").exists()


def test_a_save_while_others_read(path: str) -> None:
    state = {"x": sample(torch.float32, (1000, 100))}
    tensorizer_ops.save(path, state)
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            if raw(tensorizer_ops.load(path, verify="all")["x"]) != raw(state["x"]):
                wrong.append("x")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(20):
            tensorizer_ops.save(path, state)
    finally:
        stop.set()
        reader.join()
    assert not wrong


def test_digests_of_other_tensors_are_not_checked(tmp_path: Path, path: str) -> None:
    """A program that changes tensors may copy the metadata, and with it the digests."""
    tensorizer_ops.save(path, {"a": torch.ones(3), "b": torch.zeros(2)})
    with safetensors.safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    changed = {"a": torch.ones(3), "c": torch.zeros(2)}
    other = str(tmp_path / "other.safetensors")
    safetensors.torch.save_file(changed, other, metadata)
    with pytest.raises(ValueError, match="nothing to verify"):
        ops.verify(other)
    with pytest.raises(ValueError, match="hashes of tensors with other names"):
        tensorizer_ops.convert(other, tmp_path / "m.tensors")
    assert_same(tensorizer_ops.load(other), changed)
    assert tensorizer_ops.metadata(other) == {}
    # Saves write digests of their own.
    tensorizer_ops.save(other, changed, metadata=metadata)
    ops.verify(other)
    assert tensorizer_ops.metadata(other) == {}


@pytest.mark.parametrize("way", ["save", "writer", "convert"])
def test_a_longer_file_is_cut_when_it_is_overwritten(tmp_path: Path, path: str, way: str) -> None:
    state = {"x": torch.ones(3)}
    source = tmp_path / "m.tensors"
    tensorizer_ops.save(source, state)
    Path(path).write_bytes(b"before" + bytes(500_000))
    options = {"format": "safetensors"}
    with open(path, "r+b") as stream:
        stream.seek(6)
        uri = f"fd:{stream.fileno()}"
        if way == "save":
            tensorizer_ops.save(uri, state, options=options)
        elif way == "convert":
            tensorizer_ops.convert(source, uri, target_options=options)
        else:
            writer = Writer(uri, options, None)
            writer.add("x", state["x"])
            writer.close()
    data = Path(path).read_bytes()
    assert data[:6] == b"before"
    assert_same(safetensors.torch.load(data[6:]), state)
