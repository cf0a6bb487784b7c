"""A small language model on one rank or many: the same file.

    python examples/gpt_parallel.py                                   one process
    fulgurite launch -n 4 examples/gpt_parallel.py                    data parallel
    fulgurite launch -n 4 examples/gpt_parallel.py --plan zero3       weights in shards
    fulgurite launch -n 4 examples/gpt_parallel.py --model 2          data and tensor parallel

Two things differ from a program for one process: the batch is sharded over the mesh, and so is the
model, by a plan. The losses printed are those of one process, whatever the number of ranks.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite import optim
from fulgurite.distributed import job, plans
from fulgurite.distributed.models import GPT

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 40


def batches(text: str, batch: int, length: int, first: int) -> Iterator[tuple[Any, Any]]:
    """Endless batches of characters and of those that follow them, the same on every rank."""
    names = {c: i for i, c in enumerate(sorted(set(text)))}
    data = np.array([names[c] for c in text])
    step = first
    while True:
        starts = np.random.default_rng(step).integers(0, len(data) - length - 1, batch)
        rows = np.stack([data[s : s + length + 1] for s in starts])
        yield rows[:, :-1], rows[:, 1:]
        step += 1


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and write checkpoints that any number of ranks can go on from; the last loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plan", default="data", choices=["data", "zero1", "zero2", "zero3"])
    parser.add_argument("--model", type=int, default=1, help="ranks that share each product")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--checkpoint", default="", help="a file to go on from, and to write")
    options = parser.parse_args(arguments)

    rank, size = job()
    mesh = fg.Mesh({"data": size // options.model, "model": options.model})
    plan = plans.tensor_parallel(mesh)
    if options.plan != "data":
        plan = plan | plans.zero(mesh, stage=int(options.plan[-1]))

    fg.random.seed(0)
    model = GPT(len(set(TEXT)), options.width, 4, 2, options.length).shard(plan)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    start, value = 0, math.inf
    if options.checkpoint and os.path.exists(options.checkpoint):
        saved = fg.io.load_checkpoint(options.checkpoint, model=model, optimizer=optimizer)
        start = saved["step"]

    data = batches(TEXT, options.batch, options.length, start)
    for step, (x, y) in zip(range(start, options.steps), data, strict=False):
        inputs = fg.shard(x, mesh, {"data": 0})
        targets = fg.shard(y, mesh, {"data": 0})
        loss = fg.cross_entropy(model(inputs).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4 or step == options.steps - 1:
            value = loss.item()
            if rank == 0:
                print(f"step {step + 1} of {options.steps}: loss {value:.4f} on {size} ranks")
            if options.checkpoint:
                parts = {"model": model, "optimizer": optimizer}
                fg.io.save_checkpoint(options.checkpoint, **parts, step=step + 1)
    return float(value)


if __name__ == "__main__":
    main()
