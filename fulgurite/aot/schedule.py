"""A schedule you can hold: `fg.schedule(*tensors)`, before anything runs.

In: tensors. Out: a `TensorSchedule`: items to look at, `compile()`, `run()`, again and again, and
`save()`. Each run reads its inputs as they are then: an array that was shared and edited, or a
tensor that was assigned, gives the new numbers. It returns fresh tensors; those that it was made
from stay as they are. A graph across devices has a part for each, with copies between them.
`run(changed_only=True)` runs the kernels that depend on inputs which changed since the last run,
and no others; where it cannot tell, it runs them all.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import copy
from gc import collect
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import FORK_LOCK
from ..config import config, current
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node, parents_of
from ..core.op import Array
from ..core.ops.effect import COPY, WATCH
from ..core.ops.leaf import SINK, param
from ..core.origin import Origin
from ..errors import ArgumentError, BoundsError
from ..graph.ir.cache_key import Normal, normalize
from ..graph.ir.kernel import Kernel, Slot
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.registry import Entry, MovedError, entries_at
from ..graph.memory.arena import bytes_moved, slot_bytes
from ..runtime import multi_device
from ..runtime.derived import DERIVED
from ..runtime.device import Buffer, Held, get_device, is_shared
from ..runtime.plan import Plan
from ..runtime.plan_key import cache_key
from ..runtime.realize import (
    OBSERVER,
    Compiled,
    adopt,
    compile_graph,
    inputs_of,
    is_realized,
    lookup,
    name_the_line,
    realize_together,
    storage_of,
    value_node,
)
from ..runtime.step_executor import concrete
from ..runtime.unmaterialized import About, Fresh
from ..tensor import Tensor, wrap

if TYPE_CHECKING:
    from ..runtime.incremental import Incremental, Values
    from .export import LoadedSchedule

KEEP = 1 << 22  # as many bytes of values a plain run keeps before anybody asked what changed
MOST_PATIENCE = 16  # runs after which an input that changed before is believed to stay
PATIENCE = 3  # plain runs in a row after which they keep nothing
Given = Sequence[tuple[int, Array]]  # arrays that are read in the place of inputs
Replay = Callable[[Given], tuple[Tensor, ...]]


class ScheduledItem(NamedTuple):
    """One step: a kernel, or a copy from one device to another."""

    number: int
    device: str
    kind: str
    bytes: int  # read and written, each value once
    origins: tuple[Origin, ...]
    reason: str
    kernel: Kernel
    reads: tuple[int, ...]  # slots of its part
    writes: tuple[int, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that it computes."""
        return tuple(dict.fromkeys(map(str, self.origins)))

    def __str__(self) -> str:
        where = f"  # {self.lines[0]}" if self.lines else ""
        about = f"{self.kind} on {self.device}, {self.bytes:,} bytes"
        return f"{self.number}. {list(self.writes)} = {about} {list(self.reads)}{where}"


class _Left:
    """What a run left for the next one: input versions, and the memory of every value."""

    def __init__(
        self, versions: list[object], values: Values, mark: object, later: dict[int, object]
    ) -> None:
        self.versions, self.values = versions, values
        self.mark = mark  # of every slot, unless it was computed again since
        self.later = later


