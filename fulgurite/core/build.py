"""Checked constructors: what a user writes, as nodes that fit together.

In: nodes, Python numbers, shapes and axes as users write them. Out: nodes whose dtypes are
promoted, shapes broadcast and arguments in normal form. Everything that can be wrong with an
expression is found here and raised at the user's line; the graph behind it needs no checks.
Each function notes the user's line beside the node it makes, on an interning hit too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from operator import index as as_index
from typing import Any, TypeAlias

from ..errors import (
    ArgumentError,
    AxisError,
    BoundsError,
    DataError,
    DTypeError,
    ShapeError,
    VariableError,
)
from . import shape as sizes
from .checked import Axes as Axes
from .checked import as_axes as as_axes
from .checked import as_axis as as_axis
from .checked import as_flag as as_flag
from .checked import as_place as as_place
from .checked import as_positive as as_positive
from .checked import as_shape as as_shape
from .checked import as_size as as_size
from .checked import whole_number
from .dtype import (
    DType,
    Number,
    bool_,
    default_float,
    default_int,
    dtype_of,
    float32,
    float64,
    int32,
    int64,
    promote,
    uint8,
    uint32,
    uint64,
    weak_dtype,
)
from .extension import compiled, give
from .node import Node, Shape, Size, constant, constant_bits, make
from .op import NOBODY, Op, derived
from .ops import effect, elementwise, indexing, leaf, movement, random, reduce
from .ops import update as box
from .ops.elementwise import ADD, AND, BITCAST, CAST, EQ, LE, LT, MUL, NE, NEG, OR, SUB, WHERE
from .origin import MAX_ORIGINS, Origin, capture

Operand: TypeAlias = Node | Number
Step = tuple[Any, ...]  # op, dtype, arg, shape, then places of earlier nodes that are its sources


@compiled
def note(node: Node, here: Origin | None = None) -> Node:
    """Remember beside a node the user's line that made it (`here`, if that is known)."""
    here = here or capture()
    if here is not None:
        known = node.origins
        if not known:
            node.origins = (here,)
        elif here not in known and len(known) < MAX_ORIGINS:
            node.origins = (*known, here)
    return node


@compiled
def replay(steps: tuple[Step, ...], nodes: list[Node]) -> Node:
    """The nodes of a template over sources: the last of them."""
    here, made = capture(), [*nodes]
    for op, dtype, arg, shape, *numbers in steps:
        node = derived(make(op, dtype, tuple([made[i] for i in numbers]), arg), shape)
        if op is effect.DETACH:
            node._watched = NOBODY
        made.append(node if op is leaf.CONST else note(node, here))
    return made[-1]


# --- leaves --------------------------------------------------------------------------------------


def const(number: Number, dtype: object = None, shape: object = ()) -> Node:
    """A number, the same everywhere; the dtype defaults to that of the Python number."""
    found = promote(weak_dtype(number)) if dtype is None else dtype_of(dtype)
    return note(constant(number, found, as_shape(shape)))


def iota(shape: object, axis: int, dtype: object = int32) -> Node:
    """0, 1, 2, ... along an axis."""
    known, kind = as_shape(shape), dtype_of(dtype)
    if kind is bool_:
        raise DTypeError("a running count is not a bool", "use an integer or float dtype")
    return note(leaf.iota(known, as_axis(axis, len(known)), kind))


def variable(name: str, low: int, high: int) -> Node:
    """A whole number that is known when the graph runs, within bounds that are known now."""
    if not isinstance(name, str) or not name.isidentifier():
        raise VariableError(f"{name!r} cannot name a variable", "use letters, digits and _")
    low, high = whole_number(low, "a bound"), whole_number(high, "a bound")
    if not -(1 << 62) <= low <= high < 1 << 62:
        raise VariableError(
            f"{name} has no values in {low}..{high}", "give low <= high, both within 2**62"
        )
    return note(leaf.variable(name, low, high))


def bind(var: Node, value: int) -> Node:
    """A variable with the value it has in this graph."""
    if not isinstance(var, Node) or var.op is not leaf.VAR:
        raise VariableError(f"{var!r} is not a variable", "bind what fg.Var made")
    name, low, high, _ = var.arg
    whole = whole_number(value, name)
    if not low <= whole <= high:
        raise VariableError(f"{name} = {whole} is not in {low}..{high}", "widen the variable")
    return note(leaf.bind(var, whole))


