"""Machine code from an object file into memory, without a compiler.

In: the bytes of a position-independent ELF object, as LLVM emits it on every system we know, and
addresses of functions it may call. Out: the addresses of its own functions. The image is laid out
and relocated in ordinary memory, copied to fresh pages, and only then made executable: pages are
never writable and executable at once. An object may hold code and constants, nothing writable.
Calls that leave the image go through stubs behind it, so code may land anywhere.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....errors import FulguriteError

if TYPE_CHECKING:
    import numpy.typing as npt

_X86, _ARM = 62, 183  # ELF's numbers of architectures
_ALLOCATED, _WRITABLE = 2, 1
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_STUB = {  # jump to the address in the word behind it
    _X86: bytes.fromhex("ff2502000000") + b"\xcc\xcc",
    _ARM: bytes.fromhex("5000005800021fd6"),
}
_BY_WORD = {_X86: (9, 41, 42), _ARM: (311, 312)}  # relocations to a word that holds an address

Words: TypeAlias = "npt.NDArray[np.int64]"


class LoadError(FulguriteError, RuntimeError):
    """An object file that cannot be loaded: damaged, or for another machine."""


class _Section:
    def __init__(self, header: tuple[int, ...]) -> None:
        (self.name, self.type, self.flags, _, self.offset, self.size, self.link, self.info,
         self.align, _) = header  # fmt: skip
        self.at = -1  # its place in the image


def load(data: bytes, known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Map an object's code; its functions by name. `known` are functions of other objects."""
    try:
        return _load(data, known or {})
    except (
        struct.error, IndexError, ValueError, OverflowError, OSError, MemoryError, StopIteration
    ) as problem:  # fmt: skip
        raise LoadError(f"the object file is damaged: {problem}", "clear the cache") from problem


