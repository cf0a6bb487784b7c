"""Every layer and loss beside torch: state by name, outputs, gradients, buffers after a call.

Skipped, one test each, where torch is not installed; run with the `peers` extra.
"""

from importlib.util import find_spec

import numpy as np
import pytest

import fulgurite as fg
from tests.nn.cases import Case, ours, theirs
from tests.nn.known import agrees, known
from tests.nn.table import ODD, USUAL

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.parametrize("case", [*USUAL, *ODD], ids=lambda case: case.name)
def test_a_layer_does_what_torch_does(case: Case) -> None:
    found, wanted = ours(case).arrays, theirs(case).arrays
    assert sorted(found) == sorted(wanted)
    agrees(case, theirs(case), known()[case.name])  # so the file is not stale
    for name, want in wanted.items():
        size = max(1.0, float(np.abs(want).max(initial=0)))
        assert found[name].shape == want.shape, name
        np.testing.assert_allclose(
            found[name], want, rtol=case.tolerance, atol=case.tolerance * size, err_msg=name
        )


@pytest.mark.parametrize("case", [*USUAL, *ODD], ids=lambda case: case.name)
def test_a_state_goes_both_ways(case: Case) -> None:
    import torch

    mine, other = case.make(fg.nn), case.make(torch.nn)
    assert list(mine.state_dict()) == list(other.state_dict())
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in other.named_parameters()]
    mine.load_state_dict(other.state_dict())
    for name, tensor in mine.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), other.state_dict()[name].numpy())
    fresh = case.make(fg.nn)
    other.load_state_dict({n: torch.tensor(t.numpy()) for n, t in fresh.state_dict().items()})
    for name, tensor in fresh.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), other.state_dict()[name].numpy())


def test_states_in_half_precision_and_with_gradients_are_taken() -> None:
    import torch

    other = torch.nn.Linear(3, 2)
    mine = fg.nn.Linear(3, 2)
    mine.load_state_dict(dict(other.named_parameters()))
    np.testing.assert_array_equal(mine.weight.numpy(), other.weight.detach().numpy())
    other.bfloat16()
    mine.load_state_dict(other.state_dict())
    np.testing.assert_array_equal(mine.weight.numpy(), other.weight.detach().float().numpy())
    with torch.no_grad():
        other.weight += 1  # what was loaded is a copy
    assert (mine.weight.numpy() != other.weight.detach().float().numpy()).all()
