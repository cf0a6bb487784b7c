"""Chat templates: a conversation as one text, by the file's Jinja in a sandbox with bounds.

In: the template of a `tokenizer_config.json` or of GGUF metadata, and messages with `role` and
`content`. Out: the text that the model was trained to see. A template is a program of a stranger:
it runs in Jinja's immutable sandbox, reaches no attribute but the methods in `METHODS`, and each
loop, call and text is counted, and what is made, compared or given away by its size, so that it
ends soon with a text of a bounded size or an error.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import ArgumentError, FulguriteError

MOST_STEPS = 200_000  # rounds of loops and calls of one rendering
MOST_LETTERS = 4_000_000  # of any text that a template makes
MOST_WORK = 5_000_000  # values that one rendering makes, reads or compares
LETTERS_OF_WORK = 64  # as much as a value
MOST_BITS = 1 << 16  # of a whole number
MOST_WIDTH = 64  # letters of an indentation
METHODS = frozenset((
    "capitalize", "count", "endswith", "find", "format", "get", "index", "isalnum", "isalpha",
    "isdigit", "islower", "isspace", "isupper", "items", "join", "keys", "lower", "lstrip",
    "removeprefix", "removesuffix", "replace", "rfind", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "title", "upper", "values",
))  # fmt: skip
FILTERS = frozenset((
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower",
    "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select",
    "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique", "upper",
    "wordcount",
))  # fmt: skip
SHALLOW = frozenset(("count", "d", "default", "first", "last", "length"))  # filters: all others
# look at each part of what they are given
COMPARING = frozenset((  # tests that look at parts
    "eq", "==", "equalto", "ne", "!=", "gt", ">", "greaterthan", "ge", ">=", "lt", "<", "lessthan",
    "le", "<=", "in", "lower", "upper",
))  # fmt: skip
PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


class TemplateError(FulguriteError, ValueError):
    """A chat template that is wrong, goes beyond its bounds, or refuses the conversation."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint, where="")


@dataclass
class _Budget:
    """What one rendering may still do."""

    steps: int = MOST_STEPS
    work: int = MOST_WORK

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise TemplateError(f"the chat template takes more than {MOST_STEPS} steps", _ADVICE)

    def spend(self, values: int) -> None:
        self.work -= values
        if self.work < 0:
            raise TemplateError("the chat template takes too much work", _ADVICE)

    def sized(self, letters: int) -> None:
        if letters > MOST_LETTERS:
            raise TemplateError(
                f"the chat template makes more than {MOST_LETTERS} letters", _ADVICE
            )

    def checked(self, value: Any) -> Any:
        """The value, if it is not too large; nests are counted as often as they are reached."""
        letters, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            size = 0
            if isinstance(one, str):
                size = len(one)
            elif isinstance(one, Mapping):
                waiting += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple | ItemsView | KeysView | ValuesView):
                waiting += one
            elif type(one).__name__ == "Namespace":  # Jinja's, whose text has its values
                waiting.append(getattr(one, "_Namespace__attrs", None))
            elif isinstance(one, int):
                size = one.bit_length() // 3
            letters += size + 16  # an item is not free
            self.spend(1 + size // LETTERS_OF_WORK)
            self.sized(letters)
        return value


_ADVICE = "use another template: `--template FILE`"


@dataclass(frozen=True)
class ChatTemplate:
    """The text of a conversation: `render([{"role": "user", "content": "Hello"}])`."""

    source: str = PLAIN
    bos: str = ""
    eos: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)  # other names the template may ask for

    @property
    def is_plain(self) -> bool:
        """True if the file has no template of its own."""
        return self.source == PLAIN

    @cached_property
    def _compiled(self) -> tuple[Any, Any]:
        environment = _environment()
        try:
            return environment, environment.from_string(self.source)
        except Exception as error:  # Jinja's own, and Python's for code that is too deep
            text = f"the chat template cannot be read: {str(error)[:300]}"
            raise TemplateError(text, _ADVICE) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **more: Any,
    ) -> str:
        """The conversation as text; with `add_generation_prompt`, up to where the answer begins."""
        environment, template = self._compiled
        budget = environment.budget = _Budget()
        names = {
            **self.more, "messages": [dict(one) for one in messages], "tools": tools,
            "add_generation_prompt": add_generation_prompt, "bos_token": self.bos,
            "eos_token": self.eos, **more,
        }  # fmt: skip
        parts, letters = [], 0
        try:
            for part in template.generate(**names):
                letters += len(part)
                budget.sized(letters)
                parts.append(part)
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("the chat template calls itself too deep", _ADVICE) from None
        except Exception as error:  # whatever a stranger's program does
            text = f"the chat template fails: {type(error).__name__}: {str(error)[:300]}"
            raise TemplateError(text, "look at the roles and their order, or " + _ADVICE) from None
        return "".join(parts)


