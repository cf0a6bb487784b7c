"""Forecast: what a training step costs on so many ranks, from the graph that would run there.

In: a language model's sizes, a mesh, a plan, a machine. Out: floating-point operations, bytes over
each mesh axis, memory of a rank, and seconds. The step is built as users build it, over memory that
does not exist, and partitioned for the mesh; nothing runs. Graphs are built for one and two blocks:
what a block adds is added for the others, since blocks are alike.
The network model: a collective over n ranks that sends b bytes from each takes
`latency * rounds + b / bandwidth`, with the bandwidth of the slowest link it crosses (a node's
inner links, or the network); sums of gradients hide behind a share of the backward pass. Compute is
products, and the host's time for the nodes of a graph. Rates of `cpu` are fitted to measurements
(bench/scaling.py), those of `h100` are assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from ..config import current
from ..core import ranks
from ..core.dtype import int32
from ..core.node import Node, Shape, toposort
from ..core.ops.collective import SHARD, UNSHARD, local_shape
from ..core.ops.effect import WATCH
from ..core.ops.elementwise import MUL
from ..core.ops.leaf import new_buffer
from ..core.ops.reduce import REDUCE
from ..core.ranks import MeshAxes, axes_size
from ..errors import ArgumentError
from ..graph.ir.cache_key import normalize, restore
from ..graph.ir.registry import REGISTRY
from ..graph.passes.partition import partition
from ..tensor import wrap
from . import plans
from .mesh import Mesh, shard


@dataclass(frozen=True)
class Machine:
    """Rates of one rank and of the links between ranks; bytes and seconds."""

    name: str
    flops: float  # of products, a second, as measured in training
    ranks_a_node: int
    inner_bandwidth: float  # between ranks of one node
    outer_bandwidth: float  # of one rank's share of the network
    inner_latency: float
    outer_latency: float
    value_bytes: int = 4
    overlap: float = 0.5  # the share of the backward pass that gradient sums hide behind
    node_seconds: float = 0.0  # of the host for a node of the graph, of a step that is not jitted

    def link(self, mesh: MeshAxes, axes: tuple[str, ...]) -> tuple[float, float]:
        """Bandwidth and latency of the slowest link that ranks of a group share."""
        names = [name for name, _ in mesh]
        within = axes_size(mesh, names[min([names.index(a) for a in axes]) :])
        if within <= self.ranks_a_node:
            return self.inner_bandwidth, self.inner_latency
        return self.outer_bandwidth, self.outer_latency


MACHINES = {
    # 8 GPUs of a node: dense bfloat16 at 40 % of 989 TFLOP/s, 450 GB/s links, 400 Gbit/s a GPU
    "h100": Machine("h100", 0.4 * 989e12, 8, 450e9, 50e9, 5e-6, 15e-6, 2),
    # cores of one machine, exchanging through its memory: fitted by bench/scaling.py
    "cpu": Machine("cpu", 83e9, 1 << 30, 1.84e9, 0.1e9, 62e-6, 500e-6, 4, 0.0, 17e-6),
}


class Net(NamedTuple):
    """A language model's sizes."""

    blocks: int
    width: int
    heads: int
    length: int
    words: int


NETS = {
    "gpt-tiny": Net(2, 64, 4, 32, 64),
    "gpt2": Net(12, 768, 12, 1024, 50304),
    "gpt-1b": Net(24, 2048, 16, 2048, 50304),
    "gpt-13b": Net(40, 5120, 40, 2048, 50304),
}


@dataclass
class Cost:
    """What one rank does in a step."""

    flops: float = 0.0
    nodes: float = 0.0  # of the graph of the step
    values: float = 0.0  # elements of weights on this rank
    states: float = 0.0  # elements that the optimizer keeps
    activations: float = 0.0  # elements that products of the forward pass make
    sent: dict[tuple[str, ...], float] = field(default_factory=dict)  # elements over mesh axes
    calls: dict[tuple[str, ...], int] = field(default_factory=dict)
    gradients: float = 0.0  # of these, sums of gradients: they can hide
    boundary: float = 0.0  # elements of what one block gives the next

    def plus(self, other: Cost, times: float) -> Cost:
        """The costs of both, the second so many times."""
        keys = {*self.sent, *other.sent}
        return Cost(
            self.flops + times * other.flops, self.nodes + times * other.nodes,
            self.values + times * other.values,
            self.states + times * other.states, self.activations + times * other.activations,
            {k: self.sent.get(k, 0) + times * other.sent.get(k, 0) for k in keys},
            {k: int(self.calls.get(k, 0) + times * other.calls.get(k, 0)) for k in keys},
            self.gradients + times * other.gradients, self.boundary,
        )  # fmt: skip


class _Planned(ranks.Alone):
    """A world of ranks that are not there."""

    def __init__(self, size: int) -> None:
        self.size = size


def cost_of(net: Net, mesh_axes: Mapping[str, int], plan: str, batch: int) -> Cost:
    """What a rank does in a step: of two blocks as built, and of the others by their difference."""
    before = ranks.world()
    ranks.enter_world(_Planned(prod(mesh_axes.values())), thread=True)
    try:
        one, two = (_built(net._replace(blocks=n), mesh_axes, plan, batch) for n in (1, 2))
    finally:
        ranks.enter_world(before, thread=True)
    return two.plus(one.plus(two, -1), 2.0 - net.blocks)


