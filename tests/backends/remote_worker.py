"""The other end of the remote device: a process that has its memory and runs its kernels.

In: messages on standard input, one after the other. Out: replies to those that ask for one. Memory
is found by address; a run is a plan on the reference device of this process. What fails is kept
under the ticket of its launch until somebody asks: nothing is said before.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from bisect import bisect_right, insort
from typing import Any, BinaryIO

import numpy as np

from fulgurite.core.op import Array
from fulgurite.errors import FulguriteError
from fulgurite.graph.ir.cache_key import Normal
from fulgurite.runtime.cache.plan_io import load_plan
from fulgurite.runtime.host.device import HostBuffer
from fulgurite.runtime.plan import Plan
from fulgurite.runtime.step_executor import place_of

NOTHING = Normal((), (), (), {}, ())


class Memory:
    """Blocks of bytes by the address where they begin."""

    def __init__(self) -> None:
        self.blocks: dict[int, Array] = {}
        self.starts: list[int] = []

    def allocate(self, address: int, nbytes: int, byte: int | None) -> None:
        """A new block."""
        found = np.empty(nbytes, np.uint8)
        if byte is not None:
            found[:] = byte
        self.blocks[address] = found
        insort(self.starts, address)

    def free(self, address: int) -> None:
        """Let a block go."""
        del self.blocks[address]
        del self.starts[bisect_right(self.starts, address) - 1]

    def at(self, address: int, nbytes: int) -> Array:
        """Bytes inside a block."""
        start = self.starts[bisect_right(self.starts, address) - 1]
        found = self.blocks[start][address - start : address - start + nbytes]
        if found.size != nbytes:
            raise IndexError(f"{nbytes} bytes at {address} are not in a block")
        return found


class Worker:
    """Does what messages say."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.plans: dict[int, Plan] = {}
        self.failures: dict[int, BaseException] = {}

    def alloc(self, address: int, nbytes: int, byte: int | None) -> None:
        """Memory for a value."""
        self.memory.allocate(address, nbytes, byte)

    def free(self, address: int) -> None:
        """Memory that nobody holds any more."""
        self.memory.free(address)

    def write(self, address: int, data: bytes) -> None:
        """Values from the host."""
        self.memory.at(address, len(data))[:] = np.frombuffer(data, np.uint8)

    def read(self, address: int, nbytes: int) -> bytes:
        """Values for the host."""
        return self.memory.at(address, nbytes).tobytes()

    def copy(self, source: int, to: int, nbytes: int) -> None:
        """Values from one place to another."""
        self.memory.at(to, nbytes)[:] = self.memory.at(source, nbytes).copy()

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """One byte everywhere."""
        self.memory.at(address, nbytes)[:] = byte

    def plan(self, number: int, data: bytes) -> None:
        """A plan that will be launched."""
        found = load_plan(data, NOTHING, "reference")
        assert found is not None
        self.plans[number] = found

    def launch(
        self, ticket: int, number: int, inputs: list[int], outputs: list[int],
        values: dict[str, int],
    ) -> None:  # fmt: skip
        """Run a plan; a failure waits for the question after it."""
        plan = self.plans[number]
        schedule = plan.schedule
        places = [*range(schedule.inputs), *schedule.outputs]
        buffers = []
        for place, address in zip(places, [*inputs, *outputs], strict=True):
            if schedule.slots[place] is None:  # nothing reads this input
                buffers.append(HostBuffer(np.empty(0, np.uint8)))
                continue
            shape, dtype = place_of(schedule, place, values)
            raw = self.memory.at(address, int(np.prod(shape)) * dtype.numpy.itemsize)
            buffers.append(HostBuffer(raw.view(dtype.numpy).reshape(shape)))
        count = schedule.inputs
        try:
            plan.executor.run_into(buffers[:count], buffers[count:], values)
        except FulguriteError as problem:
            self.failures[ticket] = problem

    def check(self, tickets: list[int]) -> tuple[str, str] | None:
        """The first of these launches that failed."""
        found = [self.failures.pop(t) for t in tickets if t in self.failures]
        if not found:
            return None
        problem: Any = found[0]
        return type(problem).__name__, problem.what

    def sync(self) -> int:
        """All that came before is done."""
        return len(self.memory.blocks)


def send(stream: BinaryIO, message: object) -> None:
    """Write a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message; None at the end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return pickle.loads(stream.read(*struct.unpack("<q", head)))


ASKED = ("read", "check", "sync")  # messages that are answered


def main() -> None:
    """Serve until the pipe is closed; after a fault of ours every answer says so."""
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    worker = Worker()
    fault = ""
    while (message := receive(given)) is not None:
        name, *arguments = message
        found = None
        try:
            found = getattr(worker, name)(*arguments)
        except Exception as problem:
            fault = fault or f"{name}: {type(problem).__name__}: {problem}"
        if name in ASKED:
            send(answers, (fault, found))
            fault = ""


if __name__ == "__main__":
    main()
