"""Recurrent layers of 100 steps beside torch and onnxruntime: forward, and with gradients.

Run `python bench/recurrent.py [--peers PYTHON] [--only "LSTM 1 x"] [--threads 1]`, where PYTHON has
torch, onnx and onnxruntime. A work is named by its cell, rows x inputs to hidden; `both` has two
directions and two layers, `gradients` those of all weights. Ours is `fg.nn` under `fg.jit`; torch's
layers are eager, as its users call them; onnxruntime runs the operator of ONNX. All have the same
weights, and outputs are compared with NumPy's in float64.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Load, Work, run_works

STEPS = 100
GATES = {"LSTM": 4, "GRU": 3}
TOLERANCE = 2e-5  # outputs are within -1 and 1


@dataclass(frozen=True)
class Layer:
    """A recurrent network and its rows."""

    cell: str
    rows: int
    inputs: int
    hidden: int
    both: bool = False  # two directions and two layers
    train: bool = False  # the gradient of the mean square of outputs, too

    @property
    def title(self) -> str:
        more = ", both" * self.both + ", gradients" * self.train
        return f"{self.cell} {self.rows} x {self.inputs} to {self.hidden}{more}"


SIZES = ((1, 64, 64), (1, 128, 256), (1, 256, 512), (8, 128, 128), (32, 128, 256))
LAYERS = {
    layer.title: layer
    for cell in GATES
    for layer in (
        *[Layer(cell, *size) for size in SIZES],
        Layer(cell, 1, 128, 128, both=True),
        Layer(cell, 16, 64, 128, train=True),
    )
}


def parameters(layer: Layer) -> list[dict[str, Any]]:
    """Weights by torch's names without their ends, for each layer and direction."""
    import numpy as np

    rng, found = np.random.default_rng(0), []
    gates, ways = GATES[layer.cell] * layer.hidden, 1 + layer.both
    for depth in range(1 + layer.both):
        inputs = layer.inputs if depth == 0 else ways * layer.hidden
        for _ in range(ways):
            shapes = {"weight_ih": (gates, inputs), "weight_hh": (gates, layer.hidden)}
            shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}  # type: ignore[dict-item]
            bound = layer.hidden**-0.5
            found.append({
                name: rng.uniform(-bound, bound, shape).astype("float32")
                for name, shape in shapes.items()
            })  # fmt: skip
    return found


def state(layer: Layer) -> dict[str, Any]:
    """The same by torch's whole names, which are ours."""
    count = 1 + layer.both
    ends = [f"_l{depth}{way}" for depth in range(count) for way in ("", "_reverse")[:count]]
    pairs = zip(ends, parameters(layer), strict=True)
    return {name + end: value for end, each in pairs for name, value in each.items()}


def rows_of(layer: Layer) -> Any:
    """What goes in: steps, rows, inputs."""
    import numpy as np

    shape = (STEPS, layer.rows, layer.inputs)
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def expected(layer: Layer) -> Any:
    """The outputs, by NumPy in float64."""
    import numpy as np

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def run(x: Any, weights: dict[str, Any]) -> Any:
        w = {name: value.astype("float64") for name, value in weights.items()}
        h = c = np.zeros((layer.rows, layer.hidden))
        found = []
        for step in x:
            a = step @ w["weight_ih"].T + w["bias_ih"]
            b = h @ w["weight_hh"].T + w["bias_hh"]
            if layer.cell == "LSTM":
                i, f, g, o = np.split(a + b, 4, -1)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            else:
                (r, z, n), (hr, hz, hn) = np.split(a, 3, -1), np.split(b, 3, -1)
                r, z = sigmoid(r + hr), sigmoid(z + hz)
                h = (1 - z) * np.tanh(n + r * hn) + z * h
            found.append(h)
        return np.stack(found)

    x, weights = rows_of(layer).astype("float64"), iter(parameters(layer))
    for _ in range(1 + layer.both):
        ahead = run(x, next(weights))
        back = [run(x[::-1], next(weights))[::-1]] if layer.both else []
        x = np.concatenate([ahead, *back], -1)
    return x


def checked(layer: Layer, result: Any) -> None:
    """An error if outputs are wrong."""
    import numpy as np

    off = float(np.abs(np.asarray(result) - expected(layer)).max())
    assert off < TOLERANCE, f"off by {off:.1e}"


