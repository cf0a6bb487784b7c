"""A pipeline of as many stages as ranks: weights after training, against one process's passes."""

import sys

import numpy as np

import fulgurite as fg
from fulgurite import nn, optim
from fulgurite.core import ranks
from fulgurite.distributed.pipeline import Pipeline
from tests.distributed.jobs.nets import Block, batch

path, size = sys.argv[1], int(sys.argv[2])
fg.random.seed(0)
blocks = [nn.Sequential(Block(16, 2), nn.Dropout(0.1)) for _ in range(size - 1)]
stages = [nn.Embedding(16, 16), *blocks]
stages[-1] = nn.Sequential(stages[-1], nn.Linear(16, 16)) if size > 1 else stages[-1]
mesh = fg.Mesh({"pipe": size})
pipeline = Pipeline(
    stages, mesh, lambda y, t: fg.cross_entropy(y.transpose(1, 2), t), micro_batches=4
)
optimizer = optim.SGD(pipeline.parameters(), lr=0.1, momentum=0.9)
for step in range(20):
    x, y = batch("gpt", step)
    optimizer.zero_grad()
    loss = pipeline.step(x, y)
    optimizer.step()
pipeline.collect()
found = {f"{i}.{name}": value.numpy() for i, stage in enumerate(stages)
         for name, value in stage.state_dict().items()}  # fmt: skip
if not mesh.is_spread:
    np.savez(path, **found)  # type: ignore[arg-type]
else:
    wanted = np.load(path)
    worst = max([np.abs(found[k] - wanted[k]).max() / np.abs(wanted[k]).max() for k in found])
    assert worst < 1e-5, worst
    if ranks.world().rank == 0:
        print(f"pipeline of {size}: {worst:.1e}, loss {loss:.4f}", flush=True)
