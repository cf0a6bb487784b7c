"""Losses: cross-entropy by class, distances, likelihoods, margins.

In: predictions and what was wanted, which broadcast; whole numbers become float32. Out: one number
(`reduction` "mean" or "sum") or one for each element or pair ("none"). Half floats are computed in
float32 and rounded once. Logarithms and roots are guarded where their slope would be infinite or
undefined, as torch guards them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...core import build
from ...core import shape as sizes
from ...core.dtype import bool_
from ...core.ops.elementwise import EXP, LOG, NE
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, wrap
from ..array.indexing import classes_along, take
from ..array.movement import broadcast_arrays, expand_dims
from ..autocast import wide_result
from ..common import apply, as_tensor, astype, common_floats, floating, wide
from ..math.elementwise import abs, logical_not, maximum, minimum, where
from ..math.reduction import any, mean, p_norm, sum
from ..math.scan import cumulative_sum
from ..math.special import sqrt
from ..template import templated
from .activation import log_softmax, relu, softplus


def reduced(
    loss: Tensor, reduction: str, like: TensorLike, counted: Tensor | None = None
) -> Tensor:
    """A loss for each place as one number, or as it is, in the dtype of the predictions.

    `counted` is how much each place counts in the mean, if not all the same.
    """
    if reduction not in ("none", "sum", "mean"):
        raise ArgumentError(f"reduction is {reduction!r}", 'use "mean", "sum" or "none"')
    if reduction == "mean" and counted is None:
        loss = mean(loss)
    elif reduction != "none":
        loss = sum(loss)
        if reduction == "mean" and counted is not None:
            loss = loss / astype(sum(counted), loss.dtype)
    return astype(loss, wide_result(like))


def _pair(x: TensorLike, target: TensorLike) -> tuple[Tensor, Tensor]:
    """Predictions and targets in the dtype to compute in; their shapes must be equal."""
    a, b = common_floats(x, target)
    if a.node.shape != b.node.shape:
        raise ShapeError(
            f"predictions of shape {sizes.show(a.node.shape)} for targets of shape "
            f"{sizes.show(b.node.shape)}",
            "they must be equal: reshape one of them",
        )
    return wide(a), wide(b)


# --- classes -------------------------------------------------------------------------------------


@templated
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
    scores = as_tensor(x)
    wanted = as_tensor(target, scores)
    lifted(scores, wanted)
    place = build.as_axis((1 if scores.ndim > 1 else 0) if axis is None else axis, scores.ndim)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"label_smoothing is {label_smoothing}", "give a share from 0 to 1")
    logs = log_softmax(wide(scores), place)
    weights = None if weight is None else _class_weights(logs, weight, place)
    if wanted.dtype.is_inexact:
        if weights is not None:
            logs = logs * weights
        return reduced(_by_probability(logs, wide(wanted), place, label_smoothing), reduction, x)
    kept = _kept(wanted, ignore_index)
    loss = _by_class(logs, wanted, kept, place, label_smoothing, weights)
    return reduced(loss, reduction, x, _counted(wanted, kept, weights))


@templated
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
    logs = wide(x)
    wanted = as_tensor(target, logs)
    lifted(logs, wanted)
    if not logs.ndim:
        raise ShapeError("a number has no classes", "give (classes,) or (batch, classes, ...)")
    place = 1 if logs.ndim > 1 else 0
    weights = None if weight is None else _class_weights(logs, weight, place)
    kept = _kept(wanted, ignore_index)
    loss = _by_class(logs, wanted, kept, place, 0.0, weights)
    return reduced(loss, reduction, x, _counted(wanted, kept, weights))


def _class_weights(logs: Tensor, weight: TensorLike, axis: int) -> Tensor:
    """A weight for each class, so that it broadcasts against the scores."""
    tensor = wide(weight, logs)
    if tensor.node.shape != (logs.node.shape[axis],):
        raise ShapeError(
            f"weights of shape {sizes.show(tensor.node.shape)} for scores of shape "
            f"{sizes.show(logs.node.shape)}",
            "give one weight for each class",
        )
    node = build.reshape(node_of(tensor), (*tensor.node.shape, *[1] * (logs.ndim - axis - 1)))
    return wrap(node)


def _counted(wanted: Tensor, kept: Tensor, weights: Tensor | None) -> Tensor:
    """How much each place counts in the mean."""
    if weights is None:
        return kept
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


# --- distances -----------------------------------------------------------------------------------


@templated
def mse_loss(x: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """The squared distance between x and target, which broadcasts to x.

    >>> fg.mse_loss(fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 4.0])).item()
    2.0
    """
    given = floating(x)
    wanted = as_tensor(target, given)
    apart = given - wanted
    if given.ndim and apart.node.shape != given.node.shape:  # (n, 1) and (n,): n * n distances
        raise ShapeError(
            f"predictions of shape {sizes.show(given.node.shape)} for targets of shape "
            f"{sizes.show(wanted.node.shape)}",
            "they must be equal: reshape one of them",
        )
    return reduced(wide(apart) * wide(apart), reduction, apart)


@templated
def l1_loss(x: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """The absolute distance between x and target.

    >>> fg.l1_loss(fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 4.0])).item()
    1.0
    """
    a, b = _pair(x, target)
    return reduced(abs(a - b), reduction, x)


@templated
def smooth_l1_loss(
    x: TensorLike, target: TensorLike, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """The absolute distance, rounded off to a parabola where it is below beta.

    >>> fg.smooth_l1_loss(fg.Tensor([0.0, 0.0]), fg.Tensor([1.0, 3.0]), "none").tolist()
    [0.5, 2.5]
    """
    if beta < 0:
        raise ArgumentError(f"beta is {beta}", "give 0 or more")
    if beta == 0:
        return l1_loss(x, target, reduction)
    a, b = _pair(x, target)
    apart = abs(a - b)
    near = where(apart < beta, apart, 0)  # no square of infinity, which would have no slope
    loss = where(apart < beta, near * near * (0.5 / beta), apart - 0.5 * beta)
    return reduced(loss, reduction, x)


@templated
def huber_loss(
    x: TensorLike, target: TensorLike, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Half the squared distance, which goes on as a line from delta.

    >>> fg.huber_loss(fg.Tensor([0.0, 0.0]), fg.Tensor([1.0, 3.0]), "none", delta=2.0).tolist()
    [0.5, 4.0]
    """
    if delta <= 0:
        raise ArgumentError(f"delta is {delta}", "give more than 0")
    a, b = _pair(x, target)
    apart = abs(a - b)
    near = where(apart <= delta, apart, 0)
    loss = where(apart <= delta, near * near * 0.5, (apart - 0.5 * delta) * delta)
    return reduced(loss, reduction, x)


