"""Discrete Fourier transforms: `fg.fft`, with the names and meanings of the array API standard.

In: tensors, the axes to transform, the lengths to cut or fill them to, and where the factor 1/n
goes (`norm`). Out: lazy tensors. Four transforms of one axis are host steps through NumPy's own;
the others are compositions of them. All are linear, so each is the gradient of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._hints import surface
from .core.dtype import DType, complex64, complex128, float32, float64
from .core.op import Array
from .errors import ArgumentError, AxisError
from .extend.host_callback import custom, register_host
from .functional.array import creation
from .functional.array.arrangement import roll
from .functional.array.movement import moveaxis, pad
from .functional.common import as_tensor, as_whole, astype, wide
from .functional.math.complex_numbers import conj, real
from .functional.math.elementwise import positive
from .tensor import Tensor, TensorLike
from .tensor.torch_aliases import accept_keywords

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip
_COMPLEX: dict[DType, DType] = {float32: complex64, float64: complex128}
_REAL: dict[DType, DType] = {complex64: float32, complex128: float64}


# --- the four host steps, of the last axis, without any factor but 1/n of the inverses ----------


def _same(function: Callable[..., Any], kind: str) -> Callable[[Array], Array]:
    def step(a: Array) -> Array:
        single = a.dtype in (np.float32, np.complex64)
        narrow, large = ("complex64", "complex128") if kind == "c" else ("float32", "float64")
        return np.asarray(function(a)).astype(narrow if single else large, copy=False)

    return step


def _rfft_grad(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return real(_along("fft.fft", _fitted(g, x.shape[-1]), x.shape[-1], g.dtype))


def _irfft_grad(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Every wave but the first, and the last of an even length, stands for two."""
    length, count = g.shape[-1], x.shape[-1]
    number = creation.arange(count)
    twice = (number > 0) & (number * 2 != length)
    return conj(_along("fft.rfft", g, count, x.dtype)) * ((1 + astype(twice, g.dtype)) / length)


def _along(name: str, x: Tensor, count: int, dtype: DType) -> Tensor:
    found: Tensor = custom(name, x, shape=(*x.shape[:-1], count), dtype=dtype)
    return found


def _linear(name: str) -> Callable[..., Tensor]:
    return lambda g, y, x: _along(name, g, g.shape[-1], g.dtype)


register_host("fft.fft", _same(np.fft.fft, "c"), _linear("fft.fft"))
register_host("fft.ifft", _same(np.fft.ifft, "c"), _linear("fft.ifft"))
register_host("fft.rfft", _same(np.fft.rfft, "c"), _rfft_grad)
register_host("fft.irfft.even", _same(np.fft.irfft, "f"), _irfft_grad)
register_host(
    "fft.irfft.odd",
    _same(lambda a: np.fft.irfft(a, 2 * a.shape[-1] - 1), "f"),
    _irfft_grad,
)


# --- one axis ------------------------------------------------------------------------------------


def _fitted(x: Tensor, count: int) -> Tensor:
    """The last axis cut, or filled with zeros, to a length."""
    size = x.shape[-1]
    if count < size:
        return x[..., :count]
    return x if count == size else pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count - size)])


def _length(n: object, default: int) -> int:
    count = default if n is None else as_whole(n, "n")
    if count < 1:
        raise ArgumentError(f"a transform of {count} points", "n must be at least 1")
    return count


def _factor(norm: str, count: int, forward: bool) -> float:
    """What to multiply with, where the host step has 1/n in the inverse alone."""
    if norm == "backward":
        return 1.0
    if norm not in ("ortho", "forward"):
        raise ArgumentError(f"norm is {norm!r}", "'backward', 'ortho' or 'forward'")
    power = 0.5 if norm == "ortho" else 1.0
    return math.pow(count, -power if forward else power)


