"""Constrained sampling: of all tokens, those that can still become JSON of a schema.

In: a JSON schema and a model. Out: a `Constraint` whose `allowed()` is a bool for each token. The
schema becomes a context-free grammar over letters without left recursion; a state is the set of
stacks of symbols that may come next. Tokens are in a trie by their letters, walked from a state
with each step remembered, so a state that was met is looked up. JSON is written without free white
space: one may follow a colon or a comma.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.op import Array
from ..errors import FulguriteError

DEEPEST = 512  # symbols of a stack: nests beyond that are not begun
MOST_RULES = 20_000  # of one schema
KEPT = 16  # schemas of a model whose masks are kept

Symbol = tuple[str, Any]  # ("text", letters), ("of", letters), ("letter", ""), ("rule", number)
Stack = tuple[Symbol, ...]
States = frozenset[Stack]
SILENT = frozenset(  # words of a schema that forbid nothing
    ("title", "description", "default", "examples", "$schema", "$id", "$comment", "format",
     "$defs", "definitions", "additionalProperties", "deprecated", "readOnly", "writeOnly")
)  # fmt: skip
WORDS = {  # what is read of a schema of each type
    "object": {"type", "properties", "required"},
    "array": {"type", "items", "minItems", "maxItems"},
    "string": {"type"}, "number": {"type"}, "integer": {"type"}, "boolean": {"type"},
    "null": {"type"},
}  # fmt: skip


class SchemaError(FulguriteError, ValueError):
    """A schema that is wrong, or has words that are not supported."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "see docs/serving.md for what a schema may have", where="")


def _text(letters: str) -> Symbol:
    return ("text", letters)


