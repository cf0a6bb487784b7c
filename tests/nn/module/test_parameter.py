"""Tests of fulgurite/nn/parameter.py."""

import copy
import pickle

import fulgurite as fg
from fulgurite import nn


def test_a_parameter_is_a_leaf_that_requires_a_gradient() -> None:
    weight = nn.Parameter([1.0, 2.0])
    (weight * weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 4.0]
    assert repr(weight).startswith("Parameter([1., 2.]")
    assert type(weight * 2) is fg.Tensor


def test_a_parameter_of_a_tensor_is_apart_from_it() -> None:
    source = fg.Tensor([1.0], requires_grad=True)
    weight = nn.Parameter(source * 2)
    weight.sum().backward()
    assert source.grad is None and weight.grad is not None
    frozen = nn.Parameter(source, requires_grad=False)
    assert not frozen.requires_grad
    assert nn.Parameter([1.0], dtype="float64").dtype is fg.float64


def test_copies_are_parameters() -> None:
    weight = nn.Parameter([1.0, 2.0])
    for other in (copy.copy(weight), copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        assert type(other) is nn.Parameter and other.requires_grad and other is not weight
        assert other.tolist() == [1.0, 2.0]
    frozen = copy.deepcopy(nn.Parameter([1.0], requires_grad=False))
    assert not frozen.requires_grad


def test_a_constant_stays_a_leaf_when_its_value_is_computed() -> None:
    weight = nn.Parameter(fg.zeros(3))
    before = weight * 2 + 1
    weight.realize()
    assert weight.requires_grad and weight.is_realized
    before.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_parameter_that_a_transform_differentiates_by_leaves_the_tape() -> None:
    layer = nn.Linear(2, 1)
    x = fg.ones((3, 2))
    value, slope = fg.value_and_grad(lambda m: (m(x) ** 2).sum())(layer)
    assert not value.requires_grad and not slope.weight.requires_grad
    assert layer.weight.requires_grad and (layer(x) ** 2).sum().requires_grad
    by_input = fg.grad(lambda x: (layer(x) ** 2).sum())(x)  # the layer is no argument
    by_input.sum().backward()
    assert layer.weight.grad is not None
