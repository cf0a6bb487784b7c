"""Tests of fulgurite/graph/memory/in_place.py: which memory is written over, in which order."""

import numpy as np
import pytest

from fulgurite.core.dtype import float32, int32
from fulgurite.core.node import Node, constant
from fulgurite.core.ops.effect import CONTIGUOUS, HostFunction, custom
from fulgurite.core.ops.elementwise import ADD, MUL
from fulgurite.core.ops.indexing import gather, scatter
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.movement import EXPAND, flip, reshape, shrink
from fulgurite.core.ops.reduce import REDUCE
from fulgurite.core.ops.update import update
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.memory.arena import bytes_moved, plan_memory
from fulgurite.graph.memory.in_place import params_written
from tests.graph.scheduling import schedule

pytestmark = pytest.mark.device("none")

X = param(0, (100, 8), float32)
ROW = param(1, (1, 8), float32)
INDEX = param(2, (3, 8), int32)


def total(x: Node) -> Node:
    """The sum over the first axis."""
    return reshape(REDUCE(x, arg=("add", (0,))), x.shape[1:])


def kinds(found: Schedule) -> list[str]:
    return [item.kernel.kind for item in found.items]


def donated(*roots: Node, pairs: tuple[tuple[int, int], ...] = ((0, 0),)) -> Schedule:
    return schedule(SINK(*roots), 3, donated=pairs)


def test_an_update_of_a_row_is_a_store_of_that_row() -> None:
    found = donated(update(X, MUL(ROW, ROW), (7, 0), (1, 1)))
    assert kinds(found) == ["assign"]
    assert found.aliases == ((found.outputs[0], 0),) and params_written(found.aliases) == [0]
    assert bytes_moved(found, found.items[0]) == 2 * 8 * 4
    layout = plan_memory(found, 64)
    assert layout.arena_bytes == 0 and layout.output_bytes == 0


def test_without_a_donation_it_is_a_copy() -> None:
    found = schedule(SINK(update(X, ROW, (7, 0), (1, 1))), 3, donated=())
    assert kinds(found) == ["map"] and found.aliases == ()


def test_a_chain_of_updates_is_a_chain_of_stores_in_one_memory() -> None:
    first = update(X, ROW, (7, 0), (1, 1))
    found = donated(update(first, ROW, (3, 0), (1, 1)))
    assert kinds(found) == ["assign", "assign"]
    assert {place for _, place in found.aliases} == {0} and len(found.aliases) == 2


def test_a_part_that_reads_the_whole_elsewhere_is_worked_out_first() -> None:
    shifted = update(X, shrink(X, [(0, 99), (0, 8)]), (1, 0), (1, 1))
    found = donated(shifted)
    assert kinds(found) == ["map", "assign"] and found.aliases


def test_a_part_that_reads_itself_is_changed_where_it_is() -> None:
    here = ADD(shrink(X, [(3, 9), (0, 8)]), constant(1.0, float32, (6, 8)))
    found = donated(update(X, here, (3, 0), (1, 1)))
    assert kinds(found) == ["assign"]
    assert bytes_moved(found, found.items[0]) == 2 * 6 * 8 * 4


def test_a_map_at_its_own_places_is_stored_over_what_it_reads() -> None:
    found = donated(ADD(X, X))
    assert kinds(found) == ["map"] and found.aliases == ((found.outputs[0], 0),)
    assert donated(ADD(X, flip(X, (0,)))).aliases == ()


def test_an_update_by_a_product_is_stored_over_all_that_it_reads_above_the_sums() -> None:
    weight, first, second = [param(i, (8, 6), float32) for i in range(3)]
    a, b = param(3, (16, 8), float32), param(4, (16, 6), float32)
    wide = [EXPAND(reshape(x, s), arg=(16, 8, 6)) for x, s in ((a, (16, 8, 1)), (b, (16, 1, 6)))]
    repeated = EXPAND(reshape(weight, (1, 8, 6)), arg=(16, 8, 6))
    for gradient, over in ((total(MUL(*wide)), [0, 1, 2]), (total(repeated), [1, 2])):
        new = [ADD(first, gradient), MUL(second, gradient)]
        sink = SINK(ADD(weight, MUL(*new)), *new)
        found = schedule(sink, 5, donated=((0, 0), (1, 1), (2, 2)))
        assert len(found.items) == 1 and len(found.items[0].writes) == 3
        assert params_written(found.aliases) == over, "what is summed is read at other places"


def test_an_index_is_checked_once_before_anything_is_written_over() -> None:
    table, index = param(0, (50, 8), float32), param(1, (3, 8), int32)
    new = ADD(param(2, (3, 8), float32), constant(1.0, float32, (3, 8)))
    for rows in (3, 2):
        read = CONTIGUOUS(gather(table, shrink(index, [(0, rows), (0, 8)]), 0))
        value = ADD(new, EXPAND(shrink(read, [(0, 1), (0, 8)]), arg=(3, 8)))
        after = scatter("add", constant(0.0, float32, (50, 8)), index, value, 0)
        found = schedule(SINK(read, new, after), 3, donated=((2, 1),))
        seen = ((found.outputs[1], 2),) if rows == 3 else ()
        assert found.aliases == seen, "what is checked already cannot fail when it is too late"


