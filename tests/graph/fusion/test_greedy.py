"""The scheduler: how many kernels plain code becomes, what they move, and what never differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.dtype import DType, bfloat16, float32, int8, int32, uint8
from fulgurite.core.node import Node, constant_like, toposort
from fulgurite.core.ops.effect import REMAT
from fulgurite.core.ops.elementwise import ADD, CAST, DIV, EXP, MUL, SIN, SUB
from fulgurite.core.ops.indexing import GATHER, SCATTER, SORT
from fulgurite.core.ops.leaf import SINK, new_buffer, param
from fulgurite.core.ops.movement import RESHAPE, UNWINDOW
from fulgurite.core.ops.reduce import REDUCE, SCAN
from fulgurite.graph.fusion import greedy as module
from fulgurite.graph.fusion.budget import BUDGET
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Schedule, params_of
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import elements
from fulgurite.graph.memory.arena import slot_bytes
from fulgurite.graph.passes.drop_empty import drop_empty
from fulgurite.tensor import wrap
from tests import fuzz
from tests.graph.ir.test_lower import (
    agrees,
    argmax,
    attention,
    concat,
    convolution,
    embedding,
    layernorm,
    linear_gelu,
    matmul,
    memory,
    rows,
    scheduled,
    softmax,
)
from tests.graph.scheduling import schedule

pytestmark = pytest.mark.device("none")


def moved(plan: Schedule) -> int:
    """Bytes that kernels read and write, each slot once a kernel; scalar constants left out."""
    total = 0
    for item in plan.items:
        for place in (*item.reads, *item.writes):
            slot = plan.slots[place]
            assert slot is not None
            total += 0 if slot.bits is not None else slot_bytes(slot)
    return total


def kinds(plan: Schedule) -> list[str]:
    return [item.kernel.kind for item in plan.items]


def chain(x: Node, count: int) -> Node:
    """An elementwise chain of many ops."""
    y = x
    for i in range(count // 5):
        y = MUL(ADD(EXP(SUB(SIN(y), x)), x), constant_like(0.5 + i, x))
    return y


def _table() -> dict[str, tuple[Callable[[], Node], int, int]]:
    """Name: the graph, how many kernels, how many bytes."""
    f = 4  # bytes of an element
    return {
        "softmax": (lambda: softmax(memory(64, 128)), 1, 2 * 64 * 128 * f),
        "layernorm": (
            lambda: layernorm(memory(64, 128), memory(128), memory(128)),
            1,
            (2 * 64 * 128 + 2 * 128) * f,
        ),
        "argmax": (lambda: argmax(memory(64, 128)), 1, (64 * 128 + 64) * f),
        "matmul, bias and gelu": (
            lambda: linear_gelu(memory(32, 64), memory(64, 48), memory(48)),
            1,
            (32 * 64 + 64 * 48 + 48 + 32 * 48) * f,
        ),
        "attention": (
            lambda: attention(memory(2, 4, 16, 8), memory(2, 4, 16, 8), memory(2, 4, 16, 8)),
            3,
            (4 * 2 * 4 * 16 * 8 + 2 * 2 * (2 * 4 * 16 * 16)) * f,  # each intermediate both ways
        ),
        "a chain of 50 ops": (lambda: chain(memory(1000), 50), 1, 2 * 1000 * f),
        "convolution, bias and relu": (
            lambda: convolution(memory(2, 3, 8, 8), memory(4, 3, 3, 3), memory(4)),
            1,
            (2 * 3 * 64 + 4 * 27 + 4 + 2 * 4 * 64) * f,
        ),
        "concat": (lambda: concat(memory(30, 40), memory(50, 40)), 1, 2 * 80 * 40 * f),
        "embedding": (
            lambda: embedding(memory(100, 16), memory(20, dtype=int32)),
            1,
            (100 * 16 + 20 + 20 * 16) * f,
        ),
    }


@pytest.mark.parametrize("name", _table())
def test_plain_code_is_few_kernels_that_move_inputs_and_outputs_once(name: str) -> None:
    make, kernels, bytes_ = _table()[name]
    plan = scheduled(make())
    assert (len(plan.items), moved(plan)) == (kernels, bytes_), str(plan)


def test_attention_is_two_contractions_and_a_softmax_between() -> None:
    x = [memory(2, 4, 16, 8) for _ in range(3)]
    assert kinds(scheduled(attention(*x))) == ["contract", "reduce", "contract"]


def test_a_product_and_its_transpose_are_read_from_memory_by_what_adds_them() -> None:
    product = matmul(memory(8, 4), memory(4, 8))
    both = ADD(product, build.permute(product, (1, 0)))
    assert kinds(scheduled(both)) == ["contract", "map"]
    turned = build.permute(EXP(product), (1, 0))
    assert kinds(scheduled(ADD(turned, EXP(turned)))) == ["contract"]


def a_row_times(weights: Node, row: Node) -> Node:
    """A row of (steps / 4, 4) times columns that lie by fours, as a sum."""
    steps, columns, four = weights.shape
    wide = MUL(*[
        CAST(one, arg=int32) if one.dtype.itemsize == 1 else one
        for one in (build.expand(build.reshape(row, (1, steps, four)), (columns, steps, four)),
                    build.permute(weights, (1, 0, 2)))
    ])  # fmt: skip
    return build.reshape(REDUCE(wide, arg=("add", (1, 2))), (columns,))


@pytest.mark.parametrize(("of_row", "of_weights", "kernels"), [
    (uint8, int8, 2), (int8, uint8, 2), (float32, float32, 1),
])  # fmt: skip
def test_products_of_bytes_by_fours_have_kernels_of_their_own(
    of_row: DType, of_weights: DType, kernels: int
) -> None:
    row = memory(16, 4, dtype=of_row)
    gate, up = (a_row_times(memory(16, 40, 4, dtype=of_weights), row) for _ in range(2))
    plan = scheduled(MUL(gate, ADD(up, constant_like(1, up))))
    assert kinds(plan) == ["reduce"] * kernels, str(plan)


def walked(steps: int) -> list[Node]:
    """Places after each of some steps through two tables, which are the indices of the next."""
    lower, upper = memory(50, dtype=int32), memory(50, dtype=int32)
    places = [memory(20, dtype=int32)]
    for _ in range(steps):
        a, b = (GATHER(table, places[-1], arg=0) for table in (lower, upper))
        places.append(ADD(MUL(a, a), MUL(MUL(b, b), a)))
    return places[1:]


def test_a_walk_through_tables_is_one_kernel() -> None:
    assert kinds(scheduled(walked(6)[-1])) == ["map"]
    first, *_, last = walked(6)
    assert kinds(scheduled(first, last)) == ["map"], "a place that is asked for ends none"


def test_a_gather_from_what_its_indices_kernel_computes_is_of_another_kernel() -> None:
    places = walked(2)[-1]
    plan = scheduled(ADD(GATHER(places, places, arg=0), places))
    assert len(plan.items) == 2, "each number of the table would be computed anew"


def test_switching_fusion_off_gives_a_kernel_for_each_op() -> None:
    normal = normalize([softmax(memory(4, 8))])
    sink = restore(normal.structure, normal.constants)
    assert len(schedule(sink, 1, fuse=False).items) == 5


# --- kernels as objects --------------------------------------------------------------------------


def test_identical_layers_are_one_kernel_object() -> None:
    x = memory(16, 16)
    for _ in range(12):
        x = linear_gelu(layernorm(x, memory(16), memory(16)), memory(16, 16), memory(16))
    plan = scheduled(x)
    assert len(plan.items) == 24
    assert len({id(item.kernel) for item in plan.items}) == 2


def test_constants_do_not_make_new_kernels() -> None:
    roots = [build.apply(MUL, memory(8), 0.1 * i + 2) for i in range(5)]
    plan = scheduled(*roots)
    assert len({id(item.kernel) for item in plan.items}) == 1 < len(plan.items)
    assert len({item.reads for item in plan.items}) == 5
    agrees(*roots)


def test_equal_constants_share_a_slot_and_different_ones_do_not() -> None:
    x = memory(8)
    twice = build.apply(ADD, build.apply(MUL, x, 3.0), 3.0)
    both = build.apply(ADD, build.apply(MUL, x, 3.0), 4.0)
    assert len(scheduled(twice).slots) == 3 and len(scheduled(both).slots) == 4
    agrees(twice, both)


def test_a_kernel_knows_the_lines_it_computes_and_why_it_begins() -> None:
    plan = scheduled(attention(*[memory(1, 1, 4, 4) for _ in range(3)]))
    assert all(item.lines and item.reason for item in plan.items)
    assert "test_lower.py" in str(plan)


# --- what is stored ------------------------------------------------------------------------------


def test_a_root_of_movement_alone_is_one_copy() -> None:
    x = memory(6, 4)
    plan = scheduled(build.flip(build.permute(build.pad(x, [(1, 0), (0, 2)]), (1, 0)), 0))
    assert kinds(plan) == ["map"] and len(plan.items[0].writes) == 1


def test_an_input_asked_for_is_a_copy_of_its_own() -> None:
    x = memory(6, 4)
    plan = scheduled(x, build.reshape(x, (24,)))
    assert len(plan.items) >= 1 and len(set(plan.outputs)) == 2
    agrees(x, build.reshape(x, (24,)))


def test_a_reshape_of_a_result_is_the_same_memory_unless_both_are_asked_for() -> None:
    y = EXP(memory(6, 4))
    alone = scheduled(build.reshape(y, (24,)))
    assert len(alone.items) == 1 and alone.items[0].writes == alone.outputs
    agrees(y, build.reshape(y, (24,)))


def test_nothing_that_is_stored_is_a_movement_of_another_stored_value() -> None:
    x = memory(8, 8)
    y = softmax(x)
    plan = scheduled(matmul(build.permute(y, (1, 0)), y), SIN(build.permute(y, (1, 0))))
    for item in plan.items:
        assert all(root.op is not RESHAPE for root in item.kernel.body.src)


def _two_readers(y: Node) -> list[Node]:
    """A row sum and a column sum: two kernels that cannot be one."""
    return [build.fold("add", y, 0), build.fold("max", y, 1)]


def test_a_cheap_value_read_by_two_kernels_is_computed_again() -> None:
    x = memory(64, 64)
    plan = scheduled(*_two_readers(ADD(x, x)))
    assert len(plan.items) == 2 and sum(len(item.writes) for item in plan.items) == 2
    assert moved(plan) == (2 * 64 * 64 + 128) * 4


def test_a_costly_value_read_by_two_kernels_is_stored_once() -> None:
    y = x = memory(64, 64)
    for _ in range(4):
        y = EXP(SIN(y))
    plan = scheduled(*_two_readers(MUL(y, x)))
    whole = [
        slot
        for item in plan.items
        for slot in item.writes
        if (known := plan.slots[slot]) is not None and known.shape == (64, 64)
    ]
    assert len(whole) == 1
    agrees(*_two_readers(MUL(y, x)))


def test_kernels_over_other_rows_are_not_merged() -> None:
    x, y = memory(8, 8), memory(8, 8)
    a = build.fold("add", MUL(EXP(x), y), 0, True)
    b = build.fold("max", SIN(y), 1, True)
    root = ADD(rows(a, (8, 8)), rows(b, (8, 8)))
    plan = scheduled(root)
    assert kinds(plan).count("reduce") >= 2 and len(plan.items) >= 2
    agrees(root)


def test_rows_of_a_square_are_not_worked_out_again_for_each_of_its_columns() -> None:
    x = memory(8, 8)
    largest = build.reshape(build.fold("max", x, 1, True), (1, 8))
    root = SUB(x, rows(largest, (8, 8)))
    assert kinds(scheduled(root)) == ["reduce", "map"]
    assert kinds(scheduled(SUB(x, rows(build.fold("max", x, 1, True), (8, 8))))) == ["reduce"]
    agrees(root)


def test_a_contraction_read_twice_is_stored_and_not_done_twice() -> None:
    y = matmul(memory(16, 16), memory(16, 16))
    plan = scheduled(softmax(y), build.fold("add", EXP(y), 0))
    assert kinds(plan).count("contract") == 1


def test_every_slot_is_written_once_and_before_it_is_read() -> None:
    for make, _, _ in _table().values():
        plan = scheduled(make(), softmax(memory(4, 4)))
        known = set(range(plan.inputs))
        known |= {i for i, s in enumerate(plan.slots) if s is not None and s.bits is not None}
        for item in plan.items:
            assert set(item.reads) <= known and not known & set(item.writes)
            known |= set(item.writes)
        assert set(plan.outputs) <= known


def test_everything_that_is_written_is_read_or_asked_for() -> None:
    for make, _, _ in _table().values():
        plan = scheduled(make())
        read = {slot for item in plan.items for slot in item.reads} | set(plan.outputs)
        assert all(set(item.writes) <= read for item in plan.items)


COSTLY = {REDUCE, SCAN, SORT, SCATTER, UNWINDOW}


def computed(root: Node) -> set[Node]:
    """The nodes that a value is made of: what it only waits for is not computed."""
    found: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.src[:1] if node.op is REMAT else node.src)
    return found


def nothing_costly_is_done_twice(*roots: Node) -> None:
    """Every reduction, scan, sort and scatter is in one kernel only, and all are index notation."""
    normal = normalize(roots)
    sink = restore(normal.structure, normal.constants)
    plan = schedule(sink, len(normal.buffers))
    wanted = [n for n in computed(drop_empty(sink, toposort([sink]))) if n.op in COSTLY]
    bodies = [toposort([item.kernel.body]) for item in plan.items]
    assert len([n for body in bodies for n in body if n.op in COSTLY]) == len(wanted), str(plan)
    for item in plan.items:
        if item.kernel.kind != "host":
            lower(item.kernel.body, item.kernel.inputs)


def test_no_reduction_scan_sort_or_scatter_of_random_graphs_is_done_twice() -> None:
    for seed in range(240):
        nothing_costly_is_done_twice(*fuzz.generate(seed, 30 if seed % 2 else 60).roots)


def test_a_kernel_that_would_close_a_cycle_is_not_made() -> None:
    # the rows of `second` are those of `first`, but it needs a product that needs `first`
    x, w = memory(16, 16), memory(16, 16)
    first = MUL(EXP(x), rows(build.fold("max", SIN(x), 1, True), (16, 16)))
    between = matmul(first, w)
    second = rows(build.fold("add", EXP(between), 1, True), (16, 16))
    for root in (ADD(first, second), ADD(second, first), DIV(MUL(first, second), first)):
        nothing_costly_is_done_twice(root, first)
        assert kinds(scheduled(root)) == ["reduce", "contract", "reduce"]
        agrees(root)


# --- size ----------------------------------------------------------------------------------------


def test_many_chained_softmaxes_are_split_into_several_kernels() -> None:
    x = memory(4, 8)
    for _ in range(300):
        x = softmax(x)
    plan = scheduled(x)
    nodes = max(item.kernel.body.slice.__len__() for item in plan.items)
    assert 5 < len(plan.items) < 60 and nodes < 3 * BUDGET.kernel_nodes


def test_a_long_chain_is_scheduled_without_recursion() -> None:
    x = memory(16)
    y = x
    for i in range(5000):
        y = ADD(y, x) if i % 3 else build.flip(SIN(y), 0)
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(depth + 260)
        plan = scheduled(y)
    finally:
        sys.setrecursionlimit(before)
    assert 5000 // BUDGET.kernel_nodes <= len(plan.items) <= 5000 // 10


def test_a_product_of_a_long_chain_is_a_contraction_all_the_same() -> None:
    x = y = memory(8, 4)
    for _ in range(3000):
        y = ADD(y, x)
    assert kinds(scheduled(matmul(y, memory(4, 6))))[-1] == "contract"


def _steps_to_schedule(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the scheduler looks at the cost or the readers of a node."""
    y = x = memory(16)
    for i in range(count):
        y = ADD(SIN(y), x) if i % 5 else SUB(y, rows(build.fold("max", y, 0, True), (16,)))
    calls = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("cheap", "read", "cost_of", "group", "join", "settle"):
            patch.setattr(module._Greedy, name, counted(getattr(module._Greedy, name)))
        patch.setattr(module, "elements", counted(elements))
        scheduled(y)
    return calls


