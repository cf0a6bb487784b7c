"""Sessions of random programs, each run by Fulgurite and by NumPy in float64, which share no code.

In: a seed. Out: nothing, or an AssertionError with the program and the events that led there. A
program is Python text that uses an array API namespace `xp`; NumPy runs it with arrays that own
their memory (`plain`). A session keeps several programs and many tensors alive in one process and
runs them again and again: lazily, under `jit`, differentiated, with other sizes, dtypes and
constants, arguments that are views of one another or one tensor twice, state that they change, and
results that are read late, in any order. Gradients are held against differences of NumPy's values.
Run many with `python -m tests.fuzz.oracle --seeds 0:1000`.
"""

from __future__ import annotations

import argparse
import linecache
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

import fulgurite as fg

from .lines import MASKS, STATES, STEPS, UPDATES
from .plain import Plain, Value, own

PLAIN = Plain()
COUNTS: Counter[str] = Counter()
LARGEST = 1e4
SIZES = ((3, 4, 2), (4, 3, 5), (2, 2, 2), (1, 4, 3), (5, 1, 2), (7, 6, 4), (33, 20, 17))
ARGUMENTS = {"x": "nm", "y": "nm", "w": "mk", "b": "m", "s": "", "i": "n", "q": "nm"}
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
_files = count()


class Ours:
    """`xp` for programs: Fulgurite, with variables for sizes that vary."""

    rows = fg.Var("oracle_rows", 1, 2)

    def __getattr__(self, name: str) -> Any:
        return getattr(fg, name)

    def part(self, x: fg.Tensor, low: int, count: int) -> fg.Tensor:
        """Some rows of x, by a variable where they may be one or two of at least two."""
        if low == 0 and count in (1, 2) and x.shape[0] >= 2:
            return x[: self.rows.bind(count)]
        return x[low : low + count]


OURS = Ours()


# --- programs ---


@dataclass(frozen=True)
class Text:
    """A program: its lines, and what may be done with it."""

    lines: tuple[str, ...]
    result: tuple[str, ...]
    smooth: bool  # has it derivatives everywhere?
    sharp: bool  # do comparisons decide, so that float32 may differ?
    changes: bool  # does it assign to arguments or state?
    sized: bool  # does it use a variable size?
    counted: bool  # do values decide a size, so that no graph can hold it?

    @property
    def source(self) -> str:
        """The function's text; constants and state are globals, `xp` is one too."""
        body = "\n".join([f"    {line}" for line in self.lines])
        head = f"def f({', '.join(ARGUMENTS)}, c0, c1, k, flag, state):"
        return f"{head}\n{body}\n    return {', '.join(self.result)},\n"

    def function(self, xp: Any, **globals_: Any) -> Callable[..., Any]:
        """The program over a namespace; `g0` and `g1` are globals of its own."""
        scope: dict[str, Any] = {"xp": xp, "g0": 0.5, "g1": 2, **globals_}
        name = f"<oracle {next(_files)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        exec(compile(self.source, name, "exec"), scope)
        found: Callable[..., Any] = scope["f"]
        return found


def data(rng: np.random.Generator, name: str, sizes: Sequence[int], dtype: str) -> Any:
    """An argument's array, a value of its own."""
    shape = tuple([sizes["nmk".index(c)] for c in ARGUMENTS[name]])
    if name == "i":
        return own(rng.integers(0, shape[0], shape))
    if name == "q":
        return own(rng.random(shape) < 0.5)
    return own(rng.standard_normal(shape).astype(dtype).astype("float64"))


def new_state(rng: np.random.Generator, sizes: Sequence[int]) -> SimpleNamespace:
    """What programs change: tensors in attributes and in a list, and a number."""
    items = [own(rng.standard_normal(sizes[1])) for _ in range(2)]
    return SimpleNamespace(a=own(rng.standard_normal(sizes[1])), n=1, items=items)


