"""Decompositions of torch's that give something else than its kernels, and ours in their place.

In: nothing. Out: a block in which torch's tracer takes ours. Those meant here replace an operator
before autograd sees it, so no entry of our table could. Outside of the block torch is as it was:
what other backends compile is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey


def multilabel_margin_loss_forward(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    """The margins between the labels before the first -1 and all other classes.

    torch's own counts places behind the first -1 too where another row has more labels.
    """
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    count = rows.shape[1]
    place = torch.arange(count, device=target.device)
    end = torch.where(labels == -1, place, count).amin(-1, keepdim=True)
    given = place < end
    of_label = rows.gather(1, labels.where(given, 0))
    is_target = (place == labels.where(given, -1).unsqueeze(-1)).any(1)
    margins = (1 - of_label.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0) / count
    counted = given.unsqueeze(-1) & ~is_target.unsqueeze(1)
    loss = margins.where(counted, 0).sum((1, 2))
    if reduction:
        loss = loss.mean() if reduction == 1 else loss.sum()
    elif x.dim() < 2:
        loss = loss[0]
    return loss, is_target.to(x.dtype).reshape(target.shape)


CORRECTED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward,
}


@contextmanager
def corrected() -> Iterator[None]:
    """Let torch trace these operators as they are meant, while a block runs."""
    before = [(op, op.py_kernels.get(DispatchKey.Autograd)) for op in CORRECTED]
    try:
        for op, function in CORRECTED.items():
            _enter(op, function)
        yield
    finally:
        for op, function in before:
            _enter(op, function)


def _enter(op: Any, function: Callable[..., Any] | None) -> None:
    """What torch's tracer calls for an operator; none is the operator's own kernel."""
    if function is None:
        op.py_kernels.pop(DispatchKey.Autograd, None)
    else:
        op.py_kernels[DispatchKey.Autograd] = function
    op._dispatch_cache.clear()
