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


class Machine:
    """ELF's numbers of architectures."""

    X86_64 = 62
    AARCH64 = 183


class SectionFlag:
    """Bits of a section's flags."""

    WRITABLE = 1
    ALLOCATED = 2


class SectionType:
    """What a section holds."""

    SYMBOLS = 2
    RELOCATIONS = 4
    NO_BITS = 8


class X86:
    """Relocations of x86-64, by the names of its ABI."""

    ABS64 = 1
    PC32 = 2
    PLT32 = 4
    GOTPCREL = 9
    GOTPCRELX = 41
    REX_GOTPCRELX = 42


class Arm:
    """Relocations of AArch64, by the names of its ABI."""

    ABS64 = 257
    PREL32 = 261
    ADR_PREL_PG_HI21 = 275
    ADD_ABS_LO12_NC = 277
    LDST8_ABS_LO12_NC = 278
    JUMP26 = 282
    CALL26 = 283
    LDST16_ABS_LO12_NC = 284
    LDST32_ABS_LO12_NC = 285
    LDST64_ABS_LO12_NC = 286
    LDST128_ABS_LO12_NC = 299
    ADR_GOT_PAGE = 311
    LD64_GOT_LO12_NC = 312


_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_STUB = {  # jump to the address in the word behind it
    Machine.X86_64: bytes.fromhex("ff2502000000") + b"\xcc\xcc",
    Machine.AARCH64: bytes.fromhex("5000005800021fd6"),
}
_BY_WORD: dict[int, tuple[int, ...]] = {  # relocations to a word that holds an address
    Machine.X86_64: (X86.GOTPCREL, X86.GOTPCRELX, X86.REX_GOTPCRELX),
    Machine.AARCH64: (Arm.ADR_GOT_PAGE, Arm.LD64_GOT_LO12_NC),
}

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
        return _Image(data, known or {}).map()
    except (
        struct.error, IndexError, ValueError, OverflowError, OSError, MemoryError, StopIteration
    ) as problem:  # fmt: skip
        raise LoadError(f"the object file is damaged: {problem}", "clear the cache") from problem


