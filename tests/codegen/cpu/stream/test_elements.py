"""Elements that a fold stores: what blocks are made of, kept beside what is folded."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.op import Array
from tests.graph.searching import kinds, numbers, planned, scarce_memory
from tests.properties import kernels


def _gradients(
    heads: int, rows: int, keys: int, size: int, dtype: str = "float32", masked: bool = False,
    turned: bool = False,
) -> list[fg.Tensor]:  # fmt: skip
    """Of scores with a bias of each: all that walks over them gives, and the bias's own."""
    shape = (heads, keys, rows) if turned else (heads, rows, keys)
    q, k, v, g = (numbers(i, heads, n, size).cast(dtype) for i, n in
                  enumerate((rows, keys, keys, rows)))  # fmt: skip
    bias = numbers(9, *shape).cast(dtype)

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, bias: fg.Tensor) -> fg.Tensor:
        s = q @ k.mT * 0.25 + (bias.mT if turned else bias)
        if masked:
            s = fg.where(fg.arange(keys) <= fg.arange(rows)[:, None], s, -inf)
        return (fg.softmax(s, axis=-1) @ v * g).sum()

    return list(fg.grad(loss, argnums=(0, 1, 2, 3))(q, k, v, bias))


def _values(made: list[fg.Tensor], **options: object) -> list[Array]:
    with fg.config(tier="native", device="cpu", poison=True, disk_cache=False, **options):
        return [np.asarray(t.cast("float64").numpy()) for t in fg.realize(*made)]


def _check(got: list[Array], wanted: list[Array], eps: float = 1e-5) -> None:
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=eps * max(1.0, float(np.abs(b).max())))


@kernels
@given(st.integers(1, 3), st.integers(2, 150), st.integers(2, 150), st.booleans(), st.booleans())
def test_elements_are_those_of_other_kernels(
    heads: int, rows: int, keys: int, masked: bool, turned: bool
) -> None:
    shape = heads, rows, keys, 8
    made = _gradients(*shape, masked=masked, turned=turned)
    with scarce_memory():
        got = _values(made, search=True)
    _check(got, _values(_gradients(*shape, masked=masked, turned=turned), search=False))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_elements_are_stored_in_the_dtype_of_their_memory(dtype: str) -> None:
    shape = 2, 70, 90, 16
    eps = {"float16": 4e-3, "bfloat16": 4e-2, "float64": 1e-12}[dtype]
    with scarce_memory():
        assert "fold" in kinds(planned(*_gradients(*shape, dtype=dtype))[0])
        got = _values(_gradients(*shape, dtype=dtype), search=True)
    _check(got, _values(_gradients(*shape, dtype=dtype), search=False), eps)


def test_what_is_asked_for_is_the_only_matrix_of_a_plan() -> None:
    found, _ = planned(*_gradients(4, 130, 160, 32))
    assert kinds(found) == ["fold", "fold"]
    between = [s.shape for i, s in enumerate(found.slots) if s is not None and i >= found.inputs
               and i not in found.outputs]  # fmt: skip
    assert all(len(shape) == 0 or shape[-1] != 160 for shape in between)


def test_elements_do_not_depend_on_threads() -> None:
    runs = [_values(_gradients(3, 140, 200, 16), search=True, threads=n) for n in (1, 2, 3)]
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_conditions_of_elements_are_not_kept_in_tiles_of_numbers() -> None:
    def made() -> list[fg.Tensor]:
        def loss(
            q: fg.Tensor, k: fg.Tensor, other: fg.Tensor, m: fg.Tensor, v: fg.Tensor, g: fg.Tensor
        ) -> tuple[fg.Tensor, tuple[fg.Tensor, fg.Tensor]]:
            far = fg.abs(fg.arange(1)[:, None] - fg.arange(65)).cast("float32")
            s = fg.relu(q @ k.mT * 0.2 + other @ k.mT * 0.1 - m * far)
            found, rows = s @ v * fg.sigmoid(g), (s * numbers(7, 1, 65)).sum(axis=-1)
            total = (found * numbers(8, 2, 1, 3)).sum() + (rows * numbers(9, 2, 1)).sum()
            return total, (found, rows)

        shapes = ((2, 1, 3), (2, 65, 3), (2, 1, 3), (2, 1, 1), (2, 65, 3), (2, 1, 3))
        leaves = [numbers(i, *shape) for i, shape in enumerate(shapes)]
        (_, found), slopes = fg.value_and_grad(loss, tuple(range(6)), has_aux=True)(*leaves)
        return [*found, *slopes]

    with fg.config(device="cpu"):
        found, plain = _values(made()), _values(made(), search=False)
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
