"""Triton as a compiler: text becomes a cubin. Every internal of Triton that we touch is here.

In: a `Launch`. Out: a `Cubin`: the image, the function's name and what a launch must know. Triton's
stages are driven directly; its JIT, launcher, driver and autotuner are not used, so no GPU is
needed and nothing is looked up per call. Works with Triton 3.6 and newer. Products are contracted
into FMAs where a launch says so alone, and denormals are kept: the same expression has the same
bits in every kernel.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Set
from contextlib import suppress
from functools import cache, lru_cache, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ....core.lazy_dataclass import dataclass
from ....errors import CompilerError
from ..source import Launch

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


# --- loading Triton ------------------------------------------------------------------------------

_GLUON = "triton.experimental.gluon"
_GENERATOR = "triton.compiler.code_generator"
_OURS = "<fulgurite "  # what the file of a text is called
_loading = threading.RLock()
_parsing = threading.Lock()


@cache
def load_ahead() -> threading.Thread:
    """Import Triton in the background: somebody is likely to compile soon."""
    thread = threading.Thread(target=_load_all, name="fulgurite-triton")
    thread.start()
    return thread


def _load_all() -> None:
    """Import Triton, and what it does once."""
    load()
    find_assembler()


def find_assembler() -> None:
    """Have Triton ask the assembler for its version, which it does once."""
    with suppress(RuntimeError, AttributeError):  # said where it is needed
        from triton import knobs

        getattr(knobs.nvidia, "ptxas")  # noqa: B009 - asked as it is read


def load() -> None:
    """Import what compiling needs of Triton, once."""
    with _loading:
        if _GENERATOR not in sys.modules:
            try:
                _load_code_generator()
            except ImportError as problem:
                raise CompilerError(
                    f"kernels for NVIDIA GPUs are compiled by Triton, which is not here: {problem}",
                    "pip install 'triton>=3.6', or use another device, such as cpu",
                ) from problem
            _name_carried_variables()
        _prelude()


def load_gluon() -> None:
    """Import what compiling a text in Gluon needs besides, once."""
    _gluon_names()


def _load_code_generator() -> None:
    """Import Triton's code generator without Gluon, a third of all that it imports.

    It asks Gluon for two functions only, by which it knows them in kernels; they are known by their
    names here, should somebody else of this process compile such kernels.
    """
    import triton.experimental as experimental

    if _GLUON in sys.modules:
        return
    stub: Any = ModuleType(_GLUON)
    stub.language = SimpleNamespace(static_assert=object(), static_print=object())
    sys.modules[_GLUON] = stub
    try:
        from triton.compiler import code_generator

        names = code_generator.CodeGenerator.statically_implemented_functions
        known = {name: names.pop(key) for name, key in vars(stub.language).items()}
        code_generator.CodeGenerator.statically_implemented_functions = _StaticFunctions(
            names, known
        )
    except (AttributeError, KeyError, ImportError):  # a version that asks for more: all of it
        sys.modules.pop(_GENERATOR, None)
    finally:
        sys.modules.pop(_GLUON, None)
        vars(experimental).pop("gluon", None)


def _name_carried_variables() -> None:
    """Have Triton know loop-carried variables of our texts from assignments, not from dry runs.

    It generates the code of every loop twice to find them, of loops inside of it four times. What a
    dry run finds is the same but for assignments under a false `constexpr`, which carry a value
    that stays. Where a constant is assigned, and in functions of others, Triton finds out as ever.
    """
    from triton.compiler import code_generator

    kind: Any = code_generator.CodeGenerator
    real: Any = getattr(kind, "_find_carries", None)
    is_value: Any = getattr(code_generator, "_is_triton_value", None)
    flattened: Any = getattr(code_generator, "flatten_values_to_ir", None)
    if real is None or is_value is None or flattened is None:  # a version that does it otherwise
        return

    @wraps(real)
    def find_carries(
        self: Any, node: Any, liveins: dict[str, Any], ignore: Set[str] = frozenset()
    ) -> Any:
        assigned = _assigned(node) - ignore
        names = [name for name in liveins if name in assigned]
        values = [liveins[name] for name in names]
        ours = str(getattr(self, "file_name", "")).startswith(_OURS)
        if not ours or not isinstance(node, ast.For) or not all(map(is_value, values)):
            return real(self, node, liveins, ignore)
        self.lscope, self.local_defs = liveins.copy(), {}
        return names, list(flattened(values)), [value.type for value in values]

    kind._find_carries = find_carries


def _assigned(loop: ast.AST) -> Set[str]:
    """The names that a loop's body assigns."""
    stored = [n for n in ast.walk(loop) if isinstance(n, ast.Name)]
    return frozenset([n.id for n in stored if isinstance(n.ctx, ast.Store)])