def buffer(shape: object, dtype: object, device: str = "reference") -> Node:
    """New memory: a node of its own, however equal to another."""
    known = as_shape(shape)
    if not all(isinstance(n, int) for n in known):
        raise ShapeError("memory has fixed sizes", "allocate at the variable's upper bound")
    return note(leaf.new_buffer(known, dtype_of(dtype), device))  # type: ignore[arg-type]


def random_bits(key: Node, counter: Node, shape: object) -> Node:
    """Uniform uint32 bits from a key (two uint32) and a counter (uint64)."""
    if key.dtype is not uint32 or key.shape != (*counter.shape, 2):
        raise DTypeError(f"a key is uint32 (2,), not {key.dtype} {sizes.show(key.shape)}", "")
    if counter.dtype is not uint64:
        raise DTypeError(f"a counter is uint64, not {counter.dtype}", "cast it")
    return note(random.random_bits(key, counter, as_shape(shape)))


# --- elementwise ---------------------------------------------------------------------------------

# the kinds of dtype that a Python number joins without changing them
_KEEPS: dict[type, str] = {float: "fc", int: "iufc", bool: "biufc", complex: "c"}
_BOOL_MEANING = {ADD: OR, MUL: AND}  # as in NumPy: of truths, + is or and * is and


@compiled
def apply(op: Op, *operands: Operand) -> Node:
    """An elementwise op after promotion and broadcasting: what `a + b` does."""
    a, b = operands if len(operands) == 2 else (operands[0], None)
    if isinstance(a, Node) and isinstance(b, Node):  # on the path of every operator
        if a.dtype is b.dtype and a.dtype.kind in op.kinds:
            here, shape = capture(), a.shape
            if len(shape) != len(b.shape) or shape != b.shape:
                shape = sizes.broadcast(shape, b.shape)
                a, b = _stretched(a, shape, here), _stretched(b, shape, here)
            return note(derived(op(a, b), shape), here)
    elif op in _COMPARISONS and (decided := _decided(op, operands)) is not None:
        return decided
    elif isinstance(a, Node) and a.dtype.kind in op.kinds:
        if b is None and len(operands) == 1:
            return note(derived(op(a), a.shape))
        if a.dtype.kind in _KEEPS.get(type(b), ""):  # the number is one of this dtype
            made = derived(constant(b, a.dtype, a.shape), a.shape)  # type: ignore[arg-type]
            return note(derived(op(a, made), a.shape))
    return _promoted(op, operands)


give(
    CONST=leaf.CONST, float32=float32, int32=int32, float64=float64, int64=int64, uint8=uint8
)  # fmt: skip


def _promoted(op: Op, operands: tuple[Operand, ...]) -> Node:
    """An elementwise op of operands of several dtypes or shapes."""
    dtype = promote(*[x.dtype if isinstance(x, Node) else weak_dtype(x) for x in operands])
    op, dtype = _accept(op, dtype)
    shape = sizes.broadcast(*[x.shape if isinstance(x, Node) else () for x in operands])
    return note(derived(op(*[_fit(x, dtype, shape) for x in operands]), shape))


_COMPARISONS: dict[Op, Callable[[Any, Any], bool]] = {  # of whole numbers, by Python's meaning
    EQ: operator.eq, NE: operator.ne, LT: operator.lt, LE: operator.le,
}  # fmt: skip


def _decided(op: Op, operands: tuple[Operand, ...]) -> Node | None:
    """The answer to a comparison with a whole number beyond the dtype: the same for all values."""
    a, b = operands
    node, number = (a, b) if isinstance(a, Node) else (b, a)
    if not isinstance(node, Node) or not isinstance(number, int) or node.dtype.kind not in "biu":
        return None
    low, high = (default_int if node.dtype is bool_ else node.dtype).limits
    if low <= number <= high:
        return None
    holds = _COMPARISONS[op](*[0 if x is node else x for x in operands])  # 0 is on the same side
    return note((EQ if holds else NE)(node, node))  # not a constant: that would have no device


