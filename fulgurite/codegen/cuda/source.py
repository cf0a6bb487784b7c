"""What the renderer hands to the compiler and the executor: text, launches, arguments.

A kernel is one or more launches, in order; each is one function of Triton text with a grid of
programs. Arguments are params (inputs, then outputs), places in a workspace that the launches
share, the error words, words of memory that hold variables, and numbers. Numbers (sizes, strides,
counts) and grids are no part of the text: kernels of other shapes are often compiled once. The
error words are two int64: 1 if a checked index was outside its axis, and the size of that axis. The
lock is a word of the GPU's memory that such a check sets too: a guarded launch does nothing while
it is set. Flags are words by which programs of a launch wait for each other: 0 before it and after
it. They are one for all launches, so one that has flags has a workspace too, which orders it behind
others that have.
Params begin at multiples of 16 bytes; the workspace at one of 256.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ...core.dtype import DType

PARAM, ROOM, ERROR, VARIABLE, NUMBER = "param", "room", "error", "variable", "number"
LOCK, FLAGS = "lock", "flags"
TENSOR = "tensor"
ROOM_ALIGNMENT = 256  # bytes


class TensorMap(NamedTuple):
    """What Hopper's copy engine must know of a param (CUtensorMap): a box of it is one copy.

    Elements have two bytes; those outside of the shape read as 0. Copies land swizzled.
    """

    param: int
    offset: int  # bytes
    dtype: str  # bfloat16 or float16
    shape: tuple[int, ...]  # the contiguous axis last
    strides: tuple[int, ...]  # in elements
    block: tuple[int, ...]  # what a program copies at a time

    @property
    def box(self) -> tuple[int, ...]:
        """What one instruction copies: rows of 128 bytes at most."""
        return (*self.block[:-1], min(self.block[-1], 64))

    @property
    def swizzle(self) -> int:
        """Bytes of a row within which 16 bytes each are swapped: 32, 64 or 128."""
        return 2 * self.box[-1]


class Argument(NamedTuple):
    """One argument of a launch: its name and type in the text, and where its value comes from."""

    name: str
    type: str  # as Triton's signatures have it: "*fp32", "i32"
    even: bool  # a multiple of 16
    source: str  # PARAM, ROOM, ERROR, LOCK, FLAGS, VARIABLE, NUMBER or TENSOR
    value: int | str | TensorMap = 0  # param, offset in the workspace, variable's name, number

    @staticmethod
    def restored(dumped: Sequence[Any]) -> Argument:
        """One that went through JSON."""
        name, kind, even, source, value = dumped
        if source == TENSOR:
            param, offset, dtype, *lists = value
            value = TensorMap(param, offset, dtype, *[tuple(one) for one in lists])
        return Argument(name, kind, even, source, value)


@dataclass(frozen=True, slots=True)
class Launch:
    """One function and its grid."""

    text: str
    symbol: str
    grid: int  # programs
    warps: int
    stages: int
    arguments: tuple[Argument, ...]
    language: str = "triton"  # or gluon: Triton's own, one level below
    registers: int = 0  # of a thread on average, where several programs share a processor
    contracted: bool = False  # may a product and a sum be an FMA?

    @property
    def signature(self) -> tuple[tuple[str, str, bool], ...]:
        """What the compiler must know of the arguments."""
        return tuple([(a.name, a.type, a.even) for a in self.arguments])

    @property
    def key(self) -> tuple[object, ...]:
        """Launches with equal keys have the same machine code."""
        return (
            self.text, self.symbol, self.warps, self.stages, self.registers, self.contracted,
            self.signature,
        )  # fmt: skip

    @property
    def effort(self) -> tuple[bool, int]:
        """How long compiling it takes beside others: products become the most instructions."""
        return self.language == "gluon" or "tl.dot(" in self.text, len(self.text)

    @property
    def may_be_guarded(self) -> bool:
        """True if there is a form of it that does nothing while the lock is set."""
        return self.language == "triton" or "\n    tiles = " in self.text

    def guarded(self) -> Launch:
        """The same launch, which does nothing while the lock is set."""
        assert all(a.source != LOCK for a in self.arguments), "what checks an index is not guarded"
        head, start, body = self.text.rpartition(f"def {self.symbol}(")
        names, _, lines = body.partition("):\n")
        if self.language == "gluon":  # programs that find no tiles
            held = re.sub(
                r"(?m)^    tiles = (\w+)$",
                r"    tiles = tl.where(tl.load(lock) == 0, \1, 0)",
                lines,
            )
            assert held != lines, "a persistent kernel says how many tiles there are"
            return replace(
                self, text=f"{head}{start}lock, {names}):\n{held}",
                arguments=(lock_word(), *self.arguments),
            )  # fmt: skip
        reads = _reads(self.arguments)  # a name has one type inside a branch and before it
        inner = "".join([f"    {line}\n" for line in lines.removeprefix(reads).splitlines()])
        text = f"{head}{start}lock, {names}):\n{reads}    if tl.load(lock) == 0:\n{inner}"
        return replace(self, text=text, arguments=(lock_word(), *self.arguments))


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as launches, one after the other."""

    launches: tuple[Launch, ...]
    workspace: int = 0  # bytes

    @property
    def may_be_guarded(self) -> bool:
        """True if all its launches may."""
        return all(launch.may_be_guarded for launch in self.launches)

    def guarded(self) -> KernelSource:
        """The same kernel, which does nothing while the lock is set."""
        return replace(self, launches=tuple([launch.guarded() for launch in self.launches]))

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that launches read."""
        found = [a.value for n in self.launches for a in n.arguments if a.source == VARIABLE]
        return tuple(dict.fromkeys(map(str, found)))

    @property
    def reports_bounds(self) -> bool:
        """True if it may set the error words."""
        return any(a.source == ERROR for n in self.launches for a in n.arguments)


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of a param, or in the workspace."""

    source: str  # PARAM or ROOM
    value: int  # the param's number, or the offset


