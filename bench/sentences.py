"""A sentence encoder over sentences of every length, beside onnxruntime, from a cold cache.

Run `python bench/sentences.py [--count 500] [--threads 1]` with a Python that has onnxruntime. The
model has the shape of MiniLM (6 layers, 384 wide, 12 heads) with random weights and inputs whose
batch and length are dynamic; each system is a process of its own that loads the model and encodes
one sentence after the other. What is timed is all of it, first calls and compilations included.
Python's own bytecode is there before, as an installed package has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from tests.onnx.models import graph, model, node, port

LAYERS, WIDTH, HEADS, INNER, WORDS, LONGEST = 6, 384, 12, 1536, 4096, 128


def encoder() -> bytes:
    """The model, as exporters write it."""
    rng = np.random.default_rng(0)

    def f(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.04).astype(np.float32)

    weights: dict[str, Any] = {
        "words": f(WORDS, WIDTH), "places": f(512, WIDTH), "g": f(WIDTH) + 1, "b": f(WIDTH),
        "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
        "first": np.array([0], np.int64), "heads": np.array([HEADS, WIDTH // HEADS], np.int64),
        "flat": np.array([WIDTH], np.int64), "middle": np.array([1, 2], np.int64),
        "all": np.array(1, np.float32), "far": np.array(-10000, np.float32),
        "scale": np.array((WIDTH // HEADS) ** -0.5, np.float32),
        "half": np.array(0.5, np.float32), "root": np.array(2**-0.5, np.float32),
    }  # fmt: skip
    nodes = [
        node("Gather", "words ids", "e"), node("Shape", "ids", "sh"),
        node("Gather", "sh zero", "bn"), node("Gather", "sh one", "sn"),
        node("Unsqueeze", "bn first", "b1"), node("Unsqueeze", "sn first", "s1"),
        node("Range", "zero sn one", "r"), node("Gather", "places r", "p"), node("Add", "e p", "a"),
        node("LayerNormalization", "a g b", "x0", axis=-1),
        node("Concat", "b1 s1 heads", "hs", axis=0), node("Concat", "b1 s1 flat", "fs", axis=0),
        node("Unsqueeze", "mask middle", "m1"), node("Cast", "m1", "m2", to=1),
        node("Sub", "all m2", "m3"), node("Mul", "m3 far", "m4"),
    ]  # fmt: skip
    for i in range(LAYERS):
        nodes += _layer(i, weights, f)
    return model(graph(nodes, _ports(), [port("y")], weights))


def _ports() -> list[bytes]:
    return [port(n, "int64", ["batch", "seq"]) for n in ("ids", "mask")]


def _layer(i: int, weights: dict[str, Any], f: Any) -> list[bytes]:
    """Attention and a network of two layers, each with its norm."""
    nodes = []
    for n in "qkvo":
        weights[f"w{n}{i}"], weights[f"c{n}{i}"] = f(WIDTH, WIDTH), f(WIDTH)
    weights[f"up{i}"], weights[f"cu{i}"] = f(WIDTH, INNER), f(INNER)
    weights[f"down{i}"], weights[f"cd{i}"] = f(INNER, WIDTH), f(WIDTH)
    for n in "qkv":
        perm = [0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", f"x{i} w{n}{i}", f"{n}0.{i}"),
            node("Add", f"{n}0.{i} c{n}{i}", f"{n}1.{i}"),
            node("Reshape", f"{n}1.{i} hs", f"{n}2.{i}"),
            node("Transpose", f"{n}2.{i}", f"{n}3.{i}", perm=perm),
        ]
    nodes += [
        node("MatMul", f"q3.{i} k3.{i}", f"t0.{i}"), node("Mul", f"t0.{i} scale", f"t1.{i}"),
        node("Add", f"t1.{i} m4", f"t2.{i}"), node("Softmax", f"t2.{i}", f"t3.{i}", axis=-1),
        node("MatMul", f"t3.{i} v3.{i}", f"o0.{i}"),
        node("Transpose", f"o0.{i}", f"o1.{i}", perm=[0, 2, 1, 3]),
        node("Reshape", f"o1.{i} fs", f"o2.{i}"), node("MatMul", f"o2.{i} wo{i}", f"o3.{i}"),
        node("Add", f"o3.{i} co{i}", f"o4.{i}"), node("Add", f"o4.{i} x{i}", f"o5.{i}"),
        node("LayerNormalization", f"o5.{i} g b", f"n.{i}", axis=-1),
        node("MatMul", f"n.{i} up{i}", f"u0.{i}"), node("Add", f"u0.{i} cu{i}", f"u1.{i}"),
        node("Mul", f"u1.{i} root", f"u2.{i}"), node("Erf", f"u2.{i}", f"u3.{i}"),
        node("Add", f"u3.{i} all", f"u4.{i}"), node("Mul", f"u1.{i} u4.{i}", f"u5.{i}"),
        node("Mul", f"u5.{i} half", f"u6.{i}"), node("MatMul", f"u6.{i} down{i}", f"d0.{i}"),
        node("Add", f"d0.{i} cd{i}", f"d1.{i}"), node("Add", f"d1.{i} n.{i}", f"d2.{i}"),
        node("LayerNormalization", f"d2.{i} g b", f"x{i + 1}" if i + 1 < LAYERS else "y", axis=-1),
    ]  # fmt: skip
    return nodes


def sentences(count: int) -> list[tuple[Any, Any]]:
    """Words of sentences of every length from 3 to the longest, in a random order."""
    rng = np.random.default_rng(1)
    found = []
    for i in range(count):
        n = 3 + (i * 37) % (LONGEST - 2)
        found.append((rng.integers(0, WORDS, (1, n)), np.ones((1, n), np.int64)))
    return found


def encode(system: str, path: str, count: int, threads: int) -> None:
    """All sentences by one system, as JSON: seconds, and the sum of what it found."""
    cases = sentences(count)
    if system == "onnxruntime":
        import onnxruntime as ort
    else:
        import fulgurite as fg
    begin, cpu = time.perf_counter(), time.process_time()
    if system == "onnxruntime":
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        results = [session.run(None, {"ids": a, "mask": b})[0] for a, b in cases]
        compiled = 0
    else:
        made = fg.onnx.load(path)
        results = [made(a, b)["y"].numpy() for a, b in cases]
        compiled = fg.cache_stats()["schedule"]["misses"]
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    sums = [float(np.abs(r).sum()) for r in results]
    print(json.dumps({"seconds": seconds, "cpu": cpu, "compiled": compiled, "sums": sums}))


def main() -> None:
    """Both systems in turn, and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--system", default="")
    parser.add_argument("--path", default="")
    given = parser.parse_args()
    if given.system:
        encode(given.system, given.path, given.count, given.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "encoder.onnx")
        Path(path).write_bytes(encoder())
        found: dict[str, list[dict[str, Any]]] = {"fulgurite": [], "onnxruntime": []}
        known = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        known.pop("PYTHONDONTWRITEBYTECODE", None)
        source = Path(__file__).parents[1] / "fulgurite"
        subprocess.run([sys.executable, "-m", "compileall", "-q", source], env=known, check=True)
        for turn in range(given.turns):
            for system, runs in found.items():
                environment = {
                    **known, "FULGURITE_CACHE_DIR": f"{folder}/cache{turn}",
                    "FULGURITE_THREADS": str(given.threads), "FULGURITE_DEVICE": "cpu",
                }  # fmt: skip
                command = [
                    sys.executable, __file__, "--system", system, "--path", path,
                    "--count", str(given.count), "--threads", str(given.threads),
                ]  # fmt: skip
                done = subprocess.run(command, env=environment, check=True, capture_output=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
    ours, theirs = [min(r["seconds"] for r in found[s]) for s in ("fulgurite", "onnxruntime")]
    own, other = [min(r["cpu"] for r in found[s]) for s in ("fulgurite", "onnxruntime")]
    first = found["fulgurite"][0]
    apart = np.abs(np.array(first["sums"]) / found["onnxruntime"][0]["sums"] - 1).max()
    print(
        f"{given.count} sentences of 3 to {LONGEST} words, {given.threads} threads, cold: "
        f"{ours:.2f} s, onnxruntime {theirs:.2f} s: {ours / theirs:.2f} of it, "
        f"{own / other:.2f} of its processor time; "
        f"{first['compiled']} compiles, sums {apart:.1e} apart"
    )
    for system, runs in found.items():
        times = [f"{r['seconds']:.2f} s ({r['cpu']:.2f} of CPU)" for r in runs]
        print(f"  {system}: {', '.join(times)}")


if __name__ == "__main__":
    main()
