"""Tests of fulgurite/nn/module.py and parts.py: attributes, names, calls, paths, copies, text."""

import copy
import pickle
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn, tree
from fulgurite.errors import ArgumentError, DTypeError, ShapeError
from tests.functional.helpers import raises


class Block(nn.Module):
    def __init__(self) -> None:
        self.inner = nn.Linear(3, 3)
        self.scale = nn.Parameter([2.0])
        self.register_buffer("steps", fg.zeros((), "int32"))
        self.register_buffer("scratch", fg.zeros(2), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.rest: list[Any] = [Block(), {"a": nn.Linear(3, 2)}]
        self.constant = fg.ones(3)  # neither parameter nor buffer

    def forward(self, x: Any) -> Any:
        return self.rest[1]["a"](self.rest[0](self.first(x + self.constant)))


NAMES = [
    "first.scale", "first.inner.weight", "first.inner.bias", "rest.0.scale", "rest.0.inner.weight",
    "rest.0.inner.bias", "rest.1.a.weight", "rest.1.a.bias",
]  # fmt: skip


def test_parameters_and_buffers_are_found_by_dotted_names_also_in_lists_and_dicts() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [name for name, _ in net.named_buffers()] == [
        "first.steps", "first.scratch", "rest.0.steps", "rest.0.scratch",
    ]  # fmt: skip
    assert [name for name, _ in net.named_children()] == ["first", "rest.0", "rest.1.a"]
    assert [name for name, _ in net.named_modules()][:3] == ["", "first", "first.inner"]
    assert len(list(net.modules())) == 6 and len(list(net.children())) == 3
    assert [n for n, _ in net.named_parameters(recurse=False)] == []
    assert [n for n, _ in net.first.named_parameters("x", recurse=False)] == ["x.scale"]
    assert net.get_submodule("rest.0.inner").weight is net.get_parameter("rest.0.inner.weight")
    assert net.get_submodule("") is net


def test_asking_for_what_is_not_there_is_an_error() -> None:
    net = Net()
    with raises(ArgumentError, "no module 'x'"):
        net.get_submodule("x")
    with raises(ArgumentError, "no parameter 'first'"):
        net.get_parameter("first")
    with raises(ArgumentError, "no buffer 'first'"):
        net.get_buffer("first")
    with raises(ArgumentError, "has no forward"):
        nn.Module()(1)
    with raises(ArgumentError, "no attribute's name"):
        net.register_buffer("a.b", fg.ones(1))
    with raises(ArgumentError, "buffer 'x' is int"):
        net.register_buffer("x", 3)  # type: ignore[arg-type]
    with raises(ArgumentError, "ParameterList"):
        net.weights = [nn.Parameter([1.0])]


def test_a_plain_tensor_over_a_parameter_is_refused_and_changes_nothing() -> None:
    layer = nn.Linear(2, 1, bias=False)
    weight = layer.weight
    for name, value in (("weight", fg.ones((1, 2))), ("bias", fg.ones(1))):
        with raises(ArgumentError, f"Linear.{name} is a parameter: a plain tensor would not be"):
            setattr(layer, name, value)
    assert layer.weight is weight and layer.bias is None and weight.requires_grad
    del layer.weight
    layer.weight = fg.ones((1, 2))  # now it is a constant, as was asked for
    assert not list(layer.parameters()) and layer(fg.ones((1, 2))).item() == 2.0


def test_inside_a_transform_a_parameter_may_be_bound_to_what_it_computes() -> None:
    def loss(layer: nn.Linear) -> fg.Tensor:
        layer.weight = layer.weight * 2
        found: fg.Tensor = layer(fg.ones((1, 2))).sum()
        return found

    slope = fg.grad(loss)(nn.Linear(2, 1))
    assert slope.weight.tolist() == [[2.0, 2.0]]


def test_a_name_stays_a_parameter_whatever_it_is_bound_to() -> None:
    layer = nn.Linear(2, 1)
    layer.weight = nn.Parameter(fg.ones((1, 2)), requires_grad=False)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    layer.bias = nn.Parameter([1.0])
    layer.extra = nn.Parameter([3.0])
    assert list(layer.state_dict()) == ["weight", "bias", "extra"]
    del layer.extra
    layer.weight = "no tensor any more"  # type: ignore[assignment]
    assert list(layer.state_dict()) == ["bias"]


def test_shared_parameters_and_modules_count_once_but_have_all_their_names() -> None:
    net = Net()
    net.first.inner.weight = net.rest[0].inner.weight
    net.again = net.first
    assert len(list(net.parameters())) == len(NAMES) - 1
    assert [n for n, _ in net.named_modules()].count("again") == 0
    assert "again.inner.weight" in net.state_dict()
    assert "rest.0.inner.weight" in net.state_dict()


def test_binding_an_attribute_is_noted_and_assigning_a_value_is_not() -> None:
    layer = nn.Linear(2, 1)
    before = tree.epoch()
    layer.weight.detach()
    with fg.no_grad():
        layer.weight.assign(fg.ones((1, 2)))
    layer.train()  # it is training already
    assert tree.epoch() == before
    for change in (
        lambda: layer.eval(),
        lambda: setattr(layer, "weight", nn.Parameter(fg.ones((1, 2)))),
        lambda: delattr(layer, "in_features"),
        lambda: layer.to("float64"),
    ):
        before = tree.epoch()
        change()
        assert tree.epoch() > before


def test_properties_and_dataclasses_work_as_in_any_class() -> None:
    class Half(nn.Module):
        stored: int

        @property
        def size(self) -> int:
            return self.stored * 2

        @size.setter
        def size(self, value: int) -> None:
            self.stored = value // 2

        def __init__(self) -> None:
            self.size = 4

    assert Half().size == 4 and vars(Half())["stored"] == 2

    @dataclass
    class Pair(nn.Module):
        first: nn.Module
        scale: float = 2.0

        def forward(self, x: Any) -> Any:
            return self.first(x) * self.scale

    pair = Pair(nn.Identity())
    assert pair(fg.ones(1)).tolist() == [2.0] and len(list(pair.modules())) == 2
    assert tree.structure(pair) == tree.structure(Pair(nn.Identity()))
    assert tree.structure(pair) != tree.structure(Pair(nn.Identity(), 3.0))


def test_train_and_eval_reach_every_part_and_apply_goes_inside_out() -> None:
    net = Net()
    assert net.training and all(m.training for m in net.modules())
    assert net.eval() is net and not any(m.training for m in net.modules())
    seen: list[str] = []
    net.train().apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "Block", "Linear", "Block", "Linear", "Net"]
    assert all(m.training for m in net.modules())


