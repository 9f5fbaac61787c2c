"""notebooks/benchmark.ipynb runs to its end, here and on any endpoint that its two cells name."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.doubles.llm import Manner, fake_server

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "benchmark.ipynb"
LOAD = """LOAD = {
    "limit": 1, "max_tokens": 8, "concurrency": [1, 2], "requests_per_stream": 1, "repeats": 1, "warm_up": 1
}"""


def ran(who: str | None, place: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """Runs the notebook with a smaller load and returns it."""
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, 4)
    cells = {cell.metadata.tags[0]: cell for cell in notebook.cells if "tags" in cell.metadata}
    assert set(cells) == {"who", "what"}
    cells["what"].source = LOAD
    if who is not None:
        cells["who"].source = who
    asyncio.run(NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(place)}}).async_execute())
    return notebook


def said(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") + output.get("data", {}).get("text/html", "") for output in outputs)


def check(text: str, place: Path) -> None:
    assert re.search(r"2 streams: \d+\.\d\dx output tokens per second", text)
    titles = ("Time per output token under load", "Throughput under load", "Time to first token under load", "by task")
    assert all(title in text for title in titles)
    assert len(list(place.rglob("report.html"))) == 1


def test_it_is_stored_without_outputs():
    for cell in nbformat.read(NOTEBOOK, 4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_on_the_embedded_pair(tmp_path, monkeypatch):
    text = said(ran(None, tmp_path, monkeypatch))
    check(text, tmp_path)
    assert "(median of 7 tasks)" in text


@pytest.mark.full
def test_on_two_endpoints(tmp_path, monkeypatch):
    fast, slow = Manner(tokens=8, step_s=0.001), Manner(tokens=8, step_s=0.004)
    with fake_server(fast) as head, fake_server(slow) as plain:
        text = said(ran(f"URL, BASELINE, API_KEY_ENV = {head.url!r}, {plain.url!r}, None", tmp_path, monkeypatch))
    check(text, tmp_path)
    assert re.search(r"Identical answers: (\d+) of \1", text)


@pytest.mark.full
def test_on_a_single_server_that_does_not_stream(tmp_path, monkeypatch):
    """Without a baseline and without TPOT, the notebook shows the server's own metrics."""
    with fake_server(Manner(tokens=8, streams=False)) as server:
        text = said(ran(f"URL, BASELINE, API_KEY_ENV = {server.url!r}, None, None", tmp_path, monkeypatch))
    assert re.search(r"2 streams: \d+\.\d output tokens per second \(server\)", text)
    assert "Identical answers" not in text
    assert "Throughput under load" in text
    assert len(list(tmp_path.rglob("report.html"))) == 1


def test_the_log_of_a_server_that_does_not_start_is_shown():
    (cell,) = (cell for cell in nbformat.read(NOTEBOOK, 4).cells if "def served" in cell.source)
    names: dict[str, Any] = {}
    exec(cell.source[: cell.source.index("out = ")], names)
    names["EYAS"] = [sys.executable, "-c", "import sys; sys.exit('no port is given; add --port')"]
    with pytest.raises(RuntimeError, match=r"(?s)eyas serve did not start:.*add --port"), names["served"]():
        pass
