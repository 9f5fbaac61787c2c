"""Measures `eyas serve` with and without the head over HTTP, and draws charts like those of Google's EAGLE-3 post.

    python benchmarks/served_charts.py [--streams 1 2 4 8 16 32] [--repeats 5] [--out DIR] [--picture FILE.svg]

Runs two servers on this machine, `eyas serve` with the shipped pair and `eyas serve --no-head`, both compiled. One is
idle while the other is measured. The client is `eyas bench --url`. It measures median TPOT, output throughput and TTFT
over the number of streams, with the same prompts for both servers.

The target: the server is never slower than without a head (lower 95 % bound of the throughput ratio at least 0.97).
The share of equal answers has no target, because batches of different sizes round differently in bfloat16.

Prints one JSON object for each row and exits 1 if a row misses its target. --out names a directory for results.json and
report.html. --picture writes the four charts as one SVG file. Server and client need one core each; a busy machine
slows the baseline most, because it sends every token separately. Progress goes to stderr. Takes a quarter of an hour on
two idle cores.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from plain_speed import wait_calm
from result_rows import Row, print_rows

from eyas.bench import charts, report_charts
from eyas.bench.client.bench_server import run
from eyas.bench.config import ClientConfig
from eyas.bench.report import render_chart

STREAMS, REPEATS = (1, 2, 4, 8, 16, 32), 5
MIN_RATIO = 0.97
GAP = 24  # margin in the SVG, in its user units
SERVE = [sys.executable, "-c", "import sys; from eyas.cli import main; sys.exit(main())", "serve", "--port", "0"]


@contextmanager
def run_server(log: Path, *words: str) -> Iterator[str]:
    """Runs `eyas serve` with these arguments and yields the URL of its API once its forwards are compiled.

    Its stderr goes to `log`.
    """
    command = [*SERVE, "--slots", str(max(STREAMS)), *words]
    with log.open("wb") as lines:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=lines, text=True)
    try:
        assert server.stdout is not None, "it is a pipe"
        # eyas serves embedded at http://127.0.0.1:40123/v1 (arms: ...)
        url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        wait_calm(server.pid)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def measure_servers(streams: Sequence[int], repeats: int, out: Path) -> Iterator[Row]:
    """Measures both servers and yields the rows of the tasks, of each number of streams, and of equal answers."""
    config = ClientConfig(limit=8, repeats=repeats, concurrency=tuple(streams), max_tokens=96, warm_up=max(streams))
    out.mkdir(parents=True, exist_ok=True)
    with run_server(out / "head.log") as url, run_server(out / "no-head.log", "--no-head") as baseline:
        found = run(url, baseline, config, out)
    for task, entry in found["tasks"].items():
        low, high = entry["speedup_ci95"]
        told = f"{task}, one stream: TPOT, baseline over speculative, 95 % {low:.2f} to {high:.2f}"
        yield Row(told, round(entry["speedup"], 3), "told", True)
    for point in found["concurrency"]:
        yield from _rows(point)
    same = found["lossless"]
    share = same["identical"] / max(same["prompts"], 1)
    yield Row(f"answers with the same words, bfloat16, of {same['prompts']}", round(share, 4), "told", True)


def _rows(point: dict[str, Any]) -> Iterator[Row]:
    n, before, after = point["n"], point["baseline"], point["speculative"]
    for name, key in (("median TPOT, ms", "tpot_ms"), ("median TTFT, ms", "ttft_ms")):
        told = f"{n} streams: {name}, {before[key]['p50']:.2f} without, {after[key]['p50']:.2f} with"
        yield Row(told, round(before[key]["p50"] / after[key]["p50"], 3), "told", True)
    low, high = point["speedup_tps_ci95"]
    told = f"{n} streams: output tokens/s, {before['output_tps']:.0f} without, {after['output_tps']:.0f} with"
    ratio = round(point["speedup_tps"], 3)
    yield Row(f"{told}, 95 % {low:.2f} to {high:.2f}", ratio, f"lower bound at least {MIN_RATIO}", low >= MIN_RATIO)


def draw_picture(results: dict[str, Any]) -> str:
    """Returns the charts of the report as one SVG for light and dark themes: load on the left, tasks on the right."""
    css = files("eyas.bench").joinpath("report.css").read_text(encoding="utf-8")
    colours, rest = css.split("\n* {", 1)
    # Keeps the rules inside a drawing. The rule for `svg` itself sets its size on the page.
    inner = [line for line in rest.splitlines() if line.startswith("svg ") and not line.startswith("svg {")]
    style = "\n".join([colours, *inner])
    columns = (
        report_charts.load_charts(results["concurrency"], report_charts.LOAD_AXES[0]),
        [report_charts.tpot_by_task(results["tasks"])],
    )
    drawn, heights = [], []
    for place, column in enumerate(columns):
        x, y = GAP + place * (charts.WIDTH + 2 * GAP), GAP
        for figure in (ElementTree.fromstring(render_chart(one)) for one in column if one is not None):
            (chart,), (title,), (sentence,) = (figure.findall(path) for path in ("svg", "*/h3", "*/p"))
            tall = round(float(chart.attrib["viewBox"].split()[3]))
            chart.attrib |= {"x": f"{x}", "y": f"{y + 48}", "width": f"{charts.WIDTH}", "height": f"{tall}"}
            drawn.append(f'<text class="note" x="{x}" y="{y + 8}">{title.text}</text>')
            drawn.append(f'<text class="small" x="{x}" y="{y + 28}">{(sentence.text or "").split(";")[0]}</text>')
            drawn.append(ElementTree.tostring(chart, encoding="unicode"))
            y += tall + 48 + GAP
        heights.append(y)
    size = f"{2 * charts.WIDTH + 4 * GAP} {max(heights)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="system-ui, sans-serif">'
        f'<style>{style}</style><rect class="ground" width="100%" height="100%"/>{"".join(drawn)}</svg>\n'
    )


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, help="directory for results.json and report.html")
    parser.add_argument("--picture", type=Path, help="SVG file for the charts")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = parsed.out or Path(scratch)
        code = print_rows(measure_servers(parsed.streams, parsed.repeats, out))
        if parsed.picture:
            parsed.picture.write_text(draw_picture(json.loads((out / "results.json").read_bytes())), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
