"""Strip mining of rows: values, what is stored, and where it is not legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.aot.schedule import schedule
from fulgurite.graph.ir.queries import elements

PLAIN: dict[str, Any] = {"search": False, "simplify": False, "device": "reference"}

pytestmark = pytest.mark.device("cpu")

ROWS, DEPTH, CLASSES = 640, 272, 301
MATRIX = ROWS * CLASSES


def drawn(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).normal(size=shape) * 0.2).astype(np.float32)


def labels() -> np.ndarray[Any, Any]:
    found = np.random.default_rng(3).integers(0, CLASSES, ROWS)
    found[::7] = -100  # left out
    return found


def results(
    loss: Callable[[fg.Tensor, fg.Tensor], fg.Tensor], dtype: str = "float32", **options: Any
) -> list[fg.Tensor]:
    """A loss with the gradients of both factors of its product."""
    with fg.config(tier="native", **options):
        x = fg.Tensor(drawn(1, ROWS, DEPTH)).astype(dtype)
        w = fg.Tensor(drawn(2, DEPTH, CLASSES)).astype(dtype)
        value, slopes = fg.value_and_grad(loss, (0, 1))(x.realize(), w.realize())
    return [value, *slopes]


def entropy(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    return fg.cross_entropy((x @ w).astype("float32"), fg.Tensor(labels()))


def in_batches(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    logits = x.reshape(8, ROWS // 8, DEPTH) @ w
    return fg.cross_entropy(logits.reshape(ROWS, CLASSES), fg.Tensor(labels()))


def smoothed(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    return fg.cross_entropy(x @ w, fg.Tensor(labels()), label_smoothing=0.1)


def largest(found: list[fg.Tensor], most: int) -> int:
    """The most elements that a kernel stores."""
    with fg.config(tier="native", strip_bytes=most):
        plan = schedule(*found)
        made = [one.schedule for one in plan.plans]
        sizes = [m.slots[s] for m in made for item in m.items for s in item.writes]
    return max([elements(slot.shape) for slot in sizes if slot is not None])


@pytest.mark.parametrize("loss", [entropy, in_batches, smoothed])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strips_have_the_values_of_whole_matrices(loss: Any, dtype: str) -> None:
    most = MATRIX // 2
    with fg.config(tier="native", strip_bytes=most, poison=True, verify=True):
        got = [t.astype("float32").numpy() for t in results(loss, dtype)]
    with fg.config(**PLAIN):
        want = [t.astype("float32").numpy() for t in results(loss, dtype)]
    near = 1e-5 if dtype == "float32" else 1e-2
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=near, atol=near * np.abs(b).max())


@pytest.mark.parametrize("loss", [entropy, in_batches, smoothed])
def test_no_kernel_stores_a_number_for_each_row_and_class(loss: Any) -> None:
    assert largest(results(loss), 0) == MATRIX
    assert largest(results(loss), MATRIX) == ROWS * DEPTH  # a gradient


def test_strips_take_the_memory_of_those_before() -> None:
    rows, depth, classes, peaks = 1024, 400, 2000, []
    x, w = (fg.Tensor(np.zeros((n, depth), np.float32)) for n in (rows, classes))
    places = fg.Tensor(np.zeros(rows, np.int64))
    for most in (0, rows * classes):  # bytes: 4 strips
        with fg.config(tier="native", strip_bytes=most):
            loss = fg.value_and_grad(lambda x, w: fg.cross_entropy(x @ w.T, places), (0, 1))
            value, slopes = loss(x, w)
            peaks.append(schedule(value, *slopes).plans[0].layout.arena_bytes)
    matrix = 4 * rows * classes  # the gradient of the logits is where they were
    assert peaks[0] < 1.1 * matrix and peaks[1] < 1.5 * matrix


def test_infinite_and_missing_numbers_stay_in_their_rows() -> None:
    x = drawn(1, ROWS, DEPTH)
    x[5, 0], x[400, 1], x[639, 2] = np.inf, np.nan, -np.inf

    def run(**options: Any) -> list[Any]:
        with fg.config(**options), np.errstate(all="ignore"):
            tensor, w = fg.Tensor(x), fg.Tensor(drawn(2, DEPTH, CLASSES))
            logs = fg.log_softmax(tensor @ w, axis=-1)
            return [fg.exp(logs).astype("float16").T @ tensor, logs.max(axis=-1)]

    with np.errstate(all="ignore"):
        options = {"tier": "native", "strip_bytes": MATRIX}
        got = [t.numpy() for t in run(**options)]
        want = [t.numpy() for t in run(**PLAIN)]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)


def test_a_matrix_that_waits_for_all_of_its_rows_is_stored_whole() -> None:
    def scaled(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        logits = x @ w
        return fg.exp(logits / fg.abs(logits).max()).sum(axis=0).max()

    assert largest(results(scaled), MATRIX) == largest(results(scaled), 0)


def test_a_matrix_that_is_a_result_is_stored_whole() -> None:
    with fg.config(tier="native"):
        x, w = fg.Tensor(drawn(1, ROWS, DEPTH)), fg.Tensor(drawn(2, DEPTH, CLASSES))
        logits = x @ w
        found = [logits, fg.softmax(logits, axis=-1).sum(axis=0)]
        assert largest(found, MATRIX) == MATRIX
