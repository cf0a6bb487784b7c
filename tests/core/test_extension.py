"""The C extension: the same answers as the Python text, no leak, errors instead of crashes."""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build, extension, node
from fulgurite.core.dtype import float32
from fulgurite.core.extension import EXTENSION, PURE
from fulgurite.core.node import Node, live_count, make, toposort
from fulgurite.core.op import Op
from fulgurite.core.ops.effect import ASSIGN, DETACH
from fulgurite.core.ops.elementwise import ADD, DIV, EQ, EXP, LE, LT, MUL, NE, SUB
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.graph.ir.cache_key import flatten, order_of
from fulgurite.graph.ir.registry import enter, entries_at
from fulgurite.jit.exclusive import counted
from fulgurite.jit.replay import fresh_tensor
from fulgurite.runtime.device import get_device
from fulgurite.runtime.unmaterialized import About, Fresh
from fulgurite.runtime.walk import unknown_order

pytestmark = pytest.mark.device("none")
ROOT = Path(__file__).parents[2]
OTHER = ["tests/core/test_node.py", "tests/core/test_origin.py", "tests/graph/ir/test_registry.py",
         "tests/graph/ir/test_cache_key.py", "tests/core/test_extension.py"]  # fmt: skip
built = pytest.mark.skipif(EXTENSION is None, reason=f"no extension: {extension.REASON}")
nested = pytest.mark.skipif("FULGURITE_EXTENSION" in os.environ, reason="it is what runs here")


def run(*command: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )


@built
@nested
def test_the_same_tests_pass_without_it() -> None:
    found = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *OTHER, FULGURITE_EXTENSION="0")
    assert found.returncode == 0, found.stdout[-3000:]


def test_it_can_be_turned_off_and_says_so() -> None:
    code = "from fulgurite.core.extension import EXTENSION, in_words; print(EXTENSION, in_words())"
    found = run("-c", code, FULGURITE_EXTENSION="0")
    assert found.stdout == "None Python: FULGURITE_EXTENSION turns it off\n", found.stderr


def test_without_a_compiler_there_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    script = str(ROOT / "fulgurite/core/_build.py")
    found = run(script, str(tmp_path), CC="no-such-compiler", FULGURITE_EXTENSION="1")
    assert found.returncode == 1 and not list(tmp_path.iterdir())
    assert "no C compiler" in found.stdout or "Python.h" in found.stdout
    assert "turns it off" in run(script, str(tmp_path), FULGURITE_EXTENSION="0").stdout


@built
def test_one_that_was_built_from_another_text_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "_fast.c"
    other.write_text("/* another version */")
    monkeypatch.setattr(extension, "_SOURCE", str(other))
    monkeypatch.delenv(extension.SWITCH, raising=False)
    found, reason = extension._load()
    assert found is None and "another version" in reason
    monkeypatch.setattr(extension, "EXTENSION", None)
    monkeypatch.setattr(extension, "REASON", reason)
    assert "OUT OF DATE" in extension.in_words()
    with pytest.warns(RuntimeWarning, match="out of date and not used"):
        extension.warn_if_stale()


@pytest.mark.parametrize("reason", ["", "it was not built for this interpreter (...)"])
def test_one_that_is_there_or_was_never_built_is_no_warning(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "REASON", reason)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extension.warn_if_stale()


@built
def test_importing_warns_once_of_one_that_is_out_of_date(tmp_path: Path) -> None:
    package = tmp_path / "fulgurite"
    shutil.copytree(ROOT / "fulgurite", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "core/_fast.c").open("a") as file:
        file.write("/* another version */\n")
    code = "import fulgurite as fg; print((fg.ones(3) + 1).tolist()); import fulgurite.nn"
    found = run("-c", code, PYTHONPATH=str(tmp_path), cwd=tmp_path)
    assert found.stdout == "[2.0, 2.0, 2.0]\n", found.stderr
    assert found.stderr.count("RuntimeWarning") == 1 and "out of date" in found.stderr


def test_it_stays_small() -> None:
    assert len((ROOT / "fulgurite/core/_fast.c").read_text().splitlines()) <= 1000


# --- the same answers ----------------------------------------------------------------------------


KINDS: list[Callable[[Node, Node], Node]] = [
    ADD, MUL, ASSIGN, lambda a, b: EXP(a), lambda a, b: DETACH(a),
    lambda a, b: build.apply(ADD, a, 1.5),
    lambda a, b: build.expand(reduce_node("max", a, (1,)), (2, 3)),
]  # fmt: skip


