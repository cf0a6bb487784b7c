"""Tests of fulgurite/codegen/cpu/loops/reduce.py: folds along rows, in lanes and down columns."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import BoundsError

pytest.importorskip("llvmlite")

from tests.codegen.cpu.machine import VECTORS, Array, both, run, subject

Fold = Callable[[fg.Tensor, int | tuple[int, ...] | None], fg.Tensor]
FOLDS: dict[str, Fold] = {
    "sum": lambda x, axis: x.sum(axis=axis),
    "mean of squares": lambda x, axis: (x * x).mean(axis=axis),
    "max": lambda x, axis: x.max(axis=axis),
    "min": lambda x, axis: x.min(axis=axis),
    "count": lambda x, axis: (x > 0).sum(axis=axis),
    "any": lambda x, axis: (x > 9).any(axis=axis),
    "parity": lambda x, axis: ((x > 0).cast("int32") * 2 - 1).prod(axis=axis),
    "centred": lambda x, axis: x - x.mean(axis=axis, keepdims=True),
}
SHAPES = [(3, 5), (7, 1000), (40, 33), (2, 17_000), (3000, 8), (300, 300), (70_000, 1)]


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def close(got: Array, meant: Array, size: int) -> None:
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, meant, rtol=3e-5, atol=2e-6 * size**0.5)
    else:
        np.testing.assert_array_equal(got, meant)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", FOLDS)
def test_folds_agree_whichever_axis(name: str, axis: int | None, shape: tuple[int, int]) -> None:
    for hostile in (0.0, 0.01):
        for got, meant in both(FOLDS[name](ones(*shape), axis), hostile=hostile):
            close(got, meant, shape[0] * shape[1])


@pytest.mark.parametrize("vectors", VECTORS[1:])
@pytest.mark.parametrize("shape", [(5, 7), (40, 333), (2, 9000), (1100, 9)], ids=str)
@pytest.mark.parametrize("name", FOLDS)
def test_folds_agree_with_narrower_vectors(name: str, shape: tuple[int, int], vectors: str) -> None:
    for axis in (None, 0, 1):
        for got, meant in both(FOLDS[name](ones(*shape), axis), vectors, hostile=0.01):
            close(got, meant, shape[0] * shape[1])


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 40)),
    axes=st.sets(st.integers(0, 2), min_size=1).map(lambda s: tuple(sorted(s))),
    name=st.sampled_from(sorted(FOLDS)),
    vectors=st.sampled_from(VECTORS),
)
def test_folds_over_any_axes_of_three(
    shape: tuple[int, int, int], axes: tuple[int, ...], name: str, vectors: str
) -> None:
    for got, meant in both(FOLDS[name](ones(*shape), axes), vectors):
        close(got, meant, shape[0] * shape[1] * shape[2])


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8", "int64"])
@pytest.mark.parametrize("shape", [(40, 333), (1500, 30), (1, 40_000)], ids=str)
def test_folds_of_other_dtypes(shape: tuple[int, int], dtype: str) -> None:
    x = fg.Tensor(np.ones(shape), dtype=dtype)
    for axis in (None, 0, 1):
        for name in ("sum", "max", "min"):
            for got, meant in both(FOLDS[name](x, axis)):
                bound = {"float64": 1e-13, "float16": 4e-3}.get(dtype, 0.0)
                np.testing.assert_allclose(
                    got.astype(np.float64), meant.astype(np.float64), rtol=bound, atol=bound * 100
                )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_along_any_axis(axis: int) -> None:
    for shape in ((3, 50_000), (2000, 40), (130, 70)):
        for got, meant in both(fg.softmax(ones(*shape), axis=axis)):
            np.testing.assert_allclose(got, meant, rtol=2e-5, atol=1e-9)


def test_a_product_of_floats() -> None:
    x = np.random.default_rng(0).normal(1, 0.01, (300, 40)).astype(np.float32)
    for axis in (0, 1):
        what = subject(ones(300, 40).prod(axis=axis))
        found = run(what.render(), [x.ravel(), np.zeros(x.shape[1 - axis], np.float32)])[1]
        np.testing.assert_allclose(found, x.astype(np.float64).prod(axis=axis), rtol=3e-5)


def test_a_fold_of_nothing_is_the_identity() -> None:
    x = fg.Tensor(np.ones((3, 0), np.float32))
    for y in (x.sum(axis=1), x.prod(axis=1), (x > 0).any(axis=1)):
        for got, meant in both(y + 0 if y.dtype.kind == "f" else y):
            np.testing.assert_array_equal(got, meant)


@pytest.mark.parametrize("name", ["sum", "centred"])
@pytest.mark.parametrize("shape", [(200_000, 1), (5000, 9), (3, 30_000)], ids=str)
def test_bits_do_not_depend_on_how_units_are_shared_out(name: str, shape: tuple[int, int]) -> None:
    for axis in (None, 0, 1):
        what = subject(FOLDS[name](ones(*shape), axis))
        params = what.params(seed=1, hostile=0.0)
        apart, whole = (run(what.render(), params, at_once=at_once) for at_once in (False, True))
        np.testing.assert_array_equal(apart[-1], whole[-1])


# --- truths that are decided before the end ------------------------------------------------------


@pytest.mark.parametrize("name", ["any", "all"])
@pytest.mark.parametrize("size", [5, 700, 1024, 1025, 5000, 40_000, 300_007])
def test_truths_are_the_same_wherever_they_are_decided(name: str, size: int) -> None:
    what = subject(getattr(fg, name)(fg.Tensor(np.ones(size, bool))))
    for vectors in VECTORS:
        rendered = what.render(vectors)
        for place in (None, 0, 1, size // 2, size - 2, size - 1):
            x = np.full(size, name == "all")
            if place is not None:
                x[place] = name == "any"
            found = run(rendered, [x, np.zeros(1, bool)], vectors)[1][0]
            assert found == getattr(x, name)(), (vectors, place)


@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_two_folds_of_truths_are_decided_apart(axis: int | tuple[int, ...] | None) -> None:
    x = ones(2, 9000, 3) if axis == 1 else ones(3, 7, 4000)
    found = fg.all(x > -9, axis=axis) & fg.any(x > 2, axis=axis)
    for hostile in (0.0, 0.01):
        for got, meant in both(found, hostile=hostile):
            np.testing.assert_array_equal(got, meant)


def looks(y: fg.Tensor) -> int:
    """How often a kernel folds lanes of truths: at the end, and where it may end before."""
    text = subject(y).render().text
    return text.count("= call i1 @llvm.vector.reduce.or") + text.count("reduce.and.v")


def test_long_folds_of_truths_look_whether_they_are_decided() -> None:
    bits = fg.Tensor(np.ones(8000, bool))
    assert looks(fg.any(bits)) == 2
    assert looks(fg.any(bits[:500])) == 1, "which is over before one looks"
    assert looks(bits.cast("uint8").max()) == 0, "a byte is hardly ever the largest"


@pytest.mark.parametrize("name", ["any", "all"])
def test_an_index_behind_what_decides_is_an_error_still(name: str) -> None:
    x = fg.Tensor(np.array([name == "any"])).realize()
    places = np.zeros(100_000, np.int64)
    places[-1] = 7
    with pytest.raises(BoundsError, match="index 7"):
        getattr(fg, name)(x[fg.Tensor(places)]).numpy()


def spread(y: Callable[[fg.Tensor], fg.Tensor], shape: tuple[int, ...], axis: int | None) -> float:
    """The root mean square error of our sums over many seeds, as a multiple of NumPy's."""
    what = subject(y(ones(*shape)))
    rendered = what.render()
    ours, numpys = [], []
    for seed in range(100):
        x = np.random.default_rng(seed).normal(1, 1, shape).astype(np.float32)
        exact = x.sum(axis=axis, dtype=np.float64)
        found = run(rendered, [x.ravel(), np.zeros(exact.size, np.float32)])[1]
        ours.append(found.reshape(exact.shape) - exact)
        pairwise = (
            x.sum() if axis is None else np.ascontiguousarray(np.moveaxis(x, axis, -1)).sum(-1)
        )
        numpys.append(pairwise - exact)
    return float(np.sqrt(np.mean(np.square(ours))) / np.sqrt(np.mean(np.square(numpys))))


