"""Sampling pictures, and boxes in them.

In: a `Call`. Out: lazy tensors. Samples between elements are sums over their neighbours; what lies
outside is zero, the border, or a reflection. Suppressing boxes takes the best that is left of every
class, again and again; how many are good enough, and how many are chosen, is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

import fulgurite as fg

from ....functional.nn import grid_sample as sampling
from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, operator
from ...values import Value
from ..indexing import where_true


@operator("GridSample")
def grid_sample(op: Call) -> Tensor:
    """Values at places given as numbers from -1 to 1."""
    x, grid = op[0], op[1]
    mode = op.text("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return sampling.grid_sample(
        x, grid, mode, op.text("padding_mode", "zeros"), bool(op.int("align_corners"))
    )


@operator("AffineGrid")
def affine_grid(op: Call) -> Tensor:
    """Places of a picture after an affine map."""
    return sampling.affine_grid(op[0], op.ints(1), bool(op.int("align_corners")))


@operator("NonMaxSuppression", since=10)
def non_max_suppression(op: Call) -> Tensor:
    """Boxes in order of their scores that do not overlap a better one too much."""
    boxes, scores = op[0].astype(fg.float32), op[1]
    most = int(op.number(2)) if op.has(2) else 0
    overlap = float(op.number(3)) if op.has(3) else 0.0
    lowest = op.number(4) if op.has(4) else None
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[1:] != (scores.shape[-1], 4):
        raise ModelError(
            f"boxes of shape {boxes.shape} for scores of shape {scores.shape}",
            "give (batch, boxes, 4) and (batch, classes, boxes)",
        )
    _, classes, count = scores.shape
    if most <= 0 or not count:
        return fg.zeros((0, 3), fg.int64)
    jit: Any = fg.jit if not op.build.tracing else None
    if lowest is not None and jit is not None:
        fg.realize(boxes, scores)  # in one plan, for whoever reads them when the choice is known
        survivors = _function(_survivors, jit, lowest=float(lowest))(scores)
        count = min(count, _rounded_up(int(op.build.read(Value(survivors)))))
    best = _function(
        _best, jit, count=count, most=min(most, count), overlap=overlap,
        lowest=None if lowest is None else float(lowest), centred=bool(op.int("center_point_box")),
    )  # fmt: skip
    chosen, order = best(boxes, scores)
    steps = chosen.shape[-1]
    flat = where_true(op, fg.reshape(chosen >= 0, (chosen.size,)))
    place = fg.take(fg.reshape(chosen, (chosen.size,)), flat, axis=0).astype(fg.int64)
    kind = fg.floor_divide(flat, steps)
    box = fg.take(fg.reshape(order, (order.size,)), kind * count + place, axis=0).astype(fg.int64)
    return fg.stack([fg.floor_divide(kind, classes), kind % classes, box], axis=1)


@lru_cache(maxsize=64)
def _function(work: Callable[..., Any], jit: Any, **fixed: Any) -> Callable[..., Any]:
    """A function of tensors alone, captured where nobody else captures it."""
    found = partial(work, **fixed)
    return found if jit is None else jit(found)


def _survivors(scores: Tensor, lowest: float) -> Tensor:
    """How many boxes of a class are good enough, at most."""
    good: Tensor = scores > lowest
    return fg.max(fg.sum(good.astype(fg.int32), axis=-1))


def _best(
    boxes: Tensor, scores: Tensor, count: int, most: int, overlap: float, lowest: float | None,
    centred: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The chosen places among each class's `count` best boxes, and these."""
    alive = scores if lowest is None else fg.where(scores > lowest, scores, -np.inf)
    ranked, order = fg.topk(alive, count)
    corners = _corners(boxes, order, centred)
    return _chosen(corners, ranked > -np.inf, most, overlap), order


def _rounded_up(count: int) -> int:
    """The next power of two, so that few numbers of boxes have plans."""
    return max(16, 1 << max(0, count - 1).bit_length())