def template_for(model: Any, source: str | None = None) -> ChatTemplate:
    """The chat template of a model, or the plain one if its file has none."""
    text = source if source is not None else model.template
    inner = model.tokenizer.inner

    def name(number: int | None) -> str:
        return (inner.id_to_token(number) if number is not None else None) or ""

    bos = getattr(model.config, "bos", None)
    eos = model.config.eos
    return ChatTemplate(
        text or PLAIN,
        name(bos if bos is not None else model.tokenizer.bos),
        name(eos[0] if eos else None),
    )


def chat_ids(model: Any, template: ChatTemplate, messages: Sequence[Mapping[str, Any]],
             **more: Any) -> list[int]:  # fmt: skip
    """The tokens of a conversation, up to where the answer begins."""
    text = template.render(messages, **more)
    found: list[int] = model.tokenizer.encode(text, special=template.is_plain)
    return found


def _library() -> Any:
    try:
        import jinja2
        import jinja2.ext
        import jinja2.nodes
        import jinja2.sandbox
    except ImportError:
        raise ArgumentError(
            "chat templates need the package 'jinja2'", "pip install 'fulgurite[llm]'"
        ) from None
    return jinja2


def _count_work(nodes: Any, tree: Any) -> None:
    """Put calls that count into a syntax tree: of loops, joined texts, comparisons and slices."""

    def counted(name: str, some: list[Any]) -> Any:
        where = nodes.EnvironmentAttribute(name)
        return nodes.Call(where, some, [], None, None)

    for loop in list(tree.find_all(nodes.For)):
        loop.iter = counted("counted", [loop.iter])
    for joined in list(tree.find_all(nodes.Concat)):
        joined.nodes = [counted("written", [nodes.List(joined.nodes)])]
    for compared in list(tree.find_all(nodes.Compare)):
        compared.expr = counted("compared", [compared.expr])
        for operand in compared.ops:
            operand.expr = counted("compared", [operand.expr])
    for pair in list(tree.find_all(nodes.Pair)):
        pair.key = counted("compared", [pair.key])
    for item in list(tree.find_all(nodes.Getitem)):
        if isinstance(item.arg, nodes.Slice):
            item.node = counted("sliced", [item.node])
    for block in list(tree.find_all(nodes.AssignBlock)):
        block.filter = block.filter or nodes.Filter(
            None, "string", [], [], None, None, lineno=block.lineno
        )


def _environment() -> Any:
    """A sandbox in which a `_Budget` counts loops, calls and letters."""
    jinja2 = _library()
    nodes = jinja2.nodes

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc,name-defined]
        intercepted_binops = frozenset(["*", "**", "+", "%", "//", "/", "-"])
        budget = _Budget()

        def _parse(self, *arguments: Any) -> Any:
            """The syntax tree, with loops and texts that are joined counted."""
            tree = super()._parse(*arguments)
            _count_work(nodes, tree)
            return tree.set_environment(self)

        def counted(self, items: Iterable[Any]) -> Iterator[Any]:
            for item in items:
                self.budget.step()
                yield item

        def compared(self, value: Any) -> Any:
            return self.budget.checked(value)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if isinstance(argument, tuple):
                self.budget.checked(argument)
            return super().getitem(obj, argument)

        def sliced(self, value: Any) -> Any:
            self.budget.step()
            self.budget.spend(_cost(value))
            return value

        def written(self, parts: list[Any]) -> str:
            self.budget.step()
            return "".join(str(part) for part in self.budget.checked(parts))

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            plain = isinstance(obj, str | int | float | bytes | list | tuple | dict)
            is_known = not plain or attr in METHODS or not callable(value)
            return is_known and bool(super().is_safe_attribute(obj, attr, value))

        def wrap_str_format(self, value: Any) -> Any:
            if isinstance(getattr(value, "__self__", None), str):
                _check_widths(value.__self__)
            return super().wrap_str_format(value)

        def call(self, context: Any, function: Any, *given: Any, **named: Any) -> Any:
            self.budget.step()
            owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
            self.budget.checked([*given, *named.values()])
            if isinstance(owner, str):
                self.budget.checked(owner)
                _check_text(self.budget, owner, name, given)
            elif isinstance(owner, list | tuple):
                self.budget.checked(owner)
            return self.budget.checked(super().call(context, function, *given, **named))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            self.budget.step()
            _check_binop(self.budget, operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment: Any = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols],
        finalize=lambda value: environment.budget.checked(value),
    )  # fmt: skip
    environment.filters = {
        name: _bounded(environment, name, one)
        for name, one in (environment.filters | {"tojson": _to_json}).items()
        if name in FILTERS
    }
    environment.tests = {
        name: _bounded(environment, name, one) if name in COMPARING else one
        for name, one in environment.tests.items()
    }
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form[:100])
    environment.globals.pop("lipsum", None)
    return environment


