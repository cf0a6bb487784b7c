"""`fg.jit` of functions whose tensors are in shards: captured once, then replayed on all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.jobs.jitted import BY_ROWS, WHOLE, check, check_layouts
from tests.distributed.launching import launch, needs_mpi


@pytest.mark.device("first")
@pytest.mark.parametrize("layout", [WHOLE, BY_ROWS], ids=["whole weights", "weights in shards"])
def test_a_jitted_step_over_shards_is_replayed(layout: Any) -> None:
    check(layout)


@pytest.mark.device("first")
def test_a_tensor_that_is_split_in_another_way_is_captured_again() -> None:
    check_layouts()


@needs_mpi
@pytest.mark.slow
@pytest.mark.device("none")
def test_a_jitted_step_runs_on_two_ranks() -> None:
    ended = launch("jitted.py", ranks=2, timeout=60)
    assert ended.code == 0 and "jitted on 2 ranks" in ended.text, ended.text
