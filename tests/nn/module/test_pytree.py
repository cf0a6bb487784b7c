"""Tests of fulgurite/nn/structure.py: modules as trees, under maps, gradients and vmap."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite import nn, tree


class Any_(nn.Module):
    """A module of whatever attributes."""

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def test_the_leaves_are_the_tensors_by_name() -> None:
    model = net()
    assert [way for way, _ in tree.paths(model)] == [
        ("0.weight",), ("0.bias",), ("1.weight",), ("1.bias",), ("1.running_mean",),
        ("1.running_var",), ("1.num_batches_tracked",), ("3.weight",), ("3.bias",),
    ]  # fmt: skip
    again = tree.unflatten(tree.structure(model), tree.leaves(model))
    assert type(again) is nn.Sequential and again[0].weight is model[0].weight
    assert list(again.state_dict()) == list(model.state_dict())
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in model.named_parameters()]


def test_forms_are_equal_exactly_if_settings_are() -> None:
    form = tree.structure(net())
    assert form == tree.structure(net()) and hash(form) == hash(tree.structure(net()))
    assert form != tree.structure(net().eval())
    other = net()
    other[1].eps = 1e-3
    assert form != tree.structure(other)
    assert tree.structure(nn.Linear(3, 4, bias=False)) != tree.structure(nn.Linear(3, 4))
    assert tree.structure(nn.ReLU()) != tree.structure(nn.Tanh())


def test_a_setting_that_changes_in_place_changes_the_form() -> None:
    model = Any_(sizes=[1, 2], table={"a": 1}, kinds={"x"}, weight=nn.Parameter([1.0]))
    before = tree.structure(model)
    assert before == tree.structure(model)
    changes: list[Callable[[], Any]] = [
        lambda: model.sizes.append(3),
        lambda: model.table.update(a=2),
        lambda: model.kinds.add("y"),
    ]
    for change in changes:
        change()
        assert tree.structure(model) != before
        before = tree.structure(model)


def test_a_part_that_is_added_to_a_plain_list_is_seen() -> None:
    model = Any_(layers=[nn.Linear(1, 1)])
    before = tree.structure(model)
    model.layers.append(nn.Linear(1, 1))
    assert tree.structure(model) != before and len(tree.leaves(model)) == 4


def test_arrays_as_settings_are_compared_by_identity() -> None:
    array = np.ones(2)
    model = Any_(table=array)
    assert tree.structure(model) == tree.structure(Any_(table=array))
    assert tree.structure(model) != tree.structure(Any_(table=np.ones(2)))


def test_binding_anew_is_seen_although_the_description_is_kept() -> None:
    layer = nn.Linear(2, 1)
    first = tree.leaves(layer)
    assert tree.leaves(layer)[0] is first[0]
    layer.weight = nn.Parameter(fg.ones((1, 2)))
    assert tree.leaves(layer)[0] is layer.weight
    layer.bias = None
    assert len(tree.leaves(layer)) == 1


def test_tied_weights_are_one_leaf_and_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert len(tree.leaves(model)) == 3
    slope = fg.grad(lambda m: m(fg.ones((1, 3))).sum())(model)
    assert slope[1].weight is slope[0].weight
    model(fg.ones((1, 3))).sum().backward()
    grad = model[0].weight.grad
    assert grad is not None
    np.testing.assert_allclose(slope[0].weight.numpy(), grad.numpy(), rtol=1e-6)
    part = Any_(a=model, b=model)
    again = tree.unflatten(tree.structure(part), tree.leaves(part))
    assert again.a is again.b and len(tree.leaves(part)) == 3


def test_gradients_of_a_module_are_a_module_of_the_same_form() -> None:
    model = net()
    x = fg.Tensor(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
    value, slope = fg.value_and_grad(lambda m: (m(x) ** 2).sum())(model)
    assert type(slope) is nn.Sequential
    stepped = fg.tree.map(lambda p, g: p if g is None else p - 0.01 * g, model, slope)
    assert (stepped(x) ** 2).sum().item() < value.item()
    (model(x) ** 2).sum().backward()
    for (name, found), parameter in zip(slope.named_parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None
        want = parameter.grad.numpy()
        np.testing.assert_allclose(found.numpy(), want, rtol=2e-4, atol=2e-5, err_msg=name)


def test_buffers_that_a_function_changes_are_changed_for_the_caller() -> None:
    model = net()
    x = fg.Tensor(np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32))
    fg.grad(lambda m: m(x).sum())(model)
    assert model[1].num_batches_tracked.item() == 1
    assert not model[1].running_mean.requires_grad
    twin = net()
    twin.load_state_dict(model.state_dict())
    model(x)
    fg.grad(lambda m: m(x).sum())(twin)
    np.testing.assert_allclose(model[1].running_var.numpy(), twin[1].running_var.numpy(), rtol=1e-6)


def test_modules_stack_and_vmap_as_an_ensemble() -> None:
    models = [nn.Linear(3, 2) for _ in range(4)]
    stacked = fg.tree.map(lambda *parts: fg.stack(parts), *models)
    out = fg.vmap(lambda m, x: m(x), in_axes=(0, None))(stacked, fg.ones((5, 3)))
    for i, model in enumerate(models):
        np.testing.assert_allclose(out[i].numpy(), model(fg.ones((5, 3))).numpy(), rtol=1e-5)


def test_whatever_a_map_puts_in_place_is_a_leaf_again() -> None:
    model = net()
    shapes = fg.tree.map(lambda p: p.shape[0] if p.ndim else None, model)
    assert tree.leaves(shapes) == [4, 4, 4, 4, 4, 4, None, 2, 2]
    same = fg.tree.map(lambda p: 0, model)
    assert tree.structure(same) == tree.structure(model)
    zero = fg.zeros(())
    assert len(tree.leaves(fg.tree.map(lambda p: zero, model))) == len(tree.leaves(model))


NESTED = st.recursive(
    st.sampled_from(["tensor", "number", "none", "linear"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner),
    ),
    max_leaves=8,
)


def _built(plan: Any) -> Any:
    if isinstance(plan, list):
        return [_built(part) for part in plan]
    if isinstance(plan, tuple):
        return tuple([_built(part) for part in plan])
    if isinstance(plan, dict):
        return {key: _built(part) for key, part in plan.items()}
    made: dict[str, Callable[[], Any]] = {
        "tensor": lambda: fg.ones(2), "number": lambda: 3, "linear": lambda: nn.Identity()
    }  # fmt: skip
    return made[plan]() if plan in made else None


@given(NESTED, NESTED)
def test_flat_and_back_is_the_same_module(first: Any, second: Any) -> None:
    model = Any_(first=_built(first), second=_built(second), weight=nn.Parameter([1.0]))
    leaves, form = tree.flatten(model)
    again = tree.unflatten(form, leaves)
    back, same = tree.flatten(again)
    assert same == form and all(a is b for a, b in zip(back, leaves, strict=True))
    assert repr(again) == repr(model) and vars(again).keys() >= {"first", "second", "weight"}
