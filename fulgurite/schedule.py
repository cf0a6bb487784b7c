"""A schedule you can hold: `fg.schedule(*tensors)`, before anything runs.

In: tensors. Out: a `TensorSchedule`: items to look at, `compile()`, and `run()`, again and again.
Each run reads its inputs as they are then (an array that was shared and edited gives the new
numbers) and returns fresh tensors; the tensors it was made from stay as they are.
"""

from __future__ import annotations

from .config import config, current
from .errors import ArgumentError
from .graph.kernel import Item
from .graph.normalize import normalize
from .runtime.plan import Plan
from .runtime.realize import Compiled, adopt, inputs_of, is_realized, lookup
from .tensor import Tensor, wrap


class TensorSchedule:
    """Kernels in order for some tensors, compiled on demand and run as often as wanted."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self._roots = [t.node for t in tensors]
        self._normal = normalize(self._roots)
        self._device = tensors[0].device
        self._compiled: Compiled | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """The kernels in the order they run, with the slots they read and write."""
        return self.compile().schedule.items

    def compile(self) -> Plan:
        """The plan, from the cache or made now."""
        if self._compiled is None:
            with config(tier="native"):
                self._compiled = lookup(self._normal, self._device)
        return self._compiled.plan

    def run(self) -> tuple[Tensor, ...]:
        """The results as fresh tensors, computed from what the inputs hold now."""
        plan = self.compile()
        assert self._compiled is not None
        inputs = inputs_of(self._normal, self._compiled)
        outputs = plan.run(inputs, self._normal.values, current().poison)
        pairs = zip(self._roots, outputs, strict=True)
        return tuple(
            wrap(adopt(root, output, self._device, self._normal.values)) for root, output in pairs
        )

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        return str(self.compile().schedule)


def schedule(*tensors: Tensor) -> TensorSchedule:
    """The kernels that would compute these tensors.

    >>> import fulgurite as fg
    >>> x = fg.Tensor([1.0, 2.0])
    >>> plan = fg.schedule(x * 2 + 1)
    >>> [t.tolist() for t in plan.run()]
    [[3.0, 5.0]]
    """
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{type(tensor).__name__} is not a tensor", "pass tensors")
    if not tensors or all(is_realized(t.node) for t in tensors):
        raise ArgumentError(
            "there is nothing to schedule", "pass at least one tensor that is not realized yet"
        )
    return TensorSchedule(tensors)
