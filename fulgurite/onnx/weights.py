"""Stored tensors as arrays: raw, in typed lists, sparse, or in a file beside the model.

In: a `TensorData` as it was parsed, and the folder of its model. Out: an array of the carrier of
its element type, a view of the mapped file wherever that is possible, so a weight costs memory
when it is used. The number of elements must agree with the bytes that are there. External data is
read only from inside the model's folder: an absolute path, `..` or a link that leads out of it is
an error.
"""

from __future__ import annotations

import mmap
import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..core.op import Array
from .errors import ModelError
from .proto import SparseData, TensorData
from .source import release_pages
from .types import (
    BFLOAT16,
    BOOL,
    CODED,
    COMPLEX64,
    COMPLEX128,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT64,
    STRING,
    UINT32,
    UINT64,
    Kind,
    kind_of,
)

MOST_ELEMENTS = 1 << 40


class Files:
    """The bytes of a model, and the files of external data, each mapped once."""

    def __init__(self, folder: Path | None, model: memoryview | None = None) -> None:
        self.folder, self.model = folder, model
        self.open: dict[Path, memoryview] = {}

    def part(self, tensor: TensorData) -> memoryview:
        """The bytes that a tensor's external data names."""
        named = {entry.key: entry.value for entry in tensor.external_data}
        place = named.get("location", "")
        if self.folder is None:
            raise ModelError(
                f"weight {tensor.name!r} is in the file {place!r}, and the model came as bytes",
                "load the model by its path",
            )
        data = self._mapped(place, tensor.name)
        start = _whole(named.get("offset", "0"), tensor.name)
        length = _whole(named.get("length", str(max(len(data) - start, 0))), tensor.name)
        if start > len(data) or length > len(data) - start:
            raise ModelError(
                f"weight {tensor.name!r} is said to be {length} bytes at {start} of {place!r}, "
                f"which has {len(data)}",
                "the file is cut off: copy it again",
            )
        return data[start : start + length]

    def release_pages(self) -> None:
        """Give the memory of what was read of mapped files back: the system can read it again."""
        for view in (self.model, *self.open.values()):
            if view is not None:
                release_pages(view)

    def _mapped(self, place: str, name: str) -> memoryview:
        assert self.folder is not None
        path = Path(place)
        root = self.folder.resolve()
        try:
            real = (root / path).resolve()
        except (OSError, ValueError, RuntimeError):
            real = root
        if not place or path.is_absolute() or real == root or root not in real.parents:
            raise ModelError(
                f"weight {name!r} is in {place!r}, outside the model's folder",
                "external data must lie beside the model or in a folder below it",
            )
        if real not in self.open:
            try:
                if not real.is_file():  # a pipe or a device would never end
                    raise FileNotFoundError(2, os.strerror(2))
                with real.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    empty = memoryview(b"")
                    map_ = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else empty
                    self.open[real] = memoryview(map_)
            except OSError as problem:
                raise ModelError(
                    f"{place!r}, with weight {name!r}, cannot be read: {problem.strerror}",
                    "copy it beside the model",
                ) from None
        return self.open[real]


def _whole(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"weight {name!r} begins at {text[:40]!r}", "the file is damaged")
    return int(text)


def array_of(tensor: TensorData, files: Files) -> tuple[Array, Kind]:
    """A stored tensor as an array of its kind's carrier."""
    kind = kind_of(tensor.data_type)
    shape = _shape(tensor.dims, tensor.name)
    count = prod(shape)
    if tensor.segment is not None:
        raise ModelError(f"weight {tensor.name!r} is stored in segments", "export it again")
    if kind is STRING:
        return _strings(tensor, shape, count), kind
    raw: memoryview | None = None
    if tensor.data_location == 1:
        raw = files.part(tensor)
    elif tensor.raw_data is not None and (len(tensor.raw_data) or not count):
        raw = tensor.raw_data
    flat = _listed(tensor, kind) if raw is None else _raw(raw, kind, count, tensor.name)
    if kind.bits < 8:
        flat = _unpacked(flat, kind, count)
    if flat.size != count:
        raise _misfit(tensor.name, count, f"{flat.size} elements")
    try:
        return flat.reshape(shape), kind
    except ValueError:
        raise _misfit(tensor.name, count, "a shape that has no size") from None


