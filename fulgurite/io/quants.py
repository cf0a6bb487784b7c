"""GGUF's block-quantised types: what their bytes stand for, as expressions of ours.

In: a uint8 tensor with one block in each row. Out: float32 values, one row for each block, lazy:
a product with a quantised matrix unpacks inside its own kernel. Each type is one entry of
`QUANTS`: its number in files, how many values a block has in how many bytes, and the arithmetic.
Bits are unpacked by shifting a row by a small table along a new axis, never by loops. A product of
one row wants another form: `parts` has a block as runs of values that share a scale, so that all of
a block's scales are computed once, beside each other, and only the bytes of runs are walked. A
test compares every type with a scalar decoder written from the layouts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core import dtype as types
from ..functional.math.elementwise import where
from ..tensor import Tensor


@dataclass(frozen=True)
class Quant:
    """One block-quantised type."""

    name: str
    count: int  # values of a block
    bytes: int  # that they take
    values: Callable[[Tensor], Tensor]
    parts: Callable[[Tensor], list[Tensor]] | None = (
        None  # (..., bytes) -> runs of values, in order
    )

    def dot(self, x: Tensor, blocks: Tensor) -> Tensor:
        """A row (..., inputs) times a matrix (..., outputs, blocks, bytes), read once as it is."""
        assert self.parts is not None
        runs = self.parts(blocks)
        sizes = (blocks.shape[-2], len(runs), self.count // len(runs))
        rows = x.reshape(*x.shape[:-1], 1, *sizes)
        terms = [run * rows[..., place, :] for place, run in enumerate(runs)]
        while len(terms) > 1:  # two by two: nobody waits for a long chain of additions
            pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[len(pairs) * 2 :]
        return terms[0].sum(axis=(-2, -1))


def _half(pair: Tensor) -> Tensor:
    """Two bytes of each row as a float16, widened."""
    wide = pair.astype(types.uint16)
    word = wide[..., 0:1] | (wide[..., 1:2] << 8)
    return word.bitcast(types.float16).astype(types.float32)


def _single(quad: Tensor) -> Tensor:
    wide = quad.astype(types.uint32)
    word = wide[:, 0:1]
    for place in (1, 2, 3):
        word = word | (wide[:, place : place + 1] << 8 * place)
    return word.bitcast(types.float32)


def _unpack(row: Tensor, bits: int, groups: int = 1) -> Tensor:
    """Fields of so many bits: (n, groups, fields of a byte, bytes of a group)."""
    shifts = Tensor(np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1), device=row.device)
    bytes_ = row.reshape(row.shape[0], groups, 1, row.shape[1] // groups)
    return (bytes_ >> shifts) & ((1 << bits) - 1)


def _float(x: Tensor) -> Tensor:
    return x.astype(types.float32)


def _signed(x: Tensor) -> Tensor:
    return _float(x.bitcast(types.int8))


def _q4_0(b: Tensor) -> Tensor:
    q = _unpack(b[:, 2:18], 4).reshape(b.shape[0], 32)
    return (_float(q) - 8) * _half(b[:, 0:2])


def _q4_1(b: Tensor) -> Tensor:
    q = _unpack(b[:, 4:20], 4).reshape(b.shape[0], 32)
    return _float(q) * _half(b[:, 0:2]) + _half(b[:, 2:4])


def _fives(high: Tensor, low: Tensor) -> Tensor:
    """Five-bit numbers: the fifth bits lie by themselves, in the order of the values."""
    count = low.shape[0]
    bits = _unpack(high, 1, 4).reshape(count, 32)
    return _float(_unpack(low, 4).reshape(count, 32) | (bits << 4))


def _q5_0(b: Tensor) -> Tensor:
    return (_fives(b[:, 2:6], b[:, 6:22]) - 16) * _half(b[:, 0:2])


def _q5_1(b: Tensor) -> Tensor:
    return _fives(b[:, 4:8], b[:, 8:24]) * _half(b[:, 0:2]) + _half(b[:, 2:4])


def _q8_0(b: Tensor) -> Tensor:
    return _signed(b[:, 2:34]) * _half(b[:, 0:2])


def _q8_1(b: Tensor) -> Tensor:
    return _signed(b[:, 4:36]) * _half(b[:, 0:2])


def _q2_k(b: Tensor) -> Tensor:
    n = b.shape[0]
    scales = b[:, 0:16]
    q = _float(_unpack(b[:, 16:80], 2, 2).reshape(n, 16, 16))
    scale = _half(b[:, 80:82]) * _float(scales & 15)
    least = _half(b[:, 82:84]) * _float(scales >> 4)
    return (scale.reshape(n, 16, 1) * q - least.reshape(n, 16, 1)).reshape(n, 256)


def _q3_k(b: Tensor) -> Tensor:
    n = b.shape[0]
    high = _unpack(b[:, 0:32], 1).reshape(n, 2, 4, 32)
    q = _float(_unpack(b[:, 32:96], 2, 2) | (high << 2)) - 4
    low = _unpack(b[:, 96:104], 4).reshape(n, 16)
    upper = _unpack(b[:, 104:108], 2).reshape(n, 16)
    scale = _half(b[:, 108:110]) * (_float(low | (upper << 4)) - 32)
    return (scale.reshape(n, 16, 1) * q.reshape(n, 16, 16)).reshape(n, 256)


def _scales_and_least(b: Tensor) -> tuple[Tensor, Tensor]:
    """The eight six-bit scales and minima that Q4_K and Q5_K pack into twelve bytes.

    The upper four of both take bits of bytes four places before and behind, which lie in the block
    for the lower four too, so that all eight read the same bytes and choose.
    """
    n = b.shape[0]
    before, here, behind = b[:, 0:8], b[:, 4:12], b[:, 8:16]
    is_low = Tensor(np.arange(8) < 4, device=b.device)
    scales = where(is_low, here & 63, (behind & 15) | ((before >> 6) << 4))
    least = where(is_low, behind & 63, (behind >> 4) | ((here >> 6) << 4))
    return (
        (_half(b[:, 0:2]) * _float(scales)).reshape(n, 8, 1),
        (_half(b[:, 2:4]) * _float(least)).reshape(n, 8, 1),
    )


def _q4_k(b: Tensor) -> Tensor:
    n = b.shape[0]
    scale, least = _scales_and_least(b)
    q = _float(_unpack(b[:, 16:144], 4, 4).reshape(n, 8, 32))
    return (scale * q - least).reshape(n, 256)


def _q5_k(b: Tensor) -> Tensor:
    n = b.shape[0]
    scale, least = _scales_and_least(b)
    high = _unpack(b[:, 16:48], 1).reshape(n, 8, 32)
    q = _float(_unpack(b[:, 48:176], 4, 4).reshape(n, 8, 32) | (high << 4))
    return (scale * q - least).reshape(n, 256)


def _q6_k(b: Tensor) -> Tensor:
    n = b.shape[0]
    low = _unpack(b[:, 0:128], 4, 2).reshape(n, 2, 4, 32)
    high = _unpack(b[:, 128:192], 2, 2)
    q = (_float(low | (high << 4)) - 32).reshape(n, 16, 16)
    scale = _half(b[:, 208:210]) * _signed(b[:, 192:208])
    return (scale.reshape(n, 16, 1) * q).reshape(n, 256)


def _q8_k(b: Tensor) -> Tensor:
    return _signed(b[:, 4:260]) * _single(b[:, 0:4])


# --- the same in runs: (..., bytes of a block) -> runs of values that share a scale ---------------


def _nibbles(b: Tensor, start: int, count: int) -> list[Tensor]:
    """Low and high halves of some bytes."""
    some = b[..., start : start + count]
    return [some & 15, some >> 4]


def _q4_0_parts(b: Tensor) -> list[Tensor]:
    return [(_float(q) - 8) * _half(b[..., 0:2]) for q in _nibbles(b, 2, 16)]


def _q4_1_parts(b: Tensor) -> list[Tensor]:
    scale, least = _half(b[..., 0:2]), _half(b[..., 2:4])
    return [_float(q) * scale + least for q in _nibbles(b, 4, 16)]


def _fifths(b: Tensor, start: int) -> list[Tensor]:
    """Five-bit numbers in four runs of eight: a byte of fifth bits each."""
    low, high = _nibbles(b, start + 4, 16)
    bits = Tensor(np.arange(8, dtype=np.uint8), device=b.device)
    halves = [low[..., :8], low[..., 8:], high[..., :8], high[..., 8:]]
    fifth = [b[..., start + i : start + i + 1] for i in range(4)]
    return [_float(q | (((f >> bits) & 1) << 4)) for q, f in zip(halves, fifth, strict=True)]


def _q5_0_parts(b: Tensor) -> list[Tensor]:
    return [(q - 16) * _half(b[..., 0:2]) for q in _fifths(b, 2)]


def _q5_1_parts(b: Tensor) -> list[Tensor]:
    scale, least = _half(b[..., 0:2]), _half(b[..., 2:4])
    return [q * scale + least for q in _fifths(b, 4)]


def _q8_0_parts(b: Tensor) -> list[Tensor]:
    return [_signed(b[..., 2:34]) * _half(b[..., 0:2])]


def _k_scales(b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Scale and minimum of each run of 32 of Q4_K and Q5_K."""
    scale, least = _half(b[..., 0:2]), _half(b[..., 2:4])

    def byte(place: int) -> Tensor:
        return b[..., place : place + 1]

    found = []
    for run in range(8):
        if run < 4:
            six, low = byte(4 + run) & 63, byte(8 + run) & 63
        else:
            six = (byte(8 + run) & 15) | ((byte(run) >> 6) << 4)
            low = (byte(8 + run) >> 4) | ((byte(4 + run) >> 6) << 4)
        found.append((scale * _float(six), least * _float(low)))
    return found


