"""Zip archives that may be hostile: which members may be read, and where their bytes lie.

In: the memory-mapped bytes of a file. Out: an `Archive`: members by name, each as an array over
the file's own bytes if it is stored, read and checked if it is compressed. The invariant: members
lie within the file, do not claim together more compressed bytes than the file has, and none claims
more than so many compressed bytes can become; so the memory a file can ask for is bounded by its
size, however its directory lies.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from ..core.op import Array
from .files import Refusal

MOST_RATIO = 1032  # of bytes to compressed bytes that deflate can reach
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LOCAL = 30  # bytes of a local header before the name


class Archive(Mapping[str, Array]):
    """The members of a zip by name."""

    def __init__(self, raw: Array) -> None:
        self._raw = raw
        try:
            self._zip = zipfile.ZipFile(Window(raw))
        except (zipfile.BadZipFile, zlib.error) as error:
            raise Refusal(f"it is no sound zip archive ({error})") from None
        self._members = _checked(self._zip.infolist(), raw.size)

    def __getitem__(self, name: str) -> Array:
        member = self._members[name]
        if member.compress_type == zipfile.ZIP_STORED:
            return self._stored(member)
        try:
            with self._zip.open(member) as data:
                found = data.read(member.file_size)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise Refusal(f"its member {name[:100]!r} is damaged ({error})") from None
        if len(found) != member.file_size:
            raise Refusal(f"its member {name[:100]!r} ends too early")
        return np.frombuffer(found, np.uint8)

    def _stored(self, member: zipfile.ZipInfo) -> Array:
        local = self._raw[member.header_offset : member.header_offset + _LOCAL].tobytes()
        if len(local) < _LOCAL or local[:4] != b"PK\x03\x04":
            raise Refusal(f"its member {member.filename[:100]!r} is not where it should be")
        skip = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        begin = member.header_offset + _LOCAL + skip
        found = self._raw[begin : begin + member.file_size]
        if found.size != member.file_size:
            raise Refusal(f"its member {member.filename[:100]!r} goes beyond its end")
        return found

    def check(self, name: str) -> Array:
        """A member whose bytes have the checksum that the directory notes."""
        found = self[name]
        if zlib.crc32(found) != self._members[name].CRC:  # type: ignore[arg-type]
            raise Refusal(f"the checksum of its member {name[:100]!r} is wrong")
        return found

    @contextmanager
    def stream(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """A member as a file to read, and its size; reading to its end compares the checksum."""
        member = self._members[name]
        try:
            with self._zip.open(member) as data:
                yield data, member.file_size
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise Refusal(f"its member {name[:100]!r} is damaged ({error})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _checked(infos: list[zipfile.ZipInfo], size: int) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for member in infos:
        name = member.filename
        what = f"its member {name[:100]!r}"
        if name in found:
            raise Refusal(f"{what} is there twice")
        if member.flag_bits & 1:
            raise Refusal(f"{what} is encrypted")
        if member.compress_type not in METHODS:
            raise Refusal(f"{what} is compressed in an unusual way")
        total += member.compress_size
        stored = member.compress_type == zipfile.ZIP_STORED
        if (
            total > size
            or not 0 <= member.header_offset < size
            or (stored and member.file_size != member.compress_size)
            or member.file_size > MOST_RATIO * member.compress_size + 64
        ):
            raise Refusal(f"{what} claims more bytes than there are")
        found[name] = member
    return found


class Window(io.RawIOBase):
    """Mapped bytes as a file, without copying them all."""

    def __init__(self, raw: Array) -> None:
        self._raw, self._at = raw, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._raw.size}[whence]
        if base + offset < 0:
            raise Refusal("it refers to bytes before its beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any) -> int:
        found = self._raw[self._at : self._at + len(target)]
        target[: found.size] = found.data
        self._at += found.size
        return int(found.size)
