"""GGUF files: metadata and tensors of language models, read in place.

In: a path. Out: a `GgufFile`, a mapping from names to tensors over the file's memory-mapped bytes,
and its `metadata`. A model that was split into several files (`name-00001-of-00003.gguf`) is read
from all of them, whichever is named. Plain types are the file's own memory; block-quantised ones
stay quantised and are expressions over it (see `quants`), so they cost a value's memory only where
one is asked for.
The invariant: every length and offset is compared with the bytes that are left before it is used,
tensors do not overlap, and what has no meaning here is refused by name.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from ..core import dtype as types
from ..core.dtype import DType
from ..core.op import Array
from ..tensor import Tensor
from .files import Path, Refusal, mapped, reading, shared, sized
from .quants import QUANTS, Quant

KIND = "a GGUF file"
PLAIN: dict[int, tuple[str, DType]] = {
    0: ("F32", types.float32), 1: ("F16", types.float16), 24: ("I8", types.int8),
    25: ("I16", types.int16), 26: ("I32", types.int32), 27: ("I64", types.int64),
    28: ("F64", types.float64), 30: ("BF16", types.bfloat16),
}  # fmt: skip
SCALARS = ("B", "b", "<H", "<h", "<I", "<i", "<f", "?", None, None, "<Q", "<q", "<d")
STRING, ARRAY = 8, 9
DEEPEST = 4  # arrays within arrays
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)$", re.DOTALL)  # of a model in several files
MOST_PARTS = 1 << 14


class _Entry(NamedTuple):
    """A tensor of a file: its type's number, its sizes and its bytes."""

    kind: int
    shape: tuple[int, ...]
    raw: Array


