"""Kernels of sizes that vary: what code they have, and that it is right."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.realize import clear_caches

pytestmark = pytest.mark.device("cpu")


def _convolved(*arrays: Any) -> Any:
    x, w = map(fg.Tensor, arrays)
    if x.dtype == fg.int8:
        x, w = x.astype(fg.int32), w.astype(fg.int32)
    return fg.conv2d(x, w, padding=1).numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("vary", ["in", "out", "both"])
def test_a_convolution_of_any_number_of_channels_is_a_gemm(
    vary: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    template: Any = import_module("fulgurite.codegen.cpu.gemm.template")
    choose, found = template.choose, []

    def chosen(problem: Any, machine: Any) -> Any:
        found.append(choose(problem, machine))
        return found[-1]

    monkeypatch.setattr(template, "choose", chosen)
    rng = np.random.default_rng(0)
    clear_caches()
    with fg.config(device="cpu", tier="native", disk_cache=False):
        for channels in (8, 12, 20, 33, 64, 7):
            wide = channels if vary != "out" else 5
            narrow = channels if vary != "in" else 16
            x = rng.integers(-9, 9, (1, wide, 14, 14)).astype(dtype)
            w = rng.integers(-9, 9, (narrow, wide, 3, 3)).astype(dtype)
            got = _convolved(x, w)
            with fg.config(device="reference"):
                want = _convolved(x, w)
            np.testing.assert_array_equal(got, want)  # whole numbers: no sum rounds
    assert found and None not in found
