"""Problems and plans of streaming kernels, to be looked at by tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import fulgurite as fg
from fulgurite.codegen.cpu.stream import template
from fulgurite.codegen.cpu.stream.plan import StreamPlan, plan_stream
from fulgurite.codegen.cpu.target import Target
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.contract.analysis import Block
from fulgurite.kernel.stream.online import stream
from fulgurite.kernel.stream.roles import StreamProblem, find_problem
from fulgurite.kernel.transform.merge_axes import merge_axes
from tests.graph.searching import ATTENTION, lowered, numbers

BLOCK = Block(9, 48, 16, 4)  # of float32 on AVX-512
AVX512 = Target("x86_64", "avx512", frozenset(("avx512f", "avx2", "fma", "f16c")))


def kernel_of(*results: fg.Tensor) -> IndexKernel:
    """Some results as one kernel in index notation."""
    return merge_axes(lower(*lowered(*results)))


def problem_of(*results: fg.Tensor) -> StreamProblem:
    """The roles of the axes of some results that are one streaming kernel."""
    streaming = stream(kernel_of(*results))
    assert streaming is not None
    found = find_problem(streaming)
    assert found is not None
    return found


def attention(name: str, rows: int = 70, keys: int = 90, size: int = 16) -> StreamProblem:
    q, k, v = numbers(1, 4, rows, size), numbers(2, 4, keys, size), numbers(3, 4, keys, size)
    return problem_of(ATTENTION[name](q, k, v))


@contextmanager
def plans(**tiling: Any) -> Iterator[list[StreamPlan]]:
    """The plans that are rendered inside, made with some other parameters."""
    seen: list[StreamPlan] = []

    def plan(problem: StreamProblem, target: Target) -> StreamPlan | None:
        found = plan_stream(problem, target, replace(CPU.stream, **tiling))
        assert found is not None
        seen.append(found)
        return found

    with patch.object(template, "plan_stream", plan):
        yield seen
