"""The report's page, parsed with the standard library: its texts, tables, drawings and accessibility."""

import copy
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.bench.sample_results import TASKS, sample_acceptance, sample_results

from eyas.base.errors import InputError
from eyas.bench.charts import _ticks
from eyas.bench.report import render_report, write_results
from eyas.cli.recipes import format_results
from eyas.train.training_metrics import read_training_curve

VOID = {"meta", "link", "br", "img", "input"}
CHARTS = {"tpot", "acceptance", "depth", "round", "load-tpot", "load-tps", "load-ttft", "accepted"}
CHARTS |= {"training-loss", "training-accuracy", "training-chain_length"}


class Page(HTMLParser):
    """Elements with their attributes and inner text; fails on tags that do not close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] = []
        self.feed(html)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        path = [element["tag"] for element in self._open]
        element = {"tag": tag, "text": "", "inside": path, **{name: value or "" for name, value in attrs}}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append({"tag": tag, "text": "", "inside": [], **{name: value or "" for name, value in attrs}})

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()["tag"] == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element["text"] += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, Any]]:
        return [
            element
            for element in self.elements
            if element["tag"] == tag and all(element.get(name) == value for name, value in attributes.items())
        ]

    def one(self, tag: str, **attributes: str) -> dict[str, Any]:
        (found,) = self.all(tag, **attributes)
        return found


def page(results: dict[str, Any], acceptance: dict[str, Any] | None = None) -> Page:
    return Page(render_report(results, acceptance))


def words(element: dict[str, Any]) -> str:
    """The text as a browser shows it, with single spaces."""
    return " ".join(element["text"].split())


def headline(results: dict[str, Any]) -> str:
    return page(results).one("h1")["text"]


def with_speedups(*speedups: float) -> dict[str, Any]:
    results = sample_results()
    results["tasks"] = {
        f"task {index}": {**results["tasks"]["chat"], "speedup": speedup} for index, speedup in enumerate(speedups)
    }
    return results


def test_self_contained() -> None:
    html = render_report(sample_results(), sample_acceptance())
    assert not re.search(r"https?://|//cdn|@import|<script|<iframe|<img|\ssrc=", html, re.IGNORECASE)
    assert set(re.findall(r"url\(([^)]*)\)", html)) == set(re.findall(r"url\((#[\w-]+)\)", html))
    read = Page(html)
    assert [link["href"] for link in read.all("link")] == ["data:,"]
    assert read.one("html")["lang"] == "en"
    assert read.one("meta", name="viewport")["content"] == "width=device-width, initial-scale=1"


def test_ids_are_unique_and_every_reference_has_its_target() -> None:
    html = render_report(sample_results(), sample_acceptance())
    ids = [element["id"] for element in Page(html).elements if "id" in element]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([\w-]+)\)", html)) <= set(ids)


def test_every_chart_has_a_title_and_a_text_alternative() -> None:
    read = page(sample_results(), sample_acceptance())
    assert {figure["id"] for figure in read.all("figure")} == CHARTS
    assert len(read.all("svg")) == len(CHARTS)
    texts = {element["id"]: element["text"] for element in read.elements if "id" in element}
    for drawing in read.all("svg"):
        assert drawing["role"] == "img"
        title, text = (texts[ident] for ident in drawing["aria-labelledby"].split())
        assert len(title) > 10
        assert len(re.findall(r"\d", text)) > 8, "the figures are in the text alternative"
    folded = [summary for summary in read.all("summary") if "figure" in summary["inside"]]
    assert len(read.all("figcaption")) == len(folded) == len(CHARTS)
    tables = [table for table in read.all("table") if "figure" in table["inside"]]
    assert len(tables) == len(CHARTS)


def test_numbers_are_those_of_the_results() -> None:
    results = sample_results()
    read = page(results, sample_acceptance())
    shown = [(float(item["value"]), item["text"]) for item in read.all("data")]
    exact = {value for value, _ in shown}
    for task in results["tasks"].values():
        expected = {task["speedup"], task["acceptance_length"], *task["tpot_ms"].values(), *task["ci95"]}
        expected |= {*task["speedup_ci95"], task["uncertain_share"], task["prompts"]}
        expected |= {reference["acceptance_length"] for reference in task["references"].values()}
        assert expected <= exact
    assert {results["story"][key] for key in ("prompts", "answers", "tokens")} <= exact
    for value, text in shown:
        digits = re.fullmatch(r"(\d[\d,]*(?:\.(\d+))?)(×|%| ms|)", text)
        if digits is None:
            assert text in ("242.1 MB", "2 min 51 s")
            continue
        scale = {"×": 1, "": 1, "%": 0.01, " ms": 1}[digits[3]]
        step = 10 ** -len(digits[2] or "") * scale
        assert float(digits[1].replace(",", "")) * scale == pytest.approx(value, abs=0.501 * step)


def test_bars_are_as_long_as_their_values() -> None:
    read = page(sample_results())
    html = render_report(sample_results(), None)
    figure = html[html.index('<figure id="tpot"') : html.index('<figure id="acceptance"')]
    drawing = figure[figure.index("</defs>") : figure.index("</svg>")]
    # The first two bars are the legend's swatches.
    widths = [float(width) + 1 for width in re.findall(r'<rect[^>]*width="([\d.]+)"', drawing)][2:]
    values = [value for task in sample_results()["tasks"].values() for value in task["tpot_ms"].values()]
    assert widths == pytest.approx([value * widths[0] / values[0] for value in values], rel=0.01)
    assert "9.21 ms" in read.one("figure", id="tpot")["text"]


def test_depth_panels_show_the_given_shares() -> None:
    acceptance = sample_acceptance()
    acceptance["tasks"]["chat"]["by_depth"] = [0.75, None, 0.25]
    text = page(sample_results(), acceptance).one("figure", id="depth")["text"]
    assert "chat75%25%" in re.sub(r"\s", "", text)
    assert "chat depth 1 75.0% depth 2 – depth 3 25.0% depth 4 –" in text


def test_headline_says_how_much_faster_and_that_the_answers_are_identical() -> None:
    results = sample_results()
    assert median(task["speedup"] for task in results["tasks"].values()) == 2.098
    read = page(results)
    assert read.one("h1")["text"] == "2.1× faster at one stream, identical answers"
    assert "128 of 128 answers are identical (float32, against transformers generate)" in words(read.one("header"))
    assert read.all("div", **{"class": "alarm"}) == []
    assert "2.1× faster" in read.all("title")[0]["text"]


def test_different_answers_raise_an_alarm() -> None:
    results = sample_results()
    results["lossless"]["identical"] = 125
    read = page(results)
    assert read.one("h1")["text"] == "2.1× faster at one stream, but the answers DIFFER"
    alarm = words(read.one("div", **{"class": "alarm"}))
    assert alarm.startswith("3 of 128 answers differ.")
    assert "identical answers" not in read.one("body")["text"]


@pytest.mark.parametrize("lossless", [{}, {"prompts": 0, "identical": 0}, None])
def test_answers_that_were_not_compared_are_not_called_identical(lossless: dict[str, Any] | None) -> None:
    assert headline({**sample_results(), "lossless": lossless}).endswith("; answers not compared")


@pytest.mark.parametrize(
    ("speedups", "start"),
    [
        ((0.5, 0.83, 3.0), "Slower: 0.83× the speed of the baseline at one stream"),
        ((0.994,), "Slower: 0.99×"),
        ((0.999,), "No faster than the baseline"),
        ((1.0,), "No faster than the baseline"),
        ((1.04,), "1.04× faster"),
        ((1.5, 2.0), "1.8× faster"),
    ],
)
def test_headline_never_rounds_across_one(speedups: tuple[float, ...], start: str) -> None:
    assert headline(with_speedups(*speedups)).startswith(start)


def test_slower_tasks_are_named() -> None:
    read = page(with_speedups(0.9, 1.4, 1.6))
    assert "Slower than the baseline in 1 of 3 tasks: task 0." in words(read.one("header"))
    assert "0.90×, slower" in read.all("table")[0]["text"]


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><svg onload="x">', "a'b&amp;c", "]]></style>"])
def test_everything_from_outside_is_escaped(hostile: str) -> None:
    results, acceptance = sample_results(), sample_acceptance()
    results["tasks"] = {hostile: results["tasks"]["chat"]}
    acceptance["tasks"] = {hostile: acceptance["tasks"]["chat"]}
    for point in results["concurrency"]:
        point["arms"] = {hostile: point["baseline"]}
    results |= {"command": hostile, "dtype": hostile, "machine": {hostile: hostile}, "versions": {hostile: [hostile]}}
    results["target"]["name"] = results["lossless"]["reference"] = results["story"]["head_start"] = hostile
    before = copy.deepcopy(results)
    calm_results = {**sample_results(), "tasks": {"calm": sample_results()["tasks"]["chat"]}}
    read, plain = page(results, acceptance), page(calm_results, sample_acceptance())
    assert results == before, "the input is left as it was"
    assert {element["tag"] for element in read.elements} == {element["tag"] for element in plain.elements}
    assert {name for element in read.elements for name in element} == {
        name for element in plain.elements for name in element
    }
    assert read.one("code")["text"] == hostile
    assert hostile in read.all("table")[0]["text"]


def test_only_the_keys_of_the_schema() -> None:
    results = sample_results()
    for key in ("rounds", "story", "command", "versions"):
        del results[key]
    for task in results["tasks"].values():
        for key in ("references", "uncertain_share", "looping"):
            del task[key]
    results["concurrency"] = []
    read = page(results)
    assert {figure["id"] for figure in read.all("figure")} == {"tpot", "acceptance"}
    assert "prompt lookup" not in read.all("table")[0]["text"]
    assert "Looping" not in read.one("body")["text"]


def test_references_may_come_from_the_acceptance_file() -> None:
    results, acceptance = sample_results(), sample_acceptance()
    for task in results["tasks"].values():
        del task["references"]
    acceptance["tasks"]["code"]["references"] = {"prompt_lookup": {"acceptance_length": 1.6789}}
    table = page(results, acceptance).all("table")[0]["text"]
    assert "1.68" in table
    assert "4-gram" not in table


def test_acceptance_by_mode_and_phase() -> None:
    entries = {"direct": 2.75, "thinking": 3.25}
    modes = {name: {"acceptance_length": value, "ci95": [value - 0.1, value + 0.1]} for name, value in entries.items()}
    phases = {"by_phase": {"thoughts": {"acceptance_length": 3.5}, "tool_call": {"acceptance_length": 4.125}}}
    html = render_report(sample_results(), sample_acceptance() | {"modes": modes, "all": phases})
    chart = html[html.index("Acceptance length, by mode and phase") :]
    for name, value in (
        ("mode direct", "2.75"),
        ("mode thinking", "3.25"),
        ("thoughts", "3.50"),
        ("tool call", "4.12"),
    ):
        assert name in chart
        assert value in chart
    assert "by mode and phase" not in render_report(sample_results(), sample_acceptance())


def test_acceptance_by_slice() -> None:
    rates = {"baseline": 81.0, "speculative": 203.0}
    entry = {"conversations": 12, "tokens": 3456, "output_tps": rates, "acceptance_length": 2.345, "ci95": [2.2, 2.5]}
    slices = {
        "turn": {"1": entry | {"speedup": 2.51}, "6+": entry | {"acceptance_length": 1.987}},
        "context": {"<=512": entry | {"kv_bytes": {"baseline": 1234567, "speculative": 2345678}}},
        "phase": {"tool_call": entry},
    }
    html = render_report(sample_results() | {"slices": slices}, sample_acceptance())
    chart = html[html.index("Acceptance length, by turn, context and phase") :]
    for text in ("turn 6+", "1.99", "context &lt;=512", "1,234,567", "phase tool call", "2.51", "3,456", "203"):
        assert text in chart
    assert "by turn, context" not in render_report(sample_results(), sample_acceptance())


def test_nothing_measured() -> None:
    read = page({"schema": 1, "tasks": {}, "concurrency": []}, {"schema": 1, "tasks": {}})
    assert read.one("h1")["text"] == "Speed was not measured; answers not compared"
    assert read.all("figure") == []


def test_broken_numbers_are_left_out() -> None:
    results = sample_results()
    results["tasks"]["chat"] |= {"speedup": float("nan"), "speedup_ci95": [2, 1], "ci95": None, "tpot_ms": None}
    html = render_report(results, None)
    assert "nan" not in html.lower().replace("name", "")
    assert len(Page(html).one("figure", id="tpot")["text"]) > 100


def test_load_is_shown_from_two_points_on() -> None:
    results = sample_results()
    text = page(results).one("figure", id="load-tpot")["text"]
    assert "chain of 3" in text
    assert f"{results['concurrency'][3]['speculative']['tpot_ms']['p99']:.2f}" in text
    results["concurrency"] = results["concurrency"][:2]
    results["concurrency"][1]["speedup_tps"] = 0.93
    body = words(page(results).one("body"))
    assert "0.93× at 2 streams. Slower than the baseline there." in body


def test_definitions_environment_and_command() -> None:
    results = sample_results()
    body = words(page(results, sample_acceptance()).one("body"))
    assert "(end-to-end time − TTFT) / (output tokens − 1)" in body
    for text in ("A made-up processor", "torch 2.13.0", "depth 6, top k 4, nodes 24", results["command"], "float32"):
        assert text in body
    assert all(task in body for task in TASKS)


@pytest.mark.parametrize("broken", ["results", "acceptance"])
def test_another_schema_is_rejected(broken: str) -> None:
    files = {"results": sample_results(), "acceptance": sample_acceptance()}
    files[broken]["schema"] = 2
    with pytest.raises(InputError, match=rf"{broken}.json has schema 2"):
        render_report(files["results"], files["acceptance"])


def test_same_input_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_results(sample_results(), sample_acceptance(), tmp_path / name)
    first = (tmp_path / "a" / "report.html").read_bytes()
    assert first == (tmp_path / "b" / "report.html").read_bytes()
    assert first.startswith(b"<!doctype html>")


@pytest.mark.parametrize("highest", [0.003, 0.9, 1.0, 1.01, 4.99, 5.0, 9.3, 41.7, 1063.0, 99_999.0])
def test_ticks_are_few_and_reach_the_highest_value(highest: float) -> None:
    ticks = _ticks(highest)
    assert ticks[0] == 0
    assert 3 <= len(ticks) <= 6
    assert ticks[-2] < highest <= ticks[-1] * (1 + 1e-9)


def points_of(read: Page, ident: str) -> list[tuple[float, float]]:
    """Returns the points of a chart's line, in units of the drawing."""
    order = read.elements
    start = next(place for place, element in enumerate(order) if element.get("id") == ident)
    line = next(element for element in order[start:] if element["tag"] == "polyline")
    return [(float(x), float(y)) for x, y in (point.split(",") for point in line["points"].split())]


