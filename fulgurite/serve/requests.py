"""What clients send, read and checked: OpenAI's fields, with an error that names the wrong one.

In: the JSON of a request. Out: prompts and `SamplingOptions`, or a `BadRequest`. Fields that would
change the answer and are not supported are errors, not silence; fields that only describe the
caller (`user`, `metadata`, `store`) are passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models.sampling import SamplingOptions

MOST_CHOICES = 16
MOST_STOPS = 16
MOST_PROMPTS = 64
MOST_LOGPROBS = 20
MOST_TEXT = 1 << 22  # letters of one request


class BadRequest(Exception):
    """A request that cannot be answered: status, what is wrong, and with which field."""

    def __init__(
        self, text: str, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(text)
        self.text, self.param, self.status, self.code = text, param, status, code


@dataclass(frozen=True)
class Asked:
    """What completions and chat completions have in common."""

    options: SamplingOptions
    count: int = 1  # texts for each prompt
    is_stream: bool = False
    has_usage: bool = False  # a stream ends with the number of tokens
    has_logprobs: bool = False
    response_format: Any = None


class Body:
    """The fields of a JSON object, each asked for by its type."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise BadRequest("the body must be a JSON object")
        self.data: dict[str, Any] = data
        for name, value in data.items():
            _check_characters(name, value)

    def _get(self, name: str, kinds: tuple[type, ...], word: str) -> Any:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise BadRequest(f"'{name}' must be {word}, not {_short(value)}", name)
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A finite number within bounds."""
        value = self._get(name, (int, float), "a number")
        if value is None:
            return default
        if not (least <= value <= most) or not math.isfinite(value):
            raise BadRequest(f"'{name}' must be from {least} to {most}, not {_short(value)}", name)
        return float(value)

    def whole(self, name: str, default: int | None, least: int, most: int) -> int | None:
        """A whole number within bounds."""
        value: int | None = self._get(name, (int,), "a whole number")
        if value is None:
            return default
        if not least <= value <= most:
            raise BadRequest(f"'{name}' must be from {least} to {most}, not {_short(value)}", name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self._get(name, (bool,), "true or false")
        return default if value is None else bool(value)

    def text(self, name: str) -> str | None:
        """A text."""
        found: str | None = self._get(name, (str,), "a string")
        return found

    def refuse(self, *names: str) -> None:
        """An error for fields that would change the answer and that nobody reads."""
        for name in names:
            if self.data.get(name) not in (None, False, 0, "", [], {}):
                raise BadRequest(f"'{name}' is not supported by this server", name)


def _check_characters(name: str, value: Any) -> None:
    """An error for halves of surrogate pairs, which JSON can have and no text in UTF-8 has."""
    if not isinstance(value, str | list | dict):
        return
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(error.object[error.start]):04X}"
        text = f"{_short(name)} has {half}, half of a surrogate pair, which is no character"
        raise BadRequest(text, _short(name)[1:-1]) from None
    except RecursionError:
        raise BadRequest(f"{_short(name)} is nested too deep", _short(name)[1:-1]) from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def asked(body: Body, vocabulary: int) -> Asked:
    """The options of a request for text."""
    most = body.whole("max_completion_tokens", None, 1, 1 << 24)
    if most is None:
        most = body.whole("max_tokens", None, 1, 1 << 24)
    count = body.whole("n", 1, 1, MOST_CHOICES) or 1
    if (body.whole("best_of", count, 1, MOST_CHOICES) or 1) != count:
        raise BadRequest("'best_of' other than 'n' is not supported", "best_of")
    body.refuse("suffix", "echo", "functions", "function_call", "audio")
    modalities = body.data.get("modalities")
    if modalities not in (None, [], ["text"]):
        raise BadRequest("'modalities' other than [\"text\"] are not supported", "modalities")
    stream = body.flag("stream")
    stream_options = body.data.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise BadRequest("'stream_options' must be an object", "stream_options")
    has_logprobs, top = _logprobs(body)
    options = SamplingOptions(
        max_tokens=most,
        temperature=body.number("temperature", 1.0, 0, 100),
        top_k=body.whole("top_k", 0, 0, 1 << 24) or 0,
        top_p=_positive(body, "top_p"),
        min_p=body.number("min_p", 0.0, 0, 1),
        repetition_penalty=body.number("repetition_penalty", 1.0, 1e-6, 100),
        presence_penalty=body.number("presence_penalty", 0.0, -2, 2),
        frequency_penalty=body.number("frequency_penalty", 0.0, -2, 2),
        stop=_stops(body.data.get("stop")),
        seed=body.whole("seed", None, 0, 1 << 63),
        ignore_eos=body.flag("ignore_eos"),
        logit_bias=_bias(body.data.get("logit_bias"), vocabulary),
        top_logprobs=min(top, vocabulary),
    )
    return Asked(
        options, count, stream, bool(stream_options.get("include_usage")),
        has_logprobs, _format(body.data.get("response_format")),
    )  # fmt: skip


def _logprobs(body: Body) -> tuple[bool, int]:
    """True if log-probabilities are asked for, and of how many tokens beside the chosen one: chats
    have a flag and `top_logprobs`, completions a number."""
    value = body.data.get("logprobs")
    top = body.whole("top_logprobs", 0, 0, MOST_LOGPROBS) or 0
    if value is None or isinstance(value, bool):
        if top and not value:
            raise BadRequest("'top_logprobs' needs 'logprobs' to be true", "top_logprobs")
        return bool(value), top
    if not isinstance(value, int):
        raise BadRequest("'logprobs' must be true, false or a number", "logprobs")
    if not 0 <= value <= MOST_LOGPROBS:
        text = f"'logprobs' must be from 0 to {MOST_LOGPROBS}, not {_short(value)}"
        raise BadRequest(text, "logprobs")
    return True, max(value, top)


def _positive(body: Body, name: str) -> float:
    return max(body.number(name, 1.0, 0, 1), 1e-9)


def _stops(value: Any) -> tuple[str, ...]:
    some = [value] if isinstance(value, str) else value or []
    if not isinstance(some, list) or not all(isinstance(one, str) and one for one in some):
        raise BadRequest("'stop' must be a string or a list of strings that are not empty", "stop")
    if len(some) > MOST_STOPS:
        raise BadRequest(f"'stop' has more than {MOST_STOPS} strings", "stop")
    return tuple(some)


def _bias(value: Any, vocabulary: int) -> dict[int, float]:
    if value is None:
        return {}
    found: dict[int, float] = {}
    try:
        for token, bias in value.items():
            if isinstance(bias, bool) or not -100 <= bias <= 100:
                raise ValueError
            found[int(token)] = float(bias)
    except (AttributeError, TypeError, ValueError):
        text = "'logit_bias' must be an object of tokens and numbers from -100 to 100"
        raise BadRequest(text, "logit_bias") from None
    if any(not 0 <= token < vocabulary for token in found):
        raise BadRequest(f"'logit_bias' has a token that is none of {vocabulary}", "logit_bias")
    return found


def _format(value: Any) -> Any:
    """The JSON schema that the text must follow: None for any text, {} for any JSON object."""
    name = "response_format"
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        inner = value.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if isinstance(schema, dict):
            return schema
        raise BadRequest("'response_format.json_schema.schema' must be a JSON schema", name)
    raise BadRequest("'response_format.type' must be text, json_object or json_schema", name)


def tools(body: Body) -> list[Any] | None:
    """The tools that the chat template is told of; the model calls one or does not."""
    found, choice = body.data.get("tools"), body.data.get("tool_choice")
    if found is not None and not isinstance(found, list):
        raise BadRequest("'tools' must be a list", "tools")
    if choice not in (None, "auto", "none"):
        text = f"'tool_choice' must be auto or none, not {_short(choice)}"
        raise BadRequest(text, "tool_choice")
    return None if choice == "none" else found or None


def prompts(value: Any, name: str = "prompt") -> list[str | list[int]]:
    """Texts or lists of tokens, of which there may be one or several."""
    found: Any = [value] if isinstance(value, str) or _are_tokens(value) else value
    if not isinstance(found, list) or not found:
        raise BadRequest(f"'{name}' must be a string, or a list of strings or tokens", name)
    if len(found) > MOST_PROMPTS:
        raise BadRequest(f"'{name}' has more than {MOST_PROMPTS} texts", name)
    for one in found:
        if not isinstance(one, str) and not _are_tokens(one):
            raise BadRequest(f"'{name}' has {_short(one)}, which is no text and no tokens", name)
    if sum(len(one) for one in found) > MOST_TEXT:
        raise BadRequest(f"'{name}' is longer than {MOST_TEXT} letters", name)
    return list(found)


def _are_tokens(value: Any) -> bool:
    """True if it is a list of whole numbers, as JSON has them."""
    return isinstance(value, list) and set(map(type, value)) == {int}


def messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a conversation; contents in parts are joined."""
    if not isinstance(value, list) or not value:
        raise BadRequest("'messages' must be a list of messages", "messages")
    found = []
    for number, one in enumerate(value):
        where = f"messages[{number}]"
        if not isinstance(one, Mapping) or not isinstance(one.get("role"), str):
            raise BadRequest(f"'{where}' must be an object with a 'role'", where)
        content = one.get("content")
        if isinstance(content, list):
            content = _joined(content, where)
        if content is None and one.get("tool_calls"):
            content = ""
        if not isinstance(content, str):
            raise BadRequest(f"'{where}.content' must be a string or a list of texts", where)
        role = "system" if one["role"] == "developer" else one["role"]
        found.append({**one, "role": role, "content": content})
    if sum(len(one["content"]) for one in found) > MOST_TEXT:
        raise BadRequest(f"'messages' are longer than {MOST_TEXT} letters", "messages")
    return found


def _joined(parts: Sequence[Any], where: str) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise BadRequest(f"'{where}.content' has a part that is no text", where)
        if not isinstance(part.get("text"), str):
            raise BadRequest(f"'{where}.content' has a text part without 'text'", where)
        texts.append(part["text"])
    return "".join(texts)