def _built(net: Net, mesh_axes: Mapping[str, int], plan: str, batch: int) -> Cost:
    from .. import nn
    from ..functional.nn.losses import cross_entropy
    from .models import GPT

    mesh = Mesh(mesh_axes)
    model: nn.Module = GPT(net.words, net.width, net.heads, net.blocks, net.length)
    decided = _plan(mesh, plan)
    found = Cost(boundary=batch // mesh_axes.get("data", 1) * net.length * net.width)
    wishes: dict[str, Any] = {}
    for name, param in model.named_parameters():
        kept = decided.kept(name, param.shape)
        layout, state = (
            mesh.layout(split, param.ndim) for split in (kept.split, kept.state or kept.split)
        )
        own: Any = local_shape(mesh.shape, layout, param.shape)
        node = new_buffer(own, param.dtype, param.device)
        if any(layout):
            node = UNSHARD(node, arg=(mesh.shape, layout, kept.weak))
        REGISTRY.rebind(param.entry, param.entry.node, WATCH(node, arg=param.entry.node.arg))
        found.values += prod(own)
        found.states += 2 * _count(local_shape(mesh.shape, state, param.shape))
        wishes[name] = (mesh.shape, state, False)
    rows = [wrap(new_buffer((batch, net.length), int32, current().device)) for _ in range(2)]
    split = {"data": 0} if "data" in mesh_axes else {}
    x, y = (shard(row, mesh, split) for row in rows)
    loss = cross_entropy(model(x).transpose(1, 2), y)
    loss.backward()
    roots = [loss.entry.node]
    for name, param in model.named_parameters():
        assert param.grad is not None
        roots.append(SHARD(param.grad.entry.node, arg=wishes[name]))
    return _counted(roots, mesh.shape, found)


def _plan(mesh: Mesh, name: str) -> plans.Plan:
    found = plans.data_parallel(mesh)
    if "model" in mesh.axes:
        found = found | plans.tensor_parallel(mesh)
    if name.startswith("zero"):
        found = found | plans.zero(mesh, stage=int(name[-1]))
    elif name != "data":
        raise ArgumentError(f"there is no plan {name!r}", "use data, zero1, zero2 or zero3")
    return found


def _count(shape: Shape) -> int:
    """The elements of a shape whose sizes are known."""
    return prod([n for n in shape if isinstance(n, int)])


def _counted(roots: list[Node], mesh: MeshAxes, found: Cost) -> Cost:
    normal = normalize(roots)
    found.nodes += len(normal.nodes)
    local = partition(restore(normal.structure, normal.constants)).sink
    forward = set(toposort([local.src[0]]))
    for node in toposort([local]):
        if node.op is REDUCE and node.src[0].op is MUL and node.arg[0] == "add":
            found.flops += 2.0 * _count(node.src[0].shape)
            if node in forward:
                found.activations += _count(node.shape)
        elif node.op.family == "collective":
            axes: tuple[str, ...] = node.arg[1]
            n, size = axes_size(mesh, axes), float(_count(node.src[0].shape))
            share = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1}.get(
                node.op.name, (n - 1) / n
            )
            found.sent[axes] = found.sent.get(axes, 0.0) + share * size
            found.calls[axes] = found.calls.get(axes, 0) + 1
            if node not in forward and node.op.name in ("all_reduce", "reduce_scatter"):
                found.gradients += share * size if axes == ("data",) else 0.0
    return found


@dataclass(frozen=True)
class Forecast:
    """A step on a machine: seconds of its parts, bytes of memory."""

    compute: float
    communication: Mapping[str, float]  # seconds by mesh axes
    hidden: float
    bubble: float
    memory: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.compute + sum(self.communication.values()) - self.hidden + self.bubble


def stage_share(pipe: int) -> float:
    """The products of one stage, of those of the whole step: the forward pass runs twice."""
    return 4 / 3 / pipe if pipe > 1 else 1.0


def forecast(
    cost: Cost, machine: Machine, mesh: MeshAxes, pipe: int = 1, micro: int = 8
) -> Forecast:
    """The seconds and the memory of a step; `pipe` stages share its blocks.

    A stage of a pipeline holds what it makes of one micro-batch, and of others their inputs. It
    sends activations on and gradients back, which nothing hides.
    """
    compute = (
        stage_share(pipe) * cost.flops / machine.flops + cost.nodes * machine.node_seconds / pipe
    )
    spent: dict[str, float] = {}
    for axes, elements in cost.sent.items():
        bandwidth, latency = machine.link(mesh, axes)
        rounds = axes_size(mesh, axes) - 1
        calls = cost.calls[axes] * min(rounds, 8) * latency
        name = "+".join(axes)
        spent[name] = (elements * machine.value_bytes / bandwidth + calls) / pipe
    held = cost.activations / pipe
    if pipe > 1:
        bandwidth, latency = machine.link((("pipe", pipe), *mesh), ("pipe",))
        spent["pipe"] = 2 * (cost.boundary * machine.value_bytes / bandwidth + micro * latency)
        held = (held + min(pipe, micro) * cost.boundary) / micro
    of_gradients = cost.gradients * machine.value_bytes / pipe
    wide = machine.link(mesh, ("data",))[0] if "data" in dict(mesh) else 1.0
    hidden = min(of_gradients / wide, machine.overlap * compute * 2 / 3)
    bubble = (compute + sum(spent.values()) - hidden) * (pipe - 1) / micro
    weights = (2 * cost.values + cost.states) * 4 / pipe
    memory = weights + held * machine.value_bytes
    return Forecast(compute, spent, hidden, bubble, memory)
