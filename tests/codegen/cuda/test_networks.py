"""Kernels of networks as a GPU's own passes make them, in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.codegen.cuda.subprocesses import counted, needs_triton


@needs_triton
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("residual", 30),
        ("inverted", 20),
        ("encoder", 30),
        ("decoder:bfloat16", 20),
        ("token", 10),
        pytest.param("all", 200, marks=pytest.mark.slow),
    ],
)
def test_every_kernel_of_a_networks_plans_agrees_with_the_reference(name: str, least: int) -> None:
    found = counted("networks", name)
    assert not found["bad"], found["bad"][0]
    assert found["counts"]["ran"] >= least
