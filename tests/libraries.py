"""Library text compiled once for a whole run: micro-kernels, packers, im2col, vectorised functions.

In: a folder of the run. Out: `Code` takes objects of library text from there, by the digest of the
text, its target and its compiler, and puts there what it had to make; all processes that share the
tests do. Kernels, which are what tests are about, are made by each test; and with a disk store of
its own, a test makes everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fulgurite.codegen.cpu.llvm.compiler import Refusal, compile_object
from fulgurite.config import current
from fulgurite.runtime.cache.disk import store_for
from fulgurite.runtime.cpu.objects import Code, Object

Wanted = tuple[str, str, tuple[str, ...]]  # digest and text of a kernel, text of its libraries
_have = Code.have


def share(folder: Path) -> None:
    """Take library text from a folder from now on."""

    def have(self: Code, wanted: Iterable[Wanted]) -> None:
        listed = list(wanted)
        if store_for(current()) is None:
            for _, _, library in listed:
                _install(self, folder, library)
        _have(self, listed)

    Code.have = have  # type: ignore[method-assign]


def _install(code: Code, folder: Path, library: Sequence[str]) -> None:
    digests = [code.digest(text) for text in library]
    for number, (digest, text) in enumerate(zip(digests, library, strict=True)):
        path = folder / digest
        if digest in code.objects:
            continue
        if not path.exists():
            try:
                data = compile_object([text], code.target)
            except Refusal:
                return  # the kernel that needs it says so
            half = folder / f"{digest}.{os.getpid()}"
            half.write_bytes(data)
            half.replace(path)
        needs = tuple(digests[:number])  # a text calls those before it at most
        code.install([Object(path.read_bytes(), (digest,), needs)])
