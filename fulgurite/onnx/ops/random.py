"""Random numbers. Which ones is not ONNX's business, only their distribution is.

In: a `Call`, perhaps with a `seed`. Out: lazy tensors that are drawn anew at every call of the
model; a seed makes them the same in every process.
"""

from __future__ import annotations

from typing import Any

import fulgurite as fg

from ...tensor import Tensor
from .. import types as t
from ..table import Call, operator
from ..types import Kind


def _shape(op: Call) -> Any:
    like = op.node.op_type.endswith("Like")
    return op.value(0).shape if like else tuple(op.ints_of("shape", []))


def _kind(op: Call) -> Kind:
    like = op.node.op_type.endswith("Like") or op.node.op_type == "Bernoulli"
    return op.kind_attr("dtype", op.kind(0) if like else t.FLOAT)


@operator("RandomUniform", "RandomUniformLike")
def random_uniform(op: Call) -> Tensor:
    """Evenly between two numbers."""
    low, high = op.float("low", 0.0), op.float("high", 1.0)
    drawn = op.build.uniform(_shape(op), _seed(op))
    return fg.astype(drawn * (high - low) + low, _kind(op).carrier)


@operator("RandomNormal", "RandomNormalLike")
def random_normal(op: Call) -> Tensor:
    """Normally around a mean."""
    drawn = op.build.normal(_shape(op), _seed(op))
    return fg.astype(drawn * op.float("scale", 1.0) + op.float("mean", 0.0), _kind(op).carrier)


@operator("Bernoulli", since=15)
def bernoulli(op: Call) -> Tensor:
    """1 with a probability of its own for each element."""
    drawn = op.build.uniform(op[0].shape, _seed(op))
    return (drawn < op[0]).astype(_kind(op).carrier)


@operator("Multinomial")
def multinomial(op: Call) -> Tensor:
    """Classes by the logarithms of their probabilities."""
    logs, count = op[0].astype(fg.float32), op.int("sample_size", 1)
    shares = fg.cumulative_sum(fg.softmax(logs, axis=-1), axis=-1)
    drawn = op.build.uniform((logs.shape[0], count), _seed(op))
    passed = fg.sum((drawn[:, :, None] >= shares[:, None]).astype(fg.int32), axis=-1)
    kind = op.kind_attr("dtype", t.INT32)
    return fg.minimum(passed, logs.shape[-1] - 1).astype(kind.carrier)


def _seed(op: Call) -> int | None:
    return int(op.float("seed")) & 0x7FFFFFFF if op.given("seed") else None
