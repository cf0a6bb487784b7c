"""What a kernel costs: a roofline over bytes moved and operations, from a small table.

In: a kernel and the model of a machine. Out: nanoseconds of the whole machine, good enough to rank
kernels. The time of a kernel is its launch plus the larger of the time its memory takes and the
time its arithmetic takes, at the efficiency of its kind, over how busy its units of work keep the
machine. The model that a target ships is rounded to two digits, so plans do not depend on the day;
`fulgurite tune` measures this machine and writes another one, whose digest is part of every key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import floor, log10
from weakref import WeakKeyDictionary

from ...core.digest import blake2b
from ...core.node import Node, toposort
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import CONST, IOTA, PARAM
from ...core.ops.movement import FLIP, PAD, SHRINK, WINDOW
from ...core.ops.reduce import REDUCE
from ...core.shape import upper
from ..ir.kernel import Kernel
from ..ir.queries import elements, is_contraction, own_elements


@dataclass(frozen=True, slots=True)
class MachineModel:
    """All that a schedule may ask of a machine; times are in nanoseconds.

    A target has one (`codegen/cpu/machine.py`); `fulgurite tune` measures the rates of another.
    """

    launch: float  # of a kernel: calling it, waking threads, waiting for the last
    near: float  # bytes a nanosecond within caches
    far: float  # bytes a nanosecond from memory
    cache: float  # bytes that stay in caches from kernel to kernel
    products: float  # operations a nanosecond in contractions
    folded: float  # the same in products inside folds
    simple: float  # additions a nanosecond in maps and rows
    walked: float  # the same in blocks of a fold
    hidden: float  # of the smaller of memory and arithmetic, what the larger hides
    packed: float  # numbers a nanosecond that are put in order for contractions
    made: float  # of a kernel that is compiled, spread over the runs it will have
    asked: float  # of a merged kernel that is looked into, spread in the same way
    kept: float  # of a byte kept between kernels, of values that push others out of caches
    strided: float  # numbers a nanosecond that are read one by one
    library: float  # operations a nanosecond in contractions by a library that the machine has
    large: float  # bytes of a value that is large
    scarce: float  # of a byte of a large value beyond that
    spared: float  # of a byte of a matrix that a fold does without
    saved: float  # of additions, the part that laws may take out of a fold

    def quantised(self) -> MachineModel:
        """The same to two digits."""
        return replace(self, **{f.name: two_digits(getattr(self, f.name)) for f in fields(self)})

    @property
    def digest(self) -> str:
        """A name for these numbers."""
        return blake2b(repr(asdict(self)).encode(), digest_size=8).hexdigest()


def two_digits(number: float) -> float:
    """A number to two digits."""
    if number <= 0:
        return number
    digits = 1 - floor(log10(number))
    return round(number, digits)


CostTable = MachineModel  # its rates alone are what most functions read

VIEWS = 64  # ways of moving a value that are told apart
ADJACENT = 16  # elements next to each other that are chosen together
BLOCK = 128  # elements of a streamed axis that a condition leaves out together


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does, counted."""

    bytes: int  # read and written, each value once
    products: int  # operations in contractions
    simple: int  # all others, in additions
    packed: int  # numbers of the factors of contractions
    blocks: int = 1  # along an axis that conditions on indices are about
    after: int = 0  # of what is simple, what comes after the last sums

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes + other.bytes, self.products + other.products, self.simple + other.simple,
            self.packed + other.packed, max(self.blocks, other.blocks), self.after + other.after,
        )  # fmt: skip


NO_WORK = Work(0, 0, 0, 0)


_known: WeakKeyDictionary[Node, Work] = WeakKeyDictionary()


def work_of(kernel: Kernel) -> Work:
    """The work of a kernel; kept for every body."""
    found = _known.get(kernel.body)
    if found is None:
        found = _known[kernel.body] = _work(kernel.body)
    return found


