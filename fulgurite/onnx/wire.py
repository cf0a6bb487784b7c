"""The wire format of protocol buffers, read within bounds.

In: bytes (often a memory-mapped file) and a table that says what each field of a message is. Out:
objects with those fields. Nothing is copied but names and numbers: data stays a view of the file.
Every length is checked against its parent before use, messages nest at most `DEEPEST` deep, and
each object costs at least two bytes of the file, so memory and time are bounded by its size. A
file that breaks a rule gets a `ModelError` with the byte; nothing in it is ever executed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.op import Array
from .errors import ModelError

DEEPEST = 48  # messages inside messages; a graph in a graph takes three
LONGEST_NAME = 1 << 16
LONGEST_TEXT = 1 << 26  # of metadata, in which exporters put whole vocabularies
MOST_MESSAGES = 2_000_000  # of one file: an object of ours each
MOST_FIELDS = 20_000_000
SHORT = 32  # bytes of numbers in a row that take less time one by one than as arrays

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

View = memoryview
Make = Callable[[], Any]


class Field:
    """What one field number of a message means."""

    __slots__ = ("kind", "many", "message", "name")

    def __init__(self, name: str, kind: str, many: bool = False, message: str = "") -> None:
        self.name, self.kind, self.many, self.message = name, kind, many, message


Fields = Mapping[int, Field]
Messages = Mapping[str, tuple[Make, Fields]]


class Reader:
    """One file and the tables of its messages."""

    def __init__(self, data: View, messages: Messages) -> None:
        self.data, self.messages, self.fields, self.made = data, messages, 0, 0

    def message(self, name: str, start: int, end: int, depth: int = 0) -> Any:
        """The message between two bytes."""
        if depth > DEEPEST:
            raise ModelError(
                f"messages nest more than {DEEPEST} deep at byte {start}",
                "the file is damaged, or its graphs nest too deep",
            )
        self.made += 1
        if self.made > MOST_MESSAGES:
            raise self.damaged(start, f"it has more than {MOST_MESSAGES} parts")
        make, fields = self.messages[name]
        found = make()
        place = start
        while place < end:
            tag, place = self.varint(place, end)
            number, wire = tag >> 3, tag & 7
            self.fields += 1
            if self.fields > MOST_FIELDS or not number:
                raise self.damaged(place, "it has no sense of fields")
            field = fields.get(number)
            if wire == VARINT:
                value, place = self.varint(place, end)
                if field is not None:
                    self._number(found, field, value, place)
            elif wire == BYTES:
                length, place = self.varint(place, end)
                if length > end - place:
                    raise self.damaged(place, f"{length} bytes are announced, {end - place} left")
                if field is not None:
                    self._piece(found, field, place, place + length, depth)
                place += length
            elif wire in (FIXED32, FIXED64):
                width = 4 if wire == FIXED32 else 8
                if width > end - place:
                    raise self.damaged(place, "it ends within a number")
                if field is not None:
                    self._fixed(found, field, place, width)
                place += width
            else:
                raise self.damaged(place, f"wire type {wire} does not exist")
        return found

    def varint(self, place: int, end: int) -> tuple[int, int]:
        """A whole number of 64 bits, and the byte after it."""
        data = self.data
        if place < end and (byte := data[place]) < 128:  # as most are
            return byte, place + 1
        value = shift = 0
        while place < end:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF, place
            shift += 7
            if shift > 63:
                break
        raise self.damaged(place, "a number has no end")

    def damaged(self, place: int, why: str) -> ModelError:
        """The error for a file that breaks a rule."""
        return ModelError(
            f"this is no ONNX model: at byte {place} {why}",
            "give a .onnx file as it was exported; download it again if it was cut off",
        )

    # --- values ----------------------------------------------------------------------------------

    def _number(self, found: Any, field: Field, value: int, place: int) -> None:
        if field.kind not in ("int", "uint"):
            raise self.damaged(place, f"field {field.name!r} is not a number")
        if field.kind == "int" and value >> 63:
            value -= 1 << 64
        self._put(found, field, value)

    def _fixed(self, found: Any, field: Field, place: int, width: int) -> None:
        if field.kind != ("float" if width == 4 else "double"):
            raise self.damaged(place, f"field {field.name!r} is not of {width} bytes")
        code = "<f" if width == 4 else "<d"
        self._put(found, field, struct.unpack_from(code, self.data, place)[0])

    def _put(self, found: Any, field: Field, value: Any) -> None:
        if field.many:
            self._extend(found, field, (value,))
        else:
            setattr(found, field.name, value)

    def _extend(self, found: Any, field: Field, values: Sequence[Any]) -> None:
        """Lists are made when they get something: a hostile file is not worth empty ones."""
        known = getattr(found, field.name)
        if known:
            known.extend(values)
        else:
            setattr(found, field.name, list(values))

    def _piece(self, found: Any, field: Field, start: int, end: int, depth: int) -> None:
        if field.kind == "message":
            self._put(found, field, self.message(field.message, start, end, depth + 1))
        elif field.kind == "text":
            self._put(found, field, self._text(field, start, end))
        elif field.kind == "bytes":
            self._put(found, field, self.data[start:end])
        elif field.many:
            self._extend(found, field, self._packed(field, start, end))
        else:
            raise self.damaged(start, f"field {field.name!r} is no piece of bytes")

    def _text(self, field: Field, start: int, end: int) -> str:
        if end - start > (LONGEST_TEXT if field.name == "value" else LONGEST_NAME):
            raise self.damaged(start, f"{field.name!r} has {end - start} letters")
        try:
            return str(self.data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(start, f"{field.name!r} is not UTF-8") from None

    def _packed(self, field: Field, start: int, end: int) -> list[Any]:
        """Numbers in a row."""
        if field.kind in ("float", "double"):
            width = 4 if field.kind == "float" else 8
            if (end - start) % width:
                raise self.damaged(start, f"{field.name!r} ends within a number")
            return np.frombuffer(self.data[start:end], f"<f{width}").tolist()  # type: ignore[no-any-return]
        if end - start <= SHORT:
            return self._few(field, start, end)
        raw = np.frombuffer(self.data[start:end], np.uint8)
        if raw.size and raw[-1] >= 128:
            raise self.damaged(end, f"a number of {field.name!r} has no end")
        return varints(
            raw, field.kind == "int", lambda: self.damaged(start, "a number is too long")
        )

    def _few(self, field: Field, start: int, end: int) -> list[int]:
        """A few numbers, one by one: dims, axes, strides."""
        found = []
        while start < end:
            value, start = self.varint(start, end)
            found.append(value - (1 << 64) if field.kind == "int" and value >> 63 else value)
        return found


def varints(raw: Array, signed: bool, too_long: Callable[[], Exception]) -> list[int]:
    """All numbers of a packed field at once; the last byte ends one."""
    ends = np.flatnonzero(raw < 128)
    if not ends.size:
        return []
    begins = np.concatenate([[0], ends[:-1] + 1])
    if (ends - begins).max() > 9:
        raise too_long()
    values = np.zeros(len(ends), np.uint64)
    for byte in range(int((ends - begins).max()) + 1):
        place = begins + byte
        here = place <= ends
        part = raw[np.minimum(place, ends)].astype(np.uint64) & np.uint64(127)
        values |= np.where(here, part << np.uint64(7 * byte), np.uint64(0))
    return (values.view(np.int64) if signed else values).tolist()
