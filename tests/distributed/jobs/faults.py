"""A job in which rank 1 does something at its second step: what, its argument says."""

import ctypes
import os
import signal
import sys
import time

import numpy as np

import fulgurite as fg
from fulgurite.core import ranks

mesh = fg.Mesh({"data": ranks.world().size})
rank, mode = ranks.world().rank, sys.argv[1]
total = fg.shard_map(lambda x: fg.all_reduce(x.sum(), "data"), mesh, [{"data": 0}], None)


def misbehave() -> None:
    if mode == "raise":
        raise ValueError("no data today")
    if mode == "exit":
        sys.exit(3)
    if mode == "end":
        sys.exit(0)
    if mode == "leave":
        os._exit(0)
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "lock":
        ctypes.PyDLL(None).sleep(100)  # which keeps Python's lock
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        time.sleep(100)
    if mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "differ":
        total(fg.Tensor(np.arange(16.0))).item()


for step in range(3):
    found = total(fg.Tensor(np.arange(8.0) * step)).item()
    assert found == 28.0 * step
    if step == 1 and rank == 1:
        misbehave()
if rank == 0:
    print("all steps done", flush=True)
