"""Renders tool calls with mistral-common. Runs in the environment of the clients; `tool_calls.py` calls it.

python render_mistral.py < cases > texts        # JSON lines: {"tools", "calls"} -> {"v3": text, "v7": text, ...}
"""

import json
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest  # pyright: ignore[reportMissingImports]
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, SpecialTokens  # pyright: ignore[reportMissingImports]
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer  # pyright: ignore[reportMissingImports]

VOCABULARY = "data/tekken_240911.json"


def load_newer(version: str) -> Any:
    """Returns a tokenizer of a version whose file mistral-common does not have: the vocabulary of an older one."""
    content = json.loads((files("mistral_common") / VOCABULARY).read_text(encoding="utf-8"))
    content["config"]["version"] = version
    content["special_tokens"] = [
        {"rank": rank, "token_str": token.value, "is_control": True} for rank, token in enumerate(SpecialTokens)
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tekken.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return MistralTokenizer.from_file(path)


def render(tokenizer: Any, case: dict[str, Any]) -> str:
    """Returns what the model writes: the text between the question and the end of the answer."""
    calls, results = [], []
    for number, (name, arguments) in enumerate(case["calls"]):
        identity = f"call{number:05}"
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls.append({"id": identity, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": identity, "name": name, "content": "0"})
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = [{"role": "user", "content": "Go."}, answer, *results]
    request = ChatCompletionRequest.from_openai(messages=messages, tools=case["tools"])
    ids = tokenizer.encode_chat_completion(request).tokens
    text = tokenizer.instruct_tokenizer.tokenizer.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP)
    return text.partition("[/INST]")[2].partition("</s>")[0].replace("\u2581", " ")  # SentencePiece's space


def main() -> None:
    tokenizers = {"v3": MistralTokenizer.v3(), "v7": MistralTokenizer.v7()}
    tokenizers |= {version: load_newer(version) for version in ("v11", "v13")}
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps({name: render(tokenizer, case) for name, tokenizer in tokenizers.items()}), flush=True)


if __name__ == "__main__":
    main()
