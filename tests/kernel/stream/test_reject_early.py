"""Tests of kernel/stream/reject_early.py.

Nothing that streams is doubted, and what is hopeless is.
"""

from __future__ import annotations

from importlib import import_module
from unittest.mock import patch

import pytest

import fulgurite as fg
from fulgurite.core.context import context
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.transform.merge_axes import merge_axes
from tests.graph.searching import ATTENTION, INTO_PRODUCTS, ROWS, lowered, numbers
from tests.graph.unseen import UNSEEN, results, tensors

pytestmark = pytest.mark.device("none")

ONLINE = import_module("fulgurite.kernel.stream.online")
PROGRAMS = {**ATTENTION, **ROWS, **INTO_PRODUCTS, **UNSEEN}


def streams(*asked: fg.Tensor) -> bool:
    """Are tensors one pass over blocks?"""
    context().tables.pop(ONLINE.STREAMS, None)
    sink, inputs = lowered(*asked)
    return ONLINE.stream(merge_axes(lower(sink, inputs))) is not None


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_streams_without_doubts_streams_with_them(name: str) -> None:
    if name in UNSEEN:
        asked = results(name, tensors("float32"))
    elif name in ATTENTION:
        asked = [ATTENTION[name](*[numbers(i, 4, n, 16) for i, n in enumerate((70, 90, 90))])]
    else:
        asked = [(ROWS | INTO_PRODUCTS)[name](numbers(1, 60, 200))]
    with patch.object(ONLINE, "may_stream", lambda *_: True):
        want = streams(*asked)
    assert streams(*asked) is want is (name != "layer norm")  # whose results lie along the axis


def test_sums_of_weights_with_their_own_divisors_are_not_looked_into() -> None:
    a, b, v = numbers(1, 20, 90), numbers(2, 20, 90), numbers(3, 90, 8)
    weights = fg.softmax(a, axis=-1) - 0.3 * fg.softmax(b, axis=-1)
    with patch.object(ONLINE, "saturate", side_effect=AssertionError("laws were tried")):
        assert not streams(weights @ v)
