"""Train a two-layer network on handwritten digits, in plain tensor code.

Run `python examples/digits.py`; `fulgurite train digits` does it with `fg.nn` and `fg.optim`.
Nothing here is special to Fulgurite but the import: a loss is written as an expression,
`value_and_grad` differentiates it, and Adam is four lines of arithmetic whose step count and
corrections change every step without recompiling.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import fulgurite as fg
from fulgurite.cli.progress import Progress
from fulgurite.data import digits, split

Params = dict[str, fg.Tensor]


def initial(random: np.random.Generator, hidden: int) -> Params:
    """Weights drawn for each layer's width, biases zero."""

    def weight(rows: int, columns: int) -> fg.Tensor:
        values = random.normal(0, rows**-0.5, (rows, columns))
        return fg.Tensor(values.astype(np.float32))

    return {
        "w1": weight(64, hidden), "b1": fg.zeros(hidden),
        "w2": weight(hidden, 10), "b2": fg.zeros(10),
    }  # fmt: skip


def logits(p: Params, x: fg.Tensor) -> fg.Tensor:
    """The network: linear, relu, linear."""
    return fg.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def loss(p: Params, x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    """How surprised the network is by the labels."""
    return fg.cross_entropy(logits(p, x), y)


def adam(
    p: Params, g: Params, m: Params, v: Params, t: int, rate: float
) -> tuple[Params, Params, Params]:
    """One step of Adam for every parameter."""
    b1, b2 = 0.9, 0.999
    m = {k: b1 * m[k] + (1 - b1) * g[k] for k in p}
    v = {k: b2 * v[k] + (1 - b2) * g[k] * g[k] for k in p}
    step = rate / (1 - b1**t)
    p = {k: p[k] - step * m[k] / ((v[k] / (1 - b2**t)) ** 0.5 + 1e-8) for k in p}
    return p, m, v


def main() -> None:
    """Train, and say how well the network reads digits it has never seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    images, labels = digits()
    train, test = split(len(images), labels)
    x = images.reshape(len(images), 64).astype(np.float32) / 16
    y = labels.astype(np.int32)
    random = np.random.default_rng(options.seed)
    p = initial(random, options.hidden)
    m = {k: fg.zeros_like(w) for k, w in p.items()}
    v = {k: fg.zeros_like(w) for k, w in p.items()}
    step = fg.value_and_grad(loss)

    start, steps, value = time.perf_counter(), 0, fg.zeros(())
    bar = Progress(range(options.epochs), "epochs")
    for epoch in bar:
        order = random.permutation(train)
        rate = options.rate * (1 - epoch / options.epochs)
        for first in range(0, len(order) - options.batch + 1, options.batch):
            chosen = order[first : first + options.batch]
            steps += 1
            value, g = step(p, fg.Tensor(x[chosen]), fg.Tensor(y[chosen]))
            p, m, v = adam(p, g, m, v, steps, rate)
            fg.realize(value, *p.values(), *m.values(), *v.values())
        bar.note(f"loss {value.item():.4f}")
    seconds = time.perf_counter() - start

    guesses = fg.argmax(logits(p, fg.Tensor(x[test])), axis=-1).numpy()
    right = float((guesses == y[test]).mean())
    print(
        f"{steps} steps in {seconds:.1f} s; {right:.1%} of {len(test)} held-out digits read right"
    )
    for name, stats in fg.cache_stats().items():
        print(f"{name} cache: {stats['hits']} hits, {stats['misses']} misses, {stats['size']} kept")


if __name__ == "__main__":
    main()
