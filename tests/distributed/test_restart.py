"""Checkpoints of many ranks: written in shards, read by any number of them, always whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from tests.distributed.launching import launch, needs_mpi

pytestmark = [pytest.mark.device("none"), pytest.mark.slow, needs_mpi]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights of one process that was never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "c.safetensors"
    ended = launch("restart.py", str(path), "8", "none", ranks=1)
    assert ended.code == 0, ended.text
    return dict(np.load(f"{path}.npz"))


def assert_equal(path: Path, wanted: dict[str, np.ndarray]) -> None:
    for name, value in np.load(f"{path}.npz").items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("fault", "message"), [("kill", "SIGKILL"), ("full", "rank 3 failed at writing shards")]
)
def test_a_job_goes_on_with_another_number_of_ranks(
    fault: str, message: str, tmp_path: Path, wanted: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "c.safetensors"
    ended = launch("restart.py", str(path), "8", fault, ranks=4)
    assert ended.code == 1 and message in ended.text, ended.text
    state = fg.io.load_tree(path)  # by one process, which knows no ranks
    assert state["step"] == 4 and state["model"]["0.weight"].shape == (16, 8)
    assert len(list(tmp_path.glob("*.shards"))) >= 4
    for ranks, stop in ((2, 6), (1, 8)):
        ended = launch("restart.py", str(path), str(stop), "none", ranks=ranks)
        assert ended.code == 0 and "go on from step" in ended.text, ended.text
    assert_equal(path, wanted)
