"""What a kernel costs: a roofline over bytes moved and operations, from a small table.

In: a kernel and the model of a machine. Out: nanoseconds of the whole machine, good enough to rank
kernels. The time of a kernel is its launch plus the larger of the time its memory takes and the
time its arithmetic takes, at the efficiency of its kind, over how busy its units of work keep the
machine. The model that a target ships is rounded to two digits, so plans do not depend on the day;
`fulgurite tune` measures this machine and writes another one, whose digest is part of every key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import asdict, fields, replace
from math import floor, log10
from weakref import WeakKeyDictionary

from ...core.digest import blake2b
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, toposort
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.elementwise import CAST, MUL
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import CONST, IOTA, PARAM
from ...core.ops.movement import FLIP, PAD, SHRINK, WINDOW
from ...core.ops.reduce import REDUCE
from ...core.shape import upper
from ..ir.kernel import Kernel
from ..ir.queries import elements, is_contraction, own_elements, unmoved
from .index_cost import index_work, only_chooses


@dataclass(frozen=True, slots=True)
class MachineModel:
    """All that a schedule may ask of a machine; times are in nanoseconds.

    A target has one (`codegen/cpu/machine.py`); `fulgurite tune` measures the rates of another.
    """

    launch_ns: float  # of a kernel: calling it, waking threads, waiting for the last
    cache_bw: float  # bytes a nanosecond within caches
    dram_bw: float  # bytes a nanosecond from memory
    cache_bytes: float  # bytes that stay in caches from kernel to kernel
    gemm_rate: float  # operations a nanosecond in contractions
    stream_gemm_rate: float  # the same in products inside streaming kernels
    narrow_gain: float  # how many times as quick either is where factors have 16 bits
    stream_loss: float  # of a product's time: what it takes longer in tiles of two products
    elementwise_rate: float  # additions a nanosecond in maps and rows
    stream_rate: float  # the same in blocks of a streaming kernel
    overlap: float  # of the smaller of memory and arithmetic, what the larger hides
    pack_rate: float  # numbers a nanosecond that are packed for contractions
    compile_ns: float  # of a kernel that is compiled, spread over the runs it will have
    stream_compile_ns: float  # the same of a streaming kernel
    part_ns: float  # of a part of a concatenation that a kernel writes out, spread in the same way
    proposal_ns: float  # of a fused kernel that is priced, spread in the same way
    body_runs: float  # of a kernel in the body of a loop, for one of a kernel outside
    spill_ns_per_byte: float  # of an intermediate beyond its share of the caches
    strided_rate: float  # numbers a nanosecond that are read one by one
    blas_rate: float  # operations a nanosecond in contractions by the BLAS of NumPy
    large_bytes: float  # of an intermediate that is large
    scarce_ns_per_byte: float  # beyond: worth a third more arithmetic not to keep it
    avoidable_ns_per_byte: float  # of an intermediate that a stream does without
    law_savings: float  # of elementwise work: more than laws take out of a stream

    def quantised(self) -> MachineModel:
        """The same to two digits."""
        return replace(self, **{f.name: two_digits(getattr(self, f.name)) for f in fields(self)})

    def in_body(self) -> MachineModel:
        """The same for the body of a loop: what is compiled once has more runs."""
        runs = self.body_runs
        return replace(
            self, compile_ns=self.compile_ns / runs, part_ns=self.part_ns / runs,
            stream_compile_ns=self.stream_compile_ns / runs, proposal_ns=self.proposal_ns / runs,
        )  # fmt: skip

    def compile_time(self, kind: str) -> float:
        """What it costs to compile a kernel."""
        return self.stream_compile_ns if kind == "fold" else self.compile_ns

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


@dataclass(frozen=True, slots=True)
class WorkModel:
    """How work is counted, whatever the machine."""

    moved_views: int = 64  # ways of moving a value that are told apart
    gather_run: int = 16  # elements next to each other that are gathered as one
    gather_ops: int = 50  # additions that an element takes that is gathered alone
    gather_run_ops: int = 8  # the same in a run
    picked_share: int = 4  # a choice of elements leaves no more than one in so many
    mask_block: int = 128  # elements of a streamed axis that a mask leaves out together
    choice_ops: int = 2  # additions that a number takes that is one of several
    short_run: int = 8  # elements next to each other: fewer fill no vector
    interleave: int = 4  # rows of memory that are shuffled into one row of results


COUNTING = WorkModel()


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does, counted."""

    bytes: int  # read and written, each value once
    products: int  # operations in contractions
    elementwise: int  # all others, in additions
    packed: int  # numbers of the factors of contractions
    blocks: int = 1  # along an axis that conditions on indices are about
    after: int = 0  # of elementwise work, what comes after the last sums
    gathered: int = 0  # numbers that are read one by one, as no run of them fills a vector
    narrow: int = 0  # of products, those of factors of 16 bits

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes + other.bytes, self.products + other.products,
            self.elementwise + other.elementwise, self.packed + other.packed,
            max(self.blocks, other.blocks), self.after + other.after,
            self.gathered + other.gathered, self.narrow + other.narrow,
        )  # fmt: skip


