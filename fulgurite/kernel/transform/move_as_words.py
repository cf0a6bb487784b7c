"""Widened copies: bytes that are only moved, moved as words of four.

In: an `IndexKernel` and the dtypes of its params. Out: the same kernel over numbers of 32 bits, a
fourth of the steps along one axis, where it does nothing but move bytes that are neighbours along
that axis, from and to multiples of four: paddings, crops and copies of images with channels last.
Constants are four times the byte. A vector then moves four times as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dtype import DType, uint32
from ...core.node import Node, make, toposort
from ...core.ops.elementwise import WHERE
from ...core.ops.index import LOAD, STORE, VALID
from ...core.ops.leaf import CONST, SINK
from ...graph.ir.affine import Affine, Atom
from ...graph.ir.bodies import transformed
from ...graph.ir.lower import IndexKernel

WORD = uint32.itemsize


def move_as_words(
    kernel: IndexKernel, dtypes: Sequence[DType]
) -> tuple[IndexKernel, tuple[DType, ...]]:
    """The kernel whose moves of bytes are moves of words, if it has no others."""
    order = toposort([kernel.body])
    inner = _byte_axis(kernel, order)
    if inner is None:
        return kernel, tuple(dtypes)

    def place(index: Affine) -> Affine:
        start, terms = index
        return start // WORD, tuple([(a, c if a == inner else c // WORD) for a, c in terms])

    def change(node: Node, sources: tuple[Node, ...]) -> Node:
        if node.op in (LOAD, STORE):
            arg = (node.arg[0], place(node.arg[1]), *node.arg[2:])
            return make(node.op, node.dtype if node.op is STORE else uint32, sources, arg)
        if node.dtype.bits != 8 or node.dtype.kind not in "iu":
            return make(node.op, node.dtype, sources, node.arg)
        arg = node.arg
        if node.op is CONST:
            arg = (node.arg[0] * 0x01010101, *node.arg[1:])  # the same byte four times
        return make(node.op, uint32, sources, arg)

    (body,) = transformed([kernel.body], change)
    sizes = list(kernel.axes)
    length = sizes[inner]
    assert isinstance(length, int)
    sizes[inner] = length // WORD
    used = {n.arg[0] for n in order if n.op in (LOAD, STORE)}
    kinds = tuple([uint32 if n in used else dtype for n, dtype in enumerate(dtypes)])
    return IndexKernel(tuple(sizes), body, kernel.divisions), kinds


def _byte_axis(kernel: IndexKernel, order: Sequence[Node]) -> int | None:
    """The axis along which words could be moved, if moving bytes is all that a kernel does."""
    if not all(_moves_bytes(n) for n in order):
        return None
    places = [n.arg[1] for n in order if n.op in (LOAD, STORE)]
    fixed = _atoms([index for n in order for index in _asked(n)])
    if not all(isinstance(atom, int) for atom in fixed | _atoms(places)):
        return None
    for axis, size in enumerate(kernel.axes):
        whole = isinstance(size, int) and not size % WORD
        if whole and axis not in fixed and _is_whole(places, axis):
            return axis
    return None


def _atoms(indices: Sequence[Affine]) -> set[Atom]:
    """What indices are made of."""
    return {atom for index in indices for atom, _ in index[1]}


def _moves_bytes(node: Node) -> bool:
    """True if a node may be part of a kernel that moves bytes: no value decides where they go."""
    if node.op not in (LOAD, STORE):
        return node.op in (CONST, WHERE, VALID, SINK)
    value = node if node.op is LOAD else node.src[0]
    plain = not node.src if node.op is LOAD else len(node.src) == 1 and node.arg[2] == "set"
    return plain and value.dtype.bits == 8 and value.dtype.kind in "iu"


def _asked(node: Node) -> list[Affine]:
    """The indices of what a node asks."""
    conditions = node.arg[2] if node.op is LOAD else node.arg if node.op is VALID else ()
    return [index for index, _ in conditions]


def _is_whole(places: Sequence[Affine], axis: int) -> bool:
    """True if indices walk along an axis by bytes, and by words otherwise."""
    moves = [start for start, _ in places]
    moves += [step for _, terms in places for atom, step in terms if atom != axis]
    return all((axis, 1) in terms for _, terms in places) and not any(m % WORD for m in moves)
