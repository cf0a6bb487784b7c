"""GGUF's block-quantised types: what their bytes stand for, as expressions of ours.

In: a uint8 tensor with one block in each row. Out: float32 values, one row for each block, lazy:
a product with a quantised matrix unpacks inside its own kernel. Each type is one entry of
`QUANTS`: its number in files, how many values a block has in how many bytes, and the arithmetic.
Bits are unpacked by shifting a row by a small table along a new axis, never by loops. A test
compares every type with a scalar decoder written from the layouts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core import dtype as types
from ..functional.array.movement import concat
from ..tensor import Tensor


@dataclass(frozen=True)
class Quant:
    """One block-quantised type."""

    name: str
    count: int  # values of a block
    bytes: int  # that they take
    values: Callable[[Tensor], Tensor]


def _half(pair: Tensor) -> Tensor:
    """Two bytes of each row as a float16, widened."""
    wide = pair.astype(types.uint16)
    word = wide[:, 0:1] | (wide[:, 1:2] << 8)
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
    """The eight six-bit scales and minima that Q4_K and Q5_K pack into twelve bytes."""
    n = b.shape[0]
    first, second, third = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = concat([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    least = concat([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
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


QUANTS: dict[int, Quant] = {
    2: Quant("Q4_0", 32, 18, _q4_0),
    3: Quant("Q4_1", 32, 20, _q4_1),
    6: Quant("Q5_0", 32, 22, _q5_0),
    7: Quant("Q5_1", 32, 24, _q5_1),
    8: Quant("Q8_0", 32, 34, _q8_0),
    9: Quant("Q8_1", 32, 36, _q8_1),
    10: Quant("Q2_K", 256, 84, _q2_k),
    11: Quant("Q3_K", 256, 110, _q3_k),
    12: Quant("Q4_K", 256, 144, _q4_k),
    13: Quant("Q5_K", 256, 176, _q5_k),
    14: Quant("Q6_K", 256, 210, _q6_k),
    15: Quant("Q8_K", 256, 292, _q8_k),
}