class _Holding:
    """Who runs a part again and again, with all that depends on inputs that stay done once.

    An input stays if it is the same memory in two runs: a part that runs once pays nothing. While
    the caller of a run holds its inputs nobody writes over them.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, weakref.ref[Buffer]] = {}  # of the last run, then those that stay
        self.held: Held | None = None
        self.mark, self.runs, self.patience = 0, 0, 2
        self.replayed: tuple[list[Buffer], list[Any]] | None = None  # memory and guards of runs

    def of(self, device: str, executor: Any, inputs: Sequence[Buffer]) -> Any:
        """Who runs a plan in the place of its executor, for these inputs."""
        held, mark = self.held, DERIVED.mark
        if held is not None:
            stay = all([memory() is inputs[i] for i, memory in self.inputs.items()])
            if stay and (mark == self.mark or not held.is_stale):
                self.mark = mark
                return held.of(executor)
            self.drop()
        before, self.runs = self.inputs, self.runs + 1
        now = {i: b for i, b in enumerate(inputs) if not is_shared(b)}
        if self.runs >= self.patience:
            now = {i: b for i, b in now.items() if i in before and before[i]() is b}
            held, self.mark = get_device(device).hold(now), mark
        self.inputs, self.held = {i: weakref.ref(b) for i, b in now.items()}, held
        return executor if held is None else held.of(executor)

    def at(
        self, device: str, executor: Any, inputs: Sequence[Buffer], values: Mapping[str, int]
    ) -> Any:
        """Who runs a plan for these values of its variables, once inputs stay."""
        found = self.of(device, executor, inputs)
        one_for_each = self.held is not None and hasattr(found, "at")
        return found.at(values) if one_for_each else found

    def drop(self) -> None:
        """An input has another value: let go of what was done for it, and wait for longer."""
        if self.held is not None:
            self.patience = min(2 * self.patience, MOST_PATIENCE)
        self.held, self.inputs, self.runs = None, {}, 0


class _Part:
    """What one device computes, and what it needs of the others."""

    def __init__(self, part: multi_device.Part) -> None:
        self.device, self.roots, self.arrives = part.device, part.roots, part.arrives
        self.normal = normalize(self.roots)
        self.compiled: Compiled | None = None
        self.constants: list[Buffer] = []  # those that the plan takes at run time
        self.every: tuple[int, ...] = ()
        self.incremental: Incremental | None = None
        self.watched = [_tensors_at(buffer) for buffer in self.normal.buffers]
        self.holding = _Holding()  # of all values of variables

    @classmethod
    def of_plan(cls, plan: Plan, buffers: Sequence[Node], roots: list[Node]) -> _Part:
        """A part whose plan is known: of its roots only shapes and dtypes are read."""
        made = cls.__new__(cls)
        made.device, made.roots, made.arrives = plan.device, roots, {}
        made.normal = Normal((), (), tuple(buffers), {}, ())
        made.compiled, made.constants = Compiled((), {}, plan, {"load": 0.0}), []
        made.every = tuple(range(len(plan.schedule.items)))
        made.incremental, made.watched = None, [()] * len(buffers)
        made.holding = _Holding()
        return made

    @property
    def plan(self) -> Plan:
        assert self.compiled is not None
        return self.compiled.plan

    def name_the_line(self, inputs: Sequence[Buffer]) -> None:
        """Raise an index error again from the user's graph, if there is one."""
        if self.normal.structure:
            name_the_line(self.roots, self.normal, inputs)

    def latest(self, memory: Sequence[Buffer], changed: Sequence[int]) -> list[Buffer]:
        """The memory of its inputs, of which some were assigned."""
        inputs = [*memory]
        _realize_assigned([self.watched[number] for number in changed])
        for number in changed:
            inputs[number] = _latest(self.normal.buffers[number], self.watched[number])[1]
        self.holding.drop()
        return inputs

    def steps(self) -> Incremental:
        """The plan, ready to run kernel by kernel."""
        if self.incremental is None or self.incremental.plan is not self.plan:
            with FORK_LOCK:
                from ..runtime import incremental
            self.incremental = incremental.Incremental(self.plan)
        return self.incremental

    def replay(self, roots: Sequence[Node], places: Sequence[int]) -> Replay:
        """What a run comes to that keeps nothing: as little as possible around the plan."""
        normal, plan, buffers = self.normal, self.plan, self.normal.buffers
        values, watched = normal.values, self.watched
        executor, holding, device = plan.executor, self.holding, self.device
        deferred, check = executor.deferred, executor.check
        if holding.replayed is None:  # the same for all values of variables
            # the memory of inputs stays theirs: who holds a buffer keeps it from being written over
            holding.replayed = (
                [*[storage_of(buffer) for buffer in buffers], *self.constants],
                [(i, *pair) for i, tensors in enumerate(watched) for pair in tensors],
            )
        memory, guards = holding.replayed
        shapes = [concrete(root.shape, values) for root in roots]
        about = [About.of(s, root, self.device) for s, root in zip(shapes, roots, strict=True)]
        results = list(zip(places, about, strict=True))
        # who runs while that which is held is the same, and the mark of derived values
        settled: tuple[Held | None, int, _Runner] = None, 0, _Runner(executor, None, values)

        def replay(given: Given = ()) -> tuple[Tensor, ...]:
            nonlocal settled
            changed = [
                number
                for number, reference, node in guards
                if (entry := reference()) is not None and entry.node is not node
            ]
            inputs = memory
            held, mark, runner = settled
            if changed:
                inputs, runner = self.latest(memory, changed), _Runner(executor, None, values)
                settled = None, 0, runner
            elif held is None or held is not holding.held or mark != DERIVED.mark:
                mark = DERIVED.mark
                runner = _Runner(holding.at(device, executor, memory, values), memory, values)
                settled = holding.held, mark, runner
            plan.runs += 1
            try:
                outputs = runner.run(inputs, given)
                if deferred:
                    check()
            except BoundsError:
                self.name_the_line(inputs)
                raise
            return tuple([_fresh(outputs[place], about) for place, about in results])

        return replay


