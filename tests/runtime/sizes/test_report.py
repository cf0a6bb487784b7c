"""What `fg.explain` and `fg.why` say of sizes: fixed, varying, and the guard in the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.realize import clear_caches

pytestmark = pytest.mark.device("cpu")


@pytest.fixture(autouse=True)
def _native() -> Iterator[None]:
    clear_caches()
    with fg.config(device="cpu", tier="native"):
        yield


def gram(n: int, m: int = 16) -> Any:
    x = fg.Tensor(np.ones((n, m), np.float32)).realize()
    return fg.softmax(x @ x.transpose(0, 1), axis=-1) @ x


def test_explain_says_which_sizes_are_fixed_and_which_vary() -> None:
    assert fg.explain(gram(20)).sizes == ("fixed: axis 0 of input 0 = 20, axis 1 of input 0 = 16",)
    gram(20).realize()
    fixed, varies, first = fg.explain(gram(30)).sizes
    assert fixed == "fixed: axis 1 of input 0 = 16"
    assert varies == "varies: axis 0 of input 0 = 30 (s0)"
    assert first.startswith("each of the first 2 sizes has a plan of its own")
    for n in (30, 40):
        gram(n).realize()
    found = fg.explain(gram(50))
    assert found.cache == "hit: a plan for many sizes" and "sizes: one plan" in str(found)
    assert found.sizes[-1].startswith("one plan: for all sizes with 2 <= s0")


def test_explain_says_which_guard_made_it_compile_again() -> None:
    for n in (20, 30, 40):
        gram(n).realize()
    before = fg.explain(gram(3000)).sizes[-1]
    assert before.startswith("not the plan for 2 <= s0") and "with s0 = 3000 this fails" in before
    gram(3000).realize()
    *_, why, now = fg.explain(gram(3000)).sizes
    assert why == f"compiled again: {before}" and now.startswith("one plan: for all sizes")
    assert "is not what it was" in fg.explain(gram(30, 30)).sizes[-1]


def test_why_says_the_same() -> None:
    for n in (20, 30, 40, 3000):
        gram(n).realize()
    answers = str(fg.why().about("compiled"))
    assert "sizes: varies: axis 0 of input 0 = 3000 (s0)" in answers
    assert "with s0 = 3000 this fails: 2 <= s0" in answers


def test_sizes_that_do_not_vary_are_not_spoken_of() -> None:
    with fg.config(dynamic=False):
        assert fg.explain(gram(20)).sizes == ()