def ours(title: str) -> Work:
    """`fg.nn`'s layer, captured."""
    import fulgurite as fg

    layer = LAYERS[title]
    net = getattr(fg.nn, layer.cell)(
        layer.inputs, layer.hidden, num_layers=1 + layer.both, bidirectional=layer.both
    )
    net.load_state_dict({name: fg.Tensor(value) for name, value in state(layer).items()})
    x = fg.Tensor(rows_of(layer)).realize()

    def forward(x: Any) -> tuple[Any, ...]:
        with fg.no_grad():
            return (net(x)[0],)

    def gradients(x: Any) -> tuple[Any, ...]:
        net.zero_grad()
        out = net(x)[0]
        (out * out).mean().backward()
        return out.detach(), *[weight.grad for weight in net.parameters()]

    run = fg.jit(gradients if layer.train else forward)

    def call() -> Any:
        out, *_ = fg.realize(*run(x))
        return out

    return Work(call, lambda out: checked(layer, out.numpy()))


def torch_layer(title: str) -> Work:
    """torch's layer, eager."""
    import torch

    layer = LAYERS[title]
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    net = getattr(torch.nn, layer.cell)(
        layer.inputs, layer.hidden, num_layers=1 + layer.both, bidirectional=layer.both
    )
    net.load_state_dict({name: torch.from_numpy(value) for name, value in state(layer).items()})
    x = torch.from_numpy(rows_of(layer))

    def call() -> Any:
        with torch.set_grad_enabled(layer.train):
            out = net(x)[0]
            if layer.train:
                net.zero_grad()
                (out * out).mean().backward()
            return out.detach()

    return Work(call, lambda out: checked(layer, out.numpy()))


def onnx_session(title: str) -> Work:
    """The operator of ONNX in onnxruntime, which has no gradients."""
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    layer = LAYERS[title]
    if layer.train:
        raise NotImplementedError("inference only")
    order = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}[
        layer.cell
    ]  # of gates: ONNX's places in torch's

    def gates(value: Any) -> Any:
        parts = np.split(value, GATES[layer.cell])
        return np.concatenate([parts[place] for place in order])

    known, nodes, given = parameters(layer), [], []
    ways, name = 1 + layer.both, "x0"
    for depth in range(ways):
        each = known[depth * ways : (depth + 1) * ways]
        both = ("bias_ih", "bias_hh")
        inputs = {
            "w": np.stack([gates(w["weight_ih"]) for w in each]),
            "r": np.stack([gates(w["weight_hh"]) for w in each]),
            "b": np.stack([np.concatenate([gates(w[part]) for part in both]) for w in each]),
        }
        given += [numpy_helper.from_array(value, f"{n}{depth}") for n, value in inputs.items()]
        more = {"linear_before_reset": 1} if layer.cell == "GRU" else {}
        nodes.append(helper.make_node(
            layer.cell, [name, *[f"{n}{depth}" for n in inputs]], [f"y{depth}"],
            hidden_size=layer.hidden, direction="bidirectional" if layer.both else "forward",
            **more,
        ))  # fmt: skip
        # (steps, directions, rows, hidden) -> (steps, rows, directions * hidden)
        nodes.append(helper.make_node("Transpose", [f"y{depth}"], [f"t{depth}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{depth}", "flat"], [f"x{depth + 1}"]))
        name = f"x{depth + 1}"
    flat = np.array([STEPS, layer.rows, ways * layer.hidden])
    x = rows_of(layer)
    graph = helper.make_graph(
        nodes, "recurrent", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, flat.tolist())],
        [*given, numpy_helper.from_array(flat, "flat")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
    session = ort.InferenceSession(model.SerializeToString(), options)
    return Work(lambda: session.run(None, {"x0": x})[0], lambda out: checked(layer, out))


PREPARE: dict[str, Callable[[str], Work]] = {
    "ours": ours, "torch": torch_layer, "onnxruntime": onnx_session,
}  # fmt: skip


def load(system: str) -> Callable[[str], Work]:
    """What prepares works of a system."""
    return PREPARE[system]


if __name__ == "__main__":
    loaders: dict[str, Load] = {name: partial(load, name) for name in PREPARE}
    run_works(
        __doc__, __file__, loaders, {title: title for title in LAYERS}, dict.fromkeys(LAYERS, 1.0)
    )
