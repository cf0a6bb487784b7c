"""Tests of fulgurite/core/node.py: the behaviours of a hash-consed graph."""

import gc
import weakref
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fulgurite.core import build, node
from fulgurite.core.dtype import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from fulgurite.core.extension import EXTENSION
from fulgurite.core.node import (
    Node,
    annotate,
    backward_slice,
    constant,
    constant_bits,
    forward_slice,
    make,
    readers_of,
    toposort,
)
from fulgurite.core.ops.elementwise import ADD, EXP, MUL, NEG
from fulgurite.core.ops.leaf import SINK, new_buffer, param, variable
from fulgurite.core.rewriting.rewrite import rewrite
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.graph.passes.laws import SIMPLIFY
from fulgurite.runtime.host.evaluate import evaluate
from tests.threads import together


def x(i: int = 0) -> Node:
    return param(i, (4,), float32)


def chain(depth: int) -> Node:
    top = x()
    for _ in range(depth):
        top = NEG(top)
    return top


# --- identity ------------------------------------------------------------------------------------


def test_equal_leaves_and_equal_inner_nodes_are_one_object() -> None:
    assert x(0) is x(0)
    assert x(0) + x(1) * 2 is x(0) + x(1) * 2


def test_nodes_that_differ_in_any_field_are_different() -> None:
    a, b = x(0), x(1)
    assert a + b is not a * b  # op
    assert constant(1, float32) is not constant(1, int32)  # dtype
    assert a + b is not b + a  # order of sources
    assert a is not b  # arg
    assert make(ADD, float32, (a, b)) is not make(ADD, float32, (a, b), None, "t")  # tag


def test_two_new_buffers_of_equal_size_are_different_nodes() -> None:
    assert new_buffer((3,), float32) is not new_buffer((3,), float32)


def test_ten_threads_at_a_barrier_build_one_graph_and_get_one_object_100_times_over() -> None:
    for number in range(100):
        made = together(10, partial(small_graph, number))
        assert len({id(top) for top in made}) == 1


def small_graph(number: int, thread: int) -> Node:
    a, b = x(number), x(number + 1)
    return EXP((a + b) * constant(number, float32, (4,))) - a


def test_signed_zeros_are_different_constants() -> None:
    assert constant(0.0, float32) is not constant(-0.0, float32)
    assert constant(0.0, float64) is constant(0.0, float64)


def test_one_true_and_one_point_zero_stay_apart() -> None:
    made = {constant(1, int32), constant(True, bool_), constant(1.0, float32), constant(1, int64)}
    assert len(made) == 4


def test_nan_payloads_stay_apart_and_the_same_bits_are_one_object() -> None:
    quiet_nan, other = 0x7FC00000, 0x7FC00001
    assert constant_bits(quiet_nan, float32) is constant_bits(quiet_nan, float32)
    assert constant_bits(quiet_nan, float32) is not constant_bits(other, float32)
    assert constant(float("nan"), float32) is constant(np.float32("nan").item(), float32)


def test_equal_numbers_of_different_dtypes_stay_apart() -> None:
    assert constant(2.5, float32) is not constant(2.5, float16)
    assert constant(2.5, bfloat16) is not constant(2.5, float16)


def test_constants_are_committed_to_their_grid() -> None:
    assert constant(1e300, bfloat16).value == float("inf")
    assert constant(0.1, float32) is constant(np.float32(0.1).item(), float32)
    assert constant(0.1, float32) is not constant(0.1, float64)


def test_differently_tagged_sources_do_not_collide() -> None:
    plain, tagged = make(NEG, float32, (x(),)), make(NEG, float32, (x(),), None, 1)
    assert EXP(plain) is not EXP(tagged)


def test_a_child_is_keyed_by_identity_so_no_hash_collision_can_merge_two_graphs() -> None:
    class Clash:
        """An argument whose hash always collides."""

        def __hash__(self) -> int:
            return 7

    one, two = Clash(), Clash()
    a, b = make(NEG, float32, (x(),), one), make(NEG, float32, (x(),), two)
    assert a is not b
    assert EXP(a) is not EXP(b)
    assert make(NEG, float32, (x(),), one) is a


def test_ids_grow_and_are_never_used_again() -> None:
    first = EXP(x(901))
    seen = first.id
    del first
    assert EXP(x(901)).id > seen


def test_equal_local_variables_hit() -> None:
    assert variable("n", 0, 9) is variable("n", 0, 9)
    assert variable("n", 0, 9) is not variable("n", 0, 8)


# --- lifetime ------------------------------------------------------------------------------------


def test_dropping_the_last_reference_frees_the_node_and_its_entry_without_the_collector(
    quiet: None,
) -> None:
    before = node.live_count()
    top = EXP(x(902) + x(903))
    ref = weakref.ref(top)
    assert top.shape == (4,) and top.slice  # lazy properties must not keep it alive
    assert node.live_count() == before + 4
    del top
    assert ref() is None
    assert node.live_count() == before


def test_no_dead_entries_are_left_behind(quiet: None) -> None:
    before = node.live_count()
    for i in range(1000):
        EXP(x(i) * 3)
    assert node.live_count() == before and node.gc_dead_refs() == 0


