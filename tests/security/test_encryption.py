"""Encrypted files: ours, tensorizer's, and damaged ones."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer

import tensorizer_ops
from support.raw_crypt import (
    CHUNK,
    chunked,
    crypt_info,
    derivation,
    derivation_entry,
    sequential,
    without_records,
)
from support.raw_format import Block, pack
from support.samples import DTYPES, SHAPES, assert_same, by_shape, raw, sample, zoo
from tensorizer_ops.errors import Crypto, HashMismatch, InvalidArgument

ops = torch.ops.tensorizer
Reader = torch.classes.tensorizer.Reader

KEY = bytes(range(1, 33))
PASSPHRASE = "correct horse battery staple"
OPTIONS = {"key": "named:test"}
PASSPHRASE_OPTIONS = {"key": "named:passphrase", "kdf": "min"}
LOADING = {"key": "named:passphrase"}

# Tensors of several chunks, of one, and of none.
TENSORS = {
    **zoo(),
    "large": sample(torch.float32, (1500, 1000), 1),
    "view": sample(torch.int64, (700, 1000), 2).t(),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
}


@pytest.fixture(autouse=True)
def keys() -> Iterator[None]:
    tensorizer_ops.keys.add("test", key=KEY)
    tensorizer_ops.keys.add("passphrase", passphrase=PASSPHRASE)
    yield
    for name in ("test", "passphrase"):
        tensorizer_ops.keys.remove(name)


def classic_load(path: str, **how: Any) -> TensorDeserializer:
    return TensorDeserializer(path, device="cpu", verify_hash=True, **how)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_tensorizer_reads_every_dtype_and_shape(path: str, dtype: torch.dtype) -> None:
    tensors = by_shape(dtype)
    ops.save(path, tensors, options=OPTIONS)
    with classic_load(path, encryption=DecryptionParams.from_key(KEY)) as loaded:
        assert_same(loaded, tensors)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_and_shape_of_tensorizer(path: str, dtype: torch.dtype) -> None:
    # tensorizer cannot encrypt empty tensors.
    tensors = {name: tensor for name, tensor in by_shape(dtype).items() if 0 not in SHAPES[name]}
    serializer = TensorSerializer(path, encryption=EncryptionParams(KEY))
    serializer.write_state_dict(tensors)
    serializer.close()
    for verify in ("none", "all"):
        assert_same(ops.load(path, verify=verify, options=OPTIONS), tensors)


@pytest.mark.parametrize("lazy", [False, True])
def test_large_tensors_and_passphrases_both_ways(path: str, lazy: bool) -> None:
    ops.save(path, TENSORS, options=PASSPHRASE_OPTIONS)
    params = DecryptionParams.from_string(PASSPHRASE)
    with classic_load(path, encryption=params, lazy_load=lazy) as loaded:
        assert_same(loaded, TENSORS)
    cost = {"opslimit": EncryptionParams.OpsLimit.MIN, "memlimit": EncryptionParams.MemLimit.MIN}
    serializer = TensorSerializer(path, encryption=EncryptionParams.from_string(PASSPHRASE, **cost))
    tensors = {name: tensor for name, tensor in TENSORS.items() if tensor.numel()}
    serializer.write_state_dict(tensors)
    serializer.close()
    assert_same(ops.load(path, verify="all", options=LOADING), tensors)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("hashes", ["all", "none"])
def test_round_trip(path: str, hashes: str, threads: int) -> None:
    tensors = TENSORS | {"meta": torch.empty(3, 4, device="meta")}
    ops.save(path, tensors, hashes=hashes, threads=threads, options=OPTIONS)
    expected = TENSORS | {"meta": torch.zeros(3, 4)}
    for verify in ("none", "all") if hashes == "all" else ("none",):
        assert_same(ops.load(path, verify=verify, threads=threads, options=OPTIONS), expected)
    data = Path(path).read_bytes()
    for name in ("large", "view", "float64"):
        assert raw(TENSORS[name])[:64] not in data


def test_parts_casts_and_places(path: str) -> None:
    ops.save(path, TENSORS, options=OPTIONS)
    names = ["view", "float16", "large", "view"]
    loaded = ops.load_tensors(path, names, dtype=torch.float64, verify="all", options=OPTIONS)
    for name, tensor in zip(names, loaded, strict=True):
        expected = TENSORS[name]
        wanted = expected.double() if expected.is_floating_point() else expected
        assert raw(tensor) == raw(wanted), name
    outputs = [torch.zeros(1000, 1500).t(), torch.zeros(1000, 700, dtype=torch.int64)]
    ops.load_into(path, ["large", "view"], outputs, options=OPTIONS)
    assert_same(
        dict(zip(["large", "view"], outputs, strict=True)),
        {name: TENSORS[name] for name in ("large", "view")},
    )
    meta = ops.load(path, device=torch.device("meta"), options=OPTIONS)
    assert [tensor.shape for tensor in meta.values()] == [t.shape for t in TENSORS.values()]


@pytest.mark.parametrize("memory", ["1048576", "50000000"])
def test_chunks_of_any_size(path: str, memory: str) -> None:
    """Chunks that are larger or smaller than a slice, and that fit into slices or do not."""
    data = raw(sample(torch.uint8, (7_000_001,), 5))
    blocks = []
    for chunk in (1024, 4160, CHUNK, 3 << 20, 1 << 33):
        out, entry = chunked(KEY, data, chunk)
        blocks.append(
            Block(f"of {chunk}", "|u1", (len(data),), out, hashes=(), crypt=crypt_info(entry))
        )
    out, entry = sequential(KEY, data)
    # Bytes after the known fields of an entry are ignored, and so is a derivation entry here.
    salted = derivation_entry(derivation(1, 8192, bytes(16)))
    blocks.append(
        Block("whole", "|u1", (len(data),), out, hashes=(), crypt=crypt_info(salted, entry))
    )
    Path(path).write_bytes(pack(blocks, version=3))
    options = OPTIONS | {"memory_ceiling": memory}
    for loaded in (
        ops.load(path, options=options),
        ops.load(path, options=options, threads=1),
    ):
        assert len(loaded) == len(blocks)
        for name, tensor in loaded.items():
            assert raw(tensor) == data, name
    outputs = [torch.zeros(2 * len(data), dtype=torch.uint8)[::2] for _ in blocks]
    ops.load_into(path, [str(block.name) for block in blocks], outputs, options=options)
    assert all(raw(output) == data for output in outputs)


def refusal(path: str, options: dict[str, str], error: type[Exception] = Crypto) -> str:
    with pytest.raises(error) as caught:
        ops.load(path, options=options)
    text = str(caught.value)
    assert path in text or error is InvalidArgument
    assert KEY.hex() not in text and PASSPHRASE not in text
    return text


def test_keys_that_do_not_fit(path: str, tmp_path: Path) -> None:
    plain = str(tmp_path / "plain")
    ops.save(plain, {"x": torch.ones(3)})
    assert "not encrypted" in refusal(plain, OPTIONS)
    ops.save(path, {"x": torch.ones(3)}, options=OPTIONS)
    assert "no key was given" in refusal(path, {})
    assert "not with a passphrase" in refusal(path, LOADING)
    tensorizer_ops.keys.add("test", key=bytes(32))
    assert "wrong key or passphrase" in refusal(path, OPTIONS)
    ops.save(path, {"x": torch.ones(3)}, options=PASSPHRASE_OPTIONS)
    tensorizer_ops.keys.add("passphrase", passphrase="another")
    assert "wrong key or passphrase" in refusal(path, LOADING)
    # For a derived key, the raw key can be given as well. Here it is a wrong one.
    assert "wrong key or passphrase" in refusal(path, OPTIONS)


def test_derivations_that_cost_too_much(path: str) -> None:
    out, entry = chunked(KEY, b"x" * 8)
    for passes, memory in ((5, 8192), (1, (1 << 30) + 1), (2**32, 2**50), (0, 0)):
        section = derivation_entry(derivation(passes, memory, bytes(16)))
        block = Block("x", "|u1", (8,), out, hashes=(), crypt=crypt_info(section, entry))
        Path(path).write_bytes(pack([block], version=3))
        text = refusal(path, LOADING)
        assert "kdf_limit" in text or "cannot derive" in text
    ops.save(path, {"x": torch.ones(3)}, options={"key": "named:passphrase", "kdf": "5,8192"})
    assert "kdf_limit" in refusal(path, LOADING)
    assert ops.load(path, options=LOADING | {"kdf_limit": "5,8192"})["x"].sum() == 3


def test_many_salts_are_refused(path: str) -> None:
    blocks = []
    for number in range(5):
        out, entry = chunked(KEY, b"x" * 8)
        section = derivation_entry(derivation(1, 8192, bytes([number]) * 16))
        blocks.append(
            Block(f"x{number}", "|u1", (8,), out, hashes=(), crypt=crypt_info(section, entry))
        )
    Path(path).write_bytes(pack(blocks, version=3))
    reader = Reader(path, LOADING)
    for number in range(4):
        with pytest.raises(Crypto, match="cannot be decrypted"):
            reader.load([f"x{number}"], None, None, "none", False, 0)
    with pytest.raises(Crypto, match="more than 4 keys"):
        reader.load(["x4"], None, None, "none", False, 0)


def test_data_that_is_not_encrypted_in_an_encrypted_file(path: str) -> None:
    block = Block("x", "|u1", (8,), b"x" * 8, hashes=(), crypt=crypt_info())
    Path(path).write_bytes(pack([block], version=3))
    assert "not encrypted" in refusal(path, OPTIONS)


@pytest.mark.parametrize("name", ["large", "float64", "view"])
@pytest.mark.parametrize("record", [True, False])
def test_damage_leaves_zeros(path: str, name: str, record: bool) -> None:
    """Outputs contain no bytes of a tensor with a wrong MAC, and no ciphertext."""
    ops.save(path, TENSORS, options=OPTIONS)
    data = bytearray(Path(path).read_bytes())
    place = int(Reader(path, OPTIONS).stored(name)["data_offset"])
    data[place + TENSORS[name].nbytes - 3] ^= 4
    if not record:
        data = bytearray(without_records(bytes(data)))
    Path(path).write_bytes(data)
    names = ["scalar", name]
    wholly = [TENSORS["scalar"], torch.zeros_like(TENSORS[name])]
    for outputs in (
        [torch.ones_like(tensor) for tensor in wholly],
        [torch.ones(*tensor.shape, 2, dtype=tensor.dtype)[..., 0] for tensor in wholly],
    ):
        with pytest.raises(Crypto, match=f"'{name}' .*cannot be decrypted"):
            ops.load_into(path, names, outputs, threads=1, options=OPTIONS)
        assert not outputs[1].any()
        assert outputs[0] in (0, 7)
    with pytest.raises(Crypto, match=name):
        ops.verify(path, options=OPTIONS)
    others = [other for other in TENSORS if other != name]
    assert len(ops.load(path, names=others, options=OPTIONS)) == len(others)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_damage_leaves_zeros_of_every_dtype(path: str, dtype: torch.dtype) -> None:
    tensors = {"a": sample(dtype, (40000,)), "b": sample(torch.float32, (700, 1000))}
    ops.save(path, tensors, options=OPTIONS)
    data = bytearray(Path(path).read_bytes())
    for name in "ab":
        place = int(Reader(path, OPTIONS).stored(name)["data_offset"])
        data[place + tensors[name].nbytes - 3] ^= 4
    Path(path).write_bytes(data)
    for step in (1, 2):
        memory = [
            torch.ones(*tensor.shape, step, tensor.itemsize, dtype=torch.uint8)
            for tensor in tensors.values()
        ]
        outputs = [
            part.view(-1).view(tensor.dtype).view(*tensor.shape, step)[..., 0]
            for part, tensor in zip(memory, tensors.values(), strict=True)
        ]
        with pytest.raises(Crypto, match="cannot be decrypted"):
            ops.load_into(path, list(tensors), outputs, threads=1, options=OPTIONS)
        for part in memory:
            assert not part[..., 0, :].any()
            assert part[..., 1:, :].all()


def test_a_wrong_hash_leaves_zeros(path: str) -> None:
    out, entry = chunked(KEY, b"x" * 8)
    block = Block("x", "|u1", (8,), out, hashes=(1,), crypt=crypt_info(entry))
    Path(path).write_bytes(pack([block], version=3))  # the hash of the ciphertext, a mismatch
    output = torch.ones(8, dtype=torch.uint8)
    with pytest.raises(HashMismatch):
        ops.load_into(path, ["x"], [output], verify="all", options=OPTIONS)
    assert not output.any()


def test_a_nonce_that_two_tensors_share(path: str) -> None:
    out, entry = chunked(KEY, b"x" * 8)
    twice = [Block(n, "|u1", (8,), out, hashes=(), crypt=crypt_info(entry)) for n in ("a", "b")]
    Path(path).write_bytes(pack(twice, version=3))
    assert "nonce" in refusal(path, OPTIONS)
    loaded = ops.load_tensors(path, ["a", "a"], options=OPTIONS)
    assert [raw(tensor) for tensor in loaded] == [b"x" * 8] * 2


def test_every_nonce_is_fresh(path: str) -> None:
    seen = set()
    for _ in range(3):
        ops.save(path, {f"t{i}": torch.zeros(5) for i in range(20)}, options=OPTIONS)
        data = Path(path).read_bytes()
        reader = Reader(path, None)
        for i in range(20):
            at = int(reader.stored(f"t{i}")["data_offset"])
            seen.add(data[at : at + 20])
    assert len(seen) == 60


def test_hashes_of_encrypted_files(path: str) -> None:
    with pytest.raises(InvalidArgument, match="hashes is 'crc32'"):
        ops.save(path, {"x": torch.ones(3)}, hashes="crc32", options=OPTIONS)
    assert not Path(path).exists()
    for hashes, kept in ({}, set()), ({"hashes": "all"}, {"sha256"}):
        ops.save(path, {"x": torch.ones(3)}, options=OPTIONS, **hashes)
        assert Reader(path, OPTIONS).stored("x").keys() & {"sha256", "crc32"} == kept


def test_writer(path: str) -> None:
    writer = torch.classes.tensorizer.Writer(path, OPTIONS)
    for name, tensor in TENSORS.items():
        writer.add(name, tensor, 2, 0)
    writer.close()
    options = OPTIONS | {"require_authenticated": "true"}
    assert_same(ops.load(path, verify="all", options=options), TENSORS)
    with classic_load(path, encryption=DecryptionParams.from_key(KEY)) as loaded:
        assert_same(loaded, TENSORS)


def test_in_scripts_graphs_and_pickles(path: str) -> None:
    os.environ["TENSORIZER_TEST_KEY"] = KEY.hex()

    @torch.jit.script
    def scripted(uri: str) -> torch.Tensor:
        options = {"key": "env:TENSORIZER_TEST_KEY"}
        torch.ops.tensorizer.save(uri, {"x": torch.full([3], 5.0)}, options=options)
        return torch.ops.tensorizer.load(uri, options=options)["x"]

    assert scripted(path).tolist() == [5.0, 5.0, 5.0]

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loaded = tensorizer_ops.load(path, options={"key": "env:TENSORIZER_TEST_KEY"})
            return x + loaded["x"]

    program = torch.export.export(Module(), (torch.zeros(3),))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    assert KEY not in stream.getvalue() and KEY.hex().encode() not in stream.getvalue()
    assert program.module()(torch.ones(3)).tolist() == [6.0, 6.0, 6.0]
    compiled = torch.compile(Module(), fullgraph=True, backend="eager")
    assert compiled(torch.ones(3)).tolist() == [6.0, 6.0, 6.0]
    reader = pickle.loads(pickle.dumps(Reader(path, {"key": "env:TENSORIZER_TEST_KEY"})))
    assert reader.load(None, None, None, "all", False, 0)["x"].tolist() == [5.0, 5.0, 5.0]
    with pytest.raises(InvalidArgument) as error:
        Reader(path, {"key": KEY.hex()})
    assert KEY.hex() not in str(error.value)
