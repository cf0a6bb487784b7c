"""Reads a built site: `python docs/tools/check.py site`.

In: a folder of HTML. Out: what is wrong with it, one line each, and exit code 1 if anything is:
a script, style, picture or frame that comes from elsewhere, a link to a file or an anchor that is
not there, a page of more than 10 MB. Links that a reader clicks may lead anywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MOST_BYTES = 10_000_000
# what a browser fetches without being asked; of <link> the kinds that are fetched
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "embed": "src",
}
FETCHED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "manifest",
}
ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"(?:url\(\s*|@import\s+)[\"']?([^\"')\s;]+)")


class Page(HTMLParser):
    """One page: what it fetches, where its links lead, the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names."""
        found = {name: value or "" for name, value in attrs}
        self.names |= {found[key] for key in ("id", "name") if key in found}
        self.classes |= set(found.get("class", "").split())
        self.fetched += IN_STYLES.findall(found.get("style", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and FETCHED_LINKS & set(found.get("rel", "").split()):
            self.fetched.append(found.get("href", ""))
        if FETCHED.get(tag, "") in found:
            self.fetched.append(found[FETCHED[tag]])


def problems(site: Path) -> Iterator[str]:
    """All that is wrong with a site."""

    @cache
    def page(path: Path) -> Page:
        return Page(path.read_text(encoding="utf-8"))

    for path in sorted(site.rglob("*.html")):
        where, found = path.relative_to(site), page(path)
        if path.stat().st_size > MOST_BYTES:
            yield f"{where}: {path.stat().st_size} bytes"
        if "mermaid" in found.classes:
            yield f"{where}: a diagram of mermaid, which the theme fetches from elsewhere"
        for address in found.fetched:
            if ELSEWHERE.match(address):
                yield f"{where}: fetches {address}"
        own = path.name == "404.html"  # its addresses are those of a server's root
        for address in [*found.fetched, *found.links]:
            parts = urlsplit(address)
            if own or parts.scheme or parts.netloc or address.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{where}: there is no {address}"
                continue
            place = unquote(parts.fragment) if target.suffix == ".html" else ""
            if place and "=" not in place and place not in page(target).names:
                yield f"{where}: {address} has no such place"
    for path in sorted(site.rglob("*.css")):
        for address in IN_STYLES.findall(path.read_text(encoding="utf-8")):
            if ELSEWHERE.match(address):
                yield f"{path.relative_to(site)}: fetches {address}"


def main(arguments: list[str]) -> int:
    """Say what is wrong with a site, or how large it is."""
    site = Path(arguments[0])
    found = list(problems(site))
    for line in found:
        print(line, file=sys.stderr)
    pages = list(site.rglob("*.html"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{site}/index.html: {len(pages)} pages, {size / 1e6:.1f} MB, {len(found)} problems")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
