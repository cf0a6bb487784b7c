"""Ways to run a program: options, devices and transforms, each with the text that repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.leaf import BUFFER
from fulgurite.graph.ir.registry import REGISTRY
from fulgurite.runtime.host.evaluate import evaluate

from .program import Program
from .shaking import shaken

Answer = list[Array]  # the value, then the gradient of each input that has one
PLAIN = {"device": "reference", "simplify": False, "fuse": False, "search": False}


@dataclass(frozen=True)
class Setting:
    """Options in force, and how the gradient is asked for."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    way: str = "value_and_grad"
    shakes: bool = False

    @property
    def text(self) -> str:
        """The context manager, as code."""
        listed = ", ".join([f"{name}={value!r}" for name, value in self.options.items()])
        return f"fg.config({listed})" + (", shaken(0)" if self.shakes else "")

    def asked(self, alone: bool) -> list[str]:
        """The lines that give value and gradients, as `answer` asks for them."""
        if self.way == "backward":
            return [
                "for i in varied:", "    args[i].requires_grad_()", "value = f(*args)",
                "value.backward()", "gradients = [args[i].grad for i in varied]",
                "fg.realize(value, *gradients)",
            ]  # fmt: skip
        function = "fg.checkpoint(f)" if self.way == "checkpoint" else "f"
        asked = f"fg.value_and_grad({function}, varied)"
        lines = [f"g = fg.jit({asked})", "g(*args)[0].numpy()"] if self.way == "jit" else []
        lines.append(f"value, gradients = {'g' if lines else asked}(*args)")
        return [*lines, f"fg.realize({'*gradients' if alone else 'value, *gradients'})"]


def _on(device: str, **options: Any) -> dict[str, Any]:
    more = {"tier": "native"} if device == "cpu" and "tier" not in options else {}
    return {"device": device, **more, **options}


SHAKEN = Setting("shaken", _on("reference"), shakes=True)
UNSEARCHED = Setting("shaken, without search", _on("reference", search=False), shakes=True)
CHEAP = (
    Setting("jit", _on("reference"), "jit"),
    Setting("jit, shaken", _on("reference"), "jit", shakes=True),
    Setting("backward", _on("reference"), "backward"),
    Setting("checkpoint", _on("reference"), "checkpoint"),
    Setting("verified in poisoned memory", _on("reference", verify=True, poison=True)),
    Setting("without search", _on("reference", search=False)),
    Setting("without simplification", _on("reference", simplify=False)),
    Setting("without fusion", _on("reference", fuse=False)),
    Setting("exact", _on("reference", exact=True)),
    Setting("not deterministic", _on("reference", deterministic=False)),
)
NATIVE = (
    Setting("native", _on("cpu")),
    Setting("native, sizes fixed", _on("cpu", dynamic=False)),
    Setting("native, jit", _on("cpu"), "jit"),
    Setting("native, jit", _on("cpu", threads=2), "jit"),
    Setting("native, auto tier", _on("cpu", tier="auto")),
    Setting("native, auto tier, jit", _on("cpu", tier="auto"), "jit"),
    Setting("native, backward", _on("cpu"), "backward"),
    Setting("native, without search", _on("cpu", search=False)),
    Setting("native, without simplification", _on("cpu", simplify=False)),
    Setting("native, without fusion", _on("cpu", fuse=False)),
    Setting("native, exact", _on("cpu", exact=True)),
    Setting("native, not deterministic", _on("cpu", deterministic=False)),
    Setting("native, avx2", _on("cpu", vectors="avx2")),
    Setting("native, sse2", _on("cpu", vectors="sse2")),
    Setting("native, channels last", _on("cpu", channels_last="on")),
    Setting("native, strips of rows", _on("cpu", strip_bytes=256)),
    Setting("native, one thread", _on("cpu", threads=1)),
    Setting("native, poisoned memory", _on("cpu", verify=True, poison=True)),
)
CUDA = (
    Setting("cuda", _on("cuda")),
    Setting("cuda, jit", _on("cuda"), "jit"),
    Setting("cuda, backward", _on("cuda"), "backward"),
    Setting("cuda, without search", _on("cuda", search=False)),
    Setting("cuda, without fusion", _on("cuda", fuse=False)),
    Setting("cuda, exact", _on("cuda", exact=True)),
    Setting("cuda, poisoned memory", _on("cuda", verify=True, poison=True)),
)


def answer(
    program: Program, setting: Setting, data: Sequence[Array] | None = None, seed: int = 0
) -> Answer:
    """The program's value and gradients as a setting computes them."""
    with ExitStack() as stack:
        stack.enter_context(fg.config(disk_cache=False, **setting.options))
        if setting.shakes:
            stack.enter_context(shaken(seed))
        args = [fg.Tensor(a) for a in (program.data() if data is None else data)]
        if program.first is not None:
            _asked(program.first.function(), program.varied, args, "value_and_grad", False)
        return _asked(program.function(), program.varied, args, setting.way, program.alone)


def _asked(
    f: Callable[..., fg.Tensor], varied: tuple[int, ...], args: list[fg.Tensor], way: str,
    alone: bool,
) -> Answer:  # fmt: skip
    """Value and gradients; `alone` computes the gradients before anybody asks for the value."""
    if way == "backward":
        for place in varied:
            args[place].requires_grad_()
        value = f(*args)
        value.backward()
        found: list[Any] = [value, *[args[place].grad for place in varied]]
        fg.realize(*found)
        return [t.numpy() for t in found]
    asked = fg.value_and_grad(fg.checkpoint(f) if way == "checkpoint" else f, varied)
    if way == "jit":
        asked = fg.jit(asked)
        first, _ = asked(*args)  # captured
        first.numpy()
    value, gradients = asked(*args)
    fg.realize(*gradients) if alone else fg.realize(value, *gradients)
    return [value.numpy(), *[g.numpy() for g in gradients]]


def meaning(program: Program, data: Sequence[Array], gradients: bool = True) -> Answer:
    """The graph as it is built, op by op by the op table: nothing of the compiler takes part."""
    with fg.config(device="reference"):
        args = [fg.Tensor(a) for a in data]
        if gradients:
            value, found = fg.value_and_grad(program.function(), program.varied)(*args)
            asked = [value, *found]
        else:
            asked = [program.function()(*args)]
        roots = [t.node for t in asked]
        leaves = [n for n in toposort(roots) if n.op is BUFFER]
        memory: list[Any] = [REGISTRY.memory(leaf) for leaf in leaves]
        return evaluate(roots, {n: m.array for n, m in zip(leaves, memory, strict=True)})
