"""A multi-layer perceptron that learns to tell two spirals apart: the smallest whole training loop.

Run `python examples/mlp.py`. A model, a loss, `backward()`, an optimiser and a schedule, written as
in torch; `fg.jit` captures the step at its first calls and replays it from then on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import fulgurite as fg
from fulgurite.cli.progress import Progress
from fulgurite.data import Arrays, DataLoader


def spirals(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals that wind around each other, and which of them each is on."""
    random = np.random.default_rng(seed)
    turn = np.sqrt(random.uniform(0.02, 1, count)) * 3 * np.pi
    which = random.integers(0, 2, count)
    angle = turn + np.pi * which
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) / (3 * np.pi)
    return (points + random.normal(0, 0.01, points.shape)).astype(np.float32), which.astype(
        np.int32
    )


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and say how many points of a second draw are told apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    fg.random.seed(options.seed)
    model = fg.nn.Sequential(
        fg.nn.Linear(2, options.hidden), fg.nn.GELU(),
        fg.nn.Linear(options.hidden, options.hidden), fg.nn.GELU(),
        fg.nn.Linear(options.hidden, 2),
    )  # fmt: skip
    optimizer = fg.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = fg.optim.Schedule(optimizer, fg.optim.cosine(options.steps))
    data = Arrays(*spirals(2000))
    loader = DataLoader(data, 128, shuffle=True, seed=options.seed, drop_last=True)

    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        loss = fg.cross_entropy(model(x), y)
        loss.backward()
        fg.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    bar = Progress(range(options.steps), "spirals")
    for _, (x, y) in zip(bar, loader.forever(), strict=False):
        loss = step(x, y)
        schedule.step()
        bar.note(f"loss {loss.item():.4f}")

    x, y = spirals(1000, seed=1)
    right = float((fg.argmax(model(fg.Tensor(x)), axis=-1).numpy() == y).mean())
    print(f"{right:.1%} of 1000 new points told apart")
    return right


if __name__ == "__main__":
    main()
