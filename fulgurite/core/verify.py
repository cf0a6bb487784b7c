"""The grammar of each level, checked: a graph that breaks it is a bug of the stage that made it.

In: a root, the level it should be at, and the stage that produced it. Out: nothing, or a
`VerifyError` with the node's line of text, what is wrong with it, the stage, and the user's line.
The invariant: a graph that passes has a known op, fitting sources, the dtype and shape of the
op's own rules, and nothing that the op's `check` objects to, at every node. There is no list of
ops here: an op's entry says at which levels it may stand. Sources come first, so the error names
the node where things went wrong, not one that suffers from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError, VerifyError
from .dtype import DTYPES, void
from .node import Node, Source, toposort
from .operators import OPS
from .symbolic.sym import Sym
from .text import show

LEVELS: dict[str, str] = {
    "tensor": "whole tensors: what users build, with movement, reductions, memory and effects",
    "index": "a kernel's body: one number at a place, from constants, variables and params",
}


def verify(root: Node, level: str = "tensor", stage: str = "building") -> None:
    """Raise a VerifyError at the first node that breaks the grammar of the level."""
    if level not in LEVELS:
        raise ArgumentError(f"there is no level {level!r}", f"one of {', '.join(LEVELS)}")
    for number, node in enumerate(toposort([root])):
        problem = _problem(node, level)
        if problem is not None:
            line = show(root).split("\n")[number]
            raise VerifyError(
                f"after {stage}, at {level} level: {problem}\n  in: {line}",
                f"report this as a bug in {stage}, with the text of the graph: core.text.show",
                ", ".join([str(origin) for origin in node.origins]),
            )


def _problem(node: Node, level: str) -> str | None:
    if level not in node.op.levels:
        return f"{node.op} is no op of this level"
    for name, rule in _RULES:
        try:
            problem = rule(node)
        except Exception as error:  # a rule meets what it was not made for: that is the finding
            problem = f"{name} fails with {type(error).__name__}: {error}".rstrip(": ")
        if problem is not None:
            return problem
    return None


# --- rules: what is wrong with a node, or None ---------------------------------------------------


def _registered(node: Node) -> str | None:
    known = OPS.get(node.op.name) is node.op
    return None if known else f"this {node.op} is not the op that is registered by that name"


def _arity(node: Node) -> str | None:
    arity, count, named = node.op.arity, len(node.src), _named(node.arg)
    if arity is not None and count < arity:
        return f"{node.op} needs {arity} sources and has {count}"
    for index in sorted(named):
        if index >= count:
            return f"the argument names source {index} of {count}"
        if arity is not None and index < arity:
            return f"the argument takes source {index} for a size, but it is data"
    if arity is not None:
        for index in range(arity, count):
            if index not in named:
                return f"{node.op} has {arity} sources, and source {index} is no size of its"
    return None


def _sizes(node: Node) -> str | None:
    for index in sorted(_named(node.arg)):
        size = node.src[index]
        if size.dtype.kind not in "iu" or size.shape != ():
            return f"source {index} is a size, and {size.dtype} {size.shape} is no whole number"
    return None


def _dtype(node: Node) -> str | None:
    if node.dtype not in _KNOWN:
        return f"{node.dtype} is not the dtype of any element"
    if node.op.dtype is None:
        return None if node.dtype is not void else f"{node.op} has a value, and void is none"
    expected = node.op.dtype(node.src, node.arg)
    return None if expected is node.dtype else f"{node.op} gives {expected}, not {node.dtype}"


def _kinds(node: Node) -> str | None:
    """Of the first source that is data; a leaf has its own."""
    arity = len(node.src) if node.op.arity is None else node.op.arity
    if arity and node.src:
        dtype = node.src[0].dtype
    elif node.op.dtype is None:
        dtype = node.dtype
    else:
        return None
    return None if dtype.kind in node.op.kinds else f"{node.op} does not take {dtype}"


def _shape(node: Node) -> str | None:
    shape: Any = node.shape
    for size in shape:
        if isinstance(size, Node):
            fits = size.dtype.kind in "iu" and size.shape == ()
        else:
            fits = type(size) is Sym or (type(size) is int and size >= 0)  # asking it is a guard
        if not fits:
            return f"{size!r} is not a size"
    return None


def _check(node: Node) -> str | None:
    return node.op.check(node)


_KNOWN = frozenset((*DTYPES, void))
_RULES: tuple[tuple[str, Callable[[Node], str | None]], ...] = (
    ("the registry", _registered),
    ("the rule for sources", _arity),
    ("the rule for sizes", _sizes),
    ("the rule for kinds", _kinds),
    ("its dtype rule", _dtype),
    ("its shape rule", _shape),
    ("its check", _check),
)  # in this order: each may rely on those before it


def _named(arg: Any) -> set[int]:
    """The sources that an argument names as sizes."""
    found: set[int] = set()
    stack = [arg]
    while stack:
        value = stack.pop()
        if isinstance(value, Source):
            found.add(value.index)
        elif isinstance(value, tuple):
            stack.extend(value)
    return found
