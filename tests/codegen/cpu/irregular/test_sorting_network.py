"""Tests of codegen/cpu/irregular/sorting_network.py: rows side by side, by fixed comparisons."""

from itertools import product

import numpy as np
import pytest

from fulgurite.core import build
from fulgurite.core.dtype import DType, bfloat16, bool_, float32, int8
from fulgurite.core.ops.leaf import param

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.irregular.sorting_network import comparisons
from fulgurite.codegen.cpu.tiling import CPU
from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import hostile, results

NETWORK = CPU.sort.network_elements


@pytest.mark.parametrize("n", range(1, 13))
def test_the_network_sorts_all_zeros_and_ones(n: int) -> None:
    for bits in product((0, 1), repeat=n):  # what sorts these sorts everything
        row = list(bits)
        for low, high in comparisons(n):
            assert low < high < n
            row[low], row[high] = min(row[low], row[high]), max(row[low], row[high])
        assert row == sorted(bits)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", [float32, bfloat16, int8, bool_], ids=str)
def test_rows_of_any_number_and_length_are_in_stable_order(dtype: DType, vectors: str) -> None:
    for outer, n in ((1, 2), (5, 3), (16, 7), (33, NETWORK), (17, NETWORK + 1)):
        for descending in (False, True):
            root = build.sort_order(param(0, (outer, n), dtype), 1, descending)
            got, meant, rendered = results(root, [hostile(dtype, (outer, n), n)], vectors)
            np.testing.assert_array_equal(got, meant)
            units = [p.units for p in rendered.launches if p.symbol.endswith("sorted")]
            assert (max(units) < outer) == (outer > 1 and n <= NETWORK)
