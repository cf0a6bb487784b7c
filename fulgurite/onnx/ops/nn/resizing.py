"""Pictures in another size: Resize and Upsample.

In: a `Call` with sizes or scales. Out: lazy tensors. Each axis is done by itself: where the new
elements lie between the old ones depends on sizes alone, so the places and weights are constants,
and the work is one gather for each of the two or four (or, smoothed, more) neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress
from operator import add
from typing import Any

import numpy as np

import fulgurite as fg

from ....core.op import Array
from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, operator
from ...values import Dequantised, Value
from ..movement import axis_of
from .normalization import wide

PHASES = 4  # rows of which new ones are made in turns
ROW = 16  # elements of a row that fill a vector


@dataclass
class Plan:
    """How an axis changes: its new size, the factor, and how coordinates are meant."""

    size: int
    scale: float
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude: bool = False
    smooth: bool = False
    part: tuple[float, float] = (0.0, 1.0)


@operator("Upsample")
def upsample(op: Call) -> Tensor:
    """A larger picture, before Resize took over."""
    x = op[0]
    scales = op.host(1) if op.has(1) else np.array(op.floats_of("scales", []))
    for axis, scale in enumerate(scales.reshape(-1).tolist()):
        if scale == 1:
            continue
        size = int(np.floor(x.shape[axis] * scale))
        plan = Plan(size, scale, _mode(op), "asymmetric", "floor")
        x = along_axis(x, axis, plan)
    return x


def _mode(op: Call) -> str:
    return {"bilinear": "linear", "trilinear": "linear"}.get(
        op.text("mode", "nearest"), op.text("mode", "nearest")
    )


@operator("Resize", since=10)
def resize(op: Call) -> Tensor | Value:
    """Nearest, linear or cubic, by scales or to sizes; bytes keep their channels at the end."""
    x, last = op[0], op.value(0).last
    if op.version < 11:
        plans = {}
        for axis, s in enumerate(op.host(1).reshape(-1).tolist()):
            if s == 1:
                continue
            near = "floor" if s >= 1 else "ceil"  # of what version 10 did when it made less
            size = int(np.floor(x.shape[axis] * s))
            plans[axis] = Plan(size, s, _mode(op), "asymmetric", near)
    else:
        plans = _plans(op, x)
    bytes_ = isinstance(op.value(0), Dequantised) or x.dtype.bits == 8
    if last is None or not bytes_:
        return _resized(op, x, plans)
    order = [0, *range(2, x.ndim), 1]
    moved = {order.index(axis): plan for axis, plan in plans.items()}
    return Value.channels_last(_resized(op, last, moved), op.kind(0))


def _resized(op: Call, x: Tensor, plans: dict[int, Plan]) -> Tensor:
    """All axes that change, one after the other; nearest elements that are repeated are stored:
    who reads them would find each of them alone."""
    kind, larger = x.dtype, any(plan.size > x.shape[axis] for axis, plan in plans.items())
    x = x.contiguous() if larger else x  # each element is found once, not for each result
    y = wide(x) if _mode(op) != "nearest" and not x.dtype.is_float else x
    outside: Any = None
    for axis, plan in reversed(plans.items()):  # rows, before there are more of them
        if plan.coordinates == "tf_crop_and_resize":
            places = places_of(plan, x.shape[axis])
            beyond = (places < 0) | (places > x.shape[axis] - 1)
            if beyond.any():
                line = [1] * x.ndim
                line[axis] = -1
                here = fg.Tensor(beyond.reshape(line))
                outside = here if outside is None else outside | here
        y = along_axis(y, axis, plan)
    if outside is not None:
        y = fg.where(outside, op.float("extrapolation_value", 0.0), y)
    if kind.is_integer and y.dtype is not kind:
        low, high = kind.limits
        y = fg.clip(fg.round(y), low, high)
    y = y.astype(kind)
    return y.contiguous() if larger and _mode(op) == "nearest" else y


def _plans(op: Call, x: Tensor) -> dict[int, Plan]:
    axes = [axis_of(a, x.ndim) for a in op.ints_of("axes") or range(x.ndim)]
    roi, scales = (op.host(i).reshape(-1).tolist() if op.has(i) else [] for i in (1, 2))
    if len(scales) == len(axes) and not roi:  # what stays as it is may be a variable size
        changed = [s != 1 or not _is_variable(x, a) for a, s in zip(axes, scales, strict=True)]
        axes, scales = list(compress(axes, changed)), list(compress(scales, changed))
        if not axes:
            return {}
    sizes, scales = _sizes(op, [x.shape[axis] for axis in axes], scales)
    count = len(axes)
    parts = list(zip(roi[:count], roi[count:], strict=True)) if len(roi) == 2 * count else []
    meant = Plan(
        0, 1.0, _mode(op), op.text("coordinate_transformation_mode", "half_pixel"),
        op.text("nearest_mode", "round_prefer_floor"), op.float("cubic_coeff_a", -0.75),
        bool(op.int("exclude_outside")), bool(op.int("antialias")),
    )  # fmt: skip
    return {
        axis: replace(meant, size=size, scale=scale, part=part)
        for axis, size, scale, part in zip(
            axes, sizes, scales, parts or [meant.part] * count, strict=True
        )
    }


def _sizes(op: Call, old: list[int], scales: list[float]) -> tuple[list[int], list[float]]:
    """The new sizes and their factors, from scales or from sizes that may keep the proportions."""
    if scales:
        pairs = zip(old, scales, strict=True)
        return [int(np.floor(n * s + 1e-9 * (s == int(s)))) for n, s in pairs], scales
    if not op.has(3):
        raise ModelError("neither scales nor sizes are given", "the model is not valid ONNX")
    sizes = op.ints(3)
    scales = [new / n for new, n in zip(sizes, old, strict=True)]
    policy = op.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes, scales
    scale = (min if policy == "not_larger" else max)(scales)
    return [int(np.floor(scale * n + 0.5)) for n in old], [scale] * len(old)


def _is_variable(x: Tensor, axis: int) -> bool:
    return not isinstance(x.node.shape[axis], int)


def places_of(plan: Plan, size: int) -> Array:
    """Where the new elements lie among the old ones."""
    new = np.arange(plan.size, dtype=np.float64)
    mode, scale = plan.coordinates, plan.scale
    width = scale * size  # not always whole: the standard's own formulas take it as it is
    if mode == "align_corners":
        return new * 0 if width == 1 else new * ((size - 1) / (width - 1))
    if mode == "asymmetric":
        return new / scale
    if mode == "tf_half_pixel_for_nn":
        return (new + 0.5) / scale
    if mode == "tf_crop_and_resize":
        first, last = plan.part
        if width != 1:
            return first * (size - 1) + new * ((last - first) * (size - 1) / (width - 1))
        return np.full(plan.size, 0.5 * (first + last) * (size - 1))
    if mode == "pytorch_half_pixel" and plan.size <= 1:
        return new * 0
    if mode == "half_pixel_symmetric":
        adjustment = plan.size / (scale * size)
        return size / 2 * (1 - adjustment) + (new + 0.5) / scale - 0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (new + 0.5) / scale - 0.5
    raise ModelError(f"there is no coordinate transformation {mode!r}", "the model is not valid")


def along_axis(x: Tensor, axis: int, plan: Plan) -> Tensor:
    """One axis in its new size."""
    size = x.shape[axis]
    if plan.size < 1:
        raise ModelError(f"a picture of size {plan.size}", "the model or its inputs are not valid")
    places = places_of(plan, size)
    if plan.size == size and np.array_equal(places, np.arange(size)):
        return x
    if plan.mode == "nearest":
        return _picked(
            x, axis, np.clip(_rounded(places, plan.nearest), 0, size - 1).astype(np.int64)
        )
    if plan.mode not in ("linear", "cubic"):
        raise ModelError(f"there is no interpolation {plan.mode!r}", "the model is not valid")
    index, weight = _taps(plan, places, size)
    line = [1] * x.ndim
    line[axis] = plan.size
    if weight.shape[1] > 8:  # smoothed: a product with a matrix
        matrix = np.zeros((plan.size, size))
        np.add.at(matrix, (np.arange(plan.size)[:, None], index), weight)
        y = fg.matmul(
            fg.moveaxis(x, axis, -1), fg.Tensor(matrix.T.astype(np.float32)).astype(x.dtype)
        )
        return fg.moveaxis(y, -1, axis)
    if axis == x.ndim - 1 and (phases := _phases(index, weight, size)) is not None:
        return _in_turns(x, phases)
    found: Any = 0
    for tap in range(weight.shape[1]):
        if not weight[:, tap].any():
            continue
        factor = fg.Tensor(weight[:, tap].reshape(line).astype(np.float32))
        found = found + _picked(x, axis, index[:, tap]) * factor.astype(x.dtype)
    made: Tensor = found
    return made


def _phases(index: Array, weight: Array, size: int) -> list[dict[int, Array]] | None:
    """Of a whole factor: the weights of the elements around each old one, by how far away they are,
    of which every phase of the new ones is a sum; None if there are many."""
    factor, rest = divmod(len(index), size)
    if rest or not 1 < factor <= PHASES or size < ROW:
        return None
    away = index.reshape(size, factor, -1) - np.arange(size)[:, None, None]
    phases: list[dict[int, Array]] = []
    for phase, factors in zip(away.swapaxes(0, 1), weight.reshape(away.shape).swapaxes(0, 1),
                              strict=True):  # fmt: skip
        steps = np.unique(phase[factors != 0]).tolist()
        phases.append({k: np.where(phase == k, factors, 0).sum(axis=1) for k in steps})
    return phases if max(map(len, phases)) <= weight.shape[1] else None


def _in_turns(x: Tensor, phases: list[dict[int, Array]]) -> Tensor:
    """The last axis, a whole factor larger: each phase is a sum of rows next to their places."""
    size, rows = x.shape[-1], []
    for weights in phases:
        parts = [_moved(x, k) * fg.Tensor(w.astype(np.float32)).astype(x.dtype)
                 for k, w in weights.items()]  # fmt: skip
        rows.append(reduce(add, parts))
    return fg.reshape(fg.stack(rows, axis=-1), (*x.shape[:-1], size * len(rows)))


def _moved(x: Tensor, steps: int) -> Tensor:
    """The elements so many steps further on, 0 where there are none."""
    if not steps:
        return x
    low, high = max(0, -steps), max(0, steps)
    part = x[..., high : x.shape[-1] - low]
    return fg.pad(part, [*[(0, 0)] * (x.ndim - 1), (low, high)])


def _picked(x: Tensor, axis: int, index: Array) -> Tensor:
    """Slices by number; a plain repetition is no gather."""
    size, new = x.shape[axis], len(index)
    if size and new % size == 0 and np.array_equal(index, np.arange(new) // (new // size)):
        return fg.repeat(x, new // size, axis=axis)
    return fg.take(x, fg.Tensor(index.astype(np.int32)), axis=axis)


def _rounded(places: Array, mode: str) -> Array:
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    if mode == "round_prefer_ceil":
        return np.floor(places + 0.5)
    return np.ceil(places - 0.5)


def _taps(plan: Plan, places: Array, size: int) -> tuple[Array, Array]:
    """The old elements that each new one is made of, and their weights."""
    base = np.ceil(places) - 1  # the element on the left, never the place itself
    ratio = places - base
    scale = min(plan.scale, 1.0) if plan.smooth else 1.0
    reach = 1 if plan.mode == "linear" else 2
    first = int(np.floor(-reach / scale)) + 1
    steps = np.arange(first, 2 - first)
    away = (steps[None] - ratio[:, None]) * scale
    weight = np.clip(1 - np.abs(away), 0, 1) if plan.mode == "linear" else _cubic(away, plan.cubic)
    index = base[:, None] + steps[None]
    if plan.exclude:
        weight = np.where((index < 0) | (index >= size), 0, weight)
    if plan.exclude or plan.smooth:
        weight = weight / weight.sum(axis=1, keepdims=True)
    return np.clip(index, 0, size - 1).astype(np.int64), weight


def _cubic(away: Array, a: float) -> Array:
    x = np.abs(away)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
