"""Tests shared out among processes: files, long ones in parts, those that take longest first.

In: the names of a run's tests in order, and `seconds.json`, the processor time that functions took
(written by `pytest --update-seconds`; a function that is not in it took less than `LISTED`). Out:
parts, each the tests of one file that one process runs in order, the longest part first: so the
last processes to end end together, on two cores as on sixteen. A wrong time costs balance only.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.devices import DEVICES

SECONDS = Path(__file__).parent / "seconds.json"
PART_SECONDS = 10.0  # of one part, unless one test takes longer
LISTED = 0.5  # seconds of a function from which it is listed
USUAL_SECONDS = 0.02  # of a test of any other function
_FUNCTION = re.compile(rf"[^\[]*(\[(?:{'|'.join(DEVICES)})(?=[-\]]))?")


@dataclass
class Part:
    """Tests of one file that stay together."""

    seconds: float = 0.0
    tests: list[str] = field(default_factory=list)


def function_of(test: str) -> str:
    """The function, and the device if it runs on several, of a test's name."""
    found = _FUNCTION.match(test)
    assert found is not None
    return found[0] + "]" if found[1] else found[0]


def parts_of(tests: Iterable[str], seconds: Mapping[str, float]) -> dict[str, Part]:
    """Parts by name; `seconds` are those of all tests of a function together."""
    functions: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        functions[function_of(test)].append(test)
    parts: dict[str, Part] = defaultdict(Part)
    number: dict[str, int] = defaultdict(int)
    for function, cases in functions.items():
        file = function.partition("::")[0]
        each = seconds.get(function, USUAL_SECONDS * len(cases)) / len(cases)
        for case in cases:
            part = parts[f"{file} {number[file]}"]
            if part.tests and part.seconds + each > PART_SECONDS:
                number[file] += 1
                part = parts[f"{file} {number[file]}"]
            part.tests.append(case)
            part.seconds += each
    return dict(parts)


def read_seconds() -> dict[str, float]:
    """What functions took when it was last written down."""
    if not SECONDS.exists():
        return {}
    found: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
    return found


def write_seconds(tests: Mapping[str, float]) -> None:
    """Write down what tests took; functions that did not run keep their line while they exist."""
    found: dict[str, float] = defaultdict(float)
    for test, took in tests.items():
        found[function_of(test)] += took
    known = {name: took for name, took in read_seconds().items() if exists(name)}
    listed = {name: round(took, 1) for name, took in sorted((known | found).items())}
    text = json.dumps({name: took for name, took in listed.items() if took >= LISTED}, indent=1)
    SECONDS.write_text(text + "\n", encoding="utf-8")


def exists(function: str) -> bool:
    """True if there is a function of this name in its file."""
    file, _, name = function.partition("[")[0].partition("::")
    path = SECONDS.parents[1] / file
    return path.exists() and f"def {name}(" in path.read_text(encoding="utf-8")


class LongestFirst(OrderedDict[str, Any]):
    """A queue of parts from which the longest is taken."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__()
        self._parts = parts

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """The part that takes longest of those that wait."""
        name = max(self, key=lambda name: self._parts[name].seconds)
        return name, self.pop(name)


def make_scheduler(config: Any, log: Any) -> Any:
    """xdist's scheduler of files, with parts of files instead."""
    from xdist.scheduler import LoadScopeScheduling  # absent where nothing runs side by side

    class Parts(LoadScopeScheduling):  # type: ignore[misc]
        def schedule(self) -> None:
            if self.collection is None:
                tests = next(iter(self.registered_collections.values()))
                parts = parts_of(tests, read_seconds())
                self.part_of = {t: name for name, part in parts.items() for t in part.tests}
                self.workqueue = LongestFirst(parts)
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self.part_of[nodeid]

    return Parts(config, log)
