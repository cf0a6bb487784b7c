"""Normalisation over layers, batches, groups and instances.

In: x of shape (batch, channels, *space), and a scale and shift for each channel (layer and RMS
norms: of the last dimensions). Out: x with mean
0 and variance 1 over some of its dimensions, scaled and shifted; half floats are computed in
float32 and rounded once. Nothing is updated in place: running statistics go in and come out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...config import current
from ...core import build
from ...core import shape as sizes
from ...core.dtype import promote
from ...core.node import Node, Size
from ...core.op import Op, derived
from ...core.ops.elementwise import ADD, DIV, MUL, RSQRT, SUB
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND
from ...core.origin import capture
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..autocast import wide_result
from ..common import apply, as_tensor, astype, floating, wide
from ..math.elementwise import pow
from ..math.reduction import mean, sum
from ..results import BatchNorm
from ..template import templated


@templated
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
    return _scaled(x, _normal(tensor, axes, eps), weight, bias)


@templated
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


def batch_norm(
    x: TensorLike,
    running_mean: TensorLike | None = None,
    running_var: TensorLike | None = None,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BatchNorm:
    """Each channel with mean 0 and variance 1: of this batch in training, else of the past.

    The running statistics come back with this batch taken in (as they were unless training).

    >>> x = fg.Tensor([[1.0], [3.0]])
    >>> y, average, spread = fg.batch_norm(x, fg.zeros(1), fg.ones(1), training=True, eps=0.0)
    >>> y.tolist(), average.item(), spread.item()
    ([[-1.0], [1.0]], 0.20000000298023224, 1.100000023841858)
    >>> fg.batch_norm(x, average, spread).output.shape
    (2, 1)
    """
    tensor = _with_channels(x)
    given = running_mean, running_var
    known = [None if part is None else as_tensor(part, tensor) for part in given]
    if not training:
        if known[0] is None or known[1] is None:
            raise ArgumentError("there are no running statistics", "give both, or train")
        center, spread = (wide(_along(part, tensor)) for part in known if part is not None)
        normal = (tensor - center) * apply(RSQRT, spread + eps)
        return BatchNorm(_scaled_channels(x, normal, weight, bias), known[0], known[1])
    axes = (0, *range(2, tensor.ndim))
    center = mean(tensor, axes, keepdims=True)
    apart = tensor - center
    spread = mean(apart * apart, axes, keepdims=True)
    count = sizes.prod([tensor.node.shape[a] for a in axes])
    rest = sizes.sub(count, 1)
    whole, less = (
        n * 1.0 if isinstance(n, int) else astype(wrap(n), tensor.dtype) for n in (count, rest)
    )
    unbiased = spread * (whole / less) if count != 1 else spread * float("nan")
    fresh = [
        part if part is None or count == 0 else _taken_in(part, new, momentum)  # of none as it was
        for part, new in zip(known, (center, unbiased), strict=True)
    ]
    normal = apart * apply(RSQRT, spread + eps)
    return BatchNorm(_scaled_channels(x, normal, weight, bias), fresh[0], fresh[1])


def _taken_in(running: Tensor, new: Tensor, momentum: float) -> Tensor:
    """The running value moved towards a new one, without a gradient."""
    flat = wrap(build.reshape(node_of(new.detach()), running.node.shape))
    return astype(wide(running) * (1 - momentum) + flat * momentum, running.dtype)


@templated
def instance_norm(
    x: TensorLike,
    *,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each element of the batch with mean 0 and variance 1 over its space.

    >>> fg.instance_norm(fg.Tensor([[[1.0, 3.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0]]]
    """
    tensor = _with_channels(x)
    if tensor.ndim < 3:
        raise ShapeError(f"{tensor.ndim} dimensions have no space", "give three or more")
    return _scaled_channels(x, _normal(tensor, range(2, tensor.ndim), eps), weight, bias)


