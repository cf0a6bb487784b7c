"""Plain programs that should become one streaming kernel, and helpers to look at their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from math import e, inf, log2
from unittest.mock import patch

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cpu import machine as cpu_machine
from fulgurite.config import current
from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.leaf import PARAM
from fulgurite.graph.fusion.build_schedule import Segment
from fulgurite.graph.fusion.search import REGIONS, Searcher
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Extractor, Schedule
from fulgurite.graph.passes.simplify import simplify
from fulgurite.kernel.stream.price import find_stream
from fulgurite.runtime import pipeline, realize
from fulgurite.runtime.pipeline import searcher
from tests.graph.scheduling import schedule

Program = Callable[[fg.Tensor, fg.Tensor, fg.Tensor], fg.Tensor]


def _scores(q: fg.Tensor, k: fg.Tensor) -> fg.Tensor:
    return q @ k.mT * 0.25


def _causal(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    rows, keys = fg.arange(q.shape[-2])[:, None], fg.arange(k.shape[-2])[None, :]
    return fg.softmax(fg.where(keys <= rows, _scores(q, k), -inf), axis=-1) @ v


def _window(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    rows, keys = fg.arange(q.shape[-2])[:, None], fg.arange(k.shape[-2])[None, :]
    near = (keys <= rows) & (rows - keys < 20)
    return fg.softmax(fg.where(near, _scores(q, k), -inf), axis=-1) @ v


def _exp2(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    s = _scores(q, k)
    powers = fg.exp2((s - s.max(axis=-1, keepdims=True)) * log2(e))
    return (powers / powers.sum(axis=-1, keepdims=True)) @ v


def _grouped(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    heads, length, size = q.shape
    groups = q.reshape((heads // 2, 2, length, size))
    scores = groups @ k[: heads // 2, None].mT * 0.25
    return fg.softmax(scores, axis=-1) @ v[: heads // 2, None]


def _bias(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    bias = numbers(9, q.shape[-2], k.shape[-2])
    return fg.softmax(_scores(q, k) + bias, axis=-1) @ v


def _mask(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    mask = numbers(9, q.shape[-2], k.shape[-2]) > 0
    return fg.softmax(fg.where(mask, _scores(q, k), -inf), axis=-1) @ v


ATTENTION: dict[str, Program] = {
    "plain": lambda q, k, v: fg.softmax(_scores(q, k), axis=-1) @ v,
    "library": lambda q, k, v: fg.scaled_dot_product_attention(q, k, v),
    "library causal": lambda q, k, v: fg.scaled_dot_product_attention(q, k, v, is_causal=True),
    "bias": _bias,
    "mask": _mask,
    "causal": _causal,
    "sliding window": _window,
    "grouped queries": _grouped,
    "soft cap": lambda q, k, v: fg.softmax(fg.tanh(_scores(q, k) / 5) * 5, axis=-1) @ v,
    "output gate": lambda q, k, v: (fg.softmax(_scores(q, k), axis=-1) @ v) * fg.sigmoid(q),
    "exp2": _exp2,
    "one query": lambda q, k, v: fg.softmax(_scores(q[:, :1], k), axis=-1) @ v,
}


def _weights(x: fg.Tensor) -> fg.Tensor:
    return fg.softmax(x, axis=-1)


def _variance(x: fg.Tensor) -> fg.Tensor:
    values = numbers(8, *x.shape)
    p = _weights(x)
    mean = (p * values).sum(axis=-1, keepdims=True)
    return (p * (values - mean) ** 2).sum(axis=-1)


def _divergence(x: fg.Tensor) -> fg.Tensor:
    y = numbers(8, *x.shape)
    logs = fg.log_softmax(x, axis=-1) - fg.log_softmax(y, axis=-1)
    return (_weights(x) * logs).sum(axis=-1)


def _classes(x: fg.Tensor) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(5).integers(0, x.shape[-1], x.shape[0]))


ROWS: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "log-likelihood": lambda x: fg.cross_entropy(x, _classes(x), reduction="none"),
    "entropy": lambda x: -(_weights(x) * fg.log_softmax(x, axis=-1)).sum(axis=-1),
    "divergence": _divergence,
    "weighted variance": _variance,
    "layer norm": lambda x: fg.layer_norm(x, (x.shape[-1],)),
    "logsumexp": lambda x: fg.logsumexp(x, axis=-1),
}


def _rms(x: fg.Tensor) -> fg.Tensor:
    normal = x * fg.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
    return (normal * numbers(7, x.shape[-1])) @ numbers(8, x.shape[-1], 24)


INTO_PRODUCTS: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "linear and cross-entropy": lambda x: fg.cross_entropy(
        x @ numbers(7, x.shape[-1], 300), _classes(x), reduction="none"
    ),
    "linear, transposed, and logsumexp": lambda x: fg.logsumexp(
        x @ numbers(7, 300, x.shape[-1]).mT, axis=-1
    ),
    "rms norm into a product": _rms,
    "two products": lambda x: (
        x @ numbers(7, x.shape[-1], 50 * x.shape[0]) @ numbers(8, 50 * x.shape[0], 16)
    ),
}


def numbers(seed: int, *shape: int) -> fg.Tensor:
    """Normal numbers."""
    return fg.Tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def two_ways(
    heads: int, rows: int, keys: int, size: int, wide: int, other: int, dtype: str
) -> list[fg.Tensor]:
    """Queries, keys, values of keys and values of queries."""
    shapes = (rows, size), (keys, size), (keys, wide), (rows, other)
    return [numbers(i + 1, heads, *shape).cast(dtype) for i, shape in enumerate(shapes)]


def lowered(*tensors: fg.Tensor) -> tuple[Node, int]:
    """The graph of some tensors over numbered params, simplified."""
    normal = normalize([t.node for t in tensors])
    sink = restore(normal.structure, normal.constants, {}, normal.nodes)
    return simplify(sink), len(normal.buffers)


def planned(*tensors: fg.Tensor) -> tuple[Schedule, Searcher]:
    """The schedule that search gives, and who chose it."""
    with fg.config(search=True):
        choose = searcher(current())
    assert choose is not None
    sink, inputs = lowered(*tensors)
    return schedule(sink, inputs, True, choose), choose


def kinds(found: Schedule) -> list[str]:
    """What kinds of kernels a schedule has."""
    return [item.kernel.kind for item in found.items]


def computed(make: Callable[[], fg.Tensor]) -> tuple[Array, Array]:
    """A program's values by the greedy plan and by the chosen one."""
    found = []
    for search in (False, True):
        with fg.config(search=search):
            found.append(make().numpy())
    return found[0], found[1]


