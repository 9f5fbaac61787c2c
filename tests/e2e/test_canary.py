"""`eyas serve --canary-head`: a process with two heads, and what it refuses before it starts."""

import json
import shutil
import signal

import httpx
import pytest
from tests.e2e.small import ERROR

from eyas.cli import main
from eyas.formats.head_dir import digest_head
from eyas.monitoring.acceptance_log import parse_records


def test_a_server_with_two_heads(start, finished, target, tmp_path):
    second = tmp_path / "second"
    shutil.copytree(finished / "head", second)
    config = json.loads((second / "config.json").read_bytes())
    (second / "config.json").write_text(json.dumps(config, indent=4))  # the same weights, another digest
    (second / "provenance.json").unlink()
    words = ("--target", target, "--head", finished / "head", "--canary-head", second, "--canary-share", 0.5)
    kept = ("--sample-low-acceptance", tmp_path / "kept")
    server = start(*words, *kept, "--context", 256, "--slots", 2, "--speculation", "tree8")
    url = server.wait_ready()
    found = {"main": set(), "canary": set()}
    for _ in range(12):
        body = {"model": "tiny", "prompt": "what is 1 plus 1?", "max_tokens": 20, "temperature": 0}
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        speculative = reply["metrics"]["speculative_decoding"]
        found[speculative.get("head", "main")].add(reply["choices"][0]["text"])
    assert len(found["main"] | found["canary"]) == 1
    assert all(found.values())
    page = httpx.get(f"{url}/metrics").text
    for line in ("eyas_canary_share{{{}}} 0.5", 'eyas_canary_info{{{},state="running"}} 1'):
        assert line.format('engine="0",model_name="tiny"') in page
    for head in found:
        assert f'eyas_head_rounds_total{{engine="0",head="{head}",model_name="tiny"}} ' in page
    assert server.stop(signal.SIGTERM) == 0
    lines, _ = parse_records((tmp_path / "kept" / "acceptance" / "log.jsonl").read_bytes().splitlines())
    assert {one.head for one in lines} == {digest_head(finished / "head"), digest_head(second)}


def test_heads_that_cannot_be_tried(finished, target, tmp_path, capsys):
    words = ["serve", "--port", "0", "--target", str(target), "--head", str(finished / "head"), "--no-compile"]
    other = tmp_path / "other"
    shutil.copytree(finished / "head", other)
    config = json.loads((other / "config.json").read_bytes())
    for part in (config, config["eagle_config"]):
        part["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    (other / "config.json").write_text(json.dumps(config))
    (other / "provenance.json").unlink()
    for rest, named in (
        (["--canary-head", "embedded"], "hidden size"),  # trained for another target
        (["--canary-head", str(tmp_path / "gone")], "gone"),
        (["--canary-head", str(other)], "reads layers [0, 1, 2]"),
        (["--canary-head", str(other), "--canary-share", "1"], "--canary-share 1"),
        (["--canary-head", str(other), "--speculation", "off"], "--speculation off"),
    ):
        assert main([*words, *rest]) == 2
        err = capsys.readouterr().err
        assert ERROR.fullmatch(err.strip().splitlines()[-1]), err
        assert named in err


def test_a_canary_without_a_head(capsys):
    assert main(["serve", "--port", "0", "--no-head", "--canary-head", "embedded"]) == 2
    assert "--canary-head needs speculation, but --no-head disables it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "value", "option"),
    [
        ("--canary-share", "0.2", "--canary-head"),
        ("--sample-below", "0.5", "--sample-low-acceptance"),
        ("--sample-limit", "5", "--sample-low-acceptance"),
    ],
)
def test_arguments_without_their_option(argument, value, option, capsys):
    assert main(["serve", "--port", "0", argument, value]) == 2
    assert f"{argument} has no effect without {option}" in capsys.readouterr().err


@pytest.mark.full
def test_two_heads_with_a_budget(start, finished, target, tmp_path):
    """Arms are chosen for each head by what it accepts and costs; the words are those of one."""
    words = ("--target", target, "--head", finished / "head", "--context", 256, "--dtype", "float32")
    texts = []
    for more in ((), ("--canary-head", finished / "head", "--canary-share", 0.5)):
        server = start(*words, *more)
        url = server.wait_ready()
        body = {"model": "tiny", "prompt": [f"what is {n} plus 1?" for n in range(16)], "max_tokens": 60}
        reply = httpx.post(f"{url}/v1/completions", json=body | {"temperature": 0, "ignore_eos": True}, timeout=120)
        texts.append([choice["text"] for choice in reply.json()["choices"]])
        assert server.stop(signal.SIGTERM) == 0
    assert texts[0] == texts[1]
