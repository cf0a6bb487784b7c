"""From asked tensors to values: the one straight line of the project.

In: entries of the registry. Out: each of them, and every live tensor that shares their graph,
reads a buffer. Normalise to a key; on a hit run the plan that is there; on a miss run the stages on
the graph that the key describes. Constants are looked up in a second step: a miss that differs
from a known graph in some constants only makes these run-time scalars from then on, so a learning
rate that changes every step compiles a bounded number of times. Nothing is written back before
the last step has succeeded: a failure leaves every tensor as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import FORK_LOCK
from ..config import Options, current
from ..core import ranks
from ..core.cache import Cache
from ..core.context import Table
from ..core.digest import digest_of
from ..core.dtype import DType, array_of_bits
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node, parents_of, toposort
from ..core.op import Array
from ..core.ops.collective import COMMUNICATES, UNSHARD, is_memory, local_shape
from ..core.ops.elementwise import WHERE
from ..core.ops.leaf import BUFFER, new_buffer
from ..core.origin import Origin
from ..errors import ArgumentError, BoundsError, VariableError
from ..graph.ir.cache_key import (
    Normal,
    constant_uses,
    normalize,
    order_of,
    restore,
    size_constants,
)
from ..graph.ir.registry import REGISTRY, Entry, MovedError, entries_at, entries_of, has_tensor
from ..graph.ir.size_key import SKELETONS
from ..graph.memory.in_place import Append, Donated
from ..graph.tiny import are_tiny, is_tiny_as_built, whole
from .cache.plan_cache import kept_plans
from .device import Buffer, get_device, several_devices
from .donation import (
    NOTHING,
    assigned_tensors,
    candidates,
    kept_along,
    run_in_place,
)
from .gc_pause import held_back
from .host.evaluate import evaluate
from .multi_device import bring
from .plan import KERNELS, Plan, plan_of_host_step
from .plan_key import cache_key, has_patterns, may_run_as_built
from .recording import HISTORY, note
from .sizes.recent import RECENT, Expected
from .sizes.shapes import SHAPES, STATS, Sample, Shapes
from .step_executor import concrete
from .views import is_cut, parts_of, view_of

if TYPE_CHECKING:
    from .pipeline import Ahead


class Compiled:
    """A graph's entry in the schedule cache: the plan, and which constants it takes at run time."""

    def __init__(
        self, constants: tuple[int, ...], lifted: dict[int, DType], plan: Plan,
        seconds: dict[str, float],
    ) -> None:  # fmt: skip
        self.constants, self.lifted, self.plan, self.seconds = constants, lifted, plan, seconds
        self.spmd: SpmdPlan | None = None  # of a plan that all ranks run

    def fits(self, constants: tuple[int, ...]) -> bool:
        """Do the constants that are compiled in agree?"""
        if constants == self.constants:
            return True
        if not self.lifted:
            return False
        pairs = enumerate(zip(self.constants, constants, strict=True))
        return all([a == b or i in self.lifted for i, (a, b) in pairs])


class SpmdPlan(NamedTuple):
    """What is known of a plan that all ranks run (SPMD) and that exchanges values."""

    layouts: tuple[Any, ...]  # of the roots: mesh, layout and whether that is weak; None: whole
    digest: str

    @staticmethod
    def of(normal: Normal) -> SpmdPlan | None:
        """None if a graph names no mesh."""
        if not any([type(e) is tuple and e[0] in COMMUNICATES for e in normal.structure]):
            return None
        with FORK_LOCK:
            from ..graph.passes import partition
        layouts = partition.partition(restore(normal.structure, normal.constants)).layouts
        return SpmdPlan(layouts, digest_of(f"{normal.structure!r}\n{normal.constants!r}"))


