"""How far results are from float64, beside the reference device: products, and what folds make.

Errors of a few numbers are a matter of luck, so squares are summed over several seeds of a shape.
Sums that grow (numbers of one sign) round otherwise than those that stay small: both are here.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array

pytest.importorskip("llvmlite")

MOST = 1.5  # of the reference's error
NATIVE = {"device": "cpu", "tier": "native", "poison": True}
Program = Callable[..., fg.Tensor | Sequence[fg.Tensor]]


def ratios(
    program: Program, make: Callable[[np.random.Generator], list[Array]], seeds: int,
    **options: object,
) -> list[float]:  # fmt: skip
    """Of every result: the error of native code over the reference's."""

    def values(arrays: list[Array], dtype: str) -> list[Array]:
        found = program(*[fg.Tensor(a.astype(dtype)) for a in arrays])
        found = [found] if isinstance(found, fg.Tensor) else list(found)
        return [np.asarray(t.numpy(), np.float64) for t in fg.realize(*found)]

    squares: list[list[list[float]]] = []
    for seed in range(seeds):
        arrays = [a.astype(np.float32) for a in make(np.random.default_rng(seed))]
        with fg.config(device="reference", search=False):
            exact, known = values(arrays, "float64"), values(arrays, "float32")
        with fg.config(**{**NATIVE, **options}):
            got = values(arrays, "float32")
        squares.append([
            [float(((a - b) ** 2).sum()) for a, b in zip(one, exact, strict=True)]
            for one in (got, known)
        ])  # fmt: skip
    ours, theirs = np.sum(squares, axis=0)
    return [float(np.sqrt(a / b)) if a else 0.0 for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("mean", [0.0, 10.0])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 300, 64), (1, 300, 128), (1, 40, 5000), (3, 7, 64), (17, 33, 128), (33, 33, 256),
     (8, 100, 512), (64, 7, 33), (1, 300, 20_000)],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_any_depth_are_as_exact_as_the_reference(
    m: int, n: int, k: int, mean: float, turned: bool
) -> None:
    def make(rng: np.random.Generator) -> list[Array]:
        return [rng.normal(mean, 1, (m, k)), rng.normal(mean, 1, (n, k) if turned else (k, n))]

    seeds = max(2, min(24, 1000 // (m * n)))
    (found,) = ratios(lambda a, b: a @ (b.mT if turned else b), make, seeds)
    assert found <= MOST, f"{found:.2f} times"


# --- folds ---------------------------------------------------------------------------------------


def _attention(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.softmax(q @ k.mT / q.shape[-1] ** 0.5, axis=-1) @ v


def _window(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    rows, keys = fg.arange(q.shape[-2])[:, None], fg.arange(k.shape[-2])[None, :]
    near = (keys <= rows) & (rows - keys < 20)
    scores = fg.where(near, q @ k.mT / q.shape[-1] ** 0.5, -np.inf)
    return fg.softmax(scores, axis=-1) @ v


ATTENTION: list[tuple[Program, tuple[int, int, int, int, int], tuple[float, float, float], int]] = [
    # heads, queries, keys, depth, columns; how large queries are, means of keys and values; seeds
    (_attention, (3, 1, 1000, 64, 64), (1.0, 0.0, 1e6), 12),  # a chain of sums, and parts merged
    (_attention, (1, 1, 8000, 64, 64), (1.0, 0.0, 1e6), 8),
    (_attention, (16, 1, 2000, 64, 64), (1e-4, 0.0, 0.0), 2),
    (_attention, (3, 4, 600, 64, 64), (1.0, 0.0, 1e6), 8),
    (_attention, (2, 64, 150, 128, 128), (1.0, 0.0, 0.0), 4),
    (_attention, (2, 1, 150, 128, 128), (1.0, 0.0, 0.0), 12),
    (_window, (8, 100, 600, 33, 8), (1.0, 0.0, 1e6), 4),
]


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: str(case[1:]))
def test_attention_is_as_exact_as_the_reference(
    case: tuple[Program, tuple[int, int, int, int, int], tuple[float, float, float], int],
) -> None:
    program, (heads, rows, keys, depth, columns), (size, k_mean, v_mean), seeds = case

    def make(rng: np.random.Generator) -> list[Array]:
        return [
            rng.normal(0, size, (heads, rows, depth)), rng.normal(k_mean, 1, (heads, keys, depth)),
            rng.normal(v_mean, 1, (heads, keys, columns)),
        ]  # fmt: skip

    (found,) = ratios(program, make, seeds)
    assert found <= MOST, f"{found:.2f} times"


@pytest.mark.parametrize(
    ("heads", "rows", "keys", "depth", "columns", "mean"),
    [(1, 5, 16, 256, 33, 1e4), (4, 64, 2, 150, 8, 0.0), (2, 17, 100, 2, 2, 0.0),
     (16, 7, 100, 16, 16, 1e3)],
)  # fmt: skip
def test_gradients_of_attention_are_as_exact_as_the_reference(
    heads: int, rows: int, keys: int, depth: int, columns: int, mean: float
) -> None:
    # products are worked out in two kernels: where they differ, what should cancel does not
    def make(rng: np.random.Generator) -> list[Array]:
        shapes = ((rows, depth), (keys, depth), (keys, columns), (rows, columns))
        means = (0.0, mean, 0.0, 0.0)
        found = zip(shapes, means, strict=True)
        return [rng.normal(m, 1, (heads, *shape)) for shape, m in found]

    def program(*given: fg.Tensor) -> list[fg.Tensor]:
        loss = lambda q, k, v: (_attention(q, k, v) * given[3]).sum()  # noqa: E731
        return list(fg.grad(loss, argnums=(0, 1, 2))(*given[:3]))

    found = ratios(program, make, 12)
    assert max(found) <= MOST, str(found)


def _of_two(s: fg.Tensor) -> fg.Tensor:
    powers = fg.exp2((s - s.max(axis=-1, keepdims=True)) * 1.442695)
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("weigh", "rows", "keys", "depth", "columns"),
    [(lambda s: fg.softmax(s, axis=-1), 5, 16, 64, 33), (_of_two, 40, 2, 16, 8)],
    ids=["softmax", "powers of two"],
)
def test_gradients_of_a_number_for_each_head_are_as_exact_as_the_reference(
    weigh: Callable[[fg.Tensor], fg.Tensor], rows: int, keys: int, depth: int, columns: int
) -> None:
    # scores around 1e5: a kernel that scales or sums them otherwise takes other powers of them
    def make(rng: np.random.Generator) -> list[Array]:
        shapes = ((rows, depth), (keys, depth), (keys, columns), (rows, columns))
        found = [rng.normal(1e4 if n == 1 else 0, 1, (2, *s)) for n, s in enumerate(shapes)]
        return [*found, rng.uniform(0.5, 1.5, 2)]

    def program(*given: fg.Tensor) -> list[fg.Tensor]:
        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, t: fg.Tensor) -> fg.Tensor:
            return (weigh(q @ k.mT * t[:, None, None] * 0.25) @ v * given[3]).sum()

        return list(fg.grad(loss, argnums=(0, 1, 2, 3))(*given[:3], given[4]))

    found = ratios(program, make, 12)
    assert max(found) <= MOST, str(found)


@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_small_products_of_a_batch_are_as_exact_as_the_reference(mean: float) -> None:
    def make(rng: np.random.Generator) -> list[Array]:
        return [rng.normal(mean, 1, (8, 33, 70)), rng.normal(mean, 1, (8, 70, 33))]

    (found,) = ratios(lambda a, b: a @ b, make, 2)
    assert found <= MOST, f"{found:.2f} times"


@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 256), 0), ((17, 1000), 1), ((1_000_003,), 0)], ids=str
)
def test_sums_of_one_sign_are_as_exact_as_the_reference(
    shape: tuple[int, ...], axis: int
) -> None:  # fmt: skip
    def make(rng: np.random.Generator) -> list[Array]:
        many = len(shape) == 1  # equal numbers round the same way each time
        return [np.full(shape, 0.1) if many else rng.normal(1e6, 10, shape)]

    (found,) = ratios(lambda x: x.var(axis=axis), make, 1 if len(shape) == 1 else 8)
    assert found <= MOST, f"{found:.2f} times"


