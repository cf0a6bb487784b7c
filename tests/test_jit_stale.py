"""Replays that would be stale, or that would not do what the plain function does: odd holders of
state, names picked at run time, classes changed from outside, numbers that are asked what they are.
"""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import json
import operator
import os
import pathlib
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

from .jitting import Wrap, alike, same, t

# --- things that hold a number ------------------------------------------------------------------

Holding = tuple[Callable[[Any], Any], Callable[[], Any]]  # reads it for a tensor, changes it


def _proxy() -> Holding:
    table = {"s": 2}
    held = types.MappingProxyType(table)
    return (lambda x: x * held["s"]), lambda: table.update(s=7)


def _bound_method() -> Holding:
    table = {"s": 2}
    get = table.get
    return (lambda x: x * get("s")), lambda: table.update(s=7)


def _bound_wrapper() -> Holding:
    items = [2]
    get = items.__getitem__
    return (lambda x: x * get(0)), lambda: items.append(items.pop() + 5)


def _bound_array() -> Holding:
    array = np.array([2.0])
    get = array.item
    return (lambda x: x * get(0)), lambda: array.fill(7)


def _view() -> Holding:
    table = {"s": 2}
    values = table.values()
    return (lambda x: x * sum(values)), lambda: table.update(s=7)


def _bytes() -> Holding:
    data = bytearray(b"\x02")
    view = memoryview(data)
    return (lambda x: x * view[0]), lambda: operator.setitem(data, 0, 7)


def _c_value() -> Holding:
    value = ctypes.c_int(2)
    return (lambda x: x * value.value), lambda: setattr(value, "value", 7)


def _thread_local() -> Holding:
    local = threading.local()
    local.s = 2
    return (lambda x: x * local.s), lambda: setattr(local, "s", 7)


def _event() -> Holding:
    event = threading.Event()
    return (lambda x: x * 7 if event.is_set() else x), event.set


class Thing:
    """Any object."""

    def __init__(self, s: Any = 2) -> None:
        self.s = s


def _weak() -> Holding:
    one, two = Thing(), Thing(7)
    table = weakref.WeakValueDictionary({"k": one})
    return (lambda x: x * table["k"].s + (0 * one.s)), lambda: table.update(k=two)


def _in_a_set() -> Holding:
    thing = Thing()
    things = {thing}
    return (lambda x: x * sum([each.s for each in things])), lambda: setattr(thing, "s", 7)


def _a_key() -> Holding:
    thing = Thing()
    things = {(thing, 1): 0}
    return (lambda x: x * sum([k[0].s for k in things])), lambda: setattr(thing, "s", 7)


def _set_of_another_type() -> Holding:
    box: list[Any] = [{1}]
    return (lambda x: x * len(str(box[0]))), lambda: operator.setitem(box, 0, {True})


def _float_of_a_class() -> Holding:
    class Degrees(float):
        """A number of its own kind."""

    box = [Degrees(2)]
    return (lambda x: x * float(box[0])), lambda: operator.setitem(box, 0, Degrees(7))


def _text_with_an_attribute() -> Holding:
    class Name(str):
        s: int

        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return True

    name = Name("a")
    name.s = 2
    box = [name]

    def change() -> None:
        box[0] = Name("abc")
        box[0].s = 3

    return (lambda x: x * box[0].s + len(box[0])), change


def _path() -> Holding:
    handle, name = tempfile.mkstemp()
    os.close(handle)
    path = pathlib.Path(name)

    def change() -> None:
        path.unlink()

    return (lambda x: x * 7 if not os.path.exists(path) else x), change


def _attrgetter() -> Holding:
    thing = Thing()
    get = operator.attrgetter("s")
    return (lambda x: x * get(thing)), lambda: setattr(thing, "s", 7)


def _renamed_getattr() -> Holding:
    thing, ask = Thing(), getattr
    return (lambda x: x * ask(thing, "s")), lambda: setattr(thing, "s", 7)


def _format() -> Holding:
    thing = Thing()
    return (lambda x: x * int("{.s}".format(thing))), lambda: setattr(thing, "s", 7)  # noqa: UP032