def write(random: Random) -> Text:
    """A program that NumPy can run."""
    rng = np.random.default_rng(random.randrange(1 << 30))
    sizes = random.choice(SIZES[:6])
    scope: dict[str, Any] = {name: data(rng, name, sizes, "float64") for name in ARGUMENTS}
    constants = {"c0": 0.75, "c1": -0.5, "k": 1, "flag": True, "g0": 0.5, "g1": 2}
    scope |= {"xp": PLAIN, "state": new_state(rng, sizes), **constants}
    values, kinds = ["x", "y", "b", "s", "w"], set[str]()
    lines: list[str] = []
    smooth_only, still = random.random() < 0.4, random.random() < 0.4
    wanted = random.choice((2, 3, 5, 8, 12))
    weights = [weight for weight, _, _ in STEPS]
    for _ in range(60):
        if len(lines) >= wanted:
            break
        _, table, kind = random.choices(STEPS, weights)[0]
        if (smooth_only and kind in ("sharp", "masks")) or (
            still and kind in ("changes", "state", "masks")
        ):
            continue
        a, b = (random.choice(values[-4:] if random.random() < 0.5 else values) for _ in "ab")
        text = random.choice(table).format(a=a, b=b)
        name = f"v{len(lines)}"
        binds = table not in (UPDATES, MASKS, STATES)
        line = f"{name} = {text}" if binds else text
        kept = {key: own(v) if isinstance(v, Value) else v for key, v in scope.items()}
        try:
            with np.errstate(all="raise"):
                exec(line, scope)
            if not fits(scope.get(name if binds else a)):
                raise ValueError
        except Exception:  # whatever NumPy refuses is no line of the program
            scope.clear()
            scope.update(kept)
            continue
        lines.append(line)
        kinds.add(kind)
        if binds:
            values.append(name)
    made = [v for v in values if v not in ARGUMENTS or random.random() < 0.1] or ["x"]
    result = tuple(random.sample(made, min(len(made), random.randint(1, 4))))
    whole = " ".join(lines)
    sharp = bool({"sharp", "masks"} & kinds)
    return Text(
        tuple(lines), result, not sharp, sharp,
        bool({"changes", "state", "masks"} & kinds), "xp.part" in whole,
        "] *= 0.5" in whole,
    )  # fmt: skip


def fits(value: Any) -> bool:
    """True if an array is of floats, neither large nor empty."""
    if not isinstance(value, np.ndarray) or not 0 < value.size <= 20_000 or value.ndim > 4:
        return False
    return value.dtype.kind == "f" and bool(np.abs(value).max() < LARGEST)


# --- sessions ---


@dataclass
class Mirrored:
    """A tensor and the array that it should be."""

    ours: Any
    plain: Any


@dataclass
class Constants:
    """The numbers of a call."""

    c0: float
    c1: float
    k: int
    flag: bool

    @classmethod
    def drawn(cls, random: Random) -> Constants:
        """Others each time, some of them round."""
        c0, c1 = (round(random.uniform(-2, 2), random.choice((0, 1, 3))) for _ in range(2))
        return cls(c0, c1, random.randint(1, 2), random.random() < 0.6)


