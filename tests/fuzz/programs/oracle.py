"""What a program should give, and whether an answer is as good as rounding allows.

In: a program and an answer. Out: None, or a line that says what is wrong. The oracle is the graph
as it was built, op by op as the op table says, in float64: no law, no kernel, no search. Its own
gradient is held against differences of its values along random directions, and against torch where
that is installed. A difference counts only if it is far more than what rounding does to the oracle
itself: on a mismatch the oracle is run again with its inputs and sums disturbed in their last
bits, and what moves then (a tie that rounding breaks, a sum that cancels) is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulgurite.core.op import Array

from .program import Program
from .settings import PLAIN, Answer, Setting, answer, meaning
from .shaking import noisy

TOLERANCE = {"float64": 1e-7, "float32": 3e-5}  # a kernel may recompute with other bits
LARGEST = 1e6  # values and gradients; beyond, rounding is all there is to see
TORCH_TOLERANCE = 1e-6  # some of its constants are float32 ones
TRIALS = 6
UNSURE = 1e-3  # a gradient that rounding moves by more is not judged at all


class Unjudged(Exception):
    """The program has no answer that rounding leaves alone."""


@dataclass
class Oracle:
    """A program with its answer in float64."""

    program: Program
    want: Answer
    other: Oracle | None = None  # the same in float64

    @classmethod
    def of(cls, program: Program) -> Oracle:
        """Compute it; a program whose numbers are not finite, or large, is refused."""
        if not program.varied:
            raise Unjudged("nothing has a gradient")
        data = [a.astype("float64") if a.dtype.kind == "f" else a for a in program.data()]
        want = meaning(program, data)
        if any(not np.isfinite(a).all() or np.abs(a).max(initial=0) > LARGEST for a in want):
            raise Unjudged("its numbers are not finite, or large")
        return cls(program, want)

    def wide(self) -> Oracle:
        """The same program in float64, where rounding is far below any mistake."""
        if self.program.dtype == "float64":
            return self
        if self.other is None:
            self.other = Oracle.of(replace(self.program, dtype="float64"))
        return self.other

    def problem(self, got: Answer, rough: float = 0.0) -> str | None:
        """What is wrong with an answer, if anything; what is unsure raises `Unjudged`."""
        for place, (right, found) in enumerate(zip(self.want, got, strict=True)):
            if right.shape != found.shape:
                return f"{self.label(place)} has shape {found.shape}, not {right.shape}"
        rough = rough or TOLERANCE[self.program.dtype]
        if all(_within(a, b, rough) for a, b in zip(self.want, got, strict=True)):
            return None
        moved = self.moves()
        for place, (right, found) in enumerate(zip(self.want, got, strict=True)):
            size = 1 + np.abs(right).max(initial=0)
            allowed = rough * size + 30 * moved[place]
            if moved[place].max(initial=0) > UNSURE * size:
                raise Unjudged("rounding moves its gradient")
            wrong = ~(np.abs(found - right) <= allowed)
            if wrong.any():
                at = tuple([int(i) for i in np.argwhere(wrong)[0]])
                return (
                    f"{self.label(place)} is wrong at {wrong.sum()} of {wrong.size} places, "
                    f"{float(found[at]):.6g} for {float(right[at]):.6g} at {at}; "
                    f"sums {float(found.sum()):.6g} for {float(right.sum()):.6g}"
                )
        return None

    def label(self, place: int) -> str:
        """The value, or the gradient of an input."""
        if place == 0:
            return "the value"
        program = self.program
        return f"the gradient of {program.inputs[program.varied[place - 1]].name}"

    def moves(self) -> Answer:
        """How far last bits move the oracle's own answer, element by element."""
        setting = Setting("disturbed", PLAIN, shakes=True)
        largest = [np.zeros(a.shape) for a in self.want]
        for trial in range(TRIALS):
            rng = np.random.default_rng(trial)
            data = [
                noisy(a, rng) if a.dtype.kind == "f" and trial else a for a in self.program.data()
            ]
            try:
                found = answer(self.program, setting, data, trial)
            except FloatingPointError:
                raise Unjudged("it cannot be disturbed") from None
            for place, (right, other) in enumerate(zip(self.want, found, strict=True)):
                with np.errstate(invalid="ignore"):
                    apart = np.nan_to_num(np.abs(other - right), nan=np.inf)
                largest[place] = np.maximum(largest[place], apart)
        return largest

    # --- independent oracles ---

    def differences(self) -> str | None:
        """The gradient against differences of values, along random directions."""
        program = self.program
        data = [a.astype("float64") if a.dtype.kind == "f" else a for a in program.data()]
        rng = np.random.default_rng(program.seed + 1)
        wrong = []
        for _ in range(4):
            ways = [
                np.asarray(rng.standard_normal(a.shape)) if i in program.varied else None
                for i, a in enumerate(data)
            ]
            slopes = [_slope(program, data, ways, h) for h in (1e-5, 5e-6, 2e-6)]
            pairs = zip(program.varied, self.want[1:], strict=True)
            right = sum(float((g * ways[i]).sum()) for i, g in pairs)
            size = 1e-2 + abs(right) + abs(slopes[0])
            if max(slopes) - min(slopes) > 1e-4 * size:
                continue  # a corner is near
            if abs(right - slopes[0]) <= 1e-3 * size:
                return None
            wrong.append(f"{right:.6g} for {slopes[0]:.6g}")
        if len(wrong) < 3:
            return None
        return f"the slope along a direction is {wrong[0]} by differences of values"

    def in_torch(self, torch: Any) -> str | None:
        """The gradient against torch's."""
        program = self.program
        data = [a.astype("float64") if a.dtype.kind == "f" else a for a in program.data()]
        args = [torch.tensor(a) for a in data]
        for place in program.varied:
            args[place].requires_grad_()
        given = [args[place] for place in program.varied]
        try:
            value = program.torch_function(torch)(*args)
            found = torch.autograd.grad(value, given, allow_unused=True)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise Unjudged(f"torch refuses: {error}".split("\n")[0]) from None
        got = [value.detach().numpy()] + [
            np.zeros(a.shape) if g is None else g.numpy() for a, g in zip(given, found, strict=True)
        ]
        wrong = self.problem(got, TORCH_TOLERANCE)
        return None if wrong is None else f"torch disagrees: {wrong}"


def _within(a: Array, b: Array, rough: float) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.abs(a - b) <= rough * (1 + np.abs(a).max(initial=0))))


def _slope(
    program: Program, data: Sequence[Array], ways: Sequence[Array | None], h: float
) -> float:
    def at(t: float) -> float:
        moved = [a if way is None else a + t * way for a, way in zip(data, ways, strict=True)]
        return float(meaning(program, moved, gradients=False)[0])

    return (at(h) - at(-h)) / (2 * h)
