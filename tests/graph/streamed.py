"""Running a streaming kernel with NumPy, block by block: what its repairs mean.

In: a `Streaming`, the flat memory of its params, the length of a block. Out: its outputs. Values of
before stand in for placeholders and new ones for folds, exactly as the laws say, so a wrong repair
shows as a wrong number whatever native code does. `split` runs parts of the axis by themselves and
merges their states by the same repairs: that is what makes split streams legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.index import STORE
from fulgurite.core.ops.leaf import SINK
from fulgurite.graph.ir.lower import IndexKernel
from fulgurite.kernel.stream.online import Streaming
from fulgurite.runtime.host.index_interpreter import Runner, _Tile

States = dict[Node, Array]


def run_streamed(s: Streaming, params: Sequence[Array], block: int, split: int = 1) -> None:
    """Fill the outputs."""
    with np.errstate(all="ignore"):
        length = int(np.prod([s.sizes[a] for a in s.axes]))
        assert len(s.axes) == 1, "one axis is streamed here"
        cuts = [length * i // split for i in range(split + 1)]
        states: States | None = None
        for start, stop in pairwise(cuts):
            part: States | None = None
            for low in range(start, stop, block):
                part = _step(s, params, part, low, min(low + block, stop))
            if part is not None:
                states = part if states is None else _merged(s, params, states, part)
        assert states is not None
        tile = _tile(s, params, (0, 1), states)
        tile.run()


def _tile(s: Streaming, params: Sequence[Array], span: tuple[int, int], known: States) -> Any:
    repairs = [t.repair for t in s.states if t.repair is not None]
    everything = SINK(*s.stores, *[t.body for t in s.states], *repairs)
    ranges = [(0, n) for n in s.sizes]
    ranges[s.axes[0]] = span
    runner = object.__new__(Runner)
    runner.kernel = IndexKernel(s.sizes, everything, 0)
    stores = toposort(s.stores)
    runner.order = sorted(
        [n for n in stores if n.op is not SINK and n not in known], key=lambda n: n.op is STORE
    )
    runner.free, runner.products = s.free, set()
    tile = _Tile(runner, params, {}, tuple(ranges))
    tile.known.update(known)
    hidden = _hidden(s, known)
    runner.order = [n for n in runner.order if n not in hidden]
    return tile


def _hidden(s: Streaming, known: States) -> set[Node]:
    """Nodes that only what is known already needs."""
    needed: set[Node] = set()
    stack: list[Node] = list(s.stores)
    while stack:
        node = stack.pop()
        if node not in needed and node not in known:
            needed.add(node)
            stack.extend(node.src)
    return set(toposort(s.stores)) - needed


def _value(s: Streaming, params: Sequence[Array], node: Node, known: States, span: Any) -> Array:
    tile = _tile(s, params, span, known)
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [n for n in top.src if n not in tile.known]
        if top in tile.known:
            stack.pop()
        elif missing:
            stack.extend(missing)
        else:
            tile.known[top] = tile.value(top)
            stack.pop()
    found: Array = tile.known[node]
    return found


def _step(s: Streaming, params: Sequence[Array], old: States | None, low: int, high: int) -> States:
    new: States = {}
    axis = s.axes[0]
    for state in s.states:
        value = _value(s, params, state.body, new, (low, high))
        shape = list(value.shape)
        shape[axis] = high - low
        value = np.broadcast_to(value, shape)
        fold: Any = {"add": np.sum, "max": np.max, "min": np.min}[state.op]
        here = fold(value, axis=axis, keepdims=True).astype(value.dtype)
        new[state.fold] = _joined(s, params, state, old, new, here)
    return new


def _joined(
    s: Streaming, params: Sequence[Array], state: Any, old: States | None, new: States, here: Array
) -> Array:
    if old is None:
        return here
    before = old[state.fold]
    if state.repair is not None:
        olds = {t.old: old[t.fold] for t in s.states}
        before = _value(s, params, state.repair, new | olds, (0, 1))
    join = {"add": np.add, "max": np.maximum, "min": np.minimum}[state.op]
    found: Array = join(before, here)
    return found


def _merged(s: Streaming, params: Sequence[Array], a: States, b: States) -> States:
    """Two parts of the axis as one: both are repaired to the bases they have together."""
    new: States = {}
    join = {"add": np.add, "max": np.maximum, "min": np.minimum}
    for state in s.states:
        parts = []
        for old in (a, b):
            value = old[state.fold]
            if state.repair is not None:
                olds = {t.old: old[t.fold] for t in s.states}
                value = _value(s, params, state.repair, new | olds, (0, 1))
            parts.append(value)
        new[state.fold] = join[state.op](*parts)
    return new
