"""The page in a real browser (`make test-page`): send, watch, stop, prove, phones, keyboard, nothing from elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonoran.llm import LLM
from sonoran.server.config import ServerConfig
from sonoran.server.run import Background
from tests.server.test_load import until

pytestmark = pytest.mark.page

FACTS = {"fingerprint": "sonoran-test", "model": "tiny", "mode": "ssd", "draft": "tiny-draft", "cores": 2}
LENGTH = 512
SCREENSHOTS = os.environ.get("SONORAN_SCREENSHOTS")


@pytest.fixture(scope="module")
def site(pair: tuple[str, str]) -> Iterator[Background]:
    target, draft = pair
    speculative = {"method": "ssd", "model": draft, "num_speculative_tokens": 4}
    config = ServerConfig(names=("tiny",), port=0)
    with (
        LLM(target, speculative_config=speculative, max_model_len=LENGTH, threads=1) as llm,
        Background(llm, config, FACTS) as site,
    ):
        target: Any = llm._runner.core.target
        quick = target.forward

        def forward(rows: Any) -> Any:
            time.sleep(0.004)  # slow enough to be watched and stopped
            return quick(rows)

        target.forward = forward
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, 800), (390, 844)], ids=["desk", "phone"])
def page(browser: Any, site: Background, request: pytest.FixtureRequest) -> Iterator[Any]:
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    said: list[str] = []
    elsewhere: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request", lambda r: elsewhere.append(r.url) if not r.url.startswith((site.url, "data:")) else None
    )
    page.goto(site.url)
    page.locator("#about", has_text="ssd K=4").wait_for()
    yield page
    # The browser itself remarks on answers that are errors.
    assert [text for text in said if "400 (Bad Request)" not in text] == [] and elsewhere == []
    context.close()


def send(page: Any, text: str, tokens: int = 60) -> Any:
    page.fill("#limit", str(tokens))
    page.fill("#message", text)
    page.press("#message", "Enter")
    return page.locator("article.assistant").last


def shot(page: Any, name: str) -> None:
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}-{page.viewport_size['width']}.png"))


def test_an_answer_is_coloured_counted_and_proved(page: Any) -> None:
    answer = send(page, "Write a list of three things")
    answer.locator(".prove").wait_for()
    spans = answer.locator(".stream .tok")
    assert spans.count() > 3
    origins = set(answer.locator(".stream").evaluate("e => [...e.children].map(s => s.className)"))
    assert origins <= {"tok cache", "tok backup", "tok target"} and "tok target" in origins
    assert page.locator("#histogram rect").count() == 5
    assert float(page.text_content("#length") or "") >= 1
    shot(page, "answered")
    answer.locator(".prove").click()
    answer.locator(".verdict.ok, .verdict.bad").wait_for()
    assert (answer.locator(".verdict").text_content() or "").startswith(f"✓ the same {spans.count()} tokens")
    assert answer.locator(".tok.proved").count() == spans.count()
    assert float(page.text_content("#ar") or "") > 0
    lit = page.evaluate(
        "[...document.querySelector('#lanes').getContext('2d').getImageData(0, 0, 200, 60).data].some(v => v)"
    )
    assert lit
    shot(page, "proved")


def test_stop_ends_the_request_on_the_server(page: Any, site: Background) -> None:
    answer = send(page, "hello", 400)
    answer.locator(".tok").nth(4).wait_for(state="attached")
    page.click("#stop")
    page.locator("#send:not([disabled])").wait_for()
    until(lambda: page.evaluate("fetch('/v1/status').then(r => r.json()).then(s => s.requests.length)") == 0)
    assert answer.locator(".tok").count() < 400


def test_modes_are_switched_for_each_message(page: Any) -> None:
    page.select_option("#mode", "ar")
    answer = send(page, "hello", 30)
    answer.locator(".prove").wait_for()
    assert answer.locator(".tok.cache, .tok.backup").count() == 0
    page.uncheck("#colours")
    assert page.locator("#log.plain").count() == 1


def test_what_models_and_users_write_is_never_markup(page: Any) -> None:
    evil = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
    send(page, evil, 3).locator(".prove").wait_for()
    page.evaluate(
        """async (text) => {
            const { markdown } = await import('/ui/app.js');
            const there = document.createElement('div');
            there.id = 'there';
            there.append(markdown(text));
            document.body.append(there);
        }""",
        f"# {evil}\n\n- **{evil}**\n- `{evil}`\n\n1. one\n\n```html\n{evil}\n```\n[x](javascript:alert(1))\nend *of it*",
    )
    assert page.title() == "Sonoran"
    inside = page.locator("#there")
    assert inside.locator("img, script, a").count() == 0
    for name in ("h3", "strong", "code", "pre", "ul", "ol", "em"):
        assert inside.locator(name).count() > 0, name


def test_the_page_is_usable_without_a_mouse_and_fits(page: Any) -> None:
    assert page.evaluate("document.activeElement.id") == "message"
    page.keyboard.type("hi")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "send"
    page.keyboard.press("Enter")
    page.locator("article.assistant .prove").first.wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    named = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea, button')]"
        ".every(e => e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))"
    )
    assert named


def test_errors_are_told_and_the_page_goes_on(page: Any) -> None:
    page.fill("#limit", "5")
    page.fill("#message", "long " * 1500)
    page.press("#message", "Enter")
    page.locator("#error:not([hidden])").wait_for()
    assert "max_model_len" in (page.text_content("#error") or "")
    page.reload()
    page.locator("#about", has_text="ssd K=4").wait_for()
    send(page, "hi", 5).locator(".prove").wait_for()
