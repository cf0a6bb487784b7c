"""GEMM problems: which kernels are C = epilogue(Σ_k A·B), and how their operands lie in memory.

In: an `IndexKernel`. Out: a `GemmProblem`, or None: the reduction, its two operands, and the axes
by role: batch (of both operands), rows (M: of the left one only; none where it is a vector),
columns (N: of the right one only, along which results are contiguous) and folded ones (K). An
`Operand` says which way memory runs. It is plain data from sizes, steps and dtypes: what a machine
makes of it (packing, tiles, micro-kernels) is the business of its code generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from ...core.dtype import DType
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, toposort
from ...core.ops.elementwise import CAST, MUL
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...core.symbolic.sym import varies
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices
from ..transform.merge_axes import collect
from .analysis import Line, Part, line_of, ordered, reached, steps_of


@dataclass(frozen=True, slots=True, eq=False)
class GemmProblem:
    """A sum over a product, and the role of every axis."""

    order: tuple[Node, ...]  # of the whole body, sources first
    free: dict[Node, frozenset[int]]
    sizes: tuple[int, ...]
    stores: tuple[Node, ...]
    fold: Node
    left: Node
    right: Node
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    folded: tuple[int, ...]
    dtypes: tuple[DType, ...] = ()  # of the kernel's params

    def count(self, axes: Iterable[int]) -> int:
        """How many steps some axes have together."""
        return prod([self.sizes[a] for a in axes])

    @property
    def batches(self) -> int:
        """How many matrix products there are."""
        return self.count(self.batch)

    @property
    def m(self) -> int:
        """Rows of the left operand and of the result."""
        return self.count(self.rows)

    @property
    def n(self) -> int:
        """Columns of the right operand and of the result."""
        return self.count(self.columns)

    @property
    def k(self) -> int:
        """Steps of the sum."""
        return self.count(self.folded)

    @property
    def epilogue(self) -> Part:
        """What is computed from the sum, down to the stores."""
        return part(self, self.stores, self.fold)

    def transposed(self) -> GemmProblem:
        """The same with both operands swapped: Cᵀ = Bᵀ·Aᵀ."""
        return replace(
            self, left=self.right, right=self.left, rows=self.columns, columns=self.rows,
            folded=_k_order(frozenset(self.folded), self.right),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """The axes of a sum over a product of two operands, by role."""

    left: frozenset[int]  # of the first operand only
    right: frozenset[int]
    batch: frozenset[int]  # of both
    folded: frozenset[int]
    shared: frozenset[int]  # folded axes of both


def product_axes(fold: Node, free: Mapping[Node, frozenset[int]]) -> ProductAxes | None:
    """The axes of a FOLD over a product, if operands differ and share some of the folded axes."""
    if len(fold.src[0].src) != 2:
        return None
    first, second = [free[operand] for operand in fold.src[0].src]
    both, folded = first & second, frozenset(fold.arg[1])
    if not folded <= first | second or not folded & both:
        return None
    left, right = first - both - folded, second - both - folded
    return ProductAxes(left, right, both - folded, folded, folded & both)


def find_gemm(kernel: IndexKernel, dtypes: Sequence[DType] = ()) -> GemmProblem | None:
    """The GEMM that a kernel is, if it is one: columns are what results are contiguous along."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    if len(sizes) != len(kernel.axes) or not all(sizes):
        return None
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    stores = kernel.body.src
    fold = _sum_of_products(order, stores)
    if fold is None:
        return None
    free = free_axes(order)
    axes = product_axes(fold, free)
    if axes is None or not axes.left | axes.right:
        return None
    if any(free[s] != axes.left | axes.right | axes.batch for s in stores):
        return None
    sides = list(zip(fold.src[0].src, (axes.left, axes.right), strict=True))
    sides.sort(key=lambda side: _contiguous_stores(side[1], stores, sizes))
    (left, rows), (right, columns) = sides
    steps = steps_of(stores)
    return GemmProblem(
        order=tuple(order), free=free, sizes=tuple(sizes), stores=tuple(stores),
        fold=fold, left=left, right=right,
        batch=ordered(axes.batch, steps), rows=ordered(rows, steps),
        columns=ordered(columns, steps), folded=_k_order(axes.folded, left), dtypes=tuple(dtypes),
    )  # fmt: skip


def _sum_of_products(order: Sequence[Node], stores: Sequence[Node]) -> Node | None:
    """The one reduction of a body that is a sum over a product and plain stores."""
    folds = [n for n in order if n.op is FOLD]
    if len(folds) != 1 or any(n.op in (RUN, ORDER) or _checks_dynamic_size(n) for n in order):
        return None
    if not all(s.op is STORE and s.arg[2] == "set" and len(s.src) == 1 for s in stores):
        return None
    fold = folds[0]
    is_sum = fold.arg[0] == "add" and fold.src[0].op is MUL and fold.dtype.kind in "iuf"
    return fold if is_sum else None


def _checks_dynamic_size(node: Node) -> bool:
    """True if it is an index checked against a size that only a run knows."""
    return node.op is GUARD and len(node.src) > 1


