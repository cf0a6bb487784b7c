"""Statements as a person types them, one by one, each held against NumPy's.

In: a seed. Out: nothing, or an AssertionError with the statements that led there. A session has
tensors by name and the arrays that they should be. Its statements build on them, fold them, look at
a part of one, assign to slices, delete names, show memory to NumPy (by the array protocol, DLPack
and the buffer protocol; what was shown never changes), call functions again with operands of
another kind, and run jitted ones beside; some are interrupted, or wrong, and what is there stays.
Numbers are small and whole, so results agree to the last bit. Of values that were rounded nothing
is compared that jumps. Run many with `python -m tests.fuzz.eager --seeds 0:2000`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import signal
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.errors import FulguriteError

Array = np.ndarray[Any, Any]
COUNTS: Counter[str] = Counter()
SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (5,), (8,), (0,), (64,), (3, 4), (4, 3), (1, 4), (3, 1), (0, 4), (16, 64), (64, 16),
    (8, 8), (2, 3, 4), (1, 1), (33, 5),
)  # fmt: skip
DTYPES = ("float32", "float32", "float32", "float64", "int32", "int64", "uint8", "bool", "int8")
LARGEST = 2.0**18


@dataclass
class Pair:
    """A tensor, the array that it should be, and whether it is so to the last bit."""

    ours: Any
    plain: Array
    exact: bool = True


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Small whole numbers, some of them odd ones of their dtype."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    low = 0 if dtype.startswith("u") else -6
    found = np.asarray(rng.integers(low, 7, shape)).astype(dtype)
    if rng.random() < 0.15 and found.size:
        odd: tuple[float, ...] = (np.inf, -np.inf, np.nan, -0.0)
        if not dtype.startswith("f"):
            odd = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        at = rng.integers(0, found.size)
        found.reshape(-1)[at] = odd[rng.integers(0, len(odd))]
    return found


# --- expressions: text, of `{a}`, `{b}` and numbers; the last word says what it needs ---

EXACT = """
{a} + {b}; {a} - {b}; {a} * {b}; -{a}; {a} * {k}; {a} + {k}; {k} - {a}; {k} * {a}; {a} * {a}
xp.maximum({a}, {b}); xp.minimum({a}, {b}); xp.maximum({a}, {k}); xp.abs({a}); xp.square({a})
xp.where({a} > {b}, {a}, {b}); xp.where({a} < {k}, {a}, {k}); {a} > {b}; {a} <= {k}; {k} < {a}
{a} == {b}; {a} != {k}; {k} >= {a}; xp.sign({a}); xp.clip({a}, -2, 3); xp.isnan({a})
xp.isfinite({a}); xp.logical_not({a}); xp.logical_and({a}, {b}); xp.isin({a}, {b})
{a}.sum(); {a}.sum(0); {a}.sum(-1); {a}.sum(-1, keepdims=True); {a}.max(0); {a}.min(-1)
xp.max({a}, axis=-1, keepdims=True); {a}.max(); xp.any({a}, axis=0); xp.all({a})
xp.argmax({a}, axis=-1); xp.argmin({a}, axis=0); xp.count_nonzero({a}); xp.cumulative_sum({a})
xp.sum({a} * {a}, axis=-1); ({a} * {b}).sum(0); ({a} * {a}).sum(-1) + {k}
xp.sort({a}, axis=-1); xp.argsort({a}, axis=-1, stable=True); xp.flip({a}); xp.roll({a}, 1, axis=0)
{a}.T; {a}.reshape(-1); {a}[0]; {a}[-1]; {a}[1:]; {a}[::2]; {a}[::-1]; {a}[:, 0]; {a}[..., None]
{a}[None]; {a}[..., -1]; {a}[:, 1:]; {a}[()]; xp.stack([{a}, {b}]); xp.concat([{a}, {b}])
xp.concat([{a}, {a}], axis=-1); xp.tile({a}, 2); xp.repeat({a}, 2, axis=0); xp.tril({a})
xp.triu({a}, k=1); xp.diff({a}, axis=0); xp.expand_dims({a}, axis=0); xp.squeeze({a})
xp.broadcast_to({a}, (2, *{a}.shape)); xp.pad({a}, 1); xp.moveaxis({a}, 0, -1); xp.trace({a})
xp.diagonal({a}); xp.take({a}, {i}, axis=0); {a}[{i}]; {a}[{i}, {i}]; xp.outer({a}, {b})
{a}[{a} > {k}].sum(); {a} @ {b}; {a} @ {a}.T; xp.tensordot({a}, {b}, axes=1); xp.vecdot({a}, {b})
xp.einsum('ij,ij->i', {a}, {b}); xp.kron({a}, {b}); xp.where({a}, {b}, {k}); {a}.astype({d})
{a}.astype({d}) + {b}; ({a} + {b}).sum(-1) * {k} + {k}; {a}[0] * {k} + {a}[-1]; {a} & {b}; ~{a}
xp.take_along_axis({a}, xp.argsort({a}, axis=-1, stable=True), axis=-1); {a} ^ {b}; {a} | {b}
"""
ROUNDED = """
xp.exp({a} * 0.125); xp.tanh({a}); {a} / 3; {a} / ({b} * {b} + 1); xp.sqrt({a} * {a} + 1)
xp.mean({a}, axis=-1, keepdims=True); {a}.mean(); {a} - {a}.mean(0); xp.var({a}, axis=-1)
xp.sin({a}) * {k}; {a} * 0.7 + 0.1; 1 / ({a} * {a} + 1); xp.exp({a} * 0.1).sum(-1) * 0.5 + 0.25
xp.std({a}); xp.log1p({a} * {a}); xp.exp({a} - xp.max({a}, axis=-1, keepdims=True)); {a} * 0.3
"""
JUMPS = ("argm", "argsort", "sign", ">", "<", "==", "!=", "isin", "astype", "any", "all", "where",
         "nonzero", "logical", "sort", "max", "min", "clip", "isfinite", "isnan")  # fmt: skip
ASSIGNED = """
{a}[0] = {k}; {a}[1:] = {a}[:-1]; {a}[::2] += {k}; {a}[...] = {k}; {a}[-1] *= 2; {a} += {k}
{a} *= {b}; {a} -= {b}; {a}[:, 0] = {k}; {a}[{i}] = {k}; {a}[{a} > {k}] = {k}; {a}[...] = {a}[::-1]
{a}[0] = {b}; {a}[:2] -= {b}; {a}[..., 1:] = {a}[..., :-1]; {a}[()] = {b}; {a}[{i}] += 1
{a}[1:] += {a}[:-1]; {a}[0] = {a}[-1]; {a}[::-1] = {a}
"""


def table(text: str) -> tuple[str, ...]:
    return tuple([part.strip() for part in text.replace("\n", ";").split(";") if part.strip()])


EXACT_LINES, ROUNDED_LINES, ASSIGNED_LINES = map(table, (EXACT, ROUNDED, ASSIGNED))


def halves(x: Any, y: Any) -> Any:
    """A function for jit: state of its own is none, its operands may be one."""
    total = x * 2 + y
    return total, (total * total).sum(-1) + x.max()


def moved(x: Any, y: Any) -> Any:
    x[0] = y[0] * 2
    return x + y, x[::-1]


class Session:
    """Tensors by name, and what happened to them."""

    def __init__(self, seed: int, interrupts: bool = False) -> None:
        self.random, self.rng = Random(seed), np.random.default_rng(seed)
        self.seed, self.interrupts = seed, interrupts
        self.pool: dict[str, Pair] = {}
        self.shown: list[tuple[str, Any, Array]] = []
        self.log: list[str] = []
        self.made = 0
        self.jitted = {f: fg.jit(f) for f in (halves, moved)}
        self.shapes = self.random.sample(SHAPES, 4)
        self.dtypes = [*self.random.sample(DTYPES, 2), "float32"]

    # --- statements ---

    def run(self, statements: int) -> None:
        ways = [(14, self.expression), (3, self.fresh), (4, self.look), (3, self.whole),
                (5, self.assignment), (2, self.deleted), (2, self.exported), (2, self.jit),
                (1, self.wrong), (2, self.loop), (1, self.threads), (2, self.folded),
                (1, self.several), (1, self.copied), (1, self.an_array)]  # fmt: skip
        weights = [weight for weight, _ in ways]
        for _ in range(2):
            self.fresh()
        for _ in range(statements):
            _, way = self.random.choices(ways, weights)[0]
            COUNTS[way.__name__] += 1
            way()
            self.check_shown()
            while len(self.pool) > 12:
                self.deleted()
        for name in [*self.pool]:
            self.compare(name, self.pool[name])

    def pick(self) -> str:
        """A name, more often of what was made last."""
        names = [*self.pool]
        return self.random.choice(names[-4:] if self.random.random() < 0.6 else names)

    def enter(self, pair: Pair) -> str:
        name = f"v{self.made}"
        self.made += 1
        self.pool[name] = pair
        return name

    def fresh(self) -> None:
        shape, dtype = self.random.choice(self.shapes), self.random.choice(self.dtypes)
        array = data(self.rng, shape, dtype)
        way = self.random.randrange(4)
        tensor = fg.Tensor(array if way or not array.size else array.tolist(), dtype)
        if way == 1 and dtype.startswith("f"):
            tensor = fg.Tensor(array, requires_grad=True)
        if way == 2:
            tensor.realize()
        if way == 3 and array.ndim:
            tensor = fg.Tensor(np.stack([array, array])).realize()[1]
        name = self.enter(Pair(tensor, array.copy()))
        self.log.append(f"{name} = Tensor({array.tolist()}, {dtype})  # way {way}")

    def number(self, pair: Pair) -> Any:
        if pair.plain.dtype.kind == "f" and self.random.random() < 0.3:
            return self.random.choice((0.5, -1.5, 2.0, -0.0, float("inf"), 0.0))
        return self.random.choice((0, 1, 2, 3, 5) if pair.plain.dtype.kind in "ub" else
                                  (0, 1, 2, -1, -3, 7))  # fmt: skip

    def scope(self, line: str) -> tuple[str, dict[str, Any], dict[str, Any], bool] | None:
        """A line with names, and what they are for us and for NumPy."""
        a = self.pick()
        first = self.pool[a]
        b = a if self.random.random() < 0.2 else self.pick()
        ours: dict[str, Any] = {a: first.ours, b: self.pool[b].ours, "xp": fg}
        plain: dict[str, Any] = {a: first.plain, b: self.pool[b].plain, "xp": np}
        exact = first.exact and ("{b}" not in line or self.pool[b].exact)
        words = {"a": a, "b": b, "k": repr(self.number(first)), "i": "at",
                 "d": repr(self.random.choice(self.dtypes))}  # fmt: skip
        words["k"] = words["k"].replace("inf", "float('inf')")
        if "{b}" in line and self.random.random() < 0.2 and "{b}[" not in line:
            array = self.pool[b].plain  # the same numbers in another kind of operand
            kind = self.random.randrange(3)
            if kind == 0:
                ours["other"] = plain["other"] = array.copy()
            elif kind == 1 and array.ndim == 1 and array.dtype.kind in "fb" and array.size:
                ours["other"], plain["other"] = fg.Tensor(array.tolist()), array
                if array.dtype == np.float64:
                    plain["other"] = array.astype(np.float32)
            elif kind == 2:
                plain["other"] = array if array.dtype.kind == "f" else array.astype("float32")
                ours["other"] = fg.nn.Parameter(plain["other"])
            if "other" in ours:
                words["b"] = "other"
                self.log.append(f"# other is {type(ours['other']).__name__} of {b}")
        size = first.plain.shape[0] if first.plain.ndim else 1
        at = self.rng.integers(-size, max(size, 1), self.random.choice((2, 3))) if size else None
        if "{i}" in line:
            if at is None:
                return None
            at = at.astype(self.random.choice(("int32", "int64")))
            ours["at"], plain["at"] = fg.Tensor(at), at
            self.log.append(f"at = {at.tolist()}")
        return line.format(**words), ours, plain, exact

    def expression(self) -> None:
        rounded = self.random.random() < 0.2
        line = self.random.choice(ROUNDED_LINES if rounded else EXACT_LINES)
        found = self.scope(line)
        if found is None:
            return
        text, ours, plain, exact = found
        if not exact and any(word in line for word in JUMPS):
            return
        if "sort" in line and 0 in [v.ndim for v in plain.values() if isinstance(v, np.ndarray)]:
            return  # NumPy makes a line of a number
        if "astype" in line and not all(((v >= 0) & (v < 100)).all() for v in plain.values()
                                        if isinstance(v, np.ndarray)):  # fmt: skip
            return  # what does not fit saturates, and in NumPy wraps around
        want = meaning(text, plain)
        if want is None:
            return
        given = [v for v in plain.values() if isinstance(v, np.ndarray)]
        if rounded and not all(v.dtype.kind == "f" and np.isfinite(v).all() for v in given):
            return  # NumPy has the root of a byte in float16
        self.log.append(f"v{self.made} = {text}")
        try:
            got = eval(text, ours)
        except FulguriteError as error:
            COUNTS["refused"] += 1
            REFUSED[f"{text.split('(')[0]}: {str(error)[:90]}"] += 1
            return
        if isinstance(got, fg.Tensor):
            self.adopt(got, want, exact and not rounded)

    def adopt(self, got: Any, want: Array, exact: bool) -> None:
        """A result under a new name; its dtype is ours."""
        kinds = got.dtype.kind, want.dtype.kind
        if got.shape != want.shape:
            raise AssertionError(self.story(f"shape {got.shape}, not {want.shape}"))
        if kinds[0] != kinds[1] and not {*kinds} <= {"i", "u", "b"}:  # of truths we count in int32
            raise AssertionError(self.story(f"dtype {got.dtype}, not {want.dtype}"))
        if want.size > 6000:
            return
        wide = np.abs(want.astype("float64"))
        if np.where(np.isfinite(wide), wide, 0).max(initial=0) > LARGEST or (
            want.dtype.kind in "iu" and got.dtype.numpy.itemsize < want.dtype.itemsize
        ):
            self.compare("a result", Pair(got, want.astype(got.dtype.numpy), False))
            return
        self.enter(Pair(got, np.array(want, got.dtype.numpy), exact))

    def assignment(self) -> None:
        found = self.scope(self.random.choice(ASSIGNED_LINES))
        if found is None:
            return
        text, ours, plain, exact = found
        name = text.split("[")[0].split(" ")[0]
        pair = self.pool[name]
        if not exact or pair.ours.requires_grad or "nan" in text:
            return
        trial = {key: v.copy() if isinstance(v, np.ndarray) else v for key, v in plain.items()}
        at = trial.get("at") if pair.plain.ndim else None
        if at is not None and len({int(i) % pair.plain.shape[0] for i in at}) < len(at):
            return  # of several values for one place only the last is said
        if not meant(text, trial, name):
            return
        self.log.append(text)
        try:
            exec(text, ours)
        except FulguriteError as error:
            COUNTS["refused"] += 1
            REFUSED[f"{text}: {str(error)[:90]}"] += 1
            self.compare(name, pair)
            return
        pair.plain, pair.ours = trial[name].astype(pair.plain.dtype), ours[name]

    # --- looks ---

    def look(self) -> None:
        """A part of a value that may be pending."""
        name = self.pick()
        pair = self.pool[name]
        if not pair.plain.size:
            return
        at = tuple([self.random.randrange(n) for n in pair.plain.shape])
        way = self.random.randrange(3)
        self.log.append(f"{name}[{at}]  # {('alone', 'mapped', 'summed')[way]}")
        part, want = pair.ours[at], pair.plain[at]
        if way and pair.plain.dtype.kind == "f":
            part, want = part * 2 + 1, want * 2 + 1
        self.interrupted(lambda: self.compare(name, Pair(part, np.asarray(want), pair.exact)))

    def whole(self) -> None:
        name = self.pick()
        self.log.append(f"{name}.numpy()")
        self.interrupted(lambda: self.compare(name, self.pool[name]))

    def several(self) -> None:
        names = [self.pick() for _ in range(3)]
        self.log.append(f"realize({names})")
        self.interrupted(lambda: fg.realize(*[self.pool[n].ours for n in names]))

    def threads(self) -> None:
        names = [self.pick() for _ in range(3)]
        self.log.append(f"three threads read {names}")
        problems: list[BaseException] = []

        def read(name: str) -> None:
            try:
                self.compare(name, self.pool[name])
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=read, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    def deleted(self) -> None:
        if len(self.pool) > 2:
            name = self.random.choice([*self.pool])
            self.log.append(f"del {name}")
            del self.pool[name]
            if self.random.random() < 0.1:
                gc.collect()

    def exported(self) -> None:
        """Memory that is shown to others holds what it held, whatever becomes of the tensor."""
        name = self.pick()
        pair = self.pool[name]
        way = self.random.randrange(4)
        self.log.append(f"shown: {name}, way {way}")
        x = pair.ours.detach()
        if way == 0:
            view: Any = np.asarray(x)
        elif way == 1:
            view = np.from_dlpack(x) if pair.plain.dtype != bool else np.asarray(x)
        elif way == 2:
            view = memoryview(np.asarray(x).data)
        else:
            view = fg.from_dlpack(x)
        self.shown.append((name, view, np.array(np.asarray(view))))
        if len(self.shown) > 6:
            self.shown.pop(self.random.randrange(3))

    def check_shown(self) -> None:
        for name, view, want in self.shown:
            got = np.asarray(view)
            if got.tobytes() != want.tobytes():
                raise AssertionError(self.story(f"what was shown of {name} is {got}, not {want}"))

    def an_array(self) -> None:
        """What shows an array of NumPy's is read when it is asked for, not before."""
        array = data(self.rng, (8, 16), "float32")
        array[~np.isfinite(array)] = 0
        x = fg.from_numpy(array)
        total, scaled = x.sum(-1), x * 2 + 1
        self.log.append("an array that is shown, and changes")
        for k in range(self.random.randint(1, 4)):
            array[...] = np.roll(array, 1) + k
            made = (total * 2 - 1) * total + scaled[0, 0]
            want = (array.sum(-1) * 2 - 1) * array.sum(-1) + array[0, 0] * 2 + 1
            self.compare("what is made of an array", Pair(made, want))
        self.compare("the sum of an array", Pair(total, array.sum(-1)))
        self.compare("an array", Pair(scaled, array * 2 + 1))

    def copied(self) -> None:
        name = self.pick()
        pair = self.pool[name]
        made = self.enter(Pair(copy.copy(pair.ours), pair.plain.copy(), pair.exact))
        self.log.append(f"{made} is a copy of {name}")

    # --- programs ---

    def folded(self) -> None:
        """A fold that is held, masks of it, and parts of what is made of it."""
        names = [n for n, p in self.pool.items() if p.exact and p.plain.ndim == 2
                 and p.plain.dtype.kind in "fi" and p.plain.size
                 and not np.any(np.abs(p.plain.astype("float64")) > LARGEST)]  # fmt: skip
        if not names:
            return
        name = self.random.choice(names)
        pair = self.pool[name]
        axis = self.random.randrange(2)
        fold = self.random.choice(("sum", "max", "argmax"))
        self.log.append(f"{fold} of {name} along {axis}, held; masks and parts of it")
        total, want = getattr(pair.ours, fold)(axis), getattr(pair.plain, fold)(axis)
        for k in range(self.random.randint(1, 3)):
            mask, wanted = (total * 2 - k) * (total > k), (want * 2 - k) * (want > k)
            self.interrupted(partial(self.compare, "a mask", Pair(mask, wanted)))
        self.adopt(total, want, True)

    def loop(self) -> None:
        """x = step(x), of which a part is looked at in every round."""
        names = [n for n, p in self.pool.items() if p.exact and p.plain.dtype == np.float32
                 and p.plain.size and np.isfinite(p.plain).all()]  # fmt: skip
        if not names:
            return
        pair = self.pool[self.random.choice(names)]
        x, want, held = pair.ours, pair.plain, []
        rounds = self.random.randint(2, 5)
        self.log.append(f"a loop of {rounds} rounds that looks at parts")
        for k in range(rounds):
            x, want = x * 0.5 + pair.ours * k, want * np.float32(0.5) + pair.plain * np.float32(k)
            if self.random.random() < 0.3:
                held.append((x, want))
            at = tuple([self.random.randrange(n) for n in want.shape])
            self.compare("a part", Pair(x[at] * 1.0 + 0.0, np.asarray(want[at]), False))
        for ours, plain in held:
            self.compare("a round", Pair(ours, plain, False))
        self.adopt(x, want, False)

    def jit(self) -> None:
        """A jitted function beside what is pending, perhaps of one tensor twice."""
        function, run = self.random.choice([*self.jitted.items()])
        names = [n for n, p in self.pool.items() if p.exact and p.plain.dtype == np.float32
                 and p.plain.size and p.plain.ndim and not p.ours.requires_grad]  # fmt: skip
        if not names:
            return
        a = self.random.choice(names)
        same = [n for n in names if self.pool[n].plain.shape == self.pool[a].plain.shape]
        b = self.random.choice(same)
        self.log.append(f"{function.__name__}({a}, {b}), jitted")
        one, two = self.pool[a], self.pool[b]
        x, y = (one.plain, two.plain) if a != b else (one.plain,) * 2
        if function is moved:
            x = x.copy()
            y = x if a == b else y
        want = function(x, y)
        got = run(one.ours, two.ours)
        if function is moved:
            one.plain = x
        for ours, plain in zip(got, want, strict=True):
            self.adopt(ours, np.array(plain), True)

    def wrong(self) -> None:
        """A statement that is an error leaves everything as it was."""
        name = self.pick()
        pair = self.pool[name]
        text = self.random.choice((
            "x.reshape(3, 5, 7)", "x[99999]", "x + fg.ones((13, 17, 19))", "x @ fg.ones((11, 3))",
            "x[fg.Tensor([99999])].realize()", "x.__setitem__(99999, 1)", "fg.Tensor('no')",
            "x.assign(fg.ones((13, 17, 19)))", "fg.take(x, fg.Tensor([-99999]), 0).realize()",
        ))  # fmt: skip
        self.log.append(f"wrong: {text} of {name}")
        if not pair.plain.size or ("fg.ones" in text and pair.plain.size == 1):
            return  # it may broadcast
        try:
            eval(text, {"x": pair.ours, "fg": fg})
        except (FulguriteError, IndexError, TypeError, ValueError):
            pass
        else:
            raise AssertionError(self.story(f"no error: {pair.ours!r}"))
        if self.random.random() < 0.3:
            self.compare(name, pair)

    # --- what is compared ---

    def interrupted(self, work: Callable[[], object]) -> None:
        """Do something that an interrupt may cut short, and then again."""
        if self.interrupts and threading.current_thread() is threading.main_thread():
            try:
                with alarm(self.random.random() ** 3 * 0.01):
                    work()
            except KeyboardInterrupt:
                COUNTS["interrupts"] += 1
                self.log.append("# interrupted")
        work()

    def compare(self, name: str, pair: Pair) -> None:
        got = np.asarray(pair.ours.numpy())
        want = pair.plain
        if got.shape != want.shape:
            raise AssertionError(self.story(f"{name}: shape {got.shape}, not {want.shape}"))
        wide = np.float64 if got.dtype.kind == "f" else got.dtype
        with np.errstate(all="ignore"):
            a, b = got.astype(wide), want.astype(wide)
            right = a == b
            if wide is np.float64:
                right |= np.isnan(a) & np.isnan(b)
            if not pair.exact and wide is np.float64:
                size = 1 + np.abs(b[np.isfinite(b)]).max(initial=0)
                right |= np.abs(a - b) <= 1e-4 * size
        if not np.all(right):
            raise AssertionError(self.story(f"{name} is\n{got}\nnot\n{want}"))

    def story(self, problem: str) -> str:
        return f"seed {self.seed}: {problem}\n" + "\n".join(self.log)


