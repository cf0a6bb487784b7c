"""Room behind the rows of matrices that products read: which have it, and that values stay."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from tests.kernel.contract.test_channels_last import normal, written


def product(columns: int, dtype: str = "bfloat16") -> fg.Tensor:
    """A product of a product in few bits, with something in between that is stored."""
    a, b = normal(9, 16).astype(dtype), normal(16, columns).astype(dtype)
    middle = fg.softmax(a @ b, axis=-1)
    return middle @ normal(columns, 12).astype(dtype)


@pytest.mark.parametrize(
    ("columns", "dtype", "room"),
    [(77, "bfloat16", 80), (77, "float16", 80), (80, "bfloat16", 80), (13, "bfloat16", 13),
     (77, "float32", 77)],
)  # fmt: skip
def test_rows_in_16_bits_begin_at_multiples_of_16_bytes(
    columns: int, dtype: str, room: int
) -> None:
    with fg.config(search=False):
        assert (9, room) in written(product(columns, dtype))
        assert (9, columns) in written(product(columns, dtype), "off")


def test_values_are_the_same() -> None:
    found = []
    for layout in ("off", "on"):
        with fg.config(tier="native", search=False, channels_last=layout, poison=True):
            found.append(np.asarray(product(77).astype("float32").numpy()))
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-2)
