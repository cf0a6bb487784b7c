"""Pytest plugin for a run that may be cut short: files in random order, results as they come.

`pytest -p tests.runtime.cuda.tally` appends a line of JSON to `$FULGURITE_TALLY` for each test that
passed, failed or was skipped, with the end of its message.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order for every process that shares the tests."""
    files = sorted({item.path for item in items})
    random.Random(7).shuffle(files)
    places = {path: place for place, path in enumerate(files)}
    items.sort(key=lambda item: places[item.path])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each test, written by the process that prints."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    said = "" if report.passed else str(report.longrepr)
    line = {"test": report.nodeid, "outcome": report.outcome, "why": said[-1500:]}
    with Path(os.environ["FULGURITE_TALLY"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
