"""Tests of aot/explain.py: what would run, why, at what cost, and what the cache knows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.aot.explain import KernelReport
from fulgurite.config import current
from fulgurite.core.node import toposort
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.errors import ArgumentError
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.runtime.plan import Plan
from fulgurite.runtime.realize import lookup
from fulgurite.tensor import wrap
from tests import fuzz


@pytest.fixture(autouse=True)
def clean() -> None:
    fg.clear_caches()


def random(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(2).normal(size=shape).astype(np.float32))


def test_a_kernel_has_kind_bytes_operations_lines_reason_and_text() -> None:
    x = random(4, 8)
    (kernel,) = fg.explain(fg.softmax(x, axis=-1)).kernels
    assert kernel.kind == "reduce"
    assert kernel.bytes == 2 * 4 * 8 * 4  # read once, written once
    assert kernel.flops == 5 * 4 * 8  # max, sub, exp, sum, div
    assert kernel.lines and all(__file__ in line for line in kernel.lines)
    assert kernel.reason == "a reduction"
    assert "fold('max'" in kernel.text


def test_the_text_names_every_stage_and_kernel() -> None:
    text = str(fg.explain(fg.softmax(random(4, 4) @ random(4, 4) * 1, axis=-1)))
    for part in (
        "2 kernels",
        "contract:",
        "reduce:",
        "because:",
        "--- simplify ---",
        "--- schedule ---",
        "--- nothing changed: ",
        "unwindow, ",
    ):
        assert part in text


def test_explaining_computes_nothing_and_changes_no_cache() -> None:
    x = random(3) * 2
    before = fg.cache_stats()
    fg.explain(x)
    assert fg.cache_stats() == before and not x.is_realized


def test_a_hit_and_each_kind_of_miss_are_told_apart() -> None:
    x = random(3)
    assert "no graph of this kind" in fg.explain(x * 2).cache
    (x * 2).realize()
    assert fg.explain(x * 2).cache == "hit"
    assert "1 constants differ" in fg.explain(x * 3).cache
    assert "add" in fg.explain(x + 2).cache and "not (mul" in fg.explain(x + 2).cache
    assert "an input float32[5]" in fg.explain(random(5) * 2).cache
    with fg.config(exact=True):
        assert "option differs" in fg.explain(x * 2).cache


def test_peak_is_inputs_results_and_arena() -> None:
    report = fg.explain(random(16, 16) * 2)
    assert report.peak_bytes == 2 * 16 * 16 * 4


def test_what_is_known_needs_no_kernels_and_other_objects_are_refused() -> None:
    assert fg.explain(random(3)).kernels == ()
    with pytest.raises(ArgumentError, match="not a tensor"):
        fg.explain(3)  # type: ignore[arg-type]


# --- what is shown is what runs ------------------------------------------------------------------

Kinds = tuple[str, tuple[Any, ...]]  # of a kernel, and of those of its bodies


def shown(kernels: Sequence[KernelReport]) -> list[Kinds]:
    return [(k.kind, tuple(shown(k.inner))) for k in kernels]


def compiled(plan: Plan) -> list[Kinds]:
    found: list[Kinds] = []
    for made in plan.kernels:
        code: Any = made.code
        plans = getattr(code, "plans", ())
        found.append((made.kernel.kind, tuple([k for plan in plans for k in compiled(plan)])))
    return found


def check(*tensors: fg.Tensor) -> list[Kinds]:
    """What is explained is what is compiled; gives that."""
    found = shown(fg.explain(*tensors).kernels)
    normal = normalize([t.node for t in tensors])
    assert found == compiled(lookup(normal, tensors[0].device).plan)
    return found


def counted(values: Sequence[fg.Tensor]) -> fg.Tensor:
    """How many numbers are not 0."""
    return sum([(v != 0).astype(fg.float32).sum() for v in values], fg.zeros(()))


def as_function(seed: int) -> tuple[Callable[..., list[fg.Tensor]], list[fg.Tensor]]:
    """A random graph as a function of its memory, and that."""
    graph = fuzz.generate(seed, 6)
    roots = [root for root in graph.roots if all(isinstance(n, int) for n in root.shape)]
    memory = [n for n in toposort(roots) if n in graph.arrays]

    def function(*values: fg.Tensor) -> list[fg.Tensor]:
        known = {n: value.node for n, value in zip(memory, values, strict=True)}
        return [wrap(substitute(root, known, walk=True)) for root in roots]

    return function, [fg.Tensor(graph.arrays[n]) for n in memory]


Function = Callable[..., list[fg.Tensor]]


def scanned(function: Function, values: list[fg.Tensor]) -> list[fg.Tensor]:
    def step(carry: fg.Tensor, row: list[fg.Tensor]) -> tuple[fg.Tensor, list[fg.Tensor]]:
        return carry + 1, function(*row)

    return list(fg.scan(step, fg.zeros(()), [fg.stack([v, v]) for v in values])[1])


def repeated(function: Function, values: list[fg.Tensor]) -> list[fg.Tensor]:
    def step(carry: Any) -> Any:
        count, held, *rest = carry
        return (count + 1, held + counted(function(*rest)), *rest)

    start = (fg.zeros((), fg.int32), counted(function(*values)), *values)
    return list(fg.while_loop(lambda carry: carry[0] < 3, step, start))[:2]


def chosen(function: Function, values: list[fg.Tensor]) -> list[fg.Tensor]:
    return list(fg.cond(counted(values) > 0, function, lambda *vs: function(*vs), *values))


FORMS: dict[str, Callable[[Function, list[fg.Tensor]], list[fg.Tensor]]] = {
    "plain": lambda function, values: function(*values),
    "scan": scanned, "while": repeated, "cond": chosen,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_random_programs_and_bodies_run_the_kernels_that_are_explained(form: str) -> None:
    kinds: set[str] = set()
    for seed in range(24 if current().device == "reference" else 5):
        function, values = as_function(seed)
        if not values or not function(*values):
            continue
        made = FORMS[form](function, values)
        made = [t for t in made if not t.is_realized]
        if made:
            found = check(*made)
            kinds |= {kind for kind, _ in found} | {k for _, inner in found for k, _ in inner}
    assert {"map", "reduce"} <= kinds, kinds
    assert form == "plain" or {"scan": "loop", "while": "loop", "cond": "cond"}[form] in kinds


def attended(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.softmax(q @ k.mT / 8, axis=-1) @ v


def test_search_chooses_inside_bodies_as_it_does_outside() -> None:
    q, k = random(2, 256, 64), random(256, 64)
    assert check(attended(q[0], k, k)) == [("fold", ())]
    rows = fg.scan(lambda c, x: (c + 1, attended(x, k, k)), fg.zeros(()), q)[1]
    assert check(rows) == [("loop", (("fold", ()),))]
    nested = fg.scan(
        lambda c, x: (c, fg.scan(lambda d, y: (d, attended(y, k, k)), c, q)[1] + x), fg.zeros(()), q
    )[1]
    ((kind, inner),) = check(nested)
    assert kind == "loop" and ("loop", (("fold", ()),)) in inner
    with fg.config(search=False):
        *_, (_, greedy) = check(fg.scan(lambda c, x: (c, attended(x, k, k)), k[0, 0], q)[1])
        assert [kind for kind, _ in greedy] == ["contract", "reduce", "contract"]


def test_what_is_too_small_to_be_compiled_says_so() -> None:
    with fg.config(device="cpu", tier="auto"):
        small, large = fg.Tensor(np.ones(4, np.float32)) * 2, fg.Tensor(np.ones(1 << 17)) * 2
        report = fg.explain(small)
        assert report.tiny and [k.kind for k in report.kernels] == ["map"]
        assert "NumPy runs it" in str(report)
        assert not fg.explain(large).tiny
    with fg.config(device="cpu", tier="native"):
        assert not fg.explain(fg.Tensor(np.ones(4, np.float32)) * 2).tiny


def test_a_piece_of_known_memory_needs_no_kernel() -> None:
    x = (random(1 << 10, 64) * 2).realize()
    report = fg.explain(x[256:768])
    assert report.kernels == () and "piece" in report.cache
