"""What a user can do wrong with layers: one clear error each, which names the layer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, DTypeError, FulguriteError, ShapeError
from tests.functional.helpers import raises

SHAPES: list[tuple[Callable[[], Any], list[tuple[int, ...]], str]] = [
    (lambda: nn.Linear(3, 2), [(2, 4)], "Linear(in_features=3, out_features=2, bias=True) takes"),
    (lambda: nn.Linear(3, 2), [()], "takes (..., 3), got ()"),
    (lambda: nn.Bilinear(3, 2, 1), [(2, 3), (3, 2)], "takes (..., 3) and (..., 2), got (2, 3)"),
    (lambda: nn.Unflatten(1, (2, 3)), [(2, 5)], "takes a dimension 1 of size 6, got (2, 5)"),
    (lambda: nn.Conv1d(3, 2, 1), [(1, 2, 4)], "takes (batch, 3, length)"),
    (lambda: nn.Conv2d(3, 2, 1), [(1, 2, 4, 4)], "takes (batch, 3, height, width)"),
    (lambda: nn.Conv2d(3, 2, 1), [(3, 4)], "the batch may be left out, got (3, 4)"),
    (lambda: nn.Conv3d(3, 2, 1), [(3, 4, 4)], "takes (batch, 3, depth, height, width)"),
    (lambda: nn.ConvTranspose2d(3, 2, 1), [(1, 2, 4, 4)], "takes (batch, 3, height, width)"),
    (lambda: nn.BatchNorm1d(3), [(2, 4)], "takes (batch, 3) or (batch, 3, length), got (2, 4)"),
    (lambda: nn.BatchNorm2d(3), [(2, 3)], "takes (batch, 3, height, width), got (2, 3)"),
    (lambda: nn.BatchNorm3d(3), [(2, 3, 1)], "takes (batch, 3, depth, height, width)"),
    (lambda: nn.BatchNorm1d(3), [(1, 3)], "more than one number for each channel in training"),
    (lambda: nn.InstanceNorm1d(3), [(2, 4, 5)], "takes (batch, 3, length) or (3, length)"),
    (lambda: nn.InstanceNorm2d(3), [(2, 3, 1, 1)], "more than one number for each channel"),
    (lambda: nn.LayerNorm((2, 3)), [(3, 2)], "takes (..., 2, 3), got (3, 2)"),
    (lambda: nn.RMSNorm(4), [(3,)], "RMSNorm((4,), eps=None, elementwise_affine=True) takes"),
    (lambda: nn.GroupNorm(2, 4), [(1, 6)], "takes (batch, 4, ...), got (1, 6)"),
    (lambda: nn.PReLU(3), [(1, 4)], "takes (batch, 3, ...), got (1, 4)"),
    (lambda: nn.Softmax2d(), [(1, 4)], "Softmax2d() takes (batch, channels, height, width)"),
    (lambda: nn.MaxPool2d(2), [(4, 4)], "takes (batch, channels, height, width)"),
    (lambda: nn.AvgPool1d(2), [(4,)], "takes (batch, channels, length)"),
    (lambda: nn.AdaptiveAvgPool3d(2), [(4, 4)], "takes (batch, channels, depth, height, width)"),
    (lambda: nn.ReflectionPad1d(3), [(2, 3)], "takes more space than it reflects, got (2, 3)"),
    (lambda: nn.ZeroPad2d(3), [(2, 3)], "takes 4 dimensions, the batch may be left out"),
    (lambda: nn.LSTM(3, 2), [(5, 1, 4)], "LSTM(3, 2) takes (length, batch, 3)"),
    (lambda: nn.GRU(3, 2, batch_first=True), [(5, 1, 4)], "takes (batch, length, 3)"),
    (lambda: nn.GRU(3, 2), [(5, 1, 3), (2, 1, 2)], "takes a first state of shape (1, 1, 2)"),
    (lambda: nn.RNNCell(3, 2), [(5, 4)], "RNNCell(3, 2) takes (batch, 3)"),
    (lambda: nn.GRUCell(3, 2), [(5, 3), (4, 2)], "takes a state of shape (5, 2), got (4, 2)"),
    (lambda: nn.PixelShuffle(2), [(3, 2, 2)], "pixel_shuffle by 2 of shape (3, 2, 2)"),
    (lambda: nn.PixelUnshuffle(2), [(3, 2, 3)], "pixel_unshuffle by 2 of shape (3, 2, 3)"),
    (lambda: nn.Upsample(3, mode="bilinear"), [(1, 1, 4)], "bilinear interpolation of shape"),
    (lambda: nn.L1Loss(), [(2,), (3,)], "predictions of shape (2,) for targets of shape (3,)"),
    (lambda: nn.GLU(), [(3,)], "has no two halves"),
]


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_a_wrong_shape_says_which_layer_what_it_takes_and_what_came(place: int) -> None:
    make, shapes, text = SHAPES[place]
    layer = make()
    with pytest.raises(ShapeError) as caught:
        layer(*[fg.ones(shape) for shape in shapes])
    assert text in str(caught.value)
    assert caught.value.hint and __file__ in str(caught.value)


SETTINGS: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.Linear(-1, 2), "in_features is -1"),
    (lambda: nn.Linear(2.5, 2), "in_features is 2.5"),  # type: ignore[arg-type]
    (lambda: nn.Embedding(4, 2, padding_idx=4), "padding_idx is 4"),
    (lambda: nn.Embedding.from_pretrained(fg.ones(3)), "embeddings of shape (3,)"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), "3 channels to 4 in 2 groups"),
    (lambda: nn.Conv2d(3, 4, 0), "kernel_size is 0"),
    (lambda: nn.Conv2d(3, 4, (1, 2, 3)), "kernel_size is (1, 2, 3)"),
    (lambda: nn.Conv2d(3, 4, 3, padding="half"), "padding is 'half'"),
    (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), 'padding "same" with a stride'),
    (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), "padding_mode is 'mirror'"),
    (lambda: nn.GroupNorm(3, 4), "4 channels in 3 groups"),
    (lambda: nn.LayerNorm(()), "normalized_shape is empty"),
    (lambda: nn.RNN(3, 4, nonlinearity="sin"), "nonlinearity is 'sin'"),
    (lambda: nn.LSTM(3, 4, dropout=2.0), "dropout is 2.0"),
    (lambda: nn.LSTM(3, 4, proj_size=4), "proj_size is 4"),
    (lambda: nn.CrossEntropyLoss(reduction="average"), "reduction is 'average'"),
    (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4), 0), "num_layers is 0"),
]


@pytest.mark.parametrize("place", range(len(SETTINGS)))
def test_wrong_settings_are_errors_when_a_layer_is_made(place: int) -> None:
    make, text = SETTINGS[place]
    with pytest.raises(ArgumentError) as caught:
        make()
    assert text in str(caught.value) and caught.value.hint


def test_wrong_kinds_of_input() -> None:
    with raises(DTypeError, "looks up whole numbers, not float32"):
        nn.Embedding(3, 2)(fg.ones(2))
    with raises(ArgumentError, "output_size"):
        nn.ConvTranspose1d(1, 1, 2, 2)(fg.ones((1, 1, 3)), output_size=[9])
    with pytest.raises(FulguriteError):
        nn.Linear(2, 1)(None)  # type: ignore[arg-type]
    with pytest.raises(FulguriteError):
        nn.Linear(2, 1)("text")
    with raises(DTypeError, "classes are whole numbers"):
        nn.NLLLoss()(fg.ones((2, 3)), fg.ones(2))


def test_arrays_lists_and_whole_numbers_are_taken() -> None:
    layer = nn.Linear(2, 1)
    want = layer(fg.Tensor([[1.0, 2.0]])).item()
    assert layer(np.array([[1.0, 2.0]], np.float32)).item() == want
    assert layer([[1.0, 2.0]]).item() == want
    assert layer(fg.Tensor([[1, 2]])).item() == want
    assert nn.Embedding(4, 2)([1, 2]).shape == (2, 2)