class _StaticFunctions(dict[Any, Any]):
    """Functions that Triton runs when it compiles; those of Gluon by their names."""

    def __init__(self, functions: Mapping[Any, Any], gluon: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self.gluon = gluon

    def get(self, key: Any, default: Any = None) -> Any:
        """The function for what a kernel calls."""
        if key in self:
            return self[key]
        if str(getattr(key, "__module__", "")).startswith("triton."):
            return self.gluon.get(getattr(key, "__name__", ""), default)
        return default


@lru_cache(maxsize=1)
def _prelude() -> Mapping[str, Any]:
    """The device functions of our own."""
    from .. import prelude

    return {name: value for name, value in vars(prelude).items() if not name.startswith("__")}


@lru_cache(maxsize=1)
def _gluon_names() -> Mapping[str, Any]:
    """What a text in Gluon calls: its language, and our device functions over it.

    Triton's functions take Gluon's tensors, but for those that make tensors without a layout: they
    are Gluon's own here, also inside of our device functions.
    """
    import triton.language as tl
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper

    both: Any = ModuleType("tl")
    vars(both).update({k: v for k, v in vars(tl).items() if not k.startswith("__")})
    for name in ("arange", "full", "zeros", "zeros_like"):
        setattr(both, name, getattr(gl, name))
    from .. import prelude

    path = str(prelude.__file__)
    text = "".join(linecache.getlines(path))
    code = text.replace("import triton.language as tl\n", "\n")  # lines stay where they are
    space: dict[str, Any] = {"tl": both, "__name__": prelude.__name__, "__file__": path}
    exec(compile(code, path, "exec"), space)  # our own text
    mine = {name: value for name, value in space.items() if not name.startswith("__")}
    engine = {name: getattr(hopper, name) for name in hopper.__all__}
    tma = hopper.tma  # its functions have other names from 3.7 on
    load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
    store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
    copies = {"tma_load": load, "tma_store": store}
    return {**mine, **engine, "tl": both, "gl": gl, "gluon": gluon, **copies}


def _gluon_type(kind: str) -> str:
    """A tensor map's type as this version of Triton writes it; other types as they are."""
    if not kind.startswith("tensor "):
        return kind
    from triton.experimental.gluon import language as gl

    _, dtype, *block = kind.split()
    swizzle = min(128, 2 * int(block[-1]))
    layout = gl.NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=16, rank=len(block))
    return f"tensordesc<{dtype}[{', '.join(block)}],{layout!r}>"


def load_function(text: str, symbol: str, language: str = "triton") -> Any:
    """The Triton function of a text, with its source where `inspect` looks for it."""
    name = f"{_OURS}{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    known = _gluon_names() if language == "gluon" else _prelude()
    scope: dict[str, Any] = {**known, "__name__": f"fulgurite_{name[11:-1]}"}
    exec(compile(text, name, "exec"), scope)  # our own text
    return scope[symbol]


class _Compilation:
    """One launch on its way through Triton's stages, from its own IR of the text (`module`) on.

    Threads parse one text at a time: that is Python and shares the interpreter, all later stages
    leave it alone. So the first text is on its way when the second is parsed, and not when all are.
    """

    def __init__(self, launch: Launch, capability: int) -> None:
        load()
        with _parsing:
            self._parse(launch, capability)

    def _parse(self, launch: Launch, capability: int) -> None:
        from triton._C.libtriton import ir
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, make_backend

        function = load_function(launch.text, launch.symbol, launch.language)
        self.target = GPUTarget("cuda", capability, 32)
        self.backend = make_backend(self.target)
        signature = {name: _gluon_type(kind) for name, kind, _ in launch.signature}
        divisible = [["tt.divisibility", 16]]
        attributes = {(i,): divisible for i, (_, _, even) in enumerate(launch.signature) if even}
        kind: Any = ASTSource
        if launch.language == "gluon":
            from triton.experimental.gluon._runtime import GluonASTSource

            kind = GluonASTSource
        self.source = kind(fn=function, signature=signature, constexprs={}, attrs=attributes)
        self.options = self.backend.parse_options(
            {
                "num_warps": launch.warps,
                "num_stages": launch.stages,
                "maxnreg": launch.registers or None,
                "enable_fp_fusion": launch.contracted,
                "enable_reflect_ftz": False,
                "sanitize_overflow": False,  # code for assertions that would be dropped
                **self.source.parse_options(),
            }
        )
        self.context = ir.context()
        ir.load_dialects(self.context)
        self.backend.load_dialects(self.context)
        self.module = self.source.make_ir(
            self.target,
            self.options,
            self.backend.get_codegen_implementation(self.options),
            self.backend.get_module_map(),
            self.context,
        )

    def cubin(self) -> tuple[bytes, dict[str, Any]]:
        """Machine code, and what Triton says of it."""
        metadata: dict[str, Any] = {"target": self.target, **self.options.__dict__}
        return self.lowered(metadata)["cubin"], metadata

    def lowered(self, metadata: dict[str, Any], last: str = "cubin") -> dict[str, Any]:
        """What the text is after each of Triton's stages, up to "ptx" or "cubin"."""
        stages: dict[str, Any] = {}
        self.backend.add_stages(stages, self.options, self.source.language)
        module, found = self.module, {}
        for name, stage in stages.items():
            module = found[name] = stage(module, metadata)
            if name == last:
                break
        return found


def check_launch(launch: Launch, capability: int = 90) -> None:
    """Raise what Triton finds wrong with a text; types and shapes are right after it."""
    _Compilation(launch, capability)


def listings_of(launch: Launch, capability: int = 90) -> dict[str, str]:
    """A launch in PTX and SASS, to be read."""
    work = _Compilation(launch, capability)
    found = work.lowered({"target": work.target, **work.options.__dict__})
    return {"PTX": str(found["ptx"]), "SASS": disassembled(found["cubin"])}


def disassembled(image: bytes) -> str:
    """The SASS of a cubin, by NVIDIA's disassembler; or that there is none."""
    import triton

    own = str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin")
    for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "-sass")):
        command = shutil.which(tool) or shutil.which(tool, path=own)
        if command is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernel.cubin")
            path.write_bytes(image)
            done = subprocess.run(
                [command, option, str(path)], capture_output=True, text=True, check=False
            )
        return done.stdout or f"none: {tool} failed: {done.stderr.strip()}"
    return "none: neither nvdisasm nor cuobjdump was found (the CUDA toolkit brings them)"


def compile_launch(launch: Launch, capability: int = 90) -> Cubin:
    """A launch's cubin for a GPU of this compute capability (80, 90, 100)."""
    image, metadata = _Compilation(launch, capability).cubin()
    registers, stack = resources(image)
    return Cubin(
        image,
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
