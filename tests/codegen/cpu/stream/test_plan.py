"""Plans: tiles of M, N and D, splits along keys, and strips of rows, by sizes alone."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.stream.plan import StreamPlan, plan_problem, strip_bytes
from fulgurite.codegen.cpu.tiling import CPU
from fulgurite.graph.ir.queries import elements
from fulgurite.kernel.contract.analysis import Block
from fulgurite.kernel.stream.roles import StreamProblem
from tests.codegen.cpu.stream.streaming import BLOCK, attention, problem_of
from tests.graph.searching import ATTENTION, INTO_PRODUCTS, kinds, numbers, planned

STREAM = CPU.stream


@pytest.mark.parametrize("name", INTO_PRODUCTS)
def test_lanes_run_along_memory(name: str) -> None:
    problem = problem_of(INTO_PRODUCTS[name](numbers(1, 120, 64)))
    plan = plan_problem(problem, BLOCK)
    assert plan is not None
    assert plan.lanes == ("m" if "transposed" in name else "n")


@pytest.mark.parametrize("rows", [1, 5, 48, 100, 1000])
@pytest.mark.parametrize("size", [3, 64, 700])
def test_tiles_fit_and_do_not_depend_on_threads(rows: int, size: int) -> None:
    problem = attention("plain", rows, 300, size)
    with fg.config(threads=1):
        one = plan_problem(problem, BLOCK)
    assert one is not None and one == plan_problem(problem, BLOCK)
    assert 4 * one.tile_m * one.tile_d[0] <= STREAM.stack_bytes and one.tile_m <= max(144, 16)


@pytest.mark.parametrize(("rows", "keys", "most"), [(1, 5000, 8), (40, 3000, 8), (300, 4000, 3)])
def test_few_tiles_are_split_into_whole_blocks_by_shape_alone(
    rows: int, keys: int, most: int
) -> None:
    q, k, v = numbers(1, 1, rows, 16), numbers(2, 1, keys, 16), numbers(3, 1, keys, 16)
    problem = problem_of(ATTENTION["plain"](q, k, v))
    plan = plan_problem(problem, BLOCK)
    assert plan is not None and 1 < plan.splits <= most
    assert plan.split_n % plan.block_n == 0 and plan.splits == -(-keys // plan.split_n)
    with fg.config(threads=1):
        assert plan == plan_problem(problem, BLOCK)


def test_blocks_that_may_be_left_out_and_many_tiles_are_not_split() -> None:
    for problem in (attention("causal", 60, 3000), attention("plain", 700, 3000)):
        plan = plan_problem(problem, BLOCK)
        assert plan is not None and plan.splits == 1


def test_many_columns_mean_fewer_rows_not_products_done_again() -> None:
    for size in (64, 512, 1024):
        problem = attention("plain", 700, 300, size)
        plan = plan_problem(problem, BLOCK)
        assert plan is not None and plan.tile_d[0] >= size and plan.tile_m >= 48


@pytest.mark.parametrize("rows", [64, 65, 72, 73, 130])
@pytest.mark.parametrize("height", [4, 6, 9, 14])
def test_cutting_rows_along_the_streamed_axis_ends(rows: int, height: int) -> None:
    """Also where whole register blocks are no whole part of the fewest rows."""
    x, w = numbers(1, 1, 1, 4, 33), numbers(2, rows, 1, 1, 3)
    problem = problem_of(fg.relu(fg.conv2d(x, w, padding=((1, 0), (1, 4)))).mean(axis=(2, 3)))
    plan = plan_problem(problem, Block(height, 48, 16, 4))
    assert plan is not None and plan.lanes == "n" and plan.tile_m % height == 0


@pytest.mark.parametrize("width", [3, 4, 5, 16])
def test_cutting_columns_ends_where_a_panel_is_one_vector(width: int) -> None:
    """As of float64 on SSE2."""
    x, w = numbers(1, 5, 40), numbers(2, 40, width)
    problem = problem_of((x * (x * x).mean(axis=-1, keepdims=True).rsqrt()) @ w)
    plan = plan_problem(problem, Block(2, 4, 4, 8))
    assert plan is not None and plan.tile_d == (4,)


# --- strips -------------------------------------------------------------------------------------


def memory(*shape: int) -> fg.Tensor:
    """Some memory that nobody reads."""
    return fg.Tensor(np.zeros(shape, np.float32))


def weighed(rows: int, keys: int, size: int = 32, other: int = 32, heads: int = 1) -> StreamProblem:
    """Weights that need whole rows, times values, and turned times values of rows."""
    shapes = ((rows, size), (keys, size), (keys, 8), (rows, other))
    q, k, v, g = [memory(heads, *shape) for shape in shapes]
    w = fg.softmax(q @ k.mT, axis=-1)
    problem = problem_of(w @ v, w.mT @ g)
    assert problem.streaming.waits
    return problem


def plan_of(problem: StreamProblem) -> StreamPlan | None:
    return plan_problem(problem, BLOCK)


@pytest.mark.parametrize("rows", [256, 300, 512, 1000, 5000])
@pytest.mark.parametrize("keys", [600, 32_000, 130_000])
def test_a_strip_is_a_small_part_of_the_matrix_and_of_memory(rows: int, keys: int) -> None:
    problem = weighed(rows, keys)
    plan = plan_of(problem)
    assert plan is not None
    kept = strip_bytes(problem, plan)
    assert kept <= STREAM.strip_bytes and 4 * kept <= 4 * (rows + 2 * 16) * keys
    assert STREAM.min_strip_m <= plan.tile_m <= STREAM.max_strip_m and plan.tile_m % 16 == 0
    assert (plan.strips - 1) * plan.tile_m < rows <= plan.strips * plan.tile_m
    assert plan.splits * plan.split_n >= keys > (plan.splits - 1) * plan.split_n
    assert plan.split_n % plan.block_n == 0
    if rows >= STREAM.strip_share * STREAM.min_strip_m:
        assert STREAM.strip_share * plan.tile_m <= rows


@pytest.mark.parametrize(
    "rows, keys", [(255, 600), (4096, 140_000), (100_000, 600)], ids=["rows", "memory", "many"]
)
def test_where_a_strip_would_have_few_rows_or_strips_would_be_many_there_is_none(
    rows: int, keys: int
) -> None:
    assert plan_of(weighed(rows, keys)) is None


def test_results_must_be_rows_of_whole_vectors() -> None:
    assert plan_of(weighed(512, 600, other=32)) is not None
    assert plan_of(weighed(512, 600, other=33)) is None


def test_long_rows_of_values_leave_room_for_blocks() -> None:
    plan = plan_of(weighed(512, 4000, size=768, other=768))
    assert plan is not None and plan.block_n >= STREAM.min_block_n


def losses(rows: int, size: int, count: int, turned: bool = False) -> list[fg.Tensor]:
    """A linear layer with classes, and its gradients."""
    places = fg.Tensor(np.zeros(rows, np.int64))

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return fg.cross_entropy(x @ (w if turned else w.mT), places)

    weights = memory(size, count) if turned else memory(count, size)
    value, grads = fg.value_and_grad(loss, argnums=(0, 1))(memory(rows, size), weights)
    return [value, *grads]


@pytest.mark.parametrize("turned", [False, True])
def test_a_layer_of_many_classes_with_its_gradients_keeps_no_matrix(turned: bool) -> None:
    found, who = planned(*losses(512, 256, 32_000, turned))
    assert kinds(found) == ["fold", "reduce"]
    assert any(
        "6 strips of rows" in a.what for r in who.reports for a in r.alternatives if a.chosen
    )
    for slot in found.slots:
        assert slot is None or elements(slot.shape) < 512 * 32_000


def test_small_matrices_are_not_worth_strips() -> None:
    _, who = planned(*losses(256, 64, 1000))
    chosen = [a.what for r in who.reports for a in r.alternatives if a.chosen]
    assert chosen and not any("strips" in what for what in chosen)
