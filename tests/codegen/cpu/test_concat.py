"""Tests of codegen/cpu/concat.py and kernel/transform/concat.py: copies of parts, and nothing else.

NumPy says what is right, bit for bit, with units in any order and poison around all memory.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.concat import concats
from fulgurite.kernel.transform.concat import find_concat

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import lowered, run


@pytest.fixture(autouse=True)
def nothing_from_the_disk() -> Iterator[None]:
    with fg.config(device="cpu", disk_cache=False):
        yield


def parts(shape: tuple[int, ...], axis: int, lengths: list[int], dtype: str) -> list[Any]:
    rng = np.random.default_rng(len(lengths))
    shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]
    return [(100 * rng.standard_normal(s)).astype(dtype) for s in shapes]


def joined(arrays: list[Any], axis: int) -> fg.Tensor:
    return fg.concat([fg.from_numpy(a) for a in arrays], axis).contiguous()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16", "bool"])
@pytest.mark.parametrize(
    ("shape", "axis", "lengths"),
    [
        ((3, 0, 5, 7), 1, [4, 1, 9]),  # runs of whole channels
        ((3, 0, 5000), 1, [1, 2]),  # longer than a unit
        ((70, 0), 1, [8, 33, 9, 16]),  # short runs of many rows
        ((2, 5, 0, 9), 2, [1, 3] * 12),  # many parts
        ((0,), 0, [17, 9, 100]),
        ((0,), 0, [1] * 160),  # numbers, whose text as lanes of a relayout took a minute
        ((0,), 0, [3, 4, 1] * 20),
        ((2, 0), 1, [1, 5] * 10),
    ],
)
def test_parts_are_copied(shape: Any, axis: int, lengths: list[int], dtype: str) -> None:
    arrays = parts(shape, axis, lengths, dtype)
    tensor = joined(arrays, axis)
    assert concats(*lowered(tensor)) is not None
    (found,), _ = run(tensor, seed=1)
    np.testing.assert_array_equal(found, np.concatenate(arrays, axis))


def test_one_text_does_for_all_sizes_and_any_number_of_parts() -> None:
    texts = set()
    for axis, lengths in ((0, [8, 9]), (1, [10, 11, 12]), (2, [8] * 30)):
        found = concats(*lowered(joined(parts((4, 9, 8), axis, lengths, "float32"), axis)))
        assert found is not None
        texts.add(found.text)
    assert len(texts) == 1


def test_parts_of_values_that_were_taken_apart_are_copied_as_well() -> None:
    x, y = (fg.from_numpy(np.arange(240.0).reshape(4, 60) + n) for n in (0, 1000))
    turned = fg.concat([x[:, 30:], y, x[:, :30]], 1).contiguous()
    pieces = find_concat(lowered(turned)[0])
    assert pieces is not None and [p.run for p in sorted(pieces, key=lambda p: p.result)] == [
        30, 60, 30,
    ]  # fmt: skip
    (found,), _ = run(turned)
    a, b = x.numpy(), y.numpy()
    np.testing.assert_array_equal(found, np.concatenate([a[:, 30:], b, a[:, :30]], 1))


def test_what_is_computed_padded_or_turned_is_left_to_others() -> None:
    x = fg.from_numpy(np.ones((16, 16), np.float32))
    left = {
        "computed": fg.concat([x * 2, x]), "padded": fg.pad(x, ((1, 1), (0, 0))),
        "turned": fg.concat([x.T, x]), "backwards": fg.concat([x[:, ::-1], x]),
        "chosen by values": fg.where(x > 0, x, x.T), "one": x[2:],
        "repeated": fg.concat([fg.broadcast_to(x[:, :1], (16, 16)), x], 1),
        "short": fg.concat([x[:, :3], x[:, :3]], 1),
    }  # fmt: skip
    assert [n for n, t in left.items() if concats(*lowered(t.contiguous())) is not None] == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
@pytest.mark.parametrize("small", [2, 30, 299])
def test_a_small_part_that_lies_apart_is_copied_one_by_one(dtype: str, small: int) -> None:
    rng = np.random.default_rng(0)
    large = (100 * rng.standard_normal((1200, 8))).astype(dtype)
    turned = (100 * rng.standard_normal((8, small))).astype(dtype)
    for order in (1, -1):
        both = [fg.from_numpy(large), fg.from_numpy(turned).T][::order]
        tensor = fg.concat(both, 0).contiguous()
        assert concats(*lowered(tensor)) is not None
        (found,), _ = run(tensor, seed=2)
        np.testing.assert_array_equal(found, np.concatenate([large, turned.T][::order], 0))


def test_an_axis_that_falls_apart_is_cut_between_steps_of_its_outermost_one() -> None:
    rng = np.random.default_rng(1)
    large = rng.standard_normal((1, 2400, 4)).astype(np.float32)
    image = rng.standard_normal((1, 8, 15, 20)).astype(np.float32)
    view = fg.from_numpy(image).transpose((0, 2, 3, 1)).reshape((1, 600, 4))
    tensor = fg.concat([fg.from_numpy(large), view], 1).contiguous()
    pieces = find_concat(lowered(tensor)[0])
    assert pieces is not None and {p.step for p in pieces} == {1, 300}
    (found,), _ = run(tensor, seed=3)
    wanted = image.transpose(0, 2, 3, 1).reshape(1, 600, 4)
    np.testing.assert_array_equal(found, np.concatenate([large, wanted], 1))
    odd = fg.concat([fg.from_numpy(large)[:, :2399], view], 1).contiguous()  # between two steps
    (found,), _ = run(odd, seed=3)
    np.testing.assert_array_equal(found, np.concatenate([large[:, :2399], wanted], 1))


@pytest.mark.parametrize("by", [1, 3, -1])
def test_a_few_short_runs_beside_long_ones_are_copied_one_by_one(by: int) -> None:
    for shape, axis in (((40, 500), 1), ((6, 7, 90), 2), ((5, 4, 60, 8), 2)):
        x = np.random.default_rng(abs(by)).standard_normal(shape).astype(np.float32)
        rolled = fg.roll(fg.from_numpy(x), by, axis).contiguous()
        assert concats(*lowered(rolled)) is not None
        (found,), _ = run(rolled, seed=1)
        np.testing.assert_array_equal(found, np.roll(x, by, axis))


def test_many_short_runs_are_left_to_lanes() -> None:
    x = fg.from_numpy(np.zeros((50, 6), np.float32))
    assert concats(*lowered(fg.roll(x, 2, 1).contiguous())) is None


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_runs_shorter_than_a_vector_are_copied_by_shorter_ones(dtype: str) -> None:
    """The last one ends where the run does; only of a few elements each goes alone."""
    for lengths in ([32, 16], [63, 24], [17, 9], [8, 31, 12]):
        arrays = parts((70, 0), 1, lengths, dtype)
        tensor = joined(arrays, 1)
        text = concats(*lowered(tensor))
        inner = {"uint8": "i8", "int16": "i16", "float32": "float"}[dtype]
        count = 8 // np.dtype(dtype).itemsize
        assert text is not None and f"load <{count} x {inner}>" in text.text
        (found,), _ = run(tensor, seed=1)
        np.testing.assert_array_equal(found, np.concatenate(arrays, 1))
