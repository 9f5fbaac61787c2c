import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.data.answers.prompts_dir import write_prompts
from tests.data.answers.slow_target import CONFIG, SlowTarget, responder
from tests.tiny import tiny_tokenizer

from eyas.base.config import build, to_toml
from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.provenance import verify_contents
from eyas.chat.conversation import Finish, Message, read_conversation_dir
from eyas.chat.render import render, render_prompt
from eyas.data.answers import respond
from eyas.data.answers.respond import run
from eyas.data.answers.respond_config import Decoding, RespondConfig, ResponseMode
from eyas.data.answers.responder import Answered
from eyas.data.ledger.ledger import REASONS
from eyas.data.select.quality import is_looping_answer

ROOT = Path(__file__).parents[3]
NUM_PROMPTS = 13  # with one, two or three user turns in turn
NUM_ANSWERS = 25


@pytest.fixture
def prompts(tmp_path):
    turns = [[f"question {i}.{turn}" for turn in range(i % 3 + 1)] for i in range(NUM_PROMPTS)]
    return write_prompts(tmp_path / "prompts", turns)


def content(out):
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "provenance.json"}


@pytest.fixture
def undisturbed(prompts, tmp_path):
    run(CONFIG, prompts, tmp_path / "undisturbed", responder(SlowTarget()), progress=False)
    return content(tmp_path / "undisturbed")


def test_every_turn_sees_the_answers_before_it(prompts, tmp_path):
    target = SlowTarget()
    out = tmp_path / "out"
    run(CONFIG, prompts, out, responder(target), progress=False)
    conversations = list(read_conversation_dir(out))
    assert [each.id for each in conversations] == [f"q:{i}" for i in range(NUM_PROMPTS)]
    assert [path.name for path in sorted(out.glob("*.jsonl"))] == [f"part-0000{i}.jsonl" for i in range(3)]
    tokenizer = tiny_tokenizer()
    for i, each in enumerate(conversations):
        assert [message.role for message in each.messages] == ["user", "assistant"] * (i % 3 + 1)
        assert [message.content for message in each.messages[::2]] == [f"question {i}.{k}" for k in range(i % 3 + 1)]
        assert each.tags["task"] == "q"
        rows = render(each, tokenizer)
        for k, turn in enumerate(each.turns):
            served = target.asked[f"q:{i}/{k}"]
            assert served == render_prompt(each.messages[: 2 * k + 1], tokenizer)
            row = rows[0] if rows[0].turn is None else rows[k]
            assert row.ids[: len(served) + len(turn.token_ids)] == [*served, *turn.token_ids]
            assert all(turn.loss_mask)
    assert len(target.asked) == NUM_ANSWERS
    assert any(turn.finish == "length" for each in conversations for turn in each.turns)
    verify_contents(out)


MODES = {"thinking": ResponseMode(3.0), "direct": ResponseMode(1.0, {"thinks": False})}


def test_a_mode_is_kept_from_the_question_to_the_rendered_row(prompts, tmp_path):
    target = SlowTarget()
    asked = responder(target)
    opener = "{% if add_generation_prompt and thinks is defined and not thinks %}</think>{% endif %}"
    asked.tokenizer.chat_template = f"{asked.tokenizer.chat_template}{opener}"
    config = replace(CONFIG, modes=MODES)
    run(config, prompts, tmp_path / "out", asked, progress=False)
    conversations = list(read_conversation_dir(tmp_path / "out"))
    assert {each.tags["mode"] for each in conversations} == set(MODES)
    for each in conversations:
        mode = each.tags["mode"]
        assert mode == config.mode_for(each.id)
        assert each.template_variables == MODES[mode].chat_template_kwargs
        for k, turn in enumerate(each.turns):
            served = target.asked[f"{each.id}/{k}"]
            assert str(asked.tokenizer.decode(served)).endswith("</think>") == (mode == "direct")
            row = next(row for row in render(each, asked.tokenizer) if row.turn in (None, k))
            assert row.ids[: len(served) + len(turn.token_ids)] == [*served, *turn.token_ids]


