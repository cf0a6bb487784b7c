"""A place in AOTAutograd's cache: a later process neither traces nor differentiates a graph again.

In: the compilers that AOTAutograd calls, and the graph that dynamo captured. Out: compilers whose
results torch keeps in its own cache (inductor's as well), and finds again by dynamo's graph, its
inputs, torch's settings, the digest of our sources and the user's lines. torch's own key names
inductor, Triton and its C++ compiler too, and takes longer than a graph to trace: ours leaves them
out. What is kept of ours is text: the ATen graph as JSON, with sizes and strides of every
value. It is lowered again, so options are those of the process that reads it, and its plan comes
from our own store. A graph that the text has no words for (symbols, constants) is not kept.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx

from ..config import config, current
from ..core.digest import digest_of
from ..runtime.cache.disk import store_for
from ..runtime.cache.plan_cache import build_of
from .graph import Graph
from .home import offset_of, place_of, stand_in
from .lower import line_of

try:
    from torch._functorch import config as settings
    from torch._functorch._aot_autograd import autograd_cache
    from torch._functorch._aot_autograd.autograd_cache import (
        AOTAutogradCacheDetails,
        AOTAutogradCachePickler,
        BundledAOTAutogradResult,
        BypassAOTAutogradCache,
        autograd_cache_key,
        check_cacheable,
        sanitize_gm_for_cache,
    )
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.codecache import FxGraphHashDetails
    from torch._inductor.output_code import OutputCode

    WITHOUT = ""
except ImportError as problem:  # these names are torch's own business: with others nothing is kept
    WITHOUT = str(problem)
    BypassAOTAutogradCache, OutputCode = Exception, object
    FxGraphHashDetails = type("FxGraphHashDetails", (), {})
    AOTAutogradCacheDetails = type("AOTAutogradCacheDetails", (FxGraphHashDetails,), {})

SETTINGS = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
_KINDS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


_now: ContextVar[tuple[str, dict[str, Any]] | None] = ContextVar("build, options", default=None)


class NotKept(BypassAOTAutogradCache):  # type: ignore[misc]  # torch's has no types
    """What the text of a graph has no words for."""


class Kept(OutputCode):  # type: ignore[misc]  # nor has this
    """A compiled graph as torch's cache keeps it: as text, until it is called for."""

    def __init__(
        self, graph: fx.Graph | None, text: str, call: Any, options: dict[str, Any], build: str
    ) -> None:
        super().__init__()
        self.graph, self.text, self.call = graph, text, call
        self.options, self.build = options, build
        self._boxed_call = True  # of the object: `torch._dynamo.disable` copies those

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.call(inputs)

    def prepare_for_serialization(self) -> None:
        """Nothing: the copy that torch asks this of has text already."""

    def __reduce__(self) -> Any:
        text = self.text if self.graph is None else written(self.graph)
        return Kept, (None, text, None, self.options, self.build)

    def post_compile(self, *_: Any) -> None:
        """Lower a graph that was read: under the options of whoever asked for it by our key, or,
        where torch read it with dynamo's own entry (`caching_precompile`), under those kept."""
        if self.call is None:
            now = _now.get()
            if now is None and self.build != is_kept(self.options):
                raise RuntimeError(
                    "other sources of fulgurite kept this graph"
                )  # torch traces anew
            self.call = Graph(read(self.text), now[1] if now else self.options).callable()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """No kernel of ours is in torch's bundles."""


def is_kept(options: dict[str, Any]) -> str | None:
    """The digest of our sources if graphs are kept in torch's cache; None if they are not."""
    if not _join():
        return None
    with config(**{name: x for name, x in options.items() if name != "eager_random"}):
        store = store_for(current())
    return build_of(store, whole=True) if store is not None else None


