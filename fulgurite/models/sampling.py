"""Sampling: from logits to a token, by temperature, cut-offs and penalties; a seed gives the same.

In: logits of the vocabulary (float32) and `SamplingOptions`. Out: a token and its log probability
before any of the options. All of it is on the host, in an order that depends on nothing but the
logits: penalties, temperature, then top-k, min-p and top-p, then one number of the generator. Sums
are float64. Work is a few passes over the vocabulary; only tokens that may be kept are sorted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError, NonFiniteError

LEAST_TEMPERATURE = 1e-30  # less is the same
FIRST_OF_TOP_P = 64  # tokens that are tried first; eight times as many as long as they are too few
GROUP = 32  # scores whose largest one stands for them
BLOCK = 512  # chances that are summed first
MOST_BIAS = 1e6  # beyond that numbers of tokens that come are rounded away


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen; temperature 0 takes the most likely one."""

    max_tokens: int | None = 256
    temperature: float = 0.8
    top_k: int = 0  # the k most likely; 0 for all
    top_p: float = 1.0  # the most likely that have so much of the probability together
    min_p: float = 0.0  # at least so much of the most likely one's probability
    repetition_penalty: float = 1.0  # logits of tokens that came are divided by it
    presence_penalty: float = 0.0  # taken from logits of tokens that were chosen
    frequency_penalty: float = 0.0  # the same, for each time
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int = 0  # so many of the most likely tokens are told beside each

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        _check_types(self)
        object.__setattr__(self, "stop", tuple(self.stop))
        checks = {
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "1 or more"),
            "temperature": (0 <= self.temperature < math.inf, "0 or more"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0"),
            "presence_penalty": (abs(self.presence_penalty) < 1e6, "below a million"),
            "frequency_penalty": (abs(self.frequency_penalty) < 1e6, "below a million"),
            "stop": (all(isinstance(text, str) and text for text in self.stop), "no empty text"),
            "seed": (self.seed is None or self.seed >= 0, "0 or more"),
            "top_logprobs": (self.top_logprobs >= 0, "0 (none) or more"),
        }
        for name, (is_right, word) in checks.items():
            if not is_right:
                raise ArgumentError(f"{name} is {getattr(self, name)!r}", f"it must be {word}")


_WHOLE, _REAL = ("a whole number", Integral), ("a number", Real)
_TYPES: dict[str, tuple[str, Any]] = {
    "max_tokens": _WHOLE, "top_k": _WHOLE, "seed": _WHOLE, "top_logprobs": _WHOLE,
    "temperature": _REAL, "top_p": _REAL, "min_p": _REAL, "repetition_penalty": _REAL,
    "presence_penalty": _REAL, "frequency_penalty": _REAL, "stop": ("a text or several", Iterable),
    "ignore_eos": ("True or False", bool | np.bool_), "logit_bias": ("a mapping", Mapping),
}  # fmt: skip


def _check_types(options: SamplingOptions) -> None:
    """An error for an option that is not what it should be at all."""
    for name, (word, kind) in _TYPES.items():
        value = getattr(options, name)
        if value is None and name in ("max_tokens", "seed"):
            continue
        if not isinstance(value, kind) or (kind in (Integral, Real) and isinstance(value, bool)):
            raise ArgumentError(f"{name} is {value!r:.60}", f"it must be {word}")
    for token, bias in options.logit_bias.items():
        if not isinstance(token, Integral) or not isinstance(bias, Real):
            raise ArgumentError(
                f"logit_bias has {bias!r:.60} for {token!r:.60}", "give a number for a token's id"
            )
        if not bias <= MOST_BIAS:  # nor is a NaN; minus infinity forbids a token
            raise ArgumentError(
                f"logit_bias has {bias!r} for {token}", f"give {MOST_BIAS:.0e} at most"
            )


