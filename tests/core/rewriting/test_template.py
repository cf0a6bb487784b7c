"""A graph built once and instantiated: the nodes that building it again would give."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.core.rewriting.template import Template
from fulgurite.tensor import wrap


def formula(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
    return ((a + 1) * b.sum(axis=0) + fg.arange(3) * 2).contiguous() - a


@pytest.mark.device("first")
def test_an_instance_is_the_graph_that_building_it_gives() -> None:
    a = fg.Tensor(np.array([[-0.0, np.inf, np.nan]], np.float32))
    b = fg.ones((4, 3)).realize()
    holes = [new_buffer(x.shape, x.node.dtype, x.device) for x in (a, b)]
    template = Template.of(formula(*map(wrap, holes)).node, holes)
    found = template(a.node, b.node)
    assert len(found.origins) == 1  # this line
    assert found is formula(a, b).node
    assert np.array_equal(wrap(found).numpy(), formula(a, b).numpy(), equal_nan=True)


@pytest.mark.device("none")
def test_a_graph_without_its_holes_is_no_template() -> None:
    with pytest.raises(AssertionError, match="without"):
        Template.of(fg.arange(3).node, [fg.ones(3).node])
