"""Tests of graph/fusion/store_views.py and index_cost.py: what is costly to address is stored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.aot.schedule import schedule
from fulgurite.graph.fusion.machine import work_of
from fulgurite.graph.fusion.store_views import STRIDED, WHY, _Views

pytestmark = pytest.mark.device("hosts")


def given(*shape: int, seed: int = 0) -> fg.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape)
    return fg.from_numpy(values.astype(np.float32))


def stored(*tensors: fg.Tensor) -> list[tuple[int, ...]]:
    """The shapes of the views that a schedule stores."""
    found = schedule(*tensors)
    return [found.slots[i.writes[0]].shape for i in found.items if i.reason == WHY]  # type: ignore


def shuffled(x: fg.Tensor) -> fg.Tensor:
    count, channels, *space = x.shape
    apart = fg.reshape(x, (count, 2, channels // 2, *space))
    return fg.reshape(fg.moveaxis(apart, 1, 2), x.shape)


def normalised(x: fg.Tensor) -> fg.Tensor:
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    apart = x - mean
    return apart * fg.rsqrt((apart * apart).mean(axis=(0, 2, 3), keepdims=True) + 1e-5)


def test_a_concatenation_of_many_that_is_read_by_rows_is_stored_once() -> None:
    parts = [given(4, 16, 28, 28, seed=n) for n in range(12)]
    joined = fg.concat(parts, axis=1)
    assert stored(normalised(joined), joined.sum(axis=1)) == [(4, 192, 28, 28)]


def test_two_parts_that_are_read_once_are_not_stored() -> None:
    a, b = given(4, 16, 28, 28), given(4, 16, 28, 28, seed=1)
    assert stored(fg.relu(fg.concat([a, b], axis=1))) == []
    assert stored(fg.concat([a, b], axis=1).sum(axis=(1, 2, 3))) == []


def test_small_parts_are_stored_when_there_are_many_of_which_each_would_be_written_out() -> None:
    parts = [given(2, 8, 6, 6, seed=n) for n in range(16)]
    many, few = [fg.tanh(fg.concat(some, axis=1)) for some in (parts, parts[:3])]
    assert (stored(many), stored(few)) == ([(2, 128, 6, 6)], [])
    np.testing.assert_allclose(
        many.numpy(), np.tanh(np.concatenate([p.numpy() for p in parts], 1)), rtol=1e-6
    )


def test_channels_that_are_shuffled_are_stored_before_they_are_turned() -> None:
    a, b = given(1, 64, 24, 24), given(1, 64, 24, 24, seed=1)
    rows = fg.moveaxis(shuffled(fg.concat([a, b], axis=1)), 1, -1)
    assert stored((rows * 2).contiguous()) == [(1, 64, 2, 24, 24)]
    plain = fg.moveaxis(fg.concat([a, b], axis=1), 1, -1)
    assert stored(plain.contiguous()) == []


def test_numbers_are_counted_that_are_read_one_by_one() -> None:
    x = given(1, 128, 24, 24)
    cases: dict[str, tuple[Callable[[fg.Tensor], fg.Tensor], bool]] = {
        "shuffled across lanes": (lambda x: fg.moveaxis(shuffled(x), 1, -1), True),
        "shuffled rows": (shuffled, False),
        "turned": (lambda x: fg.moveaxis(x, 1, -1), False),
        "heads": (lambda x: fg.moveaxis(x.reshape((1, 128, 8, 72)), 1, 2), False),
    }
    for name, (move, gathers) in cases.items():
        with fg.config(search=False):
            work = work_of(schedule(move(x).contiguous()).items[-1].kernel)
        assert work.gathered == (x.size if gathers else 0), name


def test_what_is_divided_to_be_found_is_stored_before_it_is_joined() -> None:
    sizes = ((1, 12, 60, 80), (1, 8, 30, 40), (1, 8, 15, 20))
    heads = [given(*size, seed=n) for n, size in enumerate(sizes)]  # of a detector
    last = given(1, 240, 4, seed=3)
    cut = [fg.reshape(fg.moveaxis(h, 1, -1), (1, h.size // 4, 4)) for h in heads]
    joined = fg.concat([*cut, last], axis=1)
    for result in (joined.contiguous(), fg.softmax(joined, axis=-1)):
        assert {(1, 60, 80, 12), (1, 30, 40, 8)} <= set(stored(result))
    wanted = [np.moveaxis(h.numpy(), 1, -1).reshape(1, -1, 4) for h in heads]
    np.testing.assert_array_equal(joined.numpy(), np.concatenate([*wanted, last.numpy()], axis=1))


@pytest.mark.parametrize("gradient", [False, True])
def test_a_block_of_joined_layers_stores_what_it_joins(gradient: bool) -> None:
    growth, layers = 8, 6
    weights = [given(growth, 16 + growth * n, seed=n) for n in range(layers)]
    x = given(2, 16, 24, 24, seed=9)

    def block(weights: list[fg.Tensor], x: fg.Tensor) -> fg.Tensor:
        parts = [x]
        for w in weights:
            rows = fg.moveaxis(normalised(fg.concat(parts, axis=1)), 1, -1)
            parts.append(fg.moveaxis(fg.tanh(rows @ w.T), -1, 1))
        return fg.concat(parts, axis=1)

    def right(weights: Any, x: Any) -> Any:
        parts = [x]
        for w in weights:
            joined = np.concatenate(parts, 1)
            apart = joined - joined.mean((0, 2, 3), keepdims=True)
            normal = apart / np.sqrt((apart * apart).mean((0, 2, 3), keepdims=True) + 1e-5)
            parts.append(np.moveaxis(np.tanh(np.moveaxis(normal, 1, -1) @ w.T), -1, 1))
        return np.concatenate(parts, 1)

    exact = [w.numpy().astype(np.float64) for w in weights], x.numpy().astype(np.float64)
    if gradient:
        found = fg.grad(lambda x: (block(weights, x) ** 2).sum())(x)
        step, direction = 1e-4, np.random.default_rng(0).standard_normal(x.shape)
        ends = [(right(exact[0], exact[1] + s * direction) ** 2).sum() for s in (step, -step)]
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose((found.numpy() * direction).sum(), slope, rtol=1e-3)
    else:
        found = block(weights, x)
        assert stored(found)
        np.testing.assert_allclose(found.numpy(), right(*exact), rtol=1e-3, atol=1e-4)


@pytest.mark.device("cpu")
def test_what_a_store_does_not_change_is_not_priced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, asked = 24, list[int]()
    reader = _Views.reader

    def counted(self: Any, place: int, node: Any) -> Any:
        asked.append(place)
        return reader(self, place, node)

    monkeypatch.setattr(_Views, "reader", counted)
    weights = [given(8, 16 + 8 * n, seed=n) for n in range(layers)]

    def block(x: fg.Tensor) -> fg.Tensor:
        parts = [x]
        for w in weights:
            rows = fg.moveaxis(normalised(fg.concat(parts, axis=1)), 1, -1)
            parts.append(fg.moveaxis(fg.tanh(rows @ w.T), -1, 1))
        return (fg.concat(parts, axis=1) ** 2).sum()

    places = stored(fg.grad(block)(given(2, 16, 24, 24, seed=9)))
    assert places
    assert len(asked) <= 8 * layers  # for each layer anew it would grow with their square


def transposed(size: int, window: int = 2) -> fg.Tensor:
    weights = given(32, 16, window, window, seed=1)
    return fg.relu(fg.conv_transpose2d(given(1, 32, size, size), weights, stride=window))


def test_a_product_whose_results_take_turns_is_stored_in_its_own_order() -> None:
    """Windows that do not meet: places of the picture and of the window are neighbours by turns."""
    found = schedule(transposed(32))
    assert [(i.kernel.kind, i.reason == STRIDED) for i in found.items] == [
        ("contract", False), ("map", True)
    ]  # fmt: skip
    assert [work_of(i.kernel).gathered for i in found.items] == [0, 0]
    assert len(schedule(transposed(4)).items) == 1  # another kernel would take longer
    heads = fg.moveaxis((given(64, 48) @ given(48, 96, seed=1)).reshape((64, 4, 24)), 0, 1)
    assert len(schedule(heads.contiguous()).items) == 1  # rows of 24 are vectors
    few = fg.moveaxis(fg.conv2d(given(1, 64, 60, 80), given(6, 64, 1, 1, seed=1)), 1, -1)
    assert len(schedule(few.reshape((-1, 2)) * 2).items) == 1  # all columns of a row are neighbours


@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("size", [7, 33])
def test_results_that_take_turns_are_right(size: int, window: int) -> None:
    x, w = given(2, 32, size, size), given(32, 16, window, window, seed=1)
    found = fg.conv_transpose2d(x, w, stride=window).numpy()
    spread = np.einsum("nchw,coij->nohiwj", x.numpy().astype(float), w.numpy().astype(float))
    np.testing.assert_allclose(found, spread.reshape(found.shape), rtol=2e-5, atol=2e-5)


def test_a_picture_made_of_channels_is_stored_before_its_windows_are_multiplied() -> None:
    weights = given(8, 16, 3, 3, seed=1)

    def convolved(x: fg.Tensor) -> fg.Tensor:
        found: fg.Tensor = fg.nn.functional.conv2d(x, weights, padding=1)
        return found

    apart = given(1, 16, 2, 2, 16, 16)
    image = fg.permute_dims(apart, (0, 1, 4, 2, 5, 3)).reshape((1, 16, 32, 32))
    rows = given(1, 16, 32, 32)
    assert stored(convolved(image)) == [(1, 16, 16, 2, 16, 2)]
    assert stored(convolved(rows)) == stored(convolved(fg.swapaxes(rows, 2, 3))) == []
    plain = fg.from_numpy(apart.numpy().transpose(0, 1, 4, 2, 5, 3).reshape(1, 16, 32, 32))
    np.testing.assert_allclose(
        convolved(image).numpy(), convolved(plain).numpy(), rtol=1e-5, atol=1e-4
    )


def test_a_picture_whose_pixels_are_repeated_is_stored_before_its_windows_are_multiplied() -> None:
    weights, x = given(8, 16, 3, 3, seed=1), given(1, 16, 16, 16)

    def convolved(x: fg.Tensor) -> fg.Tensor:
        found: fg.Tensor = fg.nn.functional.conv2d(x, weights, padding=1)
        return found

    larger = fg.repeat(fg.repeat(x, 2, axis=3), 2, axis=2)
    assert stored(convolved(larger)) == [(1, 16, 16, 2, 16, 2)]
    plain = fg.from_numpy(x.numpy().repeat(2, 2).repeat(2, 3))
    np.testing.assert_allclose(
        convolved(larger).numpy(), convolved(plain).numpy(), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("around", [0, 7])
def test_a_picture_that_is_turned_is_stored_before_it_is_padded(around: int) -> None:
    """Squares of memory are transposed where all of it is read; a condition leaves single lanes."""
    x, widths = given(1, 48, 64, 64), [(0, 0), (1, 1), (2, 0), (0, 0)]

    def padded(x: fg.Tensor) -> fg.Tensor:
        found: fg.Tensor = fg.pad(fg.moveaxis(x, 1, -1), widths, constant_values=around)
        return found

    assert stored(padded(x)) == [(1, 64, 64, 48)]
    want = np.pad(np.moveaxis(x.numpy(), 1, -1), widths, constant_values=around)
    np.testing.assert_array_equal(padded(x).numpy(), want)
    assert stored(padded(x[:, :3])) == []  # so few channels are lanes of a relayout
