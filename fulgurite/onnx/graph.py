"""A graph of ONNX nodes into lazy tensors, node by node.

In: a parsed model and values for its inputs. Out: values for its outputs; nothing has run, except
where an operator needed numbers that only computing could give (then `dynamic` is set). Functions
of the model are expanded where they are used, subgraphs see the names around them. Which inputs'
numbers were looked at is in `consulted`. The number of nodes is bounded (`MOST_NODES`), so that
functions which call each other cannot explode, and whatever goes wrong names the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache, cached_property, partial
from math import inf, isnan, nan
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.node import Node as Size
from ..core.op import Array
from ..core.origin import NamedLine, at_line
from ..errors import FulguriteError
from ..runtime.realize import value_node
from ..tensor import Tensor
from .errors import ModelError, NeedsValueError, UnsupportedError
from .ops import ANY_SIZE, entry_of, find
from .order import in_order
from .proto import Attribute, Function, Graph, Model, Node, TensorData
from .table import FOLDS, MICROSOFT, NEWEST, Call, Fold
from .types import STRING, Kind
from .values import NONE, Dequantised, Nothing, Value, is_symbolic
from .weights import Files, array_of, dense

MOST_NODES = 2_000_000  # built for one call of a model, all loops and functions expanded
DEEPEST = 100  # functions and graphs inside each other
FOLDED = 4096  # most elements of a value that is worked out on the host
OLDEST = 1
EACH = {  # operators of elements, whatever their order
    "Add", "Sub", "Mul", "Div", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Gelu",
    "HardSigmoid", "HardSwish", "Mish", "Softplus", "Identity", "Max", "Min", "PRelu",
    "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu",
}  # fmt: skip
MOVES = {  # operators that give elements of their first input as they are
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Expand", "Gather",
    "Identity", "MaxPool",
}  # fmt: skip
_USER_MISTAKES = (
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError,
    MemoryError, RecursionError,
)  # fmt: skip


class Scope:
    """Names and values; a subgraph's scope sees those around it."""

    __slots__ = ("given", "outer", "values", "weights")

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.values: dict[str, Any] = {}
        self.given: Mapping[str, Attribute] = {}  # attributes of the function it is in
        if outer is not None:
            self.given = outer.given
        self.weights: Mapping[str, Callable[[], Value]] = {}

    def find(self, name: str) -> Any:
        """The value of a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if name in scope.weights:
                return scope.weights[name]()
            scope = scope.outer
        raise ModelError(
            f"there is no value {name!r}", "nodes must stand after those that make their inputs"
        )


class Weights:
    """The initializers of one graph, each made a tensor when it is first read."""

    def __init__(self, graph: Graph, files: Files) -> None:
        self.made: dict[str, Value] = {}
        self.makers: dict[str, Callable[[], Value]] = {}
        for tensor in graph.initializer:
            self.makers[tensor.name] = lambda t=tensor: self._get(t.name, array_of, t, files)  # type: ignore[misc]
        for sparse in graph.sparse_initializer:
            name = sparse.values.name if sparse.values is not None else ""
            self.makers[name] = lambda n=name, t=sparse: self._get(n, dense, t, files)  # type: ignore[misc]

    def _get(self, name: str, read: Callable[..., tuple[Array, Kind]], *what: Any) -> Value:
        if name not in self.made:
            array, kind = read(*what)
            self.made[name] = Value(None, kind, array, constant=True)
        return self.made[name]

    def forget(self, read: Set[Size]) -> None:
        """Let go of copies that no plan reads: others were computed from them once."""
        for value in self.made.values():
            if value._tensor is not None and value_node(value._tensor.node) not in read:
                value._tensor = None


class Program:
    """A parsed model, checked and indexed: what all builds of it share."""

    def __init__(self, model: Model, files: Files, name: str = "") -> None:
        assert model.graph is not None
        self.model, self.graph, self.files = model, model.graph, files
        self.name = name or "model.onnx"  # of the file
        self.numbers = {id(node): i for i, node in enumerate(model.graph.node, start=1)}
        model.graph.node = in_order(model.graph)
        self.lines: dict[int, NamedLine] = {}  # by the identity of nodes
        self.opsets = versions(model.opset_import)
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.weights: dict[int, Weights] = {}
        self.folded: dict[int, Value] = {}

    @cached_property
    def is_for_any_size(self) -> bool:
        """True if its kernels are as good for sizes that vary: it has no windows, no loops."""
        if self.functions:
            return False
        for node in self.graph.node:
            entry = entry_of(_domain(node.domain), node.op_type)
            if entry is None or entry.build.__module__.rpartition(".")[2] not in ANY_SIZE:
                return False
        return True

    def line(self, node: Node) -> NamedLine:
        """What stands for the line of a node: its number, and what it is.

        Numbers are places in the model's graph; those of functions and inner graphs follow.
        """
        found = self.lines.get(id(node))
        if found is None:
            number = self.numbers.setdefault(id(node), len(self.numbers) + 1)
            pieces = [piece for piece in node.name.split("/") if piece]
            name = pieces[-1] if pieces else ""
            text = name if name.startswith(node.op_type) else f"{node.op_type} {name}".strip()
            scopes = tuple(pieces[:-1] or pieces)
            found = self.lines[id(node)] = NamedLine(self.name, number, scopes, text)
        return found

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """The nodes that read each value."""
        found: dict[str, list[Node]] = {}
        for node in self.graph.node:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    def feeds_depthwise(self, node: Node) -> bool:
        """True if a depthwise convolution reads a node's result, or what is computed from it at the
        same places."""
        left, seen = [node], {id(node)}
        while left:
            for reader in [r for name in left.pop().output for r in self.readers.get(name, ())]:
                ints = {a.name: (a.i, tuple(a.ints)) for a in reader.attribute}
                if reader.op_type == "Conv" and ints.get("group", (1, ()))[0] > 1:
                    return True
                alone = set(ints.get("kernel_shape", (0, (0,)))[1]) == {1}
                same = reader.op_type in EACH or (reader.op_type == "Conv" and alone)
                if same and id(reader) not in seen:
                    seen.add(id(reader))
                    left.append(reader)
        return False

    def weights_of(self, graph: Graph) -> Weights:
        """The weights of a graph or subgraph."""
        key = id(graph)
        if key not in self.weights:
            self.weights[key] = Weights(graph, self.files)
        return self.weights[key]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def versions(imports: Sequence[Any]) -> dict[str, int]:
    """The version of each domain, which must be one that is built."""
    found = {_domain(o.domain): o.version for o in imports}
    for domain, version in found.items():
        newest = NEWEST.get(domain)
        if newest is not None and not OLDEST <= version <= newest:
            raise UnsupportedError(
                f"opset {version} of {domain or 'ai.onnx'} is not built, only up to {newest}",
                "convert the model with onnx.version_converter",
            )
    return found


class Build:
    """One pass over a model for some inputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.consulted: set[str] = set()
        self.floats: frozenset[str] = NONE  # inputs that are no counts, places or truths
        self.dynamic = False  # a tensor's numbers were needed: the graph holds for them only
        self.reading: set[int] = set()  # the nodes of the model's own graph that needed them
        self.tracing = 0  # inside the body of a compiled loop
        self.nodes = self.depth = 0
        self.opsets = program.opsets
        self.hosts: set[str] = set()  # operators whose work was done by Python
        self.kept: list[Value] = []  # constants worth computing once

    def keep(self, *tensors: Tensor) -> None:
        """Values that follow from weights alone: computed once, before the first run."""
        self.kept += [Value(tensor) for tensor in tensors]

    def uniform(self, shape: Any, seed: int | None) -> Tensor:
        """Random numbers from 0 to below 1."""
        return self._drawn(fg.random.uniform, shape, seed)

    def normal(self, shape: Any, seed: int | None) -> Tensor:
        """Random numbers of the normal distribution."""
        return self._drawn(fg.random.normal, shape, seed)

    def _drawn(self, draw: Callable[..., Tensor], shape: Any, seed: int | None) -> Tensor:
        if seed is not None:
            return draw(shape, key=fg.random.key(seed))
        self.dynamic = True  # a plan would repeat itself
        return draw(shape)

    # --- numbers on the host ---------------------------------------------------------------------

    def array(self, stored: TensorData) -> tuple[Array, Kind]:
        """A stored tensor."""
        return array_of(stored, self.program.files)

    def peek(self, value: Value) -> Array | None:
        """A value's numbers if they are known without computing a tensor.

        Numbers that follow from float inputs are not: they differ at every call.
        """
        return None if value.sources & self.floats else self._known(value)

    def _known(self, value: Value) -> Array | None:
        found = value.known()
        if found is not None:
            self.consulted |= value.sources
        return found

    def read(self, value: Value) -> Array:
        """A value's numbers; a tensor is computed for them if there is no other way."""
        found = self._known(value)
        if found is not None:
            return found
        if self.tracing:
            raise NeedsValueError(
                "a number is needed inside a compiled loop", "run it step by step"
            )
        if value.constant:  # the same at every call
            value.know(value.tensor.numpy())
            return self.read(value)
        self.dynamic = True
        return value.tensor.numpy()

    def fixed(self, array: Array) -> Array:
        """Numbers none of which is a variable size."""
        if is_symbolic(array):
            raise NeedsValueError("a variable size is needed as a number", "fix the dimension")
        return array

    # --- graphs ----------------------------------------------------------------------------------

    def graph(self, graph: Graph, inputs: Sequence[Any], outer: Scope | None = None) -> list[Any]:
        """The outputs of a graph for some inputs, in the graph's own order."""
        names = [info.name for info in graph.input]
        if outer is None:  # weights may be listed among the inputs of an old model
            names = names[: len(inputs)]
        if len(names) != len(inputs):
            raise ModelError(
                f"a graph of {len(names)} inputs got {len(inputs)}", "the model is not valid ONNX"
            )
        given = zip(names, inputs, strict=True)
        scope = self.scope(graph, {n: value for n, value in given if value is not None}, outer)
        with self.deeper():
            self.run(graph.node, scope)
        return self.outputs(graph, scope)

    def scope(self, graph: Graph, values: dict[str, Any], outer: Scope | None = None) -> Scope:
        """The names of a graph: its weights, and some values."""
        found = Scope(outer)
        found.weights = self.program.weights_of(graph).makers
        found.values = values
        return found

    def outputs(self, graph: Graph, scope: Scope) -> list[Any]:
        """The outputs of a graph whose nodes have run."""
        found = [scope.find(info.name) for info in graph.output]
        return [Value(v.tensor) if isinstance(v, Dequantised) else v for v in found]

    @contextmanager
    def deeper(self) -> Any:
        """One level more of functions or graphs."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise ModelError(
                f"functions or graphs nest more than {DEEPEST} deep", "does one call itself?"
            )
        try:
            yield
        finally:
            self.depth -= 1

    def run(self, nodes: Sequence[Node], scope: Scope) -> None:
        """Every node in order."""
        for number, node in enumerate(nodes):
            self.nodes += 1
            if self.nodes > MOST_NODES:
                raise ModelError(f"more than {MOST_NODES} nodes", "do functions call each other?")
            try:
                with at_line(self.program.line(node)), self.watched(number):
                    self._node(node, scope)
            except NeedsValueError:
                raise
            except UnsupportedError as problem:
                raise UnsupportedError(_named(node, problem.what), problem.hint) from problem
            except FulguriteError as problem:
                if getattr(problem, "node_named", False):
                    raise
                named = ModelError(_named(node, problem.what), problem.hint)
                named.node_named = True  # type: ignore[attr-defined]
                raise named from problem
            except _USER_MISTAKES as problem:
                what = f"{type(problem).__name__}: {problem}"[:300]
                raise ModelError(
                    _named(node, what), "the model is not valid ONNX, or its inputs do not fit it"
                ) from problem

    @contextmanager
    def watched(self, number: int) -> Iterator[None]:
        """Note whether a node of the model's own graph needs the numbers of a tensor."""
        before, self.dynamic = self.dynamic, False
        yield
        if self.dynamic and self.depth == 1:
            self.reading.add(number)
        self.dynamic |= before

    def _node(self, node: Node, scope: Scope) -> None:
        inputs = [scope.find(name) if name else None for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = _attributes(node, scope)
        function = self.program.functions.get((_domain(node.domain), node.op_type, node.overload))
        if function is not None:
            found = self._function(function, inputs, attributes)
        else:
            found = self._operator(node, inputs, attributes, scope)
        for name, value in zip(node.output, found, strict=False):
            if name:
                scope.values[name] = value
        if any(node.output[len(found) :]):
            raise ModelError(
                f"it has {len(found)} outputs, {len(node.output)} are asked", "the model is invalid"
            )

    def _operator(
        self, node: Node, inputs: list[Any], attributes: dict[str, Attribute], scope: Scope
    ) -> list[Any]:
        """An operator of the table; a standard one may be called by Microsoft's domain."""
        domain = _domain(node.domain)
        if domain == MICROSOFT and entry_of(domain, node.op_type) is None:
            domain = "" if entry_of("", node.op_type) is not None else domain
        version = self.opsets.get(domain, 1 if domain else NEWEST[""])
        entry = find(domain, node.op_type, version)
        call = Call(self, node, inputs, version, attributes, scope)
        if entry.keeps and any(isinstance(v, Value) and v.is_text for v in inputs):
            made = self._moved_texts(call, domain)
        else:
            made = _in_order(call, domain) or _moved_whole(call, domain) or entry.build(call)
        found = self._results(call, made, entry.keeps)
        if not domain and node.op_type in ("Relu", "Clip"):
            _keep_sums(call, found[0])
        if entry.host:
            self.hosts.add(node.op_type)
        _fold_later(call, found, FOLDS.get((domain, node.op_type)))
        return found

    def _moved_texts(self, call: Call, domain: str) -> Any:
        """Strings stay on the host: what moves them is the operator's host form."""
        work = FOLDS.get((domain, call.node.op_type))
        if work is None:
            raise UnsupportedError("strings here are not built", "use numbers")
        self.hosts.add("strings")
        arrays = [None if v is None else self.read(v) for v in call.inputs]
        found = work(call, *arrays)
        several = isinstance(found, tuple | list)
        made = [Value(None, STRING, a.astype(object)) for a in (found if several else [found])]
        return tuple(made) if several else made[0]

    def _function(
        self, function: Function, inputs: Sequence[Any], attributes: dict[str, Attribute]
    ) -> list[Any]:
        """A function of the model, expanded."""
        scope = Scope()
        names = list(function.input)
        if len(inputs) > len(names):
            raise ModelError(f"it takes {len(names)} inputs and got {len(inputs)}", "")
        scope.values = dict.fromkeys(names)  # what is left out reads as left out, in subgraphs too
        scope.values.update(zip(names, inputs, strict=False))
        scope.given = {a.name: a for a in function.attribute_proto} | attributes
        before, self.opsets = self.opsets, self.opsets | versions(function.opset_import)
        try:
            with self.deeper():
                self.run(function.node, scope)
        finally:
            self.opsets = before
        return [scope.find(name) for name in function.output]

    def _results(self, call: Call, found: Any, keeps: bool) -> list[Any]:
        """What a function of the table gave, as values."""
        inputs = [v for v in call.inputs if v is not None]
        constants = [v for v in inputs if isinstance(v, Value) and v.constant]
        made = [_result(call, r, keeps) for r in (found if isinstance(found, tuple) else (found,))]
        if self.tracing:
            return made
        if len(constants) < len(inputs):
            self.kept += constants
            return made
        for value in made:
            if isinstance(value, Value):
                value.constant = True
        return made


def _attributes(node: Node, scope: Scope) -> dict[str, Attribute]:
    """The attributes of a node by name; those that refer to its function's are looked up there."""
    found = {
        a.name: scope.given.get(a.ref_attr_name) if a.ref_attr_name else a for a in node.attribute
    }
    return {name: attribute for name, attribute in found.items() if attribute is not None}


def _result(call: Call, result: Any, keeps: bool) -> Any:
    """One result of an operator as a value."""
    if isinstance(result, Tensor):
        kind = call.kind(0) if keeps and not call.kind(0).plain else None
        return Value(result, kind)
    if isinstance(result, np.ndarray):
        return Value(None, None, result)
    if result is not None and not isinstance(result, Value | list | Nothing):
        raise TypeError(f"{call.node.op_type} gave {type(result).__name__}")
    return result


def _fold_later(call: Call, found: list[Any], work: Fold | None) -> None:
    """Let small results be worked out on the host, should somebody ask."""
    given = [v for v in call.inputs if v is not None]
    if work is None or not all(isinstance(v, Value) and v.is_foldable for v in given):
        return
    sources = NONE.union(*[v.sources for v in given])
    results = cache(partial(_folded, call, work))

    def at(place: int) -> Array | None:
        found = results()
        return found[place] if isinstance(found, tuple | list) else found  # type: ignore[no-any-return]

    for place, value in enumerate(found):
        if isinstance(value, Value) and not value.is_foldable and _is_small(value):
            value.fold(partial(at, place), sources)


def _folded(call: Call, work: Fold) -> Any:
    """The results of an operator on the host; None where an input is not known after all."""
    arrays = []
    for value in call.inputs:
        array = None if value is None else value.known()
        if array is None and value is not None:
            return None
        arrays.append(array)
    return work(call, *arrays)


def _in_order(call: Call, domain: str) -> Value | None:
    """Elements with their neighbours in memory, where channels are at the end there already."""
    found = [v for v in call.inputs if v is not None]
    if call.node.op_type not in EACH or not all(isinstance(v, Value) for v in found):
        return None
    rank = {len(v.shape) for v in found if v.last is not None}
    if len(rank) != 1 or any(len(v.shape) > max(rank) for v in found):
        return None
    inputs = [None if v is None else _channels_last(v, max(rank)) for v in call.inputs]
    work = call.with_inputs(*inputs)
    made = find(domain, call.node.op_type, call.version).build(work)
    if isinstance(made, Tensor):
        return Value.channels_last(made)
    return Value.channels_last(made.tensor, made.kind) if isinstance(made, Value) else None


def _keep_sums(call: Call, made: Value) -> None:
    """Real numbers that remember the sums they are from do so within known bounds."""
    sums = call.value(0).sums
    if sums is None:
        return
    low, high = (0.0, inf) if call.node.op_type == "Relu" else _bounds(call)
    if not (isnan(low) or isnan(high)):
        made.sums = sums.within(low, high)


def _bounds(call: Call) -> tuple[float, float]:
    """The bounds of a Clip; NaN where they are not known."""
    if call.version < 11:
        return call.float("min", -inf), call.float("max", inf)
    found = []
    for place, none in ((1, -inf), (2, inf)):
        value = call.value(place) if call.has(place) else None
        known = None if value is None or value.sources else value.known()
        found.append(none if value is None else nan if known is None else float(known.reshape(())))
    return found[0], found[1]


def _moved_whole(call: Call, domain: str) -> Any:
    """What moves quantised elements moves their whole numbers: they are the fewest bytes."""
    first = call.inputs[0] if call.inputs else None
    if domain or not isinstance(first, Dequantised) or not first.is_uniform:
        return None
    if call.node.op_type not in MOVES and not _picks(call):
        return None
    found = find(domain, call.node.op_type, call.version)
    made = found.build(call.with_inputs(first.whole, *call.inputs[1:]))
    several = made if isinstance(made, tuple) else (made,)
    moved = [None if v is None else first.moved(_whole(v, first)) for v in several]
    return tuple(moved) if isinstance(made, tuple) else moved[0]


def _picks(call: Call) -> bool:
    """True if a picture in another size has elements of the old one alone."""
    beyond = call.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    nearest = call.text("mode", "nearest") == "nearest"
    return call.node.op_type in ("Resize", "Upsample") and nearest and not beyond


def _whole(made: Tensor | Value, like: Dequantised) -> Value:
    """What an operator gave, as whole numbers of the kind they came in."""
    return made if isinstance(made, Value) else Value(made, like.whole.kind)


def _channels_last(value: Value, rank: int) -> Value:
    """A value with axis 1 at the end; single numbers stay as they are."""
    if value.last is not None:
        return Value(value.last)
    if all(n == 1 for n in value.shape):
        return value
    whole = fg.reshape(value.tensor, (*[1] * (rank - len(value.shape)), *value.shape))
    return Value(fg.moveaxis(whole, 1, -1), value.kind)


def _is_small(value: Value) -> bool:
    if value.kind is STRING:
        return True
    count = 1
    for n in value.shape:
        if isinstance(n, Size):
            return False
        count *= n
    return count <= FOLDED


def _named(node: Node, what: str) -> str:
    name = f" {node.name!r}" if node.name else ""
    return f"{node.op_type or 'a node without operator'}{name}: {what}"