NO_WORK = Work(0, 0, 0, 0)


_known: WeakKeyDictionary[Node, Work] = WeakKeyDictionary()


def work_of(kernel: Kernel) -> Work:
    """The work of a kernel; kept for every body."""
    found = _known.get(kernel.body)
    if found is None:
        found = _known[kernel.body] = _work(kernel)
    return found


def _work(kernel: Kernel) -> Work:
    body = kernel.body
    order = toposort([body])
    inside: set[Node] = set()
    products = packed = narrow = 0
    for node in order:
        if node.op is REDUCE and is_contraction(node):
            products += 2 * elements(node.src[0].shape)
            if all(map(_has_16_bits, node.src[0].src)):
                narrow += 2 * elements(node.src[0].shape)
            packed += sum([_held_elements(s) for s in node.src[0].src])
            inside.add(node.src[0])
    params = [node for node in order if node.op is PARAM]
    moved = sum([elements(n.shape) * n.dtype.itemsize for n in (*params, *body.src)])
    index = index_work(kernel, order, COUNTING.short_run, COUNTING.interleave)
    simple = _simple(order, inside) + COUNTING.choice_ops * index.chosen
    if only_chooses(order):  # each part is a copy: nothing is asked for each element
        simple = sum([elements(r.shape) for r in body.src])
    blocks = _blocks(order)
    return Work(moved, products, simple, packed, blocks, 0, index.gathered, narrow)


def _held_elements(factor: Node) -> int:
    """The numbers of a factor that are put in order: windows are read where their image lies."""
    return min(own_elements(factor), elements(unmoved(factor).shape))


def _has_16_bits(factor: Node) -> bool:
    """True if every number of a factor is one of 16 bits, however wide it is held."""
    while factor.op.family == "movement" or factor.op is CONTIGUOUS:
        factor = factor.src[0]
    found = factor.src[0].dtype if factor.op is CAST else factor.dtype
    return found.is_inexact and found.itemsize == 2


def product_work(work: Work, table: CostTable) -> float:
    """Operations in contractions, as if all were of factors of 32 bits."""
    return work.products - work.narrow * (1 - 1 / table.narrow_gain)


def _simple(order: Sequence[Node], inside: Set[Node]) -> int:
    """All work but that of contractions, whose products are `inside`, in additions."""
    views, total = _views(order), 0
    added = {n.src[0] for n in order if n.op is REDUCE and n.arg[0] == "add"}
    free = inside | {n for n in added if n.op is MUL}  # one instruction multiplies and adds
    for node in order:
        if node.op is REDUCE and node.src[0] not in inside:
            total += round(views[node] * elements(node.src[0].shape))
        elif node.op is GATHER:
            alone = elements(node.shape[node.arg + 1 :]) < COUNTING.gather_run
            each = COUNTING.gather_ops if alone else COUNTING.gather_run_ops
            total += each * elements(node.shape)
        elif node.op.family == "elementwise" and node not in free:
            total += round(views[node] * node.op.cost * elements(node.shape))
        elif node.op is CONTIGUOUS:
            total += elements(node.shape)
    return total


