"""Tests of codegen/cpu/irregular/parts.py: kernels with scans, sorts and scatters, cut in parts."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.dtype import bfloat16, float32, int32
from fulgurite.core.node import Node
from fulgurite.core.ops.elementwise import NEG
from fulgurite.core.ops.indexing import scatter
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.reduce import reduce_node

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.target import target
from fulgurite.graph.ir.lower import lower
from tests.codegen.cpu.launch import rendered
from tests.codegen.cpu.parity import agree, hostile, results

SHAPE = (3, 40)


def parts_of(root: Node) -> int:
    """How many kernels a node's kernel is cut in."""
    made = rendered(lower(SINK(root), 1), [float32, root.dtype], target())
    return len({launch.symbol.split("_")[1] for launch in made.launches})


def test_memory_that_is_as_it_is_needed_is_not_copied() -> None:
    x = param(0, SHAPE, float32)
    assert parts_of(build.scan("add", x, 1)) == 1
    assert parts_of(build.scan("add", x, 0)) == 1
    assert parts_of(build.sort_order(x, 1)) == 1
    assert parts_of(build.scan("add", NEG(x), 1)) == 2
    assert parts_of(build.sort_order(x, 0)) == 3  # there and back


def test_a_scan_may_have_any_place_in_a_kernel() -> None:
    x = hostile(float32, SHAPE, 1)
    inner = build.scan("max", NEG(param(0, SHAPE, float32)), 1)
    for root in (
        NEG(inner), build.scan("min", NEG(inner), 0), build.sort_order(inner, 0),
        reduce_node("max", inner, (0,)),
    ):  # fmt: skip
        agree(root, [x])


def test_a_scatter_into_what_was_scanned() -> None:
    x, v = hostile(float32, SHAPE, 1), hostile(float32, (3, 9), 2)
    index = np.random.default_rng(0).integers(0, 40, (3, 9)).astype(np.int32)
    base = build.scan("max", param(0, SHAPE, float32), 1)
    chosen, values = param(1, (3, 9), int32), param(2, (3, 9), float32)
    agree(scatter("add", base, chosen, values, 1), [x, index, v])


def test_small_floats_are_combined_in_float32_and_rounded_once() -> None:
    count = 300
    base, ones = np.zeros(1, bfloat16.numpy), np.ones(count, bfloat16.numpy)
    root = scatter("add", param(0, (1,), bfloat16), param(1, (count,), int32),
                   param(2, (count,), bfloat16), 0)  # fmt: skip
    got, _, _ = results(root, [base, np.zeros(count, np.int32), ones])
    assert float(got[0]) == 300.0  # adding ones in bfloat16 would end at 256


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1 << 18).astype(np.float32)
    index = rng.integers(0, 500, x.shape).astype(np.int32)
    found = []
    for threads in (1, 2, 3):
        with fg.config(device="cpu", tier="native", threads=threads):
            t = fg.Tensor(x)
            rows = t.reshape(512, 512)
            made = [
                fg.cumulative_sum(t), fg.cumulative_sum(rows, axis=0),
                fg.cumulative_sum(rows, axis=1),
                fg.argsort(t),
                fg.sort(rows, axis=1), fg.scatter_add(fg.zeros((500,)), 0, fg.Tensor(index), t),
            ]  # fmt: skip
            found.append([m.numpy().tobytes() for m in made])
    assert found[0] == found[1] == found[2]
