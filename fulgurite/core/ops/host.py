"""Ops whose meaning is the user's own code: CUSTOM gives one array, CALL one result of several.

In: a `HostFunction` and sources. Out: nodes that hold it by identity; a registered name lets text
and disk refer to it. What a function is handed cannot be written, except arguments that are
declared in place: those are copies, and become results. What it hands back is ours: an array that
somebody else holds as well is copied. A function that raises, breaks its word or keeps an argument
is named in the error, with the line where it was applied.
CALLs that differ in their item alone are results of one call, which is made once.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError, GradientError
from ..dtype import DType
from ..node import Dims, Node, Shape, dims_of, make, shape_of
from ..op import Array, Op
from ..origin import places

Backward = Callable[..., Sequence[Node | None]]
Result = tuple[Dims, DType]


class HostFunction:
    """A Python function on arrays, known by identity; a name lets text refer to it."""

    __slots__ = ("__weakref__", "_batches", "backward", "function", "name")
    kind = "host"  # of the kernels that call it

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        backward: Backward | None = None,
    ) -> None:
        self.name, self.function, self.backward = name, function, backward
        self._batches: weakref.WeakValueDictionary[Hashable, HostFunction] | None = None

    def __repr__(self) -> str:
        return f"@{self.name}"

    def batched(self, size: Hashable, results: Sequence[tuple[Shape, DType]]) -> HostFunction:
        """The function for every example of a batch; the same while it lives."""
        if self._batches is None:
            self._batches = weakref.WeakValueDictionary()
        key = (size, tuple(results))
        found = self._batches.get(key)
        if found is None:
            backward = None if self.backward is None else self._backward_each
            found = HostFunction(f"{self.name}.each", _Each(self, results), backward)
            self._batches[key] = found
        return found

    def _backward_each(self, flow: Any, result: Any, *src: Node) -> list[Node | None]:
        """The gradient of every example of a batch, by that of one."""
        from .transform import each_example

        def rule(one: Callable[[Sequence[Any]], list[Any]]) -> Sequence[Node | None]:
            assert self.backward is not None
            if isinstance(flow, list):  # of several results
                return self.backward(one(flow), one(result), *one(src))
            return self.backward(*one([flow, result]), *one(src))

        return each_example(rule, src[0].shape[0])


class _Each:
    """A host function knows no batches: it is called for each example."""

    def __init__(self, host: HostFunction, results: Sequence[tuple[Shape, DType]]) -> None:
        self.host, self.results = host, results  # what it returns: not what it writes in place

    def __call__(self, *arrays: Array) -> Any:
        calls = [self.host.function(*[a[i, ...] for a in arrays]) for i in range(len(arrays[0]))]
        if not calls and self.results:
            made: list[Array] = [
                np.empty((0, *shape), dtype.numpy) for shape, dtype in self.results
            ]
            return made[0] if len(made) == 1 else made
        if len(self.results) < 2:
            return np.stack(calls) if self.results else None
        return [np.stack(column) for column in zip(*calls, strict=True)]


HOST_FUNCTIONS: dict[str, HostFunction] = {}


def register_host(host: HostFunction) -> HostFunction:
    """Let text and disk refer to a host function by its name."""
    if HOST_FUNCTIONS.setdefault(host.name, host) is not host:
        raise ArgumentError(f"a host function {host.name!r} exists already", "choose another name")
    return host


# --- calling -------------------------------------------------------------------------------------


def called(
    node: Node, host: HostFunction, arrays: Sequence[Array], in_place: Sequence[int],
    results: Sequence[tuple[Shape, DType]],
) -> list[Array]:  # fmt: skip
    """What a host function gives for these arrays: what it returns, then what it wrote over."""
    given = [np.array(a, order="C") if i in in_place else read_only(a)
             for i, a in enumerate(arrays)]  # fmt: skip
    shown = {i: weakref.ref(_innermost(a)) for i, a in enumerate(given) if i not in in_place}
    try:
        answer = host.function(*given)
    except Exception as problem:
        where = places(node.origins) or "an unknown line"
        problem.add_note(f"in host function {host.name!r}, applied at {where}")
        raise
    found = _returned(host, answer, len(results) - len(in_place), node)
    found += [given[i] for i in in_place]
    del given, answer
    held = list(map(sys.getrefcount, found))
    for number, (shape, dtype) in enumerate(results):
        array = found[number]
        if array.shape != shape or array.dtype != dtype.numpy:
            raise ArgumentError(
                f"host function {host.name!r} returned {array.shape} {array.dtype}, "
                f"not the declared {shape} {dtype}",
                "return an array of the declared shape and dtype",
                places(node.origins),
            )
        own = type(array) is np.ndarray and array.base is None and array.flags.c_contiguous
        if not own or held[number] > _ALONE:
            found[number] = np.array(array, order="C", subok=False)
        del array
    _let_go(host, shown, node)
    return found


_ALONE = next(map(sys.getrefcount, [object()]))  # of what a list alone holds


def _returned(host: HostFunction, answer: Any, count: int, node: Node) -> list[Array]:
    """What a function returned as so many arrays."""
    if count == 1:
        return [np.asarray(answer)]
    if count == 0 and answer is None:
        return []
    several = isinstance(answer, tuple | list)
    if count > 1 and several and len(answer) == count:
        return [np.asarray(part) for part in answer]
    got = f"{len(answer)} values" if several else type(answer).__name__
    raise ArgumentError(
        f"host function {host.name!r} returned {got}, not {count or 'nothing'}",
        "return a tuple of arrays, one for each declared result" if count else
        "declare the result with shape= and dtype=, or return None",
        places(node.origins),
    )  # fmt: skip


def _let_go(host: HostFunction, shown: dict[int, weakref.ref[Array]], node: Node) -> None:
    """An error if a function still holds an argument: its memory will be used for other values."""
    if any([reference() is not None for reference in shown.values()]):
        gc.collect()  # what lives only in a cycle is not kept by anybody
    for number, reference in shown.items():
        if reference() is not None:
            raise ArgumentError(
                f"host function {host.name!r} keeps a reference to argument {number}",
                "keep a copy of it: array.copy()",
                places(node.origins),
            )


def _innermost(array: Array) -> Array:
    """The array that every view of an array keeps alive."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def read_only(array: Array) -> Array:
    """A view of an array through which it cannot be written, by no trick of NumPy's."""
    raw = array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array
    # through a read-only memoryview: a plain view could be made writable again
    shown = memoryview(raw).toreadonly()  # type: ignore[arg-type]  # arrays are buffers
    return np.asarray(shown).view(array.dtype)


