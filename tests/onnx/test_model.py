"""A loaded model: inputs, outputs, plans, variable dimensions, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.ops.leaf import PARAM
from fulgurite.errors import ArgumentError, DataError, DTypeError, FulguriteError, ShapeError
from fulgurite.graph.ir.queries import elements
from fulgurite.onnx import ModelError, UnsupportedError, load
from fulgurite.onnx.ops.nn import resizing
from fulgurite.onnx.proto import Attribute, parse
from fulgurite.onnx.values import Value
from fulgurite.runtime.device import MemoryLimitError
from tests.onnx.models import graph, model, node, perceptron, port, simple, transformer

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(3)


@pytest.fixture
def at_bounds() -> Any:
    """Kernels of sizes that vary run at upper bounds, as on devices that have no others."""
    with fg.config(dynamic=False):
        yield


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_inputs_go_in_by_order_or_by_name_and_outputs_come_out_by_name_or_number() -> None:
    made = load(simple("Sub", 2))
    a, b = f(2, 3), f(2, 3)
    found = made(a, x1=b)
    np.testing.assert_array_equal(found["y"].numpy(), a - b)
    assert found[0] is found["y"] and list(found) == ["y"]
    assert made([[1, 2, 3]], [[1.0, 1, 1]])["y"].tolist() == [[0, 1, 2]]
    assert str(made.inputs[0]) == "x0: float[n, 3]"


def test_a_second_call_reuses_the_plan_and_reads_the_new_numbers() -> None:
    made = load(simple("Exp"))
    for x in (f(2, 3), f(2, 3), f(2, 3)):
        np.testing.assert_allclose(made(x)["y"].numpy(), np.exp(x), rtol=1e-6)
    assert made.builds == 1


@pytest.mark.parametrize("columns", [3, 8192])  # copied, and read where it is
@pytest.mark.parametrize("kind", ["Neg", "Identity"])
def test_calls_again_and_again_read_the_numbers_that_they_are_given(
    kind: str, columns: int
) -> None:
    made, sign = load(simple(kind, shape=(2, columns))), -1 if kind == "Neg" else 1
    before: list[tuple[Any, Any]] = []
    for turn in range(12):
        x = f(2, columns)
        given = [
            x, np.asfortranarray(x), f(4, columns)[::2] * 0 + x, np.repeat(x, 2, axis=0)[::2],
            np.frombuffer(b"1" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        ][turn % 5]  # fmt: skip
        found = made({"x0": given})["y"] if turn % 3 else made(given)["y"]
        np.testing.assert_array_equal(found.numpy(), sign * x)
        before.append((found, x.copy()))
        if given.flags.writeable:
            given[...] = 7
    for found, x in before:
        np.testing.assert_array_equal(found.numpy(), sign * x)
        np.testing.assert_array_equal(np.asarray(found), sign * x)
    assert made.builds == 1


def test_a_call_like_the_latest_checks_what_others_check() -> None:
    made = load(simple("Neg", shape=(2, 3)))
    x = f(2, 3)
    for _ in range(6):
        made({"x0": x})
    with pytest.raises(DTypeError):
        made({"x0": x.astype(np.float64)})
    with pytest.raises(ShapeError):
        made({"x0": f(3, 3)})
    with pytest.raises(ArgumentError):
        made({"z": x})
    with pytest.raises(ArgumentError):
        made({})
    with fg.config(poison=True):
        np.testing.assert_array_equal(made({"x0": x})["y"].numpy(), -x)
    np.testing.assert_array_equal(made(x0=x)["y"].numpy(), -x)
    np.testing.assert_array_equal(made({"x0": x.tolist()})["y"].numpy(), -x)


def test_a_places_error_names_its_node_in_every_call() -> None:
    ports = [port("x0", shape=(4096, 4)), port("i", "int64", (2,))]
    made = load(model(graph([node("Gather", "x0 i", "y")], ports, [port("y")])))
    x = f(4096, 4)
    for _ in range(6):
        found = made({"x0": x, "i": np.array([1, 3])})["y"]
    np.testing.assert_array_equal(found.numpy(), x[[1, 3]])
    for _ in range(2):
        with pytest.raises(FulguriteError, match="Gather"):
            made({"x0": x, "i": np.array([1, 4096])})
    np.testing.assert_array_equal(made({"x0": x, "i": np.array([0, -1])})["y"].numpy(), x[[0, -1]])


def test_outputs_of_earlier_calls_stay_as_they_were() -> None:
    made = load(simple("Identity"))
    a, b = f(2, 3), f(2, 3)
    first = made(a)["y"]
    made(b)
    np.testing.assert_array_equal(first.numpy(), a)


def test_outputs_of_earlier_calls_stay_as_they_were_whatever_the_sizes() -> None:
    made = load(simple("Identity"), dims={"n": fg.Var("n", 1, 9)})
    given = [f(n, 3) for n in (4, 2, 9, 4, 2)]
    found = [made(x)["y"] for x in given]
    for x, y in zip(given, found, strict=True):
        np.testing.assert_array_equal(y.numpy(), x)


def test_the_callers_array_is_copied() -> None:
    made = load(simple("Neg"))
    x = f(1, 3)
    want = -x
    found = made(x)["y"]
    x[:] = 9
    np.testing.assert_array_equal(found.numpy(), want)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ((), ArgumentError, "missing"),
        ((f(2, 3), f(2, 3)), ArgumentError, "2 inputs"),
        ((f(2, 4),), ShapeError, r"the model takes x0: float\[n, 3\]"),
        ((f(3),), ShapeError, "shape"),
        ((f(2, 3).astype(np.float64),), DTypeError, "astype"),
        ((np.array([["a", "b", "c"]]),), DTypeError, "x0"),
        ((None,), DataError, "None"),
        (([[1, 2], [3]],), FulguriteError, "x0"),
    ],
)
def test_an_input_that_does_not_fit_is_one_clear_error(given: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        load(simple("Neg"))(*given)


def test_an_unknown_name_or_a_second_value_is_an_error() -> None:
    made = load(simple("Neg"))
    with pytest.raises(ArgumentError, match="no input 'z'"):
        made(z=f(1, 3))
    with pytest.raises(ArgumentError, match="twice"):
        made(f(1, 3), x0=f(1, 3))


def test_a_named_dimension_is_one_size() -> None:
    with pytest.raises(ShapeError, match="dimension 'n' is 3"):
        load(simple("Add", 2))(f(2, 3), f(3, 3))


def test_dims_fix_a_size_and_unknown_ones_are_errors() -> None:
    with pytest.raises(ShapeError, match="dimension 'n'"):
        load(simple("Neg"), dims={"n": 4})(f(2, 3))
    with pytest.raises(ArgumentError, match="no dimension 'm'"):
        load(simple("Neg"), dims={"m": 4})
    with pytest.raises(ArgumentError, match="'n' is 'four'"):
        load(simple("Neg"), dims={"n": "four"})


@pytest.mark.parametrize("source", ["missing.onnx", b"", b"not a model", 5, None])
def test_what_is_no_model_is_an_error(source: Any) -> None:
    with pytest.raises(ModelError):
        load(source)


def test_an_unknown_operator_and_a_newer_opset_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"Wobble.*operator Wobble is not built"):
        load(simple("Wobble"))(f(1, 3))
    with pytest.raises(UnsupportedError, match="opset 999"):
        load(model(graph([], [], []), opset=999))


def test_an_operator_of_another_domain_and_meaning_is_not_taken_for_the_standards() -> None:
    x = np.array([3, 1, 3, 2], np.float32)
    first = []
    for domain in ("", "com.microsoft"):
        made = [node("Unique", "x", "y", domain=domain)]
        data = model(graph(made, [port("x", shape=[4])], [port("y")]), com_microsoft=1)
        first.append(load(data)(x)["y"].tolist())
    assert first == [[1, 2, 3], [3, 1, 2]]


def test_zeros_are_quantised_with_a_scale_to_divide_by() -> None:
    made = node("DynamicQuantizeLinear", "x", "y scale zero")
    ports = [port("y", "uint8"), port("scale"), port("zero", "uint8")]
    found = load(model(graph([made], [port("x", shape=[2])], ports)))(np.zeros(2, np.float32))
    assert [v.numpy().tolist() for v in found.values()] == [[0, 0], 1.0, 0]


@pytest.mark.parametrize(
    ("operator", "shape", "attributes"),
    [
        ("Det", [3], {}), ("Det", [3, 2], {}), ("LRN", [1, 2, 3], {"size": 1 << 32}),
        ("LRN", [1, 2, 3], {"size": 0}),
        ("LpPool", [1, 1, 4], {"kernel_shape": [1 << 32], "auto_pad": "SAME_UPPER"}),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_meant_is_an_error(
    operator: str, shape: list[int], attributes: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=operator):
        load(simple(operator, shape=shape, **attributes))(f(*shape))


def test_a_result_that_no_memory_holds_is_an_error() -> None:
    tile = [node("Tile", "x n", "y")]
    data = model(graph(tile, [port("x", shape=[2, 2]), port("n", "int64", [2])], [port("y")]))
    for count in (1 << 32, 1 << 40):
        with pytest.raises((ModelError, MemoryLimitError), match=r"memory|elements|size"):
            load(data)(f(2, 2), np.array([count, count]))
    for large in (fg.zeros((1 << 33, 1 << 33)), fg.arange(1 << 45)):
        with pytest.raises(MemoryLimitError, match=r"no memory|elements"):
            large.numpy()


def test_an_error_inside_names_the_node() -> None:
    broken = model(graph([node("Reshape", "x s", "y")], [port("x", shape=[6])], [port("y")],
                         {"s": np.array([4, 2], np.int64)}))  # fmt: skip
    with pytest.raises(ModelError, match="Reshape 'Reshape_y'"):
        load(broken)(f(6))


def test_a_model_with_a_function_a_choice_a_loop_and_a_computed_shape() -> None:
    made = load(perceptron())
    weights = {name: made.program.weights_of(made.program.graph).makers[name]().known()
               for name in ("w1", "b1", "w2")}  # fmt: skip
    for batch in (1, 2, 3, 5):
        x = f(batch, 4)
        a = x @ weights["w1"] + weights["b1"]
        h = np.where(a < 0, np.float32(0.1) * a, a)
        t = h * 2 if h.sum() > 0 else h
        want = (t * 8) @ weights["w2"]
        np.testing.assert_allclose(made(x)["y"].numpy()[..., 0], want, rtol=1e-4, atol=1e-4)


def computed_shape() -> bytes:
    weights = {"w": f(4, 8), "zero": np.array(0, np.int64), "axes": np.array([0], np.int64),
               "rest": np.array([2, -1], np.int64)}  # fmt: skip
    nodes = [
        node("MatMul", "x w", "m"), node("Shape", "m", "s"), node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"), node("Concat", "n1 rest", "want", axis=0),
        node("Reshape", "m want", "r"), node("Softmax", "r", "y"),
    ]  # fmt: skip
    return model(graph(nodes, [port("x", shape=["batch", 4])], [port("y")], weights))


def compiled() -> int:
    return int(fg.cache_stats()["schedule"]["misses"])


def test_a_variable_dimension_compiles_once_for_all_sizes() -> None:
    data = computed_shape()
    made, plain = load(data, dims={"batch": fg.Var("batch", 1, 16)}), load(data)
    x = f(3, 4)
    made(x)
    before = compiled()
    for size in (5, 16, 1):
        made(f(size, 4))
    assert compiled() == before and not made.reasons
    np.testing.assert_allclose(made(x)["y"].numpy(), plain(x)["y"].numpy(), rtol=1e-6)


def test_a_transformer_compiles_once_for_every_batch_and_length() -> None:
    data = transformer()
    made = load(data, dims={"batch": fg.Var("batch", 1, 8), "seq": fg.Var("seq", 1, 32)})
    cases = []
    for batch, length in ((2, 5), (3, 7), (1, 32), (8, 1)):
        ids, mask = RNG.integers(0, 50, (batch, length)), RNG.integers(0, 2, (batch, length))
        mask[:, 0] = 1
        cases.append((ids, mask))
    made(*cases[0])
    before = compiled()
    found = [made(*case)["y"].numpy() for case in cases]
    assert compiled() == before and not made.reasons
    for case, ours in zip(cases, found, strict=True):
        np.testing.assert_allclose(ours, load(data)(*case)["y"].numpy(), rtol=1e-4, atol=1e-5)


def test_a_transformer_of_any_batch_and_length_compiles_three_times() -> None:
    data, rng = transformer(), np.random.default_rng(5)
    with fg.config(device="cpu", tier="native"):
        made = load(data)
        before = fg.cache_stats()["schedule"]["misses"]
        cases, found = [], []
        for _ in range(50):
            batch, length = rng.integers(2, 8), rng.integers(2, 32)
            mask = rng.integers(0, 2, (batch, length))
            mask[:, 0] = 1
            cases.append((rng.integers(0, 50, (batch, length)), mask))
            found.append(made(*cases[-1])["y"].numpy())
        assert made.builds <= 3 and fg.cache_stats()["schedule"]["misses"] - before <= 3
        for case, ours in list(zip(cases, found, strict=True))[::12]:
            with fg.config(dynamic=False):
                want = load(data)(*case)["y"].numpy()
            np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)


def test_arithmetic_with_single_variable_sizes_compiles_once() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s i", "a"), node("Gather", "s j", "b"),
        node("Mul", "a b", "ab"), node("Sub", "ab j", "less"), node("Add", "less j", "same"),
        node("Unsqueeze", "same axis", "u"), node("Concat", "one u", "to", axis=0),
        node("Reshape", "x to", "y"),
    ]  # fmt: skip
    numbers = {"i": np.int64(0), "j": np.int64(1), "axis": np.array([0]), "one": np.array([1])}
    data = model(graph(nodes, [port("x", shape=["n", "m"])], [port("y")], numbers))
    made = load(data, dims={"n": fg.Var("n", 1, 8), "m": fg.Var("m", 1, 8)})
    for shape in ((2, 3), (8, 5), (1, 1)):
        x = f(*shape)
        np.testing.assert_array_equal(made(x)["y"].numpy(), x.reshape(1, -1))
    assert not made.reasons


def test_a_dimension_that_keeps_changing_becomes_a_variable_by_itself() -> None:
    made = load(computed_shape())
    for size in (3, 4, 5):
        made(f(size, 4))
    before = compiled()
    for size in (6, 7, 8, 9, 10):
        x = f(size, 4)
        assert made(x)["y"].shape == (size, 2, 4)
    assert compiled() == before


def test_a_size_that_was_not_seen_costs_no_building_once_the_dimension_is_a_variable() -> None:
    nodes = [node("MatMul", "x w", "m"), node("Shape", "m", "s"), node("Exp", "m", "y")]
    ports = [port("y"), port("s", "int64")]
    w = f(4, 8)
    made = load(model(graph(nodes, [port("x", shape=["n", 4])], ports, {"w": w})))
    for size in (3, 4, 5):
        made(f(size, 4))
    builds = made.builds
    for size in (6, 2, 16, 6):
        x = f(size, 4)
        found = made(x)
        np.testing.assert_allclose(found["y"].numpy(), np.exp(x @ w), rtol=1e-5)
        assert found["s"].tolist() == [size, 8]
    assert made.builds == builds and not made.reasons
    assert made(f(1000, 4))["s"].tolist() == [1000, 8]  # beyond the bound: built once more
    assert made.builds == builds + 1


@pytest.mark.usefixtures("at_bounds")
def test_sizes_that_vary_are_not_left_to_python_unless_the_user_wants_them_to_vary() -> None:
    nodes = [node("Reshape", "x flat", "r"), node("Exp", "r", "y")]
    data = model(graph(nodes, [port("x", shape=["a", "b", 2])], [port("y")],
                       {"flat": np.array([-1, 2])}))  # fmt: skip
    with fg.config(device="cpu", tier="native"):
        made = load(data)
        for a, b in ((2, 3), (3, 4), (4, 5), (5, 6)):
            x = f(a, b, 2)
            np.testing.assert_allclose(made(x)["y"].numpy(), np.exp(x).reshape(-1, 2), rtol=1e-6)
        assert made.reasons and "Python's work" in made.reasons[0]
        dims = {"a": fg.Var("a", 1, 8), "b": fg.Var("b", 1, 8)}
        asked = load(data, dims=dims)
        np.testing.assert_allclose(asked(x)["y"].numpy(), np.exp(x).reshape(-1, 2), rtol=1e-6)
        assert not asked.reasons


def images(pixels: int) -> bytes:
    """A convolution of any number of images."""
    ports = [port("x", shape=["n", 8, pixels, pixels])]
    conv = node("Conv", "x w", "y", pads=[1, 1, 1, 1])
    return model(graph([conv], ports, [port("y")], {"w": f(16, 8, 3, 3)}))


@pytest.mark.usefixtures("at_bounds")
def test_images_of_any_number_get_plans_for_the_number_where_those_are_quicker() -> None:
    with fg.config(device="cpu", tier="native"):
        made = load(images(40))
        for count, n in enumerate((1, 2, 3, 4, 5, 9, 16, 17), start=1):
            assert made(f(n, 8, 40, 40))["y"].shape == (n, 16, 40, 40)
            assert made.last is not None and not made.last.variables
            assert made.builds == count + (n > 2)  # an attempt in vain is not repeated
        assert made.reasons == ["with variable sizes a run computes all of their upper bounds"]
        before = made.builds
        made(f(3, 8, 40, 40))
        assert made.builds == before


def test_images_that_are_soon_done_share_a_plan() -> None:
    with fg.config(device="cpu", tier="native"):
        made = load(images(4))
        for n in (1, 2, 3, 4, 5, 9, 16):
            made(f(n, 8, 4, 4))
        assert made.builds == 2 and not made.reasons


@pytest.mark.usefixtures("at_bounds")
def test_a_size_that_keeps_coming_gets_a_plan_once_that_costs_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[dict[str, int]] = []

    def patience(schedule: object, sizes: dict[str, int], fixed: object = None) -> float:
        counted.append(sizes)
        return 33.0 if sizes == {"onnx_0": 5} or fixed else 2.5 if sizes["onnx_0"] > 1 else 0.5

    for module in ("plans", "sizes"):
        monkeypatch.setattr(f"fulgurite.onnx.{module}.patience", patience)
    made = load(simple("Exp"))
    for n in (3, 4, 5):  # the last one varies
        made(f(n, 3))
    builds = []
    for n in (6, 6, 6, 6, 7, 1, 1, 6, 7, 7, 7, 3):
        x = f(n, 3)
        np.testing.assert_allclose(made(x)["y"].numpy(), np.exp(x), rtol=1e-6)
        builds.append(made.builds - 3)
    assert builds == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert counted.count({"onnx_0": 6}) == 1 and not made.reasons


@pytest.mark.usefixtures("at_bounds")
def test_plans_for_a_size_that_are_better_made_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fulgurite.onnx.sizes.patience", lambda schedule, sizes, fixed=None: 9.0 if fixed else 99.0
    )
    made = load(simple("Exp"))
    for n in (3, 4, 5, 6):
        made(f(n, 3))
    assert made.builds == 5 and "slower" in made.reasons[0] and len(made.reasons) == 1


def test_a_dimension_that_cannot_vary_is_tried_once() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Range", "zero n two", "r"),
        node("Cast", "r", "c", to=1), node("ReduceSum", "c", "t"), node("Add", "x t", "y"),
    ]  # fmt: skip
    numbers = {"zero": np.int64(0), "two": np.int64(2)}
    data = model(graph(nodes, [port("x", shape=["n"])], [port("y")], numbers))
    for dims in (None, {"n": fg.Var("n", 1, 64)}):
        made = load(data, dims=dims)
        for count, n in enumerate((2, 5, 7, 8, 11), start=1):
            np.testing.assert_allclose(made(np.zeros(n, np.float32))["y"], sum(range(0, n, 2)))
            tried = int(dims is not None or count > 2)
            if dims is None and made._is_sized:  # when it comes, and when it varies
                tried = min(count, 2)
            assert made.builds == count + tried
        assert len(made.reasons) == 1 and "variable" in made.reasons[0]


def test_a_size_outside_its_bounds_is_no_reason_for_others() -> None:
    made = load(simple("Exp"), dims={"n": fg.Var("n", 1, 8)})
    for n, builds in ((9, 1), (3, 2), (4, 2), (10, 3), (8, 3)):
        made(f(n, 3))
        assert made.builds == builds
    assert len(made.reasons) == 2 and "9" in made.reasons[0]


def test_a_named_dimension_varies_from_the_first_call_on() -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Softmax", "a", "b", axis=-1),
        node("Add", "a b", "y"),
    ]
    weights = {"w": f(4, 20)}
    data = model(graph(nodes, [port("x", shape=["b", "n", 4])], [port("y")], weights))
    made = load(data)
    before = fg.cache_stats()["schedule"]["misses"]
    for batch, n in ((1, 3), (1, 90), (1, 7), (1, 512)):
        x = f(batch, n, 4)
        a = x @ weights["w"]
        e = np.exp(a - a.max(axis=-1, keepdims=True))
        want = a + e / e.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(made(x)["y"].numpy(), want, rtol=2e-5, atol=2e-5)
    if made._is_sized:
        assert made.builds == 1 and fg.cache_stats()["schedule"]["misses"] == before + 1
        assert made.last is not None and list(made.last.variables["x"]) == [1]  # 1 stays apart


def test_a_model_with_windows_has_plans_for_its_first_sizes() -> None:
    nodes = [node("Conv", "x w", "y", kernel_shape=[3, 3])]
    data = model(graph(nodes, [port("x", shape=["n", 2, 9, 9])], [port("y")], {"w": f(4, 2, 3, 3)}))
    made = load(data)
    made(f(2, 2, 9, 9))
    assert made.last is not None and not made.last.variables


def test_inputs_that_are_wrong_are_no_reason_against_variable_sizes() -> None:
    nodes = [node("MatMul", "x w", "y")]
    made = load(model(graph(nodes, [port("x", shape=["n", "k"])], [port("y")], {"w": f(4, 2)})))
    for n in (2, 3):
        made(f(n, 4))
    for n in (4, 5, 6):
        with pytest.raises(FulguriteError):
            made(f(n, 5))
    for n in (7, 8):
        made(f(n, 4))
    assert not made.reasons and made.last is not None and made.last.variables


def test_elements_are_gathered_by_several_numbers_whatever_varies() -> None:
    nodes = [node("GatherND", "x at", "y")]
    ports = [port("x", shape=["n", "m", 3]), port("at", "int64", ["k", "j", 2])]
    data = model(graph(nodes, ports, [port("y")]))
    names = {"n": 8, "m": 8, "k": 4, "j": 4}
    made = load(data, dims={name: fg.Var(name, 1, most) for name, most in names.items()})
    for n, m, k, j in ((2, 3, 4, 1), (8, 8, 1, 4), (1, 1, 2, 2)):
        x, at = f(n, m, 3), np.stack([RNG.integers(-n, n, (k, j)), RNG.integers(-m, m, (k, j))], -1)
        np.testing.assert_array_equal(made(x, at)["y"].numpy(), x[at[..., 0], at[..., 1]])
    assert not made.reasons


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ([1, 3, 9], [4, 3, 3], {"strides": [2]}),
        ([1, 3, 9], [4, 3, 3], {"strides": [4], "pads": [1, 2], "dilations": [2]}),
        ([2, 3, 5, 6], [4, 3, 3, 4], {"pads": [1, 0, 0, 1], "strides": [2, 3]}),
        ([1, 2, 3, 4, 3], [5, 2, 3, 3, 3], {"pads": [0, 0, 1, 0, 1, 0]}),
        ([3, 2, 4, 4], [2, 2, 4, 4], {}),
        ([1, 4, 6, 6], [4, 2, 3, 3], {"group": 2, "strides": [3, 3]}),
    ],
)
def test_few_windows_and_many_are_convolved_alike(
    shape: list[int], weight: list[int], attributes: dict[str, Any]
) -> None:
    x, w, b = f(*shape), f(*weight), f(weight[0])
    ports = [port("x", shape=shape)]
    line = node("Conv", "x w b", "y", **attributes)
    few = load(model(graph([line], ports, [port("y")], {"w": w, "b": b})))(x)["y"].numpy()
    many = np.concatenate([x] * 20)  # more pictures: the other way
    ports = [port("x", shape=[20 * shape[0], *shape[1:]])]
    want = load(model(graph([line], ports, [port("y")], {"w": w, "b": b})))(many)["y"].numpy()
    np.testing.assert_allclose(few, want[: shape[0]], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("space", [(5, 7), (1, 1), (14, 14)])
def test_small_pictures_go_with_their_channels_together_and_come_out_as_ever(
    space: tuple[int, int],
) -> None:
    weights = {
        "a": f(32, 16, 1, 1), "ab": f(32), "d": f(32, 1, 3, 3), "db": f(32), "c": f(16, 32, 3, 2),
        "s": f(16, 1, 1), "g": f(16), "h": f(16), "m": f(16), "v": np.abs(f(16)),
        "t": f(16, 16, 1, 1), "low": np.float32(0), "high": np.float32(6),
    }  # fmt: skip
    nodes = [
        node("Conv", "x a ab", "p"), node("Relu", "p", "q"),
        node("Conv", "q d db", "r", group=32, pads=[1, 1, 1, 1], strides=[2, 1], dilations=[1, 1]),
        node("Clip", "r low high", "e"),
        node("Conv", "e c", "k", pads=[1, 0, 1, 1]), node("PRelu", "k s", "l"),
        node("BatchNormalization", "l g h m v", "n"),
        node("Conv", "x t", "u", strides=[2, 1]), node("Add", "n u", "z"),
        node("Mul", "z z", "y"), node("GlobalAveragePool", "z", "w"),
        node("Transpose", "z", "tz", perm=[3, 1, 0, 2]),
    ]  # fmt: skip
    x = f(2, 16, *space)
    outputs = [port("y"), port("w"), port("tz"), port("e")]
    found = load(model(graph(nodes, [port("x", shape=x.shape)], outputs, weights)))(x)
    t = {name: fg.Tensor(value) for name, value in weights.items()}
    hidden = fg.relu(fg.conv2d(x, t["a"], t["ab"]))
    hidden = fg.clip(fg.conv2d(hidden, t["d"], t["db"], (2, 1), 1, 1, 32), 0, 6)
    k = fg.conv2d(fg.pad(hidden, [(0, 0), (0, 0), (1, 1), (0, 1)]), t["c"])
    k = fg.where(k < 0, k * t["s"], k)
    scale = (t["g"] / fg.sqrt(t["v"] + 1e-5)).reshape((16, 1, 1))
    k = (k - t["m"].reshape((16, 1, 1))) * scale + t["h"].reshape((16, 1, 1))
    z = k + fg.conv2d(x, t["t"], None, (2, 1))
    want = [z * z, z.mean((2, 3), keepdims=True), fg.permute_dims(z, (3, 1, 0, 2)), hidden]
    for mine, other in zip(found.values(), want, strict=True):
        most = np.abs(other.numpy()).max()
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=2e-6 * most)


@pytest.mark.parametrize("axis", [1, 2])
def test_joined_and_averaged_pictures_keep_their_channels_together(
    axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, plain = [], Value.channels_last

    def seen(tensor: fg.Tensor, *kind: Any) -> Value:
        shapes.append(tensor.shape)
        return plain(tensor, *kind)

    monkeypatch.setattr(Value, "channels_last", seen)
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4), node("Relu", "a", "b"),
        node("Conv", "b w", "u", pads=[1] * 4), node("Pad", "u around", "v", mode="reflect"),
        node("MaxPool", "v", "c", kernel_shape=[1, 3]), node("Concat", "a c x", "d", axis=axis),
        node("AveragePool", "d", "y", kernel_shape=[2, 3], strides=[2, 2], pads=[0, 1, 1, 1]),
    ]  # fmt: skip
    x, weights = f(1, 16, 8, 8), {"w": f(16, 16, 3, 3) / 12}
    weights["around"] = np.array([0, 0, 0, 1, 0, 0, 0, 1])
    text = model(graph(nodes, [port("x", shape=x.shape)], [port("y"), port("d")], weights))
    wanted = load(text, device="reference")(x)
    made = load(text)(x)
    joined = {(1, 8, 8, 48), (1, 4, 4, 48)} if axis == 1 else {(1, 24, 8, 16), (1, 12, 4, 16)}
    assert joined | {(1, 8, 10, 16)} <= set(shapes)
    for name in ("y", "d"):
        np.testing.assert_allclose(made[name].numpy(), wanted[name].numpy(), rtol=1e-5, atol=1e-5)


def test_the_largest_of_a_window_is_nan_if_one_is_and_windows_may_be_long() -> None:
    x = f(1, 2, 12, 30)
    x[0, 0, 3, 4] = np.nan
    for size, stride in (([3, 3], [2, 2]), ([2, 20], [1, 3])):
        line = node("MaxPool", "x", "y", kernel_shape=size, strides=stride)
        data = model(graph([line], [port("x", shape=[1, 2, 12, 30])], [port("y")]))
        windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))
        want = windows[:, :, :: stride[0], :: stride[1]].max(axis=(-1, -2))
        np.testing.assert_array_equal(load(data)(x)["y"].numpy(), want)


def test_an_input_whose_numbers_decide_a_shape_chooses_the_plan() -> None:
    data = model(graph([node("Reshape", "x s", "y")],
                       [port("x", shape=[6]), port("s", "int64", [2])], [port("y")]))  # fmt: skip
    made = load(data)
    x = f(6)
    for shape in ((2, 3), (3, 2), (2, 3), (6, 1)):
        assert made(x, np.array(shape))["y"].shape == shape
    assert made.builds == 3


def test_a_result_that_decides_a_shape_is_computed_at_every_call() -> None:
    made = load(simple("NonZero"))
    assert made(np.array([[1, 0, 2]], np.float32))["y"].tolist() == [[0, 0], [0, 2]]
    assert made(np.array([[0, 0, 2]], np.float32))["y"].tolist() == [[0], [2]]


def test_a_tensor_that_is_an_expression_gives_expressions_and_gradients() -> None:
    made = load(simple("Mul", 2))

    def loss(x: fg.Tensor) -> fg.Tensor:
        return made(x, x)["y"].sum()  # type: ignore[no-any-return]

    assert fg.grad(loss)(fg.Tensor([[1.0, 2.0, 3.0]])).tolist() == [[2, 4, 6]]
    realized = fg.Tensor([[1.0, 2.0, 3.0]]).realize()
    assert made(realized, realized)["y"].tolist() == [[1, 4, 9]]


def test_a_model_runs_on_the_device_it_is_loaded_for() -> None:
    assert load(simple("Neg"), device="reference")(f(1, 3))["y"].device == "reference"
    with pytest.raises(FulguriteError, match="device"):
        load(simple("Neg"), device="toaster")


def test_weights_are_read_when_they_are_used() -> None:
    made = load(perceptron())
    kept = made.program.weights_of(made.program.graph).made
    assert not kept
    made(f(1, 4))
    assert "w1" in kept


def test_assigning_an_output_leaves_the_model_as_it_was() -> None:
    weight = f(2, 3)
    nodes = [node("Identity", "w", "kept"), node("Add", "x w", "y")]
    ports = [port("kept", "float32", (2, 3)), port("y", "float32", (2, 3))]
    made = load(model(graph(nodes, [port("x", "float32", (2, 3))], ports, {"w": weight})))
    x = f(2, 3)
    for given in (x, x, fg.Tensor(x) * 1):
        found = made(given)
        found["kept"].assign(np.full((2, 3), 9, np.float32))
        found["kept"][0] = 4
        np.testing.assert_array_equal(made(x)["kept"].numpy(), weight)
        np.testing.assert_allclose(made(x)["y"].numpy(), x + weight, rtol=1e-6)


def test_a_model_is_a_part_of_a_captured_function() -> None:
    made = load(simple("Exp"))
    captured = fg.jit(lambda x: made(x)["y"] + 1)
    for x in (f(2, 3), f(2, 3), f(2, 3), f(4, 3)):
        np.testing.assert_allclose(captured(fg.Tensor(x)).numpy(), np.exp(x) + 1, rtol=1e-6)


def test_pictures_become_smaller_in_batches_of_any_size() -> None:
    modes = {"nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}
    for opset, inputs, attributes in ((10, "x s", {}), (13, "x . s", modes)):
        resize = node("Resize", inputs, "y", **attributes)
        scales = {"s": np.array([1, 1, 1, 0.6], np.float32)}
        made = load(
            model(graph([resize], [port("x", shape=("n", 1, 2, 5))], [port("y")], scales), opset),
            dims={"n": fg.Var("n", 1, 9)},
        )
        for n in (1, 4, 9):
            x = f(n, 1, 2, 5)
            np.testing.assert_array_equal(made(x)["y"].numpy(), x[..., [0, 2, 4]])
        assert made.builds == 1 and not made.reasons


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("size", "factor"), [(16, 2), (17, 3), (19, 4), (16, 5), (9, 2)])
def test_rows_that_are_made_in_turns_are_those_that_are_picked_one_by_one(
    size: int, factor: int, mode: str, coordinates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resize = node("Resize", "x . s", "y", mode=mode, coordinate_transformation_mode=coordinates)
    scales = {"s": np.array([1, 1, factor, factor], np.float32)}
    x = f(2, 3, 5, size)
    x[0, 1, 2, [0, 7, -1]] = 3e30, -2e30, 1e30
    found = []
    for phases in (resizing.PHASES, 1):
        monkeypatch.setattr(resizing, "PHASES", phases)
        made = load(model(graph([resize], [port("x", shape=x.shape)], [port("y")], scales)))
        found.append(made(x)["y"].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=2e-6, atol=1e-6)


@pytest.mark.device("cpu")
def test_a_picture_that_was_made_larger_is_stored_before_a_product_is_added_to_it() -> None:
    """Or the product's results would look up repeated pixels one by one."""
    nodes = [node("Resize", "x . s", "l", mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric"),
             node("Conv", "p w", "c"), node("Add", "c l", "y")]  # fmt: skip
    weights = {"s": np.array([1, 1, 2, 2], np.float32), "w": f(32, 16, 1, 1)}
    x, p = f(1, 32, 20, 20), f(1, 16, 40, 40)
    ports = [port("x", shape=x.shape), port("p", shape=p.shape)]
    made = load(model(graph(nodes, ports, [port("y")], weights)))
    want = np.einsum("nchw,oc->nohw", p, weights["w"][:, :, 0, 0]) + x.repeat(2, 2).repeat(2, 3)
    np.testing.assert_allclose(made(x, p)["y"].numpy(), want, rtol=1e-4, atol=1e-4)
    assert made.last is not None and made.last.schedule is not None
    products = [i.kernel for i in made.last.schedule.items if i.kernel.kind == "contract"]
    params = [n for kernel in products for n in toposort([kernel.body]) if n.op is PARAM]
    assert params and x.size not in [elements(n.shape) for n in params]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_picture_that_was_turned_is_stored_before_it_becomes_larger(mode: str) -> None:
    turned = node("Transpose", "x", "t", perm=[0, 3, 1, 2])
    resize = node("Resize", "t . s", "y", mode=mode, coordinate_transformation_mode="asymmetric")
    scales, x = {"s": np.array([1, 1, 2, 4], np.float32)}, f(1, 16, 16, 32)
    made = load(model(graph([turned, resize], [port("x", shape=x.shape)], [port("y")], scales)))
    found = made(fg.Tensor(x) + 0.0)["y"]
    first = fg.schedule(found).items[0].kernel
    assert [root.shape for root in first.body.src] == [(1, 32, 16, 16)]
    picked = found.numpy()[:, :, ::2, ::4]
    np.testing.assert_allclose(picked, x.transpose(0, 3, 1, 2), rtol=1e-6)


def test_neighbours_are_weighed_by_the_places_that_chose_them() -> None:
    """A place is a sum: with other bits in another kernel its neighbours would be others."""
    nodes = [
        node("AffineGrid", "theta size", "grid"),
        node("GridSample", "x grid", "y", mode="cubic", padding_mode="reflection", align_corners=1),
    ]  # fmt: skip
    ports = [port("x", shape=(1, 2, 16, 16)), port("theta", shape=(1, 2, 3))]
    size = {"size": np.array([1, 2, 12, 12])}
    text = model(graph(nodes, ports, [port("y")], size), 20)
    turned = np.array([[[0.9, 0.1, 0], [-0.1, 0.9, 0.1]]], np.float32)  # some places are whole
    x = f(1, 2, 16, 16)
    wanted = load(text, device="reference")(x, turned)["y"].numpy()
    np.testing.assert_allclose(load(text)(x, turned)["y"].numpy(), wanted, atol=1e-4)


def test_an_infinite_pixel_stays_among_its_neighbours() -> None:
    resize = node("Resize", "x . s", "y", mode="linear")
    x = np.zeros((1, 1, 1, 16), np.float32)
    x[..., 4] = np.inf
    scales = {"s": np.array([1, 1, 1, 2], np.float32)}
    made = load(model(graph([resize], [port("x", shape=x.shape)], [port("y")], scales)))
    found = made(x)["y"].numpy().reshape(-1)
    assert np.flatnonzero(found).tolist() == [7, 8, 9, 10] and not np.isnan(found).any()


@pytest.mark.parametrize("places", [[[0, 5]], [[0, -4]], [[-3, 0]], [[2, 0]]])
def test_a_place_outside_its_axis_is_an_error_though_all_axes_together_have_it(
    places: list[list[int]],
) -> None:
    ports = [port("x", shape=(2, 3)), port("i", "int64", (1, 2))]
    gather = load(model(graph([node("GatherND", "x i", "y")], ports, [port("y")])))
    x = f(2, 3)
    assert gather(x, np.array([[-2, -3]]))["y"].tolist() == [x[0, 0]]
    with pytest.raises(FulguriteError, match="outside an axis"):
        gather(x, np.array(places))["y"].numpy()
    ports.append(port("u", shape=(1,)))
    scatter = load(model(graph([node("ScatterND", "x i u", "y")], ports, [port("y")])))
    with pytest.raises(FulguriteError, match="outside an axis"):
        scatter(x, np.array(places), f(1))["y"].numpy()


FAMILIES = """
import sys, numpy as np, fulgurite as fg
from tests.onnx.models import simple
made = fg.onnx.load(simple("Exp"))
made(np.ones((2, 3), np.float32))
loaded = [n.removeprefix("fulgurite.onnx.ops.") for n in sys.modules if ".onnx.ops." in n]
from fulgurite.onnx.ops import entry_of
assert entry_of("", "NoSuchOperator") is None and entry_of("com.microsoft", "Gelu") is not None
from fulgurite.onnx.table import OPERATORS
print(*loaded, "ml_dtypes" in sys.modules, len(OPERATORS) > 200)
"""


def test_a_model_loads_the_families_of_operators_that_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAMILIES], capture_output=True, text=True, check=True, cwd=ROOT
    )
    *loaded, narrow, every = done.stdout.split()
    assert "elementwise" in loaded and not {"quantised", "strings", "contrib.image"} & {*loaded}
    assert (narrow, every) == ("False", "True")