def _views(order: Sequence[Node]) -> dict[Node, float]:
    """How often each node is computed: anew for every way it is moved, and for every window."""
    if not any([node.op in (SHRINK, PAD, FLIP, WINDOW) for node in order]):
        return dict.fromkeys(order, 1.0)
    views: dict[Node, dict[tuple[Node, ...], float]] = {node: {} for node in order}
    views[order[-1]][()] = 1.0
    for node in reversed(order):
        moves = node.op in (SHRINK, PAD, FLIP)
        times = 1.0
        if node.op is WINDOW:
            times = max(1.0, elements(node.shape) / max(1, elements(node.src[0].shape)))
        for source in node.src:
            mine = views[source]
            if len(mine) < COUNTING.moved_views:
                for view, count in views[node].items():
                    further = (*view, node) if moves else view
                    mine[further] = max(mine.get(further, 0), count * times)
    return {node: sum(found.values()) for node, found in views.items()}


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
    return max(1, longest // COUNTING.mask_block)


def time_of(kernel: Kernel, table: CostTable) -> float:
    """Nanoseconds that a kernel takes."""
    w = work_of(kernel)
    fold = kernel.kind == "fold"
    memory = memory_time(w.bytes, table)
    rate = table.stream_gemm_rate if fold else table.gemm_rate
    arithmetic = product_work(w, table) / rate + w.elementwise / (
        table.stream_rate if fold else table.elementwise_rate
    )
    if not fold:
        arithmetic += w.packed / table.pack_rate + w.gathered / table.strided_rate
    return both(memory, arithmetic, table)


def memory_time(moved: float, table: CostTable) -> float:
    """Nanoseconds to move so many bytes: what exceeds the caches comes from DRAM."""
    cached = min(moved, table.cache_bytes)
    return cached / table.cache_bw + (moved - cached) / table.dram_bw


def spill_time(sizes: Iterable[int], table: CostTable, avoidable: Iterable[int] = ()) -> float:
    """The price of values of so many bytes that stay in memory between kernels.

    A quarter of the caches is free: other values are there at the same time. `avoidable` are the
    sizes of values that a stream does without: of plans that are about as quick the one that keeps
    far less wins.
    """
    spilled, scarce = 0.0, 0.0
    for size in sizes:
        spilled += max(0.0, size - table.cache_bytes / 4)
        scarce += max(0.0, size - table.large_bytes)
    spill = table.spill_ns_per_byte * spilled + table.scarce_ns_per_byte * scarce
    return spill + table.avoidable_ns_per_byte * sum(avoidable)


def both(memory: float, arithmetic: float, table: CostTable) -> float:
    """The time of a kernel from that of its memory and of its arithmetic."""
    return table.launch_ns + max(memory, arithmetic) + (1 - table.overlap) * min(memory, arithmetic)


def least_time(work: Work, table: CostTable) -> float:
    """What a fold with such work should not go below.

    Laws may save some of the elementwise work, a condition on indices half of the blocks. Rows
    without a product are no quicker as a fold than they are as rows.
    """
    inside, after = max(0, work.elementwise - work.after), work.after / table.elementwise_rate
    simple = (
        (1 - table.law_savings) * inside / table.stream_rate
        if work.products
        else inside / table.elementwise_rate
    )
    arithmetic = (product_work(work, table) / table.stream_gemm_rate + simple) * (
        1 + 1 / work.blocks
    ) / 2 + after
    return both(work.bytes / max(table.cache_bw, table.dram_bw), arithmetic, table)


def total(kernels: Iterable[Kernel], table: CostTable) -> float:
    """Nanoseconds that kernels take one after the other."""
    return sum([time_of(kernel, table) for kernel in kernels])