def test_modes_share_the_conversations_and_must_fit_the_template(prompts, tmp_path):
    config = replace(CONFIG, modes=MODES)
    counts = Counter(config.mode_for(f"c:{number}") for number in range(4000))
    assert counts["thinking"] / counts["direct"] == pytest.approx(3, rel=0.1)
    assert build(RespondConfig, tomllib.loads(to_toml(config))) == config
    with pytest.raises(InputError, match=r"respond\.modes\.direct sets thinks, which the target's chat template"):
        run(config, prompts, tmp_path / "out", responder(SlowTarget()), progress=False)
    with pytest.raises(UsageError, match=r"respond\.modes\.a\.share = 0"):
        build(RespondConfig, {"modes": {"a": {"share": 0}}}, "respond")
    with pytest.raises(UsageError, match=r"chat_template_kwargs\.a = .* is not a number, a string, true or false"):
        build(RespondConfig, {"modes": {"a": {"chat_template_kwargs": {"a": [1]}}}})


def test_the_ledger_counts_what_stands_in_the_parts(prompts, tmp_path):
    run(CONFIG, prompts, tmp_path / "out", responder(SlowTarget()), progress=False)
    turns = [turn for each in read_conversation_dir(tmp_path / "out") for turn in each.turns]
    cut = sum(turn.token_ids[-1] < 256 for turn in turns)  # no end-of-turn token
    nothing = {"count": 0, "ids": []}
    assert json.loads((tmp_path / "out" / "ledger.json").read_text()) == {
        "schema": 1,
        "prompts": NUM_PROMPTS,
        "conversations": NUM_PROMPTS,
        "dropped": dict.fromkeys(REASONS, nothing),
        "looping": 0,
        "answers": NUM_ANSWERS,
        "finish": {"stop": NUM_ANSWERS - cut, "length": cut},
        "tokens": sum(len(turn.token_ids) for turn in turns),
        "rendered": 0,
        "private": None,
        "tasks": {"q": NUM_PROMPTS},
    }


def test_kill_at_any_time_and_the_same_command_gives_the_same_bytes(prompts, tmp_path, undisturbed):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tests.data.answers.slow_target", str(prompts), str(out)]

    parts = [out / name for name in undisturbed if name.startswith("part-")]

    def num_answers():
        # A part and its journal stand side by side for a moment; the part counts.
        newest = [part if part.exists() else part.with_name(part.name + ".journal") for part in parts]
        return sum(path.read_bytes().count(b'"finish"') for path in newest if path.exists())

    # The first kill strikes within the first part (9 answers), the second within the second one.
    for wanted in (4, 13):
        process = subprocess.Popen([*command, "0.02"], cwd=ROOT)
        until = time.monotonic() + 60
        while num_answers() < wanted:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (out / "provenance.json").exists()
        kept = num_answers()
    target = SlowTarget()
    run(CONFIG, prompts, out, responder(target), progress=False)
    assert content(out) == undisturbed
    assert len(target.asked) == NUM_ANSWERS - kept  # what was finished was not asked again


def test_every_place_to_stop(prompts, tmp_path, undisturbed):
    """Ctrl-C after each answer in turn: one answer more each time, always the same bytes in the end."""

    class Stops(SlowTarget):
        def __call__(self, questions):
            for answer in super().__call__(questions):
                yield answer
                raise KeyboardInterrupt

    out = tmp_path / "out"
    for _ in range(NUM_ANSWERS):
        with pytest.raises(KeyboardInterrupt):
            run(CONFIG, prompts, out, responder(Stops()), progress=False)
        assert not (out / "provenance.json").exists()
    target = SlowTarget()
    run(CONFIG, prompts, out, responder(target), progress=False)
    assert content(out) == undisturbed
    assert target.asked == {}


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_last_line_is_not_taken_for_an_answer(prompts, tmp_path, undisturbed, cut):
    out = tmp_path / "out"

    class Breaks(SlowTarget):
        def __call__(self, questions):
            for count, answer in enumerate(super().__call__(questions)):
                if count == 3:
                    raise RuntimeError("the device is lost")
                yield answer

    with pytest.raises(RuntimeError, match="device is lost"):
        run(CONFIG, prompts, out, responder(Breaks()), progress=False)
    journal = out / "part-00000.jsonl.journal"
    whole = journal.read_bytes()
    assert whole.count(b"\n") == 3
    journal.write_bytes(whole[:-cut])
    target = SlowTarget()
    run(CONFIG, prompts, out, responder(target), progress=False)
    assert content(out) == undisturbed
    assert len(target.asked) == NUM_ANSWERS - 2