def plans() -> int:
    """How many plans were asked for so far."""
    counts = fg.cache_stats()["schedule"]
    return counts["misses"] + counts["hits"]


def test_the_first_use_draws_all_parameters_at_once() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    tensors = [*model.parameters(), *model.buffers()]
    assert not any(p.is_realized for p in tensors)
    before = plans()
    model(fg.ones((4, 2)))
    assert plans() <= before + 2  # what is drawn, and what is constant
    assert all(p.is_realized for p in model.parameters())
    other = nn.Linear(2, 3)
    fg.tree.leaves(other)
    assert all(p.is_realized for p in other.parameters())


def test_loading_a_state_draws_nothing() -> None:
    state = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).state_dict()
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = plans()
    model.load_state_dict(state)
    model.settle()
    assert plans() == before


def test_values_depend_on_the_seed_alone() -> None:
    fg.random.seed(3)
    first = Net().state_dict()
    fg.random.seed(3)
    again, other = Net().state_dict(), Net().state_dict()
    for name, value in first.items():
        np.testing.assert_array_equal(value.numpy(), again[name].numpy())
    assert (first["first.inner.weight"].numpy() != other["first.inner.weight"].numpy()).any()


def test_a_wrong_input_names_the_layer_what_it_takes_and_what_came() -> None:
    net = Net()
    net.rest[1]["a"].in_features = 9
    with pytest.raises(ShapeError) as caught:
        net(fg.ones((2, 3)))
    text = str(caught.value)
    assert "Net.rest.1.a: Linear(in_features=9, out_features=2, bias=True)" in text
    assert "takes (..., 9), got (2, 3)" in text
    assert __file__ in text


def test_origins_name_the_path_of_the_module() -> None:
    net = Net()
    scopes = net(fg.ones((2, 3))).node.origins[0].scopes
    assert scopes == ("Net", "rest.1.a")
    with fg.scope("outside"):
        assert net.first(fg.ones((2, 3))).node.origins[0].scopes == ("outside", "Block")
    deep = nn.Sequential(Net())(fg.ones((2, 3)))
    assert deep.node.origins[0].scopes == ("Sequential", "0", "rest.1.a")


