"""The end of a training step: all that changed, and all that still waits for it, in one plan.

In: tensors that were just assigned, what they held before, and tensors to leave alone. Out: their
values, computed in one plan together with every pending tensor that reads what they held before:
the loss that somebody will print, running statistics, the norm of the gradients. Left pending,
those would keep the old weights alive and compute the forward pass a second time when asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.node import Node
from ..errors import VariableError
from ..graph.ir.registry import REGISTRY, Entry
from ..runtime.realize import is_realized, realize
from ..tensor import SCOPES, Tensor


def realize_step(
    changed: Sequence[Tensor], before: list[Node], apart: Iterable[Tensor] = ()
) -> None:
    """Compute what changed and what reads the values before the change, in one plan.

    The list of what was before is emptied: memory that somebody still names is not written over.
    """
    if SCOPES.capturing:  # the capture takes all that was assigned as its results
        before.clear()
        return
    entries = [tensor.entry for tensor in changed]
    known = {entry.id for entry in entries} | {tensor.entry.id for tensor in apart}
    waiting = _waiting(before, known)
    before.clear()
    try:
        realize([*entries, *waiting])
    except VariableError:  # of those that wait two bind one variable to two values
        realize(entries)


def _waiting(before: Sequence[Node], known: set[int]) -> list[Entry]:
    """Tensors that are still to be computed from these nodes."""
    return [
        entry
        for entry in REGISTRY.readers(before)
        if entry.id not in known and not is_realized(entry.node)
    ]