def _load(data: bytes, known: Mapping[str, int]) -> dict[str, int]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise LoadError("this is no object file", "clear the cache")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine not in _STUB or machine != _here():
        raise LoadError("the object file is for another machine", "clear the cache")
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [
        _Section(struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i)) for i in range(count)
    ]
    names = _text(data, sections[struct.unpack_from("<H", data, 62)[0]])
    top = 0
    for section in sections:
        if not section.flags & _ALLOCATED or names(section.name).startswith(".eh_frame"):
            continue
        if section.flags & _WRITABLE and section.size:
            raise LoadError(f"it has writable data in {names(section.name)}", "clear the cache")
        align = max(1, section.align)
        section.at = -(-top // align) * align
        top = section.at + section.size
    table = next(s for s in sections if s.type == _SYMBOLS)
    symbols = np.frombuffer(data, _SYMBOL, table.size // 24, table.offset)
    named = _text(data, sections[table.link])
    outside = [i for i in range(1, len(symbols)) if symbols["section"][i] == 0]
    entries = {
        section.info: np.frombuffer(data, _RELA, section.size // 24, section.offset)
        for section in sections
        if section.type == _RELOCATIONS and sections[section.info].at >= 0
    }
    inside = _asked_by_word(machine, entries.values()) - set(outside)
    stubs = -(-top // 16) * 16
    size = stubs + 16 * len(outside) + 8 * len(inside)
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    image = np.zeros(size, np.uint8)
    for section in sections:
        if section.at >= 0 and section.type != _NO_BITS:
            body = np.frombuffer(data, np.uint8, section.size, section.offset)
            image[section.at : section.at + section.size] = body
    places = np.full(len(sections), -1, np.int64)
    places[:] = [s.at for s in sections]
    homes = np.where(symbols["section"] < len(sections), symbols["section"], 0)
    values = places[homes] + symbols["value"].astype(np.int64)  # from the start of the image
    words = np.full(len(symbols), -1, np.int64)  # where a symbol's address stands in memory
    for slot, i in enumerate(outside):
        name = named(int(symbols["name"][i]))
        stub = stubs + 16 * slot
        address = known.get(name) or find(name)
        image[stub : stub + 16] = np.frombuffer(
            _STUB[machine] + struct.pack("<Q", address), np.uint8
        )
        values[i], words[i] = stub, stub + 8
    for slot, i in enumerate(sorted(inside)):
        words[i] = stubs + 16 * len(outside) + 8 * slot
        _put(image, words[i : i + 1], values[i : i + 1] + base, 8)
    relocate = _relocate_x86 if machine == _X86 else _relocate_arm
    for place, some in entries.items():
        relocate(image, some, sections[place].at, values, words, base)
    memory[:size] = image.tobytes()
    _seal(base, len(memory))
    _kept.append(memory)
    return {
        named(int(s["name"])): base + int(v)
        for s, v in zip(symbols, values, strict=True)
        if s["info"] & 15 == 2 and s["info"] >> 4 and s["section"]
    }


_kept: list[mmap.mmap] = []  # code lives as long as the process


def _asked_by_word(machine: int, tables: Iterable[npt.NDArray[Any]]) -> set[int]:
    """The symbols whose address is read from a word in memory."""
    found: set[int] = set()
    for entries in tables:
        for kind in _BY_WORD[machine]:
            found.update(entries["symbol"][entries["type"] == kind].tolist())
    return found


def _here() -> int:
    return _ARM if os.uname().machine in ("aarch64", "arm64") else _X86


def _text(data: bytes, section: _Section) -> Callable[[int], str]:
    """A table of names: from the place of a name to the name."""
    whole = data[section.offset : section.offset + section.size]
    return lambda at: whole[at : whole.index(b"\0", at)].decode("ascii")


def _put(image: npt.NDArray[np.uint8], at: Words, values: Words, width: int) -> None:
    """Write numbers of some bytes at places of any alignment."""
    rows = values.astype(np.int64).view(np.uint8).reshape(-1, 8)[:, :width]
    image[at[:, None] + np.arange(width)] = rows


def _each(entries: npt.NDArray[Any], start: int, values: Words, words: Words) -> Any:
    """For every kind of relocation: kind, places, targets, and addresses of target words."""
    if len(entries) and (entries["symbol"].max() >= len(values)):
        raise ValueError("a relocation names no symbol")
    for kind in sorted(set(entries["type"].tolist())):  # np.unique would load masked arrays
        some = entries[entries["type"] == kind]
        at = some["offset"].astype(np.int64) + start
        yield kind, at, values[some["symbol"]], words[some["symbol"]], some["addend"]


def _near(delta: Words, limit: int) -> Words:
    if len(delta) and np.abs(delta).max() >= limit:
        raise ValueError("code and constants are too far apart")
    return delta


def _relocate_x86(
    image: npt.NDArray[np.uint8], entries: npt.NDArray[Any], start: int,
    values: Words, words: Words, base: int,
) -> None:  # fmt: skip
    for kind, at, target, word, addend in _each(entries, start, values, words):
        if kind in (2, 4):  # a distance in 32 bits, to a constant or a function
            _put(image, at, _near(target + addend - at, 1 << 31), 4)
        elif kind == 1:  # an address
            _put(image, at, target + addend + base, 8)
        elif kind in _BY_WORD[_X86]:
            _put(image, at, _near(word + addend - at, 1 << 31), 4)
        else:
            raise LoadError(f"relocation {kind} is not known", "report this as a bug")


_LOW_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # add, and loads of 1 to 16 bytes


def _relocate_arm(
    image: npt.NDArray[np.uint8], entries: npt.NDArray[Any], start: int,
    values: Words, words: Words, base: int,
) -> None:  # fmt: skip
    for kind, at, target, word, addend in _each(entries, start, values, words):
        code = image[at[:, None] + np.arange(4)].copy().view("<u4").reshape(-1).astype(np.int64)
        goal = target + addend
        if kind == 257:
            _put(image, at, goal + base, 8)
            continue
        if kind == 261:
            _put(image, at, _near(goal - at, 1 << 31), 4)
            continue
        if kind in (282, 283):  # a branch
            code |= (_near(goal - at, 1 << 27) >> 2) & 0x3FFFFFF
        elif kind in (275, 311):  # a page
            far = (word if kind == 311 else goal) + base
            pages = _near((far >> 12) - ((at + base) >> 12), 1 << 20)
            code |= ((pages & 3) << 29) | (((pages >> 2) & 0x7FFFF) << 5)
        elif kind in _LOW_BITS:
            code |= (((goal + base) & 0xFFF) >> _LOW_BITS[kind]) << 10
        elif kind == 312:
            code |= (((word + base) & 0xFFF) >> 3) << 10
        else:
            raise LoadError(f"relocation {kind} is not known", "report this as a bug")
        _put(image, at, code, 4)


def _seal(base: int, size: int) -> None:
    """From writable to executable."""
    library = _library("c")
    if library.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), 5):  # read and execute
        raise LoadError("the system forbids executable memory", "use device='reference'")
    if _here() == _ARM:
        clear = getattr(_library("gcc_s"), "__clear_cache")
        clear(ctypes.c_void_p(base), ctypes.c_void_p(base + size))


@lru_cache
def _library(name: str) -> ctypes.CDLL:
    """One of the system's own libraries; in most processes they are loaded already."""
    versions = {"c": "libc.so.6", "m": "libm.so.6", "gcc_s": "libgcc_s.so.1"}
    if sys.platform == "darwin":
        return ctypes.CDLL(None, use_errno=True)
    return ctypes.CDLL(versions[name], use_errno=True)


@lru_cache(maxsize=512)
def find(name: str) -> int:
    """The address of a function of the C library, the mathematical one or the interpreter."""
    for library in (_library("c"), _library("m"), ctypes.pythonapi):
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise LoadError(f"there is no function {name!r}", "clear the cache")
