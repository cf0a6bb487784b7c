"""Host functions: the user's own Python on NumPy arrays, as part of a lazy graph.

In: a function on arrays, tensors, and what it gives: a shape and a dtype, or arguments that it
writes in place. Out: lazy tensors. A function stands in the graph by identity: the same function
on the same tensors is one value, so it must depend on its arguments alone. Graphs with a function
are kept on disk only if it is registered by name.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import Any

from ..core import build
from ..core.dtype import DType, dtype_of
from ..core.node import Node, Shape
from ..core.ops.host import HOST_FUNCTIONS, HostFunction, call
from ..core.ops.host import custom as one_result
from ..core.ops.host import register_host as enter
from ..core.shape import show
from ..errors import ArgumentError, DTypeError, GradientError, ShapeError
from ..tensor import Tensor, TensorLike, lifted, node_of, wrap

Function = Callable[..., Any]
_hosts: weakref.WeakValueDictionary[Hashable, HostFunction] = weakref.WeakValueDictionary()


def custom(
    fn: Function | str,
    *tensors: TensorLike,
    shape: object = None,
    dtype: object = None,
    grad: Function | None = None,
    inplace: Sequence[int] = (),
) -> Any:
    """A Python function on NumPy arrays, applied when a value is needed.

    `shape` and `dtype` (by default that of the first tensor) declare what it returns; lists of them
    declare several results. Arguments are read-only, except those numbered in `inplace`: the
    function writes into a copy of them, and each is a result, after those that it returns. The
    tensors that were passed stay as they are. A function must depend on its arguments alone, and
    must not keep them.

    `grad(gradient, result, *tensors)` gives the gradient of each tensor, or None where there is
    none; of several results the first two are lists. A string names a registered function.

    >>> import numpy as np
    >>> x = fg.Tensor([3.0, 1.0, 2.0])
    >>> fg.custom(np.sort, x, shape=x.shape).tolist()
    [1.0, 2.0, 3.0]
    >>> def clear_first(a):
    ...     a[0] = 0
    >>> fg.custom(clear_first, x, inplace=[0]).tolist(), x.tolist()
    ([0.0, 1.0, 2.0], [3.0, 1.0, 2.0])
    """
    nodes = [node_of(x) for x in lifted(*tensors)]
    places = _places(inplace, len(nodes))
    returns = _returns(shape, dtype, nodes, bool(places))
    host = _host(fn, grad)
    if len(returns) == 1 and not places:
        return wrap(build.note(one_result(host, tuple(nodes), *returns[0])))
    found = [wrap(build.note(node)) for node in call(host, tuple(nodes), returns, places)]
    return found[0] if len(found) == 1 else tuple(found)


def register_host(name: str, fn: Function, grad: Function | None = None) -> Function:
    """Give a host function a name, by which saved plans and the disk cache may refer to it.

    Another process must register the same function under this name before it runs such a plan.

    >>> import numpy as np
    >>> double = fg.register_host("docs.double", lambda a: a + a)
    >>> fg.custom("docs.double", fg.Tensor([1, 2]), shape=(2,)).tolist()
    [2, 4]
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{name!r} is no name", "use a string such as 'model.sample'")
    if not callable(fn):
        raise ArgumentError(f"{type(fn).__name__} is not a function", "pass a function on arrays")
    known = HOST_FUNCTIONS.get(name)
    host = _host_function(name, fn, grad)
    if known is not None and (known.function, _pull_of(known)) == (fn, grad):
        return fn
    enter(host)
    _hosts[_identity(fn), None if grad is None else _identity(grad)] = host
    return fn


# --- functions by identity -----------------------------------------------------------------------


