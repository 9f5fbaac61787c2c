"""What is kept of requests that went badly, and what never is."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.monitoring.outputs import CHAIN2, HEAD, answer, body, chat

from eyas.base.errors import InputError, StorageError, UsageError
from eyas.chat.conversation import Conversation, Message, read_conversations
from eyas.monitoring import prompt_sampler as sampling
from eyas.monitoring.acceptance_log import parse_records, read_log
from eyas.monitoring.privacy_gate import PrivacyGate
from eyas.monitoring.prompt_sampler import PromptSampler, SampleOptions
from eyas.server.openai_requests import CompletionRequest
from eyas.tree.shape import TreeShape, chain_shape

SHAPES = (TreeShape(6, 4, 16), chain_shape(2))
BAD, GOOD = [1, 1, 2] * 4, [5, 6, 4] * 4
TEXT = "How many pages are left of a book of 300 after reading 17 pages a day for a week?"


@pytest.fixture(scope="module")
def gate() -> Iterator[PrivacyGate]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EYAS_PRIVACY_KEY", "a key of at least sixteen bytes")
        yield PrivacyGate()


@pytest.fixture
def start(tmp_path, gate):
    open_ones: list[PromptSampler] = []

    def run(gate=gate, say=print, **options) -> PromptSampler:
        new = PromptSampler(SampleOptions(tmp_path / "kept", **options), gate, [HEAD], SHAPES, say)
        open_ones.append(new)
        for _ in range(10):  # what is usual here: 5 tokens a round of the tree, 2 of the chain
            new.observe(body(TEXT), 0, answer(GOOD))
            new.observe(body(TEXT), 0, answer([2, 2, 2] * 4, CHAIN2))
        return new

    yield run
    for one in open_ones:
        if one._thread.is_alive():
            one.close()


def everything(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.rglob("*") if path.is_file())


def texts(directory: Path) -> list[str]:
    return [prompt.messages[-1].content for prompt in read_conversations(directory / "prompts.jsonl")]


def counts(one: PromptSampler) -> dict[str, int]:
    return {name: count for name, count in one.outcomes.items() if count}


def test_only_prompts_that_went_badly_and_as_the_data_stage_reads_them(start, tmp_path):
    one = start()
    messages = [
        {"role": "system", "content": "You count pages."},
        {"role": "user", "content": "What is a page?"},
        {"role": "assistant", "content": "One side of a leaf, said the model."},
        {"role": "user", "content": TEXT},
    ]
    one.observe(chat(messages, metadata={"task": "books"}), 0, answer(BAD))
    one.observe(body("How many of the rooms of this house have a window to the south?"), 0, answer(GOOD))
    one.observe(body("How long does it take to walk twelve miles at this speed?"), 0, answer(BAD[:5]))
    # Of a chain of two, two tokens are usual: no reason to keep it, though a tree's rounds have five.
    one.observe(body("Which of the two roads is the shorter one, and by how much?"), 0, answer([2] * 12, CHAIN2))
    one.close()
    (kept,) = read_conversations(tmp_path / "kept" / "prompts.jsonl")
    assert [(message.role, message.content) for message in kept.messages] == [
        ("system", "You count pages."),
        ("user", "What is a page?"),
        ("user", TEXT),
    ]
    assert dict(kept.tags) == {"task": "books", "language": "en"}
    assert kept.source == "own-traffic"
    assert counts(one)["kept"] == 1
    for path in (tmp_path / "kept").rglob("*.jsonl"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0


def test_what_is_personal_never_reaches_the_disk(start, tmp_path):
    one = start()
    asked = "My name is Aram Petrosyan, write to joanna.brook@acme-widgets.com or call +44 20 8834 0958 about it."
    key, card = "Why does AWS say no to AKIAQYLPMN5HFIRT4WZB?", "I paid 12 pounds with card 4539677979049696, why?"
    for text in (asked, key, card):
        one.observe(body(text), 0, answer(BAD))
    one.close()
    found = everything(tmp_path / "kept")
    for planted in ("Petrosyan", "joanna.brook", "8834 0958", "QYLPMN5HFIRT4WZB", "4539677979049696"):
        assert planted not in found
    (kept,) = texts(tmp_path / "kept")
    assert kept.startswith("My name is ")
    assert kept.endswith(" about it.")
    assert "@" in kept
    (prompt,) = read_conversations(tmp_path / "kept" / "prompts.jsonl")
    assert set(prompt.changed) == {"PERSON", "EMAIL", "PHONE"}
    assert counts(one) == {"unjudged": counts(one)["unjudged"], "well": counts(one)["well"], "kept": 1, "refused": 2}


def test_completions_tools_and_token_ids(start, tmp_path):
    one = start()
    rendered = f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    one.observe(
        CompletionRequest.model_validate({"model": "m", "prompt": ["Tell me.", rendered], "n": 2}), 3, answer(BAD)
    )
    one.observe(CompletionRequest.model_validate({"model": "m", "prompt": [1, 2, 3]}), 0, answer(BAD))
    calls = [{"id": "c", "function": {"name": "pages", "arguments": "{}"}}]
    called = [
        {"role": "user", "content": "Look it up for me, please."},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "12 Main Street", "tool_call_id": "c"},
    ]
    one.observe(chat(called), 0, answer(BAD))
    one.close()
    assert texts(tmp_path / "kept") == [TEXT]
    assert counts(one)["unreadable"] == 2


def test_a_restart_goes_on_behind_a_half_written_line(start, tmp_path):
    one = start()
    one.observe(body(TEXT), 0, answer(BAD))
    one.observe(body(TEXT), 0, answer(BAD))
    one.close()
    assert counts(one)["repeated"] == 1
    path = tmp_path / "kept" / "prompts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "own-traffic:1", "mess')
    two = start()
    assert two.num_prompts == 1
    assert path.read_bytes() == whole
    two.observe(body(TEXT), 0, answer(BAD))
    two.observe(body("How many days does the reader need for all of the 300 pages?"), 0, answer(BAD))
    two.close()
    assert texts(tmp_path / "kept") == [TEXT, "How many days does the reader need for all of the 300 pages?"]
    assert path.read_bytes().startswith(whole)


def test_a_full_disk_is_counted_and_said_once(start, tmp_path):
    said: list[str] = []
    one = start(say=said.append)
    full = os.open("/dev/full", os.O_WRONLY)
    keep = os.dup(one._prompts_file._file.fileno())
    wait_for(one, 20)
    os.dup2(full, one._prompts_file._file.fileno())
    for number in (1, 2):
        one.observe(body(f"{TEXT} And in {number} years?"), 0, answer(BAD))
    wait_for(one, 22)
    os.dup2(keep, one._prompts_file._file.fileno())
    one.observe(body(TEXT), 0, answer(BAD))
    one.close()
    assert counts(one)["failed"] == 2
    assert len(said) == 1
    assert "No space left" in said[0]
    assert texts(tmp_path / "kept") == [TEXT]


def wait_for(one: PromptSampler, count: int) -> None:
    for _ in range(2000):
        if sum(one.outcomes.values()) >= count:
            return
        threading.Event().wait(0.005)
    raise AssertionError(one.outcomes)


def test_a_queue_that_is_full_drops_and_counts(start, monkeypatch):
    monkeypatch.setattr(sampling, "QUEUE_SIZE", 24)
    go_on, came = threading.Event(), threading.Event()

    def slow(asked, task):
        came.set()
        assert go_on.wait(30)
        return Conversation("id", "own-traffic", (Message("user", asked["messages"][0]["content"]),), {"task": "t"})

    one = start(slow)
    one.observe(body(TEXT), 0, answer(BAD))
    assert came.wait(30)
    for number in range(30):
        one.observe(body(f"{number}"), 0, answer(BAD))  # returns at once
    go_on.set()
    one.close()
    assert counts(one)["missed"] == 6
    assert counts(one)["kept"] == 25


def test_the_limit_holds(start, tmp_path):
    one = start(limit=2)
    for number in range(4):
        one.observe(body(f"{TEXT} And of {number} books?"), 0, answer(BAD))
    one.close()
    assert len(texts(tmp_path / "kept")) == 2
    assert counts(one)["full"] == 2


def test_the_log_has_rounds_for_every_tree_that_they_say_something_of(start, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "LOG_BYTES", 3000)
    one = start()
    one.observe(body(TEXT, metadata={"task": "books"}), 0, answer([7, 3], context=250, temperature=0.7))
    one.observe(body(TEXT), 0, answer([7, 3], repetition_penalty=1.2))  # no report has such answers
    one.observe(body(TEXT, metadata={"task": "mail me at a@b.com"}), 0, answer([3]))
    one.close()
    assert (tmp_path / "kept" / "acceptance" / "log.old.jsonl").is_file()
    lines, num_bad = parse_records([*read_log(tmp_path / "kept"), b'{"half"'])
    assert num_bad == 1
    *_, first, second = lines
    assert first.rounds == {"<=256": {"6,4,16": (1, 7)}, "<=512": {"6,4,16": (1, 3)}}
    assert (first.task, first.temperature, first.head) == ("books", 0.7, HEAD)
    assert second.task is None
    assert "a@b.com" not in everything(tmp_path / "kept")
    assert "pages" not in everything(tmp_path / "kept" / "acceptance")
    assert json.loads(lines[0].to_line())["rounds"] == {"<=256": {"6,4,16": [12, 60]}}


def test_one_server_writes_at_a_time(start, tmp_path, gate):
    start()
    with pytest.raises(InputError, match="Another server"):
        PromptSampler(SampleOptions(tmp_path / "kept"), gate, [HEAD], SHAPES, print)


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path, gate):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        PromptSampler(SampleOptions(tmp_path / "file"), gate, [HEAD], SHAPES, print)


@pytest.mark.parametrize("options", [{"below": 0.0}, {"below": 1.5}, {"limit": 0}])
def test_figures_out_of_range(options):
    with pytest.raises(UsageError, match="--sample-"):
        SampleOptions(Path("x"), **options)