def _q4_k_parts(b: Tensor) -> list[Tensor]:
    found = []
    for run, (scale, least) in enumerate(_k_scales(b)):
        q = _nibbles(b, 16 + run // 2 * 32, 32)[run % 2]
        found.append(scale * _float(q) - least)
    return found


def _q5_k_parts(b: Tensor) -> list[Tensor]:
    found = []
    for run, (scale, least) in enumerate(_k_scales(b)):
        low = _nibbles(b, 48 + run // 2 * 32, 32)[run % 2]
        high = (b[..., 16:48] >> run) & 1
        found.append(scale * _float(low | (high << 4)) - least)
    return found


def _q6_k_parts(b: Tensor) -> list[Tensor]:
    found = []
    for run in range(16):
        half, part = run // 8, run % 8  # of 128 values, and 16 of them
        low = b[..., half * 64 + part % 4 * 16 :][..., :16]
        low = low >> 4 if part >= 4 else low & 15
        high = (b[..., 128 + half * 32 + part % 2 * 16 :][..., :16] >> part // 2 * 2) & 3
        scale = _half(b[..., 208:210]) * _signed(b[..., 192 + run : 193 + run])
        found.append((_float(low | (high << 4)) - 32) * scale)
    return found


_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def _iq4_nl_parts(b: Tensor) -> list[Tensor]:
    table = Tensor(_IQ4, device=b.device)
    return [table[q.astype(types.int32)] * _half(b[..., 0:2]) for q in _nibbles(b, 2, 16)]


def _iq4_nl(b: Tensor) -> Tensor:
    q = _unpack(b[:, 2:18], 4).reshape(b.shape[0], 32)
    return Tensor(_IQ4, device=b.device)[q.astype(types.int32)] * _half(b[:, 0:2])


# two types of ours, in files of Hugging Face's layout: 64 values of 8 or 4 bits and a scale


def _i8_64_parts(b: Tensor) -> list[Tensor]:
    return [_signed(b[..., 2:66]) * _half(b[..., 0:2])]


def _i4_64_parts(b: Tensor) -> list[Tensor]:
    return [(_float(q) - 8) * _half(b[..., 0:2]) for q in _nibbles(b, 2, 32)]


def _i4_64(b: Tensor) -> Tensor:
    q = _unpack(b[:, 2:34], 4).reshape(b.shape[0], 64)
    return (_float(q) - 8) * _half(b[:, 0:2])


GROUPS: dict[int, Quant] = {  # by the bytes of a block
    66: Quant("I8G64", 64, 66, lambda b: _i8_64_parts(b)[0], _i8_64_parts),
    34: Quant("I4G64", 64, 34, _i4_64, _i4_64_parts),
}
QUANTS: dict[int, Quant] = {
    2: Quant("Q4_0", 32, 18, _q4_0, _q4_0_parts),
    3: Quant("Q4_1", 32, 20, _q4_1, _q4_1_parts),
    6: Quant("Q5_0", 32, 22, _q5_0, _q5_0_parts),
    7: Quant("Q5_1", 32, 24, _q5_1, _q5_1_parts),
    8: Quant("Q8_0", 32, 34, _q8_0, _q8_0_parts),
    9: Quant("Q8_1", 32, 36, _q8_1),
    10: Quant("Q2_K", 256, 84, _q2_k),
    11: Quant("Q3_K", 256, 110, _q3_k),
    12: Quant("Q4_K", 256, 144, _q4_k, _q4_k_parts),
    13: Quant("Q5_K", 256, 176, _q5_k, _q5_k_parts),
    14: Quant("Q6_K", 256, 210, _q6_k, _q6_k_parts),
    15: Quant("Q8_K", 256, 292, _q8_k),
    20: Quant("IQ4_NL", 32, 18, _iq4_nl, _iq4_nl_parts),
}
