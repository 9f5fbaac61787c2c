"""Writes the reference answers of the lossless check: greedy answers of transformers to the evaluation prompts.

    python tools/make_references.py [--target embedded] [--count 200] [--tokens 128] [--out FILE]

transformers answers in float32, one unpadded prompt at a time. The file contains the target's digest, so run this
script again after a change of the target. Takes minutes for the embedded target.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import transformers
from transformers import AutoTokenizer

from eyas.base.storage import write_atomic
from eyas.bench.lossless_check import References, generate_references
from eyas.bench.workload import interleave_tasks, load_eval_prompts
from eyas.evalsets import FAMILIES
from eyas.model.target_dir import EMBEDDED, resolve_target

OUT = Path(__file__).parents[1] / "src" / "eyas" / "embedded" / "references.json"


def write_references(path: Path, references: References) -> None:
    """Writes compact JSON on one line, atomically."""
    write_atomic(path, json.dumps(asdict(references), separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--count", type=int, default=200, help="number of prompts; the families take turns")
    parser.add_argument("--tokens", type=int, default=128, help="limit of an answer")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(resolve_target(arguments.target), local_files_only=True)
    per_family = -(-arguments.count // len(FAMILIES))
    prompts = interleave_tasks(load_eval_prompts(tokenizer, per_family))[: arguments.count]
    write_references(arguments.out, generate_references(arguments.target, prompts, arguments.tokens))


if __name__ == "__main__":
    main()
