"""UPDATE: a value in which a box of places holds another value. What `x[2:5] = v` means.

The box is a corner (one start for each dimension) and a step for each; its sizes are those of the
new part. Starts are sources, whole numbers without dimensions: a constant that differs from the
last one becomes a run-time number like any other, so a cache that is filled row by row compiles a
bounded number of times. Its constructor has checked that the box is inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import shape as sizes
from ..dtype import int64
from ..node import Bounds, Node, Shape, Size, constant, constant_like
from ..op import Array, Op
from .leaf import CONST
from .movement import reshape, shrink, window


def update(x: Node, part: Node, starts: Sequence[Size], steps: Sequence[int]) -> Node:
    """x with `part` in the box that begins at `starts` and goes on by `steps`."""
    corner = [s if isinstance(s, Node) else constant(s, int64) for s in starts]
    return UPDATE(x, part, *corner, arg=tuple(steps))


def starts_of(node: Node) -> list[Size]:
    """Where the box begins in each dimension."""
    return [s.value if s.op is CONST else s for s in node.src[2:]]  # type: ignore[misc]


def box(x: Node, starts: Sequence[Size], steps: Sequence[int], shape: Shape) -> Node:
    """The part of x in a box of this shape."""
    spans = [sizes.add(sizes.mul(sizes.sub(n, 1), by), 1) for n, by in _both(shape, steps)]
    out = shrink(x, [(start, sizes.add(start, span)) for start, span in _both(starts, spans)])
    for axis, step in enumerate(steps):
        if step > 1:
            out = window(out, axis, 1, step)
            out = reshape(out, out.shape[:-1])
    return out


def _both(a: Sequence[Size], b: Sequence[Size]) -> list[tuple[Size, Size]]:
    return list(zip(a, b, strict=True))


def _update_numpy(node: Node, x: Array, part: Array, *corner: Array) -> Array:
    out = np.array(x, order="C")
    at = zip(corner, part.shape, node.arg, strict=True)
    out[tuple([slice(int(s), int(s) + (n - 1) * by + 1, by) for s, n, by in at])] = part
    return out


def _update_check(node: Node) -> str | None:
    x, part, *corner = node.src
    if not len(node.arg) == len(corner) == x.ndim == part.ndim:
        return f"a box of {len(node.arg)} steps and {len(corner)} starts for {x.ndim} dimensions"
    if part.dtype is not x.dtype:
        return f"{part.dtype} does not fit {x.dtype}"
    if any(s.shape != () or s.dtype.kind not in "iu" for s in corner):
        return "a start is one whole number"
    for start, step, n, whole in zip(starts_of(node), node.arg, part.shape, x.shape, strict=True):
        if not isinstance(step, int) or step < 1 or sizes.lower(n) < 1:
            return f"bad steps {node.arg} of a box {part.shape}"
        last = sizes.add(start, sizes.mul(sizes.sub(n, 1), step))
        known = isinstance(last, int) and isinstance(whole, int)
        if known and not (sizes.lower(start) >= 0 and last < whole):
            return f"the box from {start} by {step} of {n} is not inside 0:{whole}"
    return None


def _update_grad(g: Node, y: Node, x: Node, part: Node, *corner: Node) -> tuple[Node | None, ...]:
    kept = UPDATE(g, constant_like(0, part), *corner, arg=y.arg)
    return kept, box(g, starts_of(y), y.arg, part.shape), *[None for _ in corner]


def _update_batch(y: Node, src: tuple[Node, ...]) -> Node:
    starts = starts_of(y)  # the same for every example: a start is no data of one
    return update(src[0], src[1], (0, *starts), (1, *y.arg))


def _update_interval(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    a, b = bounds[:2]
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


UPDATE = Op(
    name="update", family="indexing", doc="a copy with a box of places replaced", arity=None,
    numpy=_update_numpy, check=_update_check, grad=_update_grad, batch=_update_batch,
    interval=_update_interval, cost=2, sizes=slice(None),
)  # fmt: skip