class _Runner:
    """Who runs a plan again; one native call takes addresses, which are looked up once."""

    __slots__ = ("addresses", "executor", "numbers", "values")

    def __init__(self, executor: Any, memory: Sequence[Any] | None, values: Mapping[str, int]):
        known = memory is not None and hasattr(executor, "addresses")
        self.executor, self.values = executor, values
        self.addresses: list[int] | None = executor.addresses(memory) if known else None
        self.numbers = (
            [values[name] for name in executor.names] if self.addresses is not None else []
        )

    def run(self, inputs: Sequence[Any], given: Given) -> list[Buffer]:
        """The results; arrays that are given are read where they are, or copied to inputs."""
        executor, poison = self.executor, current().poison
        if self.addresses is None or poison:
            for place, array in given:
                np.copyto(inputs[place].array, array)
            found: list[Buffer] = executor.run([*inputs], self.values, poison)
            return found
        addresses = self.addresses.copy()
        for place, array in given:
            flags = array.flags
            if flags.c_contiguous and flags.aligned:
                addresses[place] = array.__array_interface__["data"][0]
            else:
                np.copyto(inputs[place].array, array)
        found = executor.launch(addresses, self.numbers, executor.places)
        return found


def _fresh(memory: Buffer, about: About) -> Tensor:
    """A result that nobody has looked at yet."""
    tensor = Tensor.__new__(Tensor)
    tensor.entry, tensor.grad = Fresh(memory, about), None
    return tensor


