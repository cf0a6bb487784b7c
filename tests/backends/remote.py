"""A device in another process: memory out of reach, launches that are only queued.

In: what every device gets. Out: messages to `remote_worker.py`. Nothing here waits but reading
values, `synchronize`, and the check of a plan that may meet an index outside its axis. A plan is
one launch if no host step is in it; replays and loops send addresses and numbers alone. It proves
that nothing above the device boundary knows arrays, or that a launch has run when it returns.
"""

from __future__ import annotations

import atexit
import itertools
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fulgurite.core.dtype import DType
from fulgurite.core.node import toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.index import GUARD
from fulgurite.errors import BoundsError, FulguriteError
from fulgurite.graph.ir.kernel import Item, Kernel, Schedule, Slot, params_of
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.graph.memory.arena import Layout, slot_bytes
from fulgurite.runtime.cache.plan_io import dump
from fulgurite.runtime.device import (
    Buffer,
    DeviceError,
    Executable,
    Executor,
    MemoryLimitError,
    Values,
    register_device,
)
from fulgurite.runtime.device_base import CONTROL, HOST, BaseDevice
from fulgurite.runtime.host.preconditions import check_extremes, sizes_of_extremes
from fulgurite.runtime.plan import CompiledKernel, Plan
from fulgurite.runtime.step_executor import StepCode, StepExecutor, place_of
from tests.backends.remote_worker import ASKED, NOTHING, receive, send

ROOT = Path(__file__).parents[2]
LIMIT = 1 << 34  # bytes of one value
POISON = 0xA5


class RemoteBuffer:
    """Memory of the other process: an address, and who to tell when it is not needed."""

    __slots__ = ("__weakref__", "address", "base", "line", "nbytes")
    exported = None

    def __init__(self, line: Line, address: int, nbytes: int, base: Buffer | None = None) -> None:
        self.line, self.address, self.nbytes, self.base = line, address, nbytes, base

    def exclusive(self) -> bool:
        """A view's memory is its base's."""
        return self.base is None

    def __del__(self) -> None:
        if self.base is None:
            self.line.dropped.append(self.address)  # told with the next message: no lock here


