"""What a jitted function changes: tensors, attributes, items and names, as without jit."""

from __future__ import annotations

import copy
import signal
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.node import Node
from fulgurite.errors import ArgumentError
from fulgurite.graph.ir.registry import REGISTRY, Entry
from tests.jitting import address, plainly, same, t
from tests.properties import kernel

# --- state ---------------------------------------------------------------------------------------


def test_an_input_is_assigned() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        y = x + 1
        x += 10
        return y

    for make in (f, fg.jit(f)):
        x = t(1, 2)
        old = x * 2
        results = [make(x).tolist() for _ in range(3)]
        assert results == [[2, 3], [12, 13], [22, 23]]
        assert x.tolist() == [31, 32] and old.tolist() == [2, 4]


def test_who_holds_an_older_version_keeps_it() -> None:
    state = fg.ones(1000).realize()

    @fg.jit
    def step() -> fg.Tensor:
        state.assign(state * 2)
        return state.sum()

    step()
    step()
    before = state.entry.node
    pending, copy, array = state + 1, fg.Tensor(state), np.asarray(state)
    step()
    assert state.entry.node is not before
    assert (pending.numpy() == 5).all() and (copy.numpy() == 4).all() and (array == 4).all()
    assert (state.numpy() == 8).all()


def test_a_copy_made_after_an_assignment_has_the_new_memory() -> None:
    read = fg.jit(lambda x: x * 2)

    @fg.jit
    def turn(x: fg.Tensor) -> None:
        x.assign(fg.cumsum(x)[::-1])  # not in place: the same node has other memory then

    for _ in range(3):
        x = fg.Tensor(np.arange(300.0)).realize()
        assert read(x).numpy()[299] == 598
        turn(x)
        other = copy.copy(x)
        taken = [fg.Tensor(np.full(300, 7.0)).realize() for _ in range(3)]
        assert np.array_equal(read(other).numpy(), np.cumsum(np.arange(300.0))[::-1] * 2)
        del taken


def test_updates_are_in_place_where_nobody_can_tell() -> None:
    with fg.config(device="cpu"):
        state = (fg.ones(5000) * 1).realize()

        @fg.jit
        def step() -> None:
            state.assign(state * 2)

        step()
        step()
        ident, before = state.entry.node.id, address(state)
        step()
        assert state.entry.node.id == ident and address(state) == before
        assert (state.numpy() == 8).all()


def test_results_are_never_one_memory() -> None:
    jitted = fg.jit(lambda x: (x + 1, x))
    x = t(1, 2)
    first = jitted(x)
    kept = first[0]
    second = jitted(t(10, 20))
    assert kept.tolist() == [2, 3] and second[0].tolist() == [11, 21] and first[1] is x
    kept += 1
    assert jitted(x)[0].tolist() == [2, 3] and second[0].tolist() == [11, 21]


def test_a_donated_argument_gives_its_memory_to_a_result() -> None:
    with fg.config(device="cpu"):
        jitted = fg.jit(lambda state, x: {k: v * 2 + x for k, v in state.items()}, donate="state")
        x = fg.ones(3000).realize()
        state = {"a": (x * 1).realize(), "b": (x * 2).realize()}
        places = {address(v) for v in state.values()}
        for _ in range(3):
            old, state = state, jitted(state, x)
            assert {address(v) for v in state.values()} == places
        with pytest.raises(RuntimeError, match="given away"):
            old["a"].numpy()
        assert (state["a"].numpy() == 15).all() and (state["b"].numpy() == 23).all()
        held = state["a"] + 1  # who still needs it keeps it: then the result is memory of its own
        old, state = state, jitted(state, x)
        assert (held.numpy() == 16).all() and (state["a"].numpy() == 31).all()
    with pytest.raises(ArgumentError, match="donate"):
        fg.jit(lambda x: x, donate=2.5)


