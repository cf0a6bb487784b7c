"""The usual configuration of every layer and loss gives what torch gave, on every device."""

import pytest

import fulgurite as fg
from tests.nn.cases import Case, ours
from tests.nn.known import agrees, known
from tests.nn.table import ODD, USUAL

KNOWN = known()
WITHOUT_TORCH = {  # torch has none, or they draw: test_attention.py, test_dropout.py, ...
    "RoPE", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "ConstantPad1d",
    "ConstantPad3d", "ZeroPad1d", "Module", "ModuleDict", "ModuleList", "Parameter",
    "ParameterDict", "ParameterList", "Loaded",
}  # fmt: skip


@pytest.mark.parametrize("case", USUAL, ids=lambda case: case.name)
def test_a_layer_gives_the_known_values(case: Case) -> None:
    agrees(case, ours(case), KNOWN[case.name])


def test_every_layer_has_a_case() -> None:
    made = {type(part).__name__ for case in USUAL + ODD for part in case.make(fg.nn).modules()}
    layers = {name for name in fg.nn.__all__ if isinstance(getattr(fg.nn, name), type)}
    assert layers - made - WITHOUT_TORCH == set()


def test_cases_have_names_of_their_own_and_known_values() -> None:
    names = [case.name for case in USUAL + ODD]
    assert len(set(names)) == len(names)
    assert sorted(KNOWN) == sorted(names)