def some_graph(draw: random.Random) -> list[Node]:
    nodes: list[Node] = [new_buffer((2, 3), float32) for _ in range(3)]
    for _ in range(draw.randrange(5, 40)):
        a, b, kind = draw.choice(nodes), draw.choice(nodes), draw.randrange(7)
        made = KINDS[kind](a, b)
        if draw.random() < 0.1:
            made.realized = weakref.ref(nodes[draw.randrange(3)])
        nodes.append(made)
    return [draw.choice(nodes) for _ in range(draw.randrange(1, 4))]


@built
@pytest.mark.parametrize("seed", range(40))
def test_walks_and_keys_are_those_of_the_python_text(seed: int) -> None:
    roots = some_graph(random.Random(seed))
    pure: Any = PURE
    assert toposort(roots) == pure["toposort"](roots)
    assert unknown_order(iter(roots)) == pure["unknown_order"](roots)
    order, now = order_of(roots)
    assert (order, now) == pure["order_of"](roots)
    assert flatten(roots, order, now) == pure["flatten"](roots, order, now)
    again = set(list(now)[:1])
    assert order_of(roots, again) == pure["order_of"](roots, again)


@built
@pytest.mark.parametrize("number", [1.5, -0.0, 3, -7, 1 << 24, (1 << 24) + 1, 1 << 40, 1e300,
                                    float("inf"), float("nan"), True])  # fmt: skip
@pytest.mark.parametrize(
    "dtype", [fg.float32, fg.int32, fg.float64, fg.int64, fg.uint8, fg.bool, fg.float16]
)
def test_numbers_become_the_same_constants(number: Any, dtype: Any) -> None:
    pure: Any = PURE["apply"]
    x = new_buffer((2,), dtype)

    def made(apply: Callable[..., Node], op: Op, *operands: Any) -> Any:
        try:
            return apply(op, *operands)
        except Exception as problem:
            return type(problem)

    for op in (ADD, SUB, DIV, LT, LE, EQ, NE):
        assert made(build.apply, op, x, number) is made(pure, op, x, number)
        assert made(build.apply, op, number, x) is made(pure, op, number, x)


@built
def test_numbers_on_either_side_and_comparisons_need_no_python() -> None:
    wide, whole = fg.ones(3).realize(), fg.Tensor(np.arange(3)).realize()
    entered = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entered
        entered += event == "call" and frame.f_code.co_filename == build.__file__

    sys.setprofile(note)
    try:
        found = (2 * wide, 1 - wide, wide > 0, wide >= 0, wide == 1, whole > 3, 3 + whole)
    finally:
        sys.setprofile(None)
    assert entered == 0
    assert found[0].tolist() == [2.0, 2.0, 2.0] and found[1].tolist() == [0.0, 0.0, 0.0]
    assert [part.tolist() for part in found[2:5]] == [[True] * 3] * 3
    assert found[5].tolist() == [False] * 3 and found[6].tolist() == [3, 4, 5]


@built
def test_references_are_counted_as_the_python_text_counts_them() -> None:
    pure: Any = PURE["counted"]
    plain, leaf = fg.Tensor([1.0, 2.0]).realize(), fg.Tensor([3.0], requires_grad=True).realize()
    fresh = fg.jit(lambda x: x + 1)
    for _ in range(3):
        made = fresh(plain)  # no node yet: it is made here
    tensors = (plain, leaf, made)

    def apart(*held: Any) -> list[int]:
        """What is counted in C beside what Python counts, whose own lists hold everything too."""
        (found, memories), (known, others) = counted(tensors), pure(tensors)
        assert [*memories] == [*others] and len(found) == len(known) == 12
        return [b - a for a, b in zip(found, known, strict=True)]

    before, counts = apart(), counted(tensors)[0]
    node = plain.entry.node
    assert apart(node, weakref.ref(node)) == before
    assert counted(tensors)[0][0] == counts[0] + 1
    del node
    memory = leaf.entry.node.src[0].memory
    assert counted(tensors)[0][10] == counts[10] + 1 and apart() == before
    del memory
    assert counted(tensors)[0] == counts and counted(()) == ([], ())
    for wrong in ([plain], (plain, 1), (fg.Tensor([1.0]) + 1).entry):
        with pytest.raises(TypeError):
            counted(wrong)  # type: ignore[arg-type]


