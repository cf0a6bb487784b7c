"""What a target offers, and what its renderer hands to its compiler: text, and how to launch it.

`CodeGenerator` is a target as devices and searches see it. The rest is what the targets for
processors share: every function of a kernel is `void f(ptr params, ptr values, i64 first, i64
last)` and does units `first` to `last` of its launch, in any order, on any thread: units of one
launch never write the same memory and never read what another unit of that launch writes. Launches
run one after the other. `params` holds the addresses of the inputs, then the outputs, then (if
`workspace`) memory that the launches share. `values` holds an error word, the size that was broken,
then the variables in order, then `numbers`. What is only in `numbers` and `units` is no part of the
text: kernels that differ in nothing else are compiled once. Function names begin with `kernel`; the
compiler renames them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from ...core.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ...core.passes import Observe, Pass
    from ...graph.fusion.machine import MachineModel
    from ...graph.fusion.proposals import Source
    from ...graph.ir.kernel import Kernel


class Word(IntEnum):
    """Places in `values`."""

    ERROR = 0  # not 0 where an index was outside of its axis
    BROKEN = 1  # the size of that axis
    FIRST = 2  # the first variable


ERROR, BROKEN, FIRST = Word


@dataclass(frozen=True, slots=True)
class Launch:
    """One function and how much there is to do; `work` is a guess in additions over all units."""

    symbol: str
    units: int
    work: int


@dataclass(frozen=True, slots=True)
class Prepacked:
    """A form of a kernel for an operand that stays: packed once, into memory behind the workspace.

    The launch that packs has two params, the operand and that memory, and numbers of its own; they
    say how it is packed, so equal ones of one operand may share it.
    """

    param: int  # the operand
    nbytes: int
    pack: Launch
    pack_numbers: tuple[int, ...]
    launches: tuple[Launch, ...]
    numbers: tuple[int, ...]
    workspace: int


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel as text and launch."""

    text: str  # definitions, then declarations, one to a line
    launches: tuple[Launch, ...]
    variables: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    workspace: int = 0  # bytes, 64-aligned when it arrives
    library: tuple[str, ...] = ()  # modules that this one calls; each may call those before it
    prepacked: Prepacked | None = None  # the same text with other numbers


class KernelSource(Protocol):
    """A kernel as text, with all that its device must know to launch it."""

    @property
    def workspace(self) -> int:
        """Bytes that its launches share."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables whose values it reads, in order."""


class CodeGenerator(Protocol):
    """A target: kernels to text, text to machine code, and what kernels cost there."""

    language: str  # in which users may write kernels of their own for it

    @property
    def key(self) -> str:
        """The target and the version of its compiler: part of the key of plans and code on disk."""

    @property
    def hardware(self) -> str:
        """What times depend on besides the kernel and the compiler."""

    @property
    def machine(self) -> MachineModel:
        """What a schedule may ask of the machine."""

    @property
    def sources(self) -> Sequence[Source]:
        """Where the search gets kernels for merged graphs that the target can render."""

    @property
    def passes(self) -> Sequence[Pass]:
        """What it does to a kernel in index notation, up to text."""

    def render(self, kernel: Kernel, observe: Observe | None = None) -> KernelSource:
        """A kernel as text; `CannotLower` says why not."""

    def listings(self, kernel: Kernel) -> Mapping[str, str]:
        """A kernel's machine code, to be read, by notation; a note where a tool is missing."""

    def compile(self, texts: Sequence[str]) -> bytes:
        """Machine code of texts that are compiled together, to be stored by digest."""
