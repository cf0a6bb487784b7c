"""Folds in native code: ragged tiles, both ways lanes run, every target, any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import BoundsError
from tests.graph.searching import (
    ATTENTION,
    INTO_PRODUCTS,
    ROWS,
    error,
    numbers,
    one_fold,
    scarce_memory,
)
from tests.graph.unseen import UNSEEN, Given, normal, results, rounded, tensors

NATIVE = {"device": "cpu", "tier": "native", "search": True}


def values(make: object, **options: object) -> list[np.ndarray]:
    """A program's results, each by one fold in native code."""
    assert callable(make)
    with one_fold(**options):
        found = make()
        found = found if isinstance(found, (list, tuple)) else [found]
        return [np.asarray(t.numpy()) for t in found]


def plain(make: object) -> list[np.ndarray]:
    assert callable(make)
    with fg.config(device="reference", search=False):
        found = make()
        found = found if isinstance(found, (list, tuple)) else [found]
        return [np.asarray(t.numpy()) for t in found]


def _program(name: str, rows: int, size: int) -> fg.Tensor:
    """A program of rows, its numbers made where it is run."""
    return (ROWS | INTO_PRODUCTS)[name](numbers(1, rows, size))


def attention(q: int, k: int, d: int, c: int, heads: int = 2) -> list[fg.Tensor]:
    return [fg.softmax(numbers(1, heads, q, d) @ numbers(2, heads, k, d).mT * 0.3, axis=-1)
            @ numbers(3, heads, k, c)]  # fmt: skip


SIZES = [(3, 5, 4, 3), (1, 129, 16, 5), (7, 300, 33, 65), (49, 127, 48, 48), (145, 260, 64, 64),
         (300, 20, 8, 300), (16, 16, 300, 16), (2, 2, 2, 2)]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_odd_sizes_give_the_reference_values(size: tuple[int, int, int, int]) -> None:
    (got,), (want,) = values(lambda: attention(*size)), plain(lambda: attention(*size))
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("vectors", ["avx2", "sse2"])
@pytest.mark.parametrize("size", [(7, 130, 33, 20), (1, 70, 16, 5)], ids=str)
def test_every_target_gives_the_reference_values(
    size: tuple[int, int, int, int], vectors: str
) -> None:
    (got,) = values(lambda: attention(*size), vectors=vectors)
    np.testing.assert_allclose(got, plain(lambda: attention(*size))[0], rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("name", ["bias", "library causal", "sliding window", "grouped queries"])
def test_bits_do_not_depend_on_the_number_of_threads(name: str) -> None:
    def make() -> fg.Tensor:
        q, k, v = numbers(1, 4, 170, 16), numbers(2, 4, 300, 16), numbers(3, 4, 300, 16)
        return ATTENTION[name](q, k, v)

    first = values(make, threads=1)[0]
    for threads in (2, 3):
        assert first.tobytes() == values(make, threads=threads)[0].tobytes()


@pytest.mark.parametrize("name", INTO_PRODUCTS)
def test_lanes_along_the_streamed_axis(name: str) -> None:
    for rows, size in ((33, 65), (200, 64), (1, 40)):
        make = partial(_program, name, rows, size)
        got, want = values(make)[0], plain(make)[0]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * float(np.abs(want).max()))


def test_double_precision_is_kept() -> None:
    def make() -> fg.Tensor:
        q, k, v = (fg.Tensor(numbers(i, 2, n, 20).numpy().astype(np.float64))
                   for i, n in ((1, 50), (2, 170), (3, 170)))  # fmt: skip
        return fg.softmax(q @ k.mT, axis=-1) @ v

    np.testing.assert_allclose(values(make)[0], plain(make)[0], rtol=1e-12, atol=1e-13)


def test_blocks_that_are_left_out_change_nothing() -> None:
    def make() -> fg.Tensor:
        q, k, v = numbers(1, 2, 300, 16), numbers(2, 2, 400, 16), numbers(3, 2, 400, 16)
        rows, keys = fg.arange(300)[:, None], fg.arange(400)[None, :]
        near = (keys <= rows) & (rows - keys < 33) & (rows > 5)
        return fg.softmax(fg.where(near, q @ k.mT, -inf), axis=-1) @ v

    got, want = values(make)[0], plain(make)[0]
    assert np.isnan(want[:, :6]).all() and np.isnan(got[:, :6]).all()  # these rows see nothing
    np.testing.assert_allclose(got[:, 6:], want[:, 6:], rtol=3e-5, atol=3e-6)


