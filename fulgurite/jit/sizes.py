"""Sizes of arguments that change: from the second change on, one capture for all of them.

In: the shapes of the tensors of the calls that were captured. Out: `CallSizes`: which sizes vary,
as ints that remember what is done with them (`core/symbolic`). The function sees them while it is
captured; what it decides because of one is a guard, which each later call is checked against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from ..core.build import as_axis
from ..core.node import Shape
from ..core.symbolic.sym import Trace, guard_texts
from ..graph.ir.size_key import Fit, Sizes, fit
from ..runtime.sizes.specialize import acceptor
from .symbolic_number import Numbers

Signature: TypeAlias = tuple[tuple[str, int], ...]  # paths of tensors, and how many dimensions
_PATIENCE = 4  # captures in which sizes decide everything, until they are no longer tried
_SEEN = 2  # sizes that have captures of their own


class Seen:
    """The shapes of a function's tensors in the calls that were captured."""

    def __init__(self, free: Mapping[Any, frozenset[int]] = MappingProxyType({})) -> None:
        self.free = free  # axes of arguments whose sizes vary from the first call on
        self.samples: dict[Signature, list[Sizes]] = {}
        self.fixed: Counter[Signature] = Counter()  # captures in which a size decided everything

    def add(
        self, paths: Sequence[str], shapes: Sequence[Shape], free: Mapping[str, frozenset[int]]
    ) -> Signature:
        """Note a call; of axes that are free, as if they had come in other sizes before."""
        signature = tuple([(p, len(s)) for p, s in zip(paths, shapes, strict=True)])
        sizes: Any = tuple([n for shape in shapes for n in shape])
        if free and signature not in self.samples:
            vary = [d in _axes(p, len(s), free)
                    for p, s in zip(paths, shapes, strict=True) for d in range(len(s))]  # fmt: skip
            self.samples[signature] = [
                tuple([n * times if v else n for n, v in zip(sizes, vary, strict=True)])
                for times in range(_SEEN + 1, 1, -1)
            ]
        known = self.samples.setdefault(signature, [])
        if sizes in known:
            known.remove(sizes)
        known.append(sizes)
        del known[:-8]
        return signature


def _axes(path: str, rank: int, free: Mapping[str, frozenset[int]]) -> set[int]:
    """The axes of a tensor that are free: those of its argument, which may hold many tensors."""
    found = [axes for key, axes in free.items() if _is_within(path, key)]
    return {as_axis(axis, rank) for axes in found for axis in axes}


def _is_within(path: str, argument: str) -> bool:
    return path == argument or path.startswith((f"{argument}[", f"{argument}."))


class CallSizes:
    """The sizes of one call's tensors, some of which vary."""

    signature: Signature

    def __init__(self, found: Fit, sizes: Sizes, names: Sequence[str], shapes: Sequence[Shape],
                 samples: Sequence[Sizes]) -> None:  # fmt: skip
        self.fit, self.sizes = found, sizes
        self.variables = found.names
        self.trace = Trace(
            dict(zip(self.variables, found.values(sizes), strict=True)), ragged=False
        )
        places = [(name, d) for name, s in zip(names, shapes, strict=True) for d in range(len(s))]
        for variable, place in zip(self.variables, found.variables, strict=True):
            name, axis = places[place]
            self.trace.sources[variable] = f"{name}.shape[{axis}]"
        self.largest = tuple([max(c) for c in zip(*map(found.values, samples), strict=True)])
        symbolic = iter(found.symbolic(sizes, self.trace))
        self.shapes: list[tuple[int, ...]] = [tuple([next(symbolic) for _ in s]) for s in shapes]
        varying = iter([place in found.places for place in range(len(sizes))])
        self.free = [frozenset([d for d in range(len(s)) if next(varying)]) for s in shapes]

    def settle(self, numbers: Numbers) -> None:
        """Let sizes meet other numbers of the call."""
        self.trace.number = numbers.of_size

    def close(self) -> bool:
        """The function has run; True if a capture holds for other sizes as well."""
        self.accepts = acceptor(self.trace)
        self.guards = guard_texts(self.trace)
        trace = self.trace
        pinned = [key for key, sign in trace.guards if sign == "==" and not _divides(key)]
        narrow = [name for name in self.variables if trace.low[name] == trace.high[name]]
        return not pinned and len(narrow) < len(self.variables)

    def values(self, shapes: Sequence[Shape]) -> tuple[int, ...] | None:
        """The sizes that vary in a call, if the capture holds for them."""
        sizes: Any = tuple([n for shape in shapes for n in shape])
        if len(sizes) != len(self.sizes) or not self.fit.holds(sizes, self.sizes):
            return None
        values = self.fit.values(sizes)
        return values if self.accepts(*values) else None


def _divides(key: Any) -> bool:
    """True if a guard has a quotient or remainder: many sizes pass it, as all even ones do."""
    return any(type(atom) is tuple for atoms, _ in key for atom in atoms)


def sizes_that_vary(
    seen: Seen, paths: Sequence[str], names: Sequence[str], shapes: Sequence[Shape],
    free: Mapping[str, frozenset[int]],
) -> CallSizes | None:  # fmt: skip
    """Which sizes of this call's tensors vary, once they came in enough sizes."""
    signature = seen.add(paths, shapes, free)
    samples = seen.samples[signature]
    if seen.fixed[signature] >= _PATIENCE or len(samples) <= _SEEN:
        return None
    found = fit(samples)
    if found is None:
        return None
    made = CallSizes(found, samples[-1], names, shapes, samples)
    made.signature = signature
    return made if min(found.values(samples[-1])) >= 2 else None
