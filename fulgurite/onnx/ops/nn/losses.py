"""Losses: negative log likelihood, with and without the softmax before it.

In: a `Call` with scores (n, classes, ...) and wanted classes (n, ...). Out: the loss, one number
unless it is asked for each element. Ignored elements count nowhere.
"""

from __future__ import annotations

from typing import Any

import fulgurite as fg

from ....tensor import Tensor
from ...table import Call, operator
from .normalization import wide


@operator("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(op: Call) -> Tensor:
    """Minus the score of the wanted class."""
    return _loss(op, wide(op[0]), op[1], op.maybe(2)).astype(op[0].dtype)


@operator("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(op: Call) -> tuple[Tensor, Tensor]:
    """Minus the log-softmax of the wanted class, and all of them."""
    logs = fg.log_softmax(wide(op[0]), axis=1)
    dtype = op[0].dtype
    return _loss(op, logs, op[1], op.maybe(2)).astype(dtype), logs.astype(dtype)


def _loss(op: Call, logs: Tensor, wanted: Tensor, weight: Tensor | None) -> Tensor:
    ignored: Any = op.int("ignore_index", None)
    kept = None if ignored is None else wanted != ignored
    place = wanted if kept is None else fg.where(kept, wanted, 0)
    found = fg.squeeze(fg.take_along_axis(logs, fg.expand_dims(place, 1), axis=1), 1)
    factor: Any = None if weight is None else fg.take(wide(weight), place, axis=0)
    if kept is not None:
        factor = kept.astype(logs.dtype) if factor is None else fg.where(kept, factor, 0)
    loss = -found if factor is None else -fg.where(factor == 0, 0, found) * factor
    reduction = op.text("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction == "sum":
        return fg.sum(loss)
    return fg.mean(loss) if factor is None else fg.sum(loss) / fg.sum(factor)
