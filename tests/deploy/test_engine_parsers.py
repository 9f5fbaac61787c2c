"""SGLang and vLLM start with the parsers of a target's family."""

import tomllib

import pytest
from transformers import PreTrainedTokenizerBase

from eyas.chat.tool_format import load_families
from eyas.deploy.engine_parsers import PARSERS, parser_arguments
from eyas.model.target_dir import load_tokenizer, resolve_target

# facts of vLLM 0.32's tool_parsers/__init__.py and of SGLang's function_call_parser.py, restated by hand
VLLM = {
    "llama3_json",
    "pythonic",
    "hermes",
    "qwen3_coder",
    "mistral",
    "gemma4",
    "openai",
    "deepseek_v3",
    "deepseek_v31",
}
VLLM |= {"glm45", "kimi_k2"}
SGLANG = {"llama3", "pythonic", "qwen25", "qwen3_coder", "mistral", "gemma4", "gpt-oss", "deepseekv3", "deepseekv31"}
SGLANG |= {"glm45", "kimi_k2"}
LLAMA = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{%- if m.tool_calls %}{% set f = m.tool_calls[0].function -%}
{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}
{%- else %}{{ m.content }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
THINKING = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or "" }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
PLAIN = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(resolve_target("embedded"))


def test_every_name_is_one_of_the_engine_and_every_family_is_ours():
    families = {family.name for family in load_families()}
    known = tomllib.loads(PARSERS.read_text())
    for parsers in known.values():
        assert set(parsers["reasoning"]) <= set(parsers["tool-call"]) <= families
    assert set(known["vllm"]["tool-call"].values()) <= VLLM
    assert set(known["sglang"]["tool-call"].values()) <= SGLANG


@pytest.mark.parametrize(
    ("template", "vllm", "sglang"),
    [
        (LLAMA, ("--enable-auto-tool-choice", "--tool-call-parser=llama3_json"), ("--tool-call-parser=llama3",)),
        (
            THINKING,
            ("--enable-auto-tool-choice", "--tool-call-parser=hermes", "--reasoning-parser=qwen3"),
            ("--tool-call-parser=qwen25", "--reasoning-parser=qwen3"),
        ),
        (PLAIN, (), ()),
    ],
)
def test_the_template_decides(tokenizer, template, vllm, sglang):
    tokenizer.chat_template = template
    assert parser_arguments("vllm", tokenizer) == vllm
    assert parser_arguments("sglang", tokenizer) == sglang
    assert parser_arguments("eyas", tokenizer) == ()
