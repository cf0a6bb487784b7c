"""Random numbers: `fg.random.normal((2, 3))`, from the seed of the process or from a key.

In: shapes, parameters, and a key or none. Out: tensors, lazy like all others: the bits are a hash
of a key and a counter (Threefry-2x32), made inside the kernel that uses them. The numbers depend on
seed and order of draws, or on the key alone: never on device, thread count or process, bit for bit.
Parameters that are tensors have gradients where a draw is a smooth function of them (`loc`,
`scale`, `low`, `high`). `shape=None` takes the shape of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._hints import surface
from ..core import build
from ..core import shape as sizes
from ..core.dtype import (
    DType,
    default_float,
    default_int,
    dtype_of,
    float32,
    float64,
    uint32,
    uint64,
)
from ..core.node import Node, Shape, constant, constant_like
from ..core.ops.elementwise import CAST, LT, MAX, MIN, SHR, WHERE
from ..errors import ArgumentError, DTypeError, ShapeError
from ..functional.array.indexing import take
from ..functional.array.sorting import argsort, searchsorted
from ..functional.common import as_tensor, as_whole
from ..functional.math.elementwise import nextafter, where
from ..functional.math.reduction import argmax
from ..functional.math.scan import cumulative_sum
from ..tensor import Tensor, TensorLike, node_of, wrap
from . import distributions, generator, reproducible_math
from .generator import FOLD, GENERATOR, SPLIT, Source, derived, key_node, seed_key, words_of
from .weighted import checked
from .weighted import multinomial_counts as multinomial

__all__ = [
    "bernoulli", "beta", "bits", "categorical", "choice", "dropout", "exponential", "fold_in",
    "gamma", "get_state", "key", "multinomial", "normal", "permutation", "rand", "randint",
    "randn", "seed", "set_state", "shuffle", "split", "truncated_normal", "uniform",
]  # fmt: skip
ShapeLike = Any  # a size, or several: as everywhere

# --- state and keys ------------------------------------------------------------------------------


def seed(value: int) -> None:
    """Start the generator of the process anew; it begins as after `seed(0)`.

    >>> fg.random.seed(7); a = fg.random.uniform((3,)).tolist()
    >>> fg.random.seed(7); a == fg.random.uniform((3,)).tolist()
    True
    """
    GENERATOR.set(seed_key(value), 0)


def get_state() -> dict[str, Any]:
    """The generator's state, as plain numbers: put it into a checkpoint.

    >>> state = fg.random.get_state(); a = fg.random.normal((2,)).tolist()
    >>> fg.random.set_state(state); a == fg.random.normal((2,)).tolist()
    True
    """
    found, counter = GENERATOR.get()
    return {"key": list(found), "counter": counter}


def set_state(state: Mapping[str, Any]) -> None:
    """Go on from a state that `get_state` gave."""
    try:
        low, high = [int(word) for word in state["key"]]
        counter = int(state["counter"])
        good = min(low, high) >= 0 and max(low, high) < 1 << 32 and 0 <= counter < 1 << 64
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise ArgumentError(f"{state!r} is no state", "give what fg.random.get_state() gave")
    GENERATOR.set((low, high), counter)


def key(seed: int, device: str | None = None) -> Tensor:
    """A key: draws with `key=` depend on it alone, and touch no other state.

    >>> k = fg.random.key(1)
    >>> bool((fg.random.normal((3,), key=k) == fg.random.normal((3,), key=k)).all())
    True
    """
    return Tensor(list(words_of(seed)), uint32, device)


def split(key: Tensor, count: int = 2) -> Tensor:
    """So many new keys, one a row; their numbers have nothing to do with each other's.

    >>> a, b = fg.random.split(fg.random.key(1))
    >>> fg.random.normal((1,), key=a).item() == fg.random.normal((1,), key=b).item()
    False
    """
    whole = as_whole(count, "count")
    if whole < 0:
        raise ArgumentError(f"count is {whole}", "count is at least 0")
    return derived(key, constant(SPLIT, uint64), (whole, 2))


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """A new key from a key and a whole number, such as the number of a step.

    >>> k = fg.random.key(1)
    >>> fg.random.fold_in(k, 5).tolist() == fg.random.fold_in(k, 6).tolist()
    False
    """
    if isinstance(data, Tensor):
        number = node_of(data)
    else:
        low, high = words_of(data)
        array = np.array(low | high << 32, np.uint64)  # a buffer: another number compiles nothing
        number = node_of(Tensor(array, device=key_node(key).device))
    if not number.dtype.is_integer or number.shape != ():
        raise DTypeError("only one whole number is folded in", "use an int, or vmap for several")
    counter = build.cast(number, uint64) & ((1 << 62) - 1) | FOLD
    return derived(key, counter, (2,))


# --- bits and floats -----------------------------------------------------------------------------


@generator.key_by_name
def bits(
    shape: ShapeLike = (),
    dtype: object = uint32,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Unsigned whole numbers of which every bit is random.

    >>> fg.random.bits((2,), fg.uint8).dtype
    uint8
    """
    kind = dtype_of(dtype)
    if kind.kind != "u":
        raise DTypeError(f"random bits are unsigned, not {kind}", "use uint8 to uint64")
    source, whole = Source(key, device), build.as_shape(shape)
    found = distributions.bits64(source, whole) if kind is uint64 else source.bits(whole)
    if kind.bits < 32:
        found = SHR(found, constant_like(32 - kind.bits, found))
    return wrap(build.cast(found, kind))


