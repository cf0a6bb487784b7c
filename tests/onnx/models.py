"""Small ONNX models for tests, written by a writer of our own: the `onnx` package is not needed.

In: nodes, inputs and weights in Python. Out: bytes of a ModelProto. The writer knows the wire
format only; what it writes is checked against the `onnx` package where that is installed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

KINDS = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
         "float64": 11}  # fmt: skip


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, array: Any, raw: bool = True) -> bytes:
    array = np.asarray(array)
    out = b"".join(field(1, int(n)) for n in array.shape)
    out += field(2, KINDS[array.dtype.name]) + field(8, name)
    if raw:
        return out + field(9, array.tobytes())
    assert array.dtype == np.float32
    return out + field(4, array.tobytes())


def external(name: str, shape: Sequence[int], entries: dict[str, str], kind: int = 1) -> bytes:
    out = b"".join(field(1, n) for n in shape) + field(2, kind) + field(8, name)
    for key, value in entries.items():
        out += field(13, field(1, key) + field(2, value))
    return out + field(14, 1)


def attribute(name: str, value: Any) -> bytes:
    out = field(1, name)
    if isinstance(value, float):
        return out + varint(2 << 3 | 5) + struct.pack("<f", value) + field(20, 1)
    if isinstance(value, int):
        return out + field(3, value) + field(20, 2)
    if isinstance(value, str):
        return out + field(4, value) + field(20, 3)
    if isinstance(value, np.ndarray):
        return out + field(5, tensor("", value)) + field(20, 4)
    if isinstance(value, bytes):
        return out + field(6, value) + field(20, 5)
    if value and isinstance(value[0], str):
        return out + b"".join(field(9, s) for s in value) + field(20, 8)
    if value and isinstance(value[0], float):
        return out + field(7, np.array(value, np.float32).tobytes()) + field(20, 6)
    return out + b"".join(field(8, n) for n in value) + field(20, 7)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> bytes:
    """Names are separated by spaces; a dot is an input that is left out."""
    out = b"".join(field(1, "" if n == "." else n) for n in inputs.split())
    out += b"".join(field(2, n) for n in outputs.split())
    out += field(4, op) + field(3, f"{op}_{outputs.split()[0]}")
    out += b"".join(field(5, attribute(k, v)) for k, v in attributes.items())
    return out + (field(7, domain) if domain else b"")


def port(name: str, kind: str = "float32", shape: Sequence[int | str] | None = None) -> bytes:
    type_ = field(1, KINDS[kind])
    if shape is not None:
        dims = [field(1, n) if isinstance(n, int) else field(2, n) for n in shape]
        type_ += field(2, b"".join(field(1, d) for d in dims))
    return field(1, name) + field(2, field(1, type_))


def graph(
    nodes: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    weights: dict[str, Any] | None = None,
    stored: Sequence[bytes] = (),
) -> bytes:
    out = b"".join(field(1, n) for n in nodes) + field(2, "test")
    out += b"".join(field(5, tensor(k, v)) for k, v in (weights or {}).items())
    out += b"".join(field(5, t) for t in stored)
    out += b"".join(field(11, p) for p in inputs)
    return out + b"".join(field(12, p) for p in outputs)


def model(graph_: bytes, opset: int = 20, functions: Sequence[bytes] = (), **domains: int) -> bytes:
    out = field(1, 9) + field(7, graph_) + field(8, field(2, opset))
    for domain, version in domains.items():
        out += field(8, field(1, domain.replace("_", ".")) + field(2, version))
    return out + b"".join(field(25, f) for f in functions)


def function(
    name: str, inputs: str, outputs: str, nodes: Sequence[bytes], domain: str = "mine",
    attributes: Sequence[str] = (),
) -> bytes:  # fmt: skip
    out = field(1, name) + field(10, domain)
    out += b"".join(field(4, n) for n in inputs.split())
    out += b"".join(field(5, n) for n in outputs.split())
    out += b"".join(field(6, n) for n in attributes)
    out += b"".join(field(7, n) for n in nodes)
    return out + field(9, field(2, 20))


def simple(
    op: str, count: int = 1, shape: Sequence[int | str] = ("n", 3), **attributes: Any
) -> bytes:
    """One operator on float inputs x0, x1, ... of one shape, with output y."""
    names = [f"x{i}" for i in range(count)]
    made = node(op, " ".join(names), "y", **attributes)
    return model(graph([made], [port(n, shape=shape) for n in names], [port("y")]))


def perceptron() -> bytes:
    """Two layers, a shape that is computed, a function, a choice and a loop: most of the format."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((4, 8)).astype(np.float32),
        "b1": rng.standard_normal(8).astype(np.float32),
        "w2": rng.standard_normal((8, 3)).astype(np.float32),
        "minus": np.array([-1], np.int64),
        "limit": np.array(0.0, np.float32),
        "three": np.array(3, np.int64),
        "yes": np.array(True),
    }
    doubled = graph([node("Add", "h h", "o")], [], [port("o")])
    same = graph([node("Identity", "h", "o")], [], [port("o")])
    body = graph(
        [node("Add", "v v", "v2"), node("Identity", "c", "c2")],
        [port("i", "int64", ()), port("c", "bool", ()), port("v")],
        [port("c2", "bool"), port("v2")],
    )
    nodes = [
        node("Gemm", "x w1 b1", "a", alpha=1.0),
        node("mine", "a", "h", domain="mine", slope=0.1),
        node("ReduceSum", "h", "s", keepdims=0),
        node("Greater", "s limit", "q"),
        node("If", "q", "t", then_branch=doubled, else_branch=same),
        node("Loop", "three yes t", "l", body=body),
        node("MatMul", "l w2", "m"),
        node("Shape", "m", "shape"),
        node("Concat", "shape minus", "wanted", axis=0),
        node("Reshape", "m wanted", "y"),
    ]
    reference = field(1, "alpha") + field(21, "slope") + field(20, 1)
    leaky = field(1, "v") + field(2, "o") + field(4, "LeakyRelu") + field(5, reference)
    inner = function("mine", "v", "o", [leaky], attributes=["slope"])
    main = graph(nodes, [port("x", shape=["batch", 4])], [port("y")], weights)
    return model(main, functions=[inner], mine=1)


