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
