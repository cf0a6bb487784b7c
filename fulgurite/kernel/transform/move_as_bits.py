"""Small floats that are only moved, moved as bits.

In: an `IndexKernel` and the dtypes of its params. Out: the same kernel in which loads, choices and
constants of a small float that go straight to a store, or are taken for whole numbers by their
bits, are unsigned numbers of the same width. Small floats compute in float32, and the way there and
back keeps every number but not the payload of every NaN; a concatenation or a gather must keep all
bits. A param that is also computed with is read as bits by both, and those are taken for a small
float where the computing begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dtype import DType, uint8, uint16
from ...core.node import Node, make, toposort
from ...core.ops.elementwise import BITCAST, WHERE
from ...core.ops.index import LOAD, STORE
from ...core.ops.leaf import CONST
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import walk


def move_as_bits(
    kernel: IndexKernel, dtypes: Sequence[DType]
) -> tuple[IndexKernel, tuple[DType, ...]]:
    """The kernel whose plain moves of small floats are moves of whole numbers."""
    order = toposort([kernel.body])
    moved = _movement_only(order)
    stores = _plain_stores(order, moved)
    casts = [n for n in order if n.op is BITCAST and n.src[0] in moved]
    if not stores and not casts:
        return kernel, tuple(dtypes)
    chosen = walk(  # what moved values are chosen from, and they
        [reader.src[0] for reader in (*stores, *casts)],
        lambda n: [s for s in n.src if s in moved] if n.op in (WHERE, BITCAST) else (),
    )
    params = {n.arg[0] for n in chosen if n.op is LOAD}
    kinds = list(dtypes)
    for number in (*params, *[store.arg[0] for store in stores]):
        kinds[number] = unsigned(dtypes[number])
    work = _Bits(moved, params)
    for node in order:
        work.add(node, node in stores)
    return IndexKernel(kernel.axes, work.known[kernel.body], kernel.divisions), tuple(kinds)


def _movement_only(order: Sequence[Node]) -> set[Node]:
    """Small floats made of loads, constants, bits and choices of such alone."""
    moved: set[Node] = set()
    for node in order:
        if node.dtype.is_small_float:
            chosen = node.op is WHERE and moved.issuperset(node.src[1:])
            if chosen or node.op in (LOAD, CONST, BITCAST):
                moved.add(node)
    return moved


def _plain_stores(order: Sequence[Node], moved: set[Node]) -> list[Node]:
    """Stores of what is only moved, to memory that nothing else is written to."""
    stores = [n for n in order if n.op is STORE]
    plain = [n for n in stores if n.arg[2] == "set" and n.src[0] in moved]
    others = {n.arg[0] for n in stores if n not in plain}
    return [n for n in plain if n.arg[0] not in others]


def unsigned(dtype: DType) -> DType:
    """The whole numbers of a small float's width."""
    return {8: uint8, 16: uint16}[dtype.bits]


class _Bits:
    def __init__(self, moved: set[Node], params: set[int]) -> None:
        self.moved = moved
        self.params = params  # those that are read as bits
        self.known: dict[Node, Node] = {}
        self.bits: dict[Node, Node] = {}

    def add(self, node: Node, is_store: bool) -> None:
        src = tuple([self.known[s] for s in node.src])
        if is_store:
            src = (self.bits[node.src[0]], *src[1:])
        if node in self.moved:
            self.bits[node] = self.as_bits(node, src)
        if node.op is LOAD and node.arg[0] in self.params:
            self.known[node] = make(BITCAST, node.dtype, (self.bits[node],), node.dtype)
        elif node.op is BITCAST and node.src[0] in self.bits:
            whole = self.bits[node.src[0]]
            same = node.dtype is whole.dtype
            self.known[node] = whole if same else make(BITCAST, node.dtype, (whole,), node.dtype)
        else:
            self.known[node] = make(node.op, node.dtype, src, node.arg)

    def as_bits(self, node: Node, src: tuple[Node, ...]) -> Node:
        whole = unsigned(node.dtype)
        if node.op is WHERE:
            return make(WHERE, whole, (src[0], self.bits[node.src[1]], self.bits[node.src[2]]))
        if node.op is BITCAST and node.src[0] in self.bits:
            return self.bits[node.src[0]]
        if node.op is BITCAST:
            return src[0] if src[0].dtype is whole else make(BITCAST, whole, src, whole)
        return make(node.op, whole, src, node.arg)
