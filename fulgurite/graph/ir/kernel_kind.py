"""The kinds of kernels, and what passes may do with each.

In: nothing. Out: `KernelKind`, whose members are the texts that reports, keys and files show, and
whose traits are what a pass asks for: nobody has a list of kinds of their own.
"""

from __future__ import annotations

from enum import Flag, StrEnum, auto


class Trait(Flag):
    """What holds of a kind of kernels."""

    MOVABLE = auto()  # it may run sooner or later than where it was scheduled
    COMPLETE = auto()  # it visits every index of what it computes
    CONTROL = auto()  # it runs bodies
    COMPILED = auto()  # it has code of its own: Python does not drive it
    TIMEABLE = auto()  # it can be run and timed without others
    ALTERNATIVE = auto()  # another way to compute what a kernel of another kind does


class KernelKind(StrEnum):
    """How a kernel computes."""

    MAP = "map"
    REDUCE = "reduce"
    CONTRACT = "contract"
    FOLD = "fold"
    SCAN = "scan"
    SORT = "sort"
    SCATTER = "scatter"
    ASSIGN = "assign"
    USER = "user"  # native code of the user's
    LIBRARY = "library"  # a call of the BLAS
    HOST = "host"  # NumPy runs it, node by node
    LOOP = "loop"
    COND = "cond"
    COPY = "copy"  # to another device

    def __repr__(self) -> str:  # in keys: as the text
        return str.__repr__(self)

    @property
    def traits(self) -> Trait:
        """All that holds of it."""
        return _TRAITS[self]

    @property
    def is_control(self) -> bool:
        """True if it runs bodies, driven by Python."""
        return Trait.CONTROL in self.traits

    @property
    def is_movable(self) -> bool:
        """True if it may run sooner or later than where it was scheduled."""
        return Trait.MOVABLE in self.traits

    @property
    def is_complete(self) -> bool:
        """True if it visits every index of what it computes."""
        return Trait.COMPLETE in self.traits

    @property
    def has_code(self) -> bool:
        """True if it is compiled to code of its own."""
        return Trait.COMPILED in self.traits

    @property
    def is_timeable(self) -> bool:
        """True if it can be run and timed without others."""
        return Trait.TIMEABLE in self.traits

    @property
    def is_alternative(self) -> bool:
        """True if it computes what a kernel of another kind does, in another way."""
        return Trait.ALTERNATIVE in self.traits


_LOOPS = Trait.MOVABLE | Trait.COMPLETE | Trait.COMPILED | Trait.TIMEABLE
_IRREGULAR = Trait.MOVABLE | Trait.COMPILED
_TRAITS: dict[KernelKind, Trait] = {
    KernelKind.MAP: _LOOPS,
    KernelKind.REDUCE: _LOOPS,
    KernelKind.CONTRACT: _LOOPS,
    KernelKind.FOLD: Trait.MOVABLE | Trait.COMPILED | Trait.TIMEABLE | Trait.ALTERNATIVE,
    KernelKind.SCAN: _IRREGULAR,
    KernelKind.SORT: _IRREGULAR,
    KernelKind.SCATTER: _IRREGULAR | Trait.COMPLETE,
    KernelKind.ASSIGN: Trait.COMPILED,
    KernelKind.USER: Trait.COMPILED | Trait.TIMEABLE,
    KernelKind.LIBRARY: _LOOPS | Trait.ALTERNATIVE,
    KernelKind.HOST: Trait(0),
    KernelKind.LOOP: Trait.CONTROL,
    KernelKind.COND: Trait.CONTROL,
    KernelKind.COPY: Trait(0),
}
