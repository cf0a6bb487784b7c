"""Tests of runtime/user_kernels.py: a vendor's library and kernels of the user compete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from fulgurite.extend.index_kernel import USER_KERNELS
from fulgurite.graph.fusion.budget import BUDGET
from fulgurite.graph.fusion.pattern_matching import Places
from fulgurite.graph.fusion.user_patterns import PATTERNS
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.runtime.cpu import blas
from fulgurite.runtime.cpu.blas import BlasGemm

pytestmark = pytest.mark.device("cpu")

carried = pytest.mark.skipif(blas.carried() is None, reason="this NumPy carries no BLAS")


@pytest.fixture(autouse=True)
def only_mine() -> Iterator[None]:
    """The kernels of a test are gone after it, and those of others meanwhile."""
    kept = list(PATTERNS), list(USER_KERNELS)
    PATTERNS.clear()
    yield
    PATTERNS[:], USER_KERNELS[:] = kept


def numbers(seed: int, *shape: int) -> fg.Tensor:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return fg.Tensor(values, device="cpu")


# --- the library ---------------------------------------------------------------------------------


def by_library(tensor: fg.Tensor) -> list[bool]:
    return [isinstance(k.code, BlasGemm) for k in fg.schedule(tensor).compile(cache=False).kernels]


@carried
def test_the_library_competes_only_where_bits_may_vary() -> None:
    a, b = numbers(1, 300, 310), numbers(2, 310, 320)
    with fg.config(search=True):
        assert by_library(a @ b) == [False]
    with fg.config(search=True, deterministic=False):
        report = fg.explain(a @ b)
        assert [k.kind for k in report.kernels] == ["library"]
        assert "the BLAS that NumPy carries" in report.kernels[0].reason
        assert "our own contract kernel" in report.stages["search"]
        assert by_library(a @ b) == [True]
        found = (a @ b).numpy()
    np.testing.assert_allclose(found, a.numpy() @ b.numpy(), rtol=1e-3, atol=1e-3)


@carried
def test_with_a_library_made_slow_the_choice_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(1, 200, 210), numbers(2, 210, 220)
    real = blas.function

    def slow(dtype: Any) -> Any:
        call = real(dtype)

        def stub(*given: Any) -> None:
            time.sleep(0.2)
            call(*given)

        return stub

    with fg.config(search=True, deterministic=False):
        assert by_library(a @ b) == [True]
    monkeypatch.setattr(blas, "function", slow)
    with fg.config(search=True, deterministic=False, tune="ties"):
        report = fg.explain(a @ b)
        assert [k.kind for k in report.kernels] == ["contract"]
        assert "the BLAS that NumPy carries (measured)" in report.stages["search"]
        assert by_library(a @ b) == [False]


@carried
def test_a_library_that_is_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(1, 220, 210), numbers(2, 210, 230)
    monkeypatch.setattr(blas, "function", lambda dtype: lambda *given: None)
    with fg.config(search=True, deterministic=False, tune="ties"):
        report = fg.explain(a @ b)
        assert [k.kind for k in report.kernels] == ["contract"]
        assert "its result was wrong: left out" in report.stages["search"]
        found = (a @ b).numpy()
    np.testing.assert_allclose(found, a.numpy() @ b.numpy(), rtol=1e-3, atol=1e-3)


# --- kernels of the user -------------------------------------------------------------------------


def register_diagonal(wrong: bool = False) -> None:
    """The diagonal of a product, without the rest of it."""

    @fg.kernel(out=lambda a, b: a.shape[:1], pattern=lambda a, b: (a @ b * _eye(a)).sum(axis=1))
    def diagonal_of_product(i: Any, *, a: Any, b: Any) -> Any:
        found = fg.sum_over(lambda k: a[i, k] * b[k, i], a.shape[1])
        return found + 1 if wrong else found


def _eye(a: fg.Tensor) -> fg.Tensor:
    return fg.where(fg.arange(a.shape[0])[:, None] == fg.arange(a.shape[0])[None, :], 1.0, 0.0)


def diagonal(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
    """As a user writes it who knows nothing of the kernel."""
    return (a @ b * _eye(a)).sum(axis=1)


@pytest.mark.parametrize("tune", ["off", "ties", "full"])
def test_a_faster_kernel_of_the_user_is_chosen_and_explained(tune: str) -> None:
    a, b = numbers(1, 400, 300), numbers(2, 300, 400)
    with fg.config(search=True):
        plain = fg.explain(diagonal(a, b) * 2)
    register_diagonal()
    with fg.config(search=True, tune=tune):
        report = fg.explain(diagonal(a, b) * 2)
        found = (diagonal(a, b) * 2).numpy()
    about = report.stages["search"]
    assert "kernel 'diagonal_of_product' of the user" in about
    assert [a.chosen for a in report.regions[0].alternatives] == [False, True]
    assert sum([k.flops for k in report.kernels]) < sum([k.flops for k in plain.kernels]) / 50
    wanted = 2 * np.einsum("ik,ki->i", a.numpy(), b.numpy())
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_all_places_of_a_kernel_are_taken_also_inside_each_other() -> None:
    register_diagonal()
    a, b = numbers(1, 128, 128), numbers(2, 128, 128)
    inner = diagonal(a, b)[:, None] + b
    both = diagonal(a, inner) + diagonal(b, a)
    with fg.config(search=True):
        report = fg.explain(both)
        found = both.numpy()
    assert report.regions[0].segments == 3 and report.regions[0].alternatives[1].chosen
    assert "contract" not in [k.kind for k in report.kernels]
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    z = np.einsum("ik,ki->i", x, y)[:, None] + y
    wanted = np.einsum("ik,ki->i", x, z) + np.einsum("ik,ki->i", y, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_a_pattern_of_many_operands_is_found_and_attempts_are_counted() -> None:
    @fg.kernel(
        out=lambda a, b, c, d: a.shape[:1], pattern=lambda a, b, c, d: (a @ b).sum(axis=1) * c + d
    )
    def scaled(i: Any, *, a: Any, b: Any, c: Any, d: Any) -> Any:
        def row(k: Any) -> Any:
            return a[i, k] * fg.sum_over(lambda j: b[k, j], b.shape[1])

        return fg.sum_over(row, a.shape[1]) * c[i] + d[i]

    a, b, c = numbers(1, 60, 50), numbers(2, 50, 40), numbers(3, 60)
    with fg.config(search=True):
        report = fg.explain((a @ b).sum(axis=1) * c + c)
        assert any("kernel 'scaled'" in x.what for r in report.regions for x in r.alternatives)
        other = fg.explain(fg.tanh(a @ b).sum(axis=1))
        assert not any("kernel 'scaled'" in x.what for r in other.regions for x in r.alternatives)
    wide = a
    for size in range(40, 60):  # every step has shapes of its own
        wide = fg.tanh(wide @ numbers(size, wide.shape[1], size)).max(axis=1, keepdims=True)
    found = Places(PATTERNS[0])
    normal = normalize([wide.node])
    assert not list(found.find(restore(normal.structure, normal.constants, {}, normal.nodes)))
    assert len(found.known) <= BUDGET.pattern_attempts


def test_a_kernel_is_used_only_where_search_is_on() -> None:
    register_diagonal()
    a, b = numbers(1, 128, 128), numbers(2, 128, 128)
    with fg.config(search=False):
        report = fg.explain(diagonal(a, b))
    assert "user_kernels" not in report.stages and not report.regions
    assert "user_kernels" in fg.explain(diagonal(a, b)).stages  # it is on by default


def test_a_wrong_kernel_is_never_used() -> None:
    register_diagonal(wrong=True)
    a, b = numbers(1, 130, 120), numbers(2, 120, 130)
    with fg.config(search=True), pytest.warns(RuntimeWarning, match="diagonal_of_product"):
        report = fg.explain(diagonal(a, b))
        found = diagonal(a, b).numpy()
    assert "left out" in report.stages["search"]
    np.testing.assert_allclose(
        found, np.einsum("ik,ki->i", a.numpy(), b.numpy()), rtol=1e-3, atol=1e-3
    )


def test_a_kernel_that_is_no_better_is_reported_and_not_used() -> None:
    @fg.kernel(out=lambda a, b: (a.shape[0], b.shape[1]), pattern=lambda a, b: a @ b)
    def product(i: Any, j: Any, *, a: Any, b: Any) -> Any:
        return fg.sum_over(lambda k: a[i, k] * b[k, j] + 0 * fg.exp(a[i, k]), a.shape[1])

    a, b = numbers(1, 100, 100), numbers(2, 100, 100)
    with fg.config(search=True):
        report = fg.explain(a @ b)
    assert [k.kind for k in report.kernels] == ["contract"]
    assert [a.chosen for a in report.regions[0].alternatives] == [True, False]


def test_a_plan_from_before_a_kernel_was_registered_is_not_used_after() -> None:
    a, b = numbers(1, 140, 120), numbers(2, 120, 140)
    with fg.config(search=True):
        before = fg.schedule(diagonal(a, b)).compile()
        register_diagonal()
        after = fg.schedule(diagonal(a, b)).compile()
    assert [k.kernel.kind for k in before.kernels] != [k.kernel.kind for k in after.kernels]


SQUARES = """
define void @squares(ptr %params, ptr %values, i64 %first, i64 %last) {
entry:
  %x = load ptr, ptr %params
  %at = getelementptr ptr, ptr %params, i64 1
  %y = load ptr, ptr %at
  br label %loop
loop:
  %i = phi i64 [ %first, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %y, i64 %i
  %a = load float, ptr %from
  %b = fmul float %a, %a
  store float %b, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %last
  br i1 %more, label %loop, label %done
done:
  ret void
}"""


def test_native_text_with_a_pattern_competes() -> None:
    fg.native_kernel(
        SQUARES, "squares", inputs=[("float32", 1)], outputs=[("float32", lambda x: x)],
        units=lambda x, y: x[0], fallback=lambda a: a * a,
        pattern=lambda x: fg.exp(fg.log(fg.abs(x)) * 2),
    )  # fmt: skip
    x = numbers(3, 50_000)
    lazy = fg.exp(fg.log(fg.abs(x)) * 2)
    with fg.config(search=True):
        report = fg.explain(lazy)
        found = fg.schedule(lazy).run()[0].numpy()
    assert [k.kind for k in report.kernels] == ["user"]
    np.testing.assert_allclose(found, x.numpy() ** 2, rtol=1e-3, atol=1e-6)


def test_a_pattern_says_how_many_tensors_it_takes() -> None:
    with pytest.raises(ArgumentError, match="one by one"):
        fg.kernel(out=(3,), pattern=lambda *every: every[0])(lambda i, *, a: a[i])


def test_a_pattern_that_fails_by_itself_stops_nobody_elses_graph() -> None:
    @fg.kernel(out=lambda a: a.shape, pattern=lambda a: fg.exp(a) + missing)  # type: ignore[name-defined]  # noqa: F821
    def broken(a: Any, i: Any) -> Any:
        return a[i]

    x = numbers(3, 64, 64)
    with (
        fg.config(search=True, tier="native"),
        pytest.warns(RuntimeWarning, match=r"not considered.*NameError"),
    ):
        np.testing.assert_allclose((fg.exp(x) * 2).numpy(), np.exp(x.numpy()) * 2, rtol=1e-5)
