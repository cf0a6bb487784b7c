"""Tests of fulgurite/graph/ir/registry.py: all live tensors change together, and none is lost."""

import gc
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

import fulgurite.graph.ir.registry as module
from fulgurite.core import build
from fulgurite.core.dtype import float32
from fulgurite.core.node import Node
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import TAPE, watch
from fulgurite.core.ops.elementwise import EXP, NEG
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.graph.ir.registry import Entry, IdentityError, Registry
from fulgurite.runtime.host.device import HostBuffer
from tests.threads import together

pytestmark = pytest.mark.device("none")


def x() -> Node:
    return new_buffer((3,), float32)


def memory() -> HostBuffer:
    return HostBuffer(np.zeros(3, np.float32))


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry of its own, without the collector: what must go goes by counting alone."""
    gc.collect()
    gc.disable()
    yield Registry()
    gc.enable()


def test_realizing_one_tensor_updates_every_live_tensor_that_shares_its_graph(
    registry: Registry,
) -> None:
    a, b = x(), x()
    shared = EXP(a)
    one, two, alone = (registry.enter(n) for n in (shared, shared + a, NEG(a)))
    assert registry.becomes({shared: b}) == 2
    assert one.node is b
    assert two.node is b + a
    assert alone.node is NEG(a)


def test_the_argmin_diamond_sees_one_new_node_on_both_sides(registry: Registry) -> None:
    a, b = x(), x()
    negated = NEG(a)
    top = build.fold("max", negated, keepdims=True)
    both = registry.enter(build.apply(OPS["eq"], negated, build.expand(top, (3,))))
    registry.becomes({negated: b})
    left, right = both.node.src
    assert left is b
    assert right.src[0].src[0] is b


def test_one_substitution_serves_all_roots(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = substitute

    def counted(root: Node, replace: Mapping[Node, Node], walk: bool = False) -> Node:
        calls.append(len(root.src))
        return real(root, replace, walk)

    monkeypatch.setattr(module, "substitute", counted)
    shared = EXP(x())
    kept = [registry.enter(shared + x()) for _ in range(50)]
    registry.becomes({shared: x()})
    assert calls == [50]
    assert len(kept) == 50


def test_unrelated_tensors_cost_nothing(registry: Registry) -> None:
    def work(a: Node) -> int:
        before = registry.visited
        entry = registry.enter(EXP(a))
        registry.becomes({entry.node: x()})
        return registry.visited - before

    quiet = work(x())
    unrelated = [registry.enter(EXP(x())) for _ in range(10_000)]
    assert work(x()) == quiet
    assert len(unrelated) == 10_000


def test_an_entry_dies_with_its_tensor(registry: Registry) -> None:
    before = registry.entry_count()
    entry: Entry | None = registry.enter(x())
    assert entry is not None
    ident = entry.id
    assert entry in registry.entries()
    entry = None
    assert ident not in [entry.id for entry in registry.entries()]
    assert registry.entry_count() == before


def test_memory_dies_with_its_node_without_the_collector(registry: Registry) -> None:
    count = registry.buffer_count()
    buffer, storage = x(), memory()
    ref = weakref.ref(storage)
    registry.attach(buffer, storage)
    del storage
    assert registry.buffer_count() == count + 1
    del buffer
    assert ref() is None
    assert registry.buffer_count() == count


def test_memory_is_given_once(registry: Registry) -> None:
    buffer = x()
    registry.attach(buffer, memory())
    with pytest.raises(IdentityError, match="already"):
        registry.attach(buffer, memory())


def test_a_tensor_is_not_moved_to_another_device_by_a_buffer(registry: Registry) -> None:
    with pytest.raises(IdentityError, match="on cpu"):
        registry.becomes({EXP(x()): build.buffer((3,), float32, "cpu")})


def test_a_replacement_that_contains_its_key_is_taken_as_it_is_with_walk(
    registry: Registry,
) -> None:
    a = x()
    key = EXP(a)
    entry = registry.enter(key + a)
    registry.becomes({key: NEG(key)}, walk=True)
    assert entry.node is NEG(key) + a


def test_a_concurrent_change_is_substituted_again_and_not_overwritten(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = x(), x()
    key = EXP(a)
    entry = registry.enter(key + a)
    real = substitute
    raced: list[bool] = []

    def racing(root: Node, replace: Mapping[Node, Node], walk: bool = False) -> Node:
        result = real(root, replace, walk)
        if not raced:  # another thread rebinds the entry between substitution and write-back
            raced.append(registry.rebind(entry, key + a, NEG(key)))
        return result

    monkeypatch.setattr(module, "substitute", racing)
    registry.becomes({key: b})
    assert raced == [True]
    assert entry.node is NEG(b)


def test_a_tensor_built_during_the_rewrite_is_rewritten_too(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = x(), x()
    key = EXP(a)
    first = registry.enter(key + a)
    late: list[Entry] = []
    real = substitute

    def racing(root: Node, replace: Mapping[Node, Node], walk: bool = False) -> Node:
        if not late:
            late.append(registry.enter(NEG(key)))
        return real(root, replace, walk)

    monkeypatch.setattr(module, "substitute", racing)
    registry.becomes({key: b})
    assert first.node is b + a
    assert late[0].node is NEG(b)


def lose_no_update() -> None:
    registry = Registry()
    keys = [EXP(x()) for _ in range(4)]
    entry = registry.enter(keys[0] + keys[1] + keys[2] + keys[3])
    buffers = [x() for _ in keys]
    together(4, lambda i: registry.becomes({keys[i]: buffers[i]}))
    assert entry.node is buffers[0] + buffers[1] + buffers[2] + buffers[3]


def test_no_update_is_lost_when_threads_rewrite_one_tensor_100_times_over() -> None:
    for _ in range(100):
        lose_no_update()


def test_a_watched_tensor_keeps_its_expression_and_remembers_its_buffer(
    registry: Registry,
) -> None:
    leaf = watch(x(), 1)
    top = EXP(leaf)
    entry, b = registry.enter(top), x()
    registry.becomes({top: b})
    assert entry.node is top
    assert top.realized is not None and top.realized() is b
    del b
    assert top.realized() is not None  # the entry holds it
    entry.value = None
    assert top.realized() is None


def test_an_entry_that_knows_its_value_is_still_a_leaf_or_an_expression(
    registry: Registry,
) -> None:
    plain, leaf = x(), watch(x(), TAPE)
    top, b = EXP(leaf), x()
    entries = [registry.enter(node) for node in (plain, leaf, top)]
    for entry in entries:
        registry.knows(entry, entry.node, b)
    assert entries[0].node is b
    assert entries[1].node.arg == leaf.arg and entries[1].node.src == (b,)
    assert entries[2].node is top and top.realized is not None and top.realized() is b
