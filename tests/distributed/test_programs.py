"""Programs as people write them over random meshes and splits: ranks are threads, no MPI needed."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import pytest

import fulgurite as fg
from tests.fuzz.programs import judged
from tests.fuzz.programs.oracle import Unjudged
from tests.fuzz.programs.settings import _asked
from tests.ranks import on_ranks

pytestmark = pytest.mark.device("none")
MESHES = [{"a": 2}, {"a": 3}, {"a": 2, "b": 2}, {"a": 4}, {"a": 1, "b": 2}, {"a": 2, "b": 3}]
WAYS = ["value_and_grad", "backward", "checkpoint"]


def split(random: Random, axes: dict[str, int], ndim: int) -> dict[str, int]:
    """Some axes over some dimensions, whether they divide them or not."""
    chosen = {axis: random.randrange(ndim + 1) for axis in axes}
    return {axis: dim for axis, dim in chosen.items() if dim < ndim}


@pytest.mark.parametrize("first", range(0, 40, 8))
def test_programs_over_shards_give_what_whole_tensors_give(first: int) -> None:
    for number in range(first, first + 8):
        found = judged(28, number)
        if found is None:
            continue
        known, random = found.wide(), Random(number)
        program, axes = known.program, random.choice(MESHES)
        data = program.data()
        splits = [split(random, axes, a.ndim) for a in data]
        way, kept = random.choice(WAYS), random.random() < 0.5

        def run(
            rank: int, program: Any = program, axes: Any = axes, data: Any = data,
            splits: Any = splits, way: str = way, kept: bool = kept,
        ) -> Any:  # fmt: skip
            with fg.config(device="reference", disk_cache=False):
                mesh = fg.Mesh(axes)
                pairs = zip(data, splits, strict=True)
                args = [fg.shard(fg.Tensor(a), mesh, one) for a, one in pairs]
                if kept:
                    fg.realize(*args)
                return _asked(program.function(), program.varied, args, way, program.alone)

        for answer in on_ranks(prod(axes.values()), run):
            try:
                wrong = known.problem(answer)
            except Unjudged:
                wrong = None
            assert wrong is None, f"program {number} on {axes}, {splits}, {way}: {wrong}"
