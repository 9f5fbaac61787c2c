"""Measures the recommendations of the post "From research to production: EAGLE-3", each with and without.

    python benchmarks/training_ablations.py [--conversations N] [--updates U] [--run DIR]

    the target's own answers     against answers of the grammar to the same prompts
    the chat template            against roles and texts without a template
    no loss on the prompt        against a loss on prompt and answer
    a tree                       against a chain of the same depth, with the same head
    overlap on                   against off: tokens per second of the shipped pair

All heads start from the same random weights and get the same number of updates with the same number of supervised
tokens. Only the data differs. All are measured on the same answers of the target to prompts of the evaluation split, in
the target's template, as in serving.

The figure is the ratio of the acceptance lengths. On equal answers this is the inverse ratio of the rounds. Its
interval is a paired bootstrap over answers. A row meets its target if the interval lies above 1. Prints one JSON object
for each row and exits 1 if a row misses its target. --run names a directory that keeps all results. Progress goes to
stderr. Takes twenty minutes on one core.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import overlap_speed
import torch
from data_scaling import CAPTURE, TRAIN, answer_training_prompts
from features_quantized import answer_eval_prompts
from result_rows import Row, print_rows

from eyas.base.provenance import StageInputs, finish_stage, is_finished
from eyas.chat.conversation import Conversation, Message, Turn, parse_messages, read_conversation_dir
from eyas.chat.render import render
from eyas.evalsets import example
from eyas.evaluation.evaluate import EvalConfig
from eyas.evaluation.replay import HeldOutRows
from eyas.features import capture
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.train import train as loop
from eyas.tree.acceptance_length import RequestRounds, acceptance_length
from eyas.tree.intervals import median_interval, ratio_interval
from eyas.tree.shape import TreeShape, chain_shape

CONVERSATIONS, UPDATES, HELD_OUT = 160, 240, 112
EVAL = EvalConfig()
STREAMS, PAIRS = 8, 7
# A template of someone who does not use the chat template, and a template that renders only the supervised answers.
RAW = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
BARE = "{{ bos_token }}{% for m in messages if m['role'] == 'assistant' %}{{ m['content'] }}{% endfor %}"
Change = Callable[[Conversation, Target], Conversation]


def use_grammar_answers(conversation: Conversation, target: Target) -> Conversation:
    """Replaces the target's answers with those of the grammar to the same prompt."""
    name, _, index = conversation.id.partition(":")
    written = example(name.removeprefix("train-"), "train", int(index))
    return replace(conversation, messages=parse_messages(written.messages, conversation.id), turns=())


def supervise_prompts(conversation: Conversation, target: Target) -> Conversation:
    """Makes all tokens but the first supervised: they become one answer to a prompt that BARE does not render."""
    (row,) = render(conversation, target.tokenizer)
    turn = Turn(tuple(row.ids[1:]), (True,) * (len(row.ids) - 1), "stop")
    messages = (Message("user", "-"), Message("assistant", "-"))
    return replace(conversation, messages=messages, turns=(turn,))


def write_changed(source: Path, place: Path, change: Change, target: Target) -> Path:
    """Applies `change` to each conversation, writes a finished directory and returns it."""
    origin = StageInputs("respond", f"changed by {change.__name__}", {})
    if not is_finished(place, origin):
        place.mkdir(parents=True, exist_ok=True)
        lines = [change(one, target).to_line() for one in read_conversation_dir(source)]
        (place / "part-00000.jsonl").write_bytes(b"".join(lines))
        finish_stage(place, origin, time.time())
    return place


def train_head(conversations: Path, work: Path, template: str | None, updates: int) -> Path:
    """Trains a head on these conversations, rendered with `template` (None: the target's own), and returns it."""
    target = Target.load(EMBEDDED)
    if template is not None:
        target.tokenizer.chat_template = template
    capture.run(CAPTURE, conversations, target, work / "features")
    config = dataclasses.replace(TRAIN, updates=updates)
    loop.run(config, work / "features", target, work / "head")
    return work / "head"


def replay_rounds(head: Path, held_out: Features, target: Target, shape: TreeShape) -> list[RequestRounds]:
    """Replays each held-out answer that does not repeat itself and returns the rounds."""
    stored = read_head(head, torch.float32)
    rows = held_out.manifest.rows
    indices = tuple(i for i in held_out.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0)
    texts = HeldOutRows(held_out, indices, target, shape, EVAL.batch_tokens)
    return texts.replay(stored.head, stored.vocab)


def gain_row(name: str, with_it: list[RequestRounds], without: list[RequestRounds]) -> Row:
    """Returns the row of the gain in acceptance length."""
    more, fewer = (np.array([len(one.accepted) for one in some]) for some in (without, with_it))
    span = ratio_interval(more, fewer, EVAL.seed)
    lengths = f"{acceptance_length(without):.2f} -> {acceptance_length(with_it):.2f}"
    told = f"{name}: {lengths}, 95 % {span.low:.3f} to {span.high:.3f}"
    return Row(told, round(float(more.sum() / fewer.sum()), 4), "interval above 1", span.low > 1)


def training_ablations(count: int, updates: int, work: Path) -> Iterator[Row]:
    """Yields all rows."""
    target = Target.load(EMBEDDED)
    own = answer_training_prompts(work, count)
    run = answer_eval_prompts(work / "held-out", HELD_OUT)
    capture.run(replace(CAPTURE, held_out=1.0), run.directory("respond"), target, work / "held-out-features")
    held_out = Features(work / "held-out-features")
    others = write_changed(own, work / "foreign-answers", use_grammar_answers, target)
    prompts = write_changed(own, work / "prompts-taught", supervise_prompts, target)
    heads = {
        "reference": train_head(own, work / "right", None, updates),
        "own": train_head(others, work / "foreign", None, updates),
        "template": train_head(own, work / "raw", RAW, updates),
        "masked": train_head(prompts, work / "unmasked", BARE, updates),
    }
    found = {name: replay_rounds(head, held_out, target, EVAL.shape) for name, head in heads.items()}
    right = found["reference"]
    yield gain_row("the target's own answers over the grammar's", right, found["own"])
    yield gain_row("the chat template over raw concatenation", right, found["template"])
    yield gain_row("the prompt masked over trained on", right, found["masked"])
    depth = EVAL.depth
    straight = replay_rounds(heads["reference"], held_out, target, chain_shape(depth))
    yield gain_row(f"a tree of {EVAL.nodes} nodes over a chain, both {depth} deep", right, straight)
    ((row, gains),) = overlap_speed.compare([STREAMS], PAIRS, torch.bfloat16)
    middle, span = median_interval(gains, 0)
    told = f"{row['name']}, 95 % {span.low:.3f} to {span.high:.3f}"
    yield Row(told, round(middle, 4), "interval above 1", span.low > 1)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--run", type=Path, help="directory for all results; reused if they exist")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return print_rows(training_ablations(parsed.conversations, parsed.updates, parsed.run or Path(scratch)))


if __name__ == "__main__":
    sys.exit(main())
