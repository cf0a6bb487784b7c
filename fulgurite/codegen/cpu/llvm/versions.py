"""Which llvmlite is here and whether we can use it, without loading it.

In: what is installed. Out: its version, or why there is no compiler. The bounds are those of
pyproject.toml; `make test-llvmlite` runs the oldest and the newest. LLVM 15 (llvmlite 0.44) reads
neither our pointers nor our constants, and ends the process on some kernels, so it is never asked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec

from ..target import target

MISSING = "llvmlite is not installed"
OLDEST, NEWEST = (0, 45), (0, 50)  # versions of llvmlite that work: LLVM 20 to 22


def unusable() -> str | None:
    """Why there is no compiler that we can use, without loading it; None: there is one.

    An empty folder of its name is none, and what something forbids or stands in for is not either.
    """
    try:
        spec = find_spec("llvmlite")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return MISSING
    found = version()
    if found is not None and found < OLDEST:
        return f"{identity().replace('-', ' ')} is too old: it needs {_dotted(OLDEST)}"
    return None


def version() -> tuple[int, ...] | None:
    """llvmlite's version, as far as its first two numbers go; None if it does not say."""
    try:
        return tuple([int(n) for n in identity().removeprefix("llvmlite-").split(".")[:2]])
    except ValueError:
        return None


def requirement() -> str:
    """What pip is to install."""
    return f"'llvmlite>={_dotted(OLDEST)},<{_dotted((NEWEST[0], NEWEST[1] + 1))}'"


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def code_key(vectors: str) -> str:
    """What code depends on besides its text: the compiler, and the target for some vectors."""
    found = target(vectors)
    return f"{identity()}\n{found.settings}" + (f" for {found.cores}" if found.cores > 1 else "")


@lru_cache(maxsize=1)
def identity() -> str:
    """The compiler's version, without loading it; objects of two versions never mix."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return "no compiler"
    beside = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))  # importlib.metadata is slow
    found = [n for n in beside if n.startswith("llvmlite-") and n.endswith(".dist-info")]
    return found[0].removesuffix(".dist-info") if found else f"llvmlite of {spec.origin}"