class Sampler:
    """Chooses tokens of one text; it remembers which came."""

    def __init__(self, options: SamplingOptions, prompt: Sequence[int] = ()) -> None:
        o = self.options = options
        self.seen = set(prompt)
        self.counts: Counter[int] = Counter()
        has_penalty = o.presence_penalty or o.frequency_penalty or o.repetition_penalty != 1
        # nothing but the temperature and min-p: rows of such ones are chosen from together
        self.is_plain = not (
            has_penalty or o.logit_bias or (o.temperature and (o.top_k or o.top_p < 1))
        )

    @cached_property
    def random(self) -> np.random.Generator:
        """What it draws from, made when something is drawn."""
        return np.random.default_rng(self.options.seed)

    @np.errstate(over="ignore")  # what is too small to be written as a difference has no chance
    def choose(self, logits: Array, allowed: Array | None = None) -> tuple[int, float]:
        """A token, of those allowed (a bool for each) if that is given, and its log probability."""
        scores = self._penalised(logits)
        if allowed is not None:
            scores = np.where(allowed, scores, np.float32(-np.inf))
        best = int(scores.argmax())  # which is a NaN if there is one
        if not np.isfinite(scores[best]):
            raise _not_finite(scores[best], logits)
        chosen = best if self.options.temperature == 0 else self._drawn(scores, scores[best])
        if not self.is_plain:
            self.seen.add(chosen)
            self.counts[chosen] += 1
        top = logits.max()
        total = np.exp(logits - top).sum(dtype=np.float64)
        return chosen, float(logits[chosen]) - float(top) - math.log(total)

    def _drawn(self, scores: Array, top: Any) -> int:
        """A token by its chance, of those that cut-offs leave."""
        o = self.options
        places, chances = _kept(scores, top, o)
        if o.min_p:
            chances = np.where(chances >= o.min_p, chances, 0)
        place = _inverted(chances, self.random.random())
        return place if places is None else int(places[place])

    def _penalised(self, logits: Array) -> Array:
        o, counts = self.options, self.counts
        has_penalty = bool(o.presence_penalty or o.frequency_penalty) and bool(counts)
        if (o.repetition_penalty == 1 or not self.seen) and not has_penalty and not o.logit_bias:
            return logits
        scores = logits.copy()
        if o.repetition_penalty != 1 and self.seen:
            came = np.fromiter(self.seen, np.int64)
            some = scores[came]
            scores[came] = np.where(
                some > 0, some / o.repetition_penalty, some * o.repetition_penalty
            )
        if has_penalty:
            for token, count in counts.items():
                scores[token] -= o.presence_penalty + o.frequency_penalty * count
        for token, bias in o.logit_bias.items():
            if 0 <= token < len(scores):
                scores[token] += bias
        return scores


def most_likely(logits: Array, count: int) -> tuple[tuple[int, float], ...]:
    """The most likely tokens with their log probabilities, before any of the options."""
    if count == 0:
        return ()
    places = _largest(logits, count)
    places = places[np.argsort(-logits[places], kind="stable")]
    shifted = logits.astype(np.float64) - float(logits.max())
    found = shifted[places] - math.log(np.exp(shifted).sum())
    return tuple(zip(places.tolist(), found.tolist(), strict=True))


def _not_finite(value: Any, logits: Array | None = None) -> Exception:
    if logits is not None and value == -np.inf and np.isfinite(logits.max()):
        return ArgumentError(
            "logit_bias, or what may come here, forbids every token", "leave one that may be chosen"
        )
    return NonFiniteError(
        f"the largest of a model's logits is {value}",
        "its weights may be damaged; fg.config(check_nan=True) names the line",
    )


