"""`respond` against an OpenAI-compatible server with every kind of fault."""

import itertools
import json
import logging
import random
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.answers.fake_server import KEY, MODEL, Fake, serving
from tests.data.answers.prompts_dir import write_prompts
from tests.data.answers.slow_target import CONFIG
from tests.e2e.processes import context
from tests.tiny import EMBEDDED_TEMPLATE, tiny_tokenizer

from eyas.base.errors import EyasError, InputError, StageError
from eyas.base.progress import Progress
from eyas.chat.conversation import ToolCall, read_conversation_dir
from eyas.data.answers.remote_responder import RemoteResponder
from eyas.data.answers.respond import run
from eyas.data.answers.respond_config import ResponseMode, TaskDecoding
from eyas.data.answers.responder import Responder

NUM_PROMPTS = 13  # with one, two or three user turns in turn
NUM_ANSWERS = 25
PLANTED = ("Zephyrine", "Quillfeather", "4556737586899855", "zq@example.org")


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(
        tmp_path / "prompts", [[f"question {i}.{k}" for k in range(i % 3 + 1)] for i in range(NUM_PROMPTS)]
    )


@pytest.fixture
def fake():
    with serving(Fake()) as fake:
        yield fake


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch):
    monkeypatch.setattr("eyas.base.openai_http.INITIAL_BACKOFF_S", 0.01)
    monkeypatch.setattr("eyas.base.openai_http.MAX_BACKOFF_S", 0.02)


def config_of(fake, **keys):
    return replace(CONFIG, **{"url": fake.url, "model": MODEL, "concurrency": 4, "retries": 3, **keys})


def responder(config, max_positions=400):
    tokenizer = tiny_tokenizer()
    return Responder(RemoteResponder(config, tokenizer), tokenizer, max_positions, "sha256:t", "sha256:k", "sha256:c")


def answer(prompts, out, config, scan=None):
    run(config, prompts, out, responder(config), progress=False, scan=scan)
    return list(read_conversation_dir(out))


def content(out):
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "provenance.json"}


@pytest.fixture
def undisturbed(prompts, tmp_path, fake):
    answer(prompts, tmp_path / "undisturbed", config_of(fake))
    fake.asked.clear()
    fake.answered.clear()
    return content(tmp_path / "undisturbed")


def test_answers_are_stored_as_the_server_gave_them(prompts, tmp_path, fake):
    conversations = answer(prompts, tmp_path / "out", config_of(fake))
    assert [each.id for each in conversations] == [f"q:{i}" for i in range(NUM_PROMPTS)]
    assert set(fake.answered.values()) == {1}
    assert len(fake.answered) == NUM_ANSWERS
    tokenizer = tiny_tokenizer()
    for each in conversations:
        said = [message.content for message in each.messages if message.role == "assistant"]
        for text, turn in zip(said, each.turns, strict=True):
            end = [tokenizer.eos_token_id] if turn.finish == "stop" else []
            assert list(turn.token_ids) == [*tokenizer.encode(text, add_special_tokens=False), *end]
            assert turn.ids_source == "generated"
    assert any(turn.finish == "length" for each in conversations for turn in each.turns)
    # Each turn was asked with the answers before it.
    third = next(body for body in fake.bodies if body["messages"][-1]["content"] == "question 2.2")
    assert [message["content"] for message in third["messages"][1::2]] == [
        message.content for message in conversations[2].messages[1:4:2]
    ]
    assert fake.keys == {None}


def test_the_variables_of_a_mode_are_sent(prompts, tmp_path, fake):
    modes = {"direct": ResponseMode(1.0, {"add_generation_prompt": True})}
    with pytest.raises(InputError, match="is set by eyas"):
        answer(prompts, tmp_path / "a", config_of(fake, modes=modes))
    modes = {"direct": ResponseMode(1.0, {"messages_before": 2})}
    asked = responder(config_of(fake, modes=modes))
    asked.tokenizer.chat_template = f"{asked.tokenizer.chat_template}{{# messages_before #}}"
    run(config_of(fake, modes=modes), prompts, tmp_path / "b", asked, progress=False)
    assert all(body["chat_template_kwargs"] == {"messages_before": 2} for body in fake.bodies)


