"""Products for a vendor's library (cuBLASLt): what of a kernel is A·B in memory, and what is left.

In: a kernel. Out: a `LibraryKernel`, or None where the library could not be told: the product as
matrices by columns with their strides, as BLAS has them, and the kernel of the epilogue, if there
is more to do than to store the product. The value that both share is the product in the dtype that
the graph rounds it to, so that an epilogue of its own computes what a fused one does. Plain data:
who calls the library is `runtime/cuda/cublaslt.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core.dtype import bfloat16, float32, float64
from ...core.node import Node, make, readers_of, toposort
from ...core.ops.elementwise import CAST, MUL
from ...core.ops.index import LOAD
from ...core.ops.leaf import PARAM, SINK, VAR, param
from ...core.ops.movement import RESHAPE
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import substitute
from ...graph.ir.kernel import Kernel, param_dtypes
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import lower_kernel
from ...graph.ir.reshape_groups import CannotLower
from ...graph.passes.materialize_operands import float8_factors
from ...kernel.contract.problem import GemmProblem, find_gemm
from ...kernel.transform.drop_implied_masks import drop_implied_masks
from ...kernel.transform.merge_axes import merge_axes
from .source import ROOM_ALIGNMENT

_SMALL = ("bfloat16", "float16")
_BYTES = ("float8_e4m3fn", "float8_e5m2")


class Matrix(NamedTuple):
    """A matrix by columns, in a param or a temporary; those of a batch follow each other."""

    param: int  # of the product's kernel
    offset: int  # bytes
    dtype: str
    rows: int
    columns: int
    step: int  # from column to column (the leading dimension)
    stride: int = 0  # from matrix to matrix


class Gemm(NamedTuple):
    """result = op(left)·op(right), by columns: what the library is asked for."""

    left: Matrix
    right: Matrix
    result: Matrix
    transposed: tuple[bool, bool]  # are operands transposed?
    batches: int
    precision: str  # of the sum: float32, tf32 or float64

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows and columns of the result by columns, and the depth of the sum."""
        depth = self.left.rows if self.transposed[0] else self.left.columns
        return self.result.rows, self.result.columns, depth

    @property
    def is_float8(self) -> bool:
        """True if its operands have 8 bits."""
        return self.left.dtype.startswith("float8")

    @staticmethod
    def restored(dumped: Sequence[Any]) -> Gemm:
        """One that went through JSON."""
        first, second, third, transposed, batches, precision = dumped
        left, right, result = [Matrix(*one) for one in (first, second, third)]
        return Gemm(left, right, result, (transposed[0], transposed[1]), batches, precision)


class LibraryKernel(NamedTuple):
    """A kernel as a product for the library, and an epilogue of our own."""

    gemm: Gemm
    product: Kernel  # the same product as a kernel of ours
    reads: tuple[int, ...]  # the kernel's params that the product reads
    rest: Kernel | None  # reads the product; None: that is the result
    rest_reads: tuple[int, ...] = ()  # params that the rest reads; -1 is the product
    temporary: int = 0  # bytes of a product that is no result


