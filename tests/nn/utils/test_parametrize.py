"""Parameters that are computed: names, values, gradients, transforms, and the way back."""

from __future__ import annotations

import copy

import numpy as np

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError
from fulgurite.nn.utils import parametrizations, parametrize
from tests.functional.helpers import raises


class Symmetric(nn.Module):
    """A matrix made of its upper half."""

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        return x.triu() + x.triu(1).mT


class Exponential(nn.Module):
    """A positive parameter."""

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        return fg.exp(x)

    def right_inverse(self, x: fg.Tensor) -> fg.Tensor:
        return fg.log(x)


def test_a_computed_parameter_is_made_of_its_original_and_only_that_is_learned() -> None:
    layer = nn.Linear(3, 3)
    before = layer.weight.numpy()
    assert parametrize.register_parametrization(layer, "weight", Symmetric()) is layer
    assert parametrize.is_parametrized(layer) and parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias")
    np.testing.assert_array_equal(layer.parametrizations.weight.original.numpy(), before)
    np.testing.assert_array_equal(layer.weight.numpy(), np.triu(before) + np.triu(before, 1).T)
    assert [name for name, _ in layer.named_parameters()] == [
        "bias",
        "parametrizations.weight.original",
    ]
    assert isinstance(layer, nn.Linear) and "ParametrizedLinear" in repr(layer)
    layer(fg.ones((2, 3))).sum().backward()
    slope = layer.parametrizations.weight.original.grad
    assert slope is not None and slope.numpy()[2, 0] == 0 != slope.numpy()[0, 2]


def test_modules_with_computed_parameters_go_through_transforms_and_steps() -> None:
    fg.random.seed(0)
    net = nn.Sequential(nn.Linear(3, 3), parametrizations.weight_norm(nn.Linear(3, 1)))
    x, y = fg.rand(8, 3), fg.rand(8, 1)
    optimizer = fg.optim.SGD(net.parameters(), lr=0.1)

    def step() -> fg.Tensor:
        loss = fg.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    start = copy.deepcopy(net)
    plain = [float(step().numpy()) for _ in range(4)]
    net.load_state_dict(start.state_dict())
    captured = fg.jit(step)
    np.testing.assert_allclose([float(captured().numpy()) for _ in range(4)], plain, rtol=1e-6)
    assert plain[-1] < plain[0]
    slope = fg.grad(lambda net: net(x).sum())(net)
    assert slope[1].parametrizations.weight.original0.shape == (1, 1)


def test_assigning_a_value_chooses_the_original_by_the_right_inverse() -> None:
    layer = nn.Linear(2, 1)
    with fg.no_grad():
        layer.weight.assign([[1.0, 4.0]])
    parametrize.register_parametrization(layer, "weight", Exponential())
    np.testing.assert_allclose(layer.weight.numpy(), [[1, 4]], rtol=1e-6)
    layer.weight = fg.Tensor([[2.0, 3.0]])
    original = layer.parametrizations.weight.original
    np.testing.assert_allclose(original.numpy(), np.log([[2, 3]]), rtol=1e-6)
    parametrize.register_parametrization(layer, "weight", Exponential())  # one on the other
    np.testing.assert_allclose(layer.weight.numpy(), np.exp([[2, 3]]), rtol=1e-5)
    one_way = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Symmetric())
    with raises(ArgumentError, "Symmetric has no right_inverse"):
        one_way.weight = fg.ones((2, 2))


def test_a_computed_parameter_can_be_a_plain_one_again() -> None:
    layer = parametrizations.weight_norm(nn.Linear(2, 2))
    value = layer.weight.numpy()
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear and isinstance(layer.weight, nn.Parameter)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_array_equal(layer.weight.numpy(), value)
    raw = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Symmetric())
    original = raw.parametrizations.weight.original.numpy()
    parametrize.remove_parametrizations(raw, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(raw.weight.numpy(), original)


def test_what_cannot_be_computed_is_one_clear_error() -> None:
    with raises(ArgumentError, "Linear has no parameter 'weights'"):
        parametrize.register_parametrization(nn.Linear(2, 2), "weights", Symmetric())
    with raises(ArgumentError, "'bias' is not computed"):
        parametrize.remove_parametrizations(nn.Linear(2, 2), "bias")
    made = parametrizations.weight_norm(nn.Linear(2, 2))
    with raises(ArgumentError, "several originals"):
        parametrize.remove_parametrizations(made, "weight", leave_parametrized=False)
