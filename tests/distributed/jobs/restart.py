"""Training that writes a checkpoint at every second step and goes on from one, on any ranks.

Arguments: the checkpoint's path, the step to stop at, and what rank 1 does at step 5.
"""

import os
import resource
import signal
import sys

import numpy as np

import fulgurite as fg
from fulgurite import nn, optim
from fulgurite.core import ranks
from fulgurite.distributed.plans import zero

path, stop, fault = sys.argv[1], int(sys.argv[2]), sys.argv[3]
size, rank = ranks.world().size, ranks.world().rank
mesh = fg.Mesh({"data": size})
fg.random.seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 8))
model.shard(zero(mesh, stage=3))
optimizer = optim.Adam(model.parameters(), lr=0.01)
start = 0
if os.path.exists(path):
    start = fg.io.load_checkpoint(path, model=model, optimizer=optimizer)["step"]
    if rank == 0:
        print(f"go on from step {start} on {size} ranks", flush=True)
for step in range(start, stop):
    if step == 5 and rank == size - 1:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    x = np.random.default_rng(step).standard_normal((8, 8)).astype(np.float32)  # the step's data
    batch = fg.shard(x, mesh, {"data": 0})
    loss = ((model(batch) - batch) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2:
        fg.io.save_checkpoint(path, model=model, optimizer=optimizer, step=step + 1)
weights = {name: value.numpy() for name, value in model.state_dict().items()}
if rank == 0:
    np.savez(path + ".npz", **weights)  # type: ignore[arg-type]
    print(f"done at step {stop}", flush=True)