def test_the_work_of_scheduling_grows_with_the_graph_and_no_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = (_steps_to_schedule(n, monkeypatch) for n in (600, 2400))
    assert large < 4.6 * small


# --- the same every time -------------------------------------------------------------------------

_PROGRAM = """
from tests.graph.ir.test_lower import *
x = memory(8, 16)
y = layernorm(x, memory(16), memory(16))
z = attention(*[build.reshape(y, (1, 2, 4, 16))] * 3)
roots = [z, argmax(y), build.fold("add", softmax(y), 0), concat(x, y), ADD(y, y)]
plan = scheduled(*roots)
print(plan)
for item in plan.items:
    print(item.kernel.kind, item.reads, item.writes, item.reason)
    print(show(item.kernel.body))
    print(show(lower(item.kernel.body, item.kernel.inputs).body))
"""


def test_the_schedule_is_the_same_text_in_every_process() -> None:
    root = Path(__file__).parents[3]
    texts = []
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        run = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=environment, cwd=root, capture_output=True, text=True, check=True,
        )  # fmt: skip
        texts.append(run.stdout)
    assert texts[0].count("\n") > 50 and len(set(texts)) == 1


def test_scheduling_twice_gives_equal_schedules() -> None:
    x = memory(8, 8)
    root = softmax(matmul(x, x))
    assert str(scheduled(root)) == str(scheduled(root))


