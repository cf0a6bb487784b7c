"""A program of `torch.export` as a module of ours: lazy, differentiable, with its parameters.

In: an `ExportedProgram`, or a `.pt2` file of one. Out: `Exported`, an `nn.Module` whose parameters
and buffers have the names that they had in torch. A call lowers the graph by the table of
operators onto the tensors that it is given, so gradients, `fg.jit` and everything else are ours.
Arguments are taken as the exported program has them: keywords and dictionaries in any order,
numbers as they were exported, shapes and types checked. Sizes that were exported as dynamic are
those of the call; an input that the program writes to is written to. An operator without an entry
is an error that names it; checks of torch's (`_assert_*`) are torch's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from zipfile import BadZipFile

import torch
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

import fulgurite as fg

from ..config import current
from ..errors import ArgumentError
from ..tensor import Tensor
from .arrays import array_of
from .backend import decompositions
from .dtypes import TO_OURS
from .graph import Numbers, stride_over_bases
from .home import Home
from .lower import Lowering, refusal
from .reporting import shown
from .table import Refused, title_of


def load(path: str) -> Any:
    """The program of a `.pt2` file."""
    if not os.path.isfile(path):
        raise ArgumentError(f"{path} is no file", "give a path that torch.export.save wrote to")
    try:
        return torch.export.load(path)
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError, BadZipFile) as problem:
        lines = str(problem).splitlines()
        raise ArgumentError(
            f"{path} cannot be read: {lines[0] if lines else type(problem).__name__}",
            "write it with torch.export.save(torch.export.export(model, inputs), path)",
        ) from problem


class Exported(fg.nn.Module):
    """A callable like the module that was exported."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        program = program.run_decompositions(decompositions(before_autograd=True))
        self._spec, self._signature = program.call_spec, program.graph_signature
        self._graph = program.graph_module.graph
        left = stride_over_bases(self._graph)
        self._nodes = [n for n in self._graph.nodes if n.op == "call_function" and not _is_aside(n)]
        self._placeholders = [n for n in self._graph.nodes if n.op == "placeholder"]
        _refuse(self._nodes, left)
        self._constants: dict[str, Tensor] = {}
        self._names: dict[str, str] = {}
        self._fixed: dict[str, Any] = {}  # numbers that were written into the program
        made: dict[Any, Tensor] = {}  # a tensor under two names is one tensor
        for spec in self._signature.input_specs:
            kind, name = spec.kind.name, spec.target
            if kind == "USER_INPUT":
                if isinstance(spec.arg, ConstantArgument):
                    self._fixed[spec.arg.name] = spec.arg.value
                continue
            value = _tensor_of(program, kind, name)
            key = (kind, value.data_ptr() or id(value), value.shape, value.stride(), value.dtype)
            self._names[spec.arg.name] = name
            if kind == "PARAMETER":
                if key not in made:
                    made[key] = fg.nn.Parameter(array_of(value))
                    made[key].requires_grad_(value.requires_grad)
                _put(self, name, made[key])
            elif kind == "BUFFER":
                made.setdefault(key, fg.Tensor(array_of(value)))
                _put(self, name, made[key], buffer=True)
            else:
                self._constants[spec.arg.name] = fg.Tensor(array_of(value))

    def forward(self, *args: Any, **named: Any) -> Any:
        """What the module gives for tensors of ours."""
        env: dict[Any, Any] = {}
        inputs = iter(self._given(args, named))
        for node in self._placeholders:
            if node.name in self._constants:
                env[node] = self._constants[node.name]
            elif node.name in self._names:
                env[node] = _get(self, self._names[node.name])
            else:
                env[node] = self._input(node, next(inputs))
        numbers = Numbers(self._symbols(env))
        for node, value in env.items():
            self._check(node, value, numbers)
        lowering = Lowering(Home(None, current().device), numbers.known, numbers.number)
        lowering.values.update(env)
        for node in self._nodes:
            try:
                lowering.run(node)
            except Refused as reason:
                raise ArgumentError(
                    f"{shown(title_of(node.target))}: {reason.why}",
                    'use torch.compile(module, backend="fulgurite")',
                ) from reason
        return self._results(lowering, numbers)

    def _given(self, args: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """The arguments of a call in the order of the program's inputs."""
        spec = self._spec.in_spec
        inputs = [n.name for n in self._placeholders
                  if n.name not in self._constants and n.name not in self._names]  # fmt: skip
        places, _ = pytree.tree_unflatten(inputs, spec)
        named, found = dict(named), list(args)
        for place in places[len(args) :]:  # by name what was exported by place
            if isinstance(place, str) and place in named:
                found.append(named.pop(place))
        try:
            given: list[Any] = spec.flatten_up_to((tuple(found), named))
        except ValueError as problem:
            raise ArgumentError(
                f"these are not the arguments that it was exported with: {problem}",
                f"its inputs are {', '.join(inputs)}",
            ) from problem
        return given

    def _input(self, node: Any, value: Any) -> Any:
        """An argument, as a tensor or as the number that the program was made for."""
        if node.name in self._fixed:
            fixed = self._fixed[node.name]
            if type(value) is not type(fixed) or value != fixed:
                raise ArgumentError(
                    f"{node.name} is {value!r}; it was exported with {fixed!r}",
                    "export it with this number, or give it as a tensor",
                )
            return value
        if isinstance(value, Tensor | int | float) or value is None:
            return value
        return fg.asarray(value)

    def _symbols(self, env: dict[Any, Any]) -> dict[Any, Any]:
        """The values of the symbols in the shapes of inputs."""
        found: dict[Any, Any] = {}
        for node, value in env.items():
            fake = node.meta.get("val")
            if isinstance(fake, torch.SymInt) and fake.node.expr.is_symbol:
                found[fake.node.expr] = value
            if isinstance(fake, torch.Tensor) and isinstance(value, Tensor):
                for want, size in zip(fake.shape, value.shape, strict=False):
                    if isinstance(want, torch.SymInt) and want.node.expr.is_symbol:
                        found.setdefault(want.node.expr, size)
        return found

    def _check(self, node: Any, value: Any, numbers: Numbers) -> None:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{node.name} is {value!r}", "give a tensor")
        want, dtype = tuple(numbers.known(node).shape), TO_OURS[fake.dtype]
        if tuple(value.shape) != want:
            raise ArgumentError(
                f"{node.name} has shape {tuple(value.shape)}; it was exported with {want}",
                "export it with dynamic_shapes for sizes that vary",
            )
        if value.dtype is not dtype:
            raise ArgumentError(
                f"{node.name} is {value.dtype}; it was exported with {dtype}",
                f"give x.astype({dtype.name!r}), or export it with {value.dtype}",
            )

    def _results(self, lowering: Lowering, numbers: Numbers) -> Any:
        (last,) = [n for n in self._graph.nodes if n.op == "output"]
        results = []
        for spec, node in zip(self._signature.output_specs, last.args[0], strict=True):
            value = lowering.values.get(node, node) if isinstance(node, torch.fx.Node) else node
            if isinstance(value, torch.fx.Node):
                value = numbers.number(value)
            if spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
                _get(self, spec.target).assign(fg.stop_gradient(value))
            elif spec.kind.name == "USER_INPUT_MUTATION":
                (written,) = [n for n in self._placeholders if n.name == spec.target]
                lowering.values[written].assign(fg.stop_gradient(value))
            elif spec.kind.name == "USER_OUTPUT":
                results.append(value)
        return pytree.tree_unflatten(results, self._spec.out_spec)


def _is_aside(node: Any) -> bool:
    """True if a node computes a number of sizes, or only checks what torch computed."""
    name = getattr(getattr(node.target, "_schema", None), "name", "").partition("::")[2]
    if name.startswith(("_assert_", "sym_constrain_range")) and not node.users:
        return True
    return isinstance(
        node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float
    )


def _refuse(nodes: Sequence[Any], left: Mapping[Any, str]) -> None:
    """Raise for the first operator that torch would have to run."""
    for node in nodes:
        why = left.get(node) or _refused(node)
        if why is not None:
            raise ArgumentError(
                f"{shown(title_of(node.target))} of the exported program: {why}",
                'use torch.compile(module, backend="fulgurite"), which leaves it to torch',
            )


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