class _Image:
    """An object while it is laid out: its sections, then stubs and words of addresses."""

    def __init__(self, data: bytes, known: Mapping[str, int]) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise LoadError("this is no object file", "clear the cache")
        self.data, self.known = data, known
        self.machine = struct.unpack_from("<H", data, 18)[0]
        if self.machine not in _STUB or self.machine != _here():
            raise LoadError("the object file is for another machine", "clear the cache")
        start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
        self.sections = [
            _Section(struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i)) for i in range(count)
        ]
        table = next(s for s in self.sections if s.type == SectionType.SYMBOLS)
        self.symbols = np.frombuffer(data, _SYMBOL, table.size // 24, table.offset)
        self.named = _text(data, self.sections[table.link])
        self.top = self.lay_out()

    def lay_out(self) -> int:
        """Give every section of code and constants its place; where they end."""
        names = _text(self.data, self.sections[struct.unpack_from("<H", self.data, 62)[0]])
        top = 0
        for section in self.sections:
            allocated = section.flags & SectionFlag.ALLOCATED
            if not allocated or names(section.name).startswith(".eh_frame"):
                continue
            if section.flags & SectionFlag.WRITABLE and section.size:
                raise LoadError(f"it has writable data in {names(section.name)}", "clear the cache")
            align = max(1, section.align)
            section.at = -(-top // align) * align
            top = section.at + section.size
        return top

    def relocations(self) -> dict[int, npt.NDArray[Any]]:
        """The relocations of every section that is laid out."""
        return {
            s.info: np.frombuffer(self.data, _RELA, s.size // 24, s.offset)
            for s in self.sections
            if s.type == SectionType.RELOCATIONS and self.sections[s.info].at >= 0
        }

    def copy(self, image: npt.NDArray[np.uint8]) -> None:
        """The bytes of every section to its place."""
        for section in self.sections:
            if section.at >= 0 and section.type != SectionType.NO_BITS:
                body = np.frombuffer(self.data, np.uint8, section.size, section.offset)
                image[section.at : section.at + section.size] = body

    def by_word(self, tables: Iterable[npt.NDArray[Any]]) -> set[int]:
        """The symbols whose address is read from a word in memory."""
        found: set[int] = set()
        for entries in tables:
            for kind in _BY_WORD[self.machine]:
                found.update(entries["symbol"][entries["type"] == kind].tolist())
        return found

    def map(self) -> dict[str, int]:
        """Executable memory with the relocated image; its functions by name."""
        symbols, machine = self.symbols, self.machine
        outside = [i for i, home in enumerate(symbols["section"].tolist()) if i and not home]
        entries = self.relocations()
        inside = self.by_word(entries.values()).difference(outside)
        stubs = -(-self.top // 16) * 16
        size = stubs + 16 * len(outside) + 8 * len(inside)
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        image = np.zeros(size, np.uint8)
        self.copy(image)
        places = np.array([s.at for s in self.sections], np.int64)
        homes = np.where(symbols["section"] < len(places), symbols["section"], 0)
        values = places[homes] + symbols["value"].astype(np.int64)  # from the start of the image
        words = np.full(len(symbols), -1, np.int64)  # where a symbol's address stands in memory
        for slot, i in enumerate(outside):
            name, stub = self.named(int(symbols["name"][i])), stubs + 16 * slot
            code = _STUB[machine] + struct.pack("<Q", self.known.get(name) or find(name))
            image[stub : stub + 16] = np.frombuffer(code, np.uint8)
            values[i], words[i] = stub, stub + 8
        for slot, i in enumerate(sorted(inside)):
            words[i] = stubs + 16 * len(outside) + 8 * slot
            _put(image, words[i : i + 1], values[i : i + 1] + base, 8)
        for place, some in entries.items():
            _RELOCATE[machine](image, some, self.sections[place].at, values, words, base)
        memory[:size] = image.tobytes()
        _seal(base, len(memory))
        _kept.append(memory)
        columns = [symbols[column].tolist() for column in ("name", "info", "section")]
        return {
            self.named(name): base + place
            for name, info, home, place in zip(*columns, values.tolist(), strict=True)
            if info & 15 == 2 and info >> 4 and home
        }


_kept: list[mmap.mmap] = []  # code lives as long as the process


def _here() -> int:
    return Machine.AARCH64 if os.uname().machine in ("aarch64", "arm64") else Machine.X86_64


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
        if kind in (X86.PC32, X86.PLT32):  # a distance in 32 bits, to a constant or a function
            _put(image, at, _near(target + addend - at, 1 << 31), 4)
        elif kind == X86.ABS64:
            _put(image, at, target + addend + base, 8)
        elif kind in _BY_WORD[Machine.X86_64]:
            _put(image, at, _near(word + addend - at, 1 << 31), 4)
        else:
            raise LoadError(f"relocation {kind} is not known", "report this as a bug")


_LOW_BITS = {  # how far immediates of an addition, and of loads of 1 to 16 bytes, are shifted
    Arm.ADD_ABS_LO12_NC: 0, Arm.LDST8_ABS_LO12_NC: 0, Arm.LDST16_ABS_LO12_NC: 1,
    Arm.LDST32_ABS_LO12_NC: 2, Arm.LDST64_ABS_LO12_NC: 3, Arm.LDST128_ABS_LO12_NC: 4,
}  # fmt: skip


def _relocate_arm(
    image: npt.NDArray[np.uint8], entries: npt.NDArray[Any], start: int,
    values: Words, words: Words, base: int,
) -> None:  # fmt: skip
    for kind, at, target, word, addend in _each(entries, start, values, words):
        code = image[at[:, None] + np.arange(4)].copy().view("<u4").reshape(-1).astype(np.int64)
        goal = target + addend
        if kind == Arm.ABS64:
            _put(image, at, goal + base, 8)
            continue
        if kind == Arm.PREL32:
            _put(image, at, _near(goal - at, 1 << 31), 4)
            continue
        if kind in (Arm.JUMP26, Arm.CALL26):
            code |= (_near(goal - at, 1 << 27) >> 2) & 0x3FFFFFF
        elif kind in (Arm.ADR_PREL_PG_HI21, Arm.ADR_GOT_PAGE):
            far = (word if kind == Arm.ADR_GOT_PAGE else goal) + base
            pages = _near((far >> 12) - ((at + base) >> 12), 1 << 20)
            code |= ((pages & 3) << 29) | (((pages >> 2) & 0x7FFFF) << 5)
        elif kind in _LOW_BITS:
            code |= (((goal + base) & 0xFFF) >> _LOW_BITS[kind]) << 10
        elif kind == Arm.LD64_GOT_LO12_NC:
            code |= (((word + base) & 0xFFF) >> 3) << 10
        else:
            raise LoadError(f"relocation {kind} is not known", "report this as a bug")
        _put(image, at, code, 4)


_RELOCATE = {Machine.X86_64: _relocate_x86, Machine.AARCH64: _relocate_arm}


def _seal(base: int, size: int) -> None:
    """From writable to executable."""
    library = _library("c")
    if library.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), 5):  # read and execute
        raise LoadError("the system forbids executable memory", "use device='reference'")
    if _here() == Machine.AARCH64:
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
