"""How large a page of `fulgurite viz` is, and how soon a browser shows it.

Run `python bench/viz.py` where playwright and a Chromium are installed. Two pages: the training
step of a GPT of six layers, profiled, with assembly; and a graph of 5,000 ops without modules.
The figures are megabytes, seconds from the address to a page that answers, and the seconds of the
slowest view, of opening the largest box and of a search.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import run_figures

OPS = 5000
GOALS = {
    "GPT step: page (MB)": 10.0,
    "GPT step: ready (s)": 2.0,
    "GPT step: slowest view (s)": 1.0,
    "GPT step: largest box (s)": 1.0,
    "GPT step: search (s)": 1.0,
    f"{OPS} ops: page (MB)": 10.0,
    f"{OPS} ops: ready (s)": 2.0,
    f"{OPS} ops: slowest view (s)": 1.0,
    f"{OPS} ops: largest box (s)": 1.0,
    f"{OPS} ops: search (s)": 1.0,
}


def gpt_page() -> Any:
    """The page of a GPT's training step, profiled."""
    import numpy as np

    import fulgurite as fg
    from fulgurite.train.charlm import GPT

    gpt = GPT(letters=96, size=192, layers=6, heads=6, window=128)
    adam = fg.optim.AdamW(gpt.parameters(), 1e-3)
    random = np.random.default_rng(0)
    x, y = (fg.Tensor(random.integers(0, 96, (8, 128)).astype(np.int32)) for _ in range(2))

    @fg.jit
    def step(x: Any, y: Any) -> Any:
        loss = fg.cross_entropy(gpt(x).reshape(-1, 96), y.reshape(-1))
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss

    step(x, y)
    step(x, y)
    with fg.profile() as p:
        step(x, y)
    return fg.viz(step, profile=p, title="GPT training step")


def large_page() -> Any:
    """The page of a graph that has no modules to fold it by."""
    import numpy as np

    import fulgurite as fg

    x = fg.Tensor(np.ones((64, 64), np.float32))
    for number in range(OPS // 8):  # eight ops each, on one line
        x = fg.tanh(x * (1 + number / OPS) + fg.exp(-x.max(axis=number % 2, keepdims=True)))
    return fg.viz(x, title=f"{OPS} ops", assembly=False)


def opened(browser: Any, page: Any, name: str, folder: Path) -> dict[str, float]:
    """The figures of one page."""
    path = page.save(folder / "page.html")
    tab = browser.new_page(viewport={"width": 1366, "height": 768})
    start = time.perf_counter()
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    ready = time.perf_counter() - start
    views = [
        tab.evaluate(
            "view => { const t = performance.now(); location.hash = 'view=' + view; arrived();"
            " return performance.now() - t; }",
            view,
        )
        for view in tab.evaluate("VIEWS")
    ]
    tab.goto(path.as_uri() + "#view=graph")
    largest = tab.evaluate(
        "() => { const boxes = d3.selectAll('g.group').data(); const t = performance.now();"
        " if (boxes.length) clicked(boxes.sort((a, b) => b.nodes.length - a.nodes.length)[0]);"
        " arrived(); return performance.now() - t; }"
    )
    search = tab.evaluate(
        "() => { const t = performance.now(); search('exp'); return performance.now() - t; }"
    )
    tab.close()
    print(name, len(page.data["graph"]["nodes"]), "ops", len(page.data["kernels"]), "kernels")
    return {
        f"{name}: page (MB)": path.stat().st_size / 1e6,
        f"{name}: ready (s)": ready,
        f"{name}: slowest view (s)": max(views) / 1e3,
        f"{name}: largest box (s)": largest / 1e3,
        f"{name}: search (s)": search / 1e3,
    }


def ours() -> dict[str, float]:
    """Our figures."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(path for name in names if (path := shutil.which(name)))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = opened(browser, gpt_page(), "GPT step", Path(folder))
        found |= opened(browser, large_page(), f"{OPS} ops", Path(folder))
        browser.close()
    return found


if __name__ == "__main__":
    run_figures(__doc__, __file__, {"ours": [ours]}, GOALS, rounds=1)
