"""LLVM in this process: IR text to machine code, through llvmlite, which is imported here only.

In: the text of a module. Out: the address of its `kernel`. No optimisation passes run: the text
has explicit vectors and SSA loops already, and code generation alone takes a third of the time.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from .code import Rendered

_lock = threading.Lock()  # llvmlite serialises calls anyway
_kept: list[Any] = []  # engines: their code lives as long as the process


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@lru_cache(maxsize=1)
def _machine() -> Any:
    llvm = _llvm()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True, reloc="pic",
        codemodel="jitdefault",
    )  # fmt: skip


def compile_text(rendered: Rendered) -> dict[str, int]:
    """The addresses of the functions of a kernel, by name."""
    with _lock:
        llvm = _llvm()
        module = llvm.parse_assembly(rendered.text)
        module.triple = llvm.get_default_triple()
        module.verify()
        for text in rendered.library:
            module.link_in(llvm.parse_assembly(text))
        engine = llvm.create_mcjit_compiler(module, _machine())
        engine.finalize_object()
        _kept.append(engine)
        return {p.symbol: int(engine.get_function_address(p.symbol)) for p in rendered.phases}
