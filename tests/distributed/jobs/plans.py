"""Every plan for as many ranks as there are: weights after training, against one process's."""

import hashlib
import sys
import time
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.core import ranks
from fulgurite.distributed import plans
from tests.distributed.jobs.nets import train

WORLD: Any = ranks.world()
net, n = sys.argv[1], WORLD.size
half = max(1, n // 2)
CASES = {
    "data": ({"data": n}, plans.data_parallel, {"data": 0}),
    "zero1": ({"data": n}, lambda m: plans.zero(m, stage=1), {"data": 0}),
    "zero2": ({"data": n}, lambda m: plans.zero(m, stage=2), {"data": 0}),
    "zero3": ({"data": n}, lambda m: plans.zero(m, stage=3), {"data": 0}),
}
if net == "gpt":
    CASES |= {
        "tensor": ({"model": n}, plans.tensor_parallel, {}),
        "sequence": ({"seq": n}, plans.sequence_parallel, {"seq": 1}),
        "data+tensor": ({"data": half, "model": 2}, plans.tensor_parallel, {"data": 0}),
        "tensor+zero3": (
            {"data": half, "model": 2},
            lambda m: plans.tensor_parallel(m) | plans.zero(m, stage=3), {"data": 0},
        ),
    }  # fmt: skip
wanted = train(net)
for name in sys.argv[2:] or CASES:
    axes, plan, split = CASES[name]
    mesh = fg.Mesh(axes)
    before = WORLD.bytes_sent if n > 1 else 0
    start = time.perf_counter()
    found = train(net, mesh, plan(mesh), split)
    again = train(net, mesh, plan(mesh), split, 4)
    once_more = train(net, mesh, plan(mesh), split, 4)
    seconds = time.perf_counter() - start
    worst = max([np.abs(found[k] - wanted[k]).max() / np.abs(wanted[k]).max() for k in wanted])
    assert worst < 1e-5, f"{name}: {worst}"
    assert all(np.array_equal(again[k], once_more[k]) for k in again), f"{name}: not bit-equal"
    if ranks.world().rank == 0:
        digest = hashlib.sha256(b"".join([found[k].tobytes() for k in sorted(found)])).hexdigest()
        sent = WORLD.bytes_sent - before if n > 1 else 0
        print(f"{net} {name} {axes}: {worst:.1e} {digest[:12]} {sent >> 10} KiB {seconds:.1f} s",
              flush=True)  # fmt: skip
