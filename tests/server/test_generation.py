"""Responses as OpenAI's own client reads them, against transformers' generate."""

import json
import math
import re

import openai
import pytest
import torch
from tests.engine.small import generate
from tests.server.server import MODEL
from tests.tiny import VOCAB_SIZE, tiny_tokenizer
from transformers import AutoModelForCausalLM

from eyas.engine.request import Request

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="session")
def reference(shallow, shallow_target):
    """Greedy ids of transformers for prompt ids."""

    def answer(ids, num_tokens):
        request = Request("reference", tuple(ids), num_tokens)
        return generate(shallow, [request], shallow_target.info.eos_ids)["reference"]

    return answer


@pytest.fixture(scope="session")
def hello_ids(shallow_target):
    """By hand: the template's text, tokenised."""
    return tiny_tokenizer().encode("<|begin|><|user|>hello there<|end|><|assistant|>", add_special_tokens=False)


# --- chat ------------------------------------------------------------------------------------------------------------


def test_a_chat_is_answered_as_transformers_answers_it(client, reference, hello_ids):
    reply = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=20, extra_body={"return_token_ids": True}
    )
    ids = reference(hello_ids, 20)
    assert reply.prompt_token_ids == hello_ids
    assert reply.choices[0].token_ids == ids
    assert reply.choices[0].message.content == tiny_tokenizer().decode(ids, skip_special_tokens=True)
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.object == "chat.completion"
    assert reply.model == MODEL
    assert reply.id.startswith("chatcmpl-")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(hello_ids), len(ids))
    assert reply.usage.total_tokens == len(hello_ids) + len(ids)


def test_a_stream_says_the_same_in_pieces(client, reference, hello_ids):
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            temperature=0,
            max_completion_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
    )
    *pieces, last = chunks
    ids = reference(hello_ids, 20)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == tiny_tokenizer().decode(ids, skip_special_tokens=True)
    assert [token for piece in pieces for token in piece.choices[0].token_ids] == ids
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert [piece.choices[0].delta.role for piece in pieces] == ["assistant"] + [None] * (len(pieces) - 1)
    assert pieces[0].prompt_token_ids == hello_ids
    assert len({chunk.id for chunk in chunks}) == 1
    assert all("usage" in piece.model_fields_set and piece.usage is None for piece in pieces)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(hello_ids), 20)
    assert last.metrics["speculative_decoding"]["num_spec_tokens"] == 3


def test_the_bytes_of_a_stream(http):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "stream": True}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert all("usage" not in chunk and "metrics" not in chunk for chunk in chunks)
    assert "prompt_token_ids" not in chunks[0]
    assert "token_ids" not in chunks[0]["choices"][0]


def test_the_usage_so_far_in_every_chunk(client):
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    seen = 0
    for chunk in chunks:
        seen += len(chunk.choices[0].token_ids) if chunk.choices else 0
        assert chunk.usage.completion_tokens == seen
    assert seen == 9


def test_choices_have_coins_of_their_own(client, hello_ids):
    def ask(seed, n):
        reply = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=12, seed=seed, n=n, extra_body={"ignore_eos": True}
        )
        return [choice.message.content for choice in reply.choices], reply

    texts, reply = ask(5, 3)
    assert len(set(texts)) == 3
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert reply.usage.prompt_tokens == len(hello_ids)
    assert reply.usage.completion_tokens == 36
    assert reply.metrics is None
    assert ask(6, 1)[0] == texts[1:2]
    assert ask(-1, 1)[0] == ask(-1, 1)[0] != texts[:1]
    assert ask(2**63 + 191, 1)[0] == ask(191, 1)[0]
    assert ask(5 - 10**400 * 2**62, 3)[0] == texts
    assert ask(2**62 - 1, 2)[0] == [*ask(-1, 1)[0], *ask(0, 1)[0]]
    assert ask(None, 1)[0] != ask(None, 1)[0]


