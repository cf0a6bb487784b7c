"""Tests of fulgurite/native: kernels in machine code agree with the reference."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.graph.lower import lower
from fulgurite.native.render import render
from fulgurite.native.target import Target
from fulgurite.runtime import device
from fulgurite.runtime.cpu import CpuDevice, params_of
from tests import fuzz

pytest.importorskip("llvmlite")
_VECTORS = {4: "sse2", 8: "avx2", 16: "avx512"}


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> CpuDevice:
    """The reference device replaced by native code, for tests written against it."""
    found = CpuDevice()
    monkeypatch.setitem(device._devices, "reference", found)
    fg.clear_caches()
    return found


def test_random_graphs_agree_in_machine_code(native: CpuDevice) -> None:
    for seed in range(200):
        fuzz.check(seed, smallest=False)
    assert native.native > 3 * len(native.interpreted)


@pytest.mark.slow
def test_many_random_graphs_agree_in_machine_code(native: CpuDevice) -> None:
    for seed in range(10_000):
        fuzz.check(seed, smallest=False)


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


def test_long_float_sums_keep_their_accuracy(native: CpuDevice) -> None:
    ours, numpys = [], []
    for seed in range(20):
        x = np.random.default_rng(seed).normal(1, 1, 1 << 18).astype(np.float32)
        exact = x.sum(dtype=np.float64)
        ours.append(float(fg.Tensor(x).sum()) - exact)
        numpys.append(float(x.sum()) - exact)
    assert np.sqrt(np.mean(np.square(ours))) <= 1.5 * np.sqrt(np.mean(np.square(numpys)))


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


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_kernel_renders_at_every_vector_width(
    lanes: int, golden: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = fg.ones((8, 24)).realize()
    (item,) = fg.schedule(fg.softmax(x, axis=-1)).items
    kernel = item.kernel
    dtypes = [p.dtype for p in params_of(kernel)]
    text = render(lower(kernel.body, kernel.inputs), dtypes, Target("x86_64", _VECTORS[lanes])).text
    assert f"<{lanes} x float>" in text
    assert callable(golden)
    golden(text, f"native/softmax_{lanes}.ll")
    assert all(n.op.name != "custom" for n in toposort([kernel.body]))