def test_a_full_disk_stops_with_a_message_and_loses_nothing(prompts, tmp_path, undisturbed):
    out = tmp_path / "out"

    class Fills(SlowTarget):
        def answer(self, question):
            journal = out / "part-00001.jsonl.journal"
            if journal.exists():
                # From here on every write to the journal's descriptor meets a device without room.
                full = os.open("/dev/full", 1)
                for entry in Path("/proc/self/fd").iterdir():
                    if entry.exists() and entry.resolve() == journal:
                        os.dup2(full, int(entry.name))
            return super().answer(question)

    with pytest.raises(StageError, match=r"No space left on the disk while writing .*part-00001.jsonl.journal"):
        run(CONFIG, prompts, out, responder(target := Fills()), progress=False)
    first = len(target.asked)
    run(CONFIG, prompts, out, responder(again := SlowTarget()), progress=False)
    assert content(out) == undisturbed
    assert len(again.asked) == NUM_ANSWERS - first + 1  # the answer that could not be written


def test_finished_work_is_left_alone_and_other_work_is_not_mixed_in(prompts, tmp_path, undisturbed):
    out = tmp_path / "out"
    first = run(CONFIG, prompts, out, responder(SlowTarget()), progress=False)
    again = SlowTarget()
    assert run(CONFIG, prompts, out, responder(again), progress=False) == first
    assert again.asked == {}
    (out / "provenance.json").unlink()
    (out / "part-00001.jsonl").unlink()
    (out / "notes.txt").write_text("mine")
    # Another target: not one part of the old one may stay; a file that is not ours does.
    other = SlowTarget()
    run(CONFIG, prompts, out, responder(other, digest="sha256:other"), progress=False)
    assert len(other.asked) == NUM_ANSWERS
    assert (out / "notes.txt").read_text() == "mine"
    assert {name for name in content(out) if name != "notes.txt"} == set(undisturbed)


def test_what_does_not_fit_is_dropped_and_counted(prompts, tmp_path):
    tokenizer = tiny_tokenizer()
    # Room for one turn and a full answer, so that every conversation with a second turn is dropped.
    room = len(render_prompt([Message("user", "question 10.0")], tokenizer)) + CONFIG.max_tokens
    out = tmp_path / "out"
    run(CONFIG, prompts, out, responder(SlowTarget(), room), progress=False)
    assert [each.id for each in read_conversation_dir(out)] == ["q:0", "q:3", "q:6", "q:9", "q:12"]
    dropped = json.loads((out / "ledger.json").read_text())["dropped"]["too_long"]
    assert dropped == {"count": 8, "ids": [f"q:{i}" for i in range(NUM_PROMPTS) if i % 3]}
    with pytest.raises(InputError, match="All 13 prompts are too long"):
        run(CONFIG, prompts, tmp_path / "none", responder(SlowTarget(), room - 3), progress=False)
    assert list((tmp_path / "none").iterdir()) == []


def test_loops_are_flagged_and_counted_apart(prompts, tmp_path):
    class Loops(SlowTarget):
        def answer(self, question):
            token_ids = [1, 2, 3] * 20 if question.id in ("q:1/1", "q:4/0") else [7]
            return Answered(question.id, token_ids, "length")

    run(replace(CONFIG, max_tokens=60), prompts, tmp_path / "out", responder(Loops()), progress=False)
    tags = {each.id: each.tags for each in read_conversation_dir(tmp_path / "out")}
    assert [name for name, each in tags.items() if "looping" in each] == ["q:1", "q:4"]
    assert tags["q:1"] == {"task": "q", "looping": "true"}
    assert json.loads((tmp_path / "out" / "ledger.json").read_text())["looping"] == 2


