"""Normalisation by layer, group, batch and root mean square, forwards and backwards; softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ..dtypes import TO_OURS, compute_dtype
from ..table import Use, aten, cast


def _types(use: Use) -> list[Any]:
    return [None if o is None else TO_OURS[o.dtype] for o in use.out]


def _as_promised(use: Use, *results: Any) -> tuple[Any, ...]:
    """Results in the types and shapes that torch's meta function said."""
    found: list[Any] = []
    for result, out in zip(results, use.out, strict=True):
        if result is None or out is None:
            found.append(None)
        else:
            found.append(fg.reshape(cast(result, TO_OURS[out.dtype]), tuple(out.shape)))
    return tuple(found)


def _normal(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """What is left after mean and deviation are taken out, the mean and the inverse deviation."""
    mean = fg.mean(x, axis=axes, keepdims=True)
    apart = x - mean
    rstd = fg.rsqrt(fg.mean(fg.square(apart), axis=axes, keepdims=True) + eps)
    return apart * rstd, mean, rstd


def _statistics(x: Any, mean: Any, rstd: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """The mean and inverse deviation that a forward saved, in the type of x.

    On the host torch promises those of a small float as small floats (its own kernel keeps float32
    beside weights of float32): they are taken from x again. The smallest number under the root is
    not known here, so the inverse deviation stays within half a unit of what was saved.
    """
    if not mean.dtype.is_small_float or x.dtype.is_small_float:
        return cast(mean, x.dtype), cast(rstd, x.dtype)
    mean = fg.mean(x, axis=axes, keepdims=True)
    found = fg.rsqrt(fg.mean(fg.square(x - mean), axis=axes, keepdims=True))
    half = 2.0**-8 if rstd.dtype is fg.bfloat16 else 2.0**-11
    rstd = cast(rstd, x.dtype)
    return mean, fg.clip(found, rstd * (1 - half), rstd * (1 + half))


def _empty(use: Use) -> tuple[Any, ...]:
    return tuple([
        None if o is None else fg.full(tuple(o.shape), 0.0, dtype=TO_OURS[o.dtype])
        for o in use.out
    ])  # fmt: skip


@aten("native_layer_norm")
def layer_norm(
    use: Use, x: Any, normalized: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    """The last axes normalised, scaled and shifted; mean and inverse deviation."""
    if 0 in x.shape:
        return _empty(use)
    wide = compute_dtype(x.dtype)
    axes = tuple(range(x.ndim - len(normalized), x.ndim))
    out, mean, rstd = _normal(cast(x, wide), axes, eps)
    if weight is not None:
        out = out * cast(weight, wide)
    if bias is not None:
        out = out + cast(bias, wide)
    return _as_promised(use, out, mean, rstd)


@aten("native_layer_norm_backward")
def layer_norm_backward(
    use: Use, grad: Any, x: Any, normalized: Sequence[int], mean: Any, rstd: Any, weight: Any,
    bias: Any, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients by the input, the weight and the bias."""
    if 0 in x.shape:
        return _empty(use)
    wide = compute_dtype(x.dtype)
    inner = tuple(range(x.ndim - len(normalized), x.ndim))
    outer = tuple(range(x.ndim - len(normalized)))
    grad, x = cast(grad, wide), cast(x, wide)
    mean, rstd = _statistics(x, mean, rstd, inner)
    normal = (x - mean) * rstd
    scaled = grad if weight is None else grad * cast(weight, wide)
    found: list[Any] = [None, None, None]
    if mask[0]:
        found[0] = _back(scaled, normal, rstd, inner)
    if mask[1] and weight is not None:
        found[1] = fg.sum(grad * normal, axis=outer) if outer else grad * normal
    if mask[2] and bias is not None:
        found[2] = fg.sum(grad, axis=outer) if outer else grad
    return _as_promised(use, *found)


def _back(scaled: Any, normal: Any, rstd: Any, axes: tuple[int, ...]) -> Any:
    """The gradient through a normalisation over some axes."""
    mean = fg.mean(scaled, axis=axes, keepdims=True)
    along = fg.mean(scaled * normal, axis=axes, keepdims=True)
    return (scaled - mean - normal * along) * rstd


@aten("_fused_rms_norm")
def rms_norm(use: Use, x: Any, normalized: Sequence[int], weight: Any, eps: float | None) -> Any:
    """The last axes divided by their root mean square, and scaled; the inverse root."""
    wide = compute_dtype(x.dtype)
    axes = tuple(range(x.ndim - len(normalized), x.ndim))
    small = 2.220446049250313e-16 if wide is fg.float64 else 1.1920928955078125e-07
    rstd = fg.rsqrt(
        fg.mean(fg.square(cast(x, wide)), axis=axes, keepdims=True)
        + (small if eps is None else eps)
    )
    out = cast(x, wide) * rstd
    return _as_promised(use, out if weight is None else out * cast(weight, wide), rstd)


@aten("native_group_norm")
def group_norm(
    use: Use, x: Any, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int,
    eps: float,
) -> Any:  # fmt: skip
    """Groups of channels normalised, each channel scaled and shifted."""
    if 0 in x.shape:
        return _empty(use)
    wide = compute_dtype(x.dtype)
    grouped = fg.reshape(cast(x, wide), (n, groups, channels // groups, size))
    out, mean, rstd = _normal(grouped, (2, 3), eps)
    per = (1, groups, channels // groups, 1)
    if weight is not None:
        out = out * fg.reshape(cast(weight, wide), per)
    if bias is not None:
        out = out + fg.reshape(cast(bias, wide), per)
    return _as_promised(use, out, mean, rstd)


@aten("native_group_norm_backward")
def group_norm_backward(
    use: Use, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, channels: int,
    size: int, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients by the input, the weight and the bias."""
    if 0 in x.shape:
        return _empty(use)
    wide = compute_dtype(x.dtype)
    shape, per = (n, groups, channels // groups, size), (1, groups, channels // groups, 1)
    grad, x = [fg.reshape(cast(v, wide), shape) for v in (grad, x)]
    mean, rstd = [fg.reshape(v, (n, groups, 1, 1)) for v in (mean, rstd)]
    mean, rstd = _statistics(x, mean, rstd, (2, 3))
    normal = (x - mean) * rstd
    scaled = grad if weight is None else grad * fg.reshape(cast(weight, wide), per)
    found: list[Any] = [None, None, None]
    if mask[0]:
        found[0] = _back(scaled, normal, rstd, (2, 3))
    if mask[1]:
        found[1] = fg.sum(grad * normal, axis=(0, 3))
    if mask[2]:
        found[2] = fg.sum(grad, axis=(0, 3))
    return _as_promised(use, *found)


def _batch_norm(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
    momentum: float, eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Channels normalised by their own statistics or by the running ones, and new running ones."""
    wide = compute_dtype(x.dtype)
    axes = tuple([d for d in range(x.ndim) if d != 1])
    per = (1, -1, *[1] * (x.ndim - 2))
    old = [None if v is None else cast(v, wide) for v in (mean, var)]
    if training:
        out, saved, rstd = _normal(cast(x, wide), axes, eps)
        count = math.prod([x.shape[d] for d in axes])
        spread = fg.mean(fg.square(cast(x, wide) - saved), axis=axes)
        if old[0] is not None and old[1] is not None:
            unbiased = spread * (count / max(count - 1, 1))
            old[0] = old[0] * (1 - momentum) + fg.reshape(saved, (-1,)) * momentum
            old[1] = old[1] * (1 - momentum) + unbiased * momentum
    else:
        assert old[0] is not None and old[1] is not None
        saved, rstd = old[0], fg.reshape(fg.rsqrt(old[1] + eps), per)
        out = (cast(x, wide) - fg.reshape(saved, per)) * rstd
        if 0 in use.out[1].shape:  # on the host torch keeps no statistics, on a GPU it does
            saved = rstd = fg.full((0,), 0.0, dtype=wide)
    if weight is not None:
        out = out * fg.reshape(cast(weight, wide), per)
    if bias is not None:
        out = out + fg.reshape(cast(bias, wide), per)
    return out, saved, rstd, old[0], old[1]


@aten("_native_batch_norm_legit_functional")
def batch_norm_functional(use: Use, *args: Any) -> Any:
    """Batch normalisation that gives new running statistics."""
    return _as_promised(use, *_batch_norm(use, *args))


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(use: Use, x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """Batch normalisation without running statistics."""
    return _as_promised(use, *_batch_norm(use, x, weight, bias, None, None, *settings)[:3])


@aten("_native_batch_norm_legit", "native_batch_norm")
def batch_norm(use: Use, *args: Any) -> Any:
    """Batch normalisation; functionalisation has taken the running statistics out."""
    return _as_promised(use, *_batch_norm(use, *args)[:3])


@aten("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    """Batch normalisation by running statistics."""
    return _as_promised(
        use, *_batch_norm(use, x, weight, bias, mean, var, False, momentum, eps)[:3]
    )


@aten("_batch_norm_with_update_functional")
def batch_norm_with_update(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    """Batch normalisation that gives new running statistics and room that nobody reads."""
    out, saved, rstd, new_mean, new_var = _batch_norm(
        use, x, weight, bias, mean, var, True, momentum, eps
    )
    reserve = fg.full(tuple(use.out[3].shape), 0, dtype=TO_OURS[use.out[3].dtype])
    return _as_promised(use, out, saved, rstd, reserve, new_mean, new_var)


@aten("native_batch_norm_backward")
def batch_norm_backward(
    use: Use, grad: Any, x: Any, weight: Any, mean: Any, var: Any, saved: Any, rstd: Any,
    training: bool, eps: float, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients by the input, the weight and the bias."""
    if 0 in x.shape:
        return _empty(use)
    wide = compute_dtype(x.dtype)
    axes = tuple([d for d in range(x.ndim) if d != 1])
    per = (1, -1, *[1] * (x.ndim - 2))
    grad, x = cast(grad, wide), cast(x, wide)
    if not training:
        saved, rstd = cast(mean, wide), fg.rsqrt(cast(var, wide) + eps)
    saved, rstd = [fg.reshape(v, per) for v in (saved, rstd)]
    saved, rstd = _statistics(x, saved, rstd, axes)
    normal = (x - saved) * rstd
    scaled = grad if weight is None else grad * fg.reshape(cast(weight, wide), per)
    found: list[Any] = [None, None, None]
    if mask[0]:
        found[0] = _back(scaled, normal, rstd, axes) if training else scaled * rstd
    if mask[1]:
        found[1] = fg.sum(grad * normal, axis=axes)
    if mask[2]:
        found[2] = fg.sum(grad, axis=axes)
    return _as_promised(use, *found)


@aten("batch_norm_backward")
def batch_norm_backward_reserve(use: Use, *args: Any) -> Any:
    """The same, by the name that takes a reserve."""
    return batch_norm_backward(use, *args[:-1])


@aten("_weight_norm_interface_backward")
def weight_norm_backward(use: Use, grad: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    """Gradients of a direction and a length whose product is a weight."""
    wide = compute_dtype(v.dtype)
    grad, v, g, norms = [cast(x, wide) for x in (grad, v, g, norms)]
    axes = tuple([axis for axis in range(v.ndim) if axis != dim % v.ndim])
    along = fg.sum(grad * v, axis=axes, keepdims=True) / norms
    return _as_promised(use, g / norms * (grad - v * (along / norms)), along)


# --- softmax --------------------------------------------------------------------------------------


@aten("_softmax", "_log_softmax")
def softmax(use: Use, x: Any, dim: int, half_to_float: bool) -> Any:
    """Exponentials in proportion, or their logarithms."""
    function = fg.softmax if use.name.startswith("_softmax") else fg.log_softmax
    if x.ndim == 0 or 0 in x.shape:
        return fg.full(use.shape, 1.0 if use.name.startswith("_softmax") else 0.0, dtype=use.dtype)
    return cast(function(cast(x, use.wide), axis=dim % x.ndim), use.dtype)


@aten("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(use: Use, grad: Any, out: Any, dim: int, dtype: Any) -> Any:
    """Gradients through softmax, from its result."""
    if out.ndim == 0 or 0 in out.shape:
        return fg.full(use.shape, 0.0, dtype=use.dtype)
    wide, axis = compute_dtype(out.dtype), dim % out.ndim
    grad, out = cast(grad, wide), cast(out, wide)
    if use.name.startswith("_softmax"):
        return cast((grad - fg.sum(grad * out, axis=axis, keepdims=True)) * out, use.dtype)
    return cast(grad - fg.exp(out) * fg.sum(grad, axis=axis, keepdims=True), use.dtype)
