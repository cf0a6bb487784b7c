"""Tests of fulgurite/graph/tiny.py: tiny graphs are not compiled, by shape and option alone."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.tiny import is_tiny
from fulgurite.runtime.device import get_device

pytest.importorskip("llvmlite")


def sink(x: fg.Tensor) -> object:
    normal = normalize([x.node])
    return restore(normal.structure, normal.constants)


def test_size_decides() -> None:
    assert is_tiny(sink(fg.Tensor([1.0]) + 1))  # type: ignore[arg-type]
    assert not is_tiny(sink(fg.Tensor(np.ones((512, 512), np.float32)) + 1))  # type: ignore[arg-type]


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