REFUSED: Counter[str] = Counter()


def meaning(text: str, plain: dict[str, Any]) -> Array | None:
    """What NumPy gives; None where it refuses."""
    try:
        return np.asarray(eval(text, dict(plain)))
    except (ValueError, IndexError, TypeError, OverflowError):
        return None


def meant(text: str, plain: dict[str, Any], name: str) -> bool:
    """Assign as NumPy does; False where it refuses, or where numbers become large."""
    try:
        exec(text, plain)
    except (ValueError, IndexError, TypeError, OverflowError):
        return False
    found = np.abs(np.asarray(plain[name]).astype("float64"))
    return not np.where(np.isfinite(found), found, 0).max(initial=0) > LARGEST


@contextmanager
def alarm(seconds: float) -> Any:
    """Interrupt what is done after some time."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-5))
        yield
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                break
            except KeyboardInterrupt:
                continue


def settings(seed: int) -> dict[str, Any]:
    """The options of a session."""
    return ({"device": "cpu"}, {"device": "cpu", "tier": "native"}, {"device": "reference"},
            {"device": "cpu", "poison": True}, {"device": "cpu"})[seed % 5]  # fmt: skip


def check(seed: int, statements: int = 60, interrupts: bool = False) -> None:
    """One session."""
    session = Session(seed, interrupts)
    try:
        with fg.config(**settings(seed)), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of no elements
            session.run(statements)
    except AssertionError:
        raise
    except Exception as error:
        error.add_note(session.story(f"raised {type(error).__name__}"))
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a range of seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.eager", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first:last, the last one left out")
    parser.add_argument("--interrupts", action="store_true", help="cut computations short")
    chosen = parser.parse_args(arguments)
    first, last = map(int, chosen.seeds.split(":"))
    failed = 0
    for seed in range(first, last):
        try:
            check(seed, interrupts=chosen.interrupts)
        except Exception as error:
            failed += 1
            print("".join(traceback.format_exception(error)), "\n", flush=True)
            if failed == 10:
                break
    print(", ".join([f"{name} {n}" for name, n in sorted(COUNTS.items())]))
    for text, number in REFUSED.most_common(25):
        print(f"{number} {text}")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
