"""What networks are made of: activations, normalisation, losses.

In: tensors; whole numbers become float32. Out: tensors. Half floats are computed in float32 and
rounded once. Maxima that only keep powers small are detached, here and not by the caller; choices
are written with `where`, so that the slope is finite and right on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core import build
from ...core import shape as sizes
from ...core.dtype import bool_, dtype_of, int32, promote
from ...core.ops.elementwise import EQ, ERFC, EXP, EXPM1, LOG, NE, RSQRT, TANH
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..array.indexing import take
from ..common import apply, as_tensor, astype, floating, wide
from ..math.elementwise import logaddexp, where
from ..math.reduction import max, mean, sum

# --- softmax -------------------------------------------------------------------------------------


def _below_top(x: Tensor, axis: int) -> Tensor:
    """x moved so that its largest element is 0; the move has no gradient."""
    if x.ndim and x.node.shape[build.as_axis(axis, x.ndim)] == 0:
        return x
    return x - max(x, axis, keepdims=True).detach()


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Positive numbers with sum 1 along an axis, in proportion to exp(x).

    >>> fg.softmax(fg.Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    powers = apply(EXP, _below_top(wide(x), axis))
    return astype(powers / sum(powers, axis, keepdims=True), floating(x).dtype)


def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """The logarithm of softmax, exact where that is tiny.

    >>> fg.log_softmax(fg.Tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    moved = _below_top(wide(x), axis)
    total = apply(LOG, sum(apply(EXP, moved), axis, keepdims=True))
    return astype(moved - total, floating(x).dtype)


# --- activations ---------------------------------------------------------------------------------


def relu(x: TensorLike) -> Tensor:
    """x where it is positive, else 0.

    >>> fg.relu(fg.Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    tensor = as_tensor(x)
    return where(tensor <= 0, 0, tensor)


def leaky_relu(x: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, else a small part of it.

    >>> fg.leaky_relu(fg.Tensor([-1.0, 2.0]), 0.5).tolist()
    [-0.5, 2.0]
    """
    tensor = floating(x)
    return where(tensor > 0, tensor, tensor * negative_slope)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha * (exp(x) - 1).

    >>> fg.elu(fg.Tensor([float("-inf"), 2.0])).tolist()
    [-1.0, 2.0]
    """
    tensor = floating(x)
    below = apply(EXPM1, where(tensor > 0, 0, tensor))  # a large x must not overflow here
    return where(tensor > 0, tensor, below * alpha)


def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x)), exact far out on both sides.

    >>> fg.sigmoid(fg.Tensor([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    tensor = wide(x)
    positive = tensor >= 0
    power = apply(EXP, where(positive, -tensor, tensor))  # at most 1
    whole = where(positive, 1, power)
    # whole / (power + 1), but what rounding does to the quotient counts for less
    return astype(whole - whole * (power / (power + 1)), floating(x).dtype)


def silu(x: TensorLike) -> Tensor:
    """x * sigmoid(x).

    >>> fg.silu(fg.Tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return astype(wide(x) * sigmoid(wide(x)), floating(x).dtype)


def softplus(x: TensorLike, beta: float = 1.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta: a smooth relu.

    >>> fg.softplus(fg.Tensor([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return astype(logaddexp(wide(x) * beta, 0.0) / beta, floating(x).dtype)


def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """x times the chance that a normal number is below it; "tanh" is the quicker formula.

    >>> fg.gelu(fg.Tensor([0.0, 100.0])).tolist(), fg.gelu(100.0, approximate="tanh").item()
    ([0.0, 100.0], 100.0)
    """
    tensor = wide(x)
    if approximate == "none":
        chance = apply(ERFC, tensor * -(0.5**0.5)) * 0.5  # erfc is exact far below 0
    elif approximate == "tanh":
        inner = (tensor + tensor * tensor * tensor * 0.044715) * 0.7978845608028654  # √(2/π)
        chance = (apply(TANH, inner) + 1) * 0.5
    else:
        raise ArgumentError(f"approximate is {approximate!r}", 'use "none" or "tanh"')
    return astype(tensor * chance, floating(x).dtype)


# --- normalisation -------------------------------------------------------------------------------


def layer_norm(
    x: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x with mean 0 and variance 1 over its last dimensions, then scaled and shifted.

    >>> fg.layer_norm(fg.Tensor([[1.0, 3.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    tensor = wide(x)
    axes = _last(tensor, normalized_shape)
    apart = tensor - mean(tensor, axes, keepdims=True)
    spread = mean(apart * apart, axes, keepdims=True)
    return _scaled(x, apart * apply(RSQRT, spread + eps), weight, bias)


def rms_norm(
    x: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: TensorLike | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """x over the root of its mean square in its last dimensions, then scaled.

    >>> fg.rms_norm(fg.Tensor([[4.0, -4.0]]), 2, eps=0.0).tolist()
    [[1.0, -1.0]]
    """
    tensor = wide(x)
    square = mean(tensor * tensor, _last(tensor, normalized_shape), keepdims=True)
    return _scaled(x, tensor * apply(RSQRT, square + eps), weight, None)


def _last(x: Tensor, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """The axes of the last dimensions, which must have these sizes."""
    shape = build.as_shape(normalized_shape)
    if not shape or len(shape) > x.ndim or x.node.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{sizes.show(x.node.shape)} does not end in {sizes.show(shape)}",
            "name the sizes of the dimensions to normalise",
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


def _scaled(
    x: TensorLike, normal: Tensor, weight: TensorLike | None, bias: TensorLike | None
) -> Tensor:
    dtype = floating(x).dtype
    for part, combine in ((weight, Tensor.__mul__), (bias, Tensor.__add__)):
        if part is not None:
            scale = as_tensor(part)
            dtype = promote(dtype, scale.dtype)
            normal = combine(normal, wide(scale))
    return astype(normal, dtype)


# --- losses --------------------------------------------------------------------------------------


def cross_entropy(
    x: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    axis: int | None = None,
) -> Tensor:
    """How badly the scores x predict the target: class numbers, or a probability for each class.

    Classes are along axis 1, or the only axis there is; `axis` says otherwise. Places whose
    target is `ignore_index` count for nothing, in the mean too. `weight` is how much each class
    counts.

    >>> x, target = fg.Tensor([[0.0, 0.0], [9.0, 0.0]]), fg.Tensor([1, -100])
    >>> round(fg.cross_entropy(x, target).item(), 4)
    0.6931
    """
    scores, wanted = as_tensor(x), as_tensor(target)
    lifted(scores, wanted)
    place = build.as_axis((1 if scores.ndim > 1 else 0) if axis is None else axis, scores.ndim)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"label_smoothing is {label_smoothing}", "give a share from 0 to 1")
    logs = log_softmax(wide(scores), place)
    weights = None if weight is None else _class_weights(logs, weight, place)
    if wanted.dtype.is_inexact:
        if weights is not None:
            logs = logs * weights
        total = _reduced(_by_probability(logs, wide(wanted), place, label_smoothing), reduction)
    else:
        kept = _kept(wanted, ignore_index)
        loss = _by_class(logs, wanted, kept, place, label_smoothing, weights)
        total = _reduced(loss, reduction, kept, _counted(wanted, kept, place, weights))
    return astype(total, floating(scores).dtype)


def nll_loss(
    x: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Minus the logarithm that x holds at the target class: cross_entropy of logarithms.

    >>> fg.nll_loss(fg.Tensor([[-1.0, -2.0], [-3.0, -4.0]]), fg.Tensor([0, 1])).item()
    2.5
    """
    logs, wanted = wide(x), as_tensor(target)
    lifted(logs, wanted)
    if not logs.ndim:
        raise ShapeError("a number has no classes", "give (classes,) or (batch, classes, ...)")
    place = 1 if logs.ndim > 1 else 0
    weights = None if weight is None else _class_weights(logs, weight, place)
    kept = _kept(wanted, ignore_index)
    loss = _by_class(logs, wanted, kept, place, 0.0, weights)
    total = _reduced(loss, reduction, kept, _counted(wanted, kept, place, weights))
    return astype(total, floating(x).dtype)


def _class_weights(logs: Tensor, weight: TensorLike, axis: int) -> Tensor:
    """A weight for each class, so that it broadcasts against the scores."""
    tensor = wide(weight)
    if tensor.node.shape != (logs.node.shape[axis],):
        raise ShapeError(
            f"weights of shape {sizes.show(tensor.node.shape)} for scores of shape "
            f"{sizes.show(logs.node.shape)}",
            "give one weight for each class",
        )
    node = build.reshape(node_of(tensor), (*tensor.node.shape, *[1] * (logs.ndim - axis - 1)))
    return wrap(node)


def _counted(wanted: Tensor, kept: Tensor, axis: int, weights: Tensor | None) -> Tensor | None:
    """How much each place counts in the mean, if not all the same."""
    if weights is None:
        return None
    table = wrap(build.reshape(node_of(weights), (-1,)))
    return where(kept, take(table, where(kept, wanted, 0), axis=0), 0)


def _kept(wanted: Tensor, ignore_index: int) -> Tensor:
    """Which places count; a class that the dtype cannot hold ignores none."""
    if wanted.dtype.kind not in "iu":
        raise DTypeError(f"classes are whole numbers, not {wanted.dtype}", "cast them to int32")
    low, high = wanted.dtype.limits
    if low <= ignore_index <= high:
        return apply(NE, wanted, ignore_index)
    return wrap(build.const(True, bool_, wanted.node.shape))


def _by_probability(logs: Tensor, wanted: Tensor, axis: int, smoothing: float) -> Tensor:
    if wanted.node.shape != logs.node.shape:
        raise ShapeError(
            f"probabilities of shape {sizes.show(wanted.node.shape)} for scores of shape "
            f"{sizes.show(logs.node.shape)}",
            "they must be equal; class numbers are whole numbers",
        )
    if smoothing:
        wanted = wanted * (1 - smoothing) + smoothing / logs.shape[axis]
    return -sum(logs * wanted, axis)


def _by_class(
    logs: Tensor,
    wanted: Tensor,
    kept: Tensor,
    axis: int,
    smoothing: float,
    weights: Tensor | None,
) -> Tensor:
    shape = logs.node.shape
    if wanted.node.shape != (*shape[:axis], *shape[axis + 1 :]):
        raise ShapeError(
            f"classes of shape {sizes.show(wanted.node.shape)} for scores of shape "
            f"{sizes.show(shape)}",
            f"give one class for each place, without axis {axis}",
        )
    logs = logs if weights is None else logs * weights
    place = build.reshape(
        node_of(where(kept, wanted, 0)), tuple(1 if d == axis else n for d, n in enumerate(shape))
    )
    found = build.gather(node_of(logs), place, axis)
    loss = -wrap(build.drop(found, (axis,)))
    if smoothing:
        loss = loss * (1 - smoothing) - mean(logs, axis) * smoothing
    return where(kept, loss, 0)


def _reduced(
    loss: Tensor, reduction: str, kept: Tensor | None = None, counted: Tensor | None = None
) -> Tensor:
    """A loss for each place as one number, or as it is."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return sum(loss)
    if reduction != "mean":
        raise ArgumentError(f"reduction is {reduction!r}", 'use "mean", "sum" or "none"')
    if counted is not None:
        return sum(loss) / sum(counted)
    return mean(loss) if kept is None else sum(loss) / astype(sum(kept), loss.dtype)


def mse_loss(x: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """The squared distance between x and target, which broadcasts to x.

    >>> fg.mse_loss(fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 4.0])).item()
    2.0
    """
    given, wanted = floating(x), as_tensor(target)
    apart = given - wanted
    if given.ndim and apart.node.shape != given.node.shape:  # (n, 1) and (n,): n * n distances
        raise ShapeError(
            f"predictions of shape {sizes.show(given.node.shape)} for targets of shape "
            f"{sizes.show(wanted.node.shape)}",
            "they must be equal: reshape one of them",
        )
    return astype(_reduced(wide(apart) * wide(apart), reduction), apart.dtype)


def one_hot(x: TensorLike, num_classes: int, dtype: object = "float32") -> Tensor:
    """A new last axis with 1 at the place that x names and 0 elsewhere.

    >>> fg.one_hot(fg.Tensor([0, 2]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    tensor = as_tensor(x)
    if tensor.dtype.kind not in "iu":
        raise DTypeError(f"classes are whole numbers, not {tensor.dtype}", "cast them to int32")
    shape = (*tensor.node.shape, build.as_size(num_classes))
    column = wrap(build.reshape(node_of(tensor), (*tensor.node.shape, 1)))
    count = int32 if tensor.dtype.bits < 32 else tensor.dtype
    hit = apply(EQ, column, wrap(build.iota(shape, tensor.ndim, count)))
    return astype(hit, dtype_of(dtype))