@pytest.mark.parametrize(
    ("rows", "depth", "classes", "mean"), [(1, 500, 16, 1e6), (17, 128, 33, 0.0), (3, 512, 16, 1e3)]
)
def test_a_loss_of_a_product_is_as_exact_as_the_reference(
    rows: int, depth: int, classes: int, mean: float
) -> None:
    def make(rng: np.random.Generator) -> list[Array]:
        center = mean if mean == 1e3 else 0.0
        return [rng.normal(mean, 1, (rows, depth)), rng.normal(center, 1, (depth, classes))]

    def program(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return fg.cross_entropy(x @ w, fg.arange(rows) % classes, reduction="none")

    (found,) = ratios(program, make, 32)
    assert found <= MOST, f"{found:.2f} times"


def test_the_gradient_of_a_variance_keeps_what_mends_the_mean() -> None:
    def make(rng: np.random.Generator) -> list[Array]:
        return [rng.normal(1e3, 1, (16, 64)), rng.normal(size=16)]

    def program(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        found: fg.Tensor = fg.grad(lambda x: (x.var(axis=-1) * w).sum())(x)
        return found

    (found,) = ratios(program, make, 4)
    assert found <= MOST, f"{found:.2f} times"


@pytest.mark.parametrize("vectors", ["avx2", "sse2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 1, 1000, 33), (2, 3, 300, 40), (1, 17, 100, 130)], ids=str)
def test_narrow_vectors_sum_as_well(
    vectors: str, dtype: str, shape: tuple[int, int, int, int]
) -> None:
    heads, rows, keys, depth = shape
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(heads, n, depth)).astype(dtype) for n in (rows, keys, keys)]
    with fg.config(device="reference", search=False):
        want = _attention(*[fg.Tensor(a.astype("float64")) for a in given]).numpy()
    with fg.config(**NATIVE, vectors=vectors):
        got = _attention(*[fg.Tensor(a) for a in given]).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * float(np.finfo(dtype).eps))
