"""`fg.from_torch` and `fg.to_torch`: doors to `fulgurite/torch`, which needs torch.

Nothing of torch is imported before one of them is called.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._lazy import FORK_LOCK
from .errors import ArgumentError


def part(name: str) -> Any:
    """A module of `fulgurite/torch`, or an error that says what to install."""
    with FORK_LOCK:
        try:
            return importlib.import_module(f"{__package__}.torch.{name}")
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
    return part("interchange").from_torch(source, *args, **named)


def to_torch(source: Any) -> Any:
    """A tensor, state dict or module of torch's from ours: weights by name, layers by namesake."""
    return part("interchange").to_torch(source)
