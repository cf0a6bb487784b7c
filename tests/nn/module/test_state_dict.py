"""Tests of fulgurite/nn/state.py: what goes out and comes in, and the report when it does not."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import nn
from fulgurite.errors import ArgumentError, DataError, ShapeError
from fulgurite.jit.exclusive import is_sole
from tests.functional.helpers import raises


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_a_state_is_how_things_are_now() -> None:
    model = net()
    state = model.state_dict()
    before = state["0.weight"].numpy()
    with fg.no_grad():
        model[0].weight.assign(fg.zeros((4, 3)))
    np.testing.assert_array_equal(state["0.weight"].numpy(), before)
    assert not state["0.weight"].requires_grad
    assert next(iter(model.state_dict("net."))) == "net.0.weight"


def test_loading_keeps_the_tensors_and_casts_values() -> None:
    model = net()
    weight = model[0].weight
    state = {name: value.numpy().astype(np.float64) for name, value in net().state_dict().items()}
    state["1.num_batches_tracked"] = np.array(7)
    assert model.load_state_dict(state) == nn.Loaded([], [])
    assert model[0].weight is weight and weight.requires_grad and weight.dtype is fg.float32
    np.testing.assert_array_equal(weight.numpy(), state["0.weight"].astype(np.float32))
    assert model[1].num_batches_tracked.item() == 7


def test_all_that_does_not_fit_is_in_one_report_and_nothing_is_loaded() -> None:
    model = net()
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    state = dict(net().state_dict())
    del state["0.bias"], state["1.running_var"]
    state["2.weight"] = fg.ones(1)
    state["0.weight"] = fg.ones((3, 4))
    with pytest.raises(ShapeError) as caught:
        model.load_state_dict(state, strict=False)
    assert "mis-shaped" in str(caught.value) and "missing" not in str(caught.value)
    with pytest.raises(ShapeError) as caught:
        model.load_state_dict(state)
    text = str(caught.value)
    assert "2 missing:\n    0.bias\n    1.running_var\n" in text
    assert "1 unexpected" in text and "2.weight" in text
    assert "0.weight: (4, 3) here, (3, 4) in the state" in text
    assert "nothing was loaded" in text
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


def test_without_strict_names_may_be_missing_or_unexpected() -> None:
    model = net()
    state = {"0.bias": fg.ones(4), "other": fg.ones(1)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert unexpected == ["other"] and "0.weight" in missing and "0.bias" not in missing
    assert model[0].bias.tolist() == [1.0] * 4
    with raises(ArgumentError, "6 missing"):
        model.load_state_dict(state)


def test_a_long_report_is_cut() -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(10)])
    with raises(ArgumentError, "... and 12 more"):
        model.load_state_dict({})


def test_what_is_no_state_is_an_error() -> None:
    model = net()
    with raises(ArgumentError, "a state is a mapping, not list"):
        model.load_state_dict([])  # type: ignore[arg-type]
    with raises(DataError, "0.weight in the state"):
        model.load_state_dict({"0.weight": "text"})
    floats = {name: fg.ones(value.shape) for name, value in model.state_dict().items()}
    with raises(ShapeError, "1.num_batches_tracked: int64 here, float32 in the state"):
        model.load_state_dict(floats)


def test_buffers_that_are_not_persistent_are_not_saved() -> None:
    model = nn.Module()
    model.register_buffer("mask", fg.ones(2), persistent=False)
    model.register_buffer("kept", fg.ones(2))
    model.register_buffer("nothing", None)
    assert list(model.state_dict()) == ["kept"]
    assert [name for name, _ in model.named_buffers()] == ["mask", "kept"]


def test_an_optimizer_that_holds_a_parameter_sees_what_is_loaded() -> None:
    model = nn.Linear(2, 1)
    held = list(model.parameters())
    model.load_state_dict({"weight": [[3.0, 4.0]], "bias": [5.0]})
    assert [p.tolist() for p in held] == [[[3.0, 4.0]], [5.0]]


def test_complex_values_are_not_cut_down_to_floats() -> None:
    layer = fg.nn.Linear(2, 1, bias=False)
    before = layer.weight.tolist()
    with pytest.raises(ShapeError, match="1 of another kind"):
        layer.load_state_dict({"weight": np.ones((1, 2)) * 1j})
    assert layer.weight.tolist() == before


def test_the_memory_of_a_loaded_state_is_the_modules_alone_once_the_state_is_gone() -> None:
    model, ones = nn.Linear(2, 3), np.ones((3, 2), "float32")
    state = {"weight": fg.Tensor(ones).realize(), "bias": fg.Tensor(ones[:, 0]).realize()}
    model.load_state_dict(state)
    assert model.weight.requires_grad and not state["weight"].requires_grad
    with fg.no_grad():
        model.weight.assign(model.weight * 2)
    assert state["weight"].numpy().max() == 1 and model.weight.detach().numpy().max() == 2
    model.load_state_dict(state)
    del state
    assert is_sole(model.weight.entry)
