"""Which line first made a NaN or an infinity: a graph's values followed back to where they began.

In: roots whose values a device gave are not finite, and the arrays of what they read. Out: a
`NonFiniteError` at the user's line. The graph is evaluated node by node, as the reference device
does; from each bad root its bad sources are followed to the nodes that have none, and the first of
these is named, with the operands of the first bad element; of a NaN that was made of an infinity
the line that made that one too. Infinities that a constant or an input brought are no finding:
masks are made of them. Bodies of loops are followed step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...core.dtype import DType
from ...core.node import Node, toposort
from ...core.op import Array
from ...core.ops.control import COND, LOOP, Loop
from ...core.ops.leaf import BUFFER, CONST, PARAM
from ...core.origin import Origin, places
from ...core.shape import show
from ...errors import NonFiniteError
from .evaluate import evaluate

Values = Mapping[Node, Array]


def _nans(array: Array, dtype: DType) -> Array:
    found: Array = np.isnan(array.astype(np.complex128 if dtype.kind == "c" else np.float64))
    return found


def _infinities(array: Array, dtype: DType) -> Array:
    found: Array = np.isinf(array.astype(np.complex128 if dtype.kind == "c" else np.float64))
    return found


KINDS = {"NaN": _nans, "infinity": _infinities}


def is_bad(array: Array, dtype: DType) -> bool:
    """True if an array holds a NaN or an infinity."""
    return bool((_nans(array, dtype) | _infinities(array, dtype)).any())


class Culprit(NamedTuple):
    """The node that made a bad value of good ones."""

    node: Node
    kind: str  # NaN or infinity
    values: Values
    step: int | None = None  # of the loop that it is in
    around: tuple[Origin, ...] = ()  # the lines of that loop


def name_the_line(
    roots: Sequence[Node], arrays: Mapping[Node, Array], variables: Mapping[str, int]
) -> None:
    """Raise a `NonFiniteError` at the line that first made a bad value; not if data brought it."""
    order = toposort(roots)
    values = dict(zip(order, evaluate(order, arrays, variables), strict=True))
    found = next(iter(_culprits(order, roots, values)), None)
    if found is not None:
        raise _error(found)
    if not any([_is(root, kind, values) for root in roots for kind in KINDS]):
        raise NonFiniteError(
            "a result is not finite, though NumPy's meaning of its ops gives finite numbers",
            "fg.compare(function, device, 'reference') finds the op whose values part",
            places([o for root in roots for o in root.origins[:1]]) or "",
        )


def _is(node: Node, kind: str, values: Values) -> bool:
    """True if a node's value has a NaN, or an infinity, in it."""
    return node.dtype.is_inexact and bool(KINDS[kind](values[node], node.dtype).any())


def _culprits(
    order: Sequence[Node], roots: Sequence[Node], values: Values, kinds: Sequence[str] = (*KINDS,)
) -> Iterator[Culprit]:
    """The nodes that made bad values, in the order of a graph; NaNs before infinities."""
    for kind in kinds:
        reached = {root for root in roots if _is(root, kind, values)}
        first: list[Node] = []
        for node in reversed(order):
            if node in reached:
                bad = [source for source in node.src if _is(source, kind, values)]
                reached.update(bad)
                if not bad:
                    first.append(node)
        for node in reversed(first):
            if node.op in (BUFFER, PARAM, CONST) and kind == "infinity":
                continue
            yield _inner(Culprit(node, kind, values))


def _inner(found: Culprit) -> Culprit:
    """Of a loop or a choice the node of its body, and the step."""
    node, values = found.node, found.values
    if node.op not in (LOOP, COND):
        return found
    for step, (order, roots, now) in enumerate(_bodies(node, values)):
        for inside in _culprits(order, roots, now):
            if inside.node.op is not PARAM:
                number = step if node.op is LOOP and inside.step is None else inside.step
                return inside._replace(step=number, around=node.origins)
    return found


