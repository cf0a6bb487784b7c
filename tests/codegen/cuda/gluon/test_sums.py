"""Tests of fulgurite/codegen/cuda/gluon/sums.py: which folds take it, and their text.

Numbers are checked on a GPU (tests/codegen/cuda/gluon_on_gpu.py): Gluon has no interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fulgurite.codegen.cuda.gluon.sums import plan_gluon_sums
from fulgurite.codegen.cuda.source import Launch, TensorMap
from fulgurite.codegen.cuda.tiling import GpuTable
from tests.codegen.cuda.folds import FOLDS, GLUON, GRADIENTS, Gradient
from tests.codegen.cuda.workloads import ordered, rendered, scheduled
from tests.conftest import Golden

SIDES = [one for one in GRADIENTS if not (one.rows and one.columns)]


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


@pytest.mark.parametrize("one", SIDES, ids=lambda g: g.name)
def test_gradients_of_attention_with_any_scores_take_it_in_one_launch(one: Gradient) -> None:
    launch = launch_of(one, 4, 16, 1000, 1100, 64)
    assert launch.language == "gluon"
    sums = 1 if one.rows else 2
    assert launch.text.count("= warpgroup_mma(") == 2 * (2 + sums)  # the last block stands alone
    assert launch.text.count("tl.store(") == sums


def test_a_factor_of_scores_and_of_sums_is_copied_once() -> None:
    for name in ("queries_of_causal", "keys_of_causal"):
        launch = launch_of(gradient(name), 4, 16, 1024, 1024, 64)
        tensors = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
        assert len(tensors) == len({t.param for t in tensors}) == 4
        kept = {a.value for a in launch.arguments if a.source == "param"}
        assert not kept & {t.param for t in tensors}  # factors come by the copy engine alone


def loop_of(launch: Launch) -> list[str]:
    """The lines of a consumer's loop."""
    text = launch.text.partition("def consume(")[2].partition("    for r1 in range(start")[2]
    return [line.strip() for line in text.partition("it += 1")[0].splitlines()]


def test_scores_of_the_next_block_are_queued_behind_sums() -> None:
    loop = loop_of(launch_of(gradient("keys_of_plain"), 4, 16, 1024, 1024, 64))
    lines = [line for line in loop if "warpgroup_mma" in line]
    kinds = ["wait" if "_wait(" in line else line[0] for line in lines]
    assert kinds == ["wait", "f", "f", "c", "c", "wait"]
    assert "num_outstanding=0" in lines[0] and "num_outstanding=1" in lines[-1]


def test_an_exp_does_not_wait_for_the_product_that_it_does_not_need() -> None:
    for name in ("queries_of_causal", "keys_of_causal"):
        loop = loop_of(launch_of(gradient(name), 4, 16, 1024, 1024, 64))
        waits = [i for i, line in enumerate(loop) if "_wait(" in line]
        (exp,) = [i for i, line in enumerate(loop) if "fg_fast_exp2(" in line]
        assert exp < waits[0]


def test_weights_of_one_sum_are_gone_before_the_next_where_registers_are_short() -> None:
    loop = loop_of(launch_of(gradient("keys_of_plain"), 4, 16, 1024, 1024, 128))
    kinds = ["wait" if "_wait(" in line else line[0] for line in loop if "warpgroup_mma" in line]
    assert kinds == ["wait", "f", "wait", "f", "c", "c", "wait"]


def test_numbers_of_columns_are_worked_out_once_by_the_warp_that_copies() -> None:
    text = launch_of(gradient("keys_of_causal"), 4, 16, 1024, 1024, 64).text
    copies, _, multiplies = text.partition("def consume(")
    assert copies.count("tl.load(") == 3 and "fg_inverse(" in copies
    loop = multiplies.partition("    for r1 in range(start")[2].partition("it += 1")[0]
    assert "tl.load(" not in loop and "fg_div(" not in loop and loop.count(".load(LS)") == 3
    assert "mbarrier.init(there.index(i), count=2)" in text  # the copy engine, and the warp


def test_arrays_of_a_check_are_those_of_their_slots() -> None:
    every: Any = SIDES
    for one in every:
        inputs = one.inputs(1, 4, 300, 200, 64)
        schedule, order = ordered(one, inputs)
        slots = [schedule.slots[slot] for slot in range(len(order))]
        assert [slot and slot.shape for slot in slots] == [inputs[i][0] for i in order]
        assert [slot and slot.dtype.name for slot in slots] == [inputs[i][1] for i in order]


def test_programs_may_walk_tiles_in_pairs_of_much_and_little_to_do() -> None:
    persistent = replace(GLUON, gluon_persistent=True)
    launch = launch_of(gradient("keys_of_causal"), 4, 16, 1024, 1024, 64, table=persistent)
    assert launch.grid == persistent.processors
    assert launch.text.count("for tile in range(pair, gl.minimum(pair + 2, n0)):") == 2
    plain = launch_of(gradient("keys_of_plain"), 4, 16, 1024, 1024, 64, table=persistent).text
    assert plain.count("for tile in range(pair, gl.minimum(pair + 1, n0)):") == 2
    few = launch_of(gradient("keys_of_plain"), 1, 12, 1024, 1024, 64, table=persistent)
    assert few.grid == 96 and "for tile" not in few.text


def test_programs_with_most_to_do_begin_first() -> None:
    one_each = replace(GLUON, gluon_persistent=False)
    rows = launch_of(gradient("queries_of_causal"), 4, 16, 1024, 1024, 64, table=one_each).text
    columns = launch_of(gradient("keys_of_causal"), 4, 16, 1024, 1024, 64, table=one_each).text
    assert "first = (n0 - 1 - left % n0) * 128" in rows and "first = (left % n0) * 128" in columns


def test_blocks_are_shorter_where_registers_are_short_and_none_fit_beyond() -> None:
    one = gradient("keys_of_causal")
    few = replace(GLUON, sums_registers=200)
    blocks = [plan_gluon_sums(problem_of(one, 4, 16, 1024, 1024, 128), t) for t in (GLUON, few)]
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
    assert "fg_div(c" not in text and "fg_fast_exp2(tl.fma(c" in text


def test_the_text_is_as_it_was(golden: Golden) -> None:
    launch = launch_of(gradient("keys_of_causal"), 4, 16, 1000, 1000, 64)
    given = ", ".join(f"{a.name}={a.value}" for a in launch.arguments)
    golden(f"# {launch.grid} programs: {given}\n{launch.text}", "cuda/gluon_sums.txt")
