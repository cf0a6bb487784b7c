"""Look-up tables: a learned row for each whole number, and sums of rows in bags.

In: whole numbers from 0 to the number of rows, less one; any other is an error where the value is
asked for. Out: rows. The row `padding_idx` starts as 0 and gets no gradient.
"""

from __future__ import annotations

from typing import TypeVar

from ..core import build
from ..errors import ArgumentError, DTypeError
from ..functional.array.lookup import embedding, embedding_bag, row_of
from ..functional.common import as_tensor
from ..functional.math.elementwise import where
from ..tensor import Tensor, TensorLike, wrap
from . import init
from .linear import whole
from .module import Module
from .module.parameter import Parameter

Self = TypeVar("Self", bound="_Table")


class _Table(Module):
    weight: Tensor

    def _fill(
        self, rows: int, size: int, padding_idx: int | None, device: str | None, dtype: object
    ) -> None:
        self.num_embeddings = whole(rows, "num_embeddings")
        self.embedding_dim = whole(size, "embedding_dim")
        self.padding_idx = None if padding_idx is None else row_of(padding_idx, rows)
        drawn: Tensor = init.normal((rows, size), 1.0, dtype, device).detach()
        if self.padding_idx is not None:
            place = build.iota((rows, 1), 0)
            drawn = where(wrap(place) == self.padding_idx, 0, drawn)
        self.weight = Parameter(drawn)

    @classmethod
    def from_pretrained(
        cls: type[Self], embeddings: TensorLike, freeze: bool = True, **settings: object
    ) -> Self:
        """A table with these rows."""
        rows = as_tensor(embeddings)
        if rows.ndim != 2:
            raise ArgumentError(f"embeddings of shape {rows.shape}", "give (number, size)")
        made = cls(rows.shape[0], rows.shape[1], **settings)  # type: ignore[call-arg]
        made.weight = Parameter(rows, requires_grad=not freeze)
        return made

    def _places(self, x: TensorLike) -> Tensor:
        places = self.as_input(x)
        if places.dtype.kind not in "iu":
            raise DTypeError(
                f"{type(self).__name__}({self.extra_repr()}) looks up whole numbers, "
                f"not {places.dtype}",
                "cast them: x.astype('int32')",
            )
        return places

    def extra_repr(self) -> str:
        """Sizes, and the row of padding."""
        more = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{more}"


class Embedding(_Table):
    """A table of vectors, looked up by whole numbers.

    The row `padding_idx` starts as 0 and gets no gradient.

    >>> table = fg.nn.Embedding(10, 3, padding_idx=0)
    >>> table(fg.Tensor([[0, 4], [9, 0]])).shape, table.weight[0].tolist()
    ((2, 2, 3), [0.0, 0.0, 0.0])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self._fill(num_embeddings, embedding_dim, padding_idx, device, dtype)

    def forward(self, x: TensorLike) -> Tensor:
        """The rows at these places."""
        return embedding(self._places(x), self.weight, self.padding_idx)


class EmbeddingBag(_Table):
    """The sum, mean or largest of the rows in each bag, without the rows themselves.

    A bag is a row of a matrix, or the part of a line from its offset to the next one.

    >>> table = fg.nn.EmbeddingBag(10, 3, mode="sum")
    >>> table(fg.Tensor([[1, 2, 4], [4, 3, 2]])).shape
    (2, 3)
    >>> table(fg.Tensor([1, 2, 4, 5, 4]), fg.Tensor([0, 4])).shape
    (2, 3)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"mode is {mode!r}", 'use "sum", "mean" or "max"')
        self._fill(num_embeddings, embedding_dim, padding_idx, device, dtype)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self,
        x: TensorLike,
        offsets: TensorLike | None = None,
        per_sample_weights: TensorLike | None = None,
    ) -> Tensor:
        """One vector for each bag."""
        settings = (self.mode, per_sample_weights, self.include_last_offset, self.padding_idx)
        return embedding_bag(self._places(x), self.weight, offsets, *settings)

    def extra_repr(self) -> str:
        """Sizes, mode, and the row of padding."""
        return f"{super().extra_repr()}, mode={self.mode!r}"
