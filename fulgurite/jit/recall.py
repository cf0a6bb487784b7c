"""Captures kept on disk: a process that finds its own there neither runs the function nor sees it.

In: a call that is about to be captured, of a function of this package. Out: what its capture came
to in an earlier process, or None. An entry is named by the digest of all that a capture depends on:
the checks that the survey wrote, with every constant in them (a type, a function or code by its
name), the tensors of the call, which of their sizes vary, the options, the device, and every source
of this package. So it is found where the checks of that capture would hold. Functions of the user
are not kept: nothing names the code that they call. The graph itself is not kept either: where it
is wanted after all (sizes that no plan on disk is for, an index out of bounds), the entry is spent,
and the function is captured.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.digest import digest_of
from ..core.dtype import DType, dtype_of
from ..core.ops.leaf import BUFFER
from ..core.origin import capture as origin_here
from ..core.symbolic.sym import Sym
from ..errors import PACKAGE, FulguriteError
from ..graph.ir.cache_key import Normal
from ..runtime.cache.disk import store_for
from ..runtime.cache.plan_cache import build_of
from ..runtime.device import get_device
from ..runtime.plan_key import has_patterns, tuned
from ..runtime.realize import memory_node, value_node
from ..runtime.sizes.automatic import SizedGraph
from ..runtime.sizes.sized_io import kept_guards, kept_trace, key_from
from ..runtime.sizes.sized_store import Line, SizedStore
from ..runtime.sizes.specialize import SizedPlan, acceptor, size_key
from ..tensor import Tensor
from .introspection import place_of_function
from .replay import Expected, GuardFailure, Place, Replay

if TYPE_CHECKING:
    from ..config import Options
    from ..runtime.cache.disk import Store
    from .capture import Capture

_FORMAT = 1
MOST_BYTES = 1 << 24  # of constants beside an entry
ALIGN = 64
_DAMAGES = (FulguriteError, ValueError, KeyError, TypeError, IndexError, AttributeError)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_IS_MADE = 1 << 9  # the flag of types that Python code makes
_KINDS = frozenset({"tensor", "array", "constant"})


class Unnamed(Exception):
    """Something that has no name which means the same in another process."""


# --- the key -------------------------------------------------------------------------------------


class Recall(NamedTuple):
    """Where the capture of a call is kept."""

    store: Store
    key: str
    checks: int  # how many there were before the function ran


def recall_of(work: Capture) -> Recall | None:
    """Where the capture of a call is kept; None where it is not: it depends on other things."""
    options, sizes, survey = work.options, work.sizes, work.survey
    if sizes is None or not isinstance(work.function, types.FunctionType):
        return None
    if place_of_function(work.function) != "ours" or work.numbers.met or survey.installed:
        return None
    store = None if _is_looked_at(options) else store_for(options)
    machine = get_device(work.device).plan_key()
    build = None if store is None or machine is None else build_of(store, whole=True)
    if store is None or build is None:
        return None
    try:
        tensors = [_tensor_key(work, number) for number in range(len(survey.tensors))]
        known = [(name, _named(thing)) for name, thing in survey.known.items()]
    except Unnamed:
        return None
    vary = sizes.fit.places, sizes.fit.expressions, sizes.fit.variables
    versions = _FORMAT, build, np.__version__, sys.version
    chosen = options.device, options.tier, options.autocast, options.key, tuned(options)
    about = (*versions, work.device, machine, work.recording, *chosen, tensors, vary, known)
    text = "\n".join([repr(about), *survey.lines])
    return Recall(store, digest_of(text), len(survey.lines))


def _is_looked_at(options: Options) -> bool:
    """True if graphs are checked, watched or patched: they are to be there."""
    watched = options.verify or options.check_nan or options.poison
    return watched or not options.disk_cache or has_patterns(options)


def _tensor_key(work: Capture, number: int) -> tuple[Any, ...]:
    """What is said of a tensor: sizes that vary are left out."""
    expected = _expected(work, number)
    shape = [None if d in expected.free else n for d, n in enumerate(expected.shape)]
    return expected.path, expected.dtype.name, tuple(shape)


def _expected(work: Capture, number: int) -> Expected:
    """What a tensor of the call must be in later ones: plain memory, without a gradient."""
    _, tensor, path = work.survey.tensors[number]
    assert work.sizes is not None
    base = value_node(tensor.entry.node)
    if type(tensor) is not Tensor or base is None or base is not memory_node(base):
        raise Unnamed(path)
    if tensor.entry.node is not base:
        raise Unnamed(path)
    shape: Any = base.shape
    return Expected(
        Tensor, shape, base.dtype, work.device, False, path, None, work.sizes.free[number]
    )


def _named(thing: Any) -> Any:
    """A constant of the checks as data; raises `Unnamed` if that would not be enough."""
    kind = type(thing)
    if kind in _PLAIN:
        return kind.__name__, repr(thing)
    if kind in (tuple, list):
        return kind.__name__, [_named(part) for part in thing]
    if isinstance(thing, np.dtype):
        return "dtype", thing.str
    if isinstance(thing, types.CodeType) and thing.co_filename.startswith(PACKAGE):
        place = thing.co_filename.removeprefix(PACKAGE)
        return "code", place, thing.co_name, thing.co_firstlineno
    if isinstance(thing, type) and _is_at(thing, thing.__module__, thing.__qualname__):
        return "type", thing.__module__, thing.__qualname__
    if isinstance(thing, types.FunctionType) and thing.__module__.startswith("fulgurite"):
        return "function", thing.__module__, thing.__qualname__, _named(thing.__code__)
    if kind is dict and vars(sys.modules.get(thing.get("__name__", ""), types)) is thing:
        return "globals", thing["__name__"]
    raise Unnamed(str(kind))


def _is_at(thing: type, module: str, name: str) -> bool:
    """True if a type of this package, of NumPy or of Python is what has that name there."""
    if module == "builtins" and not thing.__flags__ & _IS_MADE:
        return True  # also what has no name there, as the type of functions
    if module.partition(".")[0] not in ("fulgurite", "numpy"):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


# --- finding -------------------------------------------------------------------------------------


class _SameLine(Sequence[Line]):
    """The nodes of a graph that is not there: of all of them the line of the call is known."""

    def __init__(self) -> None:
        here = origin_here()
        self.line = Line(() if here is None else (here,), BUFFER)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: Any) -> Any:
        return self.line


class RecalledGraph(SizedGraph):
    """The plans of a graph that is not there."""

    kept: SizedStore
    is_spent = False

    def _opened(self, options: Options) -> SizedStore:
        return self.kept

    def _made(self, values: tuple[int, ...], options: Options) -> SizedPlan:
        self.is_spent = True
        raise GuardFailure(f"no plan on disk is for sizes {values}")

    def numbered(self, values: tuple[int, ...]) -> Any:
        """Nothing: whoever asks gets it of a capture."""
        self.is_spent = True
        raise GuardFailure("its graph is asked for")


class Found(NamedTuple):
    """What a capture came to in an earlier process."""

    made: str  # source of its result
    replay: Replay


def find(recall: Recall, work: Capture) -> Found | None:
    """The capture of an earlier process, if there is one that is for the sizes of this call."""
    data = recall.store.get("capture", recall.key)
    if data is None:
        return None
    try:
        return _found(memoryview(data), work)
    except (*_DAMAGES, Unnamed) as problem:
        warnings.warn(f"a stored capture is not used: {problem}", RuntimeWarning, stacklevel=2)
        return None


def _found(data: memoryview, work: Capture) -> Found | None:
    start = 8 + int.from_bytes(data[:8], "little")
    about: Mapping[str, Any] = json.loads(bytes(data[8:start]))
    start += -start % ALIGN
    sizes = work.sizes
    assert sizes is not None
    guards = kept_trace(about["guards"])
    if (*guards.hints,) != (*sizes.variables,):
        raise KeyError("sizes")
    if not acceptor(guards)(*sizes.fit.values(sizes.sizes)):
        return None
    lines: Any = _SameLine()
    names = frozenset(sizes.variables)
    roots = [
        Line(lines.line.origins, BUFFER,
             tuple([Sym.of(sizes.trace, dict(key_from(n, names))) for n in shape]), dtype_of(name))
        for name, shape in about["roots"]
    ]  # fmt: skip
    expected = [_expected(work, number) for number in range(len(work.survey.tensors))]
    places = [_place(work, data[start:], *row) for row in about["places"]]
    assigned = [(int(i), int(out)) for i, out in about["assigned"]]
    inputs = {"tensor": len(expected), "array": len(work.survey.arrays), "constant": 1}
    if not all([0 <= p.number < inputs[p.kind] for p in places]):
        raise KeyError("inputs")
    nodes: list[Any] = list(roots)
    replay = Replay(
        expected, places, Normal((), (), (), {}, lines), nodes, work.device, [], assigned,
        int(about["results"]), None, [], work.options, [], sizes,
    )  # fmt: skip
    graphs = {tuple([(int(a), int(b)) for a, b in pairs]): key for pairs, key in about["graphs"]}
    whole = Normal((), (), (), {}, lines)
    replay.recalled = []
    for donated in dict.fromkeys(((), replay.pairs)):
        graph = RecalledGraph(whole, sizes.variables, work.device, roots, sizes.largest, donated)
        key = graphs.get(donated)
        graph.kept = SizedStore.known(key, whole, work.options, work.device)
        replay.recalled.append(graph)
    trace = sizes.trace
    trace.low, trace.high, trace.guards = guards.low, guards.high, guards.guards
    sizes.close()
    return Found(str(about["made"]), replay)


def _place(
    work: Capture, data: memoryview, kind: str, number: int, dtype: str, shape: Sequence[int]
) -> Place:
    if kind not in _KINDS:
        raise KeyError(kind)
    if kind != "constant":
        return Place(kind, int(number))
    array = np.frombuffer(data, dtype_of(dtype).numpy, prod(shape), number).reshape(shape)
    return Place("constant", 0, get_device(work.device).from_host(array.copy()))


# --- keeping -------------------------------------------------------------------------------------


def keep(recall: Recall, made: str, replay: Replay, shapes: Sequence[tuple[DType, Any]]) -> None:
    """Write a capture for the next process; `shapes` are the dtype and shape of its inputs."""
    graphs = [[graph.donated, key] for graph in replay.graphs
              if (key := _kept_key(graph)) is not None]  # fmt: skip
    sizes = replay.sizes
    if not graphs or sizes is None or not {p.kind for p in replay.places} <= _KINDS:
        return
    device, blob = get_device(replay.device), bytearray()
    places: list[list[Any]] = []
    for place, (dtype, shape) in zip(replay.places, shapes, strict=True):
        number = place.number
        if place.kind == "constant":
            if not all([type(n) is int for n in shape]):
                return
            blob += bytes(-len(blob) % ALIGN)
            number = len(blob)
            blob += device.to_host(place.memory, shape, dtype).tobytes()
            places.append(["constant", number, dtype.name, shape])
        else:
            places.append([place.kind, number, "", []])
        if len(blob) > MOST_BYTES:
            return
    about = {
        "made": made, "results": replay.results, "assigned": replay.assigned, "places": places,
        "roots": [[r.dtype.name, [*map(size_key, r.shape)]] for r in replay.roots],
        "guards": kept_guards(sizes.trace), "graphs": graphs,
    }  # fmt: skip
    head = json.dumps(about, separators=(",", ":")).encode()
    start = len(head).to_bytes(8, "little") + head
    data = start + bytes(-len(start) % ALIGN) + bytes(blob)
    recall.store.put("capture", recall.key, data)


def _kept_key(graph: SizedGraph) -> str | None:
    """The name of the plans of a graph on disk, if they are there."""
    store = graph.store
    if store is None or store.kept is None or store.key is None:
        return None
    return store.key if store.kept.store.get("sizes", store.key) is not None else None
