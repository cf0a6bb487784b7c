"""Tests of fulgurite/nn/containers.py."""

import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, BoundsError
from tests.functional.helpers import raises


def test_a_sequence_calls_its_parts_in_order_and_takes_names() -> None:
    net = nn.Sequential({"double": nn.Linear(1, 1, bias=False), "cut": nn.ReLU()})
    net.load_state_dict({"double.weight": [[-2.0]]})
    assert net(fg.Tensor([[3.0], [-3.0]])).tolist() == [[0.0], [6.0]]
    assert list(net.state_dict()) == ["double.weight"] and len(net) == 2
    assert isinstance(net[-1], nn.ReLU) and net.cut is net[1]
    assert nn.Sequential()(5) == 5 and bool(nn.Sequential())


def test_a_sequence_can_be_cut_changed_and_extended() -> None:
    net = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid())
    assert [type(m).__name__ for m in net[1:]] == ["Tanh", "Sigmoid"]
    net[0] = nn.GELU()
    del net[1]
    net.append(nn.Tanh()).extend([nn.ReLU()])
    net.insert(1, nn.SiLU())
    assert [type(m).__name__ for m in net] == ["GELU", "SiLU", "Sigmoid", "Tanh", "ReLU"]
    assert [name for name, _ in net.named_children()] == ["0", "1", "2", "3", "4"]
    assert type(net.pop()) is nn.ReLU and len(net) == 4


def test_a_list_of_modules_is_a_list() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    assert len(layers) == 3 and layers[-1] is layers[2]
    del layers[0:2]
    assert len(layers) == 1 and list(layers.state_dict()) == ["0.weight", "0.bias"]
    assert isinstance(layers[:1], nn.ModuleList)
    with raises(BoundsError, "no 5 among 1"):
        layers[5]
    with raises(ArgumentError, "no place"):
        layers["a"]
    with raises(ArgumentError, "holds modules, not function"):
        layers.append(lambda x: x)
    with raises(ArgumentError, "has no forward"):
        layers(1)


def test_a_dict_of_modules_is_a_dict() -> None:
    heads = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.ReLU()})
    assert list(heads) == list(heads.keys()) == ["a", "b"] and "a" in heads and "c" not in heads
    heads["c"] = nn.Tanh()
    assert [type(m).__name__ for m in heads.values()] == ["Linear", "ReLU", "Tanh"]
    assert heads.pop("b").__class__ is nn.ReLU and len(heads) == 2
    del heads["c"]
    heads.update([("d", nn.GELU())])
    assert [name for name, _ in heads.items()] == ["a", "d"] and bool(nn.ModuleDict())
    assert list(heads.state_dict()) == ["a.weight", "a.bias"]
    for wrong in (lambda: heads["x"], lambda: heads.__setitem__("train", nn.ReLU())):
        with pytest.raises(ArgumentError):
            wrong()
    with raises(ArgumentError, "give a module"):
        heads["y"] = 3


def test_lists_and_dicts_of_parameters() -> None:
    scales = nn.ParameterList([fg.ones(2), nn.Parameter([3.0])])
    scales.append([1.0, 2.0, 3.0])
    assert [p.shape for p in scales] == [(2,), (1,), (3,)]
    assert all(p.requires_grad for p in scales.parameters()) and len(scales) == 3
    assert repr(scales) == "ParameterList(0: (2,), 1: (1,), 2: (3,))"
    parts = nn.ParameterDict({"a": fg.ones(2)})
    parts["b"] = [4.0]
    assert list(parts) == ["a", "b"] and parts["b"].tolist() == [4.0] and "a" in parts
    del parts["a"]
    assert list(parts.keys()) == ["b"] and len(list(parts.values())) == len(parts) == 1
    assert repr(parts) == "ParameterDict(b: (1,))" and list(parts.state_dict()) == ["b"]
    with raises(ArgumentError, "no parameter 'z'"):
        parts["z"]

    class Net(nn.Module):
        def __init__(self) -> None:
            self.scales = nn.ParameterList([fg.ones(2)])
            self.parts = nn.ParameterDict({"a": fg.ones(2)})

    assert list(Net().state_dict()) == ["scales.0", "parts.a"]
    slope = fg.grad(lambda m: (m.scales[0] * m.parts["a"] * 3).sum())(Net())
    assert slope.scales[0].tolist() == slope.parts["a"].tolist() == [3.0, 3.0]