def test_whoever_reads_the_old_value_runs_before() -> None:
    old = ADD(flip(X, (0,)), X)
    found = donated(update(X, ROW, (7, 0), (1, 1)), old)
    assert kinds(found) == ["map", "assign"]
    new = update(X, ROW, (7, 0), (1, 1))
    found = donated(new, MUL(flip(new, (0,)), new))
    assert kinds(found) == ["assign", "map"], "and who reads the new one after"


def test_what_reads_both_versions_at_once_has_a_copy() -> None:
    new = update(X, ROW, (7, 0), (1, 1))
    found = donated(new, MUL(flip(new, (0,)), X))
    assert found.aliases == ()


def test_two_that_each_read_the_other_have_one_copy() -> None:
    a, b = param(0, (4, 4), float32), param(1, (4, 4), float32)
    left = update(a, shrink(b, [(0, 1), (0, 4)]), (0, 0), (1, 1))
    right = update(b, shrink(a, [(0, 1), (0, 4)]), (0, 0), (1, 1))
    found = schedule(SINK(left, right), 2, donated=((0, 0), (1, 1)))
    assert len(found.aliases) == 1 and sorted(kinds(found)) == ["assign", "map"]


def test_what_can_fail_runs_before_anything_is_written_over() -> None:
    table = param(1, (50, 8), float32)
    looked_up = gather(table, INDEX, 0)
    found = donated(update(X, looked_up, (7, 0), (1, 1)))
    assert kinds(found) == ["map", "assign"], "an index that is data may be outside"
    at = scatter("set", X, INDEX, looked_up, 0)
    found = donated(at)
    assert kinds(found)[-1] == "assign" and len(found.items) >= 2
    host = custom(HostFunction("any", lambda a: a), (ROW,), (1, 8), float32)
    found = donated(update(X, ROW, (7, 0), (1, 1)), host)
    assert kinds(found) == ["host", "assign"]
    new = update(X, ROW, (7, 0), (1, 1))
    after = custom(HostFunction("any", lambda a: a), (new,), (100, 8), float32)
    assert donated(new, after).aliases == (), "this one may fail when it is too late"


def test_a_load_that_is_stored_straight_back_is_no_kernel() -> None:
    same = update(X, shrink(X, [(3, 9), (0, 8)]), (3, 0), (1, 1))
    found = donated(same)
    assert found.items == () and found.aliases == ((found.outputs[0], 0),)


def test_reshapes_between_updates_change_nothing() -> None:
    flat = reshape(X, (800,))
    found = donated(reshape(update(flat, reshape(ROW, (8,)), (16,), (1,)), (100, 8)))
    assert kinds(found) == ["assign"] and found.aliases


def test_the_order_of_unrelated_kernels_stays() -> None:
    data = [param(i, (4,), float32) for i in range(3)]
    roots = [ADD(d, constant(float(np.pi), float32, (4,))) for d in data]
    plain, over = (
        schedule(SINK(*roots), 3, donated=()),
        schedule(SINK(*roots), 3, donated=((1, 1),)),
    )
    assert [i.writes for i in plain.items] == [i.writes for i in over.items]


def test_who_reads_an_update_by_another_shape_reads_the_memory() -> None:
    flat = update(reshape(X, (800,)), reshape(ROW, (8,)), (56,), (1,))
    found = donated(reshape(flat, (100, 8)), total(reshape(flat, (200, 4))))
    assert kinds(found)[0] == "assign" and len(found.items) == 2
    assert found.items[1].reads == (found.items[0].writes[0],)


def test_an_update_that_follows_from_another_one_is_computed_once() -> None:
    y = param(1, (100, 8), float32)
    first = update(X, param(2, (1, 8), float32), (7, 0), (1, 1))
    row = CONTIGUOUS(reshape(total(first), (1, 8)))
    second = update(y, row, (3, 0), (1, 1))
    found = donated(first, second, total(EXPAND(row, arg=(5, 8))), pairs=((0, 0), (1, 1)))
    assert sorted(kinds(found)) == ["assign", "assign", "reduce", "reduce"]
    assert params_written(found.aliases) == [0, 1]


def test_parts_of_a_reduction_are_stored_from_where_it_is() -> None:
    wide = param(2, (16, 8), float32)
    sums = ADD(reshape(REDUCE(wide, arg=("add", (1,))), (2, 8)), reshape(ROW, (1, 8)))
    first, second = (shrink(sums, ((n, n + 1), (0, 8))) for n in range(2))
    found = donated(update(update(X, first, (7, 0), (1, 1)), second, (3, 0), (1, 1)), sums)
    assert kinds(found) == ["reduce", "assign", "assign"]
