"""The chat page, in a real browser (mark `browser`): a conversation, a stop, and an error."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from .serving import served, tiny

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
PAGE = Path(__file__).parents[2] / "fulgurite" / "serve" / "page.html"


@pytest.mark.device("none")
def test_the_page_is_one_file_that_asks_nobody_else_for_anything() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"https?://", text) and not re.search(r"<(script|img)[^>]* src=", text)
    assert "innerHTML" not in text


@pytest.mark.browser
@pytest.mark.device("cpu")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_conversation_in_a_browser(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    with served(tiny(tmp_path)) as server, sync_api.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.port}/")
        sync_api.expect(page.locator("#name")).to_have_text("tiny")
        page.click("summary")
        page.fill("#most", "12")
        page.fill("#seed", "3")
        page.fill("#text", "the <b>rest</b>")
        page.press("#text", "Enter")
        page.wait_for_selector(".note")
        first = page.locator(".assistant").inner_text()
        assert first and page.locator(".user").inner_text() == "the <b>rest</b>"
        page.click("#reset")
        assert page.locator(".message").count() == 0
        page.fill("#text", "the <b>rest</b>")
        page.press("#text", "Enter")
        page.wait_for_selector(".note")
        assert page.locator(".assistant").inner_text() == first  # the same seed
        page.fill("#most", "0")
        page.fill("#text", "then")
        page.press("#text", "Enter")
        sync_api.expect(page.locator(".error")).to_contain_text("'max_tokens'")
        page.fill("#most", "1800")
        page.fill("#text", "the tin")
        page.press("#text", "Enter")
        sync_api.expect(page.locator("#send")).to_have_text("Stop")
        page.click("#send")
        sync_api.expect(page.locator("#send")).to_have_text("Send")
        assert not wrong
        browser.close()
