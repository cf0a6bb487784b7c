"""DLPack for memory that is not the host's: capsules over a device's buffers, without a copy.

In: a tensor of ours and the consumer's stream, or another library's capsule. Out: a capsule, or a
buffer over the other's memory. The two libraries work on streams of their own: the consumer's waits
for what we launched (`Device.lend`), ours for what the producer did, as it was asked by the number
of our stream. Memory that was lent goes back to its pool when its capsule's deleter is called, and
memory that we borrowed to its owner when nobody of ours holds it; each after all that was launched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

from ..core.dtype import DType, dtype_of
from ..errors import DataError

VERSIONED, PLAIN = b"dltensor_versioned", b"dltensor"
USED = {VERSIONED: b"used_dltensor_versioned", PLAIN: b"used_dltensor"}
READ_ONLY = 1  # a flag of version 1.0
KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's codes
SMALL = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # those that NumPy lacks


class Type(ctypes.Structure):
    """DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Contents(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", Type), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor, from before version 1.0."""

    _fields_ = (
        ("tensor", Contents), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Contents),
    )  # fmt: skip


_api = ctypes.pythonapi
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LENT: dict[int, tuple[Any, ...]] = {}  # what capsules point at, until their deleter is called


def _give_back(address: int) -> None:
    """The consumer has no use for it any more."""
    *_, returned = _LENT.pop(address, (None,))
    if returned is not None:
        returned()


def _drop_capsule(capsule: int) -> None:
    """A capsule goes that nobody consumed."""
    valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
    pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    for name in (VERSIONED, PLAIN):
        if valid(capsule, name):
            _give_back(pointer(capsule, name))


_give_back_c, _drop_capsule_c = _Deleter(_give_back), _Deleter(_drop_capsule)


def _function(name: str, result: Any, *types: Any) -> Any:
    """A function of Python's own, with its types."""
    return ctypes.PYFUNCTYPE(result, *types)((name, _api))


def lent_capsule(
    buffer: Any, shape: tuple[int, ...], dtype: DType, place: tuple[int, int], versioned: bool,
    returned: Callable[[], None],
) -> object:  # fmt: skip
    """A capsule over a buffer; `returned` is called when the consumer lets go of it."""
    made = Versioned() if versioned else Managed()
    if isinstance(made, Versioned):
        made.major, made.minor, made.flags = 1, 0, READ_ONLY
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = (ctypes.c_int64 * max(1, len(shape)))(
        *[prod(shape[i + 1 :]) for i in range(len(shape))]
    )
    made.deleter = ctypes.cast(_give_back_c, ctypes.c_void_p)
    inside = made.tensor
    inside.data, inside.device_type, inside.device_id = buffer.address, *place
    inside.ndim, inside.shape, inside.strides = len(shape), sizes, steps
    bits = 8 if dtype.kind == "b" else dtype.itemsize * 8
    inside.dtype = Type(SMALL.get(dtype.name, KINDS[dtype.kind]), bits, 1)
    address = ctypes.addressof(made)
    _LENT[address] = made, sizes, steps, buffer, returned
    new = _function(
        "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    )
    end = ctypes.cast(_drop_capsule_c, ctypes.c_void_p)
    capsule: object = new(address, VERSIONED if versioned else PLAIN, end)
    return capsule


class Borrowed:
    """Another library's memory: where it is, what it holds, and how it is given back."""

    def __init__(self, capsule: object) -> None:
        name, found = contents(capsule)
        self._managed = found
        inside = found.tensor
        self.place = inside.device_type, inside.device_id
        self.shape = tuple([inside.shape[i] for i in range(inside.ndim)])
        self.dtype = _dtype(inside.dtype)
        self.address = (inside.data or 0) + inside.byte_offset
        self.is_contiguous = not inside.strides or _follows(inside, self.shape)
        rename = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
        rename(capsule, USED[name])

    def close(self) -> None:
        """Give it back to its owner."""
        found, self._managed = self._managed, None
        if found is not None and found.deleter:
            _Deleter(found.deleter)(ctypes.addressof(found))


def contents(capsule: object) -> tuple[bytes, Any]:
    """The name of a capsule that nobody has consumed, and what it points at."""
    valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    for name, kind in ((VERSIONED, Versioned), (PLAIN, Managed)):
        if valid(capsule, name):
            return name, kind.from_address(pointer(capsule, name))
    raise DataError("this is no DLPack capsule", "pass an array of a library that knows DLPack")


def _dtype(given: Type) -> DType:
    small = {code: name for name, code in SMALL.items()}
    if given.code in small:
        return dtype_of(small[given.code])
    kinds = {0: "int", 1: "uint", 2: "float", 5: "complex"}
    name = "bool" if given.code == 6 else f"{kinds.get(given.code, '?')}{given.bits}"
    try:
        return dtype_of(name)
    except Exception as problem:
        raise DataError(f"there is no element type for DLPack's {name}", "cast it") from problem


def _follows(inside: Contents, shape: tuple[int, ...]) -> bool:
    """True if elements follow each other, the last axis fastest."""
    steps = [prod(shape[i + 1 :]) for i in range(len(shape))]
    pairs = zip(shape, steps, range(len(shape)), strict=True)
    return all(inside.strides[i] == step for n, step, i in pairs if n > 1)