def test_concurrency_spans_shards_and_turns(tmp_path):
    prompts = write_prompts(tmp_path / "prompts", [[f"question {i}.{k}" for k in range(2)] for i in range(30)])
    with serving(Fake(delay_s=0.02)) as fake:
        answer(prompts, tmp_path / "out", config_of(fake, concurrency=7))
    assert fake.most_open == 7


def test_faults_change_no_byte_of_the_output(prompts, tmp_path, fake, undisturbed):
    aborted = {"choices": [{"message": {}, "finish_reason": "abort"}]}
    fake.faults = {
        "question 0.0": ["500", "garbage", "half"],
        "question 1.1": ["empty", "drop", "429"],
        "question 2.0": ["slow"],
        "question 4.0": [(200, {"choices": []}, {}), (200, aborted, {})],
        "question 5.2": [(408, b"", {}), (409, b"no", {}), (503, b"[]", {"retry-after": "junk"})],
    }
    answer(prompts, tmp_path / "out", config_of(fake, timeout_s=0.5))
    assert content(tmp_path / "out") == undisturbed
    assert set(fake.answered.values()) == {1}
    assert len(fake.times("question 0.0")) == len(fake.times("question 1.1")) == len(fake.times("question 5.2")) == 4


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(prompts, tmp_path, fake, status):
    fake.faults = {"question 3.0": [(status, b"", {"retry-after": "0.7"})]}
    answer(prompts, tmp_path / "out", config_of(fake))
    first, second = fake.times("question 3.0")
    assert 0.7 <= second - first < 2


def test_requests_per_second_is_respected(prompts, tmp_path, fake):
    answer(prompts, tmp_path / "out", config_of(fake, requests_per_second=50.0))
    times = sorted(at for at, _ in fake.asked)
    assert times[-1] - times[0] >= 0.9 * (NUM_ANSWERS - 1) / 50


def test_a_server_that_restarts_midway(prompts, tmp_path, undisturbed):
    out = tmp_path / "out"
    with serving(Fake(delay_s=0.01, dies_after=9)) as first:
        match = r"http.* gave no answer to q:\d+/\d in 4 attempts; the last: the connection failed"
        with pytest.raises(StageError, match=match):
            answer(prompts, out, config_of(first))
    assert StageError.exit_code == 1
    assert not (out / "provenance.json").exists()
    with pytest.raises(StageError, match=r"the last: the connection failed \(ConnectError\)"):
        answer(prompts, out, config_of(first, retries=0))
    with serving(Fake()) as second:
        answer(prompts, out, config_of(second, concurrency=2))  # another address, fewer at once: the same run
    assert len(second.asked) == NUM_ANSWERS - 9, "every answer that came was kept"
    assert not set(first.answered) & set(second.answered)
    assert content(out) == undisturbed


def test_one_failed_question_keeps_the_answers_in_flight(prompts, tmp_path, fake, undisturbed):
    out = tmp_path / "out"
    fake.delay_s, fake.faults = 0.05, {"question 6.0": ["500"] * 4}
    with pytest.raises(StageError, match=r"no answer to q:6/0 in 4 attempts; the last: HTTP 500"):
        answer(prompts, out, config_of(fake))
    assert sum(path.read_bytes().count(b"\n") for path in out.glob("*.journal")) + sum(
        len(each.turns) for each in (read_conversation_dir(out) if list(out.glob("*.jsonl")) else [])
    ) == sum(fake.answered.values())
    answer(prompts, out, config_of(fake))
    assert set(fake.answered.values()) == {1}
    assert content(out) == undisturbed


def _client(prompts: Path, out: Path, url: str) -> None:
    config = replace(CONFIG, url=url, model=MODEL, concurrency=3)
    run(config, prompts, out, responder(config), progress=False)