def _accept(op: Op, dtype: DType) -> tuple[Op, DType]:
    """The op and dtype to compute with, or an error if the op does not take such numbers."""
    if dtype.kind in op.kinds:
        return op, dtype
    if dtype.kind == "b" and op in _BOOL_MEANING:
        return _BOOL_MEANING[op], dtype
    if dtype.kind == "b" and op not in (SUB, NEG) and "i" in op.kinds:
        return op, default_int
    if dtype.is_integer and "f" in op.kinds and "i" not in op.kinds:
        return op, default_float
    hint = "use ^ or logical_not" if dtype.kind == "b" else "cast it first: x.cast(dtype)"
    raise DTypeError(f"{op} does not take {dtype}", hint)


def _fit(x: Operand, dtype: DType, shape: Shape) -> Node:
    if isinstance(x, Node):
        return _stretched(cast(x, dtype), shape)
    return constant(x.item() if hasattr(x, "item") else x, dtype, shape)


def where(condition: Operand, a: Operand, b: Operand) -> Node:
    """a where the condition holds, else b."""
    if not isinstance(condition, Node):
        condition = constant(bool(condition), bool_)
    dtype = promote(*[x.dtype if isinstance(x, Node) else weak_dtype(x) for x in (a, b)])
    shape = sizes.broadcast(*[x.shape for x in (condition, a, b) if isinstance(x, Node)])
    parts = _fit(condition, bool_, shape), _fit(a, dtype, shape), _fit(b, dtype, shape)
    return note(derived(WHERE(*parts), shape))


def cast(x: Node, dtype: object) -> Node:
    """The same numbers in another dtype."""
    target = dtype if isinstance(dtype, DType) else dtype_of(dtype)
    if x.dtype is target:
        return x
    if x.op is leaf.CONST and target.is_float and x.dtype.kind in "biu":
        return note(constant(x.value, target, x.shape))
    return note(CAST(x, arg=target))


def bitcast(x: Node, dtype: object) -> Node:
    """The same bits read as another dtype of the same width."""
    target = dtype_of(dtype)
    if x.dtype is target:
        return x
    if x.dtype.bits != target.bits or not {x.dtype.kind, target.kind} <= set("iuf"):
        raise DTypeError(
            f"the bits of {x.dtype} are not those of {target}", "choose a dtype of equal width"
        )
    return note(BITCAST(x, arg=target))


def polygamma(order: int, x: Operand) -> Node:
    """The derivative number `order` of the digamma function."""
    if as_index(order) < 0:
        raise ArgumentError(f"order {order} is below 0", "use 0 for digamma")
    node = x if isinstance(x, Node) else const(float(x))  # type: ignore[arg-type]
    if not node.dtype.is_float:
        node = cast(node, default_float)
    return note(elementwise.polygamma(as_index(order), node))


# --- movement ------------------------------------------------------------------------------------


def reshape(x: Node, shape: object) -> Node:
    """The elements in order, in another shape; one size may be -1 and is computed."""
    plain = _plainly_reshaped(x, shape)
    if plain is not None:
        return plain
    wanted = list(shape) if isinstance(shape, Iterable) and not isinstance(shape, Node) else [shape]
    free = [i for i, n in enumerate(wanted) if not isinstance(n, Node) and n == -1]
    if len(free) > 1:
        raise ShapeError(f"-1 stands twice in {tuple(wanted)}", "leave one size open at most")
    if free:
        wanted[free[0]] = 1
        rest = sizes.prod(as_shape(wanted))
        if rest == 0:
            raise ShapeError("-1 cannot be worked out beside a size of 0", "write the size")
        wanted[free[0]] = _open_size(x.shape, as_shape(wanted))
    target = as_shape(wanted)
    if target == x.shape:
        return x
    if not sizes.same(sizes.prod(target), sizes.prod(x.shape)):
        asked = ", ".join("-1" if i in free else sizes.size_text(n) for i, n in enumerate(target))
        raise ShapeError(
            f"{sizes.show(x.shape)} has {sizes.size_text(sizes.prod(x.shape))} elements and "
            f"cannot take shape ({asked})",
            "the number of elements must stay the same",
        )
    if x.op is leaf.CONST:
        return note(constant_in(x, target))
    return note(movement.reshape(x, target))