class Says(SlowTarget):
    """The same token ids for some questions; for all others those of a good answer."""

    def __init__(self, said, finish: Finish = "stop"):
        super().__init__()
        self.said = said
        self.finish: Finish = finish

    def answer(self, question):
        token_ids = self.said.get(question.id)
        return super().answer(question) if token_ids is None else Answered(question.id, token_ids, self.finish)


END = 258  # the tokenizer's end of turn


@pytest.mark.parametrize(
    ("keys", "said", "finish", "reason"),
    [
        ({}, [END], "stop", "empty"),
        ({}, [], "stop", "empty"),
        ({}, "\n \n", "length", "empty"),
        ({"drop_looping": True}, [1, 2, 3] * 20, "length", "looping"),
        ({"drop_truncated": True}, [1, 2, 3], "length", "truncated"),
        ({}, [1, 2, 3] * 20, "length", None),
        ({}, [1, 2, 3], "length", None),
    ],
)
def test_answers_are_dropped_by_rule(prompts, tmp_path, keys, said, finish: Finish, reason):
    token_ids = tiny_tokenizer().encode(said, add_special_tokens=False) if isinstance(said, str) else said
    target = Says({"q:1/0": token_ids, "q:5/1": token_ids}, finish)
    # All other answers of the stand-in end by themselves where there is room.
    config = replace(CONFIG, max_tokens=60, **keys)
    run(config, prompts, tmp_path / "out", responder(target), progress=False)
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text())
    dropped = {name: entry for name, entry in ledger["dropped"].items() if "q:1" in entry["ids"]}
    assert list(dropped) == ([] if reason is None else [reason])
    names = [each.id for each in read_conversation_dir(tmp_path / "out")]
    assert ("q:1" in names, "q:5" in names) == (reason is None,) * 2
    # No further turn is asked where the conversation is left out already.
    assert ("q:1/1" in target.asked, "q:5/2" in target.asked) == (reason is None,) * 2


@dataclass(frozen=True)
class FindsLetters:
    """A scan that takes every text with a letter of a kind for one of that kind."""

    kinds: dict[str, str]  # letter -> kind
    digest: str = "sha256:scan"
    seen: list[tuple[str, str]] = field(default_factory=list)

    def scan(self, texts, languages):
        self.seen.extend(zip(texts, languages, strict=True))
        return [{kind: text.count(letter) for letter, kind in self.kinds.items() if letter in text} for text in texts]


def test_answers_are_scanned_and_dropped_for_what_must_not_be_there(prompts, tmp_path):
    said = {"q:2/1": "§§ secret words", "q:4/0": "a name ¶", "q:8/2": "¶ card §"}
    target = Says({name: [*tiny_tokenizer().encode(text), END] for name, text in said.items()})
    scan: Any = FindsLetters({"§": "CARD", "¶": "PERSON"})
    out = tmp_path / "out"
    run(replace(CONFIG, max_tokens=60), prompts, out, responder(target), progress=False, scan=scan)
    ledger = json.loads((out / "ledger.json").read_text())
    assert ledger["dropped"]["private"] == {"count": 2, "ids": ["q:2", "q:8"]}
    assert ledger["private"] == {"CARD": 3, "PERSON": 2}
    assert "q:4" in [each.id for each in read_conversation_dir(out)]
    assert "q:2/2" not in target.asked
    assert len(scan.seen) == len(target.asked)
    assert {language for _, language in scan.seen} == {"en"}
    # Another scan decides other answers; the same one is not made again.
    again = SlowTarget()
    run(replace(CONFIG, max_tokens=60), prompts, out, responder(again), progress=False, scan=scan)
    assert again.asked == {}
    run(replace(CONFIG, max_tokens=60), prompts, out, responder(again), progress=False, scan=replace(scan, digest="x"))
    assert len(again.asked) == NUM_ANSWERS


def test_the_recipe_says_which_kinds_drop(prompts, tmp_path):
    target = Says({"q:0/0": [*tiny_tokenizer().encode("§"), END]})
    config = replace(CONFIG, drop_private=("PHONE",))
    scan: Any = FindsLetters({"§": "CARD"})
    run(config, prompts, tmp_path / "out", responder(target), progress=False, scan=scan)
    assert len(list(read_conversation_dir(tmp_path / "out"))) == NUM_PROMPTS
    with pytest.raises(UsageError, match=r"respond\.drop_private\[0\] = 'CRAD' is not one of 'PERSON', .*Use CARD"):
        build(RespondConfig, {"drop_private": ["CRAD"]}, "respond")


