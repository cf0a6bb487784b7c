"""Collectives of a plan on a GPU: NCCL's work beside kernels, in the same graphs.

In: a kernel that is one packed collective of a param. Out: a launch like a kernel's, with addresses
as its arguments. Run alone it is work of the stream; in a CUDA graph it is a child graph, captured
from a stream of its own: NCCL has no nodes of its own to give. Addresses are part of what was
captured, so a graph whose collectives get others is built anew. All collectives of a plan follow
each other (they share a communicator), kernels run beside them as edges allow. What NCCL cannot do
(16-bit integers, extremes of floats, whose NaN it would lose) goes through the host.
"""

from __future__ import annotations

import os
import time
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from ...codegen.cuda.source import PARAM as PARAM_ARGUMENT
from ...codegen.cuda.source import Argument
from ...core.node import Node
from ...core.ops.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    SEND_RECV,
    group_for,
    label_of,
)
from ...core.ops.leaf import PARAM
from ...core.ops.movement import RESHAPE
from ...core.ranks import World, coordinates, group_of, world
from ...graph.ir.kernel import Kernel
from . import driver as cuda
from .kernels import CudaKernel
from .nccl import FOLDS, TYPES, Communicator, Nccl

if TYPE_CHECKING:
    from .device import CudaDevice

_NAP_SECONDS = 50e-6  # between two looks at a stream that others keep waiting


def are_wanted() -> bool:
    """True if collectives run on the GPU: there are several ranks, or FULGURITE_NCCL says so."""
    wish = os.environ.get("FULGURITE_NCCL", "")
    return wish == "1" or (wish != "0" and world().size > 1)


class Links:
    """The communicators of one GPU."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.known: dict[tuple[World, tuple[int, ...]], Communicator] = {}
        self.label = ""  # of the collective that was launched last

    @cached_property
    def nccl(self) -> Nccl:
        """The library; `NcclError` says why it cannot be used."""
        return Nccl(os.environ.get("FULGURITE_LIBNCCL") or None)

    @cached_property
    def capture(self) -> cuda.Stream:
        """The stream that work is captured from."""
        return cuda.Stream(self.device.driver)

    def of(self, group: list[int]) -> Communicator:
        """The communicator of a group of ranks; all of them ask for it together."""
        key = world(), tuple(group)
        if key not in self.known:
            self.device.enter()
            self.known[key] = Communicator(self.nccl, world(), group)
            self.device.stream.wait_for_others = self.wait
        return self.known[key]

    def wait(self, stream: cuda.Stream) -> None:
        """Wait for a stream that may wait for other ranks; an error if one of them failed."""
        watchdog: Any = getattr(world(), "watchdog", None)
        if stream.is_idle():
            return
        if watchdog is None:
            self._wait(stream)
            return
        with watchdog.waiting(f"the GPU, whose last collective is {self.label}"):
            self._wait(stream)

    def _wait(self, stream: cuda.Stream) -> None:
        while not stream.is_idle():
            for one in self.known.values():
                one.check()
            time.sleep(_NAP_SECONDS)


class Exchange:
    """One collective: a launch whose arguments are where its values are."""

    grid = 1

    def __init__(self, device: CudaDevice, node: Node, digest: str = "collective") -> None:
        self.device, self.node, self.digest = device, node, digest
        self.label = label_of(node)
        self.arguments = (
            Argument("source", "i64", True, PARAM_ARGUMENT, 0),
            Argument("result", "i64", True, PARAM_ARGUMENT, 1),
        )
        shape: Any = node.src[0].shape
        self.count = prod(shape)
        self.nbytes = self.count * node.dtype.itemsize

    is_fixed = True  # a graph cannot be told other addresses

    def launch(self, driver: cuda.Driver, arguments: cuda.Arguments, stream: cuda.Stream) -> None:
        """Run it, after what the stream was given before."""
        self._enqueue(arguments, stream)

    def add_to(self, graph: cuda.Graph, arguments: cuda.Arguments, after: list[int]) -> int:
        """A node of a graph."""
        links = self.device.links
        links.of(group_for(self.node))  # which is no work to be captured
        with graph.captured(links.capture) as child:
            self._enqueue(arguments, links.capture)
        return graph.add_child(child, after)

    def _enqueue(self, arguments: cuda.Arguments, stream: cuda.Stream) -> None:
        links, node = self.device.links, self.node
        source, result = int(arguments.cells[0]), int(arguments.cells[1])
        group = group_for(node)
        comm, parts = links.of(group), len(group)
        links.label = self.label
        if node.op is ALL_REDUCE:
            kind, times = _number(node)
            comm.all_reduce(source, result, times * self.count, kind, FOLDS[node.arg[2]], stream)
        elif node.op is REDUCE_SCATTER:
            kind, times = _number(node)
            comm.reduce_scatter(
                source, result, times * self.count // parts, kind, FOLDS["add"], stream
            )
        elif node.op is ALL_GATHER:
            comm.all_gather(source, result, self.nbytes, stream)
        elif node.op is ALL_TO_ALL:
            step = self.nbytes // parts
            with comm.together():
                for other in range(parts):
                    comm.send(source + other * step, step, other, stream)
                    comm.receive(result + other * step, step, other, stream)
        else:
            self._route(comm, source, result, stream)

    def _route(self, comm: Communicator, source: int, result: int, stream: cuda.Stream) -> None:
        """Values sent along an axis; zeros where none arrives."""
        mesh, axes, pairs = self.node.arg
        here = coordinates(mesh, world().rank)[axes[0]]
        assert comm.group == group_of(mesh, axes, world().rank)
        to = [there for of, there in pairs if of == here]
        of = [one for one, there in pairs if there == here]
        if not of:
            cuda.fill(self.device.driver, result, 0, self.nbytes, stream)
        if to or of:
            with comm.together():
                for place in to:
                    comm.send(source, self.nbytes, place, stream)
                for place in of:
                    comm.receive(result, self.nbytes, place, stream)


def _number(node: Node) -> tuple[int, int]:
    """NCCL's type for a fold, and how many of it an element is."""
    if node.dtype.kind == "c":
        return TYPES["float32" if node.dtype.itemsize == 8 else "float64"], 2
    return TYPES[node.dtype.name], 1


def _can(node: Node) -> bool:
    """True if NCCL does what a collective means."""
    if node.op in (ALL_GATHER, ALL_TO_ALL):
        return bool(node.arg[2] == 0) and (node.op is ALL_GATHER or node.arg[3] == 0)
    if node.op is SEND_RECV:
        return True
    if node.op is REDUCE_SCATTER:
        return bool(node.arg[2] == 0) and (node.dtype.kind == "c" or node.dtype.name in TYPES)
    if node.op is not ALL_REDUCE:
        return False
    how, dtype = node.arg[2], node.dtype
    if dtype.kind == "c":
        return bool(how == "add")
    exact = how in ("add", "mul") or not dtype.is_inexact
    return exact and dtype.name in TYPES


def exchange_of(device: CudaDevice, kernel: Kernel) -> CudaKernel | None:
    """A kernel that is one collective of a param as NCCL's work; None if it is not."""
    if len(kernel.body.src) != 1 or kernel.inputs != 1:
        return None
    (root,) = kernel.body.src
    if not root.src or not _can(root):
        return None
    source = root.src[0]
    while source.op is RESHAPE:
        source = source.src[0]
    fixed = all([isinstance(n, int) for n in (*root.shape, *root.src[0].shape)])
    if source.op is not PARAM or not fixed:
        return None
    launch: Any = Exchange(device, root)
    return CudaKernel((launch,), 0, (), False)