class _Pull:
    """A gradient in tensors as one in nodes."""

    def __init__(self, name: str, function: Function) -> None:
        self.name, self.function = name, function

    def __call__(self, flow: Any, result: Any, *src: Node) -> list[Node | None]:
        if isinstance(flow, list) and len(flow) == 1:
            flow, result = flow[0], result[0]
        several = isinstance(flow, list)
        given = [_wrapped(f) for f in flow] if several else wrap(flow)
        known = [wrap(r) for r in result] if several else wrap(result)
        found = self.function(given, known, *[wrap(s) for s in src])
        shares = list(found) if isinstance(found, tuple | list) else [found]
        if len(shares) != len(src):
            raise GradientError(
                f"the gradient of host function {self.name!r} gave {len(shares)} values for "
                f"{len(src)} tensors",
                "return one tensor, or None, for each",
            )
        return [self._fitting(s, to, i) for i, (s, to) in enumerate(zip(shares, src, strict=True))]

    def _fitting(self, share: Any, to: Node, number: int) -> Node | None:
        if share is None:
            return None
        node = build.cast(node_of(share), to.dtype)
        if node.shape != to.shape:
            raise ShapeError(
                f"the gradient of host function {self.name!r} by tensor {number} has shape "
                f"{show(node.shape)}, not {show(to.shape)}",
                "a gradient has the shape of its tensor",
            )
        return node


def _wrapped(node: Node | None) -> Tensor | None:
    return None if node is None else wrap(node)


def _pull_of(host: HostFunction) -> Function | None:
    return host.backward.function if isinstance(host.backward, _Pull) else None


def _identity(fn: Function) -> Hashable:
    """What is the same for the same function; a bound method is a new object each time."""
    if isinstance(fn, types.MethodType):
        return id(fn.__self__), id(fn.__func__)
    return id(fn)


def pull_of(name: str, grad: Function | None) -> _Pull | None:
    """A gradient that the user wrote in tensors, as graphs need it."""
    return None if grad is None else _Pull(name, grad)


def _host_function(name: str, fn: Function, grad: Function | None) -> HostFunction:
    return HostFunction(name, fn, pull_of(name, grad))


def _host(fn: Function | str, grad: Function | None) -> HostFunction:
    """The one host function of a Python function and its gradient, as long as a graph has it."""
    if isinstance(fn, str):
        if fn not in HOST_FUNCTIONS:
            raise ArgumentError(f"no host function {fn!r} is registered", "use fg.register_host")
        if grad is not None:
            raise ArgumentError("a registered function has its gradient already", "leave grad out")
        return HOST_FUNCTIONS[fn]
    for given in (fn, grad):
        if given is not None and not callable(given):
            raise ArgumentError(f"{type(given).__name__} is not a function", "pass a function")
    key = (_identity(fn), None if grad is None else _identity(grad))
    found = _hosts.get(key)  # which holds the functions: their ids are nobody else's
    if found is None:
        name = getattr(fn, "__name__", type(fn).__name__)
        found = _hosts.setdefault(key, _host_function(name, fn, grad))  # of two threads' one stays
    return found


# --- what it gives -------------------------------------------------------------------------------


def _places(inplace: Sequence[int], count: int) -> tuple[int, ...]:
    try:
        found = tuple([index(i) for i in inplace])
    except TypeError:
        raise ArgumentError(
            f"inplace is {inplace!r}", "give the numbers of arguments, as in inplace=[0]"
        ) from None
    if len(set(found)) != len(found) or not all([0 <= i < count for i in found]):
        raise ArgumentError(
            f"inplace is {found} of {count} tensors", "number each of them once, from 0"
        )
    return found


def _returns(
    shape: object, dtype: object, nodes: Sequence[Node], in_place: bool
) -> list[tuple[Shape, DType]]:
    """The shape and dtype of everything that a function returns."""
    if shape is None:
        if not in_place:
            raise ArgumentError(
                "the result of a host function has no shape", "say shape= (and dtype=)"
            )
        return []
    if isinstance(shape, list) and all([isinstance(s, tuple | list) for s in shape]):
        kinds = list(dtype) if isinstance(dtype, tuple | list) else [dtype] * len(shape)
        if len(kinds) != len(shape):
            raise ArgumentError(
                f"{len(shape)} shapes and {len(kinds)} dtypes", "give one dtype for each shape"
            )
        pairs = list(zip(shape, kinds, strict=True))
    else:
        pairs = [(shape, dtype)]
    return [(build.as_shape(s), _dtype(d, nodes)) for s, d in pairs]


def _dtype(dtype: object, nodes: Sequence[Node]) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    if not nodes:
        raise DTypeError("the result of a host function has no dtype", "say dtype=")
    return nodes[0].dtype