# --- parameters ----------------------------------------------------------------------------------


def _float(dtype: object) -> DType:
    kind = default_float if dtype is None else dtype_of(dtype)
    if not kind.is_float:
        raise DTypeError(f"{kind} numbers are not drawn here", "use a float dtype, or randint")
    return kind


def _wide(dtype: DType) -> DType:
    """What a distribution is computed in."""
    return float64 if dtype is float64 else float32


def _shape(shape: ShapeLike, *parameters: TensorLike) -> Shape:
    """The shape asked for, or that of the parameters, which must fit it."""
    given = [node_of(p).shape for p in parameters if not isinstance(p, int | float)]
    own = sizes.broadcast(*given) if given else ()
    if shape is None:
        return own
    whole = build.as_shape(shape)
    if given and sizes.broadcast(own, whole) != whole:
        raise ShapeError(
            f"parameters of shape {sizes.show(own)} do not fit a draw of {sizes.show(whole)}",
            "leave the shape out, or give a larger one",
        )
    return whole


def _is(value: TensorLike, number: float) -> bool:
    return isinstance(value, int | float) and value == number


def _located(z: Node, loc: TensorLike, scale: TensorLike, dtype: DType) -> Tensor:
    """loc + scale * z, rounded once to the dtype asked for."""
    if not _is(scale, 1):
        z = z * distributions.fitted(scale, z.dtype, z.shape)
    if not _is(loc, 0):
        z = distributions.fitted(loc, z.dtype, z.shape) + z
    return wrap(build.note(build.cast(z, dtype)))


def _device(device: str | None, *parameters: TensorLike) -> str | None:
    """Where a draw happens: as asked, else where its parameters are."""
    if device is not None:
        return device
    return build.same_device([node_of(p) for p in parameters if isinstance(p, Tensor)])


def _non_negative(value: TensorLike, what: str) -> None:
    if isinstance(value, int | float) and not value >= 0:
        raise ArgumentError(f"{what} is {value}", f"{what} is at least 0")


# --- floats --------------------------------------------------------------------------------------


