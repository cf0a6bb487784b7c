"""Templates: what is made again is the very node that the function makes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.extension import EXTENSION
from fulgurite.core.node import live_count, toposort
from fulgurite.core.ops.elementwise import ADD
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.functional import template
from fulgurite.functional.array import movement, numpy_indexing
from fulgurite.functional.math import products, reduction
from fulgurite.functional.nn import activation, normalization
from fulgurite.nn.linear import linear

pytestmark = pytest.mark.device("reference")


def ones(*shape: int, dtype: str = "float32") -> fg.Tensor:
    return fg.Tensor(np.ones(shape, dtype))


CASES: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "matmul": (products.matmul, lambda: (ones(2, 3), ones(3, 4))),
    "matmul of stacks": (products.matmul, lambda: (ones(5, 2, 3), ones(5, 3, 1))),
    "matmul of a row": (products.matmul, lambda: (ones(3), ones(3, 4))),
    "matmul of nothing": (products.matmul, lambda: (ones(2, 0), ones(0, 4))),
    "matmul of halves": (
        products.matmul,
        lambda: (ones(2, 3, dtype="float16"), ones(3, 4, dtype="float16")),
    ),
    "layer_norm": (normalization.layer_norm, lambda: (ones(2, 3), (3,), ones(3), ones(3), 1e-5)),
    "layer_norm of a list": (normalization.layer_norm, lambda: (ones(2, 3), [2, 3])),
    "linear": (linear, lambda: (ones(2, 3), ones(4, 3), ones(4))),
    "linear without bias": (linear, lambda: (ones(3), ones(4, 3), None)),
    "mean": (reduction.mean, lambda: (ones(2, 3), 0)),
    "mean of nothing": (reduction.mean, lambda: (ones(0, 3),)),
    "rms_norm": (normalization.rms_norm, lambda: (ones(2, 3), 3, ones(3))),
    "softmax": (activation.softmax, lambda: (ones(2, 3), -1)),
    "softmax of one": (activation.softmax, lambda: (ones(2, 1), 1)),
    "log_softmax": (activation.log_softmax, lambda: (ones(2, 3),)),
    "relu": (activation.relu, lambda: (ones(2, 3),)),
    "relu of whole numbers": (activation.relu, lambda: (ones(4, dtype="int32"),)),
    "gelu": (activation.gelu, lambda: (ones(2, 3), "tanh")),
    "sigmoid": (activation.sigmoid, lambda: (ones(),)),
    "silu": (activation.silu, lambda: (ones(0, 3),)),
    "concat": (movement.concat, lambda: ([ones(2, 3), ones(2, 5)], 1)),
    "concat of nothing": (movement.concat, lambda: ([ones(2, 0), ones(2, 5)], 1)),
    "part": (numpy_indexing._plain_part, lambda: (ones(4, 5), (slice(None), 2))),
    "part from the end": (numpy_indexing._plain_part, lambda: (ones(4, 5), -1)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_template_makes_the_node_that_the_function_makes(name: str) -> None:
    function, given = CASES[name]
    for _ in range(5):
        operands = given()
        assert function(*operands).node is function.__wrapped__(*operands).node
    watched = [_watched(x) for x in given()]
    assert function(*watched).node is function.__wrapped__(*watched).node
    with fg.no_grad():
        assert function(*watched).node is function.__wrapped__(*watched).node


def _watched(x: Any) -> Any:
    if isinstance(x, list):
        return [_watched(part) for part in x]
    if isinstance(x, fg.Tensor) and x.dtype.is_inexact:
        return fg.Tensor(x.numpy(), requires_grad=True)
    return x


def test_what_a_function_looks_into_is_no_template() -> None:
    for shape in ((2, 3), (2, 3), (2, 3)):
        activation.softmax(ones(*shape))
    constant = fg.ones((2, 3))
    assert activation.softmax(constant).node is activation.softmax.__wrapped__(constant).node  # type: ignore[attr-defined]
    n = fg.Var("n", 1, 8).bind(3)
    varying = ones(8)[:n]
    assert activation.softmax(varying).node is activation.softmax.__wrapped__(varying).node  # type: ignore[attr-defined]


def test_operands_that_are_one_are_not_those_that_are_two() -> None:
    function: Any = products.matmul
    a, b = ones(3, 3), ones(3, 3)
    for _ in range(3):
        for pair in ((a, b), (a, a), (b, a)):
            assert function(*pair).node is function.__wrapped__(*pair).node


def _column() -> fg.Tensor:
    return fg.Tensor([[3.0], [5.0]])


def _views() -> list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]]:
    """A function, operands of which one is a view of another or a count, and others like them."""
    column, row = _column(), fg.Tensor([[1.0, 2.0]])
    line, count = fg.Tensor([3.0, 5.0]), fg.arange(2, dtype="float32")
    return [
        (products.matmul, (column.T, column), (row, _column())),
        (products.matmul, (line.reshape(1, 2), line), (row, fg.Tensor([3.0, 5.0]))),
        (products.matmul, (count, count.reshape(2, 1)), (line, _column())),
        (movement.concat, ([line, line.reshape(1, 2)[0]],), ([line, fg.Tensor([7.0, 8.0])],)),
        (linear, (row, row.reshape(2).reshape(1, 2)), (row, fg.Tensor([[7.0, 8.0]]))),
        (normalization.layer_norm, (row, 2, row[0], row[0]), (row, 2, line, line)),
        (normalization.layer_norm, (row, 2, row[0], line), (row, 2, line, count)),
        (reduction.mean, (fg.arange(3),), (fg.Tensor([10, 20, 60]),)),
        (activation.softmax, (count,), (line,)),
    ]


@pytest.mark.parametrize("case", range(len(_views())))
def test_what_is_known_of_operands_is_no_part_of_a_template(case: int) -> None:
    function, seen, others = _views()[case]
    for _ in range(4):
        function(*seen)
    for given in (others, seen):
        want = function.__wrapped__(*given).numpy()
        np.testing.assert_allclose(function(*given).numpy(), want, rtol=1e-6)


def test_numbers_of_other_types_and_signs_are_others() -> None:
    function: Any = normalization.layer_norm
    for eps in (0.0, -0.0, 0, False, 1e-5, 0.0, -0.0, 0, 1e-5, 0.0, -0.0, 0, 1e-5):
        x = ones(2, 3)
        assert function(x, 3, None, None, eps).node is function.__wrapped__(x, 3, eps=eps).node


def test_autocast_has_templates_of_its_own() -> None:
    function: Any = products.matmul
    a, b = ones(2, 3), ones(3, 4)
    for kind in ("off", "bfloat16") * 4:
        with fg.config(autocast=kind):
            made = function(a, b)
            assert made.node is function.__wrapped__(a, b).node
            assert made.dtype is (fg.float32 if kind == "off" else fg.bfloat16)


def test_errors_are_those_of_the_function() -> None:
    for _ in range(4):
        with pytest.raises(fg.errors.ShapeError, match="inner sizes"):
            ones(2, 3) @ ones(4, 5)
        fg.matmul(ones(2, 3), ones(3, 5))


def test_a_template_notes_the_line_that_uses_it() -> None:
    lines = set()
    for _ in range(3):
        lines.add(activation.relu(ones(7, 3)).node.origins[-1].line)
    lines.add(activation.relu(ones(7, 3)).node.origins[-1].line)
    assert len(lines) == 2


def test_values_and_gradients_of_templates_are_right() -> None:
    data = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)

    def loss(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return (fg.layer_norm(fg.gelu(fg.softmax(x) @ w), 3) * fg.relu(x @ w)).sum()

    found = []
    for _ in range(4):
        x, w = (fg.Tensor(a, requires_grad=True) for a in (data, data[:3].T.copy()))
        loss(x, w).backward()
        assert x.grad is not None and w.grad is not None
        found.append((x.grad.numpy(), w.grad.numpy()))
    for more in found[1:]:
        for a, b in zip(more, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_sizes_that_never_come_again_leave_little() -> None:
    gc.collect()
    before = live_count()
    for n in range(2, 700):
        activation.softmax(ones(1, n))
    gc.collect()
    assert live_count() - before < 10


@pytest.mark.skipif(EXTENSION is None, reason="sources are a plain tuple then")
def test_a_cycle_through_sources_is_collected() -> None:
    gc.collect()
    before = live_count()
    a = new_buffer((2,), fg.float32)
    top = ADD(ADD(a, a), a)
    a.meta = [top]
    assert len(toposort([top])) == 3
    held = top.src
    del a, top
    gc.collect()
    assert live_count() == before + 3 and held[0].src[0] is held[1]
    del held
    gc.collect()
    assert live_count() == before


@pytest.mark.parametrize("function", [fg.silu, fg.gelu, fg.relu, fg.matmul])
def test_a_jitted_function_does_not_see_its_templates_change(function: Any) -> None:
    """Nor does one that holds it, as a layer holds its activation."""

    class Layer:
        def __init__(self) -> None:
            self.act = function

        def __call__(self, *args: fg.Tensor) -> fg.Tensor:
            found: fg.Tensor = self.act(*args)
            return found

    args = (ones(3, 3),) * (2 if function is fg.matmul else 1)
    for jitted in (fg.jit(function), fg.jit(Layer())):
        for _ in range(5):
            jitted(*args)
        assert len(jitted.captures) == 1


# --- of many sizes -------------------------------------------------------------------------------

SIZED: dict[str, tuple[Any, Callable[[int], tuple[Any, ...]]]] = {
    "concat behind": (movement.concat, lambda n: ([ones(2, n, 3), ones(2, 1, 3)], 1)),
    "matmul of rows": (products.matmul, lambda n: (ones(4, 1, 3), ones(4, 3, n))),
    "matmul over them": (products.matmul, lambda n: (ones(4, 1, n), ones(4, n, 3))),
    "matmul of a square": (products.matmul, lambda n: (ones(n, n), ones(n, n))),
    "softmax": (activation.softmax, lambda n: (ones(4, 1, n), -1)),
    "layer_norm": (normalization.layer_norm, lambda n: (ones(n, 3), (3,), ones(3), ones(3))),
    "permute": (movement.permute_dims, lambda n: (ones(2, n, 3), (0, 2, 1))),
    "gelu": (activation.gelu, lambda n: (ones(n, 5), "tanh")),
}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_never_come_again_are_filled_in(name: str) -> None:
    function, given = SIZED[name]
    memo = template.memo_of(function)
    for n in (1, 2, 30, 31, 32, 33):
        function(*given(n))
    before = memo.made, memo.filled
    for n in (34, 35, 36, 77, 1000, 2):
        operands = given(n)
        assert function(*operands).node is function.__wrapped__(*operands).node
    assert memo.made == before[0], "the function ran again"
    assert memo.filled - before[1] >= 5


def test_a_size_that_a_function_decides_by_is_a_guard() -> None:
    @template.templated
    def chosen(x: fg.Tensor) -> fg.Tensor:
        n = x.shape[0]
        if n > 10:
            return x * 2
        return x + 1 if n == 7 else x - 1

    for n in (3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 7, 3, 40, 11, 10):
        x = ones(n, 2)
        assert chosen(x).node is chosen.__wrapped__(x).node  # type: ignore[attr-defined]


def test_equal_sizes_and_sizes_of_one_are_no_others() -> None:
    function: Any = products.matmul
    pairs = [(5, 6), (7, 8), (9, 10), (4, 4), (1, 5), (5, 1), (1, 1), (11, 12), (0, 3), (6, 6)]
    for m, n in pairs * 2:
        operands = ones(m, 3), ones(3, n)
        assert function(*operands).node is function.__wrapped__(*operands).node


def test_numbers_that_follow_from_a_size_are_never_those_of_another() -> None:
    """The mean over an axis that varies divides by its size, which is no run-time number here."""
    function: Any = reduction.mean
    for n in range(2, 30):
        x = ones(3, n)
        assert function(x, 1).node is function.__wrapped__(x, 1).node
    memo = template.memo_of(function)
    assert all(of_sizes.tried <= 4 for of_sizes in memo.of_sizes.values())


def test_errors_of_other_sizes_are_those_of_the_function() -> None:
    for n in range(20, 26):
        fg.matmul(ones(2, n), ones(n, 3))
    for _ in range(3):
        with pytest.raises(fg.errors.ShapeError, match="inner sizes"):
            fg.matmul(ones(2, 27), ones(28, 3))


def test_keywords_of_other_libraries_reach_the_template() -> None:
    memo = template.memo_of(activation.softmax)
    for _ in range(2):
        fg.softmax(ones(3, 9), dim=0)  # type: ignore[call-arg]
    before = memo.made
    x = ones(3, 9)
    assert fg.softmax(x, dim=0).node is fg.softmax(x, axis=0).node  # type: ignore[call-arg]
    assert memo.made <= before + 1
    with pytest.raises(TypeError, match="dims"):
        fg.softmax(x, dimension=0)  # type: ignore[call-arg]


def test_a_result_that_nobody_looked_at_is_an_operand() -> None:
    made = fg.jit(lambda x: x * 2)
    for _ in range(4):
        x = made(ones(3, 4))
        assert fg.softmax(x).tolist() == [[0.25] * 4] * 3


def test_another_thread_may_change_operands_while_a_template_is_made() -> None:
    x, ahead = ones(2, 3), [5.0]

    def doubled(a: fg.Tensor) -> fg.Tensor:
        if len(ahead) > 1:
            x[0] = ahead.pop()  # stands for the other thread, which may run at any time
        return a * 2

    made = template.templated(doubled)
    made(x)
    ahead.append(7.0)
    assert made(x).tolist() == [[14.0] * 3, [2.0] * 3]
    x.tolist()
    for _ in range(3):
        assert made(x).tolist() == [[14.0] * 3, [2.0] * 3]


@pytest.mark.skipif(EXTENSION is None, reason="nodes are objects of Python then")
def test_graphs_that_come_and_go_are_not_counted_by_the_collector() -> None:
    """Memory of nodes is kept for the next graph."""

    def build() -> fg.Tensor:
        x = ones(4, 4)
        for _ in range(60):
            x = fg.layer_norm(x, 4) @ x
        return x

    for _ in range(3):
        build()
    runs: list[str] = []

    def note(phase: str, about: dict[str, int]) -> None:
        runs.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        for _ in range(5):
            build()
    finally:
        gc.callbacks.remove(note)
    assert runs.count("start") <= 8
