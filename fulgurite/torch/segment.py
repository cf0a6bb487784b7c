"""A part of a graph as one native call: addresses of torch's memory in, torch's memory out.

In: the nodes of the part, and which of their values are read outside of it. Out: `run`, from torch
tensors to torch tensors. Nothing is copied on the way: kernels read parameters where torch has
them and write into tensors that torch has just allocated, so an update in place is seen by the
next call. A call costs one list of addresses and one native call. Where a plan is more than that
(host steps, results that are constants), its executor runs it over the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from ..aot.explain import explain
from ..config import config
from ..core.dtype import uint32, uint64
from ..core.node import Node, constant
from ..core.ops.leaf import new_buffer
from ..errors import BoundsError
from ..graph.ir.cache_key import normalize
from ..random.generator import Tape
from ..runtime.gc_pause import held_back
from ..runtime.realize import inputs_of, lookup, name_the_line, storage_of
from ..tensor import node_of, wrap
from .dtypes import TO_TORCH
from .home import Home, Run, place_of
from .layout import Layout, layout_of
from .lower import Lowering, is_at
from .table import Refused


class RefusedNode(Exception):
    """A node that has to be left to torch, found out while it was lowered."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


class Segment:
    """A compiled part of a graph."""

    def __init__(
        self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], home: Home,
        known: Callable[[fx.Node], Any], number: Callable[[Any], Any],
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.home, self.device, self.options = home, home.ours, home.options() | options
        self.nodes, self.outputs = list(nodes), list(outputs)
        lowering = Lowering(home, known, number)
        key = new_buffer((2,), uint32, self.device)
        with held_back(), config(device=self.device, **self.options), \
                Tape(key, constant(0, uint64)):  # fmt: skip
            for node in nodes:
                try:
                    lowering.run(node)
                except Refused as reason:
                    raise RefusedNode(node, reason.why) from reason
            for node in outputs:
                if place_of(known(node)).type != home.torch.type:
                    raise RefusedNode(node, f"its result is on {place_of(known(node))}")
            self.made = [layout_of(known(node)) for node in outputs]
            self.results = [m.laid(lowering.values[node])
                            for node, m in zip(outputs, self.made, strict=True)]  # fmt: skip
        self._compile(lowering, key)

    def _compile(self, lowering: Lowering, key: Node) -> None:
        roots = [node_of(result) for result in self.results]
        shared = dict.fromkeys(roots)  # two results may be one value
        self.places = [list(shared).index(root) for root in roots]
        self.roots = list(shared)
        self.again = [i for i, place in enumerate(self.places) if place in self.places[:i]]
        with config(device=self.device, tier="native", **self.options):
            self.normal = normalize(self.roots)
            self.compiled = lookup(self.normal, self.device)
            self.random = key in self.normal.buffers  # also where it draws no number
            self.constants = inputs_of(self.normal, self.compiled, buffers=False)
        self.inputs: list[fx.Node] = []
        self.reads: list[tuple[int, Any]] = []  # (place of an input, its memory if it stays)
        for buffer in self.normal.buffers:
            if buffer is key:
                self.reads.append((-2, None))
            elif buffer in lowering.buffers:
                self.reads.append((len(self.inputs), None))
                self.inputs.append(lowering.buffers[buffer])
            else:
                self.reads.append((-1, storage_of(buffer)))
        self.layouts: list[Layout] = [lowering.layouts[node] for node in self.inputs]
        self.program = self.compiled.plan.executor.replay(False)
        self.results.clear()
        firsts = [i for i in range(len(self.places)) if i not in self.again]
        self.makers = [self._maker(self.made[i], self.roots[self.places[i]]) for i in firsts]
        plain = all(m.dense for m in (*self.layouts, *self.made)) and not self.random
        plain = plain and not self.again and not any(m.conjugate for m in self.layouts)
        self._in_order = self.home.ordered(self._results)
        self.run: Run = self._slow
        if self.program is not None and plain:
            self.run = self.home.ordered(self._quick())
        numbers = [i for i, node in enumerate(self.inputs)
                   if not is_at(lowering.known(node), self.home.torch)]  # fmt: skip
        if numbers:
            self.run = self._bringing(numbers, self.run)

    def _bringing(self, numbers: Sequence[int], run: Run) -> Run:
        """A call that first copies numbers (tensors of the host) to where everything else is."""
        place = self.home.torch

        def call(tensors: Sequence[Any]) -> list[Any]:
            found = list(tensors)
            for i in numbers:
                found[i] = found[i].to(place)
            return run(found)

        return call

    def _maker(self, layout: Layout, root: Node) -> Callable[[], Any]:
        """What allocates a result in torch's memory."""
        dtype = TO_TORCH[root.dtype]
        if layout.plain:
            return partial(torch.empty, layout.size, dtype=dtype, device=self.home.torch)
        return partial(
            torch.empty_strided, layout.size, layout.stride, dtype=dtype, device=self.home.torch
        )

    def _quick(self) -> Run:
        """A call that is one list of addresses and one launch."""
        assert self.program is not None
        launch, makers = self.program.launch_into, self.makers
        count = len(self.inputs)
        held = [memory for place, memory in self.reads if place < 0]
        fixed = [*[m.address for m in held], *[c.address for c in self.constants]]
        if any(place >= 0 for place, _ in self.reads[count:]):
            return self._slow  # what stays is not behind the inputs
        threads = torch.get_num_threads
        # gradients from outside come in any layout, or as negatives of what memory holds; dynamo
        # guards that of everything else
        guarded = [(i, self.layouts[i].stride) for i, node in enumerate(self.inputs)
                   if node.name.startswith("tangents")]  # fmt: skip

        def run(tensors: Sequence[Any]) -> list[Any]:
            if guarded and _is_laid_otherwise(tensors, guarded):
                return self._slow(tensors)
            made = [make() for make in makers]
            addresses = [t.data_ptr() for t in tensors]
            addresses += fixed
            addresses += [t.data_ptr() for t in made]
            try:
                launch(addresses, threads())
            except BoundsError:
                name_the_line(self.roots, self.normal, self._buffers(tensors, None))
                raise
            return made

        return run

    def _slow(self, tensors: Sequence[Any]) -> list[Any]:
        """A call of any plan: memory in any layout, random numbers, host steps.

        What torch itself does here is before or behind the part that is ordered with its stream.
        """
        tensors = [
            t if (m.dense and t.stride() == m.stride) or t.numel() == 0 else restrided(t, m)
            for t, m in zip(map(_resolved, tensors), self.layouts, strict=True)
        ]
        place = self.home.torch
        key = torch.empty(1, dtype=torch.int64, device=place).random_() if self.random else None
        made = self._in_order([*tensors, key])
        found = [made[place] for place in self.places]
        for i in self.again:  # one value that is two results, which may differ in layout
            layout = self.made[i]
            found[i] = found[i].as_strided(layout.size, layout.stride).clone()
        return found

    def _results(self, given: Sequence[Any]) -> list[Any]:
        """Results of the plan; the key of random numbers is the last that is given."""
        *tensors, key = given
        if self.program is None:
            return self._executed(self._buffers(tensors, key))
        return self._launched(tensors, key)

    def _launched(self, tensors: Sequence[Any], key: Any) -> list[Any]:
        """Results of one launch, in memory that torch has just allocated."""
        assert self.program is not None
        made = [make() for make in self.makers]
        addresses = []
        for place, memory in self.reads:
            tensor = tensors[place] if place >= 0 else key
            addresses.append(memory.address if place == -1 else tensor.data_ptr())
        addresses += [c.address for c in self.constants]
        addresses += [t.data_ptr() for t in made]
        try:
            self.program.launch_into(addresses, torch.get_num_threads())
        except BoundsError:
            name_the_line(self.roots, self.normal, self._buffers(tensors, key))
            raise
        return made

    def _buffers(self, tensors: Sequence[Any], key: Any) -> list[Any]:
        """The plan's inputs as buffers over torch's memory."""
        found = []
        for place, memory in self.reads:
            if place == -1:
                found.append(memory)
                continue
            tensor = key if place == -2 else tensors[place]
            root = self.normal.buffers[len(found)]
            found.append(self.home.buffer(tensor, root))
        return [*found, *self.constants]

    def _executed(self, buffers: Sequence[Any]) -> list[Any]:
        """Results of the plan's executor, as torch tensors over its memory."""
        plan = self.compiled.plan
        with config(device=self.device, threads=torch.get_num_threads()):
            try:
                outputs = plan.executor.run(buffers, self.normal.values, False)
                plan.executor.check()
            except BoundsError:
                name_the_line(self.roots, self.normal, buffers)
                raise
        found = []
        for number, (output, root) in enumerate(zip(outputs, self.roots, strict=True)):
            layout = self.made[self.places.index(number)]
            found.append(self.home.result(output, root, layout))
        return found

    def explain(self) -> Any:
        """What the compiler made of this part; see `fg.explain`."""
        return explain(*[wrap(root) for root in self.roots])


def _is_laid_otherwise(tensors: Sequence[Any], guarded: Sequence[tuple[int, Any]]) -> bool:
    """True if a tensor has other strides than a plan reads, or its memory holds negatives."""
    return any([tensors[i].stride() != stride or tensors[i].is_neg() for i, stride in guarded])


def _resolved(tensor: Any) -> Any:
    """A tensor whose memory holds its values: not their conjugates or negatives."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_complex() else tensor.resolve_neg()


def restrided(tensor: Any, layout: Layout) -> Any:
    """A tensor's values in the memory that a plan was compiled for."""
    made = torch.empty_strided(layout.size, layout.stride, dtype=tensor.dtype, device=tensor.device)
    if layout.plain:
        return made.copy_(tensor)
    seen = tensor[tuple([slice(0, 1) if s == 0 and n > 1 else slice(None)
                         for n, s in zip(layout.size, layout.stride, strict=True)])]  # fmt: skip
    made[tuple([slice(0, n) for n in seen.shape])].copy_(seen)
    return made
