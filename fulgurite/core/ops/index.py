"""Index notation: the ops of a kernel's body, where movement is gone and every value has a place.

Nodes here have no shape; a value depends on the kernel's axes that its loads and indices name.
LOAD's argument is (param, flat index, conditions): where a condition fails it reads 0. STORE's is
(param, flat index, mode, axes): once for every step of these axes, which the index may not show.
FOLD folds over whole axes; RUN is the running fold along one, ORDER the stable order along one;
GUARD keeps a dynamic index inside an axis (whose size is its second source where that varies) and
reports one that was not. Indices are the affine tuples of `graph/ir/affine.py`; a `Source` in one
is a source of the node. Their NumPy meaning is the kernel interpreter's business, since it depends
on the axes.
"""

from __future__ import annotations

from typing import Any

from ..dtype import bool_, int32, int64, uint32, void
from ..node import Bounds, Node, Shape
from ..op import Op

INDEX_LEVEL = frozenset({"index"})


def gives_values(arg: Any) -> bool:
    """True if an ORDER's result are the values in order, not their places."""
    return len(arg) > 3 and bool(arg[3])


def _no_shape(node: Node) -> Shape:
    return ()


def _op(name: str, doc: str, **more: Any) -> Op:
    return Op(
        name=name, family="index", doc=doc, numpy=None, levels=INDEX_LEVEL,
        shape=_no_shape, **({"arity": None} | more),
    )  # fmt: skip


def _guard_bounds(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    return 0, max(0, node.arg - 1)


INDEX = _op("index", "the value of an index", dtype=lambda src, arg: int64)
VALID = _op("valid", "do all conditions hold?", dtype=lambda src, arg: bool_,
            interval=lambda node, bounds: (0, 1))  # fmt: skip
LOAD = _op("load", "the element of a param at an index, 0 where a condition fails", dtype=None)
GUARD = _op("guard", "a dynamic index, kept inside an axis and reported if it was not",
            kinds="iu", interval=_guard_bounds)  # fmt: skip
FOLD = _op("fold", "an op folded over whole axes", arity=1)
RUN = _op("run", "the running fold of an op along an axis", interval=lambda node, bounds: None)
ORDER = _op("order", "the stable order along an axis, as places or as what is there", arity=1,
            dtype=lambda src, arg: src[0].dtype if gives_values(arg) else int32)  # fmt: skip
BITS = _op("bits", "random bits of (key low, key high, counter, position)", arity=4,
           dtype=lambda src, arg: uint32, kinds="u")  # fmt: skip
STORE = _op("store", "a value written to a param at an index", dtype=lambda src, arg: void)
