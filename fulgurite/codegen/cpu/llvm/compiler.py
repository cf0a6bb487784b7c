"""LLVM in this process: IR text to object code, through the library that llvmlite ships.

In: texts of modules and a target. Out: the bytes of one position-independent ELF object, for the
loader and the disk cache. No optimisation passes run: the text has explicit vectors and SSA loops
already, and code generation alone takes a third of the time. What comes out depends on the texts,
the target and the compiler's version alone, so it may serve another process. A text that LLVM
refuses is a `Refusal`, which says little; all that LLVM said is in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...._lazy import FORK_LOCK
from ..target import Target, machine

if TYPE_CHECKING:
    from .libllvm import Llvm

calls = 0  # how often the compiler has run in this process


class Refusal(RuntimeError):
    """What LLVM said of a text, in a line; all of it, and the text, are in here."""

    def __init__(self, said: str, texts: Sequence[str], number: int | None = None) -> None:
        self.said, self.texts = said, tuple(texts)
        self.number = number  # of the text among those that were given; None: it is no single one
        self.digest: str | None = None  # what the caller calls it
        super().__init__(self.line)

    @property
    def line(self) -> str:
        """The problem in one line of at most 160 letters."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        named = [line for line in lines if "error:" in line]
        found = (named or lines or ["no reason given"])[0]
        found = found.rpartition("error:")[2].strip() or found
        return found if len(found) <= 160 else found[:157] + "..."


def _llvm() -> Llvm:
    from .libllvm import llvm  # where code comes from the disk it is not needed

    return llvm()


def compile_object(texts: Sequence[str], target: Target) -> bytes:
    """One object with the functions of all texts."""
    return compile_objects([texts], target)[0]


def compile_objects(parts: Sequence[Sequence[str]], target: Target) -> list[bytes]:
    """An object for each part of texts, all at once: LLVM runs in a thread for each."""
    global calls
    with FORK_LOCK:  # until LLVM's own objects are gone too
        calls += 1
        made, asked = _llvm(), machine(target)
        try:
            found = _at_once([partial(made.emit, texts, asked) for texts in parts])
            made.rest(sum([len(text) for texts in parts for text in texts]))
            return found
        except RuntimeError as problem:
            said = str(problem)
    texts = [text for some in parts for text in some]
    alone = [(number, fault(text)) for number, text in enumerate(texts)]
    number, own = next(((n, own) for n, own in alone if own), (None, None))
    raise Refusal(own or said, texts if number is None else [texts[number]], number)


def _at_once(jobs: Sequence[Callable[[], bytes]]) -> list[bytes]:
    """What each of some jobs gives: the first is this thread's, the others have their own."""
    found: dict[int, bytes] = {}
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            found[number] = jobs[number]()
        except BaseException as problem:
            problems.append(problem)

    others = [threading.Thread(target=run, args=(n,)) for n in range(1, len(jobs))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    if problems:
        raise problems[0]
    return [found[number] for number in range(len(jobs))]


def fault(text: str) -> str | None:
    """What is wrong with a text, in the compiler's words; None if it can be read."""
    with FORK_LOCK:
        try:
            _llvm().check(text)
        except RuntimeError as problem:
            return str(problem).strip()
    return None


def compile_assembly(text: str, target: Target) -> str:
    """What the text becomes in the target's own assembly language, to be looked at."""
    with FORK_LOCK:
        return _llvm().emit([text], machine(target), assembly=True).decode()