@generator.key_by_name
def uniform(
    shape: ShapeLike = None,
    low: TensorLike = 0.0,
    high: TensorLike = 1.0,
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers from `low` to below `high`, each as likely as the others.

    >>> x = fg.random.uniform((1000,), 2.0, 3.0, key=fg.random.key(0))
    >>> bool(((x >= 2) & (x < 3)).all())
    True
    """
    kind, whole = _float(dtype), _shape(shape, low, high)
    source = Source(key, _device(device, low, high))
    if _is(low, 0) and _is(high, 1):
        return wrap(build.note(distributions.unit_numbers(source, whole, kind)))
    if isinstance(low, int | float) and isinstance(high, int | float) and not low <= high:
        raise ArgumentError(f"there are no numbers from {low} to below {high}", "give low <= high")
    wide = _wide(kind)
    unit = distributions.unit_numbers(source, whole, wide)
    start, stop = distributions.fitted(low, wide, whole), distributions.fitted(high, wide, whole)
    drawn = wrap(build.note(build.cast(start + unit * (stop - start), kind)))
    limit, floor = wrap(build.cast(stop, kind)), wrap(build.cast(start, kind))
    return where(drawn < limit, drawn, nextafter(limit, floor))  # rounding may reach the limit


@generator.key_by_name
def normal(
    shape: ShapeLike = None,
    loc: TensorLike = 0.0,
    scale: TensorLike = 1.0,
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers of the normal distribution around `loc` with standard deviation `scale`.

    >>> x = fg.random.normal((10000,), loc=3.0, scale=2.0, key=fg.random.key(0))
    >>> round(float(x.mean()), 1), round(float(x.std()), 1)
    (3.0, 2.0)
    """
    kind, whole = _float(dtype), _shape(shape, loc, scale)
    _non_negative(scale, "scale")
    source = Source(key, _device(device, loc, scale))
    return _located(distributions.standard_normal(source, whole, _wide(kind)), loc, scale, kind)


@generator.key_by_name
def truncated_normal(
    shape: ShapeLike = None,
    low: float = -2.0,
    high: float = 2.0,
    loc: TensorLike = 0.0,
    scale: TensorLike = 1.0,
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Normal numbers of which only those from `low` to `high` standard deviations are taken.

    >>> x = fg.random.truncated_normal((1000,), -1.0, 2.0, key=fg.random.key(0))
    >>> bool(((x >= -1) & (x <= 2)).all())
    True
    """
    kind, whole = _float(dtype), _shape(shape, loc, scale)
    _non_negative(scale, "scale")
    if not low < high:
        raise ArgumentError(f"there are no numbers between {low} and {high}", "give low < high")
    wide = _wide(kind)
    unit = distributions.unit_numbers(Source(key, _device(device, loc, scale)), whole, wide)
    if low > 0:  # far out only the lower tail has digits: draw there, and mirror
        z = -distributions.normal_between(unit, -high, -low)
    else:
        z = distributions.normal_between(unit, low, high)
    inside = MIN(MAX(z, constant_like(low, z)), constant_like(high, z))
    return _located(inside, loc, scale, kind)


@generator.key_by_name
def exponential(
    shape: ShapeLike = None,
    scale: TensorLike = 1.0,
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Waiting times of mean `scale`: the exponential distribution.

    >>> x = fg.random.exponential((10000,), 2.0, key=fg.random.key(0))
    >>> round(float(x.mean()), 1)
    2.0
    """
    kind, whole = _float(dtype), _shape(shape, scale)
    _non_negative(scale, "scale")
    unit = distributions.open_unit(Source(key, _device(device, scale)), whole, _wide(kind))
    return _located(-reproducible_math.log(unit), 0, scale, kind)


@generator.key_by_name
def gamma(
    alpha: TensorLike,
    shape: ShapeLike = None,
    scale: TensorLike = 1.0,
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers of the gamma distribution; `alpha` has no gradient, `scale` has one.

    >>> x = fg.random.gamma(4.0, (10000,), key=fg.random.key(0))
    >>> round(float(x.mean())), round(float(x.var()))
    (4, 4)
    """
    kind, whole = _float(dtype), _shape(shape, alpha, scale)
    _non_negative(scale, "scale")
    source = Source(key, _device(device, alpha, scale))
    value, log_boost = distributions.gamma_variate(source, alpha, whole, _wide(kind))
    return _located(value * reproducible_math.exp(log_boost), 0, scale, kind)


@generator.key_by_name
def beta(
    a: TensorLike,
    b: TensorLike,
    shape: ShapeLike = None,
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers of the beta distribution, between 0 and 1; the parameters have no gradient.

    >>> x = fg.random.beta(2.0, 6.0, (10000,), key=fg.random.key(0))
    >>> round(float(x.mean()), 2)
    0.25
    """
    kind, whole = _float(dtype), _shape(shape, a, b)
    source = Source(key, _device(device, a, b))
    logs = []
    for parameter in (a, b):  # in logarithms: of small parameters both variates may be 0
        value, log_boost = distributions.gamma_variate(source, parameter, whole, _wide(kind))
        logs.append(reproducible_math.log(value) + log_boost)
    apart = logs[1] - logs[0]
    ratio = reproducible_math.exp(MIN(apart, -apart))  # below 1: it cannot overflow
    low = ratio / (ratio + 1)
    found = WHERE(LT(apart, constant_like(0, apart)), 1 - low, low)
    return wrap(build.note(build.cast(found, kind)))


# --- whole numbers and choices -------------------------------------------------------------------


@generator.key_by_name
def randint(
    low: int,
    high: int | None = None,
    shape: ShapeLike = (),
    dtype: object = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Whole numbers from `low` to below `high`; with one limit, from 0 to below it.

    No number is more likely than another by more than one part in 2**32.

    >>> x = fg.random.randint(1, 7, (1000,), key=fg.random.key(0))
    >>> int(x.min()), int(x.max())
    (1, 6)
    """
    start, stop = (0, low) if high is None else (low, high)
    start, stop = as_whole(start, "low"), as_whole(stop, "high")
    kind = default_int if dtype is None else dtype_of(dtype)
    if kind.kind not in "iu":
        raise DTypeError(f"{kind} is no dtype of whole numbers", "use an integer dtype")
    least, most = kind.limits
    if not least <= start < stop <= most + 1:
        raise ArgumentError(
            f"there are no {kind} numbers from {start} to below {stop}",
            "give low < high within the dtype",
        )
    found = distributions.whole_below(Source(key, device), build.as_shape(shape), stop - start)
    return wrap(build.note(CAST(found + start % (1 << 64), arg=kind)))


@generator.key_by_name
def bernoulli(
    p: TensorLike = 0.5,
    shape: ShapeLike = None,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Truths that hold with probability `p`.

    >>> x = fg.random.bernoulli(0.25, (10000,), key=fg.random.key(0))
    >>> 2400 < int(x.sum()) < 2600
    True
    """
    if isinstance(p, int | float) and not 0 <= p <= 1:
        raise ArgumentError(f"p is {p}", "a probability is from 0 to 1")
    whole = _shape(shape, p)
    wide = float64 if isinstance(p, Tensor) and p.dtype is float64 else float32
    unit = distributions.unit_numbers(Source(key, _device(device, p)), whole, wide)
    return wrap(build.note(LT(unit, build.detach(distributions.fitted(p, wide, whole)))))


@generator.key_by_name
def categorical(
    logits: TensorLike,
    axis: int = -1,
    shape: ShapeLike = (),
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Places along an axis, drawn with probabilities `softmax(logits, axis)`.

    `shape` says how many of each, in front. The largest of logits with Gumbel noise is taken.

    >>> logits = fg.log(fg.Tensor([0.1, 0.0, 0.9]))
    >>> x = fg.random.categorical(logits, shape=(1000,), key=fg.random.key(0))
    >>> int((x == 1).sum()), 850 < int((x == 2).sum()) < 950
    (0, True)
    """
    table = as_tensor(logits).detach()
    place = build.as_axis(axis, table.ndim) - table.ndim
    table = table if table.dtype.is_float else table.astype(default_float)
    wide = _wide(table.dtype)
    whole = (*build.as_shape(shape), *table.shape)
    noise = distributions.gumbel(Source(key, _device(device, table)), whole, wide)
    return argmax(wrap(distributions.fitted(table, wide, whole) + noise), axis=place)


# --- order ---------------------------------------------------------------------------------------


@generator.key_by_name
def permutation(
    x: int | TensorLike, axis: int = 0, key: Tensor | None = None, device: str | None = None
) -> Tensor:
    """The numbers below x in random order, or the slices of x along an axis in random order.

    >>> sorted(fg.random.permutation(5, key=fg.random.key(0)).tolist())
    [0, 1, 2, 3, 4]
    """
    if isinstance(x, int) and not isinstance(x, bool):
        if x < 0:
            raise ArgumentError(f"there are no {x} numbers", "give at least 0")
        return argsort(wrap(distributions.bits64(Source(key, device), (x,))))
    table = as_tensor(x)
    place = build.as_axis(axis, table.ndim)
    size = build.as_size(table.shape[place])
    order = argsort(wrap(distributions.bits64(Source(key, device or table.device), (size,))))
    return take(table, order, axis=place)


@generator.key_by_name
def shuffle(
    x: TensorLike, axis: int = 0, key: Tensor | None = None, device: str | None = None
) -> Tensor:
    """The slices of x along an axis in random order; x itself stays as it is.

    >>> sorted(fg.random.shuffle(fg.Tensor([3, 1, 2]), key=fg.random.key(0)).tolist())
    [1, 2, 3]
    """
    return permutation(as_tensor(x), axis, key, device)


@generator.key_by_name
def choice(
    x: int | TensorLike,
    shape: ShapeLike = (),
    replace: bool = True,
    p: TensorLike | None = None,
    axis: int = 0,
    key: Tensor | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers below x, or slices of x along an axis, each drawn with probability `p`.

    >>> x = fg.random.choice(10, (4,), replace=False, key=fg.random.key(0))
    >>> len(set(x.tolist()))
    4
    """
    whole = build.as_shape(shape)
    table = None if isinstance(x, int) else as_tensor(x)
    size = x if table is None else table.shape[build.as_axis(axis, table.ndim)]
    count = sizes.prod(whole)
    if not isinstance(size, int) or not isinstance(count, int):
        raise ShapeError("choices are among a fixed number", "use randint with variable sizes")
    if size < 1 and count:
        raise ArgumentError(f"there is nothing to choose among {size}", "give at least one")
    if not replace and count > size:
        raise ArgumentError(f"{count} of {size} cannot all differ", "use replace=True")
    device = device if table is None or device else table.device
    weights = None if p is None else _weights(p, size)
    places = _places(size, count, replace, weights, key, device).reshape(whole)
    return places if table is None else take(table, places, axis=axis)


def _places(
    size: int, count: int, replace: bool, weights: Tensor | None, key: Tensor | None,
    device: str | None,
) -> Tensor:  # fmt: skip
    """So many numbers below a size, by their weights if there are any."""
    if replace and weights is None:
        return randint(0, max(size, 1), (count,), key=key, device=device)
    if not replace or weights is None:
        found = _without_replacement(size, weights, key, device)[:count]
    else:
        total = cumulative_sum(weights)
        unit = uniform((count,), dtype=total.dtype, key=key, device=device)
        found = searchsorted(total / total[-1], unit, side="right")
    if weights is None or not count:
        return found
    return checked(found, weights, 1 if replace else count)


def _weights(p: TensorLike, size: int) -> Tensor:
    weights = as_tensor(p).detach()
    weights = weights if weights.dtype.is_float else weights.astype(default_float)
    if weights.shape != (size,):
        raise ShapeError(f"p has shape {weights.shape}", f"give one probability for each of {size}")
    return weights.astype(_wide(weights.dtype))


def _without_replacement(
    size: int, weights: Tensor | None, key: Tensor | None, device: str | None
) -> Tensor:
    """All places in an order in which each next one is drawn among those left."""
    if weights is None:
        return permutation(size, key=key, device=device)
    noise = distributions.gumbel(Source(key, _device(device, weights)), (size,), weights.dtype)
    logs = where(weights > 0, wrap(reproducible_math.log(_above_zero(weights))), -math.inf)
    return argsort(logs + wrap(noise), descending=True)


def _above_zero(weights: Tensor) -> Node:
    node = node_of(weights)
    return MAX(node, constant_like(2.0**-120, node))


def dropout(
    x: TensorLike, p: float = 0.5, training: bool = True, key: Tensor | None = None
) -> Tensor:
    """x with each element zero with probability `p` and the others larger by 1 / (1 - p).

    >>> y = fg.dropout(fg.ones((1000,)), 0.25, key=fg.random.key(0))
    >>> set(y.tolist()) == {0.0, fg.Tensor(4 / 3).item()}
    True
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise ArgumentError(f"p is {p!r}", "a probability is from 0 to 1")
    tensor = as_tensor(x)
    if not tensor.dtype.is_inexact:
        raise DTypeError(f"dropout scales {tensor.dtype} numbers", "cast them to a float dtype")
    if not training or p == 0:
        return wrap(node_of(tensor))
    if p == 1:
        return tensor * 0
    keep = bernoulli(1 - p, tensor.shape, key=key, device=tensor.device)
    return where(keep, tensor * (1 / (1 - p)), 0)


# --- the habits of others ------------------------------------------------------------------------


def rand(*shape: Any, **more: Any) -> Tensor:
    """Uniform numbers from 0 to below 1: `rand(2, 3)` is `uniform((2, 3))`.

    >>> fg.rand(2, 3).shape
    (2, 3)
    """
    return uniform(_listed(shape), **more)


def randn(*shape: Any, **more: Any) -> Tensor:
    """Standard normal numbers: `randn(2, 3)` is `normal((2, 3))`.

    >>> fg.randn(2, 3).shape
    (2, 3)
    """
    return normal(_listed(shape), **more)


def _listed(shape: tuple[Any, ...]) -> Any:
    one = len(shape) == 1 and not isinstance(shape[0], int | Node)
    return shape[0] if one else shape


__getattr__, __dir__ = surface(__name__)