def _corners(boxes: Tensor, order: Tensor, centred: bool) -> list[Tensor]:
    """Top, left, bottom and right of the boxes of each class in order of their scores."""
    sides = [boxes[..., i] for i in range(4)]
    if centred:
        x, y, w, h = sides
        sides = [y - h / 2, x - w / 2, y + h / 2, x + w / 2]
    top, left = fg.minimum(sides[0], sides[2]), fg.minimum(sides[1], sides[3])
    bottom, right = fg.maximum(sides[0], sides[2]), fg.maximum(sides[1], sides[3])
    shape = (*order.shape[:2], boxes.shape[1])
    return [
        fg.take_along_axis(fg.broadcast_to(side[:, None], shape), order, axis=-1)
        for side in (top, left, bottom, right)
    ]


def _chosen(corners: list[Tensor], alive: Tensor, most: int, overlap: float) -> Tensor:
    """The places of up to `most` boxes in each class's order, best first; -1 for none.

    Every step takes the best box that is left in each class, and drops what overlaps it.
    """
    top, left, bottom, right = corners
    area, places = (bottom - top) * (right - left), fg.arange(alive.shape[-1])
    slots = fg.arange(most)

    def goes_on(carry: Any) -> Tensor:
        left_over, _, step = carry
        goes: Tensor = fg.any(left_over) & (step < most)
        return goes

    def take_best(carry: Any) -> Any:
        left_over, taken, step = carry
        first = fg.argmax(left_over.astype(fg.int32), axis=-1, keepdims=True)
        own_top, own_left, own_bottom, own_right, own_area = (
            fg.take_along_axis(part, first, axis=-1) for part in (*corners, area)
        )
        high = fg.minimum(bottom, own_bottom) - fg.maximum(top, own_top)
        wide = fg.minimum(right, own_right) - fg.maximum(left, own_left)
        common = fg.maximum(high, 0) * fg.maximum(wide, 0)
        whole = area + own_area - common
        much = (common / fg.where(whole <= 0, 1, whole)) > overlap
        found = fg.any(left_over, axis=-1, keepdims=True)
        taken = fg.where((slots == step) & found, first.astype(fg.int32), taken)
        return left_over & ~much & (places != first), taken, step + 1

    none = fg.full((*alive.shape[:2], most), -1, dtype=fg.int32)
    start = (alive, none, fg.zeros((), fg.int32))
    found: Tensor = fg.while_loop(goes_on, take_best, start)[1]
    return found


@operator("RoiAlign", since=10)
def roi_align(op: Call) -> Tensor:
    """Means or extremes of samples in a grid over each region."""
    x, rois, batches = op[0], op[1], op[2]
    height, width = op.int("output_height", 1), op.int("output_width", 1)
    ratio = op.int("sampling_ratio", 0)
    scale = op.float("spatial_scale", 1.0)
    default = "half_pixel" if op.version >= 16 else "output_half_pixel"
    half = 0.5 if op.text("coordinate_transformation_mode", default) == "half_pixel" else 0.0
    box = rois * scale - half
    sides = [box[:, i] for i in range(4)]
    wide, high = sides[2] - sides[0], sides[3] - sides[1]
    if not half:
        wide, high = fg.maximum(wide, 1.0), fg.maximum(high, 1.0)
    parts: list[tuple[Any, int, int]] = [(slice(None), ratio, ratio)]
    if ratio <= 0:  # as many samples as a region needs
        sizes = op.build.read(Value(fg.stack([high, wide], axis=1)))
        counts = np.maximum(np.ceil(sizes / np.array([height, width])), 1).astype(int)
        parts = [(slice(i, i + 1), int(h), int(w)) for i, (h, w) in enumerate(counts)]
    largest = op.text("mode", "avg") == "max"
    found = [
        _aligned(
            x, fg.take(x, batches[rows], axis=0), sides[1][rows], sides[0][rows], high[rows],
            wide[rows], (height, width), (h, w), largest,
        )
        for rows, h, w in parts
    ]  # fmt: skip
    return found[0] if len(found) == 1 else fg.concat(found, axis=0)