def test_streams_of_several_choices(client):
    chunks = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, seed=5, n=2, stream=True)
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, seed=5, n=2)
    assert texts == [choice.message.content for choice in whole.choices]


def test_without_max_tokens_a_chat_goes_on_to_the_end_of_the_context(client):
    long = [{"role": "user", "content": "x" * 480}]
    reply = client.chat.completions.create(model=MODEL, messages=long, extra_body={"ignore_eos": True})
    assert reply.usage.total_tokens == 512
    assert reply.choices[0].finish_reason == "length"


def test_a_stop_string_cuts(client, reference, hello_ids):
    text = str(tiny_tokenizer().decode(reference(hello_ids, 20), skip_special_tokens=True))
    place = next(i for i in range(4, len(text)) if text.find(text[i : i + 2]) == i)
    stop = text[place : place + 2]
    for given in (stop, ["never said", stop]):
        reply = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=20, stop=given)
        assert reply.choices[0].message.content == text[:place]
        assert reply.choices[0].finish_reason == "stop"


def test_a_stop_id_ends(client, reference, hello_ids):
    ids = reference(hello_ids, 20)
    reply = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=20, extra_body={"stop_token_ids": [ids[4]]}
    )
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == ids.index(ids[4]) + 1


def test_the_end_of_turn_ends_unless_it_is_ignored(client):
    ends = str(tiny_tokenizer().eos_token_id)
    shared = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 5, "logit_bias": {ends: 100}}
    for ignored, count, finish in ((False, 1, "stop"), (True, 5, "length")):
        reply = client.chat.completions.create(**shared, extra_body={"ignore_eos": ignored})
        assert reply.usage.completion_tokens == count
        assert reply.choices[0].finish_reason == finish
        assert reply.choices[0].message.content == ""


def test_a_banned_token_is_not_said(client, reference, hello_ids):
    first = reference(hello_ids, 1)[0]
    reply = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        max_tokens=1,
        logit_bias={str(first): -100},
        extra_body={"return_token_ids": True},
    )
    assert reply.choices[0].token_ids[0] != first


def test_speculation_off_drafts_nothing(client, reference, hello_ids):
    reply = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        max_tokens=20,
        extra_body={"speculation": "off", "return_token_ids": True},
    )
    assert reply.choices[0].token_ids == reference(hello_ids, 20)
    assert reply.metrics is None


# --- structured output -----------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["sure", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "names",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}},
        {"extra_body": {"guided_json": SCHEMA}},
        {"extra_body": {"guided_json": json.dumps(SCHEMA)}},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    ],
)
def test_a_schema_is_kept(client, names):
    # Spaces are free in JSON, and a random target may write nothing else: a bias lets it come to an end.
    bias = {str(tiny_tokenizer().encode(space)[0]): -100 for space in (" ", "\n", "\t", "\r")}
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=200, logit_bias=bias, **names)
    said = json.loads(reply.choices[0].message.content)
    assert set(said) == {"sure", "kind"}
    assert said["sure"] in (True, False)
    assert said["kind"] in ("a", "b")
    assert reply.choices[0].finish_reason == "stop"


def test_any_object_begins_as_one(client):
    reply = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=9, response_format={"type": "json_object"}
    )
    assert reply.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize("names", [{"guided_regex": "[ab]{5}c"}, {"structured_outputs": {"regex": "[ab]{5}c"}}])
def test_a_pattern_is_kept_also_in_a_stream(client, names):
    chunks = client.completions.create(model=MODEL, prompt="x", max_tokens=20, n=2, stream=True, extra_body=names)
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert all(re.fullmatch("[ab]{5}c", text) for text in texts), texts


def test_text_is_no_constraint(client):
    shared = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "temperature": 0}
    reply = client.chat.completions.create(**shared, response_format={"type": "text"})
    assert reply.choices[0].message == client.chat.completions.create(**shared).choices[0].message


# --- log-probabilities -----------------------------------------------------------------------------------------------


