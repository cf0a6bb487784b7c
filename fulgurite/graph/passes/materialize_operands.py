"""Materialised operands: sources of the user's native kernels and of loops, multiplied bytes.

In: a SINK. Out: the same graph, in which every source of a native call or a loop is a value that
some kernel stores or a param: what is only moved, a number or a count is laid out in memory first,
once for all steps of a loop, whose driver knows addresses only. Host
functions need nothing of the kind: Python moves elements itself. What is made of moved values alone
(a part of a pool) is stored before windows of it are multiplied: each element is in many. A factor
of a contraction that is bytes made wider is stored as the bytes: they are a quarter of what a
kernel reads again and again, and processors multiply them as they are. Where tensor cores multiply
(`reuse`), so is a factor that is rounded to 16 bits from inputs alone (the weights under autocast):
it is rounded once, and copied into tiles as it is. There too, a value of which products read rows
of merged axes (heads side by side, behind attention) is stored in that order by whoever computes
it: the copy engine takes rows, and all other readers see it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.node import Node, make, remember, toposort
from ...core.ops.control import LOOP
from ...core.ops.effect import CALL, CONTIGUOUS
from ...core.ops.elementwise import CAST
from ...core.ops.leaf import CONST, IOTA, PARAM, VAR, VIEW
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE, UNWINDOW, WINDOW, permute
from ...core.ops.reduce import REDUCE
from ..ir.kernel_kind import KernelKind
from ..ir.queries import elements, is_contraction, unmoved


def materialize_operands(
    sink: Node, order: Sequence[Node], reuse: int = 0,
    keeps_float8: Callable[[Node], bool] = lambda fold: False,
) -> Node:  # fmt: skip
    """The graph with the sources of native calls and loops, and multiplied bytes, laid out.

    So are factors of 16 bits of which every element is multiplied `reuse` times, unless that is 0;
    of a sum of products of float8 that the device takes as they are, those.
    """
    stored = _multiplied_bytes(order) | _windowed(order)
    rounded = _rounded_inputs(order, reuse, keeps_float8) if reuse else set()
    stored |= rounded
    moved = _read_in_rows(order, sink) if reuse else {}
    if not stored and not moved and not any([node.op is CALL or node.op is LOOP for node in order]):
        return sink
    made: dict[Node, Node] = {}
    for node in order:
        sources = _laid_out(node, [made[s] for s in node.src])
        if tuple(sources) == node.src:
            made[node] = node
        else:
            rebuilt = make(node.op, node.dtype, tuple(sources), node.arg)
            made[node] = remember(rebuilt, node.origins)
        if node in rounded and _is_turned(node):
            made[node] = _stored_as_input(made[node])
        elif node in stored:
            made[node] = CONTIGUOUS(made[node])
        elif node in moved:
            kept = CONTIGUOUS(permute(made[node], moved[node]))
            back = sorted(range(node.ndim), key=moved[node].__getitem__)
            made[node] = permute(kept, tuple(back))
    return made[sink]


def _read_in_rows(order: Sequence[Node], sink: Node) -> dict[Node, tuple[int, ...]]:
    """Values of 16 bits of which products read merged axes, and the order these are merged in."""
    found: dict[Node, set[tuple[int, ...]]] = {}
    products = [n.src[0] for n in order if n.op is REDUCE and is_contraction(n)]
    for merged in [_merged(factor) for product in products for factor in product.src]:
        if merged.op is RESHAPE and merged.src[0].op is PERMUTE and _keeps_rows(merged):
            found.setdefault(merged.src[0].src[0], set()).add(merged.src[0].arg)
    return {v: min(orders) for v, orders in found.items() if len(orders) == 1 and v not in sink.src}


def _merged(factor: Node) -> Node:
    """What a factor repeats or widens, down to the reshape of a permutation."""
    while factor.op in (EXPAND, RESHAPE, CAST) and factor.src[0].op is not PERMUTE:
        factor = factor.src[0]
    return factor


def _keeps_rows(merged: Node) -> bool:
    """True if a computed value is permuted but for its last axis, of which axes are merged then."""
    permuted = merged.src[0]
    value = permuted.src[0]
    computed = value.op.family == "elementwise" or value.op is REDUCE
    last = permuted.arg[-1] == value.ndim - 1
    axes = [sum([n != 1 for n in node.shape]) for node in (permuted, merged)]
    return computed and value.dtype.is_small_float and last and axes[1] < axes[0]


def _laid_out(node: Node, sources: list[Node]) -> list[Node]:
    """The sources of a node, in memory where it knows addresses only."""
    if node.op is CALL and node.arg[1].kind == KernelKind.USER:
        count = node.arg[2]
        return [*map(_stored, sources[:count]), *sources[count:]]
    if node.op is LOOP:  # which lays out constants once, for all runs
        return [s if s.op in (CONST, IOTA, VAR) else _stored(s) for s in sources]
    return sources


def _multiplied_bytes(order: Sequence[Node]) -> set[Node]:
    """Computed bytes of which wider numbers are factors of a contraction."""
    found: set[Node] = set()
    for node in order:
        if node.op is REDUCE and node.dtype.kind in "iu" and is_contraction(node):
            for factor in node.src[0].src:
                wide = unmoved(factor)
                if wide.op is CAST and wide.src[0].dtype.bits == 8:
                    narrow = unmoved(wide.src[0])
                    if narrow.op.family == "elementwise":
                        found.add(narrow)
    return found


def _rounded_inputs(
    order: Sequence[Node], reuse: int, keeps_float8: Callable[[Node], bool]
) -> set[Node]:
    """Inputs rounded to 16 bits that are factors of contractions, and multiplied many times."""
    found: set[Node] = set()
    for fold in [n for n in order if n.op is REDUCE and is_contraction(n)]:
        narrow = float8_factors(fold)
        if narrow and keeps_float8(fold):
            found |= {value for value in narrow if value.op.family == "elementwise"}
            continue
        product = fold.src[0]
        found |= {n for n in map(_narrow, product.src) if _is_rounded_input(n, product, reuse)}
    return found


def _is_rounded_input(narrow: Node, product: Node, reuse: int) -> bool:
    """True if a factor is rounded to 16 bits from inputs alone, and multiplied often enough."""
    computed = narrow.dtype.is_small_float and narrow.op.family == "elementwise"
    often = elements(product.shape) >= reuse * elements(narrow.shape)
    return computed and often and _is_of_inputs(narrow)


def float8_factors(fold: Node) -> list[Node]:
    """The values of float8 that both factors of a sum of products are, made wider; or none."""
    found = []
    for factor in fold.src[0].src:
        value = unmoved(factor)
        while value.op is CAST and value.dtype.bits > 8:
            value = unmoved(value.src[0])
        if value.dtype.kind != "f" or value.dtype.bits != 8:
            return []
        found.append(value)
    return found


def _is_turned(rounded: Node) -> bool:
    """True of a rounded permutation of memory: a copy in another order costs more than a copy."""
    turned = rounded.src[0]
    return rounded.op is CAST and turned.op is PERMUTE and turned.src[0].op.family == "leaf"


def _stored_as_input(rounded: Node) -> Node:
    """A rounded permutation, stored in the order of what is permuted."""
    turned = rounded.src[0]
    return permute(CONTIGUOUS(CAST(turned.src[0], arg=rounded.arg)), turned.arg)


def _narrow(factor: Node) -> Node:
    """What a factor is before it is made wider."""
    wide = unmoved(factor)
    return unmoved(wide.src[0]) if wide.op is CAST else wide


def _is_of_inputs(value: Node) -> bool:
    """True if a value is computed from inputs element by element."""
    plain = ("elementwise", "leaf", "movement")
    return all(n.op.family in plain and n.op is not UNWINDOW for n in toposort([value]))


def _windowed(order: Sequence[Node]) -> set[Node]:
    """Values made of moved ones alone whose windows are factors of a contraction."""
    if not any([n.op is WINDOW and n.dtype.is_inexact for n in order]):
        return set()
    products = [n.src[0] for n in order if n.op is REDUCE and is_contraction(n)]
    factors = [factor for product in products for factor in product.src if _slides(factor)]
    values = [unmoved(factor) for factor in factors]
    return {v for v in values if v.op.family == "elementwise" and len(v.src) > 1 and _joins(v)}


def _slides(factor: Node) -> bool:
    """True if windows are among the moves of a value."""
    while _moves(factor):
        if factor.op is WINDOW:
            return True
        factor = factor.src[0]
    return False


def _moves(node: Node) -> bool:
    return node.op.family == "movement" and node.op is not UNWINDOW


def _joins(value: Node) -> bool:
    """True if a value is made of moved ones alone."""
    return all(map(_moves, value.src))


def _stored(source: Node) -> Node:
    memory = source
    while memory.op is RESHAPE:
        memory = memory.src[0]
    if memory.op is PARAM:
        return source
    return CONTIGUOUS(source) if _moves(memory) or memory.op in (CONST, IOTA, VAR, VIEW) else source
