"""Tests of fulgurite/functional/nn/resampling.py: interpolation and pixel shuffles."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import check_gradients, raises, same_bits, tensor

pytestmark = pytest.mark.device("reference")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape)


def test_nearest_repeats_or_leaves_out() -> None:
    x = numbers(1, 2, 3, 4)
    same_bits(fg.interpolate(tensor(x), scale_factor=2), x.repeat(2, 2).repeat(2, 3))
    same_bits(fg.interpolate(tensor(x), (5, 2)), x[:, :, [0, 0, 1, 1, 2]][..., [0, 2]])
    same_bits(fg.interpolate(tensor(x), (2, 4), mode="nearest-exact"), x[:, :, [0, 2]])
    whole = np.arange(3, dtype=np.int32).reshape(1, 1, 3)
    same_bits(fg.interpolate(tensor(whole), 6), whole.repeat(2, 2))


@pytest.mark.parametrize("corners", [False, True])
def test_linear_is_interpolation_between_neighbours(corners: bool) -> None:
    x = numbers(1, 2, 5)
    found = fg.interpolate(tensor(x), 8, mode="linear", align_corners=corners).numpy()
    places = np.arange(8) * 4 / 7 if corners else np.clip((np.arange(8) + 0.5) * 5 / 8 - 0.5, 0, 4)
    want = np.stack([np.interp(places, np.arange(5), row) for row in x[0]])[None]
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def test_bilinear_and_bicubic_are_exact_on_planes() -> None:
    rows, columns = np.meshgrid(np.arange(6.0), np.arange(7.0), indexing="ij")
    plane = (2 * rows - 3 * columns + 1)[None, None]
    for mode in ("bilinear", "bicubic"):
        found = fg.interpolate(tensor(plane), (11, 13), mode=mode, align_corners=True).numpy()
        fine = np.meshgrid(np.arange(11) / 2, np.arange(13) / 2, indexing="ij")
        want = 2 * fine[0] - 3 * fine[1] + 1
        inside = (slice(None), slice(None), slice(2, -2), slice(2, -2))
        np.testing.assert_allclose(found[inside], want[None, None][inside], rtol=1e-9, atol=1e-9)


def test_area_is_the_mean_of_what_a_place_covers() -> None:
    x = numbers(1, 2, 4, 6)
    found = fg.interpolate(tensor(x), (2, 3), mode="area").numpy()
    np.testing.assert_allclose(found, x.reshape(1, 2, 2, 2, 3, 2).mean((3, 5)), rtol=1e-12)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_gradients_are_those_of_differences(mode: str) -> None:
    check_gradients(lambda x: fg.interpolate(x, (3, 5), mode=mode), numbers(1, 1, 4, 3))


def test_the_same_size_is_the_same() -> None:
    x = numbers(1, 2, 3)
    for mode in ("nearest", "linear"):
        same_bits(fg.interpolate(tensor(x), 3, mode=mode), x)
    assert fg.interpolate(tensor(x, "float16"), 5, mode="linear").dtype is fg.float16


def test_wrong_arguments_are_errors() -> None:
    x = fg.ones((1, 1, 4))
    with raises(ArgumentError, "no mode 'cubic'"):
        fg.interpolate(x, 3, mode="cubic")
    with raises(ShapeError, "bilinear interpolation of shape (1, 1, 4)"):
        fg.interpolate(x, 3, mode="bilinear")
    with raises(ShapeError, "nearest interpolation"):
        fg.interpolate(fg.ones(4), 3)
    with raises(ArgumentError, "either a size or a scale_factor"):
        fg.interpolate(x)
    with raises(ArgumentError, "either a size or a scale_factor"):
        fg.interpolate(x, 3, 2.0)
    with raises(ArgumentError, "for 1 dimensions"):
        fg.interpolate(x, (3, 3))
    with raises(ArgumentError, "size is 0"):
        fg.interpolate(x, 0)
    with raises(ArgumentError, "leaves nothing"):
        fg.interpolate(x, scale_factor=0.1)
    with raises(ArgumentError, "align_corners means nothing"):
        fg.interpolate(x, 3, align_corners=True)


def test_pixels_are_shuffled_and_back() -> None:
    x = numbers(2, 8, 3, 5)
    found = fg.pixel_shuffle(tensor(x), 2)
    want = x.reshape(2, 2, 2, 2, 3, 5).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 10)
    same_bits(found, want)
    same_bits(fg.pixel_unshuffle(found, 2), x)
    with raises(ShapeError, "divisible by 9"):
        fg.pixel_shuffle(tensor(x), 3)
    with raises(ShapeError, "divisible by 3"):
        fg.pixel_unshuffle(tensor(x), 3)


def test_pixels_of_8_bits_stay_and_round_as_in_torch() -> None:
    x = fg.Tensor(np.array([[[[0, 9, 200], [255, 3, 77]]]], np.uint8))
    linear = fg.interpolate(x, (3, 4), mode="bilinear")
    assert linear.dtype is fg.uint8  # and two roundings, that of the rows first
    assert linear[0, 0].tolist() == [[0, 6, 81, 200], [128, 52, 56, 139], [255, 98, 31, 77]]
    cubic = fg.interpolate(x, (3, 4), mode="bicubic")
    assert cubic[0, 0].tolist() == [[0, 0, 86, 225], [128, 43, 41, 148], [255, 93, 0, 71]]
    corners = fg.interpolate(x, (4, 5), mode="bilinear", align_corners=True)
    assert corners[0, 0].tolist() == [
        [0, 5, 9, 105, 200], [85, 46, 7, 83, 159], [170, 88, 5, 62, 118], [255, 129, 3, 40, 77]
    ]  # fmt: skip
    same = fg.interpolate(x, (2, 3), mode="bilinear")
    assert same is not x and same.dtype is fg.uint8 and same.tolist() == x.tolist()
