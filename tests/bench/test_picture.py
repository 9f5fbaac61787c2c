"""The picture of the served charts is one valid SVG with the charts of the report."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from served_charts import draw_picture
from tests.bench.sample_results import TASKS, sample_results

SVG = "{http://www.w3.org/2000/svg}"
SHIPPED = Path(__file__).parents[2] / "docs" / "pictures" / "served.svg"


@pytest.mark.parametrize(
    "text", [draw_picture(sample_results()), SHIPPED.read_text(encoding="utf-8")], ids=["made", "docs"]
)
def test_four_charts_inside_the_page(text: str) -> None:
    root = ElementTree.fromstring(text)
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    charts = root.findall(f"{SVG}svg")
    titles = [chart.findtext(f"{SVG}title") for chart in charts]
    assert titles == [
        "Time per output token under load",
        "Throughput under load",
        "Time to first token under load",
        "Time per output token, by task",
    ]
    boxes = [tuple(float(chart.attrib[key]) for key in ("x", "y", "width", "height")) for chart in charts]
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    words = set(root.itertext())
    assert {*TASKS, "with head", "baseline", "concurrent streams"} <= words
    assert all(chart.findtext(f"{SVG}desc") for chart in charts)  # for who cannot see it
