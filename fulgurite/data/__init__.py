"""Datasets, the loader, and data that comes with the package: enough to watch a network learn.

`DataLoader(Arrays(x, y), batch_size=64, shuffle=True)` takes torch's arguments and goes on exactly
where it is asked to; `digits()` is bundled, `mnist()` and `documentation()` come from
packages that are installed.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from .._hints import surface as _surface
from ..core.op import Array
from .corpora import LETTERS, MissingDataError, decoded, documentation, encoded, mnist
from .loader import Arrays, DataLoader, Windows, order
from .parts import ConcatDataset, Subset, random_split

__all__ = [
    "LETTERS", "Arrays", "ConcatDataset", "DataLoader", "MissingDataError", "Subset",
    "TensorDataset", "Windows", "decoded", "digits", "documentation", "encoded", "mnist", "order",
    "random_split", "split",
]  # fmt: skip


TensorDataset = Arrays  # torch's name for it


def digits() -> tuple[Array, Array]:
    """1,797 images of handwritten digits, (n, 8, 8) uint8 from 0 to 16, and their labels.

    From the UCI repository's "Optical Recognition of Handwritten Digits" (E. Alpaydin and
    C. Kaynak, 1998; CC BY 4.0); see LICENSE-digits.txt beside this file.
    """
    with (files(__package__) / "digits.npz").open("rb") as file, np.load(file) as archive:
        return archive["images"], archive["labels"]


def split(count: int, labels: Array, held_out: float = 0.2, seed: int = 0) -> tuple[Array, Array]:
    """Places of a training and a held-out part, the same share of every label in both."""
    random = np.random.default_rng(seed)
    held: list[Array] = []
    for label in np.unique(labels):
        places = random.permutation(np.flatnonzero(labels == label))
        held.append(places[: round(len(places) * held_out)])
    test = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(count), test), test


__getattr__, __dir__ = _surface(__name__)
