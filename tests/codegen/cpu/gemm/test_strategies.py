"""Tests of codegen/cpu/gemm/strategies.py: which strategy takes which GEMM, and what a plan is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.plan import GemmKind, GemmPlan
from fulgurite.codegen.cpu.gemm.strategies import STRATEGIES, bind_to, cpu_problem, plan_gemm
from fulgurite.codegen.cpu.gemm.template import gemms
from fulgurite.codegen.cpu.target import Target
from tests.codegen.cpu.launch import lowered

AVX512 = Target("x86_64", "avx512", frozenset({"avx512_vnni"}))


def memory(*shape: int, dtype: Any = np.float32) -> fg.Tensor:
    return fg.Tensor(np.zeros(shape, dtype), device="cpu")


def gathered(x: fg.Tensor) -> fg.Tensor:
    return fg.take(x, fg.Tensor(np.arange(64) % len(x), device="cpu"), axis=0)


def bytes_(*shape: int) -> fg.Tensor:
    return memory(*shape, dtype=np.int8).astype(fg.int32)


def depthwise(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
    return fg.conv2d(a, b, padding=1, groups=16)


def weight_gradient(weights: fg.Tensor) -> fg.Tensor:
    image, back = memory(2, 16, 14, 14), memory(2, 16, 14, 14)
    found: fg.Tensor = fg.grad(lambda w: (depthwise(image, w) * back).sum())(weights)
    return found


PROBLEMS: dict[GemmKind, Callable[[], fg.Tensor]] = {
    GemmKind.DENSE: lambda: memory(64, 96) @ memory(96, 128),
    GemmKind.SKINNY: lambda: memory(200, 300) @ memory(300, 5),
    GemmKind.PACKED: lambda: gathered(memory(50, 96)) @ memory(96, 128),
    GemmKind.BYTES: lambda: gathered(bytes_(50, 96)) @ bytes_(96, 128),
    GemmKind.GEMV_AXPY: lambda: memory(96) @ memory(96, 128),
    GemmKind.GEMV_DOT: lambda: memory(128, 96) @ memory(96),
    GemmKind.IMPLICIT: lambda: fg.conv2d(memory(2, 16, 14, 14), memory(32, 16, 3, 3), padding=1),
    GemmKind.DIRECT: lambda: depthwise(memory(2, 16, 14, 14), memory(16, 1, 3, 3)),
    GemmKind.DIRECT_DOT: lambda: weight_gradient(memory(16, 1, 3, 3)),
}


def plan_of(tensor: fg.Tensor) -> GemmPlan:
    found = plan_gemm(*lowered(tensor), AVX512)
    assert found is not None
    return found


def test_every_strategy_is_chosen_for_some_problem() -> None:
    assert {s.kind for s in STRATEGIES} == set(GemmKind)
    assert {kind: plan_of(make()).kind for kind, make in PROBLEMS.items()} == {
        kind: kind for kind in GemmKind
    }


@pytest.mark.parametrize("kind", list(GemmKind))
def test_the_cheapest_plan_is_chosen_and_rendered(kind: GemmKind) -> None:
    kernel, dtypes = lowered(PROBLEMS[kind]())
    problem = cpu_problem(kernel, dtypes)
    assert problem is not None
    plans = [s.plan(bind_to(problem, AVX512)) for s in STRATEGIES]
    costs = [p.cost for p in plans if p is not None]
    chosen = plan_gemm(kernel, dtypes, AVX512)
    assert chosen is not None and chosen.cost == min(costs) > 0
    assert gemms(kernel, dtypes, AVX512) is not None


def test_a_plan_is_plain_data_that_prints() -> None:
    first, second = [plan_of(memory(64, 96) @ memory(96, 128)) for _ in range(2)]
    assert first == second and hash(first) == hash(second)
    text = repr(first)
    assert "GemmKind.DENSE" in text and "k_block=256" in text and "left='dense'" in text


def test_what_is_no_gemm_has_no_plan() -> None:
    assert plan_gemm(*lowered(memory(5, 7).sum(0)), AVX512) is None
    assert plan_gemm(*lowered(memory(5, 7) + 1), AVX512) is None
