"""The chat page, by HTTP and in headless Chromium."""

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from tests.server.cutting_proxy import CuttingProxy, cutting
from tests.server.server import MODEL, ROSES, Server, error_of, serving

from eyas.engine.async_engine import AsyncEngine
from eyas.server.metrics import ServerMetrics
from eyas.speculation.speedup import SpeedupEstimate

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync"
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")
LONG_MS = 30_000


# --- the page by HTTP ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(async_engine: AsyncEngine) -> Iterator[Server]:
    """Runs a server whose key is no Latin-1 text."""
    with serving(async_engine, keys=["schlüssel"]) as server:
        yield server


KINDS = {"index.html": "text/html", "ui.css": "text/css", "ui.js": "text/javascript", "tree.js": "text/javascript"}
PATHS = {name: "/ui" if name == "index.html" else f"/ui/{name}" for name in KINDS}


def test_the_page_needs_no_key_and_its_calls_do(locked: Server) -> None:
    with locked.client() as client:
        for name, kind in KINDS.items():
            reply = client.get(PATHS[name])
            assert reply.status_code == 200
            assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["referrer-policy"] == "no-referrer"
            rules = dict(rule.strip().split(" ", 1) for rule in reply.headers["content-security-policy"].split(";"))
            assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
            assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
            assert reply.content == files("eyas.server").joinpath("ui", name).read_bytes()
        for path in ("/v1/models", "/ui/", "/ui/../v1/models"):
            error_of(client.get(path), 401)


def test_the_page_loads_nothing_from_other_hosts() -> None:
    """Checks that it has no URL but the SVG namespace, which is never fetched, and runs no text as code."""
    for path in files("eyas.server").joinpath("ui").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?:|//[a-z]+\.|@import|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text
        )


def test_the_page_can_be_left_out(async_engine: AsyncEngine) -> None:
    with serving(async_engine, page=False) as server, server.client() as client:
        for path in PATHS.values():
            assert error_of(client.get(path), 404)["code"] == "unknown_url"


# --- the page in a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A wide one."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(LONG_MS)
        yield page


def console_errors(page: Page) -> list[str]:
    said = [message.text for message in page.console_messages() if message.type in ("error", "warning")]
    return [*map(str, page.page_errors()), *said]


def say(page: Page, words: str, most: int = 16) -> None:
    page.get_by_label("Max tokens").fill(str(most))
    page.get_by_label("Message", exact=True).fill(words)
    page.keyboard.press("Enter")


def ended(page: Page, text: str = "Done|Stopped at") -> None:
    expect(page.get_by_role("status")).to_have_text(re.compile(text), timeout=LONG_MS)


