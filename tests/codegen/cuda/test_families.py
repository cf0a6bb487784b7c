"""Tests of tests/codegen/cuda/families_on_gpu.py, which a lease of a GPU must not be spent on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda import families_on_gpu
from tests.codegen.cuda.families_on_gpu import FAMILIES, checked


@pytest.mark.parametrize("name", FAMILIES)
def test_both_sides_of_a_family_say_the_same(name: str) -> None:
    _, what, worst, wrong = checked(name, 3, "cpu")
    assert not wrong, f"{what}: {wrong}"
    assert 0 <= worst < 3e-2


def test_a_wrong_value_is_told_with_the_seed_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = FAMILIES["sorts"](np.random.default_rng(0))
    wrong = case._replace(exact=lambda x: [-x, np.argsort(x)])
    monkeypatch.setitem(FAMILIES, "sorts", lambda rng: wrong)
    monkeypatch.setattr(families_on_gpu, "ProcessPoolExecutor", Here)
    assert families_on_gpu.main(["sorts", "shapes=2", "seed=5", "device=cpu"]) == 1
    said = capsys.readouterr().out
    assert (
        "off by" in said and "seed=5" in said and "seed=6" in said and "2 shapes, 2 wrong" in said
    )


class Here:
    """An executor in this process."""

    def __init__(self, *given: object) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def submit(self, function: object, *given: object) -> Here:
        self.result = lambda: function(*given)  # type: ignore[operator]
        return self
