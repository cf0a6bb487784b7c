"""Workers of the judge: every model has a row, whatever happens to its process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from fulgurite.torch.conformance import runner


@pytest.mark.parametrize("jobs", [1, 3])
def test_workers_in_parallel_give_a_row_for_each_model(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(suite: str, names: list[str], *rest: Any) -> Iterator[dict[str, Any]]:
        yield from [{"name": name, "status": "agrees"} for name in names]

    monkeypatch.setattr(runner, "judged", row)
    names = [f"model{i}" for i in range(2 * runner.CHUNK + 1)]
    rows = runner.judged_in_parallel("timm", names, False, "fulgurite", jobs, 1.0)
    assert sorted([each["name"] for each in rows]) == sorted(names)
