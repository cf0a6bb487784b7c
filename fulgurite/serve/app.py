"""The ASGI application: OpenAI's paths over an `Engine`, with streams, errors and counts.

In: HTTP. Out: JSON, server-sent events, or the chat page. The event loop only moves messages; all
work on tensors is the engine's. A client that goes away cancels its texts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import FulguriteError
from ..models.generate import Token
from ..models.templates import ChatTemplate, TemplateError, chat_ids, template_for
from .engine import Busy, Engine, Failure, Request
from .metrics import Metrics
from .requests import Asked, BadRequest, Body, asked, messages, prompts, tools

PAGE = Path(__file__).parent / "page.html"
MOST_BYTES = 16 << 20  # of a request
BODY_SECONDS = 120.0  # in which they must come
SHORT_TEXT = 4096  # letters that are cut into tokens at once, without a thread for it
STATUS = {"timeout": 504, "stopped": 503, "error": 500}
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/models", "/health")


@dataclass(frozen=True)
class Settings:
    """How a server behaves."""

    name: str = "fulgurite"  # the model's name, as clients see it
    timeout: float = 600.0  # seconds that a request may take, waiting included
    api_key: str | None = None
    template: str | None = None  # a chat template instead of the file's
    stop_within: float = 30.0  # seconds that texts have to end when the server stops


def error_body(text: str, kind: str, param: str | None = None, code: str | None = None) -> Any:
    """An error in OpenAI's form."""
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def _error(error: BadRequest) -> JSONResponse:
    kind = {429: "rate_limit_error", 401: "authentication_error"}.get(error.status)
    kind = kind or ("invalid_request_error" if error.status < 500 else "server_error")
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    body = error_body(error.text, kind, error.param, error.code)
    return JSONResponse(body, error.status, headers)


