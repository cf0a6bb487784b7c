"""The numbers of a planned GEMM: strides, places in the workspace, and the library's table.

In: a `Gemm` and its `Tiles`. Out: every number that the text of the kernel and the functions of the
library read when they run. Nothing here writes text.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import gcd

from ....core.lazy_dataclass import dataclass
from ....kernel.contract.im2col import View
from ....kernel.contract.problem import Operand
from ..conv.direct import most_pieces, table_bytes
from ..conv.view_args import pack_dtypes, view_numbers
from ..tiling import GEMM
from .plan import Gemm, GemmKind
from .tile import ROUTES
from .tile_sizes import Tiles


def k_room(gemm: Gemm) -> int:
    """Steps of k of a panel that has all of them, with room for the lanes after the last."""
    lanes = gemm.target.lanes
    return -(-gemm.depth // lanes) * lanes + lanes


_NEXT = (
    ("next block", "left"), ("next block", "right"), ("next tile", "right"),
    ("next", "left"), ("next", "right"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of one GEMM."""

    gemm: Gemm
    tiles: Tiles
    prepacked: bool = False  # is the right operand packed before any run, all of k in a piece?

    # --- tiles and blocks ------------------------------------------------------------------------

    @property
    def tall(self) -> int:
        """Tiles of rows."""
        return -(-self.gemm.rows // self.tiles.rows)

    @property
    def wide(self) -> int:
        """Tiles of columns."""
        return self.tiles.column_tiles or -(-self.gemm.columns // self.tiles.columns)

    @property
    def count(self) -> int:
        """Tiles of all results."""
        return self.gemm.batch * self.tall * self.wide

    @property
    def blocks(self) -> int:
        """Blocks of k."""
        return -(-self.gemm.depth // self.tiles.k_block)

    @property
    def chunk_blocks(self) -> int:
        """Blocks of k in one chunk."""
        return -(-self.blocks // self.tiles.k_chunks)

    def stretch(self) -> dict[Hashable, int]:
        """Where the tiles of columns begin: `each` of a `unit` after the other, `over` a number."""
        if not self.tiles.column_tiles:
            return {"each": self.tiles.columns, "over": 1, "unit": 1}
        lanes = self.gemm.target.lanes
        return {"each": -(-self.gemm.columns // lanes), "over": self.tiles.column_tiles,
                "unit": lanes}  # fmt: skip

    def panels(self) -> dict[Hashable, int]:
        """Columns of a panel, and of the last one at most: nearly equal where nothing is packed."""
        r, rows = self.gemm.registers, self.gemm.rows
        most = r.most if rows <= r.height * 2 // 3 or rows > r.height else r.vectors
        if not self.packs_rows and self.tiles.right != "dense":
            return {"wide": r.panel, "reach": most * r.width}
        vectors = -(-min(self.gemm.columns, self.tiles.columns) // r.width)
        each = -(-vectors // -(-vectors // most))
        if vectors > most > r.vectors and vectors % most not in (0, r.vectors):
            each = r.vectors
        return {"wide": each * r.width, "reach": most * r.width}

    # --- routes ----------------------------------------------------------------------------------

    def route(self, s: Operand) -> str:
        """The route of an operand: dense, tile or shared; skinny or direct."""
        return self.tiles.left if s.name == "left" else self.tiles.right

    def library_route(self, s: Operand) -> str:
        """The route of an operand as the library tells them apart."""
        if s.name == "left" or self.tiles.right != "tile":
            return self.route(s)
        if s.k_major:
            return "k-major"
        return "rows" if self.packs_rows else "fused" if self.fuses_packing else "tile"

    @property
    def packs_rows(self) -> bool:
        """True if the right operand is packed as rows: a few rows do not pay for panels."""
        gemm = self.gemm
        if gemm.is_dense(gemm.right) or gemm.right.k_major or gemm.registers.dot:
            return False
        if gemm.rows > GEMM.few_rows or not gemm.has_masks:
            return False
        near = not gemm.kind.reads_views or gemm.is_near(gemm.right, "own")
        return self.tiles.right == "tile" and not gemm.right.is_transposed and near

    @property
    def fuses_packing(self) -> bool:
        """True if the first rows of a tile pack its columns while they are multiplied."""
        gemm = self.gemm
        last = gemm.rows - (self.tall - 1) * self.tiles.rows  # rows of the lowest tile
        lies = (
            gemm.kind.reads_matrices and not gemm.right.is_transposed and gemm.registers.assembled
        )
        return lies and last >= gemm.registers.height and not gemm.registers.pairs

    def size_of(self, s: Operand) -> int:
        """Rows of the left operand, columns of the right one."""
        return self.gemm.rows if s.name == "left" else self.gemm.columns

    def dense_strides(self, s: Operand) -> tuple[int, int]:
        """The steps of a dense operand along both lines; 0 where there is nothing of the kind."""
        if not self.gemm.is_dense(s):
            return 0, 0
        steps = dict(s.root.arg[1][1])
        own, folded = [steps[line.axes[0]] if line.axes else 0 for line in (s.own, s.part.folded)]
        return own, folded

    def strides(self, s: Operand) -> tuple[int, int]:
        """The strides of a dense operand on its route."""
        route, view = self.library_route(s), self.gemm.view(s)
        if route in ("dense", "fused"):
            own, folded = self.dense_strides(s)
            return (own // 2, folded) if self.gemm.registers.pairs else (own, folded)
        if route == "windows" and view is not None:
            return view.step("own"), view.step("folded")
        if s.name == "left" or route == "k-major":
            return self.tiles.k_packed, 1
        if route == "rows":
            return 1, self.tiles.columns
        return self.panel_depth, self.gemm.registers.panel

    def packs_before(self, s: Operand) -> bool:
        """True if a launch of each run packs an operand, into the workspace."""
        return self.route(s) == "shared" and not (self.prepacked and s.name == "right")

    def packed_stride(self, s: Operand) -> int:
        """The stride that an operand is packed with: of rows of k or of columns, or of panels."""
        if s.name == "left":
            return self.tiles.k_packed
        return self.tiles.columns if self.library_route(s) == "rows" else self.panel_depth

    @property
    def panel_depth(self) -> int:
        """Steps of k from one panel to the next: of a block, or of all where that is prepacked."""
        return self.tiles.k_packed if not self.prepacked else k_room(self.gemm)

    # --- packing launches -------------------------------------------------------------------------

    def pack_unit(self, s: Operand) -> tuple[int, int]:
        """What one unit packs: how many of an operand's own places, and how much of k."""
        tiles, panel = self.tiles, self.gemm.registers.panel
        if s.name == "left":
            return tiles.rows, tiles.k_block
        if not s.is_transposed and not self.gemm.kind.reads_views:  # along whole rows of memory
            lines = gcd(GEMM.k_lines_at_once, tiles.k_block)
            return self.pack_panels(lines) * panel, lines
        return panel, self.pack_steps(panel)

    @property
    def packs_for_many(self) -> bool:
        """True if many cores wait for an operand that each run packs: one that stays is packed
        alike for all that share it."""
        gemm = self.gemm
        fixed = gemm.kind.in_library and not gemm.varies and not gemm.right.k_major
        return fixed and gemm.target.cores > 1 and not self.prepacked

    def pack_panels(self, lines: int) -> int:
        """Panels of a unit that packs so many rows of memory: all, or a part for each core."""
        gemm = self.gemm
        panels = -(-gemm.columns // gemm.registers.panel)
        if not self.packs_for_many:
            return panels
        units = gemm.batch * self.blocks * self.pack_chunks(lines)
        return -(-panels // -(-gemm.target.cores // units))

    def pack_steps(self, panel: int) -> int:
        """Steps of k of a unit that packs a panel: fewer than a block's where many cores wait."""
        gemm, steps = self.gemm, self.tiles.k_block
        units = gemm.batch * -(-gemm.columns // panel) * self.blocks
        if not self.packs_for_many:
            return steps
        while units < gemm.target.cores and steps % (2 * GEMM.k_lines_at_once) == 0:
            units, steps = 2 * units, steps // 2
        return steps

    def pack_units(self, s: Operand) -> int:
        """How many units pack one product's operand."""
        wide, tall = self.pack_unit(s)
        return -(-self.size_of(s) // wide) * self.blocks * self.pack_chunks(tall)

    def pack_chunks(self, tall: int) -> int:
        """Units of so many steps in a block of k."""
        steps = self.tiles.k_block
        return -(-(steps if self.gemm.varies else min(steps, self.gemm.depth)) // tall)

    def block_elements(self, name: str) -> int:
        """Elements of one block of k of a whole shared operand."""
        if name == "left":
            return self.tall * self.left_tile_elements
        panel = self.gemm.registers.panel
        if self.prepacked:  # from one block to the next
            return panel * self.tiles.k_block
        return -(-self.gemm.columns // panel) * panel * self.tiles.k_packed

    @property
    def left_tile_elements(self) -> int:
        """Elements of a tile's rows of the left operand, packed."""
        return (self.tiles.rows + self.gemm.target.lanes) * self.tiles.k_packed

    def before_right(self) -> int:
        """Elements in the workspace before those of the right operand."""
        if self.tiles.left != "shared" or self.prepacked:
            return 0
        return self.gemm.batch * self.blocks * self.block_elements("left")

    def before_sums(self) -> int:
        """Elements in the workspace before the sums of chunks."""
        shared = [s for s in (self.gemm.left, self.gemm.right) if self.packs_before(s)]
        return sum([self.gemm.batch * self.blocks * self.block_elements(s.name) for s in shared])

    @property
    def packed_param(self) -> int:
        """The param that the right operand is packed into: the workspace, or one behind it."""
        return len(self.gemm.problem.dtypes) + self.prepacked

    # --- packing once ----------------------------------------------------------------------------

    def pack_once(self) -> tuple[dict[Hashable, int], int, int]:
        """The numbers of a launch that packs all of the right operand, its units, and elements."""
        gemm, right = self.gemm, self.gemm.right
        tiles = Tiles("dense", "shared", 1, gemm.registers.panel, gemm.depth, k_room(gemm))
        whole = replace(self, tiles=tiles, prepacked=True)
        known: dict[Hashable, int] = {("param", "right"): 0, "packed": 1}
        read = ("blocks", "depth", "steps", "block of k", "deep")
        numbers = {key: known.get(key, n if key in read else 0)
                   for key, n in whole.common_numbers().items()}  # fmt: skip
        numbers |= {key: known.get(key, n) for key, n in whole.side_numbers(right).items()}
        panel = gemm.registers.panel
        elements = -(-gemm.columns // panel) * panel * whole.panel_depth
        return numbers, whole.pack_units(right), elements

    # --- direct convolution ----------------------------------------------------------------------

    @property
    def lanes_along_k(self) -> bool:
        """True if a direct convolution has lanes along k."""
        return self.gemm.kind is GemmKind.DIRECT_DOT

    @property
    def direct_pieces(self) -> int:
        """Pieces of memory that a tile of columns is at most, where windows are swept over it."""
        found, gemm = self.gemm.right_view, self.gemm
        if not gemm.kind.is_direct or found is None:
            return 0
        if self.lanes_along_k:
            return most_pieces(gemm.depth, found.folded[-1][0], gemm.target.lanes)
        return most_pieces(self.tiles.columns, found.own[-1][0], gemm.target.lanes)

    @property
    def direct_table_bytes(self) -> int:
        """Bytes of what is known of each of these tiles."""
        if not self.gemm.kind.is_direct:
            return 0
        steps = self.tiles.columns if self.lanes_along_k else self.tiles.k_packed
        return table_bytes(self.direct_pieces, steps)

    @property
    def direct_tables(self) -> int:
        """How many tables of what is known of a tile there are."""
        if not self.gemm.kind.is_direct:
            return 0
        return 1 if self.lanes_along_k else self.wide - self.alike

    @property
    def alike(self) -> int:
        """Tiles that share the table of the second one: whole rows of windows none of which meets
        the edge of an image, as between the first and the last tile."""
        view, wide = self.gemm.right_view, self.wide
        if self.gemm.kind is not GemmKind.DIRECT or self.gemm.varies or view is None or wide < 4:
            return 0
        run, condition = view.own[-1][0], view.conditions[-2]
        if self.tiles.columns % run or max([size for size, _ in view.own[:-2]]) > 1:
            return 0
        rows, taps = self.tiles.columns // run, view.folded[-2][0]
        ends = [c * at for c, at in ((condition.folded, taps - 1), (condition.folded, 0))]
        reach = [condition.start + condition.own * at + tap
                 for at in (rows, (wide - 1) * rows - 1) for tap in ends]  # fmt: skip
        inside = min(reach) >= 0 and max(reach) < condition.below
        return wide - 3 if inside or not condition.asks else 0

    def next_ones(self) -> dict[Hashable, int]:
        """How far operands move from one block of k, one tile of columns, or one time that all
        steps of a table are gone over, to the next."""
        left, right = self.gemm.left_view, self.gemm.right_view
        if not self.gemm.kind.is_direct or left is None or right is None:
            return dict.fromkeys(_NEXT, 0)
        steps = 0 if self.lanes_along_k else self.tiles.k_packed
        once, times = (left.place(steps), right.place(steps)), self.tiles.k_block // (steps or 1)
        moves = (times * once[0], times * once[1], right.place(self.tiles.columns, "own"), *once)
        return dict(zip(_NEXT, moves, strict=True))

    # --- windows in place ------------------------------------------------------------------------

    def runs(self) -> dict[Hashable, int]:
        """Steps of k that memory has in a row, and how far it is from the last of them to the next
        run, where rows of windows are read in place."""
        view = self.gemm.left_view
        if self.tiles.left != "windows" or view is None:
            return {"run": 0, "jump": 0}
        (_, outer), (run, step) = view.folded[-2:]
        return {"run": run, "jump": outer - (run - 1) * step}

    # --- the library's table ---------------------------------------------------------------------

    def table(self) -> dict[Hashable, int]:
        """The numbers that functions of the library read."""
        sides = [self.side_numbers(s) for s in (self.gemm.left, self.gemm.right)]
        return {**self.common_numbers(), **sides[0], **sides[1]}

    def common_numbers(self) -> dict[Hashable, int]:
        """Those of both operands."""
        gemm, tiles = self.gemm, self.tiles
        return {
            "blocks": self.blocks, "depth": gemm.depth, "block of k": tiles.k_block,
            "deep": self.panel_depth, "tile numbers": self.left_tile_elements,
            "before right": self.before_right(), "workspace": len(gemm.problem.dtypes),
            "packed": self.packed_param,
            "steps": gemm.steps, "pieces": self.direct_pieces,
            "bytes": self.direct_table_bytes if self.direct_tables > 1 else 0,
            "alike": self.alike, "last tile": self.wide - 1,
            **self.next_ones(), **self.panels(), **self.stretch(), **self.runs(),
        }  # fmt: skip

    def side_numbers(self, s: Operand) -> dict[Hashable, int]:
        """Those of one operand, and of its im2col descriptor."""
        values, view = self.operand_numbers(s), self.gemm.view(s)
        if self.gemm.kind.reads_views and view is not None:
            values |= self.view_table(s, view)
        return {(name, s.name): value for name, value in values.items()}

    def operand_numbers(self, s: Operand) -> dict[Hashable, int]:
        """The numbers of one operand, by their names in the table."""
        scratch = self.tiles.scratch(self.gemm.target.lanes)
        sizes = ((self.tiles.rows, scratch[0]), (self.tiles.columns, scratch[1]))
        size, packed = sizes[s.name == "right"]
        steps, batch = dict(s.root.arg[1][1]), s.part.batch.axes
        own, k = self.dense_strides(s)
        wide, tall = self.pack_unit(s)
        used, apart = self.strides(s), own if s.along == "folded" else k
        if self.gemm.registers.pairs and s.is_transposed:
            apart = -apart  # as `pack_pairs` is told
        return {
            "all": self.size_of(s), "tile": size, "way": ROUTES.index(self.library_route(s)),
            "from own": own, "from k": k, "apart": apart,
            "own": used[0], "k": used[1], "numbers": self.block_elements(s.name),
            "scratch": packed, "piece": wide, "pieces": -(-self.size_of(s) // wide),
            "high": tall, "chunks": self.pack_chunks(tall), "packed": self.packed_stride(s),
            "of a product": self.pack_units(s),
            "next product": steps.get(batch[0], 0) if len(batch) == 1 else 0,
            "param": s.root.arg[0], "start": s.root.arg[1][0],
        }  # fmt: skip

    def view_table(self, s: Operand, v: View) -> dict[Hashable, int]:
        """The numbers of an operand's im2col descriptor."""
        gemm, r = self.gemm, self.gemm.registers
        rows = s.name == "left" or s.k_major
        shape = "rows" if rows else "flat" if self.packs_rows else "panels"
        bytes_ = 4 if gemm.uses_vnni else 1  # of an element that is packed, where places are bytes
        across = r.panel if shape == "panels" else self.packed_stride(s) * bytes_
        kind = 0 if r.packs_vnni else pack_dtypes(r, gemm.memories).index(gemm.memory_of(s))
        flipped = 128 if r.flips and s.name == "left" else 0
        sizes = gemm.is_near(s, s.along), r.panel, gemm.target.lanes, across
        return view_numbers(v, s.along, shape, *sizes, gemm.kind.is_direct, kind, flipped)
