"""Tests of fulgurite/kernel/transform/relayout.py and codegen/cpu/relayout.py.

Maps that move memory have one text for what they compute: new sizes, paddings, steps and orders of
axes compile nothing, and values are right wherever memory lies, with outputs and all around them
poisoned. NumPy says what is right, bit for bit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.llvm import compiler
from fulgurite.codegen.cpu.relayout import relayouts
from fulgurite.codegen.cpu.target import target
from fulgurite.kernel.transform.relayout import FORM

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import Array, lowered, run
from tests.properties import kernels


@pytest.fixture(scope="module", autouse=True)
def nothing_from_the_disk() -> Iterator[None]:
    with fg.config(disk_cache=False):
        yield


def values(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    """Numbers, some of them hostile."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(shape) * 50
    hostile = rng.random(shape)
    if np.dtype(dtype).kind == "f":
        for share, value in ((0.05, np.nan), (0.1, np.inf), (0.15, -0.0)):
            found[(hostile < share) & (hostile >= share - 0.05)] = value
    return found.astype(dtype)


Move = Callable[[Any, Any], Any]
MOVES: dict[str, tuple[Move, Move]] = {
    "a crop": (lambda x, n: x[:, :, n:, : -n - 1], lambda x, n: x[:, :, n:, : -n - 1]),
    "a padding": (
        lambda x, n: fg.pad(x, ((0, 0), (0, 0), (n, 1), (0, n))),
        lambda x, n: np.pad(x, ((0, 0), (0, 0), (n, 1), (0, n))),
    ),
    "rows apart": (lambda x, n: x[:, :, ::n, 1:], lambda x, n: x[:, :, ::n, 1:]),
    "rows turned round": (lambda x, n: x[:, ::-1, :, n:], lambda x, n: x[:, ::-1, :, n:]),
}


@pytest.mark.parametrize("name", MOVES)
def test_memory_that_is_moved_compiles_once_for_all_sizes(name: str) -> None:
    move, right = MOVES[name]
    before = 0
    for turn, (shape, n) in enumerate(
        (((2, 3, 20, 21), 2), ((1, 5, 9, 40), 3), ((7, 1, 33, 17), 1), ((2, 2, 6, 9000), 4))
    ):
        x = values(shape, seed=turn)
        with fg.config(device="cpu", tier="native", threads=1):
            found = fg.schedule(move(fg.Tensor(x), n) * 1.0).run()[0].numpy()
        np.testing.assert_array_equal(found, right(x, n))
        assert turn == 0 or compiler.calls == before, shape
        before = compiler.calls


def test_rows_that_ask_and_have_one_number_for_all_lanes_are_right() -> None:
    x = values((7, 2), "int32")
    with fg.config(device="cpu", tier="native"):
        rows = fg.flip(fg.pad(fg.Tensor(x)[::-1], ((0, 5), (0, 0))), 1)
        lazy = fg.broadcast_to(rows[..., None], (12, 2, 3)).contiguous()
        found = fg.schedule(lazy).run()[0].numpy()
    wanted = np.flip(np.pad(x[::-1], ((0, 5), (0, 0))), 1)
    np.testing.assert_array_equal(found, np.repeat(wanted[..., None], 3, -1))


def test_results_in_turns_compile_once_for_a_stride() -> None:
    before = 0
    for turn, shape in enumerate(((2, 3, 8, 21), (1, 5, 2, 40), (4, 1, 11, 17))):
        x, y = values(shape), values(shape, seed=1)
        with fg.config(device="cpu", tier="native"):
            made = fg.stack([fg.Tensor(x), fg.Tensor(y)], 3).reshape(*shape[:2], 2 * shape[2], -1)
            made = made[..., :-1]
            found = fg.schedule(made).run()[0].numpy()
        wanted = np.stack([x, y], 3).reshape(*shape[:2], 2 * shape[2], shape[3])[..., :-1]
        np.testing.assert_array_equal(found, wanted)
        assert turn == 0 or compiler.calls == before, shape
        before = compiler.calls


