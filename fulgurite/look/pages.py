"""One HTML file that shows a compilation: no server, no network, all data inside.

In: the data of `dump.py`. Out: text of a page that has eight views: the graph with user lines,
passes, fusion, e-graphs, memory, kernels down to assembly, and of a profile its time line and
flame graph. Drawn by d3 and laid out by dagre, which are vendored (`page/vendor`, refreshed by
`web/`); the page's own text is in `page/`. Data is packed: a browser unpacks it.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARTS = Path(__file__).with_name("page")
LIBRARIES = ("d3.min.js", "dagre.min.js")


def page_of(data: Mapping[str, Any], title: str) -> str:
    """The page of some data."""
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    libraries = [(PARTS / "vendor" / name).read_text(encoding="utf-8") for name in LIBRARIES]
    parts = {
        "title": html.escape(title).encode("utf-8", "replace").decode(),
        "css": (PARTS / "page.css").read_text(encoding="utf-8"),
        "libraries": "\n".join(libraries),
        "script": (PARTS / "page.js").read_text(encoding="utf-8"),
        "data": base64.b64encode(packed).decode(),
    }
    text = (PARTS / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        assert text.count(f"${name}$") >= 1, f"the page has no place for {name}"
        text = text.replace(f"${name}$", part)
    return text


class Page:
    """A page: `save` writes it, notebooks show it where it is."""

    def __init__(self, data: Mapping[str, Any], title: str) -> None:
        self.data, self.title = data, title

    def __repr__(self) -> str:
        return f"<page {self.title!r}: save(path) writes it>"

    @property
    def html(self) -> str:
        """Its text."""
        return page_of(self.data, self.title)

    def save(self, path: str | Path) -> Path:
        """Write it to a file."""
        target = Path(path)
        target.write_text(self.html, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame of its own."""
        whole = html.escape(self.html, quote=True)
        style = "width:100%;height:640px;border:1px solid #8884"
        title = html.escape(self.title)
        return f'<iframe title="{title}" style="{style}" srcdoc="{whole}"></iframe>'
