"""Tests of look/pages.py: one file that opens anywhere, and (mark `browser`) all that it does."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import cli
from fulgurite.look.pages import LIBRARIES, PARTS, Page
from fulgurite.train.charlm import GPT

RNG = np.random.default_rng(6)
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)


def page() -> Page:
    """The page of a GPT's training step, profiled."""
    gpt = GPT(letters=96, size=64, layers=6, heads=4, window=64)
    adam = fg.optim.AdamW(gpt.parameters(), 1e-3)
    x, y = (fg.Tensor(RNG.integers(0, 96, (4, 64)).astype(np.int32)) for _ in range(2))

    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        loss = fg.cross_entropy(gpt(x).reshape(-1, 96), y.reshape(-1))
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss

    step(x, y)
    with fg.profile() as p:
        step(x, y)
    return fg.viz(step, profile=p, title="a <small> GPT")


def test_a_page_holds_its_data_and_asks_nobody_for_anything() -> None:
    x = fg.Tensor(RNG.normal(size=(8, 8)).astype(np.float32))
    made = fg.viz(fg.softmax(x @ x), title="a <small> net", assembly=False)
    text = made.html
    assert "<title>a &lt;small&gt; net</title>" in text and len(text) < 1_000_000
    own = text
    for name in LIBRARIES:
        own = own.replace((PARTS / "vendor" / name).read_text(encoding="utf-8"), "")
    assert not re.search(r"https?://", own) and not re.search(r"<(script|link)[^>]* src=", own)
    found = re.search(r'id="data"[^>]*>([^<]*)<', text)
    assert found is not None
    data = json.loads(gzip.decompress(base64.b64decode(found[1])))
    assert data == json.loads(json.dumps(made.data))
    assert '<iframe title="a &lt;small&gt; net"' in made._repr_html_()


def test_libraries_are_those_that_web_names_and_have_their_licences() -> None:
    wanted = json.loads((PARTS.parents[2] / "web" / "package.json").read_text(encoding="utf-8"))
    versions = wanted["dependencies"]
    d3 = (PARTS / "vendor" / "d3.min.js").read_text(encoding="utf-8")
    assert f"v{versions['d3']}" in d3.splitlines()[0]
    dagre = (PARTS / "vendor" / "dagre.min.js").read_text(encoding="utf-8")
    assert f'"{versions["@dagrejs/dagre"]}"' in dagre
    for name in ("d3", "dagre"):
        assert "Copyright" in (PARTS / "vendor" / f"{name}.LICENSE").read_text(encoding="utf-8")


