"""`fg.from_torch` and `fg.to_torch`: doors to `fulgurite/torch`, which needs torch.

Nothing of torch is imported before one of them is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._lazy import FORK_LOCK
from .errors import ArgumentError


@contextmanager
def needing_torch() -> Iterator[None]:
    """Where something of `fulgurite/torch` is imported: without torch, say what to install."""
    with FORK_LOCK:
        try:
            yield
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            raise ArgumentError(
                "torch is not installed", 'pip install "fulgurite[torch]"'
            ) from missing


def from_torch(source: Any, *args: Any, **named: Any) -> Any:
    """A tensor or module of ours from torch's: a module, an exported program or a .pt2 file.

    Layers of `torch.nn` become layers of `fg.nn`; any other module is exported with the inputs that
    are given, and is a module with the same parameters: `fg.from_torch(module, torch.ones(2, 3))`.
    """
    with needing_torch():
        from .torch import interchange
    return interchange.from_torch(source, *args, **named)


def to_torch(source: Any) -> Any:
    """A tensor, state dict or module of torch's from ours: weights by name, layers by namesake."""
    with needing_torch():
        from .torch import interchange
    return interchange.to_torch(source)
