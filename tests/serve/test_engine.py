"""The engine without HTTP: prefixes are read once, one text fails alone, memory returns."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fulgurite.models import Generator, SamplingOptions, load
from fulgurite.models.generate import Token
from fulgurite.models.quantized import Matrix
from fulgurite.serve import Busy, Engine, Failure, Request
from fulgurite.serve.engine import default_slots
from tests.models.samples import golden, golden_folder

from .serving import tiny

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.device("first")

GREEDY = SamplingOptions(max_tokens=5, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    found = Engine(tiny(tmp_path_factory.mktemp("tiny")), slots=4, queue=2)
    yield found
    found.stop(5)


def ask(engine: Engine, ids: list[int], options: SamplingOptions = GREEDY, **more: Any) -> Any:
    """The tokens of a text, or why there are none."""
    events: queue.SimpleQueue[Token | Failure] = queue.SimpleQueue()
    engine.submit(Request(ids, options, events.put, **more))
    found = []
    while True:
        event = events.get(timeout=60)
        if isinstance(event, Failure):
            return event
        found.append(event.id)
        if event.finish_reason is not None:
            return found


def test_a_prompt_that_begins_as_an_earlier_one_is_read_from_there_to_the_same_text(
    engine: Engine,
) -> None:
    start = [20 + n % 200 for n in range(40)]  # two whole chunks and a half
    ids = [*start[:32], 7, 8, 9]
    first = ask(engine, ids)
    before = engine.reused_tokens
    assert ask(engine, start) and engine.reused_tokens == before + 32
    assert ask(engine, ids) == first and engine.reused_tokens == before + 64
    engine._forget()
    assert ask(engine, ids) == first and engine.reused_tokens == before + 64


def test_prompts_that_wait_are_read_in_one_round_and_written_in_the_same_steps(
    engine: Engine,
) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    before, told = engine.steps, []
    engine.told = lambda: told.append(engine.steps)
    engine.submit(*[Request([5 + n, 6], GREEDY, events.put) for n in range(4)])
    ended = 0
    while ended < 4:
        ended += events.get(timeout=60).finish_reason is not None
    steps = engine.steps - before
    assert steps <= 4 + 1  # the first token is of the prompt
    assert len(told) <= 2 * (steps + 1)  # whoever moves tokens is woken twice a round at most


def test_a_choice_that_needs_its_own_work_is_made_beside_plain_ones(engine: Engine) -> None:
    asked = [
        GREEDY, replace(GREEDY, temperature=0.9, seed=3),
        replace(GREEDY, temperature=0.9, seed=4, top_k=5),
        replace(GREEDY, temperature=0.9, seed=5, frequency_penalty=0.5),
    ]  # fmt: skip
    alone = [ask(engine, [7, 8], options) for options in asked]
    events: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in asked]
    engine.submit(*[Request([7, 8], o, e.put) for o, e in zip(asked, events, strict=True)])
    together = [[e.get(timeout=60).id for _ in range(5)] for e in events]
    assert together == alone


def test_there_are_more_slots_for_a_small_model(engine: Engine) -> None:
    assert default_slots(engine.model) == 32
    data = type("Shaped", (), {"shape": (50000, 5000), "ndim": 2})()
    large = type("Decoder", (), {"top": {"embed": Matrix(data)}, "layers": []})
    assert default_slots(type("Model", (), {"decoder": large})) == 8


def test_a_text_that_fails_leaves_the_others_alone(engine: Engine) -> None:
    class Broken:
        def allowed(self) -> Any:
            raise ValueError("broken")

    right = ask(engine, [5, 6, 7])
    failure = ask(engine, [5, 6, 7], grammar=Broken())
    told = "the server met an unexpected error: ValueError"  # the rest is for the log
    assert failure == Failure("error", told) and engine.active == 0
    assert ask(engine, [5, 6, 7]) == right
    failure = ask(engine, [9999])
    assert failure.kind == "error" and ask(engine, [5, 6, 7]) == right
    assert "9999" in failure.text and ".py" not in failure.text
    assert ask(engine, [5, 6], deadline=0.0).kind == "timeout"


@pytest.mark.parametrize("options", [GREEDY, replace(GREEDY, temperature=0.9, seed=3, top_k=5)])
@pytest.mark.parametrize("when", ["read", "step_rows"])
def test_who_leaves_in_the_middle_of_a_round_frees_the_slot_and_the_others_write_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, when: str, options: SamplingOptions
) -> None:
    options = replace(options, max_tokens=60)
    alone = ask(engine, [5, 6, 7], options)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    left: list[Any] = []
    leaver = Request([9, 8], options, left.append)
    inner = getattr(engine.batch, when)

    def leave(first: Any, *more: Any) -> Any:
        found = inner(first, *more)
        place = next((p for p in engine._places if p.request is leaver), None)
        if place is not None and (when == "step_rows" or first == place.slot):
            engine.cancel(leaver)
        return found

    monkeypatch.setattr(engine.batch, when, leave)
    engine.submit(Request([5, 6, 7], options, events.put))
    found = [events.get(timeout=60)]
    engine.submit(leaver)
    while isinstance(found[-1], Token) and found[-1].finish_reason is None:
        found.append(events.get(timeout=60))
    assert [one.id for one in found] == alone and leaver.is_cancelled
    assert len(left) == (when == "step_rows")  # the token of its prompt
    monkeypatch.undo()
    assert ask(engine, [9, 8]) and engine.active == 0


def test_an_embedding_that_is_late_is_told_so(tmp_path: Path) -> None:
    engine = Engine(tiny(tmp_path), slots=4, queue=2)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    engine.embed([5, 6], events.put, 0.0)
    assert events.get(timeout=60).kind == "timeout"
    engine.embed([5, 6], events.put)
    assert events.get(timeout=60).shape == (64,)
    engine.stop(5)


def test_what_does_not_fit_is_refused_as_a_whole_and_a_stop_ends_all(tmp_path: Path) -> None:
    engine = Engine(tiny(tmp_path), slots=4, queue=2)
    events: list[Any] = []
    long = SamplingOptions(max_tokens=2000, temperature=0, ignore_eos=True)
    some = [Request([5], long, events.append) for _ in range(7)]
    with pytest.raises(Busy, match="waiting already"):
        engine.submit(*some)
    engine.submit(*some[:6])
    engine.stop(0.0)
    assert sum(event == Failure("stopped", "the server was stopped") for event in events) == 6
    with pytest.raises(Busy, match="stopping"):
        engine.submit(some[6])


def test_prompts_of_any_length_after_each_other_turn_as_each_would_alone(tmp_path: Path) -> None:
    """Longrope: a slot's chunks of a long prompt are not those of a short one."""
    path = golden_folder(golden()["phi3 longrope"], tmp_path / "phi")
    ids = [(7 * n + 3) % 90 + 3 for n in range(60)]
    lengths = (60, 30, 33, 60, 20, 28)  # 28 becomes long while it is written
    alone = []
    for length in lengths:
        other = Engine(load(path), slots=2)
        alone.append(ask(other, ids[:length]))
        other.stop(5)
    engine = Engine(load(path), slots=2)
    assert [ask(engine, ids[:length]) for length in lengths] == alone
    generator = Generator(engine.model)
    assert [[t.id for t in generator.generate(ids[:n], GREEDY)] for n in lengths] == alone
    engine.stop(5)
