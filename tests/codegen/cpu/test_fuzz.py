"""Random graphs in machine code give the answers of the reference evaluator, with any vectors."""

from dataclasses import replace

import pytest

import fulgurite as fg
from tests import fuzz

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("part", range(3))
def test_random_graphs_agree_in_machine_code(part: int) -> None:
    for seed in range(2_000_000 + part, 2_000_180, 3):
        fuzz.check(seed, device="cpu")


@pytest.mark.parametrize("stages", [{"simplify": False}, {"fuse": False}], ids=str)
def test_random_graphs_agree_with_a_stage_left_out(stages: dict[str, bool]) -> None:
    for seed in range(2_100_000, 2_100_040):
        fuzz.check(seed, device="cpu", **stages)


@pytest.mark.parametrize("vectors", ["avx2", "sse2"])
def test_random_graphs_agree_with_narrower_vectors(vectors: str) -> None:
    with fg.config(vectors=vectors):
        for seed in range(2_200_000, 2_200_040):
            fuzz.check(seed, device="cpu")


def test_random_graphs_agree_when_threads_share_every_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fulgurite.runtime.cpu import objects

    monkeypatch.setattr(objects, "least_work", lambda: 0)
    with fg.config(threads=3):
        for seed in range(2_300_000, 2_300_060):
            fuzz.check(seed, device="cpu")


def test_random_graphs_agree_when_every_fold_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgurite.codegen.cpu import render
    from fulgurite.codegen.cpu.tiling import CPU
    from fulgurite.kernel.transform import split_reduction

    every = replace(CPU.loops.split, short=4, long=8, enough=1 << 20)
    monkeypatch.setattr(render, "CPU", replace(CPU, loops=replace(CPU.loops, split=every)))
    monkeypatch.setattr(split_reduction, "_steps", lambda size, total, table: 3)
    fg.clear_caches()
    try:
        for seed in range(2_400_000, 2_400_120):
            fuzz.check(seed, device="cpu")
    finally:
        fg.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_graphs_agree_in_machine_code(part: int) -> None:
    for seed in range(3_000_000 + part, 3_010_000, 10):
        fuzz.check(seed, device="cpu")
