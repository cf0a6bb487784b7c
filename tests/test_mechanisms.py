"""docs/mechanisms.md names, for each behaviour and fault, one test that exists."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.device("none")

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "mechanisms.md"
ROW_ID = re.compile(r"(\d)\.F?\d+")
TEST_CELL = re.compile(r"`(tests/[\w/]+\.py)::(\w+(?:::\w+)*)`")


@dataclass(frozen=True)
class Row:
    """One line of a table; `part` is the heading it stands under."""

    part: str
    id: str
    text: str
    test: str


def rows_of(document: str) -> list[Row]:
    """Every table row that is not a header or a ruler."""
    rows, part = [], ""
    for line in document.splitlines():
        if heading := re.match(r"## (\d)\. ", line):
            part = heading[1]
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            assert len(cells) == 3, f"not three cells: {line}"
            if cells[0] != "id" and set(cells[0]) != {"-"}:
                rows.append(Row(part, *cells))
    return rows


@cache
def functions_in(path: Path) -> frozenset[str]:
    """The functions of a file, as `function` or `Class::function`."""
    return frozenset(_functions(ast.parse(path.read_text(encoding="utf-8"))))


def _functions(scope: ast.Module | ast.ClassDef, prefix: str = "") -> list[str]:
    names: list[str] = []
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            names += _functions(node, f"{prefix}{node.name}::")
    return names


def problem(row: Row, root: Path = ROOT) -> str | None:
    """What is wrong with a row, or None; an empty test cell is not wrong."""
    matched = ROW_ID.fullmatch(row.id)
    if matched is None or matched[1] != row.part:
        return f"{row.id!r} is no id of part {row.part}"
    if not row.text:
        return "says nothing"
    if not row.test:
        return None
    named = TEST_CELL.fullmatch(row.test)
    if named is None:
        return f"names not exactly one `tests/file.py::test_name`: {row.test}"
    if not (root / named[1]).is_file():
        return f"there is no {named[1]}"
    if not named[2].split("::")[-1].startswith("test_"):
        return f"{named[2]} is not a test"
    if named[2] not in functions_in(root / named[1]):
        return f"{named[1]} has no {named[2]}"
    return None


ROWS = rows_of(DOCUMENT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_names_one_test_that_exists(row: Row) -> None:
    assert problem(row) is None


def test_row_ids_are_unique() -> None:
    assert [row for row, count in Counter(row.id for row in ROWS).items() if count > 1] == []


def test_all_five_parts_list_behaviours_and_faults() -> None:
    kinds = {(row.part, "F" in row.id) for row in ROWS}
    assert kinds == {(part, fault) for part in "12345" for fault in (False, True)}


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("`tests/test_sample.py::test_one`", None),
        ("`tests/test_sample.py::TestGroup::test_two`", None),
        ("", None),
        ("`tests/test_sample.py::test_two`", "has no test_two"),
        ("`tests/test_sample.py::helper`", "is not a test"),
        ("`tests/test_gone.py::test_one`", "there is no"),
        ("tests/test_sample.py::test_one", "names not exactly one"),
        ("`tests/test_sample.py::test_one`, `tests/test_sample.py::test_one`", "names not exactly"),
    ],
)
def test_a_wrong_test_name_is_caught(tmp_path: Path, test: str, complaint: str | None) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sample.py").write_text(
        "def test_one(): ...\ndef helper(): ...\nclass TestGroup:\n    def test_two(self): ...\n"
    )
    found = problem(Row("1", "1.1", "text", test), tmp_path)
    assert found == complaint or (found and complaint and complaint in found)


def test_an_id_of_another_part_is_caught() -> None:
    assert problem(Row("2", "1.F1", "text", "")) is not None
