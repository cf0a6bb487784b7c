"""An autoencoder: handwritten digits through a bottleneck of a few numbers, and back.

Run `python examples/autoencoder.py`. The gradient is taken the functional way here, by
`fg.value_and_grad` over the whole model, which is a tree like any other; the optimiser takes what
it gives.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import fulgurite as fg
from fulgurite.cli.progress import Progress
from fulgurite.data import Arrays, DataLoader, digits, split


class Autoencoder(fg.nn.Module):
    """64 points to a few numbers and back."""

    def __init__(self, code: int) -> None:
        self.encoder = fg.nn.Sequential(
            fg.nn.Linear(64, 128), fg.nn.ReLU(), fg.nn.Linear(128, code)
        )
        self.decoder = fg.nn.Sequential(
            fg.nn.Linear(code, 128), fg.nn.ReLU(), fg.nn.Linear(128, 64), fg.nn.Sigmoid()
        )

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """The image that the code of an image stands for."""
        return self.decoder(self.encoder(x))


def drawn(image: np.ndarray) -> list[str]:
    """An image in five shades."""
    return ["".join(" .:*#"[min(4, int(v * 5))] * 2 for v in row) for row in image.reshape(8, 8)]


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, draw a few held-out digits beside what is left of them; the mean square error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--code", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    images, labels = digits()
    train, test = split(len(images), labels)
    x = images.reshape(-1, 64).astype(np.float32) / 16
    fg.random.seed(options.seed)
    model = Autoencoder(options.code)
    optimizer = fg.optim.Adam(model.parameters(), lr=3e-3)
    ema = fg.optim.EMA(model.parameters(), decay=0.98)

    def loss(model: Autoencoder, x: fg.Tensor) -> fg.Tensor:
        return ((model(x) - x) ** 2).mean()

    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        value, grads = fg.value_and_grad(loss)(model, x)
        optimizer.step(grads)
        ema.update()
        return value

    bar = Progress(range(options.steps), "autoencoder")
    loader = DataLoader(Arrays(x[train]), 128, shuffle=True, seed=options.seed, drop_last=True)
    for _, (batch,) in zip(bar, loader.forever(), strict=False):
        bar.note(f"loss {step(batch).item():.4f}")

    with ema.swapped():
        back = model(fg.Tensor(x[test])).numpy()
    for left, right in zip(drawn(x[test][0]), drawn(back[0]), strict=True):
        print(f"  {left}   ->   {right}")
    error = float(((back - x[test]) ** 2).mean())
    blank = float(((x[test] - x[train].mean(0)) ** 2).mean())
    print(f"mean square error {error:.4f} with {options.code} numbers ({blank:.4f} with none)")
    return error


if __name__ == "__main__":
    main()
