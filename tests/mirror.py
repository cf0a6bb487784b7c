"""Programs that change tensors, mirrored on NumPy arrays: made at random, run, made smaller.

In: a seed. Out: a `Program`, a list of steps that name tensors by numbers taken modulo how many
there are, so that any part of a program is a program; `run` does every step on a tensor and on an
array and compares; `smaller` leaves out steps as long as the program still fails.
All numbers are small and whole, so that every order of doing things gives the same bits.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import BoundsError
from fulgurite.runtime.cpu.executor import Program as NativeProgram
from fulgurite.runtime.host.device import HostDevice

SHAPES = ((4, 6), (4, 6), (6,), (5, 2, 3), ())
DTYPES = (np.float32, np.float32, np.int32)
MODULUS = 97  # keeps numbers small: sums and products of two are exact in every dtype

Step = tuple[Any, ...]
Program = list[Step]


class Injected(RuntimeError):
    """A failure on purpose."""


class Fault:
    """Makes the kernel that comes up next but `left` fail; the kernels of a run ask it."""

    left = -1

    @classmethod
    def meet(cls) -> None:
        """Called before each kernel."""
        if cls.left >= 0:
            cls.left -= 1
            if cls.left < 0:
                raise Injected("as asked")


def failing_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While it is suspended the kernels of every device ask `Fault`; for fixtures."""
    interpret, go = HostDevice.step_code, NativeProgram.run_frame
    whole = NativeProgram.run

    def failing(self: HostDevice, kernel: Any) -> Any:
        real = interpret(self, kernel)

        def run(*arguments: Any) -> None:
            Fault.meet()
            real(*arguments)

        return run

    def go_or_fail(self: NativeProgram, *arguments: Any) -> None:
        Fault.meet()
        go(self, *arguments)

    def run_or_fail(self: NativeProgram, *arguments: Any) -> Any:
        Fault.meet()
        return whole(self, *arguments)

    fg.clear_caches()
    monkeypatch.setattr(HostDevice, "step_code", failing)
    monkeypatch.setattr(NativeProgram, "run_frame", go_or_fail)
    monkeypatch.setattr(NativeProgram, "run", run_or_fail)
    yield
    fg.clear_caches()


@dataclass(eq=False)
class Cell:
    """A tensor and the array that it must be equal to; two names may be one cell."""

    tensor: fg.Tensor
    array: Array


@dataclass
class State:
    """What a program has made so far."""

    cells: list[Cell] = field(default_factory=list)
    shown: list[tuple[Array, Array]] = field(default_factory=list)  # exported, and what it held

    def pick(self, number: int) -> Cell:
        return self.cells[number % len(self.cells)]

    def partner(self, number: int, shape: tuple[int, ...], dtype: Any) -> Cell | None:
        """Some cell that fits: its shape is the same, and its dtype is not of a higher kind."""
        fits = [c for c in self.cells if c.array.shape == shape and c.array.dtype == dtype]
        return fits[number % len(fits)] if fits else None

    def add(self, tensor: fg.Tensor, array: Array) -> None:
        self.cells.append(Cell(tensor, np.array(array, order="C")))
        if len(self.cells) > 8:
            del self.cells[0]


def same(tensor: fg.Tensor, array: Array) -> None:
    """A tensor has exactly the values of an array."""
    found = tensor.numpy()
    assert found.dtype == array.dtype and found.shape == array.shape
    assert np.array_equal(found, array), f"{found.tolist()} is not {array.tolist()}"


# --- indices -------------------------------------------------------------------------------------


def index_for(shape: tuple[int, ...], seed: int) -> Any:
    """An index of any kind for a shape; the same for the same seed."""
    pick = random.Random(seed)
    if pick.random() < 0.06:
        return pick.choice([..., (), slice(None)]) if shape else pick.choice([..., ()])
    if shape and pick.random() < 0.12:
        count = pick.randint(1, len(shape))
        return np.array(np.random.default_rng(seed).integers(0, 2, shape[:count]), bool)
    parts: list[Any] = []
    arrays = 0
    for size in shape[: pick.randint(1, len(shape))] if shape else ():
        kind = pick.choice("iissssta") if size else "s"
        if kind == "i":
            parts.append(pick.randint(-size, size - 1))
        elif kind == "a" and arrays < 2:
            arrays += 1
            parts.append(np.array([pick.randint(-size, size - 1) for _ in range(2)]))
        elif kind == "t" and not arrays:
            arrays += 1
            parts.append(fg.Tensor(np.array([pick.randint(-size, size - 1)], np.int32)))
        else:
            step = pick.choice([1, 1, 1, 2, 3, -1, -2])
            ends = [None, pick.randint(-size - 1, size + 1)]
            parts.append(slice(pick.choice(ends), pick.choice(ends), step))
        if pick.random() < 0.1:
            parts.append(None)
    if len(parts) > 1 and pick.random() < 0.1:
        there = pick.randrange(len(parts))
        if _fits(found := (*parts[:there], ..., *parts[there + 1 :]), shape):
            return found  # what comes after it counts from the other end
    return tuple(parts) if len(parts) != 1 or pick.random() < 0.5 else parts[0]


