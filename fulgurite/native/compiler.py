"""LLVM in this process: IR text to object code, through the library that llvmlite ships.

In: texts of modules and a target. Out: the bytes of one position-independent ELF object, for the
loader and the disk cache. No optimisation passes run: the text has explicit vectors and SSA loops
already, and code generation alone takes a third of the time. What comes out depends on the texts,
the target and the compiler's version (`identity`) alone, so it may serve another process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..forks import QUIET
from .target import Target, machine

if TYPE_CHECKING:
    from .libllvm import Llvm

calls = 0  # how often the compiler has run in this process


def _llvm() -> Llvm:
    from .libllvm import llvm  # where code comes from the disk it is not needed

    return llvm()


def compile_object(texts: Sequence[str], target: Target) -> bytes:
    """One object with the functions of all texts."""
    global calls
    with QUIET:  # until LLVM's own objects are gone too
        calls += 1
        return _llvm().emit(texts, machine(target))


def fault(text: str) -> str | None:
    """What is wrong with a text, in the compiler's words; None if it can be read."""
    with QUIET:
        try:
            _llvm().check(text)
        except RuntimeError as problem:
            return str(problem).strip()
    return None


def compile_assembly(text: str, target: Target) -> str:
    """What the text becomes in the target's own assembly language, to be looked at."""
    with QUIET:
        return _llvm().emit([text], machine(target), assembly=True).decode()


def available() -> bool:
    """Is there a compiler, without loading it?"""
    return find_spec("llvmlite") is not None


@lru_cache(maxsize=1)
def identity() -> str:
    """The compiler's version, without loading it; objects of two versions never mix."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return "no compiler"
    beside = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))  # importlib.metadata is slow
    found = [n for n in beside if n.startswith("llvmlite-") and n.endswith(".dist-info")]
    return found[0].removesuffix(".dist-info") if found else f"llvmlite of {spec.origin}"
