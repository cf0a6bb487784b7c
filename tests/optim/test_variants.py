"""Adamax, NAdam, RAdam, Adadelta and Rprop beside their formulas in NumPy; torch: test_torch.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

Array = np.ndarray[Any, Any]
Step = Callable[[Array, Array, dict[str, Any], int], Any]  # weight, gradient, kept, count -> new
RATE, B1, B2, EPS = 0.05, 0.9, 0.999, 1e-8


def adamax(p: Array, g: Array, kept: dict[str, Any], t: int) -> Any:
    kept["m"] = B1 * kept.get("m", 0) + (1 - B1) * g
    kept["u"] = np.maximum(B2 * kept.get("u", 0 * g), np.abs(g) + EPS)
    return p - RATE / (1 - B1**t) * kept["m"] / kept["u"]


def means(g: Array, kept: dict[str, Any]) -> tuple[Any, Any]:
    kept["m"] = B1 * kept.get("m", 0) + (1 - B1) * g
    kept["v"] = B2 * kept.get("v", 0) + (1 - B2) * g * g
    return kept["m"], kept["v"]


def nadam(p: Array, g: Array, kept: dict[str, Any], t: int) -> Any:
    m, v = means(g, kept)
    mu, following = (B1 * (1 - 0.5 * 0.96 ** (n * 4e-3)) for n in (t, t + 1))
    kept["product"] = kept.get("product", 1.0) * mu
    below = np.sqrt(v / (1 - B2**t)) + EPS
    own = (1 - mu) / (1 - kept["product"]) * g
    past = following / (1 - kept["product"] * following) * m
    return p - RATE * (own + past) / below


def radam(p: Array, g: Array, kept: dict[str, Any], t: int) -> Any:
    m, v = means(g, kept)
    most = 2 / (1 - B2) - 1
    length = most - 2 * t * B2**t / (1 - B2**t)
    way = m / (1 - B1**t)
    if length > 5:
        part = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        way = way * np.sqrt(part) * np.sqrt(1 - B2**t) / (np.sqrt(v) + EPS)
    return p - RATE * way


def adadelta(p: Array, g: Array, kept: dict[str, Any], t: int) -> Any:
    kept["v"] = 0.9 * kept.get("v", 0) + 0.1 * g * g
    way = g * np.sqrt(kept.get("d", 0) + 1e-6) / np.sqrt(kept["v"] + 1e-6)
    kept["d"] = 0.9 * kept.get("d", 0) + 0.1 * way * way
    return p - RATE * way


def rprop(p: Array, g: Array, kept: dict[str, Any], t: int) -> Any:
    turned = g * kept.get("prev", 0 * g)
    factor = np.where(turned > 0, 1.2, np.where(turned < 0, 0.5, 1.0))
    kept["size"] = np.clip(kept.get("size", 0 * g + RATE) * factor, 1e-6, 50)
    kept["prev"] = np.where(turned < 0, 0, g)
    return p - np.sign(kept["prev"]) * kept["size"]


STEPS: dict[str, Step] = {
    "Adamax": adamax, "NAdam": nadam, "RAdam": radam, "Adadelta": adadelta, "Rprop": rprop,
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_twelve_steps_are_the_formulas(name: str) -> None:
    random = np.random.default_rng(2)
    wanted, kept = random.normal(size=(3, 4)), dict[str, Any]()
    weight = fg.Tensor(wanted)  # in float64, so that nothing but the formula counts
    optimizer = getattr(fg.optim, name)([weight], lr=RATE)
    for step in range(1, 13):
        grad = random.normal(size=(3, 4))
        wanted = STEPS[name](wanted, grad, kept, step)
        optimizer.step([fg.Tensor(grad)])
    np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-10, atol=1e-12)