class Line:
    """The pipe to one worker. Messages are handled in order; only some are answered."""

    def __init__(self) -> None:
        self.dropped: deque[int] = deque()
        self.lock = threading.RLock()
        self.process: subprocess.Popen[bytes] | None = None
        self.tickets = itertools.count(1)
        self.plans = itertools.count(1)
        self.addresses = 4096
        self.sent = 0  # messages, for tests

    def start(self) -> subprocess.Popen[bytes]:
        """The worker, started now if it is not there."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.backends.remote_worker"], cwd=ROOT,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=os.environ | {"FULGURITE_DEVICE": "reference", "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            atexit.register(self.close)
        return self.process

    def close(self) -> None:
        """End the worker."""
        with self.lock:
            if self.process is not None:
                assert self.process.stdin is not None and self.process.stdout is not None
                self.process.stdin.close()
                self.process.stdout.close()
                self.process.wait()
                self.process = None

    def __call__(self, *message: Any) -> Any:
        """Send a message, and wait if it is one that is answered."""
        with self.lock:
            process = self.start()
            assert process.stdin is not None and process.stdout is not None
            for _ in range(len(self.dropped)):
                send(process.stdin, ("free", self.dropped.popleft()))  # type: ignore[arg-type]
            send(process.stdin, message)  # type: ignore[arg-type]
            self.sent += 1
            if message[0] not in ASKED:
                return None
            reply = receive(process.stdout)  # type: ignore[arg-type]
        fault, found = ("it has ended", None) if reply is None else reply
        if fault:
            raise DeviceError(f"the remote device failed: {fault}", "please report this")
        return found

    def address(self, nbytes: int) -> int:
        """Where a new block begins; no address is used twice."""
        with self.lock:
            found = self.addresses
            self.addresses += -(-max(nbytes, 1) // 64) * 64
        return found


class RemoteDevice(BaseDevice):
    """Kernels and values in another process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = Line()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.line = Line()  # the parent's worker is not ours

    # --- memory ----------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> RemoteBuffer:
        nbytes = prod(shape) * dtype.numpy.itemsize
        if nbytes > LIMIT:
            raise MemoryLimitError(
                f"no memory for {dtype} of shape {shape}", "free some tensors or use less"
            )
        made = RemoteBuffer(self.line, self.line.address(nbytes), nbytes)
        self.line("alloc", made.address, nbytes, POISON if poison else None)
        return made

    def view(
        self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType
    ) -> RemoteBuffer:
        nbytes = prod(shape) * dtype.numpy.itemsize
        return RemoteBuffer(self.line, buffer.address + offset, nbytes, buffer)

    def copy_in(self, host: Array, to: Buffer) -> None:
        self.line("write", to.address, host.tobytes())

    def copy_out(self, source: Any, host: Array) -> None:
        if source.line is not self.line:
            raise DeviceError("this memory is another process's", "compute it anew")
        data = self.line("read", source.address, host.nbytes)
        host.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)

    def copy(self, source: Buffer, to: Buffer) -> None:
        self.line("copy", source.address, to.address, source.nbytes)

    def fill(self, buffer: Buffer, byte: int) -> None:
        self.line("fill", buffer.address, buffer.nbytes, byte)

    def synchronize(self) -> None:
        self.line("sync")

    # --- code ------------------------------------------------------------------------------------

    def kernel_code(self, kernel: Kernel) -> StepCode:
        """A plan of one kernel, for schedules in which the host has a part."""
        params = params_of(kernel)
        count = kernel.inputs
        item = Item(kernel, tuple(range(count)), tuple(range(count, len(params))), (), "")
        slots = tuple([Slot(p.dtype, p.shape, self.name) for p in params])
        schedule = Schedule(count, slots, (item,), item.writes)
        executor: RemoteExecutor | None = None

        def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
            nonlocal executor
            if executor is None:
                executor = RemoteExecutor(self, schedule, Layout({}, 0, 0, 0, 0))
            executor.run_into(inputs, outputs, values)
            executor.check()

        return run

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Executor:
        """One launch, or steps where the host has a part."""
        if any(item.kernel.kind in (*CONTROL, *HOST) for item in schedule.items):
            return StepExecutor(self, schedule, code, layout)
        return RemoteExecutor(self, schedule, layout)


def may_fail(kernel: Kernel) -> bool:
    """True if a kernel checks an index."""
    try:
        return any(n.op is GUARD for n in toposort([lower(kernel.body, kernel.inputs).body]))
    except CannotLower:
        return True


class Frame:
    """What a replay in place asks of its device: whether memory is being written over."""

    begun = False


class RemotePass:
    """The body of a loop: addresses in a list, sent with each launch."""

    def __init__(self, executor: RemoteExecutor) -> None:
        schedule = executor.schedule
        self.executor, count = executor, schedule.inputs
        self.inputs = list(range(count))
        self.outputs = list(range(count, count + len(schedule.outputs)))
        self.words = [0] * (count + len(schedule.outputs))
        at = {place: self.outputs[i] for i, place in enumerate(schedule.outputs)}
        self.aliases = [(at[place], source) for place, source in schedule.aliases if place in at]

    def launch(self) -> None:
        count = self.executor.schedule.inputs
        self.executor.send(self.words[:count], self.words[count:], {})

    def release(self) -> None:
        self.executor.check()


