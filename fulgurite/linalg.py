"""Linear algebra: `fg.linalg`, with the names and meanings of the array API standard.

In: matrices, or stacks of them in the last two dimensions. Out: lazy tensors. Factorisations are
host steps through the LAPACK that NumPy carries, in float32, float64 or complex; everything that
is a composition of products and sums is one. Gradients are those of the mathematical function,
where it has one: of distinct eigenvalues, of matrices of full rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._hints import surface
from .core.dtype import DType, complex64, complex128, float32, float64
from .core.op import Array
from .core.shape import show
from .errors import ArgumentError, DTypeError, FulguriteError, ShapeError
from .extend.host_callback import custom, register_host
from .functional.array import creation
from .functional.array.arrangement import diagonal as _diagonal
from .functional.array.movement import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    stack,
)
from .functional.common import Axis, as_tensor, as_whole, astype, common_floats, wide
from .functional.datatypes import finfo
from .functional.math import elementwise, reduction
from .functional.math.complex_numbers import conj
from .functional.math.products import matmul, tensordot, vecdot
from .functional.math.products import outer as _outer
from .functional.template import templated
from .tensor import Tensor, TensorLike, stop_gradient
from .tensor.torch_aliases import accept_keywords

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "norm", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class LinearAlgebraError(FulguriteError, ValueError):
    """A matrix that has no such factorisation or inverse."""


class EigenResult(NamedTuple):
    """What `eigh` and `eig` give."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


# --- what factorisations share -------------------------------------------------------------------


def _matrix(x: TensorLike, what: str, square: bool = False) -> Tensor:
    """A stack of matrices in a dtype that LAPACK knows."""
    tensor = wide(x)
    if tensor.ndim < 2:
        raise ShapeError(f"{what} of shape {show(tensor.shape)}", "it takes matrices: 2 dimensions")
    if square and tensor.shape[-1] != tensor.shape[-2]:
        raise ShapeError(f"{what} of shape {show(tensor.shape)}", "it takes square matrices")
    return tensor


def _back(found: Tensor, x: TensorLike) -> Tensor:
    """A result in the dtype of what was passed, if that was a small float."""
    dtype = as_tensor(x).dtype
    return astype(found, dtype) if dtype.is_small_float else found


def _part(dtype: DType) -> DType:
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def _adjoint(x: Tensor) -> Tensor:
    return matrix_transpose(conj(x) if x.dtype.kind == "c" else x)


def _host(name: str, function: Callable[..., Any], grad: Callable[..., Any] | None) -> str:
    """Register a host step, whose failures say what to do."""

    def step(*arrays: Array) -> Any:
        try:
            found = function(*arrays)
        except np.linalg.LinAlgError as problem:
            raise LinearAlgebraError(
                f"fg.linalg.{name.split('.')[0]}: {problem}", _advice(str(problem))
            ) from problem
        return found

    register_host(f"linalg.{name}", step, grad)
    return f"linalg.{name}"


def _advice(problem: str) -> str:
    """What to do about what LAPACK says."""
    if "definite" in problem:
        return "it takes symmetric matrices whose eigenvalues are all above 0: add some to these"
    if "converge" in problem:
        return "look for NaN and infinities in the matrix"
    return "rows must not be multiples of each other: fg.linalg.pinv takes any matrix"


def _steps(*shapes: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(shape) for shape in shapes]


# --- inverse, determinant, systems ---------------------------------------------------------------


def _inv_grad(g: Tensor, y: Tensor, a: Tensor) -> Tensor:
    return -(matrix_transpose(y) @ g @ matrix_transpose(y))


def _det_grad(g: Tensor, y: Tensor, a: Tensor) -> Tensor:
    return expand_dims(g * y, (-2, -1)) * matrix_transpose(inv(a))


def _slogdet_grad(g: Any, y: Any, a: Tensor) -> Tensor | None:
    return None if g[1] is None else expand_dims(g[1], (-2, -1)) * matrix_transpose(inv(a))


