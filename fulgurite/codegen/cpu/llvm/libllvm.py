"""LLVM's own library, as llvmlite ships it: the few functions that turn text into machine code.

In: texts of modules, and for whom. Out: bytes of an object or of assembly; what is wrong with a
text raises RuntimeError. The functions are called directly: loading llvmlite's Python side (its
IR builder, pass managers, execution engines) takes seven times as long as loading LLVM, and none
of it is used here. How they are called is only known for the versions in `KNOWN`; with any other,
and where a program has loaded `llvmlite.binding` already, that is asked instead.
Nothing outlives a call but target machines, of which each call has one to itself: threads may emit
at once. Whoever waits for them holds `FORK_LOCK`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from typing import Any, Protocol

from ..target import Machine

KNOWN = (
    "0.50",
)  # tests/codegen/cpu/llvm/test_libllvm.py compares calls with what llvmlite declares
_TEXT, _PLACE, _WORD = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int
_PROBLEM = ctypes.POINTER(_PLACE)
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {  # what each returns and takes
    "ContextCreate": (_PLACE, ()),
    "ContextDispose": (None, (_PLACE,)),
    "ParseAssembly": (_PLACE, (_PLACE, _TEXT, _PROBLEM)),
    "LinkModules": (_WORD, (_PLACE, _PLACE, _PROBLEM)),
    "VerifyModule": (ctypes.c_bool, (_PLACE, _PROBLEM)),
    "SetTarget": (None, (_PLACE, _TEXT)),
    "DisposeModule": (None, (_PLACE,)),
    "DisposeString": (None, (_PLACE,)),
    "GetTargetFromTriple": (_PLACE, (_TEXT, _PROBLEM)),
    "CreateTargetMachine": (
        _PLACE, (_PLACE, _TEXT, _TEXT, _TEXT, _WORD, _TEXT, _TEXT, _WORD, _WORD, _TEXT),
    ),
    "TargetMachineEmitToMemory": (_PLACE, (_PLACE, _PLACE, _WORD, _PROBLEM)),
    "GetBufferStart": (_PLACE, (_PLACE,)),
    "GetBufferSize": (ctypes.c_size_t, (_PLACE,)),
    "DisposeMemoryBuffer": (None, (_PLACE,)),
}  # fmt: skip
_LIBRARY = {"darwin": "libllvmlite.dylib", "win32": "llvmlite.dll"}.get(
    sys.platform, "libllvmlite.so"
)


class Segment(IntEnum):
    """ELF's numbers for parts of a file: the type, and the flag of writable ones."""

    LOAD = 1
    WRITABLE = 2


class Llvm(Protocol):
    """What the compiler needs."""

    def emit(self, texts: Sequence[str], machine: Machine, assembly: bool = False) -> bytes:
        """The functions of all texts as one object, or as assembly."""

    def check(self, text: str) -> None:
        """Raise RuntimeError with what is wrong with a text."""

    def rest(self, letters: int) -> None:
        """Give back memory, if so much text was worth it."""


_OURS = ("k", "fulgurite_")  # functions that no text but ours has
_OTHER = ("@", "%", "$", "!", "attributes", "target", "source_filename")  # lines of other names


def join_texts(texts: Sequence[str]) -> list[str]:
    """Fewer texts that say the same: linking modules looks at all of the first one every time."""
    names: set[str] = set()
    declared: dict[str, str] = {}
    whole: list[str] = []
    apart: list[str] = []
    for text in texts:
        first, *lines = f"\n{text.strip()}".split("\ndeclare ")
        own = [_name(part) for part in first.split("\ndefine ")[1:]]
        mixed = any("\n" in line for line in lines) or any(f"\n{o}" in first for o in _OTHER)
        if mixed or not names.isdisjoint(own) or not all(n.startswith(_OURS) for n in own):
            apart.append(text)
            continue
        names.update(own)
        declared.update({_name(line): f"declare {line}" for line in lines})
        whole.append(first)
    whole.extend([line for name, line in declared.items() if name not in names])
    return ["\n".join(whole), *apart] if whole else apart


