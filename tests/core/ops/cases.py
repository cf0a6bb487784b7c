"""One or more examples of every op, from which gradient and batching tests are generated.

A case draws its source arrays and makes one node from leaves of their shapes. Elementwise ops need
no case: theirs come from the table. Finite differences must hold, so cases keep away from ties;
what happens at ties and kinks is tested by exact rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fulgurite.core.dtype import float64
from fulgurite.core.node import Node, constant_like
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops import movement
from fulgurite.core.ops.body import Body
from fulgurite.core.ops.control import choice, loop
from fulgurite.core.ops.effect import HostFunction, copy_to, custom, watch
from fulgurite.core.ops.elementwise import TANH
from fulgurite.core.ops.host import call
from fulgurite.core.ops.indexing import gather, scatter, sort_order
from fulgurite.core.ops.leaf import SINK, param, view
from fulgurite.core.ops.random import random_bits
from fulgurite.core.ops.reduce import affine_scan, reduce_node, scan_node
from fulgurite.core.ops.transform import Rule, override
from fulgurite.core.ops.update import update

Random = np.random.Generator
Draw = Callable[[Random], tuple[Array, ...]]


@dataclass(frozen=True)
class Case:
    """An example of one op: how to draw its sources and how to make its node."""

    name: str
    draw: Draw
    build: Callable[..., Node]

    def __str__(self) -> str:
        return self.name


def floats(*shapes: tuple[int, ...]) -> Draw:
    return lambda random: tuple(random.normal(size=shape) for shape in shapes)


def _apart(*shapes: tuple[int, ...]) -> Draw:
    """Floats of which no two are near each other: no tie is within a finite difference."""

    def draw(random: Random) -> tuple[Array, ...]:
        sizes = [int(np.prod(shape)) for shape in shapes]
        pool = random.permutation(np.arange(sum(sizes)) - sum(sizes) / 2.0) + 0.25
        parts = np.split(pool, np.cumsum(sizes)[:-1])
        return tuple(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))

    return draw


def _with_zeros(*shapes: tuple[int, ...]) -> Draw:
    """Floats of which about a third are zero."""

    def draw(random: Random) -> tuple[Array, ...]:
        return tuple(random.integers(0, 3, s) * random.normal(size=s) for s in shapes)

    return draw


def _indexed(axis: int, values: bool, draw_floats: Callable[..., Draw] = floats) -> Draw:
    """x, an index with duplicates along the axis, and values if asked."""

    def draw(random: Random) -> tuple[Array, ...]:
        shape = (5, 3) if axis == 0 else (4, 3)
        x, v = draw_floats((4, 3), shape)(random)
        index = random.integers(0, (4, 3)[axis], shape)
        return (x, index, v) if values else (x, index)

    return draw


def _backward(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    return g * b, g * a


_DOUBLE = Rule("test.double", lambda flows, x: [None if g is None else g * 2.0 for g in flows])


def _sum_and_square(a: Array, b: Array) -> Array:
    total = np.asarray(a + b)
    a *= a
    return total


def _both_back(flows: list[Node | None], results: list[Node], a: Node, b: Node) -> list[Node]:
    total, square = [constant_like(0, a) if flow is None else flow for flow in flows]
    return [total + square * (a + a), total]


_BOTH = HostFunction("test.both", _sum_and_square, _both_back)
_PRODUCT = HostFunction("test.product", lambda a, b: np.asarray(a * b), _backward)


def _keys(random: Random) -> tuple[Array, ...]:
    key = random.integers(0, 2**32, 2, dtype=np.uint32)
    return key, np.asarray(random.integers(0, 2**64, dtype=np.uint64))


def _movement() -> list[Case]:
    return [
        Case("reshape", floats((2, 3, 2)), lambda x: movement.reshape(x, (4, 3))),
        Case("expand", floats((1, 3, 1)), lambda x: movement.expand(x, (2, 3, 4))),
        Case("permute", floats((2, 3, 4)), lambda x: movement.permute(x, (2, 0, 1))),
        Case("pad", floats((2, 3)), lambda x: movement.pad(x, [(1, 0), (0, 2)])),
        Case("shrink", floats((4, 3)), lambda x: movement.shrink(x, [(1, 3), (0, 2)])),
        Case("flip", floats((2, 3)), lambda x: movement.flip(x, (0, 1))),
        Case("window", floats((2, 9)), lambda x: movement.window(x, 1, 3, 2, 2)),
        Case("window-overlapping", floats((6, 2)), lambda x: movement.window(x, 0, 3)),
        Case("unwindow", floats((2, 3, 3)), lambda x: movement.unwindow(x, 1, 9, 2, 2)),
        Case("unwindow-with-rest", floats((3, 2)), lambda x: movement.unwindow(x, 0, 11, 3, 2)),
    ]


def _folds() -> list[Case]:
    cases = []
    for name in ("add", "mul", "max", "min"):
        draw = _apart((2, 3, 2)) if name in ("max", "min") else floats((2, 3, 2))
        for axes in ((1,), (0, 2), (0, 1, 2)):
            text = f"reduce-{name}-{''.join(map(str, axes))}"
            cases.append(Case(text, draw, lambda x, n=name, a=axes: reduce_node(n, x, a)))
        for reverse in (False, True):
            text = f"scan-{name}{'-reverse' * reverse}"
            cases.append(Case(text, draw, lambda x, n=name, r=reverse: scan_node(n, x, 1, r)))
    zeros = _with_zeros((3, 4))
    return [
        *cases,
        Case("reduce-mul-zeros", zeros, lambda x: reduce_node("mul", x, (1,))),
        Case("reduce-mul-zeros-01", _with_zeros((2, 3)), lambda x: reduce_node("mul", x, (0, 1))),
        Case("scan-mul-zeros", zeros, lambda x: scan_node("mul", x, 1)),
        Case("scan-mul-zeros-reverse", zeros, lambda x: scan_node("mul", x, 1, True)),
        Case("scan-affine", floats((2, 4), (2, 4)), lambda a, b: affine_scan(a, b, 1)),
        Case("scan-affine-reverse", _with_zeros((4,), (4,)),
             lambda a, b: affine_scan(a, b, 0, True)),
    ]  # fmt: skip


def _indexing() -> list[Case]:
    cases = [
        Case("gather-0", _indexed(0, False), lambda x, i: gather(x, i, 0)),
        Case("gather-1", _indexed(1, False), lambda x, i: gather(x, i, 1)),
        Case("sort", floats((3, 4)), lambda x: sort_order(x, 1)),
        Case("sort-falling", floats((3, 4)), lambda x: sort_order(x, 0, True)),
    ]
    for name in ("set", "add", "mul", "max", "min"):
        for axis in (0, 1):
            draw = _indexed(axis, True, _apart if name in ("max", "min") else floats)
            cases.append(
                Case(f"scatter-{name}-{axis}", draw,
                     lambda x, i, v, n=name, a=axis: scatter(n, x, i, v, a))
            )  # fmt: skip
    for name, starts, steps in [("update", (1, 0), (1, 1)), ("update-steps", (0, 1), (2, 3))]:
        cases.append(
            Case(name, floats((4, 5), (2, 2)),
                 lambda x, v, s=starts, by=steps: update(x, v, s, by))
        )  # fmt: skip
    zeros = _indexed(0, True, _with_zeros)
    return [*cases, Case("scatter-mul-zeros", zeros, lambda x, i, v: scatter("mul", x, i, v, 0))]


ONE = (("data", 1),)  # a mesh of this process alone


def _collectives() -> list[Case]:
    args: dict[str, tuple[object, ...]] = {
        "all_reduce": (ONE, ("data",), "add"), "all_gather": (ONE, ("data",), 1),
        "reduce_scatter": (ONE, ("data",), 0), "all_to_all": (ONE, ("data",), 0, 1),
        "send_recv": (ONE, ("data",), ((0, 0),)), "local": (ONE, (("data",), ())),
        "unshard": (ONE, (("data",), ()), False), "shard": (ONE, ((), ("data",)), True),
    }  # fmt: skip
    return [
        Case(name, floats((2, 3)), lambda x, op=OPS[name], arg=arg: op(x, arg=arg))
        for name, arg in args.items()
    ]


def _effects() -> list[Case]:
    ranks = floats(*[(2, 3)] * 3)
    cases = [Case(name, floats((2, 3)), OPS[name]) for name in ("contiguous", "detach")]
    for kind, how in [("all_reduce", "add"), ("all_reduce", "max"), ("all_reduce", "min"),
                      ("all_gather", 0), ("all_gather", 1), ("broadcast", 1)]:  # fmt: skip
        cases.append(
            Case(f"collective-{kind}-{how}", ranks,
                 lambda *src, arg=(kind, how): OPS["collective"](*src, arg=arg))
        )  # fmt: skip
    return [
        *cases,
        Case("watch", floats((2, 3)), lambda x: watch(x, 1)),
        Case("unwatch", floats((2, 3)), lambda x: OPS["unwatch"](x, arg=1)),
        Case("remat", floats((2,), (3,)), OPS["remat"]),
        Case("override", floats((2, 3), (2, 3)),
             lambda value, x: override(_DOUBLE, 0, value, [x])),
        Case("assign", floats((2, 3), (2, 3)), OPS["assign"]),
        Case("after", floats((2,), (3,), (4,)), OPS["after"]),
        Case("copy", floats((2, 3)), lambda x: copy_to(x, "elsewhere")),
        Case("view", floats((3, 4)), lambda x: view(x, 2, (2, 3))),
        Case("random", _keys, lambda k, c: random_bits(k, c, (3, 2))),
        Case("custom", floats((2, 3), (2, 3)),
             lambda a, b: custom(_PRODUCT, (a, b), (2, 3), float64)),
        *[Case("call", floats((2, 3), (2, 3)),
               lambda a, b, item=item: call(_BOTH, (a, b), [((2, 3), float64)], (0,))[item])
          for item in (0, 1)],
    ]  # fmt: skip


def _control() -> list[Case]:
    carry, row, same = (param(i, (3,), float64, None) for i in range(3))
    step = Body(SINK(TANH(carry * same + row), carry * row))
    a, b = (param(i, (2, 3), float64, None) for i in range(2))
    then, other = Body(SINK(a * b)), Body(SINK(a + b * b))

    def choose(random: Random) -> tuple[Array, ...]:
        return (np.array(random.random() < 0.5), *floats((2, 3), (2, 3))(random))

    def pick(chosen: Node, *src: Node) -> Node:
        return choice(chosen, then, other, src)[0]

    return [
        *[
            Case(f"loop-{name}-{reverse}", floats((3,), (4, 3), (3,)),
                 lambda c, x, s, item=item, back=reverse:
                 loop(step, [c], [x], [s], 4, back).item(item))
            for item, name in enumerate(("carry", "given", "trail"))
            for reverse in (False, True)
        ],
        Case("cond", choose, pick),
    ]  # fmt: skip


CASES = [*_movement(), *_folds(), *_indexing(), *_effects(), *_collectives(), *_control()]


def _elementwise(op: Op) -> Case:
    low, high = op.domain
    arity = op.arity or 1
    shape = (2, 3)

    def draw(random: Random) -> tuple[Array, ...]:
        if "f" not in op.kinds and op.name != "where":
            kind = np.bool_ if op.kinds == "b" else np.int32
            return tuple(random.integers(0, 8, shape).astype(kind) for _ in range(arity))
        sources = [random.uniform(low, high, shape) for _ in range(arity)]
        if op.name == "where":
            sources[0] = random.integers(0, 2, shape).astype(bool)
        return tuple(sources)

    arg = {"cast": float64, "bitcast": float64, "polygamma": 1}.get(op.name)
    return Case(op.name, draw, lambda *src: op(*src, arg=arg))


ELEMENTWISE = [_elementwise(op) for op in OPS.values() if op.family == "elementwise"]
