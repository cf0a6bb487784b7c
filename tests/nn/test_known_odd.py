"""Odd configurations of layers and losses give what torch gave; on the reference device only.

What native code does with the kernels of a layer is checked on its usual configuration.
"""

import pytest

from tests.nn.cases import Case, ours
from tests.nn.known import agrees, known
from tests.nn.table import ODD

KNOWN = known()


@pytest.mark.parametrize("case", ODD, ids=lambda case: case.name)
def test_a_layer_gives_the_known_values(case: Case) -> None:
    agrees(case, ours(case), KNOWN[case.name])