def test_what_must_not_be_there_is_not_even_in_a_journal(prompts, tmp_path):
    class Stops(Says):
        def __call__(self, questions):
            for event in super().__call__(questions):
                yield event
                if isinstance(event, Answered) and event.id == "q:1/0":
                    raise KeyboardInterrupt

    out = tmp_path / "out"
    said = {"q:1/0": tiny_tokenizer().encode("§ planted")}
    scan: Any = FindsLetters({"§": "CARD"})
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, prompts, out, responder(Stops(said)), progress=False, scan=scan)
    (line,) = [line for path in out.glob("*.journal") for line in path.open() if '"q:1"' in line]
    assert json.loads(line) == {"id": "q:1", "turn": 0, "answer": {"private_counts": {"CARD": 1}}}
    run(CONFIG, prompts, out, responder(target := SlowTarget()), progress=False, scan=scan)
    assert not {"q:1/0", "q:1/1"} & set(target.asked)
    assert json.loads((out / "ledger.json").read_text())["dropped"]["private"] == {"count": 1, "ids": ["q:1"]}


def test_slow_answers_keep_no_more_than_a_few_parts_in_memory(tmp_path):
    class Stuck(SlowTarget):
        """Every fifth question is answered when nothing else is left to ask: one of each part."""

        def __call__(self, questions):
            self.most_open = 0
            while held := list(iter(questions.next, None)):
                for question in (*held[1::5], *held[2::5], *held[3::5], *held[4::5], *held[::5]):
                    self.most_open = max(self.most_open, len(list(out.glob("*.journal"))))
                    yield self.answer(question)

    out = tmp_path / "out"
    prompts = write_prompts(tmp_path / "prompts", [[f"question {i}"] for i in range(100)])
    run(replace(CONFIG, batch_size=4), prompts, out, responder(target := Stuck()), progress=False)
    assert target.most_open == 4  # one for the requests in flight, and SPARE_SHARDS
    assert len(list(read_conversation_dir(out))) == 100


def test_a_part_is_written_while_an_earlier_one_waits(tmp_path):
    class Stuck(SlowTarget):
        def __call__(self, questions):
            first = questions.next()
            assert first is not None
            while question := questions.next():
                yield self.answer(question)
            assert len(list(out.glob("part-*.jsonl"))) == 19
            yield self.answer(first)

    out = tmp_path / "out"
    prompts = write_prompts(tmp_path / "prompts", [[f"question {i}"] for i in range(100)])
    run(CONFIG, prompts, out, responder(Stuck()), progress=False)
    assert [each.id for each in read_conversation_dir(out)] == [f"q:{i}" for i in range(100)]


def test_a_part_that_was_taken_away_is_made_again_with_its_ledger(prompts, tmp_path, undisturbed):
    out = tmp_path / "out"
    run(CONFIG, prompts, out, responder(SlowTarget()), progress=False)
    (out / "provenance.json").unlink()
    run(CONFIG, prompts, out, responder(target := SlowTarget()), progress=False)
    assert target.asked == {}, "all parts stand"
    (out / "provenance.json").unlink()
    (out / "part-00001.jsonl").unlink()
    run(CONFIG, prompts, out, responder(SlowTarget()), progress=False)
    assert content(out) == undisturbed


def test_special_tokens_in_an_answer_do_not_open_a_turn(prompts, tmp_path):
    tokenizer = tiny_tokenizer()
    token_ids = tokenizer.encode("a<|user|>b<|end|>", add_special_tokens=False)

    class Odd(SlowTarget):
        def answer(self, question):
            return Answered(question.id, token_ids, "stop")

    run(CONFIG, prompts, tmp_path / "out", responder(Odd()), progress=False)
    for each in read_conversation_dir(tmp_path / "out"):
        assert {message.content for message in each.messages if message.role == "assistant"} == {"ab"}
        assert all(list(turn.token_ids) == token_ids for turn in each.turns)


