"""Search: what it finds from plain code, what it must leave alone, and how it chooses."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.core.node import Node, constant, make, toposort
from fulgurite.core.rewriting.egraph import Rewrite
from fulgurite.graph.fusion import search as choosing
from fulgurite.graph.fusion.access import access_of
from fulgurite.graph.fusion.extract import Extraction, NoPlanError, Producer, extract
from fulgurite.graph.fusion.proposals import Source
from fulgurite.graph.ir.limits import LIMITS
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import elements
from fulgurite.kernel.stream import rules
from fulgurite.kernel.stream import terms as terms_of
from fulgurite.kernel.stream.online import stream
from fulgurite.runtime.host.index_interpreter import Runner
from tests.graph.searching import (
    ATTENTION,
    INTO_PRODUCTS,
    ROWS,
    computed,
    error,
    kinds,
    lowered,
    numbers,
    one_fold,
    planned,
    same_kind,
)
from tests.graph.streamed import run_streamed

# --- what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_and_its_variants_are_one_fold_without_a_matrix_of_scores(name: str) -> None:
    q, k, v = numbers(1, 4, 70, 16), numbers(2, 4, 90, 16), numbers(3, 4, 90, 16)
    found, _ = planned(ATTENTION[name](q, k, v))
    assert kinds(found) == ["fold"]
    largest = max([elements(s.shape) for s in found.slots[found.inputs :] if s is not None])
    assert largest <= 4 * 70 * 16  # what is stored is results, not scores


@pytest.mark.device("hosts")  # the GPU's machine model has other prices
@pytest.mark.parametrize("keys", [1, 2, 3, 5, 8, 42, 64, 65])
@pytest.mark.parametrize("heads", [(), (2, 3)], ids=str)
def test_one_query_is_one_fold_however_few_the_keys(heads: tuple[int, ...], keys: int) -> None:
    q, k, v = (numbers(i, *heads, n, 64) for i, n in enumerate((1, keys, keys)))
    found, _ = planned(fg.softmax(q @ k.mT / 8, axis=-1) @ v)
    assert kinds(found) == (["fold"] if keys > 1 else ["reduce"])


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_one_kernel(name: str) -> None:
    found, _ = planned(ROWS[name](numbers(1, 60, 200)))
    assert kinds(found) in (["reduce"], ["fold"])


@pytest.mark.device("hosts")  # the GPU's machine model has other prices
@pytest.mark.parametrize("name", INTO_PRODUCTS)
def test_products_inside_or_beside_are_one_fold(name: str) -> None:
    found, _ = planned(INTO_PRODUCTS[name](numbers(1, 120, 64)))
    assert kinds(found) == ["fold"]


def test_a_mean_loss_of_a_linear_layer_stores_no_scores() -> None:
    h, w = numbers(1, 128, 64), numbers(2, 64, 1000)
    classes = fg.Tensor(np.random.default_rng(5).integers(0, 1000, 128))
    found, _ = planned(fg.cross_entropy(h @ w, classes))
    assert kinds(found) == ["fold", "reduce"]
    made = [elements(s.shape) for s in found.slots[found.inputs :] if s is not None]
    assert max(made) <= 128


@pytest.mark.device("hosts")  # the GPU's machine model has other prices
def test_gradients_of_attention_are_two_folds_without_a_matrix_of_scores() -> None:
    q, k, v, g = (numbers(i, 2, n, 16) for i, n in ((1, 70), (2, 90), (3, 90), (4, 70)))

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT * 0.25, axis=-1) @ v * g).sum()

    found, _ = planned(*fg.grad(loss, argnums=(0, 1, 2))(q, k, v))
    assert kinds(found) == ["fold"] * 2
    made = [elements(s.shape) for s in found.slots[found.inputs :] if s is not None]
    assert max(made) <= 2 * 90 * 16


@pytest.mark.device("hosts")  # the GPU's machine model has other prices
def test_equal_sizes_do_not_confuse_axes() -> None:
    q, k, v = (numbers(i, 32, 32) for i in range(3))
    assert kinds(planned(fg.softmax(q @ k.mT, axis=-1) @ v)[0]) == ["fold"]


def code_of(file: Path) -> str:
    """The code of a file without docstrings and comments, which may name techniques."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.unparse(tree).lower()


