"""jit with gradients, other transforms, modules, variable sizes and control flow."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, VariableError
from fulgurite.jit.dynamic_shapes import Varying, padded
from fulgurite.runtime.device import get_device


def t(*numbers: float) -> fg.Tensor:
    return fg.Tensor(np.array(numbers, np.float32))


def cube(x: fg.Tensor) -> fg.Tensor:
    return (x**3).sum()


# --- transforms ----------------------------------------------------------------------------------


def test_jit_of_grad() -> None:
    jitted = fg.jit(fg.grad(cube))
    for x in (t(1, 2), t(3, 4)):
        assert jitted(x).tolist() == fg.grad(cube)(x).tolist()
    assert jitted.captured == 1
    both = fg.jit(fg.value_and_grad(lambda x, w: (x @ w).sum(), argnums=(0, 1)))
    value, (dx, dw) = both(t(1, 2), t(3, 4))
    assert (value.item(), dx.tolist(), dw.tolist()) == (11, [3, 4], [1, 2])


def test_grad_of_jit_sees_through_it() -> None:
    jitted = fg.jit(cube)
    jitted(t(1, 2))
    assert fg.grad(jitted)(t(1, 2)).tolist() == [3, 12]
    assert fg.grad(lambda x: fg.grad(jitted)(x).sum())(t(1, 2)).tolist() == [6, 12]
    assert fg.hessian(jitted)(t(1, 2)).tolist() == [[6, 0], [0, 12]]
    assert fg.jvp(jitted, (t(1, 2),), (t(1, 0),))[1].item() == 3
    assert fg.jacobian(fg.jit(lambda x: x * x))(t(1, 2)).tolist() == [[2, 0], [0, 4]]
    assert jitted(t(2, 2)).item() == 16


def test_vmap_and_checkpoint_of_jit_and_jit_of_them() -> None:
    f = fg.jit(lambda x: (x * x).sum())
    x = fg.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert fg.vmap(f)(x).tolist() == [5, 50]
    assert fg.vmap(fg.grad(f))(x).tolist() == (2 * x).tolist()
    mapped = fg.jit(fg.vmap(fg.grad(lambda x: (x * x).sum())))
    assert mapped(x).tolist() == (2 * x).tolist() == mapped(x).tolist()
    block = fg.checkpoint(fg.jit(lambda x: fg.tanh(x) * 2))
    step = fg.jit(fg.grad(lambda x: block(x).sum()))
    assert np.allclose(step(t(0.5)).numpy(), 2 * (1 - np.tanh(0.5) ** 2))


def test_a_tensor_of_a_transform_that_a_closure_holds() -> None:
    def loss(w: fg.Tensor) -> Any:
        inner = fg.jit(lambda: (w * w).sum())
        return inner()

    assert fg.grad(loss)(t(1, 2)).tolist() == [2, 4]
    assert fg.vmap(lambda w: fg.jit(lambda: w * 2)())(t(1, 2)).tolist() == [2, 4]


def test_custom_gradients_inside() -> None:
    scale = 5.0

    @fg.custom_vjp
    def clipped(x: fg.Tensor) -> fg.Tensor:
        return x

    clipped.defgrad(lambda g, y, x: (g * scale,))
    jitted = fg.jit(fg.grad(lambda x: (clipped(x) * 2).sum()))
    assert jitted(t(1, 1)).tolist() == [10, 10]
    scale = 7.0
    assert jitted(t(1, 1)).tolist() == [14, 14]


def test_loops_and_choices_inside_and_around() -> None:
    @fg.jit
    def f(x: fg.Tensor) -> Any:
        total, _ = fg.scan(lambda s, row: (s + row, None), fg.Tensor(0.0), x)
        return fg.cond(total > 3, lambda v: v * 2, lambda v: -v, total)

    assert [f(t(1, n)).item() for n in (1, 3, 5)] == [-2, 8, 12] and f.captured == 1
    inner = fg.jit(lambda s: s * 2)
    looped = fg.scan(lambda s, _: (inner(s), None), fg.Tensor(1.0), length=5)
    assert looped[0].item() == 32


# --- the tape ------------------------------------------------------------------------------------


def train(step: Callable[..., Any], w: fg.Tensor) -> list[list[float]]:
    return [step(t(1, 2), w).tolist() for _ in range(4)] + [w.tolist()]


def test_a_step_with_backward_inside() -> None:
    def step(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        loss = ((x - w) ** 2).sum()
        loss.backward()
        assert w.grad is not None
        with fg.no_grad():
            w -= w.grad * 0.25
        w.grad = None
        return loss.detach()

    results = []
    for make in (step, fg.jit(step)):
        w = fg.Tensor(np.zeros(2, np.float32), requires_grad=True)
        results.append(train(make, w))
        assert w.requires_grad and w.grad is None
    assert results[0] == results[1]


def test_gradients_that_add_up() -> None:
    def step(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        loss = (x * w).sum()
        loss.backward()
        return loss

    for make in (step, fg.jit(step)):
        w = fg.Tensor(np.ones(2, np.float32), requires_grad=True)
        for n in range(1, 4):
            make(t(1, 2), w)
            assert w.grad is not None and w.grad.tolist() == [n, 2 * n]
        w.grad = None
        make(t(1, 2), w)
        assert w.grad is not None and w.grad.tolist() == [1, 2]


def test_a_result_that_backward_needs_is_not_cut_off() -> None:
    jitted = fg.jit(lambda x, w: (x * w * w).sum())
    w = fg.Tensor(np.ones(2, np.float32), requires_grad=True)
    for n in range(1, 4):
        jitted(t(1, 2), w).backward()
        assert w.grad is not None and w.grad.tolist() == [2 * n, 4 * n]
    with fg.no_grad():
        assert jitted(t(1, 2), w).item() == 3
        assert not jitted(t(1, 2), w).requires_grad
    h = w * 2  # on the tape, but no leaf
    jitted(t(1, 0), h).backward()
    assert w.grad is not None and w.grad.tolist() == [6 + 8, 12]


def test_leaves_made_inside() -> None:
    @fg.jit
    def f(x: fg.Tensor) -> Any:
        y = (x * 2).detach().requires_grad_()
        (y * y).sum().backward()
        return y.grad

    assert f(t(1, 2)).tolist() == [4, 8] and f(t(2, 2)).tolist() == [8, 8]


# --- modules -------------------------------------------------------------------------------------

nn = pytest.importorskip("fulgurite.nn")


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        self.w = nn.Parameter(np.ones((2, 2), np.float32))
        self.rate = 0.5
        self.parts: list[Any] = [Scale(2.0), Scale(3.0)]
        self.register_buffer("count", fg.zeros(()))

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        x = x @ self.w
        for part in self.parts:
            x = part(x)
        if self.training:
            self.count += 1
            x = fg.dropout(x, self.rate, training=True)
        return x


class Scale(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        return x * self.factor


def test_a_module_in_all_its_states() -> None:
    net, x = Net(), fg.ones((1, 2)).realize()
    call = fg.jit(net)
    given = fg.jit(lambda net, x: net(x))

    def check() -> None:
        results = []
        for make in (net, call, lambda x: given(net, x)):
            fg.random.seed(5)
            before = net.count.item()
            with fg.no_grad():
                results.append((make(x).tolist(), make(x).tolist(), net.count.item() - before))
        assert results[0] == results[1] == results[2]

    check()
    net.eval()
    check()
    with fg.no_grad():
        net.w += 1
    check()
    net.w = nn.Parameter(np.full((2, 2), 3, np.float32))
    check()
    net.parts[0].factor = 10.0
    check()
    net.parts.append(Scale(-1.0))
    check()
    net.parts[1] = Scale(0.5)
    check()
    net.train()
    check()
    net.rate = 0.1
    check()
    remove = net.register_forward_hook(lambda module, args, result: result * 100)
    check()
    remove()
    check()


def test_a_module_is_captured_once_while_nothing_changes() -> None:
    net = Net()
    net.eval()
    call = fg.jit(net)
    with fg.no_grad():
        for i in range(4):
            call(fg.full((1, 2), float(i)))
    assert call.captured == 1


# --- sizes that vary -----------------------------------------------------------------------------


def test_a_ragged_last_batch_costs_one_more_capture() -> None:
    jitted = fg.jit(lambda x: (x * 2).sum(axis=0))
    for _ in range(2):
        for rows in (8, 8, 8, 3):
            x = np.ones((rows, 2), np.float32)
            assert jitted(fg.Tensor(x)).tolist() == [2 * rows, 2 * rows]
    assert jitted.captured == 2


def test_sizes_that_are_variables_are_captured_once() -> None:
    n = fg.Var("n", 1, 16)
    jitted = fg.jit(lambda x, y: ((x * 2).sum(axis=0), x + y), dynamic={"x": {0: n}, "y": {0: n}})
    for rows in (3, 16, 1, 7):
        x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        total, both = jitted(fg.Tensor(x), fg.Tensor(x + 1))
        assert total.tolist() == (x * 2).sum(axis=0).tolist()
        assert both.tolist() == (2 * x + 1).tolist() and both.shape == (rows, 2)
    assert jitted.captured == 1
    with pytest.raises(VariableError, match="one call"):
        jitted(fg.ones((3, 2)), fg.ones((4, 2)))
    with pytest.raises(VariableError, match=r"1\.\.16"):
        jitted(fg.ones((17, 2)), fg.ones((17, 2)))
    other = jitted(fg.ones((5, 3)), fg.ones((5, 3)))[0]  # other sizes are captured as ever
    assert other.tolist() == [10] * 3 and len(jitted.captures) == 2


def test_memory_beyond_a_variable_size_is_written() -> None:
    device, n = get_device("cpu"), fg.Var("n", 1, 5)
    ones, how = np.ones((3, 4), np.float32), Varying(((0, n.node),), (3, 4))
    found = padded(device, device.from_host(ones), fg.Tensor(ones).node, how)
    whole = device.to_host(found, (5, 4), fg.float32)
    np.testing.assert_array_equal(whole, np.pad(ones, ((0, 2), (0, 0))))


def test_what_dynamic_may_be() -> None:
    for wrong in (3, {"x": 5}, {"x": {0: 7}}, {2.0: {0: fg.Var("n", 1, 2)}}):
        with pytest.raises(ArgumentError, match="dynamic"):
            fg.jit(lambda x: x, dynamic=wrong)
    rows = fg.jit(lambda x: x * 2, dynamic={0: {-1: fg.Var("m", 1, 8)}})
    assert [rows(fg.ones((2, k))).shape for k in (1, 5)] == [(2, 1), (2, 5)]
    assert rows.captured == 1


# --- cost ----------------------------------------------------------------------------------------


def python_calls(work: Callable[[], Any]) -> int:
    """How many Python and C functions a call enters, while nothing is collected."""
    count = 0
    gc.collect()

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def test_a_replay_makes_no_python_call_for_a_kernel() -> None:
    counts, kernels = [], []
    with fg.config(device="cpu", fuse=False):
        x = fg.ones(64).realize()
        for ops in (2, 20, 60):

            def f(x: fg.Tensor, ops: int = ops) -> fg.Tensor:
                y = x
                for i in range(ops):
                    y = y * 2 + x if i % 2 else fg.tanh(y)
                return y

            jitted = fg.jit(f)
            for _ in range(3):
                jitted(x)
            kernels.append(len(jitted.captures[0].replay.plan()[0].plan.schedule.items))
            counts.append(python_calls(partial(jitted, x)))
    assert kernels[0] < kernels[1] < kernels[2]
    assert counts[0] == counts[1] == counts[2] < 40


def test_a_step_that_assigns_makes_no_python_call_for_a_kernel() -> None:
    counts = []
    with fg.config(device="cpu", fuse=False):
        for depth in (2, 12):
            w = (fg.ones((8, 8)) * 0.1).realize()

            def step(x: fg.Tensor, rate: float, w: fg.Tensor = w, depth: int = depth) -> None:
                def loss(w: fg.Tensor) -> fg.Tensor:
                    y = x
                    for _ in range(depth):
                        y = fg.tanh(y @ w)
                    return y.sum()

                w -= fg.grad(loss)(w) * rate

            jitted = fg.jit(step)
            x = fg.ones((4, 8)).realize()
            for _ in range(3):
                jitted(x, 0.1)
            counts.append(python_calls(partial(jitted, x, 0.1)))
    assert counts[0] == counts[1]


def test_a_hundred_eager_dropout_steps_miss_the_schedule_once() -> None:
    x = fg.ones(1000).realize()
    fg.clear_caches()
    before = fg.cache_stats()["schedule"]["misses"]
    seen = {fg.dropout(x, 0.5, training=True).sum().item() for _ in range(100)}
    assert fg.cache_stats()["schedule"]["misses"] - before == 1 and len(seen) > 5


# --- a whole step --------------------------------------------------------------------------------


def adam_steps(jitted: bool, steps: int = 6) -> tuple[list[float], dict[str, Any]]:
    """Losses and parameters of a small network after some steps of Adam."""
    random = np.random.default_rng(0)
    sizes = (12, 16, 16, 4)
    p = {}
    for i, (a, b) in enumerate(pairwise(sizes)):
        p[f"w{i}"] = fg.Tensor(random.standard_normal((a, b)).astype(np.float32) / 4)
        p[f"b{i}"] = fg.Tensor(np.zeros(b, np.float32))
    m, v = ({k: fg.Tensor(np.zeros(w.shape, np.float32)) for k, w in p.items()} for _ in range(2))
    x = fg.Tensor(random.standard_normal((32, 12)).astype(np.float32))
    y = fg.Tensor(random.integers(0, 4, 32).astype(np.int32))

    def loss(p: dict[str, fg.Tensor]) -> fg.Tensor:
        h = x
        for i in range(3):
            h = (fg.relu(h) if i else h) @ p[f"w{i}"] + p[f"b{i}"]
        return fg.cross_entropy(h, y)

    def step(number: int, rate: float) -> Any:
        value, g = fg.value_and_grad(loss)(p)
        c1, c2 = 1 / (1 - 0.9**number), 1 / (1 - 0.999**number)
        for k in p:
            m[k].assign(m[k] * 0.9 + g[k] * 0.1)
            v[k].assign(v[k] * 0.999 + g[k] * g[k] * 0.001)
            p[k].assign(p[k] - rate * (m[k] * c1) / (fg.sqrt(v[k] * c2) + 1e-8))
        return value

    run: Any = fg.jit(step) if jitted else step
    losses = [run(i, 0.01 / i).item() for i in range(1, steps + 1)]
    if jitted:
        assert run.captured == 1
    return losses, {k: w.numpy() for k, w in p.items()}


def test_a_jitted_adam_step_is_the_same_in_every_run_and_near_eager() -> None:
    first, second, eager = adam_steps(True), adam_steps(True), adam_steps(False)
    assert first[0] == second[0]
    assert all([(first[1][k] == second[1][k]).all() for k in first[1]])
    assert np.allclose(first[0], eager[0], rtol=0, atol=1e-5)
    assert all([np.allclose(first[1][k], eager[1][k], rtol=0, atol=1e-5) for k in first[1]])
