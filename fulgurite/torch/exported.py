"""A program of `torch.export` as a module of ours: lazy, differentiable, with its parameters.

In: an `ExportedProgram`, or a `.pt2` file of one. Out: `Exported`, an `nn.Module` whose parameters
and buffers have the names that they had in torch. A call lowers the graph by the table of
operators onto the tensors that it is given, so gradients, `fg.jit` and everything else are ours.
Sizes that were exported as dynamic are those of the call. An operator without an entry is an error
that names it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

import fulgurite as fg

from ..config import current
from ..errors import ArgumentError
from ..tensor import Tensor
from .backend import decompositions
from .graph import Numbers
from .home import Home
from .lower import Lowering, refusal
from .table import Refused, name_of


class Exported(fg.nn.Module):
    """A callable like the module that was exported."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        program = program.run_decompositions(decompositions())
        self._spec, self._signature = program.call_spec, program.graph_signature
        self._graph = program.graph_module.graph
        self._nodes = [n for n in self._graph.nodes if n.op == "call_function"]
        self._placeholders = [n for n in self._graph.nodes if n.op == "placeholder"]
        for node in self._nodes:
            why = _refused(node)
            if why is not None:
                raise ArgumentError(
                    f"aten.{node.target} of the exported program: {why}",
                    'use torch.compile(module, backend="fulgurite"), which leaves it to torch',
                )
        self._constants: dict[str, Tensor] = {}
        self._names: dict[str, str] = {}
        for spec in self._signature.input_specs:
            kind, name = spec.kind.name, spec.target
            if kind == "USER_INPUT":
                continue
            value = _tensor_of(program, kind, name)
            self._names[spec.arg.name] = name
            if kind == "PARAMETER":
                _put(self, name, fg.nn.Parameter(value.detach().numpy()))
            elif kind == "BUFFER":
                _put(self, name, fg.Tensor(value.detach().numpy()), buffer=True)
            else:
                self._constants[spec.arg.name] = fg.Tensor(value.detach().numpy())

    def forward(self, *args: Any, **named: Any) -> Any:
        """What the module gives for tensors of ours."""
        given, _ = pytree.tree_flatten((args, named))
        env: dict[Any, Any] = {}
        inputs = iter(given)
        for node in self._placeholders:
            if node.name in self._constants:
                env[node] = self._constants[node.name]
            elif node.name in self._names:
                env[node] = _get(self, self._names[node.name])
            else:
                found = next(inputs)
                env[node] = found if isinstance(found, Tensor | int | float) else fg.asarray(found)
        numbers = Numbers(self._symbols(env))
        for node, value in env.items():
            self._check(node, value, numbers)
        lowering = Lowering(Home(None, current().device), numbers.known, numbers.number)
        lowering.values.update(env)
        for node in self._nodes:
            if not isinstance(node.meta.get("val"), torch.SymInt | int | float):
                try:
                    lowering.run(node)
                except Refused as reason:
                    raise ArgumentError(
                        f"aten.{name_of(node.target)}: {reason.why}",
                        'use torch.compile(module, backend="fulgurite")',
                    ) from reason
        return self._results(lowering, numbers)

    def _symbols(self, env: dict[Any, Any]) -> dict[Any, Any]:
        """The values of the symbols in the shapes of inputs."""
        found: dict[Any, Any] = {}
        for node, value in env.items():
            fake = node.meta.get("val")
            if isinstance(fake, torch.Tensor) and isinstance(value, Tensor):
                for want, size in zip(fake.shape, value.shape, strict=False):
                    if isinstance(want, torch.SymInt) and want.node.expr.is_symbol:
                        found.setdefault(want.node.expr, size)
        return found

    def _check(self, node: Any, value: Any, numbers: Numbers) -> None:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor) or not isinstance(value, Tensor):
            return
        want = tuple(numbers.known(node).shape)
        if tuple(value.shape) != want:
            raise ArgumentError(
                f"{node.name} has shape {tuple(value.shape)}; it was exported with {want}",
                "export it with dynamic_shapes for sizes that vary",
            )

    def _results(self, lowering: Lowering, numbers: Numbers) -> Any:
        (last,) = [n for n in self._graph.nodes if n.op == "output"]
        results = []
        for spec, node in zip(self._signature.output_specs, last.args[0], strict=True):
            value = lowering.values.get(node, node) if isinstance(node, torch.fx.Node) else node
            if isinstance(value, torch.fx.Node):
                value = numbers.number(value)
            if spec.kind.name == "BUFFER_MUTATION":
                _get(self, spec.target).assign(fg.stop_gradient(value))
            elif spec.kind.name == "USER_OUTPUT":
                results.append(value)
        return pytree.tree_unflatten(results, self._spec.out_spec)


def _refused(node: Any) -> str | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    return refusal(node, node.meta.get("val"), None)


def _tensor_of(program: Any, kind: str, name: str) -> Any:
    """A parameter, buffer or constant of a program."""
    return program.state_dict[name] if name in program.state_dict else program.constants[name]


def _put(module: Any, path: str, value: Tensor, buffer: bool = False) -> None:
    """Give a module of ours a parameter at a path, with modules on the way."""
    *folders, name = path.split(".")
    for folder in folders:
        if folder not in dict(module.named_children()):
            module.add_module(folder, fg.nn.Module())
        module = dict(module.named_children())[folder]
    if buffer:
        module.register_buffer(name, value)
    else:
        module.register_parameter(name, value)


def _get(module: Any, path: str) -> Any:
    *folders, name = path.split(".")
    for folder in folders:
        module = dict(module.named_children())[folder]
    return getattr(module, name)
