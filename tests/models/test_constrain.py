"""Constrained sampling: whatever a model would say, JSON of the schema comes out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fulgurite.models import Sampler, SamplingOptions, constrain, load
from fulgurite.models.constrain import (
    Constraint,
    Machine,
    SchemaError,
    letters_of,
    words_of,
)

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
    for letter in letters_of(text):
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
        {"type": "array", "minItems": None}, {"type": "array", "maxItems": None}, {"type": []},
        {"type": "array", "minItems": True}, {"properties": {}, "required": [["a"]]},
        {"properties": {}, "required": [{}]}, {"$ref": "#foo"}, {"const": float("nan")},
        {"type": "integer", "enum": ["a", "b"]}, {"enum": [7], "minimum": 5},
        {"const": 1, "enum": [2]}, {"anyOf": [{}], "enum": [7]}, {"$ref": "#/$defs/a", "maximum": 3,
        "$defs": {"a": {}}}, {"additionalProperties": False}, {"enum": [{}], "type": "thing"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_supported_is_said(schema: Any) -> None:
    with pytest.raises(SchemaError):
        Machine(schema, [])


def test_a_schema_that_can_have_no_text_is_an_error() -> None:
    letters = [chr(n) for n in range(32, 127) if chr(n) != "\\"]
    items = {"type": "array", "items": {"$ref": "#"}, "minItems": 1}
    for schema in ({"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, items):
        with pytest.raises(SchemaError, match="no text"):
            Machine(schema, [])
    with pytest.raises(SchemaError, match="no token"):
        Machine({"enum": ["日本"]}, letters)
    machine = Machine({"enum": ["日本", "a"]}, letters)  # what cannot be written is not begun
    after = machine.step(machine.start, '"')
    assert np.flatnonzero(machine.mask(after)).tolist() == [letters.index("a")]


def test_what_no_letter_can_write_is_escaped() -> None:
    letters = [chr(n) for n in range(32, 127)] + [*"\xc3\xa9"]
    values = {"日本": ["é", "😀"]}
    machine = Machine({"const": values}, letters)
    text = '{"\\u65e5\\u672c": ["\xc3\xa9", "\\ud83d\\ude00"]}'
    assert json.loads(text.replace("\xc3\xa9", "é")) == values
    states = machine.start
    for letter in text:
        assert np.flatnonzero(machine.mask(states)).tolist() == [letters.index(letter)]
        states = machine.step(states, letter)
    assert states == frozenset([()])
    assert accepts({"const": values}, json.dumps(values, ensure_ascii=False))


def test_nests_may_end_where_a_property_is_not_required() -> None:
    sides: dict[str, Any] = {"left": {"$ref": "#"}, "value": {"type": "integer"},
                             "right": {"$ref": "#"}}  # fmt: skip
    tree = {"type": "object", "properties": sides, "required": ["value"]}
    one, two = '{"value": 1}', '{"left":{"value":1}, "value":2}'
    for text in (one, two, '{"left": {"value":1},"value":2, "right":{"value":3}}',
                 '{"value":1,"right":{"value":2,"right":{"value":3}}}'):  # fmt: skip
        assert accepts(tree, text), text
    for text in ("{}", '{"left":{}}', '{"right":{"value":1},"value":2}', '{,"value":1}'):
        assert not accepts(tree, text), text
    chain = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert accepts(chain, "{}") and accepts(chain, '{"next": {"next":{}}}')
    flat = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    assert not accepts(flat, "{}") and accepts(flat, '{"a":null,"b":null}')  # all, as ever
    with pytest.raises(SchemaError, match="no text"):
        Machine(chain | {"required": ["next"]}, [])


def test_all_of_one_schema_is_that_schema() -> None:
    schema = {"$defs": {"a": {"type": "null"}}, "allOf": [{"$ref": "#/$defs/a"}], "default": None}
    assert accepts(schema, "null") and not accepts(schema, "1")
    some: list[Any] = [{"allOf": [{}, {}]}, {"allOf": 3}, {"allOf": [{}], "type": "null"}]
    for wrong in some:
        with pytest.raises(SchemaError, match="Of'"):
            Machine(wrong, [])
    with pytest.raises(SchemaError, match="'oneOf' is not supported"):
        Machine({"oneOf": [{}]}, [])


def twins(**more: Any) -> dict[str, Any]:
    """A schema by which each bracket may be one of two lists."""
    either = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    a = {"type": "array", "items": either}
    return either | {"$defs": {"a": a, "b": a | more}}


def test_equal_rules_are_one_and_ways_to_read_a_text_are_bounded() -> None:
    machine, states = Machine(twins(), ["[", "]"]), None
    for _ in range(100):
        states = machine.step(machine.start if states is None else states, "[")
        assert len(states) < 10
    machine = Machine(twins(maxItems=5), ["[", "]"])
    states = machine.start
    with pytest.raises(SchemaError, match="too many ways"):
        for _ in range(100):
            states = machine.step(states, "[")


def test_words_beside_a_value_are_honoured() -> None:
    assert accepts({"type": "integer", "enum": ["a", 3, True]}, "3")
    assert not accepts({"type": "integer", "enum": ["a", 3, True]}, '"a"')
    assert not accepts({"type": "integer", "enum": ["a", 3, True]}, "true")
    assert accepts({"const": 2, "enum": [1, 2]}, "2")
    assert not accepts({"const": 2, "enum": [1, 2]}, "1")
    schema = {"$ref": "#/$defs/a~1b~0", "$defs": {"a/b~": {"type": "null"}}, "title": "x"}
    assert accepts(schema, "null")
    assert accepts({"const": "\ud800"}, '"\\ud800"')


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


def model_of(words: list[str], eos: tuple[int, ...] = ()) -> Any:
    """A model whose tokens are these bytes, as byte-level BPE names them."""
    names = {n: letter for letter, n in constrain._BYTES.items()}
    data = [word.encode("latin-1") for word in words]

    def decoded(ids: list[int]) -> str:
        return b"".join(data[n] for n in ids).decode(errors="replace")

    class Plain:
        tokenizer = SimpleNamespace(
            decode=decoded,
            inner=SimpleNamespace(
                get_vocab_size=lambda: len(words),
                decode_batch=lambda some, skip_special_tokens: [decoded(ids) for ids in some],
                id_to_token=lambda n: "".join(names[byte] for byte in data[n]),
            ),
        )
        config = SimpleNamespace(vocabulary=len(words), eos=eos)

    return Plain()


def test_a_letter_may_be_several_tokens() -> None:
    words = [chr(n) for n in range(32, 127)] + [*"\xe6\x97\xa5", '\xe6"', "\x97\xa5"]
    constraint = Constraint({"type": "string"}, model_of(words))
    for letter in '"\xe6':
        constraint.accept(words.index(letter))
    assert [words[n] for n in np.flatnonzero(constraint.allowed())] == ["\x97", "\xa5", "\x97\xa5"]
    constraint.accept(words.index("\x97\xa5"))
    assert not constraint.is_over
    constraint.accept(words.index('"'))
    assert constraint.is_over
    assert words_of(model_of(words)) == words
    assert constrain._part("<0xE6>", "\ufffd") == "\xe6" and not constrain._part("日", "\ufffd")


def test_json_of_a_model_without_an_end_is_over_when_it_is_whole() -> None:
    words = [chr(n) for n in range(32, 127)]
    for schema, text, over in (({"type": "null"}, "null", True), ({"type": "integer"}, "1", False)):
        constraint = Constraint(schema, model_of(words))
        for letter in text:
            assert constraint.allowed()[words.index(letter)] and not constraint.is_over
            constraint.accept(words.index(letter))
        assert constraint.is_over == over
    constraint = Constraint({"const": 1}, model_of(words, (3,)))
    constraint.accept(words.index("1"))
    assert not constraint.is_over and np.flatnonzero(constraint.allowed()).tolist() == [3]


def test_the_work_of_a_text_is_bounded() -> None:
    words = [chr(n) for n in range(32, 127)]
    constraint = Constraint({}, model_of(words))
    constraint.accept(words.index("["))
    assert constraint.work.left > constrain.MOST_WORK // 2
    constraint.work.left = 3
    with pytest.raises(SchemaError, match="too many ways"):
        constraint.allowed()
