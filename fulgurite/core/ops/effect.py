"""Ops about where and when: the value passes through.

ASSIGN is the next version of some memory, all of it or a part; AFTER orders; COPY crosses devices;
CONTIGUOUS asks for memory; DETACH stops gradients; WATCH is where those of one scope arrive,
UNWATCH ends that scope; REMAT is a value that the backward pass computes again (its own op, because
an interned recomputation would be the forward node itself); COLLECTIVE combines one value per rank,
its sources. Calls of host functions are in `host.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import reduce as fold
from typing import Any

import numpy as np

from ..node import Node, Shape, Size, constant_like
from ..op import NOBODY, Array, Op
from ..shape import mul
from .elementwise import ADD, MAX, WHERE, maximum, minimum
from .host import CALL as CALL
from .host import CUSTOM as CUSTOM
from .host import HOST_FUNCTIONS as HOST_FUNCTIONS
from .host import HOSTS as HOSTS
from .host import HostFunction as HostFunction
from .host import custom as custom
from .host import register_host as register_host
from .indexing import SCATTER
from .leaf import BUFFER, PARAM, VIEW
from .movement import RESHAPE, shrink
from .update import UPDATE


def _same(node: Node, a: Array, *_: Array) -> Array:
    return a


def _pass(g: Node, y: Node, a: Node, *rest: Node) -> tuple[Node | None, ...]:
    return (g, *[None for _ in rest])


def _rebuild(y: Node, src: tuple[Node, ...]) -> Node:
    return y.op(*src, arg=y.arg)


def _first_bounds(node: Node, bounds: list[Any]) -> Any:
    return bounds[0]


CONTIGUOUS = Op(
    name="contiguous", family="effect", doc="the value, stored in memory of its own", arity=1,
    numpy=lambda node, a: np.ascontiguousarray(a).reshape(a.shape), grad=_pass, batch=_rebuild,
    interval=_first_bounds,
)  # fmt: skip
DETACH = Op(
    name="detach", family="effect", doc="the value, without a gradient", arity=1, numpy=_same,
    grad=lambda g, y, a: (None,), batch=_rebuild, interval=_first_bounds, cost=0,
    watched=lambda node: NOBODY,
)  # fmt: skip
WATCH = Op(
    name="watch", family="effect", doc="the value, as a leaf of its own for gradients", arity=1,
    numpy=_same, grad=_pass, batch=_rebuild, interval=_first_bounds, cost=0,
    watched=lambda node: node.src[0].watched | {node.arg[0]},
)  # fmt: skip
UNWATCH = Op(
    name="unwatch", family="effect", doc="the value, no longer watched by one gradient scope",
    arity=1, numpy=_same, grad=_pass, batch=_rebuild, interval=_first_bounds, cost=0,
    watched=lambda node: node.src[0].watched - {node.arg},
)  # fmt: skip
TAPE = 0  # the gradient scope of `requires_grad` and `backward()`
_watches = itertools.count(1)


def watch(x: Node, scope: int) -> Node:
    """x as a leaf with an identity of its own, so that equal values are not confused."""
    return WATCH(x, arg=(scope, next(_watches)))


def unwatch(x: Node, scope: int) -> Node:
    """x once the gradients of a scope are taken; outer scopes still see through it."""
    return UNWATCH(x, arg=scope) if scope in x.watched else x


def unnamed(x: Node) -> Node:
    """The value of a leaf, which is not the leaf: UNWATCH of a scope that there never is."""
    return UNWATCH(x, arg=_NO_SCOPE)


_NO_SCOPE = -2
REMAT = Op(
    name="remat", family="effect", doc="the value, computed again once the second source is known",
    arity=2, numpy=_same, grad=_pass, batch=_rebuild, interval=_first_bounds, cost=0,
)  # fmt: skip


# --- state ---------------------------------------------------------------------------------------


def _assign_check(node: Node) -> str | None:
    target, value, *rest = node.src
    memory = target
    while memory.op is RESHAPE:
        memory = memory.src[0]
    if memory.op not in (BUFFER, VIEW, PARAM, ASSIGN):
        return f"only memory can be assigned, not {target.op}"
    if node.arg is not None:
        if node.arg[0] not in ("box", "at"):
            return f"there is no way {node.arg} to assign"
        same = _functional(node)
        return same.op.check(same)
    fits = target.shape == value.shape and target.dtype is value.dtype and not rest
    return (
        None if fits else f"{value.shape} {value.dtype} assigned to {target.shape} {target.dtype}"
    )


def _functional(node: Node) -> Node:
    """A partial assignment as the copy that it stands for."""
    target, value, *rest = node.src
    if node.arg[0] == "box":
        return UPDATE(target, value, *rest, arg=node.arg[1:])
    return SCATTER(target, rest[0], value, arg=("set", node.arg[1]))


def _assign_numpy(node: Node, target: Array, value: Array, *rest: Array) -> Array:
    if node.arg is None:
        return value
    same = _functional(node)
    sources = (target, value, *rest) if node.arg[0] == "box" else (target, rest[0], value)
    assert same.op.numpy is not None
    return same.op.numpy(same, *sources)


def _assign_grad(g: Node, y: Node, target: Node, value: Node, *rest: Node) -> tuple[Any, ...]:
    assert y.arg is None, "parts are assigned after gradients are taken"
    return None, g


# The argument is None: all of it; ("box", *steps): sources 2 and up are the starts of a box, as
# UPDATE has them; ("at", axis): source 2 is an index, as SCATTER has it. Only the planner makes
# partial ones, of memory that nobody else reads: they touch their part and nothing else.
ASSIGN = Op(
    name="assign", family="effect", doc="the next version of some memory: this value is put there",
    arity=None, numpy=_assign_numpy, grad=_assign_grad, batch=_rebuild, check=_assign_check,
)  # fmt: skip
AFTER = Op(
    name="after", family="effect", doc="the first source, once the others are done", arity=None,
    numpy=_same, grad=_pass, batch=_rebuild, interval=_first_bounds, cost=0,
)  # fmt: skip


# --- devices and ranks ---------------------------------------------------------------------------


def copy_to(x: Node, device: str) -> Node:
    """The value on a device."""
    return COPY(x, arg=device)


COPY = Op(
    name="copy", family="effect", doc="the value on another device", arity=1, numpy=_same,
    grad=lambda g, y, a: (copy_to(g, a.device) if a.device else g,), batch=_rebuild,
    interval=_first_bounds, device=lambda node: node.arg,
    check=lambda node: None if isinstance(node.arg, str) else f"{node.arg!r} is no device",
)  # fmt: skip

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "max": maximum, "min": minimum}


def _collective_numpy(node: Node, *arrays: Array) -> Array:
    kind, how = node.arg
    if kind == "all_gather":
        joined: Array = np.concatenate(arrays, axis=how)
        return joined
    if kind == "broadcast":
        chosen: Array = arrays[how]
        return chosen
    wide = [a.astype(np.float32) if node.dtype.is_small_float else a for a in arrays]
    total: Array = fold(_COMBINE[how], wide)
    return total.astype(node.dtype.numpy, copy=False)


def _collective_shape(node: Node) -> Shape:
    kind, how = node.arg
    first = node.src[0].shape
    if kind != "all_gather":
        return first
    return (*first[:how], mul(first[how], len(node.src)), *first[how + 1 :])


def _collective_check(node: Node) -> str | None:
    kind, how = node.arg
    first = node.src[0]
    if any(s.shape != first.shape or s.dtype is not first.dtype for s in node.src):
        return "every rank must bring the same shape and dtype"
    known = {
        "all_reduce": how in _COMBINE,
        "all_gather": how in range(first.ndim),
        "broadcast": how in range(len(node.src)),
    }
    return None if known.get(kind) else f"there is no collective {node.arg}"


def _collective_grad(g: Node, y: Node, *src: Node) -> tuple[Node | None, ...]:
    kind, how = y.arg
    if kind == "broadcast":
        return tuple(g if rank == how else None for rank in range(len(src)))
    if kind == "all_gather":
        n = src[0].shape[how]
        assert isinstance(n, int)
        return tuple(shrink(g, _part(y.shape, how, r * n, r * n + n)) for r in range(len(src)))
    if how == "add":
        return tuple(g for _ in src)
    one, zero = constant_like(1, g), constant_like(0, g)
    hits = [WHERE(source.eq(y), one, zero) for source in src]
    share = g / MAX(fold(ADD, hits), one)  # ranks that tie share alike, as in REDUCE
    return tuple(hit * share for hit in hits)


def _part(shape: Shape, axis: int, start: Size, stop: Size) -> list[tuple[Size, Size]]:
    return [(start, stop) if d == axis else (0, n) for d, n in enumerate(shape)]


def _collective_batch(y: Node, src: tuple[Node, ...]) -> Node:
    kind, how = y.arg
    return COLLECTIVE(*src, arg=(kind, how + 1 if kind == "all_gather" else how))


COLLECTIVE = Op(
    name="collective", family="effect", doc="one value per rank combined: what every rank gets",
    arity=None, numpy=_collective_numpy, shape=_collective_shape, check=_collective_check,
    grad=_collective_grad, batch=_collective_batch,
)  # fmt: skip
