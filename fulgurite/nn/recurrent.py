"""Recurrent layers on `fg.scan`: one step is compiled once, whatever the length.

In: (length, batch, size), or (batch, length, size) with `batch_first`, or without a batch; a first
state or none. Out: the state after every step, and the last states of all layers. What x
contributes to every step is one product before the loop; the loop holds the product with the state
alone. Weights are named and laid out as torch's: `weight_ih_l0`, `weight_hh_l0_reverse`, gates in
the order of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..control import scan
from ..errors import ArgumentError
from ..functional.array.creation import zeros
from ..functional.array.movement import (
    concat,
    expand_dims,
    matrix_transpose,
    squeeze,
    stack,
    swapaxes,
)
from ..functional.common import floating
from ..random import dropout
from ..tensor import Tensor, TensorLike
from . import init
from .cells import State, activation_of, gru_step, lstm_step, rnn_step
from .linear import linear, whole
from .module import Module

MANY_STEPS = 16  # of one row each: they pay for weights that are laid out anew
FEW_WEIGHTS = 1 << 15  # of a state, whose product is computed where the gates are, lanes along both


def _by_columns(weight: Tensor) -> Tensor:
    """The same weight, which memory has column by column, as the lanes of gates want it."""
    return matrix_transpose(matrix_transpose(weight).contiguous())


class _Recurrent(Module):
    """Layers of steps over a sequence, in one or both directions."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.input_size = whole(input_size, "input_size")
        self.hidden_size = whole(hidden_size, "hidden_size")
        self.num_layers = whole(num_layers, "num_layers")
        self.proj_size = whole(proj_size, "proj_size", 0)
        if proj_size and (self.states == 1 or proj_size >= hidden_size):
            raise ArgumentError(
                f"proj_size is {proj_size}", "an LSTM may project to a smaller size"
            )
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"dropout is {dropout}", "a probability is from 0 to 1")
        self.bias, self.batch_first, self.dropout = bool(bias), batch_first, float(dropout)
        self.bidirectional = bool(bidirectional)
        bound = init.one_over_root(hidden_size)
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                for name, shape in self._shapes(layer).items():
                    made = init.uniform(shape, bound, dtype, device)
                    self.register_parameter(f"{name}_{suffix}", made)

    @property
    def _out(self) -> int:
        return self.proj_size or self.hidden_size

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", *([f"l{layer}_reverse"] if self.bidirectional else [])]

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        rows = self.gates * self.hidden_size
        width = self.input_size if layer == 0 else self._out * (1 + self.bidirectional)
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, width), "weight_hh": (rows, self._out)
        }  # fmt: skip
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    def _step(self, given: Tensor, state: State, weights: dict[str, Tensor | None]) -> State:
        raise NotImplementedError

    def _run(self, x: TensorLike, first: Any) -> tuple[Tensor, State]:
        tensor, alone = self._time_major(floating(x))
        starts = self._starts(tensor, first, alone)
        ends: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                tensor = dropout(tensor, self.dropout, self.training)
            parts = []
            for way, suffix in enumerate(self._suffixes(layer)):
                start = tuple([part[len(ends)] for part in starts])
                out, end = self._direction(tensor, start, suffix, way == 1)
                parts.append(out)
                ends.append(end)
            tensor = parts[0] if len(parts) == 1 else concat(parts, -1)
        last = tuple([stack([end[k] for end in ends]) for k in range(self.states)])
        if alone:
            return squeeze(tensor, 1), tuple([squeeze(part, 1) for part in last])
        return (swapaxes(tensor, 0, 1) if self.batch_first else tensor), last

    def _time_major(self, x: Tensor) -> tuple[Tensor, bool]:
        """x as (length, batch, size), and if it came without a batch."""
        if x.ndim not in (2, 3) or x.node.shape[-1] != self.input_size:
            order = "batch, length" if self.batch_first else "length, batch"
            self.misfit(f"({order}, {self.input_size}), the batch may be left out", x)
        if x.ndim == 2:
            return expand_dims(x, 1), True
        return (swapaxes(x, 0, 1) if self.batch_first else x), False

    def _starts(self, x: Tensor, first: Any, alone: bool) -> State:
        """The first states of all layers: (layers * directions, batch, size)."""
        count, batch = self.num_layers * (1 + self.bidirectional), x.shape[1]
        shapes = [(count, batch, n) for n in (self._out, self.hidden_size)[: self.states]]
        if first is None:
            return tuple([zeros(shape, x.dtype, x.device) for shape in shapes])
        given = tuple(first) if self.states > 1 else (first,)
        for part, shape in zip(given, shapes, strict=True):
            wanted = (shape[0], shape[2]) if alone else shape
            if part.shape != wanted:
                self.misfit(f"a first state of shape {wanted}", part)
        return tuple([expand_dims(part, 1) if alone else part for part in given])

    def _direction(
        self, x: Tensor, start: State, suffix: str, backwards: bool
    ) -> tuple[Tensor, State]:
        own = vars(self)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        weights = {name: own.get(f"{name}_{suffix}") for name in names}
        given = linear(x, own[f"weight_ih_{suffix}"], weights["bias_ih"])
        again = own[f"weight_hh_{suffix}"]
        many = not isinstance(x.node.shape[0], int) or len(x) >= MANY_STEPS
        if x.node.shape[1] == 1 and many and again.size <= FEW_WEIGHTS:
            weights["weight_hh"] = _by_columns(again)
        start = tuple([part.astype(given.dtype) for part in start])

        def step(state: State, row: Tensor) -> tuple[State, Tensor]:
            after = self._step(row, state, weights)
            return after, after[0]

        end, out = scan(step, start, given, reverse=backwards)
        return out, end

    def extra_repr(self) -> str:
        """Sizes and what differs from the usual."""
        text = f"{self.input_size}, {self.hidden_size}"
        usual: dict[str, Any] = {
            "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0,
            "bidirectional": False, "proj_size": 0,
        }  # fmt: skip
        return text + "".join(
            [f", {name}={vars(self)[name]}" for name, v in usual.items() if vars(self)[name] != v]
        )


