"""Text from a model: caches, chunks, batches, sampling and stop strings."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError
from fulgurite.models import Batch, Generator, Model, SamplingOptions, Text, load
from fulgurite.models.decoder import Decoder
from fulgurite.models.generate import STEP
from fulgurite.runtime.sizes import specialize

from .samples import folder_of, golden, golden_folder

GREEDY = SamplingOptions(max_tokens=12, temperature=0, ignore_eos=True)
IDS = [5, 17, 3, 88, 41, 9, 60, 12, 77, 30, 2, 55, 101, 7, 7, 8, 19, 23, 4]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(folder_of(tmp_path_factory.mktemp("llama")))


def whole(model: Model, ids: list[int]) -> Array:
    """Logits after the last token, without a cache."""
    with fg.no_grad():
        found: Array = model.decoder(fg.Tensor(np.array([ids], np.int32)))[0, -1].numpy()
    return found


def close(a: Array, b: Array) -> None:
    assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max()


@pytest.mark.device("first")
def test_texts_join_and_leave_a_batch_and_read_only_their_own(model: Model) -> None:
    batch = Batch(model, slots=3)
    close(batch.prefill(1, IDS), whole(model, IDS))  # two chunks, the second filled up
    first = batch.prefill(0, IDS[:5])
    found = batch.step({1: 9, 0: 11})
    close(found[1], whole(model, [*IDS, 9]))
    close(found[0], whole(model, [*IDS[:5], 11]))
    batch.release(1)
    batch.read(2, IDS[3:9])  # another begins to be read while one goes on
    close(batch.step({0: 12})[0], whole(model, [*IDS[:5], 11, 12]))
    close(batch.read(2, IDS[9:12]), whole(model, IDS[3:12]))
    batch.truncate(0, 4)
    close(batch.prefill(0, [IDS[4]]), first)


@pytest.mark.device("first")
def test_a_chunk_and_a_step_are_each_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, own = [], Decoder.hidden

    def hidden(self: Decoder, ids: fg.Tensor, *rest: Any) -> fg.Tensor:
        built.append(ids.shape)
        return own(self, ids, *rest)

    monkeypatch.setattr(Decoder, "hidden", hidden)
    for slots in (1, 3):
        batch = Batch(load(folder_of(tmp_path / f"{slots}", num_hidden_layers=1)), slots)
        for _ in range(3):
            batch.read(0, IDS[:5])
            batch.step({0: 9})
        assert built == [(1, 16), (slots, 1)]
        built.clear()


@pytest.mark.device("cpu")
def test_a_cache_grows_and_nothing_is_compiled_for_the_fourth_size(tmp_path: Path) -> None:
    model = load(folder_of(tmp_path / "one", num_hidden_layers=1))
    batch = Batch(model)
    batch.warm()
    ids = [3 + n % 200 for n in range(2 * STEP + 40)]  # chunks of 512, 16, 16 and 8
    last = batch.prefill(0, ids)
    for token in (5, 6):
        last = batch.step({0: token})[0]
    assert batch.capacity > 2 * STEP
    close(last, whole(model, [*ids, 5, 6]))
    batch._allocate(6 * STEP)  # a size that was not met
    before = fg.cache_stats()["schedule"]["misses"]
    batch.step({0: 7})
    batch.read(0, [8] * 16)
    assert fg.cache_stats()["schedule"]["misses"] == before
    assert {n: run.captured for n, run in batch._runs.items()} == {1: 1, 16: 1, 128: 1, 512: 1}


@pytest.mark.device("cpu")
@pytest.mark.parametrize("slots", [1, 3])
def test_nothing_is_compiled_after_the_third_long_request(tmp_path: Path, slots: int) -> None:
    model = load(folder_of(tmp_path / "one", num_hidden_layers=1))
    batch, chance = Batch(model, slots), random.Random(slots)
    ids = [chance.randrange(3, 290) for _ in range(1800)]
    right = model.decoder(fg.Tensor([ids])).numpy()[0]

    def ask(slot: int, length: int, count: int) -> None:
        batch.truncate(slot, 0)
        close(batch.prefill(slot, ids[:length]), right[length - 1])
        for place in range(length, length + count):
            close(batch.step({slot: ids[place]})[slot], right[place])

    def made() -> tuple[int, ...]:
        counts = [run.captured for run in batch._runs.values()]
        return fg.cache_stats()["schedule"]["misses"], fg.cache_stats()["kernel"]["misses"], *counts

    for number, length in enumerate((660, 1172, 1684)):  # all sizes of chunks, in three of caches
        ask(number % slots, length, 2)
    before = made()
    for _ in range(20):
        length = chance.choice([chance.randrange(1, 40), chance.randrange(1, 1750)])
        ask(chance.randrange(slots), length, chance.randrange(1, 4))
        if chance.random() < 0.2:
            for slot in range(slots):
                batch.release(slot)
    ask(0, 1000, 1)
    batch.step({slot: 5 for slot in range(slots)})
    assert made() == before and batch.capacity > 3 * STEP


@pytest.mark.device("cpu")
@pytest.mark.parametrize("slots", [1, 3])
def test_nothing_is_compiled_after_three_short_requests(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder_of(tmp_path / "one", num_hidden_layers=1))
    batch = Batch(model, slots)
    ids = [3 + n % 200 for n in range(1800)]
    right = model.decoder(fg.Tensor([ids])).numpy()[0]

    def made() -> tuple[int, ...]:
        counts = [run.captured for run in batch._runs.values()]
        return fg.cache_stats()["schedule"]["misses"], compiled[0], *counts

    compiled, own = [0], specialize._compile

    def count(texts: Any) -> None:
        compiled[0] += len(texts)
        own(texts)

    monkeypatch.setattr(specialize, "_compile", count)
    for length in (3, 7, 5):
        batch.admit()
        batch.truncate(0, 0)
        close(batch.prefill(0, ids[:length]), right[length - 1])
        close(batch.step({0: ids[length]})[0], right[length])
    before = made()
    for slot, length in enumerate((200, 700, 990, 1300, 1750)):
        batch.admit()
        batch.truncate(slot % slots, 0)
        close(batch.prefill(slot % slots, ids[:length]), right[length - 1])
        close(batch.step({slot % slots: ids[length]})[slot % slots], right[length])
    assert made() == before and compiled[0] and batch.capacity > 6 * STEP


@pytest.mark.device("first")
def test_a_seed_gives_the_same_text_and_a_prompt_is_not_read_twice(model: Model) -> None:
    generator = Generator(model)
    options = SamplingOptions(max_tokens=10, temperature=1.0, top_k=50, top_p=0.9, seed=7)
    first = [t.id for t in generator.generate(IDS, options)]
    held = generator.batch.lengths[0]
    again = list(generator.generate(IDS, options))
    assert [t.id for t in again] == first and generator.batch.lengths[0] == held
    assert again[-1].finish_reason in ("length", "stop")
    assert all(t.finish_reason is None and t.logprob <= 0 for t in again[:-1])
    other = SamplingOptions(max_tokens=10, temperature=1.0, seed=8)
    assert [t.id for t in generator.generate(IDS, other)] != first
    told = list(generator.generate(IDS, replace(GREEDY, top_logprobs=3)))
    assert all(len(t.top) == 3 and t.top[0][0] == t.id for t in told)
    assert all(abs(t.top[0][1] - t.logprob) < 1e-5 for t in told)
    greedy = [t.id for t in told]
    ids = list(IDS)
    for token in greedy[:3]:
        assert int(whole(model, ids).argmax()) == token
        ids.append(token)


@pytest.mark.device("reference")
def test_a_text_may_fill_the_context_and_memory_is_given_back(tmp_path: Path) -> None:
    model = load(golden_folder(golden()["gpt2"], tmp_path / "gpt2"))  # a table of 256 places
    batch = Batch(model)
    batch.prefill(0, [7] * 250)
    for _ in range(6):
        last = batch.step({0: 3})[0]
    assert batch.lengths == [256] and batch.capacity == 2 * STEP
    close(last, whole(model, [7] * 250 + [3] * 6))
    with pytest.raises(ArgumentError, match="context"):
        batch.read(0, [3])
    batch._allocate(8 * STEP)
    batch.release(0)
    assert batch.capacity == STEP


@pytest.mark.device("none")
def test_what_is_no_token_or_too_long_is_an_error(model: Model) -> None:
    batch = Batch(model)
    for wrong in (
        lambda: batch.prefill(0, [300]),
        lambda: batch.prefill(0, [-1]),
        lambda: batch.prefill(0, []),
        lambda: batch.read(0, [1] * 513),
        lambda: batch.truncate(0, 5),
        lambda: next(Generator(model).generate([])),
    ):
        with pytest.raises(ArgumentError, match="try:"):
            wrong()
    batch.lengths[0] = model.config.context
    with pytest.raises(ArgumentError, match="context"):
        batch.step({0: 1})


@pytest.mark.device("none")
def test_text_comes_without_stop_strings_and_their_beginnings() -> None:
    words = {1: "a", 2: "b", 3: "bc", 4: "c", None: ""}
    text = Text(words.__getitem__, ("abc", "zz"))
    assert [text.add(n) for n in (2, 1, 2)] == [("b", False), ("", False), ("", False)]
    assert text.add(1) == ("ab", False)
    assert text.add(2) == ("", False)
    assert text.add(3)[0] == "abbc"
    assert text.add(1) == ("", False) and text.add(3) == ("", True) and text.is_stopped
    assert Text(words.__getitem__, ("ab",)).add(1) == ("", False)
    held = Text(words.__getitem__, ("ab",))
    held.add(1)
    assert held.end() == "a"


@pytest.mark.device("first")
@pytest.mark.parametrize("fault", [KeyboardInterrupt, "token"])
def test_a_prompt_after_one_that_was_not_read_to_its_end_is_read_rightly(
    model: Model, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    first = [(7 * n + 3) % 200 + 3 for n in range(40)]
    other = [*first[:5], *[(11 * n + 1) % 200 + 3 for n in range(40)]]
    generator = Generator(model)
    right = [token.id for token in generator.generate(first, GREEDY)]
    own = generator.batch.read

    def read(slot: int, ids: Any) -> Array:
        own(slot, ids)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if fault == "token":
            other.append(10**6)
        else:
            patch.setattr(generator.batch, "read", read)
        with pytest.raises(ArgumentError if fault == "token" else KeyboardInterrupt):
            next(generator.generate(other, GREEDY))
    assert [token.id for token in generator.generate(first, GREEDY)] == right


@pytest.mark.device("first")
def test_a_text_that_was_left_for_another_cannot_go_on(model: Model) -> None:
    generator = Generator(model)
    one = generator.generate(IDS, GREEDY)
    next(one)
    right = [token.id for token in generator.generate([3, 4, 5], GREEDY)]
    with pytest.raises(ArgumentError, match="began another text"):
        next(one)
    assert [token.id for token in generator.generate([3, 4, 5], GREEDY)] == right


@pytest.mark.device("first")
def test_tokens_are_all_checked_before_the_first_is_read(model: Model) -> None:
    batch = Batch(model)
    for ids in ([3] * 20 + [10**6], [3] * 20 + [1.5], ["x"], 3, [3] * (model.config.context + 1)):
        with pytest.raises(ArgumentError):
            batch.prefill(0, ids)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="whole numbers"):
        next(Generator(model).generate([1.7]))  # type: ignore[list-item]
    assert batch.lengths == [0]


@pytest.mark.device("none")
def test_slots_that_are_not_there_are_errors(model: Model) -> None:
    for slots in (0, -1, 1.5):
        with pytest.raises(ArgumentError, match="1 or more"):
            Batch(model, slots)  # type: ignore[arg-type]
    batch = Batch(model, 2)
    wrong: tuple[Any, ...] = (-1, 2, "a")
    for slot in wrong:
        for call in (
            lambda at: batch.prefill(at, [3]), lambda at: batch.read(at, [3]),
            lambda at: batch.step({at: 3}), lambda at: batch.truncate(at, 0), batch.release,
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match="no slot"):
                call(slot)


@pytest.mark.device("first")
def test_all_of_a_text_turns_as_its_length_decides(tmp_path: Path) -> None:
    """Longrope: 32 tokens are short; chunks before and behind that are read as one text."""
    phi = load(golden_folder(golden()["phi3 longrope"], tmp_path))
    ids = [(7 * n + 3) % 90 + 3 for n in range(60)]
    batch = Batch(phi, slots=2)
    for count in (60, 31, 32, 33, 17):  # after each other in one slot, which keeps what it can
        close(batch.prefill(1, ids[batch.lengths[1] : count]), whole(phi, ids[:count]))
        batch.truncate(1, 16)
    batch.truncate(1, 0)
    batch.prefill(0, ids[:30])
    batch.prefill(1, ids[5:36])
    for count in range(31, 36):  # one becomes long, then the other, each by itself
        found = batch.step({0: ids[count - 1], 1: ids[count + 5]})
        close(found[0], whole(phi, ids[:count]))
        close(found[1], whole(phi, ids[5 : count + 6]))
    batch.truncate(0, 20)
    batch.truncate(1, 3)
    for chunk in Batch.chunks(ids[20:50], (16,)):  # whose length nobody told
        logits = batch.read(0, chunk)
    close(logits, whole(phi, ids[:50]))
    close(batch.read(1, [4]), whole(phi, [*ids[5:8], 4]))


@pytest.mark.device("first")
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_cache_whose_growth_was_interrupted_has_all_that_it_had(
    model: Model, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    batch, ids = Batch(model, slots=2), [(7 * n + 3) % 200 + 3 for n in range(300)]
    batch.prefill(0, ids[:192])
    batch.prefill(1, ids[100:110])
    made: list[Any] = []
    own = fg.Tensor

    def tensor(*given: Any, **named: Any) -> Any:
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(1)
        return own(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(fg, "Tensor", tensor)
        with pytest.raises(KeyboardInterrupt):
            batch.read(0, ids[192:292])
    close(batch.step({1: 9})[1], whole(model, [*ids[100:110], 9]))
    close(batch.prefill(0, ids[192:300]), whole(model, ids))
