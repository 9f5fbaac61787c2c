"""Runs llama.cpp's converter on a target whose tokenizer it does not know.

    python to_gguf.py LLAMACPP_SOURCE CONVERTER_OPTION ...

An unknown tokenizer gets the type "default".
"""
# pyright: reportMissingImports=false

import sys
from pathlib import Path
from typing import Any

source = Path(sys.argv.pop(1))
sys.path[:0] = [str(source), str(source / "gguf-py")]

import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402


def main() -> None:
    find_pre_tokenizer = TextModel.get_vocab_base_pre

    def find_or_default(model: TextModel, tokenizer: Any) -> str:
        try:
            return find_pre_tokenizer(model, tokenizer)
        except NotImplementedError:  # compare_peers.py sends token ids, so the type does not matter there
            print("warning: unknown tokenizer; llama.cpp may split text into other tokens", file=sys.stderr)
            return "default"

    TextModel.get_vocab_base_pre = find_or_default
    TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2  # the original method needs another package
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
