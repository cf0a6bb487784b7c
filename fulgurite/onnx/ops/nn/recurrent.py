"""Recurrent layers: RNN, GRU and LSTM, forward, backward or both.

In: a `Call`. Out: all states, the last one (and the last cell). The products with the inputs of
all steps are one matrix product; the steps are one `fg.scan`, or unrolled where there are few.
Rows that are shorter than others keep their state from their last step on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

import fulgurite as fg

from ....tensor import Tensor
from ...errors import ModelError
from ...table import Call, operator

UNROLLED = 16  # as many steps are cheaper one after the other
FEW_ROWS = 4  # times weights: these stream by faster along their columns
NARROW = 16  # a single row so short: many steps of it make one kernel that has no native form
Function = Callable[[Tensor], Tensor]


class Product(Protocol):
    """What multiplies by the weights of an input's place and a direction, made once."""

    def __call__(self, place: int, direction: int) -> Function: ...


ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: fg.relu(x),
    "tanh": lambda x, a, b: fg.tanh(x),
    "sigmoid": lambda x, a, b: fg.sigmoid(x),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, b: fg.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: fg.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: fg.tanh(x * b) * a,
    "hardsigmoid": lambda x, a, b: fg.clip(x * a + b, 0, 1),
    "elu": lambda x, a, b: fg.elu(x, a),
    "softsign": lambda x, a, b: x / (fg.abs(x) + 1),
    "softplus": lambda x, a, b: fg.softplus(x),
}
DEFAULTS = {"leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "hardsigmoid": (0.2, 0.5),
            "elu": (1.0, 0.0), "affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0)}  # fmt: skip


def _functions(op: Call, default: list[str], directions: int) -> list[list[Function]]:
    """The activations of each direction."""
    names = [n.lower() for n in op.texts_of("activations") or default * directions]
    alphas, betas = (
        list(op.floats_of("activation_alpha", [])),
        list(op.floats_of("activation_beta", [])),
    )
    clip = op.float("clip", 0.0)
    made: list[Function] = []
    for name in names:
        if name not in ACTIVATIONS:
            raise op.unsupported(f"activation {name!r}")
        alpha, beta = DEFAULTS.get(name, (0.0, 0.0))
        if name in DEFAULTS:
            alpha = alphas.pop(0) if alphas else alpha
            if name in ("affine", "scaledtanh", "hardsigmoid"):
                beta = betas.pop(0) if betas else beta
        made.append(_clipped(ACTIVATIONS[name], alpha, beta, clip))
    each = len(default)
    if len(made) < each * directions:
        raise ModelError(f"{len(made)} activations", f"{each * directions} are needed")
    return [made[d * each : (d + 1) * each] for d in range(directions)]


def _clipped(work: Any, alpha: float, beta: float, clip: float) -> Function:
    def apply(x: Tensor) -> Tensor:
        bounded = fg.clip(x, -clip, clip) if clip else x
        found: Tensor = work(bounded, alpha, beta)
        return found

    return apply


def _bounded(step: Any, counts: Tensor) -> Any:
    """A step of rows and their places that changes nothing where a sequence has ended."""

    def work(carry: Any, row: Any) -> Any:
        after, shown = step(carry, row[0])
        live = row[1] < counts
        kept = tuple(fg.where(live, a, b) for a, b in zip(after, carry, strict=True))
        return kept, fg.where(live, shown, 0)

    return work


class Layer:
    """What the three layers share: inputs in order of time, weights and states by direction."""

    def __init__(self, op: Call, gates: int, default: list[str]) -> None:
        self.op = op
        self.batch_first = bool(op.int("layout"))
        x = op[0]
        self.x = fg.swapaxes(x, 0, 1) if self.batch_first else x
        self.length, self.batch = self.x.shape[0], self.x.shape[1]
        direction = op.text("direction", "forward")
        self.directions = op[1].shape[0]
        self.backward = [direction == "reverse", True][: self.directions]
        if direction == "bidirectional":
            self.backward = [False, True]
        if len(self.backward) != self.directions:
            raise ModelError(f"{self.directions} weights for direction {direction!r}", "")
        self.size = op[2].shape[-1]
        self.gates = gates
        self.functions = _functions(op, default, self.directions)

    def state(self, place: int, direction: int) -> Tensor:
        """Where a direction begins."""
        if not self.op.has(place):
            return fg.zeros((self.batch, self.size), self.x.dtype)
        given = self.op[place]
        return given[:, direction] if self.batch_first else given[direction]

    def bias(self, direction: int) -> tuple[Tensor | None, Tensor | None]:
        """The biases of the inputs and of the states."""
        if not self.op.has(3):
            return None, None
        whole = self.op[3][direction]
        half = self.gates * self.size
        return whole[:half], whole[half:]

    def run(self, direction: int, start: Any, rows: Tensor, step: Any) -> tuple[Any, Tensor]:
        """The last carry and all states of a direction."""
        backward = self.backward[direction]
        lengths = self.op.maybe(4)
        every: Any = rows
        work = step
        if lengths is not None:
            every = (rows, fg.arange(self.length))
            work = _bounded(step, fg.reshape(lengths.astype(fg.int32), (-1, 1)))
        most = 2 if self.batch == 1 and self.size <= NARROW else UNROLLED
        if isinstance(self.length, int) and self.length <= most:
            carry, shown = start, [None] * self.length
            order = range(self.length)
            for i in reversed(order) if backward else order:
                row = rows[i] if lengths is None else (rows[i], i)
                carry, shown[i] = work(tuple(part.contiguous() for part in carry), row)
            return carry, fg.stack(shown)  # type: ignore[arg-type]
        found: tuple[Any, Tensor] = fg.scan(work, start, every, reverse=backward)
        return found

    def results(self, outputs: list[Tensor], *lasts: list[Tensor]) -> tuple[Tensor, ...]:
        """All states and the last ones, in the layout that is asked for."""
        whole = fg.stack(outputs, axis=1)
        final = [fg.stack(parts, axis=0) for parts in lasts]
        if self.batch_first:
            return (
                fg.permute_dims(whole, (2, 0, 1, 3)),
                *[fg.swapaxes(part, 0, 1) for part in final],
            )
        return (whole, *final)

    def transposed(self, place: int, direction: int, rows: Any) -> Tensor:
        """The transposed weights of a direction: constant ones that few rows are multiplied by are
        transposed in memory, once and not for each step."""
        weight = fg.matrix_transpose(self.op[place][direction])
        known = self.op.constant(place) if isinstance(rows, int) and rows <= FEW_ROWS else None
        if known is None or known.dtype != weight.dtype.numpy:
            return weight
        return fg.Tensor(np.ascontiguousarray(known[direction].T))

    def products(
        self, direction: int, bias: Tensor | None, product: Product | None = None
    ) -> Tensor:
        """What the inputs of all steps give to every gate."""
        if product is None:
            weight = self.transposed(1, direction, self.length * self.batch)
            found: Tensor = fg.matmul(self.x, weight)
        else:
            found = product(1, direction)(self.x)
        return found if bias is None else found + bias


def _times(weight: Tensor, x: Tensor) -> Tensor:
    return fg.matmul(x, weight)


@operator("RNN")
def rnn(op: Call) -> tuple[Tensor, ...]:
    """h = f(x W + h R + b)."""
    layer = Layer(op, 1, ["Tanh"])
    outputs, lasts = [], []
    for d in range(layer.directions):
        given, own = layer.bias(d)
        bias = None if given is None or own is None else given + own
        recurrent = layer.transposed(2, d, layer.batch)
        (f,) = layer.functions[d]

        def step(carry: Any, row: Tensor, r: Tensor = recurrent, f: Function = f) -> Any:
            now = f(row + fg.matmul(carry[0], r))
            return (now,), now

        last, states = layer.run(d, (layer.state(5, d),), layer.products(d, bias), step)
        outputs.append(states)
        lasts.append(last[0])
    return layer.results(outputs, lasts)


@operator("GRU")
def gru(op: Call) -> tuple[Tensor, ...]:
    """Gates for update and reset."""
    layer = Layer(op, 3, ["Sigmoid", "Tanh"])
    n = layer.size
    linear = bool(op.int("linear_before_reset"))
    outputs, lasts = [], []
    for d in range(layer.directions):
        given, own = layer.bias(d)
        recurrent = layer.transposed(2, d, layer.batch)
        f, g = layer.functions[d]
        bias, own_hidden = None, None
        if given is not None and own is not None:
            own_hidden = own[2 * n :]
            zeros = fg.zeros((n,), own.dtype)
            bias = given + (fg.concat([own[: 2 * n], zeros if linear else own_hidden], axis=0))

        def step(
            carry: Any, row: Tensor, r: Tensor = recurrent, f: Function = f, g: Function = g,
            hidden_bias: Tensor | None = own_hidden,
        ) -> Any:  # fmt: skip
            h = carry[0]
            gates = f(row[:, : 2 * n] + fg.matmul(h, r[:, : 2 * n]))
            z, reset = gates[:, :n], gates[:, n:]
            if linear:
                inner = fg.matmul(h, r[:, 2 * n :])
                inner = inner if hidden_bias is None else inner + hidden_bias
                new = g(row[:, 2 * n :] + reset * inner)
            else:
                new = g(row[:, 2 * n :] + fg.matmul(reset * h, r[:, 2 * n :]))
            now = (1 - z) * new + z * h
            return (now,), now

        last, states = layer.run(d, (layer.state(5, d),), layer.products(d, bias), step)
        outputs.append(states)
        lasts.append(last[0])
    return layer.results(outputs, lasts)


@operator("LSTM")
def lstm(op: Call) -> tuple[Tensor, ...]:
    """The plain one."""
    return lstm_by(op)


def lstm_by(op: Call, product: Product | None = None) -> tuple[Tensor, ...]:
    """Gates for input, output and forgetting, and a cell; peepholes if given. `product` multiplies
    by weights that it knows by their place."""
    layer = Layer(op, 4, ["Sigmoid", "Tanh", "Tanh"])
    n = layer.size
    coupled = bool(op.int("input_forget"))
    outputs, lasts, cells = [], [], []
    for d in range(layer.directions):
        given, own = layer.bias(d)
        bias = None if given is None or own is None else given + own
        if product is None:
            recurrent: Function = partial(_times, layer.transposed(2, d, layer.batch))
        else:
            recurrent = product(2, d)
        f, g, h = layer.functions[d]
        peep = op[7][d] if op.has(7) else None

        def step(
            carry: Any, row: Tensor, times: Function = recurrent, f: Function = f,
            g: Function = g, h: Function = h, peep: Tensor | None = peep,
        ) -> Any:  # fmt: skip
            state, cell = carry
            gates = row + times(state)
            i, o, forget, c = (gates[:, k * n : (k + 1) * n] for k in range(4))
            if peep is not None:
                i, forget = i + peep[:n] * cell, forget + peep[2 * n :] * cell
            i = f(i)
            kept = 1 - i if coupled else f(forget)
            new_cell = kept * cell + i * g(c)
            if peep is not None:
                o = o + peep[n : 2 * n] * new_cell
            now = f(o) * h(new_cell)
            return (now, new_cell), now

        start = (layer.state(5, d), layer.state(6, d))
        last, states = layer.run(d, start, layer.products(d, bias, product), step)
        outputs.append(states)
        lasts.append(last[0])
        cells.append(last[1])
    return layer.results(outputs, lasts, cells)
