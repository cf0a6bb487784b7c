"""Tests of codegen/cpu/irregular/scatter.py: combining at places that are data, in machine code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, float32, int32
from fulgurite.core.ops.elementwise import NEG
from fulgurite.core.ops.indexing import scatter
from fulgurite.core.ops.leaf import param, variable

pytest.importorskip("llvmlite")

from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import Array, agree, hostile, results
from tests.properties import program

MODES = ("set", "add", "mul", "max", "min")
CASES = [
    ((7,), (30,), 0), ((1,), (5,), 0), ((6, 33), (40, 33), 0), ((3, 9), (3, 20), 1),
    ((3, 5, 17), (3, 11, 17), 1), ((2, 3, 4), (2, 3, 1), 2),
]  # fmt: skip


def places(shape: tuple[int, ...], size: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, size, shape).astype(np.int32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind != "c"], ids=str)
def test_a_scatter_has_the_bits_of_one_that_goes_in_order(dtype: DType, mode: str) -> None:
    for seed, (base, chosen, axis) in enumerate(CASES):
        x, v = hostile(dtype, base, seed), hostile(dtype, chosen, seed + 50)
        i = places(chosen, base[axis], seed)
        root = scatter(
            mode, param(0, base, dtype), param(1, chosen, int32), param(2, chosen, dtype), axis
        )
        agree(root, [x, i, v])


@pytest.mark.parametrize("vectors", VECTORS)
def test_rows_are_added_whole_as_in_the_gradient_of_an_embedding(vectors: str) -> None:
    rows, width, count = 5, 70, 40
    table, values = hostile(float32, (rows, width), 1), hostile(float32, (count, width), 2)
    index = build.expand(build.reshape(param(1, (count,), int32), (count, 1)), (count, width))
    root = scatter("add", param(0, (rows, width), float32), index,
                   param(2, (count, width), float32), 0)  # fmt: skip
    got, meant, rendered = results(root, [table, places((count,), rows, 3), values], vectors)
    np.testing.assert_array_equal(got, meant)
    assert rendered.launches[-1].units > 1


def test_base_values_and_indices_may_be_computed() -> None:
    x, v = hostile(float32, (6,), 1), hostile(float32, (20,), 2)
    chosen = build.flip(NEG(param(1, (20,), int32)), (0,))
    root = scatter("add", NEG(param(0, (6,), float32)), chosen, NEG(param(2, (20,), float32)), 0)
    agree(root, [x, -places((20,), 6, 3), v])


def test_an_index_outside_is_reported_and_writes_nowhere_else() -> None:
    with fg.config(device="cpu", tier="native"):
        base, index = fg.zeros((5,)), fg.Tensor([0, 9, 1])
        with pytest.raises(IndexError, match="outside"):
            fg.scatter_add(base, 0, index, fg.ones((3,))).numpy()


@program
@given(
    size=st.integers(1, 9), most=st.integers(2, 40), part=st.floats(0, 1), seed=st.integers(0, 99),
    mode=st.sampled_from(MODES), vectors=st.sampled_from(VECTORS), inner=st.sampled_from([1, 20]),
)  # fmt: skip
def test_as_many_values_are_combined_as_there_are(
    size: int, most: int, part: float, seed: int, mode: str, vectors: str, inner: int
) -> None:
    n = int(part * most)
    count = variable("n", 0, most)
    x, v = hostile(float32, (size, inner), seed), hostile(float32, (most, inner), seed + 1)
    i = places((most, inner), size, seed)
    i[n:] = 1_000_000  # what is beyond the end is no index
    root = scatter(mode, param(0, (size, inner), float32), param(1, (count, inner), int32),
                   param(2, (count, inner), float32), 0)  # fmt: skip
    agree(root, [x, i, v], vectors, {"n": n})
