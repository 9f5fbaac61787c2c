"""Runs llama.cpp's converter on a target whose tokenizer it does not know.

    python to_gguf.py LLAMACPP_SOURCE CONVERTER_OPTION ...

Peers receive token ids, so any tokenizer type works.
"""
# pyright: reportMissingImports=false

import sys
from pathlib import Path

source = Path(sys.argv.pop(1))
sys.path[:0] = [str(source), str(source / "gguf-py")]

import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402


def main() -> None:
    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: "default"
    TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2  # the original method needs another package
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