def test_training_curves_are_drawn_to_scale() -> None:
    read = page(sample_results())
    loss = points_of(read, "training-loss")
    assert len(loss) == 10
    # Evenly spaced updates, a loss of 6 / n: heights above zero go with the losses.
    assert len({round(b[0] - a[0]) for a, b in itertools.pairwise(loss)}) == 1
    zero = 170.0
    assert [(zero - y) / (zero - loss[0][1]) for _, y in loss] == pytest.approx([1 / n for n in range(1, 11)], abs=0.01)
    results = sample_results()
    for point in results["story"]["training"]:
        point["loss"] = -point["accuracy"]  # the loss lk
    drawn = [y for _, y in points_of(page(results), "training-loss")]
    assert drawn == sorted(drawn)
    assert all(14 <= y <= 170 for y in drawn)
    results["story"]["training"] = results["story"]["training"][:1]
    assert not page(results).all("figure", id="training-loss")


def test_a_long_training_curve_keeps_its_last_point(tmp_path: Path) -> None:
    lines = [{"update": n, "loss": 1.0, "accuracy": [0.5, 0.1], "chain_length": 2.0} for n in range(1, 1001)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    points = read_training_curve(path)
    assert len(points) == 40
    assert points[-1] == {"update": 1000, "loss": 1.0, "accuracy": 0.5, "chain_length": 2.0}
    assert {b["update"] - a["update"] for a, b in itertools.pairwise(points)} == {25}
    path.write_text("")
    assert read_training_curve(path) == []


def with_load(*points: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": 1, "tasks": {}, "concurrency": list(points), **more}


def test_a_single_load_point_becomes_bars() -> None:
    point = sample_results()["concurrency"][2] | {"speedup_tps": 0.93}
    point["speculative"] |= {"requests": 48, "failed": 5, "errors": {"HTTP 429: slow down": 5}}
    read = page(with_load(point))
    assert {figure["id"] for figure in read.all("figure")} == {"load-tpot", "load-tps", "load-ttft", "accepted"}
    body = words(read.one("body"))
    assert "0.93× at 4 streams. Slower than the baseline there." in body
    assert "5 of 48 requests failed" in body
    assert "HTTP 429: slow down" in body
    assert "No task was measured" not in body
    drawing = read.one("figure", id="load-tps")["text"]
    for arm in (point["baseline"], point["speculative"], point["arms"]["chain of 3"]):
        assert f"{arm['output_tps']:.2f}" in drawing
    assert "At 4 streams" in drawing


def test_every_metric_of_an_arm_is_shown_with_its_interval() -> None:
    point = sample_results()["concurrency"][0]
    read = page(with_load(point))
    exact = {float(item["value"]) for item in read.all("data")}
    arm = point["speculative"]
    for time in ("tpot_ms", "ttft_ms", "step_ms", "e2e_ms"):
        assert {arm[time][percent] for percent in ("p50", "p90", "p99")} <= exact
    assert {arm["goodput"], arm["output_tps"], arm["acceptance_length"]} <= exact
    for span in (arm["e2e_ms"]["p50_ci95"], arm["output_tps_ci95"], arm["acceptance_length_ci95"]):
        assert set(span) <= exact
    text = read.one("figure", id="accepted")["text"]
    assert "0 accepted 32.0%" in text  # 31 of 97
    assert "4 accepted 7.2%" in text
    words = [word["text"] for word in read.all("dt")]
    assert {"Step", "End-to-end", "Throughput"} <= set(words)


def test_without_a_limit_there_is_no_goodput() -> None:
    results = sample_results()
    for point in results["concurrency"]:
        for arm in (point["baseline"], point["speculative"], *point["arms"].values()):
            del arm["goodput"]
    assert "oodput" not in page(results).one("body")["text"]


def test_imported_results_without_a_number_of_streams() -> None:
    arm = sample_results()["concurrency"][0]["baseline"]
    point = {"n": 0, "baseline": arm, "speculative": arm, "arms": {}, "speedup_tpot": 1.5, "speedup_tps": 1.4}
    read = page(with_load(point))
    assert read.one("h1")["text"] == "1.5× faster at an unknown load; answers not compared"
    assert "1.40× at an unknown load." in read.one("body")["text"]
    assert "0 streams" not in read.one("body")["text"]


def test_a_single_server_is_compared_with_nothing() -> None:
    arm = sample_results()["concurrency"][0]["baseline"]
    tasks = {"chat": {"prompts": 3, "tpot_ms": {"server": 7.531}}}
    read = page(with_load({"n": 1, "arms": {"server": arm}}) | {"tasks": tasks})
    assert read.one("h1")["text"] == "Measured without a baseline; answers not compared"
    table = read.all("table")[0]["text"]
    assert "TPOT server, ms" in table
    assert "7.53" in table
    assert "server 7.53 ms" in read.one("figure", id="tpot")["text"]


def test_answers_that_were_not_streamed() -> None:
    before, after = ({"e2e_ms": {"p50": e2e}, "output_tps": 1000 / e2e} for e2e in (20.0, 10.0))
    tasks = {"chat": {"prompts": 3, "tpot_ms": {}, "e2e_ms": {"baseline": 20.5, "speculative": 10.5}}}
    point = {"n": 8, "baseline": before, "speculative": after, "arms": {}, "speedup_tps": 2.0}
    read = page(with_load(point) | {"tasks": tasks})
    assert read.one("h1")["text"].startswith("2.0× the throughput at 8 streams")
    assert "The answers were not streamed" in read.one("body")["text"]
    assert "End-to-end with head, ms" in read.all("table")[0]["text"]


def test_different_answers_raise_an_alarm_without_tasks() -> None:
    point = {
        "n": 8,
        "baseline": {"output_tps": 1.0},
        "speculative": {"output_tps": 2.0},
        "arms": {},
        "speedup_tps": 2.0,
    }
    lossless = {"prompts": 4, "identical": 3, "dtype": "as served", "reference": "the server"}
    assert headline(with_load(point, lossless=lossless)) == "2.0× the throughput at 8 streams, but the answers DIFFER"


def test_the_client_keys_are_shown() -> None:
    client = {"prompts": "synthetic", "limit": None, "slo": {"ttft_ms": 250.0, "tpot_ms": None}, "rates": [2.5]}
    text = page({**sample_results(), "client": client}).one("body")["text"]
    assert "prompts synthetic, slo ttft ms 250.0, rates [2.5]" in text


def test_a_server_that_went_down_raises_an_alarm() -> None:
    alarm = page({**sample_results(), "gone": "server: no connection (refused)"}).one("div", **{"class": "alarm"})
    assert alarm["text"].startswith("A server went down during the measurement.")
    assert "server: no connection (refused)" in alarm["text"]


def test_rates_alone() -> None:
    point = {key: value for key, value in sample_results()["concurrency"][1].items() if key != "n"}
    slow = point | {"rate": 7.5, "speedup_tpot": 0.91}
    read = page(with_load(rates=[slow | {"speedup_tpot": 0.87, "rate": 9.0}, slow]))
    assert read.one("h1")["text"].startswith("Slower: 0.91× the speed of the baseline at 7.5 requests/s")
    body = words(read.one("body"))
    assert "Lowest TPOT ratio to the baseline: 0.87× at 9 requests/s. Slower than the baseline there." in body
    assert {"rate-tpot", "rate-tps", "rate-ttft"} <= {figure["id"] for figure in read.all("figure")}
    assert {"Rate", "Goodput"} <= {word["text"] for word in read.all("dt")}


def test_two_arms_without_a_ratio() -> None:
    arm = {"requests": 4, "failed": 4, "errors": {"HTTP 500": 4}, "output_tps": 0.0}
    start = "Speed was not measured"
    assert headline(with_load({"n": 1, "baseline": arm, "speculative": arm, "arms": {}})).startswith(start)
    tasks = {"chat": {"prompts": 1, "tpot_ms": {"baseline": 3.0}}}
    assert headline({"schema": 1, "tasks": tasks, "concurrency": []}).startswith(start)


def test_the_terminal_has_a_line_for_every_load() -> None:
    """Streams are compared by throughput, rates by TPOT, because a rate fixes the throughput."""
    results = sample_results()
    times = {name: {"tpot_ms": {"p50": p50}} for name, p50 in (("baseline", 12.0), ("speculative", 4.0))}
    before = format_results(results).splitlines()
    found = format_results(
        results | {"rates": [{"rate": 2.5, **times}], "ramp": [{"rate": 3.5625, **times}]}
    ).splitlines()
    assert [line for line in found if line not in before] == [
        "2.5 requests/s    12.00 ms      4.00 ms    3.00x",
        "3.56 requests/s   12.00 ms      4.00 ms    3.00x",
    ]
    assert sum(" streams" in line for line in found) == len(results["concurrency"])