@functools.cache
def _join() -> bool:
    """Make our key known to torch's cache; False if this torch's holds inductor's results only."""
    if (
        WITHOUT
        or not all([hasattr(settings, name) for name in SETTINGS])
        or not issubclass(AOTAutogradCacheDetails, FxGraphHashDetails)
        or not BundledAOTAutogradResult
    ):
        return False
    theirs = autograd_cache_key

    def key(module: Any, inputs: Sequence[Any], *rest: Any) -> tuple[str, list[str]]:
        if _now.get() is None:
            found: tuple[str, list[str]] = theirs(module, inputs, *rest)
            return found
        return key_of(module, inputs, rest[0]), []

    autograd_cache.autograd_cache_key = key
    return True


class Part(FxGraphHashDetails):  # type: ignore[misc]  # nor these
    """In place of what inductor's code depends on: graph, inputs, torch's and our sources."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], *_: Any) -> None:
        self.gm, self.example_inputs = gm, example_inputs
        now = _now.get()
        assert now is not None, "this key is asked for while a graph of ours is compiled"
        self.versions = (torch.__version__, torch.version.git_version, now[0])
        self.autocast = {  # in torch 2.11's own part it is one bit
            device: torch.get_autocast_dtype(device)
            for device in torch._C._autocast_supported_devices()
            if torch.is_autocast_enabled(device)
        }
        self.default_dtype = torch.get_default_dtype()
        self.shared = shared_memory(example_inputs)


class Details(AOTAutogradCacheDetails, Part):  # type: ignore[misc]
    """What a graph of AOTAutograd depends on: torch's own details call the next class for the rest,
    which is ours here."""

    def get_triton_source_codes_from_gm(self, gm: fx.GraphModule) -> list[str]:
        """No kernel of Triton is in a graph that is kept."""
        return []


def shared_memory(inputs: Sequence[Any]) -> list[tuple[int, int, int]]:
    """The inputs that are views of the memory of an earlier one: their place, its, and the offset
    between them. torch's details of a tensor leave offsets out, and writes to one reach others."""
    first: dict[int, int] = {}
    found = []
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            base = first.setdefault(x.untyped_storage()._cdata, i)
            if base != i:
                found.append((i, base, x.storage_offset() - inputs[base].storage_offset()))
    return found


def check_operators(gm: fx.GraphModule) -> None:
    """Refuse a graph with operators of the user's: a key has their names, and what they do, above
    all their gradients, may be another function in the next process."""
    for part in gm.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            target: Any = node.target
            if isinstance(target, torch._ops.OpOverload):
                name = target._schema.name
            elif isinstance(target, torch._ops.OpOverloadPacket):
                name = target._qualified_op_name
            else:
                continue
            if name.partition("::")[0] not in ("aten", "prims"):
                raise NotKept(f"{name} is an operator that is not torch's own")


def key_of(module: Any, inputs: Sequence[Any], aot_config: Any) -> str:
    """The key of a graph that dynamo captured."""
    gm = getattr(module, "gm", module)
    with sanitize_gm_for_cache(gm):
        check_cacheable(gm)
        check_operators(gm)
        details = Details(gm, inputs, aot_config, {})
        if not hasattr(details, "versions"):
            raise NotKept("torch's details of a graph have no place for ours")
        return f"f{AOTAutogradCachePickler(gm).get_hash(details)}"


def has_floats(module: fx.GraphModule) -> bool:
    """True if a number of the user's is a symbol: torch's cache keeps guards of sizes alone, so a
    graph into which such a number was written would be found again for another one."""
    values = [node.meta.get("example_value") for node in module.graph.nodes]
    return any([isinstance(value, torch.SymFloat) for value in values])


@contextmanager
def keeping(
    module: fx.GraphModule, options: dict[str, Any]
) -> Iterator[Callable[[Callable[..., Any]], Any]]:
    """What makes a compiler one whose graphs torch's cache keeps, while a block runs."""
    build = is_kept(options)
    if build is None or not isinstance(module, fx.GraphModule) or has_floats(module):
        yield lambda compiler: compiler
        return
    lines = [str(node.meta.get("stack_trace")) for node in module.graph.nodes]
    token = _now.set((digest_of("\n".join([build, *lines])), options))
    try:
        with settings.patch(SETTINGS):
            yield lambda compiler: SerializableAOTDispatchCompiler(OutputCode, compiler)
    finally:
        _now.reset(token)


