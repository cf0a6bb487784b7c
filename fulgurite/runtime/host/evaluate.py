"""The reference device: what a graph means, node by node, from the op table's NumPy entries.

In: root nodes, the arrays of their buffers and params, the values of their variables. Out: one
NumPy array per root. This is the oracle that every stage and backend is tested against, so it
takes no shortcuts: each node once, in topological order, exactly as its entry says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...core.node import Node, constant, constant_bits, toposort
from ...core.op import Array
from ...core.ops.indexing import first_outside
from ...core.ops.leaf import BIND, VAR
from ...core.rewriting.substitute import substitute
from ...errors import BoundsError, VariableError


def evaluate(
    roots: Sequence[Node],
    arrays: Mapping[Node, Array] | None = None,
    variables: Mapping[str, int] | None = None,
) -> list[Array]:
    """The value of each root; `arrays` holds buffers and params, `variables` unbound VARs."""
    values: dict[Node, Array] = dict(arrays or {})
    order = toposort(roots)
    if any([n.op is VAR for n in order]):
        settled = settle(order, variables or {})
        roots = [substitute(root, settled, walk=True) for root in roots]
        values = {substitute(leaf, settled, walk=True): array for leaf, array in values.items()}
        order = toposort(roots)
    with np.errstate(all="ignore"):
        for node in order:
            if node in values:
                continue
            meaning = node.op.numpy
            assert meaning is not None, f"no array was given for {node!r}"
            try:
                values[node] = meaning(node, *[values[s] for s in node.src])
            except BoundsError as error:
                raise first_outside(node, values) or error from None
    return [values[root] for root in roots]


def settle(order: Sequence[Node], variables: Mapping[str, int]) -> dict[Node, Node]:
    """For each BIND and VAR of a graph the constant it stands for; two values are an error."""
    known = dict(variables)
    for node in order:
        if node.op is BIND:
            name, value = node.src[0].arg[0], constant_bits(node.arg, node.dtype).value
            assert isinstance(value, int)
            if known.setdefault(name, value) != value:
                raise VariableError(
                    f"variable {name!r} is bound to {known[name]} and to {value} in one graph",
                    "use two variables, or realize one result first",
                )
    settled: dict[Node, Node] = {}
    for node in order:
        if node.op is VAR:
            settled[node] = _value(node, known)
        elif node.op is BIND:
            settled[node] = _value(node.src[0], known)
    return settled


def _value(var: Node, known: Mapping[str, int]) -> Node:
    name, low, high, _ = var.arg
    if name not in known:
        raise VariableError(f"variable {name!r} has no value", f"bind it: {name}.bind({low})")
    if not low <= known[name] <= high:
        raise VariableError(f"{name} = {known[name]} is not in {low}..{high}", "bind it in range")
    return constant(known[name], var.dtype, var.shape)


def size_value(size: Node, values: Mapping[str, int]) -> int:
    """The value of a symbolic size once the variables are known."""
    if size.op is VAR and size.arg[1] <= values.get(size.arg[0], size.arg[1] - 1) <= size.arg[2]:
        return int(values[size.arg[0]])
    return int(evaluate([size], variables=values)[0])
