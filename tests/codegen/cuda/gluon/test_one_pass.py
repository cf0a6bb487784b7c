"""Tests of fulgurite/codegen/cuda/gluon/one_pass.py: which folds take it, and their text.

Numbers are checked on a GPU (tests/codegen/cuda/gluon_on_gpu.py): Gluon has no interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import fulgurite as fg
from bench.hopper import VARIANTS, attention, plain
from fulgurite.codegen.cuda import stream
from fulgurite.codegen.cuda.source import KernelSource
from fulgurite.codegen.cuda.tiling import GpuTable
from fulgurite.core.dtype import dtype_of
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.kernel.stream.price import sides_of
from fulgurite.tensor import wrap
from tests.codegen.cuda import time_plan
from tests.codegen.cuda.folds import GLUON, GRADIENTS, Gradient
from tests.codegen.cuda.workloads import rendered, scheduled
from tests.runtime.cuda import fake

ALL = [one for one in GRADIENTS if one.rows and one.columns]
CHANGES = {"plain": plain, **VARIANTS}


def made_of(one: Any, *sizes: int, table: GpuTable = GLUON) -> KernelSource:
    (item,) = scheduled(one, one.inputs(*sizes)).items
    return rendered(item.kernel, table)


def planned(change: Callable[..., Any], shape: tuple[int, ...], deterministic: bool) -> Schedule:
    """The kernels of attention with its gradients on a GPU."""
    fake.install()

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        y, pull = fg.vjp(lambda q, k, v: attention(q, k, v, change), q, k, v)
        return (y, *pull(g))

    with fg.config(device="reference", deterministic=deterministic):
        given = [wrap(new_buffer(shape, dtype_of("bfloat16"))) for _ in range(4)]
        return time_plan.scheduled(both(*given))


@pytest.mark.parametrize("one", ALL, ids=lambda g: g.name)
def test_all_gradients_of_attention_with_any_scores_are_one_loop(one: Gradient) -> None:
    made = made_of(one, 4, 16, 1000, 1100, 64)
    assert [launch.language for launch in made.launches] == ["triton", "gluon", "triton"]
    loop = made.launches[1]
    products = loop.text.count("= warpgroup_mma(")
    assert products == 2 * (2 + 2) + 2  # the last block stands alone; rows of two warpgroups
    assert loop.text.count("gl.atomic_add(") == 1 and loop.text.count("tl.store(") == 2
    assert made.workspace == 4 * 16 * 1000 * 64 * 4  # sums in 32 bits, and no scores


@pytest.fixture
def is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of plans, with this form."""
    monkeypatch.setattr(stream, "HOPPER", GLUON)


@pytest.mark.usefixtures("is_on")
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_plan_has_it_only_where_bits_may_differ_from_run_to_run(change: str) -> None:
    shape = 4, 16, 1024, 64
    for deterministic, folds in ((True, 3), (False, 2)):
        plan = planned(CHANGES[change], shape, deterministic)
        kinds = [item.kernel.kind for item in plan.items]
        assert kinds.count(KernelKind.FOLD) == folds, change
    assert len(rendered(plan.items[-1].kernel, GLUON).launches) == 3


@pytest.mark.usefixtures("is_on")
def test_weights_of_both_sides_are_computed_once() -> None:
    plan = planned(plain, (4, 16, 1024, 64), deterministic=False)
    text = rendered(plan.items[-1].kernel, GLUON).launches[1].text
    assert text.count("fg_fast_exp2(") == 2 and "wx = " not in text
    assert text.count(".store(w0)") == 2  # those of keys are those of queries


def test_rows_beyond_the_end_add_nothing_to_what_they_cross() -> None:
    one = next(g for g in ALL if g.name == "all_of_plain")
    ragged = made_of(one, 4, 16, 1000, 1100, 64).launches[1].text
    whole = made_of(one, 4, 16, 1024, 1024, 64).launches[1].text
    assert "wx = tl.broadcast_to(tl.where(m" in ragged and "mask=(xr < " in ragged
    assert "wx = tl.broadcast_to(tl.where(m" not in whole and "mask=" not in whole


def test_what_does_not_fit_has_a_pass_for_each_side() -> None:
    one = next(g for g in ALL if g.name == "all_of_causal")
    wide = made_of(one, 4, 16, 1024, 1024, 128)
    off = made_of(one, 4, 16, 1024, 1024, 64, table=replace(GLUON, gluon_one_pass=False))
    plain_triton = replace(GLUON, gluon_stream=False)
    other = made_of(one, 4, 16, 1024, 1024, 64, table=plain_triton)
    for made, language in ((wide, "gluon"), (off, "gluon"), (other, "triton")):
        assert [launch.language for launch in made.launches] == [language, language]
        assert not made.workspace


def test_sides_of_a_kernel_store_what_it_stores() -> None:
    one: Any = next(g for g in ALL if g.name == "all_of_causal")
    (item,) = scheduled(one, one.inputs(4, 16, 1024, 1024, 64)).items
    value: Any = item.kernel.plan
    main, across = sides_of(value)
    params = [{root.arg[0] for root in side.kernel.body.src} for side in (main, across)]
    assert [len(side.problem.weighted) for side in (main, across)] == [2, 1]
    assert params[0] | params[1] == {root.arg[0] for root in value.kernel.body.src}
    assert not params[0] & params[1]
