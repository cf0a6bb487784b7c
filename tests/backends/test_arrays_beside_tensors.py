"""NumPy arrays have no device: they go where the tensors beside them are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import DataError
from fulgurite.runtime import device as devices

VALUES = np.arange(12.0, dtype=np.float32).reshape(3, 4)
ONES = np.ones((3, 4), np.float32)
ROWS = np.array([0, 2])
TARGET = np.array([0, 1, 2])
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True, scope="module")
def there() -> Iterator[None]:
    from tests.backends.remote import RemoteDevice

    known = "remote" in devices._factories
    if not known:
        devices.register_device("remote", RemoteDevice, members=lambda: 2)
    yield
    if not known:
        del devices._factories["remote"]
        for name in [n for n in devices._devices if n.startswith("remote")]:
            devices._devices.pop(name).line.close()  # type: ignore[attr-defined]


def assigned(x: fg.Tensor) -> fg.Tensor:
    y = x + 0
    y[ROWS] = np.zeros((2, 4))
    y[np.array([False, True, False])] += np.ones(4)
    y[ROWS, np.array([1, 3])] = np.array([7.0, 8.0])
    y[np.asarray(VALUES > 10)] = 5.0
    return y


def trained(x: fg.Tensor) -> fg.Tensor:
    fg.random.seed(0)
    model = fg.nn.Sequential(fg.nn.Linear(4, 8), fg.nn.BatchNorm1d(8), fg.nn.Linear(8, 3))
    model = model.to(x.device)
    optimizer = fg.optim.AdamW(model.parameters(), lr=0.1)

    @fg.jit
    def step() -> fg.Tensor:
        optimizer.zero_grad()
        loss = fg.cross_entropy(model(VALUES), TARGET)
        loss.backward()
        optimizer.step()
        return loss

    return fg.stack([step() for _ in range(3)])


FUNCTIONS: dict[str, Function] = {
    "an operator": lambda x: x + ONES,
    "a reflected operator": lambda x: x.__rmul__(ONES),
    "a list": lambda x: x * [1.0, 2.0, 3.0, 4.0],
    "a list with a tensor": lambda x: fg.add(x, [x[0, 1], 1.0, 2.0, 3.0]),
    "a product": lambda x: x @ np.ones((4, 2), np.float32),
    "einsum": lambda x: fg.einsum("ij,j->i", x, np.ones(4, np.float32)),
    "where": lambda x: fg.where(VALUES > 3, x, 0.0),
    "clip": lambda x: fg.clip(x, np.zeros(4), np.full(4, 5.0)),
    "concat": lambda x: fg.concat([ONES, x]),
    "stacks": lambda x: fg.vstack([x, ONES]),
    "rows": lambda x: x[ROWS],
    "rows of a list": lambda x: x[[2, 0]],
    "a mask": lambda x: x[np.array([True, False, True])],
    "several indices": lambda x: x[ROWS, np.array([1, 3])],
    "an index of a list and a slice": lambda x: x[::-1, [3, 0]],
    "an array and a tensor": lambda x: x[np.array([[0], [1]]), fg.Tensor([0, 1], device=x.device)],
    "assignments": assigned,
    "take": lambda x: fg.take(x, ROWS, 0),
    "take_along_axis": lambda x: fg.take_along_axis(x, np.array([[0], [1], [2]]), 1),
    "index_add": lambda x: fg.index_add(x, 0, ROWS, ONES[:2]),
    "searchsorted": lambda x: fg.searchsorted(x[0], np.array([1.5], np.float32)),
    "quantiles": lambda x: fg.quantile(x, np.array([0.1, 0.5])),
    "percentiles": lambda x: fg.percentile(x, [10, 50]),
    "a histogram": lambda x: fg.histogram(x, bins=[0.0, 5.0, 12.0]).hist,
    "differences": lambda x: fg.diff(x, prepend=np.zeros((3, 1), np.float32)),
    "an interpolation": lambda x: fg.interp(x[0], np.array([0.0, 5.0]), np.array([0.0, 1.0])),
    "cross-entropy": lambda x: fg.cross_entropy(x, TARGET, np.ones(4, np.float32)),
    "a squared error": lambda x: fg.mse_loss(x, ONES),
    "layer norm": lambda x: fg.layer_norm(x, (4,), np.ones(4), np.zeros(4)),
    "batch norm": lambda x: fg.batch_norm(x, np.zeros(4), np.ones(4), np.ones(4)).output,
    "attention": lambda x: fg.scaled_dot_product_attention(x, ONES, x, np.zeros((3, 3))),
    "an embedding": lambda x: fg.nn.functional.embedding(ROWS, x),
    "prelu": lambda x: fg.prelu(x - 5, np.full(4, 0.5, np.float32)),
    "a layer": lambda x: fg.nn.functional.linear(ONES, x),
    "scan": lambda x: fg.scan(lambda c, row: (c + row, c), np.zeros(4, np.float32), x)[1],
    "cond": lambda x: fg.cond(np.array(True), lambda a: a + 1, lambda a: a - 1, x),
    "a gradient": fg.grad(lambda x: (x * ONES).sum()),
    "jit": fg.jit(lambda x: x[ROWS] + np.ones(4, np.float32)),
    "training": trained,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_go_where_the_tensors_beside_them_are(name: str) -> None:
    function = FUNCTIONS[name]
    with fg.config(device="cpu"):
        found = function(fg.Tensor(VALUES, device="remote"))
        want = function(fg.Tensor(VALUES, device="cpu"))
    assert found.device == "remote"
    np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


def test_tensors_of_two_devices_do_not_meet_in_an_index_or_a_list() -> None:
    x, y = fg.Tensor(VALUES, device="remote"), fg.Tensor([0, 1], device="cpu")
    nests: list[Function] = [lambda i: fg.add(x, [i[0], 1, 2, 3]), lambda i: x + i[0]]
    for wrong in (lambda i: x[i], lambda i: x[i, i], *nests):
        with pytest.raises(DataError, match="different devices"):
            wrong(y)