def test_kill_9_loses_no_answer_and_repeats_no_request(prompts, tmp_path, undisturbed):
    out, rng = tmp_path / "out", random.Random(5)
    journalled: list[tuple[int, set[str]]] = []
    with serving(Fake(delay_s=0.02)) as fake:
        for _ in range(4):
            wanted = len(fake.asked) + rng.randint(1, 5)
            process = context().Process(target=_client, args=(prompts, out, fake.url))
            process.start()
            while len(fake.asked) < wanted:
                assert process.is_alive()
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.03))
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
            lines = [line for path in out.glob("*.journal") for line in path.read_bytes().splitlines(keepends=True)]
            whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
            parts = [json.loads(line) for path in out.glob("part-*.jsonl") for line in path.read_bytes().splitlines()]
            kept = {f"question {one['id'][2:]}.{one['turn']}" for one in whole}
            kept |= {f"question {one['id'][2:]}.{k}" for one in parts for k in range(len(one["turns"]))}
            journalled.append((len(fake.asked), kept))
        answer(prompts, out, config_of(fake))
    assert journalled[-1][1], "something was kept"
    for place, kept in journalled:
        assert not kept & {words for _, words in fake.asked[place:]}, "asked and paid for twice"
    assert content(out) == undisturbed


def test_ctrl_c_ends_at_once_and_the_next_run_continues(prompts, tmp_path, fake, undisturbed, monkeypatch):
    fake.delay_s, out = 0.02, tmp_path / "out"
    with monkeypatch.context() as patch:
        count = itertools.count(1)

        def advance(bar, n=1, note=""):
            if next(count) == 6:
                raise KeyboardInterrupt

        patch.setattr(Progress, "advance", advance)
        with pytest.raises(KeyboardInterrupt):
            answer(prompts, out, config_of(fake))
    assert not [thread for thread in threading.enumerate() if thread.name == "http_client"]
    kept = sum(path.read_bytes().count(b"\n") for path in out.glob("*.journal"))
    assert kept >= 1
    answer(prompts, out, config_of(fake))
    assert content(out) == undisturbed
    assert max(fake.answered.values()) <= 2, "only what was in flight"


def test_an_unexpected_error_is_raised_without_a_deadlock(prompts, tmp_path, fake, monkeypatch):
    def broken(value, max_tokens):
        raise KeyError("ours")

    monkeypatch.setattr("eyas.data.answers.openai_protocol.parse_reply", broken)
    with pytest.raises(KeyError, match="ours"):
        answer(prompts, tmp_path / "out", config_of(fake))


def test_an_invalid_proxy_is_raised_without_a_deadlock(prompts, tmp_path, fake, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "ftp://nowhere")
    with pytest.raises(ValueError, match="nowhere"):
        answer(prompts, tmp_path / "out", config_of(fake))


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_wrong_key_ends_the_run_and_is_not_shown(prompts, tmp_path, fake, monkeypatch, capfd, caplog):
    monkeypatch.setenv("EYAS_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    fake.every = (401, {"error": {"message": f"Incorrect API key provided: {KEY}. (key {KEY[:6]}...)"}}, {})
    config = config_of(fake, api_key_env="EYAS_TEST_KEY")
    with pytest.raises(StageError, match=r"rejects the request for q:.*: HTTP 401") as caught:
        run(config, prompts, tmp_path / "out", responder(config))
    assert fake.keys == {f"Bearer {KEY}"}
    assert len(fake.asked) <= 4
    everything = str(caught.value) + repr(caught.value) + "".join(capfd.readouterr()) + caplog.text
    everything += "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert "Incorrect" not in everything, "messages of servers are not shown"
    assert KEY not in everything
    assert KEY[:6] not in everything


def test_a_key_that_is_not_set_is_named(prompts, tmp_path, fake, monkeypatch):
    monkeypatch.delenv("EYAS_TEST_KEY", raising=False)
    with pytest.raises(InputError, match="environment variable EYAS_TEST_KEY with the API key is not set"):
        answer(prompts, tmp_path / "out", config_of(fake, api_key_env="EYAS_TEST_KEY"))
    assert fake.asked == []


def test_a_rejected_prompt_is_dropped_and_counted(prompts, tmp_path, fake):
    full = {"message": "This model's maximum context length is 64 tokens", "type": "invalid_request_error"}
    fake.faults = {"question 7.1": [(400, {"error": full}, {})] * 2, "question 9.0": [(422, b"{}", {})] * 2}
    conversations = answer(prompts, tmp_path / "out", config_of(fake))
    assert len(conversations) == NUM_PROMPTS - 2
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text())
    assert ledger["dropped"]["refused"] == {"count": 2, "ids": ["q:7", "q:9"]}
    assert len(fake.times("question 7.1")) == 1, "a refusal is not asked again"