def _k_order(folded: frozenset[int], left: Node) -> tuple[int, ...]:
    """The folded axes in the order in which the left operand has them in memory."""
    return ordered(folded, steps_of([n for n in toposort([left]) if n.op is LOAD]))


def _contiguous_stores(
    axes: frozenset[int], stores: Sequence[Node], sizes: Sequence[int]
) -> tuple[int, int]:
    """How many stores are contiguous along some axes, and how many steps the axes have."""
    along = sum((a, 1) in s.arg[1][1] for s in stores for a in axes)
    return along, prod([sizes[a] for a in axes])


def part(c: GemmProblem, roots: Sequence[Node], stop: Node | None = None) -> Part:
    """The part that computes some nodes, not going below `stop`."""
    return part_of(reached(roots, (stop,)), c.sizes, (c.batch, c.rows, c.columns, c.folded))


def part_of(nodes: Iterable[Node], sizes: Sequence[int], roles: Sequence[Sequence[int]]) -> Part:
    """The part that some nodes are; axes in the roles of batch, rows, columns and folded ones."""
    nodes, absorbed = tuple(nodes), set[int]()
    found: list[dict[int, int]] = []
    for index in [index for node in nodes for index in indices(node)]:
        collect(index, found)
    batch, rows, columns, folded = [line_of(axes, sizes, found, absorbed) for axes in roles]
    return Part(nodes, batch, rows, columns, folded, frozenset(absorbed))


def batch_outer_columns(c: GemmProblem, least: int) -> GemmProblem:
    """The same with columns that results have contiguous; outer ones become a batch.

    Images of a convolution are then products of their own, if each has `least` columns. The left
    operand must need no packing, which would be done again for each of them.
    """
    line = c.epilogue.columns
    if len(line.axes) == 1 or line.sizes[-1] < least:
        return c
    outer = tuple(a for a in c.columns if a not in line.inner)
    inner = tuple(a for a in c.columns if a in line.inner)
    return replace(c, batch=(*c.batch, *outer), columns=inner)


# --- operands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: its part of the kernel, and how it lies in memory and in the packed block."""

    name: str  # left or right
    root: Node
    part: Part
    own: Line  # rows of the left operand, columns of the right one
    along: str  # which line lanes run along: own or folded
    k_major: bool = False  # is a right operand packed as rows of k, like a left one?

    @property
    def is_transposed(self) -> bool:
        """True if memory runs across the packed rows, so that packing transposes it."""
        return self.along != ("folded" if self.name == "left" or self.k_major else "own")

    @property
    def is_dense(self) -> bool:
        """True if it is a matrix in memory, contiguous along one of its two lines."""
        return is_dense(self.part, self.root, self.own, self.along)


def operand(c: GemmProblem, name: str, min_run: int, as_bytes: bool = False) -> Operand:
    """One of the two operands; for dot products of bytes it is the bytes, packed one by one."""
    root = c.left if name == "left" else c.right
    root = root.src[0] if as_bytes else read(c, root)
    found = part(c, [root])
    own = found.rows if name == "left" else found.columns
    along = contiguous_line(found, own, min_run)
    if along == "none" or as_bytes:
        along = "folded" if name == "left" else "own"
    return Operand(name, root, found, own, along)


def read(c: GemmProblem, root: Node) -> Node:
    """What an operand reads, if it is memory that is widened to the sum's dtype when it is read.

    Whole numbers wrap, so that the way from a narrow one to the sum's dtype makes no difference.
    """
    if root.op is not CAST or root.dtype is not c.fold.dtype or root.src[0].op is not LOAD:
        return root
    source, summed = root.src[0].dtype, root.dtype
    exact = source.kind in ("iuf" if summed.kind == "f" else "iu") and source.bits <= summed.bits
    return root.src[0] if exact and not summed.is_small_float else root


def contiguous_line(p: Part, own: Line, min_run: int) -> str:
    """Along which line an operand's memory is contiguous: `own`, `folded`, or `none`."""
    loads = [node for node in p.nodes if node.op is LOAD]
    score = {"own": 0, "folded": 0}
    is_long = False  # a size that varies is: it may be small now and then
    for node in loads:
        for name, line in (("own", own), ("folded", p.folded)):
            if line.axes and (line.axes[-1], 1) in node.arg[1][1]:
                score[name] += line.sizes[-1]
                is_long = is_long or varies(line.sizes[-1])
    if not is_long and max(score.values()) < (min_run if len(p.nodes) > 1 else 1):
        return "none"  # a few elements at a time are no better than one
    return "own" if score["own"] >= score["folded"] else "folded"


def is_dense(p: Part, root: Node, own: Line, along: str) -> bool:
    """True if an operand is one load, with one axis each way, contiguous along the right one."""
    if root.op is not LOAD or root.src or root.arg[2]:
        return False
    if len(own.axes) > 1 or len(p.folded.axes) != 1:
        return False
    terms = root.arg[1][1]
    if not all(isinstance(atom, int) for atom, _ in terms):
        return False
    axes = own.axes if along == "own" else p.folded.axes
    return any((axis, 1) in terms for axis in axes)
