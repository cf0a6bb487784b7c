"""Buffer donation: memory that nobody but the next version of a tensor can reach is written over.

In: the roots of a graph and its key. Out: the pairs (param, root) that a plan may use, and for a
plan that does, the run: memory is taken from its buffer first, so that no thread can begin to read
it, then references are counted. A node or memory that somebody else holds (a tensor, a pending
graph, another thread's frame, an exported array) has more of them than this graph explains, and
the plan that copies runs instead. Memory that the user shares, or that is mapped, is never ours.
Of few bytes nobody asks: they are copied in less time than it takes to count.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Sequence, Set
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

from .._lazy import FORK_LOCK
from ..config import current
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node, above, parents_of
from ..core.ops.collective import COMMUNICATES
from ..core.ops.control import COND, LOOP
from ..core.ops.effect import ASSIGN, DETACH, HOSTS, UNWATCH, WATCH
from ..core.ops.reduce import REDUCE
from ..graph.ir.cache_key import Normal, hosts_in, realized_node
from ..graph.ir.kernel import Schedule
from ..graph.ir.queries import elements
from ..graph.ir.registry import REGISTRY, Storage, entries_of, has_tensor
from ..graph.memory.in_place import Pair, params_written
from .device import Buffer, is_shared
from .step_executor import is_spoiled
from .walk import unknown_order

COPIED_BYTES = 1024  # written anew in less time than it takes to ask who holds one node
FOLDED = 4  # elements for each result, from which on reading it is less than folding again
GROWN = 64  # nodes, from which on a graph may hold the earlier rounds of a loop
NEAR = 4  # ops between a fold and the tensor that is made of it alone: a cast, a quotient
ONE: frozenset[str] = frozenset({"elementwise", "movement"})


def assigned_tensors(normal: Normal) -> list[Node]:
    """The roots of live tensors that a graph assigns on its way: they are to be known as well."""
    found: dict[Node, None] = {}
    for node in normal.assigned:
        for root in (node, *[p for p in parents_of(node) if p.op is WATCH]):
            if has_tensor(root):
                found[root] = None
    return list(found)


def kept_along(roots: Sequence[Node], normal: Normal) -> list[Node]:
    """What is on the way to the roots and is to be known with them: no later plan computes it.

    It is held, or was when an earlier plan computed it: of most graphs nothing between is.
    """
    between = [e.node for e in entries_of(normal.nodes) if e.node.src and e.node not in roots]
    shared = _read_elsewhere(normal)
    again = [n for n in normal.nodes if id(n) in _ONCE] if _ONCE else []
    if not (between or again or shared) or not _may_keep(normal):
        return []
    found = _that_fit(again, roots, normal) if again else []
    found += _held_folds(roots, normal, {*between}.difference(found)) if between else []
    _note([*between, *shared])
    return found


def _that_fit(again: Sequence[Node], roots: Sequence[Node], normal: Normal) -> list[Node]:
    """Those that are no larger than all that a plan reads and gives."""
    room = sum([elements(node.shape) for node in (*normal.buffers, *roots)])
    return [node for node in again if node not in roots and elements(node.shape) <= room]


def _may_keep(normal: Normal) -> bool:
    """True if a value that nobody asked for yet would be the same whenever it is asked for.

    All ranks run one plan, whatever each of them holds; what an array shows that somebody may write
    to is read when it is asked for; and who looks for NaNs looks at what was asked for.
    """
    if current().check_nan or any([is_shared(node.memory) for node in normal.buffers]):
        return False
    return COMMUNICATES.isdisjoint([node.op for node in normal.nodes])


def _held_folds(roots: Sequence[Node], normal: Normal, held: Set[Node]) -> list[Node]:
    """Held tensors made of one fold each, all together no larger than the roots.

    Each plan that reads them would fold again: labels in every `x[labels == k]` (decision 0282).
    """
    found: dict[Node, None] = {}
    on_the_way = set(normal.nodes).difference(roots)
    room = sum([elements(root.shape) for root in roots])
    for fold in normal.folds:
        node: Node | None = fold if fold.op is REDUCE else None
        for _ in range(NEAR):
            if node is None or node in found or node not in on_the_way:
                break
            if node in held:
                size = elements(node.shape)
                if size <= room and elements(fold.src[0].shape) >= FOLDED * size:
                    found[node] = None
                    room -= size
                break
            node = _only_reader(node)
    return list(found)


# What plans computed on their way for tensors, by id. `x = step(x)` in a loop that looks at a part
# of x would begin at the first round in each: it is computed twice, then known (decision 0283).
_ONCE: dict[int, weakref.ref[Node]] = {}


def _note(nodes: Sequence[Node]) -> None:
    """They were computed on the way."""
    for node in nodes:
        if id(node) not in _ONCE and _is_work(node):
            _ONCE[id(node)] = weakref.ref(node, partial(_forget, id(node)))


def _forget(key: int, _: object) -> None:
    """A node is gone."""
    _ONCE.pop(key, None)


def _read_elsewhere(normal: Normal) -> list[Node]:
    """What is on the way and what graphs that wait read as well: the next round of a loop.

    `x = f(p); p = g(p); float(x[0])` never computes the p that is held, but that of before.
    """
    if len(normal.nodes) <= GROWN:
        return []
    on_the_way = [node for node in normal.nodes if node.src]
    waiting = above(on_the_way)[len(on_the_way) :]
    if not waiting:
        return []
    read = {node for reader in waiting for node in reader.src}
    return [_viewed(node) for node in read.intersection(on_the_way)]


_NAMES = frozenset({WATCH, UNWATCH, DETACH})  # of a value, which is that of their source


def _is_work(node: Node) -> bool:
    """Is it more than a view of what is known?"""
    return bool(_viewed(node).src)


def _viewed(node: Node) -> Node:
    """What a view is of."""
    while node.op.family == "movement" or node.op in _NAMES:
        node = node.src[0]
    return node


def _only_reader(node: Node) -> Node | None:
    """The one op that reads a value, if it gives one element for each."""
    readers = parents_of(node)
    return readers[0] if len(readers) == 1 and readers[0].op.family in ONE else None


def candidates(roots: Sequence[Node], normal: Normal) -> Donation:
    """The params that roots may write over, as far as can be said before anything is compiled."""
    pairs = _pairs(roots, normal)
    if not pairs or not counts_are_exact() or _calls_host(normal):
        return NOTHING  # a host function could look at the very tensor that is written
    held = [REGISTRY.storage(normal.buffers[param]) for param, _ in pairs]
    if sum([memory.nbytes for memory in held if memory]) < COPIED_BYTES * len(normal.nodes):
        return NOTHING
    ours = _ours(held, 1)  # the registry's
    del held
    between = _explained(roots, normal, [param for param, _ in pairs])
    lost = between.lost(())
    free = [p for p, own in zip(pairs, ours, strict=True) if own and not lost >> p[0] & 1]
    return Donation(tuple(free), between)


def _calls_host(normal: Normal) -> bool:
    """True if a graph calls functions of the host, also inside bodies."""
    plain = _CALLERS.isdisjoint(map(_OP, normal.nodes))
    return not plain and bool(hosts_in(normal.structure))


_CALLERS, _OP = frozenset({*HOSTS, LOOP, COND}), attrgetter("op")


def _pairs(roots: Sequence[Node], normal: Normal) -> list[Pair]:
    place = {buffer: number for number, buffer in enumerate(normal.buffers)}
    pairs: dict[int, int] = {}
    for number, root in enumerate(roots):
        node = root
        while node.op in _NAMES:
            node = node.src[0]
        if node.op is not ASSIGN:
            continue
        target = node.src[0]
        param = place.get(target)
        if param is not None and target.shape == root.shape and target.dtype is root.dtype:
            pairs.setdefault(param, number)
    return list(pairs.items())


def counts_are_exact() -> bool:
    """True if reference counts are exact, which needs the interpreter's lock."""
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return sys.implementation.name == "cpython" and enabled()