@dataclass
class Grammar:
    """Rules of a schema: alternatives of a rule by its number, each a sequence of symbols."""

    root: Any
    rules: list[list[Stack]] = field(default_factory=list)
    named: dict[str, Symbol] = field(default_factory=dict)

    def __post_init__(self) -> None:
        space = self.rule([(), (_text(" "),)])
        self.comma: Stack = (_text(","), space)
        self.colon: Stack = (_text(":"), space)
        digits = self.rule()
        self.rules[digits[1]] = [(), (("of", "0123456789"), digits)]
        some: Stack = (("of", "0123456789"), digits)
        whole = self.rule([(_text("0"),), (("of", "123456789"), digits)])
        minus = self.rule([(), (_text("-"),)])
        point = self.rule([(), (_text("."), *some)])
        sign = self.rule([(), (("of", "+-"),)])
        power = self.rule([(), (("of", "eE"), sign, *some)])
        hexes: Stack = (("of", "0123456789abcdefABCDEF"),) * 4
        body = self.rule()
        escape = self.rule([(("of", '"\\/bfnrt'),), (_text("u"), *hexes)])
        self.rules[body[1]] = [(_text('"'),), (("letter", ""), body), (_text("\\"), escape, body)]
        self.string: Stack = (_text('"'), body)
        self.types: dict[str, list[Stack]] = {
            "string": [self.string], "integer": [(minus, whole)],
            "number": [(minus, whole, point, power)],
            "boolean": [(_text("true"),), (_text("false"),)], "null": [(_text("null"),)],
        }  # fmt: skip
        self.anything = self.rule()
        values = [one for some_of in self.types.values() for one in some_of]
        self.rules[self.anything[1]] = [
            *values, *self._free(self.anything), *self._array(self.anything, 0, None),
        ]  # fmt: skip
        self.start: Symbol = self.schema(self.root, 0)

    def rule(self, alternatives: list[Stack] | None = None) -> Symbol:
        """A new rule."""
        if len(self.rules) >= MOST_RULES:
            raise SchemaError("the schema is too large")
        self.rules.append(alternatives or [])
        return ("rule", len(self.rules) - 1)

    def schema(self, schema: Any, depth: int) -> Symbol:
        """The rule of a schema."""
        if schema is True:
            return self.anything
        if not isinstance(schema, dict) or depth > 50:
            raise SchemaError("a part of the schema is no object, or is too deep")
        words = {word for word in schema if word not in SILENT}
        if "$ref" in words:
            return self._reference(schema["$ref"], depth)
        if words & {"enum", "const", "anyOf"}:
            return self._chosen(schema, words, depth)
        if not words:
            return self.anything
        return self.rule(self._typed(schema, words, depth))

    def _chosen(self, schema: dict[str, Any], words: set[str], depth: int) -> Symbol:
        """One of some values, or of some schemas."""
        word = next(one for one in ("enum", "const", "anyOf") if one in words)
        some = [schema[word]] if word == "const" else schema[word]
        if not isinstance(some, list) or not some:
            raise SchemaError(f"'{word}' must be a list that is not empty")
        if word != "anyOf":
            return self.rule([(_text(json.dumps(one, ensure_ascii=False)),) for one in some])
        if words != {word}:
            raise SchemaError("'anyOf' must not have other words beside it")
        return self.rule([(self.schema(one, depth + 1),) for one in some])

    def _reference(self, name: Any, depth: int) -> Symbol:
        if not isinstance(name, str) or not name.startswith("#"):
            raise SchemaError("'$ref' must begin with #")
        if name not in self.named:
            target = self.root
            for part in name[1:].split("/")[1:]:
                target = target.get(part) if isinstance(target, dict) else None
            if target is None:
                raise SchemaError(f"'$ref' names {name[:60]!r}, which the schema does not have")
            self.named[name] = symbol = self.rule()
            self.rules[symbol[1]] = [(self.schema(target, depth + 1),)]
        return self.named[name]

    def _typed(self, schema: dict[str, Any], words: set[str], depth: int) -> list[Stack]:
        kinds = schema.get("type", "object" if "properties" in words else None)
        kinds = kinds if isinstance(kinds, list) else [kinds]
        found: list[Stack] = []
        for kind in kinds:
            if not isinstance(kind, str) or kind not in WORDS:
                raise SchemaError(f"'type' is {str(kind)[:60]!r}, which is none")
        known = set().union(*(WORDS[kind] for kind in kinds))
        if words - known:
            word = sorted(words - known)[0]
            raise SchemaError(f"the schema's word {word[:60]!r} is not supported here")
        for kind in kinds:
            if kind == "object":
                found += self._object(schema, depth)
            elif kind == "array":
                least, most = schema.get("minItems", 0), schema.get("maxItems")
                found += self._array(self.schema(schema.get("items", True), depth + 1), least, most)
            else:
                found += self.types[kind]
        return found

    def _object(self, schema: dict[str, Any], depth: int) -> list[Stack]:
        """All properties, in their order; without any, free members."""
        properties, required = schema.get("properties"), schema.get("required", [])
        if properties is not None and not isinstance(properties, dict):
            raise SchemaError("'properties' must be an object")
        if not isinstance(required, list) or any(one not in (properties or {}) for one in required):
            raise SchemaError("'required' names what is not in 'properties'")
        more = schema.get("additionalProperties", True)
        if not properties:
            return [(_text("{}"),)] if more is False else self._free(self.schema(more, depth + 1))
        parts: list[Symbol] = []
        for name, one in properties.items():
            parts += [*(self.comma if parts else ()), _text(json.dumps(name, ensure_ascii=False))]
            parts += [*self.colon, self.schema(one, depth + 1)]
        return [(_text("{"), *parts, _text("}"))]

    def _free(self, value: Symbol) -> list[Stack]:
        """Members of any names."""
        member: Stack = (*self.string, *self.colon, value)
        more = self.rule()
        self.rules[more[1]] = [(_text("}"),), (*self.comma, *member, more)]
        return [(_text("{}"),), (_text("{"), *member, more)]

    def _array(self, item: Symbol, least: Any, most: Any) -> list[Stack]:
        for bound in (least, most):
            if bound is not None and (not isinstance(bound, int) or not 0 <= bound <= 1000):
                raise SchemaError("'minItems' and 'maxItems' must be from 0 to 1000")
        if most is not None and most < least:
            raise SchemaError("'maxItems' is less than 'minItems'")
        end = (_text("]"),)
        if most is None:
            rest = self.rule()
            self.rules[rest[1]] = [end, (*self.comma, item, rest)]
        else:
            rest = self.rule([end])
        for number in range((least if most is None else most) - 1, 0, -1):
            go_on: list[Stack] = [(*self.comma, item, rest)]
            rest = self.rule(([end] if number >= least else []) + go_on)
        found: list[Stack] = [(_text("[]"),)] if least == 0 else []
        return found if most == 0 else [*found, (_text("["), item, rest)]

    def expanded(self, stack: Stack) -> set[Stack]:
        """The stack with rules at its top replaced, until letters are there."""
        found: set[Stack] = set()
        seen, waiting = {stack}, [stack]
        while waiting:
            one = waiting.pop()
            if not one or one[0][0] != "rule":
                found.add(one)
                continue
            for alternative in self.rules[one[0][1]]:
                new = alternative + one[1:]
                if new not in seen and len(new) <= DEEPEST:
                    seen.add(new)
                    waiting.append(new)
        return found


