"""Operators of com.microsoft, and old versions of standard ones, beside onnxruntime.

onnxruntime is in the `peers` extra: without it these tests do not run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fulgurite.onnx import load
from fulgurite.onnx.run import _distance
from tests.onnx.models import field, graph, model, node, port

MS = "com.microsoft"
RNG = np.random.default_rng(5)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def f32(values: Any) -> Any:
    return np.array(values, np.float32)


def u8(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def i8(*shape: int) -> Any:
    return RNG.integers(-128, 128, shape).astype(np.int8)


SCALE, ZERO = np.array(0.05, np.float32), np.array(128, np.uint8)
IDS = RNG.integers(0, 5, (2, 3)).astype(np.int32)
ONES = np.ones((2, 3), np.int32)

TURN = (f(16, 8), f(16, 8))
SOME = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
Cases = list[tuple[str, int, list[Any], int, dict[str, Any]]]

# operator, opset (0: com.microsoft), inputs (None: left out), outputs, attributes
CASES: Cases = [
    ("FusedMatMul", 0, [f(2, 3, 4), f(2, 5, 4)], 1, {"transB": 1, "alpha": 0.5}),
    ("FusedMatMul", 0, [f(2, 4, 3), f(2, 4, 5)], 1, {"transA": 1}),
    ("Gelu", 0, [f(3, 4)], 1, {}),
    ("BiasGelu", 0, [f(3, 4), f(4)], 1, {}),
    ("FastGelu", 0, [f(3, 4), f(4)], 1, {}),
    ("QuickGelu", 0, [f(3, 4)], 1, {}),
    ("FusedConv", 0, [f(1, 2, 5, 5), f(3, 2, 3, 3), f(3)], 1, {"activation": "Relu"}),
    ("FusedGemm", 0, [f(2, 3), f(3, 4), f(4)], 1, {"activation": "Relu"}),
    ("SkipLayerNormalization", 0, [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], 1, {}),
    ("SkipSimplifiedLayerNormalization", 0, [f(2, 3, 8), f(2, 3, 8), f(8)], 1, {}),
    ("EmbedLayerNormalization", 0,
     [IDS, np.zeros_like(IDS), f(5, 8), f(4, 8), f(2, 8), f(8), f(8), ONES], 2, {}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24), np.array([3, 2], np.int32)], 1,
     {"num_heads": 2}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24)], 1, {"num_heads": 2, "unidirectional": 1}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 4, 8), f(2, 4, 8)], 1, {"num_heads": 2}),
    ("RotaryEmbedding", 0, [f(1, 3, 16), i64(0), f(8, 4), f(8, 4)], 1, {}),
    ("RotaryEmbedding", 0, [f(1, 2, 3, 8), i64(0, 1, 2).reshape(1, 3), f(8, 4), f(8, 4)], 1,
     {"interleaved": 1}),
    ("GroupQueryAttention", 0,
     [f(1, 3, 32), f(1, 3, 16), f(1, 3, 16), None, None, np.array([2], np.int32),
      np.array(3, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2}),
    ("MatMulNBits", 0, [f(2, 32), u8(4, 2, 8), f(8)], 1,
     {"K": 32, "N": 4, "bits": 4, "block_size": 16}),
    ("MatMulNBits", 0, [f(2, 32), u8(4, 2, 8), f(8), u8(4)], 1,
     {"K": 32, "N": 4, "bits": 4, "block_size": 16}),
    ("QLinearAdd", 0, [u8(2, 3), SCALE, ZERO, u8(2, 3), SCALE, ZERO, SCALE, ZERO], 1, {}),
    ("QLinearMul", 0, [u8(2, 3), SCALE, ZERO, u8(2, 3), SCALE, ZERO, SCALE, ZERO], 1, {}),
    ("QLinearSigmoid", 0, [u8(2, 3), SCALE, ZERO, np.float32(1 / 256), np.uint8(0)], 1, {}),
    ("QLinearLeakyRelu", 0, [u8(2, 3), SCALE, ZERO, SCALE, ZERO], 1, {"alpha": 0.1}),
    ("QLinearGlobalAveragePool", 0, [u8(1, 2, 4, 4), SCALE, ZERO, SCALE, ZERO], 1, {}),
    ("QLinearConcat", 0, [SCALE, ZERO, u8(2, 3), SCALE, ZERO, u8(2, 3), SCALE, ZERO], 1,
     {"axis": 1}),
    ("DynamicQuantizeMatMul", 0, [f(2, 8), u8(8, 4), SCALE, ZERO], 1, {}),
    ("MatMulIntegerToFloat", 0, [u8(2, 8), u8(8, 4), SCALE, SCALE, ZERO, ZERO], 1, {}),
    ("QGemm", 0, [u8(2, 8), SCALE, ZERO, u8(8, 4), SCALE, ZERO], 1, {}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24), None, f(2, 2, 2, 5, 4)], 2, {"num_heads": 2}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24), SOME], 1, {"num_heads": 2}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24), RNG.integers(0, 2, (2, 3,
     3)).astype(np.int32)|np.eye(3, dtype=np.int32)], 1, {"num_heads": 2}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24), None, None, f(2, 2, 3, 3)], 1, {"num_heads":
     2}),
    ("Attention", 0, [f(2, 3, 8), f(8, 20), f(20)], 1, {"num_heads": 2, "qkv_hidden_sizes": [8, 8,
     4]}),
    ("Attention", 0, [f(2, 3, 8), f(8, 24), f(24), i32(3, 2, 0, 1)], 1, {"num_heads": 2}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 4, 8), f(2, 4, 8), f(24)], 1, {"num_heads": 2}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 4, 8), f(2, 4, 8), None, i32(4, 2)], 1,
     {"num_heads": 2}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 4, 8), f(2, 4, 8), None, np.array([[1, 1, 0, 1],
     [1, 1, 1, 1]], np.int32)], 1, {"num_heads": 2}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 3, 8), f(2, 3, 8), f(24), None, f(1, 2, 3, 8),
     f(2, 2, 5, 4), f(2, 2, 5, 4)], 3, {"num_heads": 2}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 2, 4, 4), f(2, 2, 4, 4)], 1, {"num_heads": 2}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 3, 8), f(2, 3, 8)], 1, {"num_heads": 2,
     "unidirectional": 1}),
    ("MultiHeadAttention", 0, [f(2, 3, 8), f(2, 4, 8), f(2, 4, 12)], 1, {"num_heads": 2}),
    ("GroupQueryAttention", 0, [f(2, 1, 32), f(2, 1, 16), f(2, 1, 16), f(2, 2, 4, 8), f(2, 2, 4,
     8), i32(4, 4), np.array(5, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2}),
    ("GroupQueryAttention", 0, [f(2, 1, 32), f(2, 1, 16), f(2, 1, 16), f(2, 2, 4, 8), f(2, 2, 4,
     8), i32(4, 2), np.array(5, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2}),
    ("GroupQueryAttention", 0, [f(1, 1, 32), f(1, 1, 16), f(1, 1, 16), f(1, 2, 8, 8), f(1, 2, 8,
     8), i32(4), np.array(5, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2}),
    ("GroupQueryAttention", 0, [f(2, 3, 64), f(2, 3, 32), f(2, 3, 32), None, None, i32(2, 2),
     np.array(3, np.int32), *TURN], 3, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
    ("GroupQueryAttention", 0, [f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), f(2, 2, 4, 16), f(2, 2, 4,
     16), i32(4, 4), np.array(5, np.int32), *TURN], 3, {"num_heads": 4, "kv_num_heads": 2,
     "do_rotary": 1}),
    ("GroupQueryAttention", 0, [f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), f(2, 2, 4, 16), f(2, 2, 4,
     16), i32(4, 2), np.array(5, np.int32), *TURN], 3, {"num_heads": 4, "kv_num_heads": 2,
     "do_rotary": 1}),
    ("GroupQueryAttention", 0, [f(2, 3, 128), None, None, None, None, i32(2, 2), np.array(3,
     np.int32), *TURN], 3, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1,
     "rotary_interleaved": 1}),
    ("GroupQueryAttention", 0, [f(1, 6, 32), f(1, 6, 16), f(1, 6, 16), None, None, i32(5),
     np.array(6, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 2}),
    ("GroupQueryAttention", 0, [f(1, 6, 32), f(1, 6, 16), f(1, 6, 16), None, None, i32(5),
     np.array(6, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2, "softcap": 0.7}),
    ("GroupQueryAttention", 0, [f(1, 6, 32), f(1, 6, 16), f(1, 6, 16), None, None, i32(5),
     np.array(6, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2, "smooth_softmax": 1}),
    ("GroupQueryAttention", 0, [f(1, 6, 32), f(1, 6, 16), f(1, 6, 16), None, None, i32(5),
     np.array(6, np.int32), None, None, None, f(1, 1, 6, 6)], 3, {"num_heads": 4, "kv_num_heads":
     2}),
    ("GroupQueryAttention", 0, [f(1, 6, 32), f(1, 6, 16), f(1, 6, 16), None, None, i32(5),
     np.array(6, np.int32), None, None, None, None, f(4)], 3, {"num_heads": 4, "kv_num_heads":
     2}),
    ("GroupQueryAttention", 0, [f(1, 6, 32), f(1, 6, 16), f(1, 6, 16), None, None, i32(5),
     np.array(6, np.int32), None, None, None, f(1, 4, 6, 6)], 3, {"num_heads": 4, "kv_num_heads":
     2, "softcap": 0.7}),
    ("GroupQueryAttention", 0, [f(1, 2, 32), f(1, 2, 16), f(1, 2, 16), f(1, 2, 4, 8), f(1, 2, 4,
     8), i32(5), np.array(6, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2}),
    ("GroupQueryAttention", 0, [f(2, 3, 32), f(2, 3, 16), f(2, 3, 16), None, None, i32(2, 1),
     np.array(3, np.int32)], 3, {"num_heads": 4, "kv_num_heads": 2}),
    ("RotaryEmbedding", 0, [f(2, 3, 4, 8), i64(0, 1, 2, 3, 0, 1, 2, 3).reshape(2, 4), f(8, 4),
     f(8, 4)], 1, {}),
    ("RotaryEmbedding", 0, [f(1, 3, 4, 16), i64(0, 1, 2, 3).reshape(1, 4), f(8, 4), f(8, 4)], 1,
     {"rotary_embedding_dim": 8, "num_heads": 3}),
    ("RotaryEmbedding", 0, [f(2, 3, 16), i64(2), f(8, 4), f(8, 4)], 1, {}),
    ("SkipLayerNormalization", 0, [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], 4, {"epsilon":
     1e-5}),
    ("SkipLayerNormalization", 0, [f(2, 3, 8), f(3, 8), f(8), f(8)], 1, {}),
    ("SkipSimplifiedLayerNormalization", 0, [f(2, 3, 8), f(2, 3, 8), f(8), f(8)], 4, {}),
    ("EmbedLayerNormalization", 0, [RNG.integers(0, 5, (2, 3)).astype(np.int32), None, f(5, 8),
     f(4, 8), None, f(8), f(8)], 3, {}),
    ("EmbedLayerNormalization", 0, [RNG.integers(0, 5, (2, 3)).astype(np.int32), None, f(5, 8),
     f(4, 8), None, f(8), f(8), None, i32(2, 1, 0).reshape(1, 3)], 2, {}),
    ("MatMulNBits", 0, [f(2, 3, 40), u8(4, 3, 8), f(12)], 1, {"K": 40, "N": 4, "bits": 4,
     "block_size": 16}),
    ("MatMulNBits", 0, [f(2, 32), u8(4, 2, 16), f(8)], 1, {"K": 32, "N": 4, "bits": 8,
     "block_size": 16}),
    ("MatMulNBits", 0, [f(2, 32), u8(4, 2, 8), f(8), None, None, f(4)], 1, {"K": 32, "N": 4,
     "bits": 4, "block_size": 16}),
    ("MatMulNBits", 0, [f(2, 32), u8(4, 1, 16), f(4), u8(4)], 1, {"K": 32, "N": 4, "bits": 4,
     "block_size": 32}),
    ("MatMulBnb4", 0, [f(2, 32), u8(64), f(8)], 1, {"K": 32, "N": 4, "block_size": 16,
     "quant_type": 1}),
    ("MatMulBnb4", 0, [f(2, 32), u8(64), f(8)], 1, {"K": 32, "N": 4, "block_size": 16,
     "quant_type": 0}),
    ("GatherBlockQuantized", 0, [u8(6, 16), i64(0, 3, 5), f(6, 2), u8(6, 1)], 1, {"bits": 4,
     "block_size": 16, "gather_axis": 0, "quantize_axis": 1}),
    ("GatherBlockQuantized", 0, [u8(6, 16), i64(0, 3, 5, 1).reshape(2, 2), f(6, 2)], 1, {"bits":
     4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}),
    ("QAttention", 0, [u8(2, 3, 8), u8(8, 24), f(24), SCALE, f32(0.02), None, ZERO, ZERO], 1,
     {"num_heads": 2}),
    ("QAttention", 0, [u8(2, 3, 8), i8(8, 24), f(24), SCALE, f32(0.02), i32(3, 2), ZERO,
     np.int8(3)], 1, {"num_heads": 2, "unidirectional": 1}),
    ("QLinearConv", 0, [u8(1, 5, 5, 2), SCALE, ZERO, u8(3, 2, 3, 3), SCALE, ZERO, f32(0.3), ZERO],
     1, {"channels_last": 1}),
    ("NhwcMaxPool", 0, [u8(1, 6, 6, 3)], 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("QLinearWhere", 0, [np.array([[True, False, True]]), u8(2, 3), SCALE, ZERO, u8(2, 3),
     f32(0.03), ZERO, f32(0.04), np.uint8(100)], 1, {}),
    ("QLinearSoftmax", 0, [u8(2, 6), SCALE, ZERO, f32(1/256), np.uint8(0)], 1, {"axis": -1,
     "opset": 13}),
    ("QLinearAveragePool", 0, [u8(1, 2, 5, 5), SCALE, ZERO, SCALE, ZERO], 1, {"kernel_shape": [2,
     2], "strides": [2, 2]}),
    ("DynamicQuantizeLSTM", 0, [f(4, 1, 3), u8(1, 3, 16), u8(1, 4, 16), f(1, 32), None, None,
     None, None, f32([0.02]), np.array([128], np.uint8), f32([0.02]), np.array([128], np.uint8)],
     3, {"hidden_size": 4}),
    ("DynamicQuantizeLSTM", 0, [f(20, 1, 8), i8(1, 8, 64), i8(1, 16, 64), f(1, 128), None, None,
     None, None, np.abs(f(1, 64)) / 500, np.zeros((1, 64), np.int8), np.abs(f(1, 64)) / 500,
     np.zeros((1, 64), np.int8)], 3, {"hidden_size": 16}),
    ("CDist", 0, [f(3, 4), f(5, 4)], 1, {"metric": "euclidean"}),
    ("CDist", 0, [f(3, 4), f(5, 4)], 1, {"metric": "sqeuclidean"}),
    ("ExpandDims", 0, [f(2, 3), i32(1).reshape(())], 1, {}),
    ("Unique", 0, [f32([1, 2, 1, 3, 2])], 3, {}),
    ("NGramRepeatBlock", 0, [i64(1, 2, 3, 1, 2, 5, 6, 7, 5, 6).reshape(2, 5), f(2, 9)], 1,
     {"ngram_size": 3}),
    ("CropAndResize", 0, [f(2, 3, 8, 8), f32([[0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1]]), i32(0, 1),
     i32(4, 3)], 1, {"mode": "bilinear"}),
    ("CropAndResize", 0, [f(2, 3, 8, 8), f32([[0.1, 0.2, 0.7, 1.2], [0, 0, 1, 1]]), i32(0, 1),
     i32(4, 3)], 1, {"mode": "nearest", "extrapolation_value": 2.0}),
    ("ConvTransposeWithDynamicPads", 0, [f(1, 2, 4, 4), f(2, 3, 3, 3), i64(1, 1, 0, 0)], 1,
     {"strides": [2, 2]}),
    ("UnfoldTensor", 0, [f(2, 8)], 1, {"dim": 1, "size": 3, "step": 2}),
    ("MaxpoolWithMask", 0, [f(1, 1, 4, 4), np.ones((1, 1, 4, 4), np.int32)], 1, {"kernel_shape":
     [2, 2], "strides": [2, 2]}),
    ("SampleOp", 0, [f(2, 3)], 1, {}),
    ("MoE", 0, [f(4, 8), f(4, 3), f(3, 16, 8), f(3, 16), f(3, 8, 16), f(3, 8)], 1, {"k": 2,
     "activation_type": "gelu", "normalize_routing_weights": 1}),
    ("MoE", 0, [f(4, 8), f(4, 3), f(3, 16, 8), f(3, 16), f(3, 8, 16), f(3, 8)], 1, {"k": 1,
     "activation_type": "silu"}),
    ("DecoderMaskedMultiHeadAttention", 0, [f(2, 1, 8), f(2, 1, 8), f(2, 1, 8), None, None, f(2,
     2, 6, 4), f(2, 2, 6, 4), np.array([3], np.int32)], 3, {"num_heads": 2,
     "past_present_share_buffer": 1}),
    ("QEmbedLayerNormalization", 0, [RNG.integers(0, 5, (2, 3)).astype(np.int32), np.zeros((2, 3),
     np.int32), u8(5, 8), u8(4, 8), u8(2, 8), u8(8), u8(8), None, *[SCALE]*5, *[ZERO]*5], 2, {}),
    ("ParametricSoftplus", 1, [f(2, 3)], 1, {"alpha": 0.5, "beta": 0.7}),
    ("Affine", 1, [f(2, 3)], 1, {"alpha": 0.5, "beta": 0.7}),
    ("ScaledTanh", 1, [f(2, 3)], 1, {"alpha": 0.5, "beta": 0.7}),
    ("ImageScaler", 7, [f(1, 3, 2, 2)], 1, {"scale": 0.5, "bias": [0.1, 0.2, 0.3]}),
    ("Crop", 7, [f(1, 3, 6, 6)], 1, {"border": [1, 1, 2, 2]}),
    ("FusedGemm", 0, [f(3, 2), f(3, 4), f(4)], 1, {"activation": "LeakyRelu", "activation_alpha":
     0.2, "transA": 1}),
    ("FusedConv", 0, [f(1, 2, 5, 5), f(3, 2, 3, 3), f(3)], 1, {"activation": "HardSigmoid",
     "activation_params": [0.2, 0.5]}),
    ("FusedConv", 0, [f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), f(1, 3, 3, 3)], 1, {"activation":
     "Relu"}),
    ("QLinearGlobalAveragePool", 0, [u8(1, 4, 4, 2), SCALE, ZERO, SCALE, ZERO], 1,
     {"channels_last": 1}),
    ("Softmax", 7, [f(2, 3, 4)], 1, {"axis": 1}),
    ("Softmax", 11, [f(2, 3, 4)], 1, {}),
    ("Clip", 7, [f(2, 3)], 1, {"min": -0.5, "max": 0.5}),
    ("Pad", 7, [f(2, 3)], 1, {"pads": [1, 0, 0, 2], "mode": "reflect"}),
    ("Slice", 9, [f(4, 5)], 1, {"starts": [1, -3], "ends": [3, 9], "axes": [0, 1]}),
    ("Squeeze", 7, [f(2, 1, 3)], 1, {"axes": [1]}),
    ("Unsqueeze", 11, [f(2, 3)], 1, {"axes": [0, 3]}),
    ("ReduceMean", 11, [f(2, 3, 4)], 1, {"axes": [1], "keepdims": 0}),
    ("ReduceSum", 11, [f(2, 3, 4)], 1, {"axes": [-1]}),
    ("Split", 11, [f(6, 2)], 2, {"split": [2, 4], "axis": 0}),
    ("TopK", 9, [f(3, 6)], 2, {"k": 2}),
    ("Upsample", 7, [f(1, 1, 3, 4)], 1, {"scales": [1.0, 1.0, 2.0, 2.0]}),
    ("Upsample", 9, [f(1, 1, 3, 4), f32([1, 1, 2, 2])], 1, {"mode": "linear"}),
    ("Resize", 10, [f(1, 1, 3, 4), f32([1, 1, 2, 2])], 1, {"mode": "linear"}),
    ("BatchNormalization", 7, [f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3))], 1, {}),
    ("Dropout", 7, [f(2, 3)], 1, {"ratio": 0.5}),
    ("LSTM", 14, [f(5, 2, 3), f(2, 16, 3), f(2, 16, 4), f(2, 32), np.array([5, 3], np.int32)], 3,
     {"hidden_size": 4, "direction": "bidirectional"}),
    ("GRU", 14, [f(5, 2, 3), f(2, 12, 3), f(2, 12, 4), f(2, 24), np.array([5, 3], np.int32)], 2,
     {"hidden_size": 4, "direction": "bidirectional", "linear_before_reset": 1}),
    ("RNN", 14, [f(5, 2, 3), f(1, 4, 3), f(1, 4, 4)], 2,
     {"hidden_size": 4, "direction": "reverse", "activations": ["Relu"]}),
    ("ConvTranspose", 11, [f(1, 2, 4, 5), f(2, 3, 3, 3), f(3)], 1,
     {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0], "dilations": [1, 2]}),
    ("AveragePool", 19, [f(1, 2, 7, 8)], 1,
     {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ("MaxPool", 12, [f(1, 2, 7, 8)], 1,
     {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 1], "ceil_mode": 1}),
    ("NonMaxSuppression", 11,
     [np.sort(RNG.random((2, 20, 4)).astype(np.float32), axis=-1)[:, :, [0, 1, 2, 3]],
      RNG.random((2, 3, 20)).astype(np.float32), i64(5), f32([0.4]), f32([0.2])],
     1, {}),
    ("GridSample", 16, [f(1, 2, 4, 5), f(1, 3, 3, 2)], 1, {"padding_mode": "reflection"}),
    ("RoiAlign", 16, [f(2, 3, 8, 8), f32([[0, 0, 5, 6], [1, 2, 7, 7]]), i64(0, 1)], 1,
     {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.9}),
    ("MaxRoiPool", 7, [f(1, 2, 8, 8), f32([[0, 0, 0, 5, 6], [0, 1, 2, 7, 7]])], 1,
     {"pooled_shape": [2, 3]}),
]  # fmt: skip


def made(op: str, opset: int, inputs: list[Any], outputs: int, attributes: dict[str, Any]) -> bytes:
    names = [f"x{i}" if x is not None else "." for i, x in enumerate(inputs)]
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if x is not None}
    results = [f"y{i}" for i in range(outputs)]
    line = node(op, " ".join(names), " ".join(results), "" if opset else MS, **attributes)
    ports = [port(n, a.dtype.name, a.shape) for n, a in arrays.items()]
    untyped = [field(1, name) for name in results]  # onnxruntime infers the types of outputs
    return model(graph([line], ports, untyped), opset or 17, com_microsoft=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{len(case[2])}")
def test_an_operator_agrees_with_onnxruntime(case: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    data = made(*case)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    inputs = {f"x{i}": np.asarray(x) for i, x in enumerate(case[2]) if x is not None}
    expected = session.run(None, inputs)
    found = load(data)(**inputs)
    for ours, theirs in zip(found.values(), expected, strict=True):
        off = _distance(np.asarray(ours), np.asarray(theirs))
        assert off < (2e-5 if np.asarray(theirs).dtype.kind == "f" else 0.005), off