def test_messages_hold_what_a_file_says_and_defaults_for_the_rest() -> None:
    one, two = Attribute(name="pads", ints=[1, 2]), Attribute()
    assert (one.name, one.ints, one.i, two.name, two.ints) == ("pads", [1, 2], 0, "", ())


@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_numbers_in_a_row_are_read_alike_whether_few_or_many(count: int) -> None:
    def varint(n: int) -> bytes:
        n, found = n % 2**64, []
        while n > 127:
            found.append(n % 128 + 128)
            n //= 128
        return bytes([*found, n])

    numbers = [(-1) ** i * 3**i % 2**63 if i % 3 else -i for i in range(count)]
    numbers += [-(2**63), 2**63 - 1] if count > 1 else []
    packed = b"".join(map(varint, numbers))
    found = parse(memoryview(b"\x0a" + varint(len(packed)) + packed), "Tensor")
    assert list(found.dims) == numbers
    if packed:
        with pytest.raises(ModelError):
            parse(memoryview(b"\x0a" + varint(len(packed)) + packed[:-1] + b"\x80"), "Tensor")


def test_a_weight_that_only_a_computed_one_is_read_of_is_held_once() -> None:
    weight, scale = f(8, 4, 3, 3), f(8)
    nodes = [
        node("Conv", "x w", "c"), node("BatchNormalization", "c s b m v", "y"),
    ]  # fmt: skip
    weights = {"w": weight, "s": scale, "b": f(8), "m": f(8), "v": abs(f(8))}
    made = load(model(graph(nodes, [port("x", shape=("n", 4, 9, 9))], [port("y")], weights)))
    for rows in (2, 3, 2):
        x = f(rows, 4, 9, 9)
        found = made(x)["y"].numpy()
        with fg.config(device="reference"):
            wanted = load(
                model(graph(nodes, [port("x", shape=("n", 4, 9, 9))], [port("y")], weights))
            )
            np.testing.assert_allclose(found, wanted(x)["y"].numpy(), rtol=1e-4, atol=1e-4)
    (held,) = made.program.weights.values()
    assert made.last is not None and made.last.schedule is not None
    buffers = made.last.schedule.buffers
    left = [v for v in held.made.values() if v._tensor is not None]
    assert all(v.tensor.node in buffers for v in left)


