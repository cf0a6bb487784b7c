"""Speculative decoding: a small model guesses some tokens, the large one reads them all at once.

In: a token that was chosen. Out: the large model's logits after it. The text is the one that would
come without guesses: tokens are chosen from the large model's logits alone, by the same numbers of
the generator, and a guess only decides whether these logits are there already. The small model
guesses with a copy of the sampler, so that it draws as the large one is about to.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from ..core.op import Array
from ..errors import ArgumentError
from .generate import GUESSES, Batch
from .sampling import Sampler


class Draft:
    """What a small model guesses for the text in a slot of a batch: `begin`, then `after`."""

    def __init__(self, batch: Batch, model: Any, slot: int = 0) -> None:
        if model.config.vocabulary != batch.config.vocabulary:
            raise ArgumentError(
                f"the draft has {model.config.vocabulary} tokens and the model "
                f"{batch.config.vocabulary}", "take a draft with the same tokeniser",
            )  # fmt: skip
        self.batch, self.slot, self.own = batch, slot, Batch(model)
        self.guessed = self.accepted = 0  # since it was made
        self._held: list[int] = []  # what the large model has read, of the text
        self._seen: list[int] = []  # what the small one has
        self._guesses: list[int] = []  # which the large model has read beyond the text
        self._logits: list[Array] = []  # after each of them

    def begin(self, ids: Sequence[int]) -> None:
        """The large model has read a prompt."""
        self._held, self._guesses, self._logits = list(ids), [], []

    def after(self, chosen: int, sampler: Sampler) -> Array:
        """The large model's logits after one more token."""
        if self._guesses and self._guesses[0] == chosen:
            self.accepted += 1
            self._held.append(self._guesses.pop(0))
            return self._logits.pop(0)
        self.batch.truncate(self.slot, len(self._held))
        self._held.append(chosen)
        room = self.batch.config.context - len(self._held)
        room = min(room, self.own.config.context - len(self._held))
        for batch in (self.batch, self.own):  # one token at a time where a text becomes a long one
            if len(self._held) <= batch.short:
                room = min(room, batch.short - len(self._held))
        self._guesses = self._guess(sampler, min(GUESSES, room)) if room > 0 else []
        if not self._guesses:
            return self.batch.step({self.slot: chosen})[self.slot]
        self.guessed += len(self._guesses)
        first, *rest = self.batch.verify(self.slot, [chosen, *self._guesses])
        self._logits = rest
        return first

    def _guess(self, sampler: Sampler, count: int) -> list[int]:
        """What the small model would choose next."""
        own, text = self.own, self._held
        same = 0
        for a, b in zip(text[:-1], self._seen, strict=False):
            if a != b:
                break
            same += 1
        self._seen = text[:same]  # before anything is written over: reading may be interrupted
        own.truncate(0, same)
        logits = own.prefill(0, text[same:]) if len(text) - same > 2 else None
        for token in text[same:] if logits is None else ():
            logits = own.step({0: token})[0]
        self._seen = list(text)
        copy, found = deepcopy(sampler), []
        while logits is not None:
            found.append(copy.choose(logits)[0])
            if len(found) == count:
                break
            logits = own.step({0: found[-1]})[0]
            self._seen.append(found[-1])
        return found
