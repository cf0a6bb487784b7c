"""Contractions: which kernels are a Σ over a product, which axes play which part, how it is cut.

In: an `IndexKernel`. Out: a `Contraction`: the fold, its two factors, and the axes as batch, rows
(of the left factor only; none where it is a vector), columns (of the right factor only, along which
results are stored) and folded ones; or None. Each part of the kernel (a factor, or what is computed
from the sum) walks lines of axes of its own, merged where that part's memory allows it. A `Cut`
says how large tiles are and how each factor reaches the microkernel. All of it is plain data made
from sizes, steps and dtypes: nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import cbrt, prod, sqrt

from ...core.node import Node, toposort
from ...core.ops.elementwise import MUL
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...graph.ir.affine import Affine
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices

DEPTH = 256  # of a block of k: it decides the order of additions, so it is no machine's business
SHALLOW = 64  # the same for a small product
SMALL = 1 << 20  # products of two numbers of a small one
TINY = 1280  # results of one so few that libraries sum them along lanes of k
STEPS = 32  # of k from which they do
LANED = 2048  # of a block of k where a vector is packed
LINED = 512  # the same where both factors are packed along k
SCRATCH = 248 << 10  # bytes of a thread's stack that one tile may take
SUMS = 144 << 10  # bytes of a tile's sums
TALL_SUMS = 264 << 10  # where the tile packs its own columns, for as many rows as there are
HUGE = 1 << 21  # results of a product so large that factors come from far away
FAR = 8 << 10  # bytes between rows that fall into few sets of the second cache
ROW = 2 << 10  # bytes of one row of them
SWEPT = (384, 4096)  # columns of a matrix that a vector's tile should have, at least and at most
SWEEP = 1 << 16  # products that a chunk of a vector should have at least
SWEPT_DEPTH = 256  # steps of k that windows are swept over with, whose products are one sum
ENOUGH = 8  # tiles that keep threads busy
EVEN = 24  # tiles so few that threads should have equally many
SPLIT = 1 << 15  # results that are few enough for several sums each
CHUNKS = 16  # sums of one result at most, each over a chunk of k
CHUNK = 4  # blocks of k that are worth a sum of their own
SHORT = 8  # numbers next to each other that are not worth a vector
ROOM = 160 << 20  # bytes of workspace that packed columns may take
FEW = 8  # rows that are too few to pay for packing the columns
NEAR_ROWS = 256  # of a left factor that is turned, which can be read across its lines
FEW_COLUMNS = (
    32  # results of a row that may be stored apart, so that rows are read in whole vectors
)
FEW_BLOCKS = (24, 14)  # blocks of rows that are too few for it, where columns lie near
SLIM = 256  # bytes of rows of the right factor that are never worth it
USED = 64  # columns that pay for packing a left factor that is turned
DOUBLE = 1 << 22  # products so few that two tiles had better pack the same columns each
MODEST = 1 << 25  # products of two numbers that are soon done, so that nobody should pack alone
CLOSE = 32 << 10  # bytes of a right factor that stays in the first cache as it is
PAGE = 4096  # bytes between rows that a few more rows of the left factor may read
NEAR = 1024  # bytes between rows of memory that microkernels may read as they are
LONG = 512  # columns that are enough for tiles of their own
LITTLE = 8192  # sums of a tile whose depth is small: they must not leave the nearest cache
WORTH = 1 << 18  # products that a tile should have at least


@dataclass(frozen=True, slots=True)
class Contraction:
    """A Σ over a product, and the part that every axis plays."""

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

    def count(self, axes: Iterable[int]) -> int:
        """How many steps some axes have together."""
        return prod([self.sizes[a] for a in axes])


@dataclass(frozen=True, slots=True)
class Line:
    """Axes that one part of a kernel walks as one index, outermost first."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    inner: frozenset[int]  # the kernel's axes that the innermost one stands for


