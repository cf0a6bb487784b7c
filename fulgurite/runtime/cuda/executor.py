"""A plan on a GPU: explicit-node CUDA graphs over an arena, one launch for each run of kernels.

In: a schedule, loaded kernels (or Python callables) for its items, the layout of its memory. Out:
`run(inputs)`. Kernels between host steps are a segment. A frame holds the arguments of every kernel
of a plan: addresses of the arena, the workspace and constants are set once, those of inputs,
outputs and the values of variables when they differ from the run before; only nodes of kernels that
read them are updated (`cuGraphExecKernelNodeSetParams`). The first run launches kernel by kernel,
as many plans run once; from the second on a segment of more than a few is one `cuGraphLaunch`.
Addresses that come again, such as those of results that take turns, have a graph of their own, so a
steady step updates nothing.
Nothing is waited for: a frame may be used again at once, since all work is in the order of one
stream. Kernels report an index outside its axis in two words of pinned memory that `check` waits
for and reads, and in the lock, a word of the GPU's. Kernels that write over inputs look at the lock
and do nothing while it is set (`Launch.guarded`): a replay that writes over inputs need not wait
for its checks, the device asks when somebody reads a value (`CudaDevice.settle`). A plan that has
unguarded writers, in Python, is cut before them, and asked there.
Sizes that vary are laid out at their upper bound inside the plan; what leaves it is cut to size.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ...codegen.cuda import source
from ...config import current
from ...core.shape import upper
from ...errors import BoundsError
from ...graph.ir.kernel import Item, Schedule
from ...graph.memory.arena import Layout, slot_bytes
from ..device import Buffer, Pass, Values
from ..host.preconditions import check_extremes, sizes_of_extremes
from ..recording import timed_step
from ..step_executor import (
    IDLE,
    StepCode,
    concrete,
    constants_of,
    restore_copies,
    saved_copies,
    spoil,
)
from . import driver as cuda
from .dependencies import Span, dependencies
from .kernels import CudaKernel, LoadedLaunch, cells_of
from .memory import SOLE, CudaBuffer, Ring

if TYPE_CHECKING:
    from .device import CudaDevice
    from .timing import StreamTimes

POISON = 0xA5
ARENA = "arena"
BRANCHES = 8  # kernels of a graph side by side, at most
ROOM, ERROR, LOCK = "workspace", "error words", "lock"  # places beside the slots
FLAGS = "flags"
LINK = "link"  # to other GPUs, which one collective uses at a time
BASES = {source.ROOM: ROOM, source.ERROR: ERROR, source.LOCK: LOCK, source.FLAGS: FLAGS}
Key = int | str  # a slot, one of these three, or the name of a variable (behind a dot)
FEW = 2  # kernels that are launched one by one sooner than a graph of them
MOST_GRAPHS = 8  # of one frame, each for addresses of its own
REMEMBERED = 16  # sets of addresses of the last runs, among which one is looked for


class Segment:
    """Consecutive kernels: their launches, and which arguments are a slot's or a variable's."""

    def __init__(self, schedule: Schedule, items: Sequence[tuple[int, Item, CudaKernel]]) -> None:
        self.schedule = schedule
        self.items: list[int] = []  # of each launch
        self.launches: list[LoadedLaunch] = []
        self.cells: list[list[tuple[str, Any]]] = []  # types and values of arguments
        self.uses: dict[Key, list[tuple[int, int, int]]] = {}  # launch, argument, offset
        taken = dict(schedule.aliases)
        self.over: int | None = None  # the first launch that writes over an input
        for number, item, kernel in items:
            slots = (*item.reads, *item.writes)
            if self.over is None and any([slot in taken for slot in item.writes]):
                self.over = len(self.launches)
            for launch in kernel.launches:
                self._add(launch, slots)
                self.items.append(number)

    def _add(self, launch: LoadedLaunch, slots: Sequence[int]) -> None:
        number = len(self.launches)
        self.launches.append(launch)
        cells, uses = cells_of(launch.arguments)
        for place, (where, value) in uses.items():
            key: Key
            offset = 0
            if where == source.PARAM:
                key = slots[int(value)]
            elif where == source.VARIABLE:
                key = f".{value}"
            else:
                key, offset = BASES[where], int(value)
            self.uses.setdefault(key, []).append((number, place, offset))
        self.cells.append(cells)


class Launches:
    """A segment with arguments of its own, for one run at a time."""

    def __init__(self, program: CudaProgram, segment: Segment, runs: int = 0) -> None:
        self.program, self.device = program, program.device
        self.segment, self.runs = segment, runs
        self.arguments = [cuda.Arguments(cells) for cells in segment.cells]
        self.graph: cuda.Graph | None = None
        self.nodes: list[int] = []
        self.changed: set[int] = set()

    def set(self, key: Key, value: int) -> None:
        """Give a slot's address or a variable's value to every launch that reads it."""
        for launch, place, offset in self.segment.uses.get(key, ()):
            self.arguments[launch].set(self.device.driver, place, value + offset)
            self.changed.add(launch)

    def launch(self, run: Begun | Frame) -> None:
        """Run the segment after all that was launched before.

        The run has begun to write over inputs when something that does was launched, not before.
        """
        device, over = self.device, self.segment.over
        self.runs += 1
        if device.times is not None:
            run.begun = run.begun or over is not None
            self._timed(device.times)
            return
        try:
            graph = self._ready()
            if graph is not None:
                begun, run.begun = run.begun, run.begun or over is not None
                try:
                    graph.launch(device.stream)
                except cuda.CudaError:
                    run.begun = begun
                    raise
                return
        except cuda.CudaMemoryError:  # a graph takes memory of the GPU, which kernels do not
            if self.graph is not None:
                device.discard(self.graph)
                self.graph = None
        for number, n in enumerate(self.segment.launches):
            run.begun = run.begun or number == over
            n.launch(device.driver, self.arguments[number], device.stream)
        self.changed.clear()

    def _ready(self) -> cuda.Graph | None:
        """A graph that knows of all that changed; None where kernels are launched one by one."""
        if self.graph is not None and not self._updated(self.graph):
            self.device.discard(self.graph)
            self.graph = None
        if self.graph is None and self.runs > 1 and len(self.segment.launches) > FEW:
            self._build()
        return self.graph

    def _updated(self, graph: cuda.Graph) -> bool:
        """Tell a graph what changed; False if it must be built anew."""
        launches = self.segment.launches
        if any([launches[n].is_fixed for n in self.changed]):
            return False
        for number in self.changed:
            if not launches[number].update_in(graph, self.nodes[number], self.arguments[number]):
                return False
        self.changed.clear()
        return True

    def _timed(self, times: StreamTimes) -> None:
        """Run it kernel by kernel, with an event before the first and behind each.

        What changed is remembered: the nodes of the graph have not been updated.
        """
        device, events = self.device, [times.event()]
        for n, arguments in zip(self.segment.launches, self.arguments, strict=True):
            n.launch(device.driver, arguments, device.stream)
            events.append(times.event())
        times.launched(self.segment.schedule, self.segment.items, events)

    def _build(self) -> None:
        graph = cuda.Graph(self.device.driver)
        self.nodes.clear()
        try:
            segment = self.segment
            ends: dict[int, int] = {}  # the last node of each item
            for place, n in enumerate(segment.launches):
                item = segment.items[place]
                follows = place > 0 and segment.items[place - 1] == item
                after = [item] if follows else self.program.waits_for(item)
                before = [ends[i] for i in after if i in ends]  # others ran in earlier segments
                ends[item] = n.add_to(graph, self.arguments[place], before)
                self.nodes.append(ends[item])
            graph.instantiate()
        except BaseException:
            self.nodes.clear()
            graph.close()
            raise
        self.changed.clear()
        self.graph = graph

    def __del__(self) -> None:
        if self.graph is not None:
            self.device.discard(self.graph)


class ErrorWords:
    """Two words of pinned memory that kernels write and the host reads."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.pinned = device, cuda.Pinned(device.driver, 16)
        self.words = (ctypes.c_int64 * 2).from_address(self.pinned.address)
        self.words[0] = self.words[1] = 0

    def check(self) -> None:
        """Wait for all kernels; an error if an index was outside."""
        self.device.stream.synchronize()
        if self.words[0]:
            raise self.taken()

    def taken(self) -> BoundsError:
        """The error; from here on there is none, and kernels write again."""
        size, self.words[0] = self.words[1], 0
        self.device.unlock()
        return BoundsError(
            f"an index is outside an axis of size {size}", f"indices run from {-size} to {size - 1}"
        )

    def __del__(self) -> None:
        if "pinned" in vars(self):  # else there was no memory for them
            self.device.discard(self.pinned)


