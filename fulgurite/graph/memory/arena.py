"""Memory planning: where intermediates live, known before anything runs.

In: a `Schedule`. Out: a `Layout`: an offset in one arena for every slot that is neither input,
constant nor output, so that values alive at the same time never overlap. Values are placed in
order of falling size at the lowest offset that is free for their whole life. A kernel's output
takes its input's place where that is legal: the kernel is a map over one set of axes, nobody reads
the input later, and every load of it is at the very index of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, toposort
from ...core.op import Op
from ...core.ops.index import FOLD, LOAD, STORE
from ...core.shape import prod, upper
from ..ir.affine import axes_of
from ..ir.kernel import Item, Kernel, Schedule, Slot
from ..ir.kernel_kind import KernelKind
from ..ir.lower import layout_of
from ..ir.queries import elements
from ..ir.reshape_groups import CannotLower

IN_PLACE = (KernelKind.MAP, KernelKind.REDUCE)  # whose elements are stored behind their loads


class Layout(NamedTuple):
    """Offsets of intermediates in an arena of so many bytes."""

    offsets: dict[int, int]  # slot -> offset
    arena_bytes: int
    live_bytes: int  # the most that is alive at any one time: no layout can use less
    input_bytes: int
    output_bytes: int
    workspace_bytes: int = 0  # of the kernel that needs most beside its values, once compiled

    @property
    def peak_bytes(self) -> int:
        """The most memory a run needs at once: inputs, results, the arena and the workspace."""
        return self.input_bytes + self.output_bytes + self.arena_bytes + self.workspace_bytes


def slot_bytes(slot: Slot) -> int:
    """Bytes laid out for a value: variable sizes count at their upper bound."""
    return elements(slot.shape) * slot.dtype.itemsize


def plan_memory(schedule: Schedule, align: int) -> Layout:
    """Lifetimes, then offsets that are multiples of `align` bytes."""
    outputs = {*schedule.outputs, *dict(schedule.aliases)}  # what has its memory elsewhere
    born: dict[int, int] = {}
    dies: dict[int, int] = {}
    joined = dict(schedule.joined)
    for number, item in enumerate(schedule.items):
        for slot in item.writes:
            for place in (slot, joined.get(slot, slot)):  # an array is there with its last part
                born[place] = dies[place] = number
        for slot in item.reads:
            if slot in born:
                dies[slot] = number
    kept = [slot for slot in born if slot not in outputs]
    owner = _in_place(schedule, born, dies, set(kept) - joined.keys() - {*joined.values()})
    owner |= joined
    sizes = {slot: _aligned(schedule, slot, align) for slot in born}
    lives = _live_ranges(kept, owner, born, dies, sizes)
    offsets, top = _place(lives)
    found = {slot: offsets[root_of(owner, slot)] for slot in kept}
    live = _most_alive(lives, len(schedule.items))
    inputs = [s for s in schedule.slots[: schedule.inputs] if s is not None]
    made = outputs - set(dict(schedule.aliases))
    return Layout(
        found, top, live, sum(map(slot_bytes, inputs)), sum(sizes[s] for s in made if s in sizes)
    )


def bytes_moved(schedule: Schedule, item: Item) -> int:
    """Bytes that a kernel reads and writes, each value once; of an assignment only its part."""
    places = dict.fromkeys((*item.reads, *item.writes))
    if item.kernel.kind is not KernelKind.ASSIGN:
        parts = _parts(schedule, item)
        values = [s for i in places if (s := schedule.slots[i]) is not None and s.bits is None]
        whole = [s for i in places if i in parts and (s := schedule.slots[i]) is not None]
        return sum(map(slot_bytes, values)) + sum(parts.values()) - sum(map(slot_bytes, whole))
    total = 0
    loads: set[tuple[int, object]] = set()
    indexed = item.kernel.indexed
    for root in item.kernel.body.src:
        part = root.src[1]
        total += slot_bytes(Slot(part.dtype, part.shape, None))
    for node in toposort([indexed.body]):
        if node.op is LOAD and (node.arg[0], node.arg[1]) not in loads:
            loads.add((node.arg[0], node.arg[1]))
            slot = schedule.slots[item.reads[node.arg[0]]]
            assert slot is not None
            count = prod([indexed.axes[a] for a in axes_of(node.arg[1])])
            most = slot_bytes(slot)
            if slot.bits is None:
                total += min(most, (count if isinstance(count, int) else upper(count))
                             * slot.dtype.itemsize)  # fmt: skip
    return total


def _parts(schedule: Schedule, item: Item) -> dict[int, int]:
    """Bytes of the parts that an item stores within larger memory."""
    joined = dict(schedule.joined)
    found = {}
    for place, root in zip(item.writes, item.kernel.body.src, strict=True):
        if place in joined:
            moves = layout_of(root)
            value = moves[-1].src[0] if moves else root
            found[place] = slot_bytes(Slot(value.dtype, value.shape, None))
    return found


def _aligned(schedule: Schedule, slot: int, align: int) -> int:
    known = schedule.slots[slot]
    assert known is not None
    return -(-slot_bytes(known) // align) * align


# --- lifetimes -----------------------------------------------------------------------------------

Life = tuple[int, int, int, int]  # slot, first item, last item, bytes


def root_of(owner: Mapping[int, int], slot: int) -> int:
    """Whose memory a slot is in, by way of others."""
    while slot in owner:
        slot = owner[slot]
    return slot


def _live_ranges(
    kept: list[int],
    owner: dict[int, int],
    born: dict[int, int],
    dies: dict[int, int],
    sizes: dict[int, int],
) -> list[Life]:
    """One life for each place in memory, which may pass from value to value."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for slot in kept:
        root = root_of(owner, slot)
        first[root] = min(first.get(root, born[slot]), born[slot])
        last[root] = max(last.get(root, dies[slot]), dies[slot])
    return [(root, first[root], last[root], sizes[root]) for root in first]


