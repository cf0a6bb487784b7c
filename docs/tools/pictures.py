"""Pictures of the page of a GPT's training step, for README.md and docs/look.md.

Run `python docs/tools/pictures.py docs/pictures` where playwright and a Chromium are installed,
look at what came out, and commit it. `--all` takes every view, light and dark, to be looked at.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

# the file, the place in the page, the theme, and words to search for that lead there
PICTURES = {
    "viz-graph": ("view=graph", "light"),
    "viz-passes": ("view=passes&step={simplify}", "light"),
    "viz-fusion": ("view=fusion", "dark"),
    "viz-memory": ("view=memory", "light"),
    "viz-kernels": ("view=kernels&kernel={fold}", "dark"),
    "viz-timeline": ("view=timeline", "light"),
    "viz-flame": ("view=flame", "light"),
}
VIEWS = ("graph", "passes", "fusion", "egraph", "memory", "kernels", "timeline", "flame")


def places(data: dict[str, Any]) -> dict[str, int]:
    """The pass with most laws, and a kernel that the search found."""
    laws = [len(step["laws"]) for step in data["passes"]]
    kinds = [kernel["kind"] for kernel in data["kernels"]]
    return {
        "simplify": laws.index(max(laws)),
        "fold": kinds.index("fold") if "fold" in kinds else 0,
    }


def taken(page: Any, folder: Path, wanted: dict[str, tuple[str, str]]) -> None:
    """Write pictures of a page."""
    from playwright.sync_api import sync_playwright

    known = places(page.data)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as temporary:
        path = page.save(Path(temporary) / "page.html")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (where, theme) in wanted.items():
            tab = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme=theme)
            tab.goto(f"{path.as_uri()}#{where.format(**known)}")
            tab.wait_for_selector("html[data-ready=yes]", timeout=60_000)
            tab.screenshot(path=folder / f"{name}.png")
            tab.close()
        browser.close()


def main(arguments: list[str]) -> int:
    """Take the pictures."""
    from bench.viz import gpt_page

    wanted = PICTURES
    if "--all" in arguments:
        wanted = {
            f"{v}-{theme}": (f"view={v}", theme) for v in VIEWS for theme in ("light", "dark")
        }
        wanted |= PICTURES
    taken(gpt_page(), Path(arguments[0]), wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
