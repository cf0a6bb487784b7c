"""`fg.shard_map` in one process: ranks side by side, against NumPy on the whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import ranks
from fulgurite.core.node import Node
from fulgurite.core.ops.collective import RANKED
from fulgurite.core.ops.leaf import param
from fulgurite.core.ops.transform import EXAMPLE, new_batch
from fulgurite.distributed.manual import ranked
from fulgurite.errors import ArgumentError
from fulgurite.runtime.host.evaluate import evaluate
from tests.ranks import evaluate_on_ranks, on_ranks
from tests.samples import sample

pytestmark = pytest.mark.device("first")
MESH = fg.Mesh({"data": 2, "model": 3})
X = np.arange(72, dtype=np.float32).reshape(6, 12) + 1
BLOCKS = X.reshape(2, 3, 12)  # of the rows, split by "data"
PARTS = [*range(6), *range(6), *range(6, 12), *range(6, 12)]  # what ranks sent of equal columns
HOSTILE = np.array([[0, -0.0, np.inf, -1], [np.nan, 5e-324, 1, -1], [-0.0, -0.0, 0, np.inf],
                    [1, -np.inf, np.nan, -0.0]])  # fmt: skip


@pytest.mark.parametrize(
    ("function", "split", "out", "wanted"),
    [
        (lambda a: fg.all_reduce(a, "data"), {"data": 0}, None, BLOCKS.sum(0)),
        (lambda a: fg.all_reduce(a, "data", "max"), {"data": 0}, None, BLOCKS.max(0)),
        (lambda a: fg.all_reduce(a, "data", "mul"), {"data": 0}, None, BLOCKS.prod(0)),
        (lambda a: fg.all_gather(a, "data"), {"data": 0, "model": 1}, {"model": 1}, X),
        (lambda a: fg.all_gather(a, ("data", "model"), 1), {"data": 1, "model": 1}, None, X),
        (lambda a: fg.reduce_scatter(a, "model", 1), None, {"model": 1}, 3 * X),
        (lambda a: fg.all_to_all(a, "data", 1, 0), {"data": 0}, {"data": 1}, X),
        (lambda a: fg.all_to_all(a, "data", 1, 1), None, {"data": 1}, X[:, PARTS]),
        (lambda a: fg.send_recv(a, "data", [(0, 1)]), {"data": 0}, {"data": 0},
         np.concatenate([0 * X[:3], X[:3]])),
        (lambda a: a * 0 + fg.axis_index("model"), {"model": 1}, {"model": 1},
         np.broadcast_to(np.arange(12) // 4, (6, 12))),
    ],
    ids=["sum", "max", "product", "gather", "gather-two-axes", "reduce-scatter", "all-to-all",
         "all-to-all-along-one", "send", "index"],
)  # fmt: skip
def test_a_collective_of_shards_is_numpy_of_the_whole(
    function: Callable[..., Any], split: Any, out: Any, wanted: Any
) -> None:
    found = fg.shard_map(function, MESH, [split], out)(fg.Tensor(X))
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_gradients_go_through_a_manual_region() -> None:
    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        part = fg.shard_map(
            lambda a, b: fg.all_reduce(fg.tanh(a) @ b, "model"), MESH,
            [{"data": 0, "model": 1}, {"model": 0}], {"data": 0},
        )  # fmt: skip
        found: fg.Tensor = (part(x, w) ** 2).sum()
        return found

    x, w = fg.Tensor(X / 100), fg.Tensor(X[:, :4].reshape(12, 2) / 50)
    found = fg.grad(loss, argnums=(0, 1))(x, w)
    wanted = fg.grad(lambda x, w: ((fg.tanh(x) @ w) ** 2).sum(), argnums=(0, 1))(x, w)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


OVER_ALL: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    **{how: partial(fg.all_reduce, axes="a", op=how) for how in ("add", "mul", "max", "min")},
    "gather": lambda a: fg.all_gather(a, "a", 1),
    "scatter": lambda a: fg.reduce_scatter(a, "a", 1),
    "exchange": lambda a: fg.all_to_all(a, "a", 1, 0),
    "exchange along one": lambda a: fg.all_to_all(a, "a", 1, 1),
    "send": lambda a: fg.send_recv(a, "a", [(0, 2), (3, 1)]),
}


@pytest.mark.parametrize("name", OVER_ALL)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values_and_gradients_on_ranks_are_those_of_one_process(name: str, dtype: str) -> None:
    """With zeros of both signs, infinities and NaN: to the bit, but for the rounding of sums."""

    def computed(rank: int) -> list[Any]:
        mapped = fg.shard_map(OVER_ALL[name], fg.Mesh({"a": 4}), [{"a": 0}], {"a": 0})
        found = []
        for array in (HOSTILE, X[:4, :4]):
            x = fg.Tensor(array.astype(dtype))
            size = mapped(x).shape[1]
            grad = fg.grad(lambda x, size=size: (mapped(x) * fg.arange(1, 1 + size)).sum())(x)
            inside = fg.shard_map(
                fg.grad(lambda a: (OVER_ALL[name](a) ** 2).sum()), fg.Mesh({"a": 4}), [{"a": 0}],
                {"a": 0},
            )  # fmt: skip
            found += [mapped(x).numpy(), grad.numpy(), inside(x).numpy()]
        return found

    wanted = computed(0)
    for rows in on_ranks(4, computed):
        for a, b in zip(rows, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
            np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


def test_shards_of_several_sizes_are_read() -> None:
    """From the third size on they share a plan, of which a gather is all."""

    def read(rank: int) -> list[Any]:
        mesh, found = fg.Mesh({"a": 2}), []
        for n in (40, 160, 33, 57, 3):
            x = np.random.default_rng(n).standard_normal((64, n))
            found.append((x, fg.shard(x, mesh, {"a": 0}).realize().numpy()))
        return found

    for rows in on_ranks(2, read):
        for wanted, found in rows:
            np.testing.assert_array_equal(found, wanted)


def test_the_gradient_of_a_product_over_ranks_is_that_of_numpy() -> None:
    x = np.array([[2.0, 0, 0], [3, 4, 0], [5, 6, 7], [1, 1, 1]])
    others = [np.delete(x, i, 0).prod(0) for i in range(4)]

    def found(rank: int) -> Any:
        total = fg.shard_map(OVER_ALL["mul"], fg.Mesh({"a": 4}), [{"a": 0}], None)
        return fg.grad(lambda x: total(x).sum())(fg.Tensor(x)).numpy()

    for grad in [found(0), *on_ranks(4, found)]:
        np.testing.assert_array_equal(grad, others)


@pytest.mark.parametrize("op", RANKED, ids=str)
def test_what_ranks_exchange_is_what_the_leading_axis_says(op: Any) -> None:
    """Messages between threads give what the same op gives with ranks side by side, to the bit."""
    for node in sample(op):
        if any([isinstance(n, Node) for n in node.src[0].shape]):
            continue
        mesh, source = node.arg[0], node.src[0]
        size = ranks.mesh_size(mesh)
        rng = np.random.default_rng(0)
        shape: Any = source.shape
        lanes = rng.standard_normal((size, *shape)).astype(np.float32)

        def given(rank: int, source: Node = source, lanes: Any = lanes) -> dict[Node, Any]:
            return {source: lanes[rank]}

        found = evaluate_on_ranks(size, [node], given)
        batch = new_batch()
        whole = param(1, lanes.shape, source.dtype)
        example = EXAMPLE(whole, arg=batch)
        (side_by_side,) = ranked([op(example, arg=node.arg)], batch, mesh)
        (wanted,) = evaluate([side_by_side], {whole: lanes})
        np.testing.assert_array_equal(np.stack([rows[0] for rows in found]), wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fg.Mesh({}), "a mesh of"),
        (lambda: fg.Mesh({"data": 0}), "a mesh of"),
        (lambda: fg.shard(X, MESH, {"rows": 0}), "no axis 'rows'"),
        (lambda: fg.shard_map(fg.exp, MESH, [{"data": 0}], {"data": 0})(fg.ones(5)),
         "no 2 equal parts"),
        (lambda: fg.all_reduce(X, "data"), "outside of fg.shard_map"),
        (lambda: fg.shard_map(fg.exp, MESH, [None, None], None)(X), "1 arguments and 2 splits"),
        (lambda: fg.shard_map(lambda a: fg.all_reduce(a, "data", "mean"), MESH, [None], None)(X),
         "'mean' does not fold"),
        (lambda: fg.shard_map(lambda a: fg.send_recv(a, "data", [(0, 1), (1, 1)]), MESH, [None],
                              None)(X), "once"),
        (lambda: fg.shard_map(lambda a: fg.shard(a, MESH), MESH, [None], None)(X),
         "fg.shard inside of fg.shard_map"),
        (lambda: fg.shard_map(fg.shard_map(fg.exp, MESH, [None], None), MESH, [None], None)(X),
         "fg.shard_map inside of fg.shard_map"),
        (lambda: fg.shard_map(lambda a: fg.fori_loop(0, 3, lambda i, v: fg.all_reduce(v, "data"),
                              a), MESH, [None], None)(X), "all_reduce in the body of a loop"),
        (lambda: fg.shard_map(lambda a: a.sum().item(), MESH, [None], None)(X), "is not known"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_an_error_that_says_so(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
