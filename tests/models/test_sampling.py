"""Sampling: cut-offs, penalties, seeds, and options that make no sense."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fulgurite.errors import ArgumentError
from fulgurite.models import Sampler, SamplingOptions

pytestmark = pytest.mark.device("none")

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.06, 0.04], np.float32))


def drawn(logits: Any = LOGITS, count: int = 400, **options: Any) -> Counter[int]:
    found: Counter[int] = Counter()
    for seed in range(count):
        sampler = Sampler(SamplingOptions(seed=seed, temperature=1.0, **options))
        found[sampler.choose(logits)[0]] += 1
    return found


def test_tokens_are_drawn_by_their_probability() -> None:
    found = drawn(count=4000)
    for token, chance in enumerate((0.5, 0.25, 0.15, 0.06, 0.04)):
        assert abs(found[token] / 4000 - chance) < 0.03


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {0, 1}), ({"top_k": 1}, {0}), ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {0, 1}), ({"top_p": 0.5}, {0}), ({"top_p": 0.9}, {0, 1, 2}),
        ({"min_p": 0.29}, {0, 1, 2}), ({"min_p": 1.0}, {0}), ({"top_k": 3, "top_p": 0.8}, {0, 1}),
        ({"logit_bias": {4: 50.0}}, {4}),
    ],
)  # fmt: skip
def test_cut_offs_keep_the_most_likely(options: dict[str, Any], kept: set[int]) -> None:
    assert set(drawn(**options)) == kept


def test_equal_tokens_are_cut_by_their_number() -> None:
    assert set(drawn(np.zeros(5, np.float32), top_k=2)) == {0, 1}


def test_penalties_make_tokens_that_came_less_likely() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    sampler = Sampler(SamplingOptions(repetition_penalty=2.0, temperature=0), [0])
    assert [sampler.choose(logits)[0] for _ in range(2)] == [1, 0]
    options = SamplingOptions(frequency_penalty=0.05, presence_penalty=0.06, temperature=0)
    sampler = Sampler(options, [0])
    assert [sampler.choose(logits)[0] for _ in range(4)] == [0, 1, 0, 0]


def test_the_log_probability_is_that_of_the_logits_alone() -> None:
    token, logprob = Sampler(SamplingOptions(temperature=0, top_k=1)).choose(LOGITS)
    assert token == 0 and abs(logprob - np.log(0.5)) < 1e-6


def test_only_what_is_allowed_is_chosen() -> None:
    allowed = np.array([False, False, False, True, True])
    assert Sampler(SamplingOptions(temperature=0)).choose(LOGITS, allowed)[0] == 3


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"min_p": 2}, {"top_k": -1},
     {"repetition_penalty": 0}, {"max_tokens": 0}, {"stop": ("",)}],
)  # fmt: skip
def test_options_that_make_no_sense_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        SamplingOptions(**wrong)
