"""Constrained sampling: of all tokens, those that can still become JSON of a schema.

In: a JSON schema and a model. Out: a `Constraint` whose `allowed()` is a bool for each token. The
schema becomes a context-free grammar without left recursion over bytes of UTF-8 (a "letter" here is
a byte, as a str of one in latin-1); a state is the set of stacks of symbols that may come next, and
equal stacks are one object. Tokens are in a trie by their letters, walked from a state with each
step remembered, so a state that was met is looked up. Work is counted: a schema by which a text can
be read in too many ways is an error. JSON is written without free white space: one may follow a
colon or a comma.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np

from ..core.op import Array
from ..errors import FulguriteError

DEEPEST = 512  # symbols of a stack: nests beyond that are not begun
MOST_RULES = 20_000  # of one schema
MOST_STACKS = 4096  # of one state
MOST_WORK = 500_000  # stacks that the masks of one text make, beside MORE_WORK for each token
MORE_WORK = 1_000
KEPT = 16  # schemas of a model whose masks are kept

Symbol = tuple[str, Any]  # ("text", letters), ("of", letters), ("rule", number)
Sequence = tuple[Symbol, ...]
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


_NO_BOUND = object()  # no 'maxItems'


class SchemaError(FulguriteError, ValueError):
    """A schema that is wrong, or has words that are not supported."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "see docs/serving.md for what a schema may have", where="")


class Stack:
    """A symbol and what comes after it; equal ones of a machine are the same object."""

    __slots__ = ("__weakref__", "depth", "rest", "symbol")

    def __init__(self, symbol: Symbol, rest: Rest) -> None:
        self.symbol, self.rest = symbol, rest
        self.depth: int = 1 + (rest.depth if isinstance(rest, Stack) else 0)


Rest = Stack | tuple[()]  # () is the end of the JSON
States = frozenset[Rest]


@dataclass
class Work:
    """What the masks of one text may still cost."""

    left: int = MOST_WORK

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise SchemaError("the schema lets a text be read in too many ways")


def _text(letters: str) -> Symbol:
    return ("text", letters)


