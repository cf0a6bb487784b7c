"""What a jitted function reads besides its arguments: no change of it goes unnoticed."""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import JitError
from fulgurite.jit import introspection
from fulgurite.jit.reachability import Survey
from tests.jitting import t

# --- closed-over things --------------------------------------------------------------------------

SCALE: Any = 2.0
TABLE: dict[str, Any] = {"w": 1.0}


def scaled(x: fg.Tensor) -> Any:
    return x * SCALE


def test_globals_are_read_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = fg.jit(lambda x: scaled(x) + TABLE["w"])
    assert jitted(t(1)).tolist() == [3]
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert jitted(t(1)).tolist() == [6]
    monkeypatch.setitem(globals(), "SCALE", t(7))
    assert jitted(t(1)).tolist() == [8]
    monkeypatch.setitem(TABLE, "w", 10.0)
    assert jitted(t(1)).tolist() == [17]
    monkeypatch.setitem(globals(), "scaled", lambda x: x * 0)
    assert jitted(t(1)).tolist() == [10]


def test_a_closed_over_tensor_is_replaced_and_assigned() -> None:
    w = t(1, 2)

    def f(x: fg.Tensor) -> fg.Tensor:
        return x * w

    jitted = fg.jit(f)
    assert jitted(t(1, 1)).tolist() == [1, 2]
    w = t(3, 4)
    assert jitted(t(1, 1)).tolist() == [3, 4]
    w += 1
    assert jitted(t(1, 1)).tolist() == [4, 5]
    w.assign([0, 9])
    assert jitted(t(1, 1)).tolist() == [0, 9]
    assert jitted.captured == 1
    w = fg.Tensor([1, 2, 3])
    assert jitted(t(1, 1, 1)).tolist() == [1, 2, 3]
    w = 5.0  # type: ignore[assignment]
    assert jitted(t(1, 1)).tolist() == [5, 5]


def test_closed_over_numbers_lists_and_functions() -> None:
    scale, parts, how = 2.0, [t(1), t(2)], [lambda x: x + 1]

    def f(x: fg.Tensor) -> Any:
        for part in parts:
            x = x * part
        return how[0](x) * scale

    jitted = fg.jit(f)
    assert jitted(t(1)).tolist() == [6]
    scale = 3.0
    assert jitted(t(1)).tolist() == [9]
    parts.append(t(10))
    assert jitted(t(1)).tolist() == [63]
    parts[0] = t(0)
    assert jitted(t(1)).tolist() == [3]
    how[0] = lambda x: x - 1
    assert jitted(t(1)).tolist() == [-3]


class Config:
    factor = 2.0
    nested = SimpleNamespace(shift=1.0)


class Model:
    kind = "plain"

    def __init__(self) -> None:
        self.w, self.training, self.seen = t(1, 2), True, 0
        self.config = Config()

    @property
    def bias(self) -> float:
        return self._bias if hasattr(self, "_bias") else 0.0

    def apply(self, x: fg.Tensor) -> Any:
        y = x * self.w * self.config.factor + self.config.nested.shift
        return (y if self.training else -y) * (2 if self.kind == "double" else 1)

    @fg.jit
    def __call__(self, x: fg.Tensor) -> Any:
        return self.apply(x) + self.bias

    step = fg.jit(lambda self, x: self.apply(x) * 10)


def test_an_object_is_what_its_attributes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    x = t(1, 1)

    def check() -> None:
        want = model.apply(x) + model.bias
        assert model(x).tolist() == want.tolist() == model(x).tolist()
        assert model.step(x).tolist() == (model.apply(x) * 10).tolist()

    check()
    model.training = False
    check()
    model.w = t(5, 6)
    check()
    model.w *= 2
    check()
    model.config.factor = 7.0  # now the object has one of its own
    check()
    del model.config.factor
    check()
    monkeypatch.setattr(Config, "factor", 3.0)
    check()
    monkeypatch.setattr(Config.nested, "shift", -1.0)
    check()
    model.kind = "double"
    check()
    model._bias = 4.0  # type: ignore[attr-defined]
    check()
    monkeypatch.setattr(Model, "apply", lambda self, x: x * 100)
    check()
    model.config = SimpleNamespace(factor=1.0, nested=SimpleNamespace(shift=0.0))  # type: ignore[assignment]
    check()


@dataclasses.dataclass
class Settings:
    scale: float
    parts: list[Any]


SETTINGS = Settings(2.0, [1.0])


