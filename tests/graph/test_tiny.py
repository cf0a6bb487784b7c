"""Tests of fulgurite/graph/tiny.py: tiny graphs are not compiled, by shape and option alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.tables import GRAPH
from fulgurite.graph.tiny import is_tiny, is_tiny_as_built
from fulgurite.runtime.device import get_device

pytest.importorskip("llvmlite")


def sink(x: fg.Tensor) -> object:
    normal = normalize([x.node])
    return restore(normal.structure, normal.constants)


def test_size_decides() -> None:
    assert is_tiny(sink(fg.Tensor([1.0]) + 1))  # type: ignore[arg-type]
    assert not is_tiny(sink(fg.Tensor(np.ones((512, 512), np.float32)) + 1))  # type: ignore[arg-type]


def test_a_sort_counts_for_what_numpy_takes_for_it() -> None:
    few, many = [fg.argsort(fg.Tensor(np.ones(n, np.float32))) for n in (200, 2000)]
    assert is_tiny(sink(few)) and not is_tiny(sink(many))  # type: ignore[arg-type]


def test_few_nodes_are_not_simplified_but_many_are() -> None:
    x = fg.Tensor([1.0])
    for count in range(1, GRAPH.unsimplified_nodes + 2):
        x = fg.sin(x)
        few = count < GRAPH.unsimplified_nodes  # the sink is a node too
        assert is_tiny_as_built(sink(x)) is few  # type: ignore[arg-type]
        assert is_tiny(sink(x))  # type: ignore[arg-type]
    assert not is_tiny_as_built(sink(fg.Tensor(np.ones((512, 512), np.float32)) + 1))  # type: ignore[arg-type]


def test_a_few_overlapping_windows_are_summed_as_many_are() -> None:
    """Sums of windows become contractions, which adds in another order: bits must not depend."""
    x, w = fg.Tensor(np.ones((1, 2, 8), np.float32)), fg.Tensor(np.ones((2, 2, 3), np.float32))
    slope = fg.grad(lambda x: fg.conv1d(x, w).sum())(x)
    assert not is_tiny_as_built(sink(slope))  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", [{}, {"verify": True}, {"simplify": False}])
def test_what_runs_as_it_is_built_is_what_the_pipeline_makes(extra: dict[str, bool]) -> None:
    """With `verify` the passes run; without it nothing of them is loaded."""
    given = np.array([-0.0, np.inf, np.nan, 3.5], np.float32)
    with fg.config(device="cpu", tier="auto"):
        plain = ((fg.Tensor(given) * 1 + 0) / 4 - 2).numpy()
        with fg.config(**extra):
            same = ((fg.Tensor(given) * 1 + 0) / 4 - 2).numpy()
    assert plain.tobytes() == same.tobytes()


FIRST = """
import sys, numpy, fulgurite as fg
x = fg.Tensor(numpy.ones(1, "float32"))
before = {*sys.modules}
assert (x + 1.0).tolist() == [2.0]
assert fg.softmax(fg.ones((2, 2))).tolist() == [[0.5, 0.5], [0.5, 0.5]]
print(*sorted({*sys.modules} - before))
"""


@pytest.mark.device("none")
def test_the_first_tiny_graphs_of_a_process_load_nothing(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "FULGURITE_CACHE_DIR": str(tmp_path),
        "FULGURITE_DEVICE": "cpu",
        "FULGURITE_TIER": "auto",
    }
    found = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.split() == []


def test_a_scatter_is_as_large_as_what_it_scatters() -> None:
    """Few results of many numbers are work all the same."""
    few, many = (fg.Tensor(np.zeros(n, np.int64)) for n in (10, 1 << 20))
    assert is_tiny(sink(fg.bincount(few, length=5)))  # type: ignore[arg-type]
    assert not is_tiny(sink(fg.bincount(many, length=5)))  # type: ignore[arg-type]


def test_a_tiny_graph_compiles_no_kernel_unless_told_to() -> None:
    device = get_device("cpu")
    with fg.config(device="cpu", tier="auto"):
        before = device.native  # type: ignore[attr-defined]
        assert (fg.Tensor([1.0, 2.0]) * 2 + 1).tolist() == [3.0, 5.0]
        assert device.native == before  # type: ignore[attr-defined]
        with fg.config(tier="native"):
            assert (fg.Tensor([1.0, 2.0, 3.0]) * 2 + 1).tolist() == [3.0, 5.0, 7.0]
        assert device.native == before + 1  # type: ignore[attr-defined]


def test_several_results_and_a_result_asked_twice() -> None:
    with fg.config(device="cpu"):
        x = fg.Tensor([1.0, 2.0])
        a, b = fg.realize(x + 1, x * 2)
        assert (a.tolist(), b.tolist()) == ([2.0, 3.0], [2.0, 4.0])