def _missing_attribute() -> Holding:
    thing: Any = Thing()

    def read(x: Any) -> Any:
        try:
            return x * thing.later
        except AttributeError:
            return x

    return read, lambda: setattr(thing, "later", 7)


def _attribute_of_a_function() -> Holding:
    def read(x: Any) -> Any:
        return x * getattr(read, "later", 1)

    return read, lambda: setattr(read, "later", 7)


def _attribute_of_a_module() -> Holding:
    module = types.ModuleType("settings_of_a_test")
    module.s = 2  # type: ignore[attr-defined]
    name = "".join(["", "s"])
    return (lambda x: x * getattr(module, name)), lambda: setattr(module, "s", 7)


def _module_by_name() -> Holding:
    module: Any = types.ModuleType("settings_by_name")
    module.s = 2
    sys.modules["settings_by_name"] = module
    return (lambda x: x * sys.modules["settings_by_name"].s), lambda: setattr(module, "s", 7)


def _callable_of_a_module_without_a_file() -> Holding:
    module: Any = types.ModuleType("made_by_a_test")
    sys.modules["made_by_a_test"] = module
    text = "class Scale:\n    s = 2\n    def __call__(self, x): return x * self.s\nscale = Scale()"
    exec(text, module.__dict__)
    return (lambda x: module.scale(x)), lambda: setattr(module.scale, "s", 7)


def _enum() -> Holding:
    scales: dict[Any, int] = {}

    class Kind(enum.Enum):
        A = 1

        def scale(self) -> int:
            return scales[self]

    scales[Kind.A] = 2
    return (lambda x: x * Kind.A.scale()), lambda: scales.update({Kind.A: 7})


def _hidden_by_a_subclass() -> Holding:
    class Base:
        s = 2

    class Derived(Base):
        pass

    thing = Derived()
    return (lambda x: x * thing.s), lambda: setattr(Derived, "s", 7)


def _method_hidden_by_a_subclass() -> Holding:
    class Base:
        def scale(self) -> int:
            return 2

    class Derived(Base):
        pass

    thing = Derived()
    return (lambda x: x * thing.scale()), lambda: setattr(Derived, "scale", lambda self: 7)


def _dunder() -> Holding:
    class Table:
        __scale__ = 2

    return (lambda x: x * Table.__scale__), lambda: setattr(Table, "__scale__", 7)


def _metaclass() -> Holding:
    class Meta(type):
        s = 2

    class Table(metaclass=Meta):
        pass

    return (lambda x: x * Table.s), lambda: setattr(Meta, "s", 7)


def _other_bases() -> Holding:
    class Root:
        pass

    class A(Root):
        s = 2

    class B(Root):
        s = 7

    class Leaf(A):
        pass

    thing = Leaf()
    return (lambda x: x * thing.s), lambda: setattr(Leaf, "__bases__", (B,))


def _function_of_ours() -> Holding:
    module: Any = types.SimpleNamespace(f=fg.relu)
    return (lambda x: module.f(x - 2)), lambda: setattr(module, "f", fg.exp)


HOLDINGS = [
    _proxy, _bound_method, _bound_wrapper, _bound_array, _view, _bytes, _c_value, _thread_local,
    _event, _weak, _in_a_set, _a_key, _set_of_another_type, _float_of_a_class,
    _text_with_an_attribute, _path, _attrgetter, _renamed_getattr, _format, _missing_attribute,
    _attribute_of_a_function, _attribute_of_a_module, _module_by_name,
    _callable_of_a_module_without_a_file, _enum, _hidden_by_a_subclass,
    _method_hidden_by_a_subclass, _dunder, _metaclass, _other_bases, _function_of_ours,
]  # fmt: skip


@pytest.mark.parametrize("holding", HOLDINGS, ids=lambda f: f.__name__[1:])
def test_a_change_is_noticed_wherever_it_is_held(holding: Callable[[], Holding]) -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        read, change = holding()
        jitted = wrap(read)
        before = [jitted(t(1, 2)), jitted(t(1, 2))]
        change()
        return [*before, jitted(t(1, 2)), jitted(t(1, 2))]

    alike(scenario)


