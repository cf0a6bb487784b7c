"""Tests of fulgurite/functional/nn/ctc.py: against the sum over all alignments, one by one."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, raises, tensor

pytestmark = pytest.mark.device("reference")


def logs(*shape: int, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).normal(size=shape)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def read(path: tuple[int, ...], blank: int) -> list[int]:
    """What an alignment says: repeats are one, blanks are nothing."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


def by_hand(x: Any, labels: list[int], blank: int = 0) -> float:
    time, classes = x.shape
    total = -math.inf
    for path in itertools.product(range(classes), repeat=time):
        if read(path, blank) == labels:
            total = np.logaddexp(total, sum(x[t, label] for t, label in enumerate(path)))
    return -total


CASES = [([1], 4), ([1, 1], 4), ([1, 2], 4), ([2, 1, 2], 4), ([], 3), ([1, 1], 3), ([2, 2, 1], 4)]


@pytest.mark.parametrize(("labels", "time"), CASES)
def test_the_loss_is_the_sum_over_all_alignments(labels: list[int], time: int) -> None:
    x = logs(time, 1, 3)
    padded = np.array([[*labels, *[0] * (3 - len(labels))]], np.int32)
    found = fg.ctc_loss(tensor(x), tensor(padded), [time], [len(labels)], reduction="sum")
    np.testing.assert_allclose(found.item(), by_hand(x[:, 0], labels), rtol=1e-9)


def test_batches_have_lengths_of_their_own_and_labels_may_be_joined() -> None:
    x = logs(5, 3, 4)
    steps, counts = [5, 4, 3], [2, 3, 1]
    rows = [[1, 3], [2, 2, 1], [3]]
    rows_padded = np.zeros((3, 3), np.int32)
    for i, row in enumerate(rows):
        rows_padded[i, : len(row)] = row
    want = [by_hand(x[: steps[i], i], rows[i]) for i in range(3)]
    found = fg.ctc_loss(tensor(x), tensor(rows_padded), steps, counts, reduction="none").numpy()
    np.testing.assert_allclose(found, want, rtol=1e-9)
    joined = np.array([label for row in rows for label in row], np.int32)
    again = fg.ctc_loss(tensor(x), tensor(joined), steps, counts, reduction="none").numpy()
    np.testing.assert_allclose(again, want, rtol=1e-9)
    mean = fg.ctc_loss(tensor(x), tensor(rows_padded), fg.Tensor(steps), fg.Tensor(counts)).item()
    np.testing.assert_allclose(mean, np.mean(np.array(want) / counts), rtol=1e-9)


def test_another_blank_and_no_batch() -> None:
    x = logs(4, 3)
    found = fg.ctc_loss(tensor(x), fg.Tensor([0, 1]), [4], [2], blank=2, reduction="none")
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), by_hand(x, [0, 1], 2), rtol=1e-9)


def test_labels_that_do_not_fit_cost_infinity_or_nothing() -> None:
    x, labels = tensor(logs(2, 1, 3)), fg.Tensor([[1, 1]])  # needs a blank between
    assert fg.ctc_loss(x, labels, [2], [2]).item() == math.inf
    assert fg.ctc_loss(x, labels, [2], [2], zero_infinity=True).item() == 0.0
    slope = fg.grad(lambda x: fg.ctc_loss(x, labels, [2], [2], zero_infinity=True))(x)
    assert (slope.numpy() == 0).all()


def test_gradients_are_those_of_differences() -> None:
    check_gradients(
        lambda x: fg.ctc_loss(x, fg.Tensor([[1, 1], [2, 1]]), [4, 3], [2, 1]), logs(4, 2, 3)
    )


def test_wrong_arguments_are_errors() -> None:
    x, labels = fg.zeros((4, 2, 3)), fg.Tensor([[1], [2]])
    with raises(ShapeError, "log_probs of shape"):
        fg.ctc_loss(fg.zeros(3), labels, [1], [1])
    with raises(ArgumentError, "blank is 3"):
        fg.ctc_loss(x, labels, [4, 4], [1, 1], blank=3)
    with raises(ShapeError, "1 input_lengths for a batch of 2"):
        fg.ctc_loss(x, labels, [4], [1, 1])
    with raises(DTypeError, "target_lengths are whole numbers"):
        fg.ctc_loss(x, labels, [4, 4], [1.0, 1.0])
    with raises(DTypeError, "labels are whole numbers"):
        fg.ctc_loss(x, fg.ones((2, 1)), [4, 4], [1, 1])
    with raises(ShapeError, "they must add up"):
        fg.ctc_loss(x, fg.Tensor([1, 2, 1]), [4, 4], [1, 1])
    with raises(ShapeError, "targets of shape (1, 1)"):
        fg.ctc_loss(x, fg.Tensor([[1]]), [4, 4], [1, 1])
    with raises(ArgumentError, "reduction is 'all'"):
        fg.ctc_loss(x, labels, [4, 4], [1, 1], reduction="all")
    with raises(BoundsError, "index 9 is outside"):
        fg.ctc_loss(x, labels, [9, 4], [1, 1]).item()
    with raises(BoundsError, "index -3 is outside"):
        fg.ctc_loss(x, labels, [-3, 4], [1, 1]).item()
    with raises(BoundsError, "index 2 is outside an axis of size 2"):
        fg.ctc_loss(x, labels, [4, 4], [2, 1]).item()
    with raises(BoundsError, "index -1 is outside"):
        fg.ctc_loss(x, labels, [4, 4], [1, -1]).item()
    with raises(BoundsError, "index -1 is outside an axis of size 3"):
        fg.ctc_loss(x, fg.Tensor([[1], [-1]]), [4, 4], [1, 1]).item()


@pytest.mark.parametrize("filler", [-1, -100, 999])
def test_what_stands_beyond_the_labels_of_a_row_is_not_looked_at(filler: int) -> None:
    x = fg.Tensor(logs(5, 2, 3))
    wanted = fg.ctc_loss(x, fg.Tensor([[1, 2], [2, 1]]), [5, 5], [2, 1], reduction="none")
    labels = fg.Tensor([[1, 2], [2, filler]])
    found = fg.ctc_loss(x, labels, [5, 5], [2, 1], reduction="none")
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
