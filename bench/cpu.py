"""The workloads of `bench/models.py` on this machine's CPU, beside the peers.

`python bench/cpu.py [--peers PYTHON] [--only softmax,sum] [--systems ours,torch] [--save]`, where
PYTHON is an interpreter that has the peers (default: this one). `ours` replays a held plan, `ours
eager` builds and realizes in every call. Goals are ratios to the best peer of the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Load, Work, run_works

GOALS = {
    "softmax": 0.75, "layernorm": 0.5, "gelu": 0.75, "sum": 1.0, "matmul": 1.0, "mlp": 0.85,
    "gpt": 0.85, "conv": 0.9, "step": 0.85, "gpt step": 0.8, "resnet step": 1.0,
}  # fmt: skip


def load(name: str) -> Callable[[str], Work]:
    """Import a system; what comes back prepares works."""
    from bench import networks, training
    from bench.models import WORKLOADS
    from bench.systems import SYSTEMS

    system = SYSTEMS[name]()

    def prepare(work: str) -> Work:
        if work == "step":
            if name not in training.CALLS:
                raise NotImplementedError(f"{name} has no training step here")
            return Work(training.CALLS[name](), training.check)
        if work in networks.TITLES:
            return networks.prepare(name, work)
        workload = WORKLOADS[work]
        call = system.prepared(workload.compute, workload.inputs())
        return Work(call, lambda result: workload.check(system.to_numpy(result)))

    return prepare


if __name__ == "__main__":
    from bench import networks, training
    from bench.models import WORKLOADS
    from bench.systems import SYSTEMS

    loaders: dict[str, Load] = {name: partial(load, name) for name in SYSTEMS}
    titles = {name: workload.title for name, workload in WORKLOADS.items()}
    titles |= {"step": training.TITLE, **networks.TITLES}
    run_works(__doc__, __file__, loaders, titles, GOALS)
