"""A kernel that LLVM refuses, told in a few lines; the kernel itself goes to a file.

In: a `Refusal` and the kernel it is about. Out: a `CompilerError` that names the versions of
llvmlite, LLVM and fulgurite, and what to do. Nobody reads pages of LLVM IR on a terminal: the text
and all that LLVM said of it are written to a file, which a report of the fault should have.
"""

from __future__ import annotations

import os
import sys
import tempfile

from ...codegen.cpu.llvm.compiler import Refusal
from ...codegen.cpu.llvm.versions import NEWEST, identity, requirement, version
from ...core.digest import digest_of
from ...errors import CompilerError
from ...graph.ir.kernel import Kernel

_written: dict[str, str] = {}  # by digest: a loop that meets it again writes no second file


def refused(problem: Refusal, kernel: Kernel | None) -> CompilerError:
    """What the user is told."""
    what = "the driver" if kernel is None else f"a {kernel.kind} kernel"
    ours = getattr(sys.modules.get("fulgurite"), "__version__", "of unknown version")
    about = f"{identity().replace('-', ' ')}, LLVM {_llvm_version()}"
    file = _written_out(problem, what)
    found = version()
    known = found is not None and found <= NEWEST
    hint = "" if known else f"pip install {requirement()}, which are the versions that are tested; "
    hint += "'fulgurite doctor' says what works here; "
    hint += f"report it with {file}" if file else "there is no room for a file with its text"
    made = CompilerError(
        f"{about} refuses {what} of fulgurite {ours}: {problem.line}", hint, where=""
    )
    made.kernel = kernel
    return made


def _llvm_version() -> str:
    try:
        from llvmlite.binding import llvm_version_info

        return ".".join(map(str, llvm_version_info))
    except Exception:  # a compiler that does not work may fail here as well
        return "of unknown version"


def _written_out(problem: Refusal, what: str) -> str | None:
    """Where the text is, and what LLVM said of it."""
    text = "\n".join(problem.texts)
    name = digest_of(text, 8)
    if name in _written and os.path.exists(_written[name]):
        return _written[name]
    said = "\n".join([f"; {line}" for line in problem.said.splitlines()])
    try:
        handle, path = tempfile.mkstemp(".ll", "fulgurite-refused-")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(f"; {identity()} refuses {what}\n{said}\n\n{text}\n")
    except OSError:
        return None
    _written[name] = path
    return path
