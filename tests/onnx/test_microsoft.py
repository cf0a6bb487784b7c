"""Operators of com.microsoft beside NumPy: those no peer runs on a CPU, and those it must not miss.

`test_peers.py` has many more, beside onnxruntime where that is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fulgurite.onnx import UnsupportedError, load
from tests.onnx.test_peers import RNG, f, i32, i64, made, u8

Array = np.ndarray[Any, Any]


def run(op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> list[Array]:
    given = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    found = load(made(op, 0, inputs, outputs, attributes))(**given)
    return [np.asarray(v) for v in found.values()]


def near(found: Array, want: Any) -> None:
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


def gelu(x: Array) -> Array:
    out: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


def test_channels_may_come_last() -> None:
    x, w, b = f(2, 5, 6, 3), f(4, 3, 3, 3), f(4)
    plain = load(made("Conv", 17, [np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1), b], 1, {}))
    want = np.asarray(plain(np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1), b)[0])
    near(run("NhwcConv", [x, w, b])[0], np.moveaxis(want, 1, -1))
    fused = run("NhwcFusedConv", [x, w, b], activation="Relu")[0]
    near(fused, np.maximum(np.moveaxis(want, 1, -1), 0))


def test_a_product_with_a_bias_and_gelu() -> None:
    a, b, c = f(2, 3), f(3, 4), f(4)
    near(run("GemmFastGelu", [a, b, c])[0], gelu(a @ b + c))


def test_softmax_of_a_sum() -> None:
    x, bias = f(2, 4, 3, 3), f(2, 1, 3, 3)
    powers = np.exp(x + bias)
    want = powers / powers.sum(-1, keepdims=True)
    near(run("BiasSoftmax", [x, bias], axis=3, is_inner_broadcast=0)[0], want)


def test_a_finished_model_drops_nothing() -> None:
    x, bias, more = f(2, 3), f(3), f(2, 3)
    found, mask = run("BiasDropout", [x, bias, more], 2)
    near(found, x + bias + more)
    assert mask.all()


def test_fourier_transforms_come_as_pairs() -> None:
    x = f(2, 8)
    found = run("Rfft", [x], signal_ndim=1, onesided=1, normalized=0)[0]
    want = np.fft.rfft(x)
    near(found, np.stack([want.real, want.imag], -1))
    near(run("Irfft", [found], signal_ndim=1, onesided=1, normalized=0)[0], x)


def test_products_of_pairs() -> None:
    a, b = f(3, 2), f(3, 2)
    x, y = a[:, 0] + 1j * a[:, 1], b[:, 0] + 1j * b[:, 1]
    for op, want in (("ComplexMul", x * y), ("ComplexMulConj", x * y.conj())):
        near(run(op, [a, b])[0], np.stack([want.real, want.imag], -1))


def test_whole_numbers_around_their_zeros_are_multiplied() -> None:
    a, b = u8(2, 3), u8(2, 3)
    found = run("MulInteger", [a, np.uint8(100), b, np.uint8(7)])[0]
    assert found.tolist() == ((a.astype(int) - 100) * (b.astype(int) - 7)).tolist()


def test_a_number_that_is_not_finite_is_found() -> None:
    x = f(4)
    assert run("IsAllFinite", [x, f(2)])[0].tolist() == [True]
    x[2] = np.nan
    assert run("IsAllFinite", [x, f(2)])[0].tolist() == [False]


def test_a_group_norm_of_a_sum() -> None:
    x, skip, gain, bias = f(1, 2, 2, 4), f(1, 2, 2, 4), f(4), f(4)
    total = x + skip
    parts = total.reshape(1, 4, 2, 2)
    mean, deviation = parts.mean((1, 3), keepdims=True), parts.std((1, 3), keepdims=True)
    want = ((parts - mean) / np.sqrt(deviation**2 + 1e-5)).reshape(x.shape) * gain + bias
    found, kept = run("SkipGroupNorm", [x, gain, bias, skip], 2, groups=2, epsilon=1e-5)
    near(found, want)
    near(kept, total)


def test_a_bias_by_distance_is_symmetric_in_its_buckets() -> None:
    table = f(32, 2)
    found = run("RelativePositionBias", [table, i64(4), i64(4)], max_distance=128,
                is_bidirectional=1)[0]  # fmt: skip
    assert found.shape == (1, 2, 4, 4)
    near(found[0, 0, 2], [table[2, 0], table[1, 0], table[0, 0], table[17, 0]])


def attended(
    q: Array, k: Array, v: Array, lengths: list[int], cap: float, sink: Array | None
) -> Array:
    """Attention of the last queries of each sample over so many keys, in float64."""
    out = np.zeros(q.shape)
    times = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        for i in range(q.shape[2]):
            last = lengths[b] - q.shape[2] + i + 1
            s = k[b, h // times, :last].astype(np.float64) @ q[b, h, i] / np.sqrt(q.shape[3])
            s = np.tanh(s / cap) * cap if cap else s
            powers = np.exp(s)
            total = powers.sum() + (0 if sink is None else np.exp(sink[h]))
            out[b, h, i] = powers @ v[b, h // times, :last] / total
    return out


@pytest.mark.parametrize("cap", [0.0, 0.7])
@pytest.mark.parametrize("with_sink", [False, True])
def test_each_sample_has_its_own_length_in_a_cache(cap: float, with_sink: bool) -> None:
    q, k, v = f(2, 1, 32), f(2, 1, 16), f(2, 1, 16)
    keys, values = f(2, 2, 6, 8), f(2, 2, 6, 8)
    lengths, sink = [5, 3], f(4) if with_sink else None
    given = [q, k, v, keys, values, i32(4, 2), np.array(5, np.int32), None, None, None, None, sink]
    found, new_keys, new_values = run("GroupQueryAttention", given if with_sink else given[:7], 3,
                                      num_heads=4, kv_num_heads=2, softcap=cap)  # fmt: skip
    for b, length in enumerate(lengths):
        keys[b, :, length - 1], values[b, :, length - 1] = k[b].reshape(2, 8), v[b].reshape(2, 8)
        near(new_keys[b, :, :length], keys[b, :, :length])
        near(new_values[b, :, :length], values[b, :, :length])
    want = attended(q.reshape(2, 4, 1, 8), keys, values, lengths, cap, sink)
    near(found, want.reshape(2, 1, 32))


def test_quantised_attention_is_attention_of_what_the_numbers_mean() -> None:
    x, w, b = u8(2, 3, 8), u8(8, 24), f(24)
    scales = [np.float32(0.01), np.float32(0.01)]  # scores of thousands would round as coarsely
    real = [(a.astype(np.float32) - 128) * scale for a, scale in zip((x, w), scales, strict=True)]
    zero = np.uint8(128)
    found = run("QAttention", [x, w, b, *scales, None, zero, zero], num_heads=2)[0]
    near(found, run("Attention", [*real, b], num_heads=2)[0])


def test_weights_of_four_bits_are_places_in_a_table() -> None:
    codes, scale, x = RNG.integers(0, 16, (2, 32)), f(4), f(3, 32)
    table = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25])
    signed = np.concatenate([table, -table])
    packed = (codes.reshape(-1, 2)[:, 0] << 4 | codes.reshape(-1, 2)[:, 1]).astype(np.uint8)
    weight = signed[codes] * np.repeat(scale, 16).reshape(2, 32)
    found = run("MatMulBnb4", [x, packed, scale], K=32, N=2, block_size=16, quant_type=0)[0]
    near(found, x @ weight.T)


def test_rows_of_quantised_blocks_are_gathered() -> None:
    codes, scale = RNG.integers(0, 16, (6, 32)), f(6, 2)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    want = (codes - 8) * np.repeat(scale, 16, axis=1)
    found = run("GatherBlockQuantized", [packed, i64(5, 0), scale], bits=4, block_size=16,
                gather_axis=0, quantize_axis=1)[0]  # fmt: skip
    near(found, want[[5, 0]])


def test_the_best_experts_are_mixed() -> None:
    x, router, w1, b1, w2, b2 = f(4, 8), f(4, 3), f(3, 5, 8), f(3, 5), f(3, 8, 5), f(3, 8)
    found = run("MoE", [x, router, w1, b1, w2, b2], k=2, activation_type="relu",
                normalize_routing_weights=1)[0]  # fmt: skip
    want = np.zeros((4, 8))
    for row in range(4):
        best = np.argsort(-router[row])[:2]
        share = np.exp(router[row, best]) / np.exp(router[row, best]).sum()
        for e, part in zip(best, share, strict=True):
            want[row] += part * (np.maximum(x[row] @ w1[e].T + b1[e], 0) @ w2[e].T + b2[e])
    near(found, want)


def test_words_that_would_repeat_are_forbidden() -> None:
    words, scores = i64(1, 2, 3, 1, 2).reshape(1, 5), f(1, 6)
    found = run("NGramRepeatBlock", [words, scores], ngram_size=3)[0]
    assert np.isinf(found).nonzero()[1].tolist() == [3]


def test_what_is_not_built_is_refused_and_never_left_out() -> None:
    with pytest.raises(UnsupportedError, match="do_rotary"):
        run("Attention", [f(2, 3, 8), f(8, 24), f(24)], num_heads=2, do_rotary=1)
    with pytest.raises(UnsupportedError, match="bias of packed"):
        run("MultiHeadAttention", [f(2, 3, 8), f(2, 5, 2, 2, 4), None, f(24)], num_heads=2)


def _weights(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Array = powers / powers.sum(axis=-1, keepdims=True)
    return out


def test_a_query_whose_keys_are_all_masked_sees_them_as_if_there_were_no_mask() -> None:
    q, k, v = f(2, 3, 4), f(2, 5, 4), f(2, 5, 4)
    mask = np.array([[1, 1, 0, 1, 0], [0] * 5], np.int32)
    scores = q @ np.moveaxis(k, 1, 2) / 2
    want = _weights(np.where(mask[:1, None] == 1, scores, -np.inf)[:1]) @ v[:1]
    found = run("MultiHeadAttention", [q, k, v, None, mask], num_heads=1)[0]
    near(found[:1], want)
    want = _weights(scores[1:]) @ v[1:]  # the mask took some digits of the scores
    np.testing.assert_allclose(found[1:], want, rtol=0, atol=5e-3)


def test_the_places_of_queries_count_from_the_cache() -> None:
    q, k, v = f(1, 2, 4), f(1, 5, 4), f(1, 5, 4)
    found = run("MultiHeadAttention", [q, k, v], num_heads=1, unidirectional=1)[0]
    near(found[0, 0], v[0, 0])


def test_softmax_of_quantised_numbers_is_of_all_axes_from_one_on_before_opset_13() -> None:
    x, scales = u8(2, 3, 4), [np.float32(0.05), np.uint8(128), np.float32(1 / 256), np.uint8(0)]
    real = (x.astype(np.float64) - 128) * np.float32(0.05)
    for opset, shape in ((12, (2, 12, 1)), (13, (2, 3, 4))):
        powers = np.exp(real).reshape(shape)
        want = (powers / powers.sum(axis=1, keepdims=True)).reshape(x.shape) * 256
        found = run("QLinearSoftmax", [x, *scales], axis=1, opset=opset)[0]
        assert np.abs(found - want.clip(0, 255)).max() < 1
