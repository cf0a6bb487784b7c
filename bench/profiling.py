"""What a profile costs, and how much of a step's time it finds in kernels.

Run `python bench/profiling.py`. A training step of a network (about 100 ms), and a replay that
does next to nothing, with and without `fg.profile`, in turns, on one thread; the least processor
time of each counts. The figures are: the share that profiling adds to the step, the microseconds
it adds to a native call, and the share of the step's wall time that is in no kernel (median).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import run_figures

GOALS = {
    "step (ms)": None,
    "profile of a step (%)": 3.0,
    "profile of a native call (us)": 10.0,
    "outside of kernels (%)": 5.0,
}
ROUNDS = 30


def ours() -> dict[str, float]:
    """Our figures."""
    import numpy as np

    import fulgurite as fg

    class Net(fg.nn.Module):
        def __init__(self, width: int) -> None:
            self.layers = [fg.nn.Linear(width, 4 * width), fg.nn.Linear(4 * width, width)]
            self.norm = fg.nn.LayerNorm(width)

        def forward(self, x: fg.Tensor) -> fg.Tensor:
            for layer in self.layers:
                x = fg.gelu(layer(x))
            return self.norm(x)

    net = Net(512)
    adam = fg.optim.AdamW(net.parameters(), 1e-3)
    x = fg.Tensor(np.random.default_rng(0).random((512, 512), np.float32)).realize()

    @fg.jit
    def step(x: Any) -> Any:
        loss = (net(x) ** 2).mean()
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss

    small = fg.Tensor(np.ones((64, 64), np.float32)).realize()
    tiny = fg.jit(lambda x: fg.softmax(x * 2.0, axis=-1))
    with fg.config(threads=1):
        plain, profiled, parts = _turns(lambda: step(x), ROUNDS, 1, fg.profile)
        bare, timed, _ = _turns(lambda: tiny(small), ROUNDS, 200, fg.profile)
    return {
        "step (ms)": plain * 1e3,
        "profile of a step (%)": 100 * (profiled / plain - 1),
        "profile of a native call (us)": (timed - bare) * 1e6,
        "outside of kernels (%)": 100 * (1 - median(parts)),
    }


def _turns(
    run: Callable[[], Any], rounds: int, repeats: int, profile: Callable[[], Any]
) -> tuple[float, float, list[float]]:
    """The least seconds of a run without and with a profile, and the share in kernels of each."""
    for _ in range(5):
        run()
    plain = profiled = float("inf")
    parts = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(repeats):
            run()
        plain = min(plain, (time.process_time() - start) / repeats)
        with profile() as p:
            start = time.process_time()
            for _ in range(repeats):
                run()
            profiled = min(profiled, (time.process_time() - start) / repeats)
        if repeats == 1:
            parts.append(p.kernel_seconds / p.seconds)
    return plain, profiled, parts


if __name__ == "__main__":
    run_figures(__doc__, __file__, {"ours": [ours]}, GOALS, rounds=1)
