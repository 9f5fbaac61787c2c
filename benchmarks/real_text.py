"""Real text from nothing to an answer: a target and its head on GSM8K, one JSON object a row; exit 1 if one misses.

    python benchmarks/real_text.py DIR [--work WORK] [--minutes N]

DIR holds gsm8k-train.jsonl and gsm8k-test.jsonl (github.com/openai/grade-school-math, MIT). A target of 20 million
parameters learns the training problems for at most N minutes (real_target.py: tokenizer, chat template, weights), `eyas
run` gives it a head on its own answers to the training questions, and both arms answer questions of the test set. Such
a target writes like GSM8K and calculates wrongly; what is measured is speed on text that no grammar made. Answers that
got stuck are counted apart: any drafter is good at them.

Everything stays in WORK and is saved as it goes: stopped at any time, the same command continues. Under three hours on
two idle cores; progress goes to stderr.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from real_target import make_target, read_problems
from rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.single_stream import SingleStreamResults, measure_tasks
from eyas.bench.workload import Prompt
from eyas.chat.conversation import parse_messages
from eyas.chat.render import render_prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.tree.stats import median_interval

DTYPE = torch.bfloat16
MINUTES, MOST_MINUTES = 85.0, 90.0  # of training the target; asked for on two cores
TASK = "gsm8k-test"
CONFIG = BenchConfig(max_tokens=200, repeats=3)
TEST_PROMPTS = 100
RECIPE = """# Written by benchmarks/real_text.py: questions of GSM8K, answered by a target that learnt its answers.

[target]
model = {target}
license = "MIT"

[prompts]
source = {source}
license = "MIT"
task = "gsm8k-train"
limit = {prompts}

[respond]
max_tokens = 200
batch_size = 24

[capture]
held_out = 0.03

[train]
steps = 7
epochs = {epochs}
batch_tokens = 1024
draft_vocab_size = 4096
learning_rate = 3e-3

[bench]
prompts_per_task = 12
concurrency = []
lossless_prompts = 24
"""


def make_head(source: Path, target: Path, work: Path, prompts: int, epochs: int) -> Path:
    """`eyas run` as a user types it; the directory of the head. SystemExit where it fails (it says why)."""
    recipe = work / "gsm8k.toml"
    places = {"target": json.dumps(str(target.absolute())), "source": json.dumps(str(source.absolute()))}
    recipe.write_text(RECIPE.format(**places, prompts=prompts, epochs=epochs))
    code = "import sys; from eyas.cli import main; sys.exit(main())"
    run = work / "run"
    done = subprocess.run([sys.executable, "-c", code, "run", str(recipe), "--out", str(run)], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"eyas run {recipe} ended with {done.returncode}")
    return run / "head"


def answered(source: Path, target_dir: Path, head_dir: Path, count: int) -> SingleStreamResults:
    """The first questions of the test set in both arms, forwards not compiled."""
    stored = read_head(head_dir, DTYPE)
    target = Target.load(target_dir, DTYPE, stored.config.aux_layer_ids)
    require_fit(stored, target.info, target.digest)
    draft = Eagle3Spec(stored.head.pack_projections(), stored.vocab, CONFIG.shape)
    prompts = []
    for number, (question, _) in enumerate(read_problems(source)[:count]):
        name = f"{TASK}:{number}"
        messages = parse_messages([{"role": "user", "content": question}], name)
        prompts.append(Prompt(name, tuple(render_prompt(messages, target.tokenizer))))
    return measure_tasks(target, draft, {TASK: prompts}, CONFIG)


def rows(stream: SingleStreamResults, minutes: float) -> Iterator[Row]:
    """What GSM8K's test set says."""
    yield Row(
        "GSM8K: minutes the target was trained",
        minutes,
        f"at most {MOST_MINUTES:g} on 2 cores",
        minutes <= MOST_MINUTES,
    )
    yield from _good(stream)
    looping = sum(pair.is_looping for pair in stream.pairs[TASK])
    name = f"GSM8K test: looping answers of {len(stream.pairs[TASK])}, counted apart"
    yield Row(name, looping, "told", True)
    if stream.looping is not None:
        length = round(stream.looping["acceptance_length"], 3)
        yield Row("GSM8K test: acceptance length of looping answers", length, "told", True)


def _good(stream: SingleStreamResults) -> Iterator[Row]:
    told = stream.tasks.get(TASK)
    good = [pair for pair in stream.pairs[TASK] if pair.is_timed and not pair.is_looping]
    if told is None or not good:
        yield Row("GSM8K test: answers that neither loop nor have one token", 0, "at least 1", False)
        return
    low, high = told["ci95"]
    name = f"GSM8K test: acceptance length, {len(good)} answers, 95% {low:.2f} to {high:.2f}"
    yield Row(name, round(told["acceptance_length"], 3), "told", True)
    ratios = [(pair.baseline_tpot_ms or 0.0) / (pair.speculative_tpot_ms or 1.0) for pair in good]
    middle, span = median_interval(ratios, CONFIG.seed)
    name = f"GSM8K test: TPOT of the baseline over that with the head, median, 95% {span.low:.2f} to {span.high:.2f}"
    yield Row(name, round(middle, 3), "above 1", middle > 1)
    share = told["uncertain_share"]
    yield Row("GSM8K test: share of positions whose likeliest token has less than 0.9", round(share, 3), "told", True)


def real_text(data: Path, work: Path, minutes: float = MINUTES, prompts: int = 3000, epochs: int = 5) -> Iterator[Row]:
    """All of it."""
    began_s = time.monotonic()
    target = make_target(data / "gsm8k-train.jsonl", work, minutes)
    made = json.loads((target / "made.json").read_bytes())
    head = make_head(data / "gsm8k-train.jsonl", target, work, prompts, epochs)
    yield from rows(answered(data / "gsm8k-test.jsonl", target, head, TEST_PROMPTS), made["minutes"])
    print(f"real text: {(time.monotonic() - began_s) / 60:.0f} minutes in this call", file=sys.stderr)


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--work", type=Path, default=Path("runs/real_text"))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of training the target")
    parser.add_argument("--prompts", type=int, default=3000, help="training questions that it answers for its head")
    parser.add_argument("--epochs", type=int, default=5, help="of training the head")
    parsed = parser.parse_args()
    return print_rows(real_text(parsed.data, parsed.work, parsed.minutes, parsed.prompts, parsed.epochs))


if __name__ == "__main__":
    sys.exit(main())
