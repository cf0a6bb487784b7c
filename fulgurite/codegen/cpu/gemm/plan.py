"""GEMM plans: the strategy, tile sizes and routes that were chosen, as numbers that print.

In: nothing; `strategies.plan_gemm` makes them. Out: `GemmPlan`, the argument of the template. With
the problem it was made for it says everything that the text of a kernel depends on; `Gemm` is that
problem with its operands as a strategy reads them.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import cached_property

from ....core.dtype import DType, bfloat16, float32, float64, int8, int32, int64, uint8
from ....core.lazy_dataclass import dataclass
from ....core.ops.elementwise import CAST
from ....core.ops.index import LOAD
from ....core.symbolic.sym import plain, varies
from ....kernel.contract.analysis import Block, Part
from ....kernel.contract.im2col import View, im2col_view, with_fixed_axes
from ....kernel.contract.problem import GemmProblem, Operand, batch_outer_columns, read
from ..llvm.emitter import scalar_type
from ..target import Target
from ..tiling import GEMM
from .microkernel import Registers
from .pack import side
from .tile_sizes import TileProblem, Tiles


class GemmKind(StrEnum):
    """How the sums of a GEMM are computed."""

    DIRECT_DOT = "direct convolution, lanes along k"
    DIRECT = "direct convolution"
    GEMV_DOT = "GEMV, dot products"
    GEMV_AXPY = "GEMV, sums of rows"
    SKINNY = "skinny GEMM, lanes along k"
    DENSE = "GEMM of dense operands"
    IMPLICIT = "implicit GEMM"
    BYTES = "packed GEMM of bytes"
    PACKED = "packed GEMM"

    @property
    def is_direct(self) -> bool:
        """True if nothing is packed: windows are swept over memory."""
        return self in (GemmKind.DIRECT, GemmKind.DIRECT_DOT)

    @property
    def reads_views(self) -> bool:
        """True if library functions read both operands through im2col descriptors."""
        return self.is_direct or self is GemmKind.IMPLICIT

    @property
    def reads_matrices(self) -> bool:
        """True if library functions read both operands as dense matrices."""
        return self in (GemmKind.DENSE, GemmKind.SKINNY)

    @property
    def in_library(self) -> bool:
        """True if the library has all but the epilogue."""
        return self.reads_views or self.reads_matrices


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """What was chosen for one GEMM on one machine."""

    kind: GemmKind
    tiles: Tiles
    registers: Registers
    cost: float  # in vector instructions, of all products of the batch


@dataclass(frozen=True)
class Gemm:
    """A problem with its operands as a kind of kernel reads them."""

    problem: GemmProblem
    registers: Registers
    left: Operand
    right: Operand
    left_view: View | None
    right_view: View | None
    epilogue: Part
    has_images: bool  # were outer columns made a batch, each image a product of its own?
    result_runs: int  # of results that lie apart, if more than 1
    kind: GemmKind = GemmKind.PACKED
    prepacked: bool = False  # is the right operand packed before any run?

    # --- sizes -----------------------------------------------------------------------------------

    @cached_property
    def batch(self) -> int:
        return self.problem.batches

    @cached_property
    def rows(self) -> int:
        return self.problem.m

    @cached_property
    def columns(self) -> int:
        return self.problem.n

    @cached_property
    def steps(self) -> int:
        """Steps of k."""
        return self.problem.k

    @property
    def uses_vnni(self) -> bool:
        """True if bytes are multiplied by fours (VNNI)."""
        return self.registers.packs_vnni and not self.kind.is_direct

    @property
    def depth(self) -> int:
        """Steps of the micro-kernel over all of k."""
        group = 4 if self.uses_vnni else 2 if self.registers.pairs else 1
        return -(-self.steps // group) if group > 1 else self.steps

    @property
    def target(self) -> Target:
        return self.registers.target

    @property
    def has_masks(self) -> bool:
        """True if part of a vector is loaded in one instruction."""
        return self.target.has_masks

    @property
    def is_vector(self) -> bool:
        """True if the left operand has no rows."""
        return not self.problem.rows

    @property
    def is_low(self) -> bool:
        """True if there is one row, or a few with few steps of k, so that no packing pays."""
        return self.rows <= GEMM.few_rows and (self.is_vector or self.steps <= GEMM.direct_k_steps)

    @property
    def varies(self) -> bool:
        """True if one of its sizes is given at run time."""
        return any(map(varies, (self.batch, self.rows, self.columns, self.steps)))

    def at_hints(self) -> Gemm:
        """The same with numbers for sizes that vary, to choose by."""
        found = replace(self)
        for name in ("batch", "rows", "columns", "steps"):
            found.__dict__[name] = plain(getattr(self, name))
        return found

    # --- operands --------------------------------------------------------------------------------

    def view(self, s: Operand) -> View | None:
        """The im2col descriptor of an operand, if it has one."""
        return self.left_view if s.name == "left" else self.right_view

    @cached_property
    def dense(self) -> tuple[bool, bool]:
        """Which operands could be multiplied in place: matrices of what is accumulated in, but for
        the functions of GEMV, which convert what they read."""

        def is_dense(s: Operand) -> bool:
            if self.registers.packs_vnni or not s.is_dense:
                return False
            dtype = self.stored(s)
            if self.registers.pairs:
                return dtype is bfloat16
            return self.is_accumulated(dtype) or (self.is_vector and dtype.kind in "iuf")

        return is_dense(self.left), is_dense(self.right)

    def is_dense(self, s: Operand) -> bool:
        """True if an operand could be multiplied in place."""
        return self.dense[s.name == "right"]

    @property
    def is_right_readable(self) -> bool:
        """True if a micro-kernel can read the right operand in place, if its size allows."""
        readable = self.has_masks and not self.registers.pairs
        return not self.right.is_transposed and readable and self.is_dense(self.right)

    @property
    def has_k_contiguous_columns(self) -> bool:
        """True if memory has the columns along k."""
        return self.right.along == "folded" and self.is_dense(self.right)

    @property
    def has_panels(self) -> bool:
        """True if memory of the right operand can be packed in panels of columns: it has rows of
        what is accumulated in, or windows. A GEMV that sums rows reads panels too."""
        if self.kind is GemmKind.GEMV_AXPY:
            return self.is_accumulated(self.stored(self.right))
        return self.kind in (GemmKind.DENSE, GemmKind.IMPLICIT) and not self.right.k_major

    @property
    def has_k_contiguous_rows(self) -> bool:
        """True if lanes could run along k, if the columns are few."""
        lies = self.kind.reads_matrices and not self.left.is_transposed
        return lies and self.has_masks and not self.registers.pairs

    def is_near(self, s: Operand, along: str) -> bool:
        """True if neighbours along a line of a view are neighbours in memory."""
        found = self.view(s)
        return found is not None and found.step(along) == 1

    def is_accumulated(self, dtype: DType) -> bool:
        """True if memory of a dtype is what is accumulated in."""
        summed = self.registers.dtype
        same = dtype.bits == summed.bits and not dtype.is_small_float
        return same and dtype.kind in "fiu" and scalar_type(dtype) == scalar_type(summed)

    @property
    def memories(self) -> tuple[DType, DType]:
        """The dtypes of both operands as functions of the library read them."""
        return self.memory_of(self.left), self.memory_of(self.right)

    def stored(self, s: Operand) -> DType:
        """The dtype of the numbers that an operand's memory is read as."""
        return int32 if self.registers.words else self.problem.dtypes[s.root.arg[0]]

    def memory_of(self, s: Operand) -> DType:
        """The dtype of an operand's memory if it is read there, else what it is packed in."""
        if not self.kind.reads_views and not self.is_dense(s):
            return self.registers.dtype
        dtype = self.stored(s)
        return self.registers.dtype if self.is_accumulated(dtype) else dtype

    # --- results ---------------------------------------------------------------------------------

    @property
    def sums_in_place(self) -> bool:
        """True if accumulators can be kept where results go: one piece of memory with rows."""
        return self.has_result_rows and (self.is_bare or not self.ends_in_masks)

    @property
    def has_result_rows(self) -> bool:
        """True if results could be the accumulators: one piece of memory with rows."""
        rows = self.epilogue.rows.axes
        if not self.may_sum_in_place or len(rows) != 1 or self.result_runs != 1:
            return False
        return rows[0] in dict(self.problem.stores[0].arg[1][1])

    @property
    def is_bare(self) -> bool:
        """True if the sums are the results."""
        return self.problem.stores[0].src[0] is self.problem.fold

    @property
    def ends_in_masks(self) -> bool:
        """True if rows of results are short and end in part of a vector: an epilogue in place would
        wait at every row until that of the one before is in the cache."""
        lanes, columns = self.target.lanes, plain(self.columns)
        return columns % lanes > 0 and columns <= GEMM.masked_row_vectors * lanes

    @cached_property
    def may_sum_in_place(self) -> bool:
        """True if results are contiguous, of the accumulators' dtype, and have no other readers."""
        c, above = self.problem, self.epilogue
        number, index = c.stores[0].arg[:2]
        if len(c.stores) > 1 or not self.has_masks or not above.columns.axes:
            return False
        if c.dtypes[number] is not self.registers.dtype or c.fold.dtype.is_small_float:
            return False
        if not all(isinstance(atom, int) for atom, _ in index[1]):
            return False
        # results may take the place of an operand that is read where they are written
        read = [n for n in above.nodes if n.op is LOAD and n.arg[1] == index]
        return not read and dict(index[1]).get(above.columns.axes[-1]) == 1

    @cached_property
    def is_fine(self) -> bool:
        """True if a small product's sums are in several chunks: alone, or where libraries sum along
        k. In a batch each chunk costs as much as the product, and libraries have one chain too."""
        return self.batch == 1 or self.left.along == self.right.along == "folded"

    @property
    def has_whole_pairs(self) -> bool:
        """True if memory has rows of the left operand as pairs along k, none of them half."""
        if self.left.is_transposed or varies(self.steps) or not self.left.own.axes:
            return False
        step = dict(self.left.root.arg[1][1])[self.left.own.axes[0]]
        return isinstance(step, int) and step % 2 == 0 == self.steps % 2

    @cached_property
    def tile_problem(self) -> TileProblem:
        """What tile sizes follow from."""
        r, (left, right) = self.registers, self.dense
        left = left and (not r.pairs or self.has_whole_pairs)
        transposed = left and self.left.is_transposed
        far = self.rows * r.dtype.itemsize > GEMM.dense_row_bytes
        if transposed and (far or self.depth >= GEMM.transposed_left_k_steps):
            left = False  # steps of k are too far apart, or too many share places of a cache
        return TileProblem(
            self.batch, self.rows, self.columns, self.depth,
            Block(r.height, r.panel, self.target.lanes, r.dtype.itemsize),
            dense=(left, right and self.is_right_readable), in_place=self.sums_in_place,
            split=self.kind is not GemmKind.GEMV_DOT, k_major=self.right.k_major,
            left_transposed=transposed, fine=self.is_fine, prepacked=self.prepacked,
        )  # fmt: skip

    # --- kinds -----------------------------------------------------------------------------------

    def as_kind(self, kind: GemmKind) -> Gemm:
        """The same as a kind of kernel reads it."""
        found, c = replace(self, kind=kind), self.problem
        if kind is GemmKind.BYTES:
            return replace(found, left=side(c, "left", True), right=side(c, "right", True))
        if not kind.reads_views:
            return found
        if kind is GemmKind.IMPLICIT:
            left, right = self.along_neighbours(self.left), self.along_neighbours(self.right)
        else:
            left = replace(self.left, along="folded")
            along = "folded" if kind is GemmKind.DIRECT_DOT else "own"
            right = replace(self.right, along=along)
        problem, epilogue = self.fixed
        return replace(found, problem=problem, left=left, right=right, epilogue=epilogue)

    @cached_property
    def fixed(self) -> tuple[GemmProblem, Part]:
        """The problem and its epilogue with as many axes as others have, so that texts are one."""
        return with_fixed_axes(self.problem, self.epilogue)

    def along_neighbours(self, s: Operand) -> Operand:
        """An operand that is not transposed where that would not read neighbours."""
        if not s.is_transposed or self.is_near(s, s.along):
            return s
        return replace(s, along="own" if s.along == "folded" else "folded")


