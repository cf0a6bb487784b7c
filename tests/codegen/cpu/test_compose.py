"""Tests of fulgurite/codegen/cpu/compose.py: several kernels as one."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from fulgurite.codegen.common.api import KernelText, Launch
from fulgurite.codegen.cpu.compose import ARGUMENTS, Part, Place, Room, compose
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.target import target
from tests.codegen.cpu.machine import run


def adding(variables: tuple[str, ...] = (), numbers: tuple[int, ...] = ()) -> KernelText:
    """A kernel that adds the first of its variables and numbers to an int64: (from, to)."""
    text = f"""define void @kernel({ARGUMENTS}) {{
entry:
  %a = load ptr, ptr %params
  %at = getelementptr ptr, ptr %params, i64 1
  %b = load ptr, ptr %at
  %x = load i64, ptr %a, align 1
  %place = getelementptr i64, ptr %values, i64 2
  %y = load i64, ptr %place
  %z = add i64 %x, %y
  store i64 %z, ptr %b, align 1
  ret void
}}
"""
    return KernelText(text, (Launch("kernel", 1, 1),), variables, numbers)


def test_parts_run_in_order_over_the_workspace() -> None:
    room = Room()
    between = room.take(8)
    parts = [
        Part(adding(numbers=(5,)), (Place(0), between)),
        Part(adding(numbers=(7,)), (between, Place(1))),
    ]
    made = compose(parts, 2, room)
    assert made.numbers == (5, 7) and made.workspace == 64
    start = np.array([30], np.int64)
    assert run(made, [start, np.zeros(1, np.int64)])[1][0] == 42


def test_variables_are_shared_and_numbers_are_not() -> None:
    room = Room()
    one, two = room.take(8), room.take(8)
    parts = [
        Part(adding(("n",), (100,)), (Place(0), one)),
        Part(adding(("m",)), (one, two)),
        Part(adding(("n",)), (two, Place(1))),
    ]
    made = compose(parts, 2, room)
    assert made.variables == ("n", "m") and made.numbers == (100,)
    arrays = [np.array([1], np.int64), np.zeros(1, np.int64)]
    assert run(made, arrays, variables={"n": 10, "m": 200})[1][0] == 221


def test_a_place_may_begin_inside_a_param() -> None:
    made = compose([Part(adding(numbers=(1,)), (Place(0, 16), Place(1, 8)))], 2, Room())
    found = run(made, [np.arange(4, dtype=np.int64), np.zeros(3, np.int64)])
    assert found[1].tolist() == [0, 3, 0]


def test_an_error_of_any_part_is_passed_on() -> None:
    text = f"""define void @kernel({ARGUMENTS}) {{
entry:
  store i64 1, ptr %values
  %at = getelementptr i64, ptr %values, i64 1
  store i64 9, ptr %at
  ret void
}}
"""
    broken = KernelText(text, (Launch("kernel", 1, 1),), ("n",))
    fine = adding(("m",))
    made = compose([Part(fine, (Place(0), Place(0))), Part(broken, ())], 1, Room())
    code = load(compile_object([made.text], target()))
    number = np.array([1], np.int64)
    params = (ctypes.c_void_p * 2)(number.ctypes.data, 0)
    values = (ctypes.c_int64 * 4)(0, 0, 3, 4)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
    for launch in made.launches:
        kind(code[launch.symbol])(ctypes.addressof(params), ctypes.addressof(values), 0, 1)
    assert list(values) == [1, 9, 3, 4] and number[0] == 4