# --- who else holds it ---------------------------------------------------------------------------


class ReferenceCounts(NamedTuple):
    """Reference counts of the nodes between roots and memory: who is known to hold them."""

    nodes: list[Node]
    expected: list[int]  # how many references to each are ours
    masks: list[int]  # which params each of them reads, as bits
    unmet: int  # params that no node reads

    def lost(self, taken: Container[Node]) -> int:
        """The params that something outside this graph holds, or what is made of them."""
        lost = self.unmet
        counts = _counts(self.nodes)  # before a loop holds one of them
        for node, count, ours, mask in zip(self.nodes, counts, *self[1:3], strict=True):
            if count != ours + (node in taken):
                lost |= mask
        return lost


class Donation(NamedTuple):
    """What a plan may write over: pairs of a param and a root."""

    pairs: tuple[Pair, ...]
    between: ReferenceCounts


NOTHING = Donation((), ReferenceCounts([], [], [], 0))


def _explained(roots: Sequence[Node], normal: Normal, params: Sequence[int]) -> ReferenceCounts:
    """How many references to the nodes between roots and memory are ours, and what each reads.

    Roots are left out: who holds one reads the new buffer through it.
    """
    order, asked = unknown_order(roots), set(roots)
    sources = chain.from_iterable([node.src for node in order])
    ours = normal.nodes, normal.buffers, normal.assigned, normal.extremes, normal.folds
    held = Counter(map(id, chain(sources, *ours)))
    mask = _reads(order, asked, {normal.buffers[param]: 1 << param for param in params})
    checked = [n for n in order if mask[n]]
    met = set(map(id, checked))
    unmet = sum([1 << param for param in params if id(normal.buffers[param]) not in met])
    expected = [held[id(n)] + _ALONE for n in checked]
    return ReferenceCounts(checked, expected, [mask[n] for n in checked], unmet)