def _open_size(shape: Shape, others: Shape) -> Size:
    """The size that is left open: what is left of a shape when the others are taken out.

    Sizes that stay are cancelled: a product of sums of variables is not divided by one of them.
    """
    left, rest = list(shape), list[Size]()
    if not any([type(n) is Node for n in left]):  # of numbers, and what guards are noted of
        return sizes.floordiv(sizes.prod(left), sizes.prod(others))
    for size in others:
        same = [i for i, n in enumerate(left) if sizes.same(n, size)]
        if same:
            left.pop(same[-1])
        else:
            rest.append(size)
    return sizes.floordiv(sizes.prod(left), sizes.prod(rest))


_WHOLE = {int}


def is_plain(shape: Iterable[Any]) -> bool:
    """True of sizes that are numbers: no variables among them."""
    return {*map(type, shape)} <= _WHOLE


def _plainly_reshaped(x: Node, shape: object) -> Node | None:
    """x in a shape of numbers with nothing to work out, which nearly all are; else None."""
    if type(shape) is not tuple and type(shape) is not list:
        return None
    if x.op is leaf.CONST or not is_plain(shape) or not is_plain(x.shape):
        return None
    known = tuple(shape)
    if known == x.shape:
        return x
    if min(known, default=0) < 0 or prod(known) != prod(x.shape):
        return None
    return note(derived(movement.RESHAPE(x, arg=known), known))


def constant_in(x: Node, shape: Shape) -> Node:
    """A constant in another shape: no node between."""
    return constant_bits(x.arg[0], x.dtype, shape)


def expand(x: Node, shape: object) -> Node:
    """x stretched to a shape as broadcasting does: new dimensions in front, size 1 repeated."""
    target = as_shape(shape)
    if target == x.shape:
        return x
    missing = len(target) - x.ndim
    fits = missing >= 0 and all(
        n == 1 or sizes.same(n, m) for n, m in zip(x.shape, target[max(missing, 0) :], strict=True)
    )
    if not fits:
        raise ShapeError(
            f"{sizes.show(x.shape)} does not expand to {sizes.show(target)}",
            "only dimensions of size 1 stretch",
        )
    return _stretched(x, target)


def _stretched(x: Node, target: Shape, here: Origin | None = None) -> Node:
    """x in a shape that it is known to broadcast to."""
    if len(target) == len(x.shape) and target == x.shape:
        return x
    here = here or capture()
    if x.op is leaf.CONST:
        return note(constant_in(x, target), here)
    missing = len(target) - x.ndim
    if missing:
        shape = (1,) * missing + x.shape
        x = note(derived(movement.reshape(x, shape), shape), here)
    return note(derived(movement.expand(x, target), target), here)


def permute(x: Node, order: Sequence[int]) -> Node:
    """The dimensions in another order."""
    if not isinstance(order, Iterable):
        raise AxisError(f"{order!r} is no order of {x.ndim} dimensions", "name each of them once")
    shape, given = x.shape, tuple(order)
    found = (_order if is_plain(given) else _order.__wrapped__)(given, len(shape))
    if found is None:
        return note(x)
    return note(derived(movement.PERMUTE(x, arg=found), tuple([shape[a] for a in found])))


@lru_cache(maxsize=1024)
def _order(order: tuple[int, ...], ndim: int) -> tuple[int, ...] | None:
    """An order of dimensions, all of them from 0 up; None if it changes nothing."""
    found, identity = tuple([as_axis(a, ndim) for a in order]), tuple(range(ndim))
    if tuple(sorted(found)) != identity:
        raise AxisError(f"{order} is no order of {ndim} dimensions", "name each dimension once")
    return None if found == identity else found


def pad(x: Node, pads: Sequence[tuple[object, object]]) -> Node:
    """Zeros before and after each dimension."""
    if len(pads) != x.ndim:
        raise ShapeError(f"{len(pads)} paddings for {x.ndim} dimensions", "give one pair for each")
    return note(movement.pad(x, [(as_size(low), as_size(high)) for low, high in pads]))


