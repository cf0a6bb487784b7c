"""GGUF's block-quantised types: what their bytes stand for, as expressions of ours.

In: a uint8 tensor with one block in each row. Out: float32 values, one row for each block, lazy:
a product with a quantised matrix unpacks inside its own kernel. Each type is one entry of
`QUANTS`: its number in files, how many values a block has in how many bytes, and the arithmetic.
Bits are unpacked by shifting a row by a small table along a new axis, never by loops. A product of
one row wants another form: `runs` has a block as runs of values that share a scale, so that all of
a block's scales are computed once, beside each other, and only the bytes of runs are walked;
`words` has four numbers of a run in a word, for sums of products of bytes (`dot4`). A test compares
every type with a scalar decoder written from the layouts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..config import current
from ..core import dtype as types
from ..core.ops.elementwise import DOT4
from ..core.ops.leaf import new_buffer
from ..core.rewriting.template import Template
from ..functional.array.creation import arange
from ..functional.common import apply
from ..functional.math.elementwise import where
from ..tensor import Tensor, wrap


@dataclass(frozen=True)
class Quant:
    """One block-quantised type."""

    name: str
    count: int  # values of a block
    bytes: int  # that they take
    values: Callable[[Tensor], Tensor]
    runs: Callable[[Tensor], Runs] | None = None  # of blocks (..., bytes)
    words: Callable[[Tensor], Words] | None = None  # the same, four values in a word

    def dot_words(self, x: Tensor, blocks: Tensor, count: int) -> Tensor:
        """A row times a matrix (..., outputs, blocks, bytes), in whole numbers of `count` bytes."""
        leaves = x.node, blocks.node
        if all(isinstance(n, int) for leaf in leaves for n in leaf.shape) and x.device:
            kinds = tuple([(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves])
            return wrap(_dot_template(self, count, kinds, current())(*leaves))
        return self._dot_words(x, blocks, count)

    def _dot_words(self, x: Tensor, blocks: Tensor, count: int) -> Tensor:
        assert self.words is not None
        words = self.words(blocks)
        runs = len(words.numbers)
        rows = x.reshape(*x.shape[:-1], 1, blocks.shape[-2], runs, self.count // runs)
        together = 1 if words.steps else runs
        planes = Planes.of(rows, count, words.largest * together, words.middle)
        return words.dot(planes).sum(axis=(-2, -1))

    def dot(self, x: Tensor, blocks: Tensor) -> Tensor:
        """A row (..., inputs) times a matrix (..., outputs, blocks, bytes), read once as it is."""
        assert self.runs is not None
        runs = self.runs(blocks)
        count = len(runs.numbers)
        rows = x.reshape(*x.shape[:-1], 1, blocks.shape[-2], count, self.count // count)
        means = rows if runs.least is None else rows.mean(axis=-1).contiguous()
        return runs.dot(rows, means).sum(axis=(-2, -1))


@lru_cache(maxsize=64)
def _dot_template(quant: Quant, count: int, kinds: tuple[Any, ...], _: object) -> Template:
    """`Quant.dot_words` for leaves of these shapes, dtypes and devices, under these options."""
    holes = [new_buffer(*kind) for kind in kinds]
    x, blocks = map(wrap, holes)
    return Template.of(quant._dot_words(x, blocks, count).node, holes)


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


# --- the same in words, for products of whole numbers ---------------------------------------------


@dataclass(frozen=True)
class Words:
    """Blocks as runs whose numbers, without signs, lie four in a word of int32.

    value = (number - middle) * step * scale - least * depth
    """

    numbers: list[Tensor]  # (..., words of a run)
    scale: Tensor  # (..., 1), of the block
    largest: int  # of number - middle
    middle: int = 0
    steps: list[Tensor] | None = None  # (..., 1) or one for each word
    least: tuple[Tensor, Tensor] | None = None  # (..., 1), four of eight runs in a word
    depth: Tensor | None = None

    def dot(self, x: Planes) -> Tensor:
        """Products with rows, not added up."""
        terms = [x.dot(number, run) for run, number in enumerate(self.numbers)]
        if self.steps is None:
            found = _float(_joined(terms))
        elif x.planes.shape[-3] == 1:  # of so few bits all sums fit
            found = _float(_joined([t * step for t, step in zip(terms, self.steps, strict=True)]))
        else:
            pairs = zip(terms, self.steps, strict=True)
            found = _joined([_float(term) * _float(step) for term, step in pairs])
        found = found * (self.scale * x.scale)
        if self.least is None or self.depth is None:
            return found
        # a lane has a plane of four sums, beside each other: one product for all of them
        four = Planes.of(x.sums.reshape(*x.sums.shape[:-1], 2, 4), 3, 63)
        planes = four.planes[..., 0].mT.pad(((0, 0),) * (four.planes.ndim - 2) + ((0, 1),))
        lanes = planes.reshape(*planes.shape[:-2], 8).contiguous()
        weight = _float(1 << ((16 - 8 * (arange(8) & 3)) & 31))  # the fourth meets zeros
        word = where(arange(8) < 4, *self.least)
        low = _float(apply(DOT4, word, lanes, 0))
        return found - low * (self.depth * (four.scale * weight).contiguous())


@dataclass(frozen=True)
class Planes:
    """Numbers as whole ones of some bytes times a scale of their block: a plane for each byte.

    Of three bytes they are as near as float32 is to the largest of the block.
    """

    planes: Tensor  # (..., blocks, planes, runs, words), the highest bytes first
    scale: Tensor  # (..., blocks, 1)
    sums: Tensor  # (..., blocks, runs), of what was rounded: its errors meet values, not numbers
    taken: Tensor | None  # (..., blocks, runs, words): the middle's products

    @staticmethod
    def of(x: Tensor, count: int, largest: int, middle: int = 0) -> Planes:
        """Of numbers (..., blocks, runs, numbers of a run, a multiple of four).

        Four of their products with whole numbers up to `largest` fit 32 bits.
        """
        most = min(127 << 8 * (count - 1), ((1 << 31) - 1) // (4 * largest))
        peak = abs(x).max(axis=(-2, -1), keepdims=True)
        whole = (x / where(peak == 0, 1, peak) * most).round().astype(types.int32)
        fours = whole.reshape(*x.shape[:-1], -1, 4)
        taken = fours.sum(axis=-1, dtype=types.int32) * -middle if middle else None
        above = sum(128 << 8 * n for n in range(count))  # makes every byte one without a sign
        shifts = arange(8 * count - 8, -8, -8, dtype=types.int32).reshape(-1, 1, 1, 1)
        fours = fours.reshape(*x.shape[:-2], 1, *fours.shape[-3:]) + above
        bytes_ = ((fours >> shifts) & 255) ^ 128
        found = bytes_[..., 0]
        for place in (1, 2, 3):
            found = found | (bytes_[..., place] << 8 * place)
        scale = (peak * (1 / most))[..., 0].contiguous()
        sums = _float(whole.sum(axis=-1, dtype=types.int32)) * scale
        taken = None if taken is None else taken.contiguous()
        return Planes(found.contiguous(), scale, sums.contiguous(), taken)

    def dot(self, word: Tensor, run: int) -> Tensor:
        """Sums of four products each with a run."""
        total: Tensor | int = 0
        for plane in range(self.planes.shape[-3]):
            total = apply(DOT4, word, self.planes[..., plane, run, :], total << 8)
        assert isinstance(total, Tensor)
        return total if self.taken is None else total + self.taken[..., run, :]


def _words(b: Tensor) -> Tensor:
    """Bytes as words of four: one load each, wherever they lie."""
    found = b[..., 0::4].astype(types.uint32)
    for place in (1, 2, 3):
        found = found | (b[..., place::4].astype(types.uint32) << 8 * place)
    return found.bitcast(types.int32)


def _word(b: Tensor, place: int, count: int = 1) -> Tensor:
    return b[..., place : place + count]


def _bytes(word: Tensor) -> list[Tensor]:
    """The four bytes of a word."""
    return [(word >> 8 * place) & 255 for place in range(4)]


def _halves(word: Tensor) -> tuple[Tensor, Tensor]:
    """Two float16 of a word, widened."""
    halves = [half.astype(types.uint16).bitcast(types.float16) for half in (word, word >> 16)]
    return _float(halves[0]), _float(halves[1])


def _k_words(b: Tensor, numbers: list[Tensor], largest: int) -> Words:
    """Q4_K and Q5_K: eight runs of 32, each with a scale and a minimum of six bits."""
    scale, depth = _halves(_word(b, 0))
    first, second, third = (_word(b, place) for place in (1, 2, 3))
    steps = _bytes(first & 0x3F3F3F3F) + _bytes(third & 0x0F0F0F0F | (first >> 2) & 0x30303030)
    least = second & 0x3F3F3F3F, (third >> 4) & 0x0F0F0F0F | (second >> 2) & 0x30303030
    return Words(numbers, scale, largest, 0, steps, least, depth)


def _nibble_words(b: Tensor, start: int) -> list[Tensor]:
    """Eight runs of 32 in 32 words."""
    words = [_word(b, start + pair * 8, 8) for pair in range(4)]
    return [q & 0x0F0F0F0F for word in words for q in (word, word >> 4)]


def _q4_k_words(b: Tensor) -> Words:
    words = _words(b)
    return _k_words(words, _nibble_words(words, 4), 15)


def _q5_k_words(b: Tensor) -> Words:
    words = _words(b)
    high = [((_word(words, 4, 8) >> run) & 0x01010101) << 4 for run in range(8)]
    numbers = [q | h for q, h in zip(_nibble_words(words, 12), high, strict=True)]
    return _k_words(words, numbers, 31)


def _q6_k_words(b: Tensor) -> Words:
    words = _words(b[..., 0:208])
    is_first = arange(8) < 4  # a step is that of 16 numbers
    numbers, steps = [], []
    for run in range(8):
        half, part = divmod(run, 4)
        low = (_word(words, half * 16 + part % 2 * 8, 8) >> part // 2 * 4) & 0x0F0F0F0F
        high = (_word(words, 32 + half * 8, 8) >> part * 2) & 0x03030303
        numbers.append(low | (high << 4))
        two = _word(words, 48 + run // 2) << (16, 0)[run % 2]
        steps.append(where(is_first, (two << 8) >> 24, two >> 24))
    return Words(numbers, _half(b[..., 208:210]), 32, 32, steps)


def _whole_words(b: Tensor) -> Words:
    """Q8_0 and I8G64: numbers with signs behind a scale."""
    numbers = [_words(b[..., 2:]) ^ np.int32(-0x7F7F7F80)]
    return Words(numbers, _half(b[..., 0:2]), 128, 128)


def _half_words(b: Tensor) -> Words:
    """I4G64: numbers around 8 behind a scale."""
    words = _words(b[..., 2:])
    numbers = [words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F]
    return Words(numbers, _half(b[..., 0:2]), 8, 8)


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


def _iq4_xs(b: Tensor) -> Tensor:
    """Eight runs of 32 numbers of IQ4_NL, with steps of six bits: four and two of them apart."""
    n = b.shape[0]
    low, high = _unpack(b[:, 4:8], 4).mT.reshape(n, 8), _unpack(b[:, 2:4], 2).mT.reshape(n, 8)
    scale = _half(b[:, 0:2]) * (_float(low | (high << 4)) - 32)
    q = _unpack(b[:, 8:136], 4, 8).reshape(n, 8, 32)
    values = _float(Tensor(_IQ4, device=b.device)[q.astype(types.int32)])
    return (scale.reshape(n, 8, 1) * values).reshape(n, 256)


def _iq4_xs_runs(b: Tensor) -> Runs:
    table = Tensor(_IQ4, device=b.device)
    numbers, steps = [], []
    for run in range(8):
        numbers += [table[q.astype(types.int32)] for q in _nibbles(b, 8 + 16 * run, 16)]
        low = (_byte(b, 4 + run // 2) >> 4 * (run % 2)) & 15
        high = (_byte(b, 2 + run // 4) >> 2 * (run % 4)) & 3
        steps += _less([low | (high << 4)], 32) * 2
    return Runs(numbers, _half(b[..., 0:2]), steps)


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
    66: Quant("I8G64", 64, 66, _i8_64, _i8_64_runs, _whole_words),
    34: Quant("I4G64", 64, 34, _i4_64, _i4_64_runs, _half_words),
}
QUANTS: dict[int, Quant] = {
    2: Quant("Q4_0", 32, 18, _q4_0, _q4_0_runs),
    3: Quant("Q4_1", 32, 20, _q4_1, _q4_1_runs),
    6: Quant("Q5_0", 32, 22, _q5_0, _q5_0_runs),
    7: Quant("Q5_1", 32, 24, _q5_1, _q5_1_runs),
    8: Quant("Q8_0", 32, 34, _q8_0, _q8_0_runs, _whole_words),
    9: Quant("Q8_1", 32, 36, _q8_1),
    10: Quant("Q2_K", 256, 84, _q2_k),
    11: Quant("Q3_K", 256, 110, _q3_k),
    12: Quant("Q4_K", 256, 144, _q4_k, _q4_k_runs, _q4_k_words),
    13: Quant("Q5_K", 256, 176, _q5_k, _q5_k_runs, _q5_k_words),
    14: Quant("Q6_K", 256, 210, _q6_k, _q6_k_runs, _q6_k_words),
    15: Quant("Q8_K", 256, 292, _q8_k),
    20: Quant("IQ4_NL", 32, 18, _iq4_nl, _iq4_nl_runs),
    23: Quant("IQ4_XS", 256, 136, _iq4_xs, _iq4_xs_runs),
}
