"""The machine that code is made for, known without loading a compiler.

In: what the operating system says of the processor, or a wish (`avx2` on a machine with AVX-512).
Out: a `Target`: architecture, vector kind, lanes of float32, and the features that renderers ask
for; and the same in LLVM's words, a `Machine`. Both are part of every key of compiled code.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache

from ...core.digest import digest_of
from ...core.lazy_dataclass import dataclass
from ...core.lazy_named_tuple import NamedTuple

VECTORS = {"avx512": 16, "avx2": 8, "sse2": 4, "neon": 4}  # lanes of float32
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_CPUS = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "sse2": "x86-64", "neon": "generic"}
_FEATURES = {
    "avx512_vnni": "avx512vnni", "avx_vnni": "avxvnni", "avx512_bf16": "avx512bf16",
    "amx_tile": "amx-tile", "amx_bf16": "amx-bf16", "amx_int8": "amx-int8",
}  # fmt: skip
EFFORT = 1  # of code generation, 0 to 3: more takes longer, and our code gains nothing from it
_AMX = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
_HALVES = {("AuthenticAMD", "25")}  # vendor and family: Zen 4
_ASKED = (*_AVX512, "avx2", "fma", "f16c", "avx512_vnni", "avx_vnni", "avx512_bf16", *_AMX)


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as renderers see it."""

    arch: str  # x86_64 or aarch64
    vectors: str  # avx512, avx2, sse2 or neon
    features: frozenset[str] = frozenset()  # by the names Linux gives them
    halves: bool = False  # is an instruction on 512 bits two on 256?
    cores: int = 1  # that work is cut for, where it matters: never seen in bits or text

    @property
    def lanes(self) -> int:
        """How many float32 fit a vector."""
        return VECTORS[self.vectors]

    @property
    def has_masks(self) -> bool:
        """True if part of a vector is loaded in one instruction."""
        return self.vectors in ("avx512", "avx2")

    @property
    def sums_bytes(self) -> bool:
        """True if an instruction adds products of four bytes to a number of 32 bits (VNNI)."""
        wanted = {"avx512": "avx512_vnni", "avx2": "avx_vnni"}.get(self.vectors)
        return wanted in self.features

    @property
    def multiplies_words(self) -> bool:
        """True if words of four bytes are multiplied where they lie: tiles (AMX) are packed."""
        return self.sums_bytes and "amx_int8" not in self.features

    @property
    def settings(self) -> str:
        """All that text and code depend on, as part of a key."""
        found = f"{self.arch} {self.vectors} {sorted(self.features)} {tuple(machine(self))}"
        return f"{found} in halves" if self.halves else found


class Machine(NamedTuple):
    """For whom code is made, in LLVM's words."""

    triple: str
    cpu: str
    features: str
    effort: int = EFFORT


@lru_cache(maxsize=8)
def machine(target: Target) -> Machine:
    """What LLVM is told of a target; the system is one whose objects our loader reads: ELF."""
    wanted = [f"+{_FEATURES[f]}" for f in sorted(target.features) if f in _FEATURES]
    features = ",".join([*wanted, "-prefer-256-bit"]) if target.arch == "x86_64" else ""
    return Machine(f"{target.arch}-unknown-linux-gnu", _CPUS[target.vectors], features)


@lru_cache(maxsize=8)
def target(wish: str = "auto") -> Target:
    """This machine, or this machine held to narrower vectors."""
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if arch != "x86_64":
        return Target(arch, "neon")
    told = _cpuinfo()
    found = set(told.get("flags", "").split()) & set(_ASKED)
    best = "sse2"
    if {"avx2", "fma", "f16c"} <= found:
        best = "avx512" if set(_AVX512) <= found else "avx2"
    order = ("sse2", "avx2", "avx512")
    chosen = best if wish == "auto" else order[min(order.index(wish), order.index(best))]
    if chosen == "sse2":
        return Target(arch, chosen)
    if chosen == "avx2":
        narrow = [f for f in found - _AMX if not f.startswith("avx512")]
        return Target(arch, chosen, frozenset(narrow))
    kept = frozenset(found if may_use_tiles(found) else found - _AMX)
    halves = (told.get("vendor_id"), told.get("cpu family")) in _HALVES
    return Target(arch, chosen, kept, halves, many_cores(own_cores()))


def may_use_tiles(features: set[str]) -> bool:
    """True if the system grants this process the registers of AMX: it has to be asked once."""
    if "amx_tile" not in features or sys.platform != "linux":
        return False
    import ctypes

    arch_prctl, request, tile_data = 158, 0x1023, 18  # of Linux on x86-64
    return int(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data)) == 0


def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first processor."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", "rb") as lines:  # text imports a codec: see forks.py
            for line in lines:
                name, _, value = line.decode("ascii", "ignore").partition(":")
                found[name.strip()] = value.strip()
                if name.startswith("flags"):
                    break
    except OSError:
        pass
    return found


def hardware(vectors: str = "auto") -> str:
    """What times depend on: the processor and how much of it we may use."""
    found = target(vectors)
    features = digest_of(repr(sorted(found.features)), 4)
    return f"{found.arch} {found.vectors} {features} x{own_cores()}"


def own_cores() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def many_cores(cores: int) -> int:
    """For how many cores work is cut: 1 where the usual cut has enough parts for all."""
    return cores // 4 * 4 if cores >= 12 else 1
