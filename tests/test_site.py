"""Tests of docs/tools: the order of pages, links between them, and the reader of a built site."""

from __future__ import annotations

import importlib.util
import json
import posixpath
import re
from pathlib import Path
from types import ModuleType

import pytest

from fulgurite.cli.look import written

pytestmark = pytest.mark.device("none")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILES = [*ROOT.glob("*.md"), *sorted(DOCS.glob("**/*.md"))]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, check, gallery = tool("pages"), tool("check"), tool("gallery")


def names_in(path: Path) -> set[str]:
    """The anchors of a document: its headings, as the site and GitHub spell them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_every_document_has_a_place_in_the_order_and_every_place_a_page() -> None:
    listed = [
        n for part in pages.nav() for v in part.values() for n in ([v] if isinstance(v, str) else v)
    ]
    made = {"index.md", "contributing.md", "changelog.md", "benchmarks.md", "gallery.md"}
    files = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")}
    assert len(listed) == len(set(listed)) and set(listed) == made | files


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_pages_show_and_anchors_are_there(path: Path) -> None:
    source = path.relative_to(ROOT).as_posix()
    for found in pages.LINK.finditer(path.read_text(encoding="utf-8")):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        assert (ROOT / target).exists() and pages.page_of(target), f"{source} links to {target}"
        if found[3] and target.endswith(".md"):
            assert found[3][1:] in names_in(ROOT / target), f"{source} links to {found[3]}"


GUIDES = [path for path in FILES if "decisions" not in path.parts and path.name != "CHANGELOG.md"]
NAMED = re.compile(r"`([\w./-]+\.(?:py|c|js|md|toml)|[\w.-]+(?:/[\w.-]+)+)`")


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_files_that_a_document_names_are_there(path: Path) -> None:
    named = set(NAMED.findall(path.read_text(encoding="utf-8")))
    roots = [ROOT, ROOT / "fulgurite", DOCS, ROOT / "bench"]
    folders = {root / name for name in named for root in roots if (root / name).is_dir()}
    folders |= {(root / name).parent for name in named for root in roots if "/" in name}
    for name in [name for name in named if re.search(r"\.(py|c|js)$", name)]:
        places = [*roots, *folders] if "/" not in name else roots  # a bare name: of a folder named
        assert any([(place / name).is_file() for place in places]) or name in THEIRS, name


THEIRS = {"train.py", "script.py", "attention.py"}  # of readers


def test_links_are_those_of_the_page_and_names_of_files_become_headings() -> None:
    text = "[a](docs/jit.md#cost), [docs/why.md](docs/why.md), ![b](docs/pictures/x.png), [c](https://a.b/)"
    assert pages.relinked(text, "README.md", "index.md") == (
        "[a](jit.md#cost), [Ten questions](why.md), ![b](pictures/x.png), [c](https://a.b/)"
    )
    assert (
        pages.relinked("[g](../examples/gpt.py)", "docs/jit.md", "jit.md") == "[g](examples/gpt.md)"
    )
    named = pages.relinked(
        "[jit.md](jit.md), [bench/results](../bench/results)", "docs/a.md", "a.md"
    )
    assert named == "[jit: a whole step in one replay](jit.md), [bench/results](benchmarks.md)"
    up = pages.relinked("[a](../jit.md)", "docs/decisions/0001-x.md", "decisions/0001-x.md")
    assert up == "[a](../jit.md)"


def test_pages_are_made_of_results_examples_and_the_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"example": "mlp", "title": "A step", "page": "mlp.html", "bytes": 500_000,
           "command": "fulgurite viz examples/mlp.py", "kernels": 1, "ops": 2000}  # fmt: skip
    (tmp_path / "gallery.json").write_text(json.dumps([one]))
    monkeypatch.setattr(pages, "GALLERY", tmp_path)
    made = pages.made_pages()
    assert (
        "2,000 ops, 1 kernel: [**open the page**](gallery/mlp.html) (0.5 MB)" in made["gallery.md"]
    )
    assert "(examples/lstm.md)" in made["gallery.md"] and "def main" in made["examples/lstm.md"]
    for path in (ROOT / "bench" / "results").glob("*.md"):
        assert (
            path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") in made["benchmarks.md"]
        )
    assert "(quickstart.md)" in made["index.md"]


def test_what_the_gallery_shows_is_there() -> None:
    examples = {path.stem for path in pages.examples()}
    assert len(gallery.GALLERY) == 5 and {one.example for one in gallery.GALLERY} <= examples


@pytest.mark.parametrize(("kernels", "ops"), [(1, 1), (11, 203)])
def test_the_gallery_reads_what_the_command_says_of_a_page(kernels: int, ops: int) -> None:
    found = gallery.WROTE.search(f"3 kernels\n{written(Path('page.html'), kernels, ops)}\n")
    assert found is not None and found.groups() == (str(kernels), str(ops))


SOUND = """<link rel=stylesheet href=a.css><script src=a.js></script><h2 id=x>x</h2>
<a href="https://elsewhere.org">out</a><a href="b.html#y">b</a><a href="#x">x</a>
<img src="data:,">"""
WRONG = {
    '<script src="https://cdn.org/a.js"></script>': "fetches https://cdn.org/a.js",
    '<link rel="stylesheet" href="//cdn.org/a.css">': "fetches //cdn.org/a.css",
    '<p style="background: url(https://cdn.org/a.png)">': "fetches https://cdn.org/a.png",
    '<a href="c.html">c</a>': "there is no c.html",
    '<img src="c.png">': "there is no c.png",
    '<a href="b.html#z">b</a>': "b.html#z has no such place",
    '<pre class="mermaid">': "mermaid",
}


@pytest.mark.parametrize("text", ["", *WRONG])
def test_a_built_site_is_read(tmp_path: Path, text: str) -> None:
    for name, content in {
        "a.css": "a { src: url('f.png') }",
        "a.js": "",
        "b.html": "<p id=y>",
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "index.html").write_text(SOUND + text)
    found = list(check.problems(tmp_path))
    assert len(found) == (1 if text else 0) and WRONG.get(text, "") in "".join(found)
    assert check.main([str(tmp_path)]) == len(found)
    (tmp_path / "a.css").write_text("@import 'https://cdn.org/b.css';")
    assert "a.css: fetches https://cdn.org/b.css" in list(check.problems(tmp_path))
