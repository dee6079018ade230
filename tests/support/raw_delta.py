"""Reads deltas as docs/format.md describes them, without the library."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import torch

BLOCK = 1 << 20
ENTRY = 68
FLOATING = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}


class Bits:
    def __init__(self, code: bytes) -> None:
        self.left = int.from_bytes(code, "little")
        self.taken = 0

    def take(self, count: int) -> int:
        bits = self.left & ((1 << count) - 1)
        self.left >>= count
        self.taken += count
        return bits

    def numbers(self, count: int, wide: int) -> list[int]:
        if count == 0:
            return []
        low = self.take(6)
        assert low <= 32
        return [self._number(low, wide) for _ in range(count)]

    def _number(self, low: int, wide: int) -> int:
        for zeros in range(24):
            if self.take(1):
                return zeros << low | self.take(low)
        return self.take(wide)

    def choice(self, among: int) -> list[int]:
        count = self.take(21)
        if count == 0:
            return []
        inverted = self.take(1)
        listed, at = [], -1
        for gap in self.numbers(self.take(21) if inverted else count, 21):
            at += gap + 1
            listed.append(at)
        chosen = [i for i in range(among) if i not in set(listed)] if inverted else listed
        assert len(chosen) == count and all(i < among for i in chosen)
        return chosen


def new_block(base: bytes, code: bytes, width: int, floating: bool) -> bytes:
    """Return the block that a code makes of one of the base."""
    if len(code) == 0:
        return base
    if len(code) == len(base):
        return code
    size = 8 * width
    elements = [int(each) for each in np.frombuffer(base, np.dtype(f"<u{width}"))]
    bits = Bits(code)
    thresholds = [bits.take(8) for _ in range(bits.take(3))]
    classes: list[list[int]] = [[] for _ in range(len(thresholds) + 1)]
    for i, element in enumerate(elements):
        below = (element & 0x7F) if width == 1 else (element >> (size - 9)) & 0xFF
        key = below if floating else 0
        classes[sum(key >= each for each in thresholds)].append(i)
    mask = (1 << size) - 1

    def ranked(number: int) -> int:
        return number ^ (mask >> 1) if floating and number >> (size - 1) else number

    for members in classes:
        chosen = [members[i] for i in bits.choice(len(members))]
        shrinks = [bits.take(1) for _ in chosen]
        steps = [1] * len(chosen)
        large = bits.choice(len(chosen))
        for i, more in zip(large, bits.numbers(len(large), size), strict=True):
            steps[i] = more + 2
        for i, step, down in zip(chosen, steps, shrinks, strict=True):
            elements[i] = ranked((ranked(elements[i]) + (-step if down else step)) & mask)
    assert (bits.taken + 7) // 8 == len(code) and bits.left == 0
    return np.array(elements, np.dtype(f"<u{width}")).tobytes()


def applied(base: bytes, changes: bytes, dtype: torch.dtype) -> bytes:
    """Return the data of a tensor of the target."""
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    count = -(-len(base) // BLOCK)
    at = ENTRY * count
    made = b""
    for i in range(count):
        before, after, size = struct.unpack_from("<32s32sI", changes, ENTRY * i)
        block = base[i * BLOCK : (i + 1) * BLOCK]
        assert hashlib.sha256(block).digest() == before
        block = new_block(block, changes[at : at + size], width, dtype in FLOATING)
        assert hashlib.sha256(block).digest() == after and (size == 0) == (before == after)
        made += block
        at += size
    assert at == len(changes)
    return made