def _fits(key: Any, shape: tuple[int, ...]) -> bool:
    """Is an index inside?"""
    try:
        np.empty(shape, bool)[as_numpy(key)]
    except IndexError:
        return False
    return True


def as_numpy(key: Any) -> Any:
    """The same index for an array."""
    if isinstance(key, tuple):
        return tuple(map(as_numpy, key))
    return key.numpy() if isinstance(key, fg.Tensor) else key


# --- steps ---------------------------------------------------------------------------------------


def _new(s: State, seed: int, how: int) -> None:
    pick = random.Random(seed)
    shape, dtype = pick.choice(SHAPES), pick.choice(DTYPES)
    array = np.random.default_rng(seed).integers(-9, 9, shape).astype(dtype)
    if how % 4 == 0:
        s.add(fg.zeros(shape, dtype=array.dtype.name), np.zeros(shape, dtype))
    elif how % 4 == 1:
        s.add(fg.from_numpy(array), array.copy())
    else:
        s.add(fg.Tensor(array), array)


def _wrapped(x: Any) -> Any:
    return x % MODULUS


def _build(s: State, i: int, j: int, how: int) -> None:
    a = s.pick(i)
    b = s.partner(j, a.array.shape, a.array.dtype) or a
    make: Callable[[Any, Any], Any] = (
        lambda x, y: _wrapped(x + y), lambda x, y: _wrapped(x * 3 - y), lambda x, y: -x,
        lambda x, y: x.T, lambda x, y: x.reshape(-1), lambda x, y: _wrapped(x.sum(0)) if x.ndim
        else x * 1, lambda x, y: x + 1,
    )[how % 7]  # fmt: skip
    made = make(a.array, b.array)
    s.add(make(a.tensor, b.tensor), np.array(made, a.array.dtype))


def _assign(s: State, i: int, j: int) -> None:
    a = s.pick(i)
    b = s.partner(j, a.array.shape, a.array.dtype)
    if b is None:
        a.tensor.assign(j % 7)
        a.array[...] = j % 7
    else:
        a.tensor.assign(b.tensor)
        a.array[...] = b.array.copy()


def _operate(s: State, i: int, j: int, how: int) -> None:
    a = s.pick(i)
    b = s.partner(j, a.array.shape, a.array.dtype)
    for x, y in ((a, None), (a, b)) if b is not None else ((a, None),):
        other: Any = how % 5 if y is None else y.tensor
        known: Any = how % 5 if y is None else y.array.copy()
        if how % 3 == 0:
            x.tensor += other
            x.array += known
        elif how % 3 == 1:
            x.tensor -= other
            x.array -= known
        else:
            x.tensor *= other
            x.array *= known
        x.tensor %= MODULUS
        x.array %= MODULUS


def _put(s: State, i: int, key_seed: int, j: int) -> None:
    a = s.pick(i)
    key = index_for(a.array.shape, key_seed)
    place = as_numpy(key)
    part = a.array[place]
    b = s.partner(j, part.shape, a.array.dtype)
    if b is None or j % 3 == 0:
        a.tensor[key] = j % 11
        a.array[place] = j % 11
    else:
        value = b.array.copy()
        a.tensor[key] = b.tensor
        _put_array(a.array, place, value)


def _put_array(array: Array, place: Any, value: Array) -> None:
    """As NumPy, but of several values for one place the last stays by rule."""
    order = np.arange(array.size).reshape(array.shape)[place].ravel()
    array.reshape(-1)[order] = np.broadcast_to(value, array[place].shape).ravel()


def _part_operate(s: State, i: int, key_seed: int, j: int) -> None:
    a = s.pick(i)
    key = index_for(a.array.shape, key_seed)
    place = as_numpy(key)
    changed = a.array[place] + j % 5
    a.tensor[key] += j % 5
    _put_array(a.array, place, changed)


def _shifted(s: State, i: int, how: int) -> None:
    a = s.pick(i)
    if not a.array.ndim:
        return
    if how % 3 == 0:
        a.tensor[1:] = a.tensor[:-1]
        a.array[1:] = a.array[:-1].copy()
    elif how % 3 == 1:
        a.tensor[:] = a.tensor[::-1]
        a.array[:] = a.array[::-1].copy()
    else:
        a.tensor[:-1] += a.tensor[1:]
        a.tensor %= MODULUS
        a.array[:-1] += a.array[1:].copy()
        a.array %= MODULUS