@contextmanager
def one_fold(**options: object) -> Iterator[None]:
    """Whatever is realized inside is one fold of its own in native code, whatever that costs."""

    def choose(pieces: Sequence[Segment], roots: Set[Node]) -> list[Segment]:
        outputs = [node for _, made, _ in pieces for node in made if node in roots]
        params = {n for n in toposort(outputs) if n.op is PARAM}
        kernel, memory, origins = Extractor().cut("fold", outputs, params)
        planned = replace(kernel, plan=find_stream(kernel))
        return [("a test says so", outputs, (planned, memory, origins))]

    native = {"device": "cpu", "tier": "native", "search": True, "disk_cache": False}
    native["dynamic"] = False  # plans are those of their sizes
    realize.FAMILIES().clear()
    try:
        with (
            patch.object(pipeline, "chooser", lambda *_: choose),
            fg.config(**{**native, **options}),
        ):
            yield
    finally:
        realize.FAMILIES().clear()


@contextmanager
def scarce_memory() -> Iterator[None]:
    """Every value that is kept between kernels is as costly as a large one."""
    forgotten = (realize.FAMILIES(), REGIONS)
    for cache in forgotten:
        cache.clear()
    try:
        with patch.object(cpu_machine, "SHIPPED", replace(cpu_machine.SHIPPED, large_bytes=0.0)):
            yield
    finally:
        for cache in forgotten:
            cache.clear()


def error(value: Array, exact: Array) -> float:
    """RMS error where both are finite."""
    both = np.isfinite(value) & np.isfinite(exact)
    return float(np.sqrt(np.mean((value[both] - exact[both]) ** 2))) if both.any() else 0.0


def same_kind(a: Array, b: Array) -> bool:
    """Are NaN and infinities in the same places?"""
    marks: Sequence[Callable[[Array], Array]] = (np.isnan, np.isposinf, np.isneginf)
    return all(np.array_equal(mark(a), mark(b)) for mark in marks)
