"""`fulgurite serve`: a language model behind OpenAI's HTTP interface.

In: a Hugging Face folder or a GGUF file. Out: a server that runs until Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from typing import Any

from .chat import add_model, guarded, model_of, read_template


def add_command(commands: Any) -> None:
    """Add `serve` to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve a language model with OpenAI's interface, and a chat page",
        description="Serve a language model at http://HOST:PORT/v1 as OpenAI's clients expect it, "
        "with a chat page at /. Ctrl-C or SIGTERM lets running texts end first.",
        epilog="Needs fulgurite[serve]. Without --api-key anybody who reaches the port may ask.",
    )
    add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (8000)")
    parser.add_argument("--name", help="the model's name for clients (the file's)")
    parser.add_argument(
        "--slots", type=int, help="texts that are written at once (8; up to 32 for small models)"
    )
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait (64)")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds for a request, waiting included (600)"
    )
    parser.add_argument("--api-key", help="what clients must send (or FULGURITE_API_KEY)")
    parser.add_argument("--template", metavar="FILE", help="a chat template instead of the model's")
    parser.add_argument(
        "--warm", action="store_true", help="compile for every length before the first request"
    )
    parser.set_defaults(run=guarded(_serve))


def _serve(arguments: argparse.Namespace) -> int:
    from ..errors import ArgumentError

    try:
        import uvicorn  # noqa: F401 (whether it is there)

        from ..serve import app  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"serving needs a package that is missing: {error.name}",
            "pip install 'fulgurite[llm,serve]'",
        ) from None
    template = read_template(arguments.template)
    _check(arguments)
    with _bound(arguments.host, arguments.port) as bound:  # a busy port is told at once
        return _run(arguments, bound, template)


def _check(arguments: argparse.Namespace) -> None:
    """An error for numbers with which nothing can be served."""
    from ..errors import ArgumentError
    from ..serve.engine import MOST_SLOTS

    slots = 1 if arguments.slots is None else arguments.slots
    if slots < 1 or arguments.queue < 0 or not arguments.timeout > 0:  # which a NaN is not either
        raise ArgumentError("--slots, --queue or --timeout is too small", "give 1 or more")
    if slots > MOST_SLOTS:
        raise ArgumentError(
            f"--slots {slots} is more than {MOST_SLOTS}, and all are rows of every step",
            "give as many as ask at once; others wait in a --queue",
        )


def _check_template(model: Any, source: str | None) -> None:
    """An error for a given chat template that refuses even short conversations, and a warning if
    the model's own does: there are other paths than chat."""
    from ..errors import FulguriteError
    from ..models.templates import template_for

    user = [{"role": "user", "content": "Hello"}]
    template = template_for(model, source)
    try:
        try:
            template.render(user)
        except FulguriteError:
            template.render([{"role": "system", "content": "Be short."}, *user])
    except FulguriteError as error:
        if source is not None:
            raise
        print(f"fulgurite: chat will not work: {error.what}", file=sys.stderr)


def _run(arguments: argparse.Namespace, bound: socket.socket, template: str | None) -> int:
    import uvicorn

    from ..serve import Engine
    from ..serve.app import Settings, make_app

    model = model_of(arguments)
    model.tokenizer.encode("")  # a missing one is told now
    _check_template(model, template)
    name = arguments.name or os.path.basename(os.path.normpath(arguments.path))
    engine = Engine(model, arguments.slots, arguments.queue, arguments.warm)
    key = arguments.api_key or os.environ.get("FULGURITE_API_KEY") or None
    settings = Settings(name, arguments.timeout, key, template)
    config = uvicorn.Config(
        make_app(engine, settings), arguments.host, arguments.port, log_level="warning",
        timeout_graceful_shutdown=int(settings.stop_within), lifespan="on",
    )  # fmt: skip

    class Server(uvicorn.Server):  # type: ignore[misc]
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            host, port = bound.getsockname()[:2]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            print(f"{name} at {url}/v1, chat page at {url}/", flush=True)

    # uvicorn ends in order, then raises the signal once more for whoever had it before
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(config).run(sockets=[bound])
    finally:
        engine.stop(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    print("stopped", file=sys.stderr)
    return 0


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address; IPv4 where a name has both."""
    from ..errors import ArgumentError

    try:
        if not 0 <= port < 1 << 16:
            raise OSError(f"a port is from 0 to {(1 << 16) - 1}")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"cannot listen on port {port} of {host!r}: {why}",
            "give another --port (0 takes a free one) or --host",
        ) from None
    return made
