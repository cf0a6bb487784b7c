"""torch's samples of its functions on ours, where torch is installed (the `peers` extra)."""

from __future__ import annotations

import pytest

from tests import opinfo

pytest.importorskip("torch")
pytest.importorskip("expecttest")


@pytest.mark.slow
def test_nearly_all_of_torchs_samples_agree() -> None:
    found = opinfo.run()
    print(found.report())
    assert found.functions > 200 and found.samples > 2000
    assert found.passed / found.samples >= 0.95