class GgufFile(Mapping[str, Tensor]):
    """The tensors of a file by name; each is made when it is asked for."""

    def __init__(self, path: Path, device: str | None = None) -> None:
        self.path, self.device = path, device
        self.metadata: dict[str, Any] = {}
        self.version = 0
        self._entries = reading(path, KIND, self._open)
        if self.metadata.get("split.count", 1) != 1:
            self._entries = reading(path, KIND, self._joined)

    def _joined(self, name: str) -> dict[str, _Entry]:
        """All files of a model that was split; the first says what is true of the whole."""
        count = self.metadata["split.count"]
        whole: dict[str, _Entry] = {}
        kept: dict[str, Any] = {}
        for number, part in enumerate(_parts(name, count)):
            self.metadata = {}
            entries = reading(part, KIND, self._open)
            said = self.metadata.get("split.no"), self.metadata.get("split.count")
            if said != (number, count):
                raise Refusal(f"{part!r} is not part {number + 1} of {count}, as its name says")
            if twice := whole.keys() & entries.keys():
                raise Refusal(f"two parts have the tensor {min(twice)[:100]!r}")
            kept = kept or self.metadata
            whole |= entries
        if (wanted := kept.get("split.tensors.count", len(whole))) != len(whole):
            raise Refusal(f"its parts have {len(whole)} tensors, not {str(wanted)[:50]}")
        self.metadata = {k: v for k, v in kept.items() if not k.startswith("split.")}
        return whole

    def _open(self, name: str) -> dict[str, _Entry]:
        cursor = _Cursor(mapped(name))
        if cursor.take(4) != b"GGUF":
            raise Refusal("it does not begin with GGUF")
        self.version = cursor.number("<I")
        if self.version not in (2, 3):
            raise Refusal(f"it is of version {self.version}, not 2 or 3", "convert it anew")
        tensors, pairs = cursor.count(24), cursor.count(12)
        for _ in range(pairs):
            key = cursor.text()
            if key in self.metadata:
                raise Refusal(f"its metadata has {key[:100]!r} twice")
            self.metadata[key] = cursor.value(cursor.number("<I"), 0)
        infos = [cursor.tensor() for _ in range(tensors)]
        step = self.metadata.get("general.alignment", 32)
        if type(step) is not int or step < 1 or step & (step - 1) or step > 1 << 20:
            raise Refusal(f"its alignment is {str(step)[:50]}, not a power of two")
        start = min(cursor.at + -cursor.at % step, cursor.raw.size)
        data = cursor.raw[start:]
        found = _entries(infos, data.size, step)
        return {n: _Entry(k, s, data[b : b + size]) for n, (k, s, b, size) in found.items()}

    def __getitem__(self, name: str) -> Tensor:
        kind, shape, raw = self._entries[name]

        def made(_: str) -> Tensor:
            if kind in PLAIN:
                return shared(raw, PLAIN[kind][1], shape, self.device)
            quant = QUANTS[kind]
            blocks = shared(raw, types.uint8, (raw.size // quant.bytes, quant.bytes), self.device)
            return quant.values(blocks).reshape(shape)

        return reading(self.path, KIND, made)

    def packed(self, name: str) -> tuple[Tensor, Quant | None]:
        """A tensor as it is stored; of a quantised one (..., blocks, bytes of a block)."""
        kind, shape, raw = self._entries[name]
        if kind in PLAIN:
            return self[name], None
        quant = QUANTS[kind]
        blocks = (*shape[:-1], shape[-1] // quant.count, quant.bytes)
        return (
            reading(self.path, KIND, lambda _: shared(raw, types.uint8, blocks, self.device)),
            quant,
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of a tensor."""
        return self._entries[name].shape

    def kind(self, name: str) -> str:
        """The type that a tensor has in the file: `F16`, `Q4_K`, ..."""
        number = self._entries[name].kind
        return PLAIN[number][0] if number in PLAIN else QUANTS[number].name

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without making the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"GgufFile({self.path!r}, {len(self)} tensors)"


def load_gguf(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """All tensors of a GGUF file by name; quantised ones are lazy float32."""
    return dict(GgufFile(path, device))


def _parts(name: str, count: Any) -> list[str]:
    """The files that a model was split into, from the name of one of them."""
    found = PART.fullmatch(name)
    if type(count) is not int or not 0 < count <= MOST_PARTS:
        raise Refusal(f"it is one of {str(count)[:50]} parts")
    if found is None or int(found[3]) != count:
        raise Refusal(
            f"it is one of {count} parts, and its name does not say which",
            f"name them as they were: model-00001-of-{count:05}.gguf",
        )
    names = [f"{found[1]}-{n + 1:05}-of-{count:05}{found[4]}" for n in range(count)]
    missing = [n for n in names if not os.path.exists(n)]
    if missing:
        raise Refusal(
            f"it is one of {count} parts, of which {len(missing)} are not beside it",
            f"get {os.path.basename(missing[0])!r} too",
        )
    return names


class _Cursor:
    """A place in the file's bytes that never leaves them."""

    def __init__(self, raw: Array) -> None:
        self.raw, self.size, self.at = raw, raw.size, 0
        self.bytes = memoryview(raw)  # type: ignore[arg-type]  # arrays are buffers

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise Refusal("its header ends too early")
        found = bytes(self.bytes[self.at : self.at + count])
        self.at += count
        return found

    def number(self, layout: str) -> Any:
        start, self.at = self.at, self.at + struct.calcsize(layout)
        if self.at > self.size:
            raise Refusal("its header ends too early")
        return struct.unpack_from(layout, self.bytes, start)[0]

    def count(self, least: int) -> int:
        """A number of things that take at least so many bytes each."""
        found: int = self.number("<Q")
        if found * least > self.size - self.at:
            raise Refusal(f"it claims {found} parts, more than it has room for")
        return found

    def text(self) -> str:
        return self.take(self.count(1)).decode("utf-8", "replace")

    def value(self, kind: int, depth: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            if depth == DEEPEST:
                raise Refusal("its metadata is nested too deep")
            inner = self.number("<I")
            layout = SCALARS[inner] if inner < len(SCALARS) else None
            if layout is None:
                return [self.value(inner, depth + 1) for _ in range(self.count(8))]
            size = struct.calcsize(layout)
            count = self.count(size)
            return list(struct.unpack(f"<{count}{layout[-1]}", self.take(count * size)))
        if kind >= len(SCALARS):
            raise Refusal(f"its metadata has a value of the unknown type {kind}")
        return self.number(SCALARS[kind] or "")

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        rank = self.number("<I")
        if rank > 8:
            raise Refusal(f"the tensor {name[:100]!r} has {rank} dimensions")
        shape = [self.number("<Q") for _ in range(rank)]
        sizes = sized(reversed(shape), f"the tensor {name[:100]!r}")
        return name, sizes, self.number("<I"), self.number("<Q")


def _entries(
    infos: list[tuple[str, tuple[int, ...], int, int]], size: int, step: int
) -> dict[str, tuple[int, tuple[int, ...], int, int]]:
    found: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
    for name, shape, kind, begin in infos:
        what = f"the tensor {name[:100]!r}"
        if name in found:
            raise Refusal(f"it has {what} twice")
        if kind in PLAIN:
            nbytes = prod(shape) * PLAIN[kind][1].numpy.itemsize
        elif kind in QUANTS:
            quant = QUANTS[kind]
            if not shape or shape[-1] % quant.count:
                raise Refusal(f"{what} of {list(shape)} is not made of blocks of {quant.count}")
            nbytes = prod(shape) // quant.count * quant.bytes
        else:
            known = [PLAIN[k][0] for k in PLAIN] + [QUANTS[k].name for k in QUANTS]
            raise Refusal(
                f"{what} is of the type {kind}, which is not known here",
                f"use a file of {', '.join(known)}",
            )
        if begin % step or begin + nbytes > size:
            raise Refusal(f"{what} lies outside of the file's {size} bytes of data")
        found[name] = (kind, shape, begin, nbytes)
    end, before = 0, ""
    for name, (_, _, begin, nbytes) in sorted(found.items(), key=lambda item: item[1][2:]):
        if nbytes and begin < end:
            raise Refusal(f"the tensors {before[:100]!r} and {name[:100]!r} overlap")
        if nbytes:
            end, before = begin + nbytes, name
    return found
