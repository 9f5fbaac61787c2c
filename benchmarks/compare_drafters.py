"""Compares the shipped head with other drafters on the same engine.

    python benchmarks/compare_drafters.py [--streams 1 8] [--pairs 5] [--minutes 15] [--run DIR] [--answers DIR]

    head             the automatic choice of `eyas serve`, and chains of 3 and 5
    copies           of earlier text, up to 16 tokens, where they pay
    small model      chains of 3 and 5. The model has two layers of the target's width and is trained from random
                     weights on the target's own answers for --minutes minutes of processor time

Every arm answers the same prompts in bfloat16, without compiled forwards, in a closed loop and in rotated order. A
figure is the ratio of output tokens per second to the plain target, median over the pairs, with its interval.

The target is the claim of the post "From research to production: EAGLE-3": the head is faster than the small model,
that is, the interval of their ratio lies above 1. Prints one JSON object for each row and exits 1 if a row misses.

--run names a directory that keeps the small model. --answers names a directory of conversations to train it on, for
example those of the shipped head (recipes/embedded.toml). By default the script generates a smaller set. Progress goes
to stderr. Takes half an hour on one core.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from data_scaling import answer_training_prompts
from gsm8k_target import Example, train
from result_rows import Row, print_rows
from transformers import LlamaConfig, PreTrainedTokenizerFast

from eyas.bench.engine_load import build_auto_engine, build_copy_engine, build_fixed_arm_engine
from eyas.bench.engine_request_loops import EngineBlock, run_closed_loop
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts, run_paired
from eyas.chat.conversation import read_conversation_dir
from eyas.chat.render import render
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.drafters.small_model import SmallModelSpec
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import resolve_head
from eyas.speculation.arms import Arm
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.intervals import median_interval
from eyas.tree.shape import TreeShape, chain_shape

STREAMS, PAIRS, MINUTES = (1, 8), 5, 15.0
CONVERSATIONS, LAYERS = 2000, 2
PROMPTS_PER_TASK, MAX_TOKENS, REQUESTS_PER_STREAM = 12, 96, 4
DTYPE = torch.bfloat16
PLAIN, HEAD, SMALL = "plain", "head", "small model, chain of 3"


def make_small_model(work: Path, answers: Path | None, minutes: float, model: str = EMBEDDED) -> Path:
    """Returns the directory of the small model of a target. Trains it on its answers if the directory has none."""
    place = work / "target"
    if not (place / "made.json").is_file():
        target = Target.load(model)
        source = answer_training_prompts(work, CONVERSATIONS) if answers is None else answers
        rows = [row for one in read_conversation_dir(source) for row in render(one, target.tokenizer)]
        examples = [Example(list(row.ids), [1.0 if taught else 0.0 for taught in row.loss_mask]) for row in rows]
        facts = target.info
        config = LlamaConfig(
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            intermediate_size=2 * facts.hidden_size,
            num_hidden_layers=LAYERS,
            num_attention_heads=facts.num_heads,
            num_key_value_heads=facts.num_kv_heads,
            head_dim=facts.head_dim,
            max_position_embeddings=facts.max_positions,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
        )
        tokenizer = target.tokenizer
        assert isinstance(tokenizer, PreTrainedTokenizerFast), "these targets have fast tokenizers"
        train(examples, config, tokenizer, work, minutes)
    return place


def compare(streams: Sequence[int], pairs: int, small: Path) -> Iterator[Row]:
    """Yields the rows of each number of streams."""
    stored = read_head(resolve_head(EMBEDDED), DTYPE)
    target = Target.load(EMBEDDED, DTYPE, stored.config.aux_layer_ids)
    model = Target.load(small, DTYPE, (0,))
    draft = Eagle3Spec.on(target.model.device, stored, TreeShape(6, 4, 16))
    size = sum(weight.numel() for weight in model.model.parameters())
    told = f"parameters of the small model; head {stored.head.num_parameters:,}, target {target.info.num_parameters:,}"
    yield Row(told, size, "told", True)
    prompts = interleave_tasks(load_eval_prompts(target.tokenizer, PROMPTS_PER_TASK))
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    for n in streams:
        engines = {PLAIN: Engine(target, (), n, context), HEAD: build_auto_engine(target, draft, n, context)}
        for depth in (3, 5):
            arm = Arm(f"chain{depth}", chain_shape(depth))
            engines[f"head, chain of {depth}"] = build_fixed_arm_engine(target, draft, arm, n, context)
            engines[f"small model, chain of {depth}"] = Engine(
                target, [SmallModelSpec(model, chain_shape(depth))], n, context
            )
        engines["copies"] = build_copy_engine(target, n, context)
        yield from _rows(n, _measured(engines, prompts, n, pairs))


def _measured(engines: dict[str, Engine], prompts: list[Prompt], n: int, pairs: int) -> dict[str, list[EngineBlock]]:
    size = n * REQUESTS_PER_STREAM
    blocks = [[prompts[(block * size + i) % len(prompts)] for i in range(size)] for block in range(pairs)]
    for engine in engines.values():
        run_closed_loop(engine, blocks[0][:n], MAX_TOKENS)

    def run(name: str, engine: Engine, block: list[Prompt]) -> EngineBlock:
        print(f"{n} streams: {name}", file=sys.stderr, flush=True)
        return run_closed_loop(engine, block, MAX_TOKENS)

    arms = {name: lambda block, name=name, engine=engine: run(name, engine, block) for name, engine in engines.items()}
    return {name: [once for (once,) in rounds] for name, rounds in run_paired(arms, blocks, 1).items()}


def _rows(n: int, found: dict[str, list[EngineBlock]]) -> Iterator[Row]:
    plain = found.pop(PLAIN)
    for name, blocks in found.items():
        middle, span = median_interval(
            [a.result.output_tps / b.result.output_tps for a, b in zip(blocks, plain, strict=True)], 0
        )
        accepted = acceptance_length(answer.rounds for block in blocks for answer in block.answers)
        told = (
            f"{n} streams, {name}: tokens/s over plain, 95 % {span.low:.2f} to {span.high:.2f}, accepts {accepted:.2f}"
        )
        yield Row(told, round(middle, 3), "told", True)
    ratios = [a.result.output_tps / b.result.output_tps for a, b in zip(found[HEAD], found[SMALL], strict=True)]
    middle, span = median_interval(ratios, 0)
    told = f"{n} streams, the head over the small model, 95 % {span.low:.2f} to {span.high:.2f}"
    yield Row(told, round(middle, 3), "interval above 1", span.low > 1)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--run", type=Path, help="directory for the small model; reused if it exists")
    parser.add_argument("--answers", type=Path, help="directory of conversations to train the small model on")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        small = make_small_model(parsed.run or Path(scratch), parsed.answers, parsed.minutes)
        return print_rows(compare(parsed.streams, parsed.pairs, small))


if __name__ == "__main__":
    sys.exit(main())
