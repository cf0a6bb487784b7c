"""Blocks of AMX tiles: they assemble for every kind of number, whatever machine this is.

Where the processor has AMX, all tests of products run on them.
"""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.gemm.microkernel import Registers, block
from fulgurite.codegen.cpu.llvm.compiler import compile_assembly
from fulgurite.codegen.cpu.target import Target
from fulgurite.core.dtype import float32, int32

pytestmark = pytest.mark.device("none")
AMX = Target(
    "x86_64", "avx512",
    frozenset({"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"}),
)  # fmt: skip
KINDS = {
    "tdpbf16ps": Registers(float32, AMX, pairs=True),
    "tdpbusd": Registers(int32, AMX, "us"),
    "tdpbsud": Registers(int32, AMX, "su"),
    "tdpbssd": Registers(int32, AMX, "ss"),
}


@pytest.mark.parametrize("instruction", KINDS)
def test_blocks_multiply_tiles_of_sixteen_rows(instruction: str) -> None:
    registers = KINDS[instruction]
    text = compile_assembly(block(registers).text, AMX)
    assert registers.has_tiles and registers.height == 16
    assert (
        text.count(f"{instruction}\t") == 1 + 2 + 3 + 6
    )  # for one to three vectors, and twice the rows
    assert text.count("ldtilecfg") == text.count("tilerelease") == 4


def test_signed_bytes_are_packed_as_they_are_for_tiles_alone() -> None:
    assert not Registers(int32, AMX, "ss").flips
    assert Registers(int32, Target("x86_64", "avx512", frozenset({"avx512_vnni"})), "ss").flips


def test_other_numbers_have_no_tiles() -> None:
    assert not Registers(float32, AMX).has_tiles
    assert not Registers(float32, Target("x86_64", "avx512"), pairs=True).has_tiles
