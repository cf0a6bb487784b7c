"""Matrices that stay as they are in their file: half floats or packed blocks, multiplied as such.

In: a tensor over a file's bytes. Out: a `Matrix` whose product with x is one graph of ordinary
operations: bytes are shifted, masked, widened and scaled, and the compiler takes all that into the
product's own kernel, so that memory is read once, packed. Nothing is unpacked beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

import fulgurite as fg

from ..io.quants import Quant

PIECE = 1 << 22  # values of a matrix that are unpacked at once
PIECE_ROWS = 64  # and a multiple of so many outputs: tiles of a product are full
FEW_ROWS = 16  # more of them are a product of matrices, of values that are unpacked first


@dataclass(frozen=True, eq=False)
class Matrix:
    """(..., outputs, inputs), plain or packed: then `data` is (..., outputs, blocks, bytes)."""

    data: fg.Tensor
    quant: Quant | None = None
    bias: fg.Tensor | None = None
    is_transposed: bool = False  # memory has (inputs, outputs)
    activation_bytes: int = 3  # of x in products of whole numbers: 3 are as good as float32

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., outputs, inputs)."""
        *outer, rows, last = self.data.shape if self.quant is None else self.data.shape[:-1]
        if self.is_transposed:
            return (*outer, last, rows)
        return (*outer, rows, last if self.quant is None else last * self.quant.count)

    def values(self) -> fg.Tensor:
        """All values as float32, an expression over the packed ones."""
        if self.quant is None:
            wide = self.data.astype(fg.float32)
            return wide.mT if self.is_transposed else wide
        blocks = self.data.reshape(-1, self.quant.bytes)
        return self.quant.values(blocks).reshape(self.shape)

    def __call__(self, x: fg.Tensor) -> fg.Tensor:
        """x @ values.mT, plus the bias if there is one."""
        found = self._row(x) if self._is_row(x) else self._many(x)
        return found if self.bias is None else found + self.bias.astype(fg.float32)

    def _is_row(self, x: fg.Tensor) -> bool:
        """True if each matrix meets one row, as in decoding, or few, and has a form for that."""
        if self.quant is None or self.quant.runs is None:
            return False
        if self.data.ndim > 3:
            return x.shape[-2] == 1
        return prod(x.shape[:-1]) <= (FEW_ROWS if self._is_of_words(x) else 1)

    def _is_of_words(self, x: fg.Tensor) -> bool:
        """True if a product may be one of whole numbers: these have no gradient."""
        return self.quant is not None and self.quant.words is not None and not x.node.watched

    def _row(self, x: fg.Tensor) -> fg.Tensor:
        x = x.contiguous()  # once, not again for each output
        if self.data.ndim > 3:
            return self._dot(x[..., 0, :]).contiguous()[..., None, :]
        is_one = prod(x.shape[:-1]) == 1
        rows = x.reshape(-1) if is_one else x.reshape(-1, x.shape[-1])
        return self._dot(rows).contiguous().reshape(*x.shape[:-1], -1)

    def pieces(self, x: fg.Tensor) -> list[Matrix]:
        """The outputs in parts of which each is unpacked by itself, where x has many rows.

        What is unpacked is in memory twice, as values and as the product packs them.
        """
        if self.quant is None or self.data.ndim > 3 or self._is_row(x):
            return [self]
        outputs, inputs = self.shape
        parts = -(-outputs * inputs // PIECE)
        size = -(-outputs // parts // PIECE_ROWS) * PIECE_ROWS
        if size >= outputs:
            return [self]
        return self.split([min(size, outputs - n) for n in range(0, outputs, size)])

    def _many(self, x: fg.Tensor) -> fg.Tensor:
        """Many rows: values are unpacked first, as bfloat16 if so much is good enough."""
        pieces = self.pieces(x)
        if len(pieces) > 1:
            return fg.concat([piece._many(x) for piece in pieces], axis=-1)
        values = self.values()
        if self._is_rounded(x) and self.quant is not None:
            values = _rounded(values)
        return self.met(x) @ values.mT

    def met(self, x: fg.Tensor) -> fg.Tensor:
        """What the weights meet of x: bfloat16 if so much is good enough, else itself."""
        return _rounded(x) if self._is_rounded(x) else x

    def _is_rounded(self, x: fg.Tensor) -> bool:
        """True if what meets the weights is bfloat16, as these are or may be: products by pairs.

        Few rows have the numbers that each has alone: guesses of a draft are read together.
        """
        is_narrow = self.quant is not None or self.data.dtype == fg.bfloat16
        is_asked = self.activation_bytes == 1 and not x.node.watched
        return is_asked and is_narrow and prod(x.shape[:-1]) > FEW_ROWS

    def _dot(self, x: fg.Tensor) -> fg.Tensor:
        assert self.quant is not None
        if self._is_of_words(x):
            return self.quant.dot_words(x, self.data, self.activation_bytes)
        return self.quant.dot(x, self.data)

    def rows(self, ids: fg.Tensor) -> fg.Tensor:
        """Some of the rows, unpacked: what an embedding looks up."""
        return Matrix(self.data[ids], self.quant).values()

    def split(self, sizes: Sequence[int]) -> list[Matrix]:
        """The outputs in parts, each over its own part of the memory."""
        ends = list(accumulate(sizes))
        axis = self.data.ndim - (1 if self.is_transposed else 2 if self.quant is None else 3)
        found = []
        for start, end in zip([0, *ends], ends, strict=False):
            place = (*(slice(None),) * axis, slice(start, end))
            bias = None if self.bias is None else self.bias[..., start:end]
            found.append(replace(self, data=self.data[place], bias=bias))
        return found


def _rounded(x: fg.Tensor) -> fg.Tensor:
    """The nearest numbers of bfloat16, stored as such: products of those add up pairs."""
    return x.astype(fg.bfloat16).contiguous().astype(fg.float32)