@dataclass(frozen=True, slots=True)
class Part:
    """A factor, or what is computed from the sum: its nodes and its lines."""

    nodes: tuple[Node, ...]  # sources first
    batch: Line
    rows: Line
    columns: Line
    folded: Line
    absorbed: frozenset[int]  # axes that went into their neighbour


def find_contraction(kernel: IndexKernel) -> Contraction | None:
    """The contraction that a kernel is, if it is one."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    if len(sizes) != len(kernel.axes) or not all(sizes):
        return None
    order = [n for n in toposort([kernel.body]) if n.op is not SINK]
    folds = [n for n in order if n.op is FOLD]
    stores = kernel.body.src
    if len(folds) != 1 or any(n.op in (RUN, ORDER) or _varies(n) for n in order):
        return None
    if not all(s.op is STORE and s.arg[2] == "set" and len(s.src) == 1 for s in stores):
        return None
    fold = folds[0]
    product = fold.src[0]
    if fold.arg[0] != "add" or product.op is not MUL or fold.dtype.kind not in "iuf":
        return None
    free = free_axes(order)
    folded = frozenset(fold.arg[1])
    first, second = product.src
    both = free[first] & free[second]
    own = [free[first] - both - folded, free[second] - both - folded]
    if not any(own) or not folded <= free[first] | free[second] or not folded & both:
        return None
    everything = own[0] | own[1] | (both - folded)
    if not all(free[s] == everything for s in stores):
        return None
    sides = [(first, own[0]), (second, own[1])]
    steps = steps_of(stores)
    sides.sort(key=lambda side: _runs_along(side[1], stores, sizes))
    if _lies_along_rows(sides[0], sides[1], prod([sizes[a] for a in folded]), sizes):
        sides.reverse()
    (left, rows), (right, columns) = sides
    return Contraction(
        order=tuple(order), free=free, sizes=tuple(sizes), stores=tuple(stores),
        fold=fold, left=left, right=right,
        batch=ordered(both - folded, steps), rows=ordered(rows, steps),
        columns=ordered(columns, steps),
        folded=ordered(folded, steps_of([n for n in toposort([left]) if n.op is LOAD])),
    )  # fmt: skip


def _lies_along_rows(
    left: tuple[Node, frozenset[int]], right: tuple[Node, frozenset[int]], depth: int,
    sizes: Sequence[int],
) -> bool:  # fmt: skip
    """Does memory have many rows next to each other, and are there few columns beside them?

    Then rows are better lanes, if k is long enough to pay for results that are stored apart.
    """
    if left[0].op is not LOAD or right[0].op is not LOAD:
        return False
    rows, columns = [prod([sizes[a] for a in axes]) for _, axes in (left, right)]
    along = any(step == 1 and atom in left[1] for atom, step in left[0].arg[1][1])
    pays = depth >= (6 if rows <= NEAR_ROWS else 3) * columns
    pays = pays or (columns <= FEW and bool(left[0].arg[2]))  # windows are packed, or swept over
    return along and bool(right[1]) and columns <= FEW_COLUMNS < rows and pays


def _varies(node: Node) -> bool:
    """Is it an index checked against a size that only a run knows?"""
    return node.op is GUARD and len(node.src) > 1


def steps_of(nodes: Sequence[Node]) -> dict[int, int]:
    """The largest step of each axis in the indices of loads or stores."""
    found: dict[int, int] = {}
    for node in nodes:
        for atom, step in node.arg[1][1]:
            if isinstance(atom, int):
                found[atom] = max(found.get(atom, 0), abs(step))
    return found


def ordered(axes: frozenset[int], steps: dict[int, int]) -> tuple[int, ...]:
    """Outermost first: large steps before small ones."""
    return tuple(sorted(axes, key=lambda a: (-steps.get(a, 0), a)))


def _runs_along(
    axes: frozenset[int], stores: Sequence[Node], sizes: Sequence[int]
) -> tuple[int, int]:
    """How many stores run along some axes with step 1, and how many steps the axes have."""
    along = sum((a, 1) in s.arg[1][1] for s in stores for a in axes)
    return along, prod([sizes[a] for a in axes])


# --- lines ---------------------------------------------------------------------------------------


def part(c: Contraction, roots: Sequence[Node], stop: Node | None = None) -> Part:
    """The part that computes some nodes, not going below `stop`."""
    nodes = reached(roots, (stop,))
    found: list[dict[int, int]] = []
    for node in nodes:
        for index in indices(node):
            collect(index, found)
    absorbed: set[int] = set()
    batch, rows, columns, folded = [
        line_of(axes, c.sizes, found, absorbed) for axes in (c.batch, c.rows, c.columns, c.folded)
    ]
    return Part(tuple(nodes), batch, rows, columns, folded, frozenset(absorbed))


def reached(roots: Sequence[Node], stops: Collection[Node | None]) -> list[Node]:
    """The nodes under some roots, sources first, without what is below `stops`."""
    seen: set[Node] = set()
    order: list[Node] = []
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if node not in stops:
                stack.extend((s, False) for s in reversed(node.src))
    return order


def collect(index: Affine, found: list[dict[int, int]]) -> None:
    """The steps of the axes of an index, and of those that it divides."""
    found.append({atom: step for atom, step in index[1] if isinstance(atom, int)})
    for atom, _ in index[1]:
        if isinstance(atom, tuple):
            collect(atom[1], found)


def line_of(
    axes: Sequence[int], sizes: Sequence[int], found: Sequence[dict[int, int]], absorbed: set[int]
) -> Line:
    """Neighbours become one where every index walks them as one."""
    kept: list[int] = []
    length: list[int] = []
    members: list[set[int]] = []
    for axis in axes:
        size = sizes[axis]
        if kept and all(s.get(kept[-1], 0) == s.get(axis, 0) * size for s in found):
            absorbed.add(kept[-1])
            kept[-1] = axis
            length[-1] *= size
            members[-1].add(axis)
        else:
            kept.append(axis)
            length.append(size)
            members.append({axis})
    return Line(tuple(kept), tuple(length), frozenset(members[-1] if members else ()))


def outer_columns_as_batch(c: Contraction) -> Contraction:
    """The same with columns that results have next to each other; others become a batch.

    Images of a convolution are then products of their own. The left factor must need no packing,
    which would be done again for each of them.
    """
    line = part(c, c.stores, c.fold).columns
    if len(line.axes) == 1 or line.sizes[-1] < LONG:
        return c
    outer = tuple(a for a in c.columns if a not in line.inner)
    inner = tuple(a for a in c.columns if a in line.inner)
    return replace(c, batch=(*c.batch, *outer), columns=inner)


# --- how a factor is read ------------------------------------------------------------------------


def runs(p: Part, own: Line) -> str:
    """Along which line a factor's memory runs with step 1: `own`, `folded`, or `none`."""
    loads = [node for node in p.nodes if node.op is LOAD]
    score = {"own": 0, "folded": 0}
    for node in loads:
        for name, line in (("own", own), ("folded", p.folded)):
            if line.axes and (line.axes[-1], 1) in node.arg[1][1]:
                score[name] += line.sizes[-1]
    if max(score.values()) < (SHORT if len(p.nodes) > 1 else 1):
        return "none"  # a few numbers at a time are no better than one
    return "own" if score["own"] >= score["folded"] else "folded"