def _written(value: Any) -> str:
    """A value as JSON, as letters."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise SchemaError("a value of the schema is no JSON") from None
    try:
        return letters_of(text)
    except UnicodeEncodeError:  # half of a pair
        return json.dumps(value)


def letters_of(text: str) -> str:
    """The bytes of a text, each as a letter."""
    return text.encode().decode("latin-1")


def _range(first: int, last: int) -> Symbol:
    return ("of", bytes(range(first, last + 1)).decode("latin-1"))


_LATER = _range(0x80, 0xBF)
LETTERS: list[Sequence] = [  # of a string, in well-formed UTF-8
    (("of", "".join(chr(n) for n in range(32, 128) if chr(n) not in '"\\')),),
    (_range(0xC2, 0xDF), _LATER), (_range(0xE0, 0xE0), _range(0xA0, 0xBF), _LATER),
    (_range(0xE1, 0xEC), _LATER, _LATER), (_range(0xED, 0xED), _range(0x80, 0x9F), _LATER),
    (_range(0xEE, 0xEF), _LATER, _LATER), (_range(0xF0, 0xF0), _range(0x90, 0xBF), _LATER, _LATER),
    (_range(0xF1, 0xF3), _LATER, _LATER, _LATER),
    (_range(0xF4, 0xF4), _range(0x80, 0x8F), _LATER, _LATER),
]  # fmt: skip
TYPES: dict[str, tuple[type, ...]] = {  # of values in Python; a bool is no number
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float),
    "integer": (int,), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind])


def _kinds(schema: dict[str, Any], other: Any = None) -> list[str]:
    """The types of a schema."""
    kinds = schema.get("type", other)
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for kind in kinds:
        if kind is None:
            raise SchemaError("a part of the schema has no 'type'")
        if not isinstance(kind, str) or kind not in WORDS:
            raise SchemaError(f"'type' is {str(kind)[:60]!r}, which is none")
    if not kinds:
        raise SchemaError("'type' must not be empty")
    return kinds


def _words_of_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """A schema and its words that forbid something; an error for those that cannot be together."""
    words = {word for word in schema if word not in SILENT}
    if not words & {"type", "properties"} and schema.get("additionalProperties", True) is not True:
        words.add("additionalProperties")
    if "allOf" in words:  # of one schema, as some libraries write a reference with a default
        schema, words = _only(schema["allOf"]), words - {"allOf"} | {"anyOf"}
    if unknown := sorted(words & {"oneOf", "not", "if"}):
        raise SchemaError(f"the schema's word {unknown[0]!r} is not supported here")
    for word in ("$ref", "anyOf"):
        if word in words and len(words) > 1:
            other = sorted(words - {word})[0]
            raise SchemaError(f"'{word}' must not have {other[:60]!r} beside it")
    return schema, words


def _only(some: Any) -> dict[str, Any]:
    """A choice of one schema: what 'allOf' of one is."""
    if not isinstance(some, list) or len(some) != 1:
        raise SchemaError("'allOf' must be a list of one schema")
    return {"anyOf": some}


def _values(schema: dict[str, Any]) -> list[str]:
    """The values of 'enum' and 'const' that all words allow, as letters."""
    some = schema["enum"] if "enum" in schema else [schema["const"]]
    values = {_written(one): one for one in some}
    if "const" in schema:
        same = _written(schema["const"])
        values = {text: one for text, one in values.items() if text == same}
    if "type" in schema:
        kinds = _kinds(schema)
        values = {t: one for t, one in values.items() if any(_is_a(one, k) for k in kinds)}
    if not values:
        raise SchemaError("no value of 'enum' or 'const' is allowed by the words beside it")
    return list(values)


@dataclass
class Grammar:
    """Rules of a schema: alternatives of a rule by its number, each a sequence of symbols."""

    root: Any
    rules: list[list[Sequence]] = field(default_factory=list)
    named: dict[str, Symbol] = field(default_factory=dict)  # by the text of what is referred to
    same: dict[Any, Any] = field(default_factory=dict)  # equal rules, arrays and members are one
    open: set[str] = field(default_factory=set)  # those that are referred to and being read

    def __post_init__(self) -> None:
        space = self.rule([(), (_text(" "),)])
        self.comma: Sequence = (_text(","), space)
        self.colon: Sequence = (_text(":"), space)
        digits = self.rule()
        self.rules[digits[1]] = [(), (("of", "0123456789"), digits)]
        some: Sequence = (("of", "0123456789"), digits)
        whole = self.rule([(_text("0"),), (("of", "123456789"), digits)])
        minus = self.rule([(), (_text("-"),)])
        point = self.rule([(), (_text("."), *some)])
        sign = self.rule([(), (("of", "+-"),)])
        power = self.rule([(), (("of", "eE"), sign, *some)])
        hexes: Sequence = (("of", "0123456789abcdefABCDEF"),) * 4
        body = self.rule()
        escape = self.rule([(("of", '"\\/bfnrt'),), (_text("u"), *hexes)])
        self.rules[body[1]] = [
            (_text('"'),), (_text("\\"), escape, body), *((*one, body) for one in LETTERS),
        ]  # fmt: skip
        self.string: Sequence = (_text('"'), body)
        self.types: dict[str, list[Sequence]] = {
            "string": [self.string], "integer": [(minus, whole)],
            "number": [(minus, whole, point, power)],
            "boolean": [(_text("true"),), (_text("false"),)], "null": [(_text("null"),)],
        }  # fmt: skip
        self.anything = self.rule()
        values = [one for some_of in self.types.values() for one in some_of]
        self.rules[self.anything[1]] = [
            *values, *self._free(self.anything), *self._array(self.anything, 0, _NO_BOUND),
        ]  # fmt: skip
        self.start: Symbol = self._reference("#", -1)

    def rule(self, alternatives: list[Sequence] | None = None) -> Symbol:
        """A new rule."""
        key = tuple(dict.fromkeys(alternatives or ()))
        if key and key in self.same:
            found: Symbol = self.same[key]
            return found
        if len(self.rules) >= MOST_RULES:
            raise SchemaError("the schema is too large")
        self.rules.append(list(key))
        symbol = ("rule", len(self.rules) - 1)
        if key:
            self.same[key] = symbol
        return symbol

    def schema(self, schema: Any, depth: int) -> Symbol:
        """The rule of a schema."""
        if schema is True:
            return self.anything
        if not isinstance(schema, dict) or depth > 50:
            raise SchemaError("a part of the schema is no object, or is too deep")
        schema, words = _words_of_schema(schema)
        if "$ref" in words:
            return self._reference(schema["$ref"], depth)
        if words & {"enum", "const", "anyOf"}:
            return self._chosen(schema, words, depth)
        if not words:
            return self.anything
        return self.rule(self._typed(schema, words, depth))

    def _chosen(self, schema: dict[str, Any], words: set[str], depth: int) -> Symbol:
        """One of some values, or of some schemas."""
        for word in ("enum", "anyOf"):
            if word in words and (not isinstance(schema[word], list) or not schema[word]):
                raise SchemaError(f"'{word}' must be a list that is not empty")
        if "anyOf" in words:
            return self.rule([(self.schema(one, depth + 1),) for one in schema["anyOf"]])
        if others := sorted(words - {"enum", "const", "type"}):
            raise SchemaError(f"{others[0][:60]!r} is not supported beside 'enum' or 'const'")
        return self.rule([(_text(text),) for text in _values(schema)])

    def _target(self, name: Any) -> Any:
        """What a reference names."""
        if not isinstance(name, str) or not (name == "#" or name.startswith("#/")):
            raise SchemaError("'$ref' must be # or begin with #/")
        target = self.root
        for part in unquote(name).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and part.isdecimal() and int(part[:9]) < len(target):
                target = target[int(part[:9])]
            else:
                target = target.get(part) if isinstance(target, dict) else None
        if target is None:
            raise SchemaError(f"'$ref' names {name[:60]!r}, which the schema does not have")
        return target

    def _reference(self, name: Any, depth: int) -> Symbol:
        target = self._target(name)
        text = _written(target)
        if text not in self.named:
            self.named[text] = symbol = self.rule()
            self.open.add(text)
            self.rules[symbol[1]] = [(self.schema(target, depth + 1),)]
            self.open.discard(text)
        return self.named[text]

    def _typed(self, schema: dict[str, Any], words: set[str], depth: int) -> list[Sequence]:
        kinds = _kinds(schema, "object" if "properties" in words else None)
        found: list[Sequence] = []
        known = set().union(*(WORDS[kind] for kind in kinds))
        if words - known:
            word = sorted(words - known)[0]
            raise SchemaError(f"the schema's word {word[:60]!r} is not supported here")
        for kind in kinds:
            if kind == "object":
                found += self._object(schema, depth)
            elif kind == "array":
                least, most = schema.get("minItems", 0), schema.get("maxItems", _NO_BOUND)
                found += self._array(self.schema(schema.get("items", True), depth + 1), least, most)
            else:
                found += self.types[kind]
        return found

    def _object(self, schema: dict[str, Any], depth: int) -> list[Sequence]:
        """All properties, in their order; without any, free members."""
        properties, required = schema.get("properties"), schema.get("required", [])
        if properties is not None and not isinstance(properties, dict):
            raise SchemaError("'properties' must be an object")
        if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
            raise SchemaError("'required' must be a list of names")
        if any(one not in (properties or {}) for one in required):
            raise SchemaError("'required' names what is not in 'properties'")
        more = schema.get("additionalProperties", True)
        if not properties:
            return [(_text("{}"),)] if more is False else self._free(self.schema(more, depth + 1))
        members: list[tuple[Sequence, bool]] = []
        for name, one in properties.items():
            may_lack = name not in required and self._is_within(one)
            value = self.schema(one, depth + 1)
            members.append(((_text(_written(name)), *self.colon, value), may_lack))
        return [(_text("{"), *self._members(members))]

    def _is_within(self, schema: Any) -> bool:
        """True if a schema is a reference to one that it is itself a part of."""
        if not isinstance(schema, dict) or "$ref" not in schema:
            return False
        return _written(self._target(schema["$ref"])) in self.open

    def _members(self, members: list[tuple[Sequence, bool]]) -> Sequence:
        """Members and the bracket behind them; some may be left out, or nests would not end."""
        first: Sequence = (_text("}"),)  # before any member is written
        later = first  # and after one
        for member, may_lack in reversed(members):
            now, then = (*member, *later), (*self.comma, *member, *later)
            if may_lack:
                now, then = (self.rule([now, first]),), (self.rule([then, later]),)
            first, later = now, then
        return first

    def _free(self, value: Symbol) -> list[Sequence]:
        """Members of any names."""
        member: Sequence = (*self.string, *self.colon, value)
        if ("members", value) not in self.same:
            self.same["members", value] = self.rule()
        more: Symbol = self.same["members", value]
        self.rules[more[1]] = [(_text("}"),), (*self.comma, *member, more)]
        return [(_text("{}"),), (_text("{"), *member, more)]

    def _array(self, item: Symbol, least: Any, most: Any) -> list[Sequence]:
        for bound in (least, *(() if most is _NO_BOUND else (most,))):
            if not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= 1000:
                raise SchemaError("'minItems' and 'maxItems' must be from 0 to 1000")
        if most is not _NO_BOUND and most < least:
            raise SchemaError("'maxItems' is less than 'minItems'")
        end = (_text("]"),)
        if most is _NO_BOUND:
            if ("items", item) not in self.same:
                self.same["items", item] = self.rule()
            rest: Symbol = self.same["items", item]
            self.rules[rest[1]] = [end, (*self.comma, item, rest)]
        else:
            rest = self.rule([end])
        for number in range((least if most is _NO_BOUND else most) - 1, 0, -1):
            go_on: list[Sequence] = [(*self.comma, item, rest)]
            rest = self.rule(([end] if number >= least else []) + go_on)
        found: list[Sequence] = [(_text("[]"),)] if least == 0 else []
        return found if most == 0 else [*found, (_text("["), item, rest)]

    def escape(self, letters: frozenset[str]) -> None:
        """Write characters of the schema's own texts that these letters cannot write as escapes."""
        self.rules = [[_escaped(one, letters) for one in some] for some in self.rules]

    def prune(self, letters: frozenset[str] | None) -> None:
        """Leave only alternatives that can be written, with these letters alone if given."""
        ends: set[int] = set()  # rules that can be written

        def is_writable(symbol: Symbol) -> bool:
            kind, what = symbol
            if kind == "rule":
                return what in ends
            return letters is None or (letters.issuperset if kind == "text" else _meets(letters))(
                what
            )

        before = -1
        while before < len(ends):
            before = len(ends)
            for number, alternatives in enumerate(self.rules):
                if number not in ends and any(all(map(is_writable, one)) for one in alternatives):
                    ends.add(number)
        if self.start[1] not in ends:
            raise SchemaError("no text follows the schema, or no token of this model can write it")
        self.rules = [[one for one in some if all(map(is_writable, one))] for some in self.rules]


