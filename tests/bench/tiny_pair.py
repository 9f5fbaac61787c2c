"""A random target with a random head, for measurements whose numbers only have to be well-formed."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tests.tiny import tiny_target

from eyas.bench.workload import Prompt
from eyas.chat.conversation import Message
from eyas.chat.render import render_prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape

WORDS = ("a kite", "two owls", "the falcon", "some larks")


@dataclass(frozen=True)
class TinyPair:
    directory: Path
    target: Target
    draft: Eagle3Spec
    prompts: dict[str, list[Prompt]]


def tiny_pair(directory: Path) -> TinyPair:
    """Builds a target of 8 layers in float32, with two tasks of three and two prompts."""
    target = Target.load(tiny_target(directory, layers=8), torch.float32)
    head = Head.init(HeadConfig.for_target(target.info, 64), seed=1).requires_grad_(False)
    vocab = DraftVocab.from_counts(torch.arange(target.info.vocab_size) % 7 + 1, 64, target.info.eos_ids)
    prompts = {
        task: [
            Prompt(f"{task}:{i}", tuple(render_prompt([Message("user", f"{task} {WORDS[i]}")], target.tokenizer)))
            for i in range(count)
        ]
        for task, count in (("birds", 3), ("sums", 2))
    }
    return TinyPair(directory, target, Eagle3Spec(head, vocab, TreeShape(3, 2, 6)), prompts)