def bind(problem: GemmProblem, registers: Registers) -> Gemm:
    """A problem with its operands as they lie in memory."""

    def bound(c: GemmProblem) -> Gemm:
        left, right = side(c, "left"), side(c, "right")
        views = [im2col_view(s.part, s.root, s.own) for s in (left, right)]
        above = c.epilogue
        runs = len(above.columns.axes)
        return Gemm(c, registers, left, right, views[0], views[1], above, c is not problem, runs)

    found = bound(problem)
    images = found.is_dense(found.left) and not found.left.is_transposed
    if images or (_has_window(found) and found.is_low):
        inner = batch_outer_columns(problem, GEMM.image_columns)
        found = found if inner is problem else bound(inner)
    return replace(found, right=replace(found.right, k_major=_is_k_major(found)))


def _has_window(gemm: Gemm) -> bool:
    """True if each operand is a load, and the right one no dense matrix."""
    c = gemm.problem
    both = [read(c, root).op is LOAD for root in (c.left, c.right)]
    return all(both) and not gemm.right.is_dense


def _is_k_major(gemm: Gemm) -> bool:
    """True if both operands are packed along k: few rows do not pay for transposing columns."""
    if gemm.registers.dot or not gemm.has_masks or gemm.is_vector:
        return False
    lies = not gemm.left.is_transposed and gemm.right.along == "folded"
    few = gemm.rows <= GEMM.k_major_rows and gemm.steps >= GEMM.k_major_k_steps
    return lies and few and not gemm.is_dense(gemm.right)


# --- registers -----------------------------------------------------------------------------------


def accumulated(dtype: DType) -> DType:
    """The dtype that sums are kept in; whole numbers wrap, so wider ones are as good."""
    if dtype.kind == "f":
        return float64 if dtype is float64 else float32
    return int64 if dtype.bits == 64 else int32


def multiplies_pairs(c: GemmProblem, target: Target) -> bool:
    """True if an instruction adds products of pairs of bfloat16, as memory has them, to float32."""
    has = target.vectors == "avx512" and "avx512_bf16" in target.features
    sources = [read(c, r) for r in (c.left, c.right)]
    return has and all(r.op is LOAD and r.dtype is bfloat16 for r in sources)


def byte_signs(c: GemmProblem, target: Target) -> str:
    """The signs of operands (u or s) where an instruction sums products of bytes, or nothing."""
    if not target.sums_bytes:
        return ""
    if accumulated(c.fold.dtype) is not int32 or not all(r.op is CAST for r in (c.left, c.right)):
        return ""
    signs = "".join([{int8: "s", uint8: "u"}.get(r.src[0].dtype, "?") for r in (c.left, c.right)])
    return signs if signs in ("us", "su", "ss") else ""
