"""The scaling model beside measurements: data-parallel steps of small GPTs on 1, 2 and 4 ranks.

    python bench/scaling.py            measure, fit, print
    python bench/scaling.py --save     and into bench/results/scaling.json

A rank's processor time is what is measured: on a machine with fewer cores than ranks it is the time
that a step would take if every rank had a core, and a busy machine hardly changes it. Jobs take
turns, rounds of them; the least of all steps counts. Rates of the machine `cpu`
(fulgurite/distributed/forecast.py) are fitted to the networks of FITTED on 1 and 2 ranks; those of
HELD_OUT, and all on 4 ranks, are predictions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from bench.distributed import Sizes, data_parallel_steps, launch  # noqa: E402 (the path first)

# blocks, width, heads, length, words; sequences of a rank
FITTED: dict[str, tuple[Sizes, int]] = {
    "wide": ((4, 256, 4, 64, 128), 8),
    "small": ((2, 128, 4, 64, 128), 8),
    "short": ((3, 192, 4, 32, 128), 8),
}
HELD_OUT: dict[str, tuple[Sizes, int]] = {
    "unseen": ((2, 256, 4, 64, 512), 4),
    "deep": ((6, 128, 8, 128, 256), 4),
    "flat": ((1, 384, 6, 48, 1000), 6),
}
SIZES = FITTED | HELD_OUT
RANKS = (1, 2, 4)


def step(sizes: Sizes, batch: int, steps: int, out: str) -> None:
    """One rank: the least processor time of a step."""
    from fulgurite.distributed.mesh import job

    busy = data_parallel_steps(sizes, batch, steps)["busy"]
    if job()[0] == 0:
        Path(out).write_text(json.dumps(min(busy[steps // 2 :])))


def measure(name: str, ranks: int, steps: int) -> float:
    """Seconds of a step on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        launch(ranks, [str(HERE), "--rank", name, "--steps", str(steps), "--out", out])
        return float(json.loads(Path(out).read_text()))


def fit(found: dict[tuple[str, int], float]) -> Any:
    """The machine whose rates fit the measurements of 1 and 2 ranks best."""
    from fulgurite.distributed.forecast import MACHINES

    names = list(FITTED)
    costs = {key: cost(*key) for key in found}
    alone = [[costs[n, 1].flops, costs[n, 1].nodes] for n in names]
    rates = positive(alone, [found[n, 1] for n in names])
    extra = [found[n, 2] - found[n, 1] for n in names]
    sent = [[sum(costs[n, 2].sent.values()) * 4, sum(costs[n, 2].calls.values())] for n in names]
    links = positive(sent, extra)
    return replace(
        MACHINES["cpu"], flops=1 / max(rates[0], 1e-15), node_seconds=rates[1],
        inner_bandwidth=1 / max(links[0], 1e-15), inner_latency=links[1],
    )  # fmt: skip


def positive(rows: list[list[float]], wanted: list[float]) -> list[float]:
    """Least squares of relative errors, no rate below zero."""
    scale = np.array(wanted)
    table = np.array(rows) / np.maximum(np.abs(scale), 1e-4)[:, None]
    right = scale / np.maximum(np.abs(scale), 1e-4)
    kept = list(range(table.shape[1]))
    while True:
        some, *_ = np.linalg.lstsq(table[:, kept], right, rcond=None)
        if (some >= 0).all() or len(kept) == 1:
            break
        kept.remove(kept[int(some.argmin())])
    rates = np.zeros(table.shape[1])
    rates[kept] = np.maximum(some, 0)
    return [float(rate) for rate in rates]


def cost(name: str, ranks: int) -> Any:
    """What a rank does in a step."""
    from fulgurite.distributed.forecast import Net, cost_of

    sizes, batch = SIZES[name]
    return cost_of(Net(*sizes), {"data": ranks}, "data", batch * ranks)


def main() -> None:
    """Measure, fit, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.rank:
        step(*SIZES[options.rank], options.steps, options.out)
        return
    from fulgurite.distributed.forecast import forecast

    found: dict[tuple[str, int], float] = {}
    for _ in range(options.rounds):
        for key in [(name, ranks) for name in SIZES for ranks in RANKS]:
            found[key] = min(found.get(key, float("inf")), measure(*key, options.steps))
    machine = fit(found)
    rows: list[Any] = []
    for (name, ranks), seconds in found.items():
        told = forecast(cost(name, ranks), machine, (("data", ranks),)).seconds
        rows.append([name, ranks, seconds, told, told / seconds - 1])
        print(f"{name:8} {ranks} ranks: measured {1e3 * seconds:7.1f} ms, predicted "
              f"{1e3 * told:7.1f} ms, {told / seconds - 1:+.0%}")  # fmt: skip
    for what, names in (("fitted", FITTED), ("held out", HELD_OUT)):
        worst = max([abs(row[4]) for row in rows if row[0] in names])
        print(f"worst of networks {what}: {worst:.0%}")
    print(f"fitted {machine}")
    if options.save:
        path = HERE.parent / "results" / "scaling.json"
        path.write_text(json.dumps({"rows": rows, "machine": str(machine)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
