"""Text from a model: a KV cache that grows, prefill in chunks, one replay for each token, sampling.

In: a `Model` and ids of tokens. Out: tokens, one by one. A `Batch` has places (slots) for several
texts at once, which may come and go at any time; its cache has as many places as the longest needs,
in steps of `STEP`. `fg.jit` makes one plan for all its sizes, and chunks of a prompt have three
sizes only; the third request makes the plans that the first ones had no need of, so that nothing is
compiled after it, however long requests are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..errors import ArgumentError
from .decoder import Cache, Decoder
from .sampling import Sampler, SamplingOptions, most_likely

CHUNKS = (512, 128, 16)  # tokens of a prompt that are read at once; a chunk may be filled up
STEP = 256  # places by which a cache grows
GUESSES = 4  # tokens that a draft guesses at once
REQUESTS = 3  # the one that makes the plans which earlier ones had no need of
PLACES = 1  # the axis of a cache that grows


class Token(NamedTuple):
    """A token that was chosen: its id, the text that is certain now, how likely it was.

    `finish_reason` is None until the last one: "stop" (the text ended, or a stop string came),
    or "length". Text may lag behind: bytes of an unfinished letter, and what might become a stop
    string, come with a later token.
    """

    id: int
    text: str
    logprob: float
    finish_reason: str | None = None
    top: tuple[tuple[int, float], ...] = ()  # `top_logprobs` tokens, the most likely first


def _of_slots(slots: int) -> Any:
    """The function that is captured for a number of slots.

    It is closed over the number, which decides shapes: as an argument it might be another one in
    each call, and everything would be captured a second time to learn that it decides.
    """

    def run(
        decoder: Decoder,
        ids: fg.Tensor,
        places: fg.Tensor,
        last: fg.Tensor | None,
        rows: fg.Tensor | None,
        is_long: fg.Tensor | None,
        keys: list[fg.Tensor],
        values: list[fg.Tensor],
    ) -> fg.Tensor:
        """Logits after each row's last token, (batch, vocabulary), or after all of several."""
        with fg.no_grad():
            cache = Cache.of(keys, values, slots, places, rows, is_long)
            h = decoder.hidden(ids, places, cache)
            length = ids.shape[1]
            if last is not None:
                h = h[fg.arange(h.shape[0]), fg.clip(last, 0, length - 1)][:, None]
            return decoder.logits(h[:, 0] if h.shape[1] == 1 else h)

    grows = {PLACES: True}
    return fg.jit(run, dynamic={"keys": grows, "values": grows})


