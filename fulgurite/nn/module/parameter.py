"""Parameters: tensors that a module learns, told from others by their type when they are assigned.

In: a tensor, or data for one. Out: a `Parameter`, a tensor that requires a gradient; a module that
gets one as an attribute notes the attribute's name. From then on the name counts, not the type: a
transform may put an ordinary tensor in its place and it is a parameter still. Values are drawn
lazily: nothing is computed for weights that a checkpoint replaces.
"""

from __future__ import annotations

from typing import Any

from ...core.extension import give
from ...graph.ir.registry import REGISTRY
from ...tensor import PLAIN, Tensor, TensorLike


class Parameter(Tensor):
    """A tensor that a module learns.

    >>> class Scale(fg.nn.Module):
    ...     def __init__(self):
    ...         self.factor = fg.nn.Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> scale = Scale()
    >>> scale(fg.Tensor([3.0])).tolist(), [name for name, _ in scale.named_parameters()]
    ([6.0], ['factor'])
    """

    __slots__ = ()
    __off_tape__ = True  # as an argument of a transform: see `grad.watched_leaf`

    def __init__(self, data: TensorLike, requires_grad: bool = True, dtype: object = None) -> None:
        given = data if isinstance(data, Tensor) else Tensor(data)
        value = given.detach() if dtype is None else given.detach().astype(dtype)
        self.entry = REGISTRY.enter(value.entry.node)
        self.grad = None
        if requires_grad:
            self.requires_grad_()

    def __copy__(self) -> Parameter:
        return Parameter(self, self.requires_grad)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and deep copies hold the value, not the graph."""
        return _again, (Tensor, self.numpy(), self.device, self.requires_grad)

    def __repr__(self) -> str:
        return super().__repr__().replace("Tensor(", "Parameter(", 1)


PLAIN.add(Parameter)
give(Parameter=Parameter)


def _again(_: type, array: Any, device: str, requires_grad: bool) -> Parameter:
    return Parameter(Tensor(array, device=device), requires_grad)
