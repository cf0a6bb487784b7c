"""Adafactor and Muon: optimisers that know that a parameter is a matrix.

In: a parameter, its gradient and what is kept for it. Out: the new values. Adafactor keeps the mean
square of a matrix as one row and one column (Shazeer and Stern 2018); Muon makes the momentum of a
matrix orthogonal by Newton and Schulz's iteration (Jordan 2024). Both follow torch's definitions;
Muon iterates in float32 unless told otherwise, where torch always uses bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dtype import dtype_of
from ..errors import ArgumentError, ShapeError
from ..functional.math.elementwise import clip, maximum, minimum
from ..tensor import Tensor
from .optimizer import Group, Now, Optimizer, Slots, State, Updated


class Adafactor(Optimizer):
    """Adam's second moment in the memory of a row and a column."""

    def __init__(
        self, params: Any, lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay,
            maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        if param.ndim < 2:
            return {"variance": 0.0}
        *rest, rows, columns = param.shape
        return {"row_var": (*rest, rows, 1), "col_var": (*rest, 1, columns)}

    def scalars(self, group: Group, step: Tensor) -> Now:
        return {
            "share": (step ** group["beta2_decay"]).contiguous(),
            "size": minimum(group.rate, step**-0.5).contiguous(),
            "keep": (1 - group.rate * group["weight_decay"]).contiguous(),
        }

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        least, smallest = group["eps"]
        if least is None:
            least = float(_eps(param))
        size = maximum((param * param).mean().sqrt(), smallest) * now["size"]
        if group["weight_decay"]:
            param = param * now["keep"]
        if param.ndim < 2:
            kept = {"variance": _toward(state["variance"], grad * grad, now["share"])}
            estimate = kept["variance"]
        else:
            square = grad * grad
            rows = _toward(state["row_var"], square.mean(axis=-1, keepdims=True), now["share"])
            columns = _toward(state["col_var"], square.mean(axis=-2, keepdims=True), now["share"])
            kept = {"row_var": rows, "col_var": columns}
            estimate = rows * columns / clip(rows.mean(axis=-2, keepdims=True), least, None)
        way = grad * clip(estimate, least * least, None).rsqrt()
        length = (way * way).mean().sqrt() / group["d"]
        return param - size / clip(length, 1.0, None) * way, kept


def _toward(old: Tensor, new: Tensor, share: Tensor | float) -> Tensor:
    return old + (new - old) * share


def _eps(param: Tensor) -> float:
    """The distance from 1 to the next number of a parameter's dtype."""
    name = param.dtype.name
    if name == "bfloat16":
        return 2.0**-7
    return float(np.finfo(name).eps) if param.dtype.bits >= 16 else 2.0**-2


class Muon(Optimizer):
    """Momentum of matrices, made orthogonal; other parameters belong to another optimiser."""

    positive = (*Optimizer.positive, "momentum")

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None, *,
        ns_dtype: object = "float32", maximize: bool = False,
    ) -> None:  # fmt: skip
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(
                f"adjust_lr_fn is {adjust_lr_fn!r}", 'give None, "original" or "match_rms_adamw"'
            )
        super().__init__(
            params, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
            ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn, ns_dtype=dtype_of(ns_dtype).name, maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        if param.ndim != 2:
            raise ShapeError(
                f"Muon is for matrices, not for a parameter of shape {param.shape}",
                "give the others to AdamW",
            )
        return {"momentum_buffer": 0.0}

    def scalars(self, group: Group, step: Tensor) -> Now:
        return {
            "lr": group.rate,
            "keep": (1 - group.rate * group["weight_decay"]).contiguous(),
        }

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        momentum = group["momentum"]
        moved = _toward(state["momentum_buffer"], grad, 1 - momentum)
        way = _toward(grad, moved, momentum) if group["nesterov"] else moved
        way = orthogonal(way, group).astype(param.dtype)
        rows, columns = param.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            factor = 0.2 * max(rows, columns) ** 0.5
        else:
            factor = max(1.0, rows / columns) ** 0.5
        return param * now["keep"] - now["lr"] * (way * factor), {"momentum_buffer": moved}


def orthogonal(matrix: Tensor, group: Group) -> Tensor:
    """A matrix near the orthogonal one that is nearest to this matrix."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.mT if tall else matrix).astype(group["ns_dtype"])
    x = x / clip((x * x).sum().sqrt(), group["eps"], None)
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = x * a + (gram * b + (gram @ gram) * c) @ x
    return x.mT if tall else x