@templated
def group_norm(
    x: TensorLike,
    num_groups: int,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each group of channels of each element of the batch with mean 0 and variance 1.

    >>> fg.group_norm(fg.Tensor([[1.0, 3.0, 5.0, 5.0]]), 2, eps=1e-9).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]
    """
    tensor = _with_channels(x)
    shape: tuple[Size, ...] = tensor.node.shape
    groups = build.as_positive(num_groups, "num_groups")
    if sizes.mod(shape[1], groups) != 0:
        raise ShapeError(
            f"{sizes.size_text(shape[1])} channels do not divide into {groups} groups",
            "choose a number that divides the channels",
        )
    split = (shape[0], groups, sizes.floordiv(shape[1], groups), *shape[2:])
    rows = wrap(build.reshape(node_of(tensor), split))
    normal = _normal(rows, range(2, rows.ndim), eps)
    return _scaled_channels(x, wrap(build.reshape(node_of(normal), shape)), weight, bias)


def _normal(x: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    node = node_of(x)
    apart = _by_row(SUB, node, _mean(node, axes))
    spread = _mean(build.apply(MUL, apart, apart), axes)
    scale = build.apply(RSQRT, build.apply(ADD, spread, eps))
    return wrap(_by_row(MUL, apart, scale))


def _by_row(op: Op, x: Node, rows: Node) -> Node:
    """An op of a value and a number for each of its rows, which have as many dimensions."""
    shape = x.shape
    if rows.op is CONST or rows.shape == shape or not build.is_plain(shape):
        return build.apply(op, x, rows)
    here = capture()
    wide = build.note(derived(EXPAND(rows, arg=shape), shape), here)
    return build.note(derived(op(x, wide), shape), here)


def _mean(x: Node, axes: Sequence[int]) -> Node:
    """The mean of wide numbers over axes, which stay."""
    count = sizes.prod([x.shape[a] for a in axes])
    if isinstance(count, Node):
        return node_of(mean(wrap(x), tuple(axes), keepdims=True))
    return build.apply(DIV, build.folded("add", x, tuple(axes), keepdims=True), count * 1.0)


def _with_channels(x: TensorLike) -> Tensor:
    tensor = wide(x)
    if tensor.ndim < 2:
        raise ShapeError(
            f"{tensor.ndim} dimensions have no channels", "give (batch, channels, ...)"
        )
    return tensor


def _along(part: TensorLike, x: Tensor) -> Tensor:
    """One number for each channel, so that it broadcasts against x."""
    node = node_of(as_tensor(part, x))
    if node.ndim != 1 or not sizes.same(node.shape[0], x.node.shape[1]):
        raise ShapeError(
            f"{sizes.show(node.shape)} for {sizes.size_text(x.node.shape[1])} channels",
            "give one number for each channel",
        )
    return wrap(build.reshape(node, (*node.shape, *[1] * (x.ndim - 2))))


def _scaled(
    x: TensorLike, normal: Tensor, weight: TensorLike | None, bias: TensorLike | None
) -> Tensor:
    """The affine part: a weight and a bias that broadcast, in the dtype all promote to."""
    dtype = wide_result(x)
    for part, combine in ((weight, Tensor.__mul__), (bias, Tensor.__add__)):
        if part is not None:
            scale = as_tensor(part, normal)
            dtype = dtype if scale.dtype is dtype else promote(dtype, scale.dtype)
            normal = combine(normal, wide(scale))
    return astype(normal, dtype)


def _scaled_channels(
    x: TensorLike, normal: Tensor, weight: TensorLike | None, bias: TensorLike | None
) -> Tensor:
    """`_scaled` by one weight and bias for each channel; autocast keeps the dtype of x."""
    parts = [None if part is None else _along(part, normal) for part in (weight, bias)]
    out = _scaled(x, normal, parts[0], parts[1])
    return astype(out, floating(x).dtype) if current().autocast != "off" else out


@templated
def local_response_norm(
    x: TensorLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x over a power of the mean square of neighbouring channels.

    >>> fg.local_response_norm(fg.Tensor([[[3.0]]]), 1, alpha=1.0, beta=1.0, k=0.0).tolist()
    [[[0.3333333432674408]]]
    """
    tensor = _with_channels(x)
    width = build.as_positive(size, "size")
    pads = [(width // 2, (width - 1) // 2) if d == 1 else (0, 0) for d in range(tensor.ndim)]
    squares = build.window(build.pad(node_of(tensor * tensor), pads), 1, width)
    total = sum(wrap(squares), -1) / (width * 1.0)
    return astype(tensor / pow(total * alpha + k, beta), floating(x).dtype)
