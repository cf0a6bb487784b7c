"""A plan on the CPU: one native call for each run of kernels between host steps.

In: a schedule, native functions (or Python callables) for its kernels, the layout of its memory.
Out: `run(inputs)`. The schedule becomes records for the driver (codegen/cpu/driver.py); a run
checks out a frame, whose slots for intermediates and constants are filled already, and calls with
the addresses of inputs and outputs. No Python runs for a kernel. Sizes that vary are laid out at
their upper bound inside the plan; what leaves it is cut to its size. What a program needs is
decided when it is made: one native call from inputs to fresh outputs (`entry`) pays for nothing
else.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, count, starmap
from operator import is_not
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import numpy as np

from ..._lazy import FORK_LOCK
from ...codegen.cpu.driver import END, SIZE, SLOTS
from ...config import current
from ...core.op import Array
from ...errors import BoundsError
from ...graph.ir.kernel import Item, Schedule, is_collective
from ...graph.memory.arena import Layout
from ..device import Buffer, MemoryLimitError, Values, memory_between
from ..host.device import POISON, HostBuffer, HostDevice
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
from .frame_layout import (
    Frame,
    FrameLayout,
    Inlined,
    Result,
    Words,
    at_most,
    corner,
    is_sized,
    out_of_range,
    result_of,
)
from .objects import Native
from .pool import KEEPERS, POOL, BlockBuffer, Spares
from .threads import Workers

if TYPE_CHECKING:
    from ..derived import Derived

# of a resized program, until it runs
_LATE = frozenset({"records", "entry", "in_place_entry", "segments", "launched"})
FRAMED = 8  # programs for one size of many that keep frames between their runs
_FRAMED: deque[ref[Program]] = deque()


class LoopPass:
    """Passes over one frame: the body of a loop, whose addresses are put into the frame's words."""

    def __init__(self, program: Program) -> None:
        schedule, word = program.schedule, program.frame_layout.word
        self.program, self.frame = program, program.acquire(current().poison)
        self.words = self.frame.words
        self.inputs = [SLOTS + place for place in range(schedule.inputs)]
        self.outputs = [word[place] for place in schedule.outputs]
        self.aliases = [(word[place], source) for place, source in schedule.aliases]
        # one native call
        self.launch: Callable[[], None] = partial(program.run_frame, self.frame, (), {}, {})

    def release(self) -> None:
        """Leave the frame to others."""
        self.program.release(self.frame)


