"""Reads tool calls with vLLM's parsers. Runs in the environment of vLLM; `tool_parser_peers.py` calls it.

python parse_vllm.py TOKENIZER < texts > calls    # JSON lines: {"parser", "markers", "tools", "text"} -> calls

TOKENIZER is the directory of any fast tokenizer; the markers become special tokens of it. calls: a list of pairs of
name and arguments. The parser `openai` reads tokens of the gpt-oss vocabulary.
"""

import json
import sys
from functools import cache
from typing import Any

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import (  # pyright: ignore[reportMissingImports]
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding  # pyright: ignore[reportMissingImports]
from vllm.parser import ParserManager  # pyright: ignore[reportMissingImports]


@cache
def load_tokenizer(directory: str, markers: tuple[str, ...]) -> Any:
    """Returns a tokenizer that has the markers as special tokens."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": list(markers)})
    return tokenizer


def read_calls(record: dict[str, Any], directory: str) -> list[tuple[str, str]]:
    """Returns the calls that vLLM reads, as its server does for a whole answer without a reasoning parser."""
    tokenizer = load_tokenizer(directory, tuple(record["markers"]))
    is_harmony = record["parser"] == "openai"
    chosen = ParserManager.get_parser(record["parser"], None, True, "m", is_harmony=is_harmony, tokenizer=tokenizer)
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Go."}], tools=record["tools"], model="m")
    text = record["text"]
    ids = get_encoding().encode(text, allowed_special="all") if is_harmony else tokenizer.encode(text)
    parser = chosen(tokenizer, request.tools)
    _, _, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
    return [(call.name, call.arguments) for call in calls or ()]


def main() -> None:
    for line in sys.stdin:
        try:
            calls = read_calls(json.loads(line), sys.argv[1])
        except Exception as error:  # a parser that fails has read nothing
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            calls = []
        print(json.dumps(calls), flush=True)


if __name__ == "__main__":
    main()