def test_two_inputs_that_are_one_tensor() -> None:
    def f(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        a += 1
        return a * b

    for make in (f, fg.jit(f)):
        x, y = t(1, 2), t(3, 4)
        assert make(x, y).tolist() == [6, 12]
        assert make(x, x).tolist() == [9, 16]
        assert make(x, y).tolist() == [12, 20]
        assert x.tolist() == [4, 5]
    same(lambda a, b: a - b, (t(1), t(2)), *[(x, x) for x in [t(5)]], (t(3), t(1)))


class Fitted:
    """Two weights with gradients that each step replaces."""

    def __init__(self, jitted: bool) -> None:
        self.a, self.b = t(1, 2).requires_grad_(), t(3, 5).requires_grad_()
        a, b = self.a, self.b
        optimizer = fg.optim.SGD([a, b], lr=0.125, momentum=0.5)

        def step(x: fg.Tensor) -> fg.Tensor:
            optimizer.zero_grad()
            loss = ((a * x - b) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        self.step = fg.jit(step) if jitted else step

    def seen(self) -> list[Any]:
        return [p.tolist() for p in (self.a, self.b, self.a.grad, self.b.grad) if p is not None]


def _swap(fitted: Fitted) -> None:
    fitted.a.grad, fitted.b.grad = fitted.b.grad, fitted.a.grad


def _share(fitted: Fitted) -> None:
    fitted.a.grad = fitted.b.grad


def _pending(fitted: Fitted) -> None:
    assert fitted.a.grad is not None
    fitted.a.grad = fitted.a.grad * 2


def _other_shape(fitted: Fitted) -> None:
    fitted.b.grad = fg.ones((3, 1))


def _other_dtype(fitted: Fitted) -> None:
    fitted.b.grad = fg.ones(2, dtype="int32").realize()


def _looked_at(fitted: Fitted) -> None:
    assert fitted.a.grad is not None
    assert (fitted.a.grad + 1).tolist()


def _none(fitted: Fitted) -> None:
    fitted.a.grad = None


@pytest.mark.parametrize(
    "change", [_swap, _share, _pending, _other_shape, _other_dtype, _looked_at, _none]
)
def test_gradients_that_were_touched_between_steps_change_nothing(change: Any) -> None:
    plain, jitted = Fitted(False), Fitted(True)
    x, kept = t(1, -1), []
    for turn in range(8):
        kept.append([fitted.step(x).tolist() for fitted in (plain, jitted)])
        assert jitted.seen() == plain.seen()
        if turn in (3, 4, 6):
            for fitted in (plain, jitted):
                change(fitted)
    assert all(mine == theirs for theirs, mine in kept)


def test_a_gradient_that_somebody_holds_is_not_written_over() -> None:
    fitted, x = Fitted(True), t(1, -1)
    held, values = [], []
    for _ in range(8):
        fitted.step(x)
        held.append(fitted.a.grad)
        values.append(fitted.a.grad.tolist() if fitted.a.grad is not None else None)
    assert [h.tolist() for h in held if h is not None] == values


def test_a_gradient_that_is_an_argument_of_the_next_step() -> None:
    losses: dict[bool, list[Any]] = {False: [], True: []}
    for jitted, found in losses.items():
        fitted, x = Fitted(jitted), t(1, -1)
        for _ in range(6):
            found.append(fitted.step(x).tolist())
            assert fitted.a.grad is not None
            x = fitted.a.grad
    assert losses[True] == losses[False]


def test_a_replayed_step_looks_for_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, x = Fitted(True), t(1, -1)
    for _ in range(4):
        fitted.step(x)
    kind = type(fitted.step.captures[0].replay)  # type: ignore[attr-defined]
    real, found = kind._bind, []

    def bind(*given: Any) -> Any:
        found.append(given)
        return real(*given)

    monkeypatch.setattr(kind, "_bind", bind)
    for _ in range(5):
        fitted.step(x)
    assert not found  # what it reads has not moved, and gradients are only replaced


@pytest.mark.parametrize("leaf", [False, True])
def test_a_detached_tensor_is_assigned_alone(leaf: bool) -> None:
    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        with fg.no_grad():
            x += y
        return x.detach() * 1

    x = t(1, 2).realize()
    apart = x.detach().requires_grad_(leaf)
    for i in range(1, 4):
        assert step(apart, t(10)).tolist() == [1 + 10 * i, 2 + 10 * i] == apart.tolist()
        assert x.tolist() == [1, 2]


class _Thing:
    value: Any


def _pair(kind: str) -> tuple[Any, Any]:
    """Two things that are alike, and can be changed."""
    if kind == "object":
        first, second = _Thing(), _Thing()
        first.value, second.value = t(1), t(1)
        return first, second
    return ([t(1)], [t(1)]) if kind == "list" else ({"value": t(1)}, {"value": t(1)})


@pytest.mark.parametrize("kind", ["object", "list", "dict"])
def test_things_that_were_two_are_one_in_a_later_call(kind: str) -> None:
    def change(a: Any, b: Any, x: fg.Tensor) -> Any:
        if isinstance(a, list):
            a.append(x)
            return sum(b)
        if isinstance(a, dict):
            a["value"] = a["value"] + x
            return b["value"] * 1
        a.value = a.value + x
        return b.value * 1

    f = fg.jit(change)
    for _ in range(2):
        a, b = _pair(kind)
        assert f(a, b, t(5)).tolist() == [1]
        a, b = _pair(kind)
        assert f(a, a, t(5)).tolist() == [6]
    assert f.captured == 2


def test_numbers_of_things_that_were_two_are_one_in_a_later_call() -> None:
    @fg.jit
    def count(a: Any, b: Any, x: fg.Tensor) -> Any:
        a.value += 1
        return x * b.value

    a, b = _Thing(), _Thing()
    a.value = b.value = 1
    assert count(a, b, t(5)).tolist() == [5]
    assert count(b, b, t(5)).tolist() == [10]


def test_closures_of_two_cells_are_of_one_in_a_later_call() -> None:
    def counter() -> Any:
        n = 0

        def count(x: fg.Tensor) -> fg.Tensor:
            nonlocal n
            n += 1
            return x * n

        return count

    both = fg.jit(lambda f, g, x: f(x) + g(x))
    first, second = counter(), counter()
    assert both(first, second, t(1)).tolist() == [2]
    third = counter()
    assert both(third, third, t(1)).tolist() == [3]


def test_whether_two_tensors_are_one_is_seen_in_every_call() -> None:
    f = fg.jit(lambda x, y, z: (z * 2, x is y))
    once = fg.jit(lambda xs: sum({id(x): x for x in xs}.values()))
    arrays = fg.jit(lambda x, y: x is y)
    a, b, c = (f(t(0), t(0), t(i))[0] for i in range(3))  # results of a replay, too
    for one in (a, b):
        assert f(a, b, c)[1] is False and f(one, one, c)[1] is True
        assert once([b, c]).tolist() == [6] and once([c, c]).tolist() == [4]
    x, y = np.ones(2), np.ones(2)
    assert not arrays(x, y) and arrays(x, x)


def test_views_of_one_base_are_values_of_their_own() -> None:
    def f(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        a += 1
        return a + b

    for make in (f, fg.jit(f)):
        base = fg.Tensor(np.arange(40_000, dtype=np.float32)).realize()
        for _ in range(2):
            a, b = base[:20_000], base[:20_000].realize()
            assert make(a, b).numpy()[7] == 15
            assert base.numpy()[7] == 7


def test_an_argument_that_a_closure_holds_as_well() -> None:
    w = t(1, 2)

    def f(x: fg.Tensor) -> fg.Tensor:
        x += 1
        return w * 1

    for make in (f, fg.jit(f)):
        w = t(1, 2)
        assert make(w).tolist() == [2, 3] and make(w).tolist() == [3, 4]
        assert make(t(5)).tolist() == [3, 4]


def test_attributes_items_and_globals_that_a_function_binds() -> None:
    class State:
        def __init__(self) -> None:
            self.h, self.calls, self.log = t(0, 0), 0, []  # type: ignore[var-annotated]
            self.table: dict[str, Any] = {"last": None}

        def step(self, x: fg.Tensor) -> fg.Tensor:
            self.h = self.h * 0.5 + x
            self.table["last"] = [x * 2, self.h]
            self.best: Any = {"h": self.h}
            return self.h.sum()

        def count(self, x: fg.Tensor) -> fg.Tensor:
            self.calls += 1
            self.log.append(x * self.calls)
            return x + self.calls

    plain, captured = State(), State()
    step, count = fg.jit(State.step), fg.jit(State.count)
    for i in range(4):
        assert plain.step(t(i, 1)).tolist() == step(captured, t(i, 1)).tolist()
        assert plainly(plain.table) == plainly(captured.table)
        assert plain.h.tolist() == captured.h.tolist() and captured.best["h"] is captured.h
        assert captured.table["last"][1] is captured.h
        assert plain.count(t(i)).tolist() == count(captured, t(i)).tolist()
        assert plainly(plain.log) == plainly(captured.log) and plain.calls == captured.calls
    assert step.captured <= 2  # the second time `last` is no longer None
    kept = captured.h
    step(captured, t(1, 1))
    assert captured.h is not kept


def test_a_counter_of_python_is_given_at_run_time_once_it_has_changed_twice() -> None:
    class Adam:
        def __init__(self) -> None:
            self.steps, self.rate, self.w = 0, 0.5, t(1, 2)

        def step(self, g: fg.Tensor) -> fg.Tensor:
            self.steps += 1
            self.w = self.w - g * self.rate / (1 - 0.9**self.steps)
            return self.w * 1

    plain, captured, step = Adam(), Adam(), fg.jit(Adam.step)
    for i in range(12):
        assert plain.step(t(1, i)).tolist() == step(captured, t(1, i)).tolist()
        assert plain.steps == captured.steps and type(captured.steps) is int
        if i > 6:
            plain.rate = captured.rate = 0.5 / i
    assert step.captured <= 6
    scale = 1.0

    def f(x: fg.Tensor) -> fg.Tensor:
        return x * scale if scale != 3.0 else -x

    jitted = fg.jit(f)
    for scale in (1.0, 2.0, 3.0, 4.0, 5.0, 3.0):  # noqa: B007
        assert jitted(t(1)).tolist() == f(t(1)).tolist()


COUNTER = t(0)


def test_nonlocal_and_global_names_that_a_function_binds() -> None:
    global COUNTER
    total, COUNTER = t(0), t(0)  # on the device of this run

    def f(x: fg.Tensor) -> None:
        nonlocal total
        global COUNTER
        total = total + x
        COUNTER = COUNTER + 1

    jitted = fg.jit(f)
    for _ in range(3):
        jitted(t(2))
    assert total.tolist() == [6] and COUNTER.tolist() == [3] and jitted.captured == 1


def test_closed_over_sets_and_queues() -> None:
    names, queue = {"a"}, deque([t(1)], maxlen=2)

    def f(x: fg.Tensor) -> fg.Tensor:
        queue.append(x * len(names))
        return sum(queue, fg.Tensor(0.0))

    results = []
    for make in (f, fg.jit(f)):
        names, queue = {"a"}, deque([t(1)], maxlen=2)
        found = []
        for i in range(4):
            found.append(make(t(i)).tolist())
            names.add(str(i))
        results.append((found, plainly(list(queue))))
    assert results[0] == results[1]


# --- all of it together --------------------------------------------------------------------------


class World:
    """Things that a function reads and changes, and ways to change them between calls."""

    def __init__(self) -> None:
        self.w, self.table = t(1, 2), dict[str, Any](a=t(3, 4), n=2.0)
        self.parts, self.mode, self.count = [t(1, 1)], "add", 0
        self.size, self.x = 2, t(5, 6)

    def call(self, x: fg.Tensor, k: float, more: Any) -> Any:
        y = x * self.w + self.table["a"] * k
        for part in self.parts:
            y = y + part if self.mode == "add" else y * part
        if self.count % 3 == 2:
            y = y * self.table["n"]
        self.w = self.w * 0.5 + 1
        self.table["a"] += 1
        if more is not None:
            more.assign(more + y.sum())
            self.parts[-1] = more
        return y, k * 2


def changed(world: World, action: int, number: int) -> None:
    """One of many changes, the same for both worlds."""
    fresh = t(*[float(number + i) for i in range(world.size)])
    if action == 0:
        world.w = fresh
    elif action == 1:
        world.w += number
    elif action == 2:
        world.table["n"] = float(number)
    elif action == 3:
        world.parts.append(fresh)
    elif action == 4:
        world.mode = "add" if number % 2 else "multiply"
    elif action == 5:
        world.count += 1
    elif action == 6:
        world.size = 1 + number % 3
        size = world.size
        world.w, world.x = (t(*[float(i + number) for i in range(size)]) for _ in range(2))
        world.table["a"], world.parts = world.x * 2, [world.x]
    elif action == 7:
        world.x = world.w
    elif action == 8:
        world.parts = world.parts[:1]
    elif action == 9:
        world.table = dict(reversed(world.table.items()))


@kernel
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.booleans()), max_size=12))
def test_any_sequence_of_changes_and_calls_is_as_without_jit(steps: Any) -> None:
    plain, captured, call = World(), World(), fg.jit(World.call)
    kept = []
    for action, number, more in steps:
        for world, make in ((plain, World.call), (captured, call)):
            changed(world, action, number)
            extra = world.parts[0] if more else None
            kept.append(make(world, world.x, float(number), extra))
        assert repr(plainly(vars(plain))) == repr(plainly(vars(captured)))  # nan is nan
    for want, got in zip(kept[::2], kept[1::2], strict=True):
        assert repr(plainly(want)) == repr(plainly(got))