class Family:
    """All graphs of one structure, whatever their constants."""

    def __init__(self) -> None:
        self.members: list[Compiled] = []
        self.lock = threading.RLock()

    def find(self, constants: tuple[int, ...]) -> Compiled | None:
        """The member that computes with these constants."""
        for member in self.members:
            if member.constants == constants or member.fits(constants):
                return member
        return None


_MOST_MEMBERS = 8
FAMILIES: Table[Cache[tuple[Hashable, ...], Family]] = Table(
    lambda: Cache("schedules", lambda: current().schedule_cache)
)


def lookup(normal: Normal, device: str, donated: Donated = ()) -> Compiled:
    """The compiled form of a graph: found, or made now by one thread for all that ask."""
    options = current()
    about = cache_key(device, options, donated)
    recent = RECENT().find(normal, about)
    if recent is not None:
        return _of_recent_sizes(normal, (options, device, donated), recent)
    family = FAMILIES().get_or_make((normal.structure, *about), Family)
    found = family.find(normal.constants)
    if found is None:
        with family.lock:  # one thread compiles; if it fails, the next one tries
            found = family.find(normal.constants)
            if found is None:
                begin = time.perf_counter_ns()
                with held_back():
                    found = _of_any_size(normal, device, options, donated)
                    if found is None:
                        STATS().misses += 1
                        lifted = _lift(family, normal)
                        found = _found_or_made(normal, device, options, lifted, donated)
                    found.spmd = SpmdPlan.of(normal)
                if "known" not in found.seconds:
                    _note(normal, device, options, donated, found, begin)
                family.members = [found, *family.members][:_MOST_MEMBERS]
                return found
    STATS().hits += 1
    return found


def _note(
    normal: Normal, device: str, options: Options, donated: Donated, found: Compiled,
    begin: int,
) -> None:  # fmt: skip
    """Remember that a graph was compiled: what it was and where it comes from, but no node."""
    lines = tuple([node.origins[:1] for node in normal.nodes])
    about = {
        "structure": normal.structure, "constants": normal.constants, "lines": lines,
        "device": device, "options": options, "seconds": found.seconds,
        "kernels": len(found.plan.schedule.items), "loaded": "load" in found.seconds,
        "lifted": len(found.lifted), "inputs": len(normal.buffers), "donated": donated,
    }  # fmt: skip
    names = [item.kernel.name for item in found.plan.schedule.items[:3]]
    note("graph", ", ".join(names), begin, about)


def _shapes_of(
    normal: Normal, device: str, options: Options, donated: Donated
) -> tuple[Shapes, Sample] | None:
    """The graphs that differ from one in sizes alone; None if its sizes are fixed."""
    if not options.dynamic or not get_device(device).sizes_vary or normal.values:
        return None
    if options.tier == "auto" and are_tiny(normal.nodes):
        return None
    skeleton, sizes = SKELETONS.key(normal.structure)
    key = (skeleton, *cache_key(device, options, donated))
    return SHAPES().get_or_make(key, Shapes), Sample(sizes, normal.constants)


def _of_any_size(
    normal: Normal, device: str, options: Options, donated: Donated
) -> Compiled | None:
    """The plan that graphs of other sizes have as well, if there is one by now."""
    known = _shapes_of(normal, device, options, donated)
    if known is None:
        return None
    shapes, sample = known
    with shapes.lock:
        if not shapes.members:
            if sample not in shapes.samples:
                shapes.samples = [*shapes.samples, sample][-_MOST_MEMBERS:]
            if not shapes.varies:
                return None
        with FORK_LOCK:
            from .sizes.automatic import plan_of_any_size
        found = plan_of_any_size(shapes, normal, sample, (options, device, donated))
    if found is None:
        return None
    if "known" in found.seconds:
        STATS().hits += 1
    else:
        STATS().misses += 1
    return Compiled(normal.constants, found.lifted, found.plan, found.seconds)


