"""Complex numbers: their parts, their conjugates, and numbers made of two parts.

In: tensors; real ones are complex numbers without an imaginary part. Out: tensors of the same
shape. Parts are taken as they are: an infinity in one never makes a NaN of the other.
"""

from __future__ import annotations

from ...core.node import constant_like
from ...core.ops.complexes import IMAG, PAIR, REAL
from ...core.ops.elementwise import ATAN2
from ...tensor import Tensor, TensorLike, wrap
from ..common import apply, as_tensor, common_floats, floating


def real(x: TensorLike) -> Tensor:
    """The real part; that of real numbers is they themselves.

    >>> fg.real(fg.Tensor([1 + 2j])).tolist()
    [1.0]
    """
    tensor = as_tensor(x)
    return apply(REAL, tensor) if tensor.dtype.kind == "c" else wrap(tensor.node)


def imag(x: TensorLike) -> Tensor:
    """The imaginary part; that of real numbers is 0.

    >>> fg.imag(fg.Tensor([1 + 2j])).tolist()
    [2.0]
    """
    tensor = as_tensor(x)
    return apply(IMAG, tensor) if tensor.dtype.kind == "c" else wrap(constant_like(0, tensor.node))


def conj(x: TensorLike) -> Tensor:
    """The number with its imaginary part negated; a real number itself.

    >>> fg.conj(fg.Tensor([1 + 2j])).tolist()
    [(1-2j)]
    """
    tensor = as_tensor(x)
    return complex(real(tensor), -imag(tensor)) if tensor.dtype.kind == "c" else wrap(tensor.node)


def complex(real: TensorLike, imag: TensorLike) -> Tensor:
    """The complex numbers with these parts: complex128 of float64, else complex64.

    >>> fg.complex(fg.Tensor([1.0]), 2.0).tolist()
    [(1+2j)]
    """
    return apply(PAIR, *common_floats(real, imag))


def angle(x: TensorLike) -> Tensor:
    """The angle of the number in the plane; of a negative real number pi.

    >>> fg.angle(fg.Tensor([1j, -1 + 0j])).tolist()
    [1.5707963705062866, 3.1415927410125732]
    """
    tensor = floating(x)
    return apply(ATAN2, imag(tensor), real(tensor))