def _reads(order: Sequence[Node], asked: Set[Node], mask: dict[Node, int]) -> dict[Node, int]:
    """Which params each node reads, as bits, but for what it reads through a root: roots none."""
    known = mask.get
    for node in order:
        found = 0
        if node not in asked:
            found = known(node, 0)
            for source in node.src:
                found |= known(source if source.realized is None else realized_node(source), 0)
        mask[node] = found
    return mask


def _ours(storages: list[Any], more: int) -> list[bool]:
    """Which of them are memory that we made and that nobody else holds: `more` know of it here."""
    counts = _counts(storages)
    known_to_us = [count == _ALONE + more for count in counts]
    return [
        alone and storage is not None and storage.exclusive()
        for alone, storage in zip(known_to_us, storages, strict=True)
    ]


def _counts(held: list[Any]) -> list[int]:
    """How many references there are to each: one step for the interpreter, so a true snapshot."""
    return list(map(sys.getrefcount, held))


_ALONE = _counts([object()])[0]  # of what a list alone holds


# --- running -------------------------------------------------------------------------------------


def run_in_place(
    roots: Sequence[Node], normal: Normal, donated: Donation, schedule: Schedule,
    inputs: list[Buffer], execute: Callable[[list[Buffer]], list[Buffer]],
    adopt: Callable[[list[Buffer]], list[Node]], commit: Callable[[list[Node]], None],
) -> bool:  # fmt: skip
    """Run a plan that writes over its inputs, if by now it still may; was it run?"""
    with FORK_LOCK:
        from .derived import DERIVED
    written = params_written(schedule.aliases)
    used = sum([1 << param for param, _ in donated.pairs if param in written])
    with REGISTRY.rewriting:
        before, REGISTRY.writing = REGISTRY.writing, threading.get_ident()
        taken: dict[Node, Storage] = {}
        state = "old"  # what the memory holds
        try:
            for param in written:
                storage = REGISTRY.take(normal.buffers[param])
                if storage is None:
                    return False
                taken[normal.buffers[param]] = storage
            del storage
            held = list(taken.values())
            ours = _ours(held, 2)  # our table's and the plan's input
            del held
            if not all(ours) or donated.between.lost(taken) & used:
                return False
            if REGISTRY.reading:  # a replay in another thread, which holds addresses only
                return False
            DERIVED.overwritten(taken.values())
            try:
                outputs = execute(inputs)
            except BaseException as problem:
                state = "lost" if is_spoiled(problem) else "old"
                raise
            state = "lost"
            buffers = adopt(outputs)
            for root, buffer in zip(roots, buffers, strict=True):
                REGISTRY.becomes_later(root, buffer)
            state = "new"
        finally:
            for node, storage in taken.items():
                if state == "old":
                    REGISTRY.give_back(node, storage)
                else:
                    REGISTRY.moved(node, lost=state == "lost")
            REGISTRY.writing = before
        commit(buffers)
        return True