class Batch:
    """Several texts at once: `prefill(slot, ids)`, then `step({slot: token})` for those that go on.

    >>> batch = Batch(model, slots=4)                                # doctest: +SKIP
    >>> logits = batch.prefill(0, [1, 15043])                        # doctest: +SKIP
    >>> logits = batch.step({0: int(logits.argmax())})[0]            # doctest: +SKIP
    >>> batch.release(0)                                             # doctest: +SKIP
    """

    def __init__(self, model: Any, slots: int = 1) -> None:
        if not isinstance(slots, int) or slots < 1:
            raise ArgumentError(f"a batch of {slots!r} slots", "give 1 or more")
        self.model, self.requests = model, 0
        self.decoder: Decoder = model.decoder
        self.config, self.slots = model.config, slots
        self.lengths = [0] * slots  # tokens of each slot whose keys and values are kept
        self.capacity, self._is_growing = 0, False
        self.short: int = self.config.short_context
        self._texts: list[list[int]] = [[] for _ in range(slots)]  # their tokens, if `short`
        self._is_long = np.zeros(slots, bool)
        self._expected = [0] * slots
        self._runs: dict[int, Any] = model.runs.setdefault(slots, {})
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._grow(1)

    def admit(self, sizes: Sequence[int] = CHUNKS) -> None:
        """Count a request; one of them makes the plans that none before it had a need of."""
        self.requests += 1
        if self.requests == REQUESTS:
            Batch(self.model, self.slots).warm(sizes)  # with a cache of its own

    def prefill(self, slot: int, ids: Sequence[int]) -> Array:
        """Read tokens into a slot, after those it has; logits of what comes after the last.

        All of them are checked before the first is read.
        """
        ids, found = self._checked(ids), None
        self._fits(self._length(slot) + len(ids))
        self.expect(slot, self.lengths[slot] + len(ids))
        for chunk in self.chunks(ids):
            found = self.read(slot, chunk)
        if found is None:
            raise ArgumentError("there are no tokens to read", "give at least one")
        return found

    def expect(self, slot: int, length: int) -> None:
        """Say how long a prompt is of which chunks are read next: all of it turns as its end does.

        Without that nothing is wrong, but where a prompt becomes long (`short` tokens of a model
        with longrope) what was read of it is read again, as it is when an answer gets there.
        """
        self._length(slot)
        self._expected[slot] = length

    @staticmethod
    def chunks(ids: Sequence[int], sizes: Sequence[int] = CHUNKS) -> list[list[int]]:
        """Tokens in pieces that `read` takes at once: large ones first, none of them half empty
        but the smallest, as what fills it up costs as much as tokens do."""
        rest, found = list(ids), []
        while rest:
            size = next((n for n in sizes if len(rest) > n // 2), sizes[-1])
            found.append(rest[:size])
            rest = rest[size:]
        return found

    def read(self, slot: int, ids: Sequence[int]) -> Array:
        """Read at most a chunk of tokens into a slot; logits of what comes after the last.

        Between two chunks of one text other slots may `step`.
        """
        count = len(ids)
        size = min((n for n in CHUNKS if n >= count), default=0)
        if not 0 < count <= size:
            raise ArgumentError(f"a chunk of {count} tokens", f"give 1 to {CHUNKS[0]}")
        return self._read(slot, ids, size, np.array([count - 1], np.int32))

    def verify(self, slot: int, ids: Sequence[int]) -> list[Array]:
        """Read a token and guesses of those after it; logits of what comes after each of them."""
        if not 0 < len(ids) <= GUESSES + 1:
            raise ArgumentError(f"{len(ids)} tokens to verify", f"give 1 to {GUESSES + 1}")
        return list(self._read(slot, ids, GUESSES + 1, None)[: len(ids)])

    def _read(self, slot: int, ids: Sequence[int], size: int, last: Array | None) -> Array:
        """Read tokens, filled up to a size, into a slot; logits after the last, or after each."""
        start, count = self._length(slot), len(ids)
        ids = self._checked(ids)
        self._fits(start + count)
        self._turn(slot, start + count)
        self._grow(start + size)
        filled = np.zeros((1, size), np.int32)
        filled[0, :count] = ids
        places = np.arange(start, start + size, dtype=np.int32)[None]
        rows = None if self.slots == 1 else np.array([slot], np.int32)
        logits = self._call(size, filled, places, last, rows, self._is_long[slot : slot + 1])
        if self.short:
            self._texts[slot][start:] = ids
        self.lengths[slot] = start + count
        found: Array = logits[0]
        return found

    def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        """Append a token to each of some slots; logits of what comes after it, by slot."""
        logits = self.step_rows(tokens)
        return {slot: logits[slot] for slot in tokens}

    def step_rows(self, tokens: Mapping[int, int]) -> Array:
        """The same with the logits of all slots, of which only those of `tokens` mean anything."""
        slots, last = list(tokens), self._checked(list(tokens.values()))
        at = [self._length(slot) for slot in slots]
        longest = max(at, default=0)
        if longest >= self.config.context:
            raise ArgumentError(f"slot {slots[at.index(longest)]} has the whole context",
                                "release it")  # fmt: skip
        for slot, length in zip(slots, at, strict=True):
            self._turn(slot, length + 1)
        self._grow(longest + 1)
        ids = np.zeros((self.slots, 1), np.int32)
        places = np.full((self.slots, 1), self.capacity - 1, np.int32)  # which nobody reads
        ids[slots, 0], places[slots, 0] = last, at
        logits = self._call(1, ids, places, None, None, self._is_long)
        for slot, token in zip(slots, last, strict=True):
            if self.short:
                self._texts[slot][self.lengths[slot] :] = [token]
            self.lengths[slot] += 1
        return logits

    def _turn(self, slot: int, length: int) -> None:
        """Read a slot again that is about to be longer than the original context, or no longer is:
        with longrope all of a text turns by the same factors."""
        is_long = bool(self.short) and max(length, self._expected[slot]) > self.short
        if is_long == self._is_long[slot]:
            return
        ids = self._texts[slot][: self.lengths[slot]]
        self._expected[slot] = max(length, self._expected[slot])
        self._forget(slot)
        self._is_long[slot] = is_long
        for chunk in self.chunks(ids, CHUNKS[1:]):
            self.read(slot, chunk)

    def _forget(self, slot: int, length: int = 0) -> None:
        self.lengths[slot] = length
        del self._texts[slot][length:]

    def truncate(self, slot: int, length: int) -> None:
        """Forget a slot's tokens from a place on: what comes next is written over them."""
        if not 0 <= length <= self._length(slot):
            raise ArgumentError(
                f"slot {slot} has {self.lengths[slot]} tokens, not {length}", "give 0 to that many"
            )
        self._forget(slot, length)
        self._expected[slot] = 0

    def release(self, slot: int) -> None:
        """Give a slot back; a batch in which nobody is left gives its memory back too."""
        self.truncate(slot, 0)
        if not any(self.lengths) and self.capacity > 4 * STEP:
            self._allocate(STEP)

    def warm(self, sizes: Sequence[int] = CHUNKS) -> None:
        """Make what requests of any length need and is not there: chunks and a step, for caches
        of all sizes that plans are for."""
        for size in (*sizes, 1):
            if size not in self._runs:
                self._try(size)
        for size, run in self._runs.items():
            if not run.cover(self._places):  # plans on disk that are not for all of them
                self._try(size)
                run.cover(self._places)

    @property
    def _places(self) -> list[tuple[int]]:
        """The sizes that caches may have."""
        most = -(-(self.config.context + 1) // STEP) * STEP
        return [(self.slots * n,) for n in range(STEP, most + 1, STEP)]

    def _try(self, size: int) -> None:
        """Run what is captured for so many tokens."""
        count = min(size, self.config.context)
        if size == 1:
            self.step({0: 0})
        elif size in CHUNKS:
            self.read(0, [0] * count)
        else:
            self.verify(0, [0] * count)
        self.truncate(0, 0)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        return tokens_of(ids, self.config.vocabulary)

    def _length(self, slot: int) -> int:
        """How many tokens a slot has; an error if there is no such slot."""
        if not isinstance(slot, int | np.integer) or not 0 <= slot < self.slots:
            raise ArgumentError(f"there is no slot {slot!r}", f"give 0 to {self.slots - 1}")
        return self.lengths[slot]

    def _fits(self, count: int) -> None:
        """An error if so many tokens are beyond the context."""
        if count > self.config.context:
            raise ArgumentError(
                f"{count} tokens are beyond the context of {self.config.context}",
                "give a shorter text",
            )

    def _call(
        self, size: int, ids: Array, places: Array, last: Any, rows: Any, is_long: Array
    ) -> Array:
        run = self._runs.get(size)
        is_new = run is None
        if run is None:
            run = self._runs[size] = _of_slots(self.slots)
        long = is_long.copy() if self.short else None
        found = run(self.decoder, ids, places, last, rows, long, self._keys, self._values)
        logits: Array = found.numpy()
        if is_new and not run.is_recalled:  # for this process, and for those that recall it
            run.cover(self._places)
        return logits

    def _grow(self, places: int) -> None:
        """Room for so many places, and one more that rows without a token write to."""
        if places + 1 > self.capacity or self._is_growing:
            self._allocate(max(-(-(places + 1) // STEP) * STEP, self.capacity))

    def _allocate(self, capacity: int) -> None:
        """Caches of so many places. If that is interrupted, the next call finds some of them with
        other sizes (`_is_growing`) and ends it: each has all that it had."""
        c, has_tokens, self._is_growing = self.config, any(self.lengths), True
        for size, caches in zip(c.cache_sizes, (self._keys, self._values), strict=True):
            caches[len(caches) :] = [None] * (c.layers - len(caches))
            for layer, held in enumerate(caches):  # the old one goes when the new one is there
                had = 0 if held is None else held.shape[1] // self.slots
                if had == capacity:
                    continue
                new = np.zeros((c.cache_heads, self.slots, capacity, size), np.float32)
                if has_tokens and had:
                    old = held.numpy().reshape(c.cache_heads, self.slots, -1, size)
                    kept = min(had, capacity)
                    new[:, :, :kept] = old[:, :, :kept]
                # memory of its own, not NumPy's: steps write over it from the first one on
                caches[layer] = fg.Tensor(new.reshape(c.cache_heads, -1, size))
        if self.capacity:  # memory of the old sizes, which nothing else has
            fg.empty_cache()
        self.capacity, self._is_growing = capacity, False


def tokens_of(ids: Any, vocabulary: int) -> list[int]:
    """Ids of tokens as whole numbers; an error if one of them is none of a vocabulary."""
    hint = "use the model's tokenizer"
    try:
        found = [index(one) for one in ids]
    except TypeError:
        raise ArgumentError(f"tokens are whole numbers, not {ids!r:.60}", hint) from None
    for one in (min(found, default=0), max(found, default=0)):
        if not 0 <= one < vocabulary:
            raise ArgumentError(f"{one} is no token of {vocabulary}", hint)
    return found


class Generator:
    """Text from one prompt at a time; a prompt that begins as the last one did is not read again.

    What is generated is read to its end, or left; one that was left for another cannot go on.

    With a `draft`, a smaller model with the same tokens, several tokens may come of one pass; they
    are the ones that come without.

    >>> for token in Generator(model).generate(ids):                 # doctest: +SKIP
    ...     print(token.text, end="", flush=True)
    """

    def __init__(self, model: Any, draft: Any = None) -> None:
        self.model, self.batch = model, Batch(model)
        self._held: list[int] = []  # the first tokens of those that the cache has, or all
        self._turn = object()  # whose tokens they are
        self.draft: Any = None
        if draft is not None:
            from .speculate import Draft

            self.draft = Draft(self.batch, draft)

    def generate(
        self, prompt: str | Sequence[int], options: SamplingOptions | None = None
    ) -> Iterator[Token]:
        """Tokens that come after a prompt, until the text ends, a stop string comes, or enough."""
        options = options or SamplingOptions()
        ids = self.model.encode(prompt) if isinstance(prompt, str) else prompt
        ids = tokens_of(ids, self.model.config.vocabulary)
        self.check(ids)
        self.batch.admit()
        turn = self._turn = object()
        logits = self._prefill(ids)
        if self.draft is not None:
            self.draft.begin(ids)
        sampler = Sampler(options, ids)
        text = Text(self.model.text_stream(), options.stop)
        ends = () if options.ignore_eos else self.model.config.eos
        room = self.model.config.context - len(ids)
        most = room if options.max_tokens is None else min(options.max_tokens, room)
        for number in range(most):
            chosen, logprob = sampler.choose(logits)
            top = most_likely(logits, options.top_logprobs)
            if chosen in ends:
                yield Token(chosen, text.end(), logprob, "stop", top)
                return
            piece, stopped = text.add(chosen)
            if stopped or number + 1 == most:
                rest = "" if stopped else text.end()
                yield Token(chosen, piece + rest, logprob, "stop" if stopped else "length", top)
                return
            yield Token(chosen, piece, logprob, None, top)
            if self._turn is not turn:
                raise ArgumentError(
                    "this Generator began another text, so the earlier one cannot go on",
                    "read one to its end before the next, or make a Generator or a slot of a "
                    "Batch for each",
                )
            if self.draft is not None:
                logits = self.draft.after(chosen, sampler)
            else:
                logits = self.batch.step({0: chosen})[0]
            self._held.append(chosen)

    def check(self, ids: Sequence[int]) -> None:
        """An error for a prompt that nothing can come after."""
        if not ids:
            raise ArgumentError("the prompt has no tokens", "give at least one")
        context = self.model.config.context
        if len(ids) >= context:
            raise ArgumentError(
                f"the prompt has {len(ids)} tokens; this model reads {context}, with its answer",
                "give a shorter text",
            )

    def _reused(self, ids: Sequence[int]) -> int:
        """How many tokens at the beginning are in the cache already; one at least is read."""
        same = 0
        for a, b in zip(ids[:-1], self._held, strict=False):
            if a != b:
                break
            same += 1
        return min(same, self.batch.lengths[0])

    def _prefill(self, ids: list[int]) -> Array:
        """Read what the cache does not have; `_held` is right whenever this is left."""
        same = self._reused(ids)
        self._held = ids[:same]  # before anything is written over
        self.batch.truncate(0, same)
        self.batch.expect(0, len(ids))
        for chunk in Batch.chunks(ids[same:]):
            logits = self.batch.read(0, chunk)
            self._held += chunk
        return logits


@dataclass
class Text:
    """The text of tokens as far as it is certain: no half letters, no begun stop strings."""

    stream: Any  # a function from an id to the text that is certain
    stops: tuple[str, ...] = ()
    held: str = ""
    is_stopped: bool = field(default=False)

    def add(self, token: int) -> tuple[str, bool]:
        """The text that is certain with one more token, and whether a stop string came."""
        self.held += self.stream(token)
        found = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            piece, self.held = self.held[: min(found)], ""
            return piece, True
        keep = max((_overlap(self.held, stop) for stop in self.stops), default=0)
        cut = len(self.held) - keep
        piece, self.held = self.held[:cut], self.held[cut:]
        return piece, False

    def end(self) -> str:
        """What was held back."""
        piece: str = self.held + self.stream(None)
        self.held = ""
        return piece


def _overlap(text: str, stop: str) -> int:
    """How many letters at the end of a text begin a stop string."""
    for count in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:count]):
            return count
    return 0
