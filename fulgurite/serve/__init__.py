"""A server for language models with OpenAI's interface: continuous batching behind HTTP.

In: a model and requests. Out: text, as it is made. `engine` is a thread that owns the model and
works on all requests at once; `requests` reads and checks what clients send; `app` is the ASGI
application around them, `metrics` what it counts, `page.html` a chat page for the browser.
`docs/serving.md` tells how to use it.
"""

from __future__ import annotations

from .engine import Busy, Engine, Failure, Request

__all__ = ["Busy", "Engine", "Failure", "Request"]
