"""Checks that the embedded target is good enough to measure speculation with. Prints one JSON object for each figure.

    python tools/check_embedded.py [--target DIR] [--examples 30]

    perplexity of the held-out reference answers
    share of greedy positions that are uncertain (top-1 probability below 0.9)
    share of greedy answers that end with an end token
    number of training conversations that contain an evaluation answer, from the reference or from the target

Exits 1 if a figure misses its target.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from make_embedded import Evaluation, Text, example_messages, perplexities
from transformers import AutoTokenizer, LlamaForCausalLM

from eyas.chat.conversation import parse_messages
from eyas.chat.render import render_prompt
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.evalsets import FAMILIES, example
from eyas.model.attention import DenseAttention
from eyas.model.target import Target

MAX_TOKENS = 320
CERTAIN = 0.9


@dataclass
class Greedy:
    """The target's greedy answers of one family."""

    texts: list[str] = field(default_factory=list)
    ended: int = 0
    positions: int = 0
    uncertain: int = 0


def greedy_answers(target: Target, family: str, examples: int) -> Greedy:
    """Answers the first `examples` evaluation prompts of a family and counts the uncertain positions."""
    prompts = {}
    for index in range(examples):
        one = example(family, "eval", index)
        prompts[one.id] = tuple(render_prompt(parse_messages(one.prompt, one.id), target.tokenizer))
    engine = Engine(target, (), 8, max(len(ids) for ids in prompts.values()) + MAX_TOKENS)
    result = Greedy()
    for answer in plain_loop(engine, RequestList(Request(name, ids, MAX_TOKENS) for name, ids in prompts.items())):
        result.texts.append(str(target.tokenizer.decode(answer.token_ids, skip_special_tokens=True)))
        result.ended += answer.finish_reason == "stop"
        top1_T = top1_probabilities(target, answer)
        result.positions += len(top1_T)
        result.uncertain += int((top1_T < CERTAIN).sum())
    return result


@torch.inference_mode()
def top1_probabilities(target: Target, answer: RequestOutput) -> torch.Tensor:
    """Returns the highest probability at each token of an answer."""
    ids_1T = torch.tensor([[*answer.request.prompt_ids, *answer.token_ids]])
    positions_1T = torch.arange(ids_1T.shape[1])[None]
    hidden_TD = target.forward(ids_1T, positions_1T, DenseAttention()).hidden_BTD[0]
    start = len(answer.request.prompt_ids) - 1
    return target.logits(hidden_TD[start:-1]).float().softmax(-1).amax(-1)


def count_contaminated(documents: int, text: Text, answers: Evaluation) -> int:
    """Counts the training conversations that contain one of these answers, in both lengths that training may use."""
    return sum(
        any(text.row(index, long) and answers.occurs_in(example_messages(index, long)) for long in (False, True))
        for index in range(documents)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path("src/eyas/embedded/target"))
    parser.add_argument("--examples", type=int, default=30)
    arguments = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    text = Text(AutoTokenizer.from_pretrained(arguments.target), Evaluation())
    target = Target.load(arguments.target, torch.float32)
    rows: list[tuple[str, float, str, bool]] = []
    for family, perplexity in perplexities(model, text, arguments.examples).items():
        rows.append((f"perplexity of held-out answers, {family}", perplexity, "1.3 to 4", 1.3 <= perplexity <= 4))
    found = {family: greedy_answers(target, family, arguments.examples) for family in FAMILIES}
    uncertain = sum(one.uncertain for one in found.values()) / sum(one.positions for one in found.values())
    rows.append(("share of greedy positions with top-1 below 0.9", uncertain, "at least 0.2", uncertain >= 0.2))
    ended = sum(one.ended for one in found.values()) / (arguments.examples * len(FAMILIES))
    rows.append(("share of greedy answers that end by themselves", ended, "at least 0.95", ended >= 0.95))
    answers = Evaluation()
    for one in found.values():
        for said in one.texts:
            answers.add(said)
    documents = json.loads((arguments.target / "made.json").read_text())["documents"]
    count = count_contaminated(documents, text, answers)
    rows.append(("training conversations that hold an evaluation answer", count, "0", count == 0))
    for name, figure, wanted, ok in rows:
        print(json.dumps({"name": name, "figure": round(figure, 4), "target": wanted, "ok": ok}))
    return 0 if all(ok for *_, ok in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
