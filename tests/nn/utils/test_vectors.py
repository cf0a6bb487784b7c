"""Parameters as one line and back; norms over several tensors."""

from __future__ import annotations

import numpy as np

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, ShapeError
from fulgurite.nn.utils import get_total_norm, parameters_to_vector, vector_to_parameters
from tests.functional.helpers import raises


def test_a_line_of_parameters_and_back_loses_no_number() -> None:
    net, other = (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)) for _ in range(2))
    line = parameters_to_vector(net.parameters())
    assert line.shape == (11,)
    vector_to_parameters(line, other.parameters())
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
        assert theirs.requires_grad
    line.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_lines_that_do_not_fit_change_nothing() -> None:
    layer = nn.Linear(2, 1)
    before = layer.weight.numpy()
    with raises(ShapeError, "a vector of shape (2,) for parameters of 3 numbers"):
        vector_to_parameters(fg.ones(2), layer.parameters())
    np.testing.assert_array_equal(layer.weight.numpy(), before)
    with raises(ArgumentError, "there are no parameters"):
        parameters_to_vector([])


def test_the_total_norm_is_that_of_the_line() -> None:
    assert get_total_norm([fg.Tensor([3.0]), fg.Tensor([[4.0]])]).item() == 5.0