@pytest.mark.parametrize("leaf", [False, True])
def test_a_first_step_over_memory_that_others_hold_too_needs_one_plan(leaf: bool) -> None:
    with fg.config(device="cpu"):
        given = np.arange(5000.0, dtype="float32")
        loaded, weight = fg.Tensor(given).realize(), (fg.ones(5000) * 1).requires_grad_(leaf)
        with fg.no_grad():
            weight.assign(loaded.detach())

        @fg.jit
        def step() -> None:
            with fg.no_grad():
                weight.assign(weight * 2)

        for turn in range(4):
            step()
            assert np.array_equal(weight.detach().numpy(), given * 2.0 ** (turn + 1))
            assert np.array_equal(loaded.numpy(), given) and weight.requires_grad is leaf
        assert [*step.captures[0].replay._plans] == [True]  # that writes over its inputs


def test_versions_that_somebody_holds_in_every_call_are_kept() -> None:
    with fg.config(device="cpu"):
        state = (fg.ones(5000) * 1).realize()

        @fg.jit
        def step() -> None:
            state.assign(state * 2)

        held = []
        for turn in range(6):
            held.append((fg.Tensor(state), state + 1, 2.0**turn))
            step()
        assert (state.numpy() == 64).all()
        for version, pending, value in held:
            assert (version.numpy() == value).all() and (pending.numpy() == value + 1).all()
        assert [*step.captures[0].replay._plans] == [True, False]  # in the end one that copies


