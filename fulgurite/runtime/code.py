"""Rendered kernels to functions in memory: compiled once by text, kept for the process.

In: `Rendered` kernels and a target. Out: for each a `Native`: addresses, units, numbers. Texts that
were compiled before, in this process or (through the disk store) another, are not compiled again;
all new ones of a call go through the compiler in one module. A function's name holds the digest of
its text, so objects never clash and a stored object says itself what it has.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ..native.code import Rendered
from ..native.compiler import compile_object, identity
from ..native.loader import load
from ..native.target import Target

THREADED = 1 << 17  # additions in a phase from which sharing it among threads pays


@dataclass(frozen=True, slots=True)
class Native:
    """A kernel that the driver can launch."""

    phases: tuple[tuple[str, int, int], ...]  # function, units, whether to share them
    variables: tuple[str, ...]
    numbers: tuple[int, ...]
    workspace: int


class Code:
    """All native functions of the process, for one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: dict[str, int] = {}
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """In a child process no other thread lives: a lock it held is open again."""
        self._lock = threading.RLock()

    def add(self, kernels: Sequence[Rendered]) -> list[Native]:
        """Functions for all kernels, those that are new compiled together."""
        prefixes = [_digest(k.text) for k in kernels]
        with self._lock:
            texts: dict[str, None] = {}  # of libraries first: kernels refer to them
            for kernel, prefix in zip(kernels, prefixes, strict=True):
                if self.known(kernel, prefix):
                    continue
                for text in kernel.library:
                    if not self.provided(text):
                        texts[text] = None
            for kernel, prefix in zip(kernels, prefixes, strict=True):
                if not self.known(kernel, prefix):
                    texts[kernel.text.replace("@kernel", f"@{prefix}")] = None
            if texts:
                self.load(compile_object(list(texts), self.target))
        return [self._native(k, prefix) for k, prefix in zip(kernels, prefixes, strict=True)]

    def known(self, kernel: Rendered, prefix: str) -> bool:
        """Are all functions of a kernel in memory?"""
        return all(_renamed(p.symbol, prefix) in self.functions for p in kernel.phases)

    def provided(self, text: str) -> bool:
        """Are all functions that a library defines in memory?"""
        names = [
            line.partition("@")[2].partition("(")[0]
            for line in text.splitlines()
            if line.startswith("define") and " internal " not in line and " private " not in line
        ]
        return all(name.strip('"') in self.functions for name in names)

    def drive(self, text: str) -> None:
        """Have the driver's functions, whose names are their own."""
        with self._lock:
            if not self.provided(text):
                self.load(compile_object([text], self.target))

    def load(self, data: bytes) -> None:
        """Map an object and remember its functions."""
        self.functions |= load(data, self.functions)

    def _native(self, kernel: Rendered, prefix: str) -> Native:
        phases = tuple(
            (_renamed(p.symbol, prefix), p.units, int(p.work >= THREADED and p.units > 1))
            for p in kernel.phases
        )
        return Native(phases, kernel.variables, kernel.numbers, kernel.workspace)


def _renamed(symbol: str, prefix: str) -> str:
    return symbol.replace("kernel", prefix, 1)


def _digest(text: str) -> str:
    made = hashlib.blake2b(f"{identity()}\n{text}".encode(), digest_size=12)
    return f"k{made.hexdigest()}"
