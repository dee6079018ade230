"""Writes the seed inputs for fuzzing: python make_corpus.py DIRECTORY

Writes a folder for each target, with small inputs of every version and feature, which are valid, so
that mutations of them reach all of the parser; and with the inputs that earlier runs have found
(tools/keep_corpus.sh).
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.raw_format import BUFFER, CRC32, PARAMETER, SHA256, Block, pack, pack_header
from support.text_seeds import SEEDS

FRAME = b"|TZX|"
ARGON2 = struct.pack("<HQQiH", 1, 1, 8192, 2, 16) + bytes(16)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<HI", kind, len(body)) + body


def tie(number: int, entry: int, kind: int, name: bytes) -> bytes:
    return struct.pack("<IIHBH", number, entry, 0, kind, len(name)) + name


def crypt_info(*entries: tuple[int, bytes]) -> bytes:
    return struct.pack("<H", len(entries)) + b"".join(
        struct.pack("<QH", 2 + len(body), kind) + body for kind, body in entries
    )


def chunks(size: int, count: int) -> bytes:
    return struct.pack("<Q", size) + bytes(24) + struct.pack("<Q", count) + bytes(16 * count)


CHUNKED = crypt_info((1, ARGON2), (2, chunks(1024, 1)))
SEQUENTIAL = crypt_info((3, bytes(40)))


# For one tensor.
def authentication(header_digest: bytes = bytes(32)) -> bytes:
    return struct.pack("<H", len(ARGON2)) + ARGON2 + header_digest + bytes(32)


# The digests of a tensor's header and of its only chunk.
def chunk_digests(header: bytes) -> bytes:
    return record(3, struct.pack("<Q", 65536) + header + bytes(32))


def format_seeds() -> dict[str, bytes]:
    plain = Block("weight", "<f4", (2, 3), bytes(24))
    opaque = Block("half", "<V2\0torch.bfloat16", (2,), bytes(4))
    empty_opaque = Block("none", "<V2\0torch.bfloat16", (0,), index={"dtype": "<V2"})
    meta = Block("ghost", "<f8", (4,))
    long = Block("long", "|u1", (2**32, 0), long=True)
    empty = [
        Block(f"empty-{i}", "<c8", shape, long=True)
        for i, shape in enumerate([(0, 2**61), (2**31, 0, 2**31), (2**63 - 1, 0)])
    ]
    encrypted = Block("x", "<u2", (1,), bytes(2), crypt=SEQUENTIAL)
    header = hashlib.sha256(pack_header(encrypted)).digest()
    nested = [
        Block('\x1e["layers",0,"w"]', "<i8", (1,), bytes(8)),
        Block('\x1e["layers",1,"w\\u00e9"]', "|b1", (1,), b"\1"),
    ]
    module = [
        Block("a.weight", "<f2", (2,), bytes(4), kind=PARAMETER, module_index=3),
        Block("a.mean", "<c8", (), bytes(8), kind=BUFFER, module_index=3),
        Block(".root", "|i1", (3,), bytes(3), kind=BUFFER),
    ]
    return {
        "no-tensors": pack([]),
        "plain": pack([plain]),
        "padded": pack([Block("x", "<u2", (1,), bytes(2), padding=29)], index_size=256),
        "crc32": pack([Block("x", "<u2", (1,), bytes(2), hashes=(CRC32,))]),
        "sha256": pack([Block("x", "<u2", (1,), bytes(2), hashes=(SHA256,))]),
        "no-hashes": pack([Block("x", "<u2", (1,), bytes(2), hashes=())]),
        "module": pack(module),
        "nested": pack(nested),
        "opaque": pack([opaque, plain, empty_opaque], version=2),
        "meta": pack([meta, plain], version=4),
        "long": pack([long, plain], version=5),
        "empty": pack([*empty, plain], version=5),
        "encrypted": pack([Block("x", "<u2", (1,), bytes(2), crypt=CHUNKED)], version=3),
        "authenticated": pack(
            [encrypted],
            version=3,
            index_tail=FRAME + record(2, bytes(32)) + record(1, authentication()),
        ),
        "plain-digests": pack(
            [encrypted],
            version=3,
            index_tail=FRAME + chunk_digests(header) + record(1, authentication(header)),
        ),
        "other-plain-digests": pack(
            [encrypted],
            version=3,
            index_tail=FRAME + chunk_digests(bytes(32)) + record(1, authentication(header)),
        ),
        "ties": pack(
            [plain, *module],
            index_tail=FRAME
            + record(
                5,
                tie(0, 0, 2, b"first") + tie(3, 0, 2, b'\x1e["tied","w"]') + tie(6, 3, 1, b".last"),
            ),
        ),
        "records": pack([plain], index_tail=FRAME + record(7, b"seven") + record(0, b"")),
    }


def crypt_seeds() -> dict[str, bytes]:
    def crypt(data_size: int, info: bytes) -> bytes:
        return struct.pack("<BQ", 0, 2 * data_size) + info

    return {
        "chunked": crypt(2, CHUNKED),
        "many-chunks": crypt(3000, crypt_info((2, chunks(1024, 3)))),
        "sequential": crypt(3000, SEQUENTIAL),
        "no-data": crypt(0, crypt_info()),
        "authentication": struct.pack("<BB", 1, 1) + authentication(),
        "authentication-by-key": struct.pack("<BBH", 1, 2, 0) + bytes(96),
        "changed": struct.pack("<BHB", 2, 1000, 1),
        "changed-name": struct.pack("<BHBHB", 2, 76, 1, 600, 255),
        "changed-foreign": struct.pack("<BHBHB", 3, 76, 1, 6, 7),
        "unchanged": struct.pack("<B", 2),
        "unchanged-foreign": struct.pack("<B", 3),
    }


def safetensors_seeds() -> dict[str, bytes]:
    def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    two = {"weight": tensor("F32", [2, 3], 0, 24), "half": tensor("BF16", [2], 24, 28)}
    metadata = {"__metadata__": {"format": "pt", "escaped": "\u00e9\n"}}
    headers: dict[str, tuple[int, dict[str, object]]] = {
        "no-tensors": (0, {}),
        "two": (28, {**two}),
        "metadata": (28, {**metadata, **two}),
        "empty": (2, {"none": tensor("I64", [0, 4], 0, 0), "one": tensor("I16", [], 0, 2)}),
        "packed": (3, {"packed": tensor("F4", [3, 2], 0, 3)}),
        "no-elements": (0, {"a": tensor("C64", [0, 2**61], 0, 0), "b": tensor("F4", [9, 0], 0, 0)}),
        "other-order": (3, {"b": tensor("U8", [2], 1, 3), "a": tensor("BOOL", [1], 0, 1)}),
        "escaped": (1, {'\u00fc"\\\t': tensor("F8_E4M3", [1], 0, 1)}),
    }
    return {
        name: bytes([size]) + json.dumps(header).encode()
        for name, (size, header) in headers.items()
    }


def safetensors_files() -> dict[str, bytes]:
    return {
        name: struct.pack("<Q", len(seed) - 1) + seed[1:] + bytes(seed[0])
        for name, seed in safetensors_seeds().items()
    }


def shard_index_seeds() -> dict[str, bytes]:
    weights = {"a.weight": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}
    indexes: dict[str, dict[str, object]] = {
        "two": {"metadata": {"total_size": 12}, "weight_map": weights},
        "alone": {"weight_map": {"\u00fc\n": "a b.safetensors"}},
        "more": {"other": [1, {"x": None}], "weight_map": weights, "metadata": {}},
    }
    return {name: json.dumps(index, indent=2).encode() for name, index in indexes.items()}


def changes_seeds() -> dict[str, bytes]:
    """The example of docs/format.md, of 400 elements of each kind."""
    code = bytes.fromhex("10000000250000000c0c")
    return {f"kind-{kind}": bytes([kind]) + struct.pack("<H", 400) + code for kind in range(8)}


def bundle_seeds() -> dict[str, bytes]:
    """Bundles after a byte 0, and what they sign after a byte 1."""
    seeds = {}
    for path in sorted((Path(__file__).parents[1] / "data" / "oms").rglob("*")):
        if path.suffix == ".sig" or path.name.endswith(".bundle.json"):
            bundle = path.read_bytes()
            seeds[path.name] = b"\0" + bundle
            if b'"payload"' in bundle:
                envelope = json.loads(bundle)["dsseEnvelope"]
                seeds[path.name + "-payload"] = b"\1" + base64.b64decode(envelope["payload"])
    return seeds


def main() -> None:
    for target, seeds in (
        (
            "fuzz_format",
            {**format_seeds(), **{"safetensors-" + n: f for n, f in safetensors_files().items()}},
        ),
        ("fuzz_crypt", crypt_seeds()),
        ("fuzz_safetensors", safetensors_seeds()),
        ("fuzz_shard_index", shard_index_seeds()),
        ("fuzz_changes", changes_seeds()),
        ("fuzz_bundle", bundle_seeds()),
        *SEEDS.items(),
    ):
        directory = Path(sys.argv[1]) / target
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (directory / name).write_bytes(data)
        found = Path(__file__).with_name("corpus") / f"{target}.zip"
        if found.exists():
            with zipfile.ZipFile(found) as inputs:
                inputs.extractall(directory)


if __name__ == "__main__":
    main()