class Program:
    """A schedule as native segments and host steps in order."""

    deferred = False  # the driver says at once whether an index was outside

    def __init__(
        self, device: HostDevice, schedule: Schedule, code: Sequence[Native | StepCode],
        layout: Layout, address: Callable[[str], int], workers: Workers,
        packed: Mapping[int, Derived] | None = None,
    ) -> None:  # fmt: skip
        self.packed = packed or {}  # operands that were packed before, by item
        self._schedule: Schedule | Callable[[], Schedule] = schedule
        self.device, self.layout, self.workers = device, layout, workers
        self.constants = constants_of(device, schedule)
        steps = [*map(self._inlined, schedule.items, code)]
        native = self._needs(steps)
        self.outputs = list(dict.fromkeys(schedule.outputs))
        held = {*range(schedule.inputs), *self.constants, *dict(schedule.aliases)}
        fresh = [place for place in self.outputs if place not in held]
        self.frame_layout = at = FrameLayout(schedule, fresh, native, self.loops, self.packed)
        self.names, self.word, self.variables_at = at.names, at.word, at.variables
        self.items = schedule.items
        self.made = [result_of(schedule.slots[place], place, once=True) for place in fresh]
        self.records: list[Words] = []  # of each native segment, which must stay where they are
        # of each, the item of every launch, and of a loop also the loop
        self.launched: dict[int, list[int | tuple[int, Inlined]]] = {}
        self.code, self.address = code, address
        self.segments = self._segments(steps, address)
        self.over = self._first_over(steps)
        self.aliases, self.returned = schedule.aliases, schedule.outputs
        self.alias_words = [(at.word[place], source) for place, source in schedule.aliases]
        self.restored = bool(schedule.aliases) and self._may_fail()
        self.symbolic = {place for place, slot in enumerate(schedule.slots) if is_sized(slot)}
        kernels = [item.kernel for item in schedule.items]
        self.extremes = sizes_of_extremes(kernels) if self.symbolic or self.names else []
        # the records of a program that is one native call from inputs to outputs, else 0
        self.entry, self.in_place_entry = self._entries(fresh)
        self.places = self.places_of(self.names)
        self._words: dict[tuple[int, ...], Array] = {}  # see `words_of`
        self._idle: list[Frame] = []  # taken and given by single steps of a list: no lock
        self.resizes = False  # is it one of a program's many sizes?
        self._source: Program | None = None  # of one whose records are not written yet
        self._changes: Changes = {}  # and the launches in which it differs
        # the program of other sizes that it was made from, and in which launches it differs from it
        self.before: tuple[ref[Program], Changes] | None = None
        # by layout, the workspace and the idle frames of this program for other sizes
        self._framed: dict[int, tuple[Layout, int, list[Frame]]] = {}
        KEEPERS.add(self)

    @property
    def schedule(self) -> Schedule:
        """What it runs; for sizes that vary it is worked out when somebody looks."""
        known = self._schedule
        if not isinstance(known, Schedule):
            known = self._schedule = known()
        return known

    def _needs(self, steps: Sequence[Step]) -> list[Native]:
        """The native kernels among steps, once it is known what they and the loops need."""
        native = [c for c in steps if isinstance(c, Native)]
        self.loops = [c for c in steps if isinstance(c, Inlined)]
        self.workspace = max((c.workspace for c in native), default=0)
        self.shares = any(launch[2] for c in native for launch in c.launches)
        self.shares |= any(c.body.shares for c in self.loops)
        return native

    def _inlined(self, item: Item, code: Native | StepCode) -> Step:
        """A loop that the driver can run as records, and anything else as it is."""
        if not item.kernel.kind.is_control:
            return code
        with FORK_LOCK:
            from . import loops
        reads = enumerate(item.reads)
        known = {i: self.constants[place] for i, place in reads if place in self.constants}
        return loops.inlined(code, known) or code

    def _may_fail(self) -> bool:
        """True if a step is a user's function, which may fail and be called again.

        After a collective that fails the job is over: nothing is saved for it.
        """
        return not all([is_collective(item.kernel) for item in self.host_items])

    def _entries(self, fresh: Sequence[int]) -> tuple[int, int]:
        """The records of a single native call to fresh outputs, and of one over inputs.

        What leaves it has its full size, and no size must be looked at before it runs.
        """
        schedule = self.schedule
        only = self.segments[0] if len(self.segments) == 1 else 0
        if isinstance(only, tuple) or self.extremes or not self.symbolic.isdisjoint(self.outputs):
            return 0, 0
        if not schedule.aliases:
            return (only if fresh == list(schedule.outputs) else 0), 0
        taken = dict(schedule.aliases)
        known = sorted([*fresh, *[place for place in self.outputs if place in taken]])
        return 0, only if sorted(schedule.outputs) == known else 0

    def _segments(
        self, code: Sequence[Step], address: Callable[[str], int]
    ) -> list[int | tuple[Item, StepCode]]:
        """Host steps, and the addresses of the records of what lies between them."""
        steps: list[Any] = []  # words of records, and host steps
        items: list[list[int | tuple[int, Inlined]]] = []
        self.starts: list[int] = []  # of the words of each kernel's launches
        for number, (item, made) in enumerate(zip(self.schedule.items, code, strict=True)):
            if not isinstance(made, Native | Inlined):
                steps.append((item, made))
                self.starts.append(0)
                continue
            if not steps or isinstance(steps[-1], tuple):
                steps.append(array("q", self.frame_layout.header))
                items.append([])
            if isinstance(made, Inlined):
                items[-1].append((number, made))
                steps[-1].extend(self.frame_layout.loop(item, made))
                self.starts.append(0)
                continue
            items[-1] += [number] * len(made.launches)
            self.starts.append(len(steps[-1]))
            try:
                steps[-1].extend(self.frame_layout.launches(number, item, made, address))
            except OverflowError as problem:
                raise _too_many() from problem
        self.records = [s for s in steps if not isinstance(s, tuple)]
        for words in self.records:
            words.extend([END, 2])
        places = [words.buffer_info()[0] for words in self.records]
        self.launched = dict(zip(places, items, strict=True))
        return [s if isinstance(s, tuple) else s.buffer_info()[0] for s in steps]

    def resized(
        self, schedule: Callable[[], Schedule], results: Callable[[Result], Result],
        changes: Changes, layout: Layout,
    ) -> Program | None:  # fmt: skip
        """This program for other sizes: its records, with the numbers of other launches.

        None unless it is one native call.
        With the same layout both use the same frames. Records are written when they are first
        needed: a program that runs with prepacked operands needs none without.
        """
        source = self._source or self
        if not (source.entry or source.in_place_entry) or source.loops:
            return None
        made: Program = LateProgram.__new__(LateProgram)
        made.__dict__ = {k: v for k, v in self.__dict__.items() if k not in _LATE}
        made._source = source
        made.code = code = list(self.code)
        for items, new in changes.items():
            for item in items:
                code[item] = new
        if source is not self and self._changes.keys() != changes.keys():
            made._changes = changes_between(source.code, code) or {}
        else:
            made._changes = changes
        made.before = ref(self), changes
        made._schedule, made.layout = schedule, layout
        made._needs_as_well(changes.values())
        made.made = [*map(results, self.made)]
        if layout is self.layout and made.workspace <= self.workspace:
            made.workspace = self.workspace
        else:
            made._share_frames(layout)
        KEEPERS.add(made)
        return made

    def _needs_as_well(self, native: Collection[Native]) -> None:
        """Let it have what kernels of its own need, besides what it has."""
        self.workspace = max([self.workspace, *[c.workspace for c in native]])
        self.shares = self.shares or any([launch[2] for c in native for launch in c.launches])

    def _share_frames(self, layout: Layout) -> None:
        """Use the frames of the sizes that have this layout, if their workspace is large enough."""
        self.resizes = True
        _, workspace, self._idle = self._framed.get(id(layout), (layout, -1, []))
        if self.workspace <= workspace:
            self.workspace = workspace
            return
        self._idle = []
        if len(self._framed) >= FRAMED:
            self._framed.clear()
        self._framed[id(layout)] = layout, self.workspace, self._idle

    def words_of(self, items: tuple[int, ...]) -> Array:
        """Where the launches of kernels stand in the records: by item, launch and number."""
        found = self._words.get(items)
        if found is None:
            words, made = self.records[0], self.code[items[0]]
            assert isinstance(made, Native), "a program of one call has no host steps"
            rows = [self.frame_layout.places(words, self.starts[i], made) for i in items]
            found = self._words[items] = np.array(rows, np.intp)
        return found

    def _first_over(self, code: Sequence[Step]) -> int:
        """The first segment that writes over an input; -1: none does."""
        taken, number, last = dict(self.schedule.aliases), -1, False
        for item, made in zip(self.schedule.items, code, strict=True):
            native = isinstance(made, Native | Inlined)
            number += not (native and last)
            last = native
            if not taken.keys().isdisjoint(item.writes):
                return number
        return -1

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass; a fresh buffer for each output."""
        if poison or not self.entry:
            return self._run(inputs, values, poison)
        addresses = [b._address or b.address for b in inputs]  # type: ignore[attr-defined]
        if 0 in addresses:
            return self._run(inputs, values, poison)
        names = self.names
        return self.launch(addresses, [values[n] for n in names] if names else (), self.places)

    def addresses(self, inputs: Sequence[Buffer]) -> list[int] | None:
        """Where inputs are, for a program that is one native call; None if it is not for these."""
        if not self.entry:
            return None
        found = [b._address or b.address for b in inputs]  # type: ignore[attr-defined]
        return None if 0 in found else found

    def places_of(self, names: Sequence[str]) -> list[int]:
        """The words of a frame where the values of these variables go."""
        spare = self.frame_layout.spare
        return [self.variables_at + self.names.index(name) if name in self.names else spare
                for name in names]  # fmt: skip

    def launch(
        self, addresses: list[int], values: Sequence[int] = (), places: Sequence[int] = ()
    ) -> list[Buffer]:
        """A program's pass over addresses of its inputs, to which those of outputs come."""
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self.frame(False, self.layout)
        if places:
            for place, value in zip(places, values, strict=True):
                frame.words[place] = value
        results: list[Buffer] = []
        for _, nbytes, size, shape, dtype, spares in self.made:
            try:  # written out, as a call would be a twentieth of what a replay costs
                raw = spares.pop() if spares else POOL.take(size)
            except IndexError:  # another thread was quicker
                raw = POOL.take(size)
            give_back = None if spares is None else spares.append
            made = BlockBuffer(raw, nbytes, shape, dtype, give_back)
            results.append(made)
            addresses.append(made._address)  # type: ignore[arg-type]
        workers = self.workers
        threads = workers.ready() if self.shares else 1
        if workers.call(self.entry, frame.address, workers.pool, threads, *addresses):
            raise out_of_range(frame.words[SIZE])
        if len(self._idle) < IDLE:
            self._idle.append(frame)
        return results

    def launch_into(self, addresses: Sequence[int], threads: int = 0) -> None:
        """A program's pass over addresses of its inputs and, behind them, of its outputs."""
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self.frame(False, self.layout)
        workers = self.workers
        ready = workers.ready(threads) if self.shares else 1
        if workers.call(self.entry, frame.address, workers.pool, ready, *addresses):
            raise out_of_range(frame.words[SIZE])
        if len(self._idle) < IDLE:
            self._idle.append(frame)

    def bind(self, addresses: Sequence[int]) -> Frame:
        """A frame for passes that write over these inputs."""
        frame = self.frame(False, self.layout)
        for word, source in self.alias_words:
            frame.words[word] = addresses[source]
        return frame

    def launch_in_place(
        self, frame: Frame, addresses: list[int], status: list[int], late: list[BaseException],
        values: Sequence[int] = (), places: Sequence[int] = (),
    ) -> list[Buffer | None]:  # fmt: skip
        """A pass that writes over inputs; None for each output that is an input's memory now.

        When it is over, its status is there. An interruption that comes then is put into `late`.
        """
        for place, value in zip(places, values, strict=True):
            frame.words[place] = value
        results: dict[int, Buffer | None] = {}
        for place, nbytes, size, shape, dtype, spares in self.made:
            made = results[place] = self._fresh(nbytes, size, shape, dtype, spares)
            addresses.append(made._address or 0)
        workers = self.workers
        threads = workers.ready() if self.shares else 1
        call = (self.in_place_entry, frame.address, workers.pool, threads, *addresses)
        run, note = starmap(workers.call, (call,)), status.extend
        try:  # signals are looked at after a call, and by then the status must be known
            frame.begun = True
            note(run)
        except BaseException as problem:
            if not status:
                raise
            late.append(problem)
        if status[0]:
            raise out_of_range(frame.words[SIZE])
        return [results.get(place) for place in self.returned]

    def launch_growing(
        self, addresses: list[int], values: Sequence[int] = (), places: Sequence[int] = ()
    ) -> list[Buffer | None]:
        """A pass that writes behind its inputs; None for each output that such memory holds.

        Nobody has what it writes over: a pass that fails, or is interrupted, has spoiled nothing.
        """
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self.frame(False, self.layout)
        words = frame.words
        for place, value in zip(places, values, strict=True):
            words[place] = value
        for word, source in self.alias_words:
            words[word] = addresses[source]
        results: dict[int, Buffer] = {}
        for place, nbytes, size, shape, dtype, spares in self.made:
            made = results[place] = self._fresh(nbytes, size, shape, dtype, spares)
            addresses.append(made._address or 0)
        workers = self.workers
        threads = workers.ready() if self.shares else 1
        entry = self.in_place_entry
        if workers.call(entry, frame.address, workers.pool, threads, *addresses):
            raise out_of_range(words[SIZE])
        if len(self._idle) < IDLE:
            self._idle.append(frame)
        return [results.get(place) for place in self.returned]

    @staticmethod
    def _fresh(
        nbytes: int, size: int, shape: tuple[int, ...], dtype: Any, spares: Spares | None
    ) -> BlockBuffer:
        """Memory for a result; a small one leaves it to this program's next run."""
        try:
            raw = spares.pop() if spares else POOL.take(size)
        except IndexError:  # another thread was quicker
            raw = POOL.take(size)
        give_back = None if spares is None else spares.append
        return BlockBuffer(raw, nbytes, shape, dtype, give_back)

    def _run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass in a frame of its own."""
        frame = self.acquire(poison)
        found = self.run_keeping(frame, inputs, values, poison)
        self.release(frame)
        return found

    def run_keeping(
        self, frame: Frame, inputs: Sequence[Buffer], values: Values, poison: bool
    ) -> list[Buffer]:
        """One pass in a frame, whatever the program needs."""
        if self.extremes:
            check_extremes(self.extremes, values)
        words = frame.words
        addresses = [b.address for b in inputs]
        given = inputs
        if 0 in addresses:
            inputs = [self.device.contiguous(b) for b in inputs]
            addresses = [b.address for b in inputs]
        words[SLOTS : SLOTS + len(addresses)] = array("q", addresses)
        results: dict[int, Buffer] = {}
        for place, nbytes, size, shape, dtype, spares in self.made:
            made = results[place] = self._fresh(nbytes, size, shape, dtype, spares)
            words[self.word[place]] = made.address
            if poison:
                made.bytes()[:] = POISON
        for place, source in self.schedule.aliases:
            results[place] = given[source]
            words[self.word[place]] = addresses[source]
        for i, name in enumerate(self.names):
            words[self.variables_at + i] = values[name]
        if self.schedule.aliases:
            self._over(frame, inputs, results, values)
        else:
            self.run_frame(frame, inputs, results, values)
        return self._results(inputs, results, values)

    def _over(
        self, frame: Frame, inputs: Sequence[Buffer], results: dict[int, Buffer],
        values: Values,
    ) -> None:  # fmt: skip
        """A pass that writes over inputs: what checks an index has run before it begins to."""
        saved = saved_copies(self.device, self.schedule, inputs) if self.restored else {}
        frame.begun = False
        try:
            self.run_frame(frame, inputs, results, values)
        except BoundsError:
            raise
        except BaseException as problem:
            if self.restored:
                restore_copies(self.device, inputs, saved)
            elif frame.begun:
                spoil(problem)
            raise

    def _results(
        self, inputs: Sequence[Buffer], results: dict[int, Buffer], values: Values
    ) -> list[Buffer]:
        for place in self.outputs:
            if place in self.symbolic:
                results[place] = self._cut(place, results[place], values)
            elif place not in results:
                known = inputs[place] if place < len(inputs) else self.constants[place]
                results[place] = self._copy(known)
        found: list[Buffer] = []
        for place in self.schedule.outputs:  # one that was requested twice is two values
            again = any([results[place] is other for other in found])
            found.append(self._copy(results[place]) if again else results[place])
        return found

    def _copy(self, buffer: Any) -> Buffer:
        return self.device.from_host(buffer.array)

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        """One pass from given memory into given memory, whose elements follow each other."""
        frame = self.acquire(current().poison)
        words = frame.words
        for place, buffer in enumerate(inputs):
            words[SLOTS + place] = buffer.address
        for place, buffer in zip(self.schedule.outputs, outputs, strict=True):
            words[self.word[place]] = buffer.address
        self.run_frame(
            frame, inputs, dict(zip(self.schedule.outputs, outputs, strict=True)), values
        )
        self.release(frame)

    def keep(self, layout: Layout, poison: bool) -> Frame:
        """A frame whose intermediates are looked at afterwards."""
        frame = self.frame(poison, layout)
        frame.memory = HostBuffer(frame.arena.bytes())
        return frame

    @property
    def host_items(self) -> Sequence[Item]:
        """Kernels without native code, loops and choices among them."""
        return [segment[0] for segment in self.segments if isinstance(segment, tuple)]

    def check(self) -> None:
        """Nothing: a run has said at once whether it failed."""

    def replay(self, in_place: bool) -> Program | None:
        """Itself, if it is one native call."""
        known = self._source or self  # its own records are not written for that
        return self if (known.in_place_entry if in_place else known.entry) else None

    @property
    def is_one_call(self) -> bool:
        """True if it is native from beginning to end, and takes no values of variables."""
        return not self.names and len(self.segments) == 1 and isinstance(self.segments[0], int)

    def passes(self) -> LoopPass | None:
        """Passes over one frame, if no host step needs buffers."""
        return None if any([isinstance(s, tuple) for s in self.segments]) else LoopPass(self)

    def acquire(self, poison: bool) -> Frame:
        """A frame for one run at a time."""
        try:
            return self._idle.pop() if not poison else self.frame(poison, self.layout)
        except IndexError:
            return self.frame(poison, self.layout)

    def release(self, frame: Frame) -> None:
        """Keep a frame for the next run."""
        if len(self._idle) < IDLE:
            self._idle.append(frame)

    def run_frame(
        self, frame: Frame, inputs: Sequence[Buffer], results: dict[int, Buffer],
        values: Values,
    ) -> None:  # fmt: skip
        """One pass over a frame whose addresses are set; host steps need the buffers as well."""
        workers = self.workers
        threads = workers.ready() if self.shares else 1
        for number, segment in enumerate(self.segments):
            if number == self.over:
                frame.begun = True
            if isinstance(segment, tuple):
                self._host(segment, frame, inputs, results, values)
            elif workers.call(segment, frame.address, workers.pool, threads):
                raise out_of_range(frame.words[SIZE])

    def _host(
        self, step: tuple[Item, StepCode], frame: Frame, inputs: Sequence[Buffer],
        results: dict[int, Buffer], values: Values,
    ) -> None:  # fmt: skip
        """A kernel that Python runs, over views of the same memory."""

        def view(place: int) -> Buffer:
            if place < len(inputs):
                return inputs[place]
            if place in self.constants:
                return self.constants[place]
            if place in frame.views and place not in results:
                return frame.views[place]
            slot = self.schedule.slots[place]
            assert slot is not None
            shape = at_most(slot.shape)
            if place in results:
                whole = results[place].array.reshape(shape)  # type: ignore[attr-defined]
            else:
                offset = frame.offsets[place]
                count = int(np.prod(shape, dtype=np.int64)) * slot.dtype.numpy.itemsize
                part = frame.arena.bytes()[offset : offset + count]
                whole = part.view(slot.dtype.numpy).reshape(shape)
            made = HostBuffer(whole[corner(concrete(slot.shape, values))])
            if place not in results and place not in self.symbolic:
                frame.views[place] = made
            return made

        item, execute = step
        reads, writes = [view(i) for i in item.reads], [view(i) for i in item.writes]
        recorder = self.device.recorder
        if recorder is None:
            execute(reads, writes, values)
            return
        number, used = self.schedule.items.index(item), POOL.stats.used
        with timed_step(recorder, self.schedule, self.device.name, number, "host", used):
            execute(reads, writes, values)

    def _cut(self, place: int, whole: Any, values: Values) -> Buffer:
        slot = self.schedule.slots[place]
        assert slot is not None
        sizes = concrete(slot.shape, values)
        return self.device.from_host(whole.array[corner(sizes)])

    def frame(self, poison: bool, layout: Layout) -> Frame:
        """Words and memory for one run at a time, with intermediates where a layout says."""
        if self.resizes:  # sizes that came long ago keep none
            _FRAMED.append(ref(self))
            while len(_FRAMED) > FRAMED:
                if (old := _FRAMED.popleft()()) is not None:
                    old.forget()
        with memory_between(lambda: self.schedule, layout):
            arena, workspace = POOL.block(layout.arena_bytes), POOL.block(self.workspace)
        if poison:
            arena.bytes()[:] = POISON
            workspace.bytes()[:] = POISON
        words = array("q", bytes(8 * self.frame_layout.size))
        for place, offset in layout.offsets.items():
            words[self.word[place]] = arena.address + offset
        for place, number in self.constants.items():
            words[self.word[place]] = number.address
        for item, operand in self.packed.items():
            words[SLOTS + self.frame_layout.packed[item]] = operand.value.address
        words[self.word[self.frame_layout.room]] = workspace.address
        frame = Frame(words, arena, workspace, layout.offsets)
        for loop, first in self.frame_layout.own.items():
            addresses, kept = loop.memory(poison)
            words[SLOTS + first : SLOTS + first + len(addresses)] = array("q", addresses)
            frame.inner += kept
        return frame

    def spared(self) -> int:
        """How many bytes small results left here."""
        return sum([raw.size for *_, spares in self.made for raw in spares or ()])

    def forget(self) -> None:
        """Let go of idle frames and of the memory that small results left."""
        self._idle.clear()
        for *_, spares in self.made:
            if spares is not None:
                spares.give_back()


class LateProgram(Program):
    """A resized program, until its records are needed; then it is as any other.

    A class with `__getattr__` is slow in all its attributes, which every run asks for.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The records of a resized program; of two threads that ask at once one writes them."""
            if name not in _LATE:
                raise AttributeError(f"a program has no {name!r}")
            known = self.__dict__
            (words,) = known.setdefault("records", [self._patched()])
            source, entry = self._source, words.buffer_info()[0]
            if source is not None:
                launched = {entry: next(iter(source.launched.values()))}
                over = bool(source.aliases)
                known |= {"entry": 0 if over else entry, "in_place_entry": entry if over else 0}
                known |= {"segments": [entry], "launched": launched}
                self._source = None
            self.__class__ = Program
            return known[name]

    def _patched(self) -> Words:
        """The records of the program that it was made from, with its own numbers."""
        source = self._source
        if source is None:  # another thread was quicker
            return self.records[0]
        words = source.records[0][:]  # all of them at once
        shown = np.frombuffer(words, np.int64)
        for items, new in self._changes.items():  # kernels that come often have the same numbers
            launches = [(self.address(symbol), units, shared, *new.numbers)
                        for symbol, units, shared in new.launches]  # fmt: skip
            try:
                shown[source.words_of(items)] = launches
            except OverflowError as problem:
                raise _too_many() from problem
        return words


def _too_many() -> MemoryLimitError:
    return MemoryLimitError("a kernel over more than 2**63 elements", "use smaller shapes")


Step = Native | Inlined | StepCode


Changes: TypeAlias = "Mapping[tuple[int, ...], Native]"  # by the items that have a launch


def changes_between(old: Sequence[Any], new: Sequence[Any]) -> Changes | None:
    """In which launches code differs; None unless they have as many phases and numbers.

    Then records of the one have the length of the other's.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for item in compress(count(), map(is_not, old, new)):
        groups.setdefault((id(old[item]), id(new[item])), []).append(item)
    for first, *_ in groups.values():
        if signature_of([old[first]]) != signature_of([new[first]]) or (
            not isinstance(new[first], Native)
        ):
            return None
    return {tuple(items): new[items[0]] for items in groups.values()}


def signature_of(code: Iterable[Any]) -> Hashable:
    """What code of one call has in common with that of other sizes that it can be made from."""
    return tuple([
        (len(c.launches), len(c.numbers), c.variables) if isinstance(c, Native) else None
        for c in code
    ])  # fmt: skip
