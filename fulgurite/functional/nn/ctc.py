"""CTC: the loss of a sequence of scores against a shorter sequence of labels, however aligned.

In: logarithms of probabilities (time, batch, classes), labels, and how long each is. Out: minus the
logarithm of the total probability of all alignments, by the forward recursion over
blank-label-blank-...: one `scan` over time whose state is one number for each place of the extended
labels. Impossible states are a large negative number inside, not -inf, so gradients are finite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...control import scan
from ...core import build
from ...core.dtype import int32
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike, wrap
from ..array.indexing import classes_along, take_along_axis
from ..array.movement import broadcast_to, concat, expand_dims, pad, reshape, stack
from ..common import as_tensor, astype, floating, wide
from ..math.elementwise import logaddexp, maximum, where
from ..math.reduction import mean, sum

NEVER = -1e30


def ctc_loss(
    log_probs: TensorLike,
    targets: TensorLike,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the logarithm of the probability of labels, summed over all alignments.

    `log_probs` is (time, batch, classes), or without the batch; `targets` is (batch, labels), or
    all labels one after the other. "mean" divides each loss by its number of labels first.

    >>> x = fg.log(fg.Tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))
    >>> loss = fg.ctc_loss(x, fg.Tensor([[1]]), [2], [1])  # of 4 paths 3 read as "1"
    >>> round(loss.item(), 4) == round(-math.log(3 / 4), 4)
    True
    """
    logs = wide(log_probs)
    alone = logs.ndim == 2
    if logs.ndim not in (2, 3):
        raise ShapeError(f"log_probs of shape {logs.shape}", "give (time, batch, classes)")
    logs = expand_dims(logs, 1) if alone else logs
    time, batch, classes = logs.shape
    if not 0 <= blank < classes:
        raise ArgumentError(f"blank is {blank}", f"it is a class below {classes}")
    steps = _within(_lengths(input_lengths, logs, "input_lengths"), time)
    counts = _lengths(target_lengths, logs, "target_lengths")
    labels = _labels(targets, counts, batch)
    counts = _within(counts, labels.shape[1])
    extended, skips = _extended(labels, blank)
    width = extended.shape[1]
    scores = classes_along(logs, expand_dims(extended, 0), axis=2)  # (time, batch, width)
    place = wrap(build.iota((batch, width), 1, int32))
    first = (
        where(place < 2, scores[0], NEVER) if time else broadcast_to(scores.sum(0), (batch, width))
    )

    def step(state: Tensor, row: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        here, number = row
        one = pad(state, [(0, 0), (1, 0)], constant_values=NEVER)[:, :width]
        two = pad(state, [(0, 0), (2, 0)], constant_values=NEVER)[:, :width]
        found = logaddexp(logaddexp(state, one), where(skips, two, NEVER)) + here
        return where(expand_dims(number < steps, 1), maximum(found, NEVER), state), None

    numbers = wrap(build.iota((max(time - 1, 0),), 0, int32)) + 1
    last = scan(step, first, (scores[1:], numbers))[0] if time > 1 else first
    ends = expand_dims(counts * 2, 1)
    final = take_along_axis(last, ends, axis=1)
    before = where(ends > 0, take_along_axis(last, maximum(ends - 1, 0), axis=1), NEVER)
    loss = reshape(0 - logaddexp(final, before), (batch,))
    endless = loss > -NEVER / 2
    loss = where(endless, 0 if zero_infinity else math.inf, loss)
    if reduction == "mean":
        loss = mean(loss / astype(maximum(counts, 1), loss.dtype))
    elif reduction == "sum":
        loss = sum(loss)
    elif reduction != "none":
        raise ArgumentError(f"reduction is {reduction!r}", 'use "mean", "sum" or "none"')
    elif alone:
        loss = reshape(loss, ())
    return astype(loss, floating(log_probs).dtype)


def _lengths(lengths: Any, logs: Tensor, what: str) -> Tensor:
    found = as_tensor(lengths if isinstance(lengths, Tensor) else np.asarray(lengths), logs)
    batch = logs.shape[1]
    if found.dtype.kind not in "iu":
        raise DTypeError(f"{what} are whole numbers, not {found.dtype}", "cast them to int32")
    if found.size != batch:
        raise ShapeError(f"{found.size} {what} for a batch of {batch}", "give one for each")
    return reshape(astype(found, int32), (batch,))


def _within(lengths: Tensor, most: int) -> Tensor:
    """The lengths; one below 0 or beyond the most is an index error when they are computed."""
    return classes_along(
        Tensor(np.arange(most + 1, dtype=np.int32), device=lengths.device), lengths
    )


def _labels(targets: TensorLike, counts: Tensor, batch: int) -> Tensor:
    """Labels as (batch, most); what is beyond a row's length is never looked at."""
    given = as_tensor(targets, counts)
    if given.dtype.kind not in "iu":
        raise DTypeError(f"labels are whole numbers, not {given.dtype}", "cast them to int32")
    rows = reshape(given, (1, -1)) if given.ndim == 1 and batch == 1 else given
    if rows.ndim == 2 and rows.shape[0] == batch:
        place = wrap(build.iota(rows.shape, 1, int32))
        return where(place < expand_dims(counts, 1), astype(rows, int32), 0)
    if given.ndim != 1:
        raise ShapeError(f"targets of shape {given.shape}", f"give ({batch}, labels) or (all,)")
    sizes = [int(n) for n in counts.tolist()]
    if np.sum(sizes) != given.shape[0]:
        raise ShapeError(f"{given.shape[0]} labels for lengths {sizes}", "they must add up")
    most = max(sizes, default=0)
    starts = np.cumsum([0, *sizes[:-1]])
    each = [
        pad(given[start : start + size], [(0, most - size)])
        for start, size in zip(starts.tolist(), sizes, strict=True)
    ]
    return astype(stack(each), int32)


def _extended(labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """blank, label, blank, label, ..., blank; and where the blank before may be left out."""
    batch, most = labels.shape
    blanks = labels * 0 + blank
    pairs = reshape(stack([blanks, labels], axis=2), (batch, 2 * most))
    last = wrap(build.const(blank, int32, (batch, 1)))
    extended = concat([pairs, last], axis=1)
    if not most:
        return extended, extended != extended
    two_before = pad(extended, [(0, 0), (2, 0)], constant_values=blank)[:, : 2 * most + 1]
    return extended, (extended != blank) & (extended != two_before)
