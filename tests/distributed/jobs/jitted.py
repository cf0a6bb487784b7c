"""A jitted step over shards: what it makes, whether it is replayed, and what is in shards."""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.core import ranks
from fulgurite.core.ops.collective import SHARD, UNSHARD
from fulgurite.runtime.realize import value_node
from fulgurite.tensor import wrap

FIRST = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
BY_ROWS, BY_COLUMNS, WHOLE = (("data",), ()), ((), ("data",)), ((), ())


def is_split(x: fg.Tensor) -> bool:
    """True if a tensor's memory is in shards."""
    node = value_node(x.entry.node)
    return node is not None and node.op is UNSHARD


def parted(x: fg.Tensor, layout: Any) -> fg.Tensor:
    """A tensor in shards over all ranks, be there one: `fg.shard` is for several."""
    return wrap(SHARD(x.entry.node, arg=((("data", ranks.world().size),), layout, False)))


def trained(layout: Any, split: bool = True, steps: int = 5) -> tuple[Any, list[float], int, bool]:
    """Weights and losses of a jitted step, how many captures it has, are the weights split?"""

    @fg.jit
    def step(w: fg.Tensor, x: fg.Tensor) -> Any:
        batch = parted(x, BY_ROWS) if split else x
        loss, grad = fg.value_and_grad(lambda w: (fg.tanh(batch @ w) ** 2).mean())(w)
        w.assign(w - 0.1 * grad)
        return loss, batch * 2

    w = (parted(fg.Tensor(FIRST), layout) if split else fg.Tensor(FIRST)).realize()
    losses = []
    for number in range(steps):
        x = np.random.default_rng(number).standard_normal((8, 6)).astype(np.float32)
        loss, twice = step(w, fg.Tensor(x))
        losses.append(loss.item())
        assert is_split(twice) == split
        np.testing.assert_array_equal(twice.numpy(), 2 * x)
    assert step.captured == 1
    return w.numpy(), losses, len(step.captures), is_split(w)


def check(layout: Any) -> None:
    """A jitted step over shards is a step, and is replayed."""
    wanted, losses, _, _ = trained(layout, split=False)
    found, got, captures, kept = trained(layout)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    assert captures == 1 and kept == (layout != WHOLE)


def check_layouts() -> None:
    """A tensor that is split in another way is captured again, and only then."""

    @fg.jit
    def total(x: fg.Tensor) -> Any:
        return x.sum(0)

    for layout in (BY_ROWS, BY_ROWS, BY_COLUMNS, WHOLE, BY_COLUMNS):
        found = total(parted(fg.Tensor(FIRST), layout).realize()).numpy()
        np.testing.assert_allclose(found, FIRST.sum(0), rtol=1e-5)
    assert total.captured == len(total.captures) == 3


if __name__ == "__main__":
    fg.Mesh({"data": 1})  # which meets the other ranks
    for one in (WHOLE, BY_ROWS):
        check(one)
    check_layouts()
    if ranks.world().rank == 0:
        print(f"jitted on {ranks.world().size} ranks", flush=True)
