"""`fulgurite run model.pt2`: a program of `torch.export` on given or random inputs, timed, checked.

In: the words of the command. Out: what the program gives, on the terminal or in a file, how long a
run takes, and, with `--check torch`, how far it is from torch's own. The exit code is 1 if it is
further than the tolerance.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

import fulgurite as fg

from ..errors import ArgumentError
from .arrays import tensor_of
from .conformance.judge import distance
from .exported import Exported, load


def command(arguments: argparse.Namespace) -> int:
    """Run a program; the exit code."""
    program = load(arguments.model)
    named = {"threads": arguments.threads} if arguments.threads else {}
    if arguments.device:
        named["device"] = arguments.device
    with fg.config(**named):
        model = Exported(program)
        given = inputs_for(program, arguments.input, arguments.seed)
        before = [
            tensor_of(x) if isinstance(x, fg.Tensor) else x for x in given
        ]  # a program may write to its inputs
        call = fg.jit(lambda *tensors: pytree.tree_flatten(_called(program, model, tensors))[0])
        start = time.perf_counter()
        found = [x for x in call(*given) if isinstance(x, fg.Tensor)]
        arrays = {f"output_{i}": x.numpy() for i, x in enumerate(found)}
        figures: dict[str, Any] = {"first_seconds": time.perf_counter() - start}
        for name, array in arrays.items():
            print(f"{name}: {array.dtype}{list(array.shape)}, mean {_mean(array):.6g}")
        if arguments.time:
            figures["median_seconds"] = _timed(call, given, arguments.time)
            print(f"{figures['median_seconds'] * 1e3:.3f} ms, the median of {arguments.time}")
    if arguments.output:
        np.savez(arguments.output, **arrays)  # type: ignore[arg-type]
    code = 0
    if arguments.check:
        code = _checked(program, before, found, arguments, figures)
    if arguments.json:
        print(json.dumps(figures))
    return code


def inputs_for(program: Any, words: list[str], seed: int) -> list[Any]:
    """What a program takes: tensors of a file, or random in the shape exported, and numbers."""
    asked = dict(word.partition("=")[::2] for word in words)
    taken = [s.arg.name for s in _inputs(program) if not isinstance(s.arg, ConstantArgument)]
    wanted = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in taken]
    unknown = asked.keys() - {n.name for n in wanted}
    if unknown:
        names = ", ".join([n.name for n in wanted])
        raise ArgumentError(f"there is no input {unknown.pop()!r}", f"one of {names}")
    rng = np.random.default_rng(seed)
    return [_tensor(n, asked.get(n.name, "rand"), rng)
            if isinstance(n.meta["val"], torch.Tensor) else _number(n, asked.get(n.name))
            for n in wanted]  # fmt: skip


def _tensor(node: Any, what: str, rng: np.random.Generator) -> fg.Tensor:
    """A tensor of a file, or of numbers in the shape that is asked for or was exported."""
    if what.endswith(".npy"):
        if not Path(what).is_file():
            raise ArgumentError(f"{node.name}: {what} is no file", "give a file of numpy.save")
        return fg.Tensor(np.load(Path(what)))
    fake = node.meta["val"]
    kind, _, text = what.partition(":")
    if kind not in ("rand", "zeros", "ones") or not set(text) <= set("0123456789x"):
        raise ArgumentError(f"{node.name}={what!r}", "give a .npy file, rand:2x3, zeros or ones")
    shape = tuple(map(int, text.split("x"))) if text else tuple([_size(n) for n in fake.shape])
    array = rng.standard_normal(shape) if kind == "rand" else np.full(shape, kind == "ones")
    if kind == "rand" and not fake.dtype.is_floating_point:
        array = rng.integers(0, 2, shape)
    return fg.Tensor(array).astype(str(fake.dtype).removeprefix("torch."))


def _inputs(program: Any) -> list[Any]:
    return [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]


def _called(program: Any, model: Any, tensors: Sequence[Any]) -> Any:
    """A call with tensors as the program was exported: by place, by name, beside its numbers."""
    rest = iter(tensors)
    flat = [s.arg.value if isinstance(s.arg, ConstantArgument) else next(rest)
            for s in _inputs(program)]  # fmt: skip
    args, named = pytree.tree_unflatten(flat, program.call_spec.in_spec)
    return model(*args, **named)


def _number(node: Any, text: str | None) -> int:
    """A whole number that a program takes: the one asked for, or that of its export."""
    if text is None:
        return _size(node.meta["val"])
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{node.name}={text!r}", "give a whole number") from None


def _size(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint or 2)


def _mean(array: Any) -> float:
    return float(np.mean(array.astype(np.float64))) if array.size else 0.0


def _timed(call: Any, given: list[fg.Tensor], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        fg.realize(*[x for x in call(*given) if isinstance(x, fg.Tensor)])
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _checked(
    program: Any, given: list[Any], found: list[fg.Tensor], arguments: Any, figures: Any
) -> int:
    if arguments.check != "torch":
        raise ArgumentError(f"--check {arguments.check}", "a .pt2 file is checked by torch")
    with torch.no_grad():
        theirs = pytree.tree_flatten(_called(program, program.module(), given))[0]
    theirs = [t for t in theirs if isinstance(t, torch.Tensor)]
    apart = [distance(tensor_of(a), b) for a, b in zip(found, theirs, strict=True)]
    worst = figures["distance"] = max(apart, default=0.0)
    print(f"torch: {worst:.2e} apart, {'fine' if worst <= arguments.tolerance else 'too far'}")
    return int(worst > arguments.tolerance)