@in_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_a_chat(browser: Browser, pair: Server, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        page = context.new_page()
        asked: list[dict[str, Any]] = []
        page.on("request", lambda one: asked.append(json.loads(one.post_data)) if one.post_data else None)
        page.goto(f"{pair.url}/ui")
        expect(page.locator("#model")).to_have_text(f"{MODEL}, context 1024")
        say(page, ROSES, 24)
        ended(page)
        say(page, "And after that?", 24)
        ended(page, "Generating")
        ended(page)
        first, second = page.locator("article.answer > p").all()
        # Several turns, with the settings of the page.
        talk = [{"role": "user", "content": ROSES}, {"role": "assistant", "content": first.text_content()}]
        assert asked[1]["messages"] == [*talk, {"role": "user", "content": "And after that?"}]
        assert (asked[1]["temperature"], asked[1]["max_tokens"]) == (0, 24)
        # Colour, and a line below for those who see none.
        drafted, own = second.locator(".drafted").all(), second.locator(".sampled").all()
        assert min(len(drafted), len(own)) > 3
        looks = "e => [getComputedStyle(e).color, getComputedStyle(e).borderBottomStyle]"
        (green, line), (ink, none) = drafted[0].evaluate(looks), own[0].evaluate(looks)
        assert green != ink
        assert (line, none) == ("solid", "none")
        check_figures(page)
        check_tree(page)
        papers: dict[Literal["dark", "light"], str] = {"dark": "rgb(20, 23, 27)", "light": "rgb(255, 255, 255)"}
        for scheme, paper in papers.items():
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert console_errors(page) == []


def check_figures(page: Page) -> None:
    figures = [page.locator(f"#{name}").inner_text() for name in ("tpot", "acceptance", "share", "speedup")]
    assert float(figures[0].removesuffix(" ms")) > 0
    assert float(figures[1]) > 2
    assert 40 < int(figures[2].removesuffix(" %")) < 100
    assert figures[3] == "–"  # a fixed tree has nothing to compare itself with
    names = page.locator(".figures dt").all_inner_texts()
    assert len(names) == 4
    assert all(map(len, names))


def check_tree(page: Page) -> None:
    drawing = page.get_by_role("img")
    assert re.fullmatch(r"Draft tree: 15 drafted, \d accepted", drawing.locator("> title").text_content() or "")
    assert "the target accepted" in (drawing.locator("> desc").text_content() or "")
    nodes = drawing.locator("g.node")
    assert 16 <= nodes.count() <= 17  # and the bonus, where the answer did not end before
    assert all(nodes.locator(".token").all_text_contents())
    outside = """svg => [...svg.querySelectorAll('text, circle, rect')].filter(one => {
      const box = one.getBoundingClientRect(), room = svg.getBoundingClientRect();
      return box.right > room.right + 1 || box.bottom > room.bottom + 1 || box.left < room.left - 1;
    }).length"""
    assert drawing.evaluate(outside) == 0


@in_chromium
def test_the_speed_up_comes_from_the_server(page: Page, pair: Server, async_engine: AsyncEngine) -> None:
    stats = dataclasses.replace(async_engine.stats(), speedup=SpeedupEstimate(2.314, 2.104, 2.546, 9))
    page.route("**/metrics", lambda route: route.fulfill(body=ServerMetrics(MODEL, lambda: stats).render()))
    page.goto(f"{pair.url}/ui")
    expect(page.locator("#speedup")).to_have_text("2.31×")
    expect(page.locator("#interval")).to_have_text("(95 %: 2.10 to 2.55)")


@in_chromium
def test_a_wrong_key_is_reported_and_a_right_one_connects(page: Page, locked: Server) -> None:
    page.goto(f"{locked.url}/ui")
    alert, key = page.get_by_role("alert"), page.get_by_label("API key")
    expect(alert).to_contain_text("This server needs an API key.")
    expect(key).to_be_focused()
    key.fill("wrong")
    say(page, ROSES)
    expect(alert).to_contain_text("The API key is not valid.")
    assert page.locator("article.question").count() == 1
    assert page.locator("article.answer").count() == 0
    key.fill("schlüssel")
    key.press("Tab")
    expect(alert).to_contain_text("Connected.")
    page.get_by_role("button", name="Retry").click()
    ended(page)
    assert page.locator("article .drafted").count() > 3
    assert "schl" not in page.url
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert all("401" in text for text in console_errors(page))


@pytest.fixture
def proxy(pair: Server) -> Iterator[CuttingProxy]:
    with cutting(pair.url) as running:
        yield running


@in_chromium
def test_a_lost_connection_keeps_the_partial_answer(page: Page, proxy: CuttingProxy) -> None:
    page.goto(f"{proxy.url}/ui")
    proxy.spoil = "cut"
    say(page, ROSES)
    expect(page.get_by_role("alert")).to_contain_text("The connection was lost. The partial answer is kept.")
    kept = page.locator("article.answer > p").text_content() or ""
    assert kept
    assert page.get_by_role("button", name="Send", exact=True).is_enabled()
    page.get_by_role("button", name="Retry").click()
    ended(page)
    whole = page.locator("article.answer > p").text_content() or ""
    assert whole.startswith(kept)
    assert len(whole) > len(kept)
    assert page.get_by_role("alert").count() == 0
    assert all("ERR_INCOMPLETE_CHUNKED_ENCODING" in text or "ERR_CONN" in text for text in console_errors(page))


@in_chromium
def test_the_stop_button(page: Page, proxy: CuttingProxy) -> None:
    page.goto(f"{proxy.url}/ui")
    proxy.spoil = "hold"
    say(page, ROSES)
    page.locator("article .drafted").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    ended(page, "Stopped. The partial answer is kept.")
    assert proxy.left.wait(10), "the connection is closed, by which the server knows"
    assert page.locator("article.answer > p").text_content()
    assert console_errors(page) == []


@in_chromium
@pytest.mark.parametrize(
    ("status", "message"),
    [(429, "The server is full. Retry in 7 s."), (503, "The server is not available: It is broken. Mend it.")],
)
def test_a_server_that_is_not_available(page: Page, pair: Server, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": "It is broken. Mend it.", "type": "", "param": None, "code": None}})
    turns = [lambda route: route.fulfill(status=status, body=body, headers={"Retry-After": "7"}), Route.continue_]
    page.route("**/v1/chat/completions", lambda route: turns.pop(0)(route))
    page.goto(f"{pair.url}/ui")
    say(page, ROSES)
    expect(page.get_by_role("alert")).to_contain_text(message)
    page.get_by_role("button", name="Retry").click()
    ended(page)
    assert page.locator("article").count() == 2


@in_chromium
def test_markup_stays_text(page: Page, pair: Server) -> None:
    """In the prompt, in the answer and in the tree's nodes; the answer is the target's own, by a pattern."""
    attack = "<img src=x onerror=alert(1)>"

    def with_pattern(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        route.continue_(post_data=json.dumps({**body, "guided_regex": re.escape(attack)}))

    page.route("**/v1/chat/completions", with_pattern)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(f"{pair.url}/ui")
    say(page, attack, 64)
    ended(page)
    expect(page.locator("article.question > p")).to_have_text(attack)
    expect(page.locator("article.answer > p")).to_have_text(attack)
    assert page.locator("article img, article script, #tree img, #tree script").count() == 0
    assert console_errors(page) == []


@in_chromium
def test_by_keyboard_alone(page: Page, pair: Server) -> None:
    """Every control is reached in order and has a name; a new chat forgets the old one."""
    page.goto(f"{pair.url}/ui")
    names = []
    for _ in range(8):
        page.keyboard.press("Tab")
        names.append(page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim()"))
    expected = ["API key", "Temperature", "Max tokens", "Speculation", "Ask a question", "Message", "Send", "New chat"]
    assert [name[: len(wanted)] for name, wanted in zip(names, expected, strict=True)] == expected
    say(page, ROSES)
    ended(page)
    assert page.get_by_role("log").locator("article").count() == 2
    page.get_by_role("button", name="New chat").press("Enter")
    assert page.get_by_role("log").locator("article").count() == 0
