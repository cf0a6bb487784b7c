"""Tests of autodiff/transforms.py: vmap, jvp, jacobian, hessian, checkpoint; customvjp.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.node import live_count, toposort
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import REMAT
from fulgurite.errors import ArgumentError, AxisError, GradientError, ShapeError
from fulgurite.tensor import wrap
from tests.core.ops.cases import CASES, ELEMENTWISE, Case

NO_EXAMPLES = {"assign": "memory is not part of an example", "view": "of memory only",
               "copy": "to a device that does not exist"}  # fmt: skip


def x64(*shape: int, seed: int = 0) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(seed).normal(size=shape))


def same(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


# --- vmap: every op ------------------------------------------------------------------------------


def _tensors(arrays: tuple[Array, ...]) -> list[fg.Tensor]:
    return [fg.Tensor(a) for a in arrays]


@pytest.mark.parametrize("examples", [3, 1, 0])
@pytest.mark.parametrize(
    "case", [c for c in (*ELEMENTWISE, *CASES) if c.name not in NO_EXAMPLES], ids=str
)
def test_a_batch_of_every_op_is_a_loop_whatever_is_shared(case: Case, examples: int) -> None:
    random = np.random.default_rng(examples)
    drawn = [case.draw(random) for _ in range(max(examples, 1))]
    count = len(drawn[0])

    def function(*tensors: fg.Tensor) -> fg.Tensor:
        return wrap(case.build(*[t.node for t in tensors]))

    ways = [axes for axes in itertools.product((0, None), repeat=min(count, 3)) if any_axis(axes)]
    for axes in ways:
        full = (*axes, *[0] * (count - len(axes)))
        rows = [tuple(d[i] if a == 0 else drawn[0][i] for i, a in enumerate(full)) for d in drawn][
            :examples
        ]
        stacked = [
            np.stack([d[i] for d in drawn])[:examples] if a == 0 else drawn[0][i]
            for i, a in enumerate(full)
        ]
        together = fg.vmap(function, in_axes=full)(*map(fg.Tensor, stacked)).numpy()
        single = function(*_tensors(drawn[0]))
        assert together.shape == (examples, *single.shape)
        if rows:
            same(together, np.stack([function(*_tensors(row)).numpy() for row in rows]), 1e-10)


def any_axis(axes: tuple[int | None, ...]) -> bool:
    return any(a is not None for a in axes)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("op", [OPS[n] for n in ("add", "exp", "where", "lt")], ids=str)
def test_examples_of_hostile_shapes(op: Op, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    arrays: list[Array] = [random.normal(size=(4, *shape)) for _ in range(op.arity or 1)]
    if op.name == "where":
        arrays[0] = arrays[0] > 0

    def function(*tensors: fg.Tensor) -> fg.Tensor:
        return wrap(op(*[t.node for t in tensors]))

    together = fg.vmap(function)(*map(fg.Tensor, arrays))
    same(together.numpy(), function(*map(fg.Tensor, arrays)).numpy())


FUNCTIONS: dict[str, tuple[Callable[[fg.Tensor], Any], tuple[int, ...]]] = {
    "softmax": (lambda x: fg.softmax(x, axis=-1), (3, 4)),
    "layer_norm": (lambda x: fg.layer_norm(x, (4,)), (3, 4)),
    "matmul": (lambda x: x @ x.mT, (3, 4)),
    "einsum": (lambda x: fg.einsum("ij,kj->ik", x, x), (3, 4)),
    "sort": (lambda x: fg.sort(x, axis=0), (3, 4)),
    "argmax": (lambda x: fg.argmax(x, axis=1), (3, 4)),
    "topk": (lambda x: fg.topk(x, 2).values, (3, 4)),
    "cumsum": (lambda x: fg.cumulative_sum(x, axis=0), (3, 4)),
    "cumprod": (lambda x: fg.cumulative_prod(x, axis=1), (3, 4)),
    "indexing": (lambda x: x[::-1, 1:3], (3, 4)),
    "fancy": (lambda x: x[fg.Tensor([2, 0]), fg.Tensor([1, 1])], (3, 4)),
    "mask": (lambda x: fg.where(x > 0, x, -x), (3, 4)),
    "concat": (lambda x: fg.concat([x, x * 2], axis=1), (3, 4)),
    "roll": (lambda x: fg.roll(x, 1, axis=0), (3, 4)),
    "pad": (lambda x: fg.pad(x, ((1, 0), (0, 2))), (3, 4)),
    "conv1d": (lambda x: fg.conv1d(x.reshape(1, 3, 4), fg.ones((2, 3, 2), fg.float64)), (3, 4)),
    "max_pool": (lambda x: fg.max_pool1d(x.reshape(1, 3, 4), 2), (3, 4)),
    "var": (lambda x: fg.var(x, axis=0), (3, 4)),
    "scatter": (
        lambda x: fg.scatter_add(x, 0, fg.Tensor([[0, 1, 1, 0]]), fg.ones((1, 4), fg.float64)),
        (3, 4)),
    "constant": (lambda x: fg.ones(3, fg.float64), (3, 4)),
    "grad": (fg.grad(lambda x: (fg.softmax(x) ** 2).sum()), (3, 4)),
    "hessian": (fg.hessian(lambda x: (x ** 3).sum()), (3,)),
    "scalar": (lambda x: x * 2, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_of_a_function_is_a_loop(name: str) -> None:
    function, shape = FUNCTIONS[name]
    x = x64(5, *shape)
    want = np.stack([function(x[i]).numpy() for i in range(5)])
    same(fg.vmap(function)(x).numpy(), want, 1e-10)


# --- vmap: axes and trees ------------------------------------------------------------------------


@given(st.integers(-3, 2), st.integers(-3, 2))
def test_the_batch_axis_comes_from_and_goes_to_any_place(start: int, end: int) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    got = fg.vmap(lambda row: row * 2, in_axes=start, out_axes=end)(fg.Tensor(x)).numpy()
    np.testing.assert_array_equal(got, np.moveaxis(np.moveaxis(x, start, 0) * 2, 0, end))


def test_batches_nest_in_any_order() -> None:
    a, b = x64(3, seed=1), x64(4, seed=2)
    table = fg.vmap(fg.vmap(lambda x, y: x * y - y, in_axes=(None, 0)), in_axes=(0, None))(a, b)
    same(table.numpy(), a.numpy()[:, None] * b.numpy() - b.numpy())
    turned = fg.vmap(fg.vmap(lambda x, y: x * y - y, in_axes=(0, None)), in_axes=(None, 0))(a, b)
    same(turned.numpy(), table.numpy().T)
    deep = fg.vmap(fg.vmap(fg.vmap(lambda x: x.sum())))(x64(2, 3, 4, 5))
    same(deep.numpy(), x64(2, 3, 4, 5).numpy().sum(-1))


def test_trees_prefixes_keywords_and_things_that_are_no_tensors() -> None:
    params = {"w": x64(3, 2), "b": x64(2, 3)}
    x = x64(3)

    def f(
        p: dict[str, fg.Tensor], x: fg.Tensor, scale: float, *, power: int = 1, shift: Any
    ) -> Any:
        return {"y": (p["w"] + p["b"]) * x * scale**power + shift, "kept": p["b"]}

    axes = ({"w": 0, "b": 1}, 0, None)
    got = fg.vmap(f, in_axes=axes, out_axes={"y": 1, "kept": 0})(
        params, x, 2.0, power=2, shift=np.arange(3.0)
    )
    want = (params["w"].numpy() + params["b"].numpy().T) * x.numpy()[:, None] * 4
    same(got["y"].numpy(), (want + np.arange(3.0)[:, None]).T)
    same(got["kept"].numpy(), params["b"].numpy().T)


def test_a_result_that_no_example_changes_is_repeated_or_kept_once() -> None:
    w = x64(2)
    both = fg.vmap(lambda x: (x + w, w), out_axes=(0, None))(x64(3, 2))
    assert both[0].shape == (3, 2) and both[1].node is w.node
    assert fg.vmap(lambda x: w)(x64(3, 2)).shape == (3, 2)
    constant: Any = lambda x: 1.5  # noqa: E731
    assert fg.vmap(constant)(x64(3, 2)).tolist() == [1.5] * 3


NOTHING: Any = max
WRONG_AXES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no batch": (lambda: fg.vmap(lambda x: x, in_axes=None)(x64(3)), ArgumentError, "no argument"),
    "sizes": (lambda: fg.vmap(fg.add)(x64(3), x64(4)), ShapeError, "holds (3,) examples"),
    "axis": (lambda: fg.vmap(fg.abs, in_axes=2)(x64(3, 2)), AxisError, "there is no axis 2"),
    "0-d": (lambda: fg.vmap(fg.abs)(x64()), AxisError, "there is no axis 0"),
    "too few": (lambda: fg.vmap(fg.add, in_axes=(0,))(x64(3), x64(3)), ArgumentError, "1 entries"),
    "form": (lambda: fg.vmap(NOTHING, in_axes=({"a": 0},))([x64(3)]), ArgumentError, "in_axes is"),
    "out": (lambda: fg.vmap(fg.abs, out_axes=None)(x64(3)), ArgumentError, "differs by example"),
    "out form": (lambda: fg.vmap(fg.abs, out_axes=(0, 0))(x64(3)), ArgumentError, "out_axes is"),
    "value": (lambda: fg.vmap(lambda x: x if x > 0 else -x)(x64(3)), ArgumentError, "not known"),
    "item": (lambda: fg.vmap(lambda x: x.item())(x64(3)), ArgumentError, "not known"),
    "no function": (lambda: fg.vmap(3), ArgumentError, "not a function"),  # type: ignore[arg-type]
    "randomness": (lambda: fg.vmap(fg.abs, randomness="x"), ArgumentError, "randomness is 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_AXES)
def test_what_vmap_cannot_do_is_a_clear_error(what: str) -> None:
    call, kind, text = WRONG_AXES[what]
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_no_grad_inside_a_batch_cuts_the_gradient_of_examples() -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        with fg.no_grad():
            y = x * x
        return y * x

    x = x64(3)
    same(fg.grad(lambda x: fg.vmap(f)(x).sum())(x).numpy(), x.numpy() ** 2)


def test_a_batched_product_with_shared_weights_is_one_contraction() -> None:
    x, w = x64(16, 8).realize(), x64(8, 8).realize()
    report = fg.explain(fg.vmap(lambda x: x @ w)(x))
    assert [kernel.kind for kernel in report.kernels] == ["contract"]


# --- gradients of batches, batches of gradients --------------------------------------------------


def network(params: list[fg.Tensor], x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    hidden = fg.tanh(x @ params[0] + params[1])
    logits = hidden @ params[2] + params[3]
    return fg.logsumexp(logits) - logits[y]


def test_gradients_of_every_example_equal_a_loop() -> None:
    params = [x64(4, 8, seed=1), x64(8, seed=2), x64(8, 3, seed=3), x64(3, seed=4)]
    x, y = x64(5, 4, seed=5), fg.Tensor([0, 2, 1, 1, 0])
    slope = fg.grad(network)
    together = fg.vmap(slope, in_axes=(None, 0, 0))(params, x, y)
    for i in range(5):
        for whole, one in zip(together, slope(params, x[i], y[i]), strict=True):
            same(whole[i].numpy(), one.numpy(), 1e-10)
    summed = fg.grad(lambda p: fg.vmap(network, in_axes=(None, 0, 0))(p, x, y).sum())(params)
    for whole, total in zip(together, summed, strict=True):
        same(whole.sum(axis=0).numpy(), total.numpy(), 1e-10)


# --- forward mode and all derivatives ------------------------------------------------------------


def test_jvp_agrees_with_vjp_and_finite_differences_on_trees() -> None:
    def f(p: dict[str, fg.Tensor], x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        return fg.softmax(x @ p["w"], axis=-1), (x * p["w"].sum()).max()

    p, x = {"w": x64(3, 2)}, x64(4, 3, seed=1)
    dp, dx = {"w": x64(3, 2, seed=2)}, x64(4, 3, seed=3)
    value, way = fg.jvp(f, (p, x), (dp, dx))
    h = 1e-6
    ends = [f({"w": p["w"] + dp["w"] * s}, x + dx * s) for s in (h, -h)]
    for got, a, b in zip(way, *ends, strict=True):
        same(got.numpy(), (a.numpy() - b.numpy()) / (2 * h), 1e-7)
    _, pull = fg.vjp(f, p, x)
    seeds = (x64(4, 2, seed=4), x64(seed=5))
    back = pull(seeds)
    forward = sum(float((a * b).sum().item()) for a, b in zip(way, seeds, strict=True))
    reverse = float((back[0]["w"] * dp["w"]).sum().item() + (back[1] * dx).sum().item())
    assert forward == pytest.approx(reverse)
    same(value[0].numpy(), f(p, x)[0].numpy())


def test_jvp_of_whole_numbers_and_still_arguments() -> None:
    x, n = x64(3), fg.Tensor([1, 2, 3])
    _, way = fg.jvp(lambda x, n: x * n.astype(fg.float64), (x, n), (None, None))
    assert not way.numpy().any()
    with pytest.raises(ShapeError, match="a tangent of shape"):
        fg.jvp(fg.exp, (x,), (x64(4),))
    with pytest.raises(ArgumentError, match="give trees of one form"):
        fg.jvp(fg.exp, (x,), ((x, x),))


def test_derivatives_nest_without_confusing_their_variables() -> None:
    """d/dx of x * d/dy (x + y) is 1: what moves inside is not what moves outside."""

    def inner(x: fg.Tensor) -> Any:
        return x * fg.jvp(lambda y: x + y, (fg.Tensor(1.0),), (fg.Tensor(1.0),))[1]

    assert fg.jvp(inner, (fg.Tensor(1.0),), (fg.Tensor(1.0),))[1].item() == 1.0
    assert fg.grad(inner)(fg.Tensor(1.0)).item() == 1.0
    x = x64()
    ways: tuple[Callable[..., Any], ...] = (_slope_by_jvp, fg.grad)
    for outer, within in itertools.product(ways, repeat=2):
        same(outer(within(lambda x: x**4))(x).numpy(), 12 * x.numpy() ** 2)


def _slope_by_jvp(f: Callable[[fg.Tensor], fg.Tensor]) -> Callable[[fg.Tensor], fg.Tensor]:
    def slope(x: fg.Tensor) -> fg.Tensor:
        found: fg.Tensor = fg.jvp(f, (x,), (fg.ones_like(x),))[1]
        return found

    return slope


def test_both_modes_give_the_same_jacobian_of_trees() -> None:
    def f(p: dict[str, fg.Tensor], x: fg.Tensor, n: int) -> Any:
        return {"a": fg.tanh(x @ p["w"]) * n, "b": (x * x).sum()}

    p, x = {"w": x64(3, 2), "i": fg.Tensor([1])}, x64(4, 3, seed=1)
    found = [fg.jacobian(f, argnums=(0, 1), mode=m)(p, x, 2) for m in ("reverse", "forward")]
    assert found[0]["a"][0]["w"].shape == (4, 2, 3, 2)
    assert found[0]["a"][1].shape == (4, 2, 4, 3) and found[0]["b"][1].shape == (4, 3)
    for name in ("a", "b"):
        same(found[0][name][0]["w"].numpy(), found[1][name][0]["w"].numpy(), 1e-10)
        same(found[0][name][1].numpy(), found[1][name][1].numpy(), 1e-10)
        assert found[0][name][0]["i"] is None and found[1][name][0]["i"] is None
    same(found[0]["b"][1].numpy(), 2 * x.numpy())


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize(("shape", "out"), [((), ()), ((0,), (0,)), ((3,), ()), ((), (2,))])
def test_jacobians_of_hostile_shapes(
    mode: str, shape: tuple[int, ...], out: tuple[int, ...]
) -> None:
    def f(x: fg.Tensor) -> fg.Tensor:
        return fg.broadcast_to(x.sum() * 2, out)

    got = fg.jacobian(f, mode=mode)(x64(*shape))
    assert got.shape == (*out, *shape)
    np.testing.assert_array_equal(got.numpy(), np.full((*out, *shape), 2.0))


def test_jacobian_refuses_what_has_none() -> None:
    with pytest.raises(GradientError, match="int32 result has no derivative"):
        fg.jacobian(lambda x: x.astype(fg.int32))(x64(2))
    with pytest.raises(ArgumentError, match="no mode"):
        fg.jacobian(fg.exp, mode="sideways")
    with pytest.raises(ArgumentError, match="no argument 3"):
        fg.jacobian(fg.exp, argnums=3)(x64(2))


SMOOTH = [
    op for op in OPS.values()
    if op.family == "elementwise" and op.smooth and op.grad and "f" in op.kinds and op.arity == 1
]  # fmt: skip


@pytest.mark.parametrize("op", SMOOTH, ids=str)
def test_second_derivatives_of_smooth_ops_agree_in_all_modes_and_with_differences(op: Op) -> None:
    low, high = op.domain
    middle, width = (low + high) / 2, (high - low) / 3
    x = fg.Tensor(np.random.default_rng(0).uniform(middle - width, middle + width, 4))

    def f(x: fg.Tensor) -> fg.Tensor:
        return wrap(op(x.node, arg=1 if op.name == "polygamma" else None))

    def total(x: fg.Tensor) -> fg.Tensor:
        return f(x).sum()

    forward = fg.hessian(total)(x).numpy()
    reverse = fg.jacobian(fg.grad(total))(x).numpy()
    same(forward, reverse, 1e-9)
    h = 1e-5
    ends = [fg.grad(total)(x + s).numpy() for s in (h, -h)]
    same(np.diag(forward), (ends[0] - ends[1]) / (2 * h), 1e-5)
    assert not (forward - np.diag(np.diag(forward))).any()


def test_third_derivatives() -> None:
    third = fg.jacobian(fg.hessian(lambda x: (x**4).sum()))(fg.Tensor([1.0, 2.0]))
    assert third.shape == (2, 2, 2) and third[1, 1, 1].item() == pytest.approx(48.0)


def test_the_hessian_of_several_arguments() -> None:
    a, b = x64(2, seed=1), x64(3, seed=2)
    blocks = fg.hessian(lambda a, b: (a.sum() ** 2) * (b**2).sum(), argnums=(0, 1))(a, b)
    assert blocks[0][1].shape == (2, 3) and blocks[1][0].shape == (3, 2)
    same(blocks[0][1].numpy(), blocks[1][0].numpy().T)
    same(blocks[0][0].numpy(), np.full((2, 2), 2 * (b.numpy() ** 2).sum()))


# --- checkpoint ----------------------------------------------------------------------------------


def deep(depth: int, checkpointed: bool) -> tuple[list[fg.Tensor], Callable[..., fg.Tensor]]:
    """Residual blocks whose hidden values are wider than what passes between them."""
    random = np.random.default_rng(0)
    weights = [fg.Tensor(random.normal(size=(8, 64)).astype(np.float32) / 8) for _ in range(depth)]
    x = fg.Tensor(random.normal(size=(128, 8)).astype(np.float32))

    def block(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return x + fg.tanh(fg.tanh(x @ w) @ w.mT)

    step = fg.checkpoint(block) if checkpointed else block

    def loss(weights: list[fg.Tensor]) -> fg.Tensor:
        h = x
        for w in weights:
            h = step(h, w)
        return (h * h).mean()

    return weights, loss


def test_checkpoint_lowers_the_peak_and_changes_no_bit_of_a_gradient() -> None:
    peaks, grads = [], []
    for checkpointed in (False, True):
        weights, loss = deep(8, checkpointed)
        value, slopes = fg.value_and_grad(loss)(weights)
        report = fg.explain(value, *slopes)
        peaks.append(report.peak_bytes)
        assert not [k for k in report.kernels if k.kind == "host"]
        fg.realize(value, *slopes)
        grads.append([value.numpy(), *[s.numpy() for s in slopes]])
    assert peaks[1] < 0.6 * peaks[0]
    for plain, again in zip(*grads, strict=True):
        np.testing.assert_array_equal(plain, again)


def test_the_peak_with_checkpoints_grows_by_what_passes_between_blocks_alone() -> None:
    def peak(depth: int, checkpointed: bool) -> int:
        weights, loss = deep(depth, checkpointed)
        value, slopes = fg.value_and_grad(loss)(weights)
        return fg.explain(value, *slopes).peak_bytes

    passed, weight = 128 * 8 * 4, 8 * 64 * 4
    assert peak(12, True) - peak(6, True) <= 6 * (passed + 2 * weight) * 1.1
    assert peak(12, False) - peak(6, False) > 2 * (peak(12, True) - peak(6, True))


def test_a_checkpoint_makes_its_own_second_computation() -> None:
    w = x64(3, 3)
    slope = fg.grad(lambda x: fg.checkpoint(lambda x: fg.tanh(x @ w))(x).sum())(x64(2, 3))
    assert [n for n in toposort([slope.node]) if n.op is REMAT]
    plain = fg.checkpoint(lambda x: fg.tanh(x @ w))(x64(2, 3))
    assert "override" not in {n.op.name for n in toposort([plain.node])}  # nobody asks for it


def test_a_checkpoint_gives_gradients_to_what_it_closes_over() -> None:
    x, w, b = x64(4, 3), x64(3, 3, seed=1), x64(3, seed=2)

    def loss(w: fg.Tensor, b: fg.Tensor, mark: Callable[..., Any]) -> Any:
        scaled = w * 2  # made outside, used inside
        return mark(lambda x: fg.sin(x @ scaled + b) @ w)(x).sum()

    for i in (0, 1):
        plain = fg.grad(lambda w, b: loss(w, b, lambda f: f), argnums=i)(w, b)
        again = fg.grad(lambda w, b: loss(w, b, fg.checkpoint), argnums=i)(w, b)
        np.testing.assert_array_equal(plain.numpy(), again.numpy())


def test_a_checkpoint_draws_its_random_numbers_once() -> None:
    x = x64(50)

    def f(x: fg.Tensor) -> fg.Tensor:
        return fg.dropout(fg.sin(x), 0.5) * x

    def slope(function: Callable[..., Any]) -> tuple[Array, Array]:
        fg.random.seed(1)
        value, got = fg.value_and_grad(lambda x: function(x).sum())(x)
        fg.realize(value, got)
        return value.numpy(), got.numpy()

    for plain, again in zip(slope(f), slope(fg.checkpoint(f)), strict=True):
        np.testing.assert_array_equal(plain, again)


def test_what_is_computed_twice_within_one_kernel_has_both_its_results() -> None:
    """The value, and its second computation: one node inside the kernel that computes both."""
    x = np.random.default_rng(0).standard_normal((3, 6, 4))

    def largest(x: fg.Tensor) -> fg.Tensor:
        return x.reshape((3, 2, 3, 4)).swapaxes(2, 1).max()

    with fg.config(tier="native", poison=True):
        value, slope = fg.value_and_grad(fg.checkpoint(largest))(fg.Tensor(x))
        fg.realize(value, slope)
    assert value.item() == x.max()
    assert np.array_equal(slope.numpy(), x == x.max())


def test_checkpoints_nest_and_take_trees_integers_and_several_results() -> None:
    p = {"w": x64(3, 3), "b": x64(3, seed=1)}
    index = fg.Tensor([2, 0])

    def f(p: dict[str, fg.Tensor], i: fg.Tensor, power: int = 1) -> Any:
        h = fg.tanh(p["w"])
        inner = fg.checkpoint(lambda h: (fg.sin(h) @ h, h * 2))
        a, b = inner(h)
        return {"rows": (a * b)[i] ** power, "bias": p["b"] * 2, "where": fg.argmax(a)}

    def loss(p: dict[str, fg.Tensor], f: Callable[..., Any]) -> Any:
        out = f(p, index, power=2)
        return out["rows"].sum() * out["bias"].sum()

    plain = fg.grad(lambda p: loss(p, f))(p)
    again = fg.grad(lambda p: loss(p, fg.checkpoint(f)))(p)
    for name in p:
        same(again[name].numpy(), plain[name].numpy())


def test_checkpoints_under_every_other_transform() -> None:
    w, x, way = x64(3, 3), x64(4, 3, seed=1), x64(3, 3, seed=2)

    def f(w: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
        return (fg.tanh(x @ w) ** 2).sum()

    g = fg.checkpoint(f)
    same(fg.hessian(g)(w, x).numpy(), fg.hessian(f)(w, x).numpy(), 1e-10)
    same(fg.jacobian(fg.grad(g))(w, x).numpy(), fg.hessian(f)(w, x).numpy(), 1e-10)
    same(fg.jvp(g, (w, x), (way, None))[1].numpy(), fg.jvp(f, (w, x), (way, None))[1].numpy())
    each = fg.vmap(fg.grad(g), in_axes=(None, 0))(w, x)
    same(each.numpy(), fg.vmap(fg.grad(f), in_axes=(None, 0))(w, x).numpy(), 1e-10)
    total = fg.grad(lambda w: fg.vmap(g, in_axes=(None, 0))(w, x).sum())(w)
    same(total.numpy(), each.numpy().sum(0), 1e-10)


def test_backward_goes_through_a_checkpoint() -> None:
    w = fg.Tensor(np.ones((3, 3)), requires_grad=True)
    x = x64(2, 3)
    fg.checkpoint(lambda x: fg.tanh(x @ w))(x).sum().backward()
    want = fg.grad(lambda w: fg.tanh(x @ w).sum())(fg.ones((3, 3), fg.float64))
    assert w.grad is not None
    same(w.grad.numpy(), want.numpy())


def test_dropping_the_results_of_transforms_frees_their_graphs() -> None:
    x = x64(4, 3)
    w = x64(3, 3)
    before = live_count()
    found = fg.vmap(fg.value_and_grad(fg.checkpoint(lambda x: fg.tanh(x @ w).sum())))(x)
    table = fg.hessian(lambda x: fg.exp(x).sum())(w[0])
    del found, table
    assert live_count() == before


# --- gradients of one's own ----------------------------------------------------------------------


@fg.custom_vjp
def cube(x: fg.Tensor, scale: float = 1.0) -> fg.Tensor:
    """x ** 3, whose gradient is a lie that tests can see."""
    return x**3 * scale


cube.defvjp(
    lambda x, scale: (x**3 * scale, (x, scale, "more")),
    lambda kept, g: (g * kept[0] * 100 * kept[1], None),
)


def test_a_custom_gradient_is_used_and_the_value_is_not_changed() -> None:
    x = x64(3)
    value, slope = fg.value_and_grad(lambda x: cube(x, 2.0).sum())(x)
    same(value.numpy(), (x.numpy() ** 3 * 2).sum())
    same(slope.numpy(), 200 * x.numpy())
    same(cube(x, scale=2.0).numpy(), x.numpy() ** 3 * 2)
    same(fg.grad(lambda x: cube(x=x).sum())(x).numpy(), 100 * x.numpy())
    assert cube.name == "cube" and "lie" in (cube.__doc__ or "")


def test_a_custom_gradient_under_every_other_transform() -> None:
    x, way = x64(3), x64(3, seed=1)
    same(fg.jvp(cube, (x,), (way,))[1].numpy(), 100 * x.numpy() * way.numpy())
    same(fg.vmap(fg.grad(cube))(x).numpy(), 100 * x.numpy())
    same(fg.grad(lambda x: fg.vmap(cube)(x).sum())(x).numpy(), 100 * x.numpy())
    same(fg.hessian(lambda x: cube(x).sum())(x).numpy(), 100 * np.eye(3))
    same(fg.grad(fg.grad(lambda x: cube(x)))(x[0]).numpy(), 100.0)
    same(fg.grad(lambda x: fg.checkpoint(cube)(x).sum())(x).numpy(), 100 * x.numpy())
    same(fg.jacobian(cube)(x).numpy(), np.diag(100 * x.numpy()))


def test_the_simple_form_sees_gradient_result_and_arguments() -> None:
    @fg.custom_vjp
    def f(p: dict[str, fg.Tensor], x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        return p["w"] * x, x + 1

    f.defgrad(lambda g, y, p, x: ({"w": g[0] * y[0] + g[1]}, None))
    w, x = x64(2), x64(2, seed=1)

    def loss(p: dict[str, fg.Tensor], x: fg.Tensor) -> Any:
        a, b = f(p, x)
        return (a * 2 + b * 3).sum()

    by_p, by_x = fg.grad(loss, argnums=(0, 1))({"w": w}, x)
    same(by_p["w"].numpy(), 2 * w.numpy() * x.numpy() + 3)
    assert not by_x.numpy().any()


def test_one_result_of_several_may_go_unused() -> None:
    @fg.custom_vjp
    def f(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
        return x * 2, x * 3, fg.argmax(x)

    f.defgrad(lambda g, y, x: (g[0] * 10 + g[1] * 100,))
    same(fg.grad(lambda x: f(x)[1].sum())(x64(2)).numpy(), [100.0, 100.0])


def test_a_method_with_a_gradient_of_its_own() -> None:
    class Layer:
        factor = 3.0

        @fg.custom_vjp
        def apply(self, x: fg.Tensor) -> fg.Tensor:
            return x * self.factor

        apply.defgrad(lambda g, y, self, x: (None, g * 7))

    same(fg.grad(lambda x: Layer().apply(x).sum())(x64(2)).numpy(), [7.0, 7.0])


def test_what_a_custom_gradient_gets_wrong_is_said() -> None:
    x, w = x64(2), x64(2, seed=1)

    def rule(backward: Callable[..., Any]) -> Callable[[], Any]:
        @fg.custom_vjp
        def f(x: fg.Tensor) -> fg.Tensor:
            return x * 2

        f.defgrad(backward)
        return lambda: fg.grad(lambda x: f(x).sum())(x)

    with pytest.raises(GradientError, match="must return 1 gradients"):
        rule(lambda g, y, x: (g, g))()
    with pytest.raises(ShapeError, match="gradient of shape"):
        rule(lambda g, y, x: (g.sum(),))()
    bare = fg.custom_vjp(lambda x: x * 2)
    assert bare(x).shape == (2,)
    with pytest.raises(GradientError, match="has no gradient yet"):
        fg.grad(lambda x: bare(x).sum())(x)
    bare.defvjp(lambda x: x, lambda kept, g: (g,))
    with pytest.raises(ArgumentError, match="return the result and what backward needs"):
        fg.grad(lambda x: bare(x).sum())(x)

    def closing(w: fg.Tensor) -> Any:
        f = fg.custom_vjp(lambda x: x * w)
        f.defgrad(lambda g, y, x: (g,))
        return (f(w * 2) + f(w)).sum()

    with pytest.raises(GradientError, match="uses a tensor that is not its argument"):
        fg.grad(closing)(w)