def is_plain(p: Part, root: Node, own: Line, along: str) -> bool:
    """Is a factor memory as it is: one load, one axis each way, step 1 along the right one?"""
    if root.op is not LOAD or root.src or root.arg[2]:
        return False
    if len(own.axes) > 1 or len(p.folded.axes) != 1:
        return False
    terms = root.arg[1][1]
    if not all(isinstance(atom, int) for atom, _ in terms):
        return False
    axes = own.axes if along == "own" else p.folded.axes
    return any((axis, 1) in terms for axis in axes)


# --- cutting -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """What the cut must know of the microkernel."""

    height: int  # rows of a register block
    panel: int  # columns of a register block
    lanes: int
    bytes: int  # of one number


@dataclass(frozen=True, slots=True)
class Cut:
    """Tiles, and the way each factor goes: `plain`, `own` (packed by a tile), or `shared`."""

    left: str
    right: str
    rows: int  # of a tile
    columns: int
    block: int  # steps of k that are summed before they are added to the sums
    depth: int  # of a block of k, as packed: with room for the lanes after the last k
    stride: int  # between packed rows of the left factor
    direct: bool = False  # are sums kept where results go?
    chunks: int = 1  # of k, which are summed apart and joined in order
    tiles: int = (
        0  # of columns, nearly equal in vectors, which have `columns` at most; 0: all alike
    )

    def scratch(self, lanes: int) -> tuple[int, int, int]:
        """Numbers in a tile's own packed left factor, packed right factor and sums."""
        left = (self.rows + lanes) * self.stride if self.left == "own" else 0
        right = self.columns * self.depth if self.right == "own" else 0
        apart = self.direct or self.chunks > 1  # are sums elsewhere?
        return left, right, 0 if apart else self.rows * self.columns + lanes