@dataclass
class Session:
    """Programs and tensors that live together, and what happened to them."""

    seed: int
    texts: list[Text] = field(default_factory=list)
    pool: dict[Any, Mirrored] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    waiting: list[tuple[str, Any, Any, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.rng = np.random.default_rng(self.seed)
        self.texts = [write(self.random) for _ in range(self.random.randint(2, 4))]
        self.plain = [t.function(PLAIN) for t in self.texts]
        self.ours = [t.function(OURS) for t in self.texts]
        self.jitted = [fg.jit(f) for f in self.ours]
        self.states: dict[Any, Mirrored] = {}
        self.sizes = self.random.sample(SIZES, 3)
        self.numbers = [Constants.drawn(self.random) for _ in range(3)]

    def run(self, events: int) -> None:
        """Many events, then all that still waits is compared."""
        for number in range(events):
            self.event(number)
            if len(self.waiting) > 5:
                self.settle(self.random.randint(1, 5))
        self.settle(len(self.waiting))
        for key, pair in [*self.pool.items(), *self.states.items()]:
            self.compare(f"argument {key}", pair.ours, pair.plain, TOLERANCE[key[-1]])

    def event(self, number: int) -> None:
        """One program is run in one way."""
        place = self.random.randrange(len(self.texts))
        text = self.texts[place]
        way = self.random.choice(WAYS)
        dtype = (
            "float64"
            if text.sharp or way.__name__ in EXACT
            else self.random.choice(("float64", "float64", "float32"))
        )
        sizes = self.random.choice(self.sizes)
        constants = self.random.choice(self.numbers)
        self.log.append(
            f"# {number}: program {place}, {way.__name__}, {sizes}, {dtype}, {constants}"
        )
        COUNTS[way.__name__] += 1
        way(self, place, sizes, dtype, constants)

    def arguments(self, sizes: Any, dtype: str) -> dict[str, Mirrored]:
        """Tensors for a call: new ones, ones of earlier calls, views of others, one twice."""
        found: dict[str, Mirrored] = {}
        for name in ARGUMENTS:
            key = (name, self.random.randrange(2), sizes, dtype)
            if key not in self.pool or self.random.random() < 0.3:
                self.pool[key] = self.fresh(name, sizes, dtype)
            found[name] = self.pool[key]
        if self.random.random() < 0.15:
            found["y"] = found["x"]
            self.log.append("# y is x")
        return found

    def fresh(self, name: str, sizes: Any, dtype: str) -> Mirrored:
        """A new tensor, in memory of its own or as an expression of others."""
        array = data(self.rng, name, sizes, dtype)
        bare = np.asarray(array)
        bare = bare.astype(dtype) if bare.dtype.kind == "f" else bare
        way = self.random.randrange(7) if bare.ndim == 2 and bare.dtype.kind == "f" else 0
        if way == 1:
            return Mirrored(fg.Tensor(np.ascontiguousarray(bare.T)).T, array)
        if way == 2:
            return Mirrored(fg.Tensor(np.ascontiguousarray(bare[::-1]))[::-1], array)
        if way == 3:
            wide = np.repeat(bare, 2, axis=1)
            return Mirrored(fg.Tensor(wide)[:, ::2], array)
        if way == 4:
            row = bare[:1]
            return Mirrored(
                fg.broadcast_to(fg.Tensor(row), bare.shape),
                own(np.broadcast_to(np.asarray(array)[:1], bare.shape)),
            )
        if way == 5:
            base = fg.Tensor(np.concatenate([bare, bare])).realize()
            return Mirrored(base[bare.shape[0] :], array)
        if way == 6:
            return Mirrored(fg.Tensor(np.asfortranarray(bare)) + 0.0, array)
        return Mirrored(fg.Tensor(bare), array)

    def state(self, sizes: Any, dtype: str) -> Mirrored:
        """The state of calls with these sizes."""
        key = ("state", sizes, dtype)
        if key not in self.states:
            plain = new_state(self.rng, sizes)

            def ours(value: Any) -> Any:
                return fg.Tensor(np.asarray(value).astype(dtype))

            self.states[key] = Mirrored(
                SimpleNamespace(a=ours(plain.a), n=plain.n, items=[ours(v) for v in plain.items]),
                plain,
            )
        return self.states[key]

    def all_realized(self) -> None:
        """Nothing is pending any more."""
        held = [p.ours for p in [*self.pool.values(), *self.states.values()]]
        held += [ours for _, ours, _, _ in self.waiting]
        for tree in held:
            found = [tree.a, *tree.items] if isinstance(tree, SimpleNamespace) else tree
            fg.realize(*(found if isinstance(found, tuple | list) else [found]))

    # --- what is compared ---

    def later(self, label: str, ours: Any, plain: Any, dtype: str) -> None:
        """Compare a result at some time."""
        self.waiting.append((label, ours, plain, TOLERANCE[dtype]))

    def settle(self, most: int) -> None:
        """Compare some results that wait, in any order, some of them realized together."""
        self.random.shuffle(self.waiting)
        chosen, self.waiting = self.waiting[:most], self.waiting[most:]
        if self.random.random() < 0.5:
            fg.realize(*[t for _, ours, _, _ in chosen for t in ours if isinstance(t, fg.Tensor)])
        for label, ours, plain, tolerance in chosen:
            self.compare(label, ours, plain, tolerance)

    def compare(self, label: str, ours: Any, plain: Any, tolerance: float) -> None:
        """Raise an AssertionError where a tensor is not the array it should be."""
        if isinstance(plain, SimpleNamespace):
            assert ours.n == plain.n, self.story(f"{label}: state.n is {ours.n}, not {plain.n}")
            self.compare(label, [ours.a, *ours.items], [plain.a, *plain.items], tolerance)
        elif isinstance(plain, tuple | list):
            assert len(ours) == len(plain), self.story(f"{label}: {len(ours)} results")
            for place, (a, b) in enumerate(zip(ours, plain, strict=True)):
                self.compare(f"{label}, result {place}", a, b, tolerance)
        else:
            got, want = np.asarray(ours.numpy(), np.float64), np.asarray(plain, np.float64)
            assert got.shape == want.shape, self.story(
                f"{label}: shape {got.shape}, not {want.shape}"
            )
            size = 1 + np.abs(want[np.isfinite(want)]).max(initial=0)
            with np.errstate(all="ignore"):
                right = (
                    (np.abs(got - want) <= tolerance * size)
                    | (got == want)
                    | (np.isnan(got) & np.isnan(want))
                )
            assert right.all(), self.story(f"{label} is wrong:\n{got}\nnot\n{want}")

    def story(self, problem: str) -> str:
        """What went wrong, the programs, and the events before it."""
        texts = "\n".join([f"# program {n}\n{t.source}" for n, t in enumerate(self.texts)])
        return f"seed {self.seed}: {problem}\n\n{texts}\n" + "\n".join(self.log)


Way = Callable[[Session, int, Any, str, Constants], None]
WAYS: list[Way] = []
REFUSED = (  # what no graph can hold
    "how many elements a mask picks", "a slice with a variable has no step",
    "value of one example or rank is not known", "variable size does not roll",
)  # fmt: skip
EXACT = ("gradient", "derivative", "mapped", "checkpointed")


def way(weight: int) -> Callable[[Way], Way]:
    """Enter a way to run a program, so many times."""

    def enter(function: Way) -> Way:
        WAYS.extend([function] * weight)
        return function

    return enter


def meaning(session: Session, place: int, given: dict[str, Any], c: Constants, state: Any) -> Any:
    """What NumPy gives, or None where it refuses or numbers are large."""
    try:
        with np.errstate(all="ignore"):
            found = session.plain[place](**given, **vars(c), state=state)
    except (ValueError, IndexError, TypeError):
        return None
    changed = [*found, *given.values(), state.a, *state.items]
    return (
        found
        if all(np.abs(np.asarray(v, np.float64)).max(initial=0) < LARGEST for v in changed)
        else None
    )


def copied(given: dict[str, Mirrored]) -> dict[str, Any]:
    """The arrays of arguments, an array twice where a tensor is there twice."""
    memo: dict[int, Any] = {}
    return {n: memo.setdefault(id(p.plain), own(p.plain)) for n, p in given.items()}


def run_with(
    session: Session, functions: Sequence[Any], place: int, sizes: Any, dtype: str, c: Constants
) -> None:
    """Both run the program on their arguments, and both may change them."""
    given, state = session.arguments(sizes, dtype), session.state(sizes, dtype)
    trial = SimpleNamespace(a=own(state.plain.a), n=state.plain.n, items=own(state.plain.items))
    if meaning(session, place, copied(given), c, trial) is None:
        COUNTS["refused"] += 1
        return
    if session.texts[place].counted:
        functions = session.ours
    if session.texts[place].sized:  # its variable has one value in a graph
        session.all_realized()
    want = meaning(session, place, {n: p.plain for n, p in given.items()}, c, state.plain)
    got = functions[place](**{n: p.ours for n, p in given.items()}, **vars(c), state=state.ours)
    session.later(session.log[-1], got, want, dtype)
    if session.texts[place].sized:
        session.all_realized()


@way(4)
def lazily(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    run_with(session, session.ours, place, sizes, dtype, c)


@way(8)
def captured(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    run_with(session, session.jitted, place, sizes, dtype, c)


@way(1)
def other_globals(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    """The numbers that programs read as globals change."""
    names = {"g0": session.random.choice((0.5, -1.25, 2.0)), "g1": session.random.choice((1, 2, 3))}
    for function in (session.ours[place], session.plain[place]):
        function.__globals__.update(names)
    captured(session, place, sizes, dtype, c)


@way(1)
def writes(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    """Somebody changes arguments while results wait."""
    for key, pair in session.pool.items():
        if key[0] in "xybw" and session.random.random() < 0.3:
            scale = session.random.choice((0.5, -1.0))
            pair.ours *= scale
            pair.plain *= scale
            pair.ours[0] = pair.plain[0] = 0.25
    lazily(session, place, sizes, dtype, c)


FLOATS = ("x", "y", "w", "b", "s")


def total(results: Any) -> Any:
    """One number of several results."""
    return sum([(r * (n + 0.5)).sum() for n, r in enumerate(results)])


def differentiable(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> Any:
    """Arguments, and the loss as NumPy's function of a step along a direction; or None."""
    text = session.texts[place]
    given = session.arguments(sizes, dtype)
    state = new_state(session.rng, sizes)
    if (
        not text.smooth
        or text.sized
        or meaning(session, place, copied(given), c, state_of(state)) is None
    ):
        return None
    arrays = {n: np.asarray(p.plain) for n, p in given.items()}
    ways = {n: session.rng.standard_normal(arrays[n].shape) for n in FLOATS}

    def moved(t: float) -> Any:
        new = {n: own(a + t * ways[n] if n in FLOATS else a) for n, a in arrays.items()}
        return session.plain[place](**new, **vars(c), state=state_of(state))

    with np.errstate(all="ignore"):
        slopes = [float((total(moved(h)) - total(moved(-h))) / (2 * h)) for h in (1e-4, 1e-5)]
    if not abs(slopes[0] - slopes[1]) <= 1e-4 * (1 + abs(slopes[0])):
        return None
    value = own(total(moved(0.0)))
    meaning(session, place, {n: p.plain for n, p in given.items()}, c, state_of(state))  # assigns
    return {n: p.ours for n, p in given.items()}, ways, slopes[1], value, state


def state_of(state: SimpleNamespace, ours: bool = False) -> SimpleNamespace:
    """A copy of a state, of tensors if they are ours."""
    make = (lambda v: fg.Tensor(np.array(v))) if ours else own
    return SimpleNamespace(a=make(state.a), n=state.n, items=[make(v) for v in state.items])


def sloped(
    session: Session, place: int, sizes: Any, dtype: str, c: Constants, wrap: Any, jit: bool
) -> None:
    """The gradient along a direction against a difference of NumPy's values."""
    found = differentiable(session, place, sizes, dtype, c)
    if found is None:
        COUNTS["not differentiated"] += 1
        return
    given, ways, slope, value, state = found
    function = wrap(session.ours[place])
    ours = state_of(state, ours=True)
    rest = {n: t for n, t in given.items() if n not in FLOATS}

    def loss(*floats: Any) -> Any:
        return total(
            function(**dict(zip(FLOATS, floats, strict=True)), **rest, **vars(c), state=ours)
        )

    asked = fg.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))
    if jit:
        asked = fg.jit(asked)
    got, slopes = asked(*[given[n] for n in FLOATS])
    along = sum([(g * fg.Tensor(ways[n])).sum() for n, g in zip(FLOATS, slopes, strict=True)])
    tolerance = 2e-4 * (1 + abs(slope))
    session.waiting.append(
        (session.log[-1] + " slope", [along], [own(slope)], tolerance / (1 + abs(slope)))
    )
    session.waiting.append((session.log[-1] + " value", [got], [value], 1e-9))


@way(2)
def gradient(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    sloped(session, place, sizes, dtype, c, lambda f: f, session.random.random() < 0.4)


@way(1)
def checkpointed(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    if not session.texts[place].changes:
        sloped(session, place, sizes, dtype, c, fg.checkpoint, session.random.random() < 0.4)


@way(1)
def derivative(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    """The forward derivative against a difference of NumPy's values."""
    if session.texts[place].changes:
        return
    found = differentiable(session, place, sizes, dtype, c)
    if found is None:
        return
    given, ways, slope, value, state = found
    ours = state_of(state, ours=True)
    rest = {n: t for n, t in given.items() if n not in FLOATS}

    def loss(*floats: Any) -> Any:
        call = dict(zip(FLOATS, floats, strict=True))
        return total(session.ours[place](**call, **rest, **vars(c), state=ours))

    got, along = fg.jvp(
        loss, tuple([given[n] for n in FLOATS]), tuple([fg.Tensor(ways[n]) for n in FLOATS])
    )
    session.waiting.append((session.log[-1] + " slope", [along], [own(slope)], 2e-4))
    session.waiting.append((session.log[-1] + " value", [got], [value], 1e-9))


@way(2)
def mapped(session: Session, place: int, sizes: Any, dtype: str, c: Constants) -> None:
    """`vmap` over some arguments against a loop in NumPy."""
    text = session.texts[place]
    if (
        text.changes
        or text.sized
        or text.counted
        or any("while_loop" in line for line in text.lines)
    ):
        return
    given, state = session.arguments(sizes, dtype), session.state(sizes, dtype)
    names = [n for n in ARGUMENTS if session.random.random() < 0.5] or ["x"]
    count = session.random.randint(1, 3)
    stacks = {
        n: np.stack([np.asarray(data(session.rng, n, sizes, dtype)) for _ in range(count)])
        for n in names
    }
    rows = []
    for row in range(count):
        new = copied(given) | {n: own(stacks[n][row]) for n in names}
        rows.append(meaning(session, place, new, c, state_of(state.plain)))
        if rows[-1] is None:
            return
    ours = {n: p.ours for n, p in given.items()} | {n: fg.Tensor(a) for n, a in stacks.items()}
    axes = tuple([0 if n in names else None for n in ARGUMENTS])
    held = state.ours

    def f(*args: Any) -> Any:
        return session.ours[place](*args, **vars(c), state=held)

    function = fg.vmap(f, in_axes=axes)
    if session.random.random() < 0.3:
        function = fg.jit(function)
    want = [own(np.stack([np.asarray(r[j]) for r in rows])) for j in range(len(rows[0]))]
    session.later(session.log[-1], function(*[ours[n] for n in ARGUMENTS]), want, dtype)


def check(seed: int, events: int = 24) -> None:
    """One session; the options are those in force."""
    session = Session(seed)
    try:
        session.run(events)
    except AssertionError:
        raise
    except Exception as error:
        if any(said in str(error) for said in REFUSED) or "oracle_rows" in str(error):
            COUNTS["refused"] += 1
            return
        error.add_note(session.story(f"raised {type(error).__name__}"))
        raise


def settings(seed: int) -> dict[str, Any]:
    """The options of a session."""
    return (
        {"device": "cpu"}, {"device": "cpu", "tier": "native"}, {"device": "reference"},
        {"device": "cpu", "tier": "native", "poison": True},
        {"device": "cpu", "poison": True},
    )[seed % 5]  # fmt: skip


def failures(seeds: Iterator[int] | range) -> Iterator[str]:
    """What goes wrong in the sessions of these seeds."""
    for seed in seeds:
        try:
            with fg.config(**settings(seed)):
                check(seed)
        except Exception as error:
            yield (
                "".join(traceback.format_exception(error))
                if not isinstance(error, AssertionError)
                else str(error)
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a range of seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.oracle", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first:last, the last one left out")
    chosen = parser.parse_args(arguments)
    first, last = map(int, chosen.seeds.split(":"))
    failed = 0
    for failure in failures(range(first, last)):
        failed += 1
        print(failure, "\n", flush=True)
        if failed == 10:
            break
    print(", ".join([f"{name} {n}" for name, n in sorted(COUNTS.items())]))
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
