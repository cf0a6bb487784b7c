"""Units of costly columns: shorter than a vector step, and nothing is written outside of them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.loops import template
from fulgurite.runtime.device import get_device
from fulgurite.runtime.realize import storage_of

pytestmark = pytest.mark.device("cpu")
RNG = np.random.default_rng(11)
MARGIN = 4096  # elements around a result that nobody may write


def by_channel(x: Any, w: Any, size: int, wide: bool) -> list[Any]:
    """A convolution of every channel with channels last, which is a result, and its mean."""
    total = None
    for tap in range(25):
        term = x[tap // 5 : tap // 5 + size, tap % 5 : tap % 5 + size] * w[tap]
        total = term if total is None else total + term
    assert total is not None
    total = total * fg.sigmoid(total) if wide else total
    return [total, total.mean(axis=(0, 1))]


def run_inside(made: list[Any], wanted: list[Any]) -> None:
    """Run a kernel into the middle of memory, of which nothing else may be written."""
    schedule = fg.schedule(*made)
    plan, part = schedule.compile(), schedule.only_part
    assert part is not None
    inputs = [storage_of(buffer) for buffer in part.normal.buffers]
    around = [np.full(prod(v.shape) + 2 * MARGIN, 7.5, v.dtype) for v in wanted]
    inner = [a[MARGIN:-MARGIN].reshape(v.shape) for a, v in zip(around, wanted, strict=True)]
    plan.run_into(inputs, [get_device("cpu").from_host(a, share=True) for a in inner])
    for whole, found, value in zip(around, inner, wanted, strict=True):
        near = 2e-4 if value.dtype == np.float32 else 1e-11
        np.testing.assert_allclose(found, value, rtol=near, atol=near)
        assert (whole[:MARGIN] == 7.5).all() and (whole[-MARGIN:] == 7.5).all()


@pytest.mark.parametrize("elements", [32, 96, 160])
@pytest.mark.parametrize("columns", [64, 128, 192, 256, 320, 333])
def test_units_need_not_be_whole_steps_of_vectors(
    columns: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "unit_elements", lambda *given: elements)
    fg.clear_caches()
    x = fg.Tensor(RNG.standard_normal((40, columns)).astype(np.float32))
    y = x.numpy() * 2 + 1
    run_inside([x * 2 + 1, (x * 2 + 1).sum(axis=0)], [y, y.sum(axis=0)])
    fg.clear_caches()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [64, 96, 128, 160, 250, 256, 320, 576])
def test_nothing_is_written_outside_of_results(channels: int, dtype: str, wide: bool) -> None:
    size = 14
    arrays = [RNG.standard_normal((18, 18, channels)), RNG.standard_normal((25, channels))]
    arrays[0][0, 0, :4] = np.nan, np.inf, -0.0, 1e-310
    x, w = [fg.Tensor(a.astype(dtype)) for a in arrays]
    made = by_channel(x, w, size, wide)
    with fg.config(device="reference"):
        again = by_channel(fg.Tensor(x.numpy()), fg.Tensor(w.numpy()), size, wide)
        wanted = [t.numpy() for t in again]
    run_inside(made, wanted)


def test_gradients_of_costly_columns_are_those_of_the_reference() -> None:
    def loss(x: Any, w: Any) -> Any:
        total, mean = by_channel(x, w, 7, True)
        return (total * mean).sum()

    arrays = [RNG.standard_normal((11, 11, 160)), RNG.standard_normal((25, 160))]
    found = []
    for device in ("cpu", "reference"):
        with fg.config(device=device, poison=True):
            gradients = fg.grad(loss, (0, 1))(*[fg.Tensor(a) for a in arrays])
            found.append([g.numpy() for g in gradients])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