class TensorSchedule:
    """Kernels in order for some tensors, compiled on demand and run as often as wanted."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        roots = [t.node for t in tensors]
        parts, where = multi_device.parts(roots)
        self._enter(roots, [_Part(part) for part in parts], where)

    @classmethod
    def of_plan(cls, plan: Plan, buffers: Sequence[Node], roots: list[Node]) -> TensorSchedule:
        """A schedule whose plan is known; its roots stand for shapes and dtypes, in its order."""
        made = cls.__new__(cls)
        where = [(0, number) for number in range(len(roots))]
        made._enter(roots, [_Part.of_plan(plan, buffers, roots)], where)
        return made

    def _enter(
        self, roots: list[Node], parts: list[_Part], where: Sequence[tuple[int, int]]
    ) -> None:
        self._roots, self._parts, self._where = roots, parts, where
        self._left: list[_Left | None] = [None] * len(parts)
        self._copies: dict[Node, tuple[object, Buffer]] = {}  # of values that crossed: mark, memory
        self._lock = threading.RLock()
        self._plain = 0  # runs in a row that did not ask what changed
        self._asked = False  # did any?
        self._replay: Replay | None = None  # once runs keep nothing, if there is only one part
        self._unbound: list[Node] | None = None  # its roots for any values of variables
        self.ran: tuple[int, ...] = ()  # the items that the last run ran
        _schedules.add(self)

    def after_fork(self) -> None:
        """In a child process no other thread lives: what one was doing is undone."""
        self._lock = threading.RLock()
        self._left = [None] * len(self._parts)

    @property
    def _compiled(self) -> Compiled | None:
        """The cache entry of its last part, once it is compiled."""
        return self._parts[-1].compiled

    # --- what it is ------------------------------------------------------------------------------

    @property
    def items(self) -> tuple[ScheduledItem, ...]:
        """The kernels and copies in the order they run, with the slots they read and write."""
        self.compile()
        found: list[ScheduledItem] = []
        seen: set[Node] = set()
        for part in self._parts:
            plan = part.plan.schedule
            for stand, (source, root) in part.arrives.items():
                if stand in part.normal.buffers and stand not in seen:
                    seen.add(stand)
                    slot = self._parts[source].plan.schedule.outputs[root]
                    found.append(_copy(len(found), part, stand, slot))
            for item in plan.items:
                found.append(
                    ScheduledItem(
                        len(found), part.device, item.kernel.kind, bytes_moved(plan, item),
                        item.origins, item.reason, item.kernel, item.reads, item.writes,
                    )
                )  # fmt: skip
        return tuple(found)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """One plan for each device that takes part, in the order they run."""
        self.compile()
        return tuple([part.plan for part in self._parts])

    @property
    def slots(self) -> tuple[Slot | None, ...]:
        """The places for values of the (last) plan: inputs, constants, what kernels write."""
        return self.compile().schedule.slots

    @property
    def bytes(self) -> int:
        """What all kernels read and write together."""
        return sum([item.bytes for item in self.items])

    @property
    def peak(self) -> int:
        """The most bytes that a run needs at once: inputs, results, arenas and workspaces."""
        return sum([plan.layout.peak_bytes for plan in self.plans])

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        if len(self._parts) == 1:
            return str(self.compile().schedule)
        return "\n".join(map(str, self.items))

    # --- compiling -------------------------------------------------------------------------------

    def compile(
        self, cache: MutableMapping[Any, Any] | bool | None = None, any_size: bool = False
    ) -> Plan:
        """The plan, from a cache or made now: the process's own, one of yours, or (False) none.

        Of a graph across devices it is the plan of the last part; `plans` has them all. With
        `any_size` it may be shared with graphs of other sizes; it then runs as a whole only.
        """
        if cache is None and self._parts[-1].compiled is not None:
            return self._parts[-1].plan
        with self._lock:
            for part in self._parts:
                if part.compiled is None or cache is not None:
                    with config(tier="native"):
                        part.compiled = _compiled(part, cache, any_size)
                    part.constants = inputs_of(part.normal, part.compiled, buffers=False)
                    part.every = tuple(range(len(part.plan.schedule.items)))
                    part.holding, self._replay = _Holding(), None
            return self._parts[-1].plan

    def bound(self, values: Mapping[str, int]) -> TensorSchedule:
        """The same kernels for other values of its variables; nothing is compiled."""
        self.compile()
        made = copy(self)
        made.after_fork()
        made._parts, made._copies, made._replay = [copy(part) for part in self._parts], {}, None
        if self._unbound is None:
            with FORK_LOCK:
                from ..jit import dynamic_shapes
            shapes = [dynamic_shapes.unbound(root.shape) for root in self._roots]
            self._unbound = [  # of which only that is read
                param(0, shape, root.dtype, None)
                for root, shape in zip(self._roots, shapes, strict=True)
            ]
        made._roots = self._unbound
        made._plain = self._plain if self._asked else PATIENCE  # what nobody asked of this one
        for part in made._parts:
            known = part.normal.values
            part.normal = part.normal._replace(values={n: values.get(n, known[n]) for n in known})
        _schedules.add(made)
        return made

    @property
    def only_part(self) -> _Part | None:
        """What its one device computes, once it is compiled; None if there are several."""
        return self._parts[0] if len(self._parts) == 1 and self._compiled is not None else None

    def place_of(self, number: int) -> int:
        """Which result of its part a tensor is."""
        return self._where[number][1]

    @property
    def buffers(self) -> set[Node]:
        """What it reads."""
        return {buffer for part in self._parts for buffer in part.normal.buffers}

    # --- running ---------------------------------------------------------------------------------

    @property
    def is_replayed(self) -> bool:
        """True if runs keep nothing any more: they may be given arrays."""
        return self._replay is not None

    def own(self) -> None:
        """Its inputs are nobody else's tensors: no run looks for assigned ones."""
        for part in self._parts:
            part.watched = [()] * len(part.watched)

    def places_of(self, node: Node) -> list[int]:
        """Where a value in memory is among the inputs of its one part."""
        return [i for i, buffer in enumerate(self._parts[0].normal.buffers) if buffer is node]

    def run(self, changed_only: bool = False, given: Given = ()) -> tuple[Tensor, ...]:
        """The results as fresh tensors, computed from what the inputs hold now.

        `changed_only` runs the kernels that depend on inputs that changed since the last run of
        this schedule; what did not change is returned as it was. `ran` says which items ran.
        `given`, only once it `is_replayed`, are arrays in the place of shared memory of inputs.
        """
        if self._replay is not None and not changed_only:
            return self._replay(given)
        self.compile()
        self._replay = None
        nothing: list[_Left | None] = [None] * len(self._parts)
        self._plain = 0 if changed_only else self._plain + 1
        self._asked = self._asked or changed_only
        keep = self._asked or all([part.steps().kept_bytes <= KEEP for part in self._parts])
        if self._plain > PATIENCE or not keep:  # nobody asks what changed: do not pay for it
            self._left = nothing
            if len(self._parts) > 1:
                return self._run(nothing, {}, False)
            part = self._parts[0]
            self._replay = replay = part.replay(self._roots, [place for _, place in self._where])
            self.ran = part.every
            return replay(given)
        if not changed_only:
            if not self._lock.acquire(blocking=False):
                return self._run(nothing, {}, False)
            try:
                self._left = nothing
                return self._run(nothing, {}, True)
            finally:
                self._lock.release()
        with self._lock:
            left, copies = self._left, dict(self._copies)
            self._left = nothing  # a run that fails leaves nothing
            return self._run(left, copies, True)

    def _run(
        self, left: list[_Left | None], copies: dict[Node, tuple[object, Buffer]],
        keep: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Every part in order, from what a run before left of each."""
        ran: list[int] = []
        several = len(self._parts) > 1
        first = 0
        seen: set[Node] = set()
        now: list[_Left | None] = []
        outputs: list[list[Buffer]] = []
        marks: list[list[object]] = []
        for part, before in zip(self._parts, left, strict=True):
            for stand, (source, root) in part.arrives.items() if several else ():
                if stand not in part.normal.buffers or stand in seen:
                    continue
                seen.add(stand)
                mark = marks[source][root]
                if stand not in copies or copies[stand][0] is not mark:
                    value = outputs[source][root]
                    copies[stand] = (mark, self._moved(source, value, stand))
                    ran.append(first)
                first += 1
            inputs, versions = self._inputs(part, copies)
            found, numbers, after = self._run_part(part, inputs, versions, before, keep)
            ran += [first + number for number in numbers]
            first += len(part.plan.schedule.items)
            now.append(after)
            outputs.append(found)
            if several:
                marks.append(_marks(part, after))
        if keep:
            self._left, self._copies = now, copies
        self.ran = tuple(ran)
        return tuple([self._tensor(n, outputs[p][r], p) for n, (p, r) in enumerate(self._where)])

    def _run_part(
        self, part: _Part, inputs: list[Buffer], versions: list[object], before: _Left | None,
        keep: bool,
    ) -> tuple[list[Buffer], Sequence[int], _Left | None]:  # fmt: skip
        """The results of one part, the kernels that ran, and what is left for the next run."""
        plan, poison, values = part.plan, current().poison, part.normal.values
        every = part.every
        steps = part.steps()
        try:
            if not steps.can_keep or not keep:
                executor = part.holding.of(part.device, plan.executor, inputs)
                return plan.run(inputs, values, poison, executor), every, None
            if before is None:
                written = steps.whole(inputs, values, poison)
                found = [written[slot] for slot in plan.schedule.outputs]
                return found, every, _Left(versions, written, object(), {})
            pairs = enumerate(zip(versions, before.versions, strict=True))
            numbers = steps.affected([i for i, (a, b) in pairs if a is None or a != b])
            if len(numbers) == len(every):
                written = steps.whole(inputs, values, poison)
            else:
                written = steps.some(numbers, inputs, before.values, values, poison)
        except BoundsError:
            part.name_the_line(inputs)
            raise
        now = object()
        new = {slot: now for number in numbers for slot in plan.schedule.items[number].writes}
        found = [written[slot] for slot in plan.schedule.outputs]
        return found, numbers, _Left(versions, written, before.mark, before.later | new)

    def _tensor(self, number: int, output: Buffer, part: int) -> Tensor:
        device, values = self._parts[part].device, self._parts[part].normal.values
        return wrap(adopt(self._roots[number], output, device, values))

    def _moved(self, source: int, value: Buffer, stand: Node) -> Buffer:
        shape: Any = stand.shape
        there, here = get_device(self._parts[source].device), get_device(stand.device or "")
        return here.copy_from(there, value, shape, stand.dtype)

    # --- inputs ----------------------------------------------------------------------------------

    def _inputs(
        self, part: _Part, copies: Mapping[Node, tuple[object, Buffer]]
    ) -> tuple[list[Buffer], list[object]]:
        """The memory of every input as it is now, and a version of each; None: it may differ."""
        found: list[Buffer] = []
        versions: list[object] = []
        _realize_assigned(part.watched)
        for buffer, tensors in zip(part.normal.buffers, part.watched, strict=True):
            if buffer in copies:
                mark, memory = copies[buffer]
            else:
                node, memory = _latest(buffer, tensors)
                # the node itself: while it is held here nobody writes over its memory
                mark = None if is_shared(memory) else node
            found.append(memory)
            versions.append(mark)
        return [*found, *part.constants], [*versions, *[0] * len(part.constants)]

    # --- shipping --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], names: Mapping[str, Tensor] | None = None) -> None:
        """Write the plan and its machine code to a file that another process can run.

        `names` gives inputs a name and an order; the others follow as input0, input1, ... The
        values of inputs are not in the file. `fg.load_schedule` reads it.
        """
        from .export import save

        if len(self._parts) > 1:
            raise ArgumentError(
                "a schedule across devices cannot be saved", "save one for each device"
            )
        self.compile()
        part = self._parts[0]
        assert part.compiled is not None
        numbers = {name: _number(part, name, tensor) for name, tensor in (names or {}).items()}
        if len(set(numbers.values())) != len(numbers):
            raise ArgumentError("one input has two names", "name every input once")
        save(path, part.normal, part.compiled, part.roots, numbers)


def _number(part: _Part, name: str, tensor: Tensor) -> int:
    """Which input a tensor is, by the value it had or has."""
    if not isinstance(name, str):
        raise ArgumentError(f"{name!r} is no name of an input", "use a string")
    if isinstance(tensor, Tensor):
        value = value_node(tensor.node)
        for number, entries in enumerate(part.watched):
            known = [reference() for reference, _ in entries]
            if tensor.entry in known or part.normal.buffers[number] is value:
                return number
    raise ArgumentError(f"{name!r} is no input of this schedule", "name tensors that it reads")


def _marks(part: _Part, left: _Left | None) -> list[object]:
    """For each result of a part an object that stays while the result does."""
    places = part.plan.schedule.outputs
    if left is None:
        return [object() for _ in places]
    return [left.later.get(place, left.mark) for place in places]


_schedules: weakref.WeakSet[TensorSchedule] = weakref.WeakSet()


def _after_fork() -> None:
    for held in list(_schedules):
        held.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _compiled(
    part: _Part, cache: MutableMapping[Any, Any] | bool | None, any_size: bool
) -> Compiled:
    if any_size:
        return _compiled_once(part, cache)
    with config(dynamic=False):  # every kernel has its place in memory
        return _compiled_once(part, cache)


def _compiled_once(part: _Part, cache: MutableMapping[Any, Any] | bool | None) -> Compiled:
    if cache is None or cache is True:
        return lookup(part.normal, part.device)
    options = current()
    if cache is False:
        return compile_graph(part.normal, part.device, options, {})
    if not isinstance(cache, MutableMapping):
        raise ArgumentError(
            f"a cache is a mapping, not {type(cache).__name__}", "pass a dict, False, or nothing"
        )
    key = (part.normal.key, cache_key(part.device, options))
    if key not in cache:
        cache[key] = compile_graph(part.normal, part.device, options, {})
    found: Compiled = cache[key]
    return found


def _copy(number: int, part: _Part, stand: Node, source: int) -> ScheduledItem:
    """The step that brings a value from another device."""
    body = SINK(COPY(param(0, stand.shape, stand.dtype, None), arg=part.device))
    size = Slot(stand.dtype, stand.shape, None)
    return ScheduledItem(
        number, part.device, "copy", 2 * slot_bytes(size), stand.origins,
        "it crosses to another device", Kernel(KernelKind.COPY, body, 1), (source,),
        (part.normal.buffers.index(stand),),
    )  # fmt: skip


# --- tensors that are inputs ---------------------------------------------------------------------

Tensors = tuple[tuple[weakref.ref[Entry], Node], ...]
"""Tensors, and the node that each of them has while nobody assigns it."""


def _tensors_at(buffer: Node) -> Tensors:
    """The tensors whose value a buffer is: who assigns one of them edits the input."""
    nodes = [buffer, *[p for p in parents_of(buffer) if p.op is WATCH]]
    return tuple([(weakref.ref(entry), node) for node in nodes for entry in entries_at(node)])


def _realize_assigned(inputs: Sequence[Tensors]) -> None:
    """Compute what was assigned to inputs in one plan: each alone would repeat what they share."""
    found = [e for tensors in inputs for reference, node in tensors
             if (e := reference()) is not None and e.node is not node]  # fmt: skip
    if len(found) > 1:
        realize_together(found)


def _latest(buffer: Node, tensors: Tensors) -> tuple[Node, Buffer]:
    """The buffer that holds an input now, and its memory."""
    for reference, node in tensors:
        found = reference()
        if found is not None and found.node is not node:
            break
    else:  # the common case: nobody assigned it
        return buffer, storage_of(buffer)
    while True:  # another thread may assign the tensor meanwhile
        values = _values(tensors)
        if len(values) > 1:
            collect()  # a tensor that nobody can reach any more has no say
            values = _values(tensors)
        if len(values) > 1:
            raise ArgumentError(
                "tensors that were one value, and so one input of a schedule, differ by now: one is"
                " a copy of the other or was assigned from it, and which of them was scheduled is"
                " not known",
                "schedule anew, or drop the copy, or make it with memory of its own:"
                " fg.Tensor(x.numpy())",
            )
        node = next(iter(values), buffer)
        try:
            return node, storage_of(node)
        except MovedError:
            if node is buffer:
                raise


def _values(tensors: Tensors) -> list[Node]:
    """The buffers that hold the living ones of some tensors now, each once."""
    found: dict[Node, None] = {}
    entries = [e for reference, _ in tensors if (e := reference()) is not None]
    realize_together(entries)
    for entry in entries:
        now = value_node(entry.node)
        if now is not None:
            found[now] = None
    return list(found)


def schedule(*tensors: Tensor) -> TensorSchedule:
    """The kernels that would compute these tensors.

    >>> import fulgurite as fg
    >>> x = fg.Tensor([1.0, 2.0])
    >>> plan = fg.schedule(x * 2 + 1)
    >>> [t.tolist() for t in plan.run()]
    [[3.0, 5.0]]
    >>> x += 1
    >>> [t.tolist() for t in plan.run(changed_only=True)], plan.ran
    ([[5.0, 7.0]], (0,))
    """
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{type(tensor).__name__} is not a tensor", "pass tensors")
    if OBSERVER.refuse is not None:
        OBSERVER.refuse()
    if not tensors or all(is_realized(t.node) for t in tensors):
        raise ArgumentError(
            "there is nothing to schedule", "pass at least one tensor that is not realized yet"
        )
    return TensorSchedule(tensors)


def load_schedule(path: str | os.PathLike[str]) -> LoadedSchedule:
    """Read a schedule that `save` wrote, to be run with arrays; nothing is compiled.

    A file that was changed, or that is for another machine or version, is refused. It holds machine
    code: load only what you trust.

    >>> import tempfile, os
    >>> x = fg.Tensor([1.0, 2.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fg.schedule(x * 2).save(os.path.join(folder, "double"), names={"x": x})
    ...     double = fg.load_schedule(os.path.join(folder, "double"))
    >>> import numpy as np
    >>> double.run(x=np.float32([5, 6]))[0].tolist()
    [10.0, 12.0]
    """
    from .export import load

    return load(path)
