"""Products of matrices.

In: a `Call`. Out: lazy tensors of the inputs' element type. Determinants are LAPACK's, on the host.
"""

from __future__ import annotations

import numpy as np

import fulgurite as fg

from ....core.op import Array
from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, operator
from ...values import Value
from ..whole import real_product


@operator("MatMul")
def mat_mul(op: Call) -> Tensor | Value:
    """Matrices multiplied, as NumPy does."""
    found = real_product(op)
    return fg.matmul(op[0], op[1]) if found is None else found


@operator("Gemm")
def gemm(op: Call) -> Tensor | Value:
    """alpha A B + beta C."""
    if not op.int("transA") and op.float("alpha", 1.0) == op.float("beta", 1.0) == 1:
        found = real_product(op, bool(op.int("transB")))
        if found is not None:
            return _plus(op, found) if op.has(2) else found
    a, b = op[0], op[1]
    a = fg.matrix_transpose(a) if op.int("transA") else a
    b = fg.matrix_transpose(b) if op.int("transB") else b
    return scaled_product(a, b, op.maybe(2), op.float("alpha", 1.0), op.float("beta", 1.0))


def _plus(op: Call, product: Value) -> Value:
    """A product of dequantised matrices and a bias."""
    found = Value(product.tensor + op[2])
    if product.sums is not None and op.value(2).constant:
        found.sums = product.sums._replace(bias=op[2])
    return found


def scaled_product(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    """A product and a sum, in the type of the factors."""
    found = fg.matmul(a, b)
    if alpha != 1:
        found = _times(found, alpha)
    if c is None or beta == 0:
        return found
    return found + (c if beta == 1 else _times(c, beta))


def _times(x: Tensor, factor: float) -> Tensor:
    if x.dtype.is_float:
        return x * factor
    return (x.astype(fg.float64) * factor).astype(x.dtype)


@operator("Einsum")
def einsum(op: Call) -> Tensor:
    """Sums of products by letters."""
    return fg.einsum(op.text("equation").replace(" ", ""), *op.tensors()).astype(op[0].dtype)


def _determinant(matrices: Array) -> Array:
    return np.asarray(np.linalg.det(matrices)).astype(matrices.dtype)


@operator("Det", host=True)
def det(op: Call) -> Tensor:
    """Determinants of the last two axes."""
    x = op[0]
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"the determinant of shape {x.shape}", "square matrices have one")
    found: Tensor = fg.custom(_determinant, x, shape=x.shape[:-2], dtype=x.dtype)
    return found
