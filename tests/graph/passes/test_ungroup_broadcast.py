"""Heads that share keys: axes that were merged after repeating stay apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.ops.reduce import REDUCE
from fulgurite.graph.passes.ungroup_broadcast import ungroup_broadcast
from tests.graph.searching import kinds, lowered, numbers, planned

BATCH, HEADS, GROUPS, ROWS, KEYS, SIZE = 2, 6, 2, 40, 50, 16
Repeat = Callable[[fg.Tensor], fg.Tensor]


def _expanded(x: fg.Tensor) -> fg.Tensor:
    b, g, n, d = x.shape
    return x[:, :, None].expand((b, g, HEADS // GROUPS, n, d)).reshape((b, HEADS, n, d))


WRITTEN: dict[str, Repeat] = {
    "expanded": _expanded,
    "interleaved": lambda x: x.repeat_interleave(HEADS // GROUPS, 1),
    "tiled": lambda x: fg.tile(x, (1, HEADS // GROUPS, 1, 1)),
}


def _gradients(repeat: Repeat, masked: bool) -> list[fg.Tensor]:
    q, g = (numbers(i, BATCH, HEADS, ROWS, SIZE) for i in (1, 2))
    k, v = (numbers(i, BATCH, GROUPS, KEYS, SIZE) for i in (3, 4))

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        s = q @ repeat(k).mT * 0.25
        if masked:
            s = fg.where(fg.arange(KEYS) <= fg.arange(ROWS)[:, None] + 10, s, -np.inf)
        return (fg.softmax(s, axis=-1) @ repeat(v) * g).sum()

    found: list[fg.Tensor] = list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.device("hosts")  # the GPU's machine model has other prices
def test_repeated_keys_have_one_walk_with_their_gradients(name: str, masked: bool) -> None:
    assert kinds(planned(*_gradients(WRITTEN[name], masked))[0]) == ["fold", "fold"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_of_repeated_keys_are_those_of_the_plain_plan(name: str, masked: bool) -> None:
    values = []
    for search in (False, True):
        with fg.config(search=search, tier="native"):
            values.append([t.numpy() for t in fg.realize(*_gradients(WRITTEN[name], masked))])
    for a, b in zip(*values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_sums_over_repeats_become_one_with_those_inside() -> None:
    sink, _ = lowered(*_gradients(_expanded, False))
    before, after = (
        [n for n in toposort([s]) if n.op is REDUCE]
        for s in (sink, ungroup_broadcast(sink, toposort([sink])))
    )
    assert len(before) == len(after) + 2
    assert [r.shape for r in ungroup_broadcast(sink, toposort([sink])).src] == [
        r.shape for r in sink.src
    ]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_reads_what_was_repeated_is_the_same(seed: int) -> None:
    """Movement of every kind, sums and maps above, also ones that cannot be split."""
    rng = np.random.default_rng(seed)
    x, y = numbers(seed, 2, 3, 5), numbers(seed + 1, 2, 6, 5)

    def program() -> fg.Tensor:
        z = x[:, :, None].expand((2, 3, 2, 5)).reshape((2, 6, 5)) + y
        for choice in np.random.default_rng(seed).integers(0, 8, 6):
            if choice == 0:
                z = z.permute(tuple(np.random.default_rng(seed).permutation(z.ndim).tolist()))
            elif choice == 1:
                z = z.sum(axis=int(rng.integers(0, z.ndim)), keepdims=True) * z
            elif choice == 2:
                z = z.reshape((*z.shape, 1)) * numbers(7, 4)
            elif choice == 3:
                z = z.reshape((z.shape[0] * z.shape[1], *z.shape[2:]))
            elif choice == 4:
                z = z.flip(0) - z
            elif choice == 5:
                z = fg.cumsum(z, axis=-1)
            elif choice == 6:
                z = fg.where(z > 0, z, 0.5 * z)
            else:
                z = z.reshape((-1, 2, *z.shape[1:])) if z.shape[0] % 2 == 0 else z
            if z.ndim < 2:
                z = z[None]
        return z

    state = rng.bit_generator.state
    sink, _ = lowered(program())
    assert [r.shape for r in ungroup_broadcast(sink, toposort([sink])).src] == [
        r.shape for r in sink.src
    ]
    found = []
    for search in (False, True):
        rng.bit_generator.state = state
        with fg.config(search=search, tier="native"):
            found.append(program().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_layers_on_top_of_each_other_are_computed_once() -> None:
    """Keys of the second layer are made of the first one's results as they are now."""
    weights = [numbers(i, HEADS * SIZE, GROUPS * SIZE) for i in (2, 3)]

    def layer(x: fg.Tensor) -> fg.Tensor:
        q = x.reshape((BATCH, ROWS, HEADS, SIZE)).permute_dims((0, 2, 1, 3))
        k, v = (
            _expanded((x @ w).reshape((BATCH, ROWS, GROUPS, SIZE)).permute_dims((0, 2, 1, 3)))
            for w in weights
        )
        mixed = fg.softmax(q @ k.mT * 0.25, axis=-1) @ v
        return x + mixed.permute_dims((0, 2, 1, 3)).reshape(x.shape)

    sink, _ = lowered(layer(layer(layer(numbers(1, BATCH, ROWS, HEADS * SIZE)))))
    before, after = (
        [n for n in toposort([s]) if n.op is REDUCE]
        for s in (sink, ungroup_broadcast(sink, toposort([sink])))
    )
    assert len(after) == len(before)
