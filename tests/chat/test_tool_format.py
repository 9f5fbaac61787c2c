"""The family of a target, found from what its chat template makes of an example."""

import json

import pytest
from tests.tiny import EMBEDDED_TEMPLATE, tiny_tokenizer
from transformers import AutoTokenizer

from eyas.chat.conversation import Message, TemplateMessage, parse_messages
from eyas.chat.render import render_text
from eyas.chat.tool_format import ToolFormat, new_call_id
from eyas.evalsets import FAMILIES, example
from eyas.model.target_dir import EMBEDDED, resolve_target

TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
HERMES = (
    TOOLS + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{{ \'{"name": "\' + call.function.name + \'", "arguments": \' + call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# DeepSeek: arguments as text.
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|assistant|>{% else %}{{ m.content }}"
    "{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for call in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\n```json\n' + call.function.arguments }}"
    "\n```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}<|end|>{% endif %}{% endfor %}"
)
MISTRAL = (
    TOOLS + "{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('an id has 9 characters') }}{% endif %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}<|end|>"
    "{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
KIMI = (
    TOOLS + "{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{{ m.content }}{% if m.tool_calls %}"
    "<|tool_calls_section_begin|>{% for call in m.tool_calls %}<|tool_call_begin|>{{ call.id }}"
    "<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>{% endif %}"
)
LLAMA = (
    TOOLS + "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if m.tool_calls %}"
    '{{ \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{ m.tool_calls[0].function.arguments | tojson + '}' }}{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "family", "knows_tools", "text_arguments"),
    [
        (HERMES, "hermes", True, False),
        (DEEPSEEK, "deepseek", False, True),
        (MISTRAL, "mistral", True, False),
        (KIMI, "kimi", True, False),
        (LLAMA, "llama_json", True, False),
        (EMBEDDED_TEMPLATE, None, False, False),
        (TOOLS + EMBEDDED_TEMPLATE, None, True, False),
    ],
)
def test_the_template_tells_the_family(template, family, knows_tools, text_arguments):
    found = ToolFormat(tiny_tokenizer(template))
    assert (found.family and found.family.name, found.knows_tools, found.takes_text_arguments) == (
        family,
        knows_tools,
        text_arguments,
    )


def test_markers_are_special_tokens_of_the_family():
    tokenizer = tiny_tokenizer(MISTRAL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[ARGS]", "[INST]"]})
    ids = [tokenizer.convert_tokens_to_ids(name) for name in ("[TOOL_CALLS]", "[ARGS]")]
    assert ToolFormat(tokenizer).marker_ids == set(ids)


def test_the_tokenizers_own_response_template_is_used():
    tokenizer = tiny_tokenizer(HERMES)
    tokenizer.response_template = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close": "<|im_end|>"},
        },
    }
    found = ToolFormat(tokenizer)
    assert found.marker_ids == frozenset()  # the engine has already removed the end of turn
    prompt = tokenizer.encode("<|im_start|>user\nHi <think><|im_end|>\n<|im_start|>assistant\n<think>")
    parser = found.parser([], prompt)
    text = 'Hm.</think>Look: <tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
    parsed = parser.feed(text) + parser.finish()
    assert (parsed.reasoning, parsed.content) == ("Hm.", "Look:")
    assert [(call.name, call.arguments) for call in parsed.calls] == [("f", "{}")]


def test_an_answer_becomes_a_message():
    """It renders to the text that it was read from, so the next prompt goes on where the answer ended."""
    tokenizer = tiny_tokenizer(HERMES)
    found = ToolFormat(tokenizer)
    prompt = render_text([Message("user", "Hi")], tokenizer, True)
    text = 'Look: <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    message, phases = found.read_answer(tokenizer.encode(prompt), tokenizer.encode(text))
    assert (message.role, message.content.strip()) == ("assistant", "Look:")
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [("f", {"a": 1})]
    assert phases == found.phases(tokenizer.encode(prompt), tokenizer.encode(text))
    rendered = render_text([Message("user", "Hi"), message], tokenizer, False)
    assert '{"name": "f", "arguments": {"a": 1}}' in rendered.removeprefix(prompt)
    assert message == found.read_answer(tokenizer.encode(prompt), tokenizer.encode(text))[0]


def test_ids_of_calls():
    assert new_call_id("index", "f", 3) == "functions.f:3"
    short = {new_call_id("short", "f", 0) for _ in range(20)}
    assert len(short) == 20
    assert all(len(call_id) == 9 and call_id.isalnum() and call_id.isascii() for call_id in short)
    assert new_call_id("random", "f", 0).startswith("chatcmpl-tool-")


# --- the embedded target ---------------------------------------------------------------------------------------------

# The embedded target's template before it knew tools.
FORMER = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def embedded():
    return AutoTokenizer.from_pretrained(resolve_target(EMBEDDED))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embedded_template_writes_conversations_as_before(embedded, family):
    former = AutoTokenizer.from_pretrained(resolve_target(EMBEDDED))
    former.chat_template = FORMER
    for index in range(5):
        messages = parse_messages(example(family, "eval", index).messages, "example")
        for count in range(1, len(messages) + 1):
            for generate in (True, False):
                text = render_text(messages[:count], embedded, generate)
                assert text == render_text(messages[:count], former, generate)


def test_the_embedded_template_knows_tools(embedded):
    found = ToolFormat(embedded)
    assert found.knows_tools
    assert found.family is not None
    assert (found.family.name, found.takes_text_arguments, found.marker_ids) == ("hermes", False, frozenset())
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        Message("system", "Be brief."),
        Message("user", "1 + 2?"),
        TemplateMessage("assistant", "", extra_fields={"tool_calls": [call, call]}),
        TemplateMessage("tool", "3", extra_fields={"tool_call_id": "c"}),  # type: ignore[arg-type]
    ]
    written = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert render_text(messages, embedded, True) == (
        "<|begin|><|system|>Be brief.<|end|><|user|>1 + 2?<|end|>"
        f"<|assistant|>{written}\n{written}<|end|><|user|><tool_response>\n3\n</tool_response><|end|><|assistant|>"
    )
    tool = {"type": "function", "function": {"name": "add"}}
    text = render_text(messages[:2], embedded, True, [tool])
    assert text.startswith("<|begin|><|system|>Be brief.\n\nYou may call")
    assert '\n{"type": "function", "function": {"name": "add"}}\n</tools>' in text
    assert text.endswith("<|end|><|user|>1 + 2?<|end|><|assistant|>")
