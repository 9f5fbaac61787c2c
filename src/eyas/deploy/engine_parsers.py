"""Chooses the parsers of tool calls and of reasoning with which SGLang and vLLM start, from a target's chat template.

Both engines return tool calls as plain text if they are started without. The names are those of vLLM 0.32
(vllm/tool_parsers, vllm/reasoning) and of SGLang in 2026 (function_call_parser.py, reasoning_parser.py).
"""

from transformers import PreTrainedTokenizerBase

from eyas.chat.tool_format import ToolFormat

TOOL_PARSERS = {
    "qwen_xml": ("qwen3_coder", "qwen3_coder"),
    "glm": ("glm45", "glm45"),
    "hermes": ("hermes", "qwen25"),
    "mistral": ("mistral", "mistral"),
    "mistral_list": ("mistral", "mistral"),
    "deepseek": ("deepseek_v3", "deepseekv3"),
    "deepseek_v3_1": ("deepseek_v31", "deepseekv31"),
    "kimi": ("kimi_k2", "kimi_k2"),
    "harmony": ("openai", "gpt-oss"),
    "gemma": ("gemma4", "gemma4"),
    "llama_json": ("llama3_json", "llama3"),
    "pythonic": ("pythonic", "pythonic"),
}
"""Name of a family in chat/tool_families.toml -> its parser in vLLM and in SGLang."""
REASONING_PARSERS = {
    "qwen_xml": ("qwen3", "qwen3"),
    "glm": ("glm45", "glm45"),
    "hermes": ("qwen3", "qwen3"),
    "deepseek": ("deepseek_r1", "deepseek-r1"),
    "deepseek_v3_1": ("deepseek_v3", "deepseek-v3"),
    "kimi": ("kimi_k2", "kimi_k2"),
    "harmony": ("openai_gptoss", "gpt-oss"),
}


def parser_arguments(engine: str, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Returns the arguments of SGLang or vLLM for the parsers of a target; () for eyas, which chooses by itself."""
    form = ToolFormat(tokenizer)
    if engine == "eyas" or form.family is None:
        return ()
    column = ("vllm", "sglang").index(engine)
    arguments: list[str] = []
    if form.knows_tools and form.family.name in TOOL_PARSERS:
        arguments += ["--enable-auto-tool-choice"] if engine == "vllm" else []
        arguments += [f"--tool-call-parser={TOOL_PARSERS[form.family.name][column]}"]
    if form.reasons and form.family.name in REASONING_PARSERS:
        arguments += [f"--reasoning-parser={REASONING_PARSERS[form.family.name][column]}"]
    return tuple(arguments)