def _most_alive(lives: list[Life], items: int) -> int:
    change = [0] * (items + 1)
    for _, first, last, size in lives:
        change[first] += size
        change[last + 1] -= size
    most = now = 0
    for delta in change:
        now += delta
        most = max(most, now)
    return most


def _place(lives: list[Life]) -> tuple[dict[int, int], int]:
    """Largest first, each at the lowest offset that is free during its life."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last; by offset
    top = 0
    for slot, first, last, size in sorted(lives, key=lambda life: (-life[3], life[1], life[0])):
        at = 0
        for offset, end, other_first, other_last in placed:
            if other_last < first or last < other_first:
                continue
            if offset - at >= size:
                break
            at = max(at, end)
        offsets[slot] = at
        placed.append((at, at + size, first, last))
        placed.sort()
        top = max(top, at + size)
    return offsets, top


# --- in place ------------------------------------------------------------------------------------


def _in_place(
    schedule: Schedule, born: dict[int, int], dies: dict[int, int], kept: set[int]
) -> dict[int, int]:
    """For an output that takes over an input's memory: whose."""
    owner: dict[int, int] = {}
    for number, item in enumerate(schedule.items):
        taken: set[int] = set()
        for write in item.writes:
            if write not in kept:
                continue
            for read in item.reads:
                ends = read in kept and read in born and dies[read] == number
                if ends and read not in taken and _may_replace(schedule, item, read, write):
                    owner[write] = read
                    taken.add(read)
                    break
    return owner


def _may_replace(schedule: Schedule, item: Item, read: int, write: int) -> bool:
    a, b = schedule.slots[read], schedule.slots[write]
    assert a is not None and b is not None
    if item.kernel.kind not in IN_PLACE or slot_bytes(a) != slot_bytes(b):
        return False
    if a.dtype.itemsize != b.dtype.itemsize:
        return False
    param, out = item.reads.index(read), item.kernel.inputs + item.writes.index(write)
    return (param, out) in replaceable(item.kernel)


def replaceable(kernel: Kernel) -> frozenset[tuple[int, int]]:
    """The (input, output) params of a kernel that may be the same memory.

    What a fold reads is read for other elements too; what is read beside it, only for its own.
    """
    kept: frozenset[tuple[int, int]] | None = getattr(kernel, "in_place", None)
    if kept is not None:  # of a kernel from the disk, whose graph is that of other sizes
        return kept
    try:
        indexed = kernel.indexed
    except CannotLower:
        return frozenset()
    nodes = toposort([indexed.body])
    if len({n.arg[3] for n in nodes if n.op is STORE}) != 1:
        return frozenset()
    loads, stores = _places(nodes, LOAD), _places(nodes, STORE)
    folded = {n.arg[0] for n in toposort([n for n in nodes if n.op is FOLD]) if n.op is LOAD}
    return frozenset(
        (p, q) for p, read in loads.items() for q, written in stores.items()
        if len(read) == 1 and read == written and p not in folded
    )  # fmt: skip


def _places(nodes: Sequence[Node], op: Op) -> dict[int, set[object]]:
    """Where each param is loaded, or stored, and on which conditions: a plain store has none."""
    found: dict[int, set[object]] = {}
    for node in nodes:
        if node.op is op:
            param, index, mask = node.arg[:3]
            sources = node.src if op is LOAD else node.src[1:]
            place = index, () if mask == "set" else mask, sources
            found.setdefault(param, set()).add(place)
    return found