def _check_assembly(texts: Sequence[str], machine: Machine) -> None:
    """Raise where LLVM would end the process: it reads assembly of this machine alone."""
    here = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if not machine.triple.startswith(here) and any("module asm" in text for text in texts):
        raise RuntimeError(f"assembly is read for {here} here, not for {machine.triple}")


def _name(text: str) -> str:
    """Which function it is that is defined or declared."""
    return text.partition("@")[2].partition("(")[0]


@lru_cache(maxsize=1)
def llvm() -> Llvm:
    """LLVM, loaded now; importing `llvmlite` itself says so."""
    import llvmlite

    path = os.path.join(os.path.dirname(llvmlite.__file__), "binding", _LIBRARY)
    known = llvmlite.__version__.startswith(tuple(f"{version}." for version in KNOWN))
    if not known or "llvmlite.binding" in sys.modules or not os.path.exists(path):
        return Binding()
    return Direct(path)


def read_only_pages(path: str, function: Any) -> list[tuple[int, int]]:
    """The parts of a loaded library that nobody writes to: address and size.

    The system reads them from the file again whenever they are used. Only Linux is known to.
    """
    if sys.platform != "linux":
        return []
    with open(path, "rb") as file:
        head = file.read(4096)
    if head[:6] != b"\x7fELF\x02\x01":
        return []
    about = (_PLACE * 4)()  # of the function: file, where that is loaded, symbol, address
    if not _libc().dladdr(ctypes.cast(function, _PLACE), about):
        return []
    start, each, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
    found = []
    for number in range(count):
        kind, flags, _, place, _, _, size = struct.unpack_from(
            "<IIQQQQQ", head, start + number * each
        )
        if kind == Segment.LOAD and not flags & Segment.WRITABLE and not place % mmap.PAGESIZE:
            found.append((about[1] + place, size // mmap.PAGESIZE * mmap.PAGESIZE))
    return found


@lru_cache(maxsize=1)
def _libc() -> Any:
    return ctypes.CDLL(None)


class Direct:
    """The library's functions, called as they are."""

    large_text = 1 << 16  # letters after which LLVM's memory is given back

    def __init__(self, path: str) -> None:
        self._library = library = ctypes.CDLL(path)
        self._call: dict[str, Any] = {}
        for name, (result, arguments) in CALLS.items():
            function = library[f"LLVMPY_{name}"]
            function.restype, function.argtypes = result, arguments
            self._call[name] = function
        library.LLVMPY_InitializeNativeTarget()
        library.LLVMPY_InitializeNativeAsmPrinter()
        library.LLVMPY_InitializeNativeAsmParser()
        self._machines: defaultdict[Machine, list[int]] = defaultdict(list)  # those not in use
        self._pages = read_only_pages(path, library.LLVMPY_ContextCreate)
        self.rest(self.large_text)  # most of what was read so far is never read again

    def emit(self, texts: Sequence[str], machine: Machine, assembly: bool = False) -> bytes:
        """The functions of all texts as one object, or as assembly."""
        call = self._call
        _check_assembly(texts, machine)
        made = self._machine(machine)
        context = call["ContextCreate"]()
        try:
            whole, *others = [self._parsed(context, text) for text in join_texts(texts)]
            for other in others:  # linking takes the other module away
                self._asked("LinkModules", whole, other)
            call["SetTarget"](whole, machine.triple.encode())
            self._asked("VerifyModule", whole)
            problem = _PLACE()
            memory = call["TargetMachineEmitToMemory"](
                made, whole, int(not assembly), ctypes.byref(problem)
            )
            if not memory:
                raise RuntimeError(self._told(problem))
            start, size = call["GetBufferStart"](memory), call["GetBufferSize"](memory)
            found = ctypes.string_at(start, size)
            call["DisposeMemoryBuffer"](memory)
            call["DisposeModule"](whole)
            return found
        finally:
            call["ContextDispose"](context)  # and with it what a failure left
            self._machines[machine].append(made)

    def rest(self, letters: int) -> None:
        """Give back memory until it is used again: pages of the library, and what was freed."""
        if letters < self.large_text:
            return
        for address, size in self._pages:
            _libc().madvise(_PLACE(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
        if hasattr(_libc(), "malloc_trim"):
            _libc().malloc_trim(ctypes.c_size_t(0))

    def check(self, text: str) -> None:
        """Raise RuntimeError with what is wrong with a text."""
        context = self._call["ContextCreate"]()
        try:
            module = self._parsed(context, text)
            self._asked("VerifyModule", module)
            self._call["DisposeModule"](module)
        finally:
            self._call["ContextDispose"](context)

    def _parsed(self, context: int, text: str) -> int:
        problem = _PLACE()
        module: int | None = self._call["ParseAssembly"](
            context, text.encode(), ctypes.byref(problem)
        )
        if not module:
            raise RuntimeError(f"LLVM IR parsing error\n{self._told(problem)}")
        return module

    def _asked(self, name: str, *arguments: int) -> None:
        """Call a function that returns whether something is wrong."""
        problem = _PLACE()
        wrong = self._call[name](*arguments, ctypes.byref(problem))
        told = self._told(problem)
        if wrong:
            raise RuntimeError(told)

    def _told(self, problem: Any) -> str:
        """The text of a problem, which is ours to free."""
        if not problem.value:
            return ""
        text = ctypes.string_at(problem.value).decode(errors="replace")
        self._call["DisposeString"](problem)
        return text

    def _machine(self, machine: Machine) -> int:
        free = self._machines[machine]
        with suppress(IndexError):
            return free.pop()
        if not machine.triple.startswith(platform.machine()):
            for part in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters"):
                self._library[f"LLVMPY_InitializeAll{part}"]()
        problem = _PLACE()
        target = self._call["GetTargetFromTriple"](machine.triple.encode(), ctypes.byref(problem))
        if not target:
            raise RuntimeError(self._told(problem))
        made: int | None = self._call["CreateTargetMachine"](
            target, machine.triple.encode(), machine.cpu.encode(), machine.features.encode(),
            machine.effort, b"pic", b"small", 0, 0, b"",
        )  # fmt: skip
        if not made:
            raise RuntimeError("there is no such target machine")
        return made


class Binding:
    """The same through llvmlite's own Python side."""

    def __init__(self) -> None:
        import llvmlite.binding

        self._llvm = llvmlite.binding
        self._llvm.initialize_all_targets()
        self._llvm.initialize_all_asmprinters()
        self._llvm.initialize_native_asmparser()
        self._machines: defaultdict[Machine, list[Any]] = defaultdict(list)  # those not in use

    def emit(self, texts: Sequence[str], machine: Machine, assembly: bool = False) -> bytes:
        """The functions of all texts as one object, or as assembly."""
        _check_assembly(texts, machine)
        whole, *others = [self._llvm.parse_assembly(text) for text in join_texts(texts)]
        for module in others:
            whole.link_in(module)
        whole.triple = machine.triple
        whole.verify()
        made = self._machine(machine)
        try:
            if assembly:
                return str(made.emit_assembly(whole)).encode()
            return bytes(made.emit_object(whole))
        finally:
            self._machines[machine].append(made)

    def _machine(self, machine: Machine) -> Any:
        with suppress(IndexError):
            return self._machines[machine].pop()
        return self._llvm.Target.from_triple(machine.triple).create_target_machine(
            cpu=machine.cpu,
            features=machine.features,
            opt=machine.effort,
            reloc="pic",
            codemodel="small",
        )

    def rest(self, letters: int) -> None:
        """Nothing: llvmlite has its own ways."""

    def check(self, text: str) -> None:
        """Raise RuntimeError with what is wrong with a text."""
        self._llvm.parse_assembly(text).verify()