def test_damaged_or_unfinished_prompts_are_refused(prompts, tmp_path):
    with pytest.raises(InputError, match="Run `eyas prompts` first"):
        run(CONFIG, tmp_path / "nowhere", tmp_path / "out", responder(SlowTarget()), progress=False)
    path = prompts / "prompts.jsonl"
    path.write_bytes(path.read_bytes().replace(b"question 3", b"question X"))
    with pytest.raises(InputError, match=r"prompts.jsonl has digest sha256:.*, but sha256:.* is recorded"):
        run(CONFIG, prompts, tmp_path / "out", responder(SlowTarget()), progress=False)
    assert not (tmp_path / "out").exists()


def test_progress_ends_at_its_total(prompts, tmp_path, capsys):
    class Stops(SlowTarget):
        def __call__(self, questions):
            for count, answer in enumerate(super().__call__(questions)):
                if count == 4:
                    raise KeyboardInterrupt
                yield answer

    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, prompts, tmp_path / "out", responder(Stops(), 75))
    assert f"respond  4/{NUM_ANSWERS} answers" in capsys.readouterr().err
    run(CONFIG, prompts, tmp_path / "out", responder(SlowTarget(), 75))
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"respond  {NUM_ANSWERS}/{NUM_ANSWERS} answers  100%" in last
    assert last.endswith("tokens/s")
    ledger = json.loads((tmp_path / "out" / respond.LEDGER_FILE).read_text())
    assert 0 < ledger["dropped"]["too_long"]["count"] < NUM_PROMPTS


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], False),
        (list(range(100)), False),
        ([5] * 31, False),  # a short row of dashes
        ([5] * 32, True),
        ([9, 8, 7, 6] + [1, 2, 3] * 11, True),
        ([1, 2, 3] * 11 + [4], False),  # it found its way out
        (list(range(64)) * 4, True),
        (list(range(64)) * 3, False),
        (list(range(65)) * 5, False),
        ([1, 2] * 20 + [1], True),
    ],
)
def test_looping(token_ids, expected):
    assert is_looping_answer(token_ids) is expected


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"max_tokens": 0}, "respond.max_tokens = 0"),
        ({"batch_size": 0}, "respond.batch_size = 0"),
        ({"part_size": 0}, "respond.part_size = 0"),
        ({"concurrency": 0}, "respond.concurrency = 0"),
        ({"retries": -1}, "respond.retries = -1"),
        ({"timeout_s": 0.0}, "respond.timeout_s = 0.0"),
        ({"requests_per_second": 0.0}, "respond.requests_per_second = 0.0"),
        ({"temperature": -1}, "respond.temperature = -1"),
        ({"top_p": 0.0}, "respond.top_p = 0.0"),
        ({"tasks": {"math": {"top_k": 0}}}, "respond.tasks.math.top_k = 0"),
        ({"model": "m"}, "respond.model is set without respond.url"),
        ({"url": "http://h/v1"}, "respond.url is set without respond.model"),
        ({"url": "h:8000/v1", "model": "m"}, "respond.url=.* is not the URL of a server"),
        ({"url": "http:///v1", "model": "m"}, "respond.url=.* is not the URL of a server"),
        ({"url": "http://h:99999/v1", "model": "m"}, "respond.url=.* is not the URL of a server"),
        ({"url": "http://h/v1?name:key", "model": "m"}, "respond.url has a query"),
        ({"url": "http://name:key@h/v1", "model": "m"}, "set the key with api_key_env"),
    ],
)
def test_keys_that_mean_nothing_are_refused(keys, match):
    with pytest.raises(UsageError, match=match) as caught:
        build(RespondConfig, keys, "respond")
    assert "name:key" not in str(caught.value)


def test_a_task_has_its_own_decoding():
    recipe = {"temperature": 0.7, "top_k": 5, "tasks": {"math": {"temperature": 0, "max_tokens": 9}}}
    config = build(RespondConfig, recipe, "respond")
    assert config.decoding_for("math") == Decoding(9, 0.0, None, 5)
    assert config.decoding_for("chat") == config.decoding_for(None) == Decoding(256, 0.7, None, 5)