def _cost(value: Any) -> int:
    """The work of a copy, whose parts are not copied."""
    sized = isinstance(value, str | list | tuple | dict)
    return 1 + (len(value) // _part(value) if sized else 0)


def _part(value: Any) -> int:
    return LETTERS_OF_WORK if isinstance(value, str) else 1


def _check_text(budget: _Budget, text: str, name: str, given: Sequence[Any]) -> None:
    """An error before a method of a text makes one that is too large."""
    if name == "replace" and len(given) >= 2 and isinstance(given[0], str):
        budget.sized(len(text) + (text.count(given[0])) * len(str(given[1])))
    elif name == "join" and given and isinstance(given[0], list | tuple | str):
        budget.sized(len(text) * len(given[0]) + sum(len(str(one)) for one in given[0]))
    elif name in ("rfind", "rsplit") and given and isinstance(given[0], str):  # not linear
        budget.spend(len(text) * len(given[0]) // LETTERS_OF_WORK)


def _check_widths(text: str) -> None:
    """An error if a format has a huge width, or one that is given elsewhere."""
    if re.search(r"%[-+ #0]*(\d{4}|\*)|%[^a-z%]*\.(\d{4}|\*)|\{[^}]*(\d{4}|\{)", text):
        raise TemplateError("the chat template formats with a huge width", _ADVICE)


def _check_binop(budget: _Budget, operator: str, left: Any, right: Any) -> None:
    """An error before an operator makes something that is too large."""
    sized = (str, list, tuple)
    if operator == "*":
        for some, times in ((left, right), (right, left)):
            if isinstance(some, sized) and isinstance(times, int):
                budget.sized(len(some) * max(times, 0))
                budget.spend(len(some) * max(times, 0) // _part(some))
    if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
        budget.sized(len(left) + len(right))
        budget.spend(_cost(left) + _cost(right))
    if operator == "%" and isinstance(left, str):
        budget.checked([left, right])
        _check_widths(left)
    if isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
        _check_bits(left.bit_length() * (abs(right) if operator == "**" else 1))


def _check_bits(bits: int) -> None:
    if bits > MOST_BITS:
        raise TemplateError("the chat template makes a number of too many letters", _ADVICE)


def _bounded(environment: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test whose work is counted, with its own marks of what Jinja hands it."""
    from functools import wraps

    passed = getattr(function, "jinja_pass_arg", None)

    @wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        budget = environment.budget
        budget.step()
        values = given[1:] if passed is not None else given
        if name in SHALLOW:
            return function(*given, **named)
        budget.checked([*values, *named.values()])
        _check_filter(budget, name, values, named)
        if name == "replace" and isinstance(values[0], str):
            _check_text(budget, values[0], "replace", values[1:])
        if name == "join" and len(values) > 1 and isinstance(values[0], list | tuple | str):
            budget.sized(len(values[0]) * len(str(values[1])))
        if name in ("indent", "tojson"):
            widths = [w for w in (*values[1:], *named.values()) if isinstance(w, int | str)]
            if any((w if isinstance(w, int) else len(w)) > MOST_WIDTH for w in widths):
                raise TemplateError("the chat template indents too far", _ADVICE)
        found = function(*given, **named)
        return budget.checked(found) if isinstance(found, str | list) else found

    return run


def _check_filter(
    budget: _Budget, name: str, values: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """An error before a filter does more than look at each part a few times."""
    size = _cost(values[0]) if values else 0
    if name in ("sort", "dictsort", "groupby", "unique", "max", "min"):
        budget.spend(4 * size)
    elif name == "sum" and any(isinstance(n, list | tuple) for n in (*values[1:], *named.values())):
        budget.spend(size * size)  # each list is added to a copy of those before
    elif name == "round" and any(
        isinstance(n, int) and abs(n) > 300 for n in (*values[1:], *named.values())
    ):
        raise TemplateError("the chat template rounds to too many digits", _ADVICE)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
             separators: Any = None, sort_keys: bool = False) -> str:  # fmt: skip
    """JSON without escapes for HTML, as chat templates expect it."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: Any) -> None:
    raise TemplateError(
        f"the chat template refuses the conversation: {str(message)[:300]}",
        "look at the roles and their order",
    )