def _input(x: TensorLike, axis: int) -> Tensor:
    tensor = wide(x)
    if not -tensor.ndim <= axis < tensor.ndim:
        raise AxisError(f"axis {axis} of {tensor.ndim} dimensions", "name an axis it has")
    return moveaxis(tensor, axis, -1)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def fft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The waves that numbers along an axis are made of.

    >>> fg.fft.fft(fg.Tensor([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _two_sided("fft.fft", x, n, axis, norm)


def ifft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `fft`.

    >>> fg.fft.ifft(fg.Tensor([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _two_sided("fft.ifft", x, n, axis, norm)


def _two_sided(name: str, x: TensorLike, n: int | None, axis: int, norm: str) -> Tensor:
    a = _input(x, axis)
    a = astype(a, _COMPLEX.get(a.dtype, a.dtype))
    count = _length(n, a.shape[-1])
    found = _along(name, _fitted(a, count), count, a.dtype)
    return moveaxis(_scaled(found, _factor(norm, count, name == "fft.fft")), -1, axis)


def rfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The first half of `fft` of real numbers: the second half mirrors it.

    >>> fg.fft.rfft(fg.Tensor([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j)]
    """
    a = _input(x, axis)
    if a.dtype not in _COMPLEX:
        raise ArgumentError(f"rfft of {a.dtype} numbers", "it takes real ones: use fft")
    count = _length(n, a.shape[-1])
    found = _along("fft.rfft", _fitted(a, count), count // 2 + 1, _COMPLEX[a.dtype])
    return moveaxis(_scaled(found, _factor(norm, count, True)), -1, axis)


def irfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers, by default an even number of them.

    >>> fg.fft.irfft(fg.Tensor([1.0, 1.0, 1.0])).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    a = _input(x, axis)
    a = astype(a, _COMPLEX.get(a.dtype, a.dtype))
    count = _length(n, 2 * (a.shape[-1] - 1))
    name = "fft.irfft.odd" if count % 2 else "fft.irfft.even"
    if count == 1:
        found = real(_fitted(a, 1))
    else:
        found = _along(name, _fitted(a, count // 2 + 1), count, _REAL[a.dtype])
    return moveaxis(_scaled(found, _factor(norm, count, False)), -1, axis)


_SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def hfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """`fft` of numbers whose second half would mirror the first: real numbers.

    >>> fg.fft.hfft(fg.Tensor([1.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return irfft(conj(as_tensor(x)), n, axis, _SWAPPED.get(norm, norm))


def ihfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`.

    >>> fg.fft.ihfft(fg.Tensor([1.0, 1.0, 1.0, 1.0])).tolist()
    [(1-0j), -0j, -0j]
    """
    return conj(rfft(x, n, axis, _SWAPPED.get(norm, norm)))


# --- several axes --------------------------------------------------------------------------------


def _plan(
    x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None
) -> list[tuple[int, int | None]]:
    """Each axis with the length to fit it to."""
    if axes is None:
        axes = range(-len(s), 0) if s is not None else range(-x.ndim, 0)
    if s is not None and len(s) != len(axes):
        raise ArgumentError(f"{len(s)} lengths for {len(axes)} axes", "one for each axis")
    return list(zip(axes, s if s is not None else [None] * len(axes), strict=True))


def _over(found: Tensor, steps: Sequence[tuple[int, int | None]], one: Any, norm: str) -> Tensor:
    for axis, count in steps:
        found = one(found, count, axis, norm)
    return found


def fftn(
    x: TensorLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """`fft` along several axes, by default all.

    >>> fg.fft.fftn(fg.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    tensor = positive(x)
    return _over(tensor, _plan(tensor, s, axes), fft, norm)


def ifftn(
    x: TensorLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """The inverse of `fftn`.

    >>> fg.fft.ifftn(fg.ones((2, 2))).tolist()
    [[(1+0j), 0j], [0j, 0j]]
    """
    tensor = positive(x)
    return _over(tensor, _plan(tensor, s, axes), ifft, norm)


def rfftn(
    x: TensorLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """`rfft` along the last of several axes, then `fft` along the others.

    >>> fg.fft.rfftn(fg.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    tensor = as_tensor(x)
    *others, last = _plan(tensor, s, axes)
    return _over(_over(tensor, [last], rfft, norm), others, fft, norm)


def irfftn(
    x: TensorLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:  # fmt: skip
    """The inverse of `rfftn`.

    >>> fg.fft.irfftn(fg.ones((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    tensor = as_tensor(x)
    *others, last = _plan(tensor, s, axes)
    return _over(_over(tensor, others, ifft, norm), [last], irfft, norm)


# --- frequencies ---------------------------------------------------------------------------------


def fftfreq(n: int, d: float = 1.0, dtype: object = None, device: str | None = None) -> Tensor:
    """The frequency of each number that `fft` gives, for samples d apart.

    >>> fg.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    array = np.fft.fftfreq(_length(n, 1), d)
    return Tensor(array, dtype or float32, device)


def rfftfreq(n: int, d: float = 1.0, dtype: object = None, device: str | None = None) -> Tensor:
    """The frequency of each number that `rfft` gives, for samples d apart.

    >>> fg.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    array = np.fft.rfftfreq(_length(n, 1), d)
    return Tensor(array, dtype or float32, device)


def _shifted(x: TensorLike, axes: int | Sequence[int] | None, sign: int) -> Tensor:
    tensor = as_tensor(x)
    chosen = range(tensor.ndim) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    places = [
        math.floor(tensor.shape[a] / 2) if sign > 0 else -math.floor(tensor.shape[a] / 2)
        for a in chosen
    ]
    return roll(tensor, tuple(places), axis=tuple(chosen)) if places else positive(tensor)


def fftshift(x: TensorLike, axes: int | Sequence[int] | None = None) -> Tensor:
    """Frequency 0 moved to the middle.

    >>> fg.fft.fftshift(fg.Tensor([0, 1, -2, -1])).tolist()
    [-2, -1, 0, 1]
    """
    return _shifted(x, axes, 1)


def ifftshift(x: TensorLike, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> fg.fft.ifftshift(fg.Tensor([-2, -1, 0, 1])).tolist()
    [0, 1, -2, -1]
    """
    return _shifted(x, axes, -1)


globals().update({name: accept_keywords(globals()[name]) for name in __all__})

__getattr__, __dir__ = surface(__name__)
