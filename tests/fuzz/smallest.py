"""A failing graph made as small as it gets, and lines that repeat it in a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fulgurite.core.dtype import dtype_of
from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.leaf import BUFFER, PARAM, new_buffer, param
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.core.text import parse_all, show
from fulgurite.errors import FulguriteError
from fulgurite.runtime.host.evaluate import evaluate, settle

from .graph import Graph
from .running import problem


def minimise(graph: Graph, **options: bool) -> Graph:
    """A smaller graph that fails in the same way: fewer roots, inner nodes made leaves."""
    wanted = _sort_of(problem(graph, **options))
    assert wanted is not None, "only a graph that fails can be made smaller"
    shrinking = True
    while shrinking:
        shrinking = False
        for smaller in _smaller(graph):
            try:
                found = problem(smaller, **options)
            except (AssertionError, FulguriteError, ValueError):
                continue
            if _sort_of(found) == wanted:
                graph, shrinking = smaller, True
                break
    return graph


def _sort_of(found: str | None) -> str | None:
    return None if found is None else found.split(":")[0] if found.startswith("raised") else "wrong"


def _smaller(graph: Graph) -> Iterable[Graph]:
    """Graphs with one thing less, the largest steps first."""
    for i in range(len(graph.roots) if len(graph.roots) > 1 else 0):
        yield _only(graph, [r for j, r in enumerate(graph.roots) if j != i])
    if graph.lifted:
        yield replace(graph, lifted=False)
    for i, root in enumerate(graph.roots):
        for source in root.src:
            yield _only(graph, [source if i == j else r for j, r in enumerate(graph.roots)])
    settled = settle(graph.nodes, {})
    if settled:
        yield _only(graph, [substitute(root, settled, walk=True) for root in graph.roots])
        return
    inner = [n for n in reversed(graph.nodes) if n.src and n not in graph.roots]
    if not inner:
        return
    values = dict(zip(inner, evaluate(inner, graph.arrays), strict=True))
    for node in inner:
        fresh = new_buffer(node.shape, node.dtype)  # type: ignore[arg-type]
        roots = [substitute(root, {node: fresh}) for root in graph.roots]
        array = np.ascontiguousarray(values[node]).reshape(fresh.arg[1])
        arrays = {**graph.arrays, fresh: array}
        yield _only(replace(graph, arrays=arrays), roots)


def _only(graph: Graph, roots: list[Node]) -> Graph:
    arrays = {n: graph.arrays[n] for n in toposort(roots) if n.op is BUFFER}
    return replace(graph, roots=roots, arrays=arrays)


def reproduction(graph: Graph, **options: bool) -> str:
    """Lines to paste into a test: `replay` of the graph's text and data."""
    buffers = list(graph.arrays)
    params = {b: param(i, b.shape, b.dtype) for i, b in enumerate(buffers)}
    text = show(*[substitute(root, params) for root in graph.roots])
    data = ",\n        ".join(_text(graph.arrays[b]) for b in buffers)
    more = "".join(f", {name}={value}" for name, value in options.items())
    body = text.replace("\n", "\n    ")
    return (
        "from math import inf, nan\nfrom tests.fuzz import replay\n"
        f'replay(\n    """\n    {body}\n    """,\n    [\n        {data}\n    ],\n'
        f"    exact={graph.exact}, lifted={graph.lifted}, device={graph.device!r}{more},\n)"
    )


def _text(array: Array) -> str:
    wide = array.astype(np.float32) if dtype_of(array.dtype).is_small_float else array
    return repr(wide.ravel().tolist())


def replay(
    text: str,
    data: Sequence[Sequence[Any]],
    exact: bool,
    lifted: bool = False,
    device: str = "reference",
    **options: bool,
) -> None:
    """Check a graph that is written out: params of the text take the lists of data in order."""
    roots = parse_all(text)
    buffers: dict[Node, Node] = {}
    arrays: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op is PARAM:
            buffers[node] = new_buffer(node.arg[1], node.dtype)
            numbers = np.array(data[node.arg[0]], dtype=None if data[node.arg[0]] else float)
            arrays[buffers[node]] = numbers.astype(node.dtype.numpy).reshape(node.arg[1])
    graph = Graph([substitute(root, buffers) for root in roots], arrays, exact, lifted, device)
    found = problem(graph, **options)
    assert found is None, f"{found}\n{text}"
