"""Access relations: which axes read and write which digits of an address, and what they fold."""

from __future__ import annotations

import pytest

import fulgurite as fg
from fulgurite.core.node import Node
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.movement import permute, reshape
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.graph.fusion.access import Access, Digit, KernelAccess, access_of, relate
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.ir.kernel_kind import KernelKind
from tests.graph.scheduling import schedule
from tests.graph.searching import lowered, numbers

pytestmark = pytest.mark.device("none")


def _access(root: Node) -> KernelAccess:
    found = access_of(Kernel(KernelKind.REDUCE, SINK(root), 1))
    assert found is not None
    return found


def _reduced(root: Node) -> tuple[tuple[int, int], ...]:
    """The parts of the only param's address that are reduced."""
    ((read,),) = _access(root).reads
    return read.extent(read.reduced)


def test_reductions_are_followed_through_movement_to_the_digits_of_an_address() -> None:
    x = param(0, (4, 8, 1, 16), fg.float32)
    turned = permute(reshape(x, (4, 8, 16)), (2, 0, 1))
    assert _reduced(reduce_node("add", turned, (0,))) == ((1, 16),)
    assert _reduced(reduce_node("add", turned, (1, 2))) == ((16, 512),)
    assert _reduced(reduce_node("add", reshape(x, (32, 16)), (0,))) == ((16, 512),)
    assert _reduced(reduce_node("add", reshape(x, (16, 32)), (1,))) == ((1, 32),)
    assert _reduced(turned) == ()


def test_a_broadcast_axis_is_missing_and_a_window_meets_elements_twice() -> None:
    x, y = numbers(1, 6, 8), numbers(2, 6, 1)
    (item,) = schedule(*lowered((x + y).sum(axis=0))).items
    access = access_of(item.kernel)
    assert access is not None
    whole, row = sorted([r for reads in access.reads for r in reads], key=lambda r: -len(r.axes))
    assert row.axes < whole.axes and row.is_injective and whole.is_injective
    (item,) = schedule(*lowered(fg.max_pool2d(numbers(1, 1, 1, 9, 9), 3, 1))).items
    access = access_of(item.kernel)
    assert access is not None and not any(r.is_injective for reads in access.reads for r in reads)


def test_a_padded_read_is_as_long_as_what_is_there() -> None:
    x = numbers(1, 6, 8)
    (item,) = schedule(*lowered(fg.concatenate([x, numbers(2, 6, 1)], axis=1).sum(axis=1))).items
    access = access_of(item.kernel)
    assert access is not None and all(r.is_injective for reads in access.reads for r in reads)
    assert {read.digits[-1].end for reads in access.reads for read in reads} == {8, 6}


@pytest.mark.parametrize(
    ("shape", "other", "want"),
    [
        ((4, 8, 16), (4, 8, 16), [{0}, {1}, {2}]), ((4, 128), (4, 8, 16), [{0}, {1}, {1}]),
        ((4, 8, 16), (32, 16), [{0, 1}, {2}]), ((2, 3), (6,), [{0, 1}]), ((6,), (2, 3), [{0}, {0}]),
        ((1, 2, 3), (2, 1, 3), [{1}, set(), {2}]),
    ],
)  # fmt: skip
def test_axes_of_two_shapes_of_one_memory_are_related(
    shape: tuple[int, ...], other: tuple[int, ...], want: list[set[int]]
) -> None:
    """A consumer reads in one shape what the producer stored in another."""
    mine, theirs = (_stored(s) for s in (shape, other))
    found = relate(mine, theirs)
    assert [set(found.get(i, ())) for i in range(len(other))] == want


def _stored(shape: tuple[int, ...]) -> Access:
    digits, stride = [], 1
    for axis, size in reversed(list(enumerate(shape))):
        if size > 1:
            digits.append(Digit(stride, stride * size, frozenset([axis])))
        stride *= size
    return Access(tuple(reversed(digits)), frozenset([a for d in digits for a in d.axes]))


def test_factors_of_a_sum_of_products_say_which_axes_they_have() -> None:
    (item,) = schedule(*lowered(numbers(1, 3, 4, 5) @ numbers(2, 3, 5, 6))).items
    access = access_of(item.kernel)
    assert access is not None
    (reduction,) = access.reductions
    left, right = reduction.factors
    assert len(left & right) == 2 and left & right > reduction.axes  # a batch, and what is summed
