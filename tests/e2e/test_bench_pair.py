"""`eyas bench --target --head --prompts`: measures a pair without a recipe and without an earlier stage."""

import json

import pytest
from tests.e2e.small import ERROR

from eyas.cli import main

QUICK = ("bench.max_tokens=8", "bench.repeats=1", "bench.concurrency=[2]", "bench.requests_per_stream=1")


def test_a_pair_without_a_recipe(finished, target, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    lines = [{"prompt": f"what is {n} plus 1?", "task": task} for n, task in enumerate(("sums", "sums", "more"))]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--target", target, "--head", finished / "head", "--prompts", prompts, "--dtype", "float32", "--out", out]
    assert main(["bench", *map(str, words), *QUICK, "bench.lossless_prompts=3"]) == 0
    results = json.loads((out / "results.json").read_bytes())
    assert {name: task["prompts"] for name, task in results["tasks"].items()} == {"sums": 2, "more": 1}
    assert results["lossless"]["identical"] == results["lossless"]["prompts"] == 3
    assert [point["n"] for point in results["concurrency"]] == [2]
    assert results["target"]["name"] == "tiny"
    assert results["bench"]["prompts"] == "prompts.jsonl"  # no directory of this machine
    assert "<html" in (out / "report.html").read_text()
    printed = capsys.readouterr().out
    assert "3 of 3 outputs are identical" in printed
    assert f"report: {out / 'report.html'}" in printed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--target", "embedded"], "--prompts builtin:eval"),
        (["recipe.toml", "--head", "embedded"], "The recipe recipe.toml cannot be combined"),
        (["--head", "embedded", "--url", "http://127.0.0.1:1"], "Remove --url"),
        (["--prompts", "builtin:eval", "client.limit=3"], "Pass only keys bench.*"),
        (["--prompts", "nowhere.jsonl", "--dtype", "float32"], "nowhere.jsonl"),
    ],
)
def test_wrong_words(words, named, capsys):
    assert main(["bench", *words]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert ERROR.fullmatch(last)
    assert named in last
