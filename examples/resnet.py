"""ResNet-18 on synthetic images: convolutions, batch norms, and how many pictures a second.

Run `python examples/resnet.py`. The images are stripes of ten directions with noise, made on the
fly from a seed; the network is the usual one for small images (a first convolution of 3 by 3, no
pooling before the blocks). `--width 64` is the full size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

import fulgurite as fg
from fulgurite.cli.progress import Progress


class Block(fg.nn.Module):
    """Two convolutions, added to what comes in."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        self.conv1 = fg.nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.bn1 = fg.nn.BatchNorm2d(outer)
        self.conv2 = fg.nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = fg.nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = fg.nn.Sequential(
                fg.nn.Conv2d(inner, outer, 1, stride=stride, bias=False), fg.nn.BatchNorm2d(outer)
            )

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """The features after the block."""
        same = x if self.downsample is None else self.downsample(x)
        h = fg.relu(self.bn1(self.conv1(x)))
        return fg.relu(self.bn2(self.conv2(h)) + same)


class ResNet18(fg.nn.Module):
    """Eight blocks in four groups; each group halves the image and doubles the channels."""

    def __init__(self, classes: int = 10, width: int = 64) -> None:
        self.conv1 = fg.nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = fg.nn.BatchNorm2d(width)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        for number in range(1, 5):
            inner, outer = sizes[number - 1], sizes[number]
            blocks = [Block(inner, outer, 1 if number == 1 else 2), Block(outer, outer, 1)]
            setattr(self, f"layer{number}", fg.nn.Sequential(*blocks))
        self.fc = fg.nn.Linear(sizes[-1], classes)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """Logits of the classes."""
        h = fg.relu(self.bn1(self.conv1(x)))
        for number in range(1, 5):
            h = getattr(self, f"layer{number}")(h)
        return self.fc(h.mean(axis=(2, 3)))


def stripes(count: int, side: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy stripes in one of ten directions, and which."""
    which = random.integers(0, 10, count)
    angle = which * np.pi / 10
    y, x = np.mgrid[:side, :side] / side * 4 * np.pi
    phase = random.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    images = np.sin(wave + phase)[:, None] + random.normal(0, 0.5, (count, 3, side, side))
    return images.astype(np.float32), which.astype(np.int32)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train for some steps; the share of new images that are read right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    random = np.random.default_rng(options.seed)
    fg.random.seed(options.seed)
    model = ResNet18(width=options.width)
    optimizer = fg.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = fg.optim.Schedule(optimizer, fg.optim.cosine(options.steps))

    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        loss = fg.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    bar, begin = Progress(range(options.steps), "resnet"), time.perf_counter()
    for number in bar:
        x, y = stripes(options.batch, options.side, random)
        loss = step(fg.Tensor(x), fg.Tensor(y)).item()
        schedule.step()
        rate = (number + 1) * options.batch / (time.perf_counter() - begin)
        bar.note(f"loss {loss:.4f}, {rate:.0f} images/s")

    model.eval()
    x, y = stripes(200, options.side, random)
    right = float((fg.argmax(model(fg.Tensor(x)), axis=-1).numpy() == y).mean())
    print(f"{right:.1%} of 200 new images read right after {options.steps} steps")
    return right


if __name__ == "__main__":
    main()
