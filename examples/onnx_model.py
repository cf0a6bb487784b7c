"""An ONNX model of a few layers: written to a file, read back, and run as one plan.

Run `python examples/onnx_model.py --output model.onnx`; writing needs the `onnx` package, running
does not. Then `fulgurite run model.onnx` times it, and `fulgurite viz model.onnx` shows how it is
compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import fulgurite as fg


def convolutional(channels: int, classes: int, seed: int = 0) -> bytes:
    """The file of a small network: two convolutions with their activations, a mean, a product."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(seed)
    weights = {
        "first": (channels, 3, 3, 3), "second": (2 * channels, channels, 3, 3),
        "last": (2 * channels, classes),
    }  # fmt: skip
    steps = [
        ("Conv", ["picture", "first"], "a", {"pads": [1, 1, 1, 1]}),
        ("Relu", ["a"], "b", {}),
        ("MaxPool", ["b"], "c", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["c", "second"], "d", {"pads": [1, 1, 1, 1]}),
        ("HardSwish", ["d"], "e", {}),
        ("GlobalAveragePool", ["e"], "f", {}),
        ("Flatten", ["f"], "g", {}),
        ("MatMul", ["g", "last"], "h", {}),
        ("Softmax", ["h"], "chances", {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, reads, [write], **more) for op, reads, write, more in steps],
        "network",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("chances", TensorProto.FLOAT, ["batch", classes])],
        [
            numpy_helper.from_array(random.normal(0, 0.1, shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    opset = helper.make_opsetid("", 20)
    written: bytes = helper.make_model(
        graph, opset_imports=[opset], ir_version=9
    ).SerializeToString()
    return written


def main(arguments: Sequence[str] | None = None) -> float:
    """Write a model, run it, and give the largest of its chances."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("model.onnx"))
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args(arguments)

    options.output.write_bytes(convolutional(options.channels, classes=10))
    model = fg.onnx.load(options.output)
    pictures = np.random.default_rng(1).random((options.batch, 3, 32, 32), np.float32)
    chances = model(pictures)["chances"].numpy()
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    print(f"wrote {options.output}; {options.batch} pictures: classes {chances.argmax(axis=1)}")
    return float(chances.max())


if __name__ == "__main__":
    main()
