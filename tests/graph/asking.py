"""Random comparisons of a sum with itself moved about, and what shaken kernels answer.

In: a seed. Out: a `Comparison`: a sum over memory, two sides made of it by movement ops, maxima and
quotients, and the answer, moved too. `answers` lowers kernels and runs them with sums that round
otherwise at every place: where a kernel computes the sum once, the answer stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from random import Random
from typing import NamedTuple

import numpy as np

from fulgurite.core.dtype import float32
from fulgurite.core.node import Node, Shape
from fulgurite.core.op import Array
from fulgurite.core.ops.elementwise import EQ
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.movement import expand, flip, pad, permute, reshape, shrink, window
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.graph.ir.lower import lower
from fulgurite.runtime.host.index_interpreter import Runner
from tests.fuzz.programs.shaking import shaken

DIMENSIONS = 4


class Comparison(NamedTuple):
    """Memory, a sum over it, two sides that are made of that, and what is asked of them."""

    memory: Node
    total: Node
    sides: tuple[Node, Node]
    answer: Node


def comparison(seed: int) -> Comparison:
    """Two sides with something in common, of dimensions of one step often."""
    random = Random(seed)
    shape = [random.choice((1, 2, 3)) for _ in range(random.randint(1, 3))]
    memory = param(0, (*shape, random.choice((2, 3))), float32)
    total = reduce_node("add", memory, (random.choice(_long(memory.shape)),))
    common = _moved(random, total, 3)
    fits = common.ndim == total.ndim and _fits(total.shape, common.shape)
    if fits and random.random() < 0.3:
        common = common / expand(total, common.shape)
    one, other = _moved(random, common, 3), _moved(random, common, 3)
    if one.ndim != other.ndim or not all(
        1 in (n, m) or n == m for n, m in zip(one.shape, other.shape, strict=True)
    ):
        top = reduce_node("max", other, tuple(range(other.ndim)))
        other = reshape(top, (1,) * one.ndim)
    both = tuple([max(pair) for pair in zip(_sizes(one), _sizes(other), strict=True)])
    one, other = expand(one, both), expand(other, both)
    return Comparison(memory, total, (one, other), _moved(random, EQ(one, other), 2))


def _sizes(node: Node) -> list[int]:
    return [n for n in node.shape if isinstance(n, int)]


def _long(shape: Shape) -> list[int]:
    return [axis for axis, n in enumerate(shape) if n != 1]


def _fits(small: Shape, large: Shape) -> bool:
    return all(n in (1, m) for n, m in zip(small, large, strict=True))


def _moved(random: Random, value: Node, most: int) -> Node:
    for _ in range(random.randint(0, most)):
        value = _step(random, value)
    return value


def _step(random: Random, x: Node) -> Node:
    """One movement of a value, or its maximum along an axis, there or at all of its elements."""
    axis, shape = random.randrange(x.ndim), _sizes(x)
    kind = random.choice(("pad", "cut", "flip", "window", "join", "turn", "spread", "max"))
    if kind == "pad":
        return pad(x, [(random.choice((0, 0, 1)), random.choice((0, 0, 1))) for _ in shape])
    if kind == "cut":
        starts = [random.randrange(n) if random.random() < 0.5 else 0 for n in shape]
        cut = zip(starts, shape, strict=True)
        return shrink(x, [(i, random.randint(i + 1, n) if i else n) for i, n in cut])
    if kind == "flip":
        return flip(x, (axis,))
    if kind == "window" and x.ndim < DIMENSIONS:
        return window(x, axis, random.randint(1, shape[axis]), random.randint(1, 3), 1)
    if kind == "join" and axis and random.random() < 0.5:
        joined = shape[axis - 1] * shape[axis]
        return reshape(x, (*shape[: axis - 1], joined, *shape[axis + 1 :]))
    if kind == "join" and x.ndim < DIMENSIONS:
        return reshape(x, (*shape[:axis], 1, *shape[axis:]))
    if kind == "turn":
        return permute(x, tuple(random.sample(range(x.ndim), x.ndim)))
    if kind == "max":
        top = reduce_node("max", x, (axis,))
        return expand(top, x.shape) if random.random() < 0.6 else top
    return expand(x, tuple([random.choice((1, 2, 3)) if n == 1 else n for n in shape]))


def answers(asked: Comparison, roots: Sequence[Node], runs: int = 2) -> list[Array]:
    """What a kernel that stores some roots gives: as it is, then with sums that are shaken.

    Two roots are the sides: the answer is whether they are equal.
    """
    runner = Runner(lower(SINK(*roots), 1))
    rng = np.random.default_rng(0)
    memory = rng.standard_normal(_sizes(asked.memory)).astype("float32").ravel()
    found = []
    for run in range(runs + 1):
        stored = [np.zeros(np.prod(_sizes(root), dtype=int), root.dtype.numpy) for root in roots]
        with shaken(run) if run else nullcontext():
            runner.run([memory, *stored], {})
        found.append(stored[0] == stored[1] if len(stored) > 1 else stored[0])
    return found
