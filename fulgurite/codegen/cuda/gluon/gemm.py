"""Hopper's GEMM: warp-specialised, persistent, fed by TMA, in Gluon (Triton one level below).

In: a `GemmProblem`. Out: a `Launch`, or None where the form does not fit and `tl.dot`'s is used.
Every multiprocessor has one program, or two, for all its tiles of the result. One warp copies
blocks of both operands to a ring in shared memory (`cp.async.bulk.tensor`): a software pipeline.
Two warpgroups multiply them (`wgmma`) into accumulators in registers, and then hand the buffer
back: together, or, where epilogues are short, a tile each (ping-pong), the epilogue of
one beside the loop of the other. An operand that runs the other way in memory is transposed by its
descriptor. The epilogue is the kernel's own body, some columns at a time; results leave by the copy
engine too, or by accesses of 16 bytes a thread. Where tiles do not come out even, blocks of K are
shared out (stream-K). Decision 0068 has the forms; one cost chooses. Sizes and strides are run-time
numbers.
Gluon has no interpreter: correctness is shown on a GPU (tests/codegen/cuda/time_products.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ....core.dtype import DType, bfloat16, float16, float32
from ....core.node import Node, backward_slice, toposort
from ....core.ops.elementwise import CAST
from ....core.ops.index import FOLD, GUARD, INDEX, LOAD, STORE, VALID
from ....core.ops.leaf import CONST, SINK, VAR
from ....graph.ir.lower import IndexKernel
from ....graph.ir.queries import free_axes
from ....kernel.contract.problem import GemmProblem, find_gemm
from ....kernel.transform.split_reduction import Part
from .. import source
from ..program import TileProgram, Tiling
from ..scope import Scope
from ..source import Argument, Launch, Place, Room, TensorMap
from ..spelling import definitions, rounded, to_memory
from ..tiling import GpuTable

_BODY = frozenset((LOAD, STORE, FOLD, CONST, VAR, INDEX, VALID))
_WIDTH = bfloat16.itemsize  # of operands, and of results for the copy engine


@dataclass(frozen=True, slots=True)
class GluonTile:
    """A tile of the result, the depth of a block, and how many blocks are on their way."""

    rows: int
    columns: int
    depth: int
    buffers: int
    share: float  # of the tensor cores' rate that it reaches, as measured or guessed
    pingpong: int = 1  # consumers with a tile each: the epilogue of one beside the other's loop
    programs: int = 1  # for each processor
    narrow: bool = field(default=False, kw_only=True)  # fewer columns of the epilogue at a time

    @property
    def warps(self) -> int:
        """Of a consumer: a warpgroup for each 64 rows, two at most, or one that shares."""
        return 4 if self.pingpong * self.programs > 1 else 4 * min(2, self.rows // 64)

    @property
    def step(self) -> int:
        """Columns of the epilogue at a time."""
        return min(32 if self.narrow else 64, self.columns)

    @property
    def owned(self) -> int:
        """Registers of a program."""
        return 65536 // self.programs

    @property
    def accumulators(self) -> int:
        """Registers of a consumer's thread that hold sums."""
        return self.rows * self.columns // (32 * self.warps)

    def consumer_registers(self, producer: int) -> int:
        """Of a consumer's thread, beside a warpgroup that copies with so many a thread."""
        return min(255, (self.owned - 128 * producer) // (32 * self.warps * self.pingpong))

    @property
    def registers(self) -> int:
        """Of a thread on average, if several programs share a processor; else 0."""
        threads = 32 * (self.warps * self.pingpong + 4)  # copying warps come by four
        return self.owned // threads // 8 * 8 if self.programs > 1 else 0


@dataclass(frozen=True, slots=True)
class GluonPlan:
    """A GEMM whose operands the copy engine can read, and the tile it takes."""

    problem: GemmProblem
    tile: GluonTile
    left: TensorMap
    right: TensorMap
    transposed: tuple[bool, bool]  # is an operand contiguous along its rows or columns, not K?
    group: int  # rows of tiles that are computed together, so that they share columns in the cache
    registers: int  # of a producer's thread
    consuming: int  # of a consumer's, where there are two
    steps: int = 0  # of K in a part of a split product, whose number is the last of a batch
    stored: Mapping[Node, TensorMap] = field(default_factory=dict)  # results by the copy engine
    streamed: int = 0  # stream-K: programs that share out the steps of K
    staged: int = 0  # buffers of each such result, on their way from registers to memory

    @property
    def tiles(self) -> int:
        """Of the result, of all parts."""
        c, tile = self.problem, self.tile
        return c.batches * -(-c.m // tile.rows) * -(-c.n // tile.columns)


def plan_gluon(kernel: IndexKernel, dtypes: Sequence[DType], table: GpuTable) -> GluonPlan | None:
    """The plan of a kernel that is a GEMM, if this form is asked for, legal and worth it."""
    if not table.gluon:
        return None
    problem = find_gemm(kernel, dtypes)
    if problem is None or not all(_is_plain(n) for n in problem.order):
        return None
    if [len(axes) for axes in (problem.rows, problem.columns, problem.folded)] != [1, 1, 1]:
        return None
    found = choose_tile(problem, table)
    if found is None:
        return None
    tile, streamed = found
    (m,), (n,), (k,) = problem.rows, problem.columns, problem.folded
    left = _tensor(problem, problem.left, (m, k), (tile.rows, tile.depth), table)
    right = _tensor(problem, problem.right, (n, k), (tile.columns, tile.depth), table)
    if left is None or right is None or left[0].dtype != right[0].dtype:
        return None
    transposed = left[1], right[1]
    plan = GluonPlan(
        problem, tile, left[0], right[0], transposed, table.gluon_group, table.gluon_registers,
        table.gluon_stream_registers[0],
    )  # fmt: skip
    if streamed:
        plan = replace(plan, streamed=_programs(problem, tile, table))
    # arithmetic on accumulators of several consumers is behind a change of layout: else `ptxas` of
    # Triton 3.6 makes each wgmma wait for the one before (C7514)
    return _stored_by_engine(plan, table) if table.gluon_store and not tile.narrow else plan


def _programs(problem: GemmProblem, tile: GluonTile, table: GpuTable) -> int:
    """Stream-K: how many programs share out the blocks of K of all tiles; 0 if tiles come out even.

    A program has some blocks at least.
    """
    tiles = tiles_in(problem, tile)
    steps = tiles * -(-problem.k // tile.depth)
    programs = min(table.processors * tile.programs, steps // table.gluon_stream_steps)
    lawful = table.gluon_streamk and tile.pingpong == 1 and 1 < programs <= table.flags
    return programs if lawful and tiles % programs else 0


def _stored_by_engine(plan: GluonPlan, table: GpuTable) -> GluonPlan:
    """The plan with its results for the copy engine, if all are memory as it is and fit."""
    c, tile = plan.problem, plan.tile
    stored = {store: _result(c, store, tile, table) for store in c.stores}
    specs = {store: spec for store, spec in stored.items() if spec is not None}
    if len({spec.param for spec in specs.values()}) < len(c.stores):
        return plan
    room = table.shared_bytes
    if tile.programs > 1:
        room = (room + table.shared_kept) // tile.programs - table.shared_kept
    ring = tile.buffers * (tile.rows + tile.columns) * tile.depth * _WIDTH
    block = tile.rows * tile.step
    read = [n.dtype.itemsize for n in _read_per_result(plan.problem)]  # and moved between layouts
    room -= ring + tile.pingpong * block * max(read, default=0) + 16 * (tile.buffers + 8)
    staged = room // (tile.pingpong * block * _WIDTH * len(specs))
    most = tile.columns // tile.step
    return replace(plan, stored=specs, staged=min(most, staged)) if staged > 0 else plan


def _result(c: GemmProblem, store: Node, tile: GluonTile, table: GpuTable) -> TensorMap | None:
    """A result as a tensor for the copy engine, if it is memory as it is: rows of 16 bits."""
    (m,), (n,) = c.rows, c.columns
    dtype = c.dtypes[store.arg[0]]
    if dtype not in (bfloat16, float16) or not {m, n} <= c.free[store]:
        return None
    if c.fold not in toposort([store]):
        return None
    return _described(c, store, dtype, (*c.batch, m, n), (tile.rows, tile.step), table)


def _described(
    c: GemmProblem, access: Node, dtype: DType, order: tuple[int, ...], block: tuple[int, int],
    table: GpuTable,
) -> TensorMap | None:  # fmt: skip
    """What a load or store touches as a tensor for the copy engine, in blocks of its last axes.

    It must be memory as it is: contiguous along the last axis, all else at multiples of 16 bytes.
    """
    param, (offset, terms) = access.arg[:2]
    steps = {a: step for a, step in terms if isinstance(a, int)}
    if len(steps) < len(terms) or not steps.keys() <= {*order} or len(order) > table.tma_rank:
        return None
    unit = table.tma_bytes // dtype.itemsize
    # along an axis of one step any stride will do
    strides = [steps.get(a, 0) if c.sizes[a] > 1 else unit for a in order[:-1]]
    if steps.get(order[-1]) != 1 or offset % unit or min([offset, *[s - 1 for s in strides]]) < 0:
        return None
    if any(s % unit for s in strides):
        return None
    return TensorMap(
        param, offset * dtype.itemsize, dtype.name, tuple([c.sizes[a] for a in order]),
        (*strides, 1), (*[1] * (len(order) - 2), *block),
    )  # fmt: skip


def _read_per_result(c: GemmProblem) -> list[Node]:
    """Loads of the epilogue that have elements for each of the results."""
    inside = {c.fold, *c.fold.slice}
    read = [n for n in c.order if n.op is LOAD and n not in inside]
    return [n for n in read if c.free[n] >= {*c.rows, *c.columns}]


def _is_plain(node: Node) -> bool:
    """True if a node has the same text in an epilogue as in any program."""
    return node.op is not GUARD and (node.op in _BODY or node.op.family == "elementwise")


def choose_tile(problem: GemmProblem, table: GpuTable) -> tuple[GluonTile, bool] | None:
    """The tile that takes the shortest, and whether its blocks of K are shared out (stream-K).

    Where tiles are few, with K in as many parts as keep the processors busy; None if it is too
    short for that, or too little is to do.
    """
    if problem.batches * problem.m * problem.n * problem.k < table.gluon_least:
        return None
    every = tiles_of(table)
    if not _is_rounded(problem, table):
        few = len(_read_per_result(problem)) <= 1  # what tiles read besides is beside other tiles
        every = [replace(t, narrow=t.pingpong > 1) for t in every if few or t.pingpong == 1]
    ways = [(tile, False) for tile in every if 2 * tiles_in(problem, tile) >= table.processors]
    ways += [(tile, True) for tile in every if _programs(problem, tile, table)]
    if ways:
        return min(ways, key=lambda way: product_ns(problem, way[0], way[1], table))
    every = [tile for tile in every if tile.pingpong * tile.programs == 1]
    if not every:
        return None
    tile = min(every, key=lambda tile: _parts_ns(problem, tile, table))
    parts = most_parts(problem, tile, table)
    enough = 2 * parts * tiles_in(problem, tile) >= table.processors
    return (tile, False) if enough else None


def _is_rounded(problem: GemmProblem, table: GpuTable) -> bool:
    """True if results are the product as it is, only rounded, for the copy engine."""

    def rounded_from(store: Node) -> Node:
        (node,) = store.src[:1]
        while node.op is CAST:
            node = node.src[0]
        return node

    tile = tiles_of(table)[0]
    return table.gluon_store and all(
        rounded_from(store) is problem.fold and _result(problem, store, tile, table) is not None
        for store in problem.stores
    )


def tiles_in(problem: GemmProblem, tile: GluonTile) -> int:
    """How many tiles the result has."""
    return problem.batches * -(-problem.m // tile.rows) * -(-problem.n // tile.columns)


def block_ns(tile: GluonTile, table: GpuTable) -> float:
    """One block of K of a tile, while other programs of the processor have theirs."""
    steps = tile.rows * tile.columns * tile.depth * tile.programs
    return 2 * steps / (table.gluon_rate * tile.share)


def product_ns(problem: GemmProblem, tile: GluonTile, streamed: bool, table: GpuTable) -> float:
    """What a product takes with a tile: rounds of tiles, or of blocks of K that are shared out.

    Epilogues count where nothing runs beside them, or where they take longer than that; those who
    share a tile keep partial sums, and one adds them up.
    """
    blocks, tiles = -(-problem.k // tile.depth), tiles_in(problem, tile)
    loop_ns = block_ns(tile, table)
    area = tile.rows * tile.columns
    stored = sum([problem.dtypes[n.arg[0]].itemsize for n in problem.stores])
    store_ns = area * stored / table.result_rate
    whole, paired, pingpong = table.epilogue_operations
    ops = area * _operations(problem)
    if streamed:
        programs = _programs(problem, tile, table)
        rounds = max(0, tiles // programs - 1)
        each = -(-(tiles - rounds * programs) * blocks // programs)  # blocks that are shared out
        sharing = 1 + -(-blocks // each)  # programs of a tile, at most
        partial_ns = table.flag_ns + sharing * area * float32.itemsize / table.partial_rate
        steps = rounds * blocks + each / table.streamk_share
        last_ns = store_ns + ops / (paired if tile.programs > 1 else whole)
        return float(steps * loop_ns + -(-tiles // programs) * last_ns + partial_ns)
    rounds = -(-tiles // (table.processors * tile.programs))
    whole_ns = blocks * loop_ns
    if tile.pingpong > 1:
        last_ns = max(store_ns, ops / pingpong)
        return float(rounds * max(whole_ns, (whole_ns + last_ns) / 2) + last_ns)
    if tile.programs > 1:
        last_ns = max(store_ns, ops / paired)
        return float(rounds * max(whole_ns, whole_ns / 2 + last_ns) + last_ns)
    return float(rounds * (whole_ns + store_ns + ops / whole))


def _operations(problem: GemmProblem) -> int:
    """Of an epilogue, for each element."""
    above = backward_slice(problem.stores, lambda node: node is problem.fold)
    wide = [n for n in above if problem.free[n] >= {*problem.rows, *problem.columns}]
    return sum([node.op.cost for node in wide if node.op.family == "elementwise"])


def _parts_ns(problem: GemmProblem, tile: GluonTile, table: GpuTable) -> float:
    """The rounds of a product with K in the best number of parts."""
    tiles, most = tiles_in(problem, tile), most_parts(problem, tile, table)
    tile_ns = problem.k / tile.depth * block_ns(tile, table)
    rounds = [-(-parts * tiles // table.processors) / parts for parts in range(1, most + 1)]
    return min(rounds, default=float("inf")) * tile_ns


def tiles_of(table: GpuTable) -> list[GluonTile]:
    """The tiles of a table."""
    return [
        GluonTile(int(m), int(n), int(k), int(ring), share, *map(int, more))
        for m, n, k, ring, share, *more in table.gluon_tiles
    ]


def most_parts(problem: GemmProblem, tile: GluonTile, table: GpuTable) -> int:
    """In how many parts K may be split: each has some blocks."""
    return min(table.gluon_splits, problem.k // (4 * tile.depth))


def _tensor(
    problem: GemmProblem, factor: Node, axes: tuple[int, int], block: tuple[int, int],
    table: GpuTable,
) -> tuple[TensorMap, bool] | None:  # fmt: skip
    """An operand as a tensor for the copy engine; is it contiguous along its own axis?"""
    (own, k), (side, depth) = axes, block
    load = factor.src[0] if factor.op is CAST else factor
    if load.op is not LOAD or load.arg[2] or load.dtype not in (bfloat16, float16):
        return None
    steps = dict(load.arg[1][1])
    transposed = steps.get(own) == 1 and steps.get(k) != 1
    outer, inner = (k, own) if transposed else (own, k)
    blocks = (depth, side) if transposed else (side, depth)
    order = (*problem.batch, outer, inner)
    spec = _described(problem, load, load.dtype, order, blocks, table)
    return None if spec is None else (spec, transposed)


def best_split(plan: GluonPlan, table: GpuTable) -> int:
    """Split-K by cost: in how many parts K is shared out, summed by another kernel; 0: none.

    A part is a round over all processors with fewer steps, so that few tiles keep all of them busy.
    The epilogue is then a kernel that streams, where one that reads much makes tiles wait.
    """
    c, tile = plan.problem, plan.tile
    if tile.pingpong * tile.programs > 1:
        return 0
    area, results = tile.rows * tile.columns, c.batches * c.m * c.n
    tile_ns = c.k / tile.depth * block_ns(tile, table)
    read = _read_per_result(plan.problem)
    wide = sum([n.dtype.itemsize for n in read])
    stored = sum([c.dtypes[n.arg[0]].itemsize for n in c.stores])

    def rounds(parts: int) -> int:
        return -(-plan.tiles * parts // table.processors)

    def split_ns(parts: int) -> float:
        moved = results * (2 * float32.itemsize * parts + wide + stored)
        busy = rounds(parts) * tile_ns / parts
        return float(busy + moved / table.memory_rate + table.launch_ns)

    epilogue_ns = rounds(1) * area * wide * len(read) / table.epilogue_rate
    whole_ns = product_ns(c, tile, plan.streamed > 0, table) + epilogue_ns
    best = min(range(1, most_parts(c, tile, table) + 1), key=split_ns, default=0)
    return best if best and split_ns(best) < whole_ns else 0


def part_of(plan: GluonPlan, part: Part) -> GluonPlan:
    """The plan of a part that sums over windows of K."""
    ((block, steps),), kernel = part.windows.values(), part.kernel
    sizes = tuple([n for n in kernel.axes if isinstance(n, int)])
    stores = kernel.body.src
    order = tuple([n for n in toposort([kernel.body]) if n.op is not SINK])
    problem = replace(
        plan.problem, order=order, free=free_axes(order), sizes=sizes, stores=stores,
        batch=(*plan.problem.batch, block),
    )  # fmt: skip
    return replace(plan, problem=problem, steps=steps, stored={}, staged=0, streamed=0)


def render_gluon(
    kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[Place], plan: GluonPlan,
    table: GpuTable, room: Room,
) -> Launch | None:  # fmt: skip
    """A kernel in this form: operands must be params of its own."""
    factors = [places[spec.param] for spec in (plan.left, plan.right)]
    if any(place.source != source.PARAM for place in factors):
        return None
    left, right = [
        spec._replace(param=place.value)
        for spec, place in zip((plan.left, plan.right), factors, strict=True)
    ]
    if any(places[spec.param].source != source.PARAM for spec in plan.stored.values()):
        plan = replace(plan, stored={}, staged=0)
    results = [s._replace(param=places[s.param].value) for s in plan.stored.values()]
    maps = [source.tensor_map(f"d{i}", one) for i, one in enumerate((left, right, *results))]
    if plan.streamed:
        area = plan.tile.rows * plan.tile.columns * float32.itemsize
        parts = room.take(plan.streamed * area)
        maps += [source.pointer("parts", float32, parts), source.flag_words()]
    return GemmProgram(kernel, dtypes, places, plan, table).text(maps)


class GemmProgram(TileProgram):
    """The text of one launch: producer, consumers, and the epilogue from the body."""

    def __init__(
        self, kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[Place],
        plan: GluonPlan, table: GpuTable,
    ) -> None:  # fmt: skip
        self.plan, self.problem, self.table = plan, plan.problem, table
        (self.m,), (self.n,) = plan.problem.rows, plan.problem.columns
        tile = plan.tile
        blocks = tile.rows, tile.step
        tiling = Tiling(
            (self.m, self.n), blocks, tile.warps, short=table.short_functions,
            narrow_tanh=table.narrow_tanh,
        )  # fmt: skip
        above = kernel._replace(body=SINK(*plan.problem.stores))
        self.inside = False  # is the epilogue that of tiles which do not overhang?
        self.coalesced = False  # are places at hand those of loads of 16 bytes a thread?
        self.fetching = False  # are loads begun, not read?
        super().__init__(above, dtypes, places, tiling)
        read = [n for n in self.order if n.op is LOAD and not n.src and self._is_read(n)]
        self.scalars = [n for n in read if not self.free[n]]
        self.fetched = self._prefetched([n for n in read if self.free[n] & {self.m, self.n}])

    def _prefetched(self, read: Sequence[Node]) -> list[Node]:
        """Loads of the epilogue that are on their way before they are needed, as registers allow.

        Those of the first columns are begun before the loop over K, others a step ahead. Where
        results do not leave by the copy engine nothing stands between a load and its wait.
        """
        if not self.plan.stored:
            return []
        found, tile = [], self.plan.tile
        free = tile.consumer_registers(self.plan.registers) - tile.accumulators
        left = (free - self.table.gluon_epilogue_registers) // 2
        for load in sorted(read, key=lambda n: -len(self.free[n] & {self.m, self.n})):
            elements = tile.step // 4  # of a thread in a row of accumulators
            if self.free[load] >= {self.m, self.n}:
                elements = tile.rows * tile.step // (32 * tile.warps)
            left -= elements * self.dtypes[load.arg[0]].itemsize // 4
            if left >= 0:
                found.append(load)
        return found

    # --- the epilogue ----------------------------------------------------------------------------

    def _needs(self, node: Node) -> tuple[Node, ...]:
        return () if node.op is FOLD else super()._needs(node)

    def _is_looped(self, fold: Node) -> bool:
        return False

    def _is_ragged(self, axis: int) -> bool:
        """Blocks of the epilogue are parts of a tile: it is the tile that may overhang."""
        tile = self.plan.tile
        length = tile.rows if axis == self.m else tile.columns
        return not self.inside and self.sizes[axis] % length != 0

    def _expression(self, node: Node, values: list[str], scope: Scope) -> str:
        if node.op is FOLD:
            return rounded("acc", node.dtype)
        return super()._expression(node, values, scope)

    def _tile_axis(self, scope: Scope, axis: int, start: str) -> None:
        dim, first = (1, "om") if axis == self.m else (0, "on")
        wide = ".to(tl.int64)" if self.wide else ""
        layout = "B" if self.coalesced else "L"
        arange = f"tl.arange(0, {self.block[axis]}, layout=gl.SliceLayout({dim}, {layout}))"
        scope.say(f"i{self._bound_name(axis, scope)} = {first} + {arange}{wide}")

    def _bound_name(self, axis: int, scope: Scope) -> str:
        return f"{axis}b" if self.coalesced and axis in self.block else f"{axis}"

    def _load(self, node: Node, scope: Scope) -> str:
        """Elements for each of the results are read by 16 bytes and then go where those are."""
        self.coalesced = self._is_coalesced(node)
        text = super()._load(node, scope)
        self.coalesced = False
        return text

    def _loaded(self, node: Node, scope: Scope) -> str:
        for name, known in (("u", self.scalars), ("f", self.fetched)):
            if node in known and not self.fetching:
                return f"{name}{known.index(node)}"
        return super()._loaded(node, scope)

    def _is_coalesced(self, load: Node) -> bool:
        """True if a load has another layout than results."""
        return bool(self.plan.stored) and self.free[load] >= {self.m, self.n}

    def _read(self, text: str) -> str:
        return f"gl.convert_layout({text}, L)" if self.coalesced else text

    def _store(self, store: Node, value: str, scope: Scope) -> None:
        """A result for the copy engine, through shared memory: it clips what overhangs."""
        if store not in self.plan.stored:
            super()._store(store, value, scope)
            return
        number = 2 + list(self.plan.stored).index(store)
        batches = [f"b{place}" for place in range(len(self.problem.batch))]
        tile = self.plan.tile
        scope.say(f"s{number}.reshape([{tile.rows}, {tile.step}])"
                  f".store({to_memory(value, self.dtypes[store.arg[0]])})")  # fmt: skip
        scope.say("fence_async_shared()")
        scope.say(f"tma_store(d{number}, [{', '.join([*batches, 'om', 'on'])}], s{number})")

    def _epilogue(self) -> list[str]:
        """The lines that store what is computed from some columns of the accumulators."""
        top = Scope(None, {}, 1)
        stored = len(self.plan.stored)
        if stored:  # the barrier behind it also keeps `ptxas` from making wgmma wait for each other
            top.say(f"tma.store_wait(pendings={(self.plan.staged - 1) * stored})")
        self._say_places(top)
        self._emit_roots(top)
        return top.lines

    def _say_places(self, scope: Scope) -> None:
        """The places of some columns of a tile, in both layouts."""
        layouts = 2 if self.plan.stored and _read_per_result(self.problem) else 1
        for self.coalesced in (False, True)[:layouts]:
            for axis in (self.m, self.n):
                self._tile_axis(scope, axis, "")
        self.coalesced = False
        for place, axis in enumerate(self.problem.batch):
            scope.say(f"a{axis} = b{place}{'.to(tl.int64)' if self.wide else ''}")

    def _fetch(self, loads: Sequence[Node], names: str) -> list[str]:
        """The lines that begin some loads."""
        top = Scope(None, {}, 1)
        self.fetching = True
        if names == "f":
            self._say_places(top)
        for number, load in enumerate(loads):
            self.coalesced = self._is_coalesced(load)
            top.say(f"{names}{number} = {self._loaded(load, top)}")
        self.coalesced = self.fetching = False
        return top.lines

    # --- the whole -------------------------------------------------------------------------------

    def text(self, maps: Sequence[Argument]) -> Launch:
        """The text with its grid and arguments."""
        scalars = self._fetch(self.scalars, "u")
        body, tile, sizes = _Epilogue(self._epilogue(), self._fetches()), self.plan.tile, self.sizes
        ragged = {axis: self._number(sizes[axis])
                  for axis in (self.m, self.n) if self._is_ragged(axis)}  # fmt: skip
        self.inside = True
        ragged = ragged if any("mask=" in line for line in (*body.lines, *body.fetch)) else {}
        inner = _Epilogue(self._epilogue(), self._fetches()) if ragged else None
        down, across = -(-sizes[self.m] // tile.rows), -(-sizes[self.n] // tile.columns)
        tiles = self.plan.tiles
        numbers = {
            "K": self.problem.k, **({"steps": self.plan.steps} if self.plan.steps else {}),
            "down": down, "across": across, "count": tiles,
            **{f"z{i}": sizes[a] for i, a in enumerate(self.problem.batch)},
        }  # fmt: skip
        arguments = self._arguments()
        # no address follows from them: whether 16 divides one would only make another text of it
        walk = [source.number(name, value)._replace(even=False) for name, value in numbers.items()]
        given = [*maps, *walk, *arguments]
        ends = ragged.get(self.m), ragged.get(self.n)
        names = [a.name for a in arguments], [a.name for a in walk]
        lines = _Text(self.plan, *names, ends, scalars, len(self.fetched)).lines(body, inner)
        text = definitions("\n".join(body.lines)) + "\n".join(lines) + "\n"
        text = source.with_variables(text, arguments)
        grid = self.plan.streamed or min(tiles, tile.programs * self.table.processors)
        narrow = all([self.dtypes[n.arg[0]].is_small_float for n in self.problem.stores])
        return Launch(
            text, "kernel", grid, tile.warps, 1, tuple(given), "gluon", tile.registers,
            narrow and self.table.gluon_contracted,
        )  # fmt: skip

    def _fetches(self) -> list[str]:
        """The lines that begin the loads of some columns."""
        if not self.fetched:
            return []
        names = ", ".join([f"f{number}" for number in range(len(self.fetched))])
        return [*self._fetch(self.fetched, "f"), f"    return {names}"]

    def _arguments(self) -> list[Argument]:
        """What the epilogue reads and writes, and its numbers."""
        stored = [n for n in self.order if n.op is STORE or (n.op is LOAD and self._is_read(n))]
        used = sorted({n.arg[0] for n in stored if n not in self.plan.stored})
        arguments = [source.pointer(f"p{i}", self.dtypes[i], self.places[i]) for i in used]
        arguments += [source.variable(short, name) for name, short in self.variables.items()]
        return arguments + [source.number(name, value) for value, name in self.numbers.items()]

    def _is_read(self, load: Node) -> bool:
        """True if the epilogue reads a load, not only the product."""
        return load in backward_slice(self.problem.stores, lambda node: node.op is FOLD)


@dataclass(frozen=True, slots=True)
class _Epilogue:
    """The lines that store some columns, and those that begin their loads."""

    lines: Sequence[str]
    fetch: Sequence[str]


class _Text:
    """The parts of the text that are the same for every epilogue."""

    def __init__(
        self, plan: GluonPlan, names: Sequence[str], walk: Sequence[str],
        ends: tuple[str | None, str | None], scalars: Sequence[str], fetched: int,
    ) -> None:  # fmt: skip
        self.scalars = scalars  # lines that read numbers of all tiles
        self.fetched = range(fetched)  # loads that are begun ahead
        self.plan, self.tile = plan, plan.tile
        self.ends = ends  # of rows and columns that the last tiles overhang
        self.names, self.walk = list(names), list(walk)
        self.batches = [f"b{i}" for i in range(len(plan.problem.batch))]
        self.type = f"gl.{plan.left.dtype}"
        self.results = [f"d{2 + i}" for i in range(len(plan.stored))]
        self.partials = ["parts", "flags"] if plan.streamed else []
        self.staging = [*self.results, *[f"s{2 + i}" for i in range(len(plan.stored))]]

    def lines(self, epilogue: _Epilogue, inside: _Epilogue | None) -> list[str]:
        """All functions, the kernel last; `inside` is the epilogue of tiles that need no masks."""
        layouts = ["L: gl.constexpr", "B: gl.constexpr"]
        places = ["om", "on", *self.batches]
        read = [f"f{number}" for number in self.fetched]
        read += [f"u{number}" for number in range(len(self.scalars))]
        given = ", ".join(["acc", *places, *self.staging, *self.names, *read, *layouts])
        found = []
        for name, one in (("epilogue", epilogue), ("inside", inside)):
            if one is not None:
                found += ["@gluon.jit", f"def {name}({given}):", *one.lines, "", ""]
            if one is not None and one.fetch:
                head = f"def {name}_loads({', '.join([*places, *self.names, *layouts])}):"
                found += ["@gluon.jit", head, *one.fetch, "", ""]
        found += self._partials() if self.plan.streamed else []
        return [*found, *_HALVES, *self._producer(), *self._consumer(), *self._kernel()]

    def _tile_loop(self, pingpong: bool = False) -> list[str]:
        """The loop over tiles: where each begins, and which product of a batch it is of.

        Consumers in ping-pong know which blocks of the ring are those of their tiles.
        """
        tile, found = self.tile, ["    it = 0"]
        if self.plan.streamed:
            found += [line.replace("DEPTH", str(tile.depth)) for line in _STREAM_K]
        elif pingpong:
            length = "steps" if self.plan.steps else "K"
            found += [
                f"    blocks = ({length} + {tile.depth - 1}) // {tile.depth}",
                "    programs = gl.num_programs(0)",
                "    own = gl.program_id(0) + W * programs",
                f"    for tile in range(own, tiles, {self.tile.pingpong} * programs):",
                "        it = tile // programs * blocks",
            ]
        else:
            found.append("    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):")
        found.append("        left = tile // (down * across)")
        for place in reversed(range(len(self.batches))):
            found.append(f"        b{place} = left % z{place}")
            found.append(f"        left = left // z{place}")
        return [
            *found,
            "        here = tile % (down * across)",
            f"        strip = {self.plan.group} * across",
            f"        first = here // strip * {self.plan.group}",
            f"        high = gl.minimum(down - first, {self.plan.group})",
            f"        om = (first + here % strip % high) * {tile.rows}",
            f"        on = here % strip // high * {tile.columns}",
            *self._window(),
        ]

    def _window(self) -> list[str]:
        """From where to where a tile sums along K."""
        if self.plan.streamed:
            depth = self.tile.depth
            return [
                f"        k0 = (begun - start) * {depth}",
                f"        k1 = gl.minimum((upto - start) * {depth}, K)",
            ]
        if not self.plan.steps:
            return ["        k0 = 0", "        k1 = K"]
        first = f"{self.batches[-1]} * steps"
        if self.tile.pingpong > 1:  # all have as many blocks; beyond K there are zeros
            return [f"        k0 = {first}", "        k1 = k0 + steps"]
        return [f"        k0 = {first}", "        k1 = gl.minimum(k0 + steps, K)"]

    def _ring(self) -> list[str]:
        return [
            f"            slot = it % {self.tile.buffers}",
            f"            phase = it // {self.tile.buffers} & 1",
        ]

    def _producer(self) -> list[str]:
        places = []
        batches = self.batches[:-1] if self.plan.steps else self.batches
        for own, transposed in zip(("om", "on"), self.plan.transposed, strict=True):
            pair = ("k", own) if transposed else (own, "k")
            places.append(f"[{', '.join([*batches, *pair])}]")
        given = ["d0", "d1", "ab", "bb", "empty", "ready", "tiles", *self.walk]
        copies = [
            f"            tma_load(d{i}, {places[i]}, ready.index(slot), {'ab'[i]}b.index(slot))"
            for i in range(2)
        ]
        return [
            "@gluon.jit", f"def produce({', '.join(given)}):", *self._tile_loop(),
            f"        for k in range(k0, k1, {self.tile.depth}):", *self._ring(),
            "            mbarrier.wait(empty.index(slot), phase ^ 1)",
            "            mbarrier.expect(ready.index(slot), "
            "d0.block_type.nbytes + d1.block_type.nbytes)",
            *copies, "            it += 1", "", "",
        ]  # fmt: skip

    def _consumer(self) -> list[str]:
        tile = self.tile
        given = ["ab", "bb", *self._staging(), "empty", "ready", "tiles", *self.walk, *self.names]
        given += self.partials
        given += ["order", "W: gl.constexpr"] if tile.pingpong > 1 else []
        rows = tile.rows, tile.depth
        columns = tile.depth, tile.columns
        left, right = self.plan.transposed
        blocks = [
            f"{name}b.index(slot).reshape([{low}, {high}]).permute((1, 0))"
            if permuted
            else f"{name}b.index(slot).reshape([{high}, {low}])"
            for name, (high, low), permuted in (("a", rows, left), ("b", columns, not right))
        ]
        across = tile.step // 8  # threads beside each other, with 8 columns each
        wide = f"gl.BlockedLayout([1, 8], [{32 // across}, {across}], [{tile.warps}, 1], [1, 0])"
        wait, pass_on = _PINGPONG if tile.pingpong > 1 else ([], [])
        body = [
            *([] if self.plan.streamed else self._branches(self._fetch_first)),
            f"        acc = gl.zeros([{tile.rows}, {tile.columns}], gl.float32, C)", *wait,
            f"        for k in range(k0, k1, {tile.depth}):", *self._ring(),
            "            mbarrier.wait(ready.index(slot), phase)",
            f"            acc = warpgroup_mma({blocks[0]}, {blocks[1]}, acc, is_async=True)",
            "            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))",
            f"            mbarrier.arrive(empty.index((it + {tile.buffers - 1}) % {tile.buffers}), "
            "count=1, pred=k > k0)",
            "            it += 1", *pass_on,
            "        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))",
            f"        mbarrier.arrive(empty.index((it + {tile.buffers - 1}) % {tile.buffers}), "
            "count=1)",
            *self._finish(),
        ]  # fmt: skip
        return [
            "@gluon.jit", f"def consume({', '.join(given)}):",
            f"    C: gl.constexpr = {self._fragment(tile.columns)}",
            f"    L: gl.constexpr = {self._fragment(tile.step) if self.plan.stored else wide}",
            f"    B: gl.constexpr = {wide}",
            *self.scalars, *self._tile_loop(tile.pingpong > 1), *body,
            *(["    tma.store_wait(pendings=0)"] if self.plan.stored else []), "", "",
        ]  # fmt: skip

    def _fragment(self, columns: int) -> str:
        """The layout of accumulators."""
        return (
            f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[{self.tile.warps}, 1], "
            f"instr_shape=[16, {columns}, 16])"
        )

    def _staging(self) -> list[str]:
        return [*self.results, *[f"s{2 + i}b" for i in range(len(self.results))]]

    def _finish(self) -> list[str]:
        """The epilogue; only tiles that overhang look where the result ends.

        A mask that ends anywhere would make vectors of stores single elements.
        """
        found = self._stored_tile()
        if not self.plan.streamed:
            return found
        kept = self._steps("acc", 0, self.tile.columns, "keep")
        return [
            "        if upto < start + blocks:", *[f"    {line}" for line in kept], *_SIGNAL,
            "        else:", *_WAIT, *[f"    {line}" for line in found],
        ]  # fmt: skip

    def _stored_tile(self) -> list[str]:
        return self._branches(lambda function: [
            *(self._fetch_first(function) if self.plan.streamed else []),
            *self._steps("acc", 0, self.tile.columns, function),
        ])  # fmt: skip

    def _branches(self, lines: Callable[[str], list[str]]) -> list[str]:
        """Lines for tiles that overhang, and for others."""
        firsts = zip(("om", "on"), (self.tile.rows, self.tile.columns), self.ends, strict=True)
        tests = [f"{first} + {length} <= {end}" for first, length, end in firsts if end]
        if not tests:
            return lines("epilogue")
        branches = {f"if {' and '.join(tests)}:": "inside", "else:": "epilogue"}
        found = []
        for test, function in branches.items():
            inner = [f"    {line}" for line in lines(function)]
            found += [f"        {test}", *inner] if inner else []
        return found

    def _fetch_first(self, function: str) -> list[str]:
        """Begin the loads of the first columns."""
        return self._fetch(function, 0)

    def _fetch(self, function: str, first: int) -> list[str]:
        """Begin the loads of some columns, if there are such loads."""
        if not self.fetched:
            return []
        names = ", ".join([f"f{first}_{number}" for number in self.fetched])
        given = ", ".join(["om", f"on + {first}", *self.batches, *self.names, "L", "B"])
        return [f"        {names} = {function}_loads({given})"]

    def _steps(self, name: str, first: int, columns: int, function: str) -> list[str]:
        """The epilogue of some columns: of halves, until they are few enough."""
        if columns > self.tile.step:
            half = columns // 2
            low, high = f"{name}l", f"{name}h"
            split = f"        {low}, {high} = halves({name}, {self.tile.rows}, {half})"
            return [
                split, *self._steps(low, first, half, function),
                *self._steps(high, first + half, half, function),
            ]  # fmt: skip
        place = f"{first // self.tile.step % max(1, self.plan.staged)}"
        if self.tile.pingpong > 1:
            place = f"W * {self.plan.staged} + {place}"
        part = f"gl.convert_layout({name}, L)"
        if function == "keep":
            return [f"        keep({part}, parts, p, {first}, L)"]
        if self.plan.streamed:
            part = f"gather({part}, parts, q0, p, {first}, L)"
        staging = [*self.results, *[f"s{d[1:]}b.index({place})" for d in self.results]]
        read = [f"f{first}_{number}" for number in self.fetched]
        read += [f"u{number}" for number in range(len(self.scalars))]
        given = ", ".join(
            ["om", f"on + {first}", *self.batches, *staging, *self.names, *read, "L", "B"]
        )
        following = first + self.tile.step
        ahead = self._fetch(function, following) if following < self.tile.columns else []
        return [*ahead, f"        {function}({part}, {given})"]

    def _partials(self) -> list[str]:
        """Functions by which partial tiles are kept in the workspace, and added up in order."""
        tile = self.tile
        places = [
            f"    i = tl.arange(0, {tile.rows}, layout=gl.SliceLayout(1, L))",
            f"    j = tl.arange(0, {tile.step}, layout=gl.SliceLayout(0, L))",
            f"    at = parts + first * {tile.rows} + "
            f"(i[:, None] * 8 + (j // 8 * {8 * tile.rows} + j % 8)[None, :])",  # as warps have them
        ]
        area = tile.rows * tile.columns
        return [
            "@gluon.jit", "def keep(x, parts, p, first: gl.constexpr, L: gl.constexpr):", *places,
            f"    tl.store(at + p * {area}, x)", "", "",
            "@gluon.jit",
            "def gather(x, parts, q0, p, first: gl.constexpr, L: gl.constexpr):", *places,
            "    for q in range(q0, p):",
            f'        x += tl.load(at + q * {area}, cache_modifier=".cg")',
            "    return x", "", "",
        ]  # fmt: skip

    def _kernel(self) -> list[str]:
        tile, plan = self.tile, self.plan
        shared = ["empty", "ready", "tiles", *self.walk]
        consumed = ["ab", "bb", *self._staging(), *shared, *self.names, *self.partials]
        produced = ", ".join(["d0", "d1", "ab", "bb", *shared])
        names = ", ".join(["d0", "d1", *self.results, *self.partials, *self.walk, *self.names])
        rings = [("a", "d0", plan.left, tile.buffers), ("b", "d1", plan.right, tile.buffers)]
        rings += [
            (f"s{d[1:]}", d, spec, tile.pingpong * plan.staged)
            for d, spec in zip(self.results, plan.stored.values(), strict=True)
        ]
        memory = [
            f"    {name}b = gl.allocate_shared_memory(gl.{spec.dtype}, "
            f"[{count}, {', '.join(map(str, spec.block))}], {key}.layout)"
            for name, key, spec, count in rings
        ]
        barriers = [
            f"    {name} = gl.allocate_shared_memory(gl.int64, [{tile.buffers}, 1], "
            "mbarrier.MBarrierLayout())"
            for name in ("empty", "ready")
        ]
        if tile.pingpong > 1:
            barriers += [
                f"    order = gl.allocate_shared_memory(gl.int64, [{tile.pingpong}, 1], "
                "mbarrier.MBarrierLayout())",
                f"    for i in gl.static_range({tile.pingpong}):",
                "        mbarrier.init(order.index(i), count=1)",
            ]
        own = [f", order, {n}" for n in range(tile.pingpong)] if tile.pingpong > 1 else [""]
        consumers = ", ".join([f"(consume, ({', '.join(consumed)}{given}))" for given in own])
        warps = [*[tile.warps] * (tile.pingpong - 1), 1]
        registers = [*[plan.consuming] * (tile.pingpong - 1), plan.registers]
        return [
            "@gluon.jit", f"def kernel({names}):", "    tiles = count", *memory, *barriers,
            f"    for i in gl.static_range({tile.buffers}):",
            "        mbarrier.init(empty.index(i), count=1)",
            "        mbarrier.init(ready.index(i), count=1)",
            f"    gl.warp_specialize([{consumers}, (produce, ({produced}))], {warps}, {registers})",
        ]  # fmt: skip


# Stream-K (Osama et al. 2023): whole rounds of tiles first; the blocks of K of the tiles that are
# left are shared out evenly, and a program takes its tiles from the last to the first. So the part
# of a tile that it leaves to others, always the tile's beginning, is done first, and who has the
# end of a tile waits for programs before it alone, which adds them up in their order.
_STREAM_K = [
    "    blocks = (K + DEPTH - 1) // DEPTH",
    "    p = gl.program_id(0)",
    "    programs = gl.num_programs(0)",
    "    rounds = gl.maximum(tiles // programs - 1, 0)",
    "    whole = rounds * programs * blocks",
    "    each = (tiles * blocks - whole) // programs",
    "    more = (tiles * blocks - whole) % programs",
    "    begin = whole + p * each + gl.minimum(p, more)",
    "    end = begin + each + tl.where(p < more, 1, 0)",
    "    last = (end + blocks - 1) // blocks",
    "    units = rounds + tl.where(end > begin, last - begin // blocks, 0)",
    "    for unit in range(0, units):",
    "        tile = tl.where(unit < rounds, p + unit * programs, last - 1 - (unit - rounds))",
    "        start = tile * blocks",
    "        begun = tl.where(unit < rounds, start, gl.maximum(begin, start))",
    "        upto = tl.where(unit < rounds, start + blocks, gl.minimum(end, start + blocks))",
]
_SIGNAL = [
    "            tl.debug_barrier()",
    '            tl.atomic_xchg(flags + p, 1, sem="release")',
]
_WAIT = [
    "            q0 = p",
    "            if begun > start:",
    "                long = more * (each + 1)",
    "                q0 = tl.where(start - whole < long, (start - whole) // (each + 1), "
    "more + (start - whole - long) // gl.maximum(each, 1))",
    "                for q in range(q0, p):",
    '                    seen = tl.atomic_cas(flags + q, 1, 0, sem="acquire")',
    "                    while seen == 0:",
    '                        seen = tl.atomic_cas(flags + q, 1, 0, sem="acquire")',
]

# Ping-pong: a consumer begins when the other has all blocks of its tile, since barriers of the ring
# tell phases apart by their parity alone; its epilogue is beside the other's loop.
_PINGPONG = (
    ["        mbarrier.wait(order.index(W), (tile // programs // 2 & 1) ^ (1 - W))"],
    ["        mbarrier.arrive(order.index(1 - W), count=1)"],
)

_HALVES = [
    "@gluon.jit", "def halves(x, R: gl.constexpr, W: gl.constexpr):",
    "    return gl.split(gl.permute(gl.reshape(x, [R, 2, W]), [0, 2, 1]))", "", "",
]  # fmt: skip
