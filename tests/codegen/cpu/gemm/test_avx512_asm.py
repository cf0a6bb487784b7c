"""Tests of fulgurite/codegen/cpu/gemm/avx512_asm.py: the same sums as LLVM's, bit for bit."""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from fulgurite.codegen.cpu.gemm.avx512_asm import module_assembly, register_block
from fulgurite.codegen.cpu.gemm.microkernel import (
    Registers,
    _declared,
    _driver,
    _tile,
    block,
    block_shapes,
    fused_packing_name,
    named,
)
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.target import target
from fulgurite.core.dtype import DType, float32, float64

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.skipif(target().vectors != "avx512", reason="there is no AVX-512 here")
_TYPES = "pqqpqpqqqqbp"
_KINDS = {"p": ctypes.c_void_p, "q": ctypes.c_int64, "b": ctypes.c_bool}
Array = np.ndarray[Any, Any]


@lru_cache
def functions(dtype: DType) -> tuple[Any, Any]:
    """The block of this target as it is, and with register blocks that LLVM compiles."""
    registers = Registers(dtype, target())
    written = [_tile(registers, r, v) for r, v in block_shapes(registers)]
    other = named(
        "block_compiled", "\n".join([_driver(registers), *written, *_declared(registers)])
    )
    assert "module asm" in block(registers).text and "module asm" not in other.text
    made = []
    for module in (block(registers), other):
        address = load(compile_object([module.text], target()))[module.name]
        made.append(ctypes.CFUNCTYPE(None, *[_KINDS[t] for t in _TYPES])(address))
    return made[0], made[1]


@lru_cache
def kept(dtype: DType) -> Any:
    """The same over columns that the first rows put into panels."""
    module = block(Registers(dtype, target()))
    place = load(compile_object([module.text], target()))[fused_packing_name(module)]
    return ctypes.CFUNCTYPE(None, *[_KINDS[t] for t in _TYPES])(place)


def address(array: Array, offset: int = 0) -> int:
    return int(array.ctypes.data) + offset * array.itemsize


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("way", ["packed", "plain"])
def test_every_block_adds_up_what_llvm_adds_up(dtype: DType, way: str) -> None:
    registers, random = Registers(dtype, target()), np.random.default_rng(0)
    most = registers.most * registers.width
    for columns in (1, 7, registers.width, registers.width + 3, registers.panel, most - 3, most):
        for rows in (*range(1, 12), 26):
            depth = int(random.integers(1, 40))
            a = random.standard_normal((rows, depth)).astype(dtype.numpy)
            wide = columns if way == "plain" else registers.panel
            panels = random.standard_normal((2, depth, wide)).astype(dtype.numpy)
            b = panels[0] if way == "plain" else np.hstack(list(panels))
            for first in (True, False):
                c = random.standard_normal((rows, columns + 2)).astype(dtype.numpy)
                c[0, 0] = -0.0
                found = []
                for function in functions(dtype):
                    to = c.copy()
                    ahead = 0 if way == "plain" else address(panels[1])
                    function(
                        address(a), depth, 1, address(panels), wide, address(to), columns + 2,
                        depth, rows, columns, first, ahead,
                    )  # fmt: skip
                    found.append(to)
                assert found[0].tobytes() == found[1].tobytes()
                assert (found[0][:, columns:] == c[:, columns:]).all()  # beside the columns
                before = 0 if first else c[:, :columns]
                np.testing.assert_allclose(
                    found[0][:, :columns], before + a @ b[:, :columns], 1e-4, 1e-5
                )


