"""Components of the streaming template, each by itself."""

from __future__ import annotations

import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.microkernel import Registers
from fulgurite.codegen.cpu.stream.accumulators import WeightedSums
from fulgurite.codegen.cpu.stream.block_loop import BlockLoop
from fulgurite.codegen.cpu.stream.operands import Operands, PanelCall, PanelGemm
from fulgurite.codegen.cpu.stream.plan import plan_problem, plan_stream
from fulgurite.codegen.cpu.stream.split import Splitter
from fulgurite.codegen.cpu.stream.states import StateSet
from fulgurite.codegen.cpu.stream.template import render_stream
from fulgurite.codegen.cpu.stream.tile import Tile, Workspace
from fulgurite.codegen.cpu.stream.weights import weight_tiles
from fulgurite.core.dtype import float32
from fulgurite.core.ops.elementwise import AND, EXP
from fulgurite.kernel.stream.roles import StreamProblem
from tests.codegen.cpu.stream.streaming import AVX512, BLOCK, attention, problem_of
from tests.graph.searching import ATTENTION, numbers


def tile_of(problem: StreamProblem) -> Tile:
    plan = plan_problem(problem, BLOCK)
    assert plan is not None
    dtypes = [float32] * 8
    return Tile(problem, plan, dtypes, Registers(float32, AVX512))


def divergence() -> StreamProblem:
    """Of two softmaxes: sums that do more than be rescaled."""
    a, b = (numbers(1, 40, 20) @ numbers(i, 301, 20).mT for i in (2, 3))
    logs = fg.log_softmax(a, axis=-1) - fg.log_softmax(b, axis=-1)
    return problem_of((fg.softmax(a, axis=-1) * logs).sum(axis=-1))


def test_parts_of_the_workspace_lie_one_after_the_other() -> None:
    workspace = Workspace()
    for name, count in (("keys", 5), ("parts", 7)):
        workspace.allocate(name, count)
    assert workspace.at == {"keys": 0, "parts": 5} and workspace.size == 12


def test_a_sum_that_is_only_rescaled_is_compensated_and_an_extreme_is_not() -> None:
    states = StateSet(tile_of(attention("plain")))
    assert [s.op for s in states.rows] == ["max", "add"]
    assert [s.op for s in states.compensated] == ["add"] and not states.widened
    assert [n.op for n in states.coefficients] == [EXP, AND]  # rescale factor, and its guard


def test_sums_that_are_more_than_rescaled_are_widened() -> None:
    states = StateSet(tile_of(divergence()))
    assert [s.op for s in states.widened] == ["add"] * 3 and not states.compensated


@pytest.mark.parametrize("name", ["plain", "bias"])
def test_weights_take_the_place_of_scores(name: str) -> None:
    tile = tile_of(attention(name))
    loads = [c.left for c in tile.problem.loads_along_n]
    weights = weight_tiles(tile, Operands(tile), loads)
    assert weights.names == ["tile0"]
    assert [n for n, _, _ in weights.written(1, tile.problem.computed)] == ["tile0"]
    assert not weights.written(0, tile.problem.computed)


def test_a_tile_fills_whole_vectors() -> None:
    tile = tile_of(attention("plain"))
    f = tile.new_function("kernel")
    tile.reserve("state", 48)
    tile.fill_zeros(f.read["state"], f.read["room", "state"])
    assert "alloca float" in f.text() and "store <16 x float>" in f.text()


def test_products_in_pieces_are_loops_of_calls() -> None:
    tile = tile_of(attention("plain"))
    f = tile.new_function("kernel")
    call = PanelCall(("%a", "1", "8"), ("%b", "48"), ("%c", "64"), "%k", "9", "48", "true", None)
    PanelGemm(tile).multiply(call)
    plain = f.text()
    PanelGemm(tile).multiply_in_pieces(call)
    assert plain.count("call void") == 1 and plain.count("phi") == 0
    assert f.text().count("call void") == 2 and f.text().count("phi") == 1


@pytest.mark.parametrize("name, once", [("plain", 0), ("causal", 1), ("sliding window", 2)])
def test_one_streamed_axis_is_bounded_once_for_a_tile(name: str, once: int) -> None:
    blocks = BlockLoop(tile_of(attention(name)))
    assert len(blocks.once) == once and not blocks.each


def test_states_of_splits_are_whole_lines_of_memory() -> None:
    q, k, v = numbers(1, 1, 40, 16), numbers(2, 1, 3000, 16), numbers(3, 1, 3000, 16)
    tile = tile_of(problem_of(ATTENTION["plain"](q, k, v)))
    operands, states = Operands(tile), StateSet(tile)
    weights = weight_tiles(tile, operands, [])
    sums = WeightedSums(tile, operands, PanelGemm(tile), states, weights)
    before = tile.workspace.size
    splitter = Splitter(tile, states, sums)
    assert tile.plan.splits > 1 and splitter.unit_numbers % 16 == 0
    assert tile.workspace.size - before == tile.units * tile.plan.splits * splitter.unit_numbers


def test_a_plan_is_plain_data_that_the_template_renders_by() -> None:
    q, k, v = numbers(1, 4, 70, 16), numbers(2, 4, 900, 16), numbers(3, 4, 900, 16)
    problem = problem_of(ATTENTION["plain"](q, k, v))
    plan = plan_stream(problem, AVX512)
    assert plan is not None and "tile_m=" in repr(plan) and hash(plan) == hash(plan)
    dtypes = [float32] * 8
    found = render_stream(problem, dtypes, AVX512, plan)
    assert found == render_stream(problem, dtypes, AVX512, plan)
    assert [p.symbol for p in found.launches] == ["kernel"]
