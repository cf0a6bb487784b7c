"""Sampling: from logits to a token, by temperature, cut-offs and penalties; a seed gives the same.

In: logits of the vocabulary (float32) and `SamplingOptions`. Out: a token and its log probability
before any of the options. All of it is float64 on the host, in an order that depends on nothing but
the logits: penalties, temperature, then top-k, min-p and top-p, then one number of the generator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError


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

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        checks = {
            "max_tokens": self.max_tokens is None or self.max_tokens >= 1,
            "temperature": self.temperature >= 0,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": self.repetition_penalty > 0,
            "presence_penalty": abs(self.presence_penalty) < 1e6,
            "frequency_penalty": abs(self.frequency_penalty) < 1e6,
            "stop": all(isinstance(text, str) and text for text in self.stop),
        }
        for name, is_right in checks.items():
            if not is_right:
                raise ArgumentError(f"{name} is {getattr(self, name)!r}", "see SamplingOptions")


class Sampler:
    """Chooses tokens of one text; it remembers which came."""

    def __init__(self, options: SamplingOptions, prompt: Sequence[int] = ()) -> None:
        self.options = options
        self.random = np.random.default_rng(options.seed)
        self.seen = set(prompt)
        self.counts: Counter[int] = Counter()

    def choose(self, logits: Array, allowed: Array | None = None) -> tuple[int, float]:
        """A token, of those allowed (a bool for each) if that is given, and its log probability."""
        o = self.options
        plain = logits.astype(np.float64)
        scores = self._penalised(plain.copy())
        if allowed is not None:
            scores[~allowed] = -np.inf
        if o.temperature == 0:
            chosen = int(scores.argmax())
        else:
            chances = _chances(scores / o.temperature)
            kept = _kept(chances, o)
            total = np.cumsum(chances[kept])
            drawn = self.random.random() * total[-1]
            place = min(int(np.searchsorted(total, drawn, side="right")), len(kept) - 1)
            chosen = int(kept[place])
        self.seen.add(chosen)
        self.counts[chosen] += 1
        top = plain.max()
        return chosen, float(plain[chosen] - top - np.log(np.exp(plain - top).sum()))

    def _penalised(self, scores: Array) -> Array:
        o = self.options
        if o.repetition_penalty != 1 and self.seen:
            came = np.fromiter(self.seen, np.int64)
            some = scores[came]
            scores[came] = np.where(
                some > 0, some / o.repetition_penalty, some * o.repetition_penalty
            )
        if o.presence_penalty or o.frequency_penalty:
            for token, count in self.counts.items():
                scores[token] -= o.presence_penalty + o.frequency_penalty * count
        for token, bias in o.logit_bias.items():
            if 0 <= token < len(scores):
                scores[token] += bias
        return scores


def _chances(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    found: Array = powers / powers.sum()
    return found


def _kept(chances: Array, o: SamplingOptions) -> Array:
    """The tokens that may be drawn, in their own order; equal ones count by their number."""
    keep = chances > 0
    if o.min_p:
        keep &= chances >= o.min_p * chances.max()
    if o.top_k or o.top_p < 1:
        order = np.argsort(-chances, kind="stable")
        if 0 < o.top_k < len(order):
            keep[order[o.top_k :]] = False
            order = order[: o.top_k]
        if o.top_p < 1:
            total = np.cumsum(chances[order])
            enough = int(np.searchsorted(total, o.top_p * total[-1], side="left")) + 1
            keep[order[enough:]] = False
    found: Array = np.nonzero(keep)[0]
    return found
