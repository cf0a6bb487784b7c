"""GGUF's block-quantised types: what their bytes stand for, as expressions of ours.

In: a uint8 tensor with one block in each row. Out: float32 values, one row for each block, lazy:
a product with a quantised matrix unpacks inside its own kernel. Each type is one entry of
`QUANTS`: its number in files, how many values a block has in how many bytes, and the arithmetic.
Bits are unpacked by shifting a row by a small table along a new axis, never by loops. A product of
one row wants another form: `runs` has a block as runs of values that share a scale, so that all of
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
    runs: Callable[[Tensor], Runs] | None = None  # of blocks (..., bytes)

    def dot(self, x: Tensor, blocks: Tensor) -> Tensor:
        """A row (..., inputs) times a matrix (..., outputs, blocks, bytes), read once as it is."""
        assert self.runs is not None
        runs = self.runs(blocks)
        count = len(runs.numbers)
        rows = x.reshape(*x.shape[:-1], 1, blocks.shape[-2], count, self.count // count)
        means = rows if runs.least is None else rows.mean(axis=-1).contiguous()
        return runs.dot(rows, means).sum(axis=(-2, -1))


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


# --- the same in runs, for a product of one row ---------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Blocks as runs: value = number * step * scale - least * depth, of which a run has one each.

    Numbers and steps are whole, so that their products are exact and one conversion serves both;
    what is taken away meets the sum of x alone, which is known beforehand.
    """

    numbers: list[Tensor]  # (..., values of a run), of 8 bits
    scale: Tensor  # (..., 1), of the block
    steps: list[Tensor] | None = None  # (..., 1)
    least: list[Tensor] | None = None
    depth: Tensor | None = None

    def dot(self, rows: Tensor, sums: Tensor) -> Tensor:
        """Products with rows (..., runs, values), not added up; `sums` are means of a run's x."""
        terms = []
        for run, number in enumerate(self.numbers):
            if self.steps is not None:
                number = number.astype(types.int32) * self.steps[run].astype(types.int32)
            terms.append(_float(number) * rows[..., run, :])
        found = _joined(terms) * self.scale
        if self.least is None or self.depth is None:
            return found
        low = [_float(m) * sums[..., run : run + 1] for run, m in enumerate(self.least)]
        return found - _joined(low) * self.depth


def _joined(terms: list[Tensor]) -> Tensor:
    """The sum of some, two by two: nobody waits for a long chain of additions."""
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


def _byte(b: Tensor, place: int) -> Tensor:
    return b[..., place : place + 1]


def _nibbles(b: Tensor, start: int, count: int) -> list[Tensor]:
    """Low and high halves of some bytes."""
    some = b[..., start : start + count]
    return [some & 15, some >> 4]


def _less(numbers: list[Tensor], middle: int) -> list[Tensor]:
    """Numbers from 0 on as such around 0."""
    return [number.bitcast(types.int8) - middle for number in numbers]


def _ones(b: Tensor, count: int) -> list[Tensor]:
    return [Tensor(np.ones(1, np.uint8), device=b.device)] * count


def _q4_0_runs(b: Tensor) -> Runs:
    return Runs(_less(_nibbles(b, 2, 16), 8), _half(b[..., 0:2]))


def _q4_1_runs(b: Tensor) -> Runs:
    depth = -_half(b[..., 2:4])
    return Runs(_nibbles(b, 4, 16), _half(b[..., 0:2]), None, _ones(b, 2), depth)


def _fifths(b: Tensor, start: int) -> list[Tensor]:
    """Five-bit numbers in four runs of eight: a byte of fifth bits each."""
    low, high = _nibbles(b, start + 4, 16)
    bits = Tensor(np.arange(8, dtype=np.uint8), device=b.device)
    halves = [low[..., :8], low[..., 8:], high[..., :8], high[..., 8:]]
    fifth = [_byte(b, start + i) for i in range(4)]
    return [q | (((f >> bits) & 1) << 4) for q, f in zip(halves, fifth, strict=True)]


def _q5_0_runs(b: Tensor) -> Runs:
    return Runs(_less(_fifths(b, 2), 16), _half(b[..., 0:2]))


def _q5_1_runs(b: Tensor) -> Runs:
    return Runs(_fifths(b, 4), _half(b[..., 0:2]), None, _ones(b, 4), -_half(b[..., 2:4]))


def _q8_0_runs(b: Tensor) -> Runs:
    return Runs([b[..., 2:34].bitcast(types.int8)], _half(b[..., 0:2]))


