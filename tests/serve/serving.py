"""A server on a thread, and a client of it, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fulgurite.models import load
from fulgurite.serve import Engine
from tests.models.samples import gguf_of

ONE: dict[str, Any] = {"llama.block_count": 1}


def tiny(folder: Path) -> Any:
    """A model with a tokeniser, small enough to serve on a thread beside its clients."""
    return load(gguf_of(folder / "tiny.gguf", **ONE))


class Client:
    """One connection to a server."""

    def __init__(self, port: int) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.answer: Any = None

    def ask(self, path: str, body: Any = None, headers: Any = None) -> tuple[int, Any]:
        """Status and answer; a body that is text is sent as it is."""
        sent = body if isinstance(body, str | bytes) or body is None else json.dumps(body)
        self.http.request("GET" if body is None else "POST", path, sent, headers or {})
        answer = self.answer = self.http.getresponse()
        data = answer.read().decode()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(data) if is_json else data

    def stream(self, path: str, body: Any) -> Iterator[Any]:
        """The events of a stream."""
        self.http.request("POST", path, json.dumps({**body, "stream": True}))
        answer = self.answer = self.http.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()

    def close(self) -> None:
        if self.answer is not None:
            self.answer.close()
        self.http.close()


@contextlib.contextmanager
def served(model: Any, slots: int | None = 4, queue: int = 64, **settings: Any) -> Iterator[Any]:
    """A running server: its `port`, `engine` and `clients`."""
    import uvicorn

    from fulgurite.serve.app import Settings, make_app

    engine = Engine(model, slots, queue)
    app = make_app(engine, Settings("tiny", **{"stop_within": 5.0, **settings}))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield type("Served", (), {"port": port, "engine": engine, "server": server})
    finally:
        server.should_exit = True
        thread.join()