def _bodies(node: Node, values: Values) -> Iterator[tuple[Sequence[Node], Sequence[Node], Values]]:
    """The bodies that a loop or a choice runs, one after the other, with all their values."""
    if node.op is COND:
        body = node.arg[1 if bool(values[node.src[0]]) else 2]
        inputs = [values[source] for source in node.src[1:]]
        yield body.order, body.roots, _body_values(body.order, inputs)
        return
    loop = Loop.of(node)
    now = [values[source] for source in loop.inputs]
    steps = loop.steps
    count = steps if steps is None or isinstance(steps, int) else int(values[steps])
    for row in loop.order(count):
        if loop.mode == "while" and not now[0]:
            return
        if loop.mode == "where" and not now[loop.carries][row]:
            continue
        inputs = [a[row] if i in loop.rows else a for i, a in enumerate(now)]
        found = _body_values(loop.body.order, inputs)
        yield loop.body.order, loop.body.roots, found
        now[: loop.carries] = [found[root] for root in loop.body.roots[: loop.carries]]


def _body_values(order: Sequence[Node], inputs: Sequence[Array]) -> Values:
    """The value of every node of a body."""
    given = {
        n: np.asarray(inputs[n.arg[0]]).reshape(n.shape)  # type: ignore[arg-type]
        for n in order
        if n.op is PARAM
    }
    return dict(zip(order, evaluate(order, given), strict=True))


def _error(found: Culprit) -> NonFiniteError:
    """What is said of a node that made a bad value."""
    node, values = found.node, found.values
    bad = KINDS[found.kind](values[node], node.dtype)
    first = tuple([int(i[0]) for i in np.nonzero(bad)]) if bad.ndim else ()
    place = f", the first at {list(first)}" if first else ""
    many = f"{int(bad.sum())} of {bad.size} elements{place}"
    what = f"{node.dtype}{show(node.shape)}"
    article = "an" if found.kind == "infinity" else "a"
    if node.op in (BUFFER, PARAM):
        said = f"an input of {what} holds {article} {found.kind} already: {many}"
    else:
        of = _of(node, values, first)
        said = f"{node.op.name} made {article} {found.kind} in {what}: {many}{of}"
    said += _infinity_before(found)
    if found.step is not None:
        said += f", in step {found.step} of a loop"
    where = places(node.origins) or places(found.around)
    hint = "look at the operands there; fg.config(check_nan=False) goes on without looking"
    return NonFiniteError(said, hint, where or "")


def _infinity_before(found: Culprit) -> str:
    """Where the infinity was made that a NaN was made of: of inf - inf, 0 * inf and their like."""
    if found.kind != "NaN":
        return ""
    order = toposort(found.node.src)
    before = next(iter(_culprits(order, found.node.src, found.values, ["infinity"])), None)
    if before is None:
        return ""
    node = before.node
    bad = KINDS["infinity"](before.values[node], node.dtype)
    first = tuple([int(i[0]) for i in np.nonzero(bad)]) if bad.ndim else ()
    where = places(node.origins) or places(before.around)
    of = _of(node, before.values, first)
    return f"; the infinity there was made by {node.op.name}{of}{f', at {where}' if where else ''}"


def _of(node: Node, values: Values, first: tuple[int, ...]) -> str:
    """The operands of an element, where they are at the same index; else their range."""
    if node.op.family == "elementwise" and node.src:
        numbers = [
            f"{values[s][first]!s}" for s in node.src if values[s].shape == values[node].shape
        ]
        return f", of {' and '.join(numbers)}" if numbers else ""
    if node.src and node.src[0].dtype.is_inexact and values[node.src[0]].size:
        array = values[node.src[0]].astype(np.float64) if node.src[0].dtype.kind == "f" else None
        if array is not None:
            return f", of numbers from {np.nanmin(array):.6g} to {np.nanmax(array):.6g}"
    return ""
