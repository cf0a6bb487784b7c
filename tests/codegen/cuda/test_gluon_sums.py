"""Tests of fulgurite/codegen/cuda/gluon_sums.py: which folds take it, and their text.

Numbers are checked on a GPU (tests/codegen/cuda/gluon_on_gpu.py): Gluon has no interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fulgurite.codegen.cuda.gluon_sums import plan_gluon_sums
from fulgurite.codegen.cuda.source import Launch, TensorMap
from fulgurite.codegen.cuda.tiling import GpuTable
from tests.codegen.cuda.folds import FOLDS, GLUON, GRADIENTS, Gradient
from tests.codegen.cuda.workloads import rendered, scheduled
from tests.conftest import Golden


def gradient(name: str) -> Gradient:
    return next(one for one in GRADIENTS if one.name == name)


def problem_of(one: Any, *sizes: int) -> Any:
    (item,) = scheduled(one, one.inputs(*sizes)).items
    plan: Any = item.kernel.plan
    return plan.problem


def launch_of(one: Any, *sizes: int, table: GpuTable = GLUON) -> Launch:
    (item,) = scheduled(one, one.inputs(*sizes)).items
    (launch,) = rendered(item.kernel, table).launches
    return launch


@pytest.mark.parametrize("one", GRADIENTS, ids=lambda g: g.name)
def test_gradients_of_attention_with_any_scores_take_it_in_one_launch(one: Gradient) -> None:
    launch = launch_of(one, 4, 16, 1000, 1100, 64)
    assert launch.language == "gluon"
    sums = 1 if one.rows else 2
    assert launch.text.count("= warpgroup_mma(") == 2 + sums
    assert launch.text.count("tl.store(") == sums


def test_a_factor_of_scores_and_of_sums_is_copied_once() -> None:
    for name in ("queries_of_causal", "keys_of_causal"):
        launch = launch_of(gradient(name), 4, 16, 1024, 1024, 64)
        tensors = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
        assert len(tensors) == len({t.param for t in tensors}) == 4
        kept = {a.value for a in launch.arguments if a.source == "param"}
        assert not kept & {t.param for t in tensors}  # factors come by the copy engine alone


def test_weights_that_need_one_product_do_not_wait_for_the_other() -> None:
    lines = launch_of(gradient("keys_of_plain"), 4, 16, 1024, 1024, 64).text.splitlines()
    loop = [line.strip() for line in lines if "warpgroup_mma" in line]
    kinds = ["wait" if "_wait(" in line else line[0] for line in loop]
    assert kinds == ["c", "c", "wait", "f", "wait", "f", "wait", "wait"]
    assert "num_outstanding=1" in loop[2] and "num_outstanding=1" in loop[4]


def test_numbers_of_columns_are_asked_for_before_products_are_waited_for() -> None:
    text = launch_of(gradient("keys_of_causal"), 4, 16, 1024, 1024, 64).text
    loop = text.partition("def consume(")[2].partition("    for r1 in range(start")[2]
    assert loop.count("tl.load(") == 3 and loop.rindex("tl.load(") < loop.index("mbarrier.wait(")


def test_programs_with_most_to_do_begin_first() -> None:
    rows = launch_of(gradient("queries_of_causal"), 4, 16, 1024, 1024, 64).text
    columns = launch_of(gradient("keys_of_causal"), 4, 16, 1024, 1024, 64).text
    assert "first = (n0 - 1 - left % n0) * 128" in rows and "first = (left % n0) * 128" in columns


def test_blocks_are_shorter_where_registers_are_short_and_none_fit_beyond() -> None:
    one = gradient("keys_of_causal")
    blocks = [plan_gluon_sums(problem_of(one, 4, 16, 1024, 1024, d), GLUON) for d in (64, 128)]
    assert [b and b.block for b in blocks] == [64, 32]
    assert plan_gluon_sums(problem_of(one, 4, 16, 1024, 1024, 256), GLUON) is None


def test_running_statistics_few_rows_and_odd_memory_are_left_to_other_forms() -> None:
    forward, backward = FOLDS[1], gradient("queries_of_causal")
    assert plan_gluon_sums(problem_of(forward, 4, 16, 1024, 1024, 64), GLUON) is None
    assert plan_gluon_sums(problem_of(backward, 1, 8, 256, 1024, 64), GLUON) is None
    assert plan_gluon_sums(problem_of(backward, 8, 16, 512, 512, 60), GLUON) is None
    plain = replace(GLUON, gluon_stream=False)
    assert launch_of(backward, 4, 16, 1024, 1024, 64, table=plain).language == "triton"


def test_quotients_of_scores_share_reciprocals() -> None:
    text = launch_of(gradient("keys_of_plain"), 4, 16, 1024, 1024, 64).text
    assert "fg_div(c" not in text and "fg_fast_exp_apart(" in text


def test_the_text_is_as_it_was(golden: Golden) -> None:
    launch = launch_of(gradient("keys_of_causal"), 4, 16, 1000, 1000, 64)
    given = ", ".join(f"{a.name}={a.value}" for a in launch.arguments)
    golden(f"# {launch.grid} programs: {given}\n{launch.text}", "cuda/gluon_sums.txt")
