"""The charts of "From research to production: EAGLE-3", from outside; one JSON object a row, exit 1 if one misses.

    python benchmarks/served_charts.py [--streams 1 2 4 8 16 32] [--repeats 5] [--out DIR] [--picture FILE.svg]

Two servers on this machine, `eyas serve` with the shipped pair and `eyas serve --no-head`, compiled, one of them idle
while the other is asked; `eyas bench --url` is the client: median TPOT, output throughput and TTFT against streams, the
same prompts in both. --out keeps results.json and report.html, which has the charts; --picture draws the four together.
Asked for is what the server promises: it is never slower than without a head (lower 95 % bound of throughput at least
0.97). Batches of other sizes round differently in bfloat16, so equal answers are told and only float32 is promised.
Server and client want a core each: on a busy machine the baseline, which sends every token by itself, suffers most.
Progress goes to stderr; a quarter of an hour on two idle cores.
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

import torch
from rows import Row, print_rows

from eyas.bench import charts, report_charts
from eyas.bench.client.bench_server import run
from eyas.bench.config import ClientConfig
from eyas.bench.report import render_chart
from eyas.formats.head_dir import read_head, resolve_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED

STREAMS, REPEATS = (1, 2, 4, 8, 16, 32), 5
LEAST = 0.97
GAP = 24  # of the picture
SERVE = [sys.executable, "-c", "import sys; from eyas.cli import main; sys.exit(main())", "serve", "--port", "0"]


def compile_both() -> None:
    """Packages of forwards, with and without a head, lie where servers find them."""
    stored = read_head(resolve_head(EMBEDDED), torch.bfloat16)
    compile_pair(Target.load(EMBEDDED, torch.bfloat16, stored.config.aux_layer_ids), stored.head.pack_projections())
    compile_pair(Target.load(EMBEDDED, torch.bfloat16), None)


@contextmanager
def serving(log: Path, *words: str) -> Iterator[str]:
    """The URL of a server's API; what it says of requests goes to `log`."""
    command = [*SERVE, "--slots", str(max(STREAMS)), *words]
    with log.open("wb") as lines:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=lines, text=True)
    try:
        assert server.stdout is not None, "it is a pipe"
        # eyas serves embedded at http://127.0.0.1:40123/v1 (arms: ...)
        yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def rows(streams: Sequence[int], repeats: int, out: Path) -> Iterator[Row]:
    """The rows of each number of streams, then of the words."""
    config = ClientConfig(limit=8, repeats=repeats, concurrency=tuple(streams), max_tokens=96, warm_up=max(streams))
    compile_both()
    out.mkdir(parents=True, exist_ok=True)
    with serving(out / "head.log") as url, serving(out / "no-head.log", "--no-head") as baseline:
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
    yield Row(f"{told}, 95 % {low:.2f} to {high:.2f}", ratio, f"lower bound at least {LEAST}", low >= LEAST)


def picture(results: dict[str, Any]) -> str:
    """The report's charts as one SVG: load on the left, tasks on the right; light and dark as its reader has it."""
    css = files("eyas.bench").joinpath("report.css").read_text(encoding="utf-8")
    colours, rest = css.split("\n* {", 1)
    # The rules inside a drawing; the one for `svg` itself sizes it on the page.
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
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, help="where results.json and report.html stay")
    parser.add_argument("--picture", type=Path, help="where the charts are drawn")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = parsed.out or Path(scratch)
        code = print_rows(rows(parsed.streams, parsed.repeats, out))
        if parsed.picture:
            parsed.picture.write_text(picture(json.loads((out / "results.json").read_bytes())), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
