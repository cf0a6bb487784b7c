"""The cases: one usual configuration of every layer and loss, and odd ones of many.

`USUAL` is run on every device; `ODD` on the reference device and against torch. A line is a name,
what makes the layer (of `fg.nn` or `torch.nn`), and the shapes or arrays that it is called with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.nn.cases import Case, whole

MASK = np.triu(np.ones((4, 4), bool), 1)
PADDING = np.array([[False, False, False, True], [False, False, True, True]])
PROBABILITIES = np.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]], np.float32)
SIGNS = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
WEIGHTS = np.array([0.5, 2.0, 1.5], np.float32)


def tensor(nn: Any, array: Any) -> Any:
    """An array as a tensor of the library that a layer is made with."""
    if nn.__name__ == "torch.nn":
        import torch

        return torch.tensor(array)
    import fulgurite as fg

    return fg.Tensor(array)


def plain(name: str, **settings: Any) -> Callable[[Any], Any]:
    """What makes a layer of this name with these settings."""
    return lambda nn: getattr(nn, name)(**settings)


def smoothed(reduction: str) -> Callable[[Any], Any]:
    """Cross-entropy with everything at once."""
    return lambda nn: nn.CrossEntropyLoss(
        weight=tensor(nn, WEIGHTS), ignore_index=1, reduction=reduction, label_smoothing=0.2
    )


ACTIVATIONS = [
    "ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish",
    "Softplus", "Hardswish", "Hardsigmoid", "Hardtanh", "Tanh", "Sigmoid", "LogSigmoid", "Softsign",
    "Tanhshrink", "Softshrink", "Hardshrink", "GLU",
]  # fmt: skip

USUAL: list[Case] = [
    *[Case(name, plain(name), [(3, 4)]) for name in ACTIVATIONS],
    Case("RReLU in use", lambda nn: nn.RReLU(), [(3, 4)], train=False),
    Case("Threshold", lambda nn: nn.Threshold(0.1, 20.0), [(3, 4)]),
    Case("Softmax", lambda nn: nn.Softmax(dim=1), [(3, 4)]),
    Case("LogSoftmax", lambda nn: nn.LogSoftmax(dim=0), [(3, 4)]),
    Case("Softmin", lambda nn: nn.Softmin(dim=1), [(3, 4)]),
    Case("Softmax2d", lambda nn: nn.Softmax2d(), [(2, 3, 2, 2)]),
    Case("Identity", lambda nn: nn.Identity(), [(3, 4)]),
    Case("Linear", lambda nn: nn.Linear(4, 3), [(2, 5, 4)]),
    Case("Bilinear", lambda nn: nn.Bilinear(3, 4, 2), [(5, 3), (5, 4)]),
    Case("Flatten", lambda nn: nn.Flatten(), [(2, 3, 4)]),
    Case("Unflatten", lambda nn: nn.Unflatten(1, (2, 3)), [(2, 6)]),
    Case("Embedding", lambda nn: nn.Embedding(6, 3, padding_idx=2),
         [whole([[0, 2, 5], [2, 1, 0]])]),
    Case("Conv1d", lambda nn: nn.Conv1d(3, 4, 3), [(2, 3, 7)]),
    Case("Conv2d", lambda nn: nn.Conv2d(2, 4, 3, stride=2, padding=1), [(2, 2, 6, 5)]),
    Case("Conv3d", lambda nn: nn.Conv3d(2, 3, 2), [(1, 2, 3, 4, 3)]),
    Case("ConvTranspose1d", lambda nn: nn.ConvTranspose1d(3, 2, 3, stride=2), [(2, 3, 4)]),
    Case("ConvTranspose2d", lambda nn: nn.ConvTranspose2d(3, 2, 3, 2, 1, 1), [(2, 3, 3, 4)]),
    Case("ConvTranspose3d", lambda nn: nn.ConvTranspose3d(2, 2, 2, stride=2), [(1, 2, 2, 2, 2)]),
    Case("BatchNorm1d", lambda nn: nn.BatchNorm1d(3), [(5, 3)]),
    Case("BatchNorm2d", lambda nn: nn.BatchNorm2d(3), [(4, 3, 2, 3)]),
    Case("BatchNorm3d", lambda nn: nn.BatchNorm3d(2), [(3, 2, 2, 2, 2)]),
    Case("BatchNorm2d in use", lambda nn: nn.BatchNorm2d(3), [(4, 3, 2, 3)], train=False),
    Case("LayerNorm", lambda nn: nn.LayerNorm((3, 4)), [(2, 3, 4)]),
    Case("RMSNorm", lambda nn: nn.RMSNorm(4), [(2, 3, 4)]),
    Case("GroupNorm", lambda nn: nn.GroupNorm(2, 6), [(2, 6, 4)]),
    Case("InstanceNorm1d", lambda nn: nn.InstanceNorm1d(3), [(2, 3, 5)]),
    Case("InstanceNorm2d", lambda nn: nn.InstanceNorm2d(3, affine=True), [(2, 3, 3, 4)]),
    Case("InstanceNorm3d", lambda nn: nn.InstanceNorm3d(2), [(2, 2, 2, 2, 2)]),
    Case("LocalResponseNorm", lambda nn: nn.LocalResponseNorm(3, alpha=0.5), [(2, 5, 3)]),
    Case("Dropout in use", lambda nn: nn.Dropout(0.5), [(3, 4)], train=False),
    Case("AlphaDropout in use", lambda nn: nn.AlphaDropout(0.5), [(3, 4)], train=False),
    Case("RNNCell", lambda nn: nn.RNNCell(3, 4), [(2, 3), (2, 4)]),
    Case("LSTMCell", lambda nn: nn.LSTMCell(3, 4), [(2, 3)]),
    Case("GRUCell", lambda nn: nn.GRUCell(3, 4), [(2, 3), (2, 4)]),
    Case("RNN", lambda nn: nn.RNN(3, 4), [(5, 2, 3)]),
    Case("LSTM", lambda nn: nn.LSTM(3, 4, 2, batch_first=True), [(2, 5, 3)]),
    Case("GRU", lambda nn: nn.GRU(3, 4, bidirectional=True), [(5, 2, 3), (2, 2, 4)]),
    Case(
        "MultiheadAttention",
        lambda nn: nn.MultiheadAttention(8, 2, batch_first=True),
        [(2, 4, 8), (2, 4, 8), (2, 4, 8)],
        {"attn_mask": MASK, "key_padding_mask": PADDING},
    ),
    Case(
        "TransformerEncoderLayer",
        lambda nn: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
        [(2, 4, 8)],
        {"src_mask": MASK},
    ),
    Case(
        "TransformerDecoderLayer",
        lambda nn: nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, norm_first=True),
        [(4, 2, 8), (3, 2, 8)],
    ),
    Case("MaxPool1d", lambda nn: nn.MaxPool1d(2), [(2, 3, 6)]),
    Case("MaxPool2d", lambda nn: nn.MaxPool2d(3, 2, 1), [(2, 3, 6, 5)]),
    Case("MaxPool3d", lambda nn: nn.MaxPool3d(2), [(1, 2, 4, 4, 4)]),
    Case("AvgPool1d", lambda nn: nn.AvgPool1d(2), [(2, 3, 6)]),
    Case("AvgPool2d", lambda nn: nn.AvgPool2d(3, 2, 1), [(2, 3, 6, 5)]),
    Case("AvgPool3d", lambda nn: nn.AvgPool3d(2), [(1, 2, 4, 4, 4)]),
    Case("AdaptiveAvgPool1d", lambda nn: nn.AdaptiveAvgPool1d(3), [(2, 3, 7)]),
    Case("AdaptiveAvgPool2d", lambda nn: nn.AdaptiveAvgPool2d((2, None)), [(2, 3, 5, 4)]),
    Case("AdaptiveAvgPool3d", lambda nn: nn.AdaptiveAvgPool3d(1), [(1, 2, 3, 4, 3)]),
    Case("AdaptiveMaxPool1d", lambda nn: nn.AdaptiveMaxPool1d(3), [(2, 3, 7)]),
    Case("AdaptiveMaxPool2d", lambda nn: nn.AdaptiveMaxPool2d(2), [(2, 3, 5, 4)]),
    Case("AdaptiveMaxPool3d", lambda nn: nn.AdaptiveMaxPool3d(2), [(1, 2, 3, 4, 3)]),
    Case("Upsample", lambda nn: nn.Upsample(scale_factor=2), [(1, 2, 3, 4)]),
    Case("Upsample bilinear", lambda nn: nn.Upsample((5, 7), mode="bilinear"), [(1, 2, 3, 4)]),
    Case("Upsample bicubic", lambda nn: nn.Upsample((5, 7), mode="bicubic"), [(1, 2, 3, 4)]),
    Case("PixelShuffle", lambda nn: nn.PixelShuffle(2), [(2, 8, 2, 3)]),
    Case("PixelUnshuffle", lambda nn: nn.PixelUnshuffle(2), [(2, 2, 4, 6)]),
    Case("ConstantPad2d", lambda nn: nn.ConstantPad2d((1, 0, 2, 1), 3.0), [(1, 2, 3, 4)]),
    Case("ReflectionPad2d", lambda nn: nn.ReflectionPad2d((1, 2, 0, 1)), [(1, 2, 3, 4)]),
    Case("ReplicationPad1d", lambda nn: nn.ReplicationPad1d((1, 2)), [(2, 3, 4)]),
    Case("CircularPad1d", lambda nn: nn.CircularPad1d((1, 2)), [(2, 3, 4)]),
    Case("Sequential", lambda nn: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
         [(5, 4)]),
    Case("CosineSimilarity", lambda nn: nn.CosineSimilarity(), [(3, 4, 2), (3, 4, 2)]),
    Case("PairwiseDistance", lambda nn: nn.PairwiseDistance(keepdim=True), [(3, 4), (3, 4)]),
    # losses
    Case("CrossEntropyLoss", lambda nn: nn.CrossEntropyLoss(), [(4, 3), whole([0, 2, 1, 2])]),
    Case("NLLLoss", lambda nn: nn.NLLLoss(), [(4, 3), whole([0, 2, 1, 2])]),
    Case("BCELoss", lambda nn: nn.BCELoss(),
         [(3, 4), (3, 4)], positive=True, without_gradient=(1,)),
    Case("BCEWithLogitsLoss", lambda nn: nn.BCEWithLogitsLoss(), [(3, 4), (3, 4)]),
    Case("MSELoss", lambda nn: nn.MSELoss(), [(3, 4), (3, 4)]),
    Case("L1Loss", lambda nn: nn.L1Loss(), [(3, 4), (3, 4)]),
    Case("SmoothL1Loss", lambda nn: nn.SmoothL1Loss(beta=0.7), [(3, 4), (3, 4)]),
    Case("HuberLoss", lambda nn: nn.HuberLoss(delta=0.7), [(3, 4), (3, 4)]),
    Case("KLDivLoss", lambda nn: nn.KLDivLoss(reduction="batchmean"), [(3, 3), PROBABILITIES],
         without_gradient=(1,)),
    Case("PoissonNLLLoss", lambda nn: nn.PoissonNLLLoss(), [(3, 4), (3, 4)], positive=True,
         without_gradient=(1,)),
    Case("GaussianNLLLoss", lambda nn: nn.GaussianNLLLoss(), [(3, 4), (3, 4), (3, 4)],
         positive=True),
    Case("HingeEmbeddingLoss", lambda nn: nn.HingeEmbeddingLoss(), [(4,), SIGNS],
         without_gradient=(1,)),
    Case("SoftMarginLoss", lambda nn: nn.SoftMarginLoss(), [(4,), SIGNS], without_gradient=(1,)),
    Case("MarginRankingLoss", lambda nn: nn.MarginRankingLoss(0.3), [(4,), (4,), SIGNS],
         without_gradient=(2,)),
    Case("CosineEmbeddingLoss", lambda nn: nn.CosineEmbeddingLoss(0.1), [(4, 3), (4, 3), SIGNS],
         without_gradient=(2,)),
    Case("TripletMarginLoss", lambda nn: nn.TripletMarginLoss(), [(4, 3), (4, 3), (4, 3)]),
    Case("MultiMarginLoss", lambda nn: nn.MultiMarginLoss(), [(4, 3), whole([0, 2, 1, 2])]),
    Case("CTCLoss", lambda nn: nn.Sequential(nn.LogSoftmax(dim=2), _Aligned(nn)), [(6, 2, 4)],
         tolerance=1e-4),
    # windows told, taken apart and put together
    Case("Unfold", lambda nn: nn.Unfold((2, 3), padding=1, stride=2), [(2, 3, 5, 6)]),
    Case("Fold", lambda nn: nn.Fold((5, 6), (2, 3), padding=1, stride=2), [(2, 12, 9)]),
    Case("ChannelShuffle", lambda nn: nn.ChannelShuffle(3), [(2, 6, 2, 3)]),
    Case("MaxPool2d told", lambda nn: nn.MaxPool2d(3, 2, 1, return_indices=True), [(2, 3, 6, 5)]),
    Case("MaxUnpool2d", lambda nn: _Unpooled(nn, 2), [(2, 3, 6, 4)]),
    Case("LPPool2d", lambda nn: nn.LPPool2d(2, 3, stride=2), [(2, 3, 6, 5)], positive=True),
    Case("EmbeddingBag", lambda nn: nn.EmbeddingBag(6, 3),
         [whole([0, 2, 5, 2, 1]), whole([0, 2, 2])]),
    Case("AdaptiveLogSoftmaxWithLoss", lambda nn: nn.AdaptiveLogSoftmaxWithLoss(16, 9, [2, 5]),
         [(4, 16), whole([0, 3, 8, 1])]),
    Case("weight_norm", lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
         [(2, 4)]),
    Case("spectral_norm", lambda nn: nn.utils.parametrizations.spectral_norm(nn.Conv1d(2, 3, 2)),
         [(2, 2, 4)]),
    Case("MultiLabelMarginLoss", lambda nn: nn.MultiLabelMarginLoss(),
         [(3, 4), whole([[3, 0, -1, 1], [-1, 2, 2, 2], [1, 2, 3, 0]])]),
    Case("MultiLabelSoftMarginLoss", lambda nn: nn.MultiLabelSoftMarginLoss(),
         [(3, 4), np.array([[0, 1, 1, 0]] * 3, np.float32)], without_gradient=(1,)),
    Case("TripletMarginWithDistanceLoss", lambda nn: nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: (a - b).abs().sum(-1), swap=True),
        [(4, 3), (4, 3), (4, 3)]),
]  # fmt: skip


def _Unpooled(nn: Any, count: int, **settings: Any) -> Any:
    """A pool and its way back."""

    class Unpooled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.pool = getattr(nn, f"MaxPool{count}d")(2, return_indices=True, **settings)
            self.back = getattr(nn, f"MaxUnpool{count}d")(2, **settings)

        def forward(self, x: Any) -> Any:
            values, places = self.pool(x)
            return self.back(values * 2, places, output_size=x.shape)

    return Unpooled()


def _Aligned(nn: Any, **settings: Any) -> Any:
    """CTCLoss with its labels, as a layer of one input, after a log-softmax.

    torch's own gradient by the logarithms holds only together with that of log-softmax.
    """

    class Aligned(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.CTCLoss(**settings)

        def forward(self, x: Any) -> Any:
            labels, lengths, counts = settings_of(x.shape[1])
            made = [tensor(nn, part) for part in (labels, lengths, counts)]
            return self.loss(x, *made)

    return Aligned()


def settings_of(batch: int) -> tuple[Any, Any, Any]:
    """Labels (repeated ones among them) and lengths for a batch."""
    labels = np.array([[1, 1, 3], [2, 3, 0]], np.int32)[:batch]
    return labels, np.array([6, 5], np.int32)[:batch], np.array([3, 2], np.int32)[:batch]


ODD: list[Case] = [
    Case("PReLU of channels", lambda nn: nn.PReLU(3), [(2, 3, 4)]),
    Case("GELU by tanh", lambda nn: nn.GELU(approximate="tanh"), [(3, 4)]),
    Case("ELU alpha", lambda nn: nn.ELU(1.7), [(3, 4)]),
    Case("CELU alpha", lambda nn: nn.CELU(0.6), [(3, 4)]),
    Case("Softplus beta", lambda nn: nn.Softplus(2.0, 1.0), [(3, 4)]),
    Case("Hardtanh bounds", lambda nn: nn.Hardtanh(-0.2, 0.7), [(3, 4)]),
    Case("GLU of axis 0", lambda nn: nn.GLU(0), [(4, 3)]),
    Case("Linear without bias", lambda nn: nn.Linear(4, 3, bias=False), [(4,)]),
    Case("Bilinear without bias", lambda nn: nn.Bilinear(3, 4, 2, bias=False),
         [(2, 5, 3), (2, 5, 4)]),
    Case("Flatten some", lambda nn: nn.Flatten(0, 1), [(2, 3, 4)]),
    Case("Unflatten with a hole", lambda nn: nn.Unflatten(-1, (2, -1)), [(3, 6)]),
    Case("Embedding negative padding", lambda nn: nn.Embedding(4, 2, -1), [whole([3, 0, 3, 1])]),
    Case("Conv1d same, dilated",
         lambda nn: nn.Conv1d(4, 6, 3, padding="same", dilation=2, groups=2),
         [(2, 4, 7)]),
    Case("Conv1d alone", lambda nn: nn.Conv1d(3, 4, 2, bias=False), [(3, 5)]),
    Case("Conv2d valid", lambda nn: nn.Conv2d(3, 4, (3, 2), padding="valid"), [(1, 3, 5, 4)]),
    Case("Conv2d reflect", lambda nn: nn.Conv2d(3, 4, 3, padding=(2, 1), padding_mode="reflect"),
         [(2, 3, 5, 4)]),
    Case("Conv2d replicate", lambda nn: nn.Conv2d(3, 4, 3, padding=2, padding_mode="replicate"),
         [(2, 3, 5, 4)]),
    Case("Conv2d circular", lambda nn: nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular"),
         [(2, 3, 5, 4)]),
    Case("Conv2d depthwise", lambda nn: nn.Conv2d(4, 8, 3, groups=4, dilation=(1, 2)),
         [(2, 4, 5, 7)]),
    Case("Conv3d strides", lambda nn: nn.Conv3d(2, 4, (1, 2, 3), (1, 2, 1), (0, 1, 1), groups=2),
         [(2, 2, 3, 4, 5)]),
    Case("ConvTranspose1d dilated", lambda nn: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, False, 2),
         [(2, 4, 5)]),
    Case("ConvTranspose1d with a size", lambda nn: nn.ConvTranspose1d(3, 2, 3, 2, 1), [(2, 3, 4)],
         {"output_size": [8]}),
    Case("ConvTranspose2d alone", lambda nn: nn.ConvTranspose2d(2, 3, (2, 3)), [(2, 3, 4)]),
    Case("BatchNorm1d of length", lambda nn: nn.BatchNorm1d(3), [(2, 3, 5)]),
    Case("BatchNorm1d cumulative", lambda nn: nn.BatchNorm1d(3, momentum=None), [(5, 3)]),
    Case("BatchNorm2d plain", lambda nn: nn.BatchNorm2d(2, affine=False), [(3, 2, 2, 2)]),
    Case("BatchNorm1d untracked", lambda nn: nn.BatchNorm1d(3, track_running_stats=False), [(5, 3)],
         train=False),
    Case("LayerNorm without bias", lambda nn: nn.LayerNorm(4, bias=False), [(2, 3, 4)]),
    Case("LayerNorm plain", lambda nn: nn.LayerNorm(4, 1e-3, elementwise_affine=False), [(3, 4)]),
    Case("RMSNorm eps", lambda nn: nn.RMSNorm((3, 4), 1e-2), [(2, 3, 4)]),
    Case("RMSNorm plain", lambda nn: nn.RMSNorm(4, elementwise_affine=False), [(2, 4)]),
    Case("GroupNorm of all", lambda nn: nn.GroupNorm(1, 4, affine=False), [(2, 4, 3, 2)]),
    Case("InstanceNorm1d alone", lambda nn: nn.InstanceNorm1d(3), [(3, 5)]),
    Case("InstanceNorm2d tracked",
         lambda nn: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), [(2, 3, 3, 4)]),
    Case("InstanceNorm2d tracked, in use",
         lambda nn: nn.InstanceNorm2d(3, track_running_stats=True),
         [(2, 3, 3, 4)], train=False),
    Case("RNNCell relu", lambda nn: nn.RNNCell(3, 4, nonlinearity="relu"), [(2, 3)]),
    Case("GRUCell without bias", lambda nn: nn.GRUCell(3, 4, bias=False), [(3,)]),
    Case("RNN relu both ways", lambda nn: nn.RNN(3, 4, 2, "relu", bidirectional=True), [(5, 2, 3)]),
    Case("RNN alone", lambda nn: nn.RNN(3, 4, bias=False), [(5, 3)]),
    Case("LSTM both ways", lambda nn: nn.LSTM(3, 4, 2, bidirectional=True), [(5, 2, 3)]),
    Case("LSTM projected", lambda nn: nn.LSTM(3, 5, 2, proj_size=2, bidirectional=True),
         [(4, 2, 3)]),
    Case("LSTM of one step", lambda nn: nn.LSTM(3, 4, batch_first=True), [(2, 1, 3)]),
    Case("GRU deep", lambda nn: nn.GRU(3, 4, 3, batch_first=True), [(2, 5, 3)]),
    Case("MultiheadAttention apart", lambda nn: nn.MultiheadAttention(8, 4, kdim=6, vdim=5),
         [(3, 2, 8), (4, 2, 6), (4, 2, 5)]),
    Case("MultiheadAttention extras",
         lambda nn: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
         [(4, 2, 8), (4, 2, 8), (4, 2, 8)], {"attn_mask": MASK, "average_attn_weights": False}),
    Case("MultiheadAttention alone", lambda nn: nn.MultiheadAttention(8, 2, bias=False),
         [(4, 8), (4, 8), (4, 8)], {"need_weights": False}),
    Case("MultiheadAttention added mask", lambda nn: nn.MultiheadAttention(8, 2, batch_first=True),
         [(2, 4, 8), (2, 4, 8), (2, 4, 8)],
         {"attn_mask": np.where(MASK, -2.0, 0.5).astype(np.float32), "need_weights": False}),
    Case("MultiheadAttention mask of heads",
         lambda nn: nn.MultiheadAttention(8, 2, batch_first=True),
         [(2, 4, 8), (2, 4, 8), (2, 4, 8)], {"attn_mask": np.stack([MASK] * 4)}),
    Case("TransformerEncoder",
         lambda nn: nn.TransformerEncoder(
             nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", norm_first=True, bias=False), 2,
             nn.LayerNorm(8), enable_nested_tensor=False), [(4, 2, 8)],
         {"src_key_padding_mask": PADDING}),
    Case("TransformerDecoder",
         lambda nn: nn.TransformerDecoder(
             nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True), 2),
         [(2, 4, 8), (2, 3, 8)], {"tgt_mask": MASK}),
    Case("Transformer", lambda nn: nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True),
         [(2, 3, 8), (2, 4, 8)], {"tgt_mask": MASK}),
    Case("MaxPool1d dilated", lambda nn: nn.MaxPool1d(3, 2, 1, dilation=2, ceil_mode=True),
         [(2, 3, 10)]),
    Case("MaxPool2d ceil", lambda nn: nn.MaxPool2d((2, 3), ceil_mode=True), [(2, 5, 7)]),
    Case("AvgPool2d without padding",
         lambda nn: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), [(2, 3, 6, 5)]),
    Case("AdaptiveAvgPool3d uneven", lambda nn: nn.AdaptiveAvgPool3d((2, 3, 1)), [(1, 2, 3, 5, 4)]),
    Case("Upsample to a size", lambda nn: nn.Upsample(5), [(1, 2, 3)]),
    Case("Upsample smaller", lambda nn: nn.Upsample(scale_factor=0.6), [(1, 2, 7)]),
    Case("Upsample nearest-exact", lambda nn: nn.Upsample((5, 3), mode="nearest-exact"),
         [(1, 2, 3, 4)]),
    Case("Upsample linear", lambda nn: nn.Upsample(scale_factor=1.7, mode="linear"), [(1, 2, 5)]),
    Case("Upsample linear corners", lambda nn: nn.Upsample(7, mode="linear", align_corners=True),
         [(1, 2, 4)]),
    Case("Upsample bilinear corners",
         lambda nn: nn.Upsample(scale_factor=(2, 1.5), mode="bilinear", align_corners=True),
         [(1, 2, 3, 4)]),
    Case("Upsample bilinear smaller", lambda nn: nn.Upsample(scale_factor=0.5, mode="bilinear"),
         [(1, 2, 5, 6)]),
    Case("Upsample bicubic corners",
         lambda nn: nn.Upsample((7, 2), mode="bicubic", align_corners=True), [(1, 2, 3, 4)]),
    Case("Upsample trilinear", lambda nn: nn.Upsample(scale_factor=2, mode="trilinear"),
         [(1, 1, 2, 3, 2)]),
    Case("UpsamplingBilinear2d", lambda nn: nn.UpsamplingBilinear2d(scale_factor=2),
         [(1, 2, 3, 2)]),
    Case("UpsamplingNearest2d", lambda nn: nn.UpsamplingNearest2d(size=(4, 5)), [(1, 2, 3, 2)]),
    Case("AvgPool2d by another number",
         lambda nn: nn.AvgPool2d(2, padding=1, divisor_override=3), [(2, 3, 6, 5)]),
    Case("ZeroPad2d", lambda nn: nn.ZeroPad2d((1, 0, 2, 1)), [(1, 2, 3, 4)]),
    Case("ConstantPad2d below 0", lambda nn: nn.ConstantPad2d((1, -2, -1, 1), 3.0), [(1, 2, 3, 4)]),
    Case("ReflectionPad1d below 0", lambda nn: nn.ReflectionPad1d((-1, 2)), [(2, 3, 5)]),
    Case("ReplicationPad1d below 0", lambda nn: nn.ReplicationPad1d((2, -1)), [(2, 3, 4)]),
    Case("CircularPad1d below 0", lambda nn: nn.CircularPad1d((-1, 2)), [(2, 3, 5)]),
    Case("CircularPad2d", lambda nn: nn.CircularPad2d(1), [(1, 2, 3, 4)]),
    Case("ReplicationPad2d", lambda nn: nn.ReplicationPad2d((0, 2, 1, 0)), [(1, 2, 3, 4)]),
    Case("ReflectionPad1d", lambda nn: nn.ReflectionPad1d(2), [(2, 3, 4)]),
    # losses
    *[Case(f"CrossEntropyLoss {reduction} smoothed", smoothed(reduction),
           [(2, 3, 4), whole([[0, 1, 2, 2], [1, 1, 0, 2]])])
      for reduction in ("mean", "sum", "none")],
    Case("CrossEntropyLoss of probabilities", lambda nn: nn.CrossEntropyLoss(
        weight=tensor(nn, WEIGHTS), label_smoothing=0.3), [(3, 3), PROBABILITIES],
        without_gradient=(1,)),
    Case("CrossEntropyLoss alone", lambda nn: nn.CrossEntropyLoss(), [(3,), whole(2)]),
    Case("NLLLoss weighted", lambda nn: nn.NLLLoss(tensor(nn, WEIGHTS), ignore_index=0),
         [(4, 3), whole([0, 2, 1, 2])]),
    Case("NLLLoss none", lambda nn: nn.NLLLoss(reduction="none"),
         [(2, 3, 4), whole([[0, 1, 2, 2], [1, 1, 0, 2]])]),
    Case("BCELoss weighted sum", lambda nn: nn.BCELoss(tensor(nn, WEIGHTS), reduction="sum"),
         [(4, 3), (4, 3)], positive=True, without_gradient=(1,)),
    Case("BCEWithLogitsLoss weighted", lambda nn: nn.BCEWithLogitsLoss(
        tensor(nn, WEIGHTS), reduction="none", pos_weight=tensor(nn, WEIGHTS * 2)),
         [(4, 3), (4, 3)]),
    *[Case(f"{name} {r}", plain(name, reduction=r), [(3, 4), (3, 4)])
      for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss") for r in ("sum", "none")],
    *[Case(f"KLDivLoss {r}", plain("KLDivLoss", reduction=r), [(3, 3), PROBABILITIES],
           without_gradient=(1,)) for r in ("sum", "none", "batchmean")],
    Case("KLDivLoss of logarithms", lambda nn: nn.KLDivLoss(reduction="sum", log_target=True),
         [(3, 3), (3, 3)]),
    Case("PoissonNLLLoss full", lambda nn: nn.PoissonNLLLoss(log_input=False, full=True,
         reduction="sum"), [(3,), np.array([0.5, 2.0, 7.0], np.float32)], positive=True,
         without_gradient=(1,)),
    Case("GaussianNLLLoss full", lambda nn: nn.GaussianNLLLoss(full=True, reduction="none"),
         [(3, 4), (3, 4), (3, 1)], positive=True),
    Case("HingeEmbeddingLoss none", lambda nn: nn.HingeEmbeddingLoss(0.5, reduction="none"),
         [(4,), SIGNS], without_gradient=(1,)),
    Case("MarginRankingLoss sum", lambda nn: nn.MarginRankingLoss(reduction="sum"),
         [(4,), (4,), SIGNS], without_gradient=(2,)),
    Case("CosineEmbeddingLoss none", lambda nn: nn.CosineEmbeddingLoss(reduction="none"),
         [(4, 3), (4, 3), SIGNS], without_gradient=(2,)),
    Case("TripletMarginLoss swap", lambda nn: nn.TripletMarginLoss(2.0, 1, swap=True,
         reduction="none"), [(4, 3), (4, 3), (4, 3)]),
    Case("TripletMarginLoss cubic", lambda nn: nn.TripletMarginLoss(p=3, reduction="sum"),
         [(4, 3), (4, 3), (4, 3)]),
    Case("MultiMarginLoss squared", lambda nn: nn.MultiMarginLoss(2, 0.5, reduction="sum"),
         [(4, 3), whole([0, 2, 1, 2])]),
    Case("CTCLoss none, another blank", lambda nn: nn.Sequential(
        nn.LogSoftmax(dim=2), _Aligned(nn, blank=0, reduction="none")), [(6, 2, 4)],
        tolerance=1e-4),
    Case("CTCLoss sum", lambda nn: nn.Sequential(
        nn.LogSoftmax(dim=2), _Aligned(nn, reduction="sum", zero_infinity=True)), [(6, 2, 4)],
        tolerance=1e-4),
    *[Case(f"MaxPool{n}d told, padded", plain(f"MaxPool{n}d", kernel_size=3, stride=2, padding=1,
        return_indices=True, ceil_mode=True), [(2, 2, *(6, 5, 4)[:n])]) for n in (1, 3)],
    Case("MaxPool2d told, dilated", lambda nn: nn.MaxPool2d(2, 1, 0, 2, True), [(3, 6, 5)]),
    *[Case(f"AdaptiveMaxPool{n}d told", plain(f"AdaptiveMaxPool{n}d", output_size=3,
        return_indices=True), [(2, 2, *(7, 5, 4)[:n])]) for n in (1, 2, 3)],
    *[Case(f"MaxUnpool{n}d", partial(_Unpooled, count=n), [(2, 2, *(7, 5, 4)[:n])])
      for n in (1, 3)],
    Case("LPPool1d", lambda nn: nn.LPPool1d(3, 2, ceil_mode=True), [(2, 3, 5)], positive=True),
    Case("LPPool3d", lambda nn: nn.LPPool3d(1, 2), [(1, 2, 4, 4, 4)], positive=True),
    Case("Unfold dilated", lambda nn: nn.Unfold(2, 2, 1), [(3, 5, 6)]),
    Case("Fold dilated", lambda nn: nn.Fold((5, 6), 2, dilation=2, padding=1), [(12, 30)]),
    *[Case(f"{kind}Pad3d", plain(f"{kind}Pad3d", padding=(1, 2, 0, 1, 2, 0)),
           [(1, 2, 3, 4, 3)]) for kind in ("Zero", "Reflection", "Replication", "Circular")],
    *[Case(f"EmbeddingBag {mode} padded",
           plain("EmbeddingBag", num_embeddings=6, embedding_dim=3, mode=mode, padding_idx=2),
           [whole([[0, 2, 5], [2, 2, 2], [2, 1, 4]])]) for mode in ("sum", "mean", "max")],
    Case("EmbeddingBag max in a line", lambda nn: nn.EmbeddingBag(6, 3, mode="max",
         include_last_offset=True), [whole([0, 2, 5, 4, 1]), whole([0, 3, 3, 5])]),
    Case("EmbeddingBag weighted", lambda nn: nn.EmbeddingBag(6, 3, mode="sum"),
         [whole([0, 2, 5, 2, 1]), whole([0, 2])],
         {"per_sample_weights": np.array([1.0, 2, 3, 4, 5], np.float32)}),
    Case("AdaptiveLogSoftmaxWithLoss biased", lambda nn: nn.AdaptiveLogSoftmaxWithLoss(
        8, 9, [4], div_value=2.0, head_bias=True), [(4, 8), whole([0, 3, 8, 1])]),
    Case("MultiMarginLoss weighted", lambda nn: nn.MultiMarginLoss(weight=tensor(nn, WEIGHTS)),
         [(4, 3), whole([0, 2, 1, 2])]),
    Case("MultiLabelMarginLoss none", lambda nn: nn.MultiLabelMarginLoss(reduction="none"),
         [(3, 4), whole([[3, 0, -1, 1], [1, -1, 2, 2], [1, 2, -1, 0]])]),
    Case("MultiLabelSoftMarginLoss weighted", lambda nn: nn.MultiLabelSoftMarginLoss(
        weight=tensor(nn, WEIGHTS), reduction="none"),
        [(2, 3), np.array([[0, 1, 1]] * 2, np.float32)], without_gradient=(1,)),
    Case("TripletMarginWithDistanceLoss plain", lambda nn: nn.TripletMarginWithDistanceLoss(
        margin=2.0, reduction="sum"), [(4, 3), (4, 3), (4, 3)]),
    Case("weight_norm of everything", lambda nn: nn.utils.parametrizations.weight_norm(
        nn.Conv2d(2, 3, 2), dim=1), [(2, 2, 4, 4)]),
    Case("spectral_norm in use", lambda nn: nn.utils.parametrizations.spectral_norm(
        nn.ConvTranspose1d(2, 3, 2)), [(2, 2, 4)], train=False),
]  # fmt: skip
