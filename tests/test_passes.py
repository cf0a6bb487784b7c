"""Every pass may be left out without any value changing, and a wrong one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import Node, constant_like, make
from fulgurite.core.op import Array
from fulgurite.core.ops.elementwise import ADD, MUL
from fulgurite.core.ops.index import STORE
from fulgurite.core.ops.leaf import SINK
from fulgurite.core.passes import Pass, listed
from fulgurite.kernel.stream.passes import Stores
from fulgurite.runtime.pipeline import PIPELINE
from tests.fuzz import passes, programs
from tests.fuzz.passes import NEEDED, OPTIONAL, Compute, guilty
from tests.fuzz.programs.settings import Setting, answer

pytestmark = pytest.mark.device("cpu")

ON_REFERENCE = Setting("the reference device", {"device": "reference"})
# those that run in one process and on hosts: devices with several ranks, and GPUs, have one more
ON_GRAPHS = [name for name in OPTIONAL[: OPTIONAL.index("choose_kernels")]
             if name not in ("pack_collectives", "mask_from_result")]  # fmt: skip


def of(function: Callable[..., fg.Tensor], *shapes: tuple[int, ...]) -> Compute:
    """Value and gradients of a function of normal numbers."""
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(shape) for shape in shapes]

    def compute() -> Sequence[Array]:
        with fg.config(device="reference"):
            args = [fg.Tensor(a) for a in data]
            value, gradients = fg.value_and_grad(function, tuple(range(len(args))))(*args)
            return [t.numpy() for t in (value, *gradients)]

    return compute


def attended(device: str) -> Compute:
    """Attention without a gradient: one streaming fold."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 200, 16))

    def compute() -> Sequence[Array]:
        with fg.config(device=device, tier="native"):
            given = fg.Tensor(q), fg.Tensor(k), fg.Tensor(v)
            return [fg.scaled_dot_product_attention(*given).numpy()]

    return compute


