"""Concatenation in place: who computes a part stores it where the joined array has it.

In: a `Schedule`, and who plans a kernel of another body anew. Out: the same schedule, in which each
part of a joined array is as large as that array, and its kernel stores the part at its place there;
`joined` says whose memory is one. The kernel that joined them is a copy of that memory onto itself,
which is left out once memory is planned. A gradient of slices of one array (queries, keys and
values of one projection) is such a sum of padded parts. Nobody reads the room beside a part, and
nobody writes it.

Legal are parts that one kernel stores and the joint alone reads, which lie side by side along one
axis, and whose last axis stays the last. Products stay as they are: theirs are stored by the copy
engine, along rows. A part of -0 is no longer added to zeros, so it stays -0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, Shape, toposort
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.elementwise import ADD
from ...core.ops.leaf import PARAM, SINK, param
from ...core.ops.movement import PAD, PERMUTE, RESHAPE, pad, pairs, permute, reshape, shrink
from ...core.rewriting.substitute import substitute
from ...graph.ir.kernel import Item, Kernel, Schedule
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import ROOM
from .aligned_rows import UNIT

_STORES = (KernelKind.MAP, KernelKind.REDUCE, KernelKind.FOLD)  # wherever they are told to
Plan = Callable[[Kernel], object]  # a kernel with a plan, planned anew; None: it has none


class Part(NamedTuple):
    """A param of a joint, and the moves from it to the joined array."""

    number: int
    shape: Shape  # that the joint sees
    moves: tuple[Node, ...]


def concat_in_place(schedule: Schedule, plan: Plan) -> Schedule:
    """The schedule with parts of joined arrays in their memory."""
    work = _Joining(schedule, plan)
    for number, item in enumerate(schedule.items):
        if parts := parts_of(item.kernel):
            work.join(number, parts)
    if not work.joined:
        return schedule
    slots, items = tuple(work.slots), tuple(work.items)
    return schedule._replace(slots=slots, items=items, joined=tuple(work.joined))


class _Joining:
    """A schedule, some of whose arrays are joined in place so far."""

    def __init__(self, schedule: Schedule, plan: Plan) -> None:
        self.items, self.slots, self.plan = list(schedule.items), list(schedule.slots), plan
        self.joined: list[tuple[int, int]] = []
        self.writers = {p: n for n, item in enumerate(self.items) for p in item.writes}
        self.readers = Counter([place for item in self.items for place in item.reads])
        self.fixed = {*range(schedule.inputs), *schedule.outputs}
        self.fixed |= {place for pair in schedule.aliases for place in pair}
        self.made: dict[object, Kernel | None] = {}

    def join(self, number: int, parts: Sequence[Part]) -> None:
        """Let parts be stored in place, if all can be."""
        item = self.items[number]
        (whole,) = item.writes
        alone = all([self.readers[p] == 1 and p in self.writers for p in item.reads])
        if not alone or self.fixed & {*item.reads, whole}:
            return
        found = self.storing(item, parts)
        if found is None:
            return
        for at, kernel in found.items():
            self.items[at] = self.items[at]._replace(kernel=kernel)
        self.items[number] = item._replace(kernel=_copy(item.kernel, parts))
        for place in item.reads:
            self.slots[place] = self.slots[whole]
            self.joined.append((place, whole))
        self.fixed.add(whole)  # its parts are where they are

    def storing(self, joint: Item, parts: Sequence[Part]) -> dict[int, Kernel] | None:
        """The kernels of parts, storing at their places; None if one cannot."""
        wanted: dict[int, dict[int, Part]] = {}  # of an item: by output
        for part in parts:
            place = joint.reads[part.number]
            at = self.writers[place]
            wanted.setdefault(at, {})[self.items[at].writes.index(place)] = part
        found = {}
        for at, outputs in wanted.items():
            kernel = self.items[at].kernel
            key = kernel, tuple([(n, p.shape, p.moves) for n, p in sorted(outputs.items())])
            if key not in self.made:
                self.made[key] = _storing(kernel, outputs, self.plan)
            new = self.made[key]
            if new is None:
                return None
            found[at] = new
        return found


def parts_of(kernel: Kernel) -> list[Part]:
    """The parts of which a kernel does nothing but to join them; none if it does something else."""
    if kernel.kind is not KernelKind.MAP or kernel.plan is not None or len(kernel.body.src) != 1:
        return []
    above: list[Node] = []
    node = kernel.body.src[0]
    while node.op in (PERMUTE, RESHAPE, CONTIGUOUS):
        above.append(node)
        node = node.src[0]
    terms = _terms(node)
    parts = [_part(term, above) for term in terms]
    if len(terms) < 2 or not _are_side_by_side(terms):
        return []
    found = [part for part in parts if part is not None]
    whole = len(found) == len(parts) == kernel.inputs == len({part.number for part in found})
    return found if whole and all(map(_keeps_rows, found)) else []


def _terms(node: Node) -> list[Node]:
    """What a sum is the sum of."""
    return [t for s in node.src for t in _terms(s)] if node.op is ADD else [node]


def _are_side_by_side(terms: Sequence[Node]) -> bool:
    """True of padded values that fill one axis between them."""
    cuts = []
    for term in terms:
        if term.op is not PAD:
            return False
        padded = [d for d, pair in enumerate(pairs(term)) if pair != (0, 0)]
        if len(padded) != 1:
            return False
        low, high = pairs(term)[padded[0]]
        if not isinstance(low, int) or not isinstance(high, int):
            return False
        cuts.append((padded[0], low, low + term.src[0].shape[padded[0]]))
    cuts.sort()
    ends = [(cuts[0][0], 0), *[(axis, end) for axis, _, end in cuts]]
    begins = [*[(axis, begin) for axis, begin, _ in cuts], (cuts[0][0], terms[0].shape[cuts[0][0]])]
    return ends == begins


def _part(term: Node, above: Sequence[Node]) -> Part | None:
    """A padded param, if that is what a term is."""
    below: list[Node] = []
    node = term
    while node.op in (PAD, PERMUTE, RESHAPE):
        below.append(node)
        node = node.src[0]
    if node.op is not PARAM or sum([n.op is PAD for n in below]) != 1:
        return None
    moves = [n for n in (*below[::-1], *above[::-1]) if n.op is not CONTIGUOUS]
    if not all([isinstance(n, int) for move in (node, *moves) for n in move.shape]):
        return None
    return Part(node.arg[0], node.shape, tuple(moves))


def _keeps_rows(part: Part) -> bool:
    """True if a part has rows of some length that stay rows."""
    length = _row(part.shape)
    for move in part.moves:
        kept = [d for d in (move.arg if move.op is PERMUTE else ()) if move.src[0].shape[d] != 1]
        if kept and kept[-1] != max(kept):
            return False
        length = min(length, _row(move.src[0].shape), _row(move.shape))
    return length >= UNIT


def _row(shape: Shape) -> int:
    """The length of the last axis that has one."""
    return next((n for n in reversed(shape) if isinstance(n, int) and n != 1), 1)


def _placed(value: Node, part: Part) -> Node:
    """A stored part at its place in the joined array."""
    for move in part.moves:
        if move.op is PAD:
            value = pad(value, pairs(move))
        else:
            value = permute(value, move.arg) if move.op is PERMUTE else reshape(value, move.shape)
    return value


def _taken(whole: Node, part: Part) -> Node:
    """A part of the joined array."""
    value = whole
    for move in reversed(part.moves):
        if move.op is PAD:
            cuts = zip(pairs(move), move.src[0].shape, strict=True)
            value = shrink(value, [(low, low + n) for (low, _), n in cuts])
        elif move.op is PERMUTE:
            value = permute(value, tuple([move.arg.index(d) for d in range(move.ndim)]))
        else:
            value = reshape(value, move.src[0].shape)
    return value


def _copy(kernel: Kernel, parts: Sequence[Part]) -> Kernel:
    """A joint of parts that are where they belong."""
    root = kernel.body.src[0]
    params = {n.arg[0]: n for n in toposort([kernel.body]) if n.op is PARAM}
    changes = {}
    for part in parts:
        old = params[part.number]
        changes[old] = _taken(param(part.number, root.shape, old.dtype, old.arg[2]), part)
    return Kernel(kernel.kind, substitute(kernel.body, changes, walk=True), kernel.inputs)


def _storing(kernel: Kernel, outputs: Mapping[int, Part], plan: Plan) -> Kernel | None:
    """A kernel that stores some outputs at their places."""
    if kernel.kind not in _STORES:
        return None
    roots = [
        root
        if n not in outputs
        else _placed(reshape(CONTIGUOUS(root, arg=ROOM), outputs[n].shape), outputs[n])
        for n, root in enumerate(kernel.body.src)
    ]
    new = Kernel(kernel.kind, SINK(*roots), kernel.inputs)
    if kernel.plan is None:
        return new
    planned = plan(new)
    return None if planned is None else replace(new, plan=planned)
