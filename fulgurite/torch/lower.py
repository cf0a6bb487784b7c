"""Lowering: a part of an FX graph of ATen operators as one lazy graph of ours.

In: nodes in order, and torch's own knowledge of their values (`meta["val"]`). Out: for each node a
lazy tensor over stand-in buffers, one for each tensor that comes from outside of the part. Every
result is checked against the shape and dtype that torch's meta function found: an operator whose
lowering fails, or gives something else, is torch's to run, with a warning that says so.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

import fulgurite as fg

from ..core.ops.leaf import new_buffer
from ..core.origin import NamedLine, at_line
from ..errors import FulguriteError
from ..tensor import Tensor, wrap
from . import ops
from .dtypes import TO_OURS
from .home import Home, place_of
from .layout import Layout, layout_of
from .table import HOST, TABLE, Refused, Use, name_of

assert ops, "the table is filled"
FAULTS = (FulguriteError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
          AssertionError, NotImplementedError)  # fmt: skip
_LINE = re.compile(r'File "(.+?)", line (\d+)')


class LoweringError(FulguriteError, RuntimeError):
    """An operator whose lowering does not give what torch says it gives."""


def is_operator(node: fx.Node) -> bool:
    """True if a node calls an overload of an ATen operator."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def refusal(node: fx.Node, val: Any, place: Any) -> str | None:
    """Why an operator is torch's to run; None if the table has it."""
    target: Any = node.target
    if target.namespace not in ("aten", "prims"):
        return f"it is an operator of {target.namespace}, which has no entry in the table"
    name = name_of(target)
    if name in HOST:
        return HOST[name]
    if name not in TABLE:
        return "it has no entry in the table"
    for each in _tensors(val) + _tensors([n.meta.get("val") for n in node.all_input_nodes]):
        if each.dtype not in TO_OURS:
            return f"there is no {each.dtype}"
        if each.layout is not torch.strided:
            return f"its layout is {each.layout}"
        if not is_at(each, place) and each.dim():  # numbers are tensors of the host now and then
            return f"its tensors are on {place_of(each)}, and the graph is compiled for {place}"
    return None


def is_at(tensor: Any, place: Any) -> bool:
    """True if a tensor is on a device, or it does not matter where it is."""
    if place is None:
        return True
    found = place_of(tensor)
    return (found.type, found.index or 0) == (place.type, place.index or 0)


def _tensors(val: Any) -> list[Any]:
    if isinstance(val, torch.Tensor):
        return [val]
    return [t for v in val for t in _tensors(v)] if isinstance(val, list | tuple) else []


def line_of(node: fx.Node) -> NamedLine | None:
    """The user's line that a node comes from, within the modules around it."""
    found = _LINE.findall(node.meta.get("stack_trace") or "")
    if not found:
        return None
    modules = node.meta.get("nn_module_stack") or {}
    path = [str(v[0]) for v in modules.values() if isinstance(v, tuple) and v]
    scopes = tuple(path[-1:][0].replace("L['self'].", "").split(".")) if path and path[-1] else ()
    return NamedLine(found[-1][0], int(found[-1][1]), scopes)


class Lowering:
    """The lazy graph of a part: what it reads, and what each of its nodes is."""

    def __init__(
        self, home: Home, known: Callable[[fx.Node], Any], number: Callable[[Any], Any]
    ) -> None:
        self.home, self.device = home, home.ours
        self.known = known  # what torch knows of a node's value, with sizes as numbers
        self.number = number  # a node or symbol as a number
        self.values: dict[fx.Node, Any] = {}
        self.buffers: dict[Any, fx.Node] = {}  # the stand-in of each tensor from outside
        self.layouts: dict[fx.Node, Layout] = {}

    def outside(self, node: fx.Node) -> Tensor:
        """A tensor that comes from outside, over a stand-in for its memory."""
        fake = self.known(node)
        if not is_at(fake, self.home.torch) and (fake.dim() or place_of(fake).type != "cpu"):
            raise Refused(f"it reads a tensor on {place_of(fake)}")
        layout = self.layouts[node] = layout_of(fake)
        buffer = new_buffer(layout.held, TO_OURS[fake.dtype], self.device)
        self.buffers[buffer] = node
        return layout.seen(wrap(buffer))

    def value(self, node: fx.Node) -> Any:
        """What a node is in the lazy graph."""
        if node not in self.values:
            self.values[node] = self.outside(node)
        return self.values[node]

    def argument(self, arg: Any) -> Any:
        """An argument of an operator, with lazy tensors for nodes."""
        if isinstance(arg, fx.Node):
            val = arg.meta.get("val")
            return self.value(arg) if isinstance(val, torch.Tensor) else self.number(arg)
        if isinstance(arg, list | tuple):
            return [self.argument(a) for a in arg]
        return self.number(arg) if isinstance(arg, torch.SymInt | torch.SymFloat) else arg

    def run(self, node: fx.Node) -> None:
        """Lower one node."""
        if node.target is operator.getitem:
            source: Any = node.args[0]
            self.values[node] = self.values[source][node.args[1]]
            return
        with at_line(line_of(node)):
            self.values[node] = self._operator(node)

    def _operator(self, node: fx.Node) -> Any:
        name, out = name_of(node.target), self.known(node)
        fakes = tuple([self._fake(a) for a in node.args])
        used = {u.args[1] for u in node.users if u.target is operator.getitem}
        use = Use(name, out, fakes, used, self.device)
        args = [self.argument(a) for a in node.args]
        named = {k: self.argument(v) for k, v in node.kwargs.items()}
        try:
            return self._checked(node, TABLE[name](use, *args, **named), out)
        except Refused:
            raise
        except FAULTS as problem:
            raise Refused(f"its lowering failed: {_first_line(problem)}") from problem

    def _fake(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self.known(arg) if arg.meta.get("val") is not None else None
        return arg

    def _checked(self, node: fx.Node, found: Any, out: Any) -> Any:
        """Results as torch says they are, or an error."""
        if isinstance(out, list | tuple):
            pairs = zip(found, out, strict=True)
            return tuple([f if o is None or f is None else self._checked(node, f, o)
                          for f, o in pairs])  # fmt: skip
        if not isinstance(out, torch.Tensor):
            return found
        want = TO_OURS[out.dtype]
        if found.dtype is not want:
            found = fg.astype(found, want)
        if tuple(found.shape) != tuple(out.shape):
            raise LoweringError(
                f"{node.format_node()} has shape {tuple(found.shape)}, torch says"
                f" {tuple(out.shape)}",
                "this is a fault of fulgurite's table of operators: please report it",
            )
        return found


def _first_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
