"""The report in headless Chromium: no console messages, no fetches, no horizontal scrolling, readable text."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.chromium import Chromium, find_chromium
from tests.bench.sample_results import sample_acceptance, sample_results

from eyas.bench.report import render_report

BINARY = find_chromium()
pytestmark = pytest.mark.skipif(BINARY is None, reason="no chromium on PATH")

SMALLEST_PX = 10.5
# Of every text in a chart: its size on screen, and how far it leaves its drawing.
TEXTS = """[...document.querySelectorAll('svg text')].map(text => {
  const box = text.getBoundingClientRect(), room = text.ownerSVGElement.getBoundingClientRect();
  return {text: text.textContent, size: parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a,
          outside: Math.max(room.left - box.left, box.right - room.right,
                            room.top - box.top, box.bottom - room.bottom)};
})"""
# Pairs of texts of one chart that overlap by more than a hair.
OVERLAPS = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
    Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3).map(([b]) => a + ' | ' + b));
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert BINARY is not None
    with Chromium(BINARY, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("report")
    (directory / "full.html").write_text(render_report(sample_results(), sample_acceptance()), encoding="utf-8")
    long = sample_results()
    long["tasks"] = {"a_task_name_without_any_place_to_break_it_" * 3: long["tasks"]["chat"]}
    long["command"] = "eyas bench --url http_localhost_" + "x" * 400
    long["lossless"]["identical"] = 1
    (directory / "long.html").write_text(render_report(long, None), encoding="utf-8")
    alone = sample_results() | {"tasks": {}, "rounds": {}, "gone": "server: no connection (Connection refused)"}
    alone["concurrency"] = alone["concurrency"][5:]
    alone["concurrency"][0]["arms"] = {"an_arm_" * 12: alone["concurrency"][0]["arms"]["chain of 3"]}
    alone["concurrency"][0]["baseline"] |= {"requests": 32, "failed": 3, "errors": {"HTTP_" * 60: 3}}
    (directory / "one_point.html").write_text(render_report(alone, None), encoding="utf-8")
    return {path.stem: path.as_uri() for path in directory.iterdir()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["full", "long", "one_point"])
def test_page(browser: Chromium, urls: dict[str, str], name: str, width: int, scheme: str) -> None:
    browser.complaints.clear()
    browser.screen(width, scheme)
    browser.open(urls[name])
    # With the tables unfolded too: they are the widest things of the page.
    for unfold in (False, True):
        browser.evaluate(f"document.querySelectorAll('details').forEach(item => item.open = {str(unfold).lower()})")
        assert browser.evaluate("innerWidth") == width
        assert browser.evaluate("document.documentElement.scrollWidth") == width
    texts = browser.evaluate(TEXTS)
    assert len(texts) > 10
    assert [item for item in texts if item["size"] < SMALLEST_PX or item["outside"] > 1] == []
    assert browser.evaluate(OVERLAPS) == []
    # Dark is dark: the paper has the scheme's colour.
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert browser.complaints == []


def test_console_messages_and_fetches_are_detected(browser: Chromium, tmp_path: Path) -> None:
    browser.complaints.clear()
    path = tmp_path / "bad.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("loud"); missing()</script>')
    browser.open(path.as_uri())
    browser.evaluate("1")
    said = " ".join(browser.complaints)
    assert "loud" in said
    assert "missing is not defined" in said
    assert "fetched http://127.0.0.1:9/x.png" in said
