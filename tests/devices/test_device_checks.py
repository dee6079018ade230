"""Loads that a device decrypts and verifies itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support import sim_device as sim
from support.raw_crypt import MAC_SIZE, chunked, crypt_info, next_nonce, secretbox
from support.raw_format import Block, pack
from support.samples import same, sample
from support.scripted import Asked, ScriptedServer, scripted
from tensorizer_ops.errors import Crypto, HashMismatch, InvalidFormat, OutOfMemory

ops = torch.ops.tensorizer

MIB = 1 << 20
CHUNK = 65_536
# Two pieces of 256 KiB for each of two workers.
SMALL = {"staging": str(MIB)}
ENCRYPTED = SMALL | {"key": "named:codec"}
# Pieces of 2 MiB for two workers, which hold a chunk of encrypted data each.
IN_SLICES = ENCRYPTED | {"staging": str(8 * MIB), "connections": "2"}
CHUNKED = {"digest_chunk": str(CHUNK)}
# Tensors of several pieces and chunks, small ones that share a piece and stay on the host, an empty
# one.
SIZES = [5 * MIB + 4, 300_000, *[1000] * 40, 0, 65_536]
ON_DEVICE = 3


@pytest.fixture(autouse=True)
def own_codec() -> Iterator[None]:
    tensorizer_ops.keys.add("codec", key=bytes(range(1, 33)))
    with sim.fresh():
        sim.set_codec(True)
        yield
        sim.set_codec(False)
        assert not sim.violations()
    tensorizer_ops.keys.remove("codec")


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {f"t{i}": sample(torch.float32, (size // 4,), i) for i, size in enumerate(SIZES)}


def load(path: str, **how: object) -> dict[str, torch.Tensor]:
    how = {"device": "sim", "threads": 2, "options": SMALL, "verify": "all", **how}
    loaded: dict[str, torch.Tensor] = ops.load(path, **how)
    return loaded


def assert_loaded(path: str, tensors: dict[str, torch.Tensor], **how: object) -> None:
    loaded = load(path, **how)
    for name, tensor in tensors.items():
        assert same(loaded[name].cpu(), tensor), name


def damage(path: str, tensor: torch.Tensor, at: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[content.index(tensor.numpy().tobytes()) + at] ^= 1
    Path(path).write_bytes(content)


def test_chunks_are_verified_on_the_device(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors, hashes="chunked", options=CHUNKED)
    assert_loaded(path, tensors)
    # The large tensor is cut into slices, each of which is digested.
    assert sim.counter("codec.digests") > ON_DEVICE


def test_crc32_is_verified_on_the_device(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors)
    assert_loaded(path, tensors, verify="crc32")
    assert sim.counter("codec.digests") == ON_DEVICE


def test_sha256_of_whole_tensors_stays_on_the_host(
    path: str, tensors: dict[str, torch.Tensor]
) -> None:
    ops.save(path, tensors, hashes="all")
    assert_loaded(path, tensors)
    ops.save(path, tensors, hashes="sha256")
    assert_loaded(path, tensors, verify="crc32")  # there is nothing else to compare
    assert sim.counter("codec.digests") == 0


def test_encrypted_files_are_decrypted_on_the_device(
    path: str, tensors: dict[str, torch.Tensor]
) -> None:
    ops.save(path, tensors, hashes="chunked", options={"key": "named:codec"})
    assert_loaded(path, tensors, options=ENCRYPTED, verify="none")
    assert sim.counter("codec.ciphers") == ON_DEVICE
    assert sim.counter("codec.digests") == 0
    assert_loaded(path, tensors, options=ENCRYPTED)
    assert sim.counter("codec.ciphers") == 2 * ON_DEVICE
    assert sim.counter("codec.digests") == 0, "the MACs are enough"
    ops.save(path, tensors, hashes="sha256", options={"key": "named:codec"})
    assert_loaded(path, tensors, options=ENCRYPTED)
    assert sim.counter("codec.ciphers") == 2 * ON_DEVICE


def test_a_large_encrypted_tensor_is_cut(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors, options={"key": "named:codec"})
    assert_loaded(path, tensors, options=IN_SLICES, verify="none")
    assert sim.counter("codec.ciphers") == 3 + ON_DEVICE - 1


@pytest.mark.parametrize(
    ("chunk", "ciphers"), [(1024, 0), (MIB, 4), (3 * MIB, 1), (1 << 33, 1), (4160, None)]
)
def test_chunks_of_any_size_of_a_large_tensor(path: str, chunk: int, ciphers: int | None) -> None:
    """The host decrypts small ones. Others that go on in the next slice wait for all of them."""
    data = sample(torch.uint8, (7_000_001,))
    out, entry = chunked(bytes(range(1, 33)), data.numpy().tobytes(), chunk)
    block = Block("t", "|u1", (len(data),), out, hashes=(), crypt=crypt_info(entry))
    Path(path).write_bytes(pack([block], version=3))
    if ciphers is None:
        with pytest.raises(InvalidFormat, match=r"t'.*in chunks of 4160 bytes.* to the CPU first"):
            load(path, options=IN_SLICES, verify="none")
    else:
        assert_loaded(path, {"t": data}, options=IN_SLICES, verify="none")
        assert sim.counter("codec.ciphers") == ciphers


def test_one_call_decrypts_with_several_keys() -> None:
    def as_tensor(content: bytes) -> torch.Tensor:
        return torch.tensor(list(content), dtype=torch.uint8)

    shapes = [(1, 100), (250, 100), (0, 100), (300, 100), (1000, 333)]
    plain = [bytes([i]) * size for i, (size, _) in enumerate(shapes)]
    keys = [bytes([i] * 32) for i in range(len(shapes))]
    nonces = [bytes([255 - i] * 24) for i in range(len(shapes))]
    boxes = [
        [
            secretbox(key, next_nonce(nonce, n), whole[n * chunk :][:chunk])
            for n in range(-(-size // chunk))
        ]
        for (size, chunk), whole, key, nonce in zip(shapes, plain, keys, nonces, strict=True)
    ]
    boxes[1][2] = (boxes[1][2][0], bytes(MAC_SIZE))
    data = [as_tensor(b"".join(out for out, _ in each)).to("sim") for each in boxes]
    wrong = torch.ops.tensorizer_device.decrypt(
        data,
        [chunk for _, chunk in shapes],
        [as_tensor(key) for key in keys],
        [as_tensor(nonce) for nonce in nonces],
        [as_tensor(b"".join(mac for _, mac in each)) for each in boxes],
    )
    assert wrong.tolist() == [0, 0, 0, 1, *[0] * 7]
    plain[1] = plain[1][:200] + boxes[1][2][0]
    assert [bytes(each.tolist()) for each in data] == plain


def test_the_digest_of_an_encrypted_model(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors, hashes="none", options={"key": "named:codec"})
    digest = ops.digest(path, options={"key": "named:codec"}, version=2)
    assert_loaded(path, tensors, options=ENCRYPTED | {"digest": digest}, verify="none")
    assert sim.counter("codec.ciphers") == sim.counter("codec.digests") == ON_DEVICE
    with pytest.raises(HashMismatch, match="another model"):
        load(path, options=ENCRYPTED | {"digest": digest[:-4] + "0000"}, verify="none")


@pytest.mark.parametrize("at", [500, 3 * MIB, 5 * MIB + 3])
@pytest.mark.parametrize("hashes", ["chunked", "crc32"])
def test_damage_is_found_on_the_device(
    path: str, tensors: dict[str, torch.Tensor], hashes: str, at: int
) -> None:
    ops.save(path, tensors, hashes=hashes, options=CHUNKED if hashes == "chunked" else None)
    damage(path, tensors["t0"], at)
    outputs = [torch.ones_like(tensor).to("sim") for tensor in tensors.values()]
    with pytest.raises(HashMismatch, match="t0") as caught:
        verify = "all" if hashes == "chunked" else "crc32"
        ops.load_into(path, list(tensors), outputs, threads=2, options=SMALL, verify=verify)
    if hashes == "chunked":
        begin = Path(path).read_bytes().index(tensors["t0"].numpy().tobytes()[:400])
        assert f"from offset {begin + at // CHUNK * CHUNK} on" in str(caught.value)
    assert not outputs[0].cpu().any(), "it is zero, because it is not right"


@pytest.mark.parametrize("options", [ENCRYPTED, IN_SLICES])
def test_a_wrong_mac_is_found_on_the_device(
    path: str, tensors: dict[str, torch.Tensor], options: dict[str, str]
) -> None:
    ops.save(path, tensors, hashes="chunked", options={"key": "named:codec"})
    begin = data_offset(path, "t0", {"key": "named:codec"})
    damaged = bytearray(Path(path).read_bytes())
    damaged[begin + 3 * MIB] ^= 1
    Path(path).write_bytes(damaged)
    outputs = [torch.ones_like(tensor).to("sim") for tensor in tensors.values()]
    with pytest.raises(Crypto, match=f"t0.*{2 * MIB} bytes from offset {begin + 2 * MIB} on"):
        ops.load_into(path, list(tensors), outputs, threads=2, options=options)
    assert not outputs[0].cpu().any()


def data_offset(path: str, name: str, options: dict[str, str]) -> int:
    return int(torch.classes.tensorizer.Reader(path, options).stored(name)["data_offset"])


def behind_a_bad_cache(content: bytes, places: list[int]) -> AbstractContextManager[ScriptedServer]:
    """Return a server whose cache has other bytes at some places."""
    damaged = bytearray(content)
    for place in places:
        damaged[place] ^= 1

    def answer(asked: Asked) -> None:
        asked.say_range(content if asked.headers["cache-control"] == "no-cache" else damaged)

    return scripted(answer)


@pytest.mark.parametrize(
    ("options", "verify", "ciphers"),
    [(SMALL, "all", 0), (ENCRYPTED, "all", ON_DEVICE), (IN_SLICES, "none", 3 + ON_DEVICE - 1)],
)
def test_what_a_cache_has_damaged_is_read_anew(
    path: str, tensors: dict[str, torch.Tensor], options: dict[str, str], verify: str, ciphers: int
) -> None:
    key = {name: value for name, value in options.items() if name == "key"}
    ops.save(path, tensors, hashes="chunked", options=key or CHUNKED)
    begin = data_offset(path, "t0", key)
    places = [begin + 1, begin + 3 * MIB, begin + 5 * MIB]
    with behind_a_bad_cache(Path(path).read_bytes(), places) as server:
        assert_loaded(server.url(), tensors, options=options, verify=verify)
        fresh = [r for r in server.asked if r.headers["cache-control"]]
    assert len(fresh) == 3
    assert sim.counter("codec.ciphers") == ciphers


def test_damage_on_the_device_alone_is_said(path: str, tensors: dict[str, torch.Tensor]) -> None:
    """The kernels are wrong here, which looks the same."""
    ops.save(path, tensors, hashes="chunked", options=CHUNKED)
    sim.set_codec(False)
    library = torch.library.Library("tensorizer_device", "IMPL")

    def sha256_chunks(data: list[torch.Tensor], chunk: int) -> torch.Tensor:
        count = sum(-(-each.numel() // chunk) for each in data)
        return torch.zeros((count, 32), dtype=torch.uint8).to("sim")

    def unused(*given: object) -> None:
        raise AssertionError

    library.impl("sha256_chunks", sha256_chunks, "PrivateUse1")
    library.impl("crc32", unused, "PrivateUse1")
    library.impl("decrypt", unused, "PrivateUse1")
    try:
        with (
            behind_a_bad_cache(Path(path).read_bytes(), []) as server,
            pytest.raises(HashMismatch, match="damaged on the device"),
        ):
            load(server.url())
    finally:
        library._destroy()


@pytest.mark.parametrize("encrypted", [False, True])
def test_pipes(path: str, tensors: dict[str, torch.Tensor], encrypted: bool) -> None:
    key = {"key": "named:codec"} if encrypted else {}
    options = SMALL | key
    ops.save(path, tensors, hashes="chunked", options=key)
    reading, writing = os.pipe()
    with ThreadPoolExecutor() as pool, os.fdopen(writing, "wb") as pipe:
        sent = pool.submit(lambda: (pipe.write(Path(path).read_bytes()), pipe.close()))
        with os.fdopen(reading, "rb") as end:
            assert_loaded(f"fd:{end.fileno()}", tensors, options=options)
        sent.result()
    assert sim.counter("codec.ciphers" if encrypted else "codec.digests") >= ON_DEVICE


@pytest.mark.parametrize("encrypted", [False, True])
def test_each_wait_of_a_stream_counts(
    path: str, tensors: dict[str, torch.Tensor], encrypted: bool
) -> None:
    """Without it, the device would check what has not arrived yet."""
    key = {"key": "named:codec"} if encrypted else {}
    options = SMALL | key
    ops.save(path, tensors, hashes="chunked", options=key)

    def loads_rightly() -> bool:
        try:
            assert_loaded(path, tensors, options=options, threads=1)
        except (AssertionError, HashMismatch, Crypto):
            return False
        return not sim.violations()

    assert loads_rightly()
    before = sim.counter("event.block")
    assert loads_rightly()
    needed = []
    for nth in range(1, sim.counter("event.block") - before + 1):
        with sim.skip("event.block", nth):
            if not loads_rightly():
                needed.append(nth)
        sim.reset()
        sim.set_codec(True)
    # The copies wait for the caller's stream, and each of two batches of checks for the copies.
    assert needed == [1, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_chunks_larger_than_a_piece_are_read_anew(path: str, dtype: torch.dtype) -> None:
    """By the device, and by the host, which casts."""
    tensors = {"t": sample(torch.float32, (MIB,))}
    ops.save(path, tensors, hashes="chunked", options={"digest_chunk": str(4 * MIB)})
    begin = data_offset(path, "t", {})
    with behind_a_bad_cache(Path(path).read_bytes(), [begin + 5]) as server:
        loaded = load(server.url(), dtype=dtype)
        assert same(loaded["t"].cpu(), tensors["t"].to(dtype))
        assert len([r for r in server.asked if r.headers["cache-control"]]) == 1


def test_a_device_without_memory_for_the_checks(
    path: str, tensors: dict[str, torch.Tensor]
) -> None:
    ops.save(path, tensors, hashes="chunked", options=CHUNKED)
    outputs = [torch.ones_like(tensor).to("sim") for tensor in tensors.values()]
    sim.set_limit(sim.counter("device.bytes"))
    with pytest.raises(OutOfMemory, match="sim:0 has no memory left to decrypt"):
        ops.load_into(path, list(tensors), outputs, threads=2, options=SMALL, verify="all")
    sim.reset()
    assert not outputs[0].cpu().any()


def test_other_types_stay_on_the_host(path: str) -> None:
    tensors = {"a": sample(torch.float32, (1000, 300))}
    ops.save(path, tensors, hashes="chunked")
    loaded = load(path, dtype=torch.float16)
    assert same(loaded["a"].cpu(), tensors["a"].to(torch.float16))
    assert sim.counter("codec.digests") == 0


def test_digests_of_memory_come_from_the_device() -> None:
    data = sample(torch.float32, (100_000,))
    there = data.to("sim")
    assert ops.crc32(there) == ops.crc32(data)
    assert same(ops.sha256_chunks(there, 1000).cpu(), ops.sha256_chunks(data, 1000))
    assert sim.counter("codec.digests") == 2
    assert same(ops.sha256(there).cpu(), ops.sha256(data))
    assert sim.counter("codec.digests") == 2, "one thread of a device is slower than the host"
    for chunk in (2**63 - 1, 2**63 - 400_000, 400_000, 399_999):
        assert same(ops.sha256_chunks(there, chunk).cpu(), ops.sha256_chunks(data, chunk))


def test_the_current_device_stays(path: str) -> None:
    data = sample(torch.float32, (100_000,))
    there = data.to("sim:1")
    ops.save(path, {"a": data}, hashes="chunked")
    ops.crc32(there)
    ops.sha256_chunks(there, 1000)
    tensorizer_ops.verify_tensors(path, {"a": there})
    load(path, device="sim:1")
    assert torch.accelerator.current_device_index() == 0


def test_one_element_of_a_row(path: str) -> None:
    """Torch calls it contiguous, whatever its stride is."""
    element = torch.ones(1, 2).to("sim")[:, 0]
    ops.save(path, {"a": element}, hashes="crc32")
    assert ops.crc32(element) == ops.crc32(torch.ones(1))
    ops.load_into(path, ["a"], [torch.zeros(1, 2).to("sim")[:, 1]])
    tensorizer_ops.verify_tensors(path, {"a": torch.ones(1, 2)[:, 0]})


def test_attest_reads_digests_and_what_differs(path: str, tensors: dict[str, torch.Tensor]) -> None:
    ops.save(path, tensors, hashes="chunked")
    on_device = {name: tensor.to("sim") for name, tensor in tensors.items()}
    before = sim.counter("codec.digests")
    assert tensorizer_ops.attest(on_device, path).equal
    assert sim.counter("codec.digests") > before
    on_device["t0"][70_000] = 3
    found = tensorizer_ops.attest(on_device, path)
    assert found.different == {"t0": "element [70000] is not that of the file"}
