"""col2im to contraction: windows that are added up where they overlap, as sums over windows.

In: a graph. Out: one with the same values and fewer UNWINDOWs, which end a kernel and add up what
lies in memory. The gradient of a convolution adds up products of a factor that is the same all over
a window and one that is the same in all windows: Σ over the windows at a place is then Σ over a
window of mirrored weights, a convolution again and one contraction. A stride makes phases of the
results: neighbours take the same windows with other weights, so no zeros are stuffed between.
Windows that do not meet are only moved; those with numbers of their own (a maximum's gradient) are
a few slices, added, or stay. Floats may be added in another order, and padding times inf is NaN:
`exact` leaves this stage out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple, TypeAlias

from ...core import shape as sizes
from ...core.dtype import float32
from ...core.node import Node, Shape, Size, constant, constant_bits, toposort
from ...core.ops import movement
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.elementwise import ADD, CAST, MUL
from ...core.ops.leaf import CONST, PARAM
from ...core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    UNWINDOW,
    WINDOW,
    expand,
    flip,
    pad,
    pairs,
    permute,
    reshape,
    shrink,
    window,
)
from ...core.ops.reduce import REDUCE, reduce_node
from ...core.rewriting.substitute import rebuild, substitute
from ...core.symbolic.sym import choosing
from ..ir.limits import LIMITS
from ..ir.reshape_groups import CannotLower, groups

Step: TypeAlias = Callable[[Node], Node]  # puts an op on the summed windows
Cuts: TypeAlias = list[tuple[Size, Size]]  # start and stop of each dimension


class Windows(NamedTuple):
    """Windows at places along one dimension, their elements along another, and the sums wanted."""

    place: int
    inside: int
    places: int  # how many windows
    size: int  # elements of a window
    stride: int
    dilation: int
    start: int
    length: int

    def at(self, place: int, inside: int) -> Windows:
        """The same in a value whose dimensions are in another order."""
        return self._replace(place=place, inside=inside)

    def mirrored(self) -> Windows:
        """The same, with places taken for elements: place * stride + element * dilation."""
        place, inside, places, size, stride, dilation, start, length = self
        return Windows(inside, place, size, places, dilation, stride, start, length)

    def reach(self) -> int:
        """How many results a window meets, or skips."""
        return (self.size - 1) * self.dilation + 1

    def steps(self) -> tuple[int, int]:
        """Which places meet results before one stride: from the first to the last."""
        return -((self.reach() - 1 - self.start) // self.stride), -(-self.start // self.stride)

    def taps(self) -> int:
        """How many products each result takes."""
        first, last = self.steps()
        return self.size if self.stride == 1 else last - first + 1

    def aligned(self) -> Windows:
        """To a whole number of strides, and from one if that takes fewer products."""
        early = self.start % self.stride
        found = self._replace(start=self.start - early, length=self.length + early)
        found = found if found.taps() < self.taps() else self
        return found._replace(length=-(-found.length // self.stride) * self.stride)


def unwindow(sink: Node) -> Node:
    """The graph with overlapping windows summed as contractions where they can be."""
    order = toposort([sink])
    sums = [node for node in order if _uncut(node).op is UNWINDOW]
    if not sums:
        return sink
    uses = Counter([s for node in order for s in node.src])
    known: dict[Node, Node] = {}
    within: set[Node] = set()  # read by nothing but what was replaced
    for node in reversed(sums):
        if node in within:
            continue
        chain = _chain(_uncut(node))
        cuts: Cuts = pairs(node) if node.op is SHRINK else [(0, n) for n in node.shape]
        found = _sum_windows(chain, cuts)
        if found is not None:
            known[node] = found
            within.update([n for n in chain if n is not node and uses[n] == 1])
    return substitute(sink, known) if known else sink


def _uncut(node: Node) -> Node:
    """What a node is a part of, or itself."""
    return node.src[0] if node.op is SHRINK else node


def _chain(top: Node) -> list[Node]:
    """UNWINDOWs of one another, the last one first."""
    chain = [top]
    while chain[-1].src[0].op is UNWINDOW:
        chain.append(chain[-1].src[0])
    return chain


def _sum_windows(chain: list[Node], cuts: Cuts) -> Node | None:
    """The part of a chain of UNWINDOWs, or None if none of them can be summed another way."""
    top, value, left = chain[0], chain[-1].src[0], list(cuts)
    last = {node.arg[0]: node for node in reversed(chain)}  # each dimension is cut at the end
    # an inner one may go along the windows that the next one takes away: those are not cut
    wanted = {node: cuts[axis] for axis, node in last.items() if axis < len(cuts)}
    better, slices = False, LIMITS.unwindow_slices
    meet = any([_meet(node, wanted.get(node)) for node in chain])
    for node in reversed(chain):
        axis = node.arg[0]
        windows = _windows_of(node, value, wanted.get(node))
        rows = node is top and axis < top.ndim - 1  # phases along the last are not rows
        at_end = node is top or not meet  # is there no product to be found after it?
        found = None if windows is None else _sum_of_one(value, windows, rows, at_end, slices)
        if windows is None or found is None:
            value = _again(node, value, {})
            continue
        if node in wanted:
            start, stop = wanted[node]
            left[axis] = (sizes.sub(start, windows.start), sizes.sub(stop, windows.start))
        value, better, slices = found, True, slices // windows.taps()
    return _cut(value, left) if better else None


def _meet(node: Node, cut: tuple[Size, Size] | None) -> bool:
    """True if windows of an UNWINDOW may have results in common."""
    windows = _windows_of(node, node.src[0], cut)
    return windows is None or windows.reach() > windows.stride


def _cut(value: Node, left: Cuts) -> Node:
    """The part of a sum that is wanted, stored in the order in which rows of it are copied."""
    whole = list(left) == [(0, n) for n in value.shape]
    return shrink(value if whole or _is_stored(value) else CONTIGUOUS(value), left)


def _is_stored(x: Node) -> bool:
    """True if it is made of movement ops over memory alone."""
    while x.op in (RESHAPE, PERMUTE, PAD, SHRINK):
        x = x.src[0]
    return x.op in (PARAM, CONTIGUOUS) or (x.op is ADD and all(_is_stored(s) for s in x.src))


def _windows_of(node: Node, value: Node, cut: tuple[Size, Size] | None) -> Windows | None:
    """What an UNWINDOW of a value adds up, if sizes are known; a `cut` is made at the end."""
    axis, _, stride, dilation = node.arg
    start, stop = cut or (0, node.shape[axis])
    count, size = value.shape[axis], value.shape[-1]
    if not (isinstance(start, int) and isinstance(stop, int)):
        return None
    if not (isinstance(count, int) and isinstance(size, int)) or 0 in value.shape or start >= stop:
        return None
    stride = max(stride, (size - 1) * dilation + 1) if count == 1 else stride
    last, length = value.ndim - 1, stop - start
    windows = Windows(axis, last, count, size, stride, dilation, start, length)
    return windows if cut is None else windows.aligned()


def _sum_of_one(
    x: Node, windows: Windows, apart: bool, last: bool, slices: int
) -> Node | None:  # fmt: skip
    """Windows of one dimension added up; `apart`: phases may be kernels of their own, `last`: what
    they are made of may be stored.

    Where there is no product they may be so many `slices`, added one by one.
    """
    if windows.reach() <= windows.stride:
        zeros = last and windows.reach() < windows.stride and not _is_stored(x)
        return _apart(CONTIGUOUS(x) if zeros else x, windows)  # zeros need no products
    own = windows
    core, windows, steps = _core(x, windows)
    factors = _factors(core, windows)
    if factors is None:
        return _slices(x, own) if own.taps() <= slices else None
    axes = steps.pop() if steps and isinstance(steps[-1], tuple) else ()
    assert isinstance(axes, tuple)
    if windows.mirrored().taps() < windows.taps():
        order = list(range(core.ndim))
        order[windows.place], order[windows.inside] = windows.inside, windows.place
        steps.append(lambda z: permute(z, tuple(order)))
        factors, windows = factors[::-1], windows.mirrored()
    if not apart or not _saves(core, windows, axes):
        return _above(_convolved(core, factors, windows, axes), steps)
    phases = [_phase(core, factors, windows, axes, phase) for phase in range(windows.stride)]
    stored = [CONTIGUOUS(_above(phase, steps)) for phase in phases]
    return _interleaved(stored, own.place, windows.length)


def _core(x: Node, windows: Windows) -> tuple[Node, Windows, list[Step | tuple[int, ...]]]:
    """What is below the ops that can as well work on sums, its windows, and those ops."""
    steps: list[Step | tuple[int, ...]] = []
    for _ in range(LIMITS.unwindow_ops):
        below = _below(x, windows, steps)
        if below is None:
            break
        x, windows = below
    return x, windows, steps


def _above(value: Node, steps: Sequence[Step | tuple[int, ...]]) -> Node:
    """The ops that were above a product, on its sums; the window's dimension, now last, is gone."""
    for step in reversed(steps):
        value = reduce_node("add", value, step) if isinstance(step, tuple) else step(value)
    return reshape(value, value.shape[:-1])


