"""The site's pages: a hook of MkDocs, which `mkdocs.yml` names.

In: docs/, and what else the repository has to read: README.md, CONTRIBUTING.md, CHANGELOG.md, the
examples, bench/results, and the `viz` pages that gallery.py made. Out: the order of the pages, and
pages made of the rest. Links to files of the repository become links to the pages that show them;
a link to a file that no page shows is a warning, and so an error.
"""

from __future__ import annotations

import ast
import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "build" / "gallery"
NAV: dict[str, list[str]] = {
    "Start": ["quickstart", "coming-from", "gallery"],
    "How it works": ["how-it-works", "search", "mechanisms", "where", "glossary"],
    "Guides": [
        "training", "language-models", "serving", "nn", "io", "jit", "state", "variables",
        "control", "random", "transforms",
        "interchange", "onnx", "torch", "cuda", "distributed", "escape", "cache",
    ],
    "Looking inside": ["look", "why"],
    "Reference": ["functions", "config", "ops", "laws", "numerics", "accuracy", "benchmarks"],
    "Project": ["contributing", "changelog", "decisions/README"],
}  # fmt: skip
MOVED = {  # files of the repository and the pages that show them; docs/x is x
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/results": "benchmarks.md",
    "docs/decisions": "decisions/README.md",
}
GALLERY_TEXT = """# Gallery

Programs, and what became of them. Each page is what `fulgurite viz` writes, one file that opens
without a server or network: keys `1` to `8` choose a view, arrows step through passes and kernels,
`/` searches ([looking inside](look.md#pictures)).
"""
LINK = re.compile(r"\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.plugins.pages")


def decisions() -> list[str]:
    """The records, in order."""
    found = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    return [f"decisions/{path.stem}" for path in found]


def nav() -> list[dict[str, Any]]:
    """What the site has, in the order to read it."""
    parts = NAV | {"Decisions": decisions()}
    return [
        {"Home": "index.md"},
        *[{title: [f"{name}.md" for name in names]} for title, names in parts.items()],
    ]


def examples() -> list[Path]:
    """The examples that have pages."""
    return sorted((ROOT / "examples").glob("*.py"))


# --- links ---------------------------------------------------------------------------------------


def page_of(path: str) -> str | None:
    """The page that shows a file of the repository; None: there is none."""
    path = path.rstrip("/")
    if path in MOVED:
        return MOVED[path]
    folder, name = posixpath.split(path)
    if folder == "docs" or folder.startswith("docs/"):
        return path.removeprefix("docs/")
    if folder == "bench/results":
        return "benchmarks.md"
    if folder == "examples" and name.endswith(".py"):
        return f"examples/{name[:-3]}.md"
    return None


def titled(page: str) -> str:
    """The heading of a page, for links whose text is only the name of a file."""
    sources = {target: name for name, target in MOVED.items() if name.endswith(".md")}
    path = ROOT / sources.get(page, f"docs/{page}")
    if not path.is_file():
        return Path(page).stem.capitalize()
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")


def relinked(text: str, source: str, page: str) -> str:
    """The text of a file, with links that lead to pages instead of files."""

    def replaced(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        target = page_of(path)
        if target is None:
            log.warning("%s links to %s, which is on no page", source, path)
            return found[0]
        name = titled(target) if found[1] in (found[2], posixpath.basename(path)) else found[1]
        return f"[{name}]({posixpath.relpath(target, posixpath.dirname(page))}{found[3] or ''})"

    return LINK.sub(replaced, text)


# --- pages that are made -------------------------------------------------------------------------


def made_pages() -> dict[str, str]:
    """Pages that are no file of docs/, by name."""
    pages = {
        target: relinked((ROOT / name).read_text(encoding="utf-8"), name, target)
        for name, target in MOVED.items()
        if name.endswith(".md")
    }
    for path in examples():
        pages[f"examples/{path.stem}.md"] = example_page(path)
    return pages | {"benchmarks.md": benchmarks_page(), "gallery.md": gallery_page()}


def described(path: Path) -> str:
    """What an example says of itself."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def example_page(path: Path) -> str:
    """The text of an example."""
    text = path.read_text(encoding="utf-8")
    return f"# {path.name}\n\n```python title='examples/{path.name}'\n{text}```\n"


def benchmarks_page() -> str:
    """The committed results, one below the other, each a section."""
    parts = [
        "# Benchmarks",
        "What was measured last, on which machine, and when (`bench/results`).",
    ]
    for path in sorted((ROOT / "bench" / "results").glob("*.md")):
        text = path.read_text(encoding="utf-8").strip()
        parts.append(re.sub(r"^#", "##", text, flags=re.MULTILINE))
    return "\n\n".join(parts) + "\n"


def gallery_page() -> str:
    """The examples that have a page of `fulgurite viz`, then all others."""
    shown = json.loads((GALLERY / "gallery.json").read_text(encoding="utf-8"))
    lines = [GALLERY_TEXT]
    for one in shown:
        name, several = one["example"], "s" if one["kernels"] > 1 else ""
        about = described(ROOT / "examples" / f"{name}.py").split("\n\n")[0]
        lines += [
            f"## {one['title']}", "", about, "", f"    {one['command']}", "",
            f"{one['ops']:,} ops, {one['kernels']} kernel{several}: "
            f"[**open the page**](gallery/{one['page']}) ({one['bytes'] / 1e6:.1f} MB), "
            f"[the program](examples/{name}.md).", "",
        ]  # fmt: skip
    others = [path for path in examples() if path.stem not in {one["example"] for one in shown}]
    lines += ["## Others", "", "| | |", "| --- | --- |"]
    for path in others:
        first = described(path).split("\n")[0]
        lines.append(f"| [{path.name}](examples/{path.stem}.md) | {first} |")
    return "\n".join(lines) + "\n"


# --- what MkDocs calls ---------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """The order of pages."""
    config.nav = nav()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add pages that are made, and those of the gallery."""
    from mkdocs.structure.files import File, InclusionLevel

    for name, text in made_pages().items():
        level = (
            InclusionLevel.NOT_IN_NAV if name.startswith("examples/") else InclusionLevel.UNDEFINED
        )
        files.append(File.generated(config, name, content=text, inclusion=level))
    for path in sorted(GALLERY.glob("*.html")):
        files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links of files in docs/ to files elsewhere."""
    name = page.file.src_uri
    if page.file.generated_by is not None:
        return markdown
    return relinked(markdown, f"docs/{name}", name)
