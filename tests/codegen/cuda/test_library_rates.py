"""Recorded gains of cuBLASLt: a table, and nothing where nothing was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fulgurite.codegen.cuda.library import Gemm, Matrix
from fulgurite.codegen.cuda.library_rates import NOTHING_KNOWN, Gain, gain_of
from fulgurite.codegen.cuda.tiling import HOPPER


def gemm(
    m: int, n: int, k: int, dtype: str = "bfloat16", batches: int = 1, sum_: str = "float32"
) -> Gemm:
    """A row-major product, in the library's words."""
    left, right = Matrix(1, 0, dtype, n, k, n, n * k), Matrix(0, 0, dtype, k, m, k, m * k)
    return Gemm(left, right, Matrix(2, 0, dtype, n, m, n, m * n), (False, False), batches, sum_)


def test_classes_that_were_measured_have_gains() -> None:
    for sizes in ((8, 3072, 768), (32, 12288, 4096), (128, 4096, 4096), (8192, 768, 768)):
        assert gain_of(gemm(*sizes), HOPPER).factor > 1
    assert gain_of(gemm(4096, 4096, 1024, "float32"), HOPPER).factor > 2
    assert gain_of(gemm(512, 512, 512, "float64", 1, "float64"), HOPPER).factor > 2


def test_where_ours_is_as_quick_or_nothing_is_known_there_is_none() -> None:
    for sizes in ((1, 3072, 768), (8192, 8192, 8192), (4096, 11008, 4096)):
        assert gain_of(gemm(*sizes), HOPPER).factor == 1
    assert gain_of(gemm(128, 128, 64, batches=12), HOPPER) == NOTHING_KNOWN
    assert gain_of(gemm(8, 16, 24, "float32"), HOPPER) == NOTHING_KNOWN
    assert gain_of(gemm(64, 64, 64, "float8_e4m3fn"), HOPPER) == NOTHING_KNOWN


def test_rows_that_are_not_aligned_are_not_claimed() -> None:
    for sizes in ((8192, 50257, 768), (8192, 768, 770), (8190, 50300, 768)):
        assert gain_of(gemm(*sizes), HOPPER) == NOTHING_KNOWN
    aligned = gemm(8192, 3072, 768)
    moved = aligned._replace(left=aligned.left._replace(offset=2))
    assert gain_of(aligned, HOPPER).factor > 1 and gain_of(moved, HOPPER) == NOTHING_KNOWN


def test_epilogues_of_many_rows_stay_fused() -> None:
    assert gain_of(gemm(768, 3072, 8192), HOPPER, has_epilogue=True) == NOTHING_KNOWN
    assert gain_of(gemm(32, 3072, 768), HOPPER, has_epilogue=True).factor > 1


def test_an_epilogue_of_its_own_is_weighed_against_what_ours_takes_at_least() -> None:
    few = Gain(1.6, 7000.0)
    assert few.cost(1800.0, 0.0) < 1800.0 and few.cost(1800.0, 2000.0) < 1800.0
    assert few.cost(1800.0, 3000.0) > 1800.0
    assert Gain(1.08, 0.0).cost(90_000.0, 10_000.0) > 90_000.0


RESULTS = Path(__file__).parents[3] / "bench" / "results" / "cublaslt.md"
ROW = re.compile(
    r"\| (?:(\d+) of )?(\d+)x(\d+)x(\d+)(?: [nt]{2})?(?: (\w+))? "
    r"\| ([\d.]+) \| ([\d.]+)(?: \| [\d.]+){3} \|$"
)


def recorded() -> list[tuple[str, Gemm, float, float]]:
    """Every product that was timed: its name, itself, our time and the library's."""
    found = []
    for line in RESULTS.read_text().splitlines():
        row = ROW.match(line)
        if row is not None:
            batches, m, n, k, dtype, ours, library = row.groups()
            kind = {"tf32": "float32", None: "bfloat16"}.get(dtype, dtype)
            how = dtype if dtype in ("tf32", "float64") else "float32"
            made = gemm(int(m), int(n), int(k), kind, int(batches or 1), how)
            found.append((line.split("|")[1].strip(), made, float(ours), float(library)))
    return found


def test_the_default_choice_is_no_slower_than_ours_where_both_were_timed() -> None:
    rows = recorded()
    assert len(rows) == 97
    chosen = [row for row in rows if gain_of(row[1], HOPPER).factor > 1]
    assert len(chosen) > 60
    for name, _, ours, library in chosen:
        assert library <= 1.03 * ours, name


@pytest.mark.parametrize("name", ["float32", "tf32", "float64"])
def test_gains_are_not_above_what_was_seen(name: str) -> None:
    seen = [ours / library for what, _, ours, library in recorded() if what.endswith(f" {name}")]
    assert seen and all(
        gain_of(made, HOPPER).factor <= min(seen) + 0.01
        for what, made, *_ in recorded()
        if what.endswith(f" {name}")
    )
