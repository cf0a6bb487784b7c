"""What folds cost: more for more work, and nothing is proposed for what is none."""

from __future__ import annotations

import fulgurite as fg
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.codegen.cpu.providers import propose_stream
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.ir.kernel_kind import KernelKind
from tests.graph.searching import ATTENTION, lowered, numbers


def test_what_is_no_fold_is_not_proposed() -> None:
    x = numbers(1, 30, 40)
    for result in (x + 1, x.argmax(axis=-1), fg.sort(x, axis=-1)):
        sink, inputs = lowered(result)
        assert propose_stream(Kernel(KernelKind.FOLD, sink, inputs), SHIPPED) is None


def test_a_product_of_complex_numbers_is_no_fold() -> None:
    """It has no form in pairs, which only a pass of its kernel finds."""
    sink, inputs = lowered(numbers(1, 30, 40).cast(fg.complex64).prod(axis=-1))
    assert propose_stream(Kernel(KernelKind.FOLD, sink, inputs), SHIPPED) is None


def test_more_work_is_proposed_at_more_cost() -> None:
    costs = []
    for keys in (64, 256, 1024):
        q, k, v = numbers(1, 4, 64, 16), numbers(2, 4, keys, 16), numbers(3, 4, keys, 16)
        sink, inputs = lowered(ATTENTION["plain"](q, k, v))
        found = propose_stream(Kernel(KernelKind.FOLD, sink, inputs), SHIPPED)
        assert found is not None
        costs.append(found.cost)
    assert costs == sorted(costs) and costs[2] > 2 * costs[0]
