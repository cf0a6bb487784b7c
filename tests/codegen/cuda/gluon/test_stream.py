"""Tests of fulgurite/codegen/cuda/gluon/stream.py: which folds take it, and their text.

Numbers are checked on a GPU (tests/codegen/cuda/on_gpu.py): Gluon has no interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import fulgurite as fg
from fulgurite.codegen.cuda.source import Launch, TensorMap
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.graph.ir.kernel_kind import KernelKind
from tests.codegen.cuda.folds import FOLDS, GLUON, fold
from tests.codegen.cuda.workloads import rendered, scheduled
from tests.conftest import Golden


def launch_of(build: Any, inputs: Any, table: GpuTable = GLUON) -> Launch:
    (item,) = scheduled(build, inputs).items
    (launch,) = rendered(item.kernel, table).launches
    return launch


@pytest.mark.parametrize("one", FOLDS, ids=lambda f: f.name)
def test_attention_with_any_scores_takes_it_in_one_launch(one: Any) -> None:
    launch = launch_of(one, one.inputs(4, 16, 1000, 1100, 128))
    assert launch.language == "gluon"
    assert launch.text.count("sc = warpgroup_mma(") == 2  # the first block is peeled
    tensors = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
    assert [t.shape[-1] for t in tensors] == [128, 128, 128]
    kept = {a.value for a in launch.arguments if a.source == "param"}
    assert not kept & {t.param for t in tensors}  # factors come by the copy engine alone


def test_programs_walk_tiles_and_copies_are_one_tile_ahead() -> None:
    one = fold("causal")
    launch = launch_of(one, one.inputs(4, 16, 1024, 1024, 64))
    assert launch.grid == HOPPER.processors
    copies, _, multiplies = launch.text.partition("def consume(")
    for role in (copies, multiplies):
        assert role.count("for tile in range(pair, gl.minimum(pair + 2, n0)):") == 1
    assert copies.index("wait(queries_free.index(1)") < copies.index(
        "expect(queries_there.index(1)"
    )
    last = multiplies.index("arrive(queries_free.index(W)")  # behind all scores, before stores
    assert multiplies.rindex("sc = warpgroup_mma_wait(") < last < multiplies.index("tl.store(")


def test_pairs_of_tiles_are_walked_only_where_there_are_many() -> None:
    causal, plain = fold("causal"), fold("plain")
    grids = [launch_of(causal, causal.inputs(1, h, 1024, 1024, 64)).grid for h in (16, 20, 33, 64)]
    assert grids == [128, 160, 132, 132]  # of 160 tiles, 52 processors would have none
    assert launch_of(plain, plain.inputs(1, 20, 1024, 1024, 64)).grid == 132


def test_a_factor_of_scores_is_for_their_largest_and_for_the_argument_of_exp() -> None:
    one, sizes = fold("causal"), (4, 16, 1024, 1024, 128)
    text = launch_of(one, one.inputs(*sizes)).text
    assert "sc * " not in text and text.count("far = tl.reduce(raw, 1, fg_min") == 2
    assert text.count("fg_fast_exp2(tl.fma(raw, factor * 1.442695, g0 * -1.442695))") == 2
    other = fold("alibi")  # scores are no product times a number
    assert "raw" not in launch_of(other, other.inputs(*sizes)).text
    off = replace(GLUON, gluon_scale=False)
    assert "raw" not in launch_of(one, one.inputs(*sizes), off).text


def test_a_tanh_of_scores_is_one_instruction_and_takes_their_factors() -> None:
    one, sizes = fold("soft_cap"), (4, 16, 1024, 1024, 128)
    text = launch_of(one, one.inputs(*sizes)).text
    assert text.count("fg_approximate_tanh(sc * (1.0 / ") == 2 and "fg_tanh(" not in text
    narrow = one._replace(dtype="float16")  # of 11 bits, as the instruction: one exp2 has more
    text = launch_of(narrow, narrow.inputs(*sizes)).text
    assert text.count("fg_fast_tanh(sc, 2.88539 / ") == 2 and "fg_tanh(" not in text
    exact = launch_of(one, one.inputs(*sizes), replace(GLUON, stream_fast_exp=False)).text
    assert "fg_fast_tanh" not in exact and "fg_approximate_tanh" not in exact


def test_a_slope_of_distances_takes_no_conversion_for_each_score() -> None:
    one, sizes = fold("alibi"), (4, 16, 1024, 1024, 128)
    text = launch_of(one, one.inputs(*sizes)).text
    lines = [line.strip() for line in text.splitlines()]
    assert len([line for line in lines if "+ 0x4B000000" in line]) == 3  # rows, and each block's
    assert len([line for line in lines if "tl.fma(sc, " in line]) == 2
    long = one.inputs(1, 16, 256, (1 << 23) + 8, 128)  # places that a float32 has no bits for
    assert "0x4B000000" not in launch_of(one, long).text
    exact = launch_of(one, one.inputs(*sizes), replace(GLUON, stream_fast_exp=False)).text
    assert "0x4B000000" not in exact and "tl.fma(sc, " not in exact


def test_the_sum_of_a_block_is_multiplied_while_the_scores_of_the_next_are_taken_in() -> None:
    one = fold("causal")
    text = launch_of(one, one.inputs(4, 16, 1024, 1024, 64)).text
    loop = text.partition("for r1 in range(start + 128, end, 128):")[2]
    lines = [line.strip() for line in loop.partition("@gluon.jit")[0].splitlines()]
    kinds = [line.partition(" = warpgroup_")[::2] for line in lines if "mma" in line]
    begun = [(name, call[:8]) for name, call in kinds]
    assert begun[:4] == [("sc", "mma(q, k"), ("acc", "mma(pack"), ("sc", "mma_wait"),
                         ("acc", "mma_wait")]  # fmt: skip
    (exp,) = [i for i, line in enumerate(lines) if "fg_fast_exp2(tl.fma(raw" in line]
    waits = [i for i, line in enumerate(lines) if "mma_wait" in line]
    assert waits[0] < exp < waits[1]  # the sum is waited for when rows are done
    assert text.count("fg_fast_exp2(tl.fma(raw") == 2  # the first block, and the loop


def test_it_may_be_turned_off_by_the_table() -> None:
    one, inputs = fold("causal"), fold("causal").inputs(4, 16, 1000, 1000, 64)
    assert launch_of(one, inputs, HOPPER).language == "gluon"
    plain = replace(HOPPER, gluon_stream=False, stream_fast_exp=False)
    launch = launch_of(one, inputs, plain)
    assert launch.language == "triton" and "fg_exp(" in launch.text


def test_all_three_roles_walk_the_same_blocks() -> None:
    one = fold("window")
    text = launch_of(one, one.inputs(4, 16, 1000, 1000, 64)).text
    begins = [line for line in text.splitlines() if line.strip().startswith(("start =", "end ="))]
    assert len(begins) == 4 and begins[:2] == begins[2:]
    assert "gl.maximum(" in begins[1]  # one block at least: its scores are waited for


def test_masks_may_be_asked_in_blocks_that_they_cut_alone() -> None:
    edges = replace(GLUON, gluon_edges=True)
    window, plain = fold("window"), fold("plain")
    text = launch_of(window, window.inputs(4, 16, 1024, 1024, 128), edges).text
    (first, second) = [line.strip() for line in text.splitlines() if line.strip()[:4] == "if ("]
    assert first == second and "(0 + om + (r1 + 127) * -1) < 0" in first and " | " in first
    assert "if (" not in launch_of(plain, plain.inputs(4, 16, 1024, 1024, 64), edges).text


def test_statistics_of_rows_are_results_of_the_same_launch() -> None:
    one = fold("statistics")
    launch = launch_of(one, one.inputs(4, 16, 1024, 1024, 64))
    assert launch.text.count("tl.store(") == 2 and "libdevice.log(f" in launch.text


def test_heads_that_share_keys_read_them_at_one_place() -> None:
    one = fold("grouped")
    launch = launch_of(one, one.inputs(4, 16, 1024, 1024, 64))
    queries, keys, _ = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
    assert len(queries.shape) == len(keys.shape) + 1


def test_few_rows_float32_and_odd_memory_are_left_to_the_other_form() -> None:
    one = fold("plain")
    for inputs in (
        one.inputs(1, 1, 128, 4096, 64), one._replace(dtype="float32").inputs(8, 16, 512, 512, 64),
        one.inputs(8, 16, 512, 512, 63),
    ):  # fmt: skip
        items = scheduled(lambda q, k, v: fg.softmax(q @ fg.swapaxes(k, -1, -2)) @ v, inputs).items
        folds = [item.kernel for item in items if item.kernel.kind is KernelKind.FOLD]
        launches = [launch for kernel in folds for launch in rendered(kernel, GLUON).launches]
        assert launches and all(launch.language == "triton" for launch in launches)


def test_a_kernel_that_must_look_at_the_lock_has_the_other_form() -> None:
    one = fold("plain")
    launch = launch_of(one, one.inputs(4, 16, 1024, 1024, 64))
    assert not launch.may_be_guarded
    plain = replace(HOPPER, gluon_stream=False)
    assert launch_of(one, one.inputs(4, 16, 1024, 1024, 64), plain).may_be_guarded


def test_a_fast_exp_is_for_weights_of_16_bits_alone() -> None:
    fast = replace(HOPPER, stream_fast_exp=True)
    one = fold("causal")
    assert "fg_fast_exp(" in launch_of(one, one.inputs(4, 16, 1000, 1000, 64), fast).text

    def wide(q: Any, k: Any, v: Any) -> Any:
        return fg.softmax(q @ fg.swapaxes(k, -1, -2), axis=-1) @ v

    inputs = (((4, 16, 1000, 64), "float32"),) * 3
    assert "fg_fast_exp(" not in launch_of(wide, inputs, fast).text


def test_rows_that_have_seen_nothing_cost_no_choice_for_each_sum() -> None:
    one = fold("statistics")
    table = replace(GLUON, gluon_persistent=False)
    text = launch_of(one, one.inputs(4, 16, 1024, 1024, 64), table).text
    loop = text.partition("    for r1 in ")[2]
    loop, _, end = loop.partition("        it += 1\n")[2].partition("        it += 1\n")
    assert "acc = t" in loop and "tl.where(f0d" not in loop and "g0 * -1.442695)" in loop
    assert "acc = tl.where(f0d == " in end and "f2 = tl.where(f0 == " in end


def test_the_text_is_as_it_was(golden: Golden) -> None:
    one = fold("causal")
    launch = launch_of(one, one.inputs(4, 16, 1000, 1000, 128))
    given = ", ".join(f"{a.name}={a.value}" for a in launch.arguments)
    golden(f"# {launch.grid} programs: {given}\n{launch.text}", "cuda/gluon_stream.txt")
