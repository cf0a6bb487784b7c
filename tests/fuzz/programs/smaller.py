"""A failing program made as short as it gets.

In: a program and a predicate. Out: a program for which the predicate still holds: it ends sooner,
lines have become inputs or are left out, sizes are smaller, fewer gradients are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

import fulgurite as fg
from fulgurite.core.op import Array

from .program import Input, Line, Program, renamed

TRIES = 400


def shorten(program: Program, fails: Callable[[Program], bool], tries: int = TRIES) -> Program:
    """The shortest program found, by taking one thing away at a time."""
    shrinking = True
    while shrinking:
        shrinking = False
        for candidate in smaller(program):
            if tries == 0:
                return program
            tries -= 1
            try:
                if fails(candidate):
                    program, shrinking = candidate, True
                    break
            except Exception:  # what cannot even be built is no candidate
                continue
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the largest steps first."""
    shapes = shapes_of(program)
    for line in program.lines[:-1]:  # end here
        for name in line.names:
            if name in shapes:
                yield from ended(program, name)
    for line in reversed(program.lines[:-1]):
        yield from without(program, line, shapes)
    if len(program.varied) > 1:
        for place in program.varied:
            yield replace(program, inputs=tuple([
                replace(given, varied=i == place) for i, given in enumerate(program.inputs)
            ]))  # fmt: skip
    if program.dtype != "float64":
        yield replace(program, dtype="float64")
    yield from with_smaller_sizes(program)


def ended(program: Program, name: str) -> Iterator[Program]:
    """The sum of an inner value, or its largest element, as the result."""
    last = program.lines[-1]
    place = next(i for i, line in enumerate(program.lines) if name in line.names)
    if place + 2 == len(program.lines) and last.code in (f"{name}.sum()", f"{name}.max()"):
        return
    for fold, torch in (("sum", "sum"), ("max", "max")):
        end = Line(last.names[:1], f"{name}.{fold}()", f"{name}.{torch}()")
        lines = (*program.lines[: place + 1], end)
        yield replace(program, lines=lines, result=end.names[0]).needed()


def without(program: Program, line: Line, shapes: dict[str, tuple[int, ...]]) -> Iterator[Program]:
    """Its result is what it reads, where that has the same shape, or an input of its own."""
    place = program.lines.index(line)
    rest = program.lines[:place] + program.lines[place + 1 :]
    if len(line.names) != 1:
        for name in line.names:
            if name in shapes:
                yield from as_input(program, rest, name, shapes[name], line)
        return
    name = line.names[0]
    for other in sorted(line.uses):
        if shapes.get(other) == shapes.get(name):
            yield replace(program, lines=renamed(rest, name, other)).needed()
    yield from as_input(program, rest, name, shapes[name], None)


def as_input(
    program: Program, rest: tuple[Line, ...], name: str, shape: tuple[int, ...], keep: Line | None
) -> Iterator[Program]:
    """A value as an input of normal numbers."""
    fresh = Input(f"y{name[1:]}", "rng.standard_normal({shape})", shape)
    lines = program.lines if keep is not None else rest
    made = replace(
        program, inputs=(*program.inputs, fresh), lines=renamed(lines, name, fresh.name)
    ).needed()
    yield made


def with_smaller_sizes(program: Program) -> Iterator[Program]:
    """Every size of one length made shorter, in all inputs and in the lines' numbers too."""
    sizes = sorted({n for given in program.inputs for n in given.shape if n > 1}, reverse=True)
    for size in sizes:
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < less < size:
                inputs = tuple([
                    replace(given, shape=tuple([less if n == size else n for n in given.shape]))
                    for given in program.inputs
                ])  # fmt: skip
                yield replace(program, inputs=inputs)
    for place, given in enumerate(program.inputs):
        for axis, size in enumerate(given.shape):
            for less in dict.fromkeys((1, size // 2, size - 1)):
                if 0 < less < size:
                    shape = (*given.shape[:axis], less, *given.shape[axis + 1 :])
                    others = program.inputs[:place], program.inputs[place + 1 :]
                    one = replace(given, shape=shape)
                    yield replace(program, inputs=(*others[0], one, *others[1]))


def shapes_of(program: Program) -> dict[str, tuple[int, ...]]:
    """The shape of every value that holds floats."""
    with fg.config(device="reference"):
        values: dict[str, fg.Tensor] = {
            given.name: fg.Tensor(data)
            for given, data in zip(program.inputs, program.data(), strict=True)
        }
        numbers = {f"c{number}": value for number, value in enumerate(program.constants)}
        for line in program.lines:
            made = eval(line.code, {"fg": fg, "np": np, **numbers}, dict(values))
            values.update(zip(line.names, made if len(line.names) > 1 else (made,), strict=True))
    return {n: _shape(v) for n, v in values.items() if v.dtype in (fg.float32, fg.float64)}


def _shape(value: fg.Tensor | Array) -> tuple[int, ...]:
    return tuple([int(n) for n in value.shape])