def _shape(dims: Any, name: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if len(shape) > 32 or any(not 0 <= n < MOST_ELEMENTS for n in shape):
        raise ModelError(f"weight {name!r} has shape {shape[:8]}", "the file is damaged")
    if prod(shape) > MOST_ELEMENTS:
        raise ModelError(f"weight {name!r} has {prod(shape)} elements", "the file is damaged")
    return shape


def _misfit(name: str, count: int, found: str) -> ModelError:
    return ModelError(
        f"weight {name!r} should have {count} elements and has {found}", "the file is damaged"
    )


def _raw(raw: memoryview, kind: Kind, count: int, name: str) -> Array:
    """Raw little-endian bytes; nothing is copied where they lie well."""
    wanted = (count * kind.bits + 7) // 8
    if len(raw) != wanted:
        raise _misfit(name, count, f"{len(raw)} bytes instead of {wanted}")
    if kind.bits < 8:
        return np.frombuffer(raw, np.uint8)
    assert kind.carrier is not None
    dtype = kind.carrier.numpy
    if kind is BOOL:
        return np.asarray(np.frombuffer(raw, np.uint8) != 0)
    return np.frombuffer(raw, dtype)


def _listed(tensor: TensorData, kind: Kind) -> Array:
    """Numbers in the list of the kind's own field."""
    assert kind.carrier is not None
    dtype = kind.carrier.numpy
    if kind is FLOAT:
        return np.array(tensor.float_data, np.float32)
    if kind is DOUBLE:
        return np.array(tensor.double_data, np.float64)
    if kind in (COMPLEX64, COMPLEX128):
        parts = tensor.float_data if kind is COMPLEX64 else tensor.double_data
        if len(parts) % 2:
            raise _misfit(tensor.name, len(parts) // 2, "half a number more")
        return np.array(parts, np.float32 if kind is COMPLEX64 else np.float64).view(dtype)
    if kind is INT64:
        return np.array(tensor.int64_data, np.int64)
    if kind in (UINT32, UINT64):
        return np.array(tensor.uint64_data, np.uint64).astype(dtype)
    numbers = np.array(tensor.int32_data, np.int64)
    if kind in (FLOAT16, BFLOAT16):
        return numbers.astype(np.uint16).view(dtype)
    if kind.bits < 8 or kind in CODED:
        return numbers.astype(np.uint8)
    if kind.carrier.is_float:
        return numbers.astype(np.uint8).view(dtype)
    return numbers.astype(dtype)


def _unpacked(flat: Array, kind: Kind, count: int) -> Array:
    """Two or four elements in a byte, the first in the lowest bits."""
    each = 8 // kind.bits
    if flat.size == count and count > 1 and flat.size != (count + each - 1) // each:
        values = flat & (2**kind.bits - 1)  # not packed after all
    else:
        shifts = np.arange(each, dtype=np.uint8) * kind.bits
        values = (flat[:, None] >> shifts & (2**kind.bits - 1)).reshape(-1)
        values = values[:count] if values.size - count in range(each) else values
    if kind.carrier is not None and kind.carrier.kind == "i":
        half = 1 << kind.bits - 1
        return np.asarray((values.astype(np.int16) ^ half) - half, np.int8)
    return np.asarray(values, np.uint8)


def _strings(tensor: TensorData, shape: tuple[int, ...], count: int) -> Array:
    if len(tensor.string_data) != count:
        raise _misfit(tensor.name, count, f"{len(tensor.string_data)} strings")
    found = np.empty(count, object)
    for i, text in enumerate(tensor.string_data):
        found[i] = str(text, "utf-8", "replace")
    return found.reshape(shape)


def dense(sparse: SparseData, files: Files) -> tuple[Array, Kind]:
    """A sparse tensor with its zeros."""
    if sparse.values is None or sparse.indices is None:
        raise ModelError("a sparse weight lacks its values or indices", "the file is damaged")
    values, kind = array_of(sparse.values, files)
    places, _ = array_of(sparse.indices, files)
    shape = _shape(sparse.dims, sparse.values.name)
    if kind is STRING or prod(shape) > 1 << 30 or values.ndim != 1:
        raise ModelError(f"a sparse weight of shape {shape}", "store it densely")
    found = np.zeros(shape, values.dtype)
    try:
        if places.ndim == 2:
            found[tuple(places.T)] = values
        else:
            found.reshape(-1)[places] = values
    except (IndexError, ValueError):
        raise ModelError("a sparse weight has indices outside it", "the file is damaged") from None
    return found, kind