def _escaped(sequence: Sequence, letters: frozenset[str]) -> Sequence:
    """A sequence with what cannot be written as `\\u00e9`: beyond ASCII all is within strings."""

    def text(symbol: Symbol) -> Symbol:
        kind, what = symbol
        if kind != "text" or letters.issuperset(what):
            return symbol
        parts = what.encode("latin-1").decode()
        return _text("".join(
            own if one.isascii() or letters.issuperset(own) else json.dumps(one)[1:-1]
            for one in parts for own in (letters_of(one),)
        ))  # fmt: skip

    return tuple(map(text, sequence))


def _meets(letters: frozenset[str]) -> Callable[[str], bool]:
    return lambda some: not letters.isdisjoint(some)


class Machine:
    """A grammar with the tokens of a model: states, steps and masks, each made once."""

    def __init__(self, schema: Any, words: list[str]) -> None:
        self.grammar, self.words = Grammar(schema), words
        letters = frozenset("".join(words)) if words else None
        if letters is not None:  # what they cannot write of the schema's own texts
            self.grammar.escape(letters)
        self.grammar.prune(letters)
        self.trie: dict[str, Any] = _trie(words)
        self._stacks = weakref.WeakValueDictionary[tuple[Symbol, Rest], Stack]()
        self._ways: dict[States, dict[str, list[Rest]]] = {}
        self._steps: dict[tuple[States, str], States] = {}
        self._masks: dict[States, Array] = {}
        self.start = self._expanded([self._pushed((self.grammar.start,), ())], Work())

    def _pushed(self, symbols: Sequence, rest: Rest) -> Rest:
        for symbol in reversed(symbols):
            found = self._stacks.get((symbol, rest))
            if found is None:
                found = self._stacks[symbol, rest] = Stack(symbol, rest)
            rest = found
        return rest

    def _expanded(self, stacks: list[Rest], work: Work) -> States:
        """The stacks with rules at their tops replaced, until letters are there."""
        found: set[Rest] = set()
        seen, waiting = set(stacks), list(stacks)
        while waiting:
            work.spend(1)
            one = waiting.pop()
            if not isinstance(one, Stack) or one.symbol[0] != "rule":
                found.add(one)
                if len(found) > MOST_STACKS:
                    raise SchemaError("the schema lets a text be read in too many ways")
                continue
            for alternative in self.grammar.rules[one.symbol[1]]:
                new = self._pushed(alternative, one.rest)
                if new not in seen and (not isinstance(new, Stack) or new.depth <= DEEPEST):
                    seen.add(new)
                    waiting.append(new)
        return frozenset(found)

    def _way(self, states: States) -> dict[str, list[Rest]]:
        """For each letter that fits, the stacks after it."""
        found = self._ways.get(states)
        if found is None:
            found = {}
            for stack in states:
                if isinstance(stack, Stack):
                    kind, letters = stack.symbol
                    more = (_text(letters[1:]),) if kind == "text" and len(letters) > 1 else ()
                    after = self._pushed(more, stack.rest)
                    for letter in letters[:1] if kind == "text" else letters:
                        found.setdefault(letter, []).append(after)
            if len(self._ways) > 20_000:
                self._ways.clear()
            self._ways[states] = found
        return found

    def step(self, states: States, letter: str, work: Work | None = None) -> States:
        """The states after a letter; empty if it does not fit."""
        found = self._steps.get((states, letter))
        if found is None:
            after = self._way(states).get(letter)
            if after is None:
                return frozenset()
            found = self._expanded(after, work or Work())
            if len(self._steps) > 200_000:
                self._steps.clear()
            self._steps[states, letter] = found
        return found

    def mask(self, states: States, work: Work | None = None) -> Array:
        """Which tokens fit."""
        found = self._masks.get(states)
        if found is None:
            found, work = np.zeros(len(self.words), bool), work or Work()
            waiting = [(self.trie, states)]
            while waiting:
                node, now = waiting.pop()
                found[node.get("", [])] = True
                for letter, child in node.items():
                    if letter and (after := self.step(now, letter, work)):
                        waiting.append((child, after))
            if len(self._masks) > 4096:
                self._masks.clear()
            self._masks[states] = found
        return found


