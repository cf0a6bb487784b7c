"""A graph of ATen operators as compiled segments, with torch's own operators between them.

In: an FX graph that AOTAutograd made. Out: a boxed callable. Operators in the table are lowered; an
operator that is not, or that refuses its use, is run by torch, and what depends on it is another
segment: levels by longest path, each a segment and then torch's operators. Sizes that are symbols
(`dynamic=True`) are numbers when a call is first made with them, and a program is kept for each
set of sizes. A size that the data decide (`nonzero`, `item` where dynamo captures them) is a number
when torch has run what decides it, and what depends on it is torch's to run. Buffers that the graph
updates are written back when everything has run.
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .home import home_of, offset_of, place_of, stand_in
from .layout import layout_of
from .lower import LoweringError, is_operator, refusal
from .ops.randomness import RANDOM
from .reporting import REPORT
from .segment import RefusedNode, Segment, restrided
from .table import HOST, name_of, title_of

aten = torch.ops.aten
OTHER_ELEMENTS = (  # views that read a memory's bits as something else
    aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default, aten._conj.default,
    aten._neg_view.default,
)  # fmt: skip
View = Callable[[Any], Any]
Call = Callable[[Sequence[Any]], list[Any]]
PROGRAMS = 64  # sets of sizes whose programs a graph keeps
_watchers: list[list[Graph]] = []


@contextmanager
def watching() -> Iterator[list[Graph]]:
    """The graphs that are made while a block runs."""
    found: list[Graph] = []
    _watchers.append(found)
    try:
        yield found
    finally:
        _watchers.remove(found)


class Graph:
    """One FX graph, and the programs that were made for it."""

    def __init__(self, graph: fx.Graph, options: dict[str, Any]) -> None:
        self.module = graph.owning_module  # of constants
        self.refused = stride_over_bases(graph)
        self.options = {k: v for k, v in options.items() if k != "eager_random"}
        self.eager_random = bool(options.get("eager_random"))
        self.nodes = [n for n in graph.nodes if n.op == "call_function"]
        self.placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self.attributes = [n for n in graph.nodes if n.op == "get_attr"]
        (last,) = [n for n in graph.nodes if n.op == "output"]
        self.results: list[Any] = list(last.args[0])
        self.is_backward = _is_backward(self.placeholders)
        self.seen = range(*last.meta.get("seen", (0, 0)))  # results that go to the user
        known = [n.meta.get("val") for n in (*self.placeholders, *self.nodes)]
        self.home = home_of([val for val in known if isinstance(val, torch.Tensor)])
        self.symbols = symbols_of(self.placeholders)
        self.programs: dict[tuple[Any, ...], Program] = {}
        REPORT.graphs += 1
        for watcher in _watchers:
            watcher.append(self)

    def program(self, sizes: tuple[Any, ...]) -> Program:
        """The program for some values of the symbols, found or made."""
        found = self.programs.get(sizes)
        if found is None:
            if len(self.programs) >= PROGRAMS:
                self.programs.pop(next(iter(self.programs)))  # the oldest
            start = time.perf_counter()
            while True:
                try:
                    found = self.programs[sizes] = Program(self, sizes)
                    break
                except RefusedNode as problem:
                    self.refused[problem.node] = problem.why
            REPORT.programs += 1
            REPORT.seconds += time.perf_counter() - start
        return found

    def __call__(self, args: list[Any]) -> list[Any]:
        places = self.symbols.values()
        sizes = tuple([args[i] if d is None else args[i].shape[d] for i, d in places])
        return self.program(sizes).call(args)

    def callable(self) -> Callable[[list[Any]], list[Any]]:
        """What AOTAutograd calls, with one list that may be emptied."""
        if self.symbols:
            call: Any = self.__call__
        else:
            call = self.program(()).call

        def boxed(args: list[Any]) -> list[Any]:
            found: list[Any] = call(args)
            args.clear()
            return found

        boxed._boxed_call = True  # type: ignore[attr-defined]
        boxed.graph = self  # type: ignore[attr-defined]
        return boxed


class Program:
    """A graph for one set of sizes."""

    def __init__(self, graph: Graph, sizes: tuple[Any, ...]) -> None:
        self.graph = graph
        self.numbers = Numbers(dict(zip(graph.symbols, sizes, strict=True)))
        self.open = {n for n in (*graph.placeholders, *graph.nodes)
                     if self.numbers.is_open(n.meta.get("val"))}  # fmt: skip
        self.results, views = self._views()
        levels, eager = self._levels()
        self.steps = self._all_steps(levels, eager)
        self.copies = [n for n in graph.nodes if _is_copy_back(n)]
        _tell(eager)
        REPORT.operators += len(levels) - len(eager)
        self.call: Call = self._straight() or self.__call__
        if views:
            self.call = _viewing(self.call, views)

    def _views(self) -> tuple[list[Any], dict[int, list[View]]]:
        """Results with the tensor that a view is of in its place, and how to see it from there.

        Views of an input, and views of one tensor, share its memory: AOTAutograd reads their
        strides, and a write to one of them is seen in the others. So it does of a view of what an
        input becomes, which it sees again in the input. Gradients share none. A result that the
        user sees has the strides of eager torch, also where its memory has gaps.
        """
        graph, found = self.graph, list(self.graph.results)
        if graph.is_backward:
            return found, {}
        bases = {r: base for r in found if isinstance(r, fx.Node)
                 and (base := _base_of(r)) is not r and self._has_memory(base)}  # fmt: skip
        written = {n.args[1] for n in graph.nodes if _is_copy_back(n)}
        many = Counter([*bases.values(), *dict.fromkeys([r for r in found if r not in bases])])
        views: dict[int, list[View]] = {}
        for place, result in enumerate(found):
            base = bases.get(result)
            shared = base is not None and (base.op == "placeholder" or base in written)
            if base is not None and (shared or many[base] > 1):
                found[place] = base
                views[place] = [self._view(node) for node in _chain(result, base)]
            elif place in graph.seen and self._has_gaps(result):
                known = self.numbers.known(result)
                views[place] = [partial(with_gaps, known.shape, known.stride())]
        return found, views

    def _has_gaps(self, result: Any) -> bool:
        """True if a result that is computed has memory that it does not fill, or fills twice."""
        if not isinstance(result, fx.Node) or result.op == "placeholder" or result in self.open:
            return False
        known = self.numbers.known(result)
        is_strided = isinstance(known, torch.Tensor) and known.layout is torch.strided
        return is_strided and not layout_of(known).dense

    def _has_memory(self, base: fx.Node) -> bool:
        """True if torch's views of a tensor are views of the one that is given for it."""
        known = base.meta.get("val")
        if base in self.open or not isinstance(known, torch.Tensor):
            return False
        return base.op == "placeholder" or layout_of(self.numbers.known(base)).dense

    def _view(self, node: fx.Node) -> View:
        """What an operator makes of the tensor that it sees."""
        if node.target is operator.getitem:
            return operator.itemgetter(node.args[1])
        rest: Any = fx.node.map_aggregate(node.args[1:], self.numbers.number)
        named: Any = fx.node.map_aggregate(node.kwargs, self.numbers.number)
        target: Any = node.target
        return lambda tensor: target(tensor, *rest, **named)

    def _all_steps(self, levels: dict[fx.Node, int], eager: dict[fx.Node, str]) -> list[Any]:
        """Segments, and nodes for torch to run, level by level."""
        found: list[Any] = []
        wanted = self._wanted(levels, eager)
        for level in range(max([*levels.values(), 0]) + 1):
            nodes = [n for n in levels if levels[n] == level and n not in eager]
            outputs = [n for n in nodes if n in wanted]
            if outputs:
                found.append(self._segment(nodes, outputs, levels, level, eager))
            found += [n for n in levels if levels[n] == level and n in eager]
        return found

    def _segment(
        self, nodes: list[fx.Node], outputs: list[fx.Node], levels: dict[fx.Node, int], level: int,
        eager: dict[fx.Node, str],
    ) -> Segment:  # fmt: skip
        needed: set[fx.Node] = set(outputs)
        for node in reversed(nodes):
            if node in needed:
                needed |= {s for s in node.all_input_nodes
                           if levels.get(s) == level and s not in eager}  # fmt: skip
        kept = [n for n in nodes if n in needed]
        return Segment(
            kept, outputs, self.graph.home, self.numbers.known, self.numbers.number,
            self.graph.options,
        )  # fmt: skip

    def _levels(self) -> tuple[dict[fx.Node, int], dict[fx.Node, str]]:
        """For each node its level, and which are torch's to run, with reasons."""
        graph, levels = self.graph, dict[fx.Node, int]()
        eager: dict[fx.Node, str] = {}
        for node in graph.nodes:
            if _is_copy_back(node) or not (self._is_tensor(node) or node in self.open):
                continue
            level = 0
            for source in node.all_input_nodes:
                if source in levels:
                    level = max(level, levels[source] + (source in eager))
            why = self._reason(node, eager)
            if why is not None:
                eager[node] = why
                # torch runs after the segment of its level; beside others it needs no new one
            levels[node] = level
        return levels, eager

    def _reason(self, node: fx.Node, eager: dict[fx.Node, str]) -> str | None:
        """Why a node is torch's to run; None if it is ours."""
        if node.target is operator.getitem:
            return eager.get(node.args[0])
        if node in self.open or not self.open.isdisjoint(node.all_input_nodes):
            return "the data decide a size or number of it"
        if node in self.graph.refused:
            return self.graph.refused[node]
        if not is_operator(node):
            return "it is no ATen operator"
        if self.graph.eager_random and name_of(node.target) in RANDOM:
            return "eager_random asks for torch's own numbers"
        return refusal(node, self.numbers.known(node), self.graph.home.torch)

    @staticmethod
    def _is_tensor(node: fx.Node) -> bool:
        val = node.meta.get("val")
        return not isinstance(val, torch.SymInt | torch.SymFloat | torch.SymBool | int | float)

    def _wanted(self, levels: dict[fx.Node, int], eager: dict[fx.Node, str]) -> set[fx.Node]:
        """Nodes of segments whose values are read outside of them."""
        found = {n for n in self.results if isinstance(n, fx.Node)}
        found |= {n.args[1] for n in self.graph.nodes if _is_copy_back(n)}
        for node in levels:
            for source in node.all_input_nodes:
                if source in levels and (levels[source] != levels[node] or node in eager):
                    found.add(source)
        return {n for n in found if n in levels and n not in eager}

    def _straight(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """A call without an environment: one segment, whose results are the graph's."""
        graph = self.graph
        if len(self.steps) != 1 or not isinstance(self.steps[0], Segment) or graph.attributes:
            return None
        segment: Segment = self.steps[0]
        number = {n: i for i, n in enumerate(graph.placeholders)}
        reads = [number[n] for n in segment.inputs]
        made = {n: i for i, n in enumerate(segment.outputs)}
        copies = [(number[n.args[0]], made[n.args[1]]) for n in self.copies
                  if n.args[1] in made]  # fmt: skip
        if len(copies) != len(self.copies):
            return None
        run = segment.run
        if not copies and self.results == segment.outputs:
            return lambda args: run([args[i] for i in reads])
        takes = _takes(self.results, made, number)
        if takes is None:
            return None
        groups = _by_dtype(copies, [segment.outputs[i].meta["val"].dtype for _, i in copies])

        def call(args: Sequence[Any]) -> list[Any]:
            outputs = run([args[i] for i in reads])
            for to, source in groups:
                torch._foreach_copy_([args[i] for i in to], [outputs[i] for i in source])
            return [outputs[i] if ours else None if i is None else args[i] for ours, i in takes]

        return call

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        graph = self.graph
        env: dict[fx.Node, Any] = dict(zip(graph.placeholders, args, strict=True))
        for node in graph.attributes:
            env[node] = _attribute(graph.module, node)
        for step in self.steps:
            if isinstance(step, Segment):
                results = step.run([env[n] for n in step.inputs])
                env.update(zip(step.outputs, results, strict=True))
            else:
                env[step] = self._eager(step, env)
        for node in self.copies:
            env[node.args[0]].copy_(env[node.args[1]])
        return [env[r] if r in env else self.numbers.number(r) if isinstance(r, fx.Node) else r
                for r in self.results]  # fmt: skip

    def _eager(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        """What torch's own operator gives."""

        def real(arg: Any) -> Any:
            known = isinstance(arg, fx.Node) and arg in env
            return env[arg] if known else self.numbers.number(arg)

        args: Any = fx.node.map_aggregate(node.args, real)
        named: Any = fx.node.map_aggregate(node.kwargs, real)
        with torch.no_grad():
            found = node.target(*args, **named)
        return found if node in self.open else self._as_known(node, found, self.numbers.known(node))

    def _as_known(self, node: fx.Node, found: Any, known: Any) -> Any:
        """A result of torch's in the layout that was promised, which plans are compiled for."""
        if isinstance(found, list | tuple) and isinstance(known, list | tuple):
            return [self._as_known(node, f, k) for f, k in zip(found, known, strict=True)]
        if not isinstance(found, torch.Tensor) or not isinstance(known, torch.Tensor):
            return found
        if found.shape != known.shape or found.dtype != known.dtype:
            raise LoweringError(
                f"{title_of(node.target)} gave {found.dtype}{list(found.shape)}; its fake"
                f" implementation said {known.dtype}{list(known.shape)}",
                "mend the function given to register_fake",
            )
        if found.stride() == known.stride() or found.layout is not torch.strided:
            return found
        layout = layout_of(known)
        return restrided(found, layout) if layout.dense else found


class Numbers:
    """Symbols as numbers: of sizes, strides and whatever is computed from them."""

    def __init__(self, symbols: dict[Any, Any]) -> None:
        self.by_symbol = symbols
        self.by_node: dict[fx.Node, Any] = {}
        self.known_nodes: dict[fx.Node, Any] = {}

    def number(self, x: Any) -> Any:
        """A node or symbol as a number; numbers are themselves."""
        if isinstance(x, fx.Node):
            if x not in self.by_node:
                val = x.meta.get("val")
                self.by_node[x] = self.number(val)
            return self.by_node[x]
        if isinstance(x, torch.SymInt):
            expr = x.node.expr
            return int(expr.xreplace(self.by_symbol)) if self.by_symbol else int(x)
        if isinstance(x, torch.SymFloat):
            return float(x.node.expr.xreplace(self.by_symbol))
        if isinstance(x, torch.SymBool):
            return bool(x.node.expr.xreplace(self.by_symbol))
        return x

    def is_open(self, val: Any) -> bool:
        """True if the data of a call decide a size or number of a value."""
        if isinstance(val, list | tuple):
            return any([self.is_open(v) for v in val])
        if not isinstance(val, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            return False
        return any([symbol not in self.by_symbol for symbol in free_unbacked_symbols(val)])

    def known(self, node: fx.Node) -> Any:
        """What torch knows of a node's value, with numbers for symbols."""
        found = self.known_nodes.get(node)
        if found is None:
            found = self.known_nodes[node] = self._concrete(node.meta.get("val"))
        return found

    def _concrete(self, val: Any) -> Any:
        if isinstance(val, list | tuple):
            return [self._concrete(v) for v in val]
        if not isinstance(val, torch.Tensor):
            return self.number(val)
        if not self.by_symbol:
            return val
        size = [self.number(n) for n in val.shape]
        stride = [self.number(n) for n in val.stride()]
        offset = self.number(offset_of(val))
        return stand_in(size, stride, val.dtype, place_of(val), offset)


def _base_of(node: fx.Node) -> fx.Node:
    """The tensor that a view is of, through all views between; another node is itself."""
    while True:
        source: Any = node.args[0] if node.args else None
        seen = source if node.target is operator.getitem else node
        if not isinstance(source, fx.Node) or not _is_view(seen):
            return node
        node = source


def _is_view(node: fx.Node) -> bool:
    return is_operator(node) and bool(getattr(node.target, "is_view", False))


def stride_over_bases(graph: fx.Graph) -> dict[fx.Node, str]:
    """Let `as_strided` of a view read the tensor that the view is of: it means places in memory,
    of which the view's own elements are but some. Where memory is read as something else on the
    way (its bits as another type, conjugates), all of these views are torch's to run."""
    left: dict[fx.Node, str] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        source, size, stride, *offset = node.args
        base = _base_of(source)
        views = _chain(source, base)
        if any([view.target in OTHER_ELEMENTS for view in views]):
            left |= dict.fromkeys([*views, node], "as_strided reads memory as other elements")
        elif views:
            place = offset[0] if offset else offset_of(source.meta["val"])
            node.args = (base, size, stride, place)
    return left


def _chain(node: fx.Node, base: fx.Node) -> list[fx.Node]:
    """The views between a tensor and a view of it, in order."""
    found: list[fx.Node] = []
    while node is not base:
        found.append(node)
        source: Any = node.args[0]
        node = source
    return found[::-1]


def with_gaps(size: Sequence[int], stride: Sequence[int], tensor: Any) -> Any:
    """A tensor's values in memory of other strides, which may have gaps or overlap."""
    if tensor.stride() == tuple(stride):
        return tensor
    made = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    once = tuple([slice(0, 1) if s == 0 and n > 1 else slice(None)
                  for n, s in zip(size, stride, strict=True)])  # fmt: skip
    made[once].copy_(tensor[once])
    return made


def _viewing(call: Call, views: dict[int, list[View]]) -> Call:
    """A call whose results are seen as views of what it gives."""

    def viewed(args: Sequence[Any]) -> list[Any]:
        found = call(args)
        with torch.no_grad():
            for place, chain in views.items():
                for view in chain:
                    found[place] = view(found[place])
        return found

    return viewed


def _by_dtype(
    copies: Sequence[tuple[int, int]], dtypes: Sequence[Any]
) -> list[tuple[list[int], list[int]]]:
    """Copies of one dtype together: torch has one call, and on a GPU few launches, for many."""
    found: dict[Any, tuple[list[int], list[int]]] = {}
    for (to, source), dtype in zip(copies, dtypes, strict=True):
        tos, sources = found.setdefault(dtype, ([], []))
        tos.append(to)
        sources.append(source)
    return list(found.values())


def _takes(
    results: Sequence[Any], made: dict[fx.Node, int], number: dict[fx.Node, int]
) -> list[tuple[bool, Any]] | None:
    """Of each result, whether a segment made it, and its place there or among the arguments."""
    found: list[tuple[bool, Any]] = []
    for result in results:
        if not isinstance(result, fx.Node):
            found.append((False, None))
        elif result in made:
            found.append((True, made[result]))
        elif result in number:
            found.append((False, number[result]))
        else:
            return None
    return found


def _tell(eager: dict[fx.Node, str]) -> None:
    """Count the operators that torch runs; one that computes no tensor is counted in silence."""
    for node, why in eager.items():
        if isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
            title = title_of(node.target)
            silent = title in HOST or not isinstance(
                node.meta.get("val"), torch.Tensor | list | tuple
            )
            REPORT.left(title, why, silent)


def _is_backward(placeholders: Sequence[fx.Node]) -> bool:
    """True if a graph takes gradients of results."""
    return any([n.name.startswith("tangents") for n in placeholders])


def symbols_of(placeholders: Sequence[fx.Node]) -> dict[Any, tuple[int, int | None]]:
    """Where a call has the value of each symbol: an argument, or, of a tensor that stands for the
    views of it that are arguments (a synthetic base), an axis of an argument."""
    known = [n.meta.get("val") for n in placeholders]
    found: dict[Any, tuple[int, int | None]] = {
        val.node.expr: (i, None) for i, val in enumerate(known) if isinstance(val, torch.SymInt)
    }
    for i, val in enumerate(known):
        for d, n in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
            if isinstance(n, torch.SymInt) and n.node.expr.is_symbol:
                found.setdefault(n.node.expr, (i, d))
    return found


def _is_copy_back(node: fx.Node) -> bool:
    """True if a node writes a new value into an input of the graph."""
    return node.target is torch.ops.aten.copy_.default


def _attribute(module: Any, node: fx.Node) -> Any:
    found = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found
