"""Odd configurations of layers and losses give what torch gave; on the reference device only.

What native code does with the kernels of a layer is checked on its usual configuration.
"""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from tests.nn.cases import Case, arrays_of, flat, ours
from tests.nn.known import agrees, known
from tests.nn.table import ODD, USUAL

pytestmark = pytest.mark.device("reference")

KNOWN = known()


@pytest.mark.parametrize("case", ODD, ids=lambda case: case.name)
def test_a_layer_gives_the_known_values(case: Case) -> None:
    agrees(case, ours(case), KNOWN[case.name])


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_layers_keep_the_dtype_that_they_are_in(dtype: str) -> None:
    for case in [*USUAL, *ODD]:
        layer = case.make(fg.nn).to(dtype).train(case.train)
        given = [in_dtype(value, dtype) for value in arrays_of(case)]
        words = {name: in_dtype(value, dtype) for name, value in case.keywords.items()}
        found = {str(out.dtype) for out in flat(layer(*given, **words))}
        assert found - {"int64"} == {dtype}, case.name  # places that pools tell are whole numbers


def in_dtype(value: Any, dtype: str) -> Any:
    """An array as a tensor, floats in this dtype."""
    if not isinstance(value, np.ndarray):
        return value
    tensor = fg.Tensor(value)
    return tensor.astype(dtype) if tensor.dtype.is_inexact else tensor
