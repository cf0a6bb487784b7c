"""Sizes in a kernel's text become numbers of its launch."""

from __future__ import annotations

import pytest

from fulgurite.codegen.common.api import KernelText, Launch
from fulgurite.codegen.common.sizes import bind_sizes
from fulgurite.core.symbolic.sym import Trace
from fulgurite.graph.ir.reshape_groups import CannotLower

HEAD = "define void @kernel(ptr noalias %params, ptr noalias %values, i64 %first, i64 %last) {\n"


def test_a_function_reads_its_sizes_first() -> None:
    trace = Trace({"n": 5})
    n = trace.variable("n")
    body = f"entry:\n  %a = add i64 {n}, {n * 2}\n  %b = add i32 0, {n}.i32\n  ret void\n}}\n"
    made = bind_sizes(KernelText(HEAD + body, (Launch("kernel", n, n),), ("k",), (7,)))
    assert made.numbers == (7, n, n * 2)
    lines = made.text.splitlines()
    assert lines[2] == "  %size4.at = getelementptr i64, ptr %values, i64 4"
    assert "  %size4.i32 = trunc i64 %size4 to i32" in lines
    assert "  %a = add i64 %size4, %size5" in lines and "  %b = add i32 0, %size4.i32" in lines


def test_text_of_fixed_sizes_stays_as_it_is() -> None:
    rendered = KernelText(HEAD + "entry:\n  ret void\n}\n", ())
    assert bind_sizes(rendered) is rendered


def test_a_function_without_values_has_no_size() -> None:
    n = Trace({"n": 5}).variable("n")
    with pytest.raises(CannotLower):
        bind_sizes(KernelText(f"define i64 @f() {{\nentry:\n  ret i64 {n}\n}}\n", ()))
