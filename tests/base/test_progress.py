import io
import os

import pytest

from eyas.base.progress import Progress


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_plain_stream_gets_a_line_every_few_seconds_and_one_at_the_end():
    clock, stream = Clock(), io.StringIO()
    with Progress("capture", 300, "rows", stream=stream, clock=clock) as progress:
        for _ in range(120):
            clock.now_s += 0.0625  # 16 rows a second for 7.5 s, exact in binary
            progress.advance(note="shard 3")
    assert stream.getvalue().splitlines() == [
        "capture  80/300 rows  26%  16.0 rows/s  0:05 elapsed  0:13 left  shard 3",
        "capture  120/300 rows  40%  16.0 rows/s  0:07 elapsed  0:11 left  shard 3",
    ]


def test_a_plain_stream_reaches_100_percent_once():
    clock, stream = Clock(), io.StringIO()
    with Progress("respond", 2, "answers", stream=stream, clock=clock) as progress:
        for _ in range(2):
            clock.now_s += 8
            progress.advance()
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["50%", "100%"]


def test_skipped_work_raises_done_and_not_the_rate():
    clock = Clock()
    with Progress("train", 100, "steps", stream=io.StringIO(), clock=clock) as progress:
        progress.skip(90)
        clock.now_s += 10
        progress.advance(5)
        assert progress.line() == "train  95/100 steps  95%  0.5 steps/s  0:10 elapsed  0:10 left"


def test_an_unknown_total_promises_nothing():
    clock = Clock()
    with Progress("prompts", None, "records", stream=io.StringIO(), clock=clock) as progress:
        clock.now_s += 3600
        progress.advance(7_200_000)
        assert progress.line() == "prompts  7,200,000 records  2,000 records/s  1:00:00 elapsed"


def test_no_time_and_no_work_are_no_fault():
    with Progress("eval", 0, "prompts", stream=io.StringIO(), clock=Clock()) as progress:
        assert progress.line() == "eval  0/0 prompts  0 prompts/s  0:00 elapsed"


def test_a_terminal_gets_one_line_that_is_rewritten_and_never_wraps(monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    clock, stream = Clock(), Terminal()
    with Progress("capture", 300, "rows", stream=stream, clock=clock) as progress:
        for _ in range(50):
            clock.now_s += 0.01
            progress.advance(note="x" * 100)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\x1b[K\n")
    shown = [line.removesuffix("\n").removesuffix("\x1b[K") for line in text.split("\r")[1:]]
    assert max(map(len, shown)) == 39
    assert 4 <= len(shown) <= 8, "about ten a second, over half a second"


def test_an_interrupted_job_says_so():
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress("train", 10, "steps", stream=stream, clock=Clock()):
        raise KeyboardInterrupt
    assert stream.getvalue().rstrip().endswith("stopped")


def test_a_quiet_job_writes_nothing():
    for stream in (io.StringIO(), Terminal()):
        with Progress("train", 10, "steps", enabled=False, stream=stream) as progress:
            progress.advance(10)
        assert stream.getvalue() == ""


def test_it_speaks_on_stderr(capsys):
    with Progress("train", 10, "steps") as progress:
        progress.advance(10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("train  10/10 steps  100%")