def shrink(x: Node, cuts: Sequence[tuple[object, object]]) -> Node:
    """The part from start to stop of each dimension."""
    if len(cuts) != x.ndim:
        raise ShapeError(f"{len(cuts)} cuts for {x.ndim} dimensions", "give one pair for each")
    found = [(as_place(start), as_place(stop)) for start, stop in cuts]
    for (start, stop), n in zip(found, x.shape, strict=True):
        inside(start, stop, n)
    return note(movement.shrink(x, found))


def cut(x: Node, cuts: tuple[int, ...], shape: tuple[int, ...]) -> Node:
    """The part between starts and stops that are numbers inside x, in a shape of as many."""
    here = capture()
    between = tuple([b - a for a, b in zip(cuts[::2], cuts[1::2], strict=True)])
    if between != x.shape:
        x = derived(movement.SHRINK(x, arg=cuts), between)
    note(x, here)
    return x if shape == between else note(derived(movement.reshape(x, shape), shape), here)


def inside(start: Size, stop: Size, size: Size) -> None:
    """An error unless a cut is inside a dimension, whatever the variables are."""
    ordered = sizes.lower(sizes.sub(stop, start)) >= 0 and sizes.lower(sizes.sub(size, stop)) >= 0
    if not ordered or sizes.lower(start) < 0:
        raise ShapeError(
            f"the part {sizes.size_text(start)}:{sizes.size_text(stop)} is not inside a "
            f"dimension of size {sizes.size_text(size)}",
            "0 <= start <= stop <= size must hold for all values of the variables",
        )


def flip(x: Node, axes: Axes = None) -> Node:
    """Some dimensions backwards."""
    return note(movement.flip(x, as_axes(axes, x.ndim)))


