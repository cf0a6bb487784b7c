"""Triton as a compiler: text becomes a cubin. Every internal of Triton that we touch is here.

In: a `Launch`. Out: a `Cubin`: the image, the function's name and what a launch must know. Triton's
stages are driven directly; its JIT, launcher, driver and autotuner are not used, so no GPU is
needed and nothing is looked up per call. Works with Triton 3.6 and newer. Products are not
contracted into FMAs and denormals are kept: the same expression has the same bits in every kernel.
"""

from __future__ import annotations

import hashlib
import linecache
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .source import Launch

_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11  # attributes in a cubin's .nv.info
_WORD = 4  # the format of attributes that hold a function's number and a word


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one launch."""

    image: bytes
    symbol: str
    shared: int  # bytes of shared memory
    warps: int
    registers: int  # of a thread
    stack: int  # bytes of a thread's local memory
    scratch: int = 0  # bytes of global scratch memory a program needs


@lru_cache(maxsize=1)
def _prelude() -> Mapping[str, Any]:
    """The device functions of our own."""
    from . import prelude

    return {name: value for name, value in vars(prelude).items() if not name.startswith("__")}


def load_function(text: str, symbol: str) -> Any:
    """The Triton function of a text, with its source where `inspect` looks for it."""
    name = f"<fulgurite {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {**_prelude(), "__name__": f"fulgurite_{name[11:-1]}"}
    exec(compile(text, name, "exec"), scope)  # our own text
    return scope[symbol]


def compile_launch(launch: Launch, capability: int = 90) -> Cubin:
    """A launch's cubin for a GPU of this compute capability (80, 90, 100)."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    function = load_function(launch.text, launch.symbol)
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    signature = {name: kind for name, kind, _ in launch.signature}
    divisible = [["tt.divisibility", 16]]
    attributes = {(i,): divisible for i, (_, _, even) in enumerate(launch.signature) if even}
    described = ASTSource(fn=function, signature=signature, constexprs={}, attrs=attributes)
    options = backend.parse_options(
        {
            "num_warps": launch.warps,
            "num_stages": launch.stages,
            "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
            **described.parse_options(),
        }
    )
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, described.language)
    module: Any = described.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    for stage in stages.values():
        module = stage(module, metadata)
    registers, stack = resources(module)
    return Cubin(
        module,
        metadata["name"],
        metadata.get("shared", 0),
        metadata["num_warps"],
        registers,
        stack,
        metadata.get("global_scratch_size", 0) or 0,
    )


def resources(image: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread, as the cubin's .nv.info sections say (ELF64)."""
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, start + i * size) for i in range(count)]
    registers = stack = 0
    for name, kind, _, _, offset, length, *_ in sections:
        label = image[sections[names][4] + name :].split(b"\0", 1)[0]
        if not label.startswith(b".nv.info") or kind == 8:
            continue
        place, end = offset, offset + length
        while place + 4 <= end:
            form, attribute, value = struct.unpack_from("<BBH", image, place)
            place += 4
            if form != _WORD:
                continue
            if attribute == _REGISTER_COUNT:
                registers = max(registers, struct.unpack_from("<I", image, place + 4)[0])
            elif attribute == _FRAME_SIZE:
                stack = max(stack, struct.unpack_from("<I", image, place + 4)[0])
            place += value
    return registers, stack