@pytest.mark.parametrize("dtype", [float32, float64])
def test_columns_that_are_kept_on_the_way_give_the_same_bits(dtype: DType) -> None:
    registers, random = Registers(dtype, target()), np.random.default_rng(2)
    most, panel = registers.most * registers.width, registers.panel
    for columns in (1, 7, registers.width, registers.width + 3, panel, most - 3, most):
        for rows in (registers.height, 10, 26):
            depth, wide = int(random.integers(1, 40)), columns + int(random.integers(0, 9))
            a = random.standard_normal((rows, depth)).astype(dtype.numpy)
            b = random.standard_normal((depth, wide)).astype(dtype.numpy)
            b.flat[0] = -0.0
            for first in (True, False):
                c = random.standard_normal((rows, columns + 2)).astype(dtype.numpy)
                panels = np.full((2, depth, panel), np.nan, dtype.numpy)
                found = [c.copy(), c.copy()]
                for to, function, last in zip(
                    found, (functions(dtype)[0], kept(dtype)), (0, address(panels)), strict=True
                ):
                    function(
                        address(a), depth, 1, address(b), wide, address(to), columns + 2, depth,
                        rows, columns, first, last,
                    )  # fmt: skip
                assert found[0].tobytes() == found[1].tobytes()
                inside = np.hstack(list(panels))
                vectors = max(panel, -(-columns // registers.width) * registers.width)
                assert (inside[:, :columns] == b[:, :columns]).all()
                assert not inside[:, columns:vectors].any()  # no odd number slows sums
                assert np.isnan(inside[:, vectors:]).all()


def test_more_columns_than_a_block_has_are_a_whole_block() -> None:
    registers = Registers(float32, target())
    most = registers.most * registers.width
    a, b = np.ones((2, 3), np.float32), np.ones((6, registers.panel), np.float32)
    for columns in (most + 1, 255, 256, 257, 1000, 65_536):
        for function in functions(float32):
            to = np.full((2, most), np.nan, np.float32)
            function(
                address(a), 3, 1, address(b), registers.panel, address(to), most, 3,
                2, columns, True, address(b[3:]),
            )  # fmt: skip
            assert (to == 3).all(), columns


def test_memory_as_it_is_is_not_read_beyond_its_columns() -> None:
    page = np.frombuffer(mapping := _two_pages(), np.float32)[:1024]  # then comes forbidden memory
    random = np.random.default_rng(1)
    for columns in (1, 5, 17, 40):
        a, b = random.standard_normal((9, 3), np.float32), page[1024 - 3 * columns :]
        b[:] = random.standard_normal(3 * columns, np.float32)
        to = np.zeros((9, columns), np.float32)
        panels = np.empty((2, 3, 48), np.float32)
        for function, last in ((functions(float32)[0], 0), (kept(float32), address(panels))):
            function(
                address(a), 3, 1, address(b), columns, address(to), columns, 3, 9, columns, True,
                last,
            )  # fmt: skip
            np.testing.assert_allclose(to, a @ b.reshape(3, columns), 1e-4, 1e-5)
            to[:] = np.nan
    del page, b
    mapping.close()


def _two_pages() -> Any:
    """A page that may be used and one that may not."""
    import mmap

    made = mmap.mmap(-1, 8192)
    start = ctypes.addressof(ctypes.c_char.from_buffer(made))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4096), ctypes.c_size_t(4096), 0) == 0
    return made


def test_a_block_uses_each_register_for_one_sum() -> None:
    for itemsize, rows, vectors in ((4, 9, 3), (4, 6, 4), (8, 6, 4), (4, 1, 1)):
        text = register_block("f", itemsize, rows, vectors, 3)
        cleared = [line.split()[-1] for line in text.splitlines() if line.startswith("vpxord")]
        assert len(set(cleared)) == len(cleared) == rows * vectors
        assert not {"%zmm0", "%zmm1"} & set(cleared)
        loop = text.partition("1:")[2].partition("jg 1b")[0]
        assert loop.count("vfmadd231p") == rows * vectors
        assert loop.count("vbroadcast") == rows


def test_assembly_is_one_line_of_a_module() -> None:
    assert module_assembly(["a:\nretq", "b:"]) == 'module asm "a:\\0Aretq\\0Ab:"'
