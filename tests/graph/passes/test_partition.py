"""Partitions of graphs, run on threads as ranks, against the graph itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fulgurite.core import build
from fulgurite.core.dtype import float32, uint32, uint64
from fulgurite.core.node import Node, toposort
from fulgurite.core.operators import OPS
from fulgurite.core.ops.collective import LOCAL, SHARD, UNSHARD, local_shape
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ranks import Layout, MeshAxes, axes_size, coordinates, mesh_size
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.graph.passes.partition import partition
from fulgurite.runtime.host.evaluate import evaluate
from tests.ranks import evaluate_on_ranks

pytestmark = pytest.mark.device("none")
MESHES: list[MeshAxes] = [
    (("data", 2),), (("data", 4),), (("data", 2), ("model", 2)), (("a", 2), ("b", 3)),
    (("data", 2), ("model", 2), ("seq", 2)), (("data", 5),), (("a", 7), ("b", 2)),
]  # fmt: skip


KINDS = [
    "unary",
    "binary",
    "matmul",
    "reduce",
    "move",
    "softmax",
    "pad",
    "gather",
    "scan",
    "iota",
    "reshape",
    "scatter",
    "random",
]


class Program:
    """Whole arrays, the graph over them, and the same with some of them in shards."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.mesh = self.rng.choice(MESHES)
        self.arrays: dict[Node, Any] = {}

    def layout(self, shape: tuple[int, ...], even: bool = True) -> Layout:
        """Some axes of the mesh over some dimensions, which they divide if they must."""
        found: list[tuple[str, ...]] = [() for _ in shape]
        for axis, _ in self.mesh:
            dim = self.rng.randrange(len(shape) + 1)
            if dim < len(shape):
                more = (*found[dim], axis)
                if not even or shape[dim] % axes_size(self.mesh, more) == 0:
                    found[dim] = more
        return tuple(found)

    def leaf(self, shape: tuple[int, ...]) -> Node:
        number = len(self.arrays)
        array = self.numbers.standard_normal(shape).astype(np.float32)
        layout = self.layout(shape)
        if self.rng.random() < 0.3 or not any(layout):
            node = param(number, shape, float32)
            self.arrays[node] = array
            return node
        local: Any = local_shape(self.mesh, layout, shape)
        shards = param(number, local, float32)
        node = UNSHARD(shards, arg=(self.mesh, layout, self.rng.random() < 0.3))
        self.arrays[node] = array
        return node

    def maybe_sharded(self, node: Node) -> Node:
        if node.ndim and self.rng.random() < 0.3:
            layout = self.layout(node.shape, even=False)  # type: ignore[arg-type]
            return SHARD(node, arg=(self.mesh, layout, False))
        return node

    def build(self, steps: int) -> Node:
        shape = (12, 24)
        values = [self.leaf(shape), self.leaf(shape), self.leaf((24, 12))]
        for _ in range(steps):
            values.append(self.maybe_sharded(self.step(values)))
        return SINK(*values[-2:])

    def step(self, values: list[Node]) -> Node:
        x = self.rng.choice(values)
        y = self.rng.choice(values)
        n, m = x.shape
        kind = self.rng.choice(KINDS)
        rows = build.iota((24,), 0) % 12
        if kind == "unary":
            return build.apply(_TANH, x)
        if kind == "binary":
            other = y if y.shape == x.shape else build.permute(y, (1, 0))
            return x * other + x
        if kind == "matmul":
            other = y if y.shape[0] == m else build.permute(y, (1, 0))
            a = build.expand(build.reshape(x, (n, m, 1)), (n, m, other.shape[1]))
            b = build.expand(build.reshape(other, (1, *other.shape)), a.shape)
            product = build.fold("add", a * b, (1,)) * build.const(
                0.1, float32, (n, other.shape[1])
            )
            return self.square(product)
        if kind == "reduce":
            how = self.rng.choice(["add", "max", "min"])
            kept = build.fold(how, x, (self.rng.randrange(2),), keepdims=True)
            return x - build.expand(kept, x.shape)
        if kind == "move":
            return build.permute(build.flip(x, (self.rng.randrange(2),)), (1, 0))
        if kind == "softmax":
            top = build.expand(build.fold("max", x, (1,), keepdims=True), x.shape)
            e = build.apply(_EXP, x - top)
            return e / build.expand(build.fold("add", e, (1,), keepdims=True), x.shape)
        if kind == "pad":
            return build.shrink(build.pad(x, [(2, 0), (0, 0)]), [(1, 1 + n), (0, m)])
        if kind == "reshape":
            return build.reshape(
                build.apply(_TANH, build.reshape(x, (2, n // 2, m // 4, 4))), (n, m)
            )
        if kind == "scan":
            return build.scan("add", x, self.rng.randrange(2)) * build.const(0.1, float32, x.shape)
        if kind == "iota":
            return x + build.cast(build.iota(x.shape, self.rng.randrange(2)), float32)
        if kind == "random":
            key, counter = build.const(3, uint32, (2,)), build.const(7, uint64)
            bits = build.random_bits(key, counter, x.shape)
            return x * build.cast(bits >> build.const(24, uint32, x.shape), float32) * build.const(
                0.01, float32, x.shape)  # fmt: skip
        index = build.expand(build.reshape(rows, (24, 1)), (24, m))
        if kind == "gather":
            return self.square(build.gather(x, index, 0))
        twice = build.gather(x, index, 0)
        return build.scatter("add", build.const(0.0, float32, x.shape), index, twice, 0)

    def square(self, x: Node) -> Node:
        """A value cut back to one of the two shapes."""
        n, m = x.shape
        if (n, m) in ((12, 24), (24, 12)):
            return x
        rows = build.shrink(x, [(0, 12), (0, m)])
        wide = build.pad(rows, [(0, 0), (0, max(0, 24 - int(m)))])  # type: ignore[arg-type]
        return build.shrink(wide, [(0, 12), (0, 24)])


_TANH, _EXP = OPS["tanh"], OPS["exp"]


def cut(array: Any, mesh: MeshAxes, layout: Layout, rank: int) -> Any:
    """One rank's shard of an array."""
    here = coordinates(mesh, rank)
    for dim, axes in enumerate(layout):
        number = 0
        for axis in axes:
            number = number * dict(mesh)[axis] + here[axis]
        if axes:
            array = np.split(array, axes_size(mesh, axes), axis=dim)[number]
    return array


@pytest.mark.parametrize("seed", range(60))
def test_a_partition_computes_what_the_graph_does(seed: int) -> None:
    program = Program(seed)
    sink = program.build(6)
    found = partition(sink)
    mesh = program.mesh
    whole = program.arrays
    plain = {
        node: param(100 + i, node.shape, float32)
        for i, node in enumerate(whole)
    }  # fmt: skip
    unsharded = substitute(sink, plain, walk=True)
    wanted = evaluate(unsharded.src, {plain[node]: array for node, array in whole.items()})

    def given(rank: int) -> dict[Node, Any]:
        return {
            (n.src[0] if n.op is UNSHARD else n): cut(a, mesh, n.arg[1], rank)
            if n.op is UNSHARD else a
            for n, a in whole.items()
        }  # fmt: skip

    results = evaluate_on_ranks(mesh_size(mesh), found.sink.src, given)
    for number, split in enumerate(found.layouts):
        for rank, row in enumerate(results):
            part = wanted[number] if split is None else cut(wanted[number], mesh, split[1], rank)
            np.testing.assert_allclose(row[number], part, rtol=2e-5, atol=2e-5)


def test_a_graph_without_a_mesh_is_left_as_it_is() -> None:
    sink = SINK(param(0, (3,), float32) + param(1, (3,), float32))
    assert partition(sink).sink is sink


def test_tensor_parallel_products_need_one_sum() -> None:
    """Megatron's two products: columns, then rows, with one all-reduce at the end."""
    mesh: MeshAxes = (("model", 2),)
    x = param(0, (4, 6), float32)
    up = UNSHARD(param(1, (6, 4), float32), arg=(mesh, ((), ("model",)), False))
    down = UNSHARD(param(2, (4, 6), float32), arg=(mesh, (("model",), ()), False))

    def product(a: Node, b: Node) -> Node:
        (n, k), m = a.shape, b.shape[1]
        wide = build.expand(build.reshape(a, (n, k, 1)), (n, k, m))
        return build.fold("add", wide * build.expand(build.reshape(b, (1, k, m)), wide.shape), (1,))

    found = partition(SINK(product(build.apply(_TANH, product(x, up)), down)))
    names = [n.op.name for n in toposort([found.sink]) if n.op.family == "collective"]
    assert names == ["all_reduce"] and found.layouts == (None,)


def test_what_readers_want_in_shards_is_summed_into_shards() -> None:
    """ZeRO's gradient: a sum over the batch that the optimizer wants in shards."""
    mesh: MeshAxes = (("data", 2),)
    batch = UNSHARD(param(0, (4, 6), float32), arg=(mesh, (("data",), ()), False))
    state = UNSHARD(param(1, (3,), float32), arg=(mesh, (("data",),), True))
    found = partition(SINK(state * build.fold("add", batch, (0,))))
    names = [n.op.name for n in toposort([found.sink]) if n.op.family == "collective"]
    assert names == ["reduce_scatter"] and found.layouts == ((mesh, (("data",),), True),)


def test_a_manual_region_stays_as_it_is() -> None:
    mesh: MeshAxes = (("data", 2),)
    x = param(0, (4, 6), float32)
    own = LOCAL(x, arg=(mesh, (("data",), ())))
    found = partition(SINK(UNSHARD(own + own, arg=(mesh, (("data",), ()), False))))
    assert found.sink.src[0].shape == (2, 6) and found.layouts[0] is not None
