"""What somebody holds is not computed by every plan that reads it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.runtime import donation
from fulgurite.runtime.plan import Plan
from fulgurite.runtime.sizes.shapes import STATS


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many results each plan had that ran."""
    found: list[int] = []
    run = Plan.run

    def noted(self: Plan, *args: object, **keywords: object) -> object:
        made = run(self, *args, **keywords)  # type: ignore[arg-type]
        found.append(len(made))
        return made

    monkeypatch.setattr(Plan, "run", noted)
    yield found


def some(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(1).standard_normal(shape, np.float32)).realize()


def test_labels_are_known_with_the_first_mask_that_reads_them(roots: list[int]) -> None:
    points, centres = some(200, 8), some(5, 8)
    labels = fg.argmin(((points[:, None] - centres[None]) ** 2).sum(-1), 1)
    masks = [(labels == k).numpy() for k in range(5)]
    assert labels.is_realized
    assert np.sum(masks, 0).tolist() == [1] * 200
    distances = ((points.numpy()[:, None] - centres.numpy()[None]) ** 2).sum(-1)
    assert np.argmax(masks, 0).tolist() == distances.argmin(1).tolist()
    assert len(roots) == 5, "and nothing was run for the labels themselves"


def test_a_total_is_known_with_what_is_made_of_it(roots: list[int]) -> None:
    x = some(50, 40)
    total = (x * x).sum()
    norm = (total + 1.0).sqrt() * 2.0
    norm.realize()
    assert total.is_realized
    assert roots == [2]
    assert float(norm) == pytest.approx(2 * np.sqrt(float((x.numpy() ** 2).sum()) + 1), rel=1e-6)


def test_nothing_larger_than_what_was_asked_for_is_kept(roots: list[int]) -> None:
    points = some(60, 32)
    distances = ((points[:, None] - points[None]) ** 2).sum(-1)
    spread = (distances * 0.5).sum()
    spread.realize()
    assert not distances.is_realized
    assert roots == [1]


def test_what_nobody_holds_is_not_kept(roots: list[int]) -> None:
    x = some(30, 20)
    y = x - x.mean(0) * 2.0
    y.realize()
    assert roots == [1]


def test_what_is_cheap_to_compute_again_is_not_kept(roots: list[int]) -> None:
    x = some(300, 3)
    short = x.sum(1)
    y = (short * 2.0 + 1.0).exp()
    y.realize()
    assert not short.is_realized
    assert roots == [1]


def test_what_the_roots_do_not_read_is_left_alone(roots: list[int]) -> None:
    x = some(40, 30)
    folded = x.sum(0)
    apart = fg.sqrt(folded.abs()) + some(30)
    twice = folded * 2.0
    del folded
    (twice + 1.0).realize()
    assert not apart.is_realized and not twice.is_realized
    roots.clear()
    folded = x.prod(0)
    apart = fg.exp(folded) * some(30)
    (fg.concat([folded, folded]) + 1.0).realize()
    assert folded.is_realized and not apart.is_realized
    assert roots[-1] == 2


