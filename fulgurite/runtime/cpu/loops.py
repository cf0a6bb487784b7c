"""Loops as records of the native driver: no Python runs between their steps.

In: the code of a loop (`runtime/control.py`) whose count is known and whose body is one native
call. Out: the memory that a frame needs for it, and its records (`codegen/cpu/driver_loops.py`).
All addresses are slots of the frame around it, so two threads can run one plan. What is not known
before a loop runs (a condition, rows that are chosen, sizes that vary) keeps the loop in Python,
which is the meaning of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ...codegen.cpu.driver import COPY, LOOP, SLOTS
from ...codegen.cpu.driver_loops import Length
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node
from ...core.ops.leaf import PARAM
from ..control import Looping
from ..host.device import POISON
from .frame_layout import Frame, Inlined
from .pool import POOL, Block
from .toolchain import loop_function

if TYPE_CHECKING:
    from ..device import Buffer
    from .executor import Program


class Place(NamedTuple):
    """Where a value lies: an input or output of the loop's kernel, or memory of its own."""

    kind: str  # read, write, constant or spare
    number: int


class InlineLoop(Inlined):
    """A loop inside a program: what its records say, and the memory of one run."""

    def __init__(
        self, code: Looping, body: Program, count: int, known: Mapping[Node, Buffer]
    ) -> None:
        self.code, self.body, self.count, self.known = code, body, count, known
        self.constants: list[Buffer] = []
        self.spares: list[int] = []  # bytes
        self.copies: list[tuple[Place, int, Place, int]] = []  # to, offset there, from, bytes
        self.moves: list[tuple[int, Place, int, int]] = []  # word, from where, offset, stride
        self.carries: list[list[Any]] = []
        words = body.frame_layout
        self.inputs = [SLOTS + place for place in range(body.schedule.inputs)]
        self.outputs = [words.word[place] for place in body.schedule.outputs]
        self.sources = [self._source(node) for node in code.loop.inputs]
        self._walk()
        homes = dict(self._carry(at, carry) for at, carry in enumerate(code.carried))
        home_of = {at: homes[carry] for at, carry in code.states}
        for place, source in body.schedule.aliases:
            self.moves.append((words.word[place], home_of[source], 0, 0))

    @property
    def slots(self) -> int:
        """How many slots it takes in the frame around it: its body's frame, and memory."""
        return 1 + len(self.constants) + len(self.spares)

    def _source(self, node: Node) -> Place:
        """Where what comes into the loop lies; constants are laid out once."""
        if node.op is PARAM:
            return Place("read", node.arg[0])
        self.constants.append(self.known[node])
        return Place("constant", len(self.constants) - 1)

    def _spare(self, nbytes: int) -> Place:
        self.spares.append(nbytes)
        return Place("spare", len(self.spares) - 1)

    def _rows(self, node: Node) -> tuple[int, int]:
        """The offset of the first row that a step takes, and how far it is to the next."""
        row: Any = node.shape[1:]
        stride = prod(row) * node.dtype.itemsize
        return ((self.count - 1) * stride, -stride) if self.code.loop.reverse else (0, stride)

    def _walk(self) -> None:
        """What stays, the rows that are read, and those that are written."""
        code = self.code
        self.moves += [(self.inputs[at], self.sources[n], 0, 0) for at, n in code.rest]
        for at, n in code.rows:
            self.moves.append((self.inputs[at], self.sources[n], *self._rows(code.loop.inputs[n])))
        written = self.outputs[len(code.carried) :]
        for word, item in zip(written, code.given, strict=True):
            place = code.items[item]
            self.moves.append((word, Place("write", place), *self._rows(code.nodes[place])))

    def _carry(self, at: int, carry: int) -> tuple[int, Place]:
        """A carry, and the place it stays at if it does; else where it begins."""
        code = self.code
        root, start = code.loop.body.roots[carry], self.sources[carry]
        shape: Any = root.shape
        nbytes = prod(shape) * root.dtype.itemsize
        result = Place("write", code.items[carry]) if carry in code.items else None
        reads = [self.inputs[place] for place, number in code.states if number == at]
        read = reads[0] if reads else self.body.frame_layout.spare
        if at in code.kept:
            home = result or self._spare(nbytes)
            self.copies.append((home, 0, start, nbytes))
            self.moves += [(read, home, 0, 0), (self.outputs[at], home, 0, 0)]
            return at, home
        if carry in code.trails:
            trail, (offset, stride) = self._trail(carry, start, nbytes)
            pair = [trail, offset, trail, offset, stride]
            last = result or self._spare(nbytes)
        else:
            spares = self._spare(nbytes), self._spare(nbytes)
            pair = [spares[0], 0, spares[1], 0, 0]
            last = result or spares[self.count & 1]
        self.carries.append([read, self.outputs[at], start, *pair, last])
        return at, start

    def _trail(self, carry: int, start: Place, nbytes: int) -> tuple[Place, tuple[int, int]]:
        """The rows of what a carry was before each step: the first is where it begins."""
        place = self.code.trails[carry]
        trail, rows = Place("write", place), self._rows(self.code.nodes[place])
        self.copies.append((trail, rows[0], start, nbytes))
        return trail, rows

    # --- records ---------------------------------------------------------------------------------

    def records(self, reads: Sequence[int], writes: Sequence[int], first: int) -> list[int]:
        """Its records, over slots of what it reads and writes, and from `first` on its own."""
        known: dict[str, Callable[[int], int]] = {
            "read": reads.__getitem__, "write": writes.__getitem__,
            "constant": lambda n: first + 1 + n,
            "spare": lambda n: first + 1 + len(self.constants) + n,
        }  # fmt: skip

        def slot(value: Any) -> int:
            return known[value.kind](value.number) if isinstance(value, Place) else value

        words: list[int] = []
        for copied in self.copies:
            words += [COPY, Length.COPY, *[slot(value) for value in copied]]
        length = Length.LOOP + Length.MOVE * len(self.moves) + Length.CARRY * len(self.carries)
        words += [LOOP, length, self.body.segments[0], first, self.count]  # type: ignore[list-item]
        words += [len(self.moves), len(self.carries), loop_function()]
        return words + [slot(value) for row in (*self.moves, *self.carries) for value in row]

    def memory(self, poison: bool) -> tuple[list[int], list[Frame | Block]]:
        """The addresses of its own slots for one run at a time, and what keeps them."""
        frame = self.body.frame(poison, self.body.layout)
        blocks = [POOL.block(nbytes) for nbytes in self.spares]
        for block in blocks if poison else ():
            block.bytes()[:] = POISON
        places = [*[b.address for b in self.constants], *[b.address for b in blocks]]
        return [frame.address, *places], [frame, *blocks]


def inlined(code: object, constants: Mapping[int, Buffer]) -> InlineLoop | None:
    """A loop as records; None if Python must run it. Some of its inputs hold constants."""
    if not isinstance(code, Looping) or not getattr(code.plan.executor, "is_one_call", False):
        return None
    count, sources = code.loop.steps, code.sources
    body: Any = code.plan.executor
    if code.loop.mode != "all" or not isinstance(count, int) or count < 1:
        return None
    if sources.is_sized or not constants.keys() >= {param.arg[0] for param in sources.params}:
        return None
    kept = {at for at, carry in code.states if carry in code.kept}
    if not kept.issuperset([source for _, source in body.schedule.aliases]):
        return None
    made = dict(zip(sources.made, sources.laid_out(constants, {}), strict=True))
    return InlineLoop(code, body, count, sources.known | made)