class Variables:
    """The values of a plan's variables in memory of the GPU, where kernels read them.

    A value that changes with every run is one copy of a few bytes, in order with the kernels; as an
    argument it would be an update of each node of a graph that reads it.
    """

    def __init__(self, device: CudaDevice, names: Sequence[str]) -> None:
        self.device, self.places = device, {name: i for i, name in enumerate(names)}
        self.words = (ctypes.c_int64 * max(1, len(names)))()
        self.memory = device.taken(ctypes.sizeof(self.words)) if names else None
        self.given = False

    @property
    def addresses(self) -> dict[Key, int]:
        """Where each variable is."""
        start = self.memory.address if self.memory is not None else 0
        return {f".{name}": start + 8 * place for name, place in self.places.items()}

    def give(self, values: Mapping[str, int]) -> None:
        """Let kernels that are launched from here on see these values."""
        changed = not self.given
        for name, value in values.items():
            place = self.places.get(name)
            if place is not None and self.words[place] != value:
                self.words[place] = value
                changed = True
        if changed and self.memory is not None:
            self.given, device = True, self.device
            device.enter()  # the driver has a copy of pageable memory when the call returns
            cuda.copy_in(
                device.driver, self.memory.address, ctypes.addressof(self.words),
                ctypes.sizeof(self.words), device.stream,
            )  # fmt: skip


