"""What a renderer hands to the compiler: text, and how it is to be launched.

Every function of a kernel is `void f(ptr params, ptr values, i64 first, i64 last)` and does units
`first` to `last` of its phase, in any order, on any thread: units of one phase never write the same
memory and never read what another unit of that phase writes. Phases run one after the other.
`params` holds the addresses of the inputs, then the outputs, then (if `workspace`) memory that the
phases share. `values` holds an error word, the size that was broken, then the variables in order,
then `numbers`. What is only in `numbers` and `units` is no part of the text: kernels that differ
in nothing else are compiled once. Function names begin with `kernel`; the compiler renames them.
"""

from __future__ import annotations

from dataclasses import dataclass

ERROR, BROKEN, FIRST = 0, 1, 2  # places in `values`: error word, the size broken, first variable


@dataclass(frozen=True, slots=True)
class Phase:
    """One function and how much there is to do; `work` is a guess in additions over all units."""

    symbol: str
    units: int
    work: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A kernel as text and launch."""

    text: str  # definitions, then declarations, one to a line
    phases: tuple[Phase, ...]
    variables: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    workspace: int = 0  # bytes, 64-aligned when it arrives
    library: tuple[str, ...] = ()  # modules that this one calls; each may call those before it
