"""Reductions and running sums.

In: a `Call`. Out: lazy tensors of the inputs' element type. The axes were an attribute before
version 18 (13 for sums), and are an input since; no axes mean all of them, unless the model says
that it means none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call, enter, operator
from .movement import axis_of

Reduce = Callable[[Tensor, Any, bool], Tensor]


def _axes(op: Call) -> tuple[int, ...] | None:
    since = 13 if op.node.op_type == "ReduceSum" else 18
    if op.version >= since:
        named = op.ints(1) if op.has(1) else None
    else:
        named = op.ints_of("axes")
    if not named:
        return () if op.int("noop_with_empty_axes") else None
    ndim = op[0].ndim
    return tuple(sorted(axis_of(axis, ndim) for axis in named))


def _reduction(work: Reduce) -> Callable[[Call], Tensor]:
    def build(op: Call) -> Tensor:
        x, axes, keep = op[0], _axes(op), bool(op.int("keepdims", 1))
        return work(x, axes, keep)

    return build


def _sum(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return x if axes == () else fg.sum(x, axis=axes, dtype=x.dtype, keepdims=keep)


def _mean(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return x if axes == () else fg.mean(x, axis=axes, keepdims=keep).astype(x.dtype)


def _prod(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return x if axes == () else fg.prod(x, axis=axes, dtype=x.dtype, keepdims=keep)


def _extreme(largest: bool) -> Reduce:
    def work(x: Tensor, axes: Any, keep: bool) -> Tensor:
        if axes == ():
            return x
        if x.dtype is fg.bool:
            return (fg.any if largest else fg.all)(x, axis=axes, keepdims=keep)
        over = range(x.ndim) if axes is None else axes
        if any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in over):
            return fg.full(_without(x, axes, keep), _least(x, largest), x.dtype)
        return (fg.max if largest else fg.min)(x, axis=axes, keepdims=keep)

    return work


def _without(x: Tensor, axes: Any, keep: bool) -> tuple[int, ...]:
    over = set(range(x.ndim) if axes is None else axes)
    if keep:
        return tuple(1 if d in over else n for d, n in enumerate(x.shape))
    return tuple(n for d, n in enumerate(x.shape) if d not in over)


def _least(x: Tensor, largest: bool) -> Any:
    """What the extreme of nothing is."""
    if x.dtype.is_float:
        return float("-inf") if largest else float("inf")
    return x.dtype.limits[0 if largest else 1]


def _wide(x: Tensor) -> Tensor:
    """Whole numbers as floats, for roots and logarithms."""
    return x if x.dtype.is_float else x.astype(fg.float64)


def _l1(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return _sum(fg.abs(x), axes, keep)


def _l2(x: Tensor, axes: Any, keep: bool) -> Tensor:
    wide = _wide(x)
    return fg.sqrt(_sum(wide * wide, axes, keep)).astype(x.dtype)


def _log_sum(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return fg.log(_sum(_wide(x), axes, keep)).astype(x.dtype)


def _log_sum_exp(x: Tensor, axes: Any, keep: bool) -> Tensor:
    if axes == ():
        return x
    over = range(x.ndim) if axes is None else axes
    if any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in over):
        return fg.full(_without(x, axes, keep), float("-inf"), x.dtype)
    return fg.logsumexp(_wide(x), axis=axes, keepdims=keep).astype(x.dtype)


def _sum_square(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return _sum(x * x, axes, keep)


enter(
    ReduceSum=_reduction(_sum), ReduceMean=_reduction(_mean), ReduceProd=_reduction(_prod),
    ReduceMax=_reduction(_extreme(True)), ReduceMin=_reduction(_extreme(False)),
    ReduceL1=_reduction(_l1), ReduceL2=_reduction(_l2), ReduceLogSum=_reduction(_log_sum),
    ReduceLogSumExp=_reduction(_log_sum_exp), ReduceSumSquare=_reduction(_sum_square),
)  # fmt: skip


def _running(op: Call, work: Callable[..., Tensor], neutral: int) -> Tensor:
    """Running totals: backward, and without the element itself, if asked."""
    x = op[0]
    axis = axis_of(int(op.number(1)), x.ndim)
    if op.int("reverse"):
        x = fg.flip(x, axis)
    found = work(x, axis=axis, dtype=x.dtype)
    if op.int("exclusive"):
        widths = [(0, 0)] * x.ndim
        widths[axis] = (1, 0)
        moved = fg.pad(found, widths, constant_values=neutral)
        found = moved[(*[slice(None)] * axis, slice(0, x.shape[axis]))]
    return fg.flip(found, axis) if op.int("reverse") else found


@operator("CumSum")
def cum_sum(op: Call) -> Tensor:
    """Running sums."""
    return _running(op, fg.cumulative_sum, 0)


@operator("CumProd")
def cum_prod(op: Call) -> Tensor:
    """Running products."""
    return _running(op, fg.cumulative_prod, 1)