def window(x: Node, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Node:
    """Sliding windows along an axis; the window's own axis comes last."""
    place = as_axis(axis, x.ndim)
    size, stride = as_positive(size, "size"), as_positive(stride, "stride")
    dilation = as_positive(dilation, "dilation")
    reach = (size - 1) * dilation + 1
    if sizes.lower(x.shape[place]) < reach:
        raise ShapeError(
            f"a window of {reach} does not fit a dimension of {sizes.size_text(x.shape[place])}",
            "pad it first",
        )
    return note(movement.window(x, place, size, stride, dilation))


# --- reductions, scans and indexing --------------------------------------------------------------


def _reducible(name: str, x: Node) -> None:
    if name not in reduce.REDUCERS:
        known = ", ".join(reduce.REDUCERS)
        raise ArgumentError(f"there is no reduction {name!r}", f"one of {known}")
    if x.dtype.kind not in reduce.REDUCERS[name].kinds:
        raise DTypeError(f"{name} does not reduce {x.dtype}", "cast it first: x.cast(dtype)")


def fold(name: str, x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    """An op ("add", "mul", "max", "min") folded over axes."""
    _reducible(name, x)
    found = as_axes(axes, x.ndim, lone=True)
    keepdims = as_flag(keepdims, "keepdims")
    if name in ("max", "min") and any(x.shape[a] == 0 for a in found):
        raise ShapeError(
            f"the {name} of no elements does not exist", "reduce over a dimension that is not empty"
        )
    return folded(name, x, found, keepdims) if found else note(x)


def folded(name: str, x: Node, axes: tuple[int, ...], keepdims: bool = False) -> Node:
    """`fold` over axes in order of which it is known that it takes them."""
    here, shape = capture(), list(x.shape)
    for axis in axes:
        shape[axis] = 1
    out = note(derived(reduce.REDUCE(x, arg=(name, axes)), tuple(shape)), here)
    if keepdims:
        return out
    for axis in reversed(axes):
        del shape[axis]
    kept = tuple(shape)
    return note(derived(movement.reshape(out, kept), kept), here)


def drop(x: Node, axes: tuple[int, ...]) -> Node:
    """x without some dimensions of size 1."""
    return reshape(x, tuple([n for i, n in enumerate(x.shape) if i not in axes])) if axes else x


def scan(name: str, x: Node, axis: int, reverse: bool = False) -> Node:
    """The running fold of an op along an axis."""
    _reducible(name, x)
    return note(reduce.scan_node(name, x, as_axis(axis, x.ndim), bool(reverse)))


def affine_scan(a: Node, b: Node, axis: int, reverse: bool = False) -> Node:
    """The running s = a*s + b along an axis, from s = 0."""
    dtype, shape = promote(a.dtype, b.dtype), sizes.broadcast(a.shape, b.shape)
    if dtype.kind == "b":
        raise DTypeError("an affine scan does not take bool", "cast it first: x.cast(dtype)")
    a, b = _fit(a, dtype, shape), _fit(b, dtype, shape)
    return note(reduce.affine_scan(a, b, as_axis(axis, a.ndim), bool(reverse)))


def _index(index: Node) -> Node:
    if index.dtype.kind not in "iu":
        raise DTypeError(f"an index is a whole number, not {index.dtype}", "cast it to int32")
    return index


def gather(x: Node, index: Node, axis: int) -> Node:
    """The elements at indexed places along an axis (as NumPy's take_along_axis)."""
    place = as_axis(axis, x.ndim)
    _along(x, _index(index), place)
    _not_empty(x, index, place)
    return note(indexing.gather(x, index, place))


def scatter(name: str, x: Node, index: Node, values: Operand, axis: int) -> Node:
    """A copy of x with values set, added, multiplied, ... at the indexed places."""
    if name not in indexing.SCATTERS:
        known = ", ".join(indexing.SCATTERS)
        raise ArgumentError(f"there is no scatter {name!r}", f"one of {known}")
    place = as_axis(axis, x.ndim)
    _along(x, _index(index), place)
    _not_empty(x, index, place)
    if name != "set":
        _reducible(name, x)
    return note(indexing.scatter(name, x, index, _fit(values, x.dtype, index.shape), place))


def _along(x: Node, index: Node, axis: int) -> None:
    agree = x.ndim == index.ndim and all(
        d == axis or sizes.same(n, m)
        for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    )
    if not agree:
        raise ShapeError(
            f"{sizes.show(x.shape)} cannot be indexed along axis {axis} by "
            f"{sizes.show(index.shape)}",
            "all other dimensions must agree",
        )


def _not_empty(x: Node, index: Node, axis: int) -> None:
    if x.shape[axis] == 0 and 0 not in index.shape:
        raise BoundsError("an axis of size 0 has no elements to index", "check for empty tensors")


def sort_order(x: Node, axis: int, descending: bool = False, first: int = 0) -> Node:
    """The stable order along an axis, as places; with `first` only so many of them may be read."""
    if x.dtype.kind == "c":
        raise DTypeError("complex numbers have no order", "sort their real part or magnitude")
    found = as_flag(descending, "descending")
    return note(indexing.sort_order(x, as_axis(axis, x.ndim), found, first))


# --- effects -------------------------------------------------------------------------------------


def contiguous(x: Node) -> Node:
    """The value, stored in memory of its own."""
    return note(effect.CONTIGUOUS(x))


def detach(x: Node) -> Node:
    """The value, without a gradient."""
    node = effect.DETACH(x)
    node._watched = NOBODY  # readers need not look at its sources
    return note(node)


give(detach=detach)


def copy_to(x: Node, device: str) -> Node:
    """The value on a device."""
    return x if x.device == device else note(effect.copy_to(x, device))


def update(x: Node, part: Node, starts: Sequence[Size], steps: Sequence[int]) -> Node:
    """x with `part` in the box that begins at `starts` and goes on by `steps`, all inside x."""
    return note(box.update(x, part, starts, steps))


def assign(target: Node, value: Node) -> Node:
    """The next version of a buffer."""
    if target.op not in (leaf.BUFFER, leaf.VIEW):
        raise DataError(f"{target.op} is not memory", "assign to a tensor that is realized")
    value = expand(cast(value, target.dtype), target.shape)
    return note(effect.ASSIGN(target, value))


def sink(roots: Sequence[Node]) -> Node:
    """Several results, in order, as one root."""
    return leaf.SINK(*roots)


def same_device(nodes: Iterable[Any]) -> str | None:
    """The one device of all nodes, or an error that names both."""
    found: str | None = None
    for node in nodes:
        device = node.device
        if device is not None and found is not None and device != found:
            raise DataError(
                f"tensors are on different devices: {found} and {device}",
                f'move one of them: x.to("{found}")',
            )
        found = found or device
    return found
