"""Every ```python block of README.md and docs/ runs.

The blocks of one file share a namespace, top to bottom, and run in a temporary
folder. They are compiled with the file's own name and line numbers, so a
failure points into the document.
"""

import re
import textwrap
from pathlib import Path

import pytest

import fulgurite as fg

pytestmark = pytest.mark.device("reference")

ROOT = Path(__file__).parents[1]
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
COMPILED = {"docs/why.md"}  # what they say holds for compiled code
DOCUMENTS = [*OTHERS, *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^([ \t]*)```python\b[^\n]*\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Each block's first line number and its source."""
    return [
        (text.count("\n", 0, found.start(2)) + 1, textwrap.dedent(found[2]))
        for found in FENCE.finditer(text)
    ]


def run_blocks(path: Path, text: str) -> None:
    namespace = {"__name__": "__main__"}
    for line, source in python_blocks(text):
        exec(compile("\n" * (line - 1) + source, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_document_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    device = "cpu" if str(path.relative_to(ROOT)) in COMPILED else "reference"
    with fg.config(device=device):
        run_blocks(path, path.read_text(encoding="utf-8"))


def test_the_readme_has_an_example() -> None:
    assert python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))


def test_blocks_are_found_with_their_line_numbers_also_inside_lists() -> None:
    text = "a\n\n```python\nx = 1\n```\n```sh\nls\n```\n- b\n  ```python\n  y = x\n  ```\n"
    assert python_blocks(text) == [(4, "x = 1\n"), (11, "y = x\n")]


def test_blocks_of_one_document_share_a_namespace_and_failures_name_their_line() -> None:
    text = "```python\nx = 1\n```\n\n```python\nassert x == 1\nx / 0\n```\n"
    with pytest.raises(ZeroDivisionError) as caught:
        run_blocks(Path("document.md"), text)
    assert caught.traceback[-1].lineno + 1 == 7


def test_the_readme_says_how_to_install_what_no_index_has() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "pip install ." in text and "from a clone" in text
    for path in [path for path in DOCUMENTS if path.parent.name != "decisions"]:
        assert not re.search(r"pip install '?fulgurite", path.read_text(encoding="utf-8")), path
