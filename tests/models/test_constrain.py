"""Constrained sampling: whatever a model would say, JSON of the schema comes out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fulgurite.models import Sampler, SamplingOptions, load
from fulgurite.models.constrain import Constraint, Machine, SchemaError, words_of

from .samples import gguf_of

pytestmark = pytest.mark.device("none")

PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age"],
    "properties": {
        "name": {"type": "string", "title": "Name"}, "age": {"type": "integer"},
        "kind": {"enum": ["a", "b\n", 3]}, "tags": {"type": "array", "items": {"type": "boolean"},
        "minItems": 1, "maxItems": 3}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
}  # fmt: skip
RIGHT = {
    "string": ['"a"', '"\\u12aF \\n é"', '""'],
    "integer": ["0", "-12"], "number": ["0.5", "-1e+9", "10", "0"],
    "boolean": ["true"], "null": ["null"],
    "array": ["[]", "[1,[2, {}]]"], "object": ["{}", '{"a":1, "b": [null]}'],
}  # fmt: skip
WRONG = {
    "string": ["a", '"\n"', '"\\x"', '"a'], "integer": ["01", "1.5", "-", ""],
    "number": ["1.", ".5", "1e", "NaN"], "boolean": ["True"], "null": ["nil"],
    "array": ["[1,]", "[,]", "[1"], "object": ["{a:1}", '{"a":1,}', '{"a"}'],
}  # fmt: skip


def accepts(schema: Any, text: str) -> bool:
    """True if the text is whole by the schema."""
    machine = Machine(schema, [])
    states = machine.start
    for letter in text:
        states = machine.step(states, letter)
    return () in states


def test_texts_are_accepted_if_they_are_json_of_the_schema() -> None:
    for kind, texts in RIGHT.items():
        for text in texts:
            json.loads(text)
            assert accepts({"type": kind}, text) and accepts({}, text), text
        assert not any(accepts({"type": kind}, text) for text in WRONG[kind])
    person: dict[str, Any] = {"name": "é", "age": 3, "kind": "b\n", "tags": [True], "next": None}
    assert accepts(PERSON, json.dumps(person, ensure_ascii=False))
    assert accepts(PERSON, json.dumps(person | {"next": person}, ensure_ascii=False))
    changes: list[dict[str, Any]] = [{"age": 1.5}, {"tags": []}, {"kind": "c"}, {"next": 3}]
    for change in [*changes, {"tags": [True] * 4}]:
        assert not accepts(PERSON, json.dumps(person | change, ensure_ascii=False))
    assert accepts({"type": ["string", "null"]}, "null")
    assert accepts({"const": {"a": [1]}}, '{"a": [1]}')


@pytest.mark.parametrize(
    "schema",
    [
        3, {"type": "thing"}, {"type": 3}, {"type": "string", "pattern": "a+"}, {"anyOf": []},
        {"type": "integer", "minimum": 3}, {"oneOf": [{}]}, {"$ref": "#/nowhere"}, {"enum": []},
        {"$ref": "other.json"}, {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "maxItems": 10**9}, {"type": "object", "required": ["a"]},
        {"properties": 3}, {"type": "object", "properties": {"a": 3}}, {"$ref": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_supported_is_said(schema: Any) -> None:
    with pytest.raises(SchemaError):
        Machine(schema, [])


def test_a_schema_that_refers_to_itself_alone_has_no_text() -> None:
    assert not Machine({"$ref": "#"}, []).start


def test_random_logits_make_json_of_the_schema(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = load(gguf_of(tmp_path / "tiny.gguf"))
    words = words_of(model)
    assert words[3 + ord("{")] == "{" and words[1] == "" and " the" in words
    random = np.random.default_rng(0)
    kept = {**PERSON, "properties": {k: v for k, v in PERSON["properties"].items() if k != "next"}}  # type: ignore[attr-defined]
    bias = np.zeros(300, np.float32)
    bias[[3 + ord(c) for c in '",}]0123456789']] = 3  # texts that end
    for seed in range(5):
        constraint = Constraint(kept, model)
        sampler = Sampler(SamplingOptions(seed=seed, temperature=1))
        ids: list[int] = []
        while len(ids) < 400:
            logits = random.normal(size=300).astype(np.float32) + bias
            chosen, _ = sampler.choose(logits, constraint.allowed())
            if chosen in model.config.eos:
                break
            constraint.accept(chosen)
            ids.append(chosen)
        found = json.loads(model.tokenizer.decode(ids))
        assert list(found) == ["name", "age", "kind", "tags"] and isinstance(found["age"], int)
        assert 1 <= len(found["tags"]) <= 3


def test_no_token_that_fits_is_an_error() -> None:
    inner = SimpleNamespace(
        get_vocab_size=lambda: 2,
        decode_batch=lambda some, skip_special_tokens: ["ab" for _ in some],
    )
    tokenizer = SimpleNamespace(inner=inner, decode=lambda ids: "a")

    class Plain:
        tokenizer: Any = None
        config = SimpleNamespace(vocabulary=2, eos=(1,))

    model = Plain()
    model.tokenizer = tokenizer
    with pytest.raises(SchemaError, match="no token"):
        Constraint({"type": "null"}, model).allowed()
