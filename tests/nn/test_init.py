"""Tests of fulgurite/nn/init.py: the distributions and bounds of first values."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import raises

ROOT = math.sqrt
UNIFORM: list[tuple[Callable[[], nn.Module], dict[str, float]]] = [
    (lambda: nn.Linear(16, 90), {"weight": 1 / ROOT(16), "bias": 1 / ROOT(16)}),
    (lambda: nn.Bilinear(9, 16, 20), {"weight": 1 / ROOT(9), "bias": 1 / ROOT(9)}),
    (lambda: nn.Conv2d(8, 30, 3, groups=2), {"weight": 1 / ROOT(36), "bias": 1 / ROOT(36)}),
    (lambda: nn.Conv1d(4, 60, 5), {"weight": 1 / ROOT(20), "bias": 1 / ROOT(20)}),
    (
        lambda: nn.ConvTranspose1d(30, 8, 5, groups=2),
        {"weight": 1 / ROOT(20), "bias": 1 / ROOT(20)},
    ),
    (lambda: nn.LSTM(5, 25), {"weight_ih_l0": 0.2, "weight_hh_l0": 0.2, "bias_hh_l0": 0.2}),
    (lambda: nn.GRUCell(5, 25), {"weight_ih": 0.2, "weight_hh": 0.2, "bias_ih": 0.2}),
    (
        lambda: nn.MultiheadAttention(24, 2),
        {"in_proj_weight": ROOT(6 / 96), "out_proj.weight": 1 / ROOT(24)},
    ),
]


@pytest.mark.parametrize(("make", "bounds"), UNIFORM, ids=[type(m()).__name__ for m, _ in UNIFORM])
def test_weights_are_uniform_within_the_bounds_of_torch(
    make: Callable[[], nn.Module], bounds: dict[str, float]
) -> None:
    fg.random.seed(1)
    state = make().state_dict()
    for name, bound in bounds.items():
        values = state[name].numpy().reshape(-1)
        assert np.abs(values).max() <= bound, name
        assert np.abs(values).max() > 0.8 * bound, name
        assert abs(values.mean()) < bound * 4 / ROOT(3 * values.size), name


def test_other_first_values_are_those_of_torch() -> None:
    table = nn.Embedding(400, 10, padding_idx=3).weight.numpy()
    assert (table[3] == 0).all() and abs(table.std() - 1) < 0.05 and abs(table.mean()) < 0.07
    heads = nn.MultiheadAttention(8, 2, add_bias_kv=True).state_dict()
    assert (heads["in_proj_bias"].numpy() == 0).all()
    assert (heads["out_proj.bias"].numpy() == 0).all()
    assert heads["bias_k"].shape == (1, 1, 8)
    norm = nn.BatchNorm1d(3).state_dict()
    assert [norm[n].tolist() for n in ("weight", "bias", "running_mean", "running_var")] == [
        [1.0] * 3, [0.0] * 3, [0.0] * 3, [1.0] * 3,
    ]  # fmt: skip
    assert norm["num_batches_tracked"].item() == 0 and norm["num_batches_tracked"].dtype is fg.int64
    assert nn.PReLU(2, 0.5).weight.tolist() == [0.5, 0.5]
    net = nn.Transformer(8, 2, 1, 1, 16)
    weight = net.encoder.layers[0].linear1.weight
    assert np.abs(weight.numpy()).max() <= ROOT(6 / 24)


def test_layers_are_made_in_the_dtype_and_on_the_device_asked_for() -> None:
    for layer in (
        nn.Linear(2, 3, dtype="float64", device="reference"),
        nn.Conv1d(2, 3, 1, dtype="float64", device="reference"),
        nn.BatchNorm1d(2, dtype="float64", device="reference"),
        nn.GRU(2, 3, dtype="float64", device="reference"),
        nn.MultiheadAttention(4, 2, dtype="float64", device="reference"),
        nn.Embedding(4, 2, 1, dtype="float64", device="reference"),
        nn.LayerNorm(4, dtype="float64", device="reference"),
    ):
        floats = [t for t in layer.state_dict().values() if t.dtype.is_inexact]
        assert {(t.dtype, t.device) for t in floats} == {(fg.float64, "reference")}


FILLS: list[tuple[Callable[[fg.Tensor], Any], float, float]] = [  # mean and standard deviation
    (lambda t: nn.init.uniform_(t, 1.0, 3.0), 2.0, 2 / ROOT(12)),
    (lambda t: nn.init.normal_(t, 1.0, 0.5), 1.0, 0.5),
    (lambda t: nn.init.constant_(t, 4.0), 4.0, 0.0),
    (nn.init.zeros_, 0.0, 0.0),
    (nn.init.ones_, 1.0, 0.0),
    (nn.init.xavier_uniform_, 0.0, ROOT(2 / 120)),
    (lambda t: nn.init.xavier_normal_(t, 2.0), 0.0, 2 * ROOT(2 / 120)),
    (lambda t: nn.init.kaiming_uniform_(t, ROOT(5)), 0.0, ROOT(1 / 3 / 80)),
    (lambda t: nn.init.kaiming_normal_(t, nonlinearity="relu"), 0.0, ROOT(2 / 80)),
    (lambda t: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), 0.0, ROOT(2 / 40)),
    (lambda t: nn.init.trunc_normal_(t, 0.0, 1.0, -1.0, 1.0), 0.0, 0.5396),
]


@pytest.mark.parametrize("place", range(len(FILLS)))
def test_tensors_are_filled_with_the_right_mean_and_spread(place: int) -> None:
    fill, mean, spread = FILLS[place]
    weight = nn.Parameter(fg.full((40, 80), 9.0))
    assert fill(weight) is weight and weight.requires_grad
    values = weight.numpy()
    assert abs(values.mean() - mean) <= 0.05 * max(spread, 0.0) + 1e-6
    assert abs(values.std() - spread) <= 0.05 * spread + 1e-6


def test_copying_channels_and_the_identity() -> None:
    assert nn.init.eye_(fg.zeros((2, 3))).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    x = fg.Tensor(np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32))
    layer = nn.Conv2d(2, 2, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight)
    np.testing.assert_allclose(layer(x).numpy(), x.numpy(), rtol=1e-6)


def test_what_cannot_be_filled_is_an_error() -> None:
    with raises(ShapeError, "no fans"):
        nn.init.xavier_uniform_(fg.zeros(3))
    with raises(ShapeError, "eye_"):
        nn.init.eye_(fg.zeros(3))
    with raises(ShapeError, "dirac_"):
        nn.init.dirac_(fg.zeros((3, 3)))
    with raises(ArgumentError, "no gain"):
        nn.init.calculate_gain("swish")
    with raises(ArgumentError, "mode is"):
        nn.init.kaiming_normal_(fg.zeros((2, 2)), mode="both")
    assert nn.init.calculate_gain("tanh") == 5 / 3 and nn.init.calculate_gain("conv2d") == 1.0


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (3, 2, 4)])
def test_orthogonal_fills_with_vectors_at_right_angles(shape: tuple[int, ...]) -> None:
    fg.random.seed(1)
    weight = nn.init.orthogonal_(nn.Parameter(fg.zeros(shape)), gain=2.0).numpy()
    matrix = weight.reshape(shape[0], -1)
    matrix = matrix if shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(matrix @ matrix.T, 4 * np.eye(len(matrix)), atol=1e-5)


def test_sparse_leaves_the_same_share_of_each_column() -> None:
    fg.random.seed(1)
    weight = nn.init.sparse_(nn.Parameter(fg.ones((10, 40))), 0.25, std=2.0).numpy()
    assert ((weight == 0).sum(0) == 3).all()
    assert 1.7 < weight[weight != 0].std() < 2.3
