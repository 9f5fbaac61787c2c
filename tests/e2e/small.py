"""A recipe whose every stage takes less than a second, and what it leaves behind."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from eyas.cli import main

STAGES = ("prompts", "respond", "capture", "train", "eval")  # those that end with equal bytes
DIRECTORIES = dict(zip(STAGES, ("prompts", "conversations", "features", "head", "eval"), strict=True))
TIMES = ("versions", "command", "started", "seconds")  # of provenance.json; all else is equal in equal runs
ERROR = re.compile(r"eyas: (misfit|error): (?!found ).+[.?]")


def write_prompts(path: Path, count: int = 24) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"what is {i} plus {3 * i}?"}) + "\n" for i in range(count)))
    return path


def write_recipe(path: Path, target: Path, source: Path) -> Path:
    """float32 throughout, so that runs may be compared byte by byte."""
    path.write_text(f"""
        [target]
        model = "{target}"
        dtype = "float32"
        license = "Apache-2.0"
        [prompts]
        source = "{source}"
        license = "MIT"
        [respond]
        max_tokens = 24
        batch_size = 4
        part_size = 8
        [capture]
        dtype = "float32"
        aux_layer_ids = [1, 2, 3]
        held_out = 0.3
        shard_bytes = 200000
        [train]
        steps = 3
        epochs = 2
        draft_vocab_size = 200
        batch_tokens = 64
        dtype = "float32"
        stored_dtype = "float32"
        [eval]
        depth = 3
        top_k = 2
        nodes = 6
        [bench]
        prompts_per_task = 2
        max_tokens = 8
        repeats = 1
        concurrency = [1, 2]
        requests_per_stream = 1
        depth = 3
        top_k = 2
        nodes = 6
        lossless_prompts = 2
        lossless_tokens = 8
    """)
    return path


def run_stages(recipe: Path, out: Path, stages: Sequence[str] = STAGES, *overrides: str) -> Path:
    for stage in stages:
        assert main([stage, str(recipe), "--out", str(out), *overrides]) == 0, stage
    return out


def contents(directory: Path) -> dict[str, object]:
    """Every file below; of provenance.json what equal runs share."""
    found: dict[str, object] = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = path.relative_to(directory).as_posix()
        if path.name == "provenance.json":
            found[name] = {key: value for key, value in json.loads(path.read_bytes()).items() if key not in TIMES}
        else:
            found[name] = path.read_bytes()
    return found
