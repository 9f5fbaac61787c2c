"""Trains a target and its head on GSM8K and measures the speed-up on the test questions.

    python benchmarks/gsm8k_benchmark.py DIR [--work WORK] [--minutes N]

DIR holds gsm8k-train.jsonl and gsm8k-test.jsonl (github.com/openai/grade-school-math, MIT). gsm8k_target.py trains a
target of 34 million parameters on the training problems and on Python code for at most N minutes. `eyas run` trains a
head on the target's answers to the training questions. Then both arms answer questions of the test set.

Such a small target writes like GSM8K but calculates wrongly. The measured figure is the speed on text that comes from
no grammar. Looping answers are counted separately, because every drafter predicts them well.

WORK keeps all results, so the same command resumes after an interruption. Prints one JSON object for each row and exits
1 if a row misses its target. Progress goes to stderr. Takes less than three hours on two idle cores.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from gsm8k_target import make_target, read_problems
from result_rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.single_stream import SingleStreamResults, measure_tasks
from eyas.bench.workload import Prompt
from eyas.chat.conversation import parse_messages
from eyas.chat.render import render_prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.tree.intervals import median_interval

DTYPE = torch.bfloat16
MINUTES, MAX_MINUTES = 85.0, 90.0  # of training the target; the limit is for two cores
TASK = "gsm8k-test"
CONFIG = BenchConfig(max_tokens=200, repeats=3)
TEST_PROMPTS = 100
RECIPE = """# Written by benchmarks/gsm8k_benchmark.py: a head for a target that was trained on GSM8K.

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
    """Runs `eyas run` and returns the directory of the head. Raises SystemExit if the run fails."""
    recipe = work / "gsm8k.toml"
    places = {"target": json.dumps(str(target.absolute())), "source": json.dumps(str(source.absolute()))}
    recipe.write_text(RECIPE.format(**places, prompts=prompts, epochs=epochs))
    code = "import sys; from eyas.cli import main; sys.exit(main())"
    run = work / "run"
    done = subprocess.run([sys.executable, "-c", code, "run", str(recipe), "--out", str(run)], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"eyas run {recipe} failed with exit code {done.returncode}.")
    return run / "head"


def answer_test_questions(source: Path, target_dir: Path, head_dir: Path, count: int) -> SingleStreamResults:
    """Answers the first `count` test questions in both arms, without compiled forwards."""
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


def make_rows(stream: SingleStreamResults, minutes: float) -> Iterator[Row]:
    """Yields the rows of the GSM8K test questions."""
    yield Row(
        "GSM8K: minutes the target was trained",
        minutes,
        f"at most {MAX_MINUTES:g} on 2 cores",
        minutes <= MAX_MINUTES,
    )
    yield from _rows_of_good_answers(stream)
    looping = sum(pair.is_looping for pair in stream.pairs[TASK])
    name = f"GSM8K test: looping answers of {len(stream.pairs[TASK])}, counted apart"
    yield Row(name, looping, "told", True)
    if stream.looping is not None:
        length = round(stream.looping["acceptance_length"], 3)
        yield Row("GSM8K test: acceptance length of looping answers", length, "told", True)


def _rows_of_good_answers(stream: SingleStreamResults) -> Iterator[Row]:
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


def gsm8k_benchmark(
    data: Path, work: Path, minutes: float = MINUTES, prompts: int = 3000, epochs: int = 5
) -> Iterator[Row]:
    """Trains target and head, measures, and yields all rows."""
    began_s = time.monotonic()
    target = make_target(data / "gsm8k-train.jsonl", work, minutes)
    made = json.loads((target / "made.json").read_bytes())
    head = make_head(data / "gsm8k-train.jsonl", target, work, prompts, epochs)
    yield from make_rows(answer_test_questions(data / "gsm8k-test.jsonl", target, head, TEST_PROMPTS), made["minutes"])
    print(f"gsm8k: {(time.monotonic() - began_s) / 60:.0f} minutes in this call", file=sys.stderr)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--work", type=Path, default=Path("runs/real_text"))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="minutes of training the target")
    parser.add_argument(
        "--prompts", type=int, default=3000, help="training questions that the target answers for its head"
    )
    parser.add_argument("--epochs", type=int, default=5, help="epochs of training the head")
    parsed = parser.parse_args()
    return print_rows(gsm8k_benchmark(parsed.data, parsed.work, parsed.minutes, parsed.prompts, parsed.epochs))


if __name__ == "__main__":
    sys.exit(main())
