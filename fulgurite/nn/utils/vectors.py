"""Parameters as one long vector, and back.

In: parameters in their order. Out: their numbers in one line; or parameters that have the numbers
of such a line. The line of a model and the model are each other's image: no number is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import ArgumentError, ShapeError
from ...functional.array.movement import concat, reshape
from ...functional.common import as_tensor
from ...optim.gradients import global_norm
from ...tensor import Tensor, TensorLike, no_grad


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All numbers of the parameters in one line.

    >>> fg.nn.utils.parameters_to_vector(fg.nn.Linear(3, 2).parameters()).shape
    (8,)
    """
    flat = [reshape(parameter, (-1,)) for parameter in parameters]
    if not flat:
        raise ArgumentError("there are no parameters", "give some")
    return concat(flat)


def vector_to_parameters(vec: TensorLike, parameters: Iterable[Tensor]) -> None:
    """Give the parameters the numbers of a line.

    >>> layer = fg.nn.Linear(2, 1)
    >>> fg.nn.utils.vector_to_parameters(fg.Tensor([1.0, 2.0, 3.0]), layer.parameters())
    >>> layer.weight.tolist(), layer.bias.tolist()
    ([[1.0, 2.0]], [3.0])
    """
    line, targets = as_tensor(vec), list(parameters)
    total = sum([target.size for target in targets])
    if line.shape != (total,):
        raise ShapeError(
            f"a vector of shape {line.shape} for parameters of {total} numbers", "give as many"
        )
    start = 0
    with no_grad():
        for target in targets:
            part = reshape(line[start : start + target.size], target.shape)
            target.assign(part.astype(target.dtype))
            start += target.size


def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of several tensors as if they were one vector.

    >>> fg.nn.utils.get_total_norm([fg.Tensor([3.0]), fg.Tensor([4.0])]).item()
    5.0
    """
    return global_norm(list(tensors), norm_type)