def _of_recent_sizes(
    normal: Normal, how: tuple[Options, str, Donated],
    found: tuple[Plan, bool, Expected],
) -> Compiled:  # fmt: skip
    """The plan of a graph that came in other sizes before."""
    plan, grew, expected = found
    if grew:
        with FORK_LOCK:
            from .sizes.automatic import keep_members
        with expected.shapes.lock:
            keep_members(expected.shapes, normal, how)
    STATS().hits += 1
    return Compiled(normal.constants, expected.member.lifted, plan, {"known": 0.0})


def _of_kept_sizes(
    normal: Normal, device: str, options: Options, donated: Donated
) -> Compiled | None:
    """The plan that another process kept for many sizes, if it is for these as well."""
    known = _shapes_of(normal, device, options, donated)
    if known is None or known[0].is_loaded:
        return None
    start = time.perf_counter()
    with FORK_LOCK:
        from .sizes.automatic import known_plan
    shapes, sample = known
    with shapes.lock:
        found = known_plan(shapes, sample, normal, (options, device, donated))
    if found is None:
        return None
    seconds = {"load": time.perf_counter() - start}
    return Compiled(normal.constants, found[1].lifted, found[0], seconds)


def _lift(family: Family, normal: Normal) -> dict[int, DType]:
    """The constants to take at run time: those in which known graphs differ from this one."""
    if not family.members:
        return {}
    differing = [
        [i for i, (a, b) in enumerate(zip(m.constants, normal.constants, strict=True)) if a != b]
        for m in family.members
    ]
    nearest = min(range(len(differing)), key=lambda m: len(differing[m]))
    lifted = {*family.members[nearest].lifted, *differing[nearest]}
    lifted -= size_constants(normal.structure)
    dtypes = [dtype for _, dtype in constant_uses(normal.structure)]
    return {i: dtypes[i] for i in sorted(lifted)}


def _found_or_made(
    normal: Normal, device: str, options: Options, lifted: dict[int, DType],
    donated: Donated,
) -> Compiled:  # fmt: skip
    """A graph's plan from the disk, or made now and kept there for the next process."""
    if normal.values and any([type(n) is Node for node in normal.nodes for n in node.shape]):
        return compile_graph(normal, device, options, lifted, donated)
    ahead = None
    if get_device(device).plans_first(options) and not normal.values:
        ahead = _begun(normal, device, options, lifted, donated)
    kept = kept_plans(device, options, normal)
    key = None  # functions of the user have no name that another process knows
    if kept is not None and not has_patterns(options):
        key = kept.key(normal, lifted, device, options, donated)
    if kept is None or key is None:
        return compile_graph(normal, device, options, lifted, donated, ahead)
    start = time.perf_counter()
    with kept.look(key, normal) as plan:
        if plan is not None:
            seconds = {"load": time.perf_counter() - start}
            return Compiled(normal.constants, lifted, plan, seconds)
        of_many = _of_kept_sizes(normal, device, options, donated) if kept.has_sized else None
        if of_many is not None:
            return of_many
        found = compile_graph(normal, device, options, lifted, donated, ahead)
        kept.keep(key, found.plan, normal)
        return found


def _begun(
    normal: Normal, device: str, options: Options, lifted: dict[int, DType],
    donated: Donated,
) -> Ahead:  # fmt: skip
    """Plan a graph before its key is known, which nothing is kept under: its code is under way."""
    value = restore(normal.structure, normal.constants, lifted, normal.nodes)
    with FORK_LOCK:
        from .pipeline import Context, begun
    return begun(value, Context(options, device, len(normal.buffers) + len(lifted), donated))