# --- what is empty -------------------------------------------------------------------------------


def test_nothing_is_computed_for_values_of_no_elements() -> None:
    x = memory(0, 4)
    plan = scheduled(EXP(x), build.fold("add", x, 0), build.pad(x, [(1, 1), (0, 0)]))
    assert all(item.kernel.inputs <= 1 for item in plan.items)
    agrees(EXP(x), build.fold("add", x, 0), build.pad(x, [(1, 1), (0, 0)]))


def test_a_schedule_is_of_a_sink() -> None:
    with pytest.raises(AssertionError, match="a schedule is of a SINK"):
        schedule(param(0, (2,), float32), 1)
    assert schedule(SINK(), 0).items == ()


# --- what waits ----------------------------------------------------------------------------------


def test_what_waits_runs_later_reads_nothing_more_and_is_the_same_kernel() -> None:
    x, w = param(0, (64, 8), float32), param(1, (8, 8), float32)

    def block(x: Node) -> Node:
        wide = build.expand(build.reshape(x, (64, 8, 1)), (64, 8, 8))
        product = wide * build.expand(build.reshape(w, (1, 8, 8)), (64, 8, 8))
        return SIN(build.fold("add", product, 1))

    first = block(x)
    waited = build.fold("add", first)
    again = block(REMAT(x, waited))
    plan = schedule(SINK(EXP(build.fold("add", again)), waited), 2)
    contractions = [item for item in plan.items if item.kernel.kind == "contract"]
    assert len(contractions) == 2, "a value that waits is computed again"
    assert contractions[0].kernel is contractions[1].kernel
    assert contractions[0].reads == contractions[1].reads == (0, 1)
    order = [item.writes[0] for item in plan.items]
    assert order.index(plan.outputs[1]) < order.index(contractions[1].writes[0])


