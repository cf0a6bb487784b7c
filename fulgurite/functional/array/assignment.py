"""Assignment: a tensor's name gets another value, all of it or a part.

In: a tensor, an index as `x[...]` reads it, a value. Out: nothing; the tensor's entry is bound to a
new expression, a whole value or the old one with a part replaced, so every holder of this tensor
sees it. Values are never shared: what was computed from the tensor before, its slices included,
stays as it is. The value is broadcast to what it replaces and cast by NumPy's same-kind rule.
That memory is written in place is no business of this file: ASSIGN says that it may be.
Binding is compare-and-swap: of two threads one comes first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ...config import current
from ...core import build
from ...core import shape as sizes
from ...core.dtype import DType, bool_, int32, int64
from ...core.node import Node
from ...core.ops.collective import SHARD, UNSHARD
from ...core.ops.effect import ASSIGN, TAPE, WATCH
from ...core.ops.leaf import BUFFER
from ...errors import ArgumentError, DTypeError, GradientError, ShapeError
from ...graph.ir.registry import REGISTRY
from ...runtime.realize import is_realized
from ...tensor import SCOPES, Tensor, TensorLike, is_recording, lift, node_of, placed, wrap
from ...tensor.from_data import to_array
from .indexing import cuts_of
from .nested import holds_tensor, is_nest, stacked
from .numpy_indexing import part_of, understood

_RANK = "buifc"  # a kind is cast to those after it


def assign(x: Tensor, value: TensorLike) -> None:
    """Give a tensor the value of another, broadcast and cast to its shape and dtype."""
    _change(x, lambda old: fitted(value, old, old.shape))


def change(x: Tensor, make: Callable[[Tensor], Tensor]) -> None:
    """Give a tensor the value that a function makes of its old one: what `x += 1` does."""

    def changed(old: Node) -> Node:
        found = make(wrap(old)).entry.node
        if found.shape != old.shape:
            raise ShapeError(
                f"a value of shape {sizes.show(found.shape)} for a tensor of shape "
                f"{sizes.show(old.shape)}",
                "an operator in place cannot change the shape: write x = x + y",
            )
        return fitted(found, old, old.shape)

    _change(x, changed)


def put(x: Tensor, key: Any, value: TensorLike) -> None:
    """Replace the part of a tensor that an index means: what `x[key] = value` does."""
    _change(x, lambda old: _with_part(old, key, value))


def _change(x: Tensor, make: Callable[[Node], Node]) -> None:
    """Bind a tensor to what a function makes of its node, again if another thread was first."""
    if SCOPES.bodies and x.entry.id < SCOPES.bodies[-1]:
        raise ArgumentError(
            "the body of a loop or a choice assigns to a tensor from outside of it",
            "carry the new value through the loop, or return it",
        )
    while True:
        old = x.entry.node
        leaf = old.op is WATCH and old.arg[0] == TAPE
        if leaf and is_recording():
            raise GradientError(
                "a leaf that requires a gradient cannot be assigned while gradients are recorded",
                "assign inside `with fg.no_grad():`, or use x.detach()",
            )
        before = build.detach(old) if old.watched and not is_recording() else old
        new = make(before)
        if new is before or new is old:
            return
        bound = _bound(x, old, new, leaf)
        if SCOPES.capturing:  # noted before it is so: an interrupt puts back what is noted
            SCOPES.changed.add(x.entry)
        for touched in SCOPES.stack:  # ends with the gradient scope: see grad.vjp
            touched.append(weakref.ref(x.entry))
        if REGISTRY.rebind(x.entry, old, bound):
            return


def _bound(x: Tensor, old: Node, new: Node, leaf: bool) -> Node:
    """The node of the entry: on the old device, a leaf again, and over the old memory if it may."""
    if new.device is None and old.device is not None and old.device != current().device:
        new = build.copy_to(new, old.device)
    memory = old.src[0] if leaf else old
    if memory.op is ASSIGN:
        memory = memory.src[0]
    if memory.op is UNSHARD or memory.op is SHARD:  # the new value is kept in the same shards
        new = SHARD(new, arg=memory.arg)
    held = memory.op is BUFFER and REGISTRY.storage(memory) is not None
    if held and not new.watched and not is_realized(new):
        new = build.assign(memory, new)
    if leaf:
        from ...autodiff.grad import tape_leaf

        return tape_leaf(new, x)
    return new


# --- values --------------------------------------------------------------------------------------


def fitted(value: TensorLike, target: Node, shape: tuple[Any, ...]) -> Node:
    """A value in the dtype of a target, on its device, broadcast to the shape of what it replaces.

    Dimensions of size 1 in front of a value that has too many are dropped, as NumPy drops them.
    """
    if is_nest(value) and holds_tensor(value):
        value = stacked(value, None, target.device)
    elif isinstance(value, list | tuple):
        value = _numbers(value, target.dtype)
    if isinstance(value, list | tuple | np.ndarray | np.generic):  # they are where they are needed
        node: Any = placed(value, target.device)
    else:
        node = lift(value)
    if not isinstance(node, Node):
        if isinstance(node, bool | int | float | complex):
            return build.const(node, target.dtype, shape)
        node = node_of(node)
    build.same_device([target, node])
    a, b = node.dtype, target.dtype
    if a is not b:
        if _RANK.index(a.kind) > _RANK.index(b.kind):
            raise DTypeError(
                f"{a} values do not fit a tensor of {b}", f"cast them: value.astype({b})"
            )
        node = build.cast(node, b)
    extra = node.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in node.shape[:extra]):
        node = build.reshape(node, node.shape[extra:])
    try:
        return build.expand(node, shape)
    except ShapeError:
        raise ShapeError(
            f"a value of shape {sizes.show(node.shape)} does not fill {sizes.show(shape)}",
            "it must broadcast to the part that is assigned",
        ) from None


def _numbers(value: Any, dtype: DType) -> Any:
    """Numbers in a list have no dtype of their own: each must be a value of whole dtypes."""
    if dtype.is_integer:
        return to_array(value, dtype)
    if dtype is bool_ and (array := to_array(value, None)).dtype.kind in "iu":
        for number in array[(array != 0) & (array != 1)][:1]:
            build.const(int(number), dtype)  # says what is wrong with it
        return array != 0
    return value


# --- parts ---------------------------------------------------------------------------------------


def _with_part(x: Node, key: Any, value: TensorLike) -> Node:
    """x with the part that an index means replaced."""
    mask = _mask(key, x)
    if mask is not None and _is_one(value):
        return _masked(x, mask, value)
    found = understood(x, key)
    moved = isinstance(value, Tensor) and value.entry.node.op.family in ("movement", "indexing")
    if moved and value.entry.node is part_of(x, found):  # type: ignore[union-attr]
        return x  # it holds that already
    if not found.data:
        return _boxed(x, found.plain, value)
    count = sizes.prod(x.shape)
    kind = int32 if sizes.upper(count) <= int32.limits[1] else int64
    flat = build.reshape(build.iota((count,), 0, kind), x.shape)
    places = part_of(flat, found)
    part = fitted(value, x, places.shape)
    if 0 in places.shape:
        return x
    number = sizes.prod(places.shape)
    line = build.reshape(x, (count,))
    line = build.scatter("set", line, build.reshape(places, (number,)),
                         build.reshape(part, (number,)), 0)  # fmt: skip
    return build.reshape(line, x.shape)


def _boxed(x: Node, parts: list[Any], value: TensorLike) -> Node:
    """x with a part cut by ints and slices replaced."""
    cuts, steps, keep = cuts_of(x, parts)
    counts = [_count(cut, step) for cut, step in zip(cuts, steps, strict=True)]
    shape = tuple([1 if axis is None else counts[axis] for axis in keep])
    part = fitted(value, x, shape)
    if 0 in shape or 0 in counts:
        return x
    part = build.reshape(part, counts)
    back = [axis for axis, step in enumerate(steps) if step < 0]
    part = build.flip(part, back) if back else part
    if all(sizes.same(n, m) for n, m in zip(counts, x.shape, strict=True)):
        return part
    for (start, stop), n in zip(cuts, x.shape, strict=True):
        build.inside(start, stop, n)
    return build.update(x, part, [start for start, _ in cuts], [abs(step) for step in steps])


def _count(cut: tuple[Any, Any], step: int) -> Any:
    length: Any = sizes.sub(cut[1], cut[0])
    return length if abs(step) == 1 else -(-length // abs(step))


def _mask(key: Any, x: Node) -> Node | None:
    """The mask of truths that is the whole index, if it is one and fits."""
    if isinstance(key, Tensor | np.ndarray) and key.ndim and key.shape == x.shape[: key.ndim]:
        node: Node = lift(key, x.device)
        return node if node.dtype is bool_ else None
    return None


def _is_one(value: TensorLike) -> bool:
    """Is it one number for every place?"""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0
    return isinstance(value, bool | int | float | complex | np.generic)


def _masked(x: Node, mask: Node, value: TensorLike) -> Node:
    build.same_device([x, mask])
    mask = build.reshape(mask, (*mask.shape, *[1] * (x.ndim - mask.ndim)))
    return build.where(build.expand(mask, x.shape), fitted(value, x, x.shape), x)
