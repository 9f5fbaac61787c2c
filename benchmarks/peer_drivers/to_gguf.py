"""llama.cpp's own converter, for a target whose tokenizer it does not know: peers are handed ids, so any will do.

python to_gguf.py SOURCE_OF_LLAMACPP OPTIONS_OF_CONVERT_HF_TO_GGUF...
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
    TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2  # the other way asks for one more package
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
