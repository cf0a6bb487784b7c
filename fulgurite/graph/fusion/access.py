"""Access relations: which axes of a kernel read or write which digits of an address.

In: a kernel's body, lowered once (`lower` keeps what it found). Out: a `KernelAccess`: for every
load and store its affine address as digits (stride, size, axis), and the axes that reductions
above it fold. Memory is row-major, so the digits of a consumer's load and of the producer's store
of the same value are two spellings of one mixed-radix number: laid side by side they give the map
from the consumer's iteration axes to the producer's (`relate`), as XLA's indexing maps or Halide's
`compute_at` have it. An axis that a read lacks is a broadcast; what cannot be told is not affine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, toposort
from ...core.ops.elementwise import CAST, MUL
from ...core.ops.index import FOLD, LOAD, STORE
from ...core.shape import upper
from ..ir.affine import Affine, Condition
from ..ir.kernel import Kernel
from ..ir.lower import lower
from ..ir.queries import free_axes
from ..ir.reshape_groups import CannotLower

Axes: TypeAlias = "frozenset[int]"
NO_AXES: Axes = frozenset()


class Digit(NamedTuple):
    """Steps through memory along some axes: the addresses from `stride` up to `end`."""

    stride: int
    end: int
    axes: Axes


class Access(NamedTuple):
    """One load or store of a value."""

    digits: tuple[Digit, ...]  # largest stride first
    axes: Axes  # that its address depends on
    reduced: Axes = NO_AXES  # axes of the reductions above it
    is_injective: bool = True  # no element is met twice, but along broadcast axes

    def renamed(self, names: Mapping[int, Axes]) -> Access:
        """The same in the axes of another kernel."""
        digits = tuple([Digit(d.stride, d.end, renamed(d.axes, names)) for d in self.digits])
        return Access(digits, renamed(self.axes, names), self.reduced, self.is_injective)

    def extent(self, axes: Axes) -> tuple[tuple[int, int], ...]:
        """The parts of the address that some axes run through, neighbours merged."""
        found: list[tuple[int, int]] = []
        for stride, end, mine in self.digits:
            if mine & axes:
                whole = found.pop()[1] if found and found[-1][0] == end else end
                found.append((stride, whole))
        return tuple(found)


def renamed(axes: Axes, names: Mapping[int, Axes]) -> Axes:
    """Axes in those of another kernel."""
    if len(axes) == 1:
        (axis,) = axes
        return names.get(axis, NO_AXES)
    return NO_AXES.union(*[names.get(axis, NO_AXES) for axis in axes])


class ReductionInfo(NamedTuple):
    """One reduction of a kernel."""

    axes: Axes
    factors: tuple[Axes, ...]  # of a sum of products: the axes that each factor depends on


class KernelAccess(NamedTuple):
    """The access relations of a kernel."""

    sizes: tuple[int, ...]  # of its axes, at most
    reads: tuple[tuple[Access, ...], ...]  # by param
    writes: tuple[Access, ...]  # by output
    reductions: tuple[ReductionInfo, ...]
    is_nested: bool  # is a reduction inside another?

    @property
    def reduced(self) -> Axes:
        """All axes that are reduced."""
        return NO_AXES.union(*[reduction.axes for reduction in self.reductions])

    def count(self, axes: Axes) -> int:
        """Steps of some axes together."""
        found = 1
        for axis in axes:
            found *= self.sizes[axis]
        return found


def relate(read: Access, write: Access) -> dict[int, Axes]:
    """For each axis of a producer's store the axes of the consumer that its steps are read along.

    Both are digits of one address, so an axis goes with those whose digits overlap its own.
    """
    found: dict[int, Axes] = {}
    for stride, end, axes in write.digits:
        met = [d.axes for d in read.digits if d.stride < end and stride < d.end]
        along = met[0] if len(met) == 1 else NO_AXES.union(*met)
        for axis in axes:
            found[axis] = found[axis] | along if axis in found else along
    return found


def access_of(kernel: Kernel) -> KernelAccess | None:
    """The access relations of a kernel; None if it cannot be lowered."""
    try:
        indexed = lower(kernel.body, kernel.inputs)
    except CannotLower:
        return None
    sizes = tuple([n if isinstance(n, int) else upper(n) for n in indexed.axes])
    order = toposort([indexed.body])
    free, above = free_axes(order), _reduced_above(order)
    reads: list[dict[Access, None]] = [{} for _ in range(kernel.inputs)]
    for node in order[::-1]:
        if node.op is LOAD and node.arg[0] < kernel.inputs:
            reads[node.arg[0]][_access(node.arg[1], node.arg[2], sizes, above[node])] = None
    writes = {n.arg[0]: _access(n.arg[1], (), sizes, NO_AXES) for n in order if n.op is STORE}
    folds = [n for n in order if n.op is FOLD]
    return KernelAccess(
        sizes,
        tuple(map(tuple, reads)),
        tuple([writes[kernel.inputs + i] for i in range(len(kernel.body.src))]),
        tuple(dict.fromkeys([_reduction(fold, free) for fold in folds])),
        any([above[fold] for fold in folds]),
    )


def _reduced_above(order: Sequence[Node]) -> dict[Node, Axes]:
    """For each node the axes that reductions above it fold, all paths together."""
    above = dict.fromkeys(order, NO_AXES)
    for node in reversed(order):
        over = above[node].union(node.arg[1]) if node.op is FOLD else above[node]
        for source in node.src:
            above[source] |= over
    return above


def _reduction(fold: Node, free: Mapping[Node, Axes]) -> ReductionInfo:
    body = fold.src[0]
    while body.op is CAST:
        body = body.src[0]
    is_sum = fold.arg[0] == "add" and body.op is MUL
    return ReductionInfo(frozenset(fold.arg[1]), tuple([free[s] for s in body.src if is_sum]))


def _access(index: Affine, checks: Sequence[Condition], sizes: Sequence[int], over: Axes) -> Access:
    counts = {a: _count(a, checks, sizes[a]) for a, _ in index[1] if isinstance(a, int)}
    steps = [(abs(step), a) for a, step in index[1] if isinstance(a, int) and counts[a] > 1]
    digits = [Digit(step, step * counts[a], frozenset([a])) for step, a in sorted(steps)[::-1]]
    apart = all([low.end <= high.stride for high, low in pairwise(digits)])
    axes = frozenset([a for _, a in steps])
    return Access(tuple(digits), axes, over, apart and len(counts) == len(index[1]))


def _count(axis: int, checks: Sequence[Condition], size: int) -> int:
    """Steps of an axis for which something is read: conditions on it alone leave out the others."""
    low, high = 0, size
    for (first, terms), length in checks:
        if terms == ((axis, 1),):
            low, high = max(low, -first), min(high, length - first)
    return max(1, high - low)
