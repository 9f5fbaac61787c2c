"""Request logs of servers, in the forms that their loggers write, and the chat templates inside them."""

import json

import pytest

from eyas.chat.conversation import Message
from eyas.data.sources.record_formats import (
    CUT_BY_LOG,
    UNKNOWN_TEMPLATE,
    ParsedRecord,
    RejectedRecord,
    parse_record,
)
from eyas.data.sources.request_logs import NO_RECORD, parse_log_line, parse_rendered_prompt

CHATML = '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi it\'s "me"<|im_end|>\n<|im_start|>assistant\n'


def users(line):
    value = parse_log_line(line)
    if value is NO_RECORD:
        return None
    shaped = parse_record(value)
    return [m.content for m in shaped.messages] if isinstance(shaped, ParsedRecord) else shaped.reason


VLLM = "INFO 11-20 10:00:00 [logger.py:41] Received request chatcmpl-7: prompt: {}, params: SamplingParams(n=1), "
VLLM_DETAILS = "DEBUG 11-20 10:00:00 [logger.py:49] Request chatcmpl-7 details: prompt: {}, prompt_token_ids: [1, 2]"
SGLANG = "[2026-11-20 10:00:00] Finish: obj=GenerateReqInput(rid='7', text={}, input_ids=[1]), out={{'text': 'x'}}"


@pytest.mark.parametrize("line", [VLLM, VLLM_DETAILS, SGLANG])
@pytest.mark.parametrize("text", ["plain: it's 'so', text='x'", CHATML, 'a "b" \\ \n ü 日本', "'"])
def test_prompts_as_python_writes_them(line, text):
    expected = ['Hi it\'s "me"'] if text == CHATML else [text]
    assert users(line.format(repr(text))) == expected


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-20 [logger.py:41] Received request chatcmpl-7: params: SamplingParams(n=1), lora_request: None.",
        VLLM.format("None"),
        "INFO:     127.0.0.1 - 'POST /v1/chat/completions HTTP/1.1' 200 OK",
        "[2026-11-20] Receive: obj=GenerateReqInput(rid='7', text='twice')",
        json.dumps({"event": "request.received", "rid": "7", "obj": {"text": "twice"}}),
        json.dumps({"event": "request.finished", "rid": "7", "obj": {"input_ids": [1]}}),
        "{broken",
    ],
)
def test_lines_without_a_prompt(line):
    assert users(line) is None


def test_json_logs():
    assert users(json.dumps({"event": "request.finished", "obj": {"text": CHATML}, "out": {}})) == ['Hi it\'s "me"']
    assert users(json.dumps({"messages": [{"role": "user", "content": "q"}]})) == ["q"]
    assert users(json.dumps({"request": {"messages": [{"role": "user", "content": "q"}]}, "status": 200})) == ["q"]
    body = json.dumps({"model": "m", "prompt": "p"})
    assert users(json.dumps({"method": "POST", "url": "/v1/completions", "body": body})) == ["p"]


def test_what_the_server_cut_is_no_prompt():
    text = "x" * 1024 + "..." + "y" * 1024
    assert users(json.dumps({"event": "request.finished", "obj": {"text": text}})) == CUT_BY_LOG


@pytest.mark.parametrize(
    "rendered",
    [
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA\n<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nA\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|start|>system<|message|>S<|end|><|start|>user<|message|>A\n<|end|><|start|>assistant<|channel|>final"
        "<|message|>B<|end|><|start|>user<|message|>C<|end|><|start|>assistant",
        "<|system|>\nS<|end|>\n<|user|>\nA\n<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
    ],
    ids=["chatml", "llama3", "harmony", "phi"],
)
def test_templates(rendered):
    found = parse_rendered_prompt(rendered)
    assert found == [Message("system", "S"), Message("user", "A\n"), Message("assistant", "B"), Message("user", "C")]
    shaped = parse_record({"rendered": rendered})
    assert isinstance(shaped, ParsedRecord)
    assert (shaped.num_answers, [m.content for m in shaped.messages]) == (1, ["A\n", "C"])


def test_other_templates():
    assert parse_rendered_prompt("<bos><start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\n") == [
        Message("user", "A")
    ]
    assert parse_rendered_prompt("<s>[INST] A [/INST] B</s>[INST] C [/INST]") == [
        Message("user", "A"),
        Message("user", "C"),
    ]
    assert parse_rendered_prompt("no marks at all <b>") == [Message("user", "no marks at all <b>")]
    assert parse_rendered_prompt("<|im_start|>user\nA<|im_end|>\n<|im_start|>tool\nT<|im_end|>\n") is None
    strange = parse_record({"rendered": "<|prompter|>A<|endoftext|>"})
    assert strange == RejectedRecord(UNKNOWN_TEMPLATE, "log")
