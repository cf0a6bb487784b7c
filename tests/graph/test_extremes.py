"""What an extreme passes on goes to the element that is it, whoever computes either of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import BITCAST, CAST, POLYGAMMA
from fulgurite.runtime.realize import is_realized
from fulgurite.tensor import wrap
from tests.fuzz.programs.shaking import shaken

Loss = Callable[[fg.Tensor], fg.Tensor]
Choice = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]  # of scores and their largest
IMAGES, SCORES = (4, 3, 9, 9), (4, 9, 9)


def _averages(x: fg.Tensor) -> fg.Tensor:
    return fg.avg_pool2d(x, 3, 2)


def _around(x: fg.Tensor) -> fg.Tensor:
    return fg.max_pool2d(x, 3, 1, 1)


def _chosen(choose: Choice) -> Loss:
    def loss(x: fg.Tensor) -> fg.Tensor:
        scores = x @ x.mT * 0.3
        return choose(scores, scores.max(axis=-1, keepdims=True)).sum()

    return loss


def _where(condition: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
    return fg.where(condition, x, x * 0)


def _least(x: fg.Tensor) -> fg.Tensor:
    apart = (x[:, :, None] * x[:, None]).sum(axis=-1)
    return ((fg.sign(apart.min(axis=-1, keepdims=True) - apart) + 1) * apart).sum()


def _powers(x: fg.Tensor) -> fg.Tensor:
    sums = fg.exp(x).sum(axis=-2)
    s = sums @ sums.mT
    return ((fg.sign(s - s.max(axis=-1, keepdims=True)) + 1) * s).sum()


def _variances(x: fg.Tensor) -> fg.Tensor:
    return fg.pad(x, ((2, 2), (2, 2), (2, 2))).var(axis=-1).max(axis=-1).sum()


def _between(x: fg.Tensor) -> fg.Tensor:
    u = _averages(x)
    return (_around(u) + _around(-u)).sum()


# all of these were wrong before values that are compared had one writer
PROGRAMS: dict[str, tuple[tuple[int, ...], Loss]] = {
    "largest averages": (IMAGES, lambda x: _around(_averages(x)).sum()),
    "least averages": (IMAGES, lambda x: -_around(-_averages(x)).sum()),
    "both of averages": (IMAGES, _between),
    "largest lengths": (IMAGES, lambda x: _around(fg.sqrt(_averages(x * x) + 1e-3)).sum()),
    "averages below": (IMAGES, lambda x: (_around(_averages(x)) - _averages(x)).sum() * 2),
    "padded variances": ((4, 4, 4), _variances),
    "sign of a difference": (SCORES, _chosen(lambda s, m: (fg.sign(s - m) + 1) * s)),
    "difference not below 0": (SCORES, _chosen(lambda s, m: _where(s - m >= 0, s))),
    "distance not above 0": (SCORES, _chosen(lambda s, m: _where(fg.abs(s - m) <= 0, s))),
    "relu of a difference": (
        SCORES, _chosen(lambda s, m: fg.relu(s - m.detach()) * 1e6 + s * 0.1)),
    "whole part of a share": (SCORES, _chosen(lambda s, m: fg.trunc(s / m) * s)),
    "least products": ((3, 5, 5), _least),
    "sums of powers": (IMAGES, _powers),
}  # fmt: skip


def _gradient(loss: Loss, array: Array, jit: bool = False, **options: Any) -> Array:
    with fg.config(**options):
        slope = fg.grad(loss)
        found = (fg.jit(slope) if jit else slope)(fg.Tensor(array))
        return np.asarray(found.numpy(), np.float64)


def _check(loss: Loss, array: Array, dtype: str, jit: bool = False) -> None:
    exact = _gradient(loss, array, device="reference", search=False)
    options: dict[str, Any] = {"device": "cpu", "tier": "native", "verify": True}
    found = _gradient(loss, array.astype(dtype), jit, **options)
    assert np.abs(found - exact).max() <= 1e-3 * max(1e-2, np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_extremes_reach_the_elements_that_are_them(name: str, dtype: str) -> None:
    shape, loss = PROGRAMS[name]
    array = np.random.default_rng(0).standard_normal(shape)
    _check(loss, array, dtype)
    _check(loss, array, dtype, jit=True)


ONE_WINDOW: dict[str, tuple[tuple[int, ...], Loss]] = {
    "average": ((1, 1, 3), lambda x: fg.max_pool1d(fg.avg_pool1d(x, 3, 3), 3, padding=1).sum()),
    "of rows": ((2, 4, 3), lambda x: fg.max_pool1d(fg.avg_pool1d(x, 3, 3), 3, padding=1).sum()),
    "mean": ((2, 3, 3, 3), lambda x: _around(x.mean(axis=(2, 3), keepdims=True)).sum()),
    "share": ((1, 2, 6), lambda x: fg.max_pool1d(x / x.sum(-1, keepdims=True), 3, 3, 1).sum()),
    "convolution": (
        (1, 1, 3), lambda x: fg.max_pool1d(fg.conv1d(x, fg.ones((1, 1, 3))), 3, 3, 1).sum()),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_WINDOW)
def test_so_do_those_of_the_only_element_within_a_padding(name: str) -> None:
    shape, loss = ONE_WINDOW[name]
    array = np.random.default_rng(0).standard_normal(shape)
    exact = _gradient(loss, array, device="reference", simplify=False, fuse=False, search=False)
    with shaken(0):
        found = _gradient(loss, array, device="reference", verify=True)
    np.testing.assert_allclose(found, exact, atol=1e-6)


# --- from plan to plan ---------------------------------------------------------------------------


def _large(x: fg.Tensor, seed: int = 9) -> fg.Tensor:
    """A small number for which a plan is compiled, however small the rest of it is."""
    w = np.random.default_rng(seed).standard_normal((x.shape[-2], 400)).astype("float32")
    v = fg.Tensor(np.ones((400, 400), "float32"))
    return fg.tanh((x * x).sum(axis=-1) @ fg.Tensor(w) @ v * 1e-3).sum() * 1e-3


SUMS: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "sum": lambda x: x.sum(axis=-1),
    "running": lambda x: x.sum(axis=-1) * 0.5 + 1,
}
EXTREMES: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "largest": lambda u: u.max(axis=-1, keepdims=True),
    "least": lambda u: u.min(axis=-1, keepdims=True),
}


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_an_extreme_that_was_looked_at_is_found_again(total: str, extreme: str) -> None:
    array = np.random.default_rng(0).standard_normal((30, 9, 137)).astype("float32")
    with fg.config(device="cpu", tier="auto"):
        u = SUMS[total](x := fg.Tensor(array))
        m = EXTREMES[extreme](u)
        m.numpy()  # by another plan than what follows
        hits = (u == m).sum() + _large(x) * 0
        assert float(hits.numpy()) == 30


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_gradients_reach_an_extreme_that_was_looked_at(total: str, extreme: str) -> None:
    array = np.random.default_rng(0).standard_normal((30, 9, 137))

    def slope(dtype: str, look: bool) -> Array:
        x = fg.Tensor(array.astype(dtype), requires_grad=True)
        m = EXTREMES[extreme](SUMS[total](x))
        if look:
            m.numpy()
        (m.sum() + _large(x)).backward()
        assert x.grad is not None
        return np.asarray(x.grad.numpy())

    with fg.config(device="reference"):
        exact = slope("float64", False)
    with fg.config(device="cpu", tier="auto"):
        assert np.abs(slope("float32", True) - exact).max() <= 1e-2


def test_sums_are_kept_with_their_extreme_where_somebody_holds_them() -> None:
    x = fg.Tensor(np.random.default_rng(0).standard_normal((30, 9, 5)).astype("float32"))
    u, v = x.sum(axis=-1), x.prod(axis=-1)
    u[:, :1].max().numpy()  # a part says nothing about the rest
    (v.sum(axis=0) * 2).numpy()  # nor does a sum, whose own bits are known now
    assert not is_realized(u.entry.node) and not is_realized(v.entry.node)
    u.max(axis=-1).numpy()
    assert is_realized(u.entry.node)


# --- what the law rests on -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_elementwise_ops_have_the_same_bits_in_vectors_in_tails_and_alone(dtype: str) -> None:
    ops = [
        op for op in OPS.values()
        if op.family == "elementwise" and op.arity == 1 and "f" in op.kinds
        and op not in (CAST, BITCAST, POLYGAMMA)
    ]  # fmt: skip
    with fg.config(device="cpu", tier="native"):
        for op in ops:
            low, high = op.domain
            array = np.random.default_rng(0).uniform(low, high, (3, 67))
            x = fg.Tensor(array).cast(dtype)
            turned = fg.Tensor(array.T.copy()).cast(dtype)
            fg.realize(x, turned)
            rows, columns = wrap(op(x.entry.node)), wrap(op(turned.entry.node))
            alone, top = wrap(op(x[:, 66:].entry.node)), rows.max(axis=-1)
            made = [t.cast("float64").numpy() for t in fg.realize(top, columns, alone, rows)]
            assert np.array_equal(made[1].T, made[3]), op
            assert np.array_equal(made[2], made[3][:, 66:]), op
            assert np.array_equal(made[0], made[3].max(axis=-1)), op


# --- any program ---------------------------------------------------------------------------------

_SUMS: tuple[Callable[[fg.Tensor], fg.Tensor], ...] = (
    lambda x: fg.avg_pool2d(x, 3, 2),
    lambda x: fg.avg_pool2d(x, 2, 1),
    lambda x: fg.conv2d(x, fg.cos(fg.arange(54, dtype=x.dtype)).reshape(2, 3, 3, 3), padding=1),
    lambda x: x.var(axis=-1, keepdims=True) + x,
    lambda x: (x * x).mean(axis=1, keepdims=True),
    lambda x: x @ x.mT * 0.3,
    lambda x: fg.softmax(x, axis=-1) * 3,
    lambda x: (x - x.mean(axis=-1, keepdims=True)) / fg.sqrt(x.var(axis=-1, keepdims=True) + 0.1),
    lambda x: fg.softmax(x @ x.mT * 0.2, axis=-1) @ x,
)
_MAPS: tuple[Callable[[fg.Tensor], fg.Tensor], ...] = (
    lambda x: x, lambda x: x * 0.3 * 1.7, lambda x: fg.exp(x * 0.2), lambda x: fg.tanh(x * 0.3) / 3,
)  # fmt: skip
_ASKED: tuple[Callable[[fg.Tensor, int], fg.Tensor], ...] = (
    lambda y, a: y.max(axis=a),
    lambda y, a: y.min(axis=(2, 3)),
    lambda y, a: fg.max_pool2d(y, 3, 1, 1),
    lambda y, a: _where(y == y.max(axis=a, keepdims=True), y),
    lambda y, a: _where(y - y.max(axis=a, keepdims=True) >= 0, y),
    lambda y, a: (fg.sign(y - y.max(axis=a, keepdims=True)) + 1) * y,
    lambda y, a: y - y.max(axis=a, keepdims=True).max(axis=1, keepdims=True),
    lambda y, a: fg.maximum(y, y.max(axis=a, keepdims=True) * 0.9),
)


@pytest.mark.parametrize("seed", range(16))
def test_extremes_of_random_sums_get_their_gradients(seed: int) -> None:
    choice = random.Random(seed)
    total, change, asked = choice.choice(_SUMS), choice.choice(_MAPS), choice.choice(_ASKED)
    axis = choice.choice((2, 3))
    shape = choice.choice(((2, 3, 9, 9), (1, 3, 7, 12), (3, 3, 5, 5)))
    array = np.random.default_rng(seed).standard_normal(shape)
    _check(lambda x: asked(change(total(x)), axis).sum(), array, "float32", jit=seed % 2 == 0)
