"""Tests of fulgurite/codegen/cpu/llvm/loader.py: objects in memory, and damaged ones refused."""

import ctypes
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.codegen.cpu.llvm import loader
from fulgurite.codegen.cpu.llvm.loader import LoadError, load
from fulgurite.codegen.cpu.target import Target, target

pytest.importorskip("llvmlite")
from fulgurite.codegen.cpu.llvm.compiler import compile_assembly, compile_object

TEXT = """
@table = private constant [4 x i32] [i32 3, i32 5, i32 7, i32 11]
declare float @ldexpf(float, i32)
declare float @elsewhere(float)
define float @power(float %x) nounwind {
  %at = getelementptr [4 x i32], ptr @table, i64 0, i64 1
  %n = load i32, ptr %at
  %y = call float @ldexpf(float %x, i32 %n)
  ret float %y
}
define float @far(float %x) nounwind {
  %y = call float @elsewhere(float %x)
  ret float %y
}
define internal float @hidden(float %x) nounwind {
  ret float %x
}
"""


@pytest.fixture(scope="module")
def data() -> bytes:
    return compile_object([TEXT], target())


def function(address: int) -> Callable[[float], float]:
    return ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(address)


def test_code_calls_the_c_library_reads_its_constants_and_calls_other_objects(data: bytes) -> None:
    first = load(data, {"elsewhere": loader.find("sqrtf")})
    assert function(first["power"])(1.5) == 1.5 * 2**5
    assert function(first["far"])(9.0) == 3.0
    second = load(data, {"elsewhere": first["power"]})
    assert function(second["far"])(1.0) == 32.0
    assert first["power"] != second["power"] and "hidden" not in first


ADDRESSES = """
declare float @elsewhere(float)
define float @own(float %x) nounwind {
  %y = fadd float %x, 1.0
  ret float %y
}
define ptr @address(i1 %which) nounwind {
  %found = select i1 %which, ptr @own, ptr @elsewhere
  ret ptr %found
}
"""


def test_addresses_of_functions_are_those_that_are_called() -> None:
    found = load(compile_object([ADDRESSES], target()), {"elsewhere": loader.find("sqrtf")})
    address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_bool)(found["address"])
    assert address(True) == found["own"]
    assert function(address(True))(2.0) == 3.0
    assert function(address(False))(9.0) == 3.0


def test_loaded_pages_are_never_writable_and_executable(data: bytes) -> None:
    address = load(data, {"elsewhere": loader.find("sqrtf")})["power"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            assert rights.startswith("r-x")
            return
    pytest.fail("the code is in no mapping")


def test_a_function_that_nobody_has_is_an_error_that_names_it(data: bytes) -> None:
    with pytest.raises(LoadError, match="elsewhere"):
        load(data)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda d: b"", id="nothing"),
        pytest.param(lambda d: b"MZ" + d[2:], id="another format"),
        pytest.param(lambda d: d[:100], id="the header alone"),
        pytest.param(lambda d: d[: len(d) // 2], id="half of it"),
        pytest.param(lambda d: d[:18] + struct.pack("<H", 8) + d[20:], id="another machine"),
    ],
)
def test_what_is_no_object_is_refused(data: bytes, damage: object) -> None:
    assert callable(damage)
    with pytest.raises(LoadError):
        load(damage(data), {"elsewhere": loader.find("sqrtf")})


@given(st.data())
def test_flipped_bytes_in_its_tables_never_crash_the_loader(
    data: bytes, draws: st.DataObject
) -> None:
    at = draws.draw(st.integers(0, len(data) - 1))
    broken = bytearray(data)
    broken[at] ^= draws.draw(st.integers(1, 255))
    with suppress(LoadError):
        load(bytes(broken), {"elsewhere": loader.find("sqrtf")})


def test_writable_data_is_refused() -> None:
    text = "@state = global i32 5\ndefine ptr @f() nounwind {\n  ret ptr @state\n}\n"
    with pytest.raises(LoadError, match="writable"):
        load(compile_object([text], target()))


# --- a machine that is not this one --------------------------------------------------------------

NEON = Target("aarch64", "neon")


def test_kernels_for_neon_assemble_to_its_vector_instructions() -> None:
    text = """
    define void @kernel(ptr %a) nounwind {
      %x = load <4 x float>, ptr %a, align 1
      %y = fmul <4 x float> %x, %x
      store <4 x float> %y, ptr %a, align 1
      ret void
    }
    """
    assert "fmul\tv0.4s" in compile_assembly(text, NEON)


def test_relocations_of_aarch64_reach_what_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(loader, "_here", lambda: loader.Machine.AARCH64)
    monkeypatch.setattr(
        loader, "_seal", lambda base, size: seen.append(ctypes.string_at(base, size))
    )
    found = load(compile_object([TEXT], NEON), {"elsewhere": 0x1234567890})
    stub = loader._STUB[loader.Machine.AARCH64]
    image = np.frombuffer(seen[0][: seen[0].index(stub)], "<u4")  # addresses lie behind
    base = min(found.values()) & ~0xFFF
    assert struct.pack("<Q", 0x1234567890) in seen[0]
    pages = [w for w in image if w & 0x9F000000 == 0x90000000]  # adrp: the table's page
    assert pages and all((w >> 5) & 0x7FFFF == 0 for w in pages)  # which is the code's own
    calls = [(i, w) for i, w in enumerate(image) if w >> 26 in (0b000101, 0b100101)]
    for at, word in calls:
        distance = ((int(word) & 0x3FFFFFF) ^ 0x2000000) - 0x2000000
        target_at = 4 * (at + distance)
        assert seen[0][target_at : target_at + 8] == stub
    assert calls and base
