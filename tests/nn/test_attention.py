"""Tests of fulgurite/nn/attention.py that need no torch: masks, dropout, rotations."""

import math
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, ShapeError
from tests.functional.helpers import raises


def numbers(*shape: int, seed: int = 0) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def test_weights_or_not_the_result_is_the_same() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x, y = numbers(2, 3, 8), numbers(2, 5, 8, seed=1)
    out, weights = layer(x, y, y)
    other, nothing = layer(x, y, y, need_weights=False)
    np.testing.assert_allclose(out.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
    assert nothing is None and weights is not None and weights.shape == (2, 3, 5)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)


def test_is_causal_alone_is_the_causal_mask() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = numbers(1, 4, 8)
    mask = fg.Tensor(np.triu(np.ones((4, 4), bool), 1))
    wanted = layer(x, x, x, attn_mask=mask)[0].numpy()
    np.testing.assert_allclose(layer(x, x, x, is_causal=True)[0].numpy(), wanted, rtol=1e-5)
    square = nn.Transformer.generate_square_subsequent_mask(4)
    np.testing.assert_allclose(layer(x, x, x, attn_mask=square)[0].numpy(), wanted, rtol=1e-5)


def test_a_query_that_may_look_at_nothing_gets_only_the_bias() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = numbers(1, 2, 4)
    hidden = fg.Tensor(np.array([[True, True]]))
    for need_weights in (True, False):
        out, _ = layer(x, x, x, key_padding_mask=hidden, need_weights=need_weights)
        np.testing.assert_allclose(out.numpy(), np.zeros((1, 2, 4)), atol=1e-7)


def test_dropout_changes_weights_in_training_alone() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.5)
    x = numbers(6, 1, 8)
    fg.random.seed(0)
    weights = np.asarray(layer(x, x, x)[1])
    assert abs(weights.sum(-1) - 1).max() > 1e-3
    np.testing.assert_allclose(np.asarray(layer.eval()(x, x, x)[1]).sum(-1), 1, rtol=1e-5)


def test_wrong_inputs_say_what_attention_takes() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = numbers(2, 3, 8)
    with raises(ShapeError, "takes query (batch, length, 8)"):
        layer(x, x, numbers(2, 3, 7))
    with raises(ShapeError, "takes attn_mask (3, 3) or (4, 3, 3), got (2, 2)"):
        layer(x, x, x, attn_mask=fg.zeros((2, 2)))
    with raises(ShapeError, "takes key_padding_mask (2, 3)"):
        layer(x, x, x, key_padding_mask=fg.zeros((3,), "bool"))
    with raises(ArgumentError, "in 3 heads"):
        nn.MultiheadAttention(8, 3)
    with raises(ArgumentError, "activation is 'swish'"):
        nn.TransformerEncoderLayer(8, 2, activation="swish")


def test_an_activation_may_be_a_function() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation=fg.silu, batch_first=True)
    assert layer(numbers(2, 3, 8)).shape == (2, 3, 8)


# --- RoPE ----------------------------------------------------------------------------------------


def turned(x: Any, base: float, interleaved: bool) -> Any:
    """The rotation as complex numbers."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[-2])[:, None] * base ** (-np.arange(half) / half)
    pairs = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angle)
    if interleaved:
        return np.stack([z.real, z.imag], -1).reshape(x.shape)
    return np.concatenate([z.real, z.imag], -1)


def test_rotations_are_products_of_complex_numbers() -> None:
    x = numbers(2, 3, 5, 6)
    for interleaved in (False, True):
        for base in (10000.0, 100.0):
            found = nn.RoPE(6, base, interleaved)(x).numpy()
            want = turned(x.numpy().astype(np.float64), base, interleaved)
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_products_of_rotated_vectors_depend_on_their_distance_alone() -> None:
    rope, q, k = nn.RoPE(8), numbers(1, 8), numbers(1, 8, seed=1)
    products = [(rope(q, offset=a) @ rope(k, offset=a + 3).mT).item() for a in (0, 5, 40)]
    np.testing.assert_allclose(products, products[0], rtol=1e-4)


def test_an_offset_that_is_a_tensor_or_variable_compiles_once() -> None:
    rope, x = nn.RoPE(4), numbers(1, 4)
    want = [rope(x, offset=n).numpy() for n in range(6)]
    position = fg.Var("position", 0, 100)

    def by_tensor(n: int) -> Any:
        return rope(x, offset=fg.Tensor(np.array(n, np.int32))).numpy()

    def by_variable(n: int) -> Any:
        return rope(x, offset=position.bind(n)).numpy()

    for found in (by_tensor, by_variable):
        found(0)
        before = fg.cache_stats()["schedule"]["misses"]
        for n in range(6):
            np.testing.assert_allclose(found(n), want[n], rtol=1e-5, atol=1e-6)
        assert fg.cache_stats()["schedule"]["misses"] == before


def test_half_floats_turn_in_float32() -> None:
    x = numbers(1, 200, 4)
    found = nn.RoPE(4)(x.astype("float16"))
    assert found.dtype is fg.float16
    np.testing.assert_allclose(found.numpy(), nn.RoPE(4)(x).numpy(), atol=4e-3)
    with raises(ArgumentError, "even"):
        nn.RoPE(3)
    with raises(ShapeError, "takes (..., length, 4)"):
        nn.RoPE(4)(fg.ones((2, 6)))
    assert math.isclose(nn.RoPE(4).base, 10000.0)