@built
def test_results_are_wrapped_as_the_python_text_wraps_them() -> None:
    pure: Any = PURE["fresh_tensor"]
    memory = get_device("reference").from_host(np.array([1.0, 2.0], np.float32))
    about = About(((2,), fg.float32, "reference"))
    held = sys.getrefcount(memory), sys.getrefcount(about)
    ours, theirs = fresh_tensor(memory, about), pure(memory, about)
    for made in (ours, theirs):
        assert type(made) is fg.Tensor and type(made.entry) is Fresh and made.grad is None
        value: Any = made.entry.value
        assert value == (memory, about) and made.entry.key == -made.entry.id
    assert theirs.entry.id > ours.entry.id
    del made, value, ours, theirs
    gc.collect()
    assert (sys.getrefcount(memory), sys.getrefcount(about)) == held
    assert fresh_tensor(memory, about).tolist() == [1.0, 2.0]
    for wrong in ((), (memory,), (memory, about, 1)):
        with pytest.raises(TypeError):
            fresh_tensor(*wrong)


# --- no leak -------------------------------------------------------------------------------------


def test_a_hundred_thousand_ops_leave_nothing_behind(quiet: None) -> None:
    a, b = fg.Tensor([1.0, 2.0]), fg.Tensor([3.0, 4.0])
    watched = (ADD, float32, a.node, a.node.shape, None, (), a.node.origins)

    def ops(count: int) -> None:
        for i in range(count):
            c = (a + b) * 2.0 - i % 7
            toposort([c.node])
            order, now = order_of([c.node])
            flatten([c.node], order, now)
            node.above([a.node])
            entries_at(c.node)
            node.annotate(c.node, "note")
            del c, order, now

    ops(100)  # caches fill
    before, blocks = [sys.getrefcount(thing) for thing in watched], sys.getallocatedblocks()
    nodes = live_count()
    ops(20_000)
    assert live_count() == nodes
    after = [sys.getrefcount(thing) for thing in watched]
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) < 50
    assert sys.getallocatedblocks() - blocks < 500


@built
def test_errors_leave_nothing_behind_either(quiet: None) -> None:
    x = new_buffer((2,), float32)

    def wrong() -> int:
        errors = 0
        cases: list[Any] = [(ADD, float32, (x, 1)), (ADD, float32, (x,), [])]
        for arguments in cases:
            try:
                make(*arguments)
            except TypeError:
                errors += 1
        return errors

    assert wrong() == 2
    before, blocks = sys.getrefcount(x), sys.getallocatedblocks()
    for _ in range(1000):
        wrong()
    assert sys.getrefcount(x) == before and sys.getallocatedblocks() - blocks < 500


# --- errors --------------------------------------------------------------------------------------


@built
@pytest.mark.parametrize(
    "call",
    [
        lambda: make(ADD), lambda: make(ADD, float32, [1]), lambda: make(ADD, float32, (1,)),  # type: ignore
        lambda: make(ADD, float32, (), None, None, None), lambda: make(ADD, float32, srcs=()),  # type: ignore
        lambda: make(ADD, float32, op=ADD), lambda: ADD(1), lambda: ADD(other=1),  # type: ignore
        lambda: toposort(3), lambda: toposort([3]), lambda: node.above([None]),  # type: ignore
        lambda: node.parents_of("x"), lambda: entries_at(None), lambda: enter(0),  # type: ignore
        lambda: build.note(7), lambda: order_of([new_buffer((1,), float32)], 5),  # type: ignore
        lambda: flatten((), (), {}), lambda: flatten([ADD], [], {}),  # type: ignore
        lambda: flatten([new_buffer((1,), float32)], [], {}),
    ],
)  # fmt: skip
def test_wrong_types_are_errors(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


class Sour:
    """An argument of a node that fails where the table looks at it."""

    def __init__(self, word: str, fails: bool) -> None:
        self.word, self.fails = word, fails

    def __hash__(self) -> int:
        if self.word == "hash":
            raise ValueError("no hash")
        return 5

    def __eq__(self, other: object) -> bool:
        if self.fails:
            raise ValueError("not comparable")
        return self is other


def test_an_argument_that_cannot_be_hashed_or_compared_is_an_error_and_no_more() -> None:
    x = new_buffer((3,), float32)
    with pytest.raises(ValueError, match="no hash"):
        make(EXP, float32, (x,), Sour("hash", False))
    kept = make(EXP, float32, (x,), Sour("", True))
    with pytest.raises(ValueError, match="not comparable"):
        make(EXP, float32, (x,), Sour("", True))
    assert make(EXP, float32, (x,)) is make(EXP, float32, (x,)) is not kept


@built
def test_an_argument_whose_comparison_builds_and_drops_nodes_is_found_all_the_same() -> None:
    x = new_buffer((4,), float32)

    class Busy(Sour):
        def __eq__(self, other: object) -> bool:
            held = [make(EXP, float32, (x,), ("busy", i)) for i in range(3000)]  # the table grows
            return len(held) == 3000

        __hash__ = Sour.__hash__

    first = make(EXP, float32, (x,), Busy("", False))
    assert make(EXP, float32, (x,), Busy("", False)) is first


def test_a_rule_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="say the dtype"):
        new_buffer((1,), float32).op()
    x = make(EXP, float32, ())  # no source, so its shape cannot be found
    with pytest.raises(IndexError):
        _ = x.shape


