"""Tests of models/speculate.py: a draft changes how many passes a text takes, not the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fulgurite.errors import ArgumentError
from fulgurite.models import Batch, Generator, Model, SamplingOptions, load
from fulgurite.models.speculate import Draft

from .samples import folder_of

ONE = {"num_hidden_layers": 1}
PROMPT = [5, 17, 3, 88, 41]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(folder_of(tmp_path_factory.mktemp("large"), num_hidden_layers=2))


@pytest.mark.device("first")
def test_logits_after_guesses_are_those_of_steps(model: Model) -> None:
    one, other = Batch(model), Batch(model, slots=2)
    one.prefill(0, PROMPT)
    other.prefill(1, PROMPT)
    found = other.verify(1, [7, 8, 9])
    steps = [one.step({0: token})[0] for token in (7, 8, 9)]
    assert len(found) == 3 and other.lengths == [0, 8]
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(found, steps, strict=True))
    other.truncate(1, 6)  # only the first was right
    assert np.allclose(other.verify(1, [8])[0], steps[1], atol=1e-4)
    with pytest.raises(ArgumentError, match="6 tokens to verify"):
        other.verify(1, [7] * 6)


@pytest.mark.device("first")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_text_is_the_one_without_a_draft_whatever_that_guesses(
    model: Model, temperature: float, tmp_path: Path
) -> None:
    weak = load(folder_of(tmp_path / "weak", **ONE))
    options = SamplingOptions(
        max_tokens=24, temperature=temperature, top_p=0.95, repetition_penalty=1.1, seed=3,
        ignore_eos=True,
    )  # fmt: skip
    wanted = [(t.id, round(t.logprob, 3)) for t in Generator(model).generate(PROMPT, options)]
    for draft in (model, weak):
        generator = Generator(model, draft)
        for _ in range(2):  # the second time the prompt is there already
            got = [(t.id, round(t.logprob, 3)) for t in generator.generate(PROMPT, options)]
            assert [i for i, _ in got] == [i for i, _ in wanted]
            assert all(abs(a - b) <= 2e-3 for (_, a), (_, b) in zip(got, wanted, strict=True))
        share = generator.draft.accepted / generator.draft.guessed
        assert share > 0.7 if draft is model else share < 0.9


@pytest.mark.device("first")
def test_guesses_end_with_the_context_and_drafts_have_the_same_tokens(
    model: Model, tmp_path: Path
) -> None:
    short = load(folder_of(tmp_path / "short", max_position_embeddings=16, **ONE))
    options = SamplingOptions(max_tokens=None, temperature=0, ignore_eos=True)
    got = [t.id for t in Generator(short, short).generate(PROMPT, options)]
    assert got == [t.id for t in Generator(short).generate(PROMPT, options)] and len(got) == 11
    other = load(folder_of(tmp_path / "other", vocab_size=70, **ONE))
    with pytest.raises(ArgumentError, match="the draft has 70 tokens"):
        Draft(Batch(model), other)


@pytest.mark.device("first")
def test_a_draft_that_was_interrupted_guesses_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SamplingOptions(max_tokens=8, temperature=0, ignore_eos=True)
    generator = Generator(model, model)
    right = [token.id for token in generator.generate(PROMPT, options)]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(generator.draft.own, "prefill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(generator.generate([9, 8, 7, 6, 5], options))
    assert [token.id for token in generator.generate(PROMPT, options)] == right
