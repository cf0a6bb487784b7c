"""One step of the recurrent layers: as functions for `recurrent.py`, and as layers of their own.

In: what x contributes (its product with the input weights), the state, and the weights of the
state. Out: the next state. A state is a tuple: (h,), for an LSTM (h, c). Gates come in the order of
torch: i, f, g, o for an LSTM, r, z, n for a GRU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..functional.array.creation import zeros
from ..functional.array.movement import chunk
from ..functional.common import floating
from ..functional.math.special import tanh
from ..functional.nn.activation import relu, sigmoid
from ..tensor import Tensor, TensorLike
from . import init
from .linear import linear, whole
from .module import Module

State = tuple[Tensor, ...]


# --- one step ------------------------------------------------------------------------------------


def rnn_step(
    given: Tensor, state: State, weight: Tensor, bias: Tensor | None, activate: Any
) -> State:
    """h' = activate(given + h @ weight.T + bias)."""
    return (activate(given + linear(state[0], weight, bias)),)


def lstm_step(
    given: Tensor, state: State, weight: Tensor, bias: Tensor | None, project: Tensor | None = None
) -> State:
    """The gates i, f, g, o, then c' = f * c + i * g and h' = o * tanh(c')."""
    hidden, cell = state
    i, f, g, o = chunk(given + linear(hidden, weight, bias), 4, -1)
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    hidden = sigmoid(o) * tanh(cell)
    return (hidden if project is None else linear(hidden, project)), cell


def gru_step(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    """The gates r, z and the candidate n, then h' = (1 - z) * n + z * h."""
    (hidden,) = state
    from_input, from_state = chunk(given, 3, -1), chunk(linear(hidden, weight, bias), 3, -1)
    r, z = (sigmoid(a + b) for a, b in zip(from_input[:2], from_state[:2], strict=True))
    candidate = tanh(from_input[2] + r * from_state[2])
    return (candidate + z * (hidden - candidate),)


def activation_of(nonlinearity: str) -> Any:
    """The function of a name, or an error."""
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f"nonlinearity is {nonlinearity!r}", 'use "tanh" or "relu"')
    return tanh if nonlinearity == "tanh" else relu


# --- cells ---------------------------------------------------------------------------------------


class _Cell(Module):
    """One step as a layer."""

    gates: ClassVar[int]
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.input_size = whole(input_size, "input_size")
        self.hidden_size = whole(hidden_size, "hidden_size")
        self.bias = bool(bias)
        rows, bound = self.gates * hidden_size, init.one_over_root(hidden_size)
        self.weight_ih = init.uniform((rows, input_size), bound, dtype, device)
        self.weight_hh = init.uniform((rows, hidden_size), bound, dtype, device)
        for name in ("bias_ih", "bias_hh"):
            made = init.uniform((rows,), bound, dtype, device) if bias else None
            self.register_parameter(name, made)

    def _inputs(self, x: TensorLike, state: Any, count: int) -> tuple[Tensor, State]:
        tensor = floating(x)
        if tensor.ndim not in (1, 2) or tensor.node.shape[-1] != self.input_size:
            self.misfit(f"(batch, {self.input_size}), the batch may be left out", tensor)
        shape = (*tensor.shape[:-1], self.hidden_size)
        if state is None:
            return tensor, tuple([zeros(shape, tensor.dtype, tensor.device)] * count)
        given = tuple(state) if count > 1 else (state,)
        for part in given:
            if part.shape != shape:
                self.misfit(f"a state of shape {shape}", part)
        return tensor, given

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """h' = tanh(x @ weight_ih.T + h @ weight_hh.T + biases).

    >>> fg.nn.RNNCell(3, 4)(fg.ones((2, 3))).shape
    (2, 4)
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity
        activation_of(nonlinearity)

    def forward(self, x: TensorLike, hx: Tensor | None = None) -> Tensor:
        """The next state."""
        tensor, state = self._inputs(x, hx, 1)
        given = linear(tensor, self.weight_ih, self.bias_ih)
        activate = activation_of(self.nonlinearity)
        return rnn_step(given, state, self.weight_hh, self.bias_hh, activate)[0]


class LSTMCell(_Cell):
    """One step of an LSTM: (h, c) to (h', c').

    >>> h, c = fg.nn.LSTMCell(3, 4)(fg.ones((2, 3)))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4

    def forward(self, x: TensorLike, hx: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next state and cell."""
        tensor, state = self._inputs(x, hx, 2)
        given = linear(tensor, self.weight_ih, self.bias_ih)
        hidden, cell = lstm_step(given, state, self.weight_hh, self.bias_hh)
        return hidden, cell


class GRUCell(_Cell):
    """One step of a GRU.

    >>> fg.nn.GRUCell(3, 4)(fg.ones((2, 3))).shape
    (2, 4)
    """

    gates = 3

    def forward(self, x: TensorLike, hx: Tensor | None = None) -> Tensor:
        """The next state."""
        tensor, state = self._inputs(x, hx, 1)
        given = linear(tensor, self.weight_ih, self.bias_ih)
        return gru_step(given, state, self.weight_hh, self.bias_hh)[0]
