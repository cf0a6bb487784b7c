"""Known values: what torch found for every case, as a few weighted sums of each array.

`python -m tests.nn.known` writes known.json again, where torch is installed. The sums have weights
drawn from the array's name, so an error in any element shows in them; the file stays small and the
default suite needs no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.nn.cases import Case, Result, projections

FILE = Path(__file__).parent / "known.json"
FUNCTIONS = FILE.with_name("known_functions.json")


def known(file: Path = FILE) -> dict[str, Any]:
    """The file's values by case and array."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def agrees(case: Case, result: Result, wanted: dict[str, list[float]]) -> None:
    """Are the sums of a case's result those that are known?"""
    near(result, wanted, case.tolerance)


def near(result: Result, wanted: dict[str, list[float]], tolerance: float) -> None:
    """Are the sums of a result those that are known?"""
    found = projections(result)
    assert sorted(found) == sorted(wanted)
    for name, sums in wanted.items():
        scale = max(1.0, sums[-1])
        bound = 5 * tolerance * scale
        np.testing.assert_allclose(found[name], sums, rtol=0, atol=bound, err_msg=name)


def main() -> None:
    """Ask torch again."""
    from tests.nn import calls
    from tests.nn.cases import theirs
    from tests.nn.table import ODD, USUAL

    write(FILE, {case.name: theirs(case) for case in USUAL + ODD})
    write(FUNCTIONS, {name: calls.theirs(name) for name in calls.CALLS})


def write(file: Path, results: dict[str, Result]) -> None:
    """A line for each result."""
    rows = [f"{json.dumps(n)}: {json.dumps(projections(r))}" for n, r in results.items()]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