def test_a_request_rejected_for_every_prompt_ends_the_run(prompts, tmp_path, fake):
    fake.every = (400, {"error": {"message": "too hot", "type": "BadRequestError"}}, {})
    with pytest.raises(StageError, match=r"rejects 4 of 4 questions, .* with HTTP 400 \(BadRequestError\)"):
        answer(prompts, tmp_path / "out", config_of(fake))


def test_planted_values_are_in_no_message_log_or_ledger(tmp_path, fake, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    words = f"I am {PLANTED[0]} {PLANTED[1]}, card {PLANTED[2]}, mail {PLANTED[3]}"
    prompts = write_prompts(tmp_path / "prompts", [[words]] * 5)
    said = f"400: invalid message {words!r} \\n{PLANTED[0]} {PLANTED[2][:4]} {PLANTED[2][4:]} at {PLANTED[3].upper()}"
    seen = ""
    for status in (400, 401, 500):
        fake.every = (status, {"error": {"message": said}}, {})
        config = config_of(fake, retries=1)
        with pytest.raises(EyasError) as caught:
            run(config, prompts, tmp_path / f"out{status}", responder(config))
        seen += str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)
        seen += "".join(path.read_text() for path in (tmp_path / f"out{status}").iterdir())
    seen += "".join(capfd.readouterr()) + caplog.text
    assert all(f"HTTP {status}" in seen for status in (400, 401, 500))
    for value in (*PLANTED, "zq", "4556", "example.org"):
        assert value.casefold() not in seen.casefold(), value


# --- what answers hold -----------------------------------------------------------------------------------------------


def test_another_template_on_the_server_ends_the_run(prompts, tmp_path, fake):
    fake.template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    match = r"another chat template or tokenizer: it renders q:\d+/0 to 29 tokens \(sha256:\w+\), target.model to 16 "
    with pytest.raises(StageError, match=match):
        answer(prompts, tmp_path / "out", config_of(fake))
    assert not any(path.read_bytes() for path in (tmp_path / "out").glob("*.journal"))


def test_prompt_ids_in_the_choice(prompts, tmp_path, fake, undisturbed):
    fake.in_choice = True
    answer(prompts, tmp_path / "out", config_of(fake))
    assert content(tmp_path / "out") == undisturbed


def test_without_token_ids_answers_are_rendered_once_and_marked(prompts, tmp_path, fake):
    with_ids = answer(prompts, tmp_path / "with", config_of(fake))
    fake.with_ids = False
    without = answer(prompts, tmp_path / "without", config_of(fake))
    assert [[turn.ids_source for turn in each.turns] for each in without] == [
        ["rendered"] * len(each.turns) for each in without
    ]
    # The fake's words are one token a character, so here both ways give the same ids.
    sources = [tuple(replace(turn, ids_source="generated") for turn in each.turns) for each in without]
    unmarked = [replace(each, turns=turns) for each, turns in zip(without, sources, strict=True)]
    assert unmarked == with_ids
    assert json.loads((tmp_path / "without" / "ledger.json").read_text())["rendered"] == NUM_ANSWERS


def test_a_server_without_token_ids(prompts, tmp_path, fake):
    unknown = {"error": {"message": "Unrecognized request argument supplied: return_token_ids"}}

    class Strict(Fake):
        async def _answer(self, body, scope, send):
            self.every = (400, unknown, {}) if "return_token_ids" in body else None
            await super()._answer(body, scope, send)

    with serving(Strict()) as strict:
        conversations = answer(prompts, tmp_path / "out", config_of(strict, concurrency=1))
    assert {turn.ids_source for each in conversations for turn in each.turns} == {"rendered"}
    assert len(strict.asked) == NUM_ANSWERS + 1


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_and_tool_calls_are_stored_and_sent_back(prompts, tmp_path, fake, name):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    fake.more, fake.finish = {name: "Let me think.", "tool_calls": [call]}, "tool_calls"
    conversations = answer(prompts, tmp_path / "out", config_of(fake))
    message = conversations[1].messages[1]
    assert message.reasoning == "Let me think."
    assert message.tool_calls == (ToolCall("c1", "add", '{"a": 1}'),)
    assert conversations[1].turns[0].finish == "stop"
    second = next(body for body in fake.bodies if body["messages"][-1]["content"] == "question 1.1")["messages"][1]
    assert second["reasoning"] == second["reasoning_content"] == "Let me think."
    assert second["tool_calls"] == [call]


