"""Trains a target of 34 million parameters on GSM8K, Python code, edits and tool calls, for gsm8k_benchmark.py.

    python benchmarks/gsm8k_target.py SOURCE WORK MINUTES

    WORK/target/        tokenizer, config and weights in Hugging Face format; made.json is written last
    WORK/tokenizer/     the tokenizer, and
    WORK/examples.pt    the tokens of all texts; they are made once, in about four minutes
    WORK/state.pt       the training state, saved every minute; a later call resumes from it

The code is functions with docstrings of installed packages under permissive licences. copied_texts.py makes edits of
these functions, and loops of tool calls. Optimizer, loss and attention come from tools/make_embedded.py, which made
the embedded target.
"""

import argparse
import ast
import importlib.metadata
import json
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from copied_texts import edits, tool_loops
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerFast

from eyas.model.devices import multiplies_bfloat16

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))  # make_embedded.py is a script, not part of the package

VOCAB_SIZE = 8192
SPECIAL = ("<|pad|>", "<|begin|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('role must be user or assistant, not ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
POSITIONS = 1024
QUESTION_WEIGHT = 0.3  # of the loss of a question token; an answer token has 1
TOKENS_PER_STEP = 6_000
PADDED_TOKENS = {"cpu": 2_048, "cuda": 16_384}  # of a batch
SCHEDULE_STEPS = 10_000  # resolution of the learning-rate schedule, which follows time, not updates
SAVE_S = 60.0
LOG_UPDATES = 10
CODE_PACKAGES = ("torch", "transformers", "numpy", "pytest", "pydantic", "httpx", "fsspec", "pyarrow", "schemathesis")
LICENSES = re.compile(r"Apache|BSD|MIT", re.IGNORECASE)
MAX_FUNCTIONS, FUNCTION_CHARS = 6_000, (200, 1_500)
NUM_EDITS, NUM_TOOL_LOOPS, EDIT_CHARS = 3_000, 2_000, 800
TARGET_SEED = 0  # of copied_texts.py; measurements use other seeds
CALCULATION = re.compile(r"<<[^>]*>>")  # calculator annotations of GSM8K, which no user writes


@dataclass(frozen=True)
class Example:
    """One problem as ids, with the loss weight of each token."""

    ids: list[int]
    weights: list[float]


def make_target(source: Path, work: Path, minutes: float) -> Path:
    """Trains the target on all problems of `source`, or resumes, and returns its directory. Raises SystemExit.

    The training runs in a separate process, so that its memory is freed. Large blocks are mapped one by one, because
    batches of varying lengths fragment the heap by gigabytes.
    """
    place = work / "target"
    if not (place / "made.json").is_file():
        command = [sys.executable, __file__, str(source), str(work), str(minutes)]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
        done = subprocess.run(command, stdout=sys.stderr, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"The training of the target failed with exit code {done.returncode}.")
    return place


def main() -> None:
    """Trains the target with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="train.jsonl of GSM8K")
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("minutes", type=float, metavar="MINUTES")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer, examples = make_examples(args.source, args.work)
    train(examples, model_config(), tokenizer, args.work, args.minutes)


def make_examples(source: Path, work: Path) -> tuple[PreTrainedTokenizerFast, list[Example]]:
    """Makes WORK/tokenizer and WORK/examples.pt, or reads what an earlier call made."""
    place = work / "examples.pt"
    if not place.is_file():
        functions = read_functions()
        short = [code for _, code in functions if len(code) <= EDIT_CHARS]
        copied = edits(short, TARGET_SEED, NUM_EDITS) + tool_loops(TARGET_SEED, NUM_TOOL_LOOPS)
        problems = read_problems(source) + functions + copied
        tokenizer = _make_tokenizer(work / "tokenizer", problems)
        texts = [_encode(tokenizer, *problem) for problem in problems]
        ids = torch.tensor([token for asked, told in texts for token in asked + told], dtype=torch.int16)
        sizes = torch.tensor([[len(asked), len(told)] for asked, told in texts])
        torch.save({"ids": ids, "sizes": sizes}, place.with_suffix(".tmp"))
        place.with_suffix(".tmp").replace(place)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    found = torch.load(place, weights_only=True)
    parts = iter(found["ids"].split(found["sizes"].flatten().tolist()))
    return tokenizer, [_make_example(tokenizer, asked.tolist(), next(parts).tolist()) for asked in parts]


def read_problems(path: Path) -> list[tuple[str, str]]:
    """Reads the (question, answer) pairs of a GSM8K file."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(record["question"], CALCULATION.sub("", record["answer"])) for record in records]


def read_functions() -> list[tuple[str, str]]:
    """Reads (request, function) pairs from installed packages, at most MAX_FUNCTIONS, drawn with a fixed seed."""
    pairs: list[tuple[str, str]] = []
    for package in CODE_PACKAGES:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        told = [found.metadata.get_all(name) or [] for name in ("License-Expression", "License", "Classifier")]
        terms = [term[:200] for terms in told for term in terms if not term.startswith(("Topic", "Programming"))]
        if LICENSES.search(" ".join(terms)):
            files = sorted(file for file in found.files or () if file.suffix == ".py" and "test" not in str(file))
            pairs += [pair for file in files for pair in _functions_of(Path(str(file.locate())))]
    random.Random(0).shuffle(pairs)
    return pairs[:MAX_FUNCTIONS]


def _functions_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (request, source) of the functions of a file that have a docstring."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not (told := ast.get_docstring(node)):
            continue
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if FUNCTION_CHARS[0] <= len(source) <= FUNCTION_CHARS[1]:
            purpose = told.partition("\n\n")[0].replace("\n", " ")
            yield f"Write a Python function {node.name}: {purpose}", source


def _make_tokenizer(place: Path, problems: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer with single digits. The result is deterministic."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for problem in problems for text in problem), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(place)
    return fast


def _encode(tokenizer: PreTrainedTokenizerFast, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Encodes the texts of a problem."""
    asked, told = (tokenizer.encode(text, add_special_tokens=False) for text in (question, answer))
    return asked, told


def _make_example(tokenizer: PreTrainedTokenizerFast, asked: list[int], told: list[int]) -> Example:
    """Joins a problem like the chat template. Role tokens have no loss; the end token of the answer has one."""
    begin, user, assistant, end = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL[1:])
    ids = [begin, user, *asked, end, assistant, *told, end]
    return Example(ids, [0.0, 0.0, *[QUESTION_WEIGHT] * len(asked), 0.0, 0.0, *[1.0] * (len(told) + 1)])


def model_config() -> LlamaConfig:
    """Returns the shape: 10 layers of width 512, 34 million parameters."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<|pad|>"),
        bos_token_id=SPECIAL.index("<|begin|>"),
        eos_token_id=SPECIAL.index("<|end|>"),
        rms_norm_eps=1e-5,
    )


def _iterate_updates(examples: Sequence[Example], first: int) -> Iterator[list[Example]]:
    """Yields updates of TOKENS_PER_STEP tokens from update `first` on, without end. Each epoch is shuffled."""
    number = epoch = 0
    while True:
        order = list(examples)
        random.Random(epoch).shuffle(order)
        update: list[Example] = []
        for example in order:
            update.append(example)
            if sum(len(one.ids) for one in update) >= TOKENS_PER_STEP:
                if number >= first:
                    yield update
                number, update = number + 1, []
        epoch += 1


def _iterate_batches(update: Sequence[Example], padded_tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (ids, weights) of [rows, tokens], batched by length, with at most `padded_tokens` tokens."""
    group: list[Example] = []
    for example in sorted(update, key=lambda one: len(one.ids)):
        if group and (len(group) + 1) * len(example.ids) > padded_tokens:
            yield _pad(group)
            group = []
        group.append(example)
    yield _pad(group)


def _pad(group: Sequence[Example]) -> tuple[Tensor, Tensor]:
    width = len(group[-1].ids)
    rows = [(one.ids + [0] * (width - len(one.ids)), one.weights + [0.0] * (width - len(one.ids))) for one in group]
    return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])


def train(
    examples: Sequence[Example],
    config: LlamaConfig,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    minutes: float,
) -> None:
    """Trains a model of this shape for `minutes`, including earlier calls, and writes it to WORK/target.

    On a CPU the minutes are processor time divided by threads, so that other work on the machine does not make a worse
    target. If there is a CUDA device, it trains there, and they are minutes of the clock. The learning-rate schedule
    follows this time, so a slow machine trains on fewer problems but completes the schedule.
    """
    from make_embedded import Masters, Plan, batch_loss, new_model

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = new_model(config, torch.bfloat16 if multiplies_bfloat16(device) else torch.float32).to(device)
    print(f"model: {sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} M parameters", file=sys.stderr)
    masters = Masters(model, Plan(steps=SCHEDULE_STEPS, warmup_steps=SCHEDULE_STEPS // 30))
    number, spent_s = _resume(work / "state.pt", masters)
    budget_s, saved_s, seen = 60 * minutes, spent_s, 0
    clock_s = time.perf_counter if device.type == "cuda" else lambda: time.process_time() / torch.get_num_threads()
    began_s, before_s = clock_s(), spent_s
    losses: list[Tensor] = []
    for update in _iterate_updates(examples, number):
        if spent_s >= budget_s:
            break
        batches = list(_iterate_batches(update, PADDED_TOKENS[device.type]))
        weight = sum(float(weights[:, 1:].sum()) for _, weights in batches)
        losses.append(torch.zeros((), device=device))
        for ids, weights in batches:
            part = batch_loss(model, ids.to(device), weights.to(device)) / weight
            part.backward()
            losses[-1] += part.detach()
        masters.step(int(SCHEDULE_STEPS * spent_s / budget_s))
        number, seen = number + 1, seen + sum(len(one.ids) for one in update)
        spent_s = before_s + clock_s() - began_s
        if number % LOG_UPDATES == 0:
            rate, loss = seen / (spent_s - before_s), torch.stack(losses[-LOG_UPDATES:]).mean().item()
            left = (budget_s - spent_s) / 60
            told = f"model: update {number}, loss {loss:.3f}, {rate:.0f} tokens/s, {left:.0f} min left"
            print(told, file=sys.stderr, flush=True)
        if spent_s - saved_s >= SAVE_S:
            _save(work / "state.pt", masters, number, spent_s)
            saved_s = spent_s
    _publish(
        model,
        tokenizer,
        work,
        {"updates": number, "minutes": round(spent_s / 60, 1), "loss": [loss.item() for loss in losses[-1:]]},
    )


def _resume(state_file: Path, masters: Any) -> tuple[int, float]:
    """Restores the state of earlier calls and returns their updates and seconds."""
    if not state_file.exists():
        return 0, 0.0
    state = torch.load(state_file, weights_only=True)
    for name, copy in masters.copies.items():
        copy.data.copy_(state["weights"][name])
        masters.weights[name].data.copy_(copy.data)
    for optimizer, saved in zip(masters.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["updates"], state["spent_s"]


def _save(state_file: Path, masters: Any, updates: int, spent_s: float) -> None:
    state = {"updates": updates, "spent_s": spent_s}
    state["weights"] = {name: copy.data for name, copy in masters.copies.items()}
    state["optimizers"] = [optimizer.state_dict() for optimizer in masters.optimizers]
    torch.save(state, state_file.with_suffix(".tmp"))
    state_file.with_suffix(".tmp").replace(state_file)


def _publish(model: Any, tokenizer: PreTrainedTokenizerFast, work: Path, made: dict[str, Any]) -> None:
    """Writes the directory of the target. made.json comes last and marks it as finished."""
    place = work / "target"
    shutil.rmtree(place, ignore_errors=True)
    model.cpu().bfloat16().save_pretrained(place)
    tokenizer.save_pretrained(place)
    (place / "made.tmp").write_text(json.dumps(made) + "\n")
    (place / "made.tmp").replace(place / "made.json")
    (work / "state.pt").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