def test_a_gradient_arrives_at_a_leaf_whose_memory_was_held_by_another() -> None:
    with fg.config(device="cpu"):
        weight = fg.Tensor(np.arange(5000.0, dtype="float32")).realize().requires_grad_()
        other = fg.Tensor(weight.detach())

        @fg.jit
        def step() -> None:
            with fg.no_grad():
                weight.assign(weight * 2)

        waiting = (weight * 3).sum()
        step()
        assert weight.detach().tolist()[:3] == [0, 2, 4] and other.tolist()[:3] == [0, 1, 2]
        waiting.backward()
        assert waiting.item() == 3 * 4999 * 2500
        assert weight.grad is not None and (weight.grad.numpy() == 3).all()


def test_a_module_that_remembers_what_can_be_found_again_is_the_same() -> None:
    model = fg.nn.Sequential(fg.nn.BatchNorm2d(2))
    optimizer = fg.optim.SGD(model.parameters(), lr=0.1)

    @fg.jit
    def step(x: fg.Tensor) -> None:
        try:
            loss = model(x).sum()
        except AttributeError:
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step(fg.ones((2, 2, 3, 3)))
    assert step.captured == 1


# in a `__del__` Python says so and goes on: the next step is as good
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_while_memory_is_written_over_loses_nothing() -> None:
    with fg.config(device="cpu"):
        state = (fg.ones(2_000_000) * 1).realize()

        @fg.jit
        def step() -> None:
            state.assign(state + 1)

        step()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for turn in range(12):  # a signal in the native call is looked at when it is over
                with suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + 3e-4 * turn)
                    for _ in range(2000):
                        step()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                found = (state.min(), state.max())
                assert found[0].item() == found[1].item()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", range(6))
