"""Tests of bench/networks.py: our steps have the losses that NumPy and each other say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fulgurite as fg
from bench import networks

pytestmark = pytest.mark.device("cpu")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FULGURITE_DEVICE", "cpu")
    with fg.config(device="cpu"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("work", networks.TITLES)
@pytest.mark.parametrize("system", ["ours", "ours eager"])
def test_a_step_begins_with_the_loss_of_numpy_and_lowers_it(work: str, system: str) -> None:
    made = networks.prepare(system, work)
    for _ in range(3):
        made.check(made.call())


def test_a_system_without_training_is_named() -> None:
    with pytest.raises(NotImplementedError, match="numpy"):
        networks.prepare("numpy", "gpt step")
    assert len(networks.resnet_params()) == 62