# --- probabilities -------------------------------------------------------------------------------


@templated
def binary_cross_entropy(
    x: TensorLike, target: TensorLike, weight: TensorLike | None = None, reduction: str = "mean"
) -> Tensor:
    """How badly probabilities x predict targets from 0 to 1; logarithms end at -100.

    >>> fg.binary_cross_entropy(fg.Tensor([0.0]), fg.Tensor([1.0])).item()
    100.0
    """
    a, b = _pair(x, target)
    yes, no = (_bounded_log(p) for p in (a, 1 - a))
    loss = (b - 1) * no - b * yes
    return reduced(loss if weight is None else loss * wide(weight), reduction, x)


def _bounded_log(p: Tensor) -> Tensor:
    """The logarithm, at least -100; its slope at 0 is torch's: large, not infinite."""
    return where(p == 0, p * 1e12 - 100.0, maximum(apply(LOG, where(p == 0, 1, p)), -100.0))


@templated
def binary_cross_entropy_with_logits(
    x: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    reduction: str = "mean",
    pos_weight: TensorLike | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(x), exact for large x; `pos_weight` counts the ones more.

    >>> loss = fg.binary_cross_entropy_with_logits(fg.Tensor([0.0, 100.0]), fg.Tensor([1.0, 0.0]))
    >>> round(loss.item(), 4)
    50.3466
    """
    a, b = _pair(x, target)
    if pos_weight is None:
        loss = softplus(a) - a * b
    else:  # (1 - b) * a + (1 + (p - 1) * b) * log(1 + exp(-a))
        share = (wide(pos_weight) - 1) * b + 1
        loss = (1 - b) * a + share * softplus(0 - a)
    return reduced(loss if weight is None else loss * wide(weight), reduction, x)


@templated
def kl_div(
    x: TensorLike, target: TensorLike, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Σ target * (log target - x), x being logarithms; "batchmean" divides by the first size.

    >>> fg.kl_div(fg.Tensor([[-1.0, 0.0]]), fg.Tensor([[1.0, 0.0]]), "batchmean").item()
    1.0
    """
    a, b = _pair(x, target)
    if log_target:
        loss = apply(EXP, b) * (b - a)
    else:
        positive = b > 0
        above, below = where(positive, b, 1), where(positive, 0, b)
        loss = where(positive, above * (apply(LOG, above) - a), 0 - below * a)
    if reduction == "batchmean":
        if not a.ndim:
            raise ShapeError("a number has no batch", 'use reduction="sum"')
        return astype(sum(loss) / (a.shape[0] * 1.0), wide_result(x))
    return reduced(loss, reduction, x)


@templated
def poisson_nll_loss(
    x: TensorLike,
    target: TensorLike,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Minus the logarithm of Poisson's probability of the target, up to a constant.

    >>> fg.poisson_nll_loss(fg.Tensor([0.0]), fg.Tensor([3.0])).item()
    1.0
    """
    a, b = _pair(x, target)
    loss = apply(EXP, a) - b * a if log_input else a - b * apply(LOG, a + eps)
    if full:
        large = where(b > 1, b, 1)
        more = large * apply(LOG, large) - large + apply(LOG, large * (2 * math.pi)) * 0.5
        loss = loss + where(b > 1, more, 0)
    return reduced(loss, reduction, x)


@templated
def gaussian_nll_loss(
    x: TensorLike,
    target: TensorLike,
    var: TensorLike,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Minus the logarithm of the normal density of the target around x, up to a constant.

    >>> fg.gaussian_nll_loss(fg.Tensor([0.0]), fg.Tensor([2.0]), fg.Tensor([1.0])).item()
    2.0
    """
    a, b = (wide(part) for part in common_floats(x, target))
    spread = wide(var)
    if spread.ndim == a.ndim - 1:
        spread = spread.reshape((*spread.shape, 1))
    spread = spread + (maximum(spread, eps) - spread).detach()  # the bound has no gradient
    loss = (apply(LOG, spread) + (a - b) * (a - b) / spread) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, x)


# --- margins -------------------------------------------------------------------------------------


@templated
def hinge_embedding_loss(
    x: TensorLike, target: TensorLike, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where the target is 1; how far it is below the margin where that is -1.

    >>> fg.hinge_embedding_loss(fg.Tensor([3.0, 0.25]), fg.Tensor([1, -1])).item()
    1.875
    """
    a, b = _pair(x, target)
    return reduced(where(b == 1, 0, relu(margin - a)) + where(b == -1, 0, a), reduction, x)


@templated
def soft_margin_loss(x: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * x)), for targets of -1 and 1.

    >>> round(fg.soft_margin_loss(fg.Tensor([0.0]), fg.Tensor([1.0])).item(), 4)
    0.6931
    """
    a, b = _pair(x, target)
    return reduced(softplus(0 - a * b), reduction, x)


@templated
def margin_ranking_loss(
    x1: TensorLike,
    x2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """How far x1 is from being above x2 (target 1) or below it (target -1) by a margin.

    >>> fg.margin_ranking_loss(fg.Tensor([1.0]), fg.Tensor([3.0]), fg.Tensor([1.0])).item()
    2.0
    """
    a, b = _pair(x1, x2)
    return reduced(relu(margin - wide(target) * (a - b)), reduction, x1)


@templated
def cosine_similarity(x1: TensorLike, x2: TensorLike, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis.

    >>> fg.cosine_similarity(fg.Tensor([[3.0, 4.0]]), fg.Tensor([[0.0, 2.0]])).tolist()
    [0.800000011920929]
    """
    a, b = broadcast_arrays(*[wide(part) for part in common_floats(x1, x2)])
    squares = [sum(part * part, axis) for part in (a, b)]
    lengths = [sqrt(maximum(square, eps * eps)) for square in squares]
    return astype(sum(a * b, axis) / (lengths[0] * lengths[1]), wide_result(x1))


@templated
def cosine_embedding_loss(
    x1: TensorLike,
    x2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """1 - cosine where the target is 1; how far the cosine is above a margin where it is -1.

    >>> x = fg.Tensor([[1.0, 0.0]])
    >>> fg.cosine_embedding_loss(x, x, fg.Tensor([-1])).item()
    1.0
    """
    a, b = wide(x1), wide(x2)
    wanted = as_tensor(target, a)
    products = sum(a * b, -1)
    squares = [sum(part * part, -1) + 1e-12 for part in (a, b)]
    cosine = products / sqrt(squares[0] * squares[1])
    if wanted.node.shape != cosine.node.shape:
        raise ShapeError(
            f"targets of shape {sizes.show(wanted.node.shape)} for pairs of shape "
            f"{sizes.show(cosine.node.shape)}",
            "give one target for each pair of vectors",
        )
    loss = where(wanted == 1, 1 - cosine, 0) + where(wanted == -1, relu(cosine - margin), 0)
    return reduced(loss, reduction, x1)


@templated
def pairwise_distance(
    x1: TensorLike, x2: TensorLike, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis.

    >>> fg.pairwise_distance(fg.Tensor([[0.0, 3.0]]), fg.Tensor([[4.0, 0.0]]), eps=0.0).tolist()
    [5.0]
    """
    a, b = (wide(part) for part in common_floats(x1, x2))
    return astype(p_norm(a - b + eps, p, -1, keepdims), wide_result(x1))


@templated
def triplet_margin_loss(
    anchor: TensorLike,
    positive: TensorLike,
    negative: TensorLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """How far the positive is from being nearer to the anchor than the negative by a margin.

    >>> a, b = fg.Tensor([[0.0, 0.0]]), fg.Tensor([[3.0, 4.0]])
    >>> round(fg.triplet_margin_loss(a, b, a).item(), 3)
    6.0
    """
    near = pairwise_distance(wide(anchor), wide(positive), p, eps)
    far = pairwise_distance(wide(anchor), wide(negative), p, eps)
    if swap:
        far = minimum(far, pairwise_distance(wide(positive), wide(negative), p, eps))
    return reduced(relu(near - far + margin), reduction, anchor)


@templated
def multi_margin_loss(
    x: TensorLike,
    target: TensorLike,
    p: int = 1,
    margin: float = 1.0,
    weight: TensorLike | None = None,
    reduction: str = "mean",
) -> Tensor:
    """By how much other classes come within a margin of the target's, on average.

    `weight` is how much each class counts as the target.

    >>> fg.multi_margin_loss(fg.Tensor([[1.0, 0.5]]), fg.Tensor([0])).item()
    0.25
    """
    scores = wide(x)
    wanted = as_tensor(target, scores)
    if p not in (1, 2):
        raise ArgumentError(f"p is {p}", "use 1 or 2")
    if scores.ndim == 1 and wanted.node.shape == (1,):
        wanted = wanted.reshape(())
    if wanted.node.shape != scores.node.shape[:-1] or not scores.ndim:
        raise ShapeError(
            f"classes of shape {sizes.show(wanted.node.shape)} for scores of shape "
            f"{sizes.show(scores.node.shape)}",
            "give one class for each row of scores",
        )
    column = wanted.reshape((*wanted.shape, 1))
    own = classes_along(scores, column)
    over = relu(margin - own + scores)
    over = over * over if p == 2 else over
    if weight is not None:
        over = over * wide(weight).take(column)
    place = wrap(build.iota(scores.node.shape, scores.ndim - 1))
    return reduced(
        sum(where(place == column, 0, over), -1) / (scores.shape[-1] * 1.0), reduction, x
    )


@templated
def multilabel_margin_loss(x: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """By how much other classes come within 1 of the targets', on average.

    A row of the target holds classes; those from the first -1 on do not count.

    >>> x, target = fg.Tensor([[1.0, 0.5]]), fg.Tensor([[0, -1]])
    >>> fg.nn.functional.multilabel_margin_loss(x, target).item()
    0.25
    """
    scores = wide(x)
    wanted = as_tensor(target, scores)
    if scores.ndim not in (1, 2) or wanted.node.shape != scores.node.shape:
        raise ShapeError(
            f"classes of shape {sizes.show(wanted.node.shape)} for scores of shape "
            f"{sizes.show(scores.node.shape)}",
            "give (batch, classes) of both, rows filled up with -1",
        )
    counts = cumulative_sum((wanted < 0).astype("int32"), -1) == 0
    named = where(counts, wanted, 0)
    place = wrap(build.iota((*wanted.shape, wanted.shape[-1]), wanted.ndim))
    is_target = any((expand_dims(named, -1) == place) & expand_dims(counts, -1), -2)
    own = scores.take_along_axis(named, -1)
    over = relu(1 - expand_dims(own, -1) + expand_dims(scores, -2))
    matter = expand_dims(counts, -1) & logical_not(expand_dims(is_target, -2))
    total = sum(where(matter, over, 0), (-1, -2)) / (scores.shape[-1] * 1.0)
    return reduced(total, reduction, x)


@templated
def multilabel_soft_margin_loss(
    x: TensorLike, target: TensorLike, weight: TensorLike | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes of binary cross-entropies of scores, for each row.

    >>> x, target = fg.zeros((1, 2)), fg.Tensor([[1.0, 0.0]])
    >>> round(fg.nn.functional.multilabel_soft_margin_loss(x, target).item(), 4)
    0.6931
    """
    scores, wanted = _pair(x, target)
    loss = wanted * softplus(-scores) + (1 - wanted) * softplus(scores)
    loss = loss if weight is None else loss * wide(weight)
    return reduced(mean(loss, -1), reduction, x)


def triplet_margin_with_distance_loss(
    anchor: TensorLike,
    positive: TensorLike,
    negative: TensorLike,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """triplet_margin_loss with a distance of your own; without one it is pairwise_distance.

    >>> a, b, c = fg.zeros((1, 2)), fg.zeros((1, 2)), fg.ones((1, 2))
    >>> manhattan = lambda x, y: fg.abs(x - y).sum(-1)
    >>> fg.nn.functional.triplet_margin_with_distance_loss(a, b, c, manhattan, margin=3.0).item()
    1.0
    """
    distance = pairwise_distance if distance_function is None else distance_function
    a = as_tensor(anchor)
    b, c = (as_tensor(part, a) for part in (positive, negative))
    near, far = distance(a, b), distance(a, c)
    if swap:
        far = minimum(far, distance(b, c))
    return reduced(relu(wide(near) - wide(far) + margin), reduction, anchor)