def transformer() -> bytes:
    """One layer of attention as exporters write it, over a batch and a length that may vary."""
    rng = np.random.default_rng(0)
    size = 8

    def f(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    weights = {
        "emb": f(50, size), "pos": f(32, size), "wq": f(size, size), "wk": f(size, size),
        "wv": f(size, size), "wo": f(size, size), "g": f(size), "b": f(size),
        "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
        "first": np.array([0], np.int64), "heads": np.array([2, -1], np.int64),
        "flat": np.array([size], np.int64), "middle": np.array([1, 2], np.int64),
        "all": np.array(1, np.float32), "far": np.array(-10000, np.float32),
        "scale": np.array(0.5, np.float32),
    }  # fmt: skip
    nodes = [
        node("Gather", "emb ids", "e"), node("Shape", "ids", "sh"),
        node("Gather", "sh zero", "bn"), node("Gather", "sh one", "sn"),
        node("Unsqueeze", "bn first", "b1"), node("Unsqueeze", "sn first", "s1"),
        node("Range", "zero sn one", "r"), node("Gather", "pos r", "p"), node("Add", "e p", "x"),
        node("Concat", "b1 s1 heads", "hs", axis=0), node("Concat", "b1 s1 flat", "fs", axis=0),
        node("Unsqueeze", "mask middle", "m1"), node("Cast", "m1", "m2", to=1),
        node("Sub", "all m2", "m3"), node("Mul", "m3 far", "m4"),
    ]  # fmt: skip
    for n in "qkv":
        perm = [0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", f"x w{n}", f"{n}0"), node("Reshape", f"{n}0 hs", f"{n}1"),
            node("Transpose", f"{n}1", f"{n}2", perm=perm),
        ]  # fmt: skip
    nodes += [
        node("MatMul", "q2 k2", "t0"), node("Mul", "t0 scale", "t1"), node("Add", "t1 m4", "t2"),
        node("Softmax", "t2", "t3", axis=-1), node("MatMul", "t3 v2", "c0"),
        node("Transpose", "c0", "c1", perm=[0, 2, 1, 3]), node("Reshape", "c1 fs", "c2"),
        node("MatMul", "c2 wo", "o"), node("Add", "o x", "res"),
        node("LayerNormalization", "res g b", "y", axis=-1),
    ]  # fmt: skip
    ports = [port(n, "int64", ["batch", "seq"]) for n in ("ids", "mask")]
    return model(graph(nodes, ports, [port("y")], weights))