def test_no_file_of_rules_knows_what_is_computed() -> None:
    package = Path(rules.__file__).parents[2]
    files = [*Path(rules.__file__).parent.glob("*.py"), package / "core/rewriting/egraph.py"]
    assert len(files) >= 8
    for file in files:
        assert "softmax" not in code_of(file) and "attention" not in code_of(file), file.name


NEVER = {
    "argmax": lambda h, w: (h @ w).argmax(axis=-1),
    "distance from the largest": lambda h, w: ((h @ w) - (h @ w).max(axis=-1, keepdims=True)).sum(
        axis=-1
    ),
    "whole numbers": lambda h, w: ((h * 4).astype(fg.int32) @ (w * 4).astype(fg.int32)).sum(
        axis=-1
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_does_not_stream_is_left_alone(name: str) -> None:
    result = NEVER[name](numbers(1, 120, 64), numbers(2, 64, 300))
    assert "fold" not in kinds(planned(result)[0])


def test_folds_over_two_axes_are_not_one() -> None:
    h, w = numbers(1, 120, 64), numbers(2, 64, 300)
    scores = h @ w
    found, _ = planned(fg.exp(scores - scores.max(axis=0, keepdims=True)).sum(axis=-1))
    assert len(found.items) > 1


def test_rows_and_columns_of_a_square_are_not_one_kernel() -> None:
    a, b = numbers(1, 700, 48), numbers(2, 700, 48)

    def loss(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        a, b = (x / fg.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6) for x in (a, b))
        scores, labels = a @ b.mT * 10, fg.arange(700)
        return (fg.cross_entropy(scores, labels) + fg.cross_entropy(scores.mT, labels)) / 2

    found, _ = planned(loss(a, b), *fg.grad(loss, argnums=(0, 1))(a, b))
    rows = [item.kernel for item in found.items if item.kernel.kind == "reduce"]
    relations = [access for kernel in rows if (access := access_of(kernel)) is not None]
    assert len(relations) == len(rows) > 0
    assert all(len({r.axes for r in access.reductions}) == 1 for access in relations)


def test_exact_forbids_it() -> None:
    q, k, v = (numbers(i, 64, 16) for i in range(3))
    with fg.config(search=True, exact=True):
        report = fg.explain(fg.softmax(q @ k.mT, axis=-1) @ v)
    assert "fold" not in [kernel.kind for kernel in report.kernels]


# --- values --------------------------------------------------------------------------------------


def _hostile(name: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """Change inputs in place; a bias if there is one."""
    rows, keys = q.shape[-2], k.shape[-2]
    rng = np.random.default_rng(0)
    if name == "rows that see nothing":
        return np.where(rng.random((rows, 1)) < 0.5, -inf, 0.0) + np.zeros((rows, keys))
    if name == "late beginnings":
        return np.where(np.arange(keys) < keys * 3 // 4, -inf, 0.0) + np.zeros((rows, keys))
    if name == "holes":
        return np.where(rng.random((rows, keys)) < 0.5, -inf, 0.0)
    if name == "infinite queries":
        q[0, 0] = inf
    elif name == "infinite keys":
        k[0, 0] = inf
    elif name == "not numbers":
        k[1, keys // 2] = np.nan
    elif name == "infinite values":
        v[0, keys // 2] = inf
    elif name == "large scores":
        q *= 1e4
    return None


HOSTILE = ["nothing special", "rows that see nothing", "late beginnings", "holes",
           "infinite queries", "infinite keys", "not numbers", "infinite values",
           "large scores"]  # fmt: skip
SIZES = [(1, 7, 4, 3), (5, 2, 4, 3), (17, 129, 33, 65), (50, 300, 8, 20), (1, 257, 16, 16)]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_hostile_values_give_what_the_plain_plan_gives(
    name: str, size: tuple[int, int, int, int]
) -> None:
    rows, keys, depth, columns = size
    rng = np.random.default_rng(3)
    shapes = ((2, rows, depth), (2, keys, depth), (2, keys, columns))
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in shapes)
    given = _hostile(name, q, k, v)
    bias = None if given is None else given.astype(np.float32)

    def make() -> fg.Tensor:
        scores = fg.Tensor(q) @ fg.Tensor(k).mT * 0.5
        if bias is not None:
            scores = scores + fg.Tensor(bias)
        return fg.softmax(scores, axis=-1) @ fg.Tensor(v)

    with np.errstate(all="ignore"):
        wide = (q.astype(np.float64) @ np.swapaxes(k.astype(np.float64), -1, -2)) * 0.5
        wide = wide if bias is None else wide + bias
        powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
        exact = (powers / powers.sum(axis=-1, keepdims=True)) @ v.astype(np.float64)
    plain, chosen = computed(make)
    assert same_kind(plain, chosen)
    finite = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)  # scores round before they count
    assert error(chosen, exact) <= 1.5 * error(plain, exact) + 3e-7 * max(1.0, float(finite))


@pytest.mark.parametrize("name", HOSTILE)
def test_weights_that_are_dropped_hide_what_is_no_number(name: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, n, 8)).astype(np.float32) for n in (17, 129, 129))
    given = _hostile(name, q, k, v)
    bias = np.zeros((17, 129), np.float32) if given is None else given.astype(np.float32)
    kept = rng.random((17, 129)) < 0.7
    kept[::4], kept[1, 0], kept[:, 64] = False, False, False

    def make() -> fg.Tensor:
        weights = fg.softmax(fg.Tensor(q) @ fg.Tensor(k).mT * 0.5 + fg.Tensor(bias), axis=-1)
        return fg.where(fg.Tensor(kept), weights / 0.7, 0) @ fg.Tensor(v)

    with one_fold():
        got = make().numpy()
    with fg.config(device="reference", search=False):
        want = make().numpy()
    assert same_kind(got, want)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=3e-4 if name == "large scores" else 2e-5)


@pytest.mark.parametrize("name", [*ATTENTION])
def test_variants_are_as_exact_as_the_plain_plan(name: str) -> None:
    q, k, v = numbers(1, 4, 70, 16), numbers(2, 4, 90, 16), numbers(3, 4, 90, 16)
    plain, chosen = computed(lambda: ATTENTION[name](q, k, v))
    np.testing.assert_allclose(chosen, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mean", [0.0, 1e6])
@pytest.mark.parametrize("name", [*ROWS, *INTO_PRODUCTS])
def test_rows_and_products_are_as_exact_as_the_plain_plan(name: str, mean: float) -> None:
    x = fg.Tensor(numbers(1, 33, 65).numpy() + np.float32(mean))
    plain, chosen = computed(lambda: (ROWS | INTO_PRODUCTS)[name](x))
    scale = float(np.abs(plain).max())
    np.testing.assert_allclose(chosen, plain, rtol=1e-4, atol=scale * 2e-6)


# --- the laws ------------------------------------------------------------------------------------

STREAMS = [
    *[name for name in ATTENTION if name != "grouped queries"],
    *[name for name in ROWS if name != "layer norm"],
    *INTO_PRODUCTS,
]


def _streamed_case(name: str) -> fg.Tensor:
    if name in ATTENTION:
        return ATTENTION[name](numbers(1, 2, 9, 5), numbers(2, 2, 23, 5), numbers(3, 2, 23, 5))
    return (ROWS | INTO_PRODUCTS)[name](numbers(1, 6, 23))


@pytest.mark.device("none")
@pytest.mark.parametrize(("block", "split"), [(1, 1), (5, 3), (64, 1)])
@pytest.mark.parametrize("name", STREAMS)
def test_repairs_hold_for_every_block_and_every_split(name: str, block: int, split: int) -> None:
    result = _streamed_case(name)
    sink, inputs = lowered(result)
    streaming = stream(lower(sink, inputs))
    assert streaming is not None
    from fulgurite.graph.ir.cache_key import normalize
    from fulgurite.runtime.device import get_device
    from fulgurite.runtime.realize import storage_of

    device = get_device(result.device)
    buffers = normalize([result.node]).buffers
    params = [device.to_host(storage_of(b), (elements(b.shape),), b.dtype) for b in buffers]
    out = np.full(elements(sink.src[0].shape), np.nan, np.float32)
    run_streamed(streaming, [*params, out], block, split)
    want = np.empty_like(out)
    Runner(lower(sink, inputs)).run([*params, want], {})
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


def _values(terms: terms_of.Terms, kernel: object, params: list[np.ndarray], prefix: int) -> bool:
    """Are all terms of every class equal, with folded axes cut to a prefix?"""
    from fulgurite.graph.ir.lower import IndexKernel
    from fulgurite.runtime.host.index_interpreter import _Tile

    assert isinstance(kernel, IndexKernel)
    graph = terms.graph
    nodes = list(terms.number)
    runner = object.__new__(Runner)
    runner.kernel, runner.order = kernel, nodes
    runner.free, runner.products = {}, set()
    ranges = tuple([(0, min(prefix, n)) for n in kernel.axes if isinstance(n, int)])
    tile = _Tile(runner, params, {}, ranges)
    for node in toposort(nodes):
        if node not in tile.known:
            tile.known[node] = tile.value(node)
    sample = {terms.key(node): node for node in nodes}
    known: dict[int, np.ndarray] = {}
    for node, number in terms.number.items():
        known.setdefault(graph.find(number), tile.known[node])
    for _ in range(len(graph)):
        for number, found in graph.terms.items():
            for term in found:
                if not all(graph.find(s) in known for s in term[1:]):
                    continue
                sources = [known[graph.find(s)] for s in term[1:]]
                value = _term(term[0], sources, sample, tile, terms)
                if number not in known:
                    known[number] = value
                elif not np.allclose(value, known[number], rtol=1e-4, atol=1e-4, equal_nan=True):
                    return False
        if len(known) == len(graph.terms):
            return True
    return False


def _term(
    key: terms_of.Key, sources: list[np.ndarray], sample: dict[terms_of.Key, Node], tile: object,
    terms: terms_of.Terms,
) -> np.ndarray:  # fmt: skip
    if key.name == "product":
        value = np.ones(())
        for source in sources:
            value = value * source
        return value
    if key.name == "inverse":
        return np.asarray(1 / sources[0])
    node = sample.get(key)
    if node is None:  # a rule made it; what it is made of is given
        op, dtype, arg = terms.made[key]
        node = make(op, dtype, tuple([constant(0, dtype)] * len(sources)), arg)
    if key.name == "fold":
        axes = node.arg[1]
        wide = tile.widened(sources[0], axes)  # type: ignore[attr-defined]
        fold: Any = {"add": np.sum, "max": np.max, "min": np.min}[node.arg[0]]
        return np.asarray(fold(wide, axis=axes, keepdims=True))
    if key.name in ("load", "const", "index", "valid"):
        return np.asarray(tile.known[node])  # type: ignore[attr-defined]
    assert node.op.numpy is not None
    return np.asarray(node.op.numpy(node, *sources))


def _bodies() -> list[tuple[object, list[np.ndarray]]]:
    """Small kernels in which every rule fires."""
    x, y, c = (numbers(i, 4, 6) for i in range(3))
    r = numbers(5, 4, 1)
    programs = [
        (x * r * y).sum(axis=-1), (x / r * y).sum(axis=-1), (-x).sum(axis=-1),
        (x + r).max(axis=-1), (r + x).min(axis=-1), (x - r).max(axis=-1),
        (c * (x * y) * r).sum(axis=-1), ((x - r) ** 2 * r).sum(axis=-1), (c * -x).sum(axis=-1),
        fg.exp(x - r).max(axis=-1), (x / fg.exp(y).sum(axis=-1, keepdims=True)).min(axis=-1),
        (r + x).max(axis=-1), (x + r).min(axis=-1), (x - r).min(axis=-1),
        fg.exp2(x).max(axis=-1), fg.exp(x).min(axis=-1), fg.exp2(x).min(axis=-1),
        (x / fg.exp(y).sum(axis=-1, keepdims=True)).max(axis=-1),
        (fg.where(y > 0, x / (x * x).sum(axis=-1, keepdims=True), 0) * c).sum(axis=-1),
        (fg.where(y > 0, 0, x / (x * x).sum(axis=-1, keepdims=True)) * c).sum(axis=-1),
        fg.where(r > 0, x / (x * x).sum(axis=-1, keepdims=True), 0).sum(axis=-1),
        fg.where(r > 0, 0, x / (x * x).sum(axis=-1, keepdims=True)).sum(axis=-1),
    ]  # fmt: skip
    found: list[tuple[object, list[np.ndarray]]] = []
    for program in programs:
        from fulgurite.graph.ir.cache_key import normalize
        from fulgurite.runtime.device import get_device
        from fulgurite.runtime.realize import storage_of

        sink, inputs = lowered(program)
        buffers = normalize([program.node]).buffers
        device = get_device(program.device)
        arrays = [device.to_host(storage_of(b), (elements(b.shape),), b.dtype) for b in buffers]
        found.append((lower(sink, inputs), [*arrays, np.zeros(24, np.float32)]))
    return found


def _holds(extra: list[Rewrite], prefix: int) -> tuple[bool, dict[str, int]]:
    fired: dict[str, int] = {}
    fine = True
    for kernel, params in _bodies():
        terms = terms_of.Terms(kernel.axes)  # type: ignore[attr-defined]
        terms.add([s.src[0] for s in kernel.body.src])  # type: ignore[attr-defined]
        report = terms.graph.run([*rules.rules(terms), *[_bound(e, terms) for e in extra]])
        for name, count in report.fired.items():
            fired[name] = fired.get(name, 0) + count
        fine = fine and _values(terms, kernel, params, prefix)
    return fine, fired


def _bound(rule: Rewrite, terms: terms_of.Terms) -> Rewrite:
    return Rewrite(rule.name, lambda g, owner, term: rule.find((g, terms), owner, term))  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", [1, 2, 3, 6])
def test_every_rule_holds_on_every_prefix_and_fires(prefix: int) -> None:
    fine, fired = _holds([], prefix)
    assert fine
    book = rules.rules(terms_of.Terms([2]))
    assert set(fired) == {rule.name for rule in book}


def test_a_planted_unsound_rule_is_caught() -> None:
    def lost(pair, owner, term):  # type: ignore[no-untyped-def]
        """Σ_k c * y = Σ_k y: it forgets the factor."""
        graph, terms = pair
        if term[0].name == "fold" and terms.made[term[0]][2][0] == "add":
            for inner in list(graph.terms[graph.find(term[1])]):
                if inner[0].name == "product":
                    yield graph.add(term[0], inner[1])

    assert not _holds([Rewrite("planted", lost)], 6)[0]


# --- extraction ----------------------------------------------------------------------------------


def _random(seed: int) -> tuple[list[Producer], list[str]]:
    rng = random.Random(seed)
    values = [f"v{i}" for i in range(rng.randint(2, 6))]
    producers = []
    for i in range(rng.randint(len(values), 12)):
        place = i if i < len(values) else rng.randrange(len(values))
        below = values[:place]
        needs = frozenset(rng.sample(below, rng.randint(0, min(2, len(below)))))
        makes = {values[place], *(v for v in values[place + 1 :] if rng.random() < 0.2)}
        cost = float(rng.randint(1, 20))
        producers.append(Producer(f"p{i}", tuple(sorted(makes)), needs, cost, rng.randint(1, 9)))
    return producers, rng.sample(values, rng.randint(1, len(values)))


def _brute(producers: list[Producer], wanted: list[str], memory: int | None = None) -> float:
    best = inf
    for count in range(len(producers) + 1):
        for chosen in combinations(producers, count):
            if memory is not None and sum(p.bytes for p in chosen) > memory:
                continue
            ready: set[object] = set()
            left = list(chosen)
            while able := [p for p in left if p.needs <= ready]:
                for p in able:
                    left.remove(p)
                    ready.update(p.makes)
            if not left and set(wanted) <= ready:
                best = min(best, sum(p.cost for p in chosen))
    return best


@pytest.mark.device("none")
@pytest.mark.parametrize("seed", range(60))
def test_branch_and_bound_finds_what_trying_everything_finds(seed: int) -> None:
    producers, wanted = _random(seed)
    found = extract(producers, wanted)
    assert found.complete and found.cost == _brute(producers, wanted)
    ready: set[object] = set()
    for producer in found.producers:
        assert producer.needs <= ready
        ready.update(producer.makes)
    assert set(wanted) <= ready


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_kept_to(seed: int) -> None:
    producers, wanted = _random(seed)
    for memory in (5, 12, 30):
        best = _brute(producers, wanted, memory)
        if best == inf:
            with pytest.raises(NoPlanError):
                extract(producers, wanted, memory=memory)
        else:
            assert extract(producers, wanted, memory=memory).cost == best


@pytest.mark.parametrize("seed", range(20))
def test_more_budget_never_gives_a_costlier_plan(seed: int) -> None:
    producers, wanted = _random(seed)
    costs = [extract(producers, wanted, steps=steps).cost for steps in (1, 2, 4, 8, 16, 64, 999)]
    assert costs == sorted(costs, reverse=True)


def test_what_agrees_is_chosen_though_another_beats_it() -> None:
    makes = {"a": (("a",), "x", 10.0), "b": (("b",), "a", 10.0), "better": (("b",), "a", 5.0),
             "both": (("a", "b"), "x", 3.0)}  # fmt: skip
    known = {
        n: Producer(n, made, frozenset([need]), cost) for n, (made, need, cost) in makes.items()
    }

    def agree(chosen: Sequence[Producer]) -> bool:
        return known["both"] not in chosen

    start = known["a"], known["b"]
    found = extract([*known.values()], ["b"], ["x"], agree=agree, start=start)
    assert [p.name for p in found.producers] == ["a", "better"]


def test_what_nothing_makes_is_an_error() -> None:
    with pytest.raises(NoPlanError):
        extract([Producer("p", ("a",), frozenset(["b"]), 1.0)], ["a"])
    found = extract([Producer("p", ("a",), frozenset(["b"]), 1.0)], ["a"], given=["b"])
    assert isinstance(found, Extraction) and found.cost == 1.0


# --- regions -------------------------------------------------------------------------------------


def _layers(count: int) -> fg.Tensor:
    x = numbers(0, 2, 64, 16)
    for i in range(count):
        k, v = (x @ numbers(i * 2 + j, 16, 16) for j in (1, 2))
        x = x + fg.softmax(x @ k.mT, axis=-1) @ v
    return x


def test_equal_layers_are_searched_once() -> None:
    choosing.REGIONS.clear()
    found, who = planned(_layers(12))
    assert kinds(found).count("fold") == 12
    assert len(who.reports) >= 12 and who.searched <= 3  # the first and the last have other ends
    assert all(report.nodes <= LIMITS.egraph_terms for report in who.reports)


def test_a_long_chain_of_doublings_is_searched_at_once() -> None:
    x = numbers(1, 40, 40)
    y = (x @ x).max(axis=-1)
    for _ in range(64):
        y = y + y
    assert kinds(planned(y)[0])


_PROGRAM = """
from tests.graph.searching import *
q, k, v = numbers(1, 4, 70, 16), numbers(2, 4, 90, 16), numbers(3, 4, 90, 16)
for f in ATTENTION.values():
    found, who = planned(f(q, k, v))
    print(str(found).split("#")[0], [str(r) for r in who.reports])
"""


@pytest.mark.device("none")
def test_two_processes_choose_the_same_plan() -> None:
    import os

    texts = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "FULGURITE_DISK_CACHE": "0"}
        run = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, text=True,
                             capture_output=True, check=True)  # fmt: skip
        texts.append(run.stdout)
    assert texts[0] == texts[1] and "fold" in texts[0]


