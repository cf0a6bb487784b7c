"""Tiles that a GEMM could have on many cores, timed: what `gemm/spread.py` is fitted to.

`python bench/tiles.py [--only ROWS] [--count 8] [--budget 30] [--cores 16] [--json FILE]`. Rows are
those of `bench/contract.py`, by how their names begin. Of each GEMM the tiles that the model likes
best are held as plans, none of them like another, beside the ones of few cores; they take turns and
the least time of each counts. All of them must give the same bits. With `--profile` the kernels of
each row, as it is chosen, are listed with what they take.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["FULGURITE_DEVICE"] = "cpu"
os.environ["FULGURITE_DISK_CACHE"] = "0"  # plans that were not chosen are kept nowhere

import fulgurite as fg
from bench.contract import BY_NAME, Case, lazily
from bench.systems import plan_of
from fulgurite.codegen.cpu import target as targets
from fulgurite.codegen.cpu.gemm import strategies
from fulgurite.codegen.cpu.gemm.plan import Gemm
from fulgurite.codegen.cpu.gemm.spread import (
    Model,
    Sweep,
    Weight,
    lower,
    may_spread,
    spread,
    spread_windows,
    sweep_time,
)
from fulgurite.codegen.cpu.gemm.tile_sizes import Tiles
from fulgurite.runtime.cpu.device import CpuDevice
from fulgurite.runtime.realize import clear_caches

ALIKE = 1.3  # sizes that differ by less are one candidate


@dataclass
class Candidate:
    """Tiles of a GEMM, the cycles that the model expects, and the least milliseconds seen."""

    tiles: list[Tiles]  # of each GEMM of the row
    cycles: float
    call: Callable[[], Any]
    least: float = math.inf


def unlike(a: Tiles, b: Tiles) -> bool:
    """True if two candidates are worth timing both."""
    kinds = [(t.left, t.right, t.k_chunks, t.by_blocks) for t in (a, b)]
    sizes = ((a.rows, b.rows), (a.columns, b.columns))
    return kinds[0] != kinds[1] or any(max(s) > ALIKE * min(s) for s in sizes)


def some(gemm: Gemm, found: Tiles, weight: Weight, count: int) -> list[tuple[float, Tiles]]:
    """What is chosen, other candidates by their cycles, none like another, and few cores' tiles."""
    if not may_spread(gemm, found):
        return [(0.0, found)]
    model = Model(gemm, found, weight, gemm.target.cores)
    chosen = spread(gemm, found, weight)
    kept = [(model.time(chosen), chosen)]
    for cycles, tiles in sorted(
        [(model.time(t), t) for t in model.candidates()], key=lambda pair: pair[0]
    ):
        if len(kept) < count and all(unlike(tiles, other) for _, other in kept):
            kept.append((cycles, tiles))
    if gemm.registers.has_tiles:  # which go on with their sums: blocks of k may have any length
        lanes = gemm.target.lanes
        for steps in (found.k_block // 2, found.k_block // 4):
            short = [replace(t, k_block=steps, k_packed=steps + lanes) for _, t in kept[:3]]
            kept += [(0.0, tiles) for tiles in short if gemm.depth > steps]
    return [*kept, (model.time(found), found)]


def candidates(case: Case, count: int) -> Iterator[Candidate]:
    """Plans with other tiles for each GEMM of a row."""
    arrays, last = case.arrays(), list[Tiles]()
    for number in range(count + 7):
        used: list[tuple[float, Tiles]] = []

        def choose(
            gemm: Gemm,
            found: Tiles,
            weight: Weight,
            number: int = number,
            used: list[tuple[float, Tiles]] = used,
        ) -> Tiles:
            known = some(gemm, found, weight, count)
            cycles, tiles = known[min(number, len(known) - 1)]
            if not gemm.prepacked:
                used.append((cycles, tiles))
            return tiles

        def windows(
            gemm: Gemm,
            found: Tiles,
            sweep: Sweep,
            number: int = number,
            used: list[tuple[float, Tiles]] = used,
        ) -> Tiles:
            known = dict.fromkeys([spread_windows(gemm, found, sweep), *lower(gemm, found)])
            tiles = list(known)[min(number, len(known) - 1)]
            used.append((sweep_time(gemm, tiles, sweep), tiles))
            return tiles

        def key(self: CpuDevice, number: int = number) -> Hashable:
            return self.vnni_layout, number  # kernels of other tiles are other code

        clear_caches()
        with (
            patch.object(strategies, "spread", choose),
            patch.object(strategies, "spread_windows", windows),
            patch.object(CpuDevice, "code_key", key),
        ):
            plan, inputs = plan_of(fg.schedule(lazily(case, arrays)))
        if number and [tiles for _, tiles in used] == last:
            return  # there are no more
        last = [tiles for _, tiles in used]
        cycles = sum([found for found, _ in used])
        yield Candidate([tiles for _, tiles in used], cycles, partial(plan.run, inputs))


def timed(call: Callable[[], Any], seconds: float) -> float:
    """The least milliseconds of a call, in so many seconds."""
    call()
    least, end = math.inf, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        found = call()
        now = time.perf_counter()
        least = min(least, now - start)
        del found
        if now > end:
            return least * 1e3


def swept(case: Case, count: int, rounds: int, seconds: float) -> list[Candidate]:
    """All candidates of a row, in turns."""
    found = list(candidates(case, count))
    bits = [one.call()[0].array.tobytes() for one in found]
    assert len(set(bits)) == 1, f"{case.name}: tiles change bits"
    for turn in range(rounds):
        for one in found[turn % len(found) :] + found[: turn % len(found)]:
            one.least = min(one.least, timed(one.call, seconds))
    return found


def profile(case: Case) -> list[dict[str, Any]]:
    """The kernels of a row as it is chosen: milliseconds of a run, and how busy threads are."""
    clear_caches()
    held = fg.schedule(lazily(case, case.arrays()))
    held.run()
    with fg.profile() as seen:
        for _ in range(20):
            held.run()
    return [{"text": line} for line in str(seen).splitlines()]


def main() -> None:
    """Time what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="mm")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.008, help="of a candidate's turn")
    parser.add_argument("--budget", type=float, default=30, help="seconds in all")
    parser.add_argument("--cores", type=int, help="cut for so many cores, whatever there are")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    begun = time.perf_counter()
    if given.cores:
        patch.object(targets, "many_cores", lambda _: given.cores).start()
        targets.target.cache_clear()
    rows: dict[str, Any] = {}
    names = [n for part in given.only.split(",") for n in BY_NAME if f"{n}$".startswith(part)]
    for name in dict.fromkeys(names):
        if time.perf_counter() - begun > given.budget:
            print(f"no time for {name}", file=sys.stderr)
            continue
        if given.profile:
            rows[name] = profile(BY_NAME[name])
            print(name, *[row["text"] for row in rows[name]], sep="\n")
            continue
        found = swept(BY_NAME[name], given.count, given.rounds, given.seconds)
        rows[name] = [{"us": round(one.least * 1e3, 1), "cycles": round(one.cycles),
                       "tiles": [asdict(t) for t in one.tiles]} for one in found]  # fmt: skip
        for one in sorted(found, key=lambda one: one.least):
            cut = [
                f"{t.left}/{t.right} {t.rows}x{t.columns} ({t.column_tiles}) "
                f"{t.k_chunks} x {t.k_block}"
                for t in one.tiles
            ]
            mark = "*" if one is found[0] else " "
            print(f"{name}: {mark}{one.least * 1e3:9.1f} us {one.cycles:12.0f}", *cut, sep="  ")
    if given.json:
        given.json.write_text(json.dumps(rows) + "\n")
    print(f"{time.perf_counter() - begun:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