class RemoteExecutor(StepExecutor):
    """A plan that the other process holds: one message a run."""

    deferred = True

    def __init__(self, device: RemoteDevice, schedule: Schedule, layout: Layout) -> None:
        self.remote, self.schedule, self.layout = device, schedule, layout
        kernels = [item.kernel for item in schedule.items]
        compiled = {kernel: CompiledKernel(kernel, None) for kernel in kernels}
        listed = tuple([compiled[kernel] for kernel in kernels])
        plan = Plan(schedule, device.name, listed, layout, self)
        self.data = dump(plan, NOTHING)
        self.line: Line | None = None  # the worker that has the plan
        self.number = 0
        self.fails = any(map(may_fail, dict.fromkeys(kernels)))
        self.extremes = sizes_of_extremes(kernels)
        self.aliased = dict(schedule.aliases)
        self.names: list[str] = []
        self.pending = threading.local()

    def send(self, inputs: Sequence[int], outputs: Sequence[int], values: Values) -> None:
        """Launch it; whether it failed is known later."""
        check_extremes(self.extremes, values)
        if self.layout.arena_bytes > LIMIT:
            raise MemoryLimitError("no memory for intermediates", "free some tensors or use less")
        line = self.remote.line
        with line.lock:
            if self.line is not line:
                self.line, self.number = line, next(line.plans)
                line("plan", self.number, self.data)
        ticket = next(line.tickets)
        line("launch", ticket, self.number, list(inputs), list(outputs), dict(values))
        if self.fails:
            self.pending.__dict__.setdefault("tickets", []).append(ticket)

    def check(self) -> None:
        tickets = self.pending.__dict__.pop("tickets", None)
        found = self.remote.line("check", tickets) if tickets else None
        if found is not None:
            name, what = found
            raise (BoundsError if name == "BoundsError" else FulguriteError)(what)

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        found = self.results(values, poison)
        whole = [inputs[self.aliased[p]] if b is None else b
                 for p, b in zip(self.schedule.outputs, found, strict=True)]  # fmt: skip
        self.send([b.address for b in inputs], [b.address for b in whole], values)
        return whole

    def results(self, values: Values, poison: bool = False) -> list[Buffer | None]:
        """Fresh memory for each output, None for one that is an input's memory."""
        allocate, schedule = self.remote.allocate, self.schedule
        return [None if place in self.aliased else
                allocate(*place_of(schedule, place, values), poison)
                for place in schedule.outputs]  # fmt: skip

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        self.send([b.address for b in inputs], [b.address for b in outputs], values)

    # --- runs whose intermediates are kept: kernel by kernel -------------------------------------

    def keep(self, layout: Layout, poison: bool) -> Any:
        items = [item.kernel for item in self.schedule.items]
        self.steps = StepExecutor(self.remote, self.schedule, self.remote.compile(items), layout)
        return self.steps.keep(layout, poison)

    def run_keeping(
        self, arena: Any, inputs: Sequence[Buffer], values: Values, poison: bool
    ) -> list[Buffer]:
        return self.steps.run_keeping(arena, inputs, values, poison)

    # --- replays and loops -----------------------------------------------------------------------

    def replay(self, in_place: bool) -> Any:
        slots = [slot for slot in self.schedule.slots if slot is not None]
        varies = any(not isinstance(n, int) for slot in slots for n in slot.shape)
        plain = len(set(self.schedule.outputs)) == len(self.schedule.outputs)
        return self if bool(self.aliased) is in_place and plain and not varies else None

    def passes(self) -> RemotePass | None:
        filled = [slot_bytes(s) > 0 for s in self.schedule.slots if s is not None]
        return RemotePass(self) if all(filled) else None

    def places_of(self, names: Sequence[str]) -> list[int]:
        self.names = list(names)
        return list(range(len(names)))

    def launch(
        self, addresses: list[int], values: Sequence[int] = (), places: Sequence[int] = ()
    ) -> list[Buffer]:
        known = dict(zip(self.names, values, strict=True))
        found: list[Any] = self.results(known)
        self.send(addresses, [b.address for b in found], known)
        self.check()
        return found

    def bind(self, addresses: Sequence[int]) -> Frame:
        return Frame()

    def launch_in_place(
        self, frame: Frame, addresses: list[int], status: list[int], late: list[BaseException],
        values: Sequence[int] = (), places: Sequence[int] = (),
    ) -> list[Buffer | None]:  # fmt: skip
        known = dict(zip(self.names, values, strict=True))
        found = self.results(known)
        over = [addresses[self.aliased[p]] if b is None else b.address
                for p, b in zip(self.schedule.outputs, found, strict=True)]  # fmt: skip
        self.send(addresses, over, known)
        self.check()
        status.append(0)
        return found


register_device("remote", RemoteDevice, members=lambda: 2)
