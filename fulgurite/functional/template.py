"""Templates: memoised graph building, the nodes a function makes as a list that is made again.

In: a function of tensors and plain values whose nodes follow from dtypes, shapes and those values
alone. Out: the same function; when operands like these come for the second time, the nodes it makes
of stand-ins for them are kept in order (op, dtype, arg, shape, numbers of sources), and from then
on one call interns them over the operands: a layer norm is 16 nodes of Python arithmetic otherwise.
Stand-ins are memory that nothing is known of: what a function sees in these very operands (one is a
view of another, or a running count) is no part of a template. Constants and sizes that vary are
left to the function, and so is all that it makes of anything but its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ..config import current
from ..core.build import Step, is_plain, replay
from ..core.dtype import DType
from ..core.node import Node, toposort
from ..core.ops.leaf import CONST, IOTA, new_buffer
from ..tensor import Tensor, operand, wrap

F = TypeVar("F", bound=Callable[..., Tensor | None])
Key = tuple[Any, ...]
_MOST = 512  # keys of a function that are remembered
_VALUES = {int, bool, str, type(None)}
_INTS = {int}
# templates and keys of each function; not in its closure, where jit would see them change
_MEMOS: dict[Callable[..., Any], tuple[dict[Key, tuple[Step, ...]], set[Key]]] = {}


def templated(function: F) -> F:
    """The function, with a template for operands like those that came before."""
    _MEMOS[function] = {}, set()

    @wraps(function)
    def build(*args: Any, **keywords: Any) -> Tensor | None:
        known, seen = _MEMOS[function]
        key: list[Any] = [current().autocast, len(args)]
        nodes: list[Node] = []
        for x in args:
            if not _described(x, key, nodes):
                return function(*args, **keywords)
        for pair in keywords.items():
            if not _described(pair, key, nodes):
                return function(*args, **keywords)
        found = tuple(key)
        steps = known.get(found)
        if steps:
            return wrap(replay(steps, nodes))
        made = function(*args, **keywords)
        if found not in seen:
            seen.add(found)
        elif steps is None and made is not None:
            known[found] = _template(function, args, keywords, nodes)
        if len(seen) > _MOST:
            seen.clear()
            known.clear()
        return made

    return build  # type: ignore[return-value]


def _described(x: Any, key: list[Any], nodes: list[Node]) -> bool:
    """Add what a function may know of an operand to its key; False if it may know more."""
    kind = type(x)
    if kind is Tensor:
        return _add_operand(operand(x) if x.entry.node.watched else x.entry.node, key, nodes)
    if kind in _VALUES:
        key += (kind, x)
        return True
    if kind is tuple or kind is list:
        kinds = {*map(type, x)}
        if kinds == _INTS:  # axes, sizes and places, as most are
            key += (kind, tuple(x))
            return True
        key += (kind, len(x))
        return all([_described(part, key, nodes) for part in x])
    if kind is slice:
        key.append(kind)
        return all([_described(part, key, nodes) for part in (x.start, x.stop, x.step)])
    if kind is float:
        key += (kind, x.hex())  # -0.0 equals 0.0
        return True
    return False


def _add_operand(node: Node, key: list[Any], nodes: list[Node]) -> bool:
    """Add a tensor's node; False if a function may look into it."""
    if nodes:
        if node in nodes:
            key.append(nodes.index(node))
            return True
        if node.device != nodes[0].device:
            return False
    shape = node.shape
    if node.op is CONST or not is_plain(shape):
        return False
    nodes.append(node)
    key += (node.dtype, shape)
    return True


def _template(
    function: Callable[..., Tensor | None], args: Any, keywords: Any, operands: list[Node]
) -> tuple[Step, ...]:
    """The steps from operands to what a function makes of them; none if there is no template."""
    standing = [wrap(_memory_like(x)) for x in operands]
    made = function(
        *[_stood_in(x, operands, standing) for x in args],
        **{name: _stood_in(x, operands, standing) for name, x in keywords.items()},
    )
    number = {x.entry.node: i for i, x in enumerate(standing)}
    if made is None or made.entry.node in number:
        return ()
    steps: list[Step] = []
    for node in toposort([made.entry.node]):
        if node in number:
            continue
        if not _is_step(node):
            return ()
        number[node] = len(number)
        places = [number[s] for s in node.src]
        steps.append((node.op, node.dtype, node.arg, node.shape, *places))
    return tuple(steps)


def _stood_in(x: Any, operands: list[Node], standing: list[Tensor]) -> Any:
    """An argument with stand-ins in place of operands."""
    if isinstance(x, Tensor):
        return standing[operands.index(operand(x) if x.entry.node.watched else x.entry.node)]
    if type(x) in (tuple, list):
        return type(x)([_stood_in(part, operands, standing) for part in x])
    if type(x) is slice:
        return slice(*_stood_in([x.start, x.stop, x.step], operands, standing))
    return x


def _memory_like(node: Node) -> Node:
    """New memory of a node's shape, dtype and device."""
    shape: Any = node.shape  # which is plain
    return new_buffer(shape, node.dtype, node.device or current().device)


def _is_step(node: Node) -> bool:
    """True if nothing but its sources distinguishes a node from one in another graph."""
    if not node.src and node.op is not CONST and node.op is not IOTA:
        return False
    return node.tag is None and _is_value(node.arg) and is_plain(node.shape)


def _is_value(arg: Any) -> bool:
    if type(arg) is tuple:
        return all(map(_is_value, arg))
    return type(arg) in _VALUES or isinstance(arg, DType)
