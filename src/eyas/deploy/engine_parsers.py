"""Chooses the parsers of tool calls and of reasoning with which SGLang and vLLM start, from a target's chat template.

Both engines return tool calls as plain text if they are started without. `engine_parsers.toml` has the names.
"""

import tomllib
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from eyas.chat.tool_format import ToolFormat

PARSERS = Path(__file__).with_suffix(".toml")


def parser_arguments(engine: str, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Returns the arguments of SGLang or vLLM for the parsers of a target; () for eyas, which chooses by itself."""
    form, known = ToolFormat(tokenizer), tomllib.loads(PARSERS.read_text(encoding="utf-8")).get(engine, {})
    has = {"tool-call": form.knows_tools, "reasoning": form.family is not None and form.reasons}
    names = {kind: parsers.get(getattr(form.family, "name", None)) for kind, parsers in known.items() if has[kind]}
    arguments = [f"--{kind}-parser={name}" for kind, name in names.items() if name is not None]
    is_switched = engine == "vllm" and names.get("tool-call") is not None
    return tuple(["--enable-auto-tool-choice", *arguments] if is_switched else arguments)