def test_an_error_inside_a_call_leaves_no_path_behind() -> None:
    net = Net()
    with pytest.raises(ShapeError):
        net(fg.ones((2, 3, 1, 7)))
    with raises(ShapeError, "Linear(in_features=2, out_features=1, bias=True) takes (..., 2)"):
        nn.Linear(2, 1)(fg.ones((1, 3)))
    assert nn.Linear(2, 1)(fg.ones((1, 2))).node.origins[0].scopes == ("Linear",)


def test_hooks_see_and_change_arguments_and_results() -> None:
    layer = nn.Identity()
    seen: list[Any] = []
    remove = layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    layer.register_forward_hook(lambda module, args, result: seen.append(args[0].item()))
    layer.register_forward_hook(lambda module, args, result: result * 10)
    assert layer(fg.Tensor(1.0)).item() == 20.0 and seen == [2.0]
    remove()
    assert layer(fg.Tensor(1.0)).item() == 10.0 and seen == [2.0, 1.0]
    with layer.register_forward_hook(lambda module, args, result: result + 1):
        assert layer(fg.Tensor(1.0)).item() == 11.0
    layer.register_forward_hook(lambda module, args, result: result + 1).remove()
    assert layer(fg.Tensor(1.0)).item() == 10.0


def test_copies_have_values_of_their_own_and_keep_what_is_shared() -> None:
    net = Net()
    net.first.inner.weight = net.rest[0].inner.weight
    twin = copy.deepcopy(net)
    back = pickle.loads(pickle.dumps(net))
    for other in (twin, back):
        assert isinstance(other.first.scale, nn.Parameter) and other.first.scale.requires_grad
        assert other.first.inner.weight is other.rest[0].inner.weight
        assert tree.structure(other) == tree.structure(net)
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(other.state_dict()[name].numpy(), value.numpy())
    with fg.no_grad():
        net.first.scale.assign([9.0])
    assert twin.first.scale.tolist() == back.first.scale.tolist() == [2.0]
    shallow = copy.copy(net)
    shallow.more = nn.Parameter([1.0])
    assert shallow.first is net.first and "more" not in net.state_dict()


def test_a_module_prints_as_a_tree() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): ReLU()\n"
        "  )\n"
        ")"
    )
    assert repr(nn.Identity()) == "Identity()"
    assert "(rest.1.a): Linear(" in repr(Net())


def test_to_changes_floats_in_place_and_keeps_the_tensors() -> None:
    net = Net()
    weight = net.first.inner.weight
    (net(fg.ones((2, 3)))).sum().backward()
    want = net(fg.ones((2, 3))).numpy()
    assert net.to(fg.float64) is net
    assert net.first.inner.weight is weight and weight.dtype is fg.float64
    assert weight.requires_grad and weight.grad is not None and weight.grad.dtype is fg.float64
    assert net.first.steps.dtype is fg.int32 and net.dtype is fg.float64
    np.testing.assert_allclose(net(fg.ones((2, 3))).numpy(), want, rtol=1e-6)
    assert net.half().dtype is fg.float16 and net.bfloat16().dtype is fg.bfloat16
    assert net.float().dtype is fg.float32 and net.double().dtype is fg.float64
    with raises(DTypeError, "int32"):
        net.to("int32")
    with raises(DTypeError, "neither"):
        net.to("nowhere")


def test_to_moves_everything_to_a_device() -> None:
    net = Net().to("reference")
    assert {t.device for t in (*net.parameters(), *net.buffers())} == {"reference"}
    net.to(device="cpu", dtype="float64")
    assert {t.device for t in net.parameters()} == {"cpu"} and net.dtype is fg.float64


def test_backward_fills_the_gradients_of_parameters() -> None:
    net = Net()
    net(fg.ones((2, 3))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(fg.ones((2, 3))).requires_grad
    assert net.requires_grad_()(fg.ones((2, 3))).requires_grad


def test_threads_call_one_module_with_paths_of_their_own() -> None:
    net = Net().settle()
    found: list[tuple[str, ...]] = []

    def work() -> None:
        for _ in range(20):
            found.append(net(fg.ones((2, 3))).node.origins[0].scopes)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and set(found) == {("Net", "rest.1.a")}
