"""Results of folds that somebody holds are computed once, however many plans read them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.plan import Plan


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