def _trie(words: list[str]) -> dict[str, Any]:
    """Tokens by their letters; under "" are those that end there."""
    root: dict[str, Any] = {}
    for number, word in enumerate(words):
        if not word:  # special
            continue
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node.setdefault("", []).append(number)
    return root


_MACHINES: weakref.WeakKeyDictionary[Any, dict[str, Machine]] = weakref.WeakKeyDictionary()


_WORDS: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


def words_of(model: Any) -> list[str]:
    """The bytes that each token adds after another one, as letters; nothing for special ones."""
    if model not in _WORDS:
        _WORDS[model] = _words(model)
    return _WORDS[model]


def _words(model: Any) -> list[str]:
    inner, count = model.tokenizer.inner, model.config.vocabulary
    known = min(count, inner.get_vocab_size())
    letters = (n for n in range(known) if model.tokenizer.decode([n]).strip().isalnum())
    anchor = [n for n in (next(letters, None),) if n is not None]
    before = len(model.tokenizer.decode(anchor))
    texts = inner.decode_batch([[*anchor, n] for n in range(known)], skip_special_tokens=True)
    found = [
        _part(inner.id_to_token(n), text[before:]) if "�" in text else letters_of(text[before:])
        for n, text in enumerate(texts)
    ]
    return found + [""] * (count - known)