def test_a_result_that_only_waits_is_a_copy() -> None:
    x, y = param(0, (4,), float32), param(1, (2,), float32)
    plan = schedule(SINK(REMAT(x, y), REMAT(SIN(x), EXP(y))), 2)
    assert [item.kernel.kind for item in plan.items] == ["map"] * len(plan.items)
    for item in plan.items:
        lower(item.kernel.body, item.kernel.inputs)


def test_factors_of_small_floats_are_stored_as_they_are_and_widened_where_they_are_read() -> None:
    builds: list[Callable[..., fg.Tensor]] = [
        lambda x, w: fg.exp(x) @ w, lambda x, w: fg.relu(x @ w) @ w,
        lambda x, w: fg.layer_norm(x, (64,)) @ fg.swapaxes(w, 0, 1),
    ]  # fmt: skip
    for made in builds:
        with fg.config(device="reference"):
            x, w = (wrap(new_buffer((64, 64), bfloat16)) for _ in range(2))
            *before, last = fg.schedule(made(x, w)).items
        assert params_of(before[-1].kernel)[-1].dtype is bfloat16
        assert {p.dtype for p in params_of(last.kernel)} == {bfloat16}


def test_a_small_float_that_is_widened_is_stored_as_the_small_one() -> None:
    product = matmul(memory(40, 30, dtype=bfloat16), memory(30, 50, dtype=bfloat16))
    wide = CAST(product, arg=float32)
    plan = scheduled(*_two_readers(wide))
    assert _written(plan) == [bfloat16]
    assert float32 in _written(scheduled(wide, *_two_readers(wide)))  # a result is what was asked
    agrees(*_two_readers(wide))


def _written(plan: Schedule) -> list[DType]:
    """The dtypes of what the first kernel stores."""
    slots = [plan.slots[slot] for slot in plan.items[0].writes]
    return [slot.dtype for slot in slots if slot is not None]
