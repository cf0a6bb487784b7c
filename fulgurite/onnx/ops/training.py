"""Steps of optimisers (domain ai.onnx.preview.training).

In: a `Call`: a rate, a count of steps, then tensors, their gradients and their states in groups.
Out: the new tensors and states, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ...tensor import Tensor
from ..table import Call, operator

DOMAIN = "ai.onnx.preview.training"


def _groups(op: Call, parts: int) -> list[tuple[Tensor, ...]]:
    rest = op.tensors(2)
    count = len(rest) // parts
    return [tuple(rest[i + k * count] for k in range(parts)) for i in range(count)]


def _joined(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(x for column in zip(*rows, strict=True) for x in column)


@operator("Momentum", domain=DOMAIN)
def momentum(op: Call) -> tuple[Tensor, ...]:
    """Gradients with inertia."""
    rate, steps = fg.reshape(op[0], ()), fg.reshape(op[1], ())
    alpha, beta = op.float("alpha"), op.float("beta")
    factor: Any = fg.where(steps > 0, beta, 1.0)
    rows = []
    for x, g, v in _groups(op, 3):
        gradient = g + op.float("norm_coefficient") * x
        now = alpha * v + factor * gradient
        nesterov = op.text("mode") == "nesterov"
        rows.append((x - rate * (gradient + alpha * now if nesterov else now), now))
    return _joined(rows)


@operator("Adagrad", domain=DOMAIN)
def adagrad(op: Call) -> tuple[Tensor, ...]:
    """Gradients over the root of all squares so far."""
    rate, steps = fg.reshape(op[0], ()), fg.reshape(op[1], ()).astype(fg.float32)
    rate = rate / (1 + steps * op.float("decay_factor", 0.0))
    rows = []
    for x, g, h in _groups(op, 3):
        gradient = g + op.float("norm_coefficient", 0.0) * x
        squares = h + gradient * gradient
        rows.append((x - rate * gradient / (fg.sqrt(squares) + op.float("epsilon", 1e-6)), squares))
    return _joined(rows)


@operator("Adam", domain=DOMAIN)
def adam(op: Call) -> tuple[Tensor, ...]:
    """Means of gradients and of their squares."""
    rate, steps = fg.reshape(op[0], ()), fg.reshape(op[1], ()).astype(fg.float32)
    alpha, beta = op.float("alpha", 0.9), op.float("beta", 0.999)
    corrected = rate * fg.sqrt(1 - fg.pow(beta, steps)) / (1 - fg.pow(alpha, steps))
    rate = fg.where(steps > 0, corrected, rate)
    rows = []
    for x, g, v, h in _groups(op, 4):
        gradient = g + op.float("norm_coefficient", 0.0) * x
        mean = alpha * v + (1 - alpha) * gradient
        square = beta * h + (1 - beta) * gradient * gradient
        new = x - rate * mean / (fg.sqrt(square) + op.float("epsilon", 1e-6))
        new = (1 - op.float("norm_coefficient_post", 0.0)) * new
        rows.append((new, mean, square))
    return _joined(rows)