def test_logprobs_of_a_chat_are_those_of_the_target(client, shallow, hello_ids):
    reply = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=3,
        extra_body={"return_token_ids": True},
    )
    (choice,) = reply.choices
    model = AutoModelForCausalLM.from_pretrained(shallow, dtype=torch.float32)
    ids_T = torch.tensor(hello_ids + choice.token_ids)
    with torch.no_grad():
        logprobs_TW = model(ids_T[None]).logits[0, len(hello_ids) - 1 : -1].log_softmax(-1)
    assert len(choice.logprobs.content) == len(choice.token_ids) == 8
    for token, entry, logprobs_W in zip(choice.token_ids, choice.logprobs.content, logprobs_TW, strict=True):
        assert math.isclose(entry.logprob, logprobs_W[token], abs_tol=1e-4)
        top = logprobs_W.topk(3)
        assert [one.logprob for one in entry.top_logprobs] == pytest.approx(top.values.tolist(), abs=1e-4)
    said = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert said.decode(errors="replace") == choice.message.content


def test_logprobs_without_alternatives(client):
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, logprobs=True)
    assert [entry.top_logprobs for entry in reply.choices[0].logprobs.content] == [[], []]
    assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2).choices[0].logprobs is None


def test_logprobs_of_a_stream_and_of_completions(client):
    shared = {"model": MODEL, "prompt": "abc", "max_tokens": 10, "temperature": 1.0, "seed": 3, "logprobs": 2}
    whole = client.completions.create(**shared).choices[0].logprobs
    assert len(whole.tokens) == len(whole.token_logprobs) == len(whole.top_logprobs) == len(whole.text_offset) == 10
    assert whole.text_offset == [sum(map(len, whole.tokens[:i])) for i in range(10)]
    for token, logprob, top in zip(whole.tokens, whole.token_logprobs, whole.top_logprobs, strict=True):
        assert top[token] >= logprob  # several tokens may read the same: the likelier one is told
        assert len(top) <= 3
    pieces = [chunk.choices[0].logprobs for chunk in client.completions.create(**shared, stream=True)]
    assert [token for piece in pieces for token in piece.tokens] == whole.tokens
    assert [offset for piece in pieces for offset in piece.text_offset] == whole.text_offset


# --- completions -----------------------------------------------------------------------------------------------------


def test_prompts_of_every_kind(client, reference):
    ids = tiny_tokenizer().encode("once upon")
    expected = reference(ids, 16)  # OpenAI's default of 16
    for prompt in ("once upon", ids, ["once upon"], [ids], ["once upon", "once upon"], [ids, [65, 66], ids]):
        reply = client.completions.create(
            model=MODEL, prompt=prompt, temperature=0, extra_body={"return_token_ids": True}
        )
        count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        assert [choice.index for choice in reply.choices] == list(range(count))
        assert reply.choices[0].token_ids == reply.choices[-1].token_ids == expected
        assert reply.choices[0].prompt_token_ids == ids
        assert reply.choices[0].text == tiny_tokenizer().decode(expected, skip_special_tokens=True)
        assert reply.id.startswith("cmpl-")
    assert reply.usage.prompt_tokens == 2 * len(ids) + 2
    assert reply.choices[1].prompt_token_ids == [65, 66]


def test_a_stream_of_two_prompts(client):
    shared = {"model": MODEL, "prompt": ["once", "upon"], "temperature": 0, "max_tokens": 9}
    texts = ["", ""]
    for chunk in client.completions.create(**shared, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in client.completions.create(**shared).choices]


def test_a_known_prefix_is_reported_as_cached(client):
    words = "a prefix that nobody else in these tests has said before"
    for expected in (0, len(words) - 1):
        reply = client.completions.create(model=MODEL, prompt=words, max_tokens=1)
        assert reply.usage.prompt_tokens_details.cached_tokens == expected


# --- what goes into the template -------------------------------------------------------------------------------------


