"""Distances between vectors as modules.

In: two tensors of vectors. Out: a number for each pair; the functions of `fulgurite` compute it.
"""

from __future__ import annotations

from ..functional.nn.losses import cosine_similarity, pairwise_distance
from ..tensor import Tensor, TensorLike
from .module import Module


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along an axis.

    >>> fg.nn.CosineSimilarity()(fg.Tensor([[3.0, 4.0]]), fg.Tensor([[6.0, 8.0]])).tolist()
    [1.0]
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, x1: TensorLike, x2: TensorLike) -> Tensor:
        """The cosines."""
        return cosine_similarity(x1, x2, self.dim, self.eps)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"dim={self.dim}, eps={self.eps}"


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 along the last axis.

    >>> fg.nn.PairwiseDistance(eps=0.0)(fg.Tensor([[0.0, 3.0]]), fg.Tensor([[4.0, 0.0]])).tolist()
    [5.0]
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: TensorLike, x2: TensorLike) -> Tensor:
        """The distances."""
        return pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)

    def extra_repr(self) -> str:
        """Its settings."""
        return f"p={self.norm}, eps={self.eps}, keepdim={self.keepdim}"