# --- text -----------------------------------------------------------------------------------------


def written(graph: fx.Graph) -> str:
    """A graph of ATen operators as JSON: a row for each node."""
    number: dict[fx.Node, int] = {}
    rows = []
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise NotKept(f"a node is {node.op}")
        target = _target(node) if node.op == "call_function" else str(node.target)
        line = line_of(node)
        where = [line.file, line.line, ".".join(line.scopes)] if line is not None else None
        args, named = _word(node.args, number), _word(dict(node.kwargs), number)
        val = _known(node.meta.get("val"))
        rows.append([node.op, node.name, target, args, named, val, where, node.meta.get("seen")])
        number[node] = len(number)
    return json.dumps(rows)


def _target(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    if not isinstance(node.target, torch._ops.OpOverload):
        raise NotKept(f"{node.target} is no operator")
    return str(node.target)


def _word(x: Any, number: dict[fx.Node, int]) -> Any:
    """An argument as JSON; what JSON has not is a dictionary with its kind."""
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, fx.Node):
        return {"node": number[x]}
    if isinstance(x, list | tuple):
        return [_word(each, number) for each in x]
    if isinstance(x, dict):
        return {"dict": {name: _word(each, number) for name, each in x.items()}}
    if isinstance(x, complex):
        return {"complex": [x.real, x.imag]}
    if isinstance(x, torch.device):
        return {"device": str(x)}
    if type(x) in _KINDS:
        return {_KINDS[type(x)]: str(x).removeprefix("torch.")}
    raise NotKept(f"an argument is {type(x).__name__}")


def _known(val: Any) -> Any:
    """What torch knows of a value, as JSON."""
    if isinstance(val, list | tuple):
        return [_known(each) for each in val]
    if not isinstance(val, torch.Tensor):
        return _word(val, {})
    sizes = [*val.shape, *val.stride(), offset_of(val)]
    if not all([isinstance(n, int) for n in sizes]):
        raise NotKept("a size is a symbol")
    if val.layout is not torch.strided or val.is_neg() or val.is_conj():
        raise NotKept(f"a tensor is {val.layout} on {val.device}")
    dtype, place = str(val.dtype).removeprefix("torch."), str(place_of(val))
    return {"tensor": [dtype, list(val.shape), list(val.stride()), place, offset_of(val)]}


def read(text: str) -> fx.Graph:
    """The graph of a text."""
    graph, nodes = fx.Graph(), list[fx.Node]()
    for op, name, target, args, named, val, where, seen in json.loads(text):
        found = _function(target) if op == "call_function" else target
        node = graph.create_node(op, found, tuple(_read(args, nodes)), _read(named, nodes), name)
        node.meta["val"] = _read(val, nodes)
        if seen is not None:
            node.meta["seen"] = seen
        if where is not None:
            node.meta["stack_trace"] = f'File "{where[0]}", line {where[1]}'
            node.meta["nn_module_stack"] = {"": (where[2],)}
        nodes.append(node)
    return graph


def _function(target: str) -> Any:
    if target == "getitem":
        return operator.getitem
    space, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload)


def _read(x: Any, nodes: Sequence[fx.Node]) -> Any:
    if isinstance(x, list):
        return [_read(each, nodes) for each in x]
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    if kind == "node":
        return nodes[value]
    if kind == "dict":
        return {name: _read(each, nodes) for name, each in value.items()}
    if kind == "tensor":
        dtype, size, stride, place, offset = value
        return stand_in(size, stride, getattr(torch, dtype), torch.device(place), offset)
    if kind == "complex":
        return complex(*value)
    return torch.device(value) if kind == "device" else getattr(torch, value)
