"""Random programs as people write them, with gradients, against oracles that share no compiler.

In: a seed and a count. Out: nothing, or for each failure a short script to paste. A program is a
few layers joined by reshapes, slices, reductions and arithmetic, with a loss at its end
(`writer`, `layers`, `shaping`, `endings`). Its value and gradients are computed op by op
(`oracle`), then by the whole pipeline in several ways (`settings`): with sums that round otherwise
each time (`shaking`), under jit, with options on and off, in native code, and after a run with
other constants (`constants`). Differences of values along random directions, and torch where it is
installed, check the oracle itself.
Run many with `python -m tests.fuzz.programs --seed 0 --count 5000`.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from random import Random

import numpy as np

import fulgurite as fg

from ..passes import Verdict, guilty
from .constants import with_constants
from .oracle import Oracle, Unjudged
from .program import Program, script
from .settings import CHEAP, CUDA, NATIVE, SHAKEN, UNSEARCHED, Setting, answer
from .smaller import shorten
from .writer import write

__all__ = ["COUNTS", "Failure", "Program", "check", "failures", "main", "script", "write"]

COUNTS: Counter[str] = Counter()  # programs, runs of each setting, and what was not judged
ROUGHLY = {"float64": 1e-7, "float32": 1e-2}
ATTEMPTS = 3  # at a program that can be judged
SHORT = 4  # lines up to which the search is always asked
HAS_LLVM = find_spec("llvmlite") is not None


@dataclass(frozen=True)
class Failure:
    """A program and what is wrong with it in a setting."""

    seed: int
    number: int
    program: Program
    setting: Setting
    problem: str

    def __str__(self) -> str:
        """What is wrong, and a script that shows it."""
        text = script(self.program, self.setting.text, self.setting.asked(self.program.alone))
        if self.setting is TORCH:
            text += "\n\n# the same in torch, whose gradients are other ones:\n"
            text += "\n".join([f"# {line}" for line in self.program.defined(True)])
        if self.setting is DIFFERENCES:
            text += "\n\n# all of these agree, but not with (f(x + h d) - f(x - h d)) / 2h"
        if self.setting.shakes:
            text = "from tests.fuzz.programs.shaking import shaken\n" + text
        head = f"program {self.number} of seed {self.seed}, {self.setting.name}: {self.problem}"
        return f"{head}\nrepeat it: python -m tests.fuzz.programs --seed {self.seed} --first " \
            f"{self.number} --count 1\n\n{text}"  # fmt: skip

    def verdict(self) -> Verdict:
        """The pass after which its values part, as far as leaving passes out tells."""
        return guilty(
            lambda: answer(self.program, self.setting), tolerance=ROUGHLY[self.program.dtype],
            want=Oracle.of(self.program).want,
            native=self.setting.options["device"] == "cpu",
        )  # fmt: skip

    def short(self) -> Failure:
        """The same failure of the shortest program that has it."""
        wanted = _kind(self.problem)

        def fails(candidate: Program) -> bool:
            found = problem(candidate, self.setting)
            return found is not None and _kind(found) == wanted

        program = shorten(self.program, fails)
        return replace(
            self, program=program, problem=problem(program, self.setting) or self.problem
        )


def _kind(found: str) -> str:
    """Which error, or that a result is wrong."""
    return found.split(":")[0] if found.startswith("raised") else "wrong"


def problem(program: Program, setting: Setting, oracle: Oracle | None = None) -> str | None:
    """What is wrong with a program in a setting; what rounding decides is not."""
    try:
        known = oracle or Oracle.of(program)
        if setting is DIFFERENCES:
            return known.differences()
        if setting is TORCH:
            return known.in_torch(import_module("torch"))
    except Unjudged as reason:
        COUNTS[str(reason)] += 1
        return None
    try:
        found = answer(program, setting)
    except Exception as error:  # whatever it is, the oracle has an answer
        return f"raised {type(error).__name__}: {error}".split("\n")[0]
    try:
        return known.problem(found)
    except Unjudged:
        COUNTS["rounding decides"] += 1
        return None


DIFFERENCES = Setting("differences of values", SHAKEN.options)
TORCH = Setting("torch", SHAKEN.options)


def settings_of(number: int, lines: int, device: str = "", torch: bool = False) -> list[Setting]:
    """How a program is run: always shaken, and in some other ways that take turns."""
    random = Random(number)
    found = [SHAKEN if lines <= SHORT or number % 2 == 0 else UNSEARCHED]
    if device == "cuda":
        return [random.choice(CUDA)]
    if device == "cpu":
        return [*found, random.choice(NATIVE), *([TORCH] if torch else [])]
    if number % 2:
        found.append(random.choice(CHEAP))
    if number % 12 == 0 and HAS_LLVM:
        found.append(random.choice(NATIVE))
    if number % 3 == 0:
        found.append(DIFFERENCES)
    return [*found, TORCH] if torch else found


def failures(
    seed: int, numbers: Sequence[int], device: str = "", torch: bool = False
) -> Iterator[Failure]:
    """What goes wrong with the programs of these numbers."""
    for number in numbers:
        found = judged(seed, number)
        if found is None:
            continue
        COUNTS["programs"] += 1
        wide = found.wide()
        for setting in settings_of(number, len(found.program.lines), device, torch):
            COUNTS[setting.name] += 1
            exact = setting.shakes or setting is TORCH or setting is DIFFERENCES
            known = wide if exact else found
            wrong = problem(known.program, setting, known)
            if wrong is not None:
                yield Failure(seed, number, known.program, setting, wrong)
                break
        else:
            yield from changed(seed, number, wide.program, device)
        if number % 64 == 0:
            fg.clear_caches()


def changed(seed: int, number: int, program: Program, device: str) -> Iterator[Failure]:
    """What goes wrong with a share of the programs after a run with other constants."""
    if number % 6 != 1:
        return
    native = number % 48 == 1 and HAS_LLVM
    setting = CUDA[0] if device == "cuda" else NATIVE[0] if native or device == "cpu" else SHAKEN
    program = with_constants(program, Random(number))
    try:
        known = Oracle.of(program)
    except Unjudged as reason:
        COUNTS[str(reason)] += 1
        return
    COUNTS["other constants"] += 1
    wrong = problem(program, setting, known)
    if wrong is not None:
        yield Failure(seed, number, program, setting, wrong)


def judged(seed: int, number: int) -> Oracle | None:
    """A program of this number with its answer, if it has one after some attempts."""
    for attempt in range(ATTEMPTS):
        try:
            found = Oracle.of(write(seed, number, attempt))
            found.wide()
            return found
        except Unjudged as reason:
            COUNTS[str(reason)] += 1
    return None


def check(seed: int, numbers: Sequence[int], device: str = "", torch: bool = False) -> None:
    """Programs through the pipeline; the first that fails is raised at its shortest."""
    for failure in failures(seed, numbers, device, torch):
        raise AssertionError(str(failure.short()))


def coverage() -> str:
    """How many programs there were, and how often each setting ran."""
    return ", ".join([f"{name} {count}" for name, count in sorted(COUNTS.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check many programs of a seed and print a script for each that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.programs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first program's number")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--stop-first", action="store_true", help="one failure is enough")
    parser.add_argument("--whole", action="store_true", help="print programs as they were written")
    parser.add_argument(
        "--device",
        default="",
        help="cpu: every program in native code too; cuda: every program on the GPU",
    )
    chosen = parser.parse_args(arguments)
    torch, failed, started = find_spec("torch") is not None, 0, time.monotonic()
    numbers = range(chosen.first, chosen.first + chosen.count)
    gc.freeze()  # modules live until the end: no collection need walk over them again
    gc.set_threshold(50_000, 20, 20)
    with np.errstate(all="ignore"):
        for failure in failures(chosen.seed, numbers, chosen.device, torch):
            failed += 1
            print(failure if chosen.whole else failure.short())
            print(failure.verdict(), "\n", flush=True)
            if chosen.stop_first:
                break
    took = time.monotonic() - started
    print(coverage())
    print(f"{failed} failed, {COUNTS['programs'] / max(took, 1e-9):.1f} programs a second")
    return 1 if failed else 0