def _part(name: str | None, text: str) -> str:
    """The bytes of a token that has parts of letters, if its name tells them, as letters."""
    if name is None:
        return ""
    if re.fullmatch("<0x[0-9A-Fa-f]{2}>", name):
        return chr(int(name[3:5], 16))
    data = bytes(_BYTES.get(letter, 0) for letter in name)
    is_told = all(letter in _BYTES for letter in name)
    return data.decode("latin-1") if is_told and data.decode(errors="replace") == text else ""


def _byte_names() -> dict[str, int]:
    """The bytes by the letters that stand for them in byte-level BPE: itself if it can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [n for n in range(256) if n not in seen]
    return {chr(n): n for n in seen} | {chr(256 + i): n for i, n in enumerate(hidden)}


_BYTES = _byte_names()


def machine_of(schema: Any, model: Any) -> Machine:
    """The machine of a schema, kept for the next request."""
    try:
        name = json.dumps(schema, allow_nan=False)  # the order of properties matters
    except (ValueError, TypeError, RecursionError):
        raise SchemaError("the schema is no JSON, or too deep") from None
    kept = _MACHINES.setdefault(model, {})
    if name not in kept:
        words = words_of(model)
        while len(kept) >= KEPT:
            kept.pop(next(iter(kept)), None)
        kept[name] = Machine(schema, words)
    return kept[name]


class Constraint:
    """Where one text stands: `allowed()` for `Sampler.choose`, then `accept` of what was chosen."""

    def __init__(self, schema: Any, model: Any) -> None:
        self.machine, self.work = machine_of(schema, model), Work()
        self.states, self.ends = self.machine.start, model.config.eos
        self.allowed()

    def allowed(self) -> Array:
        """A bool for each token; the end is allowed where the JSON is whole."""
        found = self.machine.mask(self.states, self.work).copy()
        found[list(self.ends)] = () in self.states
        if not found.any():
            raise SchemaError("no token of this model can go on with the JSON")
        return found

    def accept(self, token: int) -> None:
        """Go on after a token."""
        self.work.left = min(MOST_WORK, self.work.left + MORE_WORK)
        for letter in self.machine.words[token]:
            self.states = self.machine.step(self.states, letter, self.work)

    @property
    def is_over(self) -> bool:
        """True if the JSON is whole, nothing can follow, and the model has no token to say so."""
        is_whole = not self.ends and () in self.states
        return is_whole and not self.machine.mask(self.states, self.work).any()