def test_gradients_are_folds_too() -> None:
    def make() -> list[fg.Tensor]:
        q, k, v, g = (numbers(i, 2, n, 24) for i, n in ((1, 70), (2, 90), (3, 90), (4, 70)))

        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
            return (fg.softmax(q @ k.mT * 0.3, axis=-1) @ v * g).sum()

        return list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))

    with scarce_memory(), fg.config(**NATIVE):
        report = fg.explain(*make())
    assert [k.kind for k in report.kernels] == ["fold"] * 2
    assert report.peak_bytes < 4 * (8 * 2 * 90 * 24 + 2 * 70 * 90)  # no matrix of scores
    for got, want in zip(values(make), plain(make), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_loss_over_many_classes_has_its_gradient_by_two_folds(
    turned: bool, ignored: bool
) -> None:
    places = np.random.default_rng(5).integers(0, 3000, 100)
    if ignored:
        places[::3] = -100

    def make() -> list[fg.Tensor]:
        x, w = numbers(1, 100, 48), numbers(2, *((3000, 48) if turned else (48, 3000)))

        def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
            return fg.cross_entropy(x @ (w.mT if turned else w), fg.Tensor(places))

        value, slopes = fg.value_and_grad(loss, argnums=(0, 1))(x, w)
        return [value, *slopes]

    with scarce_memory(), fg.config(**NATIVE):
        found = make()
        report = fg.explain(*found)
        got = [np.asarray(t.numpy()) for t in fg.realize(*found)]
    assert [k.kind for k in report.kernels] == ["fold", "reduce", "fold"]
    for a, b in zip(got, plain(make), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_an_index_outside_is_an_error_of_the_gradient_too() -> None:
    def make() -> fg.Tensor:
        places = fg.Tensor(np.array([3, 5000, 7]))
        x, w = numbers(1, 3, 16), numbers(2, 16, 3000)
        found: fg.Tensor = fg.grad(lambda x: fg.cross_entropy(x @ w, places))(x)
        return found

    with fg.config(**NATIVE), pytest.raises(BoundsError, match="3000"):
        make().numpy()


def test_rows_picked_from_rows_are_one_native_kernel() -> None:
    make = partial(_program, "log-likelihood", 50, 200)
    with fg.config(**NATIVE):
        assert len(fg.explain(make()).kernels) == 1
        got = make().numpy()
    np.testing.assert_allclose(got, plain(make)[0], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 60, 500])
@pytest.mark.parametrize("classes", [383, 385, 1000])
@pytest.mark.parametrize("depth", [7, 300])
def test_keys_that_lie_along_the_streamed_axis_are_put_in_order_once(
    rows: int, classes: int, depth: int
) -> None:
    def loss() -> fg.Tensor:
        scores = numbers(1, rows, depth) @ numbers(2, depth, classes)
        return fg.log(fg.sum(fg.exp(scores - fg.max(scores, axis=-1, keepdims=True)), axis=-1))

    (got,), (want,) = values(loss), plain(loss)
    # scores are up to 80 where rows are long, and rounded in another order: 1e-5 and more
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6 if depth < 100 else 3e-5)
    (again,) = values(loss, threads=1)
    np.testing.assert_array_equal(got, again)


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_programs_nobody_thought_of_are_as_exact_as_the_reference(name: str, dtype: str) -> None:
    def computed(given: Given) -> list[np.ndarray]:
        return [np.asarray(t.cast("float64").numpy()) for t in results(name, given)]

    with one_fold():
        got = [np.asarray(t.numpy(), np.float64) for t in results(name, tensors(dtype))]
    with fg.config(device="reference", search=False):
        known, exact = computed(tensors(dtype)), computed(rounded(dtype))
    for a, b, want in zip(got, known, exact, strict=True):
        assert error(a, want) <= 1.5 * error(b, want) + 1e-7 * float(np.abs(want).max())


@pytest.mark.parametrize("heads", [1, 2])
def test_a_square_and_its_largest_of_every_row_are_one_fold(heads: int) -> None:
    # one sums over the depth, the other is the largest over the keys: of equal sizes, one walk
    def make() -> list[fg.Tensor]:
        scores = numbers(1, heads, 16, 16) @ numbers(2, heads, 16, 16).mT * 0.25
        weights = fg.exp(scores - numbers(3, heads, 16, 1))
        return [weights, weights.max(axis=-1)]

    with one_fold():
        got = [t.numpy() for t in fg.realize(*make())]
    with fg.config(device="reference", search=False):
        want = [t.numpy() for t in fg.realize(*make())]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("keys", [64, 129, 333])