def test_the_command_writes_a_page_of_the_largest_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "work.py", tmp_path / "page.html"
    script.write_text(
        "import fulgurite as fg\nx = fg.ones((16, 16)).realize()\n"
        "fg.sort(x @ x, axis=0).sum().realize()\n"
    )
    fg.clear_caches()
    with fg.config(tier="native"):
        assert cli.main(["viz", "--no-assembly", "-o", str(out), str(script)]) == 0
        assert "<title>work.py</title>" in out.read_text(encoding="utf-8")
        assert cli.main(["viz", "-o", str(out), str(script)]) == 1
    assert "every graph was compiled before" in capsys.readouterr().err


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page in a browser, and what its console said."""
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    path = page().save(tmp_path_factory.mktemp("page") / "page.html")
    assert path.stat().st_size < 10_000_000
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1366, "height": 768})
        tab.said = []
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda problem: tab.said.append(str(problem)))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready=yes]", timeout=20_000)
        tab.address = path.as_uri()
        yield tab
        browser.close()


def drawn(tab: Any, where: str) -> None:
    """Waits until the page has drawn an address that holds `where`."""
    tab.wait_for_function(
        "where => location.hash.includes(where)"
        " && document.documentElement.dataset.drawn === location.hash",
        arg=where,
    )


def heading(tab: Any) -> str:
    return str(tab.inner_text("main h2 >> nth=0"))


@pytest.mark.browser
@pytest.mark.device("cpu")
def test_every_view_opens_by_key_and_by_click_without_a_word_on_the_console(opened: Any) -> None:
    tabs = opened.locator("[role=tab]")
    assert tabs.count() == 8
    for number in range(8):
        opened.keyboard.press(str(number + 1))
        drawn(opened, f"view={tabs.nth(number).get_attribute('data-view')}")
        assert tabs.nth(number).get_attribute("aria-selected") == "true"
        assert opened.inner_text("main").strip()
    tabs.nth(0).click()
    drawn(opened, "view=graph")
    assert opened.locator("main svg g[role=button]").count() > 3
    assert opened.said == []


@pytest.mark.browser
@pytest.mark.device("cpu")
def test_passes_are_stepped_with_arrows_and_links_lead_there(opened: Any) -> None:
    opened.keyboard.press("2")
    drawn(opened, "view=passes")
    first = heading(opened)
    opened.keyboard.press("ArrowRight")
    drawn(opened, "step=1")
    assert heading(opened) != first
    opened.keyboard.press("ArrowLeft")
    drawn(opened, "step=0")
    assert heading(opened) == first and first.startswith("1. ")
    opened.locator("nav button", has_text=re.compile(r"\d+\. simplify$")).click()
    drawn(opened, "view=passes&step=")
    opened.locator("#pass", has_text="simplify").wait_for()
    assert opened.locator(".laws td", has_text="merge_permutes").count() >= 1
    opened.goto(opened.address + "#view=kernels&kernel=1")
    drawn(opened, "view=kernels&kernel=1")
    assert heading(opened).startswith("2. ") and opened.locator("main pre").count() >= 3
    for wrong in ("view=kernels&kernel=abc", "view=passes&step=-7", "view=graph&node=99999"):
        opened.goto(f"{opened.address}#{wrong}")
        drawn(opened, wrong)
    assert opened.said == []


@pytest.mark.browser
@pytest.mark.device("cpu")
def test_boxes_open_when_clicked_and_equal_layers_are_one(opened: Any) -> None:
    opened.goto(opened.address + "#view=graph")
    drawn(opened, "view=graph")
    names = [box.get_attribute("aria-label") for box in opened.locator("g[role=button]").all()]
    equal = next(name for name in names if " equal" in str(name))
    before = len(names)
    opened.locator(f"g[aria-label='{equal}']").focus()
    opened.keyboard.press("Enter")
    opened.wait_for_function(f"document.querySelectorAll('g[role=button]').length > {before}")
    assert opened.locator("g.op").count() == 0
    layer = opened.locator("g.group[aria-label^='out, ']")  # of all of them
    size = layer.get_attribute("aria-label").removeprefix("out")
    layer.press("Enter")
    opened.locator(f"g.group[aria-label^='test_pages.py:'][aria-label$='{size}']").press("Enter")
    opened.wait_for_selector("g.op[aria-label$=', 5 equal']")
    drawn(opened, "view=graph&open=")
    names = [box.get_attribute("aria-label") for box in opened.locator("g[role=button]").all()]
    other = opened.context.browser.new_page()  # an address leads to the same boxes
    other.goto(opened.url)
    other.wait_for_selector("html[data-ready=yes]", timeout=20_000)
    there = [box.get_attribute("aria-label") for box in other.locator("g[role=button]").all()]
    assert there == names
    other.close()
    opened.go_back()  # closes the box that was opened last
    opened.wait_for_selector("g.op", state="detached")
    opened.locator("main button", has_text="close all").click()
    opened.wait_for_selector("g.group[aria-label$=' equal']")
    assert opened.locator("g[role=button]").count() <= before


@pytest.mark.browser
@pytest.mark.device("cpu")
def test_every_op_of_a_long_loop_can_be_reached(opened: Any, tmp_path: Path) -> None:
    x = fg.Tensor(np.ones(8, np.float32))
    for _ in range(400):
        x = fg.tanh(x + 1)
    path = fg.viz(fg.exp(x), assembly=False).save(tmp_path / "page.html")
    tab = opened.context.browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]", timeout=20_000)
    tab.locator("g[aria-label*='test_pages.py']").first.click()
    tab.wait_for_selector("g.group[aria-label*=' part 1 of ']")
    assert "more: close some" not in tab.inner_text("main p >> nth=0")
    parts = tab.locator("g.group[aria-label*=' part ']").count()
    assert tab.locator("path.edge").count() >= parts
    tab.locator("g.group[aria-label*=' part 2 of ']").press("Enter")
    tab.wait_for_selector("g.op")
    assert tab.locator("path.edge").count() >= tab.locator("g.op").count()
    tab.fill("#search", "exp")
    tab.locator("#found button", has_text=re.compile(r"^%\d+ exp")).click()
    drawn(tab, "view=graph&node=")
    assert tab.locator("g.op.mark").get_attribute("aria-label").startswith("exp, ")
    tab.close()


@pytest.mark.browser
@pytest.mark.device("cpu")
def test_searching_finds_kernels_laws_and_ops(opened: Any) -> None:
    opened.keyboard.press("/")
    opened.keyboard.type("merge_permutes")
    opened.locator("#found li:first-child", has_text="law: merge_permutes").wait_for()
    opened.keyboard.press("Enter")
    drawn(opened, "view=passes")
    opened.keyboard.press("/")
    opened.fill("#search", "exp blocks.2")
    opened.locator("#found li:first-child button", has_text="exp").click()
    drawn(opened, "view=graph&node=")
    opened.wait_for_selector("aside:not([hidden])")
    assert "your lines" in opened.inner_text("aside") and opened.locator(".mark").count() == 1
    opened.keyboard.press("Escape")
    opened.wait_for_selector("aside", state="hidden")
    opened.fill("#search", "%7")  # one op by its number
    assert opened.locator("#found button").count() == 1
    opened.keyboard.press("Enter")
    drawn(opened, "node=7&")
    assert opened.inner_text("aside h2 >> nth=0").startswith("%7 ")
    opened.fill("#search", "kernel")
    opened.focus("#search")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.textContent").startswith("kernel 2:")
    opened.keyboard.press("Enter")
    drawn(opened, "view=kernels&kernel=1")
    opened.fill("#search", "there is no such thing")
    opened.locator("#found", has_text="nothing found").wait_for()
    opened.keyboard.press("Escape")


@pytest.mark.browser
@pytest.mark.device("cpu")
def test_it_is_light_or_dark_and_everything_has_a_name(opened: Any) -> None:
    before = opened.evaluate("document.documentElement.dataset.theme")
    opened.click("#theme")
    assert opened.evaluate("document.documentElement.dataset.theme") != before
    for number in range(1, 9):
        opened.keyboard.press(str(number))
        drawn(
            opened,
            f"view={opened.locator('[role=tab]').nth(number - 1).get_attribute('data-view')}",
        )
        nameless = opened.evaluate(
            "[...document.querySelectorAll('button,input,svg,[role=button],[role=tabpanel]')]"
            ".filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).length"
        )
        assert nameless == 0
    assert opened.said == []


def test_a_file_that_cannot_be_written_is_said_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "work.py"
    script.write_text("raise SystemExit('it ran')\n")
    for command in ("viz", "trace"):
        assert cli.main([command, "-o", str(tmp_path), str(script)]) == 1
        assert cli.main([command, "-o", str(tmp_path / "no" / "x"), str(script)]) == 1
    said = capsys.readouterr().err
    assert "is a folder" in said and "there is no folder" in said and "it ran" not in said
