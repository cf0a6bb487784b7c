"""The transformer of encoder and decoder layers, as torch builds it.

In: sequences (length, batch, size), or (batch, length, size) with `batch_first`, and masks. Out:
sequences of the same shape. `norm_first` normalises before each part, else after it. Names,
first values and defaults are torch's; encoders and decoders hold copies of the layer given.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..functional.array.creation import arange
from ..functional.array.movement import expand_dims
from ..functional.math.elementwise import where
from ..functional.nn.activation import gelu, relu
from ..tensor import Tensor
from . import init
from .attention import MultiheadAttention
from .containers import ModuleList
from .dropout import Dropout
from .linear import Linear, whole
from .module import Module
from .normalization import LayerNorm

Activation = str | Callable[[Tensor], Tensor]


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if isinstance(activation, str):
        known = {"relu": relu, "gelu": gelu}
        if activation not in known:
            raise ArgumentError(f"activation is {activation!r}", 'use "relu", "gelu" or a function')
        return known[activation]
    return activation


class _Layer(Module):
    """What encoder and decoder layers share: two linear maps with an activation between."""

    self_attn: MultiheadAttention
    activation: Any

    def _set_up(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: Activation,
        layer_norm_eps: float,
        batch_first: bool,
        norm_first: bool,
        bias: bool,
        device: str | None,
        dtype: object,
        attentions: tuple[str, ...],
    ) -> None:
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        for name in attentions:
            heads = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, **place
            )
            setattr(self, name, heads)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **place)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **place)
        self.norm_first = norm_first
        for number in range(1, len(attentions) + 2):
            setattr(self, f"norm{number}", LayerNorm(d_model, layer_norm_eps, bias=bias, **place))
        for number in range(1, len(attentions) + 2):
            setattr(self, f"dropout{number}", Dropout(dropout))
        self.activation = _activation(activation)

    def _attend(
        self,
        name: str,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        attention: MultiheadAttention = vars(self)[name]
        settings: dict[str, Any] = {"attn_mask": mask, "is_causal": is_causal}
        out: Tensor
        out, _ = attention(x, memory, memory, padding, need_weights=False, **settings)
        return out

    def _fed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return out

    def _around(self, x: Tensor, number: int, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x plus a part of it, normalised before or after."""
        norm, drop = vars(self)[f"norm{number}"], vars(self)[f"dropout{number}"]
        found: Tensor
        if self.norm_first:
            found = x + drop(part(norm(x)))
        else:
            found = norm(x + drop(part(x)))
        return found


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then two linear maps, each added to its input.

    >>> layer = fg.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> layer(fg.rand(2, 5, 8)).shape
    (2, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self._set_up(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
            batch_first, norm_first, bias, device, dtype, ("self_attn",),
        )  # fmt: skip

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The sequence after the layer."""

        def attend(x: Tensor) -> Tensor:
            return self._attend("self_attn", x, x, src_mask, src_key_padding_mask, is_causal)

        return self._around(self._around(src, 1, attend), 2, self._fed_forward)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, then to a memory, then two linear maps.

    >>> layer = fg.nn.TransformerDecoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> layer(fg.rand(2, 3, 8), fg.rand(2, 5, 8)).shape
    (2, 3, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self._set_up(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
            batch_first, norm_first, bias, device, dtype, ("self_attn", "multihead_attn"),
        )  # fmt: skip

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The sequence after the layer."""

        def attend(x: Tensor) -> Tensor:
            return self._attend("self_attn", x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

        def look(x: Tensor) -> Tensor:
            masks = (memory_mask, memory_key_padding_mask, memory_is_causal)
            return self._attend("multihead_attn", x, memory, *masks)

        x = self._around(self._around(tgt, 1, attend), 2, look)
        return self._around(x, 3, self._fed_forward)


class TransformerEncoder(Module):
    """Copies of an encoder layer, one after the other, and a norm.

    >>> layer = fg.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
    >>> fg.nn.TransformerEncoder(layer, num_layers=2)(fg.rand(5, 2, 8)).shape
    (5, 2, 8)
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
    ) -> None:
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """The sequence after all layers."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Copies of a decoder layer, one after the other, and a norm.

    >>> layer = fg.nn.TransformerDecoderLayer(8, nhead=2, dim_feedforward=16)
    >>> fg.nn.TransformerDecoder(layer, num_layers=2)(fg.rand(3, 2, 8), fg.rand(5, 2, 8)).shape
    (3, 2, 8)
    """

    def __init__(
        self,
        decoder_layer: TransformerDecoderLayer,
        num_layers: int,
        norm: Module | None = None,
    ) -> None:
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The sequence after all layers."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(whole(count, "num_layers"))])


class Transformer(Module):
    """An encoder and a decoder that looks at what the encoder made.

    >>> net = fg.nn.Transformer(8, 2, 1, 1, dim_feedforward=16, batch_first=True)
    >>> net(fg.rand(2, 5, 8), fg.rand(2, 3, 8)).shape
    (2, 3, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        settings: tuple[Any, ...] = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
            batch_first, norm_first, bias, device, dtype,
        )  # fmt: skip
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*settings),
            num_encoder_layers,
            LayerNorm(d_model, layer_norm_eps, bias=bias, **place),
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*settings),
            num_decoder_layers,
            LayerNorm(d_model, layer_norm_eps, bias=bias, **place),
        )
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """What the decoder makes of the target and the encoded source."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        out: Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """0 where a place may look (itself and before), -inf elsewhere."""
        places = arange(whole(sz, "sz"))
        return where(expand_dims(places, 0) > expand_dims(places, 1), -math.inf, 0.0)