def compile_graph(
    normal: Normal, device: str, options: Options, lifted: dict[int, DType],
    donated: Donated = (), ahead: Ahead | None = None,
) -> Compiled:  # fmt: skip
    """Run the stages on the graph that a key describes, or those that are left."""
    value = restore(normal.structure, normal.constants, lifted, normal.nodes)
    inputs = len(normal.buffers) + len(lifted)
    unwatched = not (options.verify or options.log)
    if unwatched and may_run_as_built(options, device, donated) and is_tiny_as_built(value):
        plan = plan_of_host_step(
            whole(value, inputs), device
        )  # the pipeline's, which stays unloaded
        return Compiled(normal.constants, lifted, plan, {})
    with FORK_LOCK:
        from .pipeline import Context, planned
    context = Context(options, device, inputs, donated)
    if normal.values and not (options.tier == "auto" and are_tiny(normal.nodes)):
        start = time.perf_counter()
        with FORK_LOCK:
            from .sizes.symbolic import symbolic_plan
        symbolic = symbolic_plan(value, context, normal, lifted, lambda: planned(value, context)[0])
        if symbolic is not None:
            seconds = {"sizes": time.perf_counter() - start}
            return Compiled(normal.constants, lifted, symbolic, seconds)
    plan, seconds = planned(value, context, ahead)
    return Compiled(normal.constants, lifted, plan, seconds)


class _Observer(threading.local):
    """Who forbids this thread to look at values: a function that raises, while one is captured."""

    refuse: Callable[[], None] | None = None


OBSERVER = _Observer()


def realize(entries: Sequence[Entry]) -> None:
    """Give every entry a buffer, in one plan.

    Equal expressions share their buffer, except those made of constants alone: two `zeros(3)`
    are two tensors, each with memory of its own.
    """
    if OBSERVER.refuse is not None:
        OBSERVER.refuse()
    met: set[str] = set()
    while True:  # another thread may rewrite an entry while we compute what it was
        pending = {
            entry: node for entry in entries
            if (node := entry.node).op is not BUFFER and not is_realized(node)
        }  # fmt: skip
        if not pending:
            return
        if _grew(pending.values()):
            continue
        if several_devices():
            bring(list(pending.values()), _copied)
            pending = {entry: node for entry, node in pending.items() if not is_realized(node)}
        places: dict[str | None, dict[Entry, Node]] = {}
        for entry, node in pending.items():
            places.setdefault(node.device, {})[entry] = node
        for device, group in places.items():
            try:
                _realize(group, device)
            except MovedError as moved:  # another thread wrote over what we were about to read
                if moved.what in met:  # but then its root knows the new buffer: look again, once
                    raise
                met.add(moved.what)


@cache
def _growth() -> Any:
    """What concatenates in place: loaded when it is first needed, and looked up once."""
    with FORK_LOCK:
        from .sizes import growth
    return growth


def _grew(roots: Collection[Node]) -> bool:
    """Were some of the roots values that could grow where they are? They are known then."""
    if WHERE not in [node.op for node in roots]:
        return False
    found = _growth().grow(roots, value_node, _computed)
    if found:
        REGISTRY.becomes(found, walk=True)
    return bool(found)


def _computed(node: Node) -> Node:
    """The BUFFER of a value that is computed now, if it is not known."""
    known = value_node(node)
    if known is not None:
        return known
    made: list[Node] = []

    def commit(buffers: Sequence[Node]) -> None:
        made.extend(buffers)
        if node.device is not None:  # of constants each value has memory of its own
            REGISTRY.becomes_later(node, buffers[0])

    run([node], normalize([node]), commit)
    return made[0]


def realize_together(entries: Sequence[Entry]) -> None:
    """Give entries that may be of several graphs a buffer: in one plan if variables allow it.

    One by one, each would compute what it shares with the others again.
    """
    try:
        realize(entries)
    except VariableError:  # two graphs give one variable two values: a plan for each set of values
        for group in _agreeing(entries):
            realize(group)


