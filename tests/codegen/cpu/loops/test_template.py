"""Tests of codegen/cpu/loops/template.py: kernels in machine code agree with the reference."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.target import Target
from fulgurite.runtime import device
from fulgurite.runtime.cpu.device import CpuDevice
from tests import fuzz
from tests.conftest import Golden

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import looped
from tests.codegen.cpu.machine import VECTORS, both, run, subject

Make = Callable[[fg.Tensor], fg.Tensor]


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuDevice]:
    """The reference device replaced by native code, for tests written against it."""
    found = CpuDevice()
    monkeypatch.setitem(device._devices, "reference", found)
    fg.clear_caches()
    with fg.config(device="reference"):
        yield found


def test_most_kernels_of_random_graphs_are_machine_code(native: CpuDevice) -> None:
    for seed in range(60):
        fuzz.check(seed, smallest=False)
    assert native.native > 3 * len(native.interpreted)


@pytest.mark.parametrize(
    "shape", [(4, 1000), (3, 17), (1, 1), (5, 16), (7, 15), (2, 4097)], ids=str
)
def test_row_kernels_of_odd_sizes(native: CpuDevice, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32) * 5
    t = fg.Tensor(x)
    top = x.max(axis=1, keepdims=True)
    e = np.exp((x - top).astype(np.float64))
    soft = fg.softmax(t, axis=-1).numpy()
    np.testing.assert_allclose(soft, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        t.sum(axis=1).numpy(), x.sum(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(
        t.sum(axis=0).numpy(), x.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(fg.argmax(t, axis=-1).numpy(), x.argmax(axis=1))
    assert native.native and not native.interpreted


def test_an_index_out_of_range_is_reported_and_touches_nothing(native: CpuDevice) -> None:
    table = fg.Tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert fg.take(table, fg.Tensor([2, 0]), axis=0).tolist() == [[4.0, 5.0], [0.0, 1.0]]
    with pytest.raises(IndexError, match="outside"):
        fg.take(table, fg.Tensor([2, 3]), axis=0).numpy()


def test_hostile_numbers(native: CpuDevice) -> None:
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 88.8, -104.0, 1.5, -2.5]
    x = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        for name, expected in (("exp", np.exp(x)), ("tanh", np.tanh(x)), ("sign", np.sign(x)),
                               ("floor", np.floor(x)), ("round", np.rint(x))):  # fmt: skip
            got = getattr(fg, name)(fg.Tensor(x)).numpy()
            np.testing.assert_allclose(got, expected, rtol=3e-7, atol=3e-45, err_msg=name)
    assert not native.interpreted


# --- maps ----------------------------------------------------------------------------------------


def test_contiguous_maps_of_any_shape_have_one_text() -> None:
    def update(*shape: int) -> fg.Tensor:
        return ones(*shape) * 0.5 + ones(*shape)

    first, second = subject(update(24)).render(), subject(update(7, 40, 300)).render()
    assert first.text == second.text
    assert (first.numbers, second.numbers) == ((24,), (84_000,))
    assert first.launches[0].units == 1 and second.launches[0].units > 16


def test_the_number_of_rows_is_no_part_of_the_text() -> None:
    few, many = subject(ones(8, 40) + ones(40)), subject(ones(300, 40) + ones(40))
    assert few.render().text == many.render().text


@pytest.mark.parametrize("vectors", VECTORS)
@given(size=st.integers(0, 9000))
def test_a_flat_map_of_any_length(vectors: str, size: int) -> None:
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    what = subject(ones(3) * 2 - 1)
    rendered = what.render(vectors)
    longer = type(rendered)(
        rendered.text,
        (type(rendered.launches[0])("kernel", -(-size // 4096), 0),),
        (),
        (size,),
    )
    assert what.sizes == [3, 1, 1, 3]
    numbers = [np.full(1, number, np.float32) for number in (2, 1)]
    found = run(longer, [x, *numbers, np.zeros_like(x)], vectors)
    np.testing.assert_array_equal(found[-1], x * 2 - 1)


MAPS: dict[str, Make] = {
    "transposed": lambda x: x.T * 2,
    "padded": lambda x: fg.pad(x, ((1, 2), (0, 3))) * 3,
    "flipped": lambda x: fg.flip(x, axis=(1,)) + 1,
    "strided": lambda x: x[:, ::2] - 1,
    "whole numbers": lambda x: x.cast("int32") // 3,
    "outer": lambda x: x[:, :1] * x[:1, :],
}


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (33, 70), (2, 5000), (600, 3)], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_maps_agree_on_unaligned_memory_unit_by_unit(
    name: str, shape: tuple[int, int], vectors: str
) -> None:
    for got, meant in both(MAPS[name](ones(*shape)), vectors, hostile=0.0):
        np.testing.assert_array_equal(got, meant)


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectors", VECTORS)
def test_a_kernel_renders_at_every_vector_width(vectors: str, golden: Golden) -> None:
    made = Target("x86_64", vectors)
    what = subject(fg.softmax(ones(8, 24), axis=-1))
    text = looped(what.kernel, what.dtypes, made).text
    assert f"<{made.lanes} x float>" in text
    golden(text, f"codegen/softmax_{made.lanes}.ll")


def test_text_for_another_processor_compiles() -> None:
    arm = Target("aarch64", "neon")
    for y in (fg.softmax(ones(8, 1000), axis=-1), ones(70, 90).sum(axis=0), ones(9, 9).T + 1):
        what = subject(y)
        assert compile_object([looped(what.kernel, what.dtypes, arm).text], arm)


def test_inner_loops_have_no_division_and_no_address_of_a_row() -> None:
    text = subject(fg.softmax(ones(40, 1024), axis=-1)).render().text
    bodies = [block for block in text.split("\n") if "urem" in block or "udiv" in block]
    assert not bodies
    assert text.count("mul i64") <= 3  # one for each walk over the row, outside the lanes


def test_a_second_walk_over_a_row_fetches_the_next_row() -> None:
    assert "llvm.prefetch" in subject(fg.softmax(ones(40, 1024), axis=-1)).render().text
    for once in (ones(40, 1024).sum(axis=1), ones(40, 1024) * 2):
        assert "llvm.prefetch" not in subject(once).render().text


def test_short_rows_of_a_map_share_a_unit() -> None:
    rows = subject(ones(64, 8, 16, 8).transpose(0, 2, 1, 3) * 2).render()
    assert rows.launches[0].units == 64
    for got, meant in both(ones(65, 3, 5, 7).transpose(0, 2, 1, 3) * 2):
        np.testing.assert_array_equal(got, meant)


def test_squares_are_transposed_for_each_step_of_axes_that_other_stores_have_not(
    native: CpuDevice,
) -> None:
    """A scatter stores what it adds, read across memory, and places that have fewer axes."""
    rng = np.random.default_rng(0)
    x, places = rng.standard_normal((3, 19, 21)).astype(np.float32), rng.integers(-8, 8, (21, 19))
    with fg.config(tier="native"):
        i = fg.Tensor(places)
        line = fg.broadcast_to(fg.where(i < 0, i + 8, i), (3, 21, 19))
        terms = fg.sqrt(fg.abs(fg.permute_dims(fg.Tensor(x), (0, 2, 1))))
        found = fg.scatter_add(fg.zeros((3, 21, 8)), 2, line, terms).numpy()
    wanted = np.zeros((3, 21, 8))
    rows = np.arange(21)[:, None]
    for n in range(3):
        np.add.at(wanted[n], (rows, places % 8), np.sqrt(np.abs(x[n].T)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
