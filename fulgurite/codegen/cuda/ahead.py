"""What compiling for a GPU needs long before the first text; loaded before the package is."""

from __future__ import annotations

from importlib.util import find_spec

from .compilation import pool


def start() -> None:
    """Have the processes get ready that compile; of those that fork no thread is needed here."""
    if find_spec("triton") is not None:
        pool.start()