# --- one result ----------------------------------------------------------------------------------


def custom(host: HostFunction, src: tuple[Node, ...], shape: Shape, dtype: DType) -> Node:
    """A host function applied to arrays, giving one array of this shape and dtype."""
    dims, extra = dims_of(shape, len(src))
    return make(CUSTOM, dtype, (*src, *extra), (host, len(src), dims))


def _custom_numpy(node: Node, *arrays: Array) -> Array:
    host, count, _ = node.arg
    return called(node, host, arrays[:count], (), [(node.shape, node.dtype)])[0]


def _no_gradient(host: HostFunction, node: Node) -> GradientError:
    hint = "give it a backward function, or detach() its sources"
    return GradientError(f"host function {host.name!r} has no gradient", hint, places(node.origins))


def _custom_grad(g: Node, y: Node, *src: Node) -> tuple[Node | None, ...]:
    host, count, _ = y.arg
    if host.backward is None:
        raise _no_gradient(host, y)
    return tuple(host.backward(g, y, *src[:count]))


def _custom_batch(y: Node, src: tuple[Node, ...]) -> Node:
    host, count, dims = y.arg
    size, inside = src[0].shape[0], shape_of(dims, y.src)
    each = host.batched(size, [(inside, y.dtype)])
    return custom(each, src[:count], (size, *inside), y.dtype)