def _saves(core: Node, windows: Windows, axes: Sequence[int]) -> bool:
    """True if phases as kernels of their own, each with no more products than it needs, pay.

    All of them in one contraction have the taps of the longest; apart they are copied once more.
    """
    depth = sizes.prod([core.shape[axis] for axis in axes])
    if windows.dilation > 1 or windows.size < windows.stride or not isinstance(depth, int):
        return False
    with choosing():
        long = depth >= LIMITS.phase_terms
        return long and windows.size * 5 <= windows.taps() * windows.stride * 4


def _interleaved(phases: Sequence[Node], place: int, length: int) -> Node:
    """Results of all phases in turns along a dimension."""
    stride = len(phases)
    parts = [reshape(z, (*z.shape[: place + 1], 1, *z.shape[place + 1 :])) for z in phases]
    both = _span(parts[0], place + 1, 0, stride)
    for phase, part in enumerate(parts[1:], start=1):
        both = ADD(both, _span(part, place + 1, -phase, stride - phase))
    return _span(_merge_axis(both, place), place, 0, length)


def _apart(x: Node, windows: Windows) -> Node:
    """Windows that do not meet, with the zeros between them: nothing is added."""
    place, inside, places, _, stride, dilation, start, length = windows
    x = _span(_spread(x, inside, dilation), inside, 0, stride)
    x = _merge_axis(_move_axis(x, inside, place + 1), place)
    if stride == 1 and start >= 0 and start + length <= places:
        return _cropped(x, place, start, start + length)
    return _span(x, place, start, start + length)


