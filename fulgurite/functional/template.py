"""Templates: memoised graph building, the nodes a function makes as a list that is made again.

In: a function of tensors and plain values whose nodes follow from dtypes, shapes and those values
alone. Out: the same function; when operands like these come for the second time, the nodes it made
of them are kept in order (op, dtype, arg, shape, numbers of sources), and from then on one call
interns them over the operands: a layer norm is 16 nodes of Python arithmetic otherwise. Operands
that a function looks into (constants, sizes that vary) are left to it, and so is all that it made
of anything but its operands: both make the same nodes, and hash-consing gives the same node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ..config import current
from ..core.build import Step, is_plain, replay
from ..core.dtype import DType
from ..core.node import Node
from ..core.ops.leaf import CONST, IOTA
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
            steps = _template(made.entry.node, nodes)
            if steps is not None:
                known[found] = steps
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


def _template(root: Node, sources: list[Node]) -> tuple[Step, ...] | None:
    """The steps from sources to a root, if it is made of nothing else; None: ask another time."""
    if root in sources:
        return ()
    latest = max([node.id for node in sources], default=0)
    number = {node: i for i, node in enumerate(sources)}
    steps: list[Step] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node in number:
            continue
        if not _is_step(node):
            return ()
        if node.id < latest and node.src:  # below a source, or it was there before
            return None
        pending = [s for s in node.src if s not in number]
        if pending:
            stack += (node, *pending)
            continue
        number[node] = len(number)
        places = [number[s] for s in node.src]
        steps.append((node.op, node.dtype, node.arg, node.shape, *places))
    return tuple(steps)


def _is_step(node: Node) -> bool:
    """True if nothing but its sources distinguishes a node from one in another graph."""
    if not node.src and node.op is not CONST and node.op is not IOTA:
        return False
    return node.tag is None and _is_value(node.arg) and is_plain(node.shape)


def _is_value(arg: Any) -> bool:
    if type(arg) is tuple:
        return all(map(_is_value, arg))
    return type(arg) in _VALUES or isinstance(arg, DType)
