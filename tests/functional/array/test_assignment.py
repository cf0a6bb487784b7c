"""Tests of fulgurite/functional/array/assignment.py: what may be assigned, errors, gradients."""

import copy
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.node import live_count
from fulgurite.errors import (
    ArgumentError,
    BoundsError,
    ConstantError,
    DataError,
    DTypeError,
    FulguriteError,
    GradientError,
    LostWriteWarning,
    ShapeError,
)
from fulgurite.runtime.device import register_device
from fulgurite.runtime.host.device import ReferenceDevice
from fulgurite.tensor import wrap
from tests.mirror import as_numpy, index_for


class ElsewhereDevice(ReferenceDevice):
    name = "elsewhere"


@pytest.fixture(autouse=True)
def _elsewhere() -> Iterator[None]:
    register_device("elsewhere", lambda name: ElsewhereDevice())
    yield


# --- values --------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 30), st.sampled_from([(4, 6), (5, 2, 3), (7,), ()]))
def test_every_index_that_reads_also_writes(seed: int, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    x = fg.Tensor(array)
    key = index_for(shape, seed)
    part = array[as_numpy(key)]
    values = np.arange(100, 100 + part.size, dtype=np.int32).reshape(part.shape)
    x[key] = values
    order = np.arange(array.size).reshape(shape)[as_numpy(key)].ravel()
    array.reshape(-1)[order] = values.ravel()
    assert x.tolist() == array.tolist()
    x[key] = 7
    array[as_numpy(key)] = 7
    assert x.tolist() == array.tolist()


def test_a_value_is_broadcast_to_what_it_replaces() -> None:
    x = fg.zeros((3, 4))
    x[1:] = fg.Tensor([1.0, 2.0, 3.0, 4.0])
    x[0] = np.ones((1, 1, 1), np.float32)  # as NumPy: dimensions of size 1 in front are dropped
    assert x.tolist() == [[1, 1, 1, 1], [1, 2, 3, 4], [1, 2, 3, 4]]
    x.assign([[5.0], [6.0], [7.0]])
    assert x[:, 2].tolist() == [5, 6, 7]
    assert x.assign(0).tolist() == [[0] * 4] * 3


def test_a_value_is_cast_as_the_same_kind() -> None:
    x = fg.zeros((3,), dtype="float32")
    x[0] = fg.Tensor(3, dtype="int64")
    x[1] = fg.Tensor(0.5, dtype="float64")
    x[2] = True
    assert x.tolist() == [3, 0.5, 1] and x.dtype is fg.float32
    y = fg.Tensor([1, 2, 3])
    y += fg.Tensor([True, False, True])
    y *= fg.Tensor([200, 200, 200], dtype="int64")
    assert y.tolist() == [400, 400, 800] and y.dtype is fg.int32


@pytest.mark.parametrize(
    ("kind", "part", "wrong"),
    [
        (DTypeError, "float32 values do not fit a tensor of int32", lambda x: x.assign(x * 1.5)),
        (DTypeError, "a tensor of int32", lambda x: x.__itruediv__(2)),
        (DTypeError, "a tensor of int32", lambda x: x.__setitem__(0, fg.Tensor(1.5))),
        (ConstantError, "1.5", lambda x: x.__setitem__(0, 1.5)),
        (ShapeError, "does not fill (3,)", lambda x: x.assign([1, 2])),
        (ShapeError, "does not fill (2,)", lambda x: x.__setitem__(slice(2), [1, 2, 3])),
        (ShapeError, "in place cannot change the shape", lambda x: x.__iadd__([[1], [2]])),
        (BoundsError, "index 3", lambda x: x.__setitem__(3, 1)),
        (BoundsError, "index -7", lambda x: x.__setitem__([0, -7], 1)),
        (BoundsError, "a mask of shape", lambda x: x.__setitem__(np.ones(2, bool), 1)),
        (ArgumentError, "no index", lambda x: x.__setitem__("a", 1)),
        (DTypeError, "whole number", lambda x: x.__setitem__(fg.Tensor([0.5]), 1)),
        (DataError, "different devices", lambda x: x.assign(x.to("elsewhere"))),
        (DataError, "str", lambda x: x.assign("text")),
    ],
)
def test_what_cannot_be_assigned_is_an_error_at_the_users_line(
    kind: type[FulguriteError], part: str, wrong: Any
) -> None:
    x = fg.Tensor([1, 2, 3])
    with pytest.raises(kind) as caught:
        wrong(x)
    assert part in str(caught.value)
    assert caught.value.where.startswith(__file__) and caught.value.hint
    assert x.tolist() == [1, 2, 3], "nothing was changed"


def test_operators_in_place_change_this_very_tensor() -> None:
    x = held = fg.Tensor([6, 7])
    x += 1
    x -= 2
    x *= 3
    x //= 2
    x %= 5
    x **= 2
    x |= 8
    x &= 13
    x ^= 1
    x <<= 2
    x >>= 1
    assert x is held
    want = np.array([6, 7])
    want += 1
    want -= 2
    want *= 3
    want //= 2
    want %= 5
    want **= 2
    want |= 8
    want &= 13
    want ^= 1
    want <<= 2
    want >>= 1
    assert held.tolist() == want.tolist()
    y = fg.Tensor([[1.0, 2.0], [3.0, 4.0]])
    y /= 2
    y @= fg.Tensor([[2.0, 0.0], [0.0, 2.0]])
    y += y
    assert y.tolist() == [[2, 4], [6, 8]]


def test_a_tensor_stays_on_its_device_and_keeps_its_dtype() -> None:
    x = fg.Tensor([1.0, 2.0], device="elsewhere")
    pending = x + 1
    x.assign(0)
    pending.assign(3)
    assert (x.device, pending.device) == ("elsewhere", "elsewhere")
    assert (x.tolist(), pending.tolist()) == ([0, 0], [3, 3])


def test_equal_constants_stay_two_tensors() -> None:
    a, b = fg.zeros(3), fg.zeros(3)
    a[0] = 1
    assert (a.tolist(), b.tolist()) == ([1, 0, 0], [0, 0, 0])


def test_a_variable_says_where_a_part_goes_and_one_plan_serves_all() -> None:
    n = build.variable("place", 0, 9)
    x = (fg.zeros((10, 3)) * 1).realize()
    want = np.zeros((10, 3), np.float32)
    seen = []
    for place in (3, 7, 0, 9):
        at = build.bind(n, place)
        start = fg.cache_stats()["schedule"]["misses"]
        x[at] = float(place + 1)
        want[place] = place + 1
        np.testing.assert_array_equal(x.numpy(), want)
        seen.append(fg.cache_stats()["schedule"]["misses"] - start)
    assert sum(seen[2:]) == 0


# --- gradients -----------------------------------------------------------------------------------


def test_assigning_inside_a_differentiated_function_is_differentiable() -> None:
    def loss(x: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        y = x * 2
        y[1] = v[0] * v[1]
        y[[0, 2]] *= 3
        x += 1
        return (y * x).sum()

    x, v = fg.Tensor([1.0, 2.0, 3.0]), fg.Tensor([4.0, 5.0])
    by_x, by_v = fg.grad(loss, (0, 1))(x, v)
    # y = [6 x0, v0 v1, 6 x2]; loss = Σ y (x + 1)
    assert by_x.tolist() == [6 * 2 + 6, 20, 6 * 4 + 18]
    assert by_v.tolist() == [5 * 3, 4 * 3]
    assert x.tolist() == [2, 3, 4], "what the function did to its argument is done"


def test_state_that_is_assigned_in_a_gradient_scope_is_ordinary_after_it() -> None:
    mean = (fg.zeros(2) * 1).realize()

    def loss(x: fg.Tensor) -> fg.Tensor:
        mean.assign(mean * 0.5 + x.mean(0) * 0.5)
        return (mean * x).sum()

    nodes = []
    for _ in range(6):
        fg.grad(loss)(fg.ones((3, 2))).realize()
        mean.realize()
        assert mean.is_realized and not mean.node.watched
        gc.collect()
        nodes.append(live_count())
    assert nodes[-1] <= nodes[1], "old steps are forgotten"
    assert mean.tolist() == [1 - 0.5**6] * 2


def test_a_leaf_is_assigned_without_recording_and_stays_a_leaf() -> None:
    w = fg.Tensor([1.0, 2.0], requires_grad=True)
    for wrong in (lambda: w.assign(0), lambda: w.__setitem__(0, 1), lambda: w.__isub__(1)):
        with pytest.raises(GradientError, match="no_grad"):
            wrong()
    losses, nodes = [], []
    for _ in range(8):
        loss = ((w - 3) ** 2).sum()
        loss.backward()
        assert w.grad is not None
        with fg.no_grad():
            w -= w.grad * 0.25
        w.grad = None
        losses.append(float(loss))
        w.realize()
        gc.collect()
        nodes.append(live_count())
    assert w.requires_grad and losses[-1] < losses[0] / 100
    assert nodes[-1] <= nodes[2], "old steps are forgotten"


def test_a_gradient_of_an_older_version_reaches_the_leaf_that_it_was() -> None:
    w = fg.Tensor([1.0, 2.0], requires_grad=True)
    y = (w * w).sum()
    with fg.no_grad():
        w *= 10
    w.realize()
    y.backward()
    assert w.grad is not None and w.grad.tolist() == [2, 4]
    (w * 1).sum().backward()
    assert w.grad.tolist() == [3, 5] and w.tolist() == [10, 20]


def test_a_value_with_a_gradient_makes_its_target_have_one() -> None:
    x = fg.Tensor([1.0, 2.0], requires_grad=True)
    y = fg.zeros(3)
    y[1:] = x * 2
    assert y.requires_grad
    with fg.no_grad():
        y[0] = 5
    assert not y.requires_grad and y.tolist() == [5, 2, 4]


def test_wrapped_nodes_are_assigned_like_any_other() -> None:
    x = wrap(build.const(2.0, fg.float32, (2,)))
    x[0] = 1
    assert x.tolist() == [1, 2]


NOTHING_MOVED: dict[str, Callable[[Any], fg.Tensor]] = {
    "slice": lambda w: w[:],
    "dots": lambda w: w[...],
    "reshape": lambda w: w.reshape(3),
    "astype": lambda w: w.astype("float32"),
    "squeeze": lambda w: w.squeeze(),
    "to device": lambda w: w.to(w.device),
    "to dtype": lambda w: w.to("float32"),
    "pad": lambda w: fg.pad(w, 0),
    "concat": lambda w: fg.concat([w]),
    "expand": lambda w: w.expand(3),
    "broadcast": lambda w: fg.broadcast_to(w, (3,)),
    "transpose": lambda w: w.T,
    "contiguous": lambda w: w.contiguous(),
    "flip": lambda w: fg.flip(w, ()),
    "plus": lambda w: +w,
    "roll": lambda w: fg.roll(w, 0),
    "flatten": lambda w: w.flatten(),
    "diff": lambda w: fg.diff(w, n=0),
    "clip": lambda w: w.clip(),
    "split": lambda w: w.split(3)[0],
    "dropout": lambda w: fg.dropout(w, 0.0),
    "Tensor": lambda w: fg.Tensor(w),
    "array": lambda w: fg.asarray(w, copy=True),
    "real": lambda w: fg.real(w),
    "view": lambda w: w.view_as(w),
    "chain": lambda w: w[:].reshape(3)[:],
}


@pytest.mark.parametrize("name", NOTHING_MOVED)
def test_what_moves_nothing_of_a_leaf_is_a_value_and_no_leaf(name: str) -> None:
    w = fg.Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = NOTHING_MOVED[name](w)
    assert y is not w and y.requires_grad
    y += 1
    y[0] = w[1] * 2
    assert w.tolist() == [1.0, 2.0, 3.0] and y.tolist() == [4.0, 3.0, 4.0]
    with fg.no_grad():
        z = NOTHING_MOVED[name](w)
        z *= 2
    assert not z.requires_grad and w.tolist() == [1.0, 2.0, 3.0]
    (y * y).sum().backward()
    assert y.grad is None and w.grad is not None and w.grad.tolist() == [0.0, 22.0, 8.0]
    with fg.no_grad():
        w += 1
    assert y.tolist() == [4.0, 3.0, 4.0] and w.requires_grad
    with pytest.raises(GradientError):
        w += 1


def test_a_copy_of_a_leaf_that_moves_nothing_is_no_leaf_either() -> None:
    w = fg.Tensor([1.0, 2.0], requires_grad=True)
    for part in (w[:], w[:1]):
        twin = copy.copy(part)
        twin += 1
        twin.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 1.0]


def test_a_function_gives_a_tensor_of_its_own_where_it_does_nothing() -> None:
    x = fg.Tensor([[1.0, 2.0], [3.0, 4.0]])
    image = fg.ones((1, 1, 2, 2))
    for y, source in (
        (fg.dropout(x, 0.0), x),
        (fg.nn.functional.dropout(x, training=False), x),
        (fg.nn.functional.alpha_dropout(x, 0.0), x),
        (fg.nn.functional.dropout1d(x, 0.0), x),
        (fg.rot90(x, 0), x),
        (fg.diff(x, n=0), x),
        (fg.linalg.matrix_power(x, 1), x),
        (fg.fft.fftshift(x, ()), x),
        (fg.interpolate(image, 2), image),
    ):
        before = source.tolist()
        y += 1
        assert source.tolist() == before


def test_a_write_into_a_temporary_warns_at_its_line() -> None:
    x = fg.zeros((2, 3))
    with pytest.warns(LostWriteWarning, match=r"x\[0, 1\] = 5") as caught:
        x[0][1] = 5.0
    assert caught[0].filename == __file__
    with pytest.warns(LostWriteWarning):
        x[0][1:] = 5.0
    with pytest.warns(LostWriteWarning):
        x.reshape(6)[0] = 1.0
    with pytest.warns(LostWriteWarning):
        x[0][1] += 5.0
    assert x.tolist() == [[0.0] * 3] * 2


def test_a_write_that_somebody_can_see_does_not_warn() -> None:
    x, parts = fg.zeros((2, 3)), [fg.zeros(2)]
    holder, names = SimpleNamespace(w=fg.zeros(2)), {"w": fg.zeros(2)}
    row = x[0]
    row[1] = 5.0
    x[0, 1] = 1.0
    x[0] += 1
    parts[0][1] = 2.0
    holder.w[0] = 3.0
    names["w"][0] = 4.0
    x.__setitem__((0, 0), 0.0)
    (same := x[1])[2] = 6.0

    def inner() -> None:
        x[1, 1] = 7.0  # of a closure
        parts[0][:] += 1

    inner()
    assert row.tolist() == [0.0, 5.0, 0.0] and same.tolist() == [0.0, 0.0, 6.0]
    assert x.tolist() == [[0.0, 2.0, 1.0], [0.0, 7.0, 0.0]]
    assert parts[0].tolist() == [1.0, 3.0] and holder.w.tolist() == [3.0, 0.0]