def _work(body: Node) -> Work:
    order = toposort([body])
    inside: set[Node] = set()
    products = simple = packed = moved = 0
    for node in order:
        if node.op is REDUCE and is_contraction(node):
            products += 2 * elements(node.src[0].shape)
            packed += sum([own_elements(s) for s in node.src[0].src])
            inside.add(node.src[0])
    views = _views(order)
    for node in order:
        if node.op is PARAM:
            moved += elements(node.shape) * node.dtype.itemsize
        elif node.op is REDUCE and node.src[0] not in inside:
            simple += round(views[node] * elements(node.src[0].shape))
        elif node.op is GATHER:
            one_by_one = elements(node.shape[node.arg + 1 :]) < ADJACENT
            simple += (50 if one_by_one else 8) * elements(node.shape)
        elif node.op.family == "elementwise" and node not in inside:
            simple += round(views[node] * node.op.cost * elements(node.shape))
        elif node.op is CONTIGUOUS:
            simple += elements(node.shape)
    moved += sum([elements(r.shape) * r.dtype.itemsize for r in body.src])
    return Work(moved, products, simple, packed, _blocks(order))


def _views(order: Sequence[Node]) -> dict[Node, float]:
    """How often each node is computed: anew for every way it is moved, and for every window."""
    if not any([node.op in (SHRINK, PAD, FLIP, WINDOW) for node in order]):
        return dict.fromkeys(order, 1.0)
    ways: dict[Node, dict[tuple[Node, ...], float]] = {node: {} for node in order}
    ways[order[-1]][()] = 1.0
    for node in reversed(order):
        moves = node.op in (SHRINK, PAD, FLIP)
        times = 1.0
        if node.op is WINDOW:
            times = max(1.0, elements(node.shape) / max(1, elements(node.src[0].shape)))
        for source in node.src:
            mine = ways[source]
            if len(mine) < VIEWS:
                for way, count in ways[node].items():
                    further = (*way, node) if moves else way
                    mine[further] = max(mine.get(further, 0), count * times)
    return {node: sum(found.values()) for node, found in ways.items()}


def _blocks(order: Iterable[Node]) -> int:
    """Blocks along the longest axis of conditions on indices alone: whole ones may be left out."""
    places: set[Node] = set()
    longest = 0
    for node in order:
        if node.op is IOTA or (
            node.op.family in ("elementwise", "movement")
            and not places.isdisjoint(node.src)
            and all([s in places or s.op is CONST for s in node.src])
        ):
            places.add(node)
            if node.dtype.kind == "b":
                longest = max(longest, *[upper(n) for n in node.shape], 0)
    return max(1, longest // BLOCK)


def time_of(kernel: Kernel, table: CostTable) -> float:
    """Nanoseconds that a kernel takes."""
    w = work_of(kernel)
    fold = kernel.kind == "fold"
    memory = memory_time(w.bytes, table)
    rate = table.folded if fold else table.products
    arithmetic = w.products / rate + w.simple / (table.walked if fold else table.simple)
    if not fold:
        arithmetic += w.packed / table.packed
    return both(memory, arithmetic, table)


def memory_time(moved: float, table: CostTable) -> float:
    """Nanoseconds to move so many bytes: what caches hold is near, the rest comes from memory."""
    near = min(moved, table.cache)
    return near / table.near + (moved - near) / table.far


def kept_time(sizes: Iterable[int], table: CostTable, spared: Iterable[int] = ()) -> float:
    """The price of values of so many bytes that are kept between kernels.

    A quarter of the caches is free: other values are there at the same time. What is beyond `large`
    is memory that others do not have: it is worth a third more arithmetic not to keep it. `spared`
    are the sizes of matrices that a walk does without: of plans that are about as quick the one
    that keeps far less wins.
    """
    kept, scarce = 0.0, 0.0
    for size in sizes:
        kept += max(0.0, size - table.cache / 4)
        scarce += max(0.0, size - table.large)
    return table.kept * kept + table.scarce * scarce + table.spared * sum(spared)


def both(memory: float, arithmetic: float, table: CostTable) -> float:
    """The time of a kernel from that of its memory and of its arithmetic."""
    return table.launch + max(memory, arithmetic) + (1 - table.hidden) * min(memory, arithmetic)


def least_time(work: Work, table: CostTable) -> float:
    """What a fold with such work should not go below.

    Laws may save some of what is simple, a condition on indices half of the blocks. Rows without
    a product are no quicker as a fold than they are as rows.
    """
    inside, after = max(0, work.simple - work.after), work.after / table.simple
    simple = (1 - table.saved) * inside / table.walked if work.products else inside / table.simple
    arithmetic = (work.products / table.folded + simple) * (1 + 1 / work.blocks) / 2 + after
    return both(work.bytes / max(table.near, table.far), arithmetic, table)


def total(kernels: Iterable[Kernel], table: CostTable) -> float:
    """Nanoseconds that kernels take one after the other."""
    return sum([time_of(kernel, table) for kernel in kernels])
