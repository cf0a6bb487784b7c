"""Sequences of different lengths side by side.

In: tensors that agree in all but their first dimension. Out: one tensor in which the short ones are
filled up; and back. Packed sequences do not exist here: give a mask, or the lengths, to the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ArgumentError, ShapeError
from ...functional.array.movement import pad, stack, swapaxes
from ...functional.common import as_tensor
from ...tensor import Tensor, TensorLike


def pad_sequence(
    sequences: Sequence[TensorLike],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences as (length, batch, ...), or (batch, length, ...), filled up to the longest.

    >>> fg.nn.utils.rnn.pad_sequence([fg.ones(2), fg.ones(1)], batch_first=True).tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    if padding_side not in ("left", "right"):
        raise ArgumentError(f"padding_side is {padding_side!r}", 'use "left" or "right"')
    tensors = [as_tensor(sequence) for sequence in sequences]
    if not tensors or any([t.ndim == 0 or t.shape[1:] != tensors[0].shape[1:] for t in tensors]):
        shapes = ", ".join([str(t.shape) for t in tensors])
        raise ShapeError(
            f"sequences of shapes {shapes or 'none at all'}", "only the first size may differ"
        )
    longest = max([t.shape[0] for t in tensors])
    rows = []
    for tensor in tensors:
        more = longest - tensor.shape[0]
        ends = (0, more) if padding_side == "right" else (more, 0)
        pads = [ends, *[(0, 0)] * (tensor.ndim - 1)]
        rows.append(pad(tensor, pads, constant_values=padding_value))
    batch = stack(rows)
    return batch if batch_first else swapaxes(batch, 0, 1)


def unpad_sequence(
    padded: TensorLike, lengths: Sequence[int] | Tensor, batch_first: bool = False
) -> list[Tensor]:
    """The sequences without what they were filled up with.

    >>> x = fg.Tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> [t.tolist() for t in fg.nn.utils.rnn.unpad_sequence(x, [2, 1], batch_first=True)]
    [[1.0, 2.0], [3.0]]
    """
    rows = as_tensor(padded)
    rows = rows if batch_first else swapaxes(rows, 0, 1)
    counts = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if len(counts) != rows.shape[0]:
        raise ArgumentError(f"{len(counts)} lengths for {rows.shape[0]} sequences", "give as many")
    return [rows[place, : int(count)] for place, count in enumerate(counts)]
