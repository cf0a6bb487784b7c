"""Host data: what users have in Python and NumPy, as memory of ours.

In: numbers, nested lists, NumPy arrays. Out: an array of one of our dtypes, and a BUFFER node
that holds a copy of it, or with `share` its very memory. What is not numeric is an error here.
Python numbers must be values of the dtype they are asked for, in a list as alone (300 is no int8);
NumPy arrays are cast as `astype` casts: whole numbers wrap around, floats saturate, NaN gives 0.
"""

from __future__ import annotations

import numpy as np

from ..config import current
from ..core import build
from ..core.dtype import (
    DTYPES,
    DType,
    decode,
    default_complex,
    default_float,
    default_int,
    dtype_of,
    encode,
)
from ..core.node import Node
from ..core.op import Array
from ..core.ops.special import cast
from ..errors import DataError
from ..graph.ir.registry import REGISTRY
from ..runtime.device import get_device


def to_array(data: object, dtype: DType | None) -> Array:
    """Host data as a NumPy array of one of our dtypes, or a clear error."""
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, RuntimeError) as problem:
        hint = "give rows of equal length"
        if hasattr(data, "__dlpack__"):
            hint = "take another library's array in by fg.from_dlpack(array)"
        raise DataError(f"{type(data).__name__} is not numeric data: {problem}", hint) from None
    if array.dtype.kind in "OSUVMm" and array.dtype not in [d.numpy for d in DTYPES]:
        raise DataError(
            f"{type(data).__name__} of {array.dtype} is not numeric data",
            "pass numbers, NumPy arrays or tensors",
        )
    if not isinstance(data, np.ndarray | np.generic):
        if dtype is None:
            dtype = _default_for(array)
        else:
            array = _checked(data, array, dtype)
    return array if dtype is None else _converted(array, dtype)


def _default_for(array: Array) -> DType | None:
    """Python numbers take the default dtypes unless they do not fit."""
    if array.dtype.kind in "fc":
        return default_float if array.dtype.kind == "f" else default_complex
    if array.dtype.kind in "iu" and array.size:
        low, high = default_int.limits
        return default_int if low <= array.min() and array.max() <= high else None
    return default_int if array.dtype.kind in "iu" else None


def _checked(data: object, array: Array, dtype: DType) -> Array:
    """The array, all of whose numbers are values of the dtype; the first that is not raises."""
    if array.dtype.kind == "c" and dtype.kind != "c" and array.size:
        encode(array.flat[0].item(), dtype)
    if array.dtype.kind not in "iuf" or not dtype.is_integer:
        return array
    low, high = dtype.limits
    fits = (array >= low) & (array < high + 1) & (array == np.trunc(array))
    if array.dtype.kind == "f" and (np.abs(array) >= 2**53).any():
        # NumPy joins int64 and uint64 as float64, which loses the last bits: look again
        exact = np.asarray(data, object)
        numbers = [decode(encode(number, dtype), dtype) for number in exact.ravel().tolist()]
        return np.array(numbers, dtype.numpy).reshape(array.shape)
    if not fits.all():
        encode(array[~fits][0].item(), dtype)
    return array


def _converted(array: Array, dtype: DType) -> Array:
    source = dtype_of(array.dtype)
    with np.errstate(all="ignore"):
        return array if source is dtype else cast(array, source, dtype)


def array_node(array: Array, device: str | None, share: bool) -> Node:
    """A BUFFER node with an array's values, or with `share` its very memory."""
    dtype = dtype_of(array.dtype)
    if not array.dtype.isnative:
        array = array.astype(dtype.numpy)
    where = device or current().device
    storage = get_device(where).from_host(array, share)
    node = build.buffer(array.shape, dtype, where)
    REGISTRY.attach(node, storage)
    return node
