"""An LSTM language model of Python's documentation, trained and sampled character by character.

Run `python examples/lstm.py`. The recurrence is `fg.nn.LSTM`, whose loop over time is one node of
the graph; its gradient runs the loop backward. Gradients are clipped, as recurrent nets need.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import fulgurite as fg
from fulgurite.cli.progress import Progress
from fulgurite.data import LETTERS, DataLoader, Windows, decoded, documentation, encoded


class Model(fg.nn.Module):
    """Letters in, what may come next out."""

    def __init__(self, size: int) -> None:
        self.embedding = fg.nn.Embedding(len(LETTERS), size)
        self.lstm = fg.nn.LSTM(size, size, batch_first=True)
        self.head = fg.nn.Linear(size, len(LETTERS))

    def forward(self, x: fg.Tensor, state: tuple | None = None) -> tuple[fg.Tensor, tuple]:
        """Logits for every place, and the state after the last."""
        seen, state = self.lstm(self.embedding(x), state)
        return self.head(seen), state


def sample(model: Model, count: int, seed: int, temperature: float = 0.7) -> str:
    """Text that the model writes, one letter at a time from its own state."""
    random = np.random.default_rng(seed)
    size = model.lstm.hidden_size

    @fg.jit
    def one(letter: fg.Tensor, h: fg.Tensor, c: fg.Tensor) -> tuple:
        with fg.no_grad():
            logits, (h, c) = model(letter, (h, c))
        return logits[0, -1], h, c

    h, c = fg.zeros((1, 1, size)), fg.zeros((1, 1, size))
    found = [LETTERS.index("T")]
    for _ in range(count):
        logits, h, c = one(fg.Tensor(np.array([[found[-1]]], np.int32)), h, c)
        scores = logits.numpy().astype(np.float64) / temperature
        chances = np.exp(scores - scores.max())
        found.append(int(random.choice(len(LETTERS), p=chances / chances.sum())))
    return decoded(np.array(found))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, write a little, and give the last loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--letters", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    fg.random.seed(options.seed)
    model = Model(options.size)
    optimizer = fg.optim.Adam(model.parameters(), lr=5e-3)
    data = Windows(encoded(documentation()), options.length)
    loader = DataLoader(data, 32, shuffle=True, seed=options.seed, drop_last=True)

    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        logits, _ = model(x)
        loss = fg.cross_entropy(logits.reshape(-1, len(LETTERS)), y.reshape(-1))
        loss.backward()
        fg.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    bar, loss = Progress(range(options.steps), "lstm"), float("nan")
    for _, (x, y) in zip(bar, loader.forever(), strict=False):
        loss = float(step(x, y).item())
        bar.note(f"loss {loss:.4f}")
    print(sample(model, options.letters, options.seed))
    print(f"last loss {loss:.3f} nats a character")
    return loss


if __name__ == "__main__":
    main()
