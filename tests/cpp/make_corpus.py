"""Writes the files that fuzzing starts from: python make_corpus.py DIRECTORY

Small files of every version and feature, each valid, so that changing them reaches all of the
parser.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raw_format import BUFFER, CRC32, PARAMETER, SHA256, Block, pack

FRAME = b"|TZX|"


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<HI", kind, len(body)) + body


def seeds() -> dict[str, bytes]:
    plain = Block("weight", "<f4", (2, 3), bytes(24))
    opaque = Block("half", "<V2\0torch.bfloat16", (2,), bytes(4))
    empty_opaque = Block("none", "<V2\0torch.bfloat16", (0,), index={"dtype": "<V2"})
    meta = Block("ghost", "<f8", (4,))
    long = Block("long", "|u1", (2**32, 0), long=True)
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
        "records": pack([plain], index_tail=FRAME + record(7, b"seven") + record(0, b"")),
    }


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (directory / name).write_bytes(data)


if __name__ == "__main__":
    main()