@st.composite
def moves(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, tuple[int, ...]]]]:
    """A shape, and a few ops that move what has it."""
    shape = list(draw(st.lists(st.sampled_from((1, 2, 3, 5, 9, 17)), min_size=2, max_size=4)))
    first = tuple(shape)
    ops: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 4))):
        axis = draw(st.integers(0, len(shape) - 1))
        kind = draw(st.sampled_from(("pad", "cut", "step", "flip", "swap", "spread", "repeat")))
        if kind == "pad":
            more = draw(st.integers(0, 2)), draw(st.integers(0, 3))
            ops.append((kind, (axis, *more)))
            shape[axis] += sum(more)
        elif kind == "cut" and shape[axis] > 2:
            ops.append((kind, (axis, 1, shape[axis] - draw(st.integers(0, 1)))))
            shape[axis] = ops[-1][1][2] - 1
        elif kind == "step":
            ops.append((kind, (axis, step := draw(st.integers(2, 4)))))
            shape[axis] = -(-shape[axis] // step)
        elif kind == "flip":
            ops.append((kind, (axis,)))
        elif kind == "swap":
            other = draw(st.integers(0, len(shape) - 1))
            ops.append((kind, (axis, other)))
            shape[axis], shape[other] = shape[other], shape[axis]
        elif kind == "repeat" and shape[axis] * 3 < 60:
            ops.append((kind, (axis, times := draw(st.integers(2, 3)))))
            shape[axis] *= times
        elif kind == "spread" and shape[axis] * 3 < 60:
            ops.append((kind, (axis, step := draw(st.integers(2, 3)))))
            shape[axis] = shape[axis] * step - 1
    return first, ops


def applied(module: Any, x: Any, ops: list[tuple[str, tuple[int, ...]]]) -> Any:
    """The moves, in NumPy's words, which are ours."""
    for kind, (axis, *more) in ops:
        every = [slice(None)] * x.ndim
        pads = [(0, 0)] * x.ndim
        if kind == "pad":
            pads[axis] = (more[0], more[1])
            x = module.pad(x, pads)
        elif kind == "cut":
            every[axis] = slice(*more)
            x = x[tuple(every)]
        elif kind in ("step", "flip"):
            every[axis] = slice(None, None, more[0] if more else -1)
            x = x[tuple(every)]
        elif kind == "repeat":
            x = module.repeat(x, more[0], axis)
        elif kind == "swap":
            x = module.swapaxes(x, axis, more[0])
        else:  # zeros between
            shape = list(x.shape)
            column = x.reshape(*shape[: axis + 1], 1, *shape[axis + 1 :])
            wide = module.pad(column, [(0, more[0] - 1 if d == axis + 1 else 0)
                                       for d in range(column.ndim)])  # fmt: skip
            shape[axis] *= more[0]
            every[axis] = slice(0, shape[axis] - 1)
            x = wide.reshape(*shape)[tuple(every)]
    return x


@pytest.mark.parametrize("vectors", ["auto", "avx2"])
@kernels
@given(drawn=moves(), dtype=st.sampled_from(("float32", "float64", "float16", "int8", "int64")),
       seed=st.integers(0, 99))  # fmt: skip
def test_any_moves_are_right(
    vectors: str, drawn: tuple[tuple[int, ...], list[tuple[str, tuple[int, ...]]]], dtype: str,
    seed: int,
) -> None:  # fmt: skip
    shape, ops = drawn
    x = values(shape, dtype, seed)
    wanted = applied(np, x, ops)
    lazy = applied(fg, fg.Tensor(x, device="cpu"), ops)
    both = fg.concat([lazy, lazy], 0)  # a map, whatever the moves are
    (found,), _ = run(both, seed=seed, machine=target(vectors))
    np.testing.assert_array_equal(found, np.concatenate([wanted, wanted], 0))


def test_the_template_takes_crops_and_leaves_sums_and_flat_maps() -> None:
    x = fg.Tensor(values((4, 5, 6, 30)), device="cpu")
    taken = {
        "crop": x[:, :, 1:, 1:] * 2.0, "sum": x.sum(-1), "flat": x * 2.0, "gather": x[:, [0, 2, 1]],
    }  # fmt: skip
    found = {
        name: relayouts(*lowered(tensor), target("auto")) is not None
        for name, tensor in taken.items()
    }
    assert found == {"crop": True, "sum": False, "flat": False, "gather": False}


def test_the_template_leaves_short_rows_where_there_are_many() -> None:
    """What the indices of a row come to costs as much as several vectors of it."""

    def patches(side: int, count: int) -> Any:
        x = fg.Tensor(np.zeros((4, 16, count * side, count * side), np.float32), device="cpu")
        cut = x.reshape(4, 16, count, side, count, side).permute(0, 2, 4, 1, 3, 5) * 2
        return relayouts(*lowered(cut), target())

    assert patches(8, 8) is None and patches(32, 4) is None
    assert patches(64, 2) is not None, "long rows"
    assert patches(8, 2) is not None, "few results"


def test_the_template_leaves_rows_that_are_longer_than_what_asks_nothing() -> None:
    for length, takes in ((FORM.endless, True), (FORM.endless + 1, False)):
        with fg.config(device="cpu"):
            row = fg.from_numpy(np.empty(length, np.uint8))  # never touched
            lazy = fg.broadcast_to(row, (2, length)).contiguous()
        assert (relayouts(*lowered(lazy), target()) is not None) == takes, length