def _custom_check(node: Node) -> str | None:
    host, count, _ = node.arg
    if not isinstance(host, HostFunction) or not 0 <= count <= len(node.src):
        return f"{host!r} of {count} arrays is no host function of {len(node.src)} sources"
    return None


CUSTOM = Op(
    name="custom", family="effect", doc="a host function applied to arrays", arity=None, dtype=None,
    numpy=_custom_numpy, shape=lambda node: shape_of(node.arg[2], node.src), grad=_custom_grad,
    batch=_custom_batch, cost=1000, check=_custom_check, sizes=slice(2, 3),
)  # fmt: skip


# --- several results, and arguments in place -----------------------------------------------------


def call(
    host: HostFunction, src: tuple[Node, ...], returns: Sequence[tuple[Shape, DType]],
    in_place: tuple[int, ...] = (),
) -> list[Node]:  # fmt: skip
    """Every result of a call: what it returns, then each argument that it writes over."""
    results: list[Result] = []
    sources = src
    kinds = [*returns, *[(src[i].shape, src[i].dtype) for i in in_place]]
    for shape, dtype in kinds:
        dims, extra = dims_of(shape, len(sources))
        results.append((dims, dtype))
        sources = (*sources, *extra)
    rest = (host, len(src), in_place, tuple(results))
    return [make(CALL, dtype, sources, (item, *rest)) for item, (_, dtype) in enumerate(kinds)]


def results_of(node: Node) -> list[tuple[Shape, DType]]:
    """The shape and dtype of each result of a call."""
    return [(shape_of(dims, node.src), dtype) for dims, dtype in node.arg[4]]


def call_values(node: Node, arrays: Sequence[Array]) -> list[Array]:
    """All results of the call that a node is one of."""
    _, host, count, in_place, _ = node.arg
    return called(node, host, arrays[:count], in_place, results_of(node))


def call_siblings(node: Node) -> Hashable:
    """Nodes that agree in this are results of one call."""
    return node.arg[1:], node.src


def _call_grad(
    flows: Sequence[Node | None], nodes: Sequence[Node], wanted: Sequence[bool]
) -> tuple[Node | None, ...]:
    node = nodes[0]
    _, host, count, _, results = node.arg
    if host.backward is None:
        raise _no_gradient(host, node)
    gradients: list[Node | None] = [None] * len(results)
    for sibling, flow in zip(nodes, flows, strict=True):
        gradients[sibling.arg[0]] = flow
    every = [make(CALL, dtype, node.src, (i, *node.arg[1:])) for i, (_, dtype) in
             enumerate(results)]  # fmt: skip
    return tuple(host.backward(gradients, every, *node.src[:count]))


def _call_batch(y: Node, src: tuple[Node, ...]) -> Node:
    item: int = y.arg[0]
    host, count, in_place, results = y.arg[1:]
    size, inside = src[0].shape[0], results_of(y)[: len(results) - len(in_place)]
    each = host.batched(size, inside)
    returns = [((size, *shape), dtype) for shape, dtype in inside]
    return call(each, src[:count], returns, in_place)[item]


def _call_check(node: Node) -> str | None:
    item, host, count, in_place, results = node.arg
    if not isinstance(host, HostFunction) or not 0 <= count <= len(node.src):
        return f"{host!r} of {count} arrays is no host function of {len(node.src)} sources"
    if not 0 <= item < len(results) or node.dtype is not results[item][1]:
        return f"there is no result {item} of {node.dtype}"
    if len(in_place) > len(results) or not all(0 <= i < count for i in in_place):
        return f"{in_place} are not arguments in place"
    return None


CALL = Op(
    name="call", family="effect", doc="a result of a user's code applied to arrays", arity=None,
    dtype=None, numpy=lambda node, *arrays: call_values(node, arrays)[node.arg[0]],
    shape=lambda node: shape_of(node.arg[4][node.arg[0]][0], node.src), grad=_call_grad,
    batch=_call_batch, siblings=call_siblings, cost=1000, check=_call_check, sizes=slice(4, 5),
)  # fmt: skip
HOSTS = frozenset({CUSTOM, CALL})
