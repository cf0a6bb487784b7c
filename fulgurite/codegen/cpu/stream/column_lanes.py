"""Lanes along N: score tiles with a line for each row and streamed elements side by side.

In: a problem with few rows, or whose memory is contiguous along N, and its plan. Out: lines. Scores
are rows of queries times panels of keys, S = Q K^T, as in a plain GEMM, and loads along N are
vectors as they are. Each row is traversed by itself; what a reduction gave in every lane is
combined across lanes at the end of a block, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from ....core.dtype import bool_, float32, float64
from ....core.node import toposort
from ....core.ops.elementwise import EXP, EXP2
from ....kernel.contract.analysis import Part
from ....kernel.contract.summation import ORDER
from ....kernel.stream.online import State
from ..gemm.gemv import GEMV, gemv_dot
from ..gemm.pack import Span, side
from ..gemm.skinny import SKINNY, skinny
from ..llvm.emitter import Val
from ..llvm.maths import select
from ..spelling import identity
from .block_update import BlockUpdate
from .operands import Left, Operands, PanelCall, PanelGemm, SharedOperand
from .tile import Launched, Tile

_REDUCE = {"add": "fadd", "max": "fmaximum", "min": "fminimum"}
_REDUCE_NUMBERS = {"max": "fmax", "min": "fmin"}  # of what is never NaN


class ColumnMajorProducts:
    """Score products S."""

    loads = ()  # all lie as tiles do

    def __init__(self, tile: Tile, operands: Operands, gemm: PanelGemm) -> None:
        self.tile, self.operands, self.gemm = tile, operands, gemm
        self.products = tile.problem.products
        transposed = [
            replace(
                p.contraction, left=p.queries, right=p.keys, rows=p.contraction.columns,
                columns=p.contraction.rows,
            )
            for p in self.products
        ]  # fmt: skip
        self.queries = [side(c, "left") for c in transposed]
        self.keys = [side(c, "right") for c in transposed]
        self.tallest = min(tile.plan.tile_m, tile.problem.m)
        width = tile.plan.block_n + tile.lanes
        self.tile_numbers = self.tallest * width + tile.lanes  # no more rows than there are
        found = {n: self._shared_keys(n) for n in range(len(self.products))}
        self.shared = {n: shared for n, shared in found.items() if shared is not None}

    # --- how keys are read -----------------------------------------------------------------------

    def is_packed(self, number: int) -> bool:
        """True if keys are packed."""
        return not self.is_dotted(number) and not self.is_read(number)

    def is_read(self, number: int) -> bool:
        """True if microkernels read panels of keys where they are."""
        return self.operands.is_panel(self.keys[number]) and self.tallest <= 4 * self.tile.lanes

    def is_dotted(self, number: int) -> bool:
        """True if there are few rows, and keys are contiguous along the depth: lanes are, too."""
        s, q, operands = self.keys[number], self.queries[number], self.operands
        few = self.tile.tiling.max_m_dots if self.tile.has_masks else 1  # several need masks
        if self.is_recomputed or self.tile.problem.m > few or not s.is_dense or not s.is_transposed:
            return False
        return (not q.is_transposed or not operands.is_plain(q)) and operands.has_dtype(s)

    @cached_property
    def is_recomputed(self) -> bool:
        """True if another kernel computes these products, with rows and columns exchanged.

        That is so where results are row statistics, or scores are exponentiated on bases from
        elsewhere. Products must then be the same to the last bit: gradients are differences of
        sums that nearly cancel.
        """
        problem = self.tile.problem
        own = frozenset((*problem.batch_axes, *problem.m_axes))
        if any(problem.free[store] <= own for store in problem.streaming.stores):
            return True
        products = {p.node for p in self.products}
        for node in problem.order:
            if node.op in (EXP, EXP2):
                inside = set(toposort([node]))
                if inside & products and not inside & problem.folds:
                    return True
        return False

    # --- keys that all tiles share ---------------------------------------------------------------

    def key_numbers(self, number: int) -> int:
        """Numbers of the packed keys of one block, for one block of the depth."""
        panel = self.tile.registers.panel
        wide = -(-self.tile.plan.block_n // panel) * panel
        return wide * self.operands.packed_numbers(self.products[number])

    def _shared_keys(self, number: int) -> SharedOperand | None:
        """Keys that are packed once for all tiles, where several need them."""
        blocks = self.operands.depth_blocks(self.products[number])
        found = SharedOperand(
            self.operands, self.keys[number], "keys", number, self.key_numbers(number), blocks
        )
        several = self.is_packed(number) and self.tile.m_tiles * self.tile.d_tiles > 1
        return found.allocate() if several and found.fits else None

    def functions(self) -> list[Launched]:
        """What packs keys for all tiles."""
        return [
            shared.function(self.tile.plan.block_n, self.products[number].depth,
                            partial(self._keys_span, number))
            for number, shared in self.shared.items()
        ]  # fmt: skip

    def _keys_span(self, number: int, k: str, d: str, count: Callable[[], str]) -> tuple[Span, str]:
        f, p = self.tile.f, self.products[number]
        many = f.least(str(ORDER.block_steps), f.sub(f.number(("depth", number), p.depth), d))
        return Span(k, count(), d, many), self.operands.packed_depth(p)

    # --- products --------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Tiles of products, and operands that must be packed."""
        tile, operands = self.tile, self.operands
        tile.stride = tile.f.number("stride", tile.plan.block_n + tile.lanes)
        tile.weight_strides = (tile.stride, "1")
        for number, p in enumerate(self.products):
            tile.reserve(f"tile{number}", self.tile_numbers)
            if not operands.is_plain(self.queries[number]):
                rows = tile.plan.tile_m + tile.lanes
                tile.reserve(f"queries{number}", rows * operands.packed_numbers(p))
            if self.is_packed(number) and number not in self.shared:
                tile.reserve(f"keys{number}", self.key_numbers(number))

    def begin(self) -> None:
        """What is done once for a tile: nothing."""

    def emit_all(self) -> None:
        """A block of all products."""
        for number in range(len(self.products)):
            self.emit(number)

    def emit(self, number: int) -> None:
        """A block of a product: a line for each row, a column for each streamed element."""
        tile, operands, e = self.tile, self.operands, self.tile.e
        p, q, s = self.products[number], self.queries[number], self.keys[number]

        def depth_block(b: str, d: str, many: str) -> None:
            first = "true" if b == "0" else e.let(f"icmp eq i64 {b}, 0")
            left = operands.left(q, Span(tile.top, tile.count, d, many), f"queries{number}", p)
            operands.open_batch(s)
            if self.is_dotted(number):
                self.dot(number, left, operands.where(s, tile.k, d), many, first)
            else:
                self.panels(number, left, (b, d, many), first)

        operands.each_depth_block(number, depth_block)

    def dot(self, number: int, x: Left, b: tuple[str, str], many: str, first: str) -> None:
        """Rows times keys, both along the depth."""
        tile, registers = self.tile, self.tile.registers
        left, right = f"ptr {x[0]}", f"ptr {b[0]}, i64 {b[1]}"
        scores = tile.f.read[f"tile{number}"]
        if tile.problem.m == 1:
            module, kinds = gemv_dot(registers, (registers.dtype,) * 2), GEMV
            operands = f"{left}, {right}, ptr {scores}, i64 {many}, i64 {tile.deep}, i1 {first}"
        else:
            module, kinds = skinny(registers, True), SKINNY
            operands = (
                f"{left}, i64 {x[1]}, {right}, i64 1, ptr {scores}, i64 {tile.stride}, "
                f"i64 {many}, i64 {tile.count}, i64 {tile.deep}, i1 {first}"
            )
        tile.invoke(module, kinds, operands)

    def panels(self, number: int, left: Left, depth: tuple[str, str, str], first: str) -> None:
        """Rows times one panel of keys after the other, for one block of the depth."""
        b, d, many = depth
        tile, operands, f = self.tile, self.operands, self.tile.f
        s, p = self.keys[number], self.products[number]
        read, wide = self.is_read(number), tile.registers.panel
        scores, deep = f.read[f"tile{number}"], operands.packed_depth(p)
        if read:
            right, stride = operands.where(s, tile.k, d)
        elif number in self.shared:
            piece, _ = f.divided(tile.k, f.number("steps", tile.plan.block_n))
            right, stride = self.shared[number].at(piece, b), str(wide)
        else:
            right, stride = f.read[f"keys{number}"], str(wide)
            operands.pack(s, Span(tile.k, tile.deep, d, many), right, deep)

        def panel(column: str, columns: str) -> None:
            at = tile.element(right, column if read else f.mul(column, deep))
            ahead = None
            if not read:  # the next panel, at the end that of the next block
                numbers = wide * operands.packed_numbers(p)
                ahead = tile.element(at, f.number(("panel", number), numbers))
            to = tile.element(scores, column), tile.stride
            call = PanelCall(left, (at, stride), to, many, tile.count, columns, first, ahead)
            self.gemm.multiply_scores(p, call)

        (self.gemm.even_panels if read else self.gemm.packed_panels)(tile.deep, panel)


