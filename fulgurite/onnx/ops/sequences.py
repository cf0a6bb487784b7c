"""Sequences and optionals: lists of tensors that exist while a graph is built.

In: a `Call`. Out: Python lists of values, or `NOTHING`. Positions are numbers the host must know.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ..errors import ModelError
from ..table import Call, operator
from ..types import INT64
from ..values import NOTHING, Value
from .movement import axis_of


def _items(op: Call, place: int = 0) -> list[Any]:
    found = op.any(place)
    if not isinstance(found, list):
        raise ModelError(f"input {place} is no sequence", "the model is not valid ONNX")
    return found


@operator("SequenceConstruct")
def sequence_construct(op: Call) -> tuple[Any]:
    """All inputs in a row."""
    return (list(op.inputs),)


@operator("SequenceEmpty")
def sequence_empty(op: Call) -> tuple[Any]:
    """No element."""
    return ([],)


@operator("SequenceLength")
def sequence_length(op: Call) -> Value:
    """How many there are."""
    return Value(None, INT64, np.array(len(_items(op)), np.int64))


def _place(op: Call, place: int, count: int, end: bool = False) -> int:
    found = int(op.number(place))
    found += count if found < 0 else 0
    if not 0 <= found < count + end:
        raise ModelError(f"position {found} of {count} elements", "the model is not valid")
    return found


@operator("SequenceAt")
def sequence_at(op: Call) -> Any:
    """One element."""
    items = _items(op)
    return items[_place(op, 1, len(items))]


@operator("SequenceInsert")
def sequence_insert(op: Call) -> tuple[Any]:
    """One element more."""
    items = _items(op)
    place = _place(op, 2, len(items), end=True) if op.has(2) else len(items)
    return ([*items[:place], op.any(1), *items[place:]],)


@operator("SequenceErase")
def sequence_erase(op: Call) -> tuple[Any]:
    """One element fewer."""
    items = _items(op)
    place = _place(op, 1, len(items)) if op.has(1) else len(items) - 1
    return ([*items[:place], *items[place + 1 :]],)


@operator("ConcatFromSequence")
def concat_from_sequence(op: Call) -> Value:
    """All elements as one tensor."""
    items = _items(op)
    if not items:
        raise ModelError("a sequence of no tensors cannot be joined", "the model is not valid")
    parts = [v.tensor for v in items]
    axis = op.int("axis")
    join = fg.stack if op.int("new_axis") else fg.concat
    return Value(join(parts, axis=axis), items[0].kind)


@operator("SplitToSequence")
def split_to_sequence(op: Call) -> tuple[Any]:
    """Parts of a tensor as a sequence."""
    x = op[0]
    axis = axis_of(op.int("axis", 0), x.ndim)
    size = x.shape[axis]
    drop = False
    if not op.has(1):
        parts, drop = [1] * size, not op.int("keepdims", 1)
    else:
        given = op.host(1)
        if given.ndim == 0:
            each = int(given)
            if each < 1:
                raise ModelError(f"parts of {each}", "the model is not valid ONNX")
            parts = [each] * (size // each) + ([size % each] if size % each else [])
        else:
            parts = [int(n) for n in given]
    found, start = [], 0
    for n in parts:
        piece = x[(*[slice(None)] * axis, slice(start, start + n))]
        found.append(Value(fg.squeeze(piece, axis) if drop else piece, op.kind(0)))
        start += n
    return (found,)


@operator("Optional")
def optional(op: Call) -> tuple[Any]:
    """A value that may be missing."""
    return (op.any(0) if op.has(0) else NOTHING,)


@operator("OptionalGetElement")
def optional_get_element(op: Call) -> tuple[Any]:
    """The value of an optional that has one."""
    found = op.any(0)
    if found is NOTHING:
        raise ModelError("an empty optional has no element", "ask OptionalHasElement first")
    return (found,)


@operator("OptionalHasElement")
def optional_has_element(op: Call) -> Value:
    """Is there a value?"""
    return Value(None, None, np.array(op.has(0) and op.any(0) is not NOTHING))
