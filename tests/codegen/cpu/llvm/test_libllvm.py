"""Tests of fulgurite/codegen/cpu/llvm/libllvm.py: LLVM called directly says what llvmlite says."""

import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fulgurite.codegen.cpu.driver import driver_text
from fulgurite.codegen.cpu.driver_loops import loop_text
from fulgurite.codegen.cpu.driver_pool import pool_text
from fulgurite.codegen.cpu.llvm.libllvm import (
    CALLS,
    KNOWN,
    Binding,
    Direct,
    Llvm,
    join_texts,
    read_only_pages,
)
from fulgurite.codegen.cpu.target import Machine

llvmlite: Any = pytest.importorskip("llvmlite")
binding: Any = pytest.importorskip("llvmlite.binding")
pytestmark = pytest.mark.skipif(
    not llvmlite.__version__.startswith(tuple(f"{v}." for v in KNOWN)),
    reason="this llvmlite is called through its own Python side",
)
X86 = Machine("x86_64-unknown-linux-gnu", "x86-64-v3", "-prefer-256-bit")
ARM = Machine("aarch64-unknown-linux-gnu", "generic", "")
ONE = "define i64 @one(i64 %x) {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n"
TWO = """
declare i64 @one(i64)
define i64 @two(i64 %x) {
  %y = call i64 @one(i64 %x)
  ret i64 %y
}
"""
WRONG = {
    "no text of LLVM": "hello",
    "an unknown value": "define i64 @f() {\n  ret i64 %x\n}\n",
    "no end": "define i64 @f(i64 %x) {\n  %y = add i64 %x, 1\n}\n",
    "a value that does not reach its use": (
        "define i64 @f(i1 %c) {\nentry:\n  br i1 %c, label %a, label %b\na:\n"
        "  %x = add i64 1, 1\n  br label %b\nb:\n  ret i64 %x\n}\n"
    ),
}


@pytest.fixture(scope="module")
def direct() -> Direct:
    return Direct(binding.ffi.lib._name)


@pytest.fixture(scope="module")
def official() -> Binding:
    return Binding()


def _kind(declared: Any) -> Any:
    """How an argument travels: all that is a pointer but no text travels as an address."""
    if declared is None or declared in (ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t):
        return declared
    if declared is ctypes.c_bool:
        return declared
    return ctypes.c_void_p


@pytest.mark.parametrize("name", sorted(CALLS))
def test_functions_are_called_as_llvmlite_declares_them(name: str) -> None:
    declared = getattr(binding.ffi.lib, f"LLVMPY_{name}")
    result, arguments = CALLS[name]
    if declared.argtypes is not None:  # it does not declare every one
        assert [_kind(a) for a in declared.argtypes] == [_kind(a) for a in arguments]
    if result is not None:
        assert _kind(declared.restype) is _kind(result)


@pytest.mark.parametrize("machine", [X86, ARM])
def test_objects_and_assembly_are_those_of_llvmlite(
    direct: Direct, official: Binding, machine: Machine
) -> None:
    arch = machine.triple.partition("-")[0]
    pools = [[pool_text(arch, system)] for system in ("linux", "darwin")]
    drivers = [[driver_text()], [loop_text()], *pools]
    for texts in ([ONE], [ONE, TWO], [TWO, ONE], *drivers):
        assert direct.emit(texts, machine) == official.emit(texts, machine)
        assert direct.emit(texts, machine) == direct.emit(texts, machine)
    assert direct.emit([ONE], machine, assembly=True) == official.emit([ONE], machine, True)


@pytest.mark.parametrize("about", sorted(WRONG))
def test_what_is_wrong_with_a_text_is_said_in_the_same_words(
    direct: Direct, official: Binding, about: str
) -> None:
    def said(by: Llvm) -> str:
        with pytest.raises(RuntimeError) as problem:
            by.check(WRONG[about])
        return str(problem.value).strip()

    assert said(direct) == said(official) != ""
    with pytest.raises(RuntimeError):
        direct.emit([ONE, WRONG[about]], X86)
    direct.check(ONE)  # and the next text is read as if nothing had been


