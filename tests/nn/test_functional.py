"""`nn.functional` beside torch's: the same calls, by name and by torch's keywords."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from fulgurite.nn import functional as F
from tests.functional.helpers import raises
from tests.nn.calls import CALLS, MATRIX, X, ours, theirs
from tests.nn.known import FUNCTIONS, known, near

pytestmark = pytest.mark.device("reference")

KNOWN = known(FUNCTIONS)


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_the_known_values(name: str) -> None:
    near(ours(name), KNOWN[name], 2e-5)


def test_calls_and_known_values_are_of_the_same_names() -> None:
    assert list(KNOWN) == list(CALLS)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", CALLS)
def test_a_function_does_what_torch_does(name: str) -> None:
    found, wanted = ours(name).arrays, theirs(name).arrays
    near(theirs(name), KNOWN[name], 2e-5)  # so the file is not stale
    assert list(found) == list(wanted)
    for part, want in wanted.items():
        assert found[part].dtype == want.dtype
        np.testing.assert_allclose(found[part], want, rtol=1e-4, atol=5e-5, err_msg=part)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_functions_of_torch_that_are_missing_are_these() -> None:
    import torch.nn.functional as theirs

    words = ("_", "has_torch", "handle_torch", "Broadcasting", "assert_", "boolean_dispatch")
    missing = {
        name
        for name, found in vars(theirs).items()
        if callable(found) and not isinstance(found, type) and not name.startswith(words)
        if not name.endswith(("_", "_with_indices")) and not hasattr(F, name)
    }
    assert missing <= {
        "Optional", "conv_tbc", "fractional_max_pool2d", "fractional_max_pool3d", "grouped_mm",
        "linear_cross_entropy", "multi_head_attention_forward", "native_channel_shuffle",
        "scaled_grouped_mm", "scaled_mm", "upsample_bilinear", "upsample_nearest",
    }, missing  # fmt: skip


def test_batch_norm_changes_the_running_statistics_it_is_given_in_training() -> None:
    average, spread = fg.zeros(4), fg.ones(4)
    F.batch_norm(fg.Tensor(X), average, spread, training=True)
    np.testing.assert_allclose(average.numpy(), 0.1 * X.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(spread.numpy(), 0.9 + 0.1 * X.var(0, ddof=1), rtol=1e-5)


def test_gumbel_softmax_draws_by_probability_and_hard_samples_have_a_gradient() -> None:
    fg.random.seed(1)
    scores = fg.Tensor(np.log([[0.7, 0.2, 0.1]] * 4000).astype(np.float32)).requires_grad_()
    drawn = F.gumbel_softmax(scores, tau=0.5, hard=True, dim=-1)
    assert set(drawn.numpy().round(5).ravel()) <= {0.0, 1.0}
    np.testing.assert_allclose(drawn.numpy().mean(0), [0.7, 0.2, 0.1], atol=0.03)
    (drawn * fg.Tensor([1.0, 2.0, 3.0])).sum().backward()
    assert scores.grad is not None and float(np.abs(scores.grad.numpy()).sum()) > 1
    soft = F.gumbel_softmax(fg.zeros((5, 3)))
    np.testing.assert_allclose(soft.numpy().sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("place", [-1, 5, -6, 2**31 - 1])
def test_a_place_outside_a_table_is_an_error_that_names_it(place: int) -> None:
    with pytest.raises(BoundsError, match=f"index {place} is outside an axis of size 5") as caught:
        F.embedding(fg.Tensor([0, place]), fg.Tensor(MATRIX)).numpy()
    assert "from 0 to 4" in str(caught.value)
    with raises(BoundsError, f"index {place} is outside"):
        F.embedding(fg.Tensor([0, place], dtype="int64"), fg.Tensor(MATRIX)).numpy()


@pytest.mark.parametrize("place", [-1, 4])
def test_a_class_that_does_not_exist_is_an_error_that_names_it(place: int) -> None:
    with raises(BoundsError, f"index {place} is outside an axis of size 4"):
        F.cross_entropy(fg.Tensor(X), fg.Tensor([0, place, 1])).item()


@pytest.mark.parametrize(("mode", "wanted"), [("sum", 3.0), ("mean", 1.5), ("max", 2.0)])
def test_the_last_offset_ends_the_last_bag(mode: str, wanted: float) -> None:
    table = fg.Tensor([[1.0], [2.0], [9.0]])
    words, ends = fg.Tensor([0, 1, 2]), fg.Tensor([0, 0, 2])
    found = F.embedding_bag(words, table, ends, mode=mode, include_last_offset=True)
    assert found.tolist() == [[0], [wanted]]


def test_what_does_not_fit_is_one_clear_error() -> None:
    x = fg.ones((1, 2, 3))
    with raises(ArgumentError, "mode is 'mirror'"):
        F.pad(x, (1, 1), mode="mirror")
    with raises(ArgumentError, "padding (1, 1, 1)"):
        F.pad(x, (1, 1, 1))
    with raises(ShapeError, "more space than it reflects"):
        F.pad(x, (3, 0), mode="reflect")
    with raises(ShapeError, "as much space as goes around"):
        F.pad(x, (4, 0), mode="circular")
    with raises(DTypeError, "looked up by whole numbers"):
        F.embedding(x, x[0])
    with raises(ShapeError, "a table of shape"):
        F.embedding(fg.Tensor([0]), x)
    with raises(ArgumentError, "without offsets"):
        F.embedding_bag(fg.Tensor([0]), x[0])
    with raises(ArgumentError, "mode is 'product'"):
        F.embedding_bag(fg.Tensor([[0]]), x[0], mode="product")
    with raises(ArgumentError, "for the mean of places"):
        F.embedding_bag(fg.Tensor([[0]]), x[0], per_sample_weights=fg.ones((1, 1)))
    with raises(BoundsError, "index 1 is outside an axis of size 1"):
        F.embedding_bag(fg.Tensor([0, 1]), fg.ones((2, 1)), fg.Tensor([1, 2])).numpy()
    with raises(BoundsError, "index 5 is outside an axis of size 3"):
        F.embedding_bag(fg.Tensor([0, 1]), fg.ones((2, 1)), fg.Tensor([0, 5])).numpy()
    with raises(ArgumentError, "padding_idx is 2"):
        F.embedding(fg.Tensor([0]), x[0], padding_idx=2)
    with raises(ArgumentError, "do not fit a picture"):
        F.unfold(fg.ones((1, 1, 2, 2)), 3)
    with raises(ShapeError, "give (batch, channels * 4, 4)"):
        F.fold(fg.ones((1, 4, 5)), (3, 3), 2)
    with raises(ShapeError, "give what max_pool2d with return_indices=True gave"):
        F.max_unpool2d(fg.ones((1, 1, 2, 2)), fg.zeros((1, 2, 2, 2), "int64"), 2)
    with raises(ShapeError, "a grid of shape"):
        F.grid_sample(fg.ones((1, 1, 2, 2)), fg.ones((1, 2, 2, 3)))
    with raises(ShapeError, "maps of shape"):
        F.affine_grid(fg.ones((1, 3, 3)), (1, 1, 2, 2))
    with raises(ArgumentError, "tau is 0"):
        F.gumbel_softmax(x, tau=0)
