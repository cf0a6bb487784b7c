"""Variables with a value, as `fg.Var` binds them: a value is given when a replay runs.

In: bound variables (BIND nodes, and sizes computed from them) that a call reaches, and those that
the function binds itself to its numbers. Out: for every variable of the plan, Python source that
gives its value in a later call. Nothing in a graph depends on the value of a bound variable, only
on its bounds; so the function may see this call's values while it is captured. Checked are which
variable it is, that numbers are within its bounds, and that the values of a variable agree and
differ as they did: a variable has one value in a graph, and nodes of equal values are one node,
which `is`, `==` and the keys of a dict can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import index
from typing import Any

from ..core.dtype import decode, int64
from ..core.node import Node, toposort
from ..core.ops.leaf import BIND, VAR, bind
from ..core.rewriting.substitute import substitute
from ..errors import VariableError
from .guards import Checks
from .symbolic_number import Number


class Variables:
    """Where the values of one call's variables come from."""

    def __init__(self, shown: bool = False) -> None:
        self.shown = shown  # can the function look at a value, as `arg` of a node?
        # for each variable: source -> its value in the call that is captured
        self.sources: dict[str, dict[str, int]] = {}
        self._sizes: dict[str, tuple[str, int]] = {}  # the same of one that is an argument's size
        # source, variable and its bounds: a number may be bound to several variables
        self._ranges: dict[tuple[str, str, int, int], None] = {}

    def reach(self, checks: Checks, node: Node, name: str, path: str) -> bool:
        """Take the values in a node from every call; False if there are none, or they are shown."""
        form, values = apart(node)
        if not values or self.shown:
            return False
        checks.known["Node"], checks.known["apart"] = Node, apart
        if node.op is BIND:
            var, _ = values.popitem()
            checks.known["BIND"], checks.known["signed"] = BIND, signed
            kind = checks.constant(form)
            checks.line(f"if type({name}) is not Node or {name}.op is not BIND or "
                        f"{name}.src[0] is not {kind}:",
                        f"{path} is no value of {var}")  # fmt: skip
            low = form.arg[1]
            source = f"{name}.arg" if low >= 0 else f"signed({name}.arg)"
            self._note(var, source, signed(node.arg))
        else:
            parts = checks.variable(f"apart({name})")
            checks.line(f"if {parts}[0] is not {checks.constant(form)}:",
                        f"{path} is another expression of variables")  # fmt: skip
            for var, value in values.items():
                self._note(var, f"{parts}[1][{var!r}]", value)
        return True

    def size(self, var: Node, source: str, value: int) -> None:
        """Note the size of an argument that varies: it is the variable's value in the plan."""
        self._sizes.setdefault(var.arg[0], (source, value))

    def bind(self, var: Node, value: Any) -> Any:
        """The whole number that a function binds a variable to, noted down."""
        name, low, high, _ = var.arg
        given = type(value) is Number and type(value._value) is int and not self.shown
        if given and low <= value._value <= high:
            self._note(name, value._source, value._value)
            self._ranges[value._source, name, low, high] = None
            return value._value
        try:
            whole = index(value)
        except TypeError:
            return value  # which is an error
        self._note(name, repr(whole), whole)
        return whole

    def _note(self, name: str, source: str, value: int) -> None:
        self.sources.setdefault(name, {})[source] = value

    def settle(self, checks: Checks, values: Mapping[str, int]) -> dict[str, str]:
        """Source for every variable of a plan but those that are sizes of arguments; checks."""
        for source, name, low, high in self._ranges:
            checks.line(f"if not {low} <= {source} <= {high}:", f"a value of {name} is outside")
        for name in self.sources:
            alike: dict[int, list[str]] = {}
            for source, value in self._known(name):
                alike.setdefault(value, []).append(source)
            for first, *others in alike.values():
                for source in others:
                    checks.line(f"if {source} != {first}:", f"{name} has two values")
            if len(alike) > 1:
                apart = ", ".join([sources[0] for sources in alike.values()])
                checks.line(f"if len({{{apart}}}) != {len(alike)}:",
                            f"two values of {name} are equal by now")  # fmt: skip
        return {name: self.source(name, value) or repr(value) for name, value in values.items()
                if name not in self._sizes}  # fmt: skip

    def _known(self, name: str) -> list[tuple[str, int]]:
        """The sources of a variable, and what each gives in the call that is captured."""
        size = [self._sizes[name]] if name in self._sizes else []
        return [*size, *self.sources.get(name, {}).items()]

    def source(self, name: str, value: int) -> str:
        """Source of a value of a variable; all that agree do so in every replay. Empty: none."""
        return next((source for source, then in self._known(name) if then == value), "")


def together(form: Node, values: Mapping[str, int]) -> Node:
    """What `apart` took apart, with these values."""
    found = {var: bind(var, values[var.arg[0]]) for var in toposort([form]) if var.op is VAR}
    return substitute(form, found, walk=True)


def apart(thing: Any) -> tuple[Any, dict[str, int]]:
    """An expression with variables in the place of their values, and these; None: it is none."""
    if type(thing) is not Node:
        return None, {}
    if thing.op is BIND:
        return thing.src[0], {thing.src[0].arg[0]: signed(thing.arg)}
    bound = [node for node in toposort([thing]) if node.op is BIND]
    values: dict[str, int] = {}
    for node in bound:
        name, value = node.src[0].arg[0], signed(node.arg)
        if values.setdefault(name, value) != value:
            raise VariableError(
                f"variable {name!r} is bound to {values[name]} and to {value} in one expression",
                "use two variables",
            )
    form = substitute(thing, {node: node.src[0] for node in bound}) if bound else thing
    return form, values


def signed(bits: int) -> int:
    """The value of a bound variable."""
    value = decode(bits, int64)
    assert isinstance(value, int)
    return value


def without_values(nodes: Collection[Node]) -> dict[Node, Node]:
    """For every bound variable under some nodes the variable alone."""
    found = {node: node.src[0] for node in toposort(nodes) if node.op is BIND}
    assert all([var.op is VAR for var in found.values()])
    return found
