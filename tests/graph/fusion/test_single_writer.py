"""Tests of fulgurite/graph/fusion/single_writer.py: what is asked, and who may answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import float32, int32
from fulgurite.core.node import Node, constant, toposort
from fulgurite.core.ops.elementwise import CAST, EQ, LT, MAX
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.movement import expand, flip, pad, permute, shrink
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.graph.fusion import single_writer
from fulgurite.graph.fusion.check_single_writer import verify_agreement
from fulgurite.graph.fusion.single_writer import Launch, Law, Question, jumps, questions
from fulgurite.graph.ir.bit_stability import is_unstable
from fulgurite.graph.ir.cache_key import normalize, restore
from tests.graph.asking import answers, comparison
from tests.graph.scheduling import schedule
from tests.graph.searching import numbers

X = param(0, (6, 6, 8), float32)
U = reduce_node("add", X, (2,))  # unstable
M = reduce_node("max", U, (1,))
HIT = EQ(U, expand(M, U.shape))


def _asked(*tensors: fg.Tensor) -> list[Question]:
    found = normalize([t.entry.node for t in tensors])
    return questions(toposort([restore(found.structure, found.constants)])[:-1])


def _law(*roots: Node) -> Law:
    return Law(questions(toposort([SINK(*roots)])[:-1]))


Two = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]
ASKED: dict[str, tuple[Two, int, bool]] = {  # how many questions, and are elements compared?
    "relu": (lambda x, w: fg.grad(lambda x: fg.relu(x @ w).sum())(x), 0, False),
    "gelu": (lambda x, w: fg.grad(lambda x: fg.gelu(x @ w).sum())(x), 0, False),
    "softmax": (lambda x, w: fg.grad(lambda x: (fg.softmax(x @ w) ** 2).sum())(x), 0, False),
    "threshold": (lambda x, w: (x @ w > 0.5).sum(), 0, False),
    "with its mean": (lambda x, w: (x @ w > (x @ w).mean()).sum(), 0, False),
    "of each alone": (lambda x, w: (fg.tanh(x @ w) > (x @ w)).sum(), 1, False),
    "largest": (lambda x, w: (x @ w == (x @ w).max(axis=-1, keepdims=True)).sum(), 1, True),
    "turned": (lambda x, w: (x @ w == (x @ w).mT).sum(), 1, True),
    "sign": (lambda x, w: fg.sign(x @ w - (x @ w).max()), 1, True),
    "of memory": (lambda x, w: (x == x.max()).sum(), 1, True),
}


@pytest.mark.parametrize("name", ASKED)
def test_questions_compare_a_value_with_what_is_made_of_it(name: str) -> None:
    make, count, apart = ASKED[name]
    found = _asked(make(numbers(1, 6, 8), numbers(2, 8, 6)))
    assert len(found) == count
    assert any(q.apart for q in found) == apart


def test_sums_of_floats_are_unstable_and_what_rounds_nothing_is_not() -> None:
    whole = reduce_node("add", CAST(X, arg=int32), (2,))
    assert is_unstable(U) and is_unstable(reduce_node("mul", X, (0,)))
    assert not any(map(is_unstable, (X, M, HIT, whole, reduce_node("max", X, (0,)))))


def test_a_float_that_becomes_whole_jumps() -> None:
    assert jumps(CAST(X, arg=int32)) and jumps(HIT) and jumps(LT(X, X))
    assert not jumps(CAST(CAST(X, arg=int32), arg=float32)) and not jumps(MAX(X, X))


def test_one_writer_that_all_read_is_lawful() -> None:
    parts = [Launch("reduce", [U], {X}), Launch("reduce", [M], {U}), Launch("map", [HIT], {U, M})]
    assert not _law(HIT).conflicts(parts)


def test_two_kernels_that_compute_what_is_compared_are_not() -> None:
    parts = [Launch("reduce", [M], {X}), Launch("reduce", [HIT], {X, M})]
    (found,) = _law(HIT).conflicts(parts)
    assert found.question is HIT and found.value is U and found.writers == (0, 1)


def test_nor_is_one_kernel_that_computes_it_in_two_loops() -> None:
    (found,) = _law(HIT).conflicts([Launch("reduce", [HIT], {X})])
    assert found.writers == (0,)
    turned = EQ(U, permute(U, (1, 0, 2)))
    assert _law(turned).conflicts([Launch("contract", [turned], {X})])


def test_a_sum_of_the_row_that_is_asked_is_one_number_for_all_of_it() -> None:
    shares = X / expand(U, X.shape)
    hit = EQ(shares, expand(reduce_node("max", shares, (2,)), X.shape))
    assert not _law(hit).conflicts([Launch("reduce", [hit], {X})])


def test_all_who_ask_see_the_same_writer() -> None:
    count = reduce_node("add", CAST(HIT, arg=float32), (1,))
    stored = [Launch("reduce", [U], {X}), Launch("reduce", [M], {U})]
    again = [Launch("fold", [count], {X, M}), Launch("map", [HIT], {U, M})]
    assert {c.value for c in _law(HIT, count).conflicts([*stored, *again])} == {U}


def test_in_a_fold_elements_must_not_be_computed_as_another_kernel_does() -> None:
    scaled = X * constant(1.3, float32, X.shape) * constant(0.7, float32, X.shape)
    top = reduce_node("max", scaled, (2,))
    hit = EQ(scaled, expand(top, X.shape))
    for kind, lawful in (("reduce", True), ("fold", False)):
        parts = [Launch(kind, [top], {X}), Launch("map", [hit], {X, top})]
        assert (not _law(hit).conflicts(parts)) == lawful


# --- places --------------------------------------------------------------------------------------
# the law must not take for one place what lowering makes two loops of


@pytest.mark.parametrize("sides", [1, 2], ids=["in its kernel", "of what it stores"])
def test_what_the_law_sees_at_one_place_is_computed_once(sides: int) -> None:
    lawful = 0
    for seed in range(300):
        asked = comparison(seed)
        memory, _, both, answer = asked
        roots = both if sides == 2 else (answer,)
        if both[0] is both[1]:
            continue
        parts = [Launch("reduce", roots, {memory})]
        parts += [Launch("map", [answer], set(both))] if sides == 2 else []
        law = _law(answer)
        if not law.asked or law.conflicts(parts):
            continue
        lawful += 1
        first, *others = answers(asked, roots)
        for other in others:
            assert np.array_equal(first, other), f"comparison({seed}) is answered by two sums"
    assert lawful > 30  # else the law forbids too much


def test_a_sum_under_a_guard_is_another_one_than_without() -> None:
    one = reduce_node("add", param(0, (3, 8), float32), (0, 1))
    padded = pad(one, [(1, 1), (0, 0)])
    top = EQ(padded, expand(reduce_node("max", padded, (0,)), padded.shape))
    assert _law(top).conflicts([Launch("reduce", [top], {one.src[0]})])
    rows = expand(U, (6, 6, 3))  # a number for each row, looked at in a part of it
    inside = EQ(pad(rows, [(0, 0), (0, 0), (1, 0)]), expand(U, (6, 6, 4)))
    assert _law(inside).conflicts([Launch("reduce", [inside], {X})])
    kept = shrink(padded, [(1, 2), (0, 1)])  # which no guard is left of
    twice = EQ(kept, reduce_node("max", kept + one, (0,)))
    assert not _law(twice).conflicts([Launch("reduce", [twice], {one.src[0]})])


def test_a_maximum_that_is_looked_at_from_two_loops_is_two_of_them() -> None:
    top = reduce_node("max", expand(reduce_node("add", X, (2,)), (6, 6, 2)), (1,))
    last = shrink(top, [(0, 6), (0, 1), (1, 2)])
    assert _law(hit := EQ(top, expand(last, top.shape))).conflicts([Launch("reduce", [hit], {X})])


def test_values_that_one_kernel_stores_agree_if_they_are_in_the_same_loops() -> None:
    square = expand(reduce_node("add", param(0, (6, 8), float32), (1,)), (6, 6))
    memory = square.src[0].src[0]
    for other in (square * square, permute(square, (1, 0)), flip(square, (0,))):
        hit = EQ(square, other)
        parts = [Launch("reduce", [square, other], {memory}), Launch("map", [hit], {square, other})]
        assert bool(_law(hit).conflicts(parts)) == (other.op.family == "movement")
    first = shrink(U, [(0, 1), (0, 6), (0, 1)])
    hit = EQ(U, expand(first, U.shape))
    assert _law(hit).conflicts(
        [Launch("reduce", [U, first], {X}), Launch("map", [hit], {U, first})]
    )


def test_a_product_that_is_compared_with_itself_turned_ends_its_kernel() -> None:
    x, y = param(0, (6, 1, 8), float32), param(1, (1, 6, 8), float32)
    product = reduce_node("add", expand(x, (6, 6, 8)) * expand(y, (6, 6, 8)), (2,))
    made = schedule(SINK(EQ(product, permute(product, (1, 0, 2)))), 2)
    assert [item.kernel.kind for item in made.items] == ["contract", "map"]


@pytest.mark.parametrize("move", [lambda x: flip(x, (0,)), lambda x: permute(x, (1, 0, 2))])
def test_so_does_a_sum_whose_mirror_image_is_a_result_as_well(move: Callable[[Node], Node]) -> None:
    turned = move(U)
    sink = SINK(EQ(turned, U - constant(1.0, float32, U.shape)), turned)
    verify_agreement(schedule(sink, 1))


def test_every_element_equals_itself_turned() -> None:
    array = np.random.default_rng(0).standard_normal((45, 37)).astype("float32")
    with fg.config(device="cpu", tier="native", verify=True):
        product = fg.Tensor(array) @ fg.Tensor(array[::-1].copy()).mT
        assert bool(fg.diagonal(product == product.mT).all())


def test_slices_that_are_joined_again_and_again_are_seen_at_few_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # blocks of a dual path network: the places at which a value is seen doubled with each of them
    moves = 0
    moved = single_writer._moved

    def counted(*given: Any) -> Any:
        nonlocal moves
        moves += 1
        return moved(*given)

    monkeypatch.setattr(single_writer, "_moved", counted)
    value = y = numbers(1, 8, 16) @ numbers(2, 16, 16)
    for _ in range(24):
        y = fg.concat([y[:, 3:] + y[:, :13], y[:, 5:8] * 2], axis=1)
    (found,) = _asked(y > value)
    assert found.apart and moves < 100_000


def test_a_rounded_sum_that_chooses_what_is_gathered_is_a_question() -> None:
    x, w, table = numbers(1, 8, 16), numbers(2, 16, 4), numbers(3, 100)
    place = x @ w
    low = fg.floor(place)
    picked = fg.take(table, low.astype("int32") % 100) * (place - low)
    assert {q.node.op.name for q in _asked(picked) if q.chooses} >= {"floor", "cast"}
    assert not [q for q in _asked(fg.take(table, numbers(4, 8).astype("int32") % 100)) if q.chooses]