def test_values_far_from_zero_are_as_exact_as_the_reference(keys: int) -> None:
    q, k, v = (normal(i, 2, n, 16) for i, n in enumerate((37, keys, keys)))

    def make(dtype: str) -> fg.Tensor:
        a, b, c = (fg.Tensor(x.astype(np.float32).astype(dtype)) for x in (q, k, v + 1e6))
        return fg.softmax(a @ b.mT * 0.25, axis=-1) @ c

    with one_fold():
        got = make("float32").numpy()
    with fg.config(device="reference", search=False):
        known, exact = make("float32").numpy(), make("float64").numpy()
    assert error(got, exact) <= 1.5 * error(known, exact) + 1e-8 * 1e6


def test_two_convolutions_under_one_mean_are_added_where_they_lie() -> None:
    def make() -> fg.Tensor:
        x, y = numbers(1, 2 * 32 * 4, 1), numbers(2, 2 * 16 * 16, 1)
        v, w = numbers(3, 64, 32), numbers(4, 64, 16)
        a = fg.conv2d(x.reshape((2, 32, 2, 2)), v.reshape((64, 32, 1, 1)))
        b = fg.conv2d(y.reshape((2, 16, 4, 4)), w.reshape((64, 16, 1, 1)), stride=2)
        return fg.relu(a + b).mean((2, 3))

    with fg.config(**NATIVE):
        got = make().numpy()
    np.testing.assert_allclose(got, plain(make)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "heads", "rows", "keys", "size"),
    [("grouped queries", 8, 64, 7, 128), ("exp2", 2, 2, 127, 128), ("soft cap", 8, 2, 65, 128)],
)
def test_deep_products_of_few_rows_are_as_exact_as_the_reference(
    name: str, heads: int, rows: int, keys: int, size: int
) -> None:
    def make(dtype: str) -> fg.Tensor:
        shapes = ((1, rows), (2, keys), (3, keys))
        q, k, v = (numbers(i, heads, n, size).cast(dtype) for i, n in shapes)
        return ATTENTION[name](q, k, v)

    with fg.config(device="reference", search=False):
        known, exact = make("float32").numpy(), make("float64").numpy()
    with one_fold(poison=True):
        got = make("float32").numpy()
    assert error(got, exact) <= 1.5 * error(known, exact)


@pytest.mark.parametrize("reach", [0, 100])
def test_a_condition_within_a_product_leaves_out_what_all_of_it_does(reach: int) -> None:
    def make() -> fg.Tensor:
        q, k, v, g = (numbers(i, 300, 1) for i in range(4))
        near = fg.arange(300)[None, :] + reach <= fg.arange(300)[:, None]
        return ((fg.where(near, fg.sigmoid(q @ k.mT), 0.0) @ v) * g).sum()

    with fg.config(**NATIVE):
        assert [kernel.kind for kernel in fg.explain(make()).kernels] == ["fold"]
        got = make().numpy()
    np.testing.assert_allclose(got, plain(make)[0], rtol=1e-5)


def test_a_sum_of_sums_beside_what_streams_is_walked_as_one() -> None:
    def make() -> fg.Tensor:
        x, a, b, h = (
            numbers(i, *s) for i, s in enumerate([(4, 1500), *[(2, 4, 5, 300)] * 2, (4,)])
        )
        return (x.sum(axis=-1) + (a * b).sum(axis=-1).sum(axis=(0, 2))) * fg.exp(h)

    np.testing.assert_allclose(values(make)[0], plain(make)[0], rtol=1e-4, atol=1e-4)


NESTED: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "a line": ((2, 1, 6), (1, 1, 2), (2, 1, 1)),
    "a plane": ((2, 1, 6, 6), (1, 1, 2, 2), (3, 1, 1, 1)),
    "a space": ((2, 1, 2, 6, 6), (1, 1, 1, 2, 2), (2, 1, 1, 1, 1)),
    "a whole row": ((30, 1, 7), (1, 1, 7), (5, 1, 1)),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("bend", [fg.tanh, fg.sigmoid, fg.exp])
def test_a_product_of_what_another_product_gives_is_not_packed_before_it(
    name: str, bend: Callable[[fg.Tensor], fg.Tensor]
) -> None:
    def make() -> fg.Tensor:
        x, w, v = (numbers(i, *shape) for i, shape in enumerate(NESTED[name]))
        conv = getattr(fg, f"conv{x.ndim - 2}d")
        found: fg.Tensor = fg.grad(lambda w: bend(conv(conv(x, w), v) * 0.3).sum())(w)
        return found

    with fg.config(**NATIVE):
        got = make().numpy()
    np.testing.assert_allclose(got, plain(make)[0], rtol=1e-4, atol=1e-5)
