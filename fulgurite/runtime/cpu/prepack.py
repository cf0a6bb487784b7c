"""Prepacking: operands of GEMMs that stay are packed once, and all later runs read the panels.

In: the inputs that a caller keeps from run to run. Out: `HeldInputs`, and of it for each executor
one that runs the same plan with the prepacked form of every kernel that has one (codegen/cpu/gemm).
A packed operand belongs to its buffer and to how it is packed, not to a plan: plans of many sizes
share it. It goes with the last program that reads it or with its buffer, and is stale once that is
written over (runtime/derived.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary, ref

from ...codegen.cpu.driver import END, LAUNCH, SLOTS
from ..derived import DERIVED, Derived
from ..device import Buffer, is_shared
from .executor import Program, changes_between, signature_of
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
        # by the items that read what is packed, and by the launches of kernels
        self._latest: dict[Hashable, Program] = {}
        self._packings: dict[Hashable, int] = {}  # ways to pack an operand, numbered
        # prepacked forms, and the kernels that they are of
        self._forms: dict[int, tuple[Native, tuple[PrepackedForm, Native]]] = {}
        # the kernels of the latest program that have such forms, and what is packed for them
        self._before: tuple[Any, dict[int, Derived]] | None = None
        # what is packed, by item and way
        self._operands: WeakValueDictionary[tuple[int, int], Derived] = WeakValueDictionary()

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
        made = self._resized(executor)
        if made is not None:
            return made
        code, packed = self._prepacked(executor)
        return self._program(executor, code, packed) if packed else executor

    def _resized(self, program: Program) -> Program | None:
        """The one of a program that was made from that of other sizes, with the same operands."""
        before, changes = program.before or (None, {})
        latest = self._made.get(before()) if before is not None else None
        if not isinstance(latest, Program) or not latest.packed:
            return None
        if any([new.prepacked is not None for new in changes.values()]):
            return None
        if any([operand.stale for operand in latest.packed.values()]):
            return None
        results = {result[0]: result for result in program.made}
        return latest.resized(
            lambda: program.schedule, lambda old: results[old[0]], changes, program.layout
        )

    def _prepacked(self, program: Program) -> tuple[list[Any], dict[int, Derived]]:
        """The code of a program with prepacked forms, and by item the operands of these."""
        code: list[Any] = list(program.code)
        forms = {i: self._form(c) for i, c in {id(c): c for c in code}.items()}
        there = {number: found for number, c in enumerate(code) if (found := forms[id(c)])}
        known = program.items, [code[number] for number in there]
        packed = None if self._before is None or self._before[0] != known else self._before[1]
        if packed is None or any([operand.stale for operand in packed.values()]):
            made = {n: self._packed(program, n, form) for n, (form, _) in there.items()}
            packed = {number: operand for number, operand in made.items() if operand is not None}
            self._before = known, packed
        for number in packed:
            code[number] = there[number][1]
        return code, packed

    def _packed(self, program: Program, number: int, form: PrepackedForm) -> Derived | None:
        """The packed operand that an item may read, if it is an input that stays."""
        item, over = program.items[number], {source for _, source in program.aliases}
        slot = item.reads[form.param] if form.param < len(item.reads) else -1
        buffer: Any = self.inputs[slot]() if slot in self.inputs and slot not in over else None
        if buffer is None or not buffer.address or form.nbytes > MOST * buffer.nbytes:
            return None
        return self._operand(program, buffer, form, (number, self._way(form)))

    def _form(self, made: Any) -> tuple[PrepackedForm, Native] | None:
        """The prepacked form of a kernel that has one, and its code in that form."""
        if not isinstance(made, Native) or made.prepacked is None:
            return None
        known = self._forms.get(id(made))
        if known is None:
            if len(self._forms) >= MOST_PROGRAMS:
                self._forms.clear()
            found = _form_of(made)
            assert found is not None, "it has one"
            known = self._forms[id(made)] = made, found
        return known[1]

    def _way(self, form: PrepackedForm) -> int:
        """The number of a way to pack an operand."""
        key = form.param, form.pack[0], form.pack_numbers
        return self._packings.setdefault(key, len(self._packings))

    def _operand(
        self, program: Program, buffer: Any, form: PrepackedForm, key: tuple[int, int]
    ) -> Derived:
        """The packed operand of a buffer, which programs share."""
        found = self._operands.get(key)
        if found is None or found.stale:
            found = self._operands[key] = DERIVED.get(
                buffer, (form.pack[0], form.pack_numbers), lambda: _pack(program, buffer, form)
            )
        return found

    def _program(
        self, program: Program, code: Sequence[Any], packed: Mapping[int, Derived]
    ) -> Program:
        """A program with prepacked forms; of other sizes it is the latest with other numbers."""
        known = tuple(packed), signature_of({id(c): c for c in code}.values())
        latest, results = self._latest.get(known), {result[0]: result for result in program.made}
        made = None
        if latest is not None and latest.items is program.items and latest.packed == packed:
            changes = changes_between(latest.code, code)
            made = None if changes is None else latest.resized(
                lambda: program.schedule, lambda old: results[old[0]], changes, program.layout
            )  # fmt: skip
        if made is None:
            made = Program(
                program.device, program.schedule, code, program.layout, program.address,
                program.workers, packed,
            )  # fmt: skip
        self._latest[known] = made
        return made


def _form_of(made: Any) -> tuple[PrepackedForm, Native] | None:
    """The prepacked form of a kernel that has one, and its code in that form."""
    form = made.prepacked if isinstance(made, Native) else None
    if form is None:
        return None
    code = made._replace(launches=form.launches, numbers=form.numbers, workspace=form.workspace)
    return form, code


def _pack(program: Program, buffer: Any, form: PrepackedForm) -> Block:
    """Pack an operand: one launch, over a frame of its own."""
    block, numbers = POOL.lasting(form.nbytes), form.pack_numbers
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
