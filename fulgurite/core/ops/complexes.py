"""Complex numbers taken apart and put together.

`real` and `imag` take the parts of a complex number as they are, `pair` makes one of two reals:
infinities and NaNs in one part never touch the other, as they would through a product with 1j.
Gradients are those of the linear map to pairs that products of complex numbers agree with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtype import DType, complex64, complex128, float32, float64
from ..node import Node, constant_like
from ..op import Array, Op
from .elementwise import elementwise


def _part(src: tuple[Node, ...], arg: Any) -> DType:
    return float32 if src[0].dtype is complex64 else float64


def _whole(src: tuple[Node, ...], arg: Any) -> DType:
    return complex128 if src[0].dtype is float64 else complex64


def _paired(a: Array, b: Array) -> Array:
    shape = np.broadcast_shapes(a.shape, b.shape)  # constants come as one number
    whole = np.empty(shape, np.complex128 if a.dtype == np.float64 else np.complex64)
    whole.real, whole.imag = a, b
    return whole


def _nothing(g: Node) -> Node:
    return constant_like(0, g)


REAL: Op = elementwise(
    "real", np.real, "the real part of a", arity=1, kinds="c", result=_part, smooth=False,
    grad=lambda g, y, a: (PAIR(g, _nothing(g)),), tangent=lambda y, t: REAL(t[0]),
)  # fmt: skip
IMAG: Op = elementwise(
    "imag", np.imag, "the imaginary part of a", arity=1, kinds="c", result=_part, smooth=False,
    grad=lambda g, y, a: (PAIR(_nothing(g), -g),), tangent=lambda y, t: IMAG(t[0]),
)  # fmt: skip


def _pair_tangent(y: Node, tangents: tuple[Node | None, ...]) -> Node:
    both = zip(tangents, y.src, strict=True)
    return PAIR(*[_nothing(source) if t is None else t for t, source in both])


PAIR: Op = elementwise(
    "pair", _paired, "the complex number a + bi", kinds="f", result=_whole, smooth=False,
    grad=lambda g, y, a, b: (REAL(g), -IMAG(g)), tangent=_pair_tangent,
)  # fmt: skip
