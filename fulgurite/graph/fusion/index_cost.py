"""What indices cost: numbers that a kernel reads or stores one by one, by its access relations.

In: a kernel, lowered once (`lower` keeps what it found). Out: how many numbers are read where no
run of neighbours fills a vector. A vector of results is read from memory in one instruction if its
elements are neighbours there as well, or far apart but many in a row; what reshapes, permutations
and repetitions make of an axis may be pieces of two or three. Sums and products choose their own
lanes, so for them any axis will do that is long enough; but lanes of a product are places of one of
its operands, and results that are interleaved with the other's are stored one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, toposort
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.elementwise import LT, WHERE
from ...core.ops.index import FOLD, LOAD, STORE
from ...core.ops.leaf import CONST, IOTA, PARAM, SINK
from ...core.ops.movement import EXPAND, PAD, PERMUTE, RESHAPE
from ...core.shape import upper
from ..ir.affine import Affine, axes_of
from ..ir.kernel import Kernel
from ..ir.lower import lower
from ..ir.queries import free_axes, products_in_sums
from ..ir.reshape_groups import CannotLower

_CHOICES = (PARAM, CONST, IOTA, LT, WHERE, CONTIGUOUS, SINK)


def only_chooses(order: Sequence[Node]) -> bool:
    """True if a map computes nothing: it only says for each place which element it is."""
    return any([n.op is WHERE for n in order]) and all(
        [n.op in _CHOICES or n.op.family == "movement" for n in order]
    )


def is_concat(node: Node) -> bool:
    """True if a value is one of two parts, by place."""
    if node.op is not WHERE:
        return False
    condition, *sides = node.src
    by_place = condition.op is LT and condition.src[0].op is IOTA and condition.src[1].op is CONST
    return by_place and all([side.op is PAD for side in sides])


class IndexWork(NamedTuple):
    """Numbers that are read or stored with more effort than others."""

    gathered: int = 0  # one by one: neither results nor memory have a run of neighbours
    chosen: int = 0  # where conditions allow it: one of many is taken


def index_work(kernel: Kernel, order: Sequence[Node], short: int, interleave: int) -> IndexWork:
    """How a kernel reads memory; fewer than `short` neighbours are no run, but up to so many
    `interleave` of longer ones are shuffled into one."""
    reorders, chooses, pads = _reorders(order), _chooses(order), pads_turned(order)
    if not reorders and not chooses and not pads:
        return IndexWork()
    try:
        indexed = lower(kernel.body, kernel.inputs)
    except CannotLower:
        return IndexWork()
    sizes = [n if isinstance(n, int) else upper(n) for n in indexed.axes]
    nodes = toposort([indexed.body])
    loads = [n for n in nodes if n.op is LOAD and not n.src]
    gathered = _turned(nodes, loads, sizes, short) if pads else 0
    if reorders:
        gathered += _gathered(nodes, loads, sizes, (short, interleave))
        gathered += _scattered(nodes, sizes, short)
    return IndexWork(gathered, _chosen(nodes, loads, sizes) if chooses else 0)


def _reorders(order: Sequence[Node]) -> bool:
    """True if axes may fall apart: else every one is whole."""
    ops = {node.op for node in order}
    return RESHAPE in ops and not ops.isdisjoint((PERMUTE, EXPAND))


def pads_turned(order: Sequence[Node]) -> bool:
    """True if something is put around memory that is read in another order."""
    return any([n.op is PAD and n.src[0].op is PERMUTE for n in order])


def _chooses(order: Sequence[Node]) -> bool:
    """True if something is computed of what is chosen by place: else parts are copied."""
    return any([is_concat(node) for node in order]) and not only_chooses(order)


def _chosen(nodes: Sequence[Node], loads: Sequence[Node], sizes: Sequence[int]) -> int:
    """Numbers that are read of which one of several is taken."""
    free = free_axes(nodes)
    return sum([_count(free[load], sizes) for load in loads if load.arg[2]])


def _turned(nodes: Sequence[Node], loads: Sequence[Node], sizes: Sequence[int], short: int) -> int:
    """Numbers that a map reads across memory where a condition allows it: squares of memory are
    transposed only where all of it is read."""
    if any([n.op is FOLD for n in nodes]):
        return 0
    lanes = {_first(_steps(n.arg[1], sizes)) for n in nodes if n.op is STORE}
    asked = [_steps(load.arg[1], sizes) for load in loads if load.arg[2]]
    return sum([_count(steps, sizes) for steps in asked if _crosses(steps, lanes, sizes, short)])


def _crosses(
    steps: Mapping[int, int], lanes: Iterable[int], sizes: Sequence[int], short: int
) -> bool:
    """True if lanes are far apart in memory, which has rows along another axis; both are long."""
    rows = [a for a, step in steps.items() if step == 1 and sizes[a] >= short]
    across = [a for a in lanes if steps.get(a, 1) != 1 and sizes[a] >= short]
    return bool(rows and across)


def _gathered(
    nodes: Sequence[Node], loads: Sequence[Node], sizes: Sequence[int], limits: tuple[int, int]
) -> int:
    """Numbers that are read one by one."""
    folded = any([n.op is FOLD for n in nodes])
    packed = set(toposort(list(products_in_sums(nodes, free_axes(nodes)))))
    stores = [_steps(n.arg[1], sizes) for n in nodes if n.op is STORE]
    results = max(stores, key=lambda steps: _count(steps, sizes), default={})
    total = 0
    for load in loads:
        steps, cut = _steps(load.arg[1], sizes), _divided(load.arg[1], sizes)
        if cut and load in packed:
            run = 1  # of a factor that is no view of memory (im2col)
        elif folded:
            run = max([sizes[a] for a in steps if a not in cut], default=1 if cut else limits[0])
        else:
            run = _run_of_map(steps, results, sizes, cut, limits[1])
        axes = cut.union(steps)
        again = not folded and len(axes) < len(results)  # it is read for many results
        if run < limits[0] and not again:
            total += _count(axes, sizes)
    return total


def _run_of_map(
    steps: Mapping[int, int], results: Mapping[int, int], sizes: Sequence[int],
    cut: frozenset[int], interleave: int,
) -> int:  # fmt: skip
    """How many neighbours a map reads at once, or shuffles into one row."""
    whole = {a: step for a, step in steps.items() if a not in cut}
    run = _run(whole, results, sizes, cut)
    turns = 1 < run <= interleave
    return max(run, _row_that_takes_turns(whole, results, sizes, run)) if turns else run


def _scattered(nodes: Sequence[Node], sizes: Sequence[int], short: int) -> int:
    """Results of a product that are stored one by one: memory has few neighbours of one operand's
    places, and not all that this operand has."""
    folds = [n for n in nodes if n.op is FOLD]
    if len(folds) != 1 or len(folds[0].src[0].src) != 2:
        return 0
    free = free_axes(nodes)
    left, right = [free[factor] - frozenset(folds[0].arg[1]) for factor in folds[0].src[0].src]
    total = 0
    for steps in [_steps(n.arg[1], sizes) for n in nodes if n.op is STORE]:
        own = next((side for side in (left - right, right - left) if _first(steps) in side), left)
        inside = _neighbours({a: step for a, step in steps.items() if a in own}, sizes)
        if _count(inside, sizes) < short and not inside.issuperset(steps.keys() & own):
            total += _count(steps, sizes)
    return total


def _first(steps: Mapping[int, int]) -> int:
    """The axis along which results are neighbours; -1 if there is none."""
    return next((axis for axis, step in steps.items() if step == 1), -1)


def _neighbours(steps: Mapping[int, int], sizes: Sequence[int]) -> set[int]:
    """The axes whose results are one piece of memory."""
    ends, run, found = {step: axis for axis, step in steps.items()}, 1, set[int]()
    while run in ends:
        found.add(ends[run])
        run *= sizes[ends[run]]
    return found


def _divided(index: Affine, sizes: Sequence[int]) -> frozenset[int]:
    """The axes that an index divides, or takes the rest of: steps along them are of no one size."""
    divisions = (0, tuple([term for term in index[1] if isinstance(term[0], tuple)]))
    return frozenset([a for a in axes_of(divisions) if sizes[a] > 1])


def _steps(index: Affine, sizes: Sequence[int]) -> dict[int, int]:
    """The steps of an index along axes that have any."""
    return {a: step for a, step in index[1] if isinstance(a, int) and sizes[a] > 1}


def _count(axes: Iterable[int], sizes: Sequence[int]) -> int:
    return prod([sizes[a] for a in axes])


def _row_that_takes_turns(
    steps: Mapping[int, int], results: Mapping[int, int], sizes: Sequence[int], interleave: int
) -> int:
    """How many neighbours in memory are every so many results: rows are shuffled into one."""
    beside = [a for a, step in results.items() if step == interleave and steps.get(a) == 1]
    return sizes[beside[0]] if beside else 1


def _run(
    steps: Mapping[int, int], results: Mapping[int, int], sizes: Sequence[int], cut: frozenset[int]
) -> int:
    """How many results in a row are neighbours in memory, or equally far apart."""
    ends = {step: a for a, step in results.items() if a not in cut}
    run, unit = 1, steps.get(ends.get(1, -1), 0)
    while run in ends and steps.get(ends[run], 0) == unit * run:
        run *= sizes[ends[run]]
    return run