def test_what_libraries_read_of_an_object_counts_as_well() -> None:
    def by_tree(x: fg.Tensor) -> Any:
        return x * sum(fg.tree.leaves(SETTINGS))

    def by_dict(x: fg.Tensor) -> Any:
        found = dataclasses.asdict(SETTINGS)
        return x * found["scale"] + found["parts"][0]

    jitted = [fg.jit(by_tree), fg.jit(by_dict)]
    for scale, part in ((2.0, 1.0), (5.0, 1.0), (5.0, 7.0)):
        SETTINGS.scale, SETTINGS.parts[0] = scale, part
        assert [f(t(1)).tolist() for f in jitted] == [[scale + part]] * 2


def test_arrays_of_python_and_weak_references() -> None:
    numbers, model = array("d", [1.0, 2.0]), Model()
    weak = weakref.ref(model)

    def f(x: fg.Tensor) -> Any:
        found = weak()
        assert found is not None
        return x * numbers[0] * (1 if found.training else -1)

    jitted = fg.jit(f)
    assert jitted(t(1)).tolist() == [1]
    numbers[0] = 5.0
    assert jitted(t(1)).tolist() == [5]
    model.training = False
    assert jitted(t(1)).tolist() == [-5]


def test_what_a_method_does_not_read_does_not_matter() -> None:
    class Loop:
        def __init__(self) -> None:
            self.w, self.history, self.count = t(1, 2), [], 0  # type: ignore[var-annotated]

        @fg.jit
        def step(self, x: fg.Tensor) -> fg.Tensor:
            return x * self.w

        def run(self) -> None:
            for _ in range(5):
                self.history.append(self.step(t(1, 1)).tolist())
                self.count += 1

    loop = Loop()
    loop.run()
    assert Loop.__dict__["step"].captured == 1 and loop.history == [[1, 2]] * 5
    other = Loop()
    other.w = t(7, 8)
    assert other.step(t(1, 1)).tolist() == [7, 8] and Loop.__dict__["step"].captured == 1


def test_functions_as_arguments_are_told_apart_by_what_they_do() -> None:
    def apply(f: Callable[[Any], Any], x: fg.Tensor) -> Any:
        return f(x)

    jitted = fg.jit(apply)
    for i in range(3):
        for factor in (2.0, 3.0):
            default: Any = lambda x, k=factor: x * k  # noqa: E731
            assert jitted(default, t(i)).tolist() == [i * factor]
            closure: Any = (lambda k: lambda x: x + k)(factor)
            assert jitted(closure, t(i)).tolist() == [i + factor]
    assert jitted.captured == 4
    assert jitted(fg.exp, t(0)).tolist() == [1] and jitted(fg.abs, t(-2)).tolist() == [2]


@pytest.mark.host_memory
def test_a_numpy_array_that_its_owner_changes() -> None:
    array = np.ones(2, np.float32)
    shared = fg.from_numpy(array)

    def shares(x: fg.Tensor) -> fg.Tensor:
        return x + shared

    jitted, reader = fg.jit(shares), fg.jit(lambda x: x * array.max() + array)
    given = fg.jit(lambda x, a: x * a)
    for number in (1.0, 5.0, 7.0):
        array[0] = number
        assert jitted(t(1, 1)).tolist() == [1 + number, 2]
        assert reader(t(1, 1)).tolist() == [2 * number, number + 1]
        assert given(t(1, 1), array).tolist() == [number, 1]
        assert given(shared, array).tolist() == [number * number, 1]
    assert jitted.captured == 1 and given.captured == 1
    assert given(t(1, 1), np.arange(4.0, dtype=np.float32)[::2]).tolist() == [0, 2]
    assert given(t(1, 1), np.arange(2)).tolist() == [0, 1]


def test_an_array_that_the_function_writes_to() -> None:
    def f(x: fg.Tensor, a: Any) -> Any:
        a += 1
        return x * a

    with pytest.raises(JitError, match="NumPy array"):
        fg.jit(f)(t(1, 2), np.ones(2, np.float32))
    mine = np.ones(2, np.float32)

    def g(x: fg.Tensor) -> fg.Tensor:
        mine[0] += 1
        return x * mine

    jitted = fg.jit(g)
    assert [jitted(t(1, 1)).tolist() for _ in range(3)] == [[2, 1], [3, 1], [4, 1]]


def test_the_environment_and_the_clock_by_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: fg.Tensor) -> Any:
        return x * float(os.environ.get("FULGURITE_TEST_SCALE", "1"))

    jitted = fg.jit(f)
    for number in (2, 3):
        monkeypatch.setenv("FULGURITE_TEST_SCALE", str(number))
        assert jitted(t(1)).tolist() == [number]
    stamp = fg.jit(lambda x: x + datetime.now().microsecond)
    assert len({stamp(t(0)).item() for _ in range(20)}) > 1


# --- random numbers, modes, options --------------------------------------------------------------