def test_a_float_argument_of_a_class_is_compared() -> None:
    class Degrees(float):
        """A number of its own kind."""

    same(lambda x, n: x * float(n), (t(1), Degrees(2)), (t(1), Degrees(3)))


def test_methods_that_change_something_are_called_in_every_call() -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        items: list[int] = []
        append, pick = items.append, iter([1, 2, 3, 4]).__next__

        def step(x: Any) -> Any:
            append(1)
            return x * pick()

        jitted = wrap(step)
        return [jitted(t(1)) for _ in range(3)] + [len(items)]

    alike(scenario)


def test_modules_are_found_by_relative_and_by_late_imports(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "conf.py").write_text("scale = 2\n")
    (package / "late.py").write_text("scale = 2\n")
    (package / "use.py").write_text(
        "def name(x):\n    from .conf import scale\n    return x * scale\n"
        "def module(x):\n    from . import conf\n    return x * conf.scale\n"
        "def late(x):\n    from . import late\n    return x * late.scale\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    use: Any = pytest.importorskip("package_of_a_test.use")
    for function, held in ((use.name, "conf"), (use.module, "conf"), (use.late, "late")):
        jitted = fg.jit(function)
        assert [jitted(t(1)).tolist() for _ in range(2)] == [[2], [2]]
        monkeypatch.setattr(sys.modules[f"package_of_a_test.{held}"], "scale", 5)
        assert jitted(t(1)).tolist() == [5]
        monkeypatch.undo()
        monkeypatch.syspath_prepend(str(tmp_path))


def test_a_function_of_the_package_that_is_replaced_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jitted = fg.jit(lambda x: fg.relu(x - 2))
    assert jitted(t(1, 3)).tolist() == [0, 1]
    monkeypatch.setattr(fg, "relu", lambda x: x * 100)
    assert jitted(t(1, 3)).tolist() == [-100, 100]


# --- numbers ------------------------------------------------------------------------------------


def _caught(x: Any, n: Any) -> Any:
    try:
        return x * (1 / n)
    except ZeroDivisionError:
        return x * -1


class Slotted:
    """An object without a table of attributes."""

    __slots__ = ("n",)

    def __init__(self, n: Any) -> None:
        self.n = n


def _slotted(x: Any, n: Any) -> Any:
    return x * 2, type(Slotted(n).n) is type(n), Slotted(n)


NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "its type": lambda x, n: x * n if type(n) is int else x - n,
    "a table by type": lambda x, n: x * {int: 1.0, float: 2.0}[type(n)],
    "a caught division": _caught,
    "a power of another type": lambda x, n: x.astype(fg.int32) * 2 ** (n - 2),
    "a complex power": lambda x, n: x * (n - 2) ** 0.5,
    "a power in the result": lambda x, n: (x * 2, 2 ** (n - 2)),
    "inverted": lambda x, n: x + (~n if isinstance(n, int) else n),
    "a power with a modulus": lambda x, n: x * pow(int(n), 2, 5) + pow(n + 0, 2),
    "times a complex number": lambda x, n: x * (1j * n).imag,
    "a decimal": lambda x, n: x * float(Decimal(n) * Decimal(n)),
    "as JSON": lambda x, n: x * len(json.dumps([n])),
    "a slice": lambda x, n: (x * n, str(slice(0, n))),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_what_it_is_to_the_plain_function(name: str) -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        jitted = wrap(NUMBERS[name])
        return [jitted(t(1, 2), n) for n in (4, 3, 0, 1, 2, 2.5, 4)]

    alike(scenario)


def test_a_number_that_does_not_fit_is_an_error_at_the_users_line() -> None:
    jitted = fg.jit(lambda x, n: x + n)
    x = fg.Tensor(np.arange(3, dtype=np.uint8))
    assert jitted(x, 4).tolist() == [4, 5, 6]
    with pytest.raises(fg.errors.ConstantError, match=r"256 does not fit.*\n.*test_jit_stale\.py"):
        jitted(x, 256)
    assert jitted(x, 5).tolist() == [5, 6, 7] and jitted.captured == 2


def test_a_counter_in_a_dict_is_given_at_run_time() -> None:
    state = {"n": 0}

    def step(x: Any) -> Any:
        state["n"] += 1
        return x * state["n"]

    jitted = fg.jit(step)
    assert [jitted(t(1)).item() for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert type(state["n"]) is int and jitted.captured <= 3


def test_an_array_in_another_order_of_bytes_is_read_as_its_numbers() -> None:
    jitted = fg.jit(lambda a: a * 2)
    array = np.array([1, 2, 3], ">f4")
    assert jitted(array).tolist() == [2, 4, 6]
    array[0] = 5
    assert jitted(array).tolist() == [10, 4, 6]


# --- results ------------------------------------------------------------------------------------


def _inner(x: Any, n: Any) -> Any:
    class Local:
        k = n

    return x, Local.k, (lambda: n)(), Local


class Half(Slotted):
    """One slot, and a table."""


def _half(x: Any, n: Any) -> Any:
    made: Any = Half(n)
    made.m = n + 1
    return x * 2, made


RESULTS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "a function": (lambda x, n: (x * n, lambda: n), lambda r: (r[0], r[1]())),
    "a default": (lambda x, n: (x, lambda n=n: n + 1), lambda r: (r[0], r[1]())),
    "a class": (_inner, lambda r: (r[0], r[1], r[2], r[3].k * 1)),
    "slots": (_slotted, lambda r: (r[0], r[1], r[2].n, type(r[2].n).__name__)),
    "slots and attributes": (_half, lambda r: (r[0], r[1].n, r[1].m)),
    "an exception": (lambda x, n: (x, ValueError("a", n)), lambda r: (r[0], r[1].args)),
    "a partial": (lambda x, n: (x, functools.partial(max, n)), lambda r: (r[0], r[1](3))),
    "one list twice": (lambda x, n: [[x * n]] * 2, lambda r: (r, r[0] is r[1])),
    "a counter": (lambda x, n: (x, collections.Counter("aab")), lambda r: (r[0], dict(r[1]))),
    "deep lists": (
        lambda x, n: functools.reduce(lambda inner, _: [inner], range(120), x * n),
        lambda r: functools.reduce(lambda outer, _: outer[0], range(120), r),
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_of_any_kind_is_that_of_the_plain_function(name: str) -> None:
    function, seen = RESULTS[name]

    def scenario(wrap: Wrap) -> list[Any]:
        jitted = wrap(function)
        return [seen(jitted(t(1, 2), n)) for n in (2, 3, 4)]

    alike(scenario)


@pytest.mark.parametrize("kind", ["returned", "kept", "a module"])
def test_a_parameter_that_is_made_inside_has_its_value(kind: str) -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        held: Any = types.SimpleNamespace(w=None)

        def make(x: Any) -> Any:
            if kind == "kept":
                held.w = fg.nn.Parameter(x * 3)
                return held.w.sum().detach()
            return fg.nn.Parameter(x * 2) if kind == "returned" else fg.nn.Linear(2, 2).weight

        jitted = wrap(make)
        made = [jitted(t(1, 2)) for _ in range(2)]
        return [*made, type(made[1]).__name__, held.w, made[1] + 1]

    alike(scenario)


def test_random_numbers_are_drawn_once_if_a_call_cannot_be_captured() -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        weight = fg.nn.Parameter(t(1, 2, 3, 4, 5, 6, 7, 8))
        drop = wrap(lambda x: fg.dropout(x * weight, 0.5, training=True))
        text = wrap(lambda x, n: fg.random.uniform((2,)) * len(json.dumps(n)))
        found = [drop(fg.ones((8,))) for _ in range(3)] + [text(t(1), n) for n in (1, 2)]
        return [*found, fg.random.uniform((2,))]

    alike(scenario)


def test_no_stand_in_of_a_number_is_left_behind() -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        seen: set[int] = set()
        table: dict[int, Any] = {}
        found: list[Any] = []

        def step(x: Any, n: Any) -> Any:
            seen.add(n)
            table[n] = x * n
            if n == 3:
                raise ValueError(n)
            return x * len(seen)

        jitted = wrap(step)
        for n in (1, 2, 1):
            found.append(jitted(t(1), n))
        with pytest.raises(ValueError) as caught:
            jitted(t(1), 3)
        kinds = {type(each) for each in [*seen, *table, *caught.value.args]}
        return [*found, len(kinds), kinds == {int}]

    alike(scenario)


def test_a_list_that_holds_itself_is_returned() -> None:
    def make(x: Any) -> Any:
        made = [x * 2]
        made.append(made)
        return made

    made = fg.jit(make)(t(1))
    assert made[0].tolist() == [2] and made[1] is made


def test_attributes_are_put_without_running_the_code_of_a_class() -> None:
    class Counting:
        n = 0

        def __setattr__(self, name: str, value: Any) -> None:
            self.__dict__[name] = value
            self.__dict__["n"] = self.n + 1

    def scenario(wrap: Wrap) -> list[Any]:
        thing: Any = Counting()

        def step(x: Any) -> Any:
            thing.t = x * 2
            return thing.t + thing.n

        jitted = wrap(step)
        return [*[jitted(t(1)) for _ in range(4)], thing.n]

    alike(scenario)


# --- around the function ------------------------------------------------------------------------


def test_attributes_of_a_jitted_object_are_those_of_the_object() -> None:
    class Model(fg.nn.Module):
        def __init__(self) -> None:
            self.function, self.captured, self.scale = fg.relu, 3, 2.0

        def forward(self, x: Any) -> Any:
            return self.function(x) * self.scale

    model = Model()
    jitted = fg.jit(model)
    assert jitted(t(-1, 1)).tolist() == [0, 2]
    model.scale = 3.0
    assert jitted(t(-1, 1)).tolist() == [0, 3] and jitted.scale == 3.0


def test_an_assert_that_pytest_wrote_anew_is_no_hindrance() -> None:
    def checked(x: Any) -> Any:
        assert x.shape == (2,), f"{x.shape}"
        assert isinstance(x, fg.Tensor)
        return x * 2

    jitted = same(checked, (t(1, 2),), (t(3, 4),), captures=1)
    assert len(jitted.captures) == 1


def test_what_is_nested_too_deeply_runs_as_it_is() -> None:
    head: Any = None
    for _ in range(400):
        head = types.SimpleNamespace(v=1, next=head)

    def total(x: Any) -> Any:
        at, found = head, 0
        while at is not None:
            at, found = at.next, found + at.v
        return x * found

    jitted = fg.jit(total)
    assert jitted(t(1)).item() == 400
    head.next.next.v = 2
    assert jitted(t(1)).item() == 401


@pytest.mark.parametrize("pool", [True, False])
def test_threads_inside_a_function_may_capture_others(pool: bool) -> None:
    inner = fg.jit(lambda x: x * 2)

    def outer(x: Any) -> Any:
        if pool:
            with ThreadPoolExecutor(1) as workers:
                return workers.submit(inner, x).result() + 1
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(inner(x)))
        thread.start()
        thread.join()
        return found[0] + 1

    assert fg.jit(outer)(t(1)).item() == 3


@pytest.mark.parametrize("options", [{"dynamic": {"y": {0: fg.Var("n", 1, 8)}}}, {"donate": "y"},
                                     {"donate": (7,)}])  # fmt: skip
def test_an_option_that_names_no_argument_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(fg.errors.ArgumentError, match=r"which is no argument.*\n.*\n.*x, k"):
        fg.jit(lambda x, k=None: x * 2, **options)(t(1), None)


def test_a_coroutine_is_made_once() -> None:
    async def later(x: Any, n: Any) -> Any:
        return x * n

    started = fg.jit(later)(t(1), 2)
    with pytest.raises(StopIteration) as stop:
        started.send(None)
    assert stop.value.value.tolist() == [2]


def test_a_schedule_may_be_stepped_inside() -> None:
    def scenario(wrap: Wrap) -> list[Any]:
        w = fg.nn.Parameter(t(1, 2, 3))
        optimizer = fg.optim.SGD([w], lr=0.1, momentum=0.9)
        schedule = fg.optim.Schedule(optimizer, fg.optim.linear(20))

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        jitted = wrap(step)
        return [round(jitted(t(1, 2, 3)).item(), 3) for _ in range(4)] + schedule.rates()

    alike(scenario)
