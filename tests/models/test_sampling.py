"""Sampling: cut-offs, penalties, seeds, and options that make no sense."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fulgurite.errors import ArgumentError, NonFiniteError
from fulgurite.models import Sampler, SamplingOptions
from fulgurite.models.sampling import BLOCK, _inverted, _kept, choose_rows, most_likely

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


def plainly_kept(scores: Any, o: SamplingOptions) -> tuple[set[int], set[int]]:
    """Tokens that the cut-offs leave for certain, and those that they may: by sorting all."""
    chances = np.exp((scores.astype(np.float64) - scores.max()) / max(o.temperature, 1e-30))
    order = np.argsort(-scores, kind="stable")[: o.top_k or len(scores)]
    total = np.cumsum(chances[order])
    some = []
    for slack in (-1e-5, 1e-5):  # chances are float32
        enough = np.searchsorted(total, (o.top_p + slack) * total[-1]) + 1 if o.top_p < 1 else None
        few = order[:enough]
        some.append({int(n) for n in few if chances[n] >= o.min_p * (1 - slack)})
    return some[0], some[1]


@pytest.mark.parametrize("size", [1, 5, 33, 300, 5000, 40_000])
def test_what_is_kept_is_what_sorting_all_keeps(size: int) -> None:
    chance = np.random.default_rng(size)
    for number in range(60):
        logits = (chance.standard_normal(size) * chance.choice([0.1, 3, 30])).astype(np.float32)
        if number % 3 == 0:
            logits = np.round(logits)  # many are equal
        logits[chance.random(size) < 0.1] = chance.choice([-np.inf, -0.0, -3e38])
        logits[chance.integers(size)] = 1.0
        o = SamplingOptions(
            temperature=float(chance.choice([1e-40, 0.01, 0.8, 50])), seed=number,
            top_k=int(chance.choice([0, 1, 2, 40, 2000])),
            top_p=float(chance.choice([1, 0.9, 0.1])), min_p=float(chance.choice([0, 0.05])),
        )  # fmt: skip
        with np.errstate(over="ignore"):
            places, chances = _kept(logits, logits.max(), o)
        found = np.arange(size) if places is None else places
        assert (np.diff(found) > 0).all()
        kept = {int(n) for n, c in zip(found, chances, strict=True) if c >= o.min_p}
        least, most = plainly_kept(logits, o)
        assert least <= kept <= most, (number, o)
        assert Sampler(o).choose(logits)[0] in most


def test_a_share_is_found_as_a_running_sum_finds_it() -> None:
    chance = np.random.default_rng(4)
    for size in (1, 2, 511, 512, 513, 3000):
        chances = chance.random(size).astype(np.float32)
        chances[chance.random(size) < 0.7] = 0
        chances[chance.integers(size)] = 1
        total = np.cumsum(chances, dtype=np.float64)
        for share in (0.0, 1 - 2**-53, *chance.random(50)):
            place = _inverted(chances, share)
            near = total[place] / total[-1]
            assert chances[place] > 0 and near > share - 1e-12
            assert near - chances[place] / total[-1] <= share + 1e-12


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(wrong: float) -> None:
    for temperature in (0.0, 1.0):
        logits = np.array([1.0, wrong, 2.0], np.float32)
        with pytest.raises(NonFiniteError, match="logits"):
            Sampler(SamplingOptions(temperature=temperature)).choose(logits)


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
     {"repetition_penalty": 0}, {"max_tokens": 0}, {"stop": ("",)}, {"seed": -1},
     {"temperature": float("nan")}],
)  # fmt: skip
def test_options_that_make_no_sense_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        SamplingOptions(**wrong)


@pytest.mark.parametrize("size", [1, 2, 300, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_rows_are_chosen_together_as_each_is_alone(size: int) -> None:
    random = np.random.default_rng(size)
    logits = (random.standard_normal((40, size)) * 4).astype(np.float32)
    logits[3], logits[4, : size // 2], logits[5] = 0, -np.inf, 1e30
    logits[6, ::3] = np.finfo(np.float32).tiny / 4
    heats = [0.0, 0.3, 1.0, 5.0, 1e-40]
    options = [
        SamplingOptions(temperature=heats[n % 5], seed=n, min_p=0.1 if n % 7 == 0 else 0.0)
        for n in range(40)
    ]
    alone, together = ([Sampler(o) for o in options] for _ in range(2))
    for _ in range(20):
        single = [one.choose(row) for one, row in zip(alone, logits, strict=True)]
        found = choose_rows(together, logits)
        assert [token for token, _ in found] == [token for token, _ in single]
        assert np.allclose([p for _, p in found], [p for _, p in single], rtol=1e-6, atol=1e-6)
        logits = logits[:, random.permutation(size)]


def test_a_row_that_is_not_finite_is_an_error_before_anything_is_drawn() -> None:
    samplers = [Sampler(SamplingOptions(temperature=1, seed=n)) for n in range(2)]
    logits = np.zeros((2, 8), np.float32)
    logits[1, 3] = np.nan
    with pytest.raises(NonFiniteError):
        choose_rows(samplers, logits)
    assert samplers[0].choose(logits[0]) == Sampler(SamplingOptions(temperature=1, seed=0)).choose(
        logits[0]
    )


@pytest.mark.device("none")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": "3"}, {"max_tokens": 1.5}, {"temperature": "hot"}, {"temperature": None},
        {"top_k": 1.5}, {"top_p": True}, {"stop": 5}, {"seed": 1.5}, {"ignore_eos": "yes"},
        {"logit_bias": {"a": 1.0}}, {"logit_bias": {3: None}}, {"logit_bias": [3]},
    ],
)  # fmt: skip
def test_options_of_wrong_types_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        SamplingOptions(**wrong)


@pytest.mark.parametrize("count", [1, 5, 40, 1000])
def test_the_most_likely_tokens_come_with_their_log_probabilities(count: int) -> None:
    logits = np.random.default_rng(3).normal(size=1000).astype(np.float32) * 4
    logits[7] = logits[900] = logits.max()  # of equal ones the first comes first
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    order = np.argsort(-exact, kind="stable")[:count]
    found = most_likely(logits, count)
    assert [token for token, _ in found] == order.tolist()
    assert np.allclose([logprob for _, logprob in found], exact[order], atol=1e-9)
    assert most_likely(logits, 0) == ()
    with pytest.raises(ArgumentError, match="top_logprobs"):
        SamplingOptions(top_logprobs=-1)


def test_a_bias_that_is_no_number_or_leaves_no_token_is_said() -> None:
    for bias in (float("nan"), float("inf"), 1e39):
        with pytest.raises(ArgumentError, match="logit_bias"):
            SamplingOptions(logit_bias={3: bias})
    none = SamplingOptions(temperature=0, logit_bias=dict.fromkeys(range(4), -float("inf")))
    with pytest.raises(ArgumentError, match="every token"):
        Sampler(none).choose(np.zeros(4, np.float32))
    with pytest.raises(NonFiniteError):
        Sampler(none).choose(np.full(4, -np.inf, np.float32))
