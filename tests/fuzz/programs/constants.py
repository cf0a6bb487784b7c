"""Programs whose numbers change from run to run: what caches keep of one must not serve another.

In: a program. Out: the same with numbers that lines read by name (`c0`), one set for the run that
is judged and another for a run before it, in one process. Plans take most constants for inputs, but
laws name some (0, 1, 2), so the values are those, and a few that no law knows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

from .program import Line, Program
from .smaller import shapes_of

VALUES = (0.0, 1.0, 2.0, 3.0, 0.5, -1.0, 1.5)
WAYS = ("({x}) * {c}", "({x}) + {c}", "({x}) - {c}", "{c} - ({x})", "({x}) / {c}")
NUMBER = re.compile(r"(?<=[^*] [*+/-] )\d+(\.\d+)?(e-?\d+)?\b")  # after an operator
MOST = 3  # lines that get a number
CHANCE = 0.3  # that a number which is there becomes another


def with_constants(program: Program, random: Random) -> Program:
    """A program with numbers that change, in some of its lines."""
    shapes = shapes_of(program)
    able = [i for i, line in enumerate(program.lines)
            if len(line.names) == 1 and line.names[0] in shapes]  # fmt: skip
    chosen = set(random.sample(able, min(len(able), random.randint(1, MOST))))
    count, lines = 0, []
    for number, line in enumerate(program.lines):
        found = NUMBER.findall(line.code)
        if found and found == NUMBER.findall(line.torch) and random.random() < CHANCE:
            code, torch = [NUMBER.sub(f"c{count}", text, 1) for text in (line.code, line.torch)]
            line, count = replace(line, code=code, torch=torch), count + 1
        if number in chosen:
            line, count = _changed(line, random.choice(WAYS), count), count + 1
        lines.append(line)
    values = tuple([random.choice(VALUES) for _ in range(count)])
    before = tuple([random.choice([v for v in VALUES if v != value]) for value in values])
    return replace(program, lines=tuple(lines), constants=values, before=before)


def _changed(line: Line, way: str, number: int) -> Line:
    code, torch = [way.format(x=text, c=f"c{number}") for text in (line.code, line.torch)]
    return replace(line, code=code, torch=torch)