def test_a_model_of_a_file_reads_it_again_after_its_pages_were_given_back(tmp_path: Path) -> None:
    w = f(300, 400)
    path = tmp_path / "m.onnx"
    ports = [port("x", shape=("n", 300))]
    path.write_bytes(model(graph([node("MatMul", "x w", "y")], ports, [port("y")], {"w": w})))
    made = load(path)
    for rows in (3, 5):
        x = f(rows, 300)
        np.testing.assert_allclose(made(x)["y"].numpy(), x @ w, rtol=1e-4, atol=1e-3)
        for weights in made.program.weights.values():
            for value in weights.made.values():
                value._tensor = None


@pytest.mark.device("cpu")
def test_more_elements_than_can_be_counted_are_an_error_also_in_a_plan_of_another_size() -> None:
    """What was compiled is used again for other sizes: its numbers are checked like the first."""
    x = np.ones(2, np.float32)

    def made(*shape: int) -> Any:
        line, sizes = node("ConstantOfShape", "s", "y"), {"s": np.array(shape, np.int64)}
        ports = [port("x", "float32", (2,))], [port("y", "float32")]
        return load(model(graph([line], *ports, sizes)))(x)["y"].numpy()

    assert made(300, 500).shape == (300, 500)
    assert made(400, 700).shape == (400, 700)
    with pytest.raises(MemoryLimitError, match="elements"):
        made(1 << 33, 1 << 45)