def cut(
    batch: int, rows: int, columns: int, depth: int, block: Block, plain: tuple[bool, bool],
    direct: bool = False, split: bool = False, lined: bool = False, turned: bool = False,
    fine: bool = True,
) -> Cut:  # fmt: skip
    """Tiles for a contraction of these sizes; `plain`: which factors are memory as it is, `split`:
    may k be cut in chunks?, `lined`: are both factors packed along k?, `turned`: does memory have
    the left one along its rows?, `fine`: are sums of a small product in several chunks?"""
    if rows == 1 and plain[1]:
        return _swept(batch, columns, depth, block, plain[0], direct, split)
    steps = LINED if lined else block_of_k(rows, columns, depth, fine)
    deep = min(steps, _up(depth, block.lanes)) + block.lanes
    chunks = chunks_of_k(batch, rows, columns, depth, max(steps, SHALLOW)) if split else 1
    blocks = -(-depth // steps)  # maybe more than were counted: no chunk must be empty
    chunks = in_chunks(blocks, -(-blocks // chunks))
    near_sums, enough = direct or chunks > 1, 1 if chunks > 1 else ENOUGH
    across = columns % block.lanes > 0 and 2 * columns * block.bytes > NEAR  # of lines, and many
    few = rows <= FEW_BLOCKS[across] * block.height or columns * block.bytes <= SLIM
    near = columns * block.bytes <= NEAR and (few or columns * depth * block.bytes <= CLOSE)
    huge = rows * columns >= HUGE and depth * block.bytes >= FAR
    reads = plain[0] and not (turned and USED <= columns <= ROW // block.bytes)
    left = "shared" if huge else "plain" if reads else "own"
    one = not huge and rows <= _largest(block, deep, columns, left, "own", near_sums)[0]
    panels, products = -(-columns // block.panel), rows * columns * depth
    many = batch * panels >= enough or products < 2 * WORTH
    many = many or (panels > 1 and left == "plain" and products < MODEST)
    packed = batch * _up(columns, block.panel) * _up(depth, block.lanes) * block.bytes
    short = columns * block.bytes <= PAGE and rows <= 4 * block.height
    if plain[1] and (rows <= FEW or near or short):
        right = "plain"
    elif (one and many) or packed > ROOM or lined:
        right = "own"  # a tile has all rows, so nobody else needs its columns
    else:
        right = "shared"
    most = _largest(block, deep, columns, left, right, near_sums)
    over = left == "own" and right != "own" and columns <= most[1]  # tiles have whole rows
    if depth <= DEPTH // 4 and not over:
        little = 2 * LITTLE if right == "own" else LITTLE
        whole = right == "own" or rows * columns <= LITTLE
        tall = most[0] if whole else min(most[0], 2 * block.height)
        room = max(block.panel, little // min(rows, tall) // block.panel * block.panel)
        most = tall, min(most[1], room)
    tall = _even(rows, most[0], block.height)
    wide = _even(columns, most[1], block.panel)
    if over or right == "plain":
        parts = _parts(batch, products)
        if wide >= columns and 2 * parts * block.height <= rows and chunks == 1:
            enough = 1  # what such tiles pack and write is no other thread's
            tall = min(tall, -(-rows // parts))
    least = block.panel if right == "own" else 2 * block.panel
    while wide > least and (_tiles(batch, rows, columns, tall, wide) < enough):
        if tall * wide * depth < 2 * WORTH:
            break
        wide = _up(wide // 2, block.panel)
    while tall > 2 * block.height and _tiles(batch, rows, columns, tall, wide) < enough:
        again = right == "own" and not lined  # would the same columns be packed again?
        if again or tall * wide * depth < 2 * WORTH:
            break
        tall = _up(tall // 2, block.height)
    if left == "own" and wide < columns:
        left = "plain" if plain[0] else "shared"  # several tiles would pack the same rows
    return Cut(left, right, tall, wide, steps, deep, deep, direct, chunks)


def doubled(found: Cut, rows: int, columns: int, depth: int, block: Block) -> Cut:
    """The same with two tiles that pack both factors, where that beats fetching what others packed.

    A line that another thread wrote takes longer to come than to be packed again.
    """
    twice = replace(found, right="own", rows=-(-rows // 2))
    small = 3 * WORTH <= rows * columns * depth <= DOUBLE and 4 * block.height <= rows
    whole = (found.left, found.right) == ("own", "shared") and found.columns >= columns
    fits = found.direct and sum(twice.scratch(block.lanes)) * block.bytes <= SCRATCH
    return twice if small and whole and fits and found.chunks == 1 else found


def evened(found: Cut, columns: int, block: Block, most: int) -> Cut:
    """The same with an even number of tiles of columns, of a panel or up to `most` vectors each,
    where tiles of one panel are so few that one more or less would keep others waiting."""
    vectors, panel = -(-columns // block.lanes), block.panel // block.lanes
    tiles = vectors // panel // 2 * 2
    few = found.columns == block.panel and 2 <= tiles <= EVEN
    if found.right != "own" or found.chunks > 1 or not few:
        return found
    even = replace(found, columns=2 * block.panel, tiles=tiles)  # a panel and what is beside it
    fits = sum(even.scratch(block.lanes)) * block.bytes <= SCRATCH
    return even if fits and tiles * panel < vectors <= tiles * most else found


def _swept(
    batch: int, columns: int, depth: int, block: Block, plain: bool, direct: bool, split: bool
) -> Cut:
    """Tiles for a vector times a matrix that is read as it lies: whole rows, and chunks of k.

    Rows that are cut in short ones are not fetched ahead.
    """
    each = SHALLOW if columns * depth <= SMALL else DEPTH
    chunks = chunks_of_k(batch, 1, columns, depth, each) if split else 1
    steps = _up(-(-depth // chunks), each)  # wide sums have no need of blocks
    if not plain:
        steps = min(steps, LANED)
        blocks = -(-depth // steps)
        chunks = in_chunks(blocks, -(-blocks // chunks))
    deep = min(steps, _up(depth, block.lanes)) + block.lanes
    wide = _even(columns, SWEPT[1], block.panel)
    while wide > SWEPT[0] and wide * depth >= 2 * SWEEP:
        if chunks * _tiles(batch, 1, columns, 1, wide) >= ENOUGH // 2:
            break
        wide = _up(wide // 2, block.panel)
    left = "plain" if plain else "own" if wide >= columns else "shared"
    found = Cut(left, "plain", 1, wide, steps, deep, deep, direct, chunks)
    fits = sum(found.scratch(block.lanes)) * block.bytes <= SCRATCH
    return found if fits else replace(found, left="shared")


def swept_windows(batch: int, rows: int, columns: int, depth: int, direct: bool) -> Cut:
    """Tiles for a few rows that sweep over windows of memory: all rows, and many columns."""
    wide = _even(columns, SWEPT[1] if direct else SWEPT[1] // 4, SHORT * 2)
    while wide > SWEPT[0] and _tiles(batch, rows, columns, rows, wide) < ENOUGH:
        wide = _up(wide // 2, SHORT * 2)
    return Cut("plain", "swept", rows, wide, depth, depth, depth, direct)


def block_of_k(rows: int, columns: int, depth: int, fine: bool = True) -> int:
    """Steps of k that are summed before they are added: it decides the order of additions.

    Libraries sum small products along lanes of k, which is more exact than one chain of `DEPTH`.
    About as many blocks as the third root of the depth are as exact, whether sums grow or not; in
    one chunk half the square root of them are nearly so.
    """
    if is_tiny(rows, columns, depth):
        return -(-depth // round(cbrt(1.7 * depth) if fine else max(2.0, sqrt(depth) / 2)))
    return SHALLOW if rows * columns * depth <= SMALL and depth > DEPTH else DEPTH


def is_tiny(rows: int, columns: int, depth: int) -> bool:
    """Is it a product that libraries sum along lanes of k?"""
    results = rows * columns
    return results * depth <= SMALL and results <= TINY and depth >= STEPS


def chunks_of_k(batch: int, rows: int, columns: int, depth: int, steps: int) -> int:
    """How many chunks of k are summed apart: several where results are few and k is long.

    Threads then share k, and no factor is read again for each of many small tiles.
    """
    blocks = -(-depth // steps)
    if rows == 1:  # a vector sweeps over whole rows of memory
        wanted = min(blocks, columns * depth // SWEEP)
    elif rows * columns > SPLIT or depth < 8 * max(rows, columns, steps):
        return 1
    else:
        wanted = blocks // CHUNK
    return in_chunks(blocks, -(-blocks // max(1, min(CHUNKS // batch, wanted))))


def in_chunks(blocks: int, each: int) -> int:
    """How many chunks of so many blocks there are, none of them empty."""
    chunks = -(-blocks // each)
    return -(-blocks // -(-blocks // chunks))


def _parts(batch: int, products: int) -> int:
    """How many tiles of whole rows keep threads busy: even numbers of them, each worth it."""
    parts = 1
    while batch * parts < ENOUGH and products >= 3 * parts * WORTH:
        parts *= 2
    return parts


def _tiles(batch: int, rows: int, columns: int, tall: int, wide: int) -> int:
    return batch * -(-rows // tall) * -(-columns // wide)


def _largest(
    block: Block, deep: int, columns: int, left: str, right: str, direct: bool
) -> tuple[int, int]:
    """The largest tile: its sums stay in the second cache, its scratch fits."""
    room = SCRATCH // block.bytes - 2 * block.lanes * deep
    sums = SUMS // block.bytes
    wide = min(ROW // block.bytes // block.panel * block.panel, _up(columns, block.panel))
    if right == "own":
        most = room if direct and left != "own" else room * 3 // 5
        wide = min(wide, max(block.panel, most // deep // block.panel * block.panel))
        room -= wide * deep
        sums = TALL_SUMS // block.bytes if direct else room
    each = (0 if direct else wide) + (deep if left == "own" else 0)
    tall = min(room // max(each, 1), sums // wide) // block.height * block.height
    return max(block.height, tall), wide


def _even(size: int, most: int, step: int) -> int:
    """The size of tiles that are nearly equal."""
    if size <= most:
        return _up(size, step)
    return _up(-(-size // -(-size // most)), step)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