THREE = """
@shared = private constant i64 3
define i64 @three() {
  %x = load i64, ptr @shared
  ret i64 %x
}
"""


def test_texts_are_joined_unless_their_names_may_clash() -> None:
    one, two = [text.replace("@", "@k") for text in (ONE, TWO)]
    turned = two.replace("\ndeclare i64 @kone(i64)", "") + "declare i64 @kone(i64)\n"
    whole, *apart = join_texts([one, turned, THREE, one, ONE])
    assert apart == [THREE, one, ONE]  # a constant, a name that is taken, a name of the user
    assert whole.count("define") == 2 and "declare" not in whole  # what is there is not declared
    assert join_texts([two]) == [two]  # a definition after a declaration


def test_joined_texts_make_the_functions_of_all(direct: Direct) -> None:
    other = THREE.replace("@three", "@five")  # with a constant of the same name
    text = direct.emit([ONE, TWO, THREE, other], X86, assembly=True).decode()
    assert all(f"\n{name}:" in text for name in ("one", "two", "three", "five"))


def test_assembly_for_another_machine_is_an_error(direct: Direct, official: Binding) -> None:
    away = ARM if platform.machine() == "x86_64" else X86
    for by in (direct, official):
        with pytest.raises(RuntimeError, match="assembly"):
            by.emit(['module asm "nop"', ONE], away)


def test_modules_that_clash_are_an_error(direct: Direct) -> None:
    with pytest.raises(RuntimeError, match="one"):
        direct.emit([ONE, ONE], X86)


def test_a_machine_that_does_not_exist_is_an_error(direct: Direct) -> None:
    with pytest.raises(RuntimeError):
        direct.emit([ONE], Machine("nowhere-unknown-none", "generic", ""))


def test_compiling_loads_the_library_and_not_the_python_side_of_llvmlite() -> None:
    code = (
        "import sys; from fulgurite.codegen.cpu.llvm.compiler import compile_object\n"
        "from fulgurite.codegen.cpu.target import target\n"
        f"made = compile_object([{ONE!r}], target())\n"
        "assert made[:4] == b'\\x7fELF' and 'llvmlite' in sys.modules\n"
        "assert 'llvmlite.binding' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_where_the_python_side_is_loaded_already_it_is_asked() -> None:
    code = (
        "import llvmlite.binding; from fulgurite.codegen.cpu.llvm.libllvm import Binding, llvm\n"
        "assert isinstance(llvm(), Binding)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def resident(path: str) -> int:
    """Kilobytes of a library's code that are in memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and ":" not in line.split()[0]:
            inside = line.endswith(str(Path(path).resolve())) and " r-xp " in line
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only there pages are given back")
def test_memory_is_given_back_until_it_is_used_again() -> None:
    path = str(binding.ffi.lib._name)
    direct = Direct(path)
    before = direct.emit([ONE], X86)
    assert resident(path) > 4000
    direct.rest(Direct.large_text)
    assert resident(path) < 1000
    assert direct.emit([ONE], X86) == before
    many = "".join(
        [ONE.replace("@one", f"@one{i}") for i in range(1 + Direct.large_text // len(ONE))]
    )
    direct.emit([many], X86)
    direct.rest(len(ONE))
    assert resident(path) > 1000  # so little is not worth it
    direct.rest(len(many))
    assert resident(path) < 1000


def test_only_what_nobody_writes_to_is_given_back(tmp_path: Path) -> None:
    library = ctypes.CDLL(binding.ffi.lib._name)
    pages = read_only_pages(binding.ffi.lib._name, library.LLVMPY_ContextCreate)
    if sys.platform != "linux":
        assert pages == []
        return
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    own = [(int(m[0].split("-")[0], 16), int(m[0].split("-")[1], 16), m[1]) for m in maps]
    for start, size in pages:
        assert any(a <= start and start + size <= b and "w" not in kind for a, b, kind in own)
    other = tmp_path / "other"
    other.write_bytes(b"no library at all")
    assert read_only_pages(str(other), library.LLVMPY_ContextCreate) == []