def _k_runs(b: Tensor, numbers: list[Tensor]) -> Runs:
    """Q4_K and Q5_K: eight runs of 32, each with a scale and a minimum of six bits."""
    first, second, third = ([_byte(b, start + i) for i in range(4)] for start in (4, 8, 12))
    steps = [byte & 63 for byte in first]
    least = [byte & 63 for byte in second]
    for low, high, both in zip(first, second, third, strict=True):
        steps.append((both & 15) | ((low >> 6) << 4))
        least.append((both >> 4) | ((high >> 6) << 4))
    return Runs(numbers, _half(b[..., 0:2]), steps, least, _half(b[..., 2:4]))


def _k_nibbles(b: Tensor, start: int) -> list[Tensor]:
    """Eight runs of 32 in 128 bytes."""
    return [q for pair in range(4) for q in _nibbles(b, start + pair * 32, 32)]


def _q4_k_runs(b: Tensor) -> Runs:
    return _k_runs(b, _k_nibbles(b, 16))


def _q5_k_runs(b: Tensor) -> Runs:
    bits = b[..., 16:48]
    high = [((bits >> run) & 1) << 4 for run in range(8)]
    return _k_runs(b, [q | bit for q, bit in zip(_k_nibbles(b, 48), high, strict=True)])


def _q6_k_runs(b: Tensor) -> Runs:
    numbers = []
    for run in range(16):
        half, part = run // 8, run % 8  # of 128 values, and 16 of them
        start = half * 64 + part % 4 * 16
        low = _nibbles(b, start, 16)[part // 4]
        start = 128 + half * 32 + part % 2 * 16
        high = (b[..., start : start + 16] >> part // 2 * 2) & 3
        numbers.append(low | (high << 4))
    steps = [_byte(b, 192 + run).bitcast(types.int8) for run in range(16)]
    return Runs(_less(numbers, 32), _half(b[..., 208:210]), steps)


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl_runs(b: Tensor) -> Runs:
    table = Tensor(_IQ4, device=b.device)
    return Runs([table[q.astype(types.int32)] for q in _nibbles(b, 2, 16)], _half(b[..., 0:2]))


def _iq4_nl(b: Tensor) -> Tensor:
    q = _unpack(b[:, 2:18], 4).reshape(b.shape[0], 32)
    return _float(Tensor(_IQ4, device=b.device)[q.astype(types.int32)]) * _half(b[:, 0:2])


# two types of ours, in files of Hugging Face's layout: 64 values of 8 or 4 bits and a scale


def _i8_64(b: Tensor) -> Tensor:
    return _signed(b[:, 2:66]) * _half(b[:, 0:2])


def _i8_64_runs(b: Tensor) -> Runs:
    return Runs([b[..., 2:66].bitcast(types.int8)], _half(b[..., 0:2]))


def _i4_64(b: Tensor) -> Tensor:
    q = _unpack(b[:, 2:34], 4).reshape(b.shape[0], 64)
    return (_float(q) - 8) * _half(b[:, 0:2])


def _i4_64_runs(b: Tensor) -> Runs:
    return Runs(_less(_nibbles(b, 2, 32), 8), _half(b[..., 0:2]))


GROUPS: dict[int, Quant] = {  # by the bytes of a block
    66: Quant("I8G64", 64, 66, _i8_64, _i8_64_runs),
    34: Quant("I4G64", 64, 34, _i4_64, _i4_64_runs),
}
QUANTS: dict[int, Quant] = {
    2: Quant("Q4_0", 32, 18, _q4_0, _q4_0_runs),
    3: Quant("Q4_1", 32, 20, _q4_1, _q4_1_runs),
    6: Quant("Q5_0", 32, 22, _q5_0, _q5_0_runs),
    7: Quant("Q5_1", 32, 24, _q5_1, _q5_1_runs),
    8: Quant("Q8_0", 32, 34, _q8_0, _q8_0_runs),
    9: Quant("Q8_1", 32, 36, _q8_1),
    10: Quant("Q2_K", 256, 84, _q2_k),
    11: Quant("Q3_K", 256, 110, _q3_k),
    12: Quant("Q4_K", 256, 144, _q4_k, _q4_k_runs),
    13: Quant("Q5_K", 256, 176, _q5_k, _q5_k_runs),
    14: Quant("Q6_K", 256, 210, _q6_k, _q6_k_runs),
    15: Quant("Q8_K", 256, 292, _q8_k),
    20: Quant("IQ4_NL", 32, 18, _iq4_nl, _iq4_nl_runs),
}
