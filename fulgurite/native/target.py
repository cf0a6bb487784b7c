"""The machine that code is made for, known without loading a compiler.

In: what the operating system says of the processor, or a wish (`avx2` on a machine with AVX-512).
Out: a `Target`: architecture, vector kind, lanes of float32, and the features that renderers ask
for. It is part of every key of compiled code.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache

VECTORS = {"avx512": 16, "avx2": 8, "sse2": 4, "neon": 4}  # lanes of float32
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_ASKED = (*_AVX512, "avx2", "fma", "f16c", "avx512_vnni", "avx_vnni", "avx512_bf16")


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as renderers see it."""

    arch: str  # x86_64 or aarch64
    vectors: str  # avx512, avx2, sse2 or neon
    features: frozenset[str] = frozenset()  # by the names Linux gives them

    @property
    def lanes(self) -> int:
        """How many float32 fit a vector."""
        return VECTORS[self.vectors]


@lru_cache(maxsize=8)
def target(wish: str = "auto") -> Target:
    """This machine, or this machine held to narrower vectors."""
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if arch != "x86_64":
        return Target(arch, "neon")
    found = _flags() & set(_ASKED)
    best = "sse2"
    if {"avx2", "fma", "f16c"} <= found:
        best = "avx512" if set(_AVX512) <= found else "avx2"
    order = ("sse2", "avx2", "avx512")
    chosen = best if wish == "auto" else order[min(order.index(wish), order.index(best))]
    if chosen == "sse2":
        return Target(arch, chosen)
    if chosen == "avx2":
        return Target(arch, chosen, frozenset(f for f in found if not f.startswith("avx512")))
    return Target(arch, chosen, frozenset(found))


def _flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", "rb") as lines:  # text imports a codec: see forks.py
            for line in lines:
                if line.startswith(b"flags"):
                    return set(line.partition(b":")[2].decode("ascii", "ignore").split())
    except OSError:
        pass
    return set()
