"""Tests of interop/dlpack.py."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import DataError

DTYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64",
          "complex64", "complex128"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_dlpack_goes_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    a = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    x = fg.from_dlpack(a)
    assert str(x.dtype) == dtype and x.shape == shape
    back = np.from_dlpack(x)  # type: ignore[arg-type]
    np.testing.assert_array_equal(back, a)
    assert not back.flags.writeable


@pytest.mark.host_memory
def test_an_array_that_came_by_dlpack_is_shared_and_kept_alive() -> None:
    a = np.arange(4.0)
    x = fg.from_dlpack(a)
    y = x + 1
    a[0] = 10
    assert y.tolist() == [11.0, 2.0, 3.0, 4.0]
    held = np.from_dlpack(fg.Tensor([5.0, 6.0]) * 2)  # type: ignore[arg-type]
    gc.collect()
    assert held.tolist() == [10.0, 12.0]
    assert fg.from_dlpack(a, copy=True).tolist() == [10.0, 1.0, 2.0, 3.0]


def test_what_was_handed_out_does_not_change_when_the_tensor_does() -> None:
    x = fg.Tensor(np.ones(1000)) * 1
    shown = np.from_dlpack(x)  # type: ignore[arg-type]
    x += 5
    assert x.numpy()[0] == 6 and shown[0] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_dtypes_that_numpy_does_not_send_come_back(dtype: str) -> None:
    x = fg.Tensor([1.0, -2.0, 0.5], dtype=dtype)
    y = fg.from_dlpack(_Foreign(x))
    assert y.dtype is x.dtype and y.tolist() == [1.0, -2.0, 0.5]


class _Foreign:
    """Another library's array, of which only DLPack is known."""

    def __init__(self, x: fg.Tensor) -> None:
        self.x = x

    def __dlpack__(self, *, max_version: Any = None) -> object:
        return self.x.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


@pytest.mark.host_memory
def test_old_consumers_get_a_copy_and_wrong_ones_an_error() -> None:
    x = fg.Tensor([1.0, 2.0])
    assert x.__dlpack_device__() == (1, 0)
    assert "dltensor" in repr(x.__dlpack__())
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__(copy=False)
    with pytest.raises(BufferError, match="not on"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(DataError, match="does not know DLPack"):
        fg.from_dlpack([1, 2])


def test_another_librarys_array_is_named_with_the_way_in() -> None:
    class Foreign:
        def __dlpack__(self) -> object:
            raise AssertionError

        def __array__(self, dtype: object = None, copy: object = None) -> object:
            raise RuntimeError("it needs a gradient")

    foreign: Any = Foreign()
    with pytest.raises(DataError, match=r"Foreign .*\n.*\n.*from_dlpack"):
        fg.Tensor([1.0]) + foreign
    with pytest.raises(DataError, match=r"needs a gradient\n.*\n.*from_dlpack"):
        fg.Tensor(foreign)
