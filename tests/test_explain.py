"""Tests of fulgurite/explain.py: what would run, why, at what cost, and what the cache knows."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError


@pytest.fixture(autouse=True)
def clean() -> None:
    fg.clear_caches()


def random(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(2).normal(size=shape).astype(np.float32))


def test_a_kernel_has_kind_bytes_operations_lines_reason_and_text() -> None:
    x = random(4, 8)
    (kernel,) = fg.explain(fg.softmax(x, axis=-1)).kernels
    assert kernel.kind == "reduce"
    assert kernel.bytes == 2 * 4 * 8 * 4  # read once, written once
    assert kernel.flops == 5 * 4 * 8  # max, sub, exp, sum, div
    assert kernel.lines and all(__file__ in line for line in kernel.lines)
    assert kernel.reason == "a reduction"
    assert "fold('max'" in kernel.text


def test_the_text_names_every_stage_and_kernel() -> None:
    text = str(fg.explain(fg.softmax(random(4, 4) @ random(4, 4), axis=-1)))
    for part in (
        "2 kernels",
        "contract:",
        "reduce:",
        "because:",
        "--- simplify ---",
        "--- schedule ---",
    ):
        assert part in text


def test_explaining_computes_nothing_and_changes_no_cache() -> None:
    x = random(3) * 2
    before = fg.cache_stats()
    fg.explain(x)
    assert fg.cache_stats() == before and not x.is_realized


def test_a_hit_and_each_kind_of_miss_are_told_apart() -> None:
    x = random(3)
    assert "no graph of this kind" in fg.explain(x * 2).cache
    (x * 2).realize()
    assert fg.explain(x * 2).cache == "hit"
    assert "1 constants differ" in fg.explain(x * 3).cache
    assert "add" in fg.explain(x + 2).cache and "not (mul" in fg.explain(x + 2).cache
    assert "an input float32[5]" in fg.explain(random(5) * 2).cache
    with fg.config(exact=True):
        assert "option differs" in fg.explain(x * 2).cache


def test_peak_is_inputs_results_and_arena() -> None:
    report = fg.explain(random(16, 16) * 2)
    assert report.peak_bytes == 2 * 16 * 16 * 4


def test_what_is_known_needs_no_kernels_and_other_objects_are_refused() -> None:
    assert fg.explain(random(3)).kernels == ()
    with pytest.raises(ArgumentError, match="not a tensor"):
        fg.explain(3)  # type: ignore[arg-type]