def _slice(s: State, i: int, key_seed: int) -> None:
    a = s.pick(i)
    key = index_for(a.array.shape, key_seed)
    s.add(a.tensor[key], np.array(a.array[as_numpy(key)]))


def _realize(s: State, i: int, j: int) -> None:
    fg.realize(s.pick(i).tensor, s.pick(j).tensor)


def _check(s: State, i: int) -> None:
    cell = s.pick(i)
    same(cell.tensor, cell.array)


def _drop(s: State, i: int) -> None:
    if len(s.cells) > 1:
        del s.cells[i % len(s.cells)]


def _alias(s: State, i: int) -> None:
    s.cells.append(s.pick(i))


def _copied(s: State, i: int, how: int) -> None:
    a = s.pick(i)
    if how % 2:
        s.add(copy.copy(a.tensor), a.array.copy())
    else:
        s.add(copy.deepcopy(a.tensor), a.array.copy())


def _export(s: State, i: int) -> None:
    a = s.pick(i)
    shown = np.asarray(a.tensor)
    s.shown.append((shown, np.array(shown)))
    s.shown = s.shown[-4:]


def _outside(s: State, i: int, j: int) -> None:
    """An index outside: an error when it is met, and everything else stays right."""
    a = s.pick(i)
    if not a.array.ndim or not a.array.size:
        return
    bad = copy.copy(a.tensor)
    bad[fg.Tensor(np.array([99], np.int32))] = 1
    for asked in ((bad,), (s.pick(j).tensor, bad)):
        try:
            fg.realize(*asked)
        except BoundsError:
            continue
        raise AssertionError("an index outside was no error")


def _fail(s: State, i: int, after: int) -> None:
    """A kernel fails: nothing is lost or half written."""
    Fault.left = after % 3
    try:
        s.pick(i).tensor.realize()
    except Injected:
        pass
    finally:
        Fault.left = -1


STEPS: dict[str, tuple[Callable[..., None], int, int]] = {  # function, numbers, weight
    "new": (_new, 2, 2), "build": (_build, 3, 4), "assign": (_assign, 2, 3),
    "operate": (_operate, 3, 4), "put": (_put, 3, 8), "part": (_part_operate, 3, 3),
    "shifted": (_shifted, 2, 2), "slice": (_slice, 2, 3), "realize": (_realize, 2, 5),
    "check": (_check, 1, 3), "drop": (_drop, 1, 2), "alias": (_alias, 1, 1),
    "copied": (_copied, 2, 2), "export": (_export, 1, 2), "outside": (_outside, 2, 1),
    "fail": (_fail, 2, 2),
}  # fmt: skip
NAMES = [name for name, (_, _, weight) in STEPS.items() for _ in range(weight)]


def program(seed: int, length: int = 12) -> Program:
    """Steps at random."""
    pick = random.Random(seed)
    steps: Program = [("new", pick.randrange(1000), 2)]
    for _ in range(length):
        name = pick.choice(NAMES)
        steps.append((name, *[pick.randrange(1000) for _ in range(STEPS[name][1])]))
    return steps


def do(s: State, step: Step) -> None:
    """Do a step on tensors and on arrays; whoever was shown memory still sees what he saw."""
    name, *numbers = step
    if s.cells or name == "new":
        STEPS[name][0](s, *numbers)
    for shown, held in s.shown:
        assert np.array_equal(shown, held), "an exported array changed"


def compare(s: State) -> None:
    """Every tensor has the values of its array."""
    for cell in s.cells:
        same(cell.tensor, cell.array)


def run(steps: Program) -> None:
    """Do every step; in the end everything is compared."""
    s = State()
    for step in steps:
        do(s, step)
    compare(s)


def failure(steps: Program) -> BaseException | None:
    """What goes wrong in a program."""
    try:
        run(steps)
    except Exception as problem:
        return problem
    finally:
        Fault.left = -1
    return None


def smaller(steps: Program) -> Program:
    """A part of a program that still fails, from which no step can be left out."""
    count = len(steps) // 2
    while count:
        start = 0
        while start < len(steps):
            part = steps[:start] + steps[start + count :]
            if failure(part) is not None:
                steps = part
            else:
                start += count
        count //= 2
    return steps


def check(seed: int, length: int = 12) -> None:
    """Run the program of a seed; one that fails is shown as small as it can be made."""
    steps = program(seed, length)
    problem = failure(steps)
    if problem is not None:
        small = smaller(steps)
        raise AssertionError(f"seed {seed}: {small}: {failure(small) or problem}") from problem