class Service:
    """What the paths do."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings, self.model = engine, settings, engine.model
        self.metrics, self.started = Metrics(), int(time.time())
        self._template: ChatTemplate | None = None
        self._mail: _Mail | None = None

    @property
    def template(self) -> ChatTemplate:
        """The chat template."""
        if self._template is None:
            self._template = template_for(self.model, self.settings.template)
        return self._template

    # --- paths ---------------------------------------------------------------------------------

    async def completions(self, http: HttpRequest) -> Any:
        """`/v1/completions`: go on with texts."""
        body = await self._body(http)
        what = asked(body, self.model.config.vocabulary)
        if body.data.get("max_tokens") is None and what.options.max_tokens is None:
            what = replace(what, options=replace(what.options, max_tokens=16))
        ids = [await self._ids(one) for one in prompts(body.data.get("prompt"))]
        return await self._answer(http, what, ids, _Completion(self.settings.name))

    async def chat(self, http: HttpRequest) -> Any:
        """`/v1/chat/completions`: answer a conversation."""
        body = await self._body(http)
        what = asked(body, self.model.config.vocabulary)
        some = messages(body.data.get("messages"))
        told = tools(body)
        try:
            ids = await run_in_threadpool(chat_ids, self.model, self.template, some, tools=told)
        except TemplateError as error:
            raise BadRequest(error.what, "messages") from None
        if self.template.is_plain:
            stops = (*what.options.stop, "\nuser:")
            what = replace(what, options=replace(what.options, stop=stops))
        self._check(ids, "messages")
        return await self._answer(http, what, [ids], _Chat(self.settings.name))

    async def embeddings(self, http: HttpRequest) -> Any:
        """`/v1/embeddings`: the mean of a text's vectors, of length one."""
        body = await self._body(http)
        form = body.text("encoding_format") or "float"
        if form not in ("float", "base64"):
            raise BadRequest("'encoding_format' must be float or base64", "encoding_format")
        body.refuse("dimensions")
        ids = [await self._ids(one, "input") for one in prompts(body.data.get("input"), "input")]
        data = []
        try:
            vectors = await self._vectors(http, ids)
        except _Left:
            self.metrics.left()
            return PlainTextResponse("", 499)  # nobody reads it
        for number, vector in enumerate(vectors):
            raw = np.asarray(vector, np.float32)
            shown: Any = (
                base64.b64encode(raw.tobytes()).decode() if form == "base64" else raw.tolist()
            )
            data.append({"object": "embedding", "index": number, "embedding": shown})
        count = sum(map(len, ids))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse(
            {"object": "list", "data": data, "model": self.settings.name, "usage": usage}
        )

    async def _vectors(self, http: HttpRequest, ids: list[list[int]]) -> list[Any]:
        """The vectors of texts, one after the other, until the client leaves."""
        deadline, found = time.monotonic() + self.settings.timeout, []
        inbox = _Inbox()
        with inbox.watching(http.receive):
            for one in ids:
                job = self.engine.embed(one, _setter(asyncio.get_running_loop(), inbox), deadline)
                try:
                    ((_, vector),) = await inbox.take()
                finally:
                    self.engine.cancel(job)
                if isinstance(vector, Failure):
                    raise BadRequest(vector.text, None, STATUS.get(vector.kind, 500), vector.kind)
                found.append(vector)
        return found

    async def models(self, http: HttpRequest) -> Any:
        """`/v1/models`: the one there is."""
        one = {
            "id": self.settings.name, "object": "model", "created": self.started,
            "owned_by": "fulgurite", "context_length": self.model.config.context,
        }  # fmt: skip
        name = http.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [one]})
        self._check_name(name)
        return JSONResponse(one)

    async def health(self, http: HttpRequest) -> Any:
        """`/health`: 200 while it takes requests."""
        fine = self.engine.is_alive
        return JSONResponse({"status": "ok" if fine else "stopping"}, 200 if fine else 503)

    async def numbers(self, http: HttpRequest) -> Any:
        """`/metrics`: in Prometheus' format."""
        e = self.engine
        counters = {
            "fulgurite_prompt_tokens_total": e.prompt_tokens,
            "fulgurite_reused_prompt_tokens_total": e.reused_tokens,
            "fulgurite_generated_tokens_total": e.chosen_tokens,
            "fulgurite_steps_total": e.steps,
        }
        gauges = {
            "fulgurite_slots": e.slots, "fulgurite_slots_active": e.active,
            "fulgurite_requests_waiting": e.waiting,
        }  # fmt: skip
        text = self.metrics.text(counters, gauges)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def page(self, http: HttpRequest) -> Any:
        """`/`: the chat page."""
        own = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'"}
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=own)

    # --- their parts ---------------------------------------------------------------------------

    async def _body(self, http: HttpRequest) -> Body:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                parts = await _parts(http)
        except TimeoutError:
            raise BadRequest("the body did not come to its end", None, 408, "timeout") from None
        try:
            data = json.loads(b"".join(parts))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is no JSON: {str(error)[:200]}") from None
        body = Body(data)
        name = body.text("model")
        if name is not None:
            self._check_name(name)
        return body

    def _check_name(self, name: str) -> None:
        if name != self.settings.name:
            text = f"there is no model {name[:100]!r}; there is {self.settings.name!r}"
            raise BadRequest(text, "model", 404, "model_not_found")

    async def _ids(self, one: str | list[int], name: str = "prompt") -> list[int]:
        if isinstance(one, list):
            ids = one
        elif len(one) <= SHORT_TEXT:
            ids = self.model.encode(one)
        else:
            ids = await run_in_threadpool(self.model.encode, one)
        self._check(ids, name)
        return ids

    def _check(self, ids: list[int], name: str) -> None:
        c = self.model.config
        if not ids:
            raise BadRequest(f"'{name}' has no tokens", name)
        if len(ids) >= c.context:
            text = f"'{name}' has {len(ids)} tokens; this model's context has {c.context}"
            raise BadRequest(text, name, 400, "context_length_exceeded")
        if min(ids) < 0 or max(ids) >= c.vocabulary:
            raise BadRequest(f"'{name}' has a token that is none of {c.vocabulary}", name)

    async def _answer(self, http: HttpRequest, what: Asked, ids: list[list[int]], form: Any) -> Any:
        """Submit a text for each choice of each prompt, and answer with them."""
        count, most = len(ids) * what.count, self.engine.slots + self.engine.queue
        if count > most:
            text = f"'n' times the prompts are {count} texts; this server has room for {most}"
            raise BadRequest(text, "n")
        inbox = _Inbox()
        names = await run_in_threadpool(_Names, self.model) if what.has_logprobs else None
        requests = []
        deadline = time.monotonic() + self.settings.timeout
        for number in range(count):
            options, choice = what.options, number % what.count
            if options.seed is not None and choice:
                options = replace(options, seed=options.seed + choice)
            grammar = None
            if what.response_format is not None:
                grammar = await run_in_threadpool(self._grammar, what.response_format)
            put = self._putter(inbox, number, what.is_stream)
            requests.append(Request(ids[number // what.count], options, put, deadline, grammar))
        self.engine.submit(*requests)
        work = _Work(self, requests, inbox, sum(map(len, ids)))
        if what.is_stream:
            return _Events(work, _stream(work, what, form, names))
        try:
            with inbox.watching(http.receive):
                return _json(await _collect(work, form, names))
        except _Left:
            return PlainTextResponse("", 499)  # nobody reads it
        finally:
            work.end()

    def _putter(self, inbox: _Inbox, number: int, is_stream: bool) -> Callable[[Any], None]:
        """What takes a text's tokens to the event loop: each at once, or all of them at the end."""
        loop = asyncio.get_running_loop()
        if self._mail is None or self._mail.loop is not loop:
            self._mail = _Mail(loop)
            self.engine.told = self._mail.send
        held, items = list[Any](), self._mail.items

        def deliver(value: Token | Failure) -> None:
            if is_stream:
                items.append((inbox, number, value))
                return
            held.append(value)
            if isinstance(value, Failure) or value.finish_reason is not None:
                items.extend((inbox, number, one) for one in held)

        return deliver

    def _grammar(self, schema: Any) -> Any:
        from ..models.constrain import Constraint, SchemaError

        try:
            return Constraint(schema, self.model)
        except SchemaError as error:
            raise BadRequest(error.what, "response_format") from None


async def _parts(http: HttpRequest) -> list[bytes]:
    """The parts of a body that is not too large."""
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise BadRequest(f"the body is larger than {MOST_BYTES} bytes", None, 413)
        parts.append(part)
    return parts


_NO_CACHE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def _setter(loop: Any, inbox: _Inbox) -> Callable[[Any], None]:
    """What takes one thing to an inbox, from another thread."""

    def done(value: Any) -> None:
        inbox.items.append((0, value))
        inbox.wake()

    def deliver(value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done, value)

    return deliver


class _Mail:
    """Takes what the engine found to the event loop, which is woken once for all of a round."""

    def __init__(self, loop: Any) -> None:
        self.loop, self.items = loop, deque[tuple[_Inbox, int, Token | Failure]]()

    def send(self) -> None:
        """Wake the event loop if there is something for it; the engine's thread does."""
        if self.items:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self.empty)

    def empty(self) -> None:
        """Put everything into its inbox; the event loop does."""
        woken: dict[_Inbox, None] = {}
        while self.items:
            inbox, number, value = self.items.popleft()
            inbox.items.append((number, value))
            woken[inbox] = None
        for inbox in woken:
            inbox.wake()


class _Left(Exception):
    """The client went away."""


class _Inbox:
    """What came for one HTTP request, with the number of the text, and its task that waits."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Any]] = []  # tokens, vectors and failures
        self.waiter: asyncio.Future[None] | None = None
        self.is_left = False

    def wake(self) -> None:
        """Let the task that waits go on."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> list[tuple[int, Any]]:
        """Everything that came; waits for it, until the client goes away."""
        while not self.items and not self.is_left:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self.is_left:
            raise _Left
        found, self.items = self.items, []
        return found

    @contextlib.contextmanager
    def watching(self, receive: Receive) -> Iterator[None]:
        """Notice a client that leaves: after the body nothing else is received."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.is_left = True
            self.wake()

        task = asyncio.create_task(gone())
        try:
            yield
        finally:
            task.cancel()


@dataclass(eq=False)
class _Work:
    """The texts of one HTTP request."""

    service: Service
    requests: list[Request]
    inbox: _Inbox
    prompt_tokens: int
    count: int = 0  # tokens that were written
    first: float | None = None
    left: int = field(init=False)  # texts that have not ended

    def __post_init__(self) -> None:
        self.left = len(self.requests)

    async def tokens(self) -> list[tuple[int, Token]]:
        """Tokens that came, with the number of their text; none once all texts have ended."""
        if self.left == 0:
            return []
        found = []
        for number, event in await self.inbox.take():
            if isinstance(event, Failure):
                raise BadRequest(event.text, None, STATUS.get(event.kind, 500), event.kind)
            self.count += not self.is_end(event)
            self.left -= event.finish_reason is not None
            found.append((number, event))
        if self.first is None:
            self.first = time.monotonic() - self.requests[0].submitted
        return found

    def is_end(self, token: Token) -> bool:
        """True if a token only says that the text is over."""
        return token.finish_reason == "stop" and token.id in self.service.model.config.eos

    def logprobs(self, tokens: list[Token], names: _Names | None, form: Any, start: int = 0) -> Any:
        """Log-probabilities of the tokens that are written, if they are asked for."""
        some = [token for token in tokens if not self.is_end(token)]
        return form.logprobs(some, names, start) if names and some else None

    def usage(self) -> dict[str, int]:
        """How many tokens were read and written."""
        return {
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.count,
            "total_tokens": self.prompt_tokens + self.count,
        }  # fmt: skip

    def end(self) -> None:
        """Give the slots back, whatever happened."""
        if self.left:
            for request in self.requests:
                self.service.engine.cancel(request)
        if self.inbox.is_left and self.left:
            self.service.metrics.left()
        self.service.metrics.took(self.first, time.monotonic() - self.requests[0].submitted)


class _Names:
    """What tokens are called in answers: their own bytes, or the name of a special one."""

    def __init__(self, model: Any) -> None:
        from ..models.constrain import words_of

        self.words, self.inner = words_of(model), model.tokenizer.inner

    def bytes(self, token: int) -> bytes:
        """Those of a token."""
        own = self.words[token].encode("latin-1")
        return own or (self.inner.id_to_token(token) or "").encode()

    def text(self, token: int) -> str:
        """The text of a token; bytes that are parts of a letter as `\\xf0`."""
        return self.bytes(token).decode(errors="backslashreplace")

    def told(self, token: int, logprob: float) -> dict[str, Any]:
        """A token as chats have it."""
        own = list(self.bytes(token))
        return {"token": self.text(token), "logprob": logprob, "bytes": own}


class _Completion:
    """The forms of `/v1/completions`."""

    start, whole_kind, part_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: str) -> None:
        self.head = {"id": self.start + uuid.uuid4().hex, "created": int(time.time()),
                     "model": model}  # fmt: skip

    def whole(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def part(self, text: str, is_first: bool) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, tokens: list[Token], names: _Names, start: int = 0) -> Any:
        """Log-probabilities of tokens whose text begins at a place."""
        ends = accumulate((len(t.text) for t in tokens), initial=start)
        return {
            "tokens": [names.text(t.id) for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [self._top(t, names) for t in tokens] if tokens[0].top else None,
            "text_offset": list(ends)[:-1],
        }  # fmt: skip

    @staticmethod
    def _top(token: Token, names: _Names) -> dict[str, float]:
        """The most likely tokens and the chosen one; of those with one text the most likely."""
        found = {names.text(token.id): token.logprob}
        for one, logprob in token.top:
            name = names.text(one)
            found[name] = max(found.get(name, logprob), logprob)
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class _Chat(_Completion):
    """The forms of `/v1/chat/completions`."""

    start, whole_kind, part_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def part(self, text: str, is_first: bool) -> dict[str, Any]:
        first = {"role": "assistant"} if is_first else {}
        return {"delta": {**first, **({"content": text} if text or is_first else {})}}

    def logprobs(self, tokens: list[Token], names: _Names, start: int = 0) -> Any:
        return {
            "content": [
                {**names.told(t.id, t.logprob), "top_logprobs": [names.told(*o) for o in t.top]}
                for t in tokens
            ]
        }


async def _collect(work: _Work, form: _Completion, names: _Names | None = None) -> dict[str, Any]:
    """The whole answer."""
    found: list[list[Token]] = [[] for _ in work.requests]
    while some := await work.tokens():
        for number, token in some:
            found[number].append(token)
    choices = [
        {
            "index": number, **form.whole("".join(t.text for t in tokens)),
            "finish_reason": tokens[-1].finish_reason,
            "logprobs": work.logprobs(tokens, names, form),
        }
        for number, tokens in enumerate(found)
    ]  # fmt: skip
    head = {**form.head, "object": form.whole_kind}
    return {**head, "choices": choices, "usage": work.usage()}


async def _stream(
    work: _Work, what: Asked, form: _Completion, names: _Names | None = None
) -> AsyncIterator[bytes]:
    """The answer as server-sent events; those of tokens that came together are one part."""
    head = {**form.head, "object": form.part_kind}
    more = {"usage": None} if what.has_usage else {}
    start, end = _event({**head, "choices": ["|"], **more}).split(b'"|"')
    begun: Counter[int] = Counter()  # letters of each text
    try:
        while some := await work.tokens():
            parts = []
            for number, token in some:
                if not token.text and token.finish_reason is None and names is None:
                    continue
                choice = {
                    "index": number, **form.part(token.text, number not in begun),
                    "finish_reason": token.finish_reason,
                    "logprobs": work.logprobs([token], names, form, begun[number]),
                }  # fmt: skip
                begun[number] += len(token.text)
                parts.append(start + _encoded(choice) + end)
            if not work.left:
                if what.has_usage:
                    parts.append(_event({**head, "choices": [], "usage": work.usage()}))
                parts.append(b"data: [DONE]\n\n")
            if parts:
                yield b"".join(parts)
    except BadRequest as error:
        yield _event(error_body(error.text, "server_error", None, error.code))


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _encoded(data: Any) -> bytes:
    return _ENCODER.encode(data).encode()


def _event(data: Any) -> bytes:
    return b"data: " + _encoded(data) + b"\n\n"


def _json(data: Any) -> Response:
    return Response(_encoded(data), media_type="application/json")


class _Events(Response):  # type: ignore[misc]
    """A stream of events until the texts end or the client leaves."""

    def __init__(self, work: _Work, parts: AsyncIterator[bytes]) -> None:
        super().__init__(headers=_NO_CACHE, media_type="text/event-stream")
        del self.headers["content-length"]  # nobody knows it
        self.work, self.parts = work, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        part = {"type": "http.response.body", "more_body": True}
        try:
            with self.work.inbox.watching(receive):
                await send({"type": "http.response.start", "status": 200,
                            "headers": self.raw_headers})  # fmt: skip
                async for body in self.parts:
                    await send({**part, "body": body})
                await send({**part, "body": b"", "more_body": False})
        except _Left:
            pass
        finally:
            self.work.end()


class _Guard:
    """Checks the key, and counts answers by path and status."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.service.metrics.answered(path, message["status"])
            await send(message)

        key = self.service.settings.api_key
        given = dict(scope["headers"]).get(b"authorization", b"")
        is_open = not scope["path"].startswith("/v1/")
        if key is None or is_open or hmac.compare_digest(given, b"Bearer " + key.encode()):
            await self.app(scope, receive, counted)
        else:
            wrong = BadRequest("the API key is missing or wrong", None, 401, "invalid_api_key")
            await _error(wrong)(scope, receive, counted)


def make_app(engine: Engine, settings: Settings | None = None) -> Any:
    """The ASGI application of an engine."""
    service = Service(engine, settings or Settings())

    async def bad(_: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, BadRequest)
        return _error(error)

    async def busy(_: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, Busy)
        return _error(BadRequest(error.what, None, 429 if engine.is_alive else 503))

    async def ours(_: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, FulguriteError)
        return _error(BadRequest(error.what, None, 500))

    async def left(_: HttpRequest, error: Exception) -> Response:
        service.metrics.left()  # while it sent its body
        return PlainTextResponse("", 499)

    async def plain(http: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        text = str(error.detail)
        if error.status_code == 404:
            text = f"there is no {http.url.path[:100]!r}; there are {', '.join(PATHS)}"
        return _error(BadRequest(text, None, error.status_code))

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(engine.stop, service.settings.stop_within)

    app = Starlette(
        routes=[
            Route("/v1/completions", service.completions, methods=["POST"]),
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/embeddings", service.embeddings, methods=["POST"]),
            Route("/v1/models", service.models),
            Route("/v1/models/{name:path}", service.models),
            Route("/health", service.health),
            Route("/metrics", service.numbers),
            Route("/", service.page),
        ],
        exception_handlers={
            BadRequest: bad, Busy: busy, FulguriteError: ours, HTTPException: plain,
            ClientDisconnect: left,
        },
        lifespan=lifespan,
    )  # fmt: skip
    guard = _Guard(app, service)
    return guard