class RNN(_Recurrent):
    """h = tanh(x @ weight_ih.T + h @ weight_hh.T + biases), step by step.

    >>> out, h = fg.nn.RNN(3, 4, num_layers=2)(fg.ones((5, 2, 3)))
    >>> out.shape, h.shape
    ((5, 2, 4), (2, 2, 4))
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(*sizes, 0, device, dtype)
        self.nonlinearity = nonlinearity
        activation_of(nonlinearity)

    def forward(self, x: TensorLike, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states of the last layer after every step, and the last states of all layers."""
        out, last = self._run(x, hx)
        return out, last[0]

    def _step(self, given: Tensor, state: State, weights: dict[str, Any]) -> State:
        activate = activation_of(self.nonlinearity)
        return rnn_step(given, state, weights["weight_hh"], weights["bias_hh"], activate)


class LSTM(_Recurrent):
    """Long short-term memory.

    >>> out, (h, c) = fg.nn.LSTM(3, 4, bidirectional=True, batch_first=True)(fg.ones((2, 5, 3)))
    >>> out.shape, h.shape, c.shape
    ((2, 5, 8), (2, 2, 4), (2, 2, 4))
    """

    gates, states = 4, 2

    def forward(
        self, x: TensorLike, hx: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The states of the last layer after every step, and the last (h, c) of all layers."""
        out, last = self._run(x, hx)
        return out, (last[0], last[1])

    def _step(self, given: Tensor, state: State, weights: dict[str, Any]) -> State:
        settings = (weights["weight_hh"], weights["bias_hh"], weights["weight_hr"])
        return lstm_step(given, state, *settings)


class GRU(_Recurrent):
    """Gated recurrent units.

    >>> out, h = fg.nn.GRU(3, 4)(fg.ones((5, 2, 3)))
    >>> out.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(*sizes, 0, device, dtype)

    def forward(self, x: TensorLike, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states of the last layer after every step, and the last states of all layers."""
        out, last = self._run(x, hx)
        return out, last[0]

    def _step(self, given: Tensor, state: State, weights: dict[str, Any]) -> State:
        return gru_step(given, state, weights["weight_hh"], weights["bias_hh"])
