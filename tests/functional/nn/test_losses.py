"""Tests of fulgurite/functional/nn/losses.py against formulas; those of torch are in tests/nn."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, raises, same_bits, tensor

pytestmark = pytest.mark.device("reference")

A, B = (np.random.default_rng(seed).normal(size=(4, 3)) for seed in (0, 1))
P, Q = (1 / (1 + np.exp(-x)) for x in (A, B))
SIGN = np.where(B > 0, 1.0, -1.0)


def distance(x: Any, y: Any, p: float = 2.0) -> Any:
    return (np.abs(x - y + 1e-6) ** p).sum(-1) ** (1 / p)


def cosine(x: Any, y: Any) -> Any:
    return (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))


FORMULAS: list[tuple[Callable[..., fg.Tensor], tuple[Any, ...], Any, int]] = [
    (fg.l1_loss, (A, B), np.abs(A - B), 2),
    (fg.smooth_l1_loss, (A, B),
     np.where(np.abs(A - B) < 1, (A - B) ** 2 / 2, np.abs(A - B) - 0.5), 2),
    (fg.huber_loss, (A, B),
     np.where(np.abs(A - B) < 1, (A - B) ** 2 / 2, np.abs(A - B) - 0.5), 2),
    (fg.binary_cross_entropy, (P, Q), -(Q * np.log(P) + (1 - Q) * np.log(1 - P)), 1),
    (fg.binary_cross_entropy_with_logits, (A, Q), -(Q * np.log(P) + (1 - Q) * np.log(1 - P)), 2),
    (fg.kl_div, (np.log(P), Q), Q * (np.log(Q) - np.log(P)), 2),
    (fg.poisson_nll_loss, (A, Q), np.exp(A) - Q * A, 2),
    (fg.hinge_embedding_loss, (A, SIGN), np.where(SIGN == 1, A, np.maximum(0, 1 - A)), 1),
    (fg.soft_margin_loss, (A, SIGN), np.log1p(np.exp(-SIGN * A)), 1),
    (fg.margin_ranking_loss, (A, B, SIGN), np.maximum(0, -SIGN * (A - B)), 2),
    (fg.cosine_embedding_loss, (A, B, SIGN[:, 0]),
     np.where(SIGN[:, 0] == 1, 1 - cosine(A, B), np.maximum(0, cosine(A, B))), 2),
    (fg.triplet_margin_loss, (A, B, P),
     np.maximum(0, distance(A, B) - distance(A, P) + 1), 3),
]  # fmt: skip


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def reference_loss(x: Any, target: Any, ignore: int = -100, smoothing: float = 0.0) -> Any:
    """Loss and weight of each row of an (n, classes) problem, one by one."""
    logs = np.log(softmax(x))
    losses, counted = [], []
    for row, t in zip(logs, target, strict=True):
        keep = t != ignore
        counted.append(keep)
        plain = -row[t] if keep else 0.0
        losses.append((1 - smoothing) * plain - smoothing * row.mean() if keep else 0.0)
    return np.array(losses), np.array(counted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_cross_entropy_by_class_is_the_formula(dtype: str, smoothing: float) -> None:
    x, target = numbers(5, 3), np.array([0, 2, -100, 1, -100]).astype(dtype)
    losses, counted = reference_loss(x, target, smoothing=smoothing)
    for how, want in (
        ("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / counted.sum()),
    ):  # fmt: skip
        got = fg.cross_entropy(tensor(x), tensor(target), reduction=how, label_smoothing=smoothing)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_cross_entropy_by_probability_is_the_formula() -> None:
    x, p = numbers(5, 3), softmax(numbers(5, 3, seed=1))
    losses = -(p * np.log(softmax(x))).sum(-1)
    np.testing.assert_allclose(fg.cross_entropy(tensor(x), tensor(p)).item(), losses.mean())
    smooth = p * 0.8 + 0.2 / 3
    got = fg.cross_entropy(tensor(x), tensor(p), label_smoothing=0.2, reduction="sum")
    np.testing.assert_allclose(got.item(), -(smooth * np.log(softmax(x))).sum())


def test_cross_entropy_finds_classes_on_axis_1_or_where_it_is_told() -> None:
    x, target = numbers(2, 3, 4), np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
    rows, flat = x.transpose(0, 2, 1).reshape(8, 3), target.reshape(8)
    want = reference_loss(rows, flat)[0].mean()
    assert fg.cross_entropy(tensor(x), tensor(target)).item() == pytest.approx(want)
    last = tensor(x.transpose(0, 2, 1))
    assert fg.cross_entropy(last, tensor(target), axis=-1).item() == pytest.approx(want)
    one = fg.cross_entropy(tensor(rows[0]), fg.Tensor(0)).item()
    assert one == pytest.approx(reference_loss(rows[:1], flat[:1])[0][0])


def test_cross_entropy_ignores_what_it_is_told_to() -> None:
    x = fg.Tensor([[0.0, 0.0], [5.0, 0.0]])
    assert fg.cross_entropy(x, fg.Tensor([1, 0]), ignore_index=0).item() == pytest.approx(
        math.log(2)
    )
    assert np.isnan(fg.cross_entropy(x, fg.Tensor([-100, -100])).item())
    assert fg.cross_entropy(x, fg.Tensor([1, 1], "uint8"), reduction="sum").item() == pytest.approx(
        5.7, abs=0.01
    )


def test_mean_squares_and_one_hot_are_their_formulas() -> None:
    x, y = numbers(2, 3), numbers(3, seed=1)
    for how, want in (
        ("none", (x - y) ** 2),
        ("sum", ((x - y) ** 2).sum()),
        ("mean", ((x - y) ** 2).mean()),
    ):
        np.testing.assert_allclose(fg.mse_loss(tensor(x), tensor(y), how).numpy(), want, rtol=1e-12)
    same_bits(
        fg.one_hot(fg.Tensor([[1], [5]]), 3, "int8"), np.array([[[0, 1, 0]], [[0, 0, 0]]], np.int8)
    )
    many = fg.one_hot(tensor(np.array([3], np.int8)), 300)
    assert many.sum().item() == 1


def test_gradients_of_cross_entropy_and_mean_squares_are_slopes() -> None:
    target, p = tensor(np.array([1, -100, 0])), tensor(softmax(numbers(3, 4)))
    for smoothing in (0.0, 0.3):
        check_gradients(
            lambda x, s=smoothing: fg.cross_entropy(x * x, target, label_smoothing=s), numbers(3, 4)
        )
        check_gradients(
            lambda x, s=smoothing: fg.cross_entropy(x * x, p, label_smoothing=s), numbers(3, 4)
        )
    check_gradients(fg.mse_loss, numbers(2, 3), numbers(3, seed=1))


def test_classes_that_do_not_fit_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(ShapeError):
        fg.cross_entropy(x, fg.Tensor([0, 1, 2]))
    with raises(ShapeError):
        fg.cross_entropy(x, fg.ones(2))
    with raises(DTypeError):
        fg.cross_entropy(x, fg.ones(2, bool))
    with raises(ArgumentError):
        fg.cross_entropy(x, fg.Tensor([0, 1]), reduction="median")
    with raises(BoundsError):
        fg.cross_entropy(x, fg.Tensor([0, 3])).numpy()
    with raises(BoundsError):
        fg.cross_entropy(x, fg.Tensor([0, -1])).numpy()
    with raises(DTypeError):
        fg.one_hot(x, 3)
    with raises(ShapeError):
        fg.one_hot(fg.Tensor([1]), -1)


@pytest.mark.parametrize("place", range(len(FORMULAS)))
def test_losses_are_their_formulas_in_every_reduction(place: int) -> None:
    loss, arrays, want, count = FORMULAS[place]
    given = [tensor(a) for a in arrays]
    for reduction, reduce in (("none", np.asarray), ("sum", np.sum), ("mean", np.mean)):
        found = loss(*given, reduction=reduction).numpy()
        np.testing.assert_allclose(found, reduce(want), rtol=1e-9, atol=1e-12)
    check_gradients(lambda *some: loss(*some, *given[count:]), *arrays[:count])
    with raises(ArgumentError, "reduction is 'all'"):
        loss(*given, reduction="all")


def test_extremes_are_finite_and_have_finite_slopes() -> None:
    p, t = fg.Tensor([0.0, 1.0, 0.0, 1.0]), fg.Tensor([1.0, 0.0, 0.0, 1.0])
    assert fg.binary_cross_entropy(p, t, reduction="none").tolist() == [100.0, 100.0, 0.0, 0.0]
    slope = fg.grad(lambda p: fg.binary_cross_entropy(p, t))(p)
    assert np.isfinite(slope.numpy()).all()
    np.testing.assert_allclose(slope.numpy()[:2], [-2.5e11, 2.5e11])  # what is wrong is pushed back
    x = fg.Tensor([-1e4, 1e4])
    found = fg.binary_cross_entropy_with_logits(x, fg.Tensor([0.0, 1.0]), reduction="none")
    assert found.tolist() == [0.0, 0.0]
    assert fg.kl_div(fg.Tensor([0.0]), fg.Tensor([0.0])).item() == 0.0
    same = fg.ones((2, 3))
    slope = fg.grad(lambda x: fg.pairwise_distance(x, same, eps=0.0).sum())(same)
    assert slope.numpy().tolist() == np.zeros((2, 3)).tolist()
    zero = fg.zeros((1, 3))
    assert fg.cosine_similarity(zero, zero).tolist() == [0.0]
    assert np.isfinite(fg.grad(lambda x: fg.cosine_similarity(x, zero).sum())(zero).numpy()).all()
    half = fg.grad(lambda x: fg.pairwise_distance(x, fg.zeros((1, 2)), 0.5, 0.0).sum())
    assert half(fg.Tensor([[0.0, 4.0]])).tolist() == [[0.0, 1.0]]


def test_weights_count_places_and_classes() -> None:
    w = np.array([1.0, 2.0, 0.5])
    plain = fg.binary_cross_entropy(tensor(P), tensor(Q), reduction="none").numpy()
    found = fg.binary_cross_entropy(tensor(P), tensor(Q), tensor(w), "none").numpy()
    np.testing.assert_allclose(found, plain * w, rtol=1e-12)
    logits = fg.binary_cross_entropy_with_logits(
        tensor(A), tensor(Q), pos_weight=tensor(w), reduction="none"
    )
    want = -(w * Q * np.log(P) + (1 - Q) * np.log(1 - P))
    np.testing.assert_allclose(logits.numpy(), want, rtol=1e-9)
    labels = np.array([0, 2, 1, 0])
    logs = np.log(P)
    picked = -logs[np.arange(4), labels] * w[labels]
    found = fg.nll_loss(tensor(logs), tensor(labels), tensor(w)).numpy()
    np.testing.assert_allclose(found, picked.sum() / w[labels].sum(), rtol=1e-12)
    with raises(ShapeError, "one weight for each class"):
        fg.nll_loss(tensor(logs), tensor(labels), fg.ones(2))


def test_densities_in_full() -> None:
    var = np.array([[0.5], [2.0], [1e-9], [1.0]])
    found = fg.gaussian_nll_loss(tensor(A), tensor(B), tensor(var), full=True, reduction="none")
    v = np.maximum(var, 1e-6)
    want = 0.5 * (np.log(2 * np.pi * v) + (A - B) ** 2 / v)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-9)
    counts = np.array([0.0, 1.0, 5.0])
    rate = np.array([0.5, 1.0, 4.0])
    found = fg.poisson_nll_loss(tensor(rate), tensor(counts), False, True, 0.0, "none")
    stirling = counts * np.log(np.maximum(counts, 1)) - counts
    stirling += 0.5 * np.log(2 * np.pi * np.maximum(counts, 1))
    want = rate - counts * np.log(rate) + np.where(counts > 1, stirling, 0)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-9)


def test_margins_of_classes_and_distances_of_every_norm() -> None:
    labels = np.array([0, 2, 1, 0])
    own = A[np.arange(4), labels][:, None]
    over = np.maximum(0, 1 - own + A)
    over[np.arange(4), labels] = 0
    for power in (1, 2):
        found = fg.multi_margin_loss(tensor(A), tensor(labels), power, reduction="none").numpy()
        np.testing.assert_allclose(found, (over**power).sum(-1) / 3, rtol=1e-9)
    for p in (1.0, 2.0, 3.0):
        found = fg.pairwise_distance(tensor(A), tensor(B), p).numpy()
        np.testing.assert_allclose(found, distance(A, B, p), rtol=1e-9)
    found = fg.pairwise_distance(tensor(A), tensor(B), np.inf, keepdims=True).numpy()
    np.testing.assert_allclose(found, np.abs(A - B + 1e-6).max(-1, keepdims=True), rtol=1e-9)


def test_half_floats_are_rounded_once() -> None:
    x, y = fg.ones((2, 3), "float16"), fg.zeros((2, 3), "float16")
    for loss in (fg.l1_loss, fg.huber_loss, fg.binary_cross_entropy_with_logits):
        assert loss(x, y).dtype is fg.float16
    big = fg.full((4096,), 1.0, "float16")
    assert fg.l1_loss(big, big * 0, reduction="sum").item() == 4096.0


def test_wrong_arguments_are_errors() -> None:
    x = fg.ones((2, 3))
    with raises(ShapeError, "predictions of shape"):
        fg.l1_loss(x, fg.ones(3))
    with raises(ArgumentError, "beta is -1"):
        fg.smooth_l1_loss(x, x, beta=-1)
    with raises(ArgumentError, "delta is 0"):
        fg.huber_loss(x, x, delta=0)
    with raises(ArgumentError, "p is 3"):
        fg.multi_margin_loss(x, fg.Tensor([0, 1]), p=3)
    with raises(ShapeError, "one class for each row"):
        fg.multi_margin_loss(x, fg.Tensor([0, 1, 2]))
    with raises(BoundsError, "index -1 is outside"):
        fg.multi_margin_loss(x, fg.Tensor([0, -1])).item()
    with raises(ShapeError, "one target for each pair"):
        fg.cosine_embedding_loss(x, x, fg.ones(3))
    with raises(ShapeError, "no batch"):
        fg.kl_div(fg.Tensor(0.0), fg.Tensor(1.0), "batchmean")
    with raises(DTypeError, "classes are whole numbers, not float32"):
        fg.nll_loss(x, fg.ones(2))
    with raises(ArgumentError, "label_smoothing is 2"):
        fg.cross_entropy(x, fg.Tensor([0, 1]), label_smoothing=2)


def test_the_cosine_of_vectors_that_are_repeated_along_the_axis_is_theirs_as_repeated() -> None:
    a = np.array([[[3, 4], [1, 2]]], np.float32)
    b = np.array([[[1, 2]], [[7, 5]]], np.float32)
    x, y = np.broadcast_arrays(a, b)
    want = (x * y).sum(-2) / np.linalg.norm(x, axis=-2) / np.linalg.norm(y, axis=-2)
    found = fg.cosine_similarity(fg.Tensor(a), fg.Tensor(b), axis=-2).numpy()
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_squared_distances_refuse_targets_that_would_widen_the_predictions() -> None:
    x = fg.Tensor([[1.0], [2.0], [3.0]])
    with raises(ShapeError, "predictions of shape (3, 1) for targets of shape (3,)"):
        fg.mse_loss(x, fg.Tensor([1.0, 2.0, 3.0]))
    assert fg.mse_loss(x, 2.0).item() == fg.mse_loss(x, fg.Tensor([2.0])).item()


@pytest.mark.parametrize("far", [float("inf"), float("-inf")])
def test_losses_have_their_slope_at_infinity(far: float) -> None:
    x, y = fg.Tensor([far, 0.25]), fg.Tensor([0.0, 0.0])
    sign = 1.0 if far > 0 else -1.0
    for loss in (fg.smooth_l1_loss, fg.huber_loss):
        found = fg.grad(lambda x, f=loss: f(x, y, reduction="sum"))(x).tolist()
        assert found == [sign, 0.25]
    soft = fg.Tensor([0.5, 0.0])
    slope = fg.grad(lambda t: fg.kl_div(x, t, reduction="sum"))(soft).tolist()
    assert slope[0] == -far
