"""Tests of extend/index_kernel.py and extend/llvm_kernel.py: kernels of the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from fulgurite.extend.index_kernel import USER_KERNELS
from fulgurite.runtime.device import DeviceError

pytestmark = pytest.mark.device("every")


@pytest.fixture(autouse=True, params=["auto", "native"])
def tier(request: pytest.FixtureRequest) -> Iterator[None]:
    with fg.config(tier=request.param):
        yield


def data(*shape: int) -> Array:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def product_shape(a: Any, b: Any) -> Any:
    return a.shape[0], b.shape[1]


@fg.kernel(out=product_shape)
def product(i: Any, j: Any, *, a: Any, b: Any) -> Any:
    """A matrix product."""
    return fg.sum_over(lambda k: a[i, k] * b[k, j], a.shape[1])


# --- index notation ------------------------------------------------------------------------------


def test_a_product_in_index_notation_is_a_contraction() -> None:
    a, b = data(5, 7), data(7, 3)
    y = product(fg.Tensor(a), fg.Tensor(b))
    assert [item.kind for item in fg.schedule(y).items] == ["contract"]
    np.testing.assert_allclose(y.numpy(), a @ b, rtol=1e-5, atol=1e-6)


def test_a_kernel_in_index_notation_has_gradients_and_batches() -> None:
    a, b = data(5, 7), data(7, 3)
    got = fg.grad(lambda a, b: product(a, b).sum(), (0, 1))(fg.Tensor(a), fg.Tensor(b))
    np.testing.assert_allclose(got[0].numpy(), np.ones((5, 3)) @ b.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1].numpy(), a.T @ np.ones((5, 3)), rtol=1e-5, atol=1e-5)
    many = data(4, 5, 7)
    batch = fg.vmap(product, in_axes=(0, None))(fg.Tensor(many), fg.Tensor(b))
    np.testing.assert_allclose(batch.numpy(), many @ b, rtol=1e-5, atol=1e-5)


def test_shifted_indices_are_views_with_zeros_outside() -> None:
    @fg.kernel(out=lambda a: a.shape)
    def stencil(i: Any, j: Any, *, a: Any) -> Any:
        around = a.get(i - 1, j) + a.get(1 + i, j) + a.get(i, j - 2)
        return around - 2 * a[i, j] + fg.where(i > j, 1.0, 0.0)

    x = data(5, 6)
    padded = np.pad(x, 2)
    around = padded[1:-3, 2:-2] + padded[3:-1, 2:-2] + padded[2:-2, :-4]
    expected = around - 2 * x + np.tril(np.ones((5, 6)), -1)
    y = stencil(fg.Tensor(x))
    assert [item.kind for item in fg.schedule(y).items] == ["map"]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_any_expression_of_indices_is_a_place() -> None:
    @fg.kernel(out=lambda a, w: (a.shape[0] - w.shape[0] + 1,))
    def correlate(i: Any, *, a: Any, w: Any) -> Any:
        return fg.sum_over(lambda k: a[i + k] * w[k], w.shape[0])

    @fg.kernel(out=lambda a: (a.shape[0] * 2,))
    def twice(i: Any, *, a: Any) -> Any:
        return a[i // 2]

    @fg.kernel(out=lambda a: (a.shape[0],))
    def diagonal(i: Any, *, a: Any) -> Any:
        return a[i, i]

    @fg.kernel(out=lambda a: (a.shape[1],))
    def second(j: Any, *, a: Any) -> Any:
        return a[1, j]

    a, w, m = data(9), data(3), data(4, 4)
    np.testing.assert_allclose(
        correlate(fg.Tensor(a), fg.Tensor(w)).numpy(), np.correlate(a, w), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(twice(fg.Tensor(a)).numpy(), np.repeat(a, 2))
    np.testing.assert_array_equal(diagonal(fg.Tensor(m)).numpy(), np.diag(m))
    np.testing.assert_array_equal(second(fg.Tensor(m)).numpy(), m[1])


def test_an_index_from_data_is_checked_when_it_is_known() -> None:
    @fg.kernel(out=lambda table, chosen: (chosen.shape[0], table.shape[1]))
    def rows(i: Any, j: Any, *, table: Any, chosen: Any) -> Any:
        return table[chosen[i], j]

    x = data(5, 3)
    np.testing.assert_array_equal(rows(fg.Tensor(x), fg.Tensor([4, 0])).numpy(), x[[4, 0]])
    with pytest.raises(BoundsError):
        rows(fg.Tensor(x), fg.Tensor([5])).numpy()

    @fg.kernel(out=lambda table, chosen: chosen.shape)
    def some(i: Any, *, table: Any, chosen: Any) -> Any:
        return table.get(chosen[i], 0, other=-1)

    got = some(fg.Tensor(x), fg.Tensor([5, 2, -1])).numpy()
    np.testing.assert_array_equal(got, np.array([-1, x[2, 0], -1], np.float32))


def test_folds_nest_and_may_not_need_their_index() -> None:
    @fg.kernel(out=lambda a: (a.shape[0],))
    def both(i: Any, *, a: Any) -> Any:
        inner = fg.sum_over(
            lambda k: fg.max_over(lambda m: a[i, k] * a[i, m], a.shape[1]), a.shape[1]
        )
        return inner + fg.sum_over(lambda k: 2, 3) + fg.min_over(lambda k: a[i, k], a.shape[1])

    x = data(4, 5)
    outer = x[:, :, None] * x[:, None, :]
    expected = outer.max(axis=2).sum(axis=1) + 6 + x.min(axis=1)
    np.testing.assert_allclose(both(fg.Tensor(x)).numpy(), expected, rtol=1e-5)


def test_operands_are_given_by_position_or_name_and_the_dtype_can_be_said() -> None:
    a, b = data(2, 3), data(3, 2)
    by_name = product(b=fg.Tensor(b), a=fg.Tensor(a))
    np.testing.assert_allclose(by_name.numpy(), a @ b, rtol=1e-5)
    assert product.__name__ == "product" and "matrix product" in (product.__doc__ or "")

    @fg.kernel(out=(3, 2), dtype="float64")
    def table(i: Any, j: Any) -> Any:
        return i * 10 + j

    assert table().dtype is fg.float64
    assert table().tolist() == [[0, 1], [10, 11], [20, 21]]


def test_wrong_kernels_are_errors_at_the_line_that_is_wrong() -> None:
    a = fg.Tensor(data(4, 4))
    v = fg.Tensor(data(4))

    def made(out: Any, function: Any) -> Any:
        return fg.kernel(out=out)(function)

    wrong: list[tuple[type[Exception], str, Any]] = [
        (ArgumentError, "lacks b", lambda: product(a)),
        (ArgumentError, "takes 2 tensors, not 3", lambda: product(a, a, a)),
        (ArgumentError, "'c' is none of its tensors", lambda: product(a, c=a)),
        (ArgumentError, "'a' is given twice", lambda: product(a, a=a)),
        (BoundsError, "index 0 of b runs from 0 to 3 in a dimension of size 2",
         lambda: product(a, a[:2])),
        (ShapeError, r"no out shape for a \(4, 4\), b \(4,\)", lambda: product(a, v)),
        (ShapeError, "2 dimensions and is read at 1", lambda: made((4,), _before)(a)),
        (ShapeError, "2 indices for a result of 1", lambda: made((4,), lambda i, j: i)()),
        (ArgumentError, "takes", lambda: made((4,), lambda *i: i[0])),
        (DTypeError, "index 0 of a is float32", lambda: made((4,), _float_index)(v)),
        (ArgumentError, "index 0 of a is str", lambda: made((4,), _text_index)(v)),
        (ArgumentError, "outside of a kernel", lambda: fg.sum_over(lambda k: k, 3)),
        (ShapeError, "for one element", lambda: made((4,), _whole)(v)),
        (BoundsError, "runs from -1 to 2", lambda: made((4,), _before)(v)),
        (ArgumentError, "pattern is a function", lambda: fg.kernel(out=(), pattern=3)(lambda: 1)),  # type: ignore[arg-type]
    ]  # fmt: skip
    for kind, complaint, ask in wrong:
        with pytest.raises(kind, match=complaint) as caught:
            ask()
        assert "test_kernel.py:" in str(caught.value)


def _float_index(i: Any, *, a: Any) -> Any:
    return a[i * 0.5]


def _text_index(i: Any, *, a: Any) -> Any:
    return a["x"]


def _whole(i: Any, *, a: Any) -> Any:
    return fg.ones((3, 4))


def _before(i: Any, *, a: Any) -> Any:
    return a[i - 1]


def test_dimensions_may_be_empty_or_of_variable_size() -> None:
    @fg.kernel(out=lambda a, b: (a.shape[0], b.shape[1]))
    def product(i: Any, j: Any, *, a: Any, b: Any) -> Any:
        return fg.sum_over(lambda k: a[i, k] * b[k, j], a.shape[1])

    @fg.kernel(out=lambda a: a.shape)
    def turned(i: Any, *, a: Any) -> Any:
        return a[a.shape[0] - 1 - i]

    assert product(fg.zeros((0, 3)), fg.zeros((3, 2))).tolist() == []
    assert product(fg.zeros((2, 0)), fg.zeros((0, 1))).tolist() == [[0], [0]]
    n, x = fg.Var("n", 1, 5), data(5, 5)
    for count in (2, 5):
        part = fg.Tensor(x)[: n.bind(count)]
        got = product(part, fg.Tensor(x)).numpy()
        np.testing.assert_allclose(got, x[:count] @ x, rtol=1e-4, atol=1e-5)
        assert turned(fg.arange(n.bind(count))).tolist() == list(range(count))[::-1]

    @fg.kernel(out=lambda a: a.shape)
    def beyond(i: Any, *, a: Any) -> Any:
        return a[i + 1]

    with pytest.raises(BoundsError, match="of size n"):
        beyond(fg.arange(n.bind(2)))


def test_a_pattern_is_kept_for_a_search() -> None:
    before = len(USER_KERNELS)

    def plain(a: Any) -> Any:
        return a * 2

    @fg.kernel(out=lambda a: a.shape, pattern=plain)
    def double(i: Any, *, a: Any) -> Any:
        return a[i] + a[i]

    (entry,) = USER_KERNELS[before:]
    assert entry.name == "double" and entry.pattern is plain and entry.run is double
    x = fg.Tensor(data(4))
    np.testing.assert_array_equal(entry.run(x).numpy(), plain(x).numpy())
    USER_KERNELS.pop()


# --- native text ---------------------------------------------------------------------------------

TEXT = """
@twice = private constant [2 x float] [float 1.0, float 2.0]
declare float @llvm.fabs.f32(float)
define internal float @helper(float %a) {
  %b = call float @llvm.fabs.f32(float %a)
  ret float %b
}
define void @both(ptr %params, ptr %values, i64 %first, i64 %last) {
entry:
  %x = load ptr, ptr %params
  %a1 = getelementptr ptr, ptr %params, i64 1
  %y = load ptr, ptr %a1
  %a2 = getelementptr ptr, ptr %params, i64 2
  %z = load ptr, ptr %a2
  %place = getelementptr i64, ptr %values, i64 3
  %columns = load i64, ptr %place
  %from = mul i64 %first, %columns
  %to = mul i64 %last, %columns
  %some = icmp slt i64 %from, %to
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %from, %entry ], [ %next, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %px
  %w = call float @helper(float %v)
  %py = getelementptr float, ptr %y, i64 %i
  store float %w, ptr %py
  %pt = getelementptr float, ptr @twice, i64 1
  %t = load float, ptr %pt
  %u = fmul float %v, %t
  %pz = getelementptr float, ptr %z, i64 %i
  store float %u, ptr %pz
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %to
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
SAME: Any = ("float32", lambda x: x)


def native(text: str = TEXT, name: str = "both", **more: Any) -> Any:
    """|x| and 2x of a matrix, a unit for each row."""
    settings: dict[str, Any] = {
        "inputs": [("float32", 2)], "outputs": [SAME, SAME], "units": lambda x, *_: x[0],
        "fallback": lambda a: (np.abs(a), a * np.float32(2)),
    }  # fmt: skip
    return fg.native_kernel(text, name, **settings | more)


@pytest.fixture
def cpu() -> Iterator[None]:
    pytest.importorskip("llvmlite")
    with fg.config(device="cpu"):
        yield


def test_a_native_kernel_computes_on_every_device() -> None:
    x = data(3, 4)
    size, double = native()(fg.Tensor(x))
    fg.realize(size, double)
    np.testing.assert_array_equal(size.numpy(), np.abs(x))
    np.testing.assert_array_equal(double.numpy(), x * 2)


@pytest.mark.usefixtures("cpu")
def test_a_schedule_holds_raw_kernels_of_the_user() -> None:
    both = native(fallback=None)
    x = data(6, 5)
    size, double = both((fg.Tensor(x) + 1).T)
    plan = fg.schedule(size * double)
    assert "user" in [item.kind for item in plan.items]
    (code,) = [k.code for k in plan.compile().kernels if k.kernel.kind == "user"]
    assert type(code).__name__ == "Native"  # a record of the driver, like any other
    np.testing.assert_allclose(plan.run()[0].numpy(), (np.abs(x + 1) * (x + 1) * 2).T, rtol=1e-6)


@pytest.mark.usefixtures("cpu")
def test_a_native_kernel_reads_any_value_and_may_give_only_some_results() -> None:
    both = native(fallback=None)
    x = data(4, 4)
    t = fg.Tensor(x)
    np.testing.assert_array_equal(both(t.T)[0].numpy(), np.abs(x.T))
    np.testing.assert_array_equal(both(t[1:, ::2])[1].numpy(), x[1:, ::2] * 2)
    np.testing.assert_array_equal(both(fg.ones((2, 3)))[1].numpy(), np.full((2, 3), 2.0))
    np.testing.assert_array_equal(both(t.reshape(2, 8))[0].numpy(), np.abs(x).reshape(2, 8))
    chained = both(both(t)[1])[0]
    np.testing.assert_array_equal(chained.numpy(), np.abs(x * 2))
    np.testing.assert_array_equal(both(t)[0].reshape(16).numpy(), np.abs(x).reshape(16))
    assert both(fg.zeros((0, 3)))[0].numpy().shape == (0, 3)


@pytest.mark.usefixtures("cpu")
def test_a_native_kernel_is_compiled_once_by_its_text_and_shared_among_threads() -> None:
    from fulgurite.runtime.cpu.toolchain import code

    text = TEXT.replace("float 2.0]", "float 3.0]")
    big = data(700, 300)
    np.testing.assert_array_equal(
        native(text, fallback=None)(fg.Tensor(big))[1].numpy(), big * np.float32(3)
    )
    before = code().compiled
    for shape in ((3, 4), (50, 7)):
        x = data(*shape)
        again = native(text, fallback=None)(fg.Tensor(x))[1]
        np.testing.assert_array_equal(again.numpy(), x * np.float32(3))
    assert code().compiled == before


@pytest.mark.usefixtures("cpu")
def test_a_native_kernel_runs_in_loops_and_has_the_gradient_it_was_given() -> None:
    both = native(fallback=None, grad=lambda gs, ys, x: gs[1] * 2)
    x = data(2, 3)
    got = fg.grad(lambda t: both(t)[1].sum())(fg.Tensor(x))
    np.testing.assert_array_equal(got.numpy(), np.full((2, 3), 2.0))
    one = native(outputs=[SAME], grad=lambda g, y, x: g * 3)  # of one result it is no list
    got = fg.grad(lambda t: one(t).sum())(fg.Tensor(x))
    np.testing.assert_array_equal(got.numpy(), np.full((2, 3), 3.0))
    last, _ = fg.scan(lambda h, _: (both(h)[1], None), fg.Tensor(x), length=5)
    np.testing.assert_array_equal(last.numpy(), x * 32)
    with pytest.raises(ArgumentError, match="knows no batches"):
        fg.vmap(both)(fg.ones((2, 2, 2)))


def test_what_is_passed_is_checked_against_what_was_declared() -> None:
    both, x = native(), fg.Tensor(data(3, 4))
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ArgumentError, "takes 1 tensors, not 2", lambda: both(x, x)),
        (DTypeError, "tensor 0 .* is float64, not float32", lambda: both(x.astype("float64"))),
        (ShapeError, r"tensor 0 .* has shape \(4,\)", lambda: both(x[0])),
        (ArgumentError, "has -1 units", lambda: native(units=-1)(x)),
        (ArgumentError, "nobody writes its outputs", lambda: native(units=0)(x)),
        (ArgumentError, "units of native kernel", lambda: native(units=lambda x: 1)(x)),
        (
            ArgumentError,
            "shape of an output",
            lambda: native(outputs=[("float32", lambda x, y: x)])(x),
        ),
        (ArgumentError, "has 'many' units", lambda: native(units=lambda *s: "many")(x)),
        (ArgumentError, "units is str", lambda: native(units="many")),
        (ArgumentError, "no outputs", lambda: native(outputs=[])),
        (ArgumentError, "input 0 is declared as", lambda: native(inputs=["float32"])),
        (ArgumentError, "output 0 is declared as", lambda: native(outputs=[("nothing", ())])),
    ]
    for kind, complaint, ask in wrong:
        with pytest.raises(kind, match=complaint) as caught:
            ask()
        assert "test_kernel.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("@both", "@other", "defines no function 'both'"),
        ("i64 %last", "i32 %last", r"'both' is void \(ptr, ptr, i64, i32\)"),
        ("private constant", "private global", "could be written"),
        ("@llvm.fabs.f32", "@fabsf", "calls fabsf, which is not in it"),
    ],
)
def test_a_text_that_cannot_be_a_kernel_is_refused_when_it_is_given(
    old: str, new: str, complaint: str
) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        native(TEXT.replace(old, new))


@pytest.mark.usefixtures("cpu")
def test_a_text_that_the_compiler_refuses_is_named_with_the_users_line() -> None:
    bad = native(TEXT.replace("fmul float", "fmul double"), fallback=None)
    y = bad(fg.Tensor(data(2, 2)))[0]
    with pytest.raises(ArgumentError, match="expected 'double'") as caught:
        y.numpy()
    assert "test_kernel.py:" in str(caught.value) and "'both'" in str(caught.value)


def test_without_native_code_a_kernel_needs_numpy_to_stand_in() -> None:
    with fg.config(device="reference"):
        x = fg.Tensor(data(2, 2))
        assert current().device == "reference"
        with pytest.raises(DeviceError, match="does not run on the reference device") as caught:
            native(fallback=None)(x)
        assert 'x.to("cpu")' in str(caught.value)
        np.testing.assert_array_equal(native()(x)[0].numpy(), np.abs(x.numpy()))