def _after(stack: Stack, letter: str) -> Stack | None:
    """The stack after a letter, or None if the letter does not fit."""
    kind, letters = stack[0]
    if kind == "letter":
        return stack[1:] if letter not in '"\\' and letter >= " " else None
    if kind == "of":
        return stack[1:] if letter in letters else None
    if letters[0] != letter:
        return None
    return stack[1:] if len(letters) == 1 else (("text", letters[1:]), *stack[1:])


class Machine:
    """A grammar with the tokens of a model: states, steps and masks, each made once."""

    def __init__(self, schema: Any, words: list[str]) -> None:
        self.grammar, self.words = Grammar(schema), words
        self.trie: dict[str, Any] = _trie(words)
        self.start: States = frozenset(self.grammar.expanded((self.grammar.start,)))
        self._steps: dict[tuple[States, str], States] = {}
        self._masks: dict[States, Array] = {}

    def step(self, states: States, letter: str) -> States:
        """The states after a letter; empty if it does not fit."""
        found = self._steps.get((states, letter))
        if found is None:
            new: set[Stack] = set()
            for stack in states:
                after = _after(stack, letter) if stack else None
                if after is not None:
                    new |= self.grammar.expanded(after)
            found = self._steps[states, letter] = frozenset(new)
            if len(self._steps) > 200_000:
                self._steps.clear()
        return found

    def mask(self, states: States) -> Array:
        """Which tokens fit."""
        found = self._masks.get(states)
        if found is None:
            found = np.zeros(len(self.words), bool)
            waiting = [(self.trie, states)]
            while waiting:
                node, now = waiting.pop()
                found[node.get("", [])] = True
                for letter, child in node.items():
                    if letter and (after := self.step(now, letter)):
                        waiting.append((child, after))
            if len(self._masks) > 4096:
                self._masks.clear()
            self._masks[states] = found
        return found


def _trie(words: list[str]) -> dict[str, Any]:
    """Tokens by their letters; under "" are those that end there."""
    root: dict[str, Any] = {}
    for number, word in enumerate(words):
        if not word or "�" in word:  # special, or part of a letter
            continue
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node.setdefault("", []).append(number)
    return root


_MACHINES: weakref.WeakKeyDictionary[Any, dict[str, Machine]] = weakref.WeakKeyDictionary()


def words_of(model: Any) -> list[str]:
    """The text that each token adds after another one."""
    inner, count = model.tokenizer.inner, model.config.vocabulary
    known = min(count, inner.get_vocab_size())
    anchor = next(n for n in range(known) if model.tokenizer.decode([n]).strip().isalnum())
    before = len(model.tokenizer.decode([anchor]))
    found = inner.decode_batch([[anchor, n] for n in range(known)], skip_special_tokens=True)
    return [text[before:] for text in found] + [""] * (count - known)


def machine_of(schema: Any, model: Any) -> Machine:
    """The machine of a schema, kept for the next request."""
    try:
        name = json.dumps(schema)  # the order of properties matters
    except (ValueError, RecursionError):
        raise SchemaError("the schema is no JSON, or too deep") from None
    kept = _MACHINES.setdefault(model, {})
    if name not in kept:
        words = next((one.words for one in kept.values()), None) or words_of(model)
        while len(kept) >= KEPT:
            kept.pop(next(iter(kept)), None)
        kept[name] = Machine(schema, words)
    return kept[name]


class Constraint:
    """Where one text stands: `allowed()` for `Sampler.choose`, then `accept` of what was chosen."""

    def __init__(self, schema: Any, model: Any) -> None:
        self.machine = machine_of(schema, model)
        self.states, self.ends = self.machine.start, model.config.eos

    def allowed(self) -> Array:
        """A bool for each token; the end is allowed where the JSON is whole."""
        found = self.machine.mask(self.states).copy()
        found[list(self.ends)] = () in self.states
        if not found.any():
            raise SchemaError("no token of this model can go on with the JSON")
        return found

    def accept(self, token: int) -> None:
        """Go on after a token."""
        for letter in self.machine.words[token]:
            self.states = self.machine.step(self.states, letter)
