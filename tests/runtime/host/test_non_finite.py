"""Tests of runtime/host/non_finite.py: the line that first made a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import NonFiniteError


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with fg.config(check_nan=True):
        yield


X = np.array([[1.0, 0.0, -2.0], [3.0, 4.0, 5.0]], np.float32)


def network(x: fg.Tensor) -> fg.Tensor:
    a = x * 2
    b = fg.log(a)
    return fg.softmax(b + 1).sum()


LINE = f"{__file__}:{network.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize("tier", ["auto", "native"])
@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["plain", "jit"])
def test_the_first_line_that_made_a_nan_is_named(
    wrap: Callable[[Callable[..., fg.Tensor]], Callable[..., fg.Tensor]], tier: str
) -> None:
    function = wrap(network)
    with fg.config(tier=tier):
        for _ in range(2):
            with pytest.raises(NonFiniteError, match=r"log made a NaN .*\[0, 2\], of -4") as caught:
                function(fg.Tensor(X)).realize()
            assert caught.value.where == LINE
        assert np.isfinite(function(fg.Tensor(X * X + 1)).item())


def test_infinities_that_a_constant_or_an_input_brings_are_no_finding() -> None:
    mask = fg.where(fg.Tensor(X) > 0, 0.0, -fg.inf).realize()
    assert np.isinf(mask.numpy()).any()
    assert np.isfinite(fg.softmax(fg.Tensor(X) + mask, axis=-1).numpy()).all()
    with pytest.raises(NonFiniteError, match=r"div made an infinity .* of 1.0 and 0.0"):
        (1.0 / fg.Tensor(X)).realize()


def test_an_input_with_a_nan_is_named_as_such() -> None:
    with pytest.raises(NonFiniteError, match=r"an input of float32.* holds a NaN already"):
        (fg.Tensor(np.array([np.nan, 1.0], np.float32)) + 1.0).realize()


def test_a_harmless_nan_that_is_left_out_is_no_finding() -> None:
    x = fg.Tensor(X)
    assert np.isfinite(fg.where(x > 0, fg.log(x), 0.0).numpy()).all()


def test_a_step_of_a_loop_is_named() -> None:
    rows = fg.Tensor(np.array([2.0, 3.0, 4.0], np.float32))
    with pytest.raises(NonFiniteError, match=r"log made a NaN .* of -1.0, in step 2 of a loop"):
        fg.scan(lambda c, r: (c - r, fg.log(c)), fg.Tensor(4.0), rows)[1].realize()


def test_the_branch_of_a_choice_is_named() -> None:
    x = fg.Tensor(np.array([-1.0, 2.0], np.float32))
    with pytest.raises(NonFiniteError, match="sqrt made a NaN"):
        fg.cond(x.sum() > 0, fg.sqrt, fg.exp, x).realize()


def test_a_training_step_that_fails_leaves_parameters_as_they_were() -> None:
    w = fg.nn.Parameter(fg.Tensor([1.0, 2.0]))
    sgd = fg.optim.SGD([w], 1e20)

    @fg.jit
    def step() -> fg.Tensor:
        loss = (w**8).sum()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        return loss

    step()
    before = w.numpy().copy()
    with pytest.raises(NonFiniteError, match="pow made an infinity") as caught:
        step()
    assert caught.value.where is not None and __file__ in caught.value.where
    np.testing.assert_array_equal(w.numpy(), before)


def test_halves_and_complex_numbers_are_looked_at() -> None:
    half = fg.Tensor(np.array([60000.0], np.float16))
    with pytest.raises(NonFiniteError, match="mul made an infinity in float16"):
        (half * 2.0).realize()
    with pytest.raises(
        NonFiniteError, match=r"made a NaN in complex64|made an infinity in complex"
    ):
        (fg.Tensor(np.array([1 + 1j], np.complex64)) / 0.0).realize()


def test_the_line_that_made_the_infinity_of_which_a_nan_was_made_is_named_too() -> None:
    def difference(x: fg.Tensor) -> fg.Tensor:
        large = fg.exp(x)
        return large - large * 2.0

    x = fg.Tensor(np.array([1.0, 1000.0], np.float32))
    first = difference.__code__.co_firstlineno
    for call in (difference, fg.jit(difference)):
        with pytest.raises(NonFiniteError, match=r"sub made a NaN .* of inf and inf") as caught:
            call(x).realize()
        assert f"made by exp, of 1000.0, at {__file__}:{first + 1}" in caught.value.what
        assert caught.value.where == f"{__file__}:{first + 2}"
    given = fg.Tensor(np.array([np.inf], np.float32))  # brought, not made
    with pytest.raises(NonFiniteError, match=r"of inf and inf\n"):
        (given - given.clone()).realize()