@pytest.mark.skipif(EXTENSION is not None, reason="the extension has no entries but the nodes")
def test_gc_dead_refs_drops_entries_whose_node_is_gone() -> None:
    key = (NEG, float32, (x(904),), "planted", None)
    entry = node._Entry(NEG(x(905)))  # a reference without a callback: nobody removes it
    entry.key = key
    node._live[key] = entry
    assert node.gc_dead_refs() == 1
    assert key not in node._live


def test_live_ids_name_what_is_alive() -> None:
    top = EXP(x(906))
    number = top.id
    assert number in node.live_ids()
    del top
    assert number not in node.live_ids()


def test_a_200_000_deep_chain_builds_keys_rewrites_prints_and_frees_without_recursion() -> None:
    gc.collect()
    before = node.live_count()
    top = chain(200_000)
    assert top.shape == (4,)
    assert top.device == "reference"
    assert len(normalize([top]).structure) == 200_002
    assert len(top.slice) == 200_000
    assert rewrite(top, SIMPLIFY) is x()  # an even number of minus signs
    assert substitute(top, {x(): x(1)}) is not top
    del top
    gc.collect()
    assert node.live_count() <= before + 2


def test_bounds_of_a_deep_chain_need_no_recursion() -> None:
    top = constant(1, int64)
    for _ in range(50_000):
        top = ADD(top, constant(1, int64))
    assert top.bounds == (50_001, 50_001)


# --- lazy properties -----------------------------------------------------------------------------


def test_lazy_properties_are_computed_once() -> None:
    top = MUL(constant(3, int32), constant(4, int32))
    assert top.bounds is top.bounds
    assert top.slice is top.slice


def test_sound_bounds_give_way_where_arithmetic_may_wrap_and_likely_ones_do_not() -> None:
    n = variable("n", 0, 200, dtype=uint8)
    doubled = n + n
    assert doubled.bounds == (0, 255)
    assert doubled.likely_bounds == (0, 255)
    moved = variable("m", 100, 120, dtype=uint8) + variable("k", 100, 150, dtype=uint8)
    assert moved.bounds == (0, 255)
    assert moved.likely_bounds == (200, 255)


def test_floats_have_no_bounds() -> None:
    assert x().bounds is None


def test_the_slice_holds_every_source_once_and_not_the_node_itself() -> None:
    a = x()
    top = (a + a) * (a + a)
    assert list(top.slice) == [a, a + a]


def test_toposort_puts_sources_first_in_depth_first_order() -> None:
    a, b = x(0), x(1)
    left, right = EXP(a), NEG(b)
    top = left + right
    assert toposort([top]) == [a, left, b, right, top]


# --- metadata ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelName:
    name: str


def test_an_annotated_copy_is_not_interned_and_keeps_its_metadata_through_rewrites() -> None:
    plain = SINK(NEG(NEG(x())))
    root = annotate(plain, KernelName("k"))
    assert root is not plain
    assert annotate(plain, KernelName("k")) is not root
    assert SINK(NEG(NEG(x()))) is plain
    simple = rewrite(root, SIMPLIFY)
    assert simple.src == (x(),)
    assert simple.meta == KernelName("k")
    moved = substitute(root, {x(): x(1)})
    assert moved.meta == KernelName("k")


def test_nodes_refuse_to_be_pickled() -> None:
    import pickle

    with pytest.raises(TypeError, match=r"core\.text"):
        pickle.dumps(x())


def test_equal_values_with_different_identities_differentiate_apart() -> None:
    from fulgurite.core.gradient import gradient

    a, b = x(0), x(1)  # fresh leaves in the place of two equal constants
    by_a, by_b = gradient(a * b, [a, b])
    assert by_a is not None and by_b is not None
    one = np.ones(4, np.float32)
    got = evaluate([by_a, by_b], {a: one, b: one * 2})
    assert got[0].tolist() == [2.0] * 4 and got[1].tolist() == [1.0] * 4


def test_building_through_build_is_the_same_node_as_building_by_hand() -> None:
    assert build.apply(ADD, x(0), 2.0) is x(0) + constant(2.0, float32, (4,))


@pytest.mark.parametrize("gone", ["_lock", "_live"])
def test_a_node_that_outlives_its_module_is_let_go_in_silence(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SimpleNamespace(key="a key")
    with monkeypatch.context() as end:
        end.setattr(node, gone, None)  # as the interpreter does at its end
        node._forget(entry)
    assert entry.key == "a key"


def test_a_backward_slice_ends_at_nodes_whose_sources_do_not_count() -> None:
    a, b = x(0), x(1)
    assert backward_slice([(a + b) * b], lambda node: False) == {a, b, a + b, (a + b) * b}
    assert backward_slice([(a + b) * b], lambda node: node is a + b) == {b, a + b, (a + b) * b}
    assert backward_slice([], lambda node: False) == set()


def test_a_forward_slice_is_all_that_is_computed_from_some_nodes() -> None:
    a, b = x(0), x(1)
    order = toposort([(a + b) * b, NEG(b)])
    assert forward_slice(order, [a]) == {a, a + b, (a + b) * b}
    assert forward_slice(order, []) == set()


def test_a_node_that_reads_a_value_twice_is_one_reader() -> None:
    a = x(0)
    assert readers_of(toposort([a * a, NEG(a)])) == {a: [a * a, NEG(a)]}
