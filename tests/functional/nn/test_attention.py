"""Tests of fulgurite/functional/nn/attention.py against the formula in float64."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import Array, check_gradients, raises, tensor


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape)


def attended(q: Array, k: Array, v: Array, mask: Any = None, scale: Any = None) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True) @ v)


ATTEND: Any = fg.scaled_dot_product_attention
Q, K, V = values(2, 3, 4, 8), values(2, 3, 5, 8), values(2, 3, 5, 6)


def attention(*arguments: Any, **options: Any) -> Array:
    parts = [tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return np.asarray(ATTEND(*parts, **options).numpy())


def test_attention_agrees_with_its_formula() -> None:
    np.testing.assert_allclose(attention(Q, K, V), attended(Q, K, V), rtol=1e-12)
    want = attended(Q, K, V, scale=0.3)
    np.testing.assert_allclose(attention(Q, K, V, scale=0.3), want, rtol=1e-12)
    flat = attended(Q[0, 0], K[0, 0], V[0, 0])
    np.testing.assert_allclose(attention(Q[0, 0], K[0, 0], V[0, 0]), flat, rtol=1e-12)
    one = attended(Q, K[:1, :1], V[:1, :1])
    np.testing.assert_allclose(attention(Q, K[:1, :1], V[:1, :1]), one, rtol=1e-12)


def test_masks_of_truths_and_of_numbers() -> None:
    rng = np.random.default_rng(0)
    truths = rng.random((2, 1, 4, 5)) < 0.6
    truths[..., 0] = True
    for mask in (truths, truths[0, 0], values(4, 5), values(3, 1, 5), values(2, 3, 4, 5)):
        got = attention(Q, K, V, tensor(mask))
        np.testing.assert_allclose(got, attended(Q, K, V, mask), rtol=1e-12)


@pytest.mark.parametrize("length", [1, 4, 5, 7])
def test_a_causal_query_sees_what_came_before(length: int) -> None:
    q = values(2, 3, length, 8)
    mask = np.tril(np.ones((length, 5), bool))
    np.testing.assert_allclose(attention(q, K, V, is_causal=True), attended(q, K, V, mask))


def test_grouped_queries_share_keys_and_values() -> None:
    q, k, v = values(2, 6, 4, 8), values(2, 2, 5, 8), values(2, 2, 5, 6)
    wide: Any = [np.repeat(part, 3, axis=1) for part in (k, v)]
    got = attention(q, k, v, enable_gqa=True)
    np.testing.assert_allclose(got, attended(q, wide[0], wide[1]), rtol=1e-12, atol=1e-15)
    for mask in (values(6, 4, 5), values(2, 1, 4, 5), values(4, 5), values(2, 6, 1, 5) > 0):
        mask[..., 0] = True
        got = attention(q, k, v, tensor(mask), enable_gqa=True)
        np.testing.assert_allclose(got, attended(q, wide[0], wide[1], mask), rtol=1e-12)
    got = attention(q, k[:, :1], v[:, :1], enable_gqa=True, is_causal=True)
    ones: Any = [np.repeat(part[:, :1], 6, axis=1) for part in (k, v)]
    np.testing.assert_allclose(got, attended(q, ones[0], ones[1], np.tril(np.ones((4, 5), bool))))


def test_a_query_that_sees_nothing_gets_zero_and_a_finite_gradient() -> None:
    mask = np.ones((4, 5), bool)
    mask[2] = False
    got = attention(Q, K, V, tensor(mask))
    assert (got[:, :, 2] == 0).all()
    np.testing.assert_allclose(got[:, :, :2], attended(Q, K, V)[:, :, :2], rtol=1e-12)
    slope = fg.grad(
        lambda q: fg.scaled_dot_product_attention(q, tensor(K), tensor(V), tensor(mask)).sum()
    )(tensor(Q))
    assert np.isfinite(slope.numpy()).all()
    nothing = attention(Q, K[:, :, :0], V[:, :, :0])
    assert nothing.shape == (2, 3, 4, 6) and not nothing.any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_computed_in_float32(dtype: str) -> None:
    parts = [fg.Tensor(part * 8).astype(dtype) for part in (Q, K, V)]
    got = ATTEND(*parts, is_causal=True)
    assert got.dtype.name == dtype
    wide: Any = [part.numpy().astype(np.float64) for part in parts]
    want = attended(wide[0], wide[1], wide[2], np.tril(np.ones((4, 5), bool)))
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=step, atol=step)


def test_large_scores_do_not_overflow() -> None:
    assert np.isfinite(attention(Q * 1e3, K * 1e3, V)).all()


def test_dropout_leaves_out_weights_and_the_places_of_arguments_are_torchs() -> None:
    q, k, v = fg.ones((2, 3, 4)), fg.ones((2, 50, 4)), fg.ones((2, 50, 1))
    fg.random.seed(0)
    found = fg.scaled_dot_product_attention(q, k, v, None, 0.5).numpy()
    kept = found * 25  # 50 weights of 1/50, doubled: whole numbers of them
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-4)
    assert 0.5 < found.mean() < 1.5 and len(np.unique(np.round(kept))) > 1
    fg.random.seed(0)
    again = fg.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy()
    np.testing.assert_array_equal(found, again)
    x = fg.rand(4, 4)
    a, b = (
        fg.scaled_dot_product_attention(x, x, x, None, 0.0, True).numpy(),
        fg.scaled_dot_product_attention(x, x, x, is_causal=True).numpy(),
    )
    np.testing.assert_array_equal(a, b)
    with raises(ArgumentError, "dropout_p is True"):
        fg.scaled_dot_product_attention(x, x, x, None, True)


@pytest.mark.device("hosts")  # the GPU's machine model has other prices
def test_attention_is_one_fold_and_without_search_three_kernels() -> None:
    parts = [tensor(part) for part in (Q, K, V)]
    for options in ({}, {"is_causal": True}, {"attn_mask": tensor(values(4, 5))}):
        for search, want in ((True, ["fold"]), (False, ["contract", "reduce", "contract"])):
            with fg.config(search=search):
                y = ATTEND(*parts, **options)
                assert [item.kernel.kind for item in fg.schedule(y).items] == want


def test_gradients() -> None:
    q, k, v = values(2, 3, 2), values(2, 4, 2), values(2, 4, 2)
    attend = fg.scaled_dot_product_attention
    check_gradients(attend, q, k, v)
    check_gradients(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
    check_gradients(lambda q, k, v, m: attend(q, k, v, m), q, k, v, values(3, 4))
    check_gradients(lambda q, k, v: attend(q, k, v, enable_gqa=True), q, k[:1], v[:1])


def test_mistakes_name_the_users_line() -> None:
    q, k, v = (tensor(part) for part in (Q, K, V))
    attend = fg.scaled_dot_product_attention
    with raises(ArgumentError, "is_causal"):
        attend(q, k, v, fg.ones((4, 5)), is_causal=True)
    with raises(ShapeError):
        attend(q, k[..., :7], v)
    with raises(ShapeError):
        attend(q, k, v[:, :, :4])
    with raises(ShapeError):
        attend(fg.ones(3), fg.ones(3), fg.ones(3))
    with raises(ShapeError, "heads"):
        attend(q, k[:, :2], v[:, :2], enable_gqa=True)
    with raises(ShapeError, "heads"):
        attend(q[0, 0], k[0, 0], v[0, 0], enable_gqa=True)
