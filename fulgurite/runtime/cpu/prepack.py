"""Prepacking: operands of GEMMs that stay are packed once, and all later runs read the panels.

In: the inputs that a caller keeps from run to run. Out: `HeldInputs`, and of it for each executor
one that runs the same plan with the prepacked form of every kernel that has one (codegen/cpu/gemm).
A packed operand belongs to its buffer and to how it is packed, not to a plan: plans of many sizes
share it. It goes with the last program that reads it or with its buffer, and is stale once that is
written over (runtime/derived.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

from ...codegen.cpu.driver import END, LAUNCH, SLOTS
from ..derived import DERIVED, Derived
from ..device import Buffer, is_shared
from .executor import Program
from .objects import Native, PrepackedForm
from .pool import POOL, Block

MOST_PROGRAMS = 256  # of other sizes, that are remembered
MOST = 2  # bytes of a packed operand for each of its own: it is no unfolded image


class HeldInputs:
    """Inputs that stay, by their places: what is packed of them is packed once."""

    def __init__(self, inputs: Mapping[int, Buffer]) -> None:
        # weak: who may write over one decides by who else holds it
        self.inputs = {i: ref(b) for i, b in inputs.items() if not is_shared(b)}
        self._made: dict[Any, Any] = {}  # of each executor that which runs in its place
        self._latest: dict[tuple[int, ...], Program] = {}  # by the items that read what is packed

    def of(self, executor: Any) -> Any:
        """Who runs in the place of an executor."""
        found = self._made.get(executor)
        if found is None:
            found = self._made[executor] = self._held(executor)
            while len(self._made) > MOST_PROGRAMS:
                self._made.pop(next(iter(self._made)), None)
        return found

    @property
    def packed(self) -> list[Derived]:
        """The packed operands that its programs read."""
        made = [m for m in list(self._made.values()) if isinstance(m, Program)]
        return list(dict.fromkeys([p for m in made for p in m.packed.values()]))

    @property
    def is_stale(self) -> bool:
        """True if one of the inputs was written over."""
        return any([packed.stale for packed in self.packed])

    def _held(self, executor: Any) -> Any:
        if not isinstance(executor, Program):  # one that has a program for each size, or none
            return executor.held(self) if hasattr(executor, "held") else executor
        code, packed = _prepacked(executor, self.inputs)
        return self._program(executor, code, packed) if packed else executor

    def _program(
        self, program: Program, code: Sequence[Any], packed: Mapping[int, Derived]
    ) -> Program:
        """A program with prepacked forms; of other sizes it is the latest with other numbers."""
        known = tuple(packed)
        latest, results = self._latest.get(known), {result[0]: result for result in program.made}
        made = None
        if latest is not None and latest.items is program.items and latest.packed == packed:
            made = latest.resized(
                lambda: program.schedule, lambda old: results[old[0]], code, program.layout
            )
        if made is None:
            made = Program(
                program.device, program.schedule, code, program.layout, program.address,
                program.workers, packed,
            )  # fmt: skip
        self._latest[known] = made
        return made


def _prepacked(
    program: Program, inputs: Mapping[int, ref[Buffer]]
) -> tuple[list[Any], dict[int, Derived]]:
    """The code of a program with prepacked forms, and by item the operands of these."""
    code: list[Any] = list(program.code)
    packed: dict[int, Derived] = {}
    over = {source for _, source in program.aliases}  # of inputs that it writes
    forms: dict[int, Native] = {}  # of each kernel, once
    for number, (item, made) in enumerate(zip(program.items, code, strict=True)):
        form = made.prepacked if isinstance(made, Native) else None
        if form is None or form.param >= len(item.reads):
            continue
        slot = item.reads[form.param]
        buffer: Any = inputs[slot]() if slot in inputs and slot not in over else None
        if buffer is None or not buffer.address or form.nbytes > MOST * buffer.nbytes:
            continue
        packed[number] = _operand(program, buffer, form)
        if id(made) not in forms:
            forms[id(made)] = made._replace(
                launches=form.launches, numbers=form.numbers, workspace=form.workspace
            )
        code[number] = forms[id(made)]
    return code, packed


def _operand(program: Program, buffer: Any, form: PrepackedForm) -> Derived:
    """The packed operand of a buffer, which programs share."""
    key = form.pack[0], form.pack_numbers
    return DERIVED.get(buffer, key, lambda: _pack(program, buffer, form))


def _pack(program: Program, buffer: Any, form: PrepackedForm) -> Block:
    """Pack an operand: one launch, over a frame of its own."""
    block, numbers = POOL.block(form.nbytes), form.pack_numbers
    symbol, units, shared = form.pack
    tail = [0, 1, *numbers]  # slots of its params
    words = array("q", [SLOTS, SLOTS + 2, SLOTS + 2, SLOTS + 4, LAUNCH, 8 + len(tail)])
    words.extend([program.address(symbol), units, shared, 2, 0, len(numbers), *tail, END, 2])
    frame = array("q", bytes(8 * (SLOTS + 6 + len(numbers))))
    workers = program.workers
    threads = workers.ready() if shared else 1
    places = words.buffer_info()[0], frame.buffer_info()[0]
    workers.plain(*places, workers.pool, threads, buffer.address, block.address)
    return block
