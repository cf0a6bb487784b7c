"""A program as people write them: inputs, lines of `fg.` code, and one number at the end.

In: inputs with the text that makes their data, and lines, each with its spelling in `fg` and in
torch. Out: the same as a function to run, and as a script to paste. A program is text all the way:
what is run, what is made smaller and what is printed are the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType
from typing import Any

import numpy as np

import fulgurite as fg
import fulgurite.nn
from fulgurite.core.op import Array

BEFORE = ("value, gradients = fg.value_and_grad(first, varied)(*args)",
          "fg.realize(value, *gradients)")  # fmt: skip
NAME = re.compile(r"\b[a-z]+[0-9]+\b")  # of inputs and values: x0, w1, v2


@dataclass(frozen=True)
class Input:
    """An argument: a name, and how its data are drawn from `rng`."""

    name: str
    draw: str  # an expression with `rng` and {shape}
    shape: tuple[int, ...]
    varied: bool = True  # is its gradient taken?

    @property
    def text(self) -> str:
        """The expression that draws its data."""
        return self.draw.format(shape=self.shape)


@dataclass(frozen=True)
class Line:
    """One statement: the names it binds and its right side in both spellings."""

    names: tuple[str, ...]
    code: str
    torch: str

    @property
    def text(self) -> str:
        """The statement."""
        return f"{', '.join(self.names)} = {self.code}"

    @property
    def uses(self) -> set[str]:
        """The names it reads."""
        return set(NAME.findall(self.code))


@dataclass(frozen=True)
class Program:
    """Inputs, lines, and the name of the number that is differentiated."""

    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    result: str
    seed: int  # of the data
    dtype: str = "float64"
    smooth: bool = True  # may differences of values be taken for its gradient?
    constants: tuple[float, ...] = ()  # numbers c0, c1, ... that its lines read
    before: tuple[float, ...] = ()  # those of a run before, by which caches know the program

    @property
    def varied(self) -> tuple[int, ...]:
        """Which inputs have a gradient."""
        return tuple([i for i, given in enumerate(self.inputs) if given.varied])

    @property
    def alone(self) -> bool:
        """True if the gradients are computed before anybody asks for the value."""
        return self.seed % 3 == 0

    def needed(self) -> Program:
        """The program without what its result does not depend on."""
        wanted, lines = {self.result}, []
        for line in reversed(self.lines):
            if wanted & {*line.names}:
                wanted |= line.uses
                lines.append(line)
        inputs = tuple([given for given in self.inputs if given.name in wanted])
        return replace(self, inputs=inputs, lines=tuple(reversed(lines)))

    def data(self, dtype: str | None = None) -> list[Array]:
        """The inputs' data, floats in the program's dtype (or another)."""
        rng = np.random.default_rng(self.seed)
        drawn = [np.asarray(eval(_compiled(i.text), {"rng": rng, "np": np})) for i in self.inputs]
        return [a.astype(dtype or self.dtype) if a.dtype.kind == "f" else a for a in drawn]

    def function(self) -> Callable[..., fg.Tensor]:
        """The program as a function of its inputs."""
        scope: dict[str, Any] = {"fg": fg, "np": np}
        exec(_compiled("\n".join(self.defined(False)), "exec"), scope)
        found: Callable[..., fg.Tensor] = scope["f"]
        return found

    def torch_function(self, torch: Any) -> Callable[..., Any]:
        """The same in torch."""
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "np": np}
        exec("\n".join(self.defined(True)), scope)
        found: Callable[..., Any] = scope["f"]
        return found

    @property
    def first(self) -> Program | None:
        """The same with the numbers of the run before."""
        return replace(self, constants=self.before, before=()) if self.before else None

    def defined(self, torch: bool, name: str = "f") -> list[str]:
        """The lines of `def f(...)`."""
        inner = [f"    c{number} = {value}" for number, value in enumerate(self.constants)]
        inner += [
            f"    {', '.join(line.names)} = {line.torch if torch else line.code}"
            for line in self.lines
        ]
        head = f"def {name}({', '.join([given.name for given in self.inputs])}):"
        return [head, *inner, f"    return {self.result}"]


@cache
def _compiled(text: str, mode: str = "eval") -> CodeType:
    return compile(text, "<program>", mode)


def script(program: Program, setting: str, asked: Sequence[str]) -> str:
    """A script that shows both answers; `asked` are lines that give `value` and `gradients`."""
    made = []
    for given, data in zip(program.inputs, program.data(), strict=True):
        cast = '.astype("float32")' if data.dtype == np.float32 else ""
        made.append(
            f"{given.name} = ({given.text}){cast}" if cast else f"{given.name} = {given.text}"
        )
    names = ", ".join([given.name for given in program.inputs])
    other: list[str] = []
    if program.first is not None:  # it fills caches
        other = ["", *program.first.defined(False, "first")]
        asked = [*BEFORE, *asked]
    return "\n".join([
        "import numpy as np", "import fulgurite as fg", "import fulgurite.nn", "",
        f"rng = np.random.default_rng({program.seed})", *made, f"varied = {program.varied}", "",
        *program.defined(False), *other, "", "def run():",
        f"    args = [fg.tensor(a) for a in ({names},)]", *[f"    {line}" for line in asked],
        "    return [t.numpy() for t in (value, *gradients)]", "",
        'with fg.config(device="reference", simplify=False, fuse=False, search=False):',
        "    want = run()",
        f"with {setting}:",
        "    got = run()",
        "for a, b in zip(want, got):",
        "    print(np.abs(a - b).max(), np.abs(a).max(), a.sum(), b.sum())",
    ])  # fmt: skip


def renamed(lines: Iterable[Line], old: str, new: str) -> tuple[Line, ...]:
    """Lines that read one name in the place of another."""
    pattern = re.compile(rf"\b{old}\b")
    return tuple([
        replace(line, code=pattern.sub(new, line.code), torch=pattern.sub(new, line.torch))
        for line in lines
    ])  # fmt: skip