def attention(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()


CORPUS: dict[str, tuple[Callable[..., fg.Tensor], tuple[tuple[int, ...], ...]]] = {
    "a convolution and a pool": (
        lambda x, w: fg.max_pool2d(fg.relu(fg.conv2d(x, w, padding=1)), 2).sum(),
        ((2, 3, 6, 6), (4, 3, 3, 3)),
    ),
    "a pool of a pool": (
        lambda x: (fg.avg_pool2d(fg.max_pool2d(x, 2, 1), 3, 2) ** 2).sum(), ((2, 2, 9, 9),),
    ),
    "a norm and a product": (
        lambda x, w: fg.gelu(fg.layer_norm(x, 8) @ w).mean(), ((4, 8), (8, 5)),
    ),
    "attention": (attention, ((1, 1, 5, 4), (1, 1, 5, 4), (1, 1, 5, 4))),
    "classes": (
        lambda x, w: fg.cross_entropy(x @ w, fg.Tensor(np.arange(6) % 4)), ((6, 5), (5, 4)),
    ),
    "variances": (lambda x: (x.var(0) + fg.logsumexp(x, 0)).max(), ((7, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPUS)
def test_no_pass_changes_a_value(name: str) -> None:
    function, shapes = CORPUS[name]
    verdict = guilty(of(function, *shapes))
    assert verdict.name is None, f"{verdict}\n{verdict.notes}"


def test_no_pass_changes_a_value_of_native_code() -> None:
    pytest.importorskip("llvmlite")
    verdict = guilty(attended("cpu"), native=True)
    assert verdict.name is None, f"{verdict}\n{verdict.notes}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_pass_changes_a_value_of_random_programs(part: int) -> None:
    for number in range(part * 30, part * 30 + 30):
        found = programs.judged(15, number)
        if found is not None:
            program = replace(found.program, dtype="float64")
            verdict = guilty(partial(answer, program, ON_REFERENCE), number)
            failure = programs.Failure(15, number, program, ON_REFERENCE, str(verdict))
            assert verdict.name is None, str(failure)


def test_every_pass_that_may_be_left_out_is_tried() -> None:
    names = [one.name for _, one in listed(PIPELINE) if one.level_in is one.level_out]
    assert set(names) | {"saturate"} == set(OPTIONAL) | NEEDED
    for module, attribute in passes.MEMOS:
        assert hasattr(import_module(module), attribute), f"{module}.{attribute}"


# --- planted -------------------------------------------------------------------------------------


def doubled(sink: Node) -> Node:
    """The graph with its last result twice as large."""
    *others, last = sink.src
    return SINK(*others, ADD(last, last))


Spoil = Callable[[Any], Any]
Plant = Callable[[str, Spoil], None]


@pytest.fixture
def plant() -> Iterator[Plant]:
    """Make passes spoil what they give."""
    with ExitStack() as stack:

        def planted(name: str, spoilt: Spoil) -> None:
            def run(one: Pass) -> passes.Run:
                return lambda value, context: spoilt(one.run(value, context))

            stack.enter_context(passes.instead(passes.put(name, run)))

        yield planted


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_a_pass_that_changes_values_is_named(name: str, plant: Plant) -> None:
    function, shapes = CORPUS["a convolution and a pool"]
    plant(name, doubled)
    verdict = guilty(of(function, *shapes))
    assert verdict.name == name, str(verdict)
    assert verdict.subset == (name,)
    assert f"part after {name}" in str(verdict)


def test_a_pass_inside_the_search_that_changes_values_is_named(plant: Plant) -> None:
    def spoilt(found: Stores) -> Stores:
        first, *others = found.stores
        value = first.src[0]
        wrong = MUL(value, constant_like(3, value))
        store = make(STORE, first.dtype, (wrong, *first.src[1:]), first.arg)
        return found.of([store, *others])

    pytest.importorskip("llvmlite")
    plant("distribute_bases", spoilt)
    verdict = guilty(attended("cpu"), native=True)
    assert verdict.name == "distribute_bases", str(verdict)


def test_a_pass_that_raises_is_named(plant: Plant) -> None:
    def raised(found: Any) -> Any:
        raise IndexError("planted")

    function, shapes = CORPUS["variances"]
    plant("cancel", raised)
    verdict = guilty(of(function, *shapes))
    assert verdict.name == "cancel" and "planted" in verdict.notes[0]


def test_a_pass_that_goes_wrong_only_without_another_is_named(plant: Plant) -> None:
    """Two wrongs that make a right in the whole pipeline: subsets tell."""
    plant("split_concat", lambda sink: SINK(*[_times(r, 2.0) for r in sink.src]))
    plant("cancel", lambda sink: SINK(*[_times(r, 0.5) for r in sink.src]))
    function, shapes = CORPUS["a norm and a product"]
    compute = of(function, *shapes)
    with passes.only(OPTIONAL):
        whole = compute()
    with passes.only(()):
        assert all(np.allclose(a, b) for a, b in zip(whole, compute(), strict=True))
    assert guilty(compute).name in ("split_concat", "cancel")


def _times(node: Node, by: float) -> Node:
    return MUL(node, constant_like(by, node))


def test_a_wrong_law_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgurite.core.rewriting.pattern import Rule
    from fulgurite.graph.passes.laws import SIMPLIFY, a, b

    wrong = Rule("planted", a + b, lambda node, a, b: a, lambda *given: True)
    monkeypatch.setattr(SIMPLIFY, "rules", [*SIMPLIFY.rules, wrong])
    monkeypatch.setattr(SIMPLIFY, "_tables", {})
    verdict = guilty(of(lambda x, y: (x + y).sum(), (3, 4), (3, 4)))
    assert verdict.name == "simplify" and verdict.law == "planted", str(verdict)


def test_what_is_wrong_without_any_pass_is_said_to_be_so() -> None:
    verdict = guilty(lambda: [np.ones(3)], want=[np.zeros(3)])
    assert verdict.name == passes.ALWAYS and verdict.runs == 1