def _agreeing(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries in groups within which every variable has one value."""
    groups: list[tuple[dict[str, int], list[Entry]]] = []
    for entry in entries:
        values = normalize([entry.node]).values
        for known, group in groups:
            if all([known.get(name, value) == value for name, value in values.items()]):
                known.update(values)
                group.append(entry)
                break
        else:
            groups.append((values, [entry]))
    return [group for _, group in groups]


def _copied(sources: list[Node], copies: list[Node]) -> None:
    """Compute values on their device and give each copy of them memory on its own."""
    missing = [s for s in sources if value_node(s) is None]

    def commit(buffers: Sequence[Node]) -> None:
        for source, buffer in zip(missing, buffers, strict=True):
            REGISTRY.becomes_later(source, buffer)

    if missing:
        run(missing, normalize(missing), commit)
    for copy in copies:
        found = value_node(copy.src[0])
        assert found is not None, f"{copy.src[0]!r} was computed"
        shape: Any = found.shape
        there, here = get_device(found.device or ""), get_device(copy.arg)
        moved = here.copy_from(there, storage_of(found), shape, found.dtype)
        REGISTRY.becomes_later(copy, adopt(copy, moved, copy.arg, {}))


_FEW_NODES = 4  # what is asked for, and nothing between that takes long


def _realize(pending: dict[Entry, Node], device: str | None) -> None:
    """Compute what is pending on one device, or (None) what is made of constants alone."""
    if device is None:  # each tensor has memory of its own
        own = list(pending.values())

        def knows(buffers: Sequence[Node]) -> None:
            for (entry, node), buffer in zip(pending.items(), buffers, strict=True):
                REGISTRY.knows(entry, node, buffer)

        run(own, normalize(own), knows)
        return
    shared = list(dict.fromkeys(pending.values()))
    if len(shared) == 1 and (view := view_of(shared[0])) is not None:
        REGISTRY.becomes({shared[0]: view}, walk=True)
        return
    normal = normalize(shared)
    if normal.assigned and (first := _assigned_first(shared, normal, device)):
        _realize(first, device)
        return
    shared, normal = _with_held(shared, normal, device)
    in_parts = _in_parts(shared, normal, device) if is_cut(normal, device) else None

    def commit(buffers: Sequence[Node]) -> None:
        if len(buffers) == len(pending) == 1 and _is_alone(shared[0]):
            (entry,) = pending
            with REGISTRY.rewriting:
                REGISTRY.rebind(entry, shared[0], buffers[0])
        else:
            REGISTRY.becomes(dict(zip(shared, buffers, strict=True)), walk=True)

    run(shared, in_parts or normal, commit, may_append=in_parts is None)


def _with_held(roots: list[Node], normal: Normal, device: str) -> tuple[list[Node], Normal]:
    """Roots with all that is to be known with them, and what they come to."""
    if normal.assigned:  # what is assigned on the way is a result too, so that it is done once
        roots, normal = _widened(roots, normal, assigned_tensors(normal), device)
    if normal.extremes and _are_of_held(normal.extremes):  # then both are known, to the last bit
        with FORK_LOCK:
            from ..graph.fusion.single_writer import held_with
        kept = held_with(roots, normal.extremes, has_tensor)
        roots, normal = _widened(roots, normal, kept, device)
    if len(normal.nodes) > _FEW_NODES and not normal.assigned and not normal.values:
        kept = kept_along(roots, normal)
        roots, normal = _widened(roots, normal, kept, device)
    return roots, normal


def _assigned_first(roots: Sequence[Node], normal: Normal, device: str) -> dict[Entry, Node]:
    """What a tiny graph assigns on its way and cuts: it is known memory then (`_in_parts`)."""
    if not is_cut(normal, device) or not _is_tiny_here(normal):
        return {}
    found = entries_of([n for n in assigned_tensors(normal) if n not in roots])
    return {entry: entry.node for entry in found if entry.node.device == device}


def _is_tiny_here(normal: Normal) -> bool:
    """True if a graph is tiny and no other rank runs it."""
    return are_tiny(normal.nodes) and COMMUNICATES.isdisjoint([n.op for n in normal.nodes])


def _in_parts(roots: Sequence[Node], normal: Normal, device: str) -> Normal | None:
    """A tiny graph that reads its cuts of known memory, if it came with other places before.

    Where they begin is data then; kernels take places at run time by themselves (runtime/sizes).
    """
    families, about = FAMILIES(), cache_key(device, current())
    known = families.peek((normal.structure, *about)) is not None
    if known or not _is_tiny_here(normal) or not (parts := parts_of(normal, device, value_node)):
        return None
    found = normalize(roots)
    del parts  # the key holds those that are read
    key = (found.structure, *about)
    if families.peek(key) is not None:
        return found
    families.get_or_make(key, Family)  # with no member yet: the next places will ask for it
    return None


def _are_of_held(extremes: Sequence[Node]) -> bool:
    """True if a tensor holds something that is to be computed for extremes; few do."""
    order, _ = order_of([extreme.src[0] for extreme in extremes])
    return any([entry.node.src for entry in entries_of(order)])


def _widened(
    roots: list[Node], normal: Normal, more: Iterable[Node], device: str
) -> tuple[list[Node], Normal]:
    """Roots with further ones of a device, and what they come to."""
    every = list(dict.fromkeys([*roots, *[node for node in more if node.device == device]]))
    return (every, normalize(every)) if len(every) > len(roots) else (roots, normal)


def _is_alone(node: Node) -> bool:
    """Is a node the root of one tensor and known to no other graph? Most results are."""
    return not node.watched and not parents_of(node) and len(entries_at(node)) == 1


Commit = Callable[[Sequence[Node]], None]


def run(roots: Sequence[Node], normal: Normal, commit: Commit, may_append: bool = True) -> None:
    """Compute the roots, all of them on one device, and hand their new BUFFER nodes on."""
    device = roots[0].device or current().device
    checked = current().check_nan  # then inputs must be there afterwards
    appends: tuple[Append, ...] | None = ()
    if may_append and WHERE in [root.op for root in roots]:
        how = (roots, normal)
        appends = _appends(*how) if checked else _not_appended(*how, device, commit)
    if appends is None:
        return
    donated = candidates(roots, normal) if normal.assigned and not checked else NOTHING
    compiled = lookup(normal, device, donated.pairs)
    inputs = inputs_of(normal, compiled)

    def execute(inputs: Sequence[Buffer]) -> list[Buffer]:
        values = normal.values if compiled.spmd is None else joined(compiled.spmd, normal)
        try:
            found = compiled.plan.run(inputs, values, current().poison)
        except BoundsError:
            if compiled.spmd is None:  # other ranks would not take part
                name_the_line(roots, normal, inputs)
            raise
        if checked and compiled.spmd is None:  # of shards no rank has the values
            check_finite(roots, normal, inputs, found)
        return found

    def adopted(outputs: Sequence[Buffer]) -> list[Node]:
        pairs = enumerate(zip(roots, outputs, strict=True))
        return [adopt(r, o, device, normal.values, _kept(compiled, i)) for i, (r, o) in pairs]

    if compiled.plan.aliases:
        plan = compiled.plan.schedule
        if run_in_place(roots, normal, donated, plan, inputs, execute, adopted, commit):
            return
        compiled = lookup(normal, device)
        inputs = inputs_of(normal, compiled)
    outputs = execute(inputs)
    _mark(appends, roots, outputs, device)
    commit(adopted(outputs))


def _appends(roots: Sequence[Node], normal: Normal) -> tuple[Append, ...]:
    """The roots that concatenate something behind an input; none where tensors are assigned."""
    if normal.assigned:
        return ()
    return _growth().appends_of(roots, normal.buffers, value_node)  # type: ignore[no-any-return]


def _mark(
    appends: Iterable[Append], roots: Sequence[Node], outputs: Sequence[Buffer], device: str
) -> None:
    """Note which results were concatenated: the next time they may get room."""
    for _, root, axis in appends:
        shape: Any = roots[root].shape
        get_device(device).mark_joined(outputs[root], axis, shape)


def _appended(
    roots: Sequence[Node], normal: Normal, device: str, appends: tuple[Append, ...],
    commit: Commit,
) -> bool:  # fmt: skip
    """Compute the roots in a plan that writes behind inputs which have room; were there any?"""
    some = _with_room(roots, normal, device, appends)
    if not some or current().poison:
        return False
    if not _append(roots, normal, device, some, lookup(normal, device, some), commit):
        return False
    if some == appends:
        RECENT().appended(normal, appends)
    return True


def _not_appended(
    roots: Sequence[Node], normal: Normal, device: str, commit: Commit
) -> tuple[Append, ...] | None:
    """The roots that could not be written behind inputs; None if all is computed that way."""
    if _appended_again(roots, normal, device, commit):
        return None
    appends = _appends(roots, normal)
    if appends and _appended(roots, normal, device, appends, commit):
        return None
    return appends


def _appended_again(roots: Sequence[Node], normal: Normal, device: str, commit: Commit) -> bool:
    """The same for a graph like one that came in other sizes before, which is known by its key.

    What it appends is seen in its structure, but for roots that a gradient looks at.
    """
    appends, options = RECENT().appends(normal), current()
    if not appends or normal.assigned or options.poison:
        return False
    found = RECENT().find(normal, cache_key(device, options, appends))
    longer = [roots[append.root] for append in appends] if found is not None else []
    if found is None or any([root.op is not WHERE or root.watched for root in longer]):
        return False
    if _with_room(roots, normal, device, appends) != appends:
        return False
    compiled = _of_recent_sizes(normal, (options, device, appends), found)
    return _append(roots, normal, device, appends, compiled, commit)


def _with_room(
    roots: Sequence[Node], normal: Normal, device: str, appends: Iterable[Append]
) -> tuple[Append, ...]:
    """The appends whose memory has room, or may get some."""
    memories = {append: storage_of(normal.buffers[append.param]) for append in appends}
    return _growth().growing(roots, memories, get_device(device))  # type: ignore[no-any-return]


def _append(
    roots: Sequence[Node], normal: Normal, device: str, some: tuple[Append, ...],
    compiled: Compiled, commit: Commit,
) -> bool:  # fmt: skip
    """Run a plan that writes behind inputs, if it is one launch and all of them have room."""
    program: Any = _growth().program_of(compiled.plan, some)
    if program is None or compiled.spmd is not None:
        return False
    inputs = inputs_of(normal, compiled)
    work = _growth().Appending(get_device(device))
    if not work.grow_all(some, inputs, roots):
        return False
    values = [normal.values[name] for name in program.names]
    try:
        outputs = work.run(program, work.addresses(inputs), values, program.places)
    except BoundsError:
        name_the_line(roots, normal, inputs)
        raise
    commit([adopt(r, o, device, {}) for r, o in zip(roots, outputs, strict=True)])
    return True


def _kept(compiled: Compiled, number: int) -> Any:
    """How a root is split over ranks, if it is."""
    return None if compiled.spmd is None else compiled.spmd.layouts[number]


def joined(spmd: SpmdPlan, normal: Normal) -> dict[str, int]:
    """Begin a plan with all other ranks: the values of its variables on this one."""
    lines = [str(node.origins[0]) for node in normal.nodes[-1:] if node.origins]
    ranks.world().agree(spmd.digest, lines[0] if lines else "")
    return {**normal.values, **ranks.position_values()}


def name_the_line(roots: Sequence[Node], normal: Normal, inputs: Sequence[Buffer]) -> None:
    """Raise an index error again from the user's own graph, whose nodes know their lines."""
    evaluate(roots, input_arrays(roots, normal, inputs), normal.values)


def check_finite(
    roots: Sequence[Node], normal: Normal, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> None:
    """Raise a `NonFiniteError` that names the line, if a result is not finite."""
    with FORK_LOCK:
        from .host import non_finite
    device = get_device(roots[0].device or current().device)
    for root, output in zip(roots, outputs, strict=True):
        shape = concrete(root.shape, normal.values)
        if root.dtype.is_inexact and non_finite.is_bad(
            device.to_host(output, shape, root.dtype), root.dtype
        ):
            break
    else:
        return
    non_finite.name_the_line(roots, input_arrays(roots, normal, inputs), normal.values)


def input_arrays(
    roots: Sequence[Node], normal: Normal, inputs: Sequence[Buffer]
) -> dict[Node, Array]:
    """The values of the buffers that a graph reads, on the host."""
    read = dict(zip(normal.buffers, inputs, strict=False))
    arrays: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op is BUFFER:
            storage: Any = read.get(node) or REGISTRY.storage(node)
            shape = concrete(node.shape, normal.values)
            if storage is None:  # nothing reads its value
                arrays[node] = np.zeros(shape, node.dtype.numpy)
            else:
                arrays[node] = get_device(node.device or "").to_host(storage, shape, node.dtype)
    return arrays


def inputs_of(normal: Normal, compiled: Compiled, buffers: bool = True) -> list[Buffer]:
    """The memory of every param: buffers first, then the constants taken at run time."""
    inputs = [storage_of(buffer) for buffer in normal.buffers] if buffers else []
    for i, dtype in compiled.lifted.items():
        number = array_of_bits(normal.constants[i], dtype)
        inputs.append(get_device(compiled.plan.device).from_host(number))
    return inputs


def storage_of(buffer: Node) -> Buffer:
    """The memory of a BUFFER node."""
    storage = REGISTRY.memory(buffer)
    if storage is None:
        raise ArgumentError(
            "a value inside the body of a loop or a choice is not known while that is built",
            "use fg.where or fg.cond in place of Python's if, and return what you want to see",
        )
    return storage  # type: ignore[return-value]


def adopt(
    root: Node, output: Buffer, device: str, values: dict[str, int], split: Any = None
) -> Node:
    """A BUFFER node for fresh memory; of a root in shards the whole that they make."""
    shape = root.shape if split is None else local_shape(split[0], split[1], root.shape)
    node = new_buffer(concrete(shape, values), root.dtype, device)
    node.origins = root.origins or _lines_below(root)
    REGISTRY.attach(node, output)
    return node if split is None else UNSHARD(node, arg=split)


def _lines_below(root: Node) -> tuple[Origin, ...]:
    """The user's lines of a value that only a leaf of the tape is known by."""
    while not root.origins and len(root.src) == 1:
        (root,) = root.src
    return root.origins


def is_realized(node: Node) -> bool:
    """Does a node's value exist already?"""
    return value_node(node) is not None


def value_node(node: Node) -> Node | None:
    """The BUFFER that holds a node's value, or the UNSHARD of this rank's part, if there is one."""
    if node.realized is not None and (found := node.realized()) is not None:
        return found
    while node.op.name in ("watch", "unwatch", "detach", "override", "assign"):
        node = node.src[node.op.name == "assign"]
        if node.realized is not None and (found := node.realized()) is not None:
            return found
    return node if is_memory(node) else None


def memory_node(base: Node) -> Node:
    """The BUFFER of what `value_node` found: of shards, that of this rank's part."""
    return base.src[0] if base.op is UNSHARD else base


def cache_stats() -> dict[str, dict[str, int]]:
    """Hits, misses, evictions and sizes of the schedule cache and the kernel cache."""
    stats, families = STATS(), FAMILIES()
    stats.size, stats.evictions = len(families), families.stats.evictions
    return {"schedule": asdict(stats), "kernel": asdict(KERNELS().stats)}


def clear_caches() -> None:
    """Forget every compiled graph and, with them, their kernels."""
    FAMILIES().clear()
    HISTORY.clear()
    SHAPES().clear()
    RECENT().clear()
    SKELETONS.clear()
