"""A layer and its batch norm as one layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError
from fulgurite.nn.utils import fuse_conv_bn_eval, fuse_linear_bn_eval
from tests.functional.helpers import raises


def trained(norm: Any) -> Any:
    """A batch norm that has seen something."""
    with fg.no_grad():
        norm.running_mean.assign(fg.rand(*norm.running_mean.shape))
        norm.running_var.assign(fg.rand(*norm.running_var.shape) + 0.5)
    return norm.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transpose", [False, True])
def test_a_fused_convolution_does_what_the_two_did(bias: bool, transpose: bool) -> None:
    kind = nn.ConvTranspose2d if transpose else nn.Conv2d
    conv, norm = kind(3, 4, 3, bias=bias).eval(), trained(nn.BatchNorm2d(4))
    x = fg.rand(2, 3, 5, 5)
    fused = fuse_conv_bn_eval(conv, norm, transpose)
    np.testing.assert_allclose(fused(x).numpy(), norm(conv(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert fused is not conv


def test_a_fused_product_does_what_the_two_did() -> None:
    layer, norm = nn.Linear(3, 4).eval(), trained(nn.BatchNorm1d(4, affine=False))
    x = fg.rand(5, 3)
    fused = fuse_linear_bn_eval(layer, norm)
    np.testing.assert_allclose(fused(x).numpy(), norm(layer(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_layers_in_training_are_not_fused() -> None:
    with raises(ArgumentError, "call eval() on both"):
        fuse_conv_bn_eval(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