def test_tokenize_reads_as_the_other_endpoints_do(http, hello_ids):
    assert http.post("/tokenize", json={"messages": HELLO}).json() == {
        "tokens": hello_ids,
        "count": len(hello_ids),
        "max_model_len": 512,
    }
    assert http.post("/tokenize", json={"prompt": "ab", "model": MODEL}).json()["tokens"] == tiny_tokenizer().encode(
        "ab"
    )


def test_parts_roles_and_history(http):
    def ids_of(messages):
        reply = http.post("/tokenize", json={"messages": messages})
        assert reply.status_code == 200, reply.text
        return reply.json()["tokens"]

    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert ids_of([{"role": "user", "content": parts}]) == ids_of([{"role": "user", "content": "one\ntwo"}])
    history = [{"role": "developer", "content": "be brief"}, *HELLO]
    # As OpenAI's client gives an answer back.
    answer = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "audio": None}
    text = "<|begin|><|system|>be brief<|end|><|user|>hello there<|end|><|assistant|>hi<|end|><|user|>go on<|end|>"
    expected = tiny_tokenizer().encode(text + "<|assistant|>", add_special_tokens=False)
    assert ids_of([*history, answer, {"role": "user", "content": "go on"}]) == expected


def test_special_tokens_in_texts(client):
    (user,) = tiny_tokenizer().encode("<|user|>", add_special_tokens=False)
    asked = {"model": MODEL, "prompt": "hi", "max_tokens": 2, "logit_bias": {str(user): 100}}
    shown = client.completions.create(**asked, extra_body={"skip_special_tokens": False})
    assert shown.choices[0].text == "<|user|><|user|>"
    assert client.completions.create(**asked).choices[0].text == ""


@pytest.mark.parametrize("speculation", ["off", "max"])
def test_min_tokens(client, speculation):
    (end,) = tiny_tokenizer().encode("<|end|>", add_special_tokens=False)
    asked = {"model": MODEL, "prompt": "hi", "max_tokens": 20, "logit_bias": {str(end): 100}}
    extra = {"speculation": speculation, "return_token_ids": True}
    for more in ({}, {"stop_token_ids": [end], "ignore_eos": True}):
        reply = client.completions.create(**asked, extra_body={**extra, **more, "min_tokens": 7})
        (choice,) = reply.choices
        assert choice.token_ids.index(end) == 7
        assert (len(choice.token_ids), choice.finish_reason) == (8, "stop")


def test_min_tokens_change_nothing_else(client):
    asked = {"model": MODEL, "prompt": "once", "max_tokens": 40, "seed": 5}
    for speculation in ("off", "max"):
        plain, ruled = (
            client.completions.create(
                **asked, extra_body={"speculation": speculation, "return_token_ids": True, **more}
            )
            for more in ({"stop_token_ids": [], "ignore_eos": True}, {"min_tokens": 1, "ignore_eos": True})
        )
        assert ruled.choices[0].token_ids == plain.choices[0].token_ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 4])
def test_echo(client, stream, max_tokens):
    ids = tiny_tokenizer().encode("upon", add_special_tokens=False)
    asked = {"model": MODEL, "max_tokens": max_tokens, "temperature": 0, "n": 2}
    for prompt, shown in ((["once", "twice"], ["once", "twice"]), ([ids], ["upon"])):
        plain = [choice.text for choice in client.completions.create(**asked, prompt=prompt).choices]
        assert max_tokens or not any(plain)
        reply = client.completions.create(**asked, prompt=prompt, echo=True, stream=stream)
        texts = [""] * 2 * len(prompt)
        for part in reply if stream else [reply]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == [shown[index // 2] + text for index, text in enumerate(plain)]


@pytest.mark.parametrize("token", [VOCAB_SIZE, 10**21])
def test_echo_of_unknown_ids_is_refused(client, token):
    with pytest.raises(openai.BadRequestError, match=f"prompt has the token id {token}"):
        client.completions.create(model=MODEL, prompt=[token], echo=True)