@np.errstate(over="ignore")
def choose_rows(samplers: Sequence[Sampler], logits: Array) -> list[tuple[int, float]]:
    """What plain samplers' `choose` gives for a row each, with passes over all rows at once.

    Each number is made by the same operations as for a row alone, so a token does not depend on
    the rows around it; only the last bits of a log probability might.
    """
    top = logits.max(axis=1)
    if not np.isfinite(top).all():
        raise _not_finite(top[~np.isfinite(top)][0])  # before anything is drawn
    chosen, shifted = logits.argmax(axis=1), logits - top[:, None]
    drawing = [n for n, one in enumerate(samplers) if one.options.temperature]
    if drawing:
        options = [samplers[n].options for n in drawing]
        heat = np.array([[max(o.temperature, LEAST_TEMPERATURE)] for o in options], np.float32)
        chances = np.exp(shifted[drawing] / heat)
        if any(o.min_p for o in options):
            least = np.array([[o.min_p] for o in options], np.float32)
            chances = np.where(chances >= least, chances, np.float32(0))
        shares = [samplers[n].random.random() for n in drawing]
        chosen[drawing] = _inverted_rows(chances, np.array(shares))
    rows = np.arange(len(samplers))
    totals = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    found: list[int] = chosen.tolist()
    return list(zip(found, (shifted[rows, chosen] - totals).tolist(), strict=True))


def _inverted_rows(chances: Array, shares: Array) -> list[int]:
    """`_inverted` of each row; rows of few tokens at once."""
    if chances.shape[1] > BLOCK:
        return [_inverted(row, share) for row, share in zip(chances, shares.tolist(), strict=True)]
    total = chances.cumsum(axis=1, dtype=np.float64)
    whole = total[:, -1]
    drawn = np.minimum(shares * whole, np.nextafter(whole, 0.0))
    found: list[int] = (total <= drawn[:, None]).sum(axis=1).tolist()
    return found


def _kept(scores: Array, top: Any, o: SamplingOptions) -> tuple[Array | None, Array]:
    """Tokens that top-k and top-p leave, in their own order (None: all), and chances.

    Chances are relative to the most likely token's. Only as many tokens are put in order as are
    kept, or as have the share of top-p together.
    """

    def chances(some: Array) -> Array:
        found: Array = np.exp((some - top) / max(o.temperature, LEAST_TEMPERATURE))
        return found

    count, size = o.top_k or len(scores), len(scores)
    if o.top_p == 1 or count == 1:
        places = _largest(scores, count) if count < size else None
        return places, chances(scores if places is None else scores[places])
    share = np.inf if count < size else o.top_p * chances(scores).sum(dtype=np.float64)
    count = count if count < size else FIRST_OF_TOP_P
    while True:
        places = _largest(scores, count)
        found = chances(scores[places])
        order = np.argsort(-found, kind="stable")
        total = np.cumsum(found[order], dtype=np.float64)
        if share == np.inf or count >= size:
            share = o.top_p * total[-1]
        if total[-1] >= share:
            kept = np.sort(order[: int(np.searchsorted(total, share, side="left")) + 1])
            return places[kept], found[kept]
        count *= 8


def _largest(scores: Array, count: int) -> Array:
    """Where the largest scores are, in their own order; of equal ones the first.

    The least of as many largest ones of groups is a bound: what is below it is not sorted.
    """
    places = np.arange(len(scores))
    if count >= len(scores):
        return places
    groups = len(scores) // GROUP
    if count <= groups:  # there are enough of them
        best = scores[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
        places = np.flatnonzero(scores >= np.partition(best, -count)[-count])
    order = np.argsort(-scores[places], kind="stable")
    found: Array = np.sort(places[order[:count]])
    return found


def _inverted(chances: Array, share: float) -> int:
    """Inverse transform sampling: where the running sum of chances passes a share of it.

    Sums of blocks come first, so that a running sum is taken of one block alone.
    """
    if is_small := len(chances) <= BLOCK:
        total = chances.cumsum(dtype=np.float64)
    else:
        starts = np.arange(0, len(chances), BLOCK)
        total = np.add.reduceat(chances, starts, dtype=np.float64).cumsum()
    whole = float(total[-1])
    drawn = min(share * whole, math.nextafter(whole, 0.0))
    place = int(total.searchsorted(drawn, side="right"))
    if is_small:
        return place
    start = place * BLOCK
    some = chances[start : start + BLOCK]
    rest = drawn - (total[place - 1] if place else 0.0)
    place = int(some.cumsum(dtype=np.float64).searchsorted(rest, side="right"))
    return start + (place if place < len(some) else int(np.flatnonzero(some)[-1]))
