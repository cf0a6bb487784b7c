"""Continuous batching: one thread that owns a model and goes on with all requests at once.

In: `Request`s from any thread. Out: `Token`s and `Failure`s to each request's `deliver`, called on
the engine's thread, and `told`, called once for many of them. A round is chunks of new prompts, as
many tokens as a large chunk has, and one step of all texts that are being written, so a long prompt
does not hold up the others; texts join when a slot is free and leave when they end, are cancelled
or are late. What a text becomes does not depend on the others: a step always has all rows of the
batch, a prompt is always read in the same chunks, and a chunk is taken from a slot's earlier prompt
only if all before it are the same chunks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..errors import CompilerError, FulguriteError, NonFiniteError
from ..models.generate import CHUNKS, Batch, Text, Token
from ..models.quantized import Matrix
from ..models.sampling import Sampler, SamplingOptions, choose_rows, most_likely

READ = CHUNKS[1:]  # small ones: others wait for a chunk, and only whole ones are used again
EMBED = 64  # texts that are embedded are filled up to a multiple of so many tokens
SLOTS = (8, 32)  # at least and at most, if nobody says
MOST_SLOTS = 1024  # whoever says: each is a row of every step, and has caches of its own
STEP_OPERATIONS = 2.5e9  # of a step of all slots, some 25 ms of a processor: eyes see no difference
IDLE = 60.0  # seconds without a request after which prompts are forgotten and memory given back


class Busy(FulguriteError, RuntimeError):
    """The engine takes no more: its queue is full, or it is stopping."""


@dataclass(frozen=True)
class Failure:
    """The end of a request that did not come to its own: "timeout", "stopped" or "error"."""

    kind: str
    text: str


CANCELLED = Failure("cancelled", "the request was cancelled")


@dataclass(eq=False)
class Request:
    """A prompt, how to go on with it, and who wants to know."""

    ids: list[int]
    options: SamplingOptions
    deliver: Callable[[Token | Failure], None]
    deadline: float = float("inf")  # on the clock of `time.monotonic`
    grammar: Any = None  # a `Constraint`: `allowed()` for each token, `accept(token)`, `is_over`
    is_cancelled: bool = False  # may be set at any time, by any thread
    submitted: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Job:
    """A text to embed."""

    ids: list[int]
    deliver: Callable[[Array | Failure], None]
    deadline: float
    is_cancelled: bool = False  # may be set at any time, by any thread


@dataclass(eq=False)
class _Place:
    """A slot of the batch: the chunks of a prompt that it holds, and who has it."""

    slot: int
    held: list[list[int]] = field(default_factory=list)
    request: Request | None = None
    waiting: deque[list[int]] = field(default_factory=deque)  # chunks that are not read yet
    token: int = -1  # the last one chosen, which the next step appends
    count: int = 0
    most: int = 0  # tokens that it may have
    ends: Sequence[int] = ()  # tokens that end it
    sampler: Any = None
    text: Any = None
    is_plain: bool = False  # its tokens are chosen together with others'

    def common(self, chunks: Sequence[list[int]]) -> int:
        """How many chunks at the beginning it holds; the last one is always read."""
        same = 0
        for a, b in zip(self.held, chunks[:-1], strict=False):
            if a != b:
                break
            same += 1
        return same


def default_slots(model: Any) -> int:
    """As many texts as a step can have that is short for each of them, which it is for one too."""
    d = model.decoder
    parts = (m for part in (d.top, *d.layers) for m in part.values() if isinstance(m, Matrix))
    weights = sum(prod(m.shape) for m in parts)
    return int(min(max(STEP_OPERATIONS // (2 * weights + 1), SLOTS[0]), SLOTS[1]))


class Engine:
    """Works on requests until `stop`; `submit` may be called from any thread.

    A step has the rows of all slots, so more of them are better for many and slower for one.

    >>> engine = Engine(model, slots=8)                              # doctest: +SKIP
    >>> engine.submit(Request(ids, SamplingOptions(), print))        # doctest: +SKIP
    """

    def __init__(
        self, model: Any, slots: int | None = None, queue: int = 64, is_warmed: bool = False
    ) -> None:
        slots = default_slots(model) if slots is None else slots
        self.model, self.slots, self.queue = model, slots, queue
        self.batch = Batch(model, slots)
        if is_warmed:
            self.batch.warm(READ)
        self.prompt_tokens = self.reused_tokens = self.chosen_tokens = self.steps = 0  # ever
        self._places = [_Place(n) for n in range(slots)]
        self._waiting: deque[Request] = deque()
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._ends = float("inf")
        self._embed: Any = fg.jit(_mean_hidden)
        self.told: Callable[[], None] = lambda: None  # called when requests were told something
        self._thread = threading.Thread(target=self._run, name="fulgurite engine", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """How many slots are taken."""
        return sum(place.request is not None for place in self._places)

    @property
    def waiting(self) -> int:
        """How many requests have no slot yet."""
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """True until it is told to stop."""
        return self._thread.is_alive() and not self._is_stopping

    def submit(self, *requests: Request) -> None:
        """Add requests, all or none; `Busy` if there is no room for them."""
        with self._changed:
            self._admits(len(requests))
            self._waiting.extend(requests)
            self._changed.notify()

    def embed(
        self,
        ids: list[int],
        deliver: Callable[[Array | Failure], None],
        deadline: float = float("inf"),
    ) -> _Job:
        """Add a text whose mean vector, of length one, is asked for; `cancel` takes the job."""
        job = _Job(ids, deliver, deadline)
        with self._changed:
            self._admits(1)
            self._jobs.append(job)
            self._changed.notify()
        return job

    def cancel(self, request: Request | _Job) -> None:
        """Forget a request; its slot is free at the next round."""
        request.is_cancelled = True  # who waits for nothing has none

    def stop(self, within: float = 30.0) -> None:
        """Take nothing new, finish what there is (at most so many seconds), and end the thread."""
        with self._changed:
            self._is_stopping, self._ends = True, time.monotonic() + within
            self._changed.notify()
        self._thread.join()

    def _admits(self, count: int) -> None:
        if self._is_stopping or not self._thread.is_alive():
            raise Busy("the server is stopping", "ask another one")
        free = sum(p.request is None for p in self._places)
        if len(self._waiting) + len(self._jobs) + count > self.queue + free:
            raise Busy(f"{self.queue} requests are waiting already", "ask again in a moment")

    # --- the engine's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._jobs or self.active):
                    if self._is_stopping:
                        return
                    if not self._changed.wait(IDLE):
                        self._forget()
            # without the lock: who submits must not wait for a round
            self._drop()
            self._join()
            if self._jobs:
                self._embedded(self._jobs.popleft())
            self._read()
            self.told()
            self._step()
            self.told()

    def _forget(self) -> None:
        """Give the memory of prompts back that somebody might have gone on with."""
        for place in self._places:
            place.held = []
            self.batch.release(place.slot)

    def _drop(self) -> None:
        """Let go of what was cancelled or is late."""
        now = time.monotonic()
        for place in self._places:
            if place.request is not None and (why := self._over(place.request, now)):
                self._leave(place, why)
        for request in [r for r in tuple(self._waiting) if self._over(r, now)]:
            self._waiting.remove(request)
            if not request.is_cancelled:
                request.deliver(self._over(request, now) or Failure("error", ""))
        for job in tuple(self._jobs):
            if why := self._over(job, now):
                self._jobs.remove(job)
                if not job.is_cancelled:
                    job.deliver(why)

    def _over(self, request: Request | _Job, now: float) -> Failure | None:
        if request.is_cancelled:
            return CANCELLED
        return self._late(request.deadline, now)

    def _late(self, deadline: float, now: float) -> Failure | None:
        if now > self._ends:
            return Failure("stopped", "the server was stopped")
        if now > deadline:
            return Failure("timeout", "the request took too long")
        return None

    def _join(self) -> None:
        """Give free slots to those who wait longest, each the one with most of its prompt."""
        free = [place for place in self._places if place.request is None]
        while free and self._waiting:
            request = self._waiting.popleft()
            chunks = self.batch.chunks(request.ids, READ)
            place = max(free, key=lambda p: (p.common(chunks), -len(p.held)))
            free.remove(place)
            same = place.common(chunks)
            reused = sum(map(len, chunks[:same]))
            self.batch.truncate(place.slot, reused)
            self.batch.expect(place.slot, len(request.ids))
            self.prompt_tokens += len(request.ids)
            self.reused_tokens += reused
            place.held = chunks[:same]
            place.waiting = deque(chunks[same:])
            place.request, place.count, place.token = request, 0, -1
            try:
                self.batch.admit(READ)
                self._begin(place, request)
            except Exception as error:
                self._leave(place, _failure(error))

    def _begin(self, place: _Place, request: Request) -> None:
        options, config = request.options, self.model.config
        place.sampler = Sampler(options, request.ids)
        place.is_plain = place.sampler.is_plain and request.grammar is None
        place.text = Text(self.model.text_stream(), options.stop)
        place.ends = () if options.ignore_eos and request.grammar is None else config.eos
        room = config.context - len(request.ids)
        place.most = room if options.max_tokens is None else min(options.max_tokens, room)

    def _leave(self, place: _Place, last: Token | Failure) -> None:
        request = place.request
        place.request, place.sampler, place.text = None, None, None
        place.waiting.clear()
        while sum(map(len, place.held)) > self.batch.lengths[place.slot]:
            place.held.pop()  # what failed left less in the cache
        self.batch.truncate(place.slot, sum(map(len, place.held)))
        if request is not None and not request.is_cancelled:
            request.deliver(last)

    def _read(self) -> None:
        """Chunks of prompts, of those that have waited longest first, as many as make a large one.

        Slots that wait for their prompts are rows of a step that do nothing: they are filled first.
        """
        reading = [p for p in self._places if p.waiting and p.request is not None]
        reading.sort(key=lambda p: p.request.submitted if p.request else 0.0)
        left = READ[0]
        for place in reading:
            while left > 0 and place.waiting:
                left -= max(len(place.waiting[0]), READ[-1])  # a chunk is filled up
                self._read_chunk(place)

    def _read_chunk(self, place: _Place) -> None:
        chunk = place.waiting.popleft()
        try:
            logits = self.batch.read(place.slot, chunk)
        except Exception as error:
            self._leave(place, _failure(error))
            return
        place.held.append(chunk)
        if not place.waiting:
            self._choose(place, logits)

    def _step(self) -> None:
        """One token more for all who write; plain choices of all of them are made together."""
        writing = [p for p in self._places if not p.waiting and self._is_wanted(p)]
        if not writing:
            return
        try:
            logits = self.batch.step_rows({p.slot: p.token for p in writing})
        except Exception as error:
            failure = _failure(error)
            for place in writing:
                self._leave(place, failure)
            return
        self.steps += 1
        chosen = self._choose_plain([p for p in writing if p.is_plain], logits)
        for place, token, logprob in chosen.values():
            self._write(place, token, logprob, logits[place.slot])
        for place in writing if len(chosen) < len(writing) else ():
            if place.slot not in chosen:
                self._choose(place, logits[place.slot])

    def _is_wanted(self, place: _Place) -> bool:
        """True if somebody has a place; who was cancelled leaves it, and nothing is chosen."""
        if place.request is not None and place.request.is_cancelled:
            self._leave(place, CANCELLED)
        return place.request is not None

    def _choose_plain(
        self, places: list[_Place], logits: Array
    ) -> dict[int, tuple[_Place, int, float]]:
        """Tokens of places with nothing but a temperature, by slot; none if logits are not finite:
        which of them it was is found one by one."""
        if not places:
            return {}
        rows = logits if len(places) == self.slots else logits[[p.slot for p in places]]
        try:
            chosen = choose_rows([p.sampler for p in places], rows)
        except NonFiniteError:
            return {}
        return {p.slot: (p, *found) for p, found in zip(places, chosen, strict=True)}

    def _choose(self, place: _Place, logits: Array) -> None:
        """Choose a token by logits, and hand it on."""
        request = place.request
        if request is None or not self._is_wanted(place):
            return
        try:
            grammar = request.grammar
            allowed = None if grammar is None else grammar.allowed()
            token, logprob = place.sampler.choose(logits, allowed)
        except Exception as error:
            self._leave(place, _failure(error))
            return
        self._write(place, token, logprob, logits)

    def _write(self, place: _Place, chosen: int, logprob: float, logits: Array) -> None:
        """Hand a token on, and let go of a text that ends with it."""
        request = place.request
        if request is None or not self._is_wanted(place):
            return
        try:
            token = self._written(place, request, chosen, logprob)
            if count := request.options.top_logprobs:
                token = token._replace(top=most_likely(logits, count))
        except Exception as error:
            self._leave(place, _failure(error))
            return
        if token.finish_reason is not None:
            self._leave(place, token)
        else:
            place.token = chosen
            request.deliver(token)

    def _written(self, place: _Place, request: Request, chosen: int, logprob: float) -> Token:
        """The next token with its text, as `Generator.generate` gives it."""
        self.chosen_tokens += 1
        if chosen in place.ends:
            return Token(chosen, place.text.end(), logprob, "stop")
        if request.grammar is not None:
            request.grammar.accept(chosen)
        place.count += 1
        piece, stopped = place.text.add(chosen)
        if stopped:
            return Token(chosen, piece, logprob, "stop")
        if request.grammar is not None and request.grammar.is_over:
            return Token(chosen, piece + place.text.end(), logprob, "stop")
        if place.count >= place.most:
            return Token(chosen, piece + place.text.end(), logprob, "length")
        return Token(chosen, piece, logprob)

    def _embedded(self, job: _Job) -> None:
        size = -(-len(job.ids) // EMBED) * EMBED
        ids, weights = np.zeros((1, size), np.int32), np.zeros((1, size, 1), np.float32)
        ids[0, : len(job.ids)] = job.ids
        weights[0, : len(job.ids)] = 1 / len(job.ids)
        try:
            vector = self._embed(self.batch.decoder, ids, weights).numpy()[0]
        except Exception as error:
            job.deliver(_failure(error))
            return
        late = self._late(job.deadline, time.monotonic())
        job.deliver(late or vector / max(float(np.linalg.norm(vector)), 1e-12))


def _failure(error: Exception) -> Failure:
    """An error as clients may read it: nothing of this machine, which the log has."""
    if isinstance(error, FulguriteError) and not isinstance(error, CompilerError):
        return Failure("error", error.what)  # without `where`, a line of a file
    logging.getLogger(__name__).error("a request failed", exc_info=error)
    return Failure("error", f"the server met an unexpected error: {type(error).__name__}")


def _mean_hidden(decoder: Any, ids: fg.Tensor, weights: fg.Tensor) -> fg.Tensor:
    """The mean of the vectors of a text's tokens; those after its end see it but are not seen."""
    with fg.no_grad():
        places = fg.broadcast_to(fg.arange(ids.shape[1])[None], ids.shape)
        is_long = (weights[:, :, 0] > 0).sum(axis=1) > decoder.config.short_context
        found: fg.Tensor = (decoder.hidden(ids, places, None, is_long) * weights).sum(axis=1)
        return found
