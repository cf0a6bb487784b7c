"""Templates of many sizes: a function run on sizes that remember how they came about.

In: a call of a function with templates, and the sizes that its operands came in. Out: its steps as
one Python function of the sizes that vary, and the guards that they must pass. The function runs on
stand-ins of its tensors whose sizes are `Sym`s (symbolic execution): what it decides because of
one is noted, so for sizes that pass the guards it would make these very nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.node import Node
from ..core.symbolic.polynomial import Named, filler
from ..core.symbolic.sym import Trace, sized
from ..errors import FulguriteError
from ..graph.ir.size_key import Fit, Sizes, fit
from ..runtime.sizes.specialize import acceptor
from ..tensor import Tensor
from .template import Steps, stand_in, template


class SizedTemplate:
    """The steps of a function for all sizes that pass its guards."""

    def __init__(self, found: Fit, seen: Sizes, trace: Trace, steps: Steps) -> None:
        self.fit, self.seen = found, seen
        self._accepts = acceptor(trace)
        named = [sized(step, lambda size: Named(size.key), {}) for step in steps]  # type: ignore[arg-type,return-value]
        self._steps = filler(named, found.names)

    def steps(self, sizes: Sizes) -> Steps | None:
        """The steps for sizes; None if they are not what was expected, or fail a guard."""
        if not self.fit.holds(sizes, self.seen):
            return None
        values = self.fit.values(sizes)
        return self._steps(*values) if self._accepts(*values) else None


def sized_template(
    samples: Sequence[Sizes], function: Callable[..., Tensor | None], call: tuple[Any, Any],
    nodes: Sequence[Node],
) -> SizedTemplate | None:  # fmt: skip
    """A template for sizes like these, of which the last are those of a call."""
    found, sizes = fit(samples), samples[-1]
    if found is None:
        return None
    trace = Trace(dict(zip(found.names, found.values(sizes), strict=True)), ragged=False)
    symbolic = iter(found.symbolic(sizes, trace))
    shapes = [tuple([next(symbolic) if n > 1 else n for n in node.shape]) for node in nodes]
    known = enumerate(zip(nodes, shapes, strict=True))
    places = [stand_in(i, node, shape) for i, (node, shape) in known]
    try:
        steps = template(function, call, nodes, places)
    except FulguriteError:  # which this call did not meet: nobody asked for more
        return None
    if not steps or any([sign == "==" for _, sign in trace.guards]):  # it is for one size
        return None
    return SizedTemplate(found, sizes, trace, steps)
