"""Writing a program: steps are chosen that fit the shape of what has been written so far.

In: a seed and a number. Out: a `Program`. Each line is built at once as lazy tensors, so that its
shape is known and one that does not fit is thought of again; nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.errors import FulguriteError

from .program import Input, Line, Program

MOST = 1500  # elements of one value
NORMAL = "rng.standard_normal({shape})"
DTYPES = ("float64", "float64", "float64", "float32")


class Unfit(Exception):
    """A step that does not fit; another is tried."""


class Writer:
    """A program that grows: names, shapes, and the lazy tensors behind them."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(seed)
        self.inputs: list[Input] = []
        self.lines: list[Line] = []
        self.values: dict[str, fg.Tensor] = {}
        self.counts: dict[str, int] = {}
        self.smooth = True
        self.now = ""  # the value that the next step goes on with
        self.past: list[str] = []  # values that a later step may come back to

    # --- choosing ---

    def one(self, *among: Any) -> Any:
        """One of these."""
        return self.random.choice(among)

    def often(self, chance: float) -> bool:
        """True if a throw succeeds."""
        return self.random.random() < chance

    # --- names and shapes ---

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple([int(n) for n in self.values[name].shape])

    def fresh(self, letter: str) -> str:
        """A new name."""
        self.counts[letter] = self.counts.get(letter, -1) + 1
        return f"{letter}{self.counts[letter]}"

    def input(self, shape: tuple[int, ...], draw: str = NORMAL, letter: str = "w") -> str:
        """A new argument; that of whole numbers or truths has no gradient."""
        if math.prod(shape) > MOST:
            raise Unfit
        name = self.fresh(letter)
        text = draw.format(shape=shape)
        sample = np.asarray(eval(text, {"rng": np.random.default_rng(0), "np": np}))
        varied = sample.dtype.kind == "f" and draw == NORMAL
        self.inputs.append(Input(name, draw, shape, varied))
        self.values[name] = fg.Tensor(sample)
        return name

    def weight(self, *shape: int) -> str:
        """Weights, scaled to keep what they multiply at its size."""
        return self.input(shape)

    def say(self, code: str, torch: str | None = None, results: int = 1) -> str:
        """A new line; torch's spelling is the same with `fg.` as `torch.` unless given."""
        made = eval(code, {"fg": fg, "np": np}, dict(self.values))
        found = (made,) if results == 1 else tuple(made)
        if any(math.prod(t.shape) > MOST or 0 in t.shape or t.ndim > 6 for t in found):
            raise Unfit
        names = tuple([self.fresh("v") for _ in found])
        spelled = code.replace("fg.", "torch.") if torch is None else torch
        self.lines.append(Line(names, code, spelled))
        self.values.update(zip(names, found, strict=True))
        return names[0]

    def last(self, count: int) -> tuple[str, ...]:
        """The names that the last line bound."""
        return self.lines[-1].names[:count]

    def function(self, name: str, *given: str, torch: str | None = None) -> str:
        """A call that torch's functional module spells alike."""
        listed = ", ".join(given)
        return self.say(f"fg.{name}({listed})", f"F.{torch or name}({listed})")

    # --- growing ---

    def attempt(self, step: Callable[[Writer, str], str]) -> bool:
        """Go on with a step, or leave everything as it was if it does not fit."""
        before = len(self.inputs), len(self.lines)
        try:
            now = step(self, self.now)
        except (Unfit, FulguriteError):
            del self.inputs[before[0] :], self.lines[before[1] :]
            return False
        self.past.append(self.now)
        self.now = now
        return True


def wanted_of(w: Writer) -> tuple[Input, ...]:
    """The inputs, with gradients of all, of the first (an attack) or of the others (training)."""
    way = w.random.random()
    if way < 0.5:
        return tuple(w.inputs)
    first = [given.name for given in w.inputs if given.varied][:1]
    return tuple([
        replace(given, varied=given.varied and (given.name in first) == (way < 0.75))
        for given in w.inputs
    ])  # fmt: skip


def write(seed: int, number: int, attempt: int = 0) -> Program:
    """The program of a seed and a number."""
    from .endings import finish
    from .steps import START, STEPS

    with fg.config(device="reference"):
        w = Writer(f"{seed}:{number}:{attempt}")
        w.now = w.random.choices([s for _, s in START], [n for n, _ in START])[0](w)
        wanted = w.one(1, 2, 2, 3, 3, 3, 4, 4, 5, 6)
        for _ in range(6 * wanted):
            if len(w.past) >= wanted or not w.shape(w.now):
                break
            fitting = [s for s in STEPS if len(w.shape(w.now)) in s.ndims]
            w.attempt(w.random.choices(fitting, [s.weight for s in fitting])[0].write)
        result = finish(w)
        program = Program(
            wanted_of(w), tuple(w.lines), result, w.random.randrange(1000),
            w.random.choice(DTYPES), w.smooth,
        )  # fmt: skip
        return program.needed()