class ColumnLanesUpdate(BlockUpdate):
    """A walk along a row of a block, for a vector of elements at a time."""

    is_vector = False
    met_nan: dict[State, str]  # lanes in which extremes met NaN

    def emit(self) -> None:
        """All row states, and the weights, row by row."""
        tile, f = self.tile, self.tile.f
        part = f.part = self.part()
        f.opened(part.batch, f.coordinates(part.batch, tile.at))
        f.walk(part.rows, f.coordinates(part.rows, tile.top), tile.count, self.update_rows)
        assert len(part.columns.axes) == 1, f"{self.problem.n_axes} are not one line"

    def enter(self, part: Part, i: str) -> None:
        tile, f, axis = self.tile, self.tile.f, part.columns.axes[0]
        f.open[axis], f.lane = f.add(tile.k, i), axis
        f.mask = None if self.is_full else f.tail(f.sub(tile.deep, i))

    def leave(self, part: Part) -> None:
        f = self.tile.f
        f.lane = f.mask = None
        del f.open[part.columns.axes[0]]

    def in_use(self, value: Val, state: State) -> Val:
        e, mask = self.tile.e, self.tile.f.mask
        if mask is None:
            return value
        nothing = identity(e, state.op, self.tile.dtype, True)
        return select(e, Val(mask, bool_, True), value, nothing)

    def with_nans(
        self, states: Sequence[State], totals: list[str], masks: Sequence[str]
    ) -> list[str]:
        """Extremes of numbers; lanes that met NaN are looked at when they come together."""
        quick = [state for state in states if self.is_quick(state)]
        self.met_nan = dict(zip(quick, masks, strict=True))
        return totals

    def across_lanes(self, total: str, state: State) -> Val:
        tile, e = self.tile, self.tile.e
        if state.op == "add":
            return self.sum_of_lanes(total, state)
        quick = self.is_quick(state)
        how = (_REDUCE_NUMBERS if quick else _REDUCE)[state.op]
        name, vector = f"llvm.vector.reduce.{how}.{e.suffix(tile.dtype, True)}", tile.vector
        if not quick:
            return Val(e.call(tile.inner, name, f"{vector} {total}"), tile.dtype)
        e.declare(f"{tile.inner} @{name}({vector})", name)
        text = e.let(f"call nnan {tile.inner} @{name}({vector} {total})")
        odd = e.let(f"bitcast {tile.truth} {self.met_nan[state]} to i{tile.lanes}")
        met = Val(e.let(f"icmp ne i{tile.lanes} {odd}, 0"), bool_)
        return select(e, met, e.const(float("nan"), tile.dtype), Val(text, tile.dtype))

    def sum_of_lanes(self, total: str, state: State) -> Val:
        """The sum of all lanes, in float64 where the state has an error term."""
        tile, e, states = self.tile, self.tile.e, self.states
        exact = state in states.with_errors and tile.dtype is float32
        dtype = float64 if exact else tile.dtype
        kind, lanes = e.type_of(dtype, False), e.type_of(dtype, True)
        name = f"llvm.vector.reduce.{_REDUCE['add']}.{e.suffix(dtype, True)}"
        e.declare(f"{kind} @{name}({kind}, {lanes})", name)
        wide = e.let(f"fpext {tile.vector} {total} to {lanes}") if exact else total
        start = e.const(-0.0, dtype).text
        text = e.let(f"call reassoc {kind} @{name}({kind} {start}, {lanes} {wide})")
        if exact and state not in states.widened:
            return states.narrowed_block(state, text)
        return Val(text, dtype)