class Room:
    """A workspace, handed out from its beginning."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, nbytes: int) -> Place:
        """Memory for so many bytes."""
        offset = self.used
        self.used += -(-max(nbytes, 1) // ROOM_ALIGNMENT) * ROOM_ALIGNMENT
        return Place(ROOM, offset)


def params(count: int) -> list[Place]:
    """The places of a kernel's own params."""
    return [Place(PARAM, i) for i in range(count)]


_TYPES = {
    "bool": "i1", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "u8", "float8_e5m2": "u8",
}  # fmt: skip


def pointer(name: str, dtype: DType, place: Place) -> Argument:
    """A pointer to memory; float8 is memory of bytes."""
    kind = _TYPES.get(dtype.name) or f"{dtype.kind}{dtype.bits}"
    return Argument(name, f"*{kind}", True, place.source, place.value)


def pointers(names: Sequence[tuple[str, DType, Place]]) -> list[Argument]:
    """Several pointers."""
    return [pointer(*one) for one in names]


def tensor_map(name: str, spec: TensorMap) -> Argument:
    """A tensor that the copy engine reads blocks of."""
    kind = " ".join(map(str, ("tensor", _TYPES[spec.dtype], *spec.block)))
    return Argument(name, kind, False, TENSOR, spec)


def variable(short: str, name: str) -> Argument:
    """A variable: a word of memory, so that its value is no update of a graph's nodes."""
    return Argument(short, "*i64", False, VARIABLE, name)


def with_variables(text: str, arguments: Sequence[Argument]) -> str:
    """The text of a kernel that first reads the variables among its arguments."""
    head, start, rest = text.rpartition("def kernel(")
    given, end, body = rest.partition("):\n")
    return "".join([head, start, given, end, _reads(arguments), body])


def _reads(arguments: Sequence[Argument]) -> str:
    """The lines that put the value of each variable in the place of its address."""
    names = [a.name for a in arguments if a.source == VARIABLE]
    return "".join([f"    {n} = tl.load({n})\n" for n in names])


def number(name: str, value: int) -> Argument:
    """A number known when the kernel is made, 64 bits wide where 32 are too few."""
    wide = not -(1 << 31) <= value < 1 << 31
    return Argument(name, "i64" if wide else "i32", value % 16 == 0, NUMBER, value)


def lock_word() -> Argument:
    """The lock."""
    return Argument("lock", "*i32", True, LOCK)


def flag_words() -> Argument:
    """The flags."""
    return Argument("flags", "*i32", True, FLAGS)


def error_words() -> Argument:
    """The error words."""
    return Argument("err", "*i64", True, ERROR)