@pytest.mark.parametrize("size", [1000, 4096, 50_000])
def test_long_float_sums_are_as_good_as_pairwise_ones(size: int) -> None:
    assert spread(lambda x: x.sum(), (size,), None) <= 1.5


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 1024), 1),
        ((40, 100), 1),
        ((2000, 4), 0),
        ((3, 700, 20), 1),
        ((256, 30), 0),
        ((50, 30), 0),
    ],
)
def test_sums_along_an_axis_are_as_good_as_pairwise_ones(shape: tuple[int, ...], axis: int) -> None:
    assert spread(lambda x: x.sum(axis=axis), shape, axis) <= 1.5


def test_long_float64_sums_lose_next_to_nothing() -> None:
    x = np.random.default_rng(0).normal(1, 1, 200_000)
    x[::2] *= 1e12
    what = subject(fg.Tensor(np.ones(x.size)).sum())
    found = run(what.render(), [x, np.zeros(1)])[1][0]
    exact = float(np.sum(x.astype(np.longdouble)))
    assert abs(found - exact) <= 4 * abs(np.spacing(exact))


WIDE = [(64, 1248), (65, 512), (100, 1024), (200, 512), (331, 512), (70_000, 4), (200, 1001),
        (3, 40_000), (17, 33, 128), (129, 257)]  # fmt: skip