def test_reasoning_that_the_template_drops_ends_the_run_without_ids(prompts, tmp_path, fake):
    fake.with_ids, fake.more = False, {"reasoning_content": "Let me think."}
    with pytest.raises(StageError, match=r"has no token ids, and the chat template does not render it"):
        answer(prompts, tmp_path / "out", config_of(fake))


def test_tool_calls_that_the_template_drops_are_dropped_without_ids(prompts, tmp_path, fake):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    fake.with_ids, fake.more = False, {"tool_calls": [call]}
    with pytest.raises(InputError, match=r"answers to the 13 prompts were dropped \(13 unrendered\)"):
        answer(prompts, tmp_path / "out", config_of(fake))


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_template_without_tool_calls_drops_such_conversations(tmp_path, fake, with_ids):
    refuses = "{% for m in messages if m.tool_calls %}{{ raise_exception('a result must follow') }}{% endfor %}"
    prompts = write_prompts(tmp_path / "prompts", [["one"], ["two", "three"]])
    fake.with_ids, fake.more = with_ids, {"tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}]}
    config, tokenizer = config_of(fake), tiny_tokenizer()
    tokenizer.chat_template = refuses + EMBEDDED_TEMPLATE
    strict = replace(responder(config), tokenizer=tokenizer, answer=RemoteResponder(config, tokenizer))
    if with_ids:
        run(config, prompts, tmp_path / "out", strict, progress=False)
        assert [each.id for each in read_conversation_dir(tmp_path / "out")] == ["q:0"]
    else:
        with pytest.raises(InputError, match=r"answers to the 2 prompts were dropped \(2 unrendered\)"):
            run(config, prompts, tmp_path / "out", strict, progress=False)
    dropped = json.loads((tmp_path / "out" / "ledger.json").read_text())["dropped"]["unrendered"]
    assert dropped["ids"] == (["q:1"] if with_ids else ["q:0", "q:1"])


def test_each_task_is_sampled_as_the_recipe_says(prompts, tmp_path, fake):
    tasks = {"q": TaskDecoding(temperature=0.5, top_p=0.9, top_k=7, max_tokens=5)}
    conversations = answer(prompts, tmp_path / "out", config_of(fake, tasks=tasks))
    assert max(len(turn.token_ids) for each in conversations for turn in each.turns) == 5
    sent = fake.bodies[0]
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "max_tokens")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 5,
    }
    seeds = {body["messages"][-1]["content"]: body["seed"] for body in fake.bodies}
    assert len(set(seeds.values())) == NUM_ANSWERS


def test_a_greedy_answer_needs_no_seed(prompts, tmp_path, fake):
    answer(prompts, tmp_path / "out", config_of(fake))
    assert not any({"seed", "top_p", "top_k", "tools", "stream"} & set(body) for body in fake.bodies)


def test_an_answer_above_max_tokens_is_malformed(prompts, tmp_path, fake):
    fake.text = "a" * 20
    with pytest.raises(StageError, match=r"the last: the answer has 21 tokens, above max_tokens=12"):
        answer(prompts, tmp_path / "out", config_of(fake, retries=0))


def test_the_origin_ignores_the_server(prompts, tmp_path, fake, undisturbed):
    out = tmp_path / "out"
    answer(prompts, out, config_of(fake))
    count = len(fake.asked)
    again = {
        "url": "http://127.0.0.1:1/v1",
        "concurrency": 9,
        "retries": 0,
        "timeout_s": 1.0,
        "requests_per_second": 1.0,
    }
    answer(prompts, out, replace(config_of(fake), **again))
    assert len(fake.asked) == count
    answer(prompts, out, config_of(fake, model="other"))
    assert len(fake.asked) == count + NUM_ANSWERS


def test_progress_shows_rates_and_retries(prompts, tmp_path, fake, capfd):
    fake.faults = {"question 0.0": ["500"], "question 1.0": ["429"]}
    config = config_of(fake)
    run(config, prompts, tmp_path / "out", responder(config))
    last = capfd.readouterr().err.splitlines()[-1]
    assert f"respond  {NUM_ANSWERS}/{NUM_ANSWERS} answers  100%" in last
    assert "tokens/s  2 retries, last after HTTP " in last