class Begun:
    """Whether a run that writes over its inputs has begun to, and who names its lines."""

    begun = False
    tell: Callable[[], None] | None = None


class ArgumentSet:
    """The arguments of all kernels of a plan, and its graphs over them.

    `graphs` are its instantiated graphs in order, once each segment has one and knows of all that
    changed: a launch of them needs nothing else.
    """

    __slots__ = ("graphs", "known", "parts")

    def __init__(self, parts: list[Launches | None], known: Mapping[Key, int]) -> None:
        self.parts = parts
        self.graphs: list[int] = []
        self.known: dict[Key, int] = {}
        for key, value in known.items():
            self.set(key, value)

    def set(self, key: Key, value: int) -> None:
        """Put an address or a value where kernels find it."""
        if self.known.get(key) != value:
            self.known[key] = value
            self.graphs = []
            for part in self.parts:
                if part is not None:
                    part.set(key, value)

    def settle(self) -> None:
        """Note the graphs, if all segments are one each."""
        found = [part.graph for part in self.parts if part is not None and not part.changed]
        if len(found) == len(self.parts):
            graphs = [graph.executable for graph in found if graph is not None]
            self.graphs = graphs if len(graphs) == len(found) else []


class Frame:
    """What one run needs: arguments, and the memory of intermediates."""

    __slots__ = (
        "begun", "errors", "fixed", "made", "main", "memory", "offsets", "repeated", "seen",
        "variables", "workspace",
    )  # fmt: skip

    def __init__(
        self, parts: list[Launches | None], arena: CudaBuffer, workspace: CudaBuffer,
        errors: ErrorWords, offsets: Mapping[int, int], fixed: Mapping[Key, int],
        variables: Variables,
    ) -> None:  # fmt: skip
        self.variables = variables
        self.memory, self.workspace, self.errors = arena, workspace, errors
        self.offsets = offsets  # of slots in the arena
        self.fixed = fixed  # addresses that never change
        self.main = ArgumentSet(parts, fixed)
        self.repeated: dict[tuple[int, ...], ArgumentSet] = {}  # of addresses that came again
        self.seen: deque[tuple[int, ...]] = deque(maxlen=REMEMBERED)
        self.begun = False  # does this run write over an input by now?
        self.made: list[ref[CudaBuffer]] = []  # the results of the last replay

    @property
    def parts(self) -> list[Launches | None]:
        """The segments of the plan."""
        return self.main.parts

    def set(self, key: Key, value: int) -> None:
        """Put an address or a value where kernels find it."""
        self.main.set(key, value)


