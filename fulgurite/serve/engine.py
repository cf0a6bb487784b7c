"""Continuous batching: one thread that owns a model and goes on with all requests at once.

In: `Request`s from any thread. Out: `Token`s and `Failure`s to each request's `deliver`, called on
the engine's thread. A round is at most one chunk of one new prompt and one step of all texts that
are being written, so a long prompt does not hold up the others; texts join when a slot is free and
leave when they end, are cancelled or are late. What a text becomes does not depend on the others: a
step always has all rows of the batch, a prompt is always read in the same chunks, and a chunk is
taken from a slot's earlier prompt only if all before it are the same chunks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..errors import FulguriteError
from ..models.generate import CHUNKS, Batch, Text, Token
from ..models.sampling import Sampler, SamplingOptions

READ = CHUNKS[1:]  # small ones: others wait for a chunk, and only whole ones are used again
EMBED = 64  # texts that are embedded are filled up to a multiple of so many tokens
IDLE = 60.0  # seconds without a request after which prompts are forgotten and memory given back


class Busy(FulguriteError, RuntimeError):
    """The engine takes no more: its queue is full, or it is stopping."""


@dataclass(frozen=True)
class Failure:
    """The end of a request that did not come to its own: "timeout", "stopped" or "error"."""

    kind: str
    text: str


@dataclass(eq=False)
class Request:
    """A prompt, how to go on with it, and who wants to know."""

    ids: list[int]
    options: SamplingOptions
    deliver: Callable[[Token | Failure], None]
    deadline: float = float("inf")  # on the clock of `time.monotonic`
    grammar: Any = None  # `allowed()` gives a bool for each token, `accept(token)` goes on
    is_cancelled: bool = False  # may be set at any time, by any thread
    submitted: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Job:
    """A text to embed."""

    ids: list[int]
    deliver: Callable[[Array | Failure], None]


@dataclass(eq=False)
class _Place:
    """A slot of the batch: the chunks of a prompt that it holds, and who has it."""

    slot: int
    held: list[list[int]] = field(default_factory=list)
    request: Request | None = None
    waiting: deque[list[int]] = field(default_factory=deque)  # chunks that are not read yet
    token: int = -1  # the last one chosen, which the next step appends
    count: int = 0
    sampler: Any = None
    text: Any = None

    def common(self, chunks: Sequence[list[int]]) -> int:
        """How many chunks at the beginning it holds; the last one is always read."""
        same = 0
        for a, b in zip(self.held, chunks[:-1], strict=False):
            if a != b:
                break
            same += 1
        return same


class Engine:
    """Works on requests until `stop`; `submit` may be called from any thread.

    >>> engine = Engine(model, slots=8)                              # doctest: +SKIP
    >>> engine.submit(Request(ids, SamplingOptions(), print))        # doctest: +SKIP
    """

    def __init__(
        self, model: Any, slots: int = 8, queue: int = 64, is_warmed: bool = False
    ) -> None:
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

    def embed(self, ids: list[int], deliver: Callable[[Array | Failure], None]) -> None:
        """Add a text whose mean vector, of length one, is asked for."""
        with self._changed:
            self._admits(1)
            self._jobs.append(_Job(ids, deliver))
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request; its slot is free at the next round."""
        request.is_cancelled = True
        with self._changed:
            self._changed.notify()

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
                job = self._jobs.popleft() if self._jobs else None
                self._drop()
                self._join()
            if job is not None:
                self._embedded(job)
            self._read()
            self._step()

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
        for request in [r for r in self._waiting if self._over(r, now)]:
            self._waiting.remove(request)
            if not request.is_cancelled:
                request.deliver(self._over(request, now) or Failure("error", ""))

    def _over(self, request: Request, now: float) -> Failure | None:
        if request.is_cancelled:
            return Failure("cancelled", "the request was cancelled")
        if now > self._ends:
            return Failure("stopped", "the server was stopped")
        if now > request.deadline:
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
            self.prompt_tokens += len(request.ids)
            self.reused_tokens += reused
            place.held = chunks[:same]
            place.waiting = deque(chunks[same:])
            place.request, place.count, place.token = request, 0, -1
            try:
                self.batch.admit(READ)
                place.sampler = Sampler(request.options, request.ids)
                place.text = Text(self.model.text_stream(), request.options.stop)
            except Exception as error:
                self._leave(place, Failure("error", str(error)))

    def _leave(self, place: _Place, last: Token | Failure) -> None:
        request = place.request
        place.request, place.sampler, place.text = None, None, None
        place.waiting.clear()
        self.batch.truncate(place.slot, sum(map(len, place.held)))
        if request is not None and not request.is_cancelled:
            request.deliver(last)

    def _read(self) -> None:
        """One chunk of the prompt that has waited longest."""
        reading = [p for p in self._places if p.waiting and p.request is not None]
        if not reading:
            return
        place = min(reading, key=lambda p: p.request.submitted if p.request else 0.0)
        chunk = place.waiting.popleft()
        try:
            logits = self.batch.read(place.slot, chunk)
        except Exception as error:
            self._leave(place, Failure("error", str(error)))
            return
        place.held.append(chunk)
        if not place.waiting:
            self._choose(place, logits)

    def _step(self) -> None:
        """One token more for all who write."""
        writing = {p.slot: p.token for p in self._places if p.request and not p.waiting}
        if not writing:
            return
        try:
            found = self.batch.step(writing)
        except Exception as error:
            for slot in writing:
                self._leave(self._places[slot], Failure("error", str(error)))
            return
        self.steps += 1
        for slot, logits in found.items():
            self._choose(self._places[slot], logits)

    def _choose(self, place: _Place, logits: Array) -> None:
        """Choose a token, hand it on, and let go of a text that ends with it."""
        request = place.request
        if request is None or request.is_cancelled:
            return
        try:
            token = self._chosen(place, request, logits)
        except Exception as error:
            self._leave(place, Failure("error", str(error)))
            return
        if token.finish_reason is not None:
            self._leave(place, token)
        else:
            place.token = token.id
            request.deliver(token)

    def _chosen(self, place: _Place, request: Request, logits: Array) -> Token:
        """The next token with its text, as `Generator.generate` gives it."""
        options, grammar = request.options, request.grammar
        allowed = None if grammar is None else grammar.allowed()
        chosen, logprob = place.sampler.choose(logits, allowed)
        self.chosen_tokens += 1
        ends = () if options.ignore_eos and grammar is None else self.model.config.eos
        if chosen in ends:
            return Token(chosen, place.text.end(), logprob, "stop")
        if grammar is not None:
            grammar.accept(chosen)
        place.count += 1
        room = self.model.config.context - len(request.ids)
        most = room if options.max_tokens is None else min(options.max_tokens, room)
        piece, stopped = place.text.add(chosen)
        if stopped:
            return Token(chosen, piece, logprob, "stop")
        if place.count >= most:
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
            job.deliver(Failure("error", str(error)))
            return
        job.deliver(vector / max(float(np.linalg.norm(vector)), 1e-12))


def _mean_hidden(decoder: Any, ids: fg.Tensor, weights: fg.Tensor) -> fg.Tensor:
    """The mean of the vectors of a text's tokens; those after its end see it but are not seen."""
    with fg.no_grad():
        places = fg.broadcast_to(fg.arange(ids.shape[1])[None], ids.shape)
        found: fg.Tensor = (decoder.hidden(ids, places) * weights).sum(axis=1)
        return found
