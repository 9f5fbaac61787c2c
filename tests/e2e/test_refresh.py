"""The whole circle: a served head, prompts that went badly, the comparison with its report, a head that goes on."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.e2e.small import ERROR, run_stages

from eyas.base.provenance import read_provenance
from eyas.chat.conversation import read_conversations
from eyas.cli import main
from eyas.formats.head_dir import digest_head

SERVED = ("--context", 256, "--slots", 4, "--speculation", "tree8")
THINGS = ("pages", "clips", "cups", "books", "coins", "cards")


def question(number):
    return f"A box holds {number + 3} {THINGS[number % 6]} and {2 * number} more are put in, how many are there now?"


@pytest.fixture
def reported(recipe, run):
    """A copy of the finished run with a report."""
    quick = ["bench.depth=4", "bench.top_k=4", "bench.nodes=8", "bench.concurrency=[]", "bench.lossless_prompts=0"]
    assert main(["bench", str(recipe), "--out", str(run), *quick]) == 0
    return run


def test_from_live_traffic_to_a_head_that_goes_on(start, reported, target, tmp_path, capsys):
    kept = tmp_path / "kept"
    sample = ("--sample-low-acceptance", kept, "--sample-below", 1, "--sample-limit", 12)
    server = start("--target", target, "--head", reported / "head", *SERVED, *sample)
    url = server.wait_ready()

    def ask(number):
        words = question(number) if number else "Write to joanna.brook@acme-widgets.com, how many cups are there?"
        body = {"model": "tiny", "messages": [{"role": "user", "content": words}], "max_tokens": 40}
        rest = {"temperature": 0, "ignore_eos": True, "metadata": {"task": "boxes"}}
        return httpx.post(f"{url}/v1/chat/completions", json=body | rest, timeout=60)

    with ThreadPoolExecutor(4) as threads:
        assert {reply.status_code for reply in threads.map(ask, [*range(1, 33), *[0] * 4])} == {200}
    page = httpx.get(f"{url}/metrics").text
    assert 'eyas_sampled_answers_total{engine="0",model_name="tiny",outcome="failed"} 0.0' in page
    assert server.stop(signal.SIGTERM) == 0
    assert f"stored in {kept / 'prompts.jsonl'}" in server.err.read_text()
    prompts = list(read_conversations(kept / "prompts.jsonl"))
    assert 3 <= len(prompts) <= 12
    assert "acme-widgets" not in "".join(path.read_text() for path in kept.rglob("*.jsonl"))

    out = tmp_path / "again.toml"
    code = main(["drift", str(reported), str(kept), "--json", "--recipe", str(out)])
    found = json.loads(capsys.readouterr().out)
    assert code == (3 if found["verdict"] == "retrain" else 0)
    (boxes,) = (part for part in found["slices"] if part["name"] == "boxes")
    assert boxes["verdict"] == "no promise"
    (whole,) = (part for part in found["slices"] if part["slice"] == "all")
    assert whole["requests"] in (0, 36)

    again = tmp_path / "runs" / "again"
    assert main(["prompts", str(out), "--out", str(again)]) == 2  # own traffic needs somebody to answer for it
    assert ERROR.fullmatch(capsys.readouterr().err.strip().splitlines()[-1])
    quick = ["capture.held_out=0.2", "prompts.workers=1", "train.draft_vocab_size=180", "train.epochs=1"]
    assert main(["prompts", str(out), "--out", str(again), "--acknowledge", "A Tester", *quick]) == 0
    run_stages(out, again, ("respond", "capture", "train"), *quick)
    assert read_provenance(again / "head").parents["init"] == digest_head(reported / "head")
    (source,) = json.loads((again / "prompts" / "ledger.json").read_bytes())["sources"]
    assert source["name"] == "own-traffic"
    assert source["licence"]["acknowledgement"]["who"] == "A Tester"
    assert source["kept"] == len(list(read_conversations(again / "prompts" / "prompts.jsonl")))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--sample-below", "0"], "--sample-below = 0"),
        (["--sample-limit", "0"], "--sample-limit = 0"),
        (["--no-head"], "--no-head"),
        (["--speculation", "off"], "--speculation off"),
    ],
)
def test_wrong_usage(arguments, named, capsys, tmp_path):
    assert main(["serve", "--port", "0", "--sample-low-acceptance", str(tmp_path), *arguments]) == 2
    err = capsys.readouterr().err
    assert ERROR.fullmatch(err.strip()), err
    assert named in err
    assert list(Path(tmp_path).iterdir()) == []
