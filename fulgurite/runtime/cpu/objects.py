"""KernelText kernels to functions in memory: compiled once by text, for this process and the next.

In: `KernelText` kernels and a target. Out: for each a `Native`: functions, units, numbers. A text
has a digest, over itself, the target and the compiler, that names its functions: so objects never
clash, and a text that was compiled before, here or (through the disk store) by another process, is
not compiled again. All texts of one call that are new go through the compiler in one module. On
disk the first of them has the object, after a line of what it holds and needs; all others name it.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...codegen.cpu.llvm.compiler import Refusal, compile_object
from ...codegen.cpu.llvm.loader import LoadError, load
from ...codegen.cpu.llvm.versions import identity
from ...codegen.cpu.target import Target
from ...codegen.cpu.tiling import CORES
from ...config import current
from ...core.digest import digest_of
from ...core.lazy_named_tuple import NamedTuple
from ..cache.disk import store_for

if TYPE_CHECKING:
    from ...codegen.common.api import KernelText, Launch

ENTRY = "a line about an object, then its bytes"  # what the disk has for a text
THREADED = CORES.shared_work  # additions in a launch from which sharing it among threads pays


class PrepackedForm(NamedTuple):
    """How to launch a kernel whose operand was packed before, and how to pack that."""

    param: int  # the operand
    nbytes: int
    pack: tuple[str, int, int]  # of params: the operand, and memory for it
    pack_numbers: tuple[int, ...]
    launches: tuple[tuple[str, int, int], ...]
    numbers: tuple[int, ...]
    workspace: int


class Native(NamedTuple):
    """A kernel that the driver can launch."""

    digest: str  # of its text
    launches: tuple[tuple[str, int, int], ...]  # function, units, whether to share them
    variables: tuple[str, ...]
    numbers: tuple[int, ...]
    workspace: int
    prepacked: PrepackedForm | None = None


def dump(code: object) -> list[Any] | None:
    """What JSON can hold of a native kernel; None of any other."""
    return list(code) if isinstance(code, Native) else None


def restored(dumped: Sequence[Any]) -> Native:
    """The kernel that was dumped."""
    digest, launches, variables, numbers, workspace, *form = dumped
    found = tuple((symbol, units, shared) for symbol, units, shared in launches)
    packed = _form(*form[0]) if form and form[0] is not None else None
    return Native(digest, found, tuple(variables), tuple(numbers), workspace, packed)


def _form(
    param: int, nbytes: int, pack: Any, pack_numbers: Any, launches: Any, numbers: Any, room: int
) -> PrepackedForm:
    symbol, units, shared = pack
    found = tuple((symbol, units, shared) for symbol, units, shared in launches)
    pack = symbol, units, shared
    return PrepackedForm(param, nbytes, pack, tuple(pack_numbers), found, tuple(numbers), room)


class Object(NamedTuple):
    """Machine code as bytes: which texts it holds, and which others these call."""

    data: bytes
    texts: tuple[str, ...]
    needs: tuple[str, ...]


class Code:
    """All native functions of the process, for one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._settings = f"{identity()}\n{target.settings}\n{ENTRY}"
        self.functions: dict[str, int] = {}
        self.compiled = 0  # texts that went through the compiler here
        self.objects: dict[str, Object] = {}  # of each text that is loaded
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """In a child process no other thread lives: a lock it held is open again."""
        self._lock = threading.RLock()

    def add(self, kernels: Sequence[KernelText]) -> list[Native]:
        """Functions for all kernels; new ones are compiled together."""
        digests = [self.digest(k.text) for k in kernels]
        self.have([(d, k.text, k.library) for d, k in zip(digests, kernels, strict=True)])
        return [launch_of(k, d) for k, d in zip(kernels, digests, strict=True)]

    def have(self, wanted: Iterable[tuple[str, str, tuple[str, ...]]]) -> None:
        """Make the functions of texts, with the libraries they call, known here."""
        with self._lock:
            new: dict[str, tuple[str, list[str]]] = {}
            for digest, text, library in wanted:
                needs = [self.digest(part) for part in library]
                for need, part in zip(needs, library, strict=True):
                    if need not in new and not self.fetch(need):
                        new[need] = (part, [])
                if digest not in new and not self.fetch(digest):
                    new[digest] = (text.replace("@kernel", f"@k{digest}"), needs)
            if new:
                self._compile(new)

    def _compile(self, new: dict[str, tuple[str, list[str]]]) -> None:
        try:
            data = compile_object([text for text, _ in new.values()], self.target)
        except Refusal as problem:
            problem.digest = None if problem.number is None else list(new)[problem.number]
            raise
        self.compiled += len(new)
        needs = sorted({need for _, listed in new.values() for need in listed} - set(new))
        self._load(Object(data, tuple(new), tuple(needs)))
        store = store_for(current())
        if store is not None:
            first, *others = new
            about = json.dumps({"needs": needs, "texts": list(new)}).encode()
            named = json.dumps({"first": first}).encode()
            store.put_many(
                [("kernel", first, about + b"\n" + data), *[("kernel", d, named) for d in others]]
            )

    def fetch(self, digest: str) -> bool:
        """True if a text's code is in memory, or was loaded from the disk."""
        if digest in self.objects:
            return True
        with self._lock:  # of two threads that ask for it one loads it
            return digest in self.objects or self._fetch(digest)

    def _fetch(self, digest: str) -> bool:
        store = store_for(current())
        found = store.get("kernel", digest) if store is not None else None
        if store is None or found is None:
            return False
        try:
            line, _, data = found.partition(b"\n")
            about = json.loads(line)
            if "first" in about:  # whose object may be another one by now
                return self.fetch(about["first"]) and digest in self.objects
            if not all([self.fetch(need) for need in about["needs"]]):
                return False
            self._load(Object(data, tuple(about["texts"]), tuple(about["needs"])))
        except (LoadError, ValueError, KeyError, TypeError) as problem:
            warnings.warn(f"a stored kernel is not used: {problem}", RuntimeWarning, stacklevel=2)
            return False
        return digest in self.objects

    def install(self, objects: Iterable[Object]) -> None:
        """Make code known that came from elsewhere, in an order in which needs come first."""
        with self._lock:
            for made in objects:
                if not all([text in self.objects for text in made.texts]):
                    self._load(made)

    def _load(self, made: Object) -> None:
        self.functions |= load(made.data, self.functions)
        self.objects.update(dict.fromkeys(made.texts, made))

    def digest(self, text: str) -> str:
        """What a text is called: it depends on all that its code depends on."""
        return digest_of(f"{self._settings}\n{text}")


def shared(units: int, work: int) -> int:
    """1 if the units of a launch are worth sharing among threads."""
    return int(work >= THREADED and units > 1)


def launch_of(kernel: KernelText, digest: str) -> Native:
    """How the driver launches a kernel whose text has this digest."""

    def phase(p: Launch) -> tuple[str, int, int]:
        return p.symbol.replace("kernel", f"k{digest}", 1), p.units, shared(p.units, p.work)

    packed, form = None, kernel.prepacked
    if form is not None:
        packed = PrepackedForm(
            form.param, form.nbytes, phase(form.pack), form.pack_numbers,
            tuple(map(phase, form.launches)), form.numbers, form.workspace,
        )  # fmt: skip
    launches = tuple(map(phase, kernel.launches))
    return Native(digest, launches, kernel.variables, kernel.numbers, kernel.workspace, packed)