class Garbage:
    """What only a cycle holds: an array, whose end others notice, and then a younger thing."""

    def __init__(self, make_one: Callable[[], Any]) -> None:
        self.me, self.array = self, np.zeros(3)
        self.held = make_one()


def test_what_code_is_handed_while_garbage_is_cleared_stays_whole() -> None:
    x = new_buffer((5,), float32)
    found: list[Any] = []
    for make_one, look in (
        (lambda: EXP(x), lambda: EXP(x)),  # by the table
        (lambda: enter(x), lambda: entries_at(x)),  # at a live node
    ):
        gc.collect()
        thing: Any = Garbage(make_one)
        noticed = weakref.ref(thing.array, lambda _, look=look: found.append(look()))  # type: ignore[misc]
        del thing
        gc.collect()
        assert noticed() is None
    node_, entries = found
    assert node_.src == (x,) and node_ is EXP(x) and toposort([node_]) == [x, node_]
    assert all([entry.node is x for entry in entries])


WALKS: dict[str, Callable[[Node], list[Node]]] = {
    "parents_of": lambda x: node.parents_of(x), "above": lambda x: node.above((x,)),
}  # fmt: skip


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_meets_all_whatever_else_walks_in_a_collection_before_it(name: str) -> None:
    x, walk = new_buffer((5,), float32), WALKS[name]
    users = [EXP(x), ADD(x, x)]
    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    thing: Any = Garbage(lambda: None)
    met: list[Any] = []
    noticed = weakref.ref(thing.array, lambda _: met.append(toposort(users)))
    del thing
    lists: list[list[Any]] = [[] for _ in range(400)]  # none is kept for the next
    gc.set_threshold(1)
    try:
        gc.enable()
        found = walk(x)
    finally:
        gc.set_threshold(*before)
    assert noticed() is None and len(met) == 1 and len(lists) == 400
    assert {*users} <= {*found}


@built  # in Python the key of a user in the table holds its sources
def test_nodes_in_a_cycle_are_collected_and_leave_the_table() -> None:
    gc.collect()
    before = live_count()
    x = new_buffer((5,), float32)
    x.meta = [EXP(x)]
    gone = weakref.ref(x)
    del x
    assert gone() is not None
    gc.collect()
    assert gone() is None and live_count() == before


@built
def test_memory_that_runs_out_anywhere_is_an_error_and_leaves_a_sound_table() -> None:
    capi = pytest.importorskip("_testcapi")
    a, b = fg.Tensor([1.0, 2.0]), fg.Tensor([3.0, 4.0])
    root = a.node

    def work() -> None:
        c = (a + b) * 1.25
        order, now = order_of([c.node])
        flatten([c.node], order, now)
        node.above([root])
        entries_at(root)
        node.annotate(make(EXP, float32, (root,), ("short of memory",)), "note")

    work()
    failures = 0
    for start in range(1, 120):
        capi.set_nomemory(start, start + 1)  # the one request after `start` fails
        try:
            work()
        except MemoryError:
            failures += 1
        finally:
            capi.remove_mem_hooks()
    assert failures > 20 and ((a + b) * 1.25).tolist() == [5.0, 7.5]
    assert toposort([root]) == [root] and all(n.op is not None for n in node.live_nodes())
