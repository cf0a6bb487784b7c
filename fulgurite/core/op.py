"""What the project knows about one op: the type of an entry in the op table.

In: a declaration in `core/ops/`. Out: an `Op` that enters itself in `OPS`. Builder, verifier,
reference device, text, gradients, batching, renderers, docs and generated tests all read the
entry; none of them has a list of ops of its own, so adding an op is adding one entry.
Calling an op makes its node from sources that already fit: `core/build.py` is for checked input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .dtype import DType
from .extension import EXTENSION, compiled, give
from .lazy_dataclass import dataclass
from .node import Bounds, Node, Shape, make
from .operators import OPS
from .symbolic.sym import ATOMS

Array: TypeAlias = np.ndarray[Any, Any]
TENSOR = frozenset({"tensor"})
BOTH = frozenset({"tensor", "index"})


def first_dtype(src: tuple[Node, ...], arg: Any) -> DType:
    """The dtype rule "as the first source"."""
    return src[0].dtype


def last_dtype(src: tuple[Node, ...], arg: Any) -> DType:
    """The dtype rule "as the last source"."""
    return src[-1].dtype


def first_shape(node: Node) -> Shape:
    """The shape rule "as the first source"."""
    return node.src[0].shape


def no_interval(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    """The bounds rule of an op about which nothing is known."""
    return None


def source_device(node: Node) -> str | None:
    """The device rule "where the first source that is anywhere is"."""
    for source in node.src:
        device = source.device
        if device is not None:
            return device
    return None


NOBODY: frozenset[int] = frozenset()


def source_watched(node: Node) -> frozenset[int]:
    """The gradient scopes of all sources; only inexact values carry gradients."""
    watched = NOBODY
    if node.dtype.kind in "fc":
        for source in node.src:
            more = source.watched
            if more and more is not watched:
                watched = more | watched if watched else more
    return watched


@compiled
def derived(node: Node, shape: Shape) -> Node:
    """A node whose facts are filled in at once: this shape, the rest by the rules above.

    A source that does not know its own yet leaves that to its first reader.
    """
    node._shape = shape
    device: str | None = None
    watched = NOBODY
    try:
        for source in node.src:
            device = device or source._device
            more = source._watched
            if more and more is not watched:
                watched = more | watched if watched else more
    except AttributeError:
        return node
    node._device = device
    node._watched = watched if node.dtype.kind in "fc" else NOBODY
    return node


def nothing_wrong(node: Node) -> str | None:
    """The verifier's rule of an op that dtype, arity and shape describe fully."""
    return None


def meaning_of(node: Node) -> Callable[..., Array]:
    """What a node is of the arrays of its sources, for who runs it again and again."""
    op = node.op
    assert op.numpy is not None, f"{node!r} cannot be run"
    return partial(op.numpy, node) if op.prepared is None else op.prepared(node)


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Op:
    """One kind of operation; compared by identity."""

    name: str
    family: str
    doc: str  # one line for the generated reference
    arity: int | None  # sources that are data; further ones are symbolic sizes; None: any number
    numpy: Callable[..., Array] | None  # (node, *arrays) -> array: the meaning
    # node -> the same of arrays alone, where what the node decides can be worked out beforehand
    prepared: Callable[[Node], Callable[..., Array]] | None = None
    # None: not derived from the sources, said where the node is made
    dtype: Callable[[tuple[Node, ...], Any], DType] | None = first_dtype
    shape: Callable[[Node], Shape] = first_shape
    kinds: str = "biufc"  # the kinds of dtype its (first) source may have
    # (g, y, *src) -> gradient of each source, None where there is none
    grad: Callable[..., tuple[Node | None, ...]] | None = None
    # (y, tangents of src, None where there is none) -> tangent of y; None: the transpose of grad
    tangent: Callable[[Node, tuple[Node | None, ...]], Node | None] | None = None
    # nodes that agree in this are the results of one computation: they share a kernel, and their
    # gradient is one: (gradients, nodes, is each source wanted) -> gradient of each source
    siblings: Callable[[Node], Hashable] | None = None
    # (y, src) -> y with a leading batch axis, which all of src have
    batch: Callable[[Node, tuple[Node, ...]], Node] | None = None
    interval: Callable[[Node, list[Bounds | None]], Bounds | None] = no_interval
    device: Callable[[Node], str | None] = source_device
    watched: Callable[[Node], frozenset[int]] = source_watched
    check: Callable[[Node], str | None] = (
        nothing_wrong  # what is wrong with a node, for the verifier
    )
    sizes: slice | None = None  # the part of its argument that may be sizes; the rest is axes, ...
    levels: frozenset[str] = TENSOR
    llvm: Mapping[str, str] = field(default_factory=dict)  # spelling by kind of dtype
    triton: str = ""
    commutative: bool = False
    associative: bool = False  # exactly so for whole numbers, up to rounding for floats
    identity: Callable[[DType], float | int | bool] | None = None
    # the value, if there is one, that stays whatever is met: op(a, absorbing) is absorbing
    absorbing: Callable[[DType], int | None] | None = None
    monotone: int = 0  # 1 rising, -1 falling, 0 neither, in its first source
    domain: tuple[float, float] = (-3.0, 3.0)  # where samples for tests are drawn
    smooth: bool = True  # has finite differences everywhere in its domain
    jumps: bool = False  # a rounding error in a source may change the result by much
    cost: int = 1  # of one element, in additions

    def __post_init__(self) -> None:
        assert self.name not in OPS, f"op {self.name!r} is declared twice"
        OPS[self.name] = self

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *src: Node, arg: Hashable = None) -> Node:
        """The node of this op on sources that fit already."""
        assert self.dtype is not None, f"{self}: say the dtype with make"
        return make(self, self.dtype(src, arg), src, arg)


if EXTENSION is not None:
    Op.__call__ = EXTENSION.call  # type: ignore[method-assign]


def kind_bit(dtype: DType) -> int:
    """What the extension knows of a dtype: its kind as a bit."""
    return 64 << "fcbiuv".index(dtype.kind)


def facts(op: Op) -> int:
    """What the extension knows of an op, as bits: its common rules, and the kinds that it takes."""
    rules = (
        op.dtype is first_dtype, op.dtype is last_dtype, op.shape is first_shape,
        op.device is source_device, op.watched is source_watched, op.family == "control",
    )  # fmt: skip
    return sum([1 << i for i, rule in enumerate(rules) if rule]) + sum(
        [64 << "fcbiuv".index(kind) for kind in set(op.kinds)]
    )


give(NOBODY=NOBODY, facts=facts, kind_bit=kind_bit)
ATOMS.add(Op)