def _aligned(
    x: Tensor, pictures: Tensor, top: Tensor, left: Tensor, high: Tensor, wide: Tensor,
    size: tuple[int, int], samples: tuple[int, int], largest: bool,
) -> Tensor:  # fmt: skip
    n, c, h, w = pictures.shape
    axes = []
    for first, span, count, each in (
        (top, high, size[0], samples[0]),
        (left, wide, size[1], samples[1]),
    ):
        steps = (fg.arange(count * each, dtype=fg.float32) + 0.5) / each
        axes.append(first[:, None] + steps[None] * (span[:, None] / count))
    rows, columns = size[0] * samples[0], size[1] * samples[1]
    y = fg.broadcast_to(axes[0][:, :, None], (n, rows, columns))
    z = fg.broadcast_to(axes[1][:, None, :], (n, rows, columns))
    outside = (y < -1) | (y > h) | (z < -1) | (z > w)
    y, z = fg.maximum(y, 0), fg.maximum(z, 0)
    low_y, low_z = fg.minimum(fg.floor(y), h - 1), fg.minimum(fg.floor(z), w - 1)
    high_y, high_z = fg.minimum(low_y + 1, h - 1), fg.minimum(low_z + 1, w - 1)
    y, z = fg.where(low_y >= h - 1, low_y, y), fg.where(low_z >= w - 1, low_z, z)
    flat = fg.reshape(pictures, (n, c, h * w))
    terms = []
    for row, down in ((low_y, 1 - (y - low_y)), (high_y, y - low_y)):
        for column, right in ((low_z, 1 - (z - low_z)), (high_z, z - low_z)):
            index = fg.reshape((row * w + column).astype(fg.int32), (n, 1, rows * columns))
            values = fg.take_along_axis(
                flat, fg.broadcast_to(index, (n, c, rows * columns)), axis=-1
            )
            weight = fg.where(outside, 0, down * right)
            terms.append(fg.reshape(values, (n, c, rows, columns)) * weight[:, None])
    if largest:
        every = fg.maximum(fg.maximum(terms[0], terms[1]), fg.maximum(terms[2], terms[3]))
    else:
        every = terms[0] + terms[1] + terms[2] + terms[3]
    blocks = fg.reshape(every, (n, c, size[0], samples[0], size[1], samples[1]))
    return (fg.max if largest else fg.mean)(blocks, axis=(3, 5)).astype(x.dtype)


@operator("MaxRoiPool")
def max_roi_pool(op: Call) -> Tensor:
    """The largest of each cell of a grid over each region; the regions are read."""
    x, rois = op[0], op.host(1)
    rows, columns = op.ints_of("pooled_shape", [1, 1])
    scale = op.float("spatial_scale", 1.0)
    h, w = x.shape[2:]
    found = []
    for batch, *box in rois.tolist():
        left, top, right, bottom = (int(np.floor(v * scale + 0.5)) for v in box)
        high, wide = max(bottom - top + 1, 1), max(right - left + 1, 1)
        cells = []
        for i in range(rows):
            for j in range(columns):
                y0, y1 = (
                    int(f(k * high / rows)) + top for f, k in ((np.floor, i), (np.ceil, i + 1))
                )
                z0, z1 = (
                    int(f(k * wide / columns)) + left for f, k in ((np.floor, j), (np.ceil, j + 1))
                )
                y0, y1 = (min(max(v, 0), h) for v in (y0, y1))
                z0, z1 = (min(max(v, 0), w) for v in (z0, z1))
                cell = x[int(batch), :, y0:y1, z0:z1]
                empty = y0 >= y1 or z0 >= z1
                cells.append(
                    fg.zeros((x.shape[1],), x.dtype) if empty else fg.max(cell, axis=(1, 2))
                )
        found.append(fg.reshape(fg.stack(cells, axis=1), (x.shape[1], rows, columns)))
    return fg.stack(found, axis=0)
