"""Running totals of any associative function, in logarithmic depth: `associative_scan`.

In: a function of two trees of tensors, and a tree whose tensors have as many slices along an axis.
Out: at each place the fold of all slices up to and with it. Pairs of neighbours are combined, their
running totals are found the same way, and every second place is filled in from the one before it
(Ladner and Fischer, 1980): 2 log2(n) calls of the function, each on all its pairs at once, and
about 2n combinations in all. `fg.scan` carries one value through n steps instead; `cumulative_sum`
and its relatives are kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import tree
from ..autodiff.grad import check_callable
from ..core import build
from ..core import shape as sizes
from ..core.ops.transform import Rule, override
from ..errors import ArgumentError, ShapeError
from ..functional.array.movement import concat, flip, pad, reshape, stack
from ..tensor import Tensor, node_of, wrap

Leaves = list[Tensor]


def _stored(x: Tensor) -> Tensor:
    """A value in memory, and its gradient too: fused, the kernels of each level hold all below."""
    node = node_of(x)
    value = build.contiguous(node)
    return wrap(override(_GRADIENT_STORED, 0, value, [node]) if node.watched else value)


_GRADIENT_STORED = Rule(
    "stored",
    lambda flows, x: [None if flow is None else build.contiguous(flow) for flow in flows],
    plain=True,
)


def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """At each place along an axis, `fn` folded over all slices so far, in log-many steps.

    `fn(a, b)` takes two trees of the form of `elems` that hold many slices along the axis at once,
    and combines them slice by slice; it must be associative, but need not be commutative. With
    `reverse` the fold comes from the last slice.

    >>> fg.associative_scan(fg.add, fg.Tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [1.0, 3.0, 6.0, 10.0]
    >>> def step(f, g):  # x -> a * x + b, one after the other
    ...     return f[0] * g[0], g[0] * f[1] + g[1]
    >>> factors, terms = fg.Tensor([0.5, 0.5, 0.5]), fg.Tensor([1.0, 1.0, 1.0])
    >>> fg.associative_scan(step, (factors, terms))[1].tolist()
    [1.0, 1.5, 1.75]
    """
    check_callable(fn)
    found, form = tree.flatten(elems)
    leaves = [wrap(node_of(leaf)) for leaf in found]
    if not leaves:
        raise ArgumentError("there is nothing to scan", "give a tensor, or a tree of them")
    places = [build.as_axis(axis, leaf.ndim) for leaf in leaves]
    counts = {leaf.shape[place] for leaf, place in zip(leaves, places, strict=True)}
    if len(counts) > 1:
        raise ShapeError(
            f"elements of {', '.join(map(str, sorted(counts, key=str)))} slices along axis {axis}",
            "all tensors of the tree must have as many",
        )
    (count,) = counts
    if not isinstance(count, int):
        raise ShapeError(
            f"an associative scan over {sizes.size_text(count)} slices", "use a fixed size, or scan"
        )
    scan = _Scan(fn, form, places, leaves)
    if reverse:
        leaves = scan.each(flip, leaves)
    done = scan.totals(leaves, count)
    return tree.unflatten(form, scan.each(flip, done) if reverse else done)


class _Scan:
    """One scan: the function on lists of leaves, and cuts along the axis of each leaf."""

    def __init__(
        self, fn: Callable[[Any, Any], Any], form: tree.Form, places: list[int], like: Leaves
    ) -> None:
        self.fn, self.form, self.places, self.like = fn, form, places, like

    def each(self, function: Callable[..., Tensor], leaves: Leaves, *rest: Any) -> Leaves:
        """The function of every leaf and its axis."""
        return [function(x, place, *rest) for x, place in zip(leaves, self.places, strict=True)]

    def combined(self, first: Leaves, second: Leaves) -> Leaves:
        """The user's function of all pairs, which must keep what it is given in shape."""
        result = self.fn(tree.unflatten(self.form, first), tree.unflatten(self.form, second))
        found = [wrap(node_of(leaf)) for leaf in tree.leaves_like(result, self.form)]
        for new, old, like in zip(found, first, self.like, strict=True):
            if new.shape != old.shape or new.dtype is not like.dtype:
                raise ShapeError(
                    f"the function made {new.dtype} {new.shape} of {like.dtype} {old.shape}",
                    "it combines slice by slice and keeps shapes and dtypes",
                )
        return [_stored(x) for x in found]

    def totals(self, leaves: Leaves, count: int) -> Leaves:
        """The running totals of so many slices."""
        if count < 2:
            return leaves
        pairs = self.combined(
            self.each(_every_second, leaves, 0, count - 1),
            self.each(_every_second, leaves, 1, count),
        )
        odd = self.totals(pairs, count // 2)
        first = self.each(_slices, leaves, 0, 1)
        if count == 2:
            ends = zip(first, odd, self.places, strict=True)
            return [concat([a, b], d) for a, b, d in ends]
        before = self.each(_slices, odd, 0, (count - 1) // 2)
        after = self.each(_every_second, leaves, 2, count)
        even = self.combined(before, after)
        rows = zip(first, even, odd, self.places, strict=True)
        return [_stored(_woven(concat([a, b], d), c, d, count)) for a, b, c, d in rows]


def _slices(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    whole: Tensor = x[(*[slice(None)] * axis, slice(start, stop, step))]
    return whole


def _every_second(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return _slices(x, axis, start, stop, 2)


def _woven(even: Tensor, odd: Tensor, axis: int, count: int) -> Tensor:
    """Slices taken in turn from two tensors, the first of which may have one more."""
    missing = count % 2
    if missing:
        odd = pad(odd, [(0, missing if d == axis else 0) for d in range(odd.ndim)])
    shape = [count + missing if d == axis else n for d, n in enumerate(even.shape)]
    return _slices(reshape(stack([even, odd], axis + 1), shape), axis, 0, count)
