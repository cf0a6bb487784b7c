"""The safetensors format: named tensors behind a JSON header, read in place.

In: a path, or named tensors. Out: a `SafetensorsFile`, a mapping whose tensors share the file's
memory-mapped bytes (opening a file of many gigabytes reads its header alone), or the file. The
invariant: nothing is believed before it is checked: the header's size, one entry for each name,
sizes that fit the dtype, and ranges that fill the data without a gap, an overlap or a byte left
over. What is written is byte for byte what the format's reference package writes: widest dtypes
first, then by name, the header padded to eight bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import IO, Any

from ..core import dtype as types
from ..core.dtype import DType, dtype_of
from ..core.op import Array
from ..errors import ArgumentError, DTypeError
from ..tensor import Tensor
from .files import Path, Refusal, arrays_of, bytes_of, mapped, reading, shared, sized, write_whole

LARGEST_HEADER = 100_000_000  # as the reference package has it
METADATA = "__metadata__"
ORDER: tuple[tuple[str, DType], ...] = (  # the order of files: the last of these comes first
    ("BOOL", types.bool_), ("U8", types.uint8), ("I8", types.int8),
    ("F8_E5M2", types.float8_e5m2), ("F8_E4M3", types.float8_e4m3fn), ("I16", types.int16),
    ("U16", types.uint16), ("F16", types.float16), ("BF16", types.bfloat16), ("I32", types.int32),
    ("U32", types.uint32), ("F32", types.float32), ("C64", types.complex64),
    ("F64", types.float64), ("I64", types.int64), ("U64", types.uint64),
)  # fmt: skip
_BY_NAME = dict(ORDER)
_WITHOUT = ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")  # not dtypes here
_RANK = {dtype: rank for rank, (_, dtype) in enumerate(ORDER)}
_NAME = {dtype: name for name, dtype in ORDER}


class SafetensorsFile(Mapping[str, Tensor]):
    """The tensors of a file by name; each is made when it is asked for, over the file's bytes."""

    def __init__(self, path: Path, device: str | None = None) -> None:
        self.path, self.device = path, device
        self.metadata: dict[str, str] = {}
        self._data, self._entries = reading(path, "a safetensors file", self._open)

    def _open(self, name: str) -> tuple[Array, dict[str, tuple[str, tuple[int, ...], int, int]]]:
        raw = mapped(name)
        header, start = _header(raw)
        self.metadata = _metadata(header.pop(METADATA, {}))
        return raw[start:], _entries(header, raw.size - start)

    def __getitem__(self, name: str) -> Tensor:
        kind, shape, begin, end = self._entries[name]
        dtype = _BY_NAME.get(kind)
        if dtype is None:
            raise DTypeError(
                f"{name!r} in {self.path!r} is {kind}, which has no dtype here",
                f"one of {', '.join(_BY_NAME)}",
            )
        raw = self._data[begin:end]
        return reading(
            self.path, "a safetensors file", lambda _: shared(raw, dtype, shape, self.device)
        )

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without making the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"SafetensorsFile({self.path!r}, {len(self)} tensors)"


def load_safetensors(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """All tensors of a safetensors file by name, sharing its bytes.

    >>> fg.io.save_safetensors({"w": fg.ones((2, 2))}, "/tmp/fulgurite-doc.safetensors")
    >>> fg.io.load_safetensors("/tmp/fulgurite-doc.safetensors")["w"].tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return dict(SafetensorsFile(path, device))


def save_safetensors(
    tensors: object, path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors (or a module's) to a safetensors file, whole or not at all."""
    write_whole(path, _writer(arrays_of(tensors, "save_safetensors"), metadata))


def to_bytes(tensors: object, metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of named tensors, as bytes."""
    import io

    made = io.BytesIO()
    _writer(arrays_of(tensors, "to_bytes"), metadata)(made)
    return made.getvalue()


def _writer(arrays: dict[str, Array], metadata: Mapping[str, str] | None) -> Any:
    for name, array in arrays.items():
        if dtype_of(array.dtype) not in _RANK:
            raise DTypeError(
                f"{name!r} is {array.dtype}, which safetensors files cannot hold", "cast it first"
            )
        if name == METADATA:
            raise ArgumentError(f"{name!r} is no name for a tensor", "use another")
    order = sorted(arrays, key=lambda name: (-_RANK[dtype_of(arrays[name].dtype)], name))
    header: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(x, str) for pair in metadata.items() for x in pair):
            raise ArgumentError("metadata is text by name", "use strings, json.dumps(...) say")
        header[METADATA] = dict(metadata)
    offset = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _NAME[dtype_of(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def write(file: IO[bytes]) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(bytes_of(arrays[name]))

    return write


# --- what a header may say ---------------------------------------------------------------------


def _header(raw: Array) -> tuple[dict[str, Any], int]:
    """The JSON of a file, and where its data begins."""
    if raw.size < 8:
        raise Refusal("it is shorter than a header")
    size = int.from_bytes(raw[:8].tobytes(), "little")
    if size > LARGEST_HEADER:
        raise Refusal(f"its header of {size} bytes is larger than the format allows")
    if size > raw.size - 8:
        raise Refusal(f"its header of {size} bytes goes beyond its end")
    text = raw[8 : 8 + size].tobytes()
    if text[:1] != b"{":
        raise Refusal("its header is no JSON object")
    found = json.loads(text.decode(), object_pairs_hook=_each_once, parse_constant=_no_constant)
    if not isinstance(found, dict):
        raise Refusal("its header is no JSON object")
    return found, 8 + size


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter([name for name, _ in pairs]).most_common(1)
        raise Refusal(f"its header has {twice[:100]!r} twice")
    return found


def _no_constant(name: str) -> None:
    raise Refusal(f"its header holds {name}, which is no JSON")


def _metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise Refusal(f"its {METADATA} is not text by name")
    return found


def _entry(what: str, entry: Any, size: int) -> tuple[str, tuple[int, ...], int, int]:
    """The dtype, the shape and the place of one tensor."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refusal(f"{what} is not described by dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (kind in _BY_NAME or kind in _WITHOUT) or not isinstance(shape, list):
        raise Refusal(f"{what} has the dtype {str(kind)[:50]!r} and the shape {str(shape)[:50]}")
    pair = isinstance(offsets, list) and [type(n) for n in offsets] == [int, int]
    if not pair or not 0 <= offsets[0] <= offsets[1] <= size:
        raise Refusal(f"{what} lies at {str(offsets)[:100]}, outside of {size} bytes of data")
    sizes, length = sized(shape, what), offsets[1] - offsets[0]
    dtype = _BY_NAME.get(kind)
    if dtype is not None and prod(sizes) * dtype.numpy.itemsize != length:
        raise Refusal(f"{what} of {kind}{list(sizes)} does not take {length} bytes")
    return kind, sizes, offsets[0], offsets[1]


def _entries(header: dict[str, Any], size: int) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """What each name stands for, all of it checked."""
    found = {name: _entry(f"the tensor {name[:100]!r}", entry, size)
             for name, entry in header.items()}  # fmt: skip
    place, before = 0, ""
    for name, (_, _, begin, end) in sorted(found.items(), key=lambda item: item[1][2:]):
        if begin != place:
            how = "overlap" if begin < place else "leave a gap"
            raise Refusal(f"the tensors {before[:100]!r} and {name[:100]!r} {how}")
        place, before = end, name
    if place != size:
        raise Refusal(f"{size - place} bytes at its end belong to no tensor")
    return found