def test_random_numbers_advance_as_in_eager_code() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        return fg.dropout(x, 0.5, training=True) + fg.random.normal((4,)) + fg.rand(4)

    jitted = fg.jit(f)
    fg.random.seed(3)
    want = [f(t(1, 2, 3, 4)).tolist() for _ in range(5)]
    after = fg.rand(2).tolist()
    fg.random.seed(3)
    got = [jitted(t(1, 2, 3, 4)).tolist() for _ in range(5)]
    assert got == want and fg.rand(2).tolist() == after and jitted.captured == 1
    assert len({tuple(row) for row in got}) == 5
    fg.random.seed(3)
    assert jitted(t(1, 2, 3, 4)).tolist() == want[0]


def test_a_key_of_ones_own_is_an_argument_like_any_other() -> None:
    jitted = fg.jit(lambda key: fg.random.uniform((3,), key=key))
    for seed in (1, 2, 1):
        key = fg.random.key(seed)
        assert jitted(key).tolist() == fg.random.uniform((3,), key=key).tolist()
    assert jitted.captured == 1


def test_seeding_inside_a_captured_function_is_an_error() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        fg.random.seed(1)
        return x

    jitted = fg.jit(f)
    with pytest.raises(JitError, match="state of the generator"):
        jitted(t(1))


def test_options_are_part_of_a_capture() -> None:
    jitted = fg.jit(lambda x: (x * 2 + 1).sum())
    assert jitted(t(1, 2)).item() == 8
    with fg.config(fuse=False):
        assert jitted(t(1, 2)).item() == 8
        assert len(jitted.captures[0].replay.plan()[0].plan.schedule.items) > 1
    assert jitted(t(1, 2)).item() == 8 and jitted.captured == 2
    with fg.config(fuse=False):
        assert jitted(t(1, 2)).item() == 8
    assert jitted.captured == 2


def test_clocks_and_other_generators_are_asked_in_every_call() -> None:
    rng, other = np.random.default_rng(0), random.Random(0)

    for f in (
        lambda x: x + rng.normal(),
        lambda x: x + other.random(),
        lambda x: x + random.random(),
        lambda x: x + time.perf_counter(),
        lambda x: x + np.random.rand(),
    ):
        jitted = fg.jit(f)
        assert len({jitted(fg.Tensor(0.0, dtype="float64")).item() for _ in range(9)}) == 9


def test_generators_are_read_as_the_function_reads_them() -> None:
    def f(parts: Iterator[fg.Tensor]) -> fg.Tensor:
        return next(parts) + next(parts)

    def endless() -> Iterator[fg.Tensor]:
        i = 0.0
        while True:
            yield t(i)
            i += 1

    jitted = fg.jit(f)
    source = endless()
    assert [jitted(source).tolist() for _ in range(3)] == [[1], [5], [9]]
    total = fg.jit(lambda parts: sum(parts, fg.Tensor(0.0)))
    for n in (2, 3, 4):
        assert total(t(i) for i in range(n)).tolist() == [sum(range(n))]
    held = iter([t(1), t(2), t(3)])
    following = fg.jit(lambda x: x + next(held))
    assert [following(t(1)).tolist() for _ in range(3)] == [[2], [3], [4]]


def test_looking_for_libraries_of_tensors_runs_none_of_their_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    library = ModuleType("touchy_library")
    library.__dict__.update(thing=Touchy(), number=3, name="fulgurite")
    monkeypatch.setitem(sys.modules, "touchy_library", library)
    file = os.path.join("lib", "site-packages", "touchy_library.py")
    assert introspection.is_foreign("touchy_library", file)
    monkeypatch.delitem(introspection._foreign, "touchy_library")
    library.__dict__["softmax"] = fg.softmax
    assert not introspection.is_foreign("touchy_library", file)
    introspection._foreign.pop("touchy_library")


@pytest.mark.parametrize("kind", [dict, list, deque])
def test_what_another_thread_adds_to_while_it_is_looked_at(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: Any = kind({"a": t(2), "b": t(3)}) if kind is dict else kind([t(2), t(3)])
    plain = Survey.value
    added: list[None] = []

    def value(self: Survey, item: Any, *args: Any, **options: Any) -> Any:
        if not added and isinstance(item, fg.Tensor) and item.tolist() == [2]:
            added.append(held.update(c=t(5)) if kind is dict else held.append(t(5)))
        return plain(self, item, *args, **options)

    def f(x: fg.Tensor) -> Any:
        return x * sum(held.values() if kind is dict else held)

    monkeypatch.setattr(Survey, "value", value)
    jitted = fg.jit(f)
    assert jitted(t(1)).tolist() == [10]
    assert jitted(t(2)).tolist() == [20]
    assert len(held) == 3
