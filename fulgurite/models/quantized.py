"""Matrices that stay as they are in their file: half floats or packed blocks, multiplied as such.

In: a tensor over a file's bytes. Out: a `Matrix` whose product with x is one graph of ordinary
operations: bytes are shifted, masked, widened and scaled, and the compiler takes all that into the
product's own kernel, so that memory is read once, packed. Nothing is unpacked beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import fulgurite as fg

from ..io.quants import Quant


@dataclass(frozen=True, eq=False)
class Matrix:
    """(..., outputs, inputs), plain or packed: then `data` is (..., outputs, blocks, bytes)."""

    data: fg.Tensor
    quant: Quant | None = None
    bias: fg.Tensor | None = None
    is_transposed: bool = False  # memory has (inputs, outputs)

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
        found = self._row(x) if self._is_row(x) else x @ self.values().mT
        return found if self.bias is None else found + self.bias.astype(fg.float32)

    def _is_row(self, x: fg.Tensor) -> bool:
        """True if each matrix meets one row, as in decoding, and has a form for that."""
        if self.quant is None or self.quant.runs is None:
            return False
        rows = x.shape[-2:-1] if self.data.ndim > 3 else x.shape[:-1]
        return all(n == 1 for n in rows)

    def _row(self, x: fg.Tensor) -> fg.Tensor:
        assert self.quant is not None
        x = x.contiguous()  # once, not again for each output
        if self.data.ndim > 3:
            return self.quant.dot(x[..., 0, :], self.data).contiguous()[..., None, :]
        return self.quant.dot(x.reshape(-1), self.data).contiguous().reshape(*x.shape[:-1], -1)

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
            found.append(Matrix(self.data[place], self.quant, bias, self.is_transposed))
        return found