@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_long_folds_of_views_that_cannot_be_flattened(shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(1).integers(-50, 50, size=shape).astype(np.int32)
    with fg.config(device="cpu", tier="native"):
        x = fg.Tensor(a)
        views = [
            (fg.flip(x, 0), a[::-1]), (x[::2], a[::2]), (x[..., ::2], a[..., ::2]),
            (x[..., 1:], a[..., 1:]), (x[..., 1], a[..., 1]),
            (x + fg.Tensor(a[0]), a + a[0]),
        ]  # fmt: skip
        for got, want in views:
            assert got.sum().item() == want.sum()
            assert (got.max().item(), got.min().item()) == (want.max(), want.min())
            assert fg.argmax(got.reshape(-1)).item() == want.argmax()


@pytest.mark.parametrize("size", [4, 8])
def test_an_axis_as_short_as_half_a_vector_has_the_bits_of_one_in_a_longer_row(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(37, size)).astype(np.float32)
    half = x.astype(np.float16)
    with fg.config(device="cpu", tier="native"):
        for f in (lambda a: a * a + 1, fg.exp, fg.tanh, fg.erf):
            alone = f(fg.Tensor(x)).numpy()
            assert np.array_equal(f(fg.Tensor(x)).max(axis=1).numpy(), alone.max(axis=1))
        some = (fg.Tensor(half).astype(fg.float32) * fg.Tensor(x)).sum(axis=1).numpy()
        assert np.allclose(some, (half.astype(np.float64) * x).sum(axis=1), atol=1e-5)
        chosen = fg.Tensor(x)[:, :1] * fg.Tensor(x)  # one number of each row, and lanes
        assert np.array_equal(chosen.max(axis=1).numpy(), (x[:, :1] * x).max(axis=1))


def test_what_lanes_and_one_number_read_is_one_number() -> None:
    """Rows of just one vector: their scale is splat for lanes, but results beside them read it."""
    rng = np.random.default_rng(228)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 2, 16), (2,), (2,))]

    def rows(device: str) -> Array:
        with fg.config(device=device, tier="native"):
            x, weight, bias = map(fg.Tensor, arrays)
            y = fg.batch_norm(x, weight=weight, bias=bias, training=True).output
            return fg.tanh(fg.relu(y).mean(2, keepdims=True)).numpy()

    np.testing.assert_allclose(rows("cpu"), rows("reference"), rtol=1e-5)


@pytest.mark.parametrize("size", [4, 8])
def test_a_function_of_folds_along_a_short_axis_has_short_vectors_and_its_own_bits(
    size: int,
) -> None:
    random = np.random.default_rng(size)
    x = (random.normal(size=(37, 3, size)) * 3).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 2] = np.inf, np.nan, 1e-42
    with fg.config(device="cpu", tier="native"):
        rows = fg.Tensor(np.pad(x, ((0, 0), (0, 0), (0, 1))))[:, :, :size]  # axes that stay apart
        total = rows.sum(axis=(1, 2)).contiguous().realize()
        for f in (fg.exp, fg.tanh, fg.erf, fg.silu, fg.log, fg.sin):
            want = f(total).numpy()
            both = f(rows.sum(axis=(1, 2)))
            text = fg.viz_data(both, assembly=False)["codes"][-1]["text"]
            assert f"fadd <{size} x float>" in text
            assert np.array_equal(both.numpy(), want, equal_nan=True)
            inside = (f(total[:, None, None]) * rows).sum(axis=(1, 2)).numpy()
            other = (fg.Tensor(want)[:, None, None] * rows).sum(axis=(1, 2)).numpy()
            assert np.allclose(inside, other, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_function_of_a_short_row_meets_the_lanes_of_that_row(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(5, size)).astype(np.float32)
    rows, scale = fg.Tensor(x), fg.Tensor(np.abs(x[:, 0]))

    def f() -> list[fg.Tensor]:
        mean = rows.mean(axis=1, keepdims=True)
        spread = ((rows - mean) ** 2).mean(axis=1, keepdims=True)
        norm = (rows - mean) * fg.rsqrt(spread + 1e-5)
        turned = norm * fg.exp(scale)[:, None] + fg.tanh(rows.max(axis=1, keepdims=True))
        return [norm, turned, (turned * fg.log(scale + 1)[:, None]).sum(axis=1)]

    with fg.config(simplify=False, fuse=False):
        want = [y.numpy() for y in f()]
    with fg.config(device="cpu", tier="native", dynamic=False):
        for got, right in zip(f(), want, strict=True):
            assert np.allclose(got.numpy(), right, rtol=1e-5, atol=1e-5)
