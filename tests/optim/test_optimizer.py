"""Optimisers: steps as one plan, groups, state, what a user can get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.ops.elementwise import SUB
from fulgurite.errors import ArgumentError, DTypeError, ShapeError
from fulgurite.runtime.cpu.toolchain import code
from fulgurite.runtime.realize import cache_stats
from tests.functional.helpers import raises

Array = np.ndarray[Any, Any]
NAMES = [
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "Adafactor",
    "Lion",
    "Muon",
    "LAMB",
    "Adamax",
    "NAdam",
    "RAdam",
    "Adadelta",
    "Rprop",
]


def compiled() -> int:
    return cache_stats()["schedule"]["misses"]


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def lion(p: Array, g: Array, m: Array, lr: float, wd: float) -> tuple[Array, Array]:
    way = np.sign(0.9 * m + 0.1 * g)
    return p - lr * (way + wd * p), 0.99 * m + 0.01 * g


def test_lion_is_its_paper() -> None:
    start, *grads = arrays(*[(3, 4)] * 11)
    weight = fg.Tensor(start)
    optimizer = fg.optim.Lion([weight], lr=0.01, weight_decay=0.1)
    p, m = start.astype(np.float64), np.zeros((3, 4))
    for grad in grads:
        optimizer.step([fg.Tensor(grad)])
        p, m = lion(p, grad.astype(np.float64), m, 0.01, 0.1)
    assert np.abs(weight.numpy() - p).max() < 1e-5


def test_lamb_is_its_paper() -> None:
    start, *grads = arrays(*[(3, 4)] * 11)
    weight, zero = fg.Tensor(start), fg.zeros(3)
    optimizer = fg.optim.LAMB([weight, zero], lr=0.02, weight_decay=0.1)
    p, m, v = start.astype(np.float64), np.zeros((3, 4)), np.zeros((3, 4))
    for t, grad in enumerate(grads, start=1):
        optimizer.step([fg.Tensor(grad), fg.zeros(3)])
        g = grad.astype(np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        way = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.1 * p
        p = p - 0.02 * np.linalg.norm(p) / np.linalg.norm(way) * way
    assert np.abs(weight.numpy() - p).max() < 1e-5
    assert zero.tolist() == [0, 0, 0]  # nothing by nothing is no NaN


def test_muon_makes_its_steps_nearly_orthogonal() -> None:
    for shape in ((6, 4), (4, 6), (5, 5)):
        start, grad = arrays(shape, shape)
        weight = fg.Tensor(start)
        optimizer = fg.optim.Muon([weight], lr=1.0, weight_decay=0.0)
        optimizer.step([fg.Tensor(grad)])
        moved = (start - weight.numpy()) / max(1.0, shape[0] / shape[1]) ** 0.5
        sizes = np.linalg.svd(moved, compute_uv=False)
        assert sizes.min() > 0.6 and sizes.max() < 1.3
        x = (grad.T if shape[0] > shape[1] else grad).astype(np.float64)
        x = x / np.linalg.norm(x)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        assert np.abs(moved - (x.T if shape[0] > shape[1] else x)).max() < 1e-4


def network() -> tuple[list[fg.Tensor], Any]:
    params = [fg.Tensor(a, requires_grad=True) for a in arrays((8, 16), (16,), (16, 4), (4,))]
    x, y = fg.Tensor(arrays((32, 8))[0]), fg.Tensor(np.arange(32, dtype=np.int32) % 4)

    def loss() -> fg.Tensor:
        hidden = fg.relu(x @ params[0] + params[1])
        return fg.cross_entropy(hidden @ params[2] + params[3], y)

    return params, loss


@pytest.mark.parametrize("name", [n for n in NAMES if n != "Muon"])
def test_a_whole_step_is_one_plan_and_no_later_step_compiles(name: str) -> None:
    params, loss = network()
    optimizer = getattr(fg.optim, name)(params, lr=0.01)
    values, counts = [], []
    for step in range(5):
        before = cache_stats()["schedule"]
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
        optimizer.step()
        after = cache_stats()["schedule"]
        assert value.is_realized  # the loss came with the step
        counts.append((after["misses"] - before["misses"], after["hits"] - before["hits"]))
        values.append(value.item())
    assert values[-1] < values[0]
    assert counts[1:] == [(0, 1)] * 4 and counts[0][0] <= 1, counts


def test_equal_updates_are_one_kernel_whatever_their_shapes() -> None:
    shapes = [(64, 32), (32,), (128, 16), (7,), (3, 5, 2), (1000,)]
    with fg.config(tier="native", device="cpu"):
        params = [fg.Tensor(a) for a in arrays(*shapes)]
        optimizer = fg.optim.AdamW(params, lr=0.01)
        grads = [fg.Tensor(a) for a in arrays(*shapes, seed=1)]
        fg.clear_caches()
        plans = compiled()
        known = set(code().functions)
        optimizer.step(grads)
        assert compiled() - plans == 1
        made = [name for name in set(code().functions) - known if name.startswith("k")]
    assert len(made) <= 3, made  # the group's numbers (decay apart), and the update of all six


def test_memory_is_updated_in_place() -> None:
    with fg.config(tier="native", device="cpu"):
        params = [fg.Tensor(a) for a in arrays((512, 512))]
        optimizer = fg.optim.Adam(params, lr=0.01)
        grad = fg.Tensor(arrays((512, 512), seed=1)[0])
        for _ in range(3):
            optimizer.step([grad])
        fg.memory_stats(reset_peak=True)
        used = fg.memory_stats()["used"]
        optimizer.step([grad])
        assert fg.memory_stats()["peak"] - used < 512 * 512 * 4


def test_what_waits_for_old_weights_is_computed_with_the_step_or_left_alone() -> None:
    weight = fg.Tensor([1.0, 2.0, 3.0])
    place = fg.Var("place", 0, 2)
    twice, parts = weight * 2, [weight[place.bind(i)] * 10 for i in (0, 2)]
    optimizer = fg.optim.SGD([weight], lr=1.0)
    optimizer.step([fg.ones(3)])  # the parts bind one variable twice: no plan can have both
    assert weight.tolist() == [0, 1, 2] and twice.tolist() == [2, 4, 6]
    assert [part.item() for part in parts] == [10, 30]


def test_groups_have_options_of_their_own() -> None:
    a, b, c = [fg.ones(2) for _ in range(3)]
    optimizer = fg.optim.SGD([{"params": [a, b], "lr": 0.5}, {"params": c}], lr=0.25)
    optimizer.step([fg.ones(2)] * 3)
    assert a.tolist() == b.tolist() == [0.5, 0.5] and c.tolist() == [0.75, 0.75]
    optimizer.param_groups[1]["lr"] = 0.0
    optimizer.step([fg.ones(2)] * 3)
    assert a.tolist() == [0, 0] and c.tolist() == [0.75, 0.75]


def test_a_parameter_without_a_gradient_is_left_alone_and_keeps_its_own_count() -> None:
    a, b = fg.ones(2), fg.ones(2)
    optimizer = fg.optim.Adam([a, b], lr=0.1)
    optimizer.step([fg.ones(2), None])
    optimizer.step([fg.ones(2), fg.ones(2)])
    assert optimizer.state[0]["step"].item() == 2 and optimizer.state[1]["step"].item() == 1
    assert np.allclose(b.numpy(), 0.9, atol=1e-5) and np.allclose(a.numpy(), 0.8, atol=1e-5)


def test_gradients_of_dicts_and_nests_are_taken_in_order() -> None:
    params = {"w": fg.ones((2, 2)), "b": [fg.ones(2), fg.ones(1)]}
    leaves = fg.tree.leaves(params)
    optimizer = fg.optim.SGD(leaves, lr=1.0)

    def loss(p: Any) -> fg.Tensor:
        total: fg.Tensor = (p["w"] * 2).sum() + p["b"][0].sum() * 3 + p["b"][1].sum()
        return total

    value, grads = fg.value_and_grad(loss)(params)
    optimizer.step(grads)
    assert value.is_realized
    assert [leaf.numpy().ravel()[0] for leaf in leaves] == [-1, -2, 0]


def test_a_step_can_be_called_off_by_a_value() -> None:
    weight = fg.ones(3)
    optimizer = fg.optim.Adam([weight], lr=0.1)
    optimizer.step([fg.ones(3)], when=fg.Tensor(False))
    assert weight.tolist() == [1, 1, 1] and optimizer.state[0]["step"].item() == 0
    optimizer.step([fg.ones(3)], when=fg.Tensor(True))
    assert weight.tolist() != [1, 1, 1] and optimizer.state[0]["step"].item() == 1


@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_bit_for_bit_from_a_saved_state(name: str, tmp_path: Path) -> None:
    shapes = [(4, 3), (3, 5)]
    grads = [[fg.Tensor(a) for a in arrays(*shapes, seed=s)] for s in range(6)]

    def fresh() -> tuple[list[fg.Tensor], Any]:
        params = [fg.Tensor(a) for a in arrays(*shapes)]
        return params, getattr(fg.optim, name)(params, lr=0.01)

    params, optimizer = fresh()
    for grad in grads:
        optimizer.step(grad)
    again, other = fresh()
    for grad in grads[:3]:
        other.step(grad)
    fg.io.save_tree(tmp_path / "x", {"p": again, "o": other.state_dict()})
    later, third = fresh()
    saved = fg.io.load_tree(tmp_path / "x")
    for parameter, value in zip(later, saved["p"], strict=True):
        parameter.assign(value)
    third.load_state_dict(saved["o"])
    for grad in grads[3:]:
        third.step(grad)
    for a, b in zip(params, later, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("captured", [False, True])
def test_an_option_set_later_starts_what_it_keeps(captured: bool) -> None:
    weight = fg.zeros(2)
    optimizer = fg.optim.SGD([weight], lr=1.0)

    def step(grad: fg.Tensor) -> None:
        optimizer.step([grad])

    take = fg.jit(step) if captured else step
    for _ in range(3):
        take(fg.ones(2))
    optimizer.param_groups[0]["momentum"] = 0.5
    found = []
    for _ in range(4):
        take(fg.ones(2))
        found.append(weight.tolist()[0])
    assert found == [-4, -5.5, -7.25, -9.125]


def test_a_state_of_a_fresh_optimizer_forgets_what_was_kept() -> None:
    weight = fg.zeros(2)
    optimizer = fg.optim.SGD([weight], lr=1.0, momentum=0.5)
    optimizer.step([fg.ones(2)])
    fresh = {**optimizer.state_dict(), "state": {}}  # what torch has before the first step
    optimizer.load_state_dict(fresh)
    assert optimizer.state[0]["momentum_buffer"].tolist() == [0, 0]
    assert optimizer.state[0]["step"].item() == 0


def test_a_state_brings_the_options_that_it_was_made_with() -> None:
    weights = [fg.ones(2), fg.ones(2)]
    first = fg.optim.Adam([weights[0]], lr=0.1, amsgrad=True)
    for size in (4.0, 1.0):
        first.step([fg.full(2, size)])
    second = fg.optim.Adam([weights[1]], lr=0.1)
    second.load_state_dict(first.state_dict())
    weights[1].assign(weights[0])
    for optimizer in (first, second):
        optimizer.step([fg.full(2, 0.5)])
    assert weights[0].tolist() == weights[1].tolist()
    bad = first.state_dict()
    bad["param_groups"][0]["betas"] = (2.0, 0.9)
    with raises(ArgumentError, "betas are"):
        second.load_state_dict(bad)


def test_bad_parameters_options_and_gradients_are_named() -> None:
    w = fg.ones(2)
    for wrong in ([], w, 3, [3], [{"params": [w], "speed": 1}], [{"lr": 1}], [w, w]):
        with pytest.raises(ArgumentError):
            fg.optim.SGD(wrong)
    with pytest.raises(DTypeError):
        fg.optim.SGD([fg.arange(3)])
    for options in ({"lr": -1}, {"lr": "x"}, {"lr": float("nan")}, {"weight_decay": -1}):
        with pytest.raises(ArgumentError):
            fg.optim.SGD([w], **options)
    with pytest.raises(ArgumentError, match="Nesterov"):
        fg.optim.SGD([w], nesterov=True)
    with pytest.raises(ArgumentError, match="betas"):
        fg.optim.Adam([w], betas=(0.9, 1.0))
    with pytest.raises(ShapeError, match="Muon"):
        fg.optim.Muon([w])
    optimizer = fg.optim.SGD([w])
    with pytest.raises(ArgumentError, match="backward"):
        optimizer.step()
    with pytest.raises(ArgumentError, match="give two numbers"):
        fg.optim.Adam([w], betas=0.9)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="2 gradients"):
        optimizer.step([w, w])
    with pytest.raises(ShapeError, match="gradient 0"):
        optimizer.step([fg.ones(3)])
    with pytest.raises(ArgumentError, match="groups"):
        optimizer.load_state_dict(fg.optim.SGD([w, fg.ones(1)]).state_dict())
    with pytest.raises(ArgumentError, match="no state"):
        optimizer.load_state_dict({"a": 1})
    with pytest.raises(ArgumentError, match="exp_avg"):
        fg.optim.Adam([w]).load_state_dict(optimizer.state_dict())
    assert w.tolist() == [1, 1]


def test_a_step_with_a_function_calls_it_first_and_gives_its_loss() -> None:
    weight = fg.Tensor([1.0, 2.0], requires_grad=True)
    optimizer = fg.optim.SGD([weight], lr=0.5)

    def closure() -> fg.Tensor:
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    assert [optimizer.step(closure).item() for _ in range(2)] == [5.0, 0.0]
    assert weight.tolist() == [0.0, 0.0]


def test_an_update_comes_from_the_step_that_was_asked_for_or_from_the_users_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(fg.optim.SGD):
        def update(self, group: Any, param: Any, grad: Any, state: Any, now: Any) -> Any:
            return param - grad, {}

    own = Own.update.__code__.co_firstlineno + 1
    step = own + 7
    monkeypatch.setattr("fulgurite.optim.optimizer.realize_step", lambda *_: None)
    for kind, line in ((fg.optim.SGD, step), (Own, own)):
        w = fg.Tensor([1.0, 2.0], requires_grad=True)
        kind([w], lr=0.5).step([fg.ones(2)])
        found = {origin.line for n in toposort([w.node]) if n.op is SUB for origin in n.origins}
        assert found == {line}
