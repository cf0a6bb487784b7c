"""Tests of the order that SORT has in NumPy: keys with places behind them, as a stable sort."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fulgurite.core.ops import indexing

PLAIN = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip
SMALL = ("bfloat16", "float8_e4m3fn")
SPECIAL = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1.0, -1.0]


def samples(name: str, count: int) -> list[Any]:
    """Random bits, many equal ones, and the extremes of a dtype."""
    rng = np.random.default_rng(count)
    dtype = np.dtype(getattr(ml_dtypes, name) if name in SMALL else name)
    few = rng.integers(0, 5, count).astype(dtype)
    if name == "bool":
        return [few]
    bits = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
    if name in SMALL or dtype.kind == "f":
        return [bits, few, np.array(SPECIAL)[rng.integers(0, len(SPECIAL), count)].astype(dtype)]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = np.array([low, high, 0, 1, high - 1, low + 1], dtype)
    narrow = np.array([high, high - 3, high - 1], dtype)  # far from 0 and near each other
    return [bits, few, ends[rng.integers(0, 6, count)], narrow[rng.integers(0, 3, count)]]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", (*PLAIN, *SMALL))
def test_packed_keys_have_the_order_of_a_stable_sort(
    name: str, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape, axis in (((600,), 0), ((7, 300), 1), ((300, 5), 0), ((2, 40, 3), 1), ((9, 70), -1)):
        for sample in samples(name, int(np.prod(shape))):
            x = sample.reshape(shape)
            monkeypatch.setattr(indexing, "PACKED_SORT", 1 << 60)
            wanted = indexing.sorted_places(x, axis, descending)
            monkeypatch.setattr(indexing, "PACKED_SORT", 1)
            found = indexing.sorted_places(x, axis, descending)
            assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
            strided = indexing.sorted_places(np.repeat(x, 2, 0)[::2], axis, descending)
            assert np.array_equal(strided, wanted)


def test_keys_of_32_bits_are_not_had_of_what_lies_further_apart() -> None:
    assert indexing._sort_keys(np.array([0, 1 << 32])) is None
    assert indexing._sort_keys(np.array([0, (1 << 32) - 1])) is not None
    assert (
        indexing._sort_keys(np.array([0.5])) is None
        and indexing._sort_keys(np.array([], int)) is None
    )
