"""Public functions of tensors and plain values build their graph from memory, as calls count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.core import build
from fulgurite.core.extension import EXTENSION
from fulgurite.functional import template

x = fg.Tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)).realize()
y = (x * 0.5 + 1.0).realize()
line = x.reshape(12).realize()
mask = (x > 0).realize()
rows = fg.Tensor([2, 0, 1, 1]).realize()
picture = fg.Tensor(np.arange(2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6)).realize()
window = fg.Tensor(np.ones((4, 4, 3, 3), np.float32)).realize()
layer = nn.Linear(4, 3)
convolution = nn.Conv2d(4, 4, 3)
norm = nn.LayerNorm(4)

CALLS: dict[str, Callable[[], Any]] = {
    "where": lambda: fg.where(mask, 0.0, x),
    "clip": lambda: fg.clip(x, -1, 1),
    "maximum": lambda: fg.maximum(x, 0),
    "isclose": lambda: fg.isclose(x, y),
    "logical_and": lambda: fg.logical_and(mask, mask),
    "sum": lambda: x.sum(1),
    "max": lambda: x.max(0),
    "any": lambda: mask.any(1),
    "var": lambda: fg.var(x, 0),
    "std": lambda: x.std(),
    "logsumexp": lambda: fg.logsumexp(x, 1),
    "cumsum": lambda: fg.cumsum(x, 1),
    "diff": lambda: fg.diff(x),
    "sort": lambda: fg.sort(x),
    "argsort": lambda: fg.argsort(x),
    "median": lambda: fg.median(x),
    "quantile": lambda: fg.quantile(x, 0.3, 1),
    "searchsorted": lambda: fg.searchsorted(line, x),
    "isin": lambda: fg.isin(rows, rows),
    "one_hot": lambda: fg.one_hot(rows, 5),
    "take": lambda: fg.take(x, rows, 1),
    "take_along_axis": lambda: fg.take_along_axis(x, fg.argsort(x), 1),
    "x[rows]": lambda: x[rows],
    "x[rows, rows]": lambda: x[rows, rows],
    "index_add": lambda: fg.index_add(line, 0, rows, rows.astype("float32")),
    "scatter_add": lambda: fg.scatter_add(line, 0, rows, line[:4]),
    "put_along_axis": lambda: fg.put_along_axis(line, rows, 1.0, 0),
    "pad": lambda: fg.pad(x, [(1, 1), (2, 0)], mode="reflect"),
    "stack": lambda: fg.stack([x, y], -1),
    "tile": lambda: fg.tile(x, 2),
    "tril": lambda: fg.tril(x),
    "kron": lambda: fg.kron(x, y),
    "outer": lambda: fg.outer(line, line),
    "einsum": lambda: fg.einsum("ij,kj->ik", x, y),
    "cdist": lambda: fg.cdist(x, y),
    "cross_entropy": lambda: fg.cross_entropy(x, rows[:3]),
    "mse_loss": lambda: fg.mse_loss(x, y),
    "hardswish": lambda: fg.hardswish(x),
    "group_norm": lambda: fg.group_norm(picture, 2),
    "conv2d": lambda: fg.conv2d(picture, window, padding=1),
    "max_pool2d": lambda: fg.max_pool2d(picture, 2),
    "adaptive_avg_pool2d": lambda: fg.adaptive_avg_pool2d(picture, 3),
    "a layer with parameters": lambda: layer(x),
    "a convolution with parameters": lambda: convolution(picture),
    "a norm with parameters": lambda: norm(x),
}  # fmt: skip


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """Templates of other tests are forgotten here, not between two calls because they are many."""
    for memo in template._MEMOS.values():
        memo.known.clear()
        memo.seen.clear()
        memo.of_sizes.clear()


def made() -> int:
    return sum({id(memo): memo.made for memo in template._MEMOS.values()}.values())


def calls_of_build(call: Callable[[], Any]) -> int:
    """How often Python's text of graph building is entered."""
    entered = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entered
        entered += event == "call" and frame.f_code.co_filename == build.__file__

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.skipif(EXTENSION is None, reason="in Python templates are filled in there as well")
@pytest.mark.parametrize("name", CALLS)
def test_what_comes_again_is_built_from_memory_and_is_the_same_graph(name: str) -> None:
    call = CALLS[name]
    first = call().node
    call()
    before = made()
    assert call().node is first
    assert made() == before, "the function ran again"
    assert calls_of_build(call) <= 1


def test_histograms_count_from_memory() -> None:
    for _ in range(2):
        fg.histogram(x, 5, (-1.0, 1.0))
    before = made()
    assert (
        fg.histogram(x, 5, (-1.0, 1.0)).hist.tolist()
        == np.histogram(x.numpy(), 5, (-1.0, 1.0))[0].tolist()
    )
    assert made() == before


def test_a_place_outside_names_the_axis_and_the_line_every_time() -> None:
    for _ in range(4):
        with pytest.raises(fg.errors.BoundsError, match="axis 1"):
            fg.take(x, rows + 2, 1).realize()
        with pytest.raises(fg.errors.BoundsError, match="axis 0") as caught:
            x[rows + 2].realize()
        assert "test_template_reach" in str(caught.value)
