"""The lessons of "From research to production: EAGLE-3", with and without; a JSON object a row, exit 1 if one misses.

    python benchmarks/lessons.py [--conversations N] [--updates U] [--run DIR]

    the target's own answers     against those that the grammar wrote to the same prompts
    the chat template            against roles and texts put behind each other
    the prompt out of the loss   against a loss on prompts, too
    a tree                       against a chain of the same depth, the same head
    overlap on                   against off, tokens per second of the shipped pair

Heads start from the same random weights and make the same number of updates of the same size, so they see as many
supervised tokens; what differs is the data. All are measured on the same answers of the target to prompts of the
evaluation split, in the target's template, as serving sees them. The figure is the ratio of acceptance lengths, which
on the same answers is that of rounds, inverted; its interval is a paired bootstrap over answers. A lesson holds where
the interval lies above 1. --run keeps everything there. Progress goes to stderr; twenty minutes on one core.
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
import overlap
import torch
from data_scaling import CAPTURE, TRAIN, conversations_of
from features_quantized import answers
from rows import Row, print_rows

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
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.stats import RequestRounds, acceptance_length, median_interval, ratio_interval

CONVERSATIONS, UPDATES, HELD_OUT = 160, 240, 112
EVAL = EvalConfig()
STREAMS, PAIRS = 8, 7
# What one writes who has no template at hand; and one that shows nothing but what is taught.
RAW = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
BARE = "{{ bos_token }}{% for m in messages if m['role'] == 'assistant' %}{{ m['content'] }}{% endfor %}"
Change = Callable[[Conversation, Target], Conversation]


def foreign(conversation: Conversation, target: Target) -> Conversation:
    """The same prompt with the grammar's answers instead of the target's."""
    name, _, index = conversation.id.partition(":")
    written = example(name.removeprefix("train-"), "train", int(index))
    return replace(conversation, messages=parse_messages(written.messages, conversation.id), turns=())


def with_prompts(conversation: Conversation, target: Target) -> Conversation:
    """All tokens but the first are taught: one long answer behind a prompt of which BARE shows nothing."""
    (row,) = render(conversation, target.tokenizer)
    turn = Turn(tuple(row.ids[1:]), (True,) * (len(row.ids) - 1), "stop")
    messages = (Message("user", "-"), Message("assistant", "-"))
    return replace(conversation, messages=messages, turns=(turn,))


def changed(source: Path, place: Path, change: Change, target: Target) -> Path:
    """A finished directory of these conversations, each changed."""
    origin = StageInputs("respond", f"changed by {change.__name__}", {})
    if not is_finished(place, origin):
        place.mkdir(parents=True, exist_ok=True)
        lines = [change(one, target).to_line() for one in read_conversation_dir(source)]
        (place / "part-00000.jsonl").write_bytes(b"".join(lines))
        finish_stage(place, origin, time.time())
    return place


def head_from(conversations: Path, work: Path, template: str | None, updates: int) -> Path:
    """A head trained on these conversations, rendered with that template (None: the target's own)."""
    target = Target.load(EMBEDDED)
    if template is not None:
        target.tokenizer.chat_template = template
    capture.run(CAPTURE, conversations, target, work / "features")
    config = dataclasses.replace(TRAIN, updates=updates)
    loop.run(config, work / "features", target, work / "head")
    return work / "head"


def rounds_of(head: Path, held_out: Features, target: Target, shape: TreeShape) -> list[RequestRounds]:
    """Of each held-out answer that does not loop."""
    stored = read_head(head, torch.float32)
    rows = held_out.manifest.rows
    indices = tuple(i for i in held_out.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0)
    texts = HeldOutRows(held_out, indices, target, shape, EVAL.batch_tokens)
    return texts.replay(stored.head, stored.vocab)


def lesson(name: str, with_it: list[RequestRounds], without: list[RequestRounds]) -> Row:
    """The gain in acceptance length."""
    more, fewer = (np.array([len(one.accepted) for one in some]) for some in (without, with_it))
    span = ratio_interval(more, fewer, EVAL.seed)
    lengths = f"{acceptance_length(without):.2f} -> {acceptance_length(with_it):.2f}"
    told = f"{name}: {lengths}, 95 % {span.low:.3f} to {span.high:.3f}"
    return Row(told, round(float(more.sum() / fewer.sum()), 4), "interval above 1", span.low > 1)


def lessons(count: int, updates: int, work: Path) -> Iterator[Row]:
    """All rows."""
    target = Target.load(EMBEDDED)
    own = conversations_of(work, count)
    run = answers(work / "held-out", HELD_OUT)
    capture.run(replace(CAPTURE, held_out=1.0), run.directory("respond"), target, work / "held-out-features")
    held_out = Features(work / "held-out-features")
    others = changed(own, work / "foreign-answers", foreign, target)
    prompts = changed(own, work / "prompts-taught", with_prompts, target)
    heads = {
        "as it should be": head_from(own, work / "right", None, updates),
        "own": head_from(others, work / "foreign", None, updates),
        "template": head_from(own, work / "raw", RAW, updates),
        "masked": head_from(prompts, work / "unmasked", BARE, updates),
    }
    found = {name: rounds_of(head, held_out, target, EVAL.shape) for name, head in heads.items()}
    right = found["as it should be"]
    yield lesson("the target's own answers over the grammar's", right, found["own"])
    yield lesson("the chat template over raw concatenation", right, found["template"])
    yield lesson("the prompt masked over trained on", right, found["masked"])
    depth = EVAL.depth
    straight = rounds_of(heads["as it should be"], held_out, target, chain_shape(depth))
    yield lesson(f"a tree of {EVAL.nodes} nodes over a chain, both {depth} deep", right, straight)
    ((row, gains),) = overlap.compare([STREAMS], PAIRS, torch.bfloat16)
    middle, span = median_interval(gains, 0)
    told = f"{row['name']}, 95 % {span.low:.3f} to {span.high:.3f}"
    yield Row(told, round(middle, 4), "interval above 1", span.low > 1)


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--run", type=Path, help="a directory that keeps everything")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return print_rows(lessons(parsed.conversations, parsed.updates, parsed.run or Path(scratch)))


if __name__ == "__main__":
    sys.exit(main())
