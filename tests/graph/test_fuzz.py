"""Random graphs give the answers of the reference evaluator, whatever stages are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fulgurite.core.context import Table, WeakMemo
from fulgurite.core.op import Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.indexing import SCATTERS
from fulgurite.core.ops.reduce import REDUCERS
from fulgurite.core.text import show
from fulgurite.graph.ir import lower
from fulgurite.graph.ir.affine import ZERO, Affine
from tests import fuzz

pytestmark = pytest.mark.device("none")

GRAPHS = 2000  # in the default suite, in PARTS tests
PARTS = 6


@pytest.fixture(scope="module", autouse=True)
def coverage() -> Iterator[None]:
    """Start the counts anew and print them at the end (seen with -s)."""
    fuzz.COVERAGE.clear()
    fuzz.GRAPHS.clear()
    yield
    print(f"\n{fuzz.coverage()}")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs_agree_with_the_evaluator(part: int) -> None:
    for seed in range(part, GRAPHS, PARTS):
        fuzz.check(seed)


def test_random_graphs_agree_without_simplifying() -> None:
    for seed in range(500_000, 500_400):
        fuzz.check(seed, simplify=False)


def test_random_graphs_agree_without_fusing() -> None:
    for seed in range(600_000, 600_400):
        fuzz.check(seed, fuse=False)


def test_random_graphs_agree_without_any_optional_stage() -> None:
    for seed in range(700_000, 700_200):
        fuzz.check(seed, simplify=False, fuse=False)


def test_large_random_graphs_agree() -> None:
    for seed in range(800_000, 800_040):
        fuzz.check(seed, steps=60)


def test_every_op_that_can_be_lowered_is_in_a_random_graph() -> None:
    ops: list[Op] = [op for op in OPS.values() if op.family == "elementwise"]
    wanted = {op.name for op in ops} | {op.name for op in lower._STEPS}
    wanted -= {"param", "reduce", "scan"}  # a buffer is a param only inside; the others by kind
    wanted |= {"buffer", "view", "bind", "detach", "remat"}
    wanted |= {f"scatter.{name}" for name in SCATTERS} | {f"reduce.{name}" for name in REDUCERS}
    wanted |= {f"scan.{name}" for name in (*REDUCERS, "affine")}
    for seed in range(GRAPHS):
        wanted -= set(map(fuzz.label, fuzz.generate(seed).nodes))
        if not wanted:
            break
    assert not wanted


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_hundred_thousand_random_graphs_agree(part: int) -> None:
    for seed in range(1_000_000 + part, 1_100_000, 20):
        fuzz.check(seed)


# --- the fuzzer itself ---------------------------------------------------------------------------


def test_a_seed_gives_the_same_graph_and_data_each_time() -> None:
    for seed in range(40):
        first, again = fuzz.generate(seed), fuzz.generate(seed)
        assert _text(first) == _text(again)
        data = [a.tobytes() for a in first.arrays.values()]
        assert data == [a.tobytes() for a in again.arrays.values()]


def _text(graph: fuzz.Graph) -> list[str]:
    lines = show(*graph.roots).split("\n")
    return [line for line in lines if " = buffer(" not in line]


def test_a_reproduction_runs_as_it_is_printed() -> None:
    for seed in (0, 1, 30, 77, 100):
        exec(fuzz.reproduction(fuzz.generate(seed), simplify=True), {})


def test_few_elements_of_rounded_graphs_are_left_unknown() -> None:
    unknown = total = 0
    for seed in range(1, 400, 2):
        for _, error in fuzz.truth(fuzz.generate(seed)):
            unknown += int(np.isinf(error).sum())
            total += error.size
    assert unknown < 0.15 * total


def test_a_failing_graph_is_made_small_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Any, node: Any, index: tuple[Affine, ...], valid: Any) -> Any:
        out = [ZERO] * len(index)
        for part, d in zip(index, node.arg, strict=True):
            out[(d + 1) % len(out)] = part
        return tuple(out)

    monkeypatch.setitem(lower._STEPS, OPS["permute"], wrong)
    monkeypatch.setattr(lower, "_lowered_sinks", Table(WeakMemo))
    for seed in range(0, 400, 2):
        graph = fuzz.generate(seed)
        if len(graph.nodes) > 25 and fuzz.problem(graph) is not None:
            break
    else:
        pytest.fail("no graph noticed")
    small = fuzz.minimise(graph)
    assert len(small.roots) == 1 and len(small.nodes) <= 3 < len(graph.nodes)
    with pytest.raises(AssertionError, match=r"root 0 differs|raised"):
        exec(fuzz.reproduction(small), {})
    with pytest.raises(AssertionError, match=f"--minimise {seed}"):
        fuzz.check(seed)


def test_the_command_line_checks_seeds_and_prints_coverage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "GRAPHS", Counter())
    assert fuzz.main(["--seeds", "0:20"]) == 0
    printed = capsys.readouterr().out
    assert "10 exact and 10 rounded graphs" in printed and "0 failed" in printed
    assert fuzz.main(["--minimise", "4", "--no-fuse"]) == 0