def _cropped(x: Node, axis: int, start: int, stop: int, depth: int = LIMITS.unwindow_ops) -> Node:
    """A part of a dimension, cut out of what sums and products are made of."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    opened = x.op in (PERMUTE, RESHAPE, EXPAND, REDUCE)
    before = _source_axes(x, axis) if opened else (axis,) if x.op is MUL else None
    if before is None or len(before) != 1 or not depth:
        return _span(x, axis, start, stop)
    parts = [
        s if s.shape[before[0]] == 1 else _cropped(s, before[0], start, stop, depth - 1)
        for s in x.src
    ]
    return rebuild(x, tuple(parts)) if x.op is MUL else _again(x, parts[0], {axis: stop - start})


def _slices(x: Node, windows: Windows) -> Node:
    """Windows with numbers of their own: a few slices, each moved to its place, added."""
    place, inside, _, size, stride, dilation, start, length = windows
    wide = float32 if x.dtype.is_small_float else x.dtype
    x, narrow = (x if wide is x.dtype else CAST(x, arg=wide)), x.dtype
    if stride > 1:  # a slice is a stride of elements, which are neighbours in the result
        x, size = _spread(x, inside, dilation), (size - 1) * dilation + 1
        size, dilation = -(-size // stride), 1
        x = _span(x, inside, 0, size * stride)
    first, early = divmod(start, stride)
    count = -(-(early + length) // stride)
    parts = []
    for tap in range(size):
        part = _span(x, inside, tap * stride, (tap + 1) * stride)
        at = first - tap * dilation
        parts.append(_span(part, place, at, at + count))
    total = _merge_axis(_move_axis(reduce(ADD, parts), inside, place + 1), place)
    total = _span(total, place, early, early + length)
    return total if wide is narrow else CAST(total, arg=narrow)


# --- going down to the product -------------------------------------------------------------------


def _below(
    node: Node, windows: Windows, steps: list[Step | tuple[int, ...]]
) -> tuple[Node, Windows] | None:
    """What an op works on, if the op can as well work on sums; how to put it on them."""
    op, own = node.op, (windows.place, windows.inside)
    if op is MUL:
        for factor, rest in (node.src, node.src[::-1]):
            same = _without(factor, own)
            if same is not None and _without(rest, own[:1]) is None:
                steps.append(lambda z, same=same: MUL(z, expand(same, z.shape)))  # type: ignore[misc]
                return rest, windows
        return None
    if op is WINDOW or (op is REDUCE and node.arg[0] != "add"):
        return None
    place, inside = [_source_axis(node, axis) for axis in own]
    if place is None or inside is None:
        return None
    if op is REDUCE:
        steps.append(node.arg[1])
    else:
        steps.append(lambda z: _again(node, z, {own[0]: z.shape[place], own[1]: z.shape[inside]}))
    return node.src[0], windows.at(place, inside)


def _source_axis(node: Node, axis: int) -> int | None:
    """The one dimension of its source that one of a node is, with as many elements."""
    before = _source_axes(node, axis)
    if before is None or len(before) != 1 or node.src[0].shape[before[0]] != node.shape[axis]:
        return None
    return before[0]


def _source_axes(node: Node, axis: int) -> tuple[int, ...] | None:
    """The dimensions of its source that one of a node is, if the op does nothing along it."""
    op, arg = node.op, node.arg
    if op is PERMUTE:
        return (arg[axis],)
    if op is RESHAPE:
        return _made_of(node, axis)
    if op is EXPAND:
        return (axis,)  # which may have had one element
    if op in (PAD, SHRINK):
        still = (0, node.src[0].shape[axis]) if op is SHRINK else (0, 0)
        return (axis,) if pairs(node)[axis] == still else None
    if op is WINDOW:
        return None if axis in (arg[0], node.ndim - 1) else (axis,)
    touched = {FLIP: lambda: arg, REDUCE: lambda: arg[1], UNWINDOW: lambda: arg[:1]}.get(op)
    return None if touched is None or axis in touched() else (axis,)


def _again(node: Node, source: Node, changed: dict[int, Size]) -> Node:
    """The op of a node on a source that has other sizes along what the op does nothing to."""
    op, shape = node.op, tuple([changed.get(d, n) for d, n in enumerate(node.shape)])
    if op is RESHAPE:
        return reshape(source, shape)
    if op is EXPAND:
        return expand(source, shape)
    if op is PAD:
        return pad(source, pairs(node))
    if op is SHRINK:
        cuts = enumerate(pairs(node))
        return shrink(source, [(0, changed[d]) if d in changed else cut for d, cut in cuts])
    if op is UNWINDOW:
        return movement.unwindow(source, node.arg[0], node.shape[node.arg[0]], *node.arg[2:])
    return rebuild(node, (source,))


def _made_of(node: Node, axis: int) -> tuple[int, ...] | None:
    """The dimensions that one of a RESHAPE was merged from, or None if it is a part of them.

    A step along a merged dimension is one along any of those, so what is true of it has to be true
    of all of them; it has a part, or its own order, only if it was one.
    """
    old = node.src[0].shape
    if 0 in old:  # there are no products to regroup by
        return None
    try:
        runs = groups(node.shape, old)
    except CannotLower:
        return None
    for news, olds in runs:
        if axis in news and [d for d in news if node.shape[d] != 1] == [axis]:
            return tuple([d for d in olds if old[d] != 1])
    return None


def _factors(core: Node, windows: Windows) -> tuple[Node, Node] | None:
    """A factor that is the same all over each window, and one that is the same in all windows."""
    place, inside = windows.place, windows.inside
    if core.op is MUL:
        for first, second in (core.src, core.src[::-1]):
            a, b = _without(first, (inside,)), _without(second, (place,))
            if a is not None and b is not None:
                return _bare(a, place), _bare(b, inside)
    a, b = _without(core, (inside,)), _without(core, (place,))
    if a is not None:
        return _bare(a, place), _ones(core, inside)
    return None if b is None else (_ones(core, place), _bare(b, inside))


def _ones(core: Node, axis: int) -> Node:
    """Ones along one dimension."""
    shape = tuple([n if d == axis else 1 for d, n in enumerate(core.shape)])
    return constant(1, core.dtype, shape)


# --- what does not vary --------------------------------------------------------------------------


def _without(node: Node, axes: Sequence[int], depth: int = LIMITS.unwindow_ops) -> Node | None:
    """The node with size 1 along dimensions that it does not vary along, or None if it does."""
    found: Node | None = node
    for axis in axes:
        if found is not None:
            found = _squeezed(found, axis, {}, depth)
    return found


def _bare(node: Node, kept: int) -> Node:
    """The node with size 1 along every other dimension that it does not vary along."""
    size = node.shape[kept]
    for axis in range(node.ndim):
        found = _without(node, (axis,))
        node = node if found is None else found
    return expand(node, (*node.shape[:kept], size, *node.shape[kept + 1 :]))


def _squeezed(node: Node, axis: int, memo: dict[Node, Node | None], depth: int) -> Node | None:
    """The node with size 1 along a dimension, looking through so many ops."""
    if node.shape[axis] == 1:
        return node
    if node not in memo:
        memo[node] = _squeezed_anew(node, axis, memo, depth) if depth else None
    return memo[node]


def _squeezed_anew(node: Node, axis: int, memo: dict[Node, Node | None], depth: int) -> Node | None:
    if node.op is CONST:
        shape = (*node.shape[:axis], 1, *node.shape[axis + 1 :])
        return constant_bits(node.arg[0], node.dtype, shape)
    if node.op.family == "elementwise":
        if any(s.shape != node.shape for s in node.src):
            return None
        parts: list[Node] = []
        for source in node.src:
            part = _squeezed(source, axis, memo, max(0, depth - LIMITS.unwindow_branch_ops))
            if part is None:
                return None
            parts.append(part)
        return rebuild(node, tuple(parts))
    before = None if node.op is UNWINDOW else _source_axes(node, axis)
    inner = None if before is None else _without(node.src[0], before, depth - 1)
    return None if inner is None else _again(node, inner, {axis: 1})


# --- the convolution -----------------------------------------------------------------------------


def _convolved(
    core: Node, factors: tuple[Node, Node], windows: Windows, axes: Sequence[int]
) -> Node:
    """Σ over some dimensions and over the window, whose dimension gets size 1."""
    place, inside, _, size, stride, dilation, start, length = windows
    a, b = factors
    if stride == 1:
        alone = b.op is CONST and b.value == 1
        a = _windows(a, place, inside, start - (size - 1) * dilation, length, size, dilation)
        return _product(core.shape, a, None if alone else flip(b, (inside,)), axes, windows)
    # result q * stride + r takes a[q + t] * b[r + start - t * stride], b with its dilation
    first, last = windows.steps()
    taps, count, before = last - first + 1, -(-length // stride), last * stride - start
    b = _span(_spread(b, inside, dilation), inside, -before, taps * stride - before)
    b = CONTIGUOUS(b) if dilation > 1 else b  # or its places would be quotients
    b = reshape(b, (*b.shape[:inside], taps, stride, *b.shape[inside + 1 :]))
    b = _move_axis(flip(b, (inside,)), inside + 1, place + 1)
    a = _windows(a, place, inside, first, count, taps, 1)
    a = reshape(a, (*a.shape[: place + 1], 1, *a.shape[place + 1 :]))
    shape = (*core.shape[: place + 1], stride, *core.shape[place + 1 :])
    further = windows.at(place, inside + (inside > place))
    value = _product(shape, a, b, [d + (d > place) for d in axes], further)
    return _span(_merge_axis(value, place), place, 0, length)


def _phase(
    core: Node, factors: tuple[Node, Node], windows: Windows, axes: Sequence[int], phase: int
) -> Node:
    """Every stride-th sum, from `phase`: those that take the same elements of a window."""
    place, inside, _, size, stride, _, start, length = windows
    a, b = factors
    steps, least = divmod(phase + start, stride)
    taps = -(-(size - least) // stride)
    b = _span(b, inside, least, least + taps * stride)
    b = reshape(b, (*b.shape[:inside], taps, stride, *b.shape[inside + 1 :]))
    b = _span(b, inside + 1, 0, 1)
    b = flip(reshape(b, (*b.shape[: inside + 1], *b.shape[inside + 2 :])), (inside,))
    a = _windows(a, place, inside, steps - taps + 1, -(-length // stride), taps, 1)
    return _product(core.shape, a, b, axes, windows)


def _windows(
    a: Node, place: int, inside: int, first: int, count: int, taps: int, dilation: int
) -> Node:
    """So many windows from the first on, their elements in a dimension that had size 1."""
    a = _span(a, place, first, first + count + (taps - 1) * dilation)
    a = reshape(a, (*a.shape[:inside], *a.shape[inside + 1 :]))
    a = window(a, place - (inside < place), taps, 1, dilation)
    return _move_axis(a, a.ndim - 1, inside)


def _product(shape: Shape, a: Node, b: Node | None, axes: Sequence[int], windows: Windows) -> Node:
    """Σ a * b over some dimensions and over the window; other sizes are those of a shape."""
    place, inside = windows.place, windows.inside
    changed = {place: a.shape[place], inside: a.shape[inside]}
    full = tuple([changed.get(d, n) for d, n in enumerate(shape)])
    product = expand(a, full)
    if b is not None:
        product = MUL(product, expand(b, full))
    return reduce_node("add", product, (*axes, inside))


def _move_axis(x: Node, axis: int, to: int) -> Node:
    """A dimension at another place among the others."""
    order = [d for d in range(x.ndim) if d != axis]
    order.insert(to, axis)
    return permute(x, tuple(order))


def _merge_axis(x: Node, axis: int) -> Node:
    """A dimension and the next as one."""
    both = sizes.mul(x.shape[axis], x.shape[axis + 1])
    return reshape(x, (*x.shape[:axis], both, *x.shape[axis + 2 :]))


def _spread(x: Node, axis: int, step: int) -> Node:
    """Zeros between the elements."""
    size = x.shape[axis]
    assert isinstance(size, int)
    if step == 1:
        return x
    x = reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    x = _merge_axis(_span(x, axis + 1, 0, step), axis)
    return _span(x, axis, 0, (size - 1) * step + 1)


def _span(x: Node, axis: int, start: int, stop: int) -> Node:
    """The elements from start to stop along a dimension, zeros where there are none."""
    size = x.shape[axis]
    assert isinstance(size, int)
    first = min(max(start, 0), size)
    last = min(max(stop, first), size)
    after = max(0, stop - max(last, start))
    cuts: Cuts = [(0, n) for n in x.shape]
    pads: Cuts = [(0, 0)] * x.ndim
    cuts[axis], pads[axis] = (first, last), (stop - start - (last - first) - after, after)
    return pad(shrink(x, cuts), pads)