def test_a_faster_source_is_chosen_and_a_slow_one_is_not() -> None:
    from dataclasses import replace
    from importlib import import_module

    propose = import_module("fulgurite.codegen.cpu.providers").propose_stream
    q, k, v = numbers(1, 2, 64, 16), numbers(2, 2, 64, 16), numbers(3, 2, 64, 16)
    sink, inputs = lowered(fg.softmax(q @ k.mT, axis=-1) @ v)
    from tests.graph.scheduling import schedule

    for cost, want in ((1.0, True), (1e12, False)):

        def priced(kernel, table, cost=cost):  # type: ignore[no-untyped-def]
            found = propose(kernel, table)
            return found and replace(found, cost=cost)

        who = choosing.Searcher([Source(f"priced {cost}", priced)], SHIPPED)
        found = schedule(sink, inputs, True, who)
        assert ("fold" in kinds(found)) is want
        assert any(a.chosen for a in who.reports[0].alternatives) is want


@pytest.mark.parametrize("backward", [False, True])
def test_what_cannot_pay_is_not_asked_and_the_choice_stays_the_same(backward: bool) -> None:
    from dataclasses import replace
    from importlib import import_module

    from tests.graph.scheduling import schedule

    def normal(x: fg.Tensor, scale: fg.Tensor) -> fg.Tensor:
        centred = x - fg.mean(x, axis=-1, keepdims=True)
        return centred * fg.rsqrt(fg.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * scale

    def loss(x: fg.Tensor, w: fg.Tensor, first: fg.Tensor, second: fg.Tensor) -> fg.Tensor:
        middle = fg.gelu(normal(x, first) @ w) @ w
        return fg.sum((normal(x + middle, second) @ w) ** 2)

    given = numbers(1, 512, 256), numbers(2, 256, 256), numbers(3, 256), numbers(4, 256)
    value, grads = fg.value_and_grad(loss, argnums=(0, 1, 2, 3))(*given)
    sink, inputs = lowered(*[value, *grads] if backward else [value])
    asked, costs, plans = [], [], []
    for bounded in (True, False):
        count = 0

        def counted(propose):  # type: ignore[no-untyped-def]
            def ask(kernel, table):  # type: ignore[no-untyped-def]
                nonlocal count
                count += 1
                return propose(kernel, table)

            return ask

        sources = [
            replace(s, name=f"{s.name} {bounded}", propose=counted(s.propose),  # type: ignore[no-untyped-call]
                    least=s.least if bounded else None)
            for s in import_module("fulgurite.codegen.cpu.providers").SOURCES
        ]  # fmt: skip
        who = choosing.Searcher(sources, SHIPPED)
        plans.append(kinds(schedule(sink, inputs, True, who)))
        costs.append([report.cost for report in who.reports])
        asked.append(count)
    assert asked[0] < asked[1]
    assert costs[0] == pytest.approx(costs[1]) and plans[0] == plans[1]