def _solve_grad(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    right = solve(matrix_transpose(a), g)
    return -(right @ matrix_transpose(y)), right


def _plain_slogdet(a: Array) -> tuple[Array, Array]:
    sign, size = np.linalg.slogdet(a)
    return np.asarray(sign), np.asarray(size)


_INV = _host("inv", np.linalg.inv, _inv_grad)
_DET = _host("det", lambda a: np.asarray(np.linalg.det(a)), _det_grad)
_SLOGDET = _host("slogdet", _plain_slogdet, _slogdet_grad)
_SOLVE = _host("solve", np.linalg.solve, _solve_grad)


@templated
def inv(x: TensorLike) -> Tensor:
    """The inverse of square matrices.

    >>> fg.linalg.inv(fg.Tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    a = _matrix(x, "inv", square=True)
    return _back(custom(_INV, a, shape=a.shape), x)


@templated
def det(x: TensorLike) -> Tensor:
    """The determinant of square matrices.

    >>> fg.linalg.det(fg.Tensor([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """
    a = _matrix(x, "det", square=True)
    return _back(custom(_DET, a, shape=a.shape[:-2]), x)


def slogdet(x: TensorLike) -> SlogdetResult:
    """The sign of the determinant, and the logarithm of its magnitude.

    >>> sign, size = fg.linalg.slogdet(fg.Tensor([[-1.0, 0.0], [0.0, 1.0]]))
    >>> sign.item(), size.item()
    (-1.0, 0.0)
    """
    a = _matrix(x, "slogdet", square=True)
    shapes, dtypes = _steps(a.shape[:-2], a.shape[:-2]), [a.dtype, _part(a.dtype)]
    found = custom(_SLOGDET, a, shape=shapes, dtype=dtypes)
    return SlogdetResult(*[_back(part, x) for part in found])


@templated
def solve(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The y with x1 @ y = x2, for a vector x2 or the columns of a matrix.

    >>> fg.linalg.solve(fg.Tensor([[2.0, 0.0], [0.0, 4.0]]), fg.Tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    first, second = common_floats(x1, x2)
    a, b = _matrix(first, "solve", square=True), wide(second)
    vector = b.ndim == 1
    b = expand_dims(b, -1) if vector else b
    if not b.ndim or b.shape[-2] != a.shape[-1]:
        raise ShapeError(
            f"solve of {show(a.shape)} and {show(b.shape)}", "the rows of both must be as many"
        )
    stacks = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (broadcast_to(x, (*stacks, *x.shape[-2:])) for x in (a, b))
    found = custom(_SOLVE, a, b, shape=b.shape)
    return _back(found[..., 0] if vector else found, first)


# --- factorisations ------------------------------------------------------------------------------


def _half_lower(x: Tensor) -> Tensor:
    """The lower triangle, with half of the diagonal."""
    return creation.tril(x, -1) + creation.tril(x) * creation.eye(x.shape[-1], dtype=x.dtype) * 0.5


def _cholesky_grad(g: Tensor, y: Tensor, a: Tensor) -> Tensor:
    inside = _half_lower(_adjoint(y) @ creation.tril(g))
    left = solve(_adjoint(y), inside)
    both = _adjoint(solve(_adjoint(y), _adjoint(left)))
    return (both + _adjoint(both)) * 0.5


def _reals_only(x: Tensor, what: str) -> None:
    if x.dtype.kind == "c":
        raise DTypeError(f"{what} of complex matrices has no gradient here", "use stop_gradient")


def _qr_grad(g: Any, y: Any, a: Tensor) -> Tensor:
    q, r = y
    _reals_only(a, "qr")
    if q.shape[-1] != r.shape[-1]:
        raise ArgumentError(
            "the gradient of qr needs matrices at least as tall as wide, in the reduced form",
            "factor the first columns, or use stop_gradient",
        )
    gq = creation.zeros_like(q) if g[0] is None else g[0]
    gr = creation.zeros_like(r) if g[1] is None else g[1]
    m = r @ matrix_transpose(gr) - matrix_transpose(gq) @ q
    mirrored = creation.tril(m, -1) + matrix_transpose(creation.tril(m, -1))
    mirrored = mirrored + m * creation.eye(m.shape[-1], dtype=m.dtype)
    return matrix_transpose(solve(r, matrix_transpose(gq + q @ mirrored)))


def _gaps(values: Tensor) -> Tensor:
    """1 / (v_j - v_i), and 0 on the diagonal."""
    apart = expand_dims(values, -2) - expand_dims(values, -1)
    same = creation.eye(values.shape[-1], dtype="bool")
    return elementwise.where(same, 0, 1 / elementwise.where(same, 1, apart))


def _eigh_grad(g: Any, y: Any, a: Tensor) -> Tensor:
    values: Tensor = y[0]
    vectors: Tensor = y[1]
    _reals_only(a, "eigh")
    inner = creation.zeros_like(a)
    if g[0] is not None:
        inner = inner + expand_dims(g[0], -1) * creation.eye(a.shape[-1], dtype=a.dtype)
    if g[1] is not None:
        inner = inner + _gaps(values) * (matrix_transpose(vectors) @ g[1])
    found = vectors @ inner @ matrix_transpose(vectors)
    return (found + matrix_transpose(found)) * 0.5


def _svd_grad(g: Any, y: Any, a: Tensor) -> Tensor:
    u: Tensor = y[0]
    s: Tensor = y[1]
    vh: Tensor = y[2]
    _reals_only(a, "svd")
    if u.shape[-1] != s.shape[-1] or vh.shape[-2] != s.shape[-1]:
        raise ArgumentError(
            "the gradient of svd needs the reduced form", "pass full_matrices=False"
        )
    v, one = matrix_transpose(vh), creation.eye(s.shape[-1], dtype=a.dtype)
    gaps = _gaps(s * s)
    inner = creation.zeros_like(one) if g[1] is None else expand_dims(g[1], -1) * one
    across, down = expand_dims(s, -2), expand_dims(s, -1)
    outside = creation.zeros_like(a)
    if g[0] is not None:
        turn = gaps * (matrix_transpose(u) @ g[0])
        inner = inner + (turn + matrix_transpose(turn)) * across
        outside = outside + (g[0] - u @ (matrix_transpose(u) @ g[0])) / across @ vh
    if g[2] is not None:
        gv = matrix_transpose(g[2])
        turn = gaps * (vh @ gv)
        inner = inner + down * (turn + matrix_transpose(turn))
        outside = outside + u / across @ matrix_transpose(gv - v @ (vh @ gv))
    return u @ inner @ vh + outside


def _plain(function: Callable[..., Any], *extra: Any) -> Callable[[Array], Any]:
    return lambda a: tuple(function(a, *extra))


_CHOLESKY = _host("cholesky", np.linalg.cholesky, _cholesky_grad)
_EIGH = _host("eigh", _plain(np.linalg.eigh), _eigh_grad)
_EIG = _host("eig", lambda a: _complex(np.linalg.eig(a), a.dtype), None)
_QR = {m: _host(f"qr.{m}", _plain(np.linalg.qr, m), _qr_grad) for m in ("reduced", "complete")}
_SVD = {full: _host(f"svd.{'full' if full else 'reduced'}", _plain(np.linalg.svd, full), _svd_grad)
        for full in (True, False)}  # fmt: skip


def _complex(found: Sequence[Array], dtype: Any) -> tuple[Array, ...]:
    """Eigenvalues are complex, also if all of them happen to be real."""
    return tuple([part.astype(np.result_type(dtype, np.complex64)) for part in found])


@templated
def cholesky(x: TensorLike, upper: bool = False) -> Tensor:
    """The triangle L with L @ L.mT = x, for positive definite x; `upper` gives L.mT.

    >>> fg.linalg.cholesky(fg.Tensor([[4.0, 0.0], [0.0, 9.0]])).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    a = _matrix(x, "cholesky", square=True)
    found = custom(_CHOLESKY, a, shape=a.shape)
    return _back(_adjoint(found) if upper else found, x)


def qr(x: TensorLike, mode: str = "reduced") -> QRResult:
    """Q with orthonormal columns and an upper triangle R, with Q @ R = x.

    >>> q, r = fg.linalg.qr(fg.eye(2))
    >>> (q @ r).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if mode not in _QR:
        raise ArgumentError(f"mode is {mode!r}", "'reduced' or 'complete'")
    a = _matrix(x, "qr")
    *stacks, m, n = a.shape
    k = m if mode == "complete" else min(m, n)
    found = custom(_QR[mode], a, shape=_steps((*stacks, m, k), (*stacks, k, n)))
    return QRResult(*[_back(part, x) for part in found])


def svd(x: TensorLike, full_matrices: bool = True) -> SVDResult:
    """U, falling S and Vh with (U * S) @ Vh = x.

    >>> u, s, vh = fg.linalg.svd(fg.Tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> s.tolist()
    [2.0, 1.0]
    """
    a = _matrix(x, "svd")
    *stacks, m, n = a.shape
    k = min(m, n)
    rows, columns = (m, n) if full_matrices else (k, k)
    shapes = _steps((*stacks, m, rows), (*stacks, k), (*stacks, columns, n))
    found = custom(_SVD[bool(full_matrices)], a, shape=shapes,
                   dtype=[a.dtype, _part(a.dtype), a.dtype])  # fmt: skip
    return SVDResult(*[_back(part, x) for part in found])


def svdvals(x: TensorLike) -> Tensor:
    """The singular values, falling.

    >>> fg.linalg.svdvals(fg.Tensor([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    return svd(x, full_matrices=False).S


def eigh(x: TensorLike) -> EigenResult:
    """Rising eigenvalues and the eigenvectors, as columns, of symmetric (Hermitian) matrices.

    >>> fg.linalg.eigh(fg.Tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    a = _matrix(x, "eigh", square=True)
    shapes, dtypes = _steps(a.shape[:-1], a.shape), [_part(a.dtype), a.dtype]
    return EigenResult(*[_back(p, x) for p in custom(_EIGH, a, shape=shapes, dtype=dtypes)])


def eigvalsh(x: TensorLike) -> Tensor:
    """The rising eigenvalues of symmetric (Hermitian) matrices.

    >>> fg.linalg.eigvalsh(fg.Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return eigh(x).eigenvalues


def eig(x: TensorLike) -> EigenResult:
    """Eigenvalues and eigenvectors, as columns, of any square matrices: always complex numbers.

    >>> fg.linalg.eig(fg.Tensor([[0.0, -1.0], [1.0, 0.0]])).eigenvalues.tolist()
    [1j, -1j]
    """
    a = _matrix(x, "eig", square=True)
    dtype = complex128 if a.dtype in (float64, complex128) else complex64
    found = custom(_EIG, stop_gradient(a), shape=_steps(a.shape[:-1], a.shape), dtype=[dtype] * 2)
    return EigenResult(*found)


def eigvals(x: TensorLike) -> Tensor:
    """The eigenvalues of any square matrices: always complex numbers.

    >>> fg.linalg.eigvals(fg.Tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [(2+0j), (1+0j)]
    """
    return eig(x).eigenvalues


def pinv(
    x: TensorLike, rtol: TensorLike | None = None, *, atol: TensorLike | None = None
) -> Tensor:
    """The Moore-Penrose inverse; singular values below rtol times the largest, or atol, are 0.

    >>> fg.linalg.pinv(fg.Tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    a = _matrix(x, "pinv")
    u, s, vh = svd(a, full_matrices=False)
    kept = s > _floor(s, a, rtol, atol)
    inverse = elementwise.where(kept, 1 / elementwise.where(kept, s, 1), 0)
    return _back((_adjoint(vh) * expand_dims(inverse, -2)) @ _adjoint(u), x)


def matrix_rank(
    x: TensorLike, *, rtol: TensorLike | None = None, atol: TensorLike | None = None
) -> Tensor:
    """How many singular values are above rtol times the largest, and above atol.

    >>> fg.linalg.matrix_rank(fg.Tensor([[1.0, 2.0], [2.0, 4.0]])).item()
    1
    """
    a = _matrix(x, "matrix_rank")
    s = svdvals(a)
    return reduction.count_nonzero(s > _floor(s, a, rtol, atol), axis=-1)


def _floor(s: Tensor, a: Tensor, rtol: TensorLike | None, atol: TensorLike | None) -> Tensor:
    """The size below which a singular value counts as 0."""
    if not s.shape[-1]:
        return s
    limit = rtol
    if limit is None:
        limit = 0.0 if atol is not None else max(a.shape[-2:]) * finfo(s.dtype).eps
    share = reduction.max(s, axis=-1, keepdims=True) * expand_dims(astype(limit, s.dtype), -1)
    if atol is None:
        return share
    return elementwise.maximum(share, expand_dims(astype(atol, s.dtype), -1))


# --- compositions --------------------------------------------------------------------------------


def matrix_power(x: TensorLike, n: int) -> Tensor:
    """x multiplied with itself n times; a negative n means the inverse.

    >>> fg.linalg.matrix_power(fg.Tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    a, count = elementwise.positive(x), as_whole(n, "n")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"matrix_power of shape {show(a.shape)}", "it takes square matrices")
    base, count = (inv(a), -count) if count < 0 else (a, count)
    found: Tensor | None = None
    while count:
        if count & 1:
            found = base if found is None else found @ base
        count >>= 1
        base = base @ base if count else base
    if found is not None:
        return found
    return creation.eye(a.shape[-1], dtype=a.dtype) + creation.zeros_like(a)


def vector_norm(x: TensorLike, ord: float = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The length of vectors: (Σ |x| ** ord) ** (1 / ord); inf and -inf are the largest, smallest.

    >>> fg.linalg.vector_norm(fg.Tensor([3.0, 4.0])).item()
    5.0
    """
    return _back(reduction.p_norm(wide(x), ord, axis, keepdims), x)


def matrix_norm(x: TensorLike, ord: float | str = "fro", *, keepdims: bool = False) -> Tensor:
    """The norm of matrices: 'fro', 'nuc', 1, -1, 2, -2, inf or -inf.

    >>> fg.linalg.matrix_norm(fg.Tensor([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    """
    a = _matrix(x, "matrix_norm")
    if ord == "fro":
        found = vector_norm(a, axis=(-2, -1), keepdims=keepdims)
        return _back(found, x)
    if ord in ("nuc", 2, -2):
        s = svdvals(a)
        pick = {"nuc": reduction.sum, 2: reduction.max, -2: reduction.min}[ord]
        found = pick(s, axis=-1)  # type: ignore[operator]
        return _back(expand_dims(found, (-2, -1)) if keepdims else found, x)
    if ord not in (1, -1, float("inf"), float("-inf")):
        raise ArgumentError(f"ord is {ord!r}", "'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    along = -2 if ord in (1, -1) else -1
    sums = reduction.sum(elementwise.abs(a), axis=along, keepdims=True)
    pick = reduction.max if float(ord) > 0 else reduction.min
    return _back(pick(sums, axis=(-2, -1), keepdims=keepdims), x)


def norm(x: TensorLike, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """NumPy's spelling: `matrix_norm` if `ord` is said for a matrix or two axes, else of vectors.

    >>> fg.linalg.norm(fg.Tensor([3.0, 4.0])).item()
    5.0
    """
    a = as_tensor(x)
    pair = tuple(axis) if isinstance(axis, Sequence) else None
    if ord is not None and (len(pair) == 2 if pair else axis is None and a.ndim == 2):
        moved = moveaxis(a, pair, (-2, -1)) if pair else a
        found = matrix_norm(moved, keepdims=keepdims, ord=ord)
        return moveaxis(found, (-2, -1), pair) if pair and keepdims else found
    return vector_norm(a, axis=axis, keepdims=keepdims, ord=2 if ord is None else ord)


def cross(x1: TensorLike, x2: TensorLike, axis: int = -1) -> Tensor:
    """The vector at right angles to two vectors of three numbers.

    >>> fg.linalg.cross(fg.Tensor([1, 0, 0]), fg.Tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    a, b = broadcast_arrays(as_tensor(x1), as_tensor(x2))
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    if a.shape[-1] != 3:
        raise ShapeError(f"cross of {a.shape[-1]} numbers", "the axis must have size 3")
    parts = [a[..., i] * b[..., j] - a[..., j] * b[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(stack(parts, axis=-1), -1, axis)


def outer(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Every product of a number of one vector with one of the other.

    >>> fg.linalg.outer(fg.Tensor([1, 2]), fg.Tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return _outer(x1, x2)


def diagonal(x: TensorLike, offset: int = 0) -> Tensor:
    """The diagonal of matrices in the last two dimensions.

    >>> fg.linalg.diagonal(fg.Tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    return _diagonal(x, offset, -2, -1)


def trace(x: TensorLike, offset: int = 0, dtype: object = None) -> Tensor:
    """The sum of the diagonal of matrices in the last two dimensions.

    >>> fg.linalg.trace(fg.Tensor([[1, 2], [3, 4]])).item()
    5
    """
    return reduction.sum(diagonal(x, offset), axis=-1, dtype=dtype)


globals().update({name: accept_keywords(globals()[name]) for name in __all__})

__getattr__, __dir__ = surface(__name__)
