"""KernelText kernels to functions in memory: compiled once by text, for this process and the next.

In: `KernelText` kernels and a target. Out: for each a `Native`: functions, units, numbers. A text
has a digest, over itself, the target and the compiler, that names its functions: so objects never
clash, and a text that was compiled before, here or (through the disk store) by another process, is
not compiled again. All texts of one call that are new go through the compiler in one module, or
where there is much of them in one for each thread. On disk the first of a module has the object,
after a line of what it holds and needs; all others name it.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..._lazy import FORK_LOCK
from ...codegen.cpu.llvm.compiler import Refusal, compile_objects
from ...codegen.cpu.llvm.loader import LoadError, load
from ...codegen.cpu.llvm.versions import identity
from ...codegen.cpu.target import Target
from ...config import current
from ...core.digest import digest_of
from ...core.lazy_named_tuple import NamedTuple
from ..cache.disk import store_for
from .threads import own_threads

if TYPE_CHECKING:
    from ...codegen.common.api import KernelText, Launch

PART = 1 << 17  # letters of text that are worth a thread of LLVM: about 50 ms
ENTRY = "a line about an object, then its bytes"  # what the disk has for a text


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
        parts = _parts(new, current().threads or own_threads())
        try:
            found = compile_objects([[new[d][0] for d in part] for part in parts], self.target)
        except Refusal as problem:
            order = [digest for part in parts for digest in part]
            problem.digest = None if problem.number is None else order[problem.number]
            raise
        self.compiled += len(new)
        store = store_for(current())
        for part, data in zip(parts, found, strict=True):
            needs = sorted({need for digest in part for need in new[digest][1]} - set(part))
            self._load(Object(data, tuple(part), tuple(needs)))
            if store is not None:
                first, *others = part
                about = json.dumps({"needs": needs, "texts": part}).encode()
                named = json.dumps({"first": first}).encode()
                entries = [("kernel", d, named) for d in others]
                store.put_many([("kernel", first, about + b"\n" + data), *entries])

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


def _parts(new: dict[str, tuple[str, list[str]]], threads: int) -> list[list[str]]:
    """Texts in as many parts as threads are worth, about as long as one another. Libraries are in
    the first, which is loaded before the others."""
    wanted = {need for _, needs in new.values() for need in needs}
    first = [digest for digest in new if digest in wanted]
    rest = sorted([d for d in new if d not in wanted], key=lambda d: len(new[d][0]), reverse=True)
    letters = sum([len(text) for text, _ in new.values()])
    count = max(1, min(threads, letters // PART, len(rest)))
    parts: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for digest in (*first, *rest):
        place = 0 if digest in wanted else loads.index(min(loads))
        parts[place].append(digest)
        loads[place] += len(new[digest][0])
    return parts


def shared(units: int, work: int) -> int:
    """1 if the units of a launch are worth sharing among threads."""
    return int(work >= least_work() and units > 1)


@cache
def least_work() -> int:
    """Additions in a launch from which sharing it among threads pays."""
    with FORK_LOCK:  # a process that only runs what is kept does without
        from ...codegen.cpu.tiling import CORES
    return CORES.shared_work


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
