"""The server's paths: OpenAI's forms, streams, errors, limits, and many clients at once."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.samples import gguf_of

from .serving import Client, served, tiny

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytestmark = pytest.mark.device("first")

TEXT, CHAT, EMBED = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
TOLD = [{"role": "user", "content": "the rest"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Any]:
    with served(model) as found:
        yield found


@pytest.fixture
def client(server: Any) -> Iterator[Client]:
    found = Client(server.port)
    yield found
    found.close()


def test_a_text_comes_whole_or_in_parts_and_is_the_same(client: Client) -> None:
    body = {"prompt": "the tin", "max_tokens": 12, "seed": 4, "model": "tiny", "logprobs": 1}
    status, whole = client.ask(TEXT, body)
    assert status == 200 and whole["object"] == "text_completion" and whole["id"][:5] == "cmpl-"
    choice = whole["choices"][0]
    assert choice["finish_reason"] in ("length", "stop")
    written = whole["usage"]["completion_tokens"]
    assert len(choice["logprobs"]["token_logprobs"]) >= written > 0
    more = {"stream_options": {"include_usage": True}}
    events = list(client.stream(TEXT, body | more))
    assert events.pop() == "[DONE]"
    parts = [json.loads(one) for one in events]
    assert parts.pop()["usage"] == whole["usage"]
    assert "".join(p["choices"][0]["text"] for p in parts) == choice["text"]
    assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_a_conversation_is_answered_in_the_forms_of_chat(client: Client) -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "rest"}]
    body = {"messages": TOLD, "max_tokens": 8, "temperature": 0}
    status, whole = client.ask(CHAT, body)
    assert status == 200 and whole["object"] == "chat.completion"
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    same = client.ask(CHAT, body | {"messages": [{"role": "user", "content": parts}]})[1]
    assert same["choices"][0]["message"] == message
    events = [json.loads(one) for one in client.stream(CHAT, body) if one != "[DONE]"]
    deltas = [one["choices"][0]["delta"] for one in events]
    assert deltas[0]["role"] == "assistant" and events[0]["object"] == "chat.completion.chunk"
    assert "".join(d.get("content", "") for d in deltas) == message["content"]


def test_several_prompts_and_choices_have_seeds_of_their_own(client: Client) -> None:
    body = {"prompt": ["the tin", [5, 17, 3]], "n": 2, "max_tokens": 6, "seed": 7}
    choices = client.ask(TEXT, body)[1]["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    second = client.ask(TEXT, {"prompt": [5, 17, 3], "max_tokens": 6, "seed": 8})[1]
    assert choices[3]["text"] == second["choices"][0]["text"]
    assert choices[0]["text"] != choices[1]["text"]


def test_models_health_embeddings_and_metrics(client: Client) -> None:
    assert client.ask("/v1/models")[1]["data"][0]["id"] == "tiny"
    assert client.ask("/v1/models/tiny")[0] == 200
    assert client.ask("/v1/models/other")[1]["error"]["code"] == "model_not_found"
    assert client.ask("/health") == (200, {"status": "ok"})
    status, found = client.ask(EMBED, {"input": ["the tin", "then", "the tin"]})
    vectors = [np.array(one["embedding"]) for one in found["data"]]
    assert status == 200 and vectors[0].shape == (64,) and found["usage"]["prompt_tokens"] > 0
    assert abs(np.linalg.norm(vectors[1]) - 1) < 1e-5 and (vectors[0] == vectors[2]).all()
    packed = client.ask(EMBED, {"input": "then", "encoding_format": "base64"})[1]["data"][0]
    raw = np.frombuffer(base64.b64decode(packed["embedding"]), np.float32)
    assert np.abs(raw - vectors[1]).max() < 1e-6
    text = client.ask("/metrics")[1]
    assert 'fulgurite_requests_total{path="/v1/embeddings",status="200"} 2' in text
    assert "fulgurite_slots 4\n" in text and "fulgurite_request_seconds_count" in text


def test_a_schema_makes_the_text_json(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    body = {"messages": TOLD, "max_tokens": 60, "response_format": form, "seed": 1}
    choice = client.ask(CHAT, body)[1]["choices"][0]
    found = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop" and set(found) == {"a", "b"}
    form["json_schema"]["schema"] = {"type": "string", "pattern": "a"}  # type: ignore[index]
    status, wrong = client.ask(CHAT, body)
    assert status == 400 and "'pattern'" in wrong["error"]["message"]


WRONG: list[tuple[str, Any, str]] = [
    (TEXT, "{", "no JSON"),
    (TEXT, "[" * 100000, "no JSON"),
    (TEXT, b"\xff\xfe\x00", "no JSON"),
    (TEXT, "[1]", "JSON object"),
    (TEXT, {}, "'prompt'"),
    (TEXT, {"prompt": []}, "'prompt'"),
    (TEXT, {"prompt": ["a", 3]}, "no tokens"),
    (TEXT, {"prompt": [3, 400]}, "none of 300"),
    (TEXT, {"prompt": [-1]}, "none of 300"),
    (TEXT, {"prompt": [5] * 2048}, "context has 2048"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, "'max_tokens'"),
    (TEXT, {"prompt": "a", "max_tokens": "9"}, "'max_tokens'"),
    (TEXT, {"prompt": "a", "temperature": -1}, "'temperature'"),
    (TEXT, '{"prompt": "a", "temperature": NaN}', "'temperature'"),
    (TEXT, {"prompt": "a", "top_p": 2}, "'top_p'"),
    (TEXT, {"prompt": "a", "n": 1000}, "'n'"),
    (TEXT, {"prompt": "a", "stop": [""]}, "'stop'"),
    (TEXT, {"prompt": "a", "stop": 3}, "'stop'"),
    (TEXT, {"prompt": "a", "seed": 0.5}, "'seed'"),
    (TEXT, {"prompt": "a", "logit_bias": {"x": 1}}, "'logit_bias'"),
    (TEXT, {"prompt": "a", "logit_bias": {"999": 1}}, "'logit_bias'"),
    (TEXT, {"prompt": "a", "echo": True}, "'echo' is not supported"),
    (TEXT, {"prompt": "a", "stream": "yes"}, "'stream'"),
    (CHAT, {"messages": []}, "'messages'"),
    (CHAT, {"messages": ["a"]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "no text"),
    (CHAT, {"messages": TOLD, "response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"messages": TOLD, "tools": {}}, "'tools'"),
    (CHAT, {"messages": TOLD, "tool_choice": "required"}, "'tool_choice'"),
    (CHAT, {"messages": TOLD, "tool_choice": {"type": "function"}}, "'tool_choice'"),
    (CHAT, {"messages": TOLD, "modalities": ["text", "audio"]}, "'modalities'"),
    (CHAT, {"messages": TOLD, "logprobs": True, "top_logprobs": 21}, "'top_logprobs'"),
    (CHAT, {"messages": TOLD, "top_logprobs": 2}, "'top_logprobs' needs"),
    (TEXT, {"prompt": "a", "logprobs": 21}, "'logprobs'"),
    (TEXT, {"prompt": "a", "logprobs": -1}, "'logprobs'"),
    (TEXT, {"prompt": "a", "model": 5}, "'model'"),
    (TEXT, {"prompt": "a", "repetition_penalty": 0}, "'repetition_penalty'"),
    (TEXT, {"prompt": ["a"] * 5, "n": 16}, "80 texts; this server has room for 68"),
    (TEXT, {"prompt": "\ud800 a"}, "'prompt' has U+D800, half of a surrogate pair"),
    (TEXT, {"prompt": ["a", "\udfff"]}, "'prompt' has U+DFFF"),
    (TEXT, b'{"prompt": "\xed\xa0\x80"}', "'prompt' has U+D800"),
    (TEXT, {"prompt": "a", "stop": "\udc00"}, "'stop' has U+DC00"),
    (TEXT, {"prompt": "a", "model": "\udc00"}, "'model' has U+DC00"),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800 a"}]}, "'messages' has U+D800"),
    (CHAT, {"messages": [{"role": "\ud800", "content": "a"}]}, "'messages' has U+D800"),
    (CHAT, {"messages": TOLD, "tools": [{"\ud800": 1}]}, "'tools' has U+D800"),
    (EMBED, {"input": ["a", "\ud800 a"]}, "'input' has U+D800"),
    (EMBED, {"input": 3}, "'input'"),
    (EMBED, {"input": "a", "encoding_format": "x"}, "'encoding_format'"),
]


def test_bad_requests_are_clear_errors_in_openais_form(client: Client) -> None:
    for path, body, text in WRONG:
        status, found = client.ask(path, body)
        assert status == 400 and set(found["error"]) == {"message", "type", "param", "code"}, body
        assert text in found["error"]["message"], found
        assert found["error"]["type"] == "invalid_request_error"
    status, found = client.ask("/v1/nowhere")
    assert status == 404 and TEXT in found["error"]["message"] and client.ask(TEXT)[0] == 405
    assert client.ask(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200


def test_a_model_of_another_name_is_not_found_and_pairs_of_surrogates_are_letters(
    client: Client,
) -> None:
    for path, body in (
        (TEXT, {"prompt": "a"}),
        (CHAT, {"messages": TOLD}),
        (EMBED, {"input": "a"}),
    ):
        status, found = client.ask(path, body | {"model": "gpt-4"})
        assert status == 404 and found["error"]["code"] == "model_not_found"
        assert "'tiny'" in found["error"]["message"]
        assert client.ask(path, body | {"model": None, "max_tokens": 1})[0] == 200
    assert client.ask(TEXT, '{"prompt": "\\ud83d\\ude00 a", "max_tokens": 1}')[0] == 200
    more = {"tool_choice": "none", "tools": [{"type": "function"}], "modalities": ["text"]}
    assert client.ask(CHAT, {"messages": TOLD, "max_tokens": 1, "logprobs": True} | more)[0] == 200


def until(what: Any) -> None:
    ends = time.monotonic() + 20
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_who_leaves_frees_a_slot_and_a_full_queue_says_so(model: Any) -> None:
    with served(model, slots=4, queue=1, api_key="k", timeout=30) as server:
        long = {"prompt": "the", "max_tokens": 1500, "ignore_eos": True}
        key = {"Authorization": "Bearer k"}
        clients = [Client(server.port) for _ in range(5)]
        assert clients[0].ask(TEXT, long)[0] == 401
        for number, one in enumerate(clients):
            one.http.request("POST", TEXT, json.dumps(long | {"stream": number % 2 == 0}), key)
            until(lambda n=number: server.engine.active + server.engine.waiting == n + 1)
        last = Client(server.port)
        status, found = last.ask(TEXT, long, key)
        assert status == 429 and found["error"]["type"] == "rate_limit_error"
        for one in clients:
            one.close()
        until(lambda: server.engine.active + server.engine.waiting == 0)
        assert last.ask(TEXT, {"prompt": "the", "max_tokens": 2}, key)[0] == 200
        last.close()


def test_a_request_that_takes_too_long_ends_with_an_error(model: Any) -> None:
    with served(model, timeout=0.05) as server:
        client = Client(server.port)
        long = {"prompt": "the", "max_tokens": 1500, "ignore_eos": True}
        status, found = client.ask(TEXT, long)
        assert status == 504 and found["error"]["code"] == "timeout"
        last = list(client.stream(TEXT, long))[-1]
        assert json.loads(last)["error"]["code"] == "timeout"
        until(lambda: server.engine.active == 0)
        client.close()


def test_the_most_likely_tokens_are_told_in_both_forms(client: Client) -> None:
    plain = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    one = client.ask(TEXT, plain | {"prompt": "the", "logprobs": 3})[1]["choices"][0]
    found = one["logprobs"]
    assert [len(top) for top in found["top_logprobs"]] == [3] * 6
    for token, logprob, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):  # the chosen one is the first of them
        assert next(iter(top)) == token and top[token] == pytest.approx(logprob, abs=1e-5)
        assert list(top.values()) == sorted(top.values(), reverse=True)
    assert found["text_offset"][0] == 0 and found["text_offset"] == sorted(found["text_offset"])
    asked = plain | {"prompt": "the", "logprobs": 3}
    parts = [json.loads(e)["choices"][0] for e in client.stream(TEXT, asked) if e != "[DONE]"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [x for part in parts for x in part["logprobs"][name]] == found[name]
    chat = plain | {"messages": TOLD, "logprobs": True, "top_logprobs": 2, "temperature": 5}
    content = client.ask(CHAT, chat | {"seed": 3})[1]["choices"][0]["logprobs"]["content"]
    assert len(content) == 6 and all(len(one["top_logprobs"]) == 2 for one in content)
    for one in content:
        assert one["logprob"] <= one["top_logprobs"][0]["logprob"] + 1e-5
        assert bytes(one["bytes"]).decode(errors="backslashreplace") == one["token"]
    none = client.ask(CHAT, plain | {"messages": TOLD, "logprobs": True})[1]["choices"][0]
    assert [one["top_logprobs"] for one in none["logprobs"]["content"]] == [[]] * 6


def test_an_end_is_no_token_of_the_text(client: Client) -> None:
    asked = {"prompt": "the", "logprobs": 1, "logit_bias": {"2": 100}, "temperature": 0}
    status, found = client.ask(TEXT, asked)
    assert status == 200 and found["usage"]["completion_tokens"] == 0
    assert found["choices"][0]["logprobs"] is None


def test_who_leaves_while_embeddings_wait_is_not_worked_for(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(model, slots=1, queue=8) as server:
        begun, go_on, texts = threading.Event(), threading.Event(), []
        own = server.engine._embed

        def embed(*given: Any) -> Any:
            texts.append(given[1][0, 1])
            begun.set()
            go_on.wait(20)
            return own(*given)

        monkeypatch.setattr(server.engine, "_embed", embed)
        first, second, third = (Client(server.port) for _ in range(3))
        first.http.request("POST", EMBED, json.dumps({"input": [[1, 5], [1, 6]]}))
        assert begun.wait(20)
        second.http.request("POST", EMBED, json.dumps({"input": [1, 7]}))
        until(lambda: len(server.engine._jobs) == 1)
        third.http.request("POST", EMBED, json.dumps({"input": [1, 8]}))
        until(lambda: len(server.engine._jobs) == 2)
        first.close()  # while its first text is embedded
        second.close()  # while it waits
        until(lambda: sum(job.is_cancelled for job in tuple(server.engine._jobs)) == 1)
        until(lambda: left_count(server) == 2)
        go_on.set()
        answer = third.http.getresponse()
        assert answer.status == 200 and len(json.loads(answer.read())["data"]) == 1
        third.close()
        assert texts == [5, 8]


def left_count(server: Any) -> int:
    """How many clients did not wait, as `/metrics` says."""
    client = Client(server.port)
    text = client.ask("/metrics")[1]
    client.close()
    return int(re.search(r"cancelled_total (\d+)", text)[1])  # type: ignore[index]


def test_a_body_that_does_not_come_is_ended(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fulgurite.serve import app

    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
    with served(model) as server:
        gone = socket.create_connection(("127.0.0.1", server.port))
        gone.sendall(head)
        gone.close()  # in the middle of it
        until(lambda: left_count(server) == 1)
        assert "Traceback" not in caplog.text and not caplog.records
        monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
        slow = socket.create_connection(("127.0.0.1", server.port))
        slow.sendall(head)
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
        slow.close()


def test_embeddings_that_take_too_long_end_with_the_same_error(model: Any) -> None:
    with served(model, timeout=1e-9) as server:
        client = Client(server.port)
        status, found = client.ask(EMBED, {"input": ["the tin", "then"]})
        assert status == 504 and found["error"]["code"] == "timeout"
        client.close()


@pytest.mark.parametrize(
    "seconds", [pytest.param(20.0), pytest.param(600.0, marks=pytest.mark.slow)]
)
def test_many_clients_at_once_get_what_each_would_get_alone(model: Any, seconds: float) -> None:
    with served(model, slots=None) as server:
        _soak(server, seconds)


def _soak(server: Any, seconds: float) -> None:
    """32 clients for a while: nothing lost or mixed up, memory flat, slots that are full."""
    chance, engine = random.Random(5), server.engine
    asked = []
    for number in range(24):
        prompt = [chance.randrange(3, 290) for _ in range(chance.choice([1, 3, 17, 40, 150]))]
        if number % 3 == 0:
            prompt = list(range(20, 60)) + prompt[:20]  # several begin in the same way
        body = {"prompt": prompt, "max_tokens": chance.randrange(1, 24), "seed": number}
        asked.append(body | {"temperature": chance.choice([0, 0.9]), "ignore_eos": True})
    alone = Client(server.port)
    texts = [alone.ask(TEXT, body)[1]["choices"][0]["text"] for body in asked]
    steps, tokens = engine.steps, engine.chosen_tokens
    began = time.process_time(), time.monotonic()
    assert texts == [alone.ask(TEXT, body)[1]["choices"][0]["text"] for body in asked]
    lone = _rates(engine, steps, tokens, *began)
    ends, wrong, counts, firsts = time.monotonic() + seconds, [], [0] * 4, []

    def work(seed: int) -> None:
        chance, client = random.Random(seed), Client(server.port)
        while time.monotonic() < ends:
            number, kind = chance.randrange(len(asked)), chance.randrange(8)
            body = asked[number]
            try:
                if kind == 0:
                    status = client.ask(TEXT, body | {"temperature": "hot"})[0]
                    wrong.extend([] if status == 400 else [f"bad request: {status}"])
                    counts[0] += 1
                elif kind == 1:  # leaves in the middle of a stream
                    began = client.stream(TEXT, body | {"max_tokens": 500})
                    next(began)
                    client.close()
                    client = Client(server.port)
                    counts[1] += 1
                elif kind < 5:
                    began_at = time.monotonic()
                    parts = []
                    for event in client.stream(TEXT, body):
                        parts.append(event)
                        if len(parts) == 1:
                            firsts.append(time.monotonic() - began_at)
                    assert parts.pop() == "[DONE]"
                    text = "".join(json.loads(p)["choices"][0]["text"] for p in parts)
                    wrong.extend([] if text == texts[number] else [f"{number}: {text!r}"])
                    counts[2] += 1
                else:
                    status, found = client.ask(TEXT, body)
                    text = found["choices"][0]["text"]
                    wrong.extend([] if text == texts[number] else [f"{number}: {text!r}"])
                    counts[3] += 1
            except Exception as error:
                wrong.append(repr(error))
                client.close()
                client = Client(server.port)
        client.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
    for one in threads:
        one.start()
    time.sleep(seconds / 4)  # until everything that is made once is made
    held, steps, tokens = _resident(), engine.steps, engine.chosen_tokens
    began = time.process_time(), time.monotonic()
    time.sleep(seconds / 2)
    together, grown = _rates(engine, steps, tokens, *began), _resident() - held
    for one in threads:
        one.join()
    assert not wrong, wrong[:5]
    assert grown < 32 << 20, f"{grown} bytes more"
    assert together[0] > 4 * lone[0], "tokens of a step"
    until(lambda: server.engine.active + server.engine.waiting == 0)
    assert all(counts)
    late = np.percentile(firsts, 99) if firsts else 0
    print(
        f"bad, left, streamed, whole: {counts} in {seconds} s; 99 % of first tokens within "
        f"{late:.2f} s; tokens of a step, of a second and of one of processor time, alone and "
        f"together: {lone}, {together}; {grown >> 10} KiB more memory"
    )
    alone.close()


def _rates(engine: Any, steps: int, tokens: int, busy: float, start: float) -> tuple[float, ...]:
    """Tokens of a step, and of a second and one of processor time with clients, since then."""
    count = engine.chosen_tokens - tokens
    times = engine.steps - steps, time.monotonic() - start, time.process_time() - busy
    return tuple(round(count / one, 1) for one in times)


def _resident() -> int:
    """Bytes of memory that this process has; 0 where nobody says."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def test_the_command_serves_and_ends_its_texts_when_it_is_told_to_stop(tmp_path: Path) -> None:
    path = gguf_of(tmp_path / "small.gguf")
    command = [sys.executable, "-m", "fulgurite", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--slots", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("small.gguf at http://127.0.0.1:"), process.stderr
        client = Client(int(line.split(":")[2].split("/")[0]))
        events = client.stream(TEXT, {"prompt": "the", "max_tokens": 40, "ignore_eos": True})
        next(events)
        process.send_signal(signal.SIGTERM)
        rest = list(events)
        assert rest[-1] == "[DONE]" and '"finish_reason": "length"' in rest[-2]
        assert process.wait(30) == 0
        client.close()
    finally:
        process.kill()
        process.communicate()