@pytest.mark.parametrize("held", [False, True])
def test_gradients_flow_through_what_was_kept(held: bool) -> None:
    x = some(20, 10)
    w = fg.Tensor(x.numpy(), requires_grad=True)
    mean = w.mean(0) if held else None
    y = ((w - (w.mean(0) if mean is None else mean)) ** 2).sum(0)
    y.realize()
    (y.sum() + (w.mean(0) if mean is None else mean).sum()).backward()
    assert w.grad is not None
    plain = x.numpy().astype(np.float64)
    want = 2 * (plain - plain.mean(0)) + 1 / 20
    np.testing.assert_allclose(w.grad.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_loop_that_looks_at_a_part_of_what_it_carries_begins_where_it_was() -> None:
    a = some(60, 64)
    x = want = np.zeros(64, np.float32)
    carried = fg.Tensor(x).realize()
    sizes: list[int] = []
    for k in range(60):
        carried = carried * 0.9 + a[3] * (k % 2)
        want = want * np.float32(0.9) + a.numpy()[3] * np.float32(k % 2)
        before = STATS().misses
        found = float(carried[0] * 1.0)
        sizes.append(STATS().misses - before)
        np.testing.assert_allclose(found, want[0], rtol=1e-4, atol=1e-5)
        assert len(toposort([carried.node])) < 30, "the graph of the first rounds is gone"
    assert sum(sizes[10:]) == 0, "no round after the first ones is compiled"


def test_a_loop_that_looks_at_what_its_state_makes_begins_where_it_was() -> None:
    turn = some(4, 4) * 0.3
    turn.realize()
    state, want = fg.eye(4), np.eye(4)
    for k in range(40):
        gain = fg.linalg.inv(state @ state.T + fg.eye(4)) @ state
        seen = want @ want.T + np.eye(4)
        ours, theirs = gain * 2.0, np.linalg.inv(seen) @ want * 2.0
        state = turn @ state - gain + 1.0
        want = turn.numpy().astype(np.float64) @ want - theirs / 2.0 + 1.0
        np.testing.assert_allclose(float(ours[0, 0]), theirs[0, 0], rtol=1e-3, atol=1e-4)
        assert len(toposort([state.node])) < 160, f"round {k}: the graph of the first is gone"
    np.testing.assert_allclose(state.numpy(), want, rtol=1e-3, atol=1e-4)


def test_what_was_computed_twice_on_the_way_is_known(roots: list[int]) -> None:
    x = some(30, 20)
    y = fg.exp(x * 0.5) + 1.0
    first, second, third = (float((y[k] * 3.0 - 1.0).sum()) for k in range(3))
    assert y.is_realized
    assert roots == [1, 2, 1]
    want = np.exp(x.numpy() * 0.5) + 1
    for k, found in enumerate((first, second, third)):
        assert found == pytest.approx(float((want[k] * 3 - 1).sum()), rel=1e-4)


def test_what_is_larger_than_all_that_is_read_is_never_kept(roots: list[int]) -> None:
    points = some(60, 8)
    far = ((points[:, None] - points[None]) ** 2).sum(-1) + 1.0
    for k in range(4):
        float((far * (k + 1.0)).sum())
    assert not far.is_realized
    assert roots == [1] * 4


def test_nothing_is_noted_of_values_that_are_gone() -> None:
    x = some(30, 20)
    y = fg.exp(x * 0.25) + 2.0
    float((y * 3.0 - 1.0).sum())
    assert id(y.node) in donation._ONCE
    place = id(y.node)
    del y
    gc.collect()
    assert place not in donation._ONCE


def test_what_shows_an_array_of_numpy_is_read_when_it_is_asked_for() -> None:
    array = np.ones((16, 64), np.float32)
    total = fg.from_numpy(array, device="cpu").sum(1)
    made = (total * 2.0 + fg.exp(total * 0.01)) * total
    made.realize()
    array[:] = 2
    assert total.tolist() == [128] * 16
    line = np.zeros(64, np.float32)
    y = fg.from_numpy(line, device="cpu") * 3.0 + 1.0
    for k in range(5):
        line[:] = k
        assert float((y[k] * 2.0 - 1.0) * 2.0 + y[0]) == 5 * (3 * k + 1) - 2


def test_who_looks_for_nans_finds_those_of_what_was_asked_for() -> None:
    x = fg.Tensor(np.array([[1.0] * 8, [np.inf, -np.inf, *[1.0] * 6]], np.float32)).realize()
    with fg.config(check_nan=True):
        total = x.sum(1)
        known = fg.where(fg.isfinite(total), total, 0.0) * 2.0 + 1.0
        assert known.tolist() == [17, 1]
        with pytest.raises(fg.errors.NonFiniteError):
            total.realize()
        y = fg.log(x[0] - 1.0) * 2.0
        for _ in range(3):
            float(fg.where(fg.isfinite(y), y, 0.0)[1] * 2.0 + 1.0)


def test_a_parameter_in_other_order_is_not_stored(roots: list[int]) -> None:
    weight = fg.Tensor(some(20, 20).numpy(), requires_grad=True)
    turned = weight.T
    for k in range(3):
        (fg.tanh(some(8, 20) @ turned * (k + 1.0)) + 1.0).realize()
    assert not turned.is_realized
    assert roots == [1] * 3
