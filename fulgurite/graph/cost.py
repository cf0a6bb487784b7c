"""What a kernel costs: a roofline over bytes moved and operations, from a small table.

In: a kernel and the table. Out: nanoseconds of the whole machine, good enough to rank kernels. The
time of a kernel is its launch plus the larger of the time its memory takes and the time its
arithmetic takes, at the efficiency of its kind, over how busy its units of work keep the machine.
The table that ships with the package is rounded to two digits, so plans do not depend on the day;
`fulgurite tune` measures this machine and writes another one, whose digest is part of every key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from math import floor, log10, prod
from weakref import WeakKeyDictionary

from ..core.digest import blake2b
from ..core.node import Node, Shape, toposort
from ..core.ops.effect import CONTIGUOUS
from ..core.ops.elementwise import MUL
from ..core.ops.indexing import GATHER
from ..core.ops.leaf import CONST, PARAM
from ..core.ops.movement import EXPAND
from ..core.ops.reduce import REDUCE
from ..core.shape import upper
from .kernel import Kernel


@dataclass(frozen=True, slots=True)
class CostTable:
    """Rates of a machine; times are in nanoseconds."""

    launch: float = 1500.0  # of a kernel: calling it, waking threads, waiting for the last
    near: float = 60.0  # bytes a nanosecond within caches
    far: float = 16.0  # bytes a nanosecond from memory
    cache: float = 2e6  # bytes that stay in caches from kernel to kernel
    products: float = 230.0  # operations a nanosecond in contractions
    folded: float = 220.0  # the same in products inside folds
    simple: float = 34.0  # additions a nanosecond in maps and rows
    walked: float = 34.0  # the same in blocks of a fold
    hidden: float = 0.5  # of the smaller of memory and arithmetic, what the larger hides
    packed: float = 4.0  # numbers a nanosecond that are put in order for contractions
    made: float = 20_000.0  # of a kernel that is compiled, spread over the runs it will have
    kept: float = 0.15  # of a byte that is kept between kernels: touched, and not there for others
    strided: float = 1.2  # numbers a nanosecond that are read one by one
    library: float = 240.0  # operations a nanosecond in contractions by the BLAS that NumPy carries

    def quantised(self) -> CostTable:
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


SHIPPED = CostTable().quantised()


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does, counted."""

    bytes: int  # read and written, each value once
    products: int  # operations in contractions
    simple: int  # all others, in additions
    packed: int  # numbers of the factors of contractions

    def __add__(self, other: Work) -> Work:
        return Work(*[getattr(self, n) + getattr(other, n) for n in self.__slots__])


def elements(shape: Shape) -> int:
    """How many elements are laid out for a shape."""
    return prod([n if isinstance(n, int) else upper(n) for n in shape])


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
            packed += sum([_own(s) for s in node.src[0].src])
            inside.add(node.src[0])
    for node in order:
        if node.op is PARAM:
            moved += elements(node.shape) * node.dtype.itemsize
        elif node.op is REDUCE and node.src[0] not in inside:
            simple += elements(node.src[0].shape)
        elif node.op is GATHER:
            simple += 8 * elements(node.shape)
        elif node.op.family == "elementwise" and node not in inside:
            simple += node.op.cost * elements(node.shape)
        elif node.op is CONTIGUOUS:
            simple += elements(node.shape)
    moved += sum([elements(r.shape) * r.dtype.itemsize for r in body.src])
    return Work(moved, products, simple, packed)


def _own(node: Node) -> int:
    """The elements of a factor before it is repeated."""
    while node.op is EXPAND:
        node = node.src[0]
    return elements(node.shape)


def is_contraction(node: Node) -> bool:
    """Is it a sum of a product of two values that are both repeated along some axis?"""
    source = node.src[0]
    if node.arg[0] != "add" or source.op is not MUL:
        return False
    whole = elements(source.shape)
    return all(_own(s) < whole for s in source.src) and not any(
        s.op is CONST for s in source.src
    )  # fmt: skip


def time_of(kernel: Kernel, table: CostTable = SHIPPED) -> float:
    """Nanoseconds that a kernel takes."""
    w = work_of(kernel)
    fold = kernel.kind == "fold"
    memory = w.bytes / (table.near if w.bytes <= table.cache else table.far)
    rate = table.folded if fold else table.products
    arithmetic = w.products / rate + w.simple / (table.walked if fold else table.simple)
    if not fold:
        arithmetic += w.packed / table.packed
    return both(memory, arithmetic, table)


def both(memory: float, arithmetic: float, table: CostTable) -> float:
    """The time of a kernel from that of its memory and of its arithmetic."""
    return table.launch + max(memory, arithmetic) + (1 - table.hidden) * min(memory, arithmetic)


def least_time(work: Work, table: CostTable = SHIPPED) -> float:
    """What no kernel with such work goes below.

    Laws may save what is simple, and a condition on indices may leave out half of the products.
    """
    rate = max(table.products, table.folded)
    return table.launch + max(work.bytes / max(table.near, table.far), work.products / rate / 2)


def total(kernels: Iterable[Kernel], table: CostTable = SHIPPED) -> float:
    """Nanoseconds that kernels take one after the other."""
    return sum([time_of(kernel, table) for kernel in kernels])