class CudaProgram:
    """A schedule as segments and host steps in order."""

    def __init__(
        self, device: CudaDevice, schedule: Schedule, code: Sequence[CudaKernel | StepCode],
        layout: Layout,
    ) -> None:  # fmt: skip
        self.device, self.schedule, self.layout, self.code = device, schedule, layout, code
        self.constants = constants_of(device, schedule)
        kernels = [c for c in code if isinstance(c, CudaKernel)]
        self.workspace = max((c.workspace for c in kernels), default=0)
        self.deferred = any(c.reports_bounds for c in kernels)
        self.names = list(dict.fromkeys(name for c in kernels for name in c.variables))
        self.taken = dict(schedule.aliases)
        self.outputs = list(dict.fromkeys(schedule.outputs))
        known = {*range(schedule.inputs), *self.constants, *self.taken}
        self.fresh = [place for place in self.outputs if place not in known]
        self.made = [(p, slot_bytes(s)) for p in self.fresh if (s := schedule.slots[p]) is not None]
        self.rings = {place: Ring(device.pool) for place, _ in self.made}
        self.over = -1  # the first step that writes over an input without looking at the lock
        self.steps = self._steps(code)
        self.symbolic = _varying(schedule)
        self.extremes = self._extremes() if self.symbolic or self.names else []
        self.host_items: Sequence[Item] = [s[0] for s in self.steps if isinstance(s, tuple)]
        self._idle: list[Frame] = []
        self.runs = 0
        device.programs.add(self)

    def _extremes(self) -> Any:
        """What must hold of sizes that vary, for extremes of nothing."""
        return sizes_of_extremes([item.kernel for item in self.schedule.items])

    def _steps(self, code: Sequence[CudaKernel | StepCode]) -> list[Segment | tuple[Item, Any]]:
        """Segments and host steps; a plan that writes over inputs is cut before it begins to."""
        steps: list[Segment | tuple[Item, Any]] = []
        pending: list[tuple[int, Item, CudaKernel]] = []

        def flush() -> None:
            if pending:
                steps.append(Segment(self.schedule, pending))
                pending.clear()

        for number, (item, made) in enumerate(zip(self.schedule.items, code, strict=True)):
            writes_over = any(slot in self.taken for slot in item.writes)
            guarded = isinstance(made, CudaKernel) and made.is_guarded
            if self.over < 0 and writes_over and not guarded:
                flush()
                self.over = len(steps)
            if isinstance(made, CudaKernel):
                pending.append((number, item, made))
            else:
                flush()
                steps.append((item, made))
        flush()
        return steps

    # --- runs ------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass; a fresh buffer for each output."""
        frame = self.acquire(poison)
        found = self.run_keeping(frame, inputs, values, poison)
        self.release(frame)
        return found

    def run_keeping(
        self, frame: Frame, inputs: Sequence[Buffer], values: Values, poison: bool
    ) -> list[Buffer]:
        """One pass in a frame; what an index broke is found out by `check`."""
        if self.extremes:
            check_extremes(self.extremes, values)
        device = self.device
        device.settle()
        results: dict[int, Buffer] = {}
        for place, nbytes in self.made:
            made = results[place] = device.taken(nbytes)
            frame.set(place, made.address)
            if poison:
                device.fill(made, POISON)
        for place, buffer in enumerate(inputs):
            frame.set(place, buffer.address or lost(buffer))
        for place, input_ in self.schedule.aliases:
            results[place] = inputs[input_]
            frame.set(place, inputs[input_].address)
        frame.variables.give({name: values[name] for name in self.names})
        saved: dict[int, Buffer] = {}
        if self.taken and self.host_items:
            saved = saved_copies(device, self.schedule, inputs)
        frame.begun = False
        try:
            self.run_frame(frame, inputs, results, values)
        except BoundsError:
            raise
        except BaseException as problem:
            if saved:
                restore_copies(device, inputs, saved)
            elif frame.begun:
                spoil(problem)
            raise
        return self._results(inputs, results, values)

    def _results(
        self, inputs: Sequence[Buffer], results: dict[int, Buffer], values: Values
    ) -> list[Buffer]:
        for place in self.outputs:
            if place in self.symbolic:
                results[place] = self._cut(place, results[place], values)
            elif place not in results:
                known = inputs[place] if place < len(inputs) else self.constants[place]
                results[place] = self.device.duplicated(known)
        found: list[Buffer] = []
        for place in self.schedule.outputs:  # one that was asked for twice is two values
            again = any([results[place] is other for other in found])
            found.append(self.device.duplicated(results[place]) if again else results[place])
        return found

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        """One pass from given memory into given memory."""
        self.device.settle()
        frame = self.acquire(current().poison)
        results = dict(zip(self.schedule.outputs, outputs, strict=True))
        for place, buffer in enumerate(inputs):
            frame.set(place, buffer.address)
        for place, buffer in results.items():
            frame.set(place, buffer.address)
        frame.variables.give({name: values[name] for name in self.names})
        self.run_frame(frame, inputs, results, values)
        self.release(frame)

    def run_frame(
        self, frame: Frame, inputs: Sequence[Buffer], results: Mapping[int, Buffer], values: Values
    ) -> None:
        """One pass over a frame whose arguments are set."""
        self.device.enter()
        for number, step in enumerate(self.steps):
            if number == self.over and self.deferred:
                frame.errors.check()
            if isinstance(step, tuple):
                self._host(step, frame, inputs, results, values)
            else:
                part = frame.parts[number]
                assert part is not None
                part.launch(frame)
        self._unchecked = frame.errors if self.deferred else None

    _unchecked: ErrorWords | None = None

    def check(self) -> None:
        """Wait until every kernel that checks an index has run; an error if one failed."""
        unchecked, self._unchecked = self._unchecked, None
        if unchecked is not None:
            unchecked.check()

    # --- host steps and sizes that vary ----------------------------------------------------------

    def _buffer(
        self, place: int, frame: Frame, inputs: Sequence[Buffer], results: Mapping[int, Buffer]
    ) -> Buffer:
        """A slot's memory, as large as it may be."""
        if place < len(inputs):
            return inputs[place]
        if place in self.constants:
            return self.constants[place]
        if place in results:
            return results[place]
        slot = self.schedule.slots[place]
        assert slot is not None
        at = frame.memory.address + frame.offsets[place]
        return CudaBuffer(frame.memory.block, at, slot_bytes(slot))

    def _host(
        self, step: tuple[Item, StepCode], frame: Frame, inputs: Sequence[Buffer],
        results: Mapping[int, Buffer], values: Values,
    ) -> None:  # fmt: skip
        """A kernel that Python runs; of sizes that vary it sees values of just that size."""
        item, execute = step
        device = self.device
        whole = {p: self._buffer(p, frame, inputs, results) for p in (*item.reads, *item.writes)}
        reads = [
            self._cut(p, whole[p], values) if p in self.symbolic and p >= len(inputs) else whole[p]
            for p in item.reads
        ]
        writes = []
        for place in item.writes:
            slot = self.schedule.slots[place]
            assert slot is not None
            sizes = concrete(slot.shape, values)
            varies = place in self.symbolic
            writes.append(device.allocate(sizes, slot.dtype) if varies else whole[place])
        if device.recorder is None:
            execute(reads, writes, values)
        else:
            number = self.schedule.items.index(item)
            with timed_step(device.recorder, self.schedule, device.name, number, "host"):
                execute(reads, writes, values)
        for place, made in zip(item.writes, writes, strict=True):
            if place in self.symbolic:
                self._paste(place, made, whole[place], values)

    def _cut(self, place: int, whole: Buffer, values: Values) -> Buffer:
        slot = self.schedule.slots[place]
        assert slot is not None
        most, sizes = at_most(slot.shape), concrete(slot.shape, values)
        if prod(most) == prod(sizes):
            return whole
        array = self.device.to_host(whole, most, slot.dtype)
        return self.device.from_host(np.ascontiguousarray(array[_corner(sizes)]))

    def _paste(self, place: int, part: Buffer, whole: Buffer, values: Values) -> None:
        slot = self.schedule.slots[place]
        assert slot is not None
        most, sizes = at_most(slot.shape), concrete(slot.shape, values)
        array = self.device.to_host(whole, most, slot.dtype)
        array[_corner(sizes)] = self.device.to_host(part, sizes, slot.dtype)
        self.device.copy_in(array, whole)

    # --- frames ----------------------------------------------------------------------------------

    def acquire(self, poison: bool) -> Frame:
        """A frame for one run at a time."""
        self.runs += 1
        try:
            return self._idle.pop() if not poison else self.frame(poison, self.layout)
        except IndexError:
            return self.frame(poison, self.layout)

    def release(self, frame: Frame) -> None:
        """Keep a frame for the next run."""
        if len(self._idle) < IDLE:
            self._idle.append(frame)

    def frame(self, poison: bool, layout: Layout) -> Frame:
        """Arguments and memory for one run at a time, with intermediates where a layout says."""
        device = self.device
        for program in list(device.programs):
            program.forget_single_run()
        arena, workspace = device.taken(layout.arena_bytes), device.taken(self.workspace)
        errors = ErrorWords(device)
        if poison:
            device.fill(arena, POISON)
            device.fill(workspace, POISON)
        fixed: dict[Key, int] = {p: arena.address + at for p, at in layout.offsets.items()}
        fixed |= {place: number.address for place, number in self.constants.items()}
        fixed |= {ROOM: workspace.address, ERROR: errors.pinned.address}
        fixed |= {LOCK: device.lock.address, FLAGS: device.flags.address}
        variables = Variables(device, self.names)
        fixed |= variables.addresses
        return Frame(self._parts(), arena, workspace, errors, layout.offsets, fixed, variables)

    def _parts(self, runs: int = 0) -> list[Launches | None]:
        """Launches for each segment, as if they had run before so many times."""
        return [Launches(self, s, runs) if isinstance(s, Segment) else None for s in self.steps]

    # --- which kernels wait for which ------------------------------------------------------------

    def waits_for(self, item: int) -> Sequence[int]:
        """The items that a kernel of a graph comes after."""
        return self._edges[item]

    @cached_property
    def _edges(self) -> list[list[int]]:
        """For each item those that it comes after.

        Slots of the arena are places in it: others may have been there before.
        """
        touched = [self._touched(n) for n in range(len(self.code))]
        return dependencies(touched, BRANCHES, [self._fills(code) for code in self.code])

    def _fills(self, code: CudaKernel | StepCode) -> bool:
        """True of a kernel whose launches have work for every multiprocessor."""
        processors = self.device.properties.processors
        return isinstance(code, CudaKernel) and all(
            [n.grid >= processors for n in code.launches if not n.is_fixed]
        )

    def _touched(self, number: int) -> tuple[list[Span], list[Span]]:
        """What an item reads and writes."""
        item, code = self.schedule.items[number], self.code[number]
        reads = [self._span(slot) for slot in item.reads]
        writes = [self._span(slot) for slot in item.writes]
        if not isinstance(code, CudaKernel):
            return reads, writes
        if code.is_exchange:
            writes.append((LINK, 0, 1))
        for launch in code.launches:
            sources = {a.source for a in launch.arguments}
            if source.ROOM in sources:
                writes.append((ROOM, 0, 1))
            if source.ERROR in sources:
                writes.append((ERROR, 0, 1))
            elif source.LOCK in sources:
                reads.append((ERROR, 0, 1))
        return reads, writes

    def _span(self, slot: int) -> Span:
        """Where a slot is: whose memory, from where to where."""
        slot = self.taken.get(slot, slot)
        known = self.schedule.slots[slot]
        if slot in self.layout.offsets and known is not None:
            start = self.layout.offsets[slot]
            return ARENA, start, start + slot_bytes(known)
        return slot, 0, 1

    def keep(self, layout: Layout, poison: bool) -> Frame:
        """A frame whose intermediates are looked at afterwards."""
        return self.frame(poison, layout)

    def forget(self) -> None:
        """Let go of idle frames, and of memory for the next results."""
        self._idle.clear()
        for ring in self.rings.values():
            ring.give_up()

    def branch_anew(self) -> None:
        """Make other graphs from now on, of as many branches as `BRANCHES` says."""
        vars(self).pop("_edges", None)
        self._idle.clear()

    def forget_single_run(self) -> None:
        """Let go of the idle frame, and its arena, of a plan that has run once.

        The first step of training is often another plan than all others. A plan that runs again
        keeps its frames from then on: plans that take turns must not take them from each other.
        """
        if self.runs == 1:
            self._idle.clear()

    # --- replays ---------------------------------------------------------------------------------

    def passes(self) -> Pass | None:
        """None: loops run through `run_into`."""
        return None

    def replay(self, in_place: bool) -> CudaProgram | None:
        """Itself, if nothing runs between launches and what leaves it has its full size."""
        straight = not self.host_items and not self.extremes and bool(self.steps)
        whole = not any([place in self.symbolic for place in self.outputs])
        if not straight or not whole or bool(self.taken) != in_place:
            return None
        wanted = self.schedule.outputs  # memory may also be taken by what is assigned again later
        is_each_once = len({*wanted}) == len(wanted)
        return self if is_each_once and {*wanted} <= {*self.fresh, *self.taken} else None

    def places_of(self, names: Sequence[str]) -> list[Any]:
        """The keys under which a frame is given the values of these variables."""
        return list(names)

    def launch(
        self, addresses: list[int], values: Sequence[int] = (), places: Sequence[Any] = ()
    ) -> list[Buffer]:
        """A pass over the addresses of its inputs; fresh results."""
        if self.device.unchecked:
            self.device.settle()
        frame = self.acquire(False)
        results: Any = self._launch(frame, addresses, values, places, frame)
        if self.deferred:
            frame.errors.check()
        self.release(frame)
        found: list[Buffer] = results
        return found

    def launch_into(self, addresses: Sequence[int], threads: int = 0) -> None:
        """A pass over the addresses of its inputs and, behind them, of memory for its results."""
        if self.device.unchecked:
            self.device.settle()
        self.device.enter()
        frame = self.acquire(False)
        inputs = len(addresses) - len(self.made)
        self._replay(frame, addresses[:inputs], addresses[inputs:], (), (), frame)
        if self.deferred:
            frame.errors.check()
        self.release(frame)

    @cached_property
    def _rings(self) -> list[tuple[int, int, Ring, int]]:
        """For each value that a pass makes: place, bytes, buffers that take turns, which result."""
        rings, outputs = self.rings, self.schedule.outputs
        return [(p, nbytes, rings[p], outputs.index(p)) for p, nbytes in self.made]

    def _launch(
        self, frame: Frame, addresses: list[int], values: Sequence[int], places: Sequence[Any],
        run: Begun | Frame,
    ) -> list[Buffer | None]:  # fmt: skip
        """The results of a pass, in memory that takes turns."""
        self.device.enter()
        results: list[Buffer | None] = [None] * len(self.schedule.outputs)
        fresh, made = [], []
        for _, nbytes, ring, result in self._rings:
            for buffer, note in ring.entries:  # noqa: B007 - one that was looked for
                if getrefcount(buffer) == SOLE and buffer.address:
                    block = buffer.block
                    if block.holders == 1 and block.exported is None:
                        break
            else:
                buffer, note = ring.fresh(nbytes)
            results[result] = buffer
            fresh.append(buffer.address)
            made.append(note)
        frame.made = made
        self._replay(frame, addresses, fresh, values, places, run)
        return results

    def _replay(
        self, frame: Frame, addresses: Sequence[int], fresh: Sequence[int],
        values: Sequence[int], places: Sequence[Any], run: Begun | Frame,
    ) -> None:  # fmt: skip
        """Launch the graphs over these addresses, or all kernels with what differs set.

        A steady step is a look-up by addresses and a `cuGraphLaunch` for each segment.
        """
        device = self.device
        if values:
            frame.variables.give(dict(zip(places, values, strict=True)))
        key = (*addresses, *fresh)
        arguments, done = frame.repeated.get(key), 0  # segments
        if arguments is not None and arguments.graphs and device.times is None and self.over < 0:
            launch, stream = device.launch_graph, device.stream.handle
            for done, graph in enumerate(arguments.graphs):
                run.begun = True  # before: an interrupt may come behind the launch
                code = launch(graph, stream)
                if code:
                    run.begun = done > 0
                    if code != cuda.OUT_OF_MEMORY:
                        raise device.driver.error("cuGraphLaunch", code)
                    break
            else:
                return
        if arguments is None:
            arguments = self._arguments(frame, key)
            put = arguments.set
            for place, address in enumerate(addresses):
                put(place, address)
            for place, input_ in self.schedule.aliases:
                put(place, addresses[input_])
            for (place, *_), address in zip(self._rings, fresh, strict=True):
                put(place, address)
        for number, part in enumerate(arguments.parts[done:], done):
            if number == self.over and self.deferred:
                frame.errors.check()
            part.launch(run)  # type: ignore[union-attr]
        arguments.settle()

    def _arguments(self, frame: Frame, key: tuple[int, ...]) -> ArgumentSet:
        """Where to put addresses: a set of their own if they came before, else one for all."""
        if key not in frame.seen:
            frame.seen.append(key)
            return frame.main
        if len(frame.repeated) < MOST_GRAPHS:
            found = ArgumentSet(self._parts(runs=1), frame.fixed)
        else:
            found = frame.repeated.pop(next(iter(frame.repeated)))
        frame.repeated[key] = found
        return found

    def bind(self, addresses: Sequence[int]) -> Begun:
        """A note for passes that write over these inputs: frames are taken when one is launched."""
        return Begun()

    def launch_in_place(
        self, frame: Begun, addresses: list[int], status: list[int], late: list[BaseException],
        values: Sequence[int] = (), places: Sequence[Any] = (),
    ) -> list[Buffer | None]:  # fmt: skip
        """A pass that writes over inputs; None for each output that is an input's memory now."""
        taken = self.acquire(False)
        results = self._launch(taken, addresses, values, places, frame)
        status.append(0)
        if self.deferred:
            if self.over < 0 and frame.tell is not None:
                self.device.leave_unchecked(taken.errors, taken.made, frame.tell)
            else:
                taken.errors.check()
        self.release(taken)
        return results


def _varying(schedule: Schedule) -> dict[int, Any]:
    """The shapes of slots whose sizes vary."""
    return {
        place: slot.shape
        for place, slot in enumerate(schedule.slots)
        if slot is not None and not all(isinstance(n, int) for n in slot.shape)
    }


def lost(buffer: Buffer) -> int:
    """An error if a buffer has no address: a check failed in the run that should have made it."""
    assert isinstance(buffer, CudaBuffer)
    if buffer.block.failed is not None:
        raise buffer.block.failed
    return 0


def at_most(shape: Any) -> tuple[int, ...]:
    """A shape at the upper bound of every size."""
    return tuple([n if isinstance(n, int) else upper(n) for n in shape])


def _corner(sizes: Sequence[int]) -> Any:
    return (*[slice(n) for n in sizes], ...)