def find_library(kernel: Kernel, precision: str = "float32") -> LibraryKernel | None:
    """A kernel as the library's product, if it is one; `precision` is that of float32's."""
    value = _product_value(kernel)
    if value is None:
        return None
    body, reads = _renumbered(SINK(value))
    product = Kernel(KernelKind.CONTRACT, body, len(reads))
    roots = kernel.body.src
    if roots == (value,):
        gemm = find_gemm_call(product, precision)
        return None if gemm is None else LibraryKernel(gemm, product, reads, None)
    gemm = find_gemm_call(product, precision)
    if gemm is None:
        return None
    shared = param(kernel.inputs, value.shape, value.dtype, None)
    rest, others = _renumbered(substitute(kernel.body, {value: shared}, walk=True))
    if any(n.op is REDUCE for n in toposort([rest])):
        return None
    places = tuple([-1 if number == kernel.inputs else number for number in others])
    size = gemm.batches * gemm.result.rows * gemm.result.columns * value.dtype.itemsize
    nbytes = -(-size // ROOM_ALIGNMENT) * ROOM_ALIGNMENT
    epilogue = Kernel(KernelKind.MAP, rest, len(others))
    return LibraryKernel(gemm, product, reads, epilogue, places, nbytes)


def float8_gemm(fold: Node) -> Gemm | None:
    """A sum of products of float8 as the library's product, of which the result is rounded."""
    values = list(dict.fromkeys(float8_factors(fold)))
    if not values or not all([isinstance(n, int) for v in values for n in v.shape]):
        return None
    params = {v: param(i, v.shape, v.dtype, None) for i, v in enumerate(values)}
    rounded = CAST(substitute(fold, params, walk=True), arg=bfloat16)
    return find_gemm_call(Kernel(KernelKind.CONTRACT, SINK(rounded), len(values)), "float32")


def _product_value(kernel: Kernel) -> Node | None:
    """The value of the one sum of products, rounded if that is all that is done with the sum."""
    order = toposort([kernel.body])
    sums = [n for n in order if n.op is REDUCE]
    if len(sums) != 1 or sums[0].arg[0] != "add" or sums[0].src[0].op is not MUL:
        return None
    if any(n.op is VAR for n in order):
        return None
    users, value = readers_of(order), sums[0]
    while True:
        above = users[value]
        if len(above) != 1 or above[0].op not in (RESHAPE, CAST):
            return value
        if above[0].op is CAST:
            return above[0] if above[0].dtype.name in _SMALL else value
        value = above[0]


def _renumbered(body: Node) -> tuple[Node, tuple[int, ...]]:
    """A body whose params are numbered without gaps, and which they were."""
    known = [n for n in toposort([body]) if n.op is PARAM]
    numbers = tuple(sorted({n.arg[0] for n in known}))
    instead = {n: make(PARAM, n.dtype, n.src, (numbers.index(n.arg[0]), *n.arg[1:])) for n in known}
    return substitute(body, instead, walk=True), numbers


def find_gemm_call(product: Kernel, precision: str) -> Gemm | None:
    """A kernel that stores nothing but a product, in the words of the library."""
    try:
        kernel = merge_axes(drop_implied_masks(lower_kernel(product).indexed))
    except CannotLower:
        return None
    problem = find_gemm(kernel, param_dtypes(product))
    if problem is None or len(problem.stores) != 1:
        return None
    roles = problem.rows, problem.columns, problem.folded
    if max(map(len, (*roles, problem.batch))) > 1 or len(problem.folded) != 1:
        return None
    store = problem.stores[0]
    made = problem.dtypes[store.arg[0]].name
    m, n, k, batch = [axes[0] if axes else -1 for axes in (*roles, problem.batch)]
    right = _operand(problem, problem.right, n, k)
    left = _operand(problem, problem.left, m, k)
    result = _matrix(problem, store, made, n, m, batch)
    if left is None or right is None or result is None:
        return None
    if problem.batch and not result.stride:
        return None
    (first, first_transposed), (second, second_transposed) = right, left
    how = _precision(first.dtype, second.dtype, made, problem, precision)
    if how is None:
        return None
    # by columns the result is the transposed one: its left operand is our right one
    transposed = first_transposed, not second_transposed
    return Gemm(first, second, result, transposed, problem.batches, how)


def _precision(
    left: str, right: str, made: str, problem: GemmProblem, precision: str
) -> str | None:
    """What the library sums in; None if it has no such product."""
    fold = problem.fold.dtype
    if fold is float64:
        return "float64" if left == right == made == "float64" else None
    if fold is not float32:
        return None
    if left == right == "float32":
        return precision if made == "float32" else None
    if left == right and left in _SMALL:
        return "float32" if made in (left, "float32") else None
    if left in _BYTES and right in _BYTES and "float8_e4m3fn" in (left, right):
        return "float32" if made in _SMALL else None  # its sums keep fewer bits than float32's
    return None


def _operand(problem: GemmProblem, factor: Node, own: int, k: int) -> tuple[Matrix, bool] | None:
    """An operand by columns, and whether those run along K: memory as it is."""
    load = factor
    while (
        load.op is CAST
        and load.src[0].dtype.kind == "f"
        and load.src[0].dtype.bits < load.dtype.bits
    ):
        load = load.src[0]  # which widens: exact
    if load.op is not LOAD or load.arg[2]:
        return None
    batch = problem.batch[0] if problem.batch else -1
    for inner, outer in ((k, own), (own, k)):
        found = _matrix(problem, load, load.dtype.name, inner, outer, batch)
        if found is not None:
            return found, inner == k
    return None


def _matrix(
    problem: GemmProblem, node: Node, dtype: str, inner: int, outer: int, batch: int
) -> Matrix | None:
    """The memory of a load or store as a matrix whose columns run along one axis."""
    number, (start, terms) = node.arg[:2]
    steps: Mapping[int, int] = {a: step for a, step in terms if isinstance(a, int)}
    if len(steps) < len(terms) or not steps.keys() <= {inner, outer, batch}:
        return None
    rows, columns = [problem.sizes[a] if a >= 0 else 1 for a in (inner, outer)]
    if rows > 1 and steps.get(inner) != 1:
        return None
    step = steps.get(outer, 0) if columns > 1 else rows
    stride = steps.get(batch, 0)
    if step < rows or stride < 0 or start < 0:
        return None
    width = problem.dtypes[number].itemsize
    return Matrix(number, start * width, dtype, rows, columns, step, stride)
