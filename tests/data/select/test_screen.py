"""The same bytes, whoever screens which piece."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from eyas.base.environment import RANK_VARIABLES
from eyas.base.errors import StageError, UsageError
from eyas.base.provenance import verify_contents
from eyas.data.prompts import run
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select import screen
from eyas.data.sources import file_formats
from eyas.data.sources.source import SourceConfig

GRAMMAR = (SourceConfig("builtin:quickstart", count=70),)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(file_formats, "SHARD_RECORDS", 10)
    monkeypatch.setattr(screen, "MIN_RECORDS_PER_WORKER", 1)


def content(out):
    """Everything but times."""
    return {
        path.name: path.read_bytes()
        for path in sorted(out.iterdir())
        if path.name not in ("provenance.json", "croissant.json")
    }


@pytest.fixture
def alone(tmp_path):
    run(PromptsConfig(sources=GRAMMAR, workers=1), tmp_path / "alone", progress=False)
    return content(tmp_path / "alone")


@pytest.mark.parametrize("keys", [{"workers": 2}, {"workers": 3, "executor": "ray"}], ids=["processes", "ray"])
def test_the_same_bytes_from_all_executors(tmp_path, keys, alone):
    run(PromptsConfig(sources=GRAMMAR, **keys), tmp_path / "out", progress=False)
    assert content(tmp_path / "out") == alone
    verify_contents(tmp_path / "out")
    assert not (tmp_path / "out.work").exists()


def test_machines_that_share_the_work(tmp_path, monkeypatch, alone):
    """As pods of an Indexed Job, the first one last: it finishes when all have done their share."""
    monkeypatch.setattr(screen, "POLL_S", 0.01)
    config = PromptsConfig(sources=GRAMMAR, workers=1, world=3)
    out = tmp_path / "out"
    work = out.with_name("out.work")
    monkeypatch.setenv(RANK_VARIABLES[0], "0")
    # The first one clears what was there; here it has begun and its share is not done yet.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eyas.data.prompts.screen_shards", lambda work: iter(()))
        patch.setattr("eyas.data.prompts.wait_for_other_ranks", _stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, out, progress=False)
    for rank in ("2", "1"):
        monkeypatch.setenv(RANK_VARIABLES[0], rank)
        assert run(config, out, progress=False) is None
        assert not out.exists()
    done = sorted(int(path.stem) for path in work.glob("?????.json"))
    assert done == [1, 2, 4, 5]
    monkeypatch.setenv(RANK_VARIABLES[0], "0")
    assert run(config, out, progress=False) is not None
    assert content(out) == alone
    for wrong in ("3", "-1", "x"):
        monkeypatch.setenv(RANK_VARIABLES[0], wrong)
        with pytest.raises(UsageError, match="a rank from 0 to 2"):
            run(config, tmp_path / "other", progress=False)


def _stop(work):
    raise KeyboardInterrupt


def test_peoples_words_on_one_machine_and_on_two(tmp_path, monkeypatch):
    path = tmp_path / "q.jsonl"
    names = ("Natalie Brook", "Peter Hansen", "Ingrid Sommer")
    texts = [f"My name is {names[n % 3]}. How far is it from stop {n} to stop {n * n}?" for n in range(35)]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    one = PromptsConfig(source=str(path), license="MIT", workers=1)
    run(one, tmp_path / "one", progress=False)
    monkeypatch.setattr(screen, "POLL_S", 0.01)
    two = PromptsConfig(source=str(path), license="MIT", workers=1, world=2)
    for rank in ("0 begins", "1", "0"):
        monkeypatch.setenv(RANK_VARIABLES[0], rank[0])
        if rank.endswith("begins"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("eyas.data.prompts.wait_for_other_ranks", _stop)
                with pytest.raises(KeyboardInterrupt):
                    run(two, tmp_path / "two", progress=False)
        else:
            run(two, tmp_path / "two", progress=False)
    assert content(tmp_path / "two") == content(tmp_path / "one")
    written = (tmp_path / "one" / "prompts.jsonl").read_text()
    assert not any(name.split()[1] in written for name in names)
    assert "How far is it from stop 34" in written


def test_a_worker_that_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(screen, "_screen_one", _die)
    with pytest.raises(StageError, match="A worker process ended"):
        run(PromptsConfig(sources=GRAMMAR, workers=2), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def _die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_end_with_their_parent(tmp_path):
    """A parent that is killed cannot tell them."""
    script = """
import sys, time
from pathlib import Path
from eyas.data.sources import file_formats
from eyas.data.select import screen
from eyas.data.prompts import run
from eyas.data.prompts_config import PromptsConfig
from eyas.data.sources.source import SourceConfig
if __name__ == "__main__":
    file_formats.SHARD_RECORDS, screen.MIN_RECORDS_PER_WORKER = 10, 1
    run(PromptsConfig(sources=(SourceConfig("builtin:quickstart", count=20_000),), workers=2), Path(sys.argv[1]))
"""
    path = tmp_path / "slow.py"
    path.write_text(script)
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, str(path), str(out)], stderr=subprocess.DEVNULL)
    work = tmp_path / "out.work"
    end_s = time.monotonic() + 60
    while not list(work.glob("?????.json")):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    children = _children(process.pid)
    assert len(children) >= 2
    process.kill()
    process.wait()
    end_s = time.monotonic() + 15
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() < end_s, "workers that outlive their parent"
        time.sleep(0.1)


def _children(pid):
    return [int(child) for child in open(f"/proc/{pid}/task/{pid}/children").read().split()]
