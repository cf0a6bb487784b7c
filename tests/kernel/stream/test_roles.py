"""Axis roles: which axes are M, N and D, and which blocks are skipped."""

from __future__ import annotations

import fulgurite as fg
from fulgurite.graph.ir.affine import axis
from fulgurite.kernel.stream.skip import skip_tests
from tests.codegen.cpu.stream.streaming import attention, problem_of
from tests.graph.searching import numbers


def test_rows_columns_and_streamed_axes_are_told_apart() -> None:
    problem = attention("plain")
    assert (problem.batch, problem.m, problem.n) == (4, 70, 90)
    assert [w.width for w in problem.weighted] == [16] and len(problem.products) == 1
    assert [s.op for s in problem.row_states] == ["max", "add"] and len(problem.weighted) == 1
    assert problem.levels == 2


def test_queries_that_share_keys_are_rows() -> None:
    problem = attention("grouped queries")
    assert problem.batch == 2 and problem.m == 2 * 70


def test_one_query_is_one_row_with_an_axis_of_its_own() -> None:
    problem = attention("one query")
    assert problem.m == 1 and problem.m_axes[0] >= len(problem.streaming.sizes)


def test_a_bias_along_the_keys_is_turned() -> None:
    assert len(attention("bias").loads_along_n) == 1 and not attention("plain").loads_along_n


def test_a_causal_mask_and_a_window_leave_out_blocks() -> None:
    counts = {"plain": 0, "bias": 0, "mask": 0, "causal": 1, "library causal": 1}
    for name, count in (counts | {"sliding window": 2}).items():
        problem = attention(name)
        streamed = frozenset(problem.n_axes)
        assert len(skip_tests(problem.states, streamed, problem.sizes)) == count, name


def test_a_causal_test_is_the_distance_from_key_to_query() -> None:
    problem = attention("causal")
    (test,) = skip_tests(problem.states, frozenset(problem.n_axes), problem.sizes)
    steps = dict(test.index[1])
    assert steps == {problem.m_axes[0]: 1, problem.n_axes[0]: -1} and test.index[0] == 0
    assert axis(problem.m_axes[0])[1][0][0] in steps


def test_equal_bodies_of_other_sizes_are_other_folds() -> None:
    problems = [attention("plain", rows, 90, 16) for rows in (70, 24, 7)]
    assert [problem.m for problem in problems] == [70, 24, 7]
    k, v = numbers(2, 5, 8), numbers(3, 5, 6)
    one = [problem_of(fg.softmax(numbers(1, n, 8) @ k.mT, axis=-1) @ v) for n in (4, 24)]
    assert [problem.m for problem in one] == [4, 24]