def test_an_interruption_while_a_function_is_captured_puts_every_tensor_back(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    w, b = fg.Tensor([1.0, 2.0]), fg.Tensor([3.0, 4.0])

    @fg.jit
    def step() -> None:
        w.assign(w + b)
        b.assign(b * 2)

    rebind, left = REGISTRY.rebind, iter(range(number, -1, -1))

    def interrupted(entry: Entry, old: Node, new: Node) -> bool:
        done = rebind(entry, old, new)
        if next(left, None) == 0:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch:
        patch.setattr(REGISTRY, "rebind", interrupted)
        with suppress(KeyboardInterrupt):
            step()
    found = w.tolist(), b.tolist()
    assert found in [([1, 2], [3, 4]), ([4, 6], [6, 8])]
    step()
    assert w.tolist() == [x + y for x, y in zip(*found, strict=True)]


@pytest.mark.parametrize("method", ["rebind", "replace"])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_an_interruption_while_a_replay_hands_out_memory_leaves_all_tensors_new_or_none(
    monkeypatch: pytest.MonkeyPatch, method: str, held: bool, number: int
) -> None:
    tensors = [fg.Tensor([1.0, 2.0]), fg.Tensor([3.0, 4.0]), fg.Tensor([5.0, 6.0])]

    @fg.jit
    def step() -> None:
        for x in tensors:
            x.assign(x * 2)

    with fg.config(poison=True):  # then nothing is written over
        for _ in range(3):
            step()
        others = [copy.copy(x) for x in tensors] if held else []
        change, left = getattr(REGISTRY, method), iter(range(number, -1, -1))

        def interrupted(*args: Any) -> Any:
            done = change(*args)
            if next(left, None) == 0:
                raise KeyboardInterrupt
            return done

        with monkeypatch.context() as patch:
            patch.setattr(REGISTRY, method, interrupted)
            with suppress(KeyboardInterrupt):
                step()
        found = [x.tolist() for x in tensors]
        before = [[8.0, 16.0], [24.0, 32.0], [40.0, 48.0]]
        assert found in (before, [[2 * n for n in row] for row in before])
        assert [x.tolist() for x in others] == (before if held else [])
        step()
        assert [x.tolist() for x in tensors] == [[2 * n for n in row] for row in found]
