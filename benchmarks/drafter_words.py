"""Compares the greedy answers of every drafter with those of plain decoding. `prove_drafters.py` calls it.

All models run in float32. The reference is transformers' own `generate`, which shares no kernel with the engine. Each
drafter runs with its arms one after the other and drafts for some requests only, and each head also with the budget
`auto`; both in the plain and in the overlap loop. The first run of a drafter starts from an empty prefix cache, and the
later ones find all prompts there. The note of a row has the acceptance length: above 1, so that accepted drafts were
compared.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from engine_checks import check_engine
from equal_answers import LOOPS, Answers, ArmsInTurn, Comparison, generate_answers
from result_rows import Row

from eyas.bench.lossless_check import load_reference_model
from eyas.bench.workload import Prompt
from eyas.drafters.drafter import DrafterSpec
from eyas.drafters.head_spec import HeadSpec
from eyas.drafters.heads import draft_with
from eyas.drafters.small_model import SmallModelSpec
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import resolve_target
from eyas.speculation.arms import OFF, Arm, default_arms
from eyas.speculation.batch_load import BatchLoad, FixedArm, Policy, SpeculationDecision
from eyas.speculation.copy_index import COPY, CopyFinder
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.shape import TreeShape, chain_shape

SLOTS = 16
CHAINS = (OFF, Arm("chain2", chain_shape(2)), Arm("chain5", chain_shape(5)))  # of drafters without a head
LARGEST = TreeShape(8, 4, 32)


class AllCopies(FixedArm):
    """A policy that verifies every copy that is proposed, and drafts nothing else."""

    def __init__(self) -> None:
        super().__init__(OFF)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision to verify all copies."""
        plain = super().decide(load)
        return replace(plain, arm=COPY, copies="alone", predicted_s=1.0) if any(load.copies) else plain


def load_specs(target: Target, heads: Mapping[str, Path], small: Path | None) -> dict[str, DrafterSpec]:
    """Returns the drafters by name, in float32. heads: the directories of heads by name. small: a small model."""
    specs: dict[str, DrafterSpec] = {}
    for name, directory in heads.items():
        stored = read_head(directory, torch.float32)
        spec = draft_with(target.model.device, stored, LARGEST)
        specs[f"{name} head"] = replace(spec, arms=default_arms(stored.config.max_depth))
    if small is not None:
        specs["small model"] = SmallModelSpec(Target.load(small, torch.float32, (0,)), chain_shape(5))
    return specs


def list_policies(spec: DrafterSpec, engine: Engine, with_auto: bool) -> dict[str, Callable[[], Policy]]:
    """Returns the policies of a drafter by name, as functions. Every loop gets a new one."""
    if not isinstance(spec, HeadSpec):
        return {"chains in turn, some requests draft": lambda: ArmsInTurn(CHAINS)}
    policies: dict[str, Callable[[], Policy]] = {"arms in turn, some requests draft": lambda: ArmsInTurn(spec.arms)}
    if with_auto:
        policies["auto"] = lambda: build_budget(engine, spec.arms, None)
    return policies


def answer_plainly(model: str, prompts: Sequence[Prompt], max_tokens: int) -> tuple[object, Answers]:
    """Returns the reference model and its answers."""
    reference = load_reference_model(resolve_target(model), torch.float32, "cpu")
    return reference, generate_answers(reference, prompts, max_tokens)


def measure_words(
    target: Target, specs: Mapping[str, DrafterSpec], prompts: Sequence[Prompt], max_tokens: int, with_auto: bool = True
) -> Iterator[Row]:
    """Yields the number of equal answers of plain decoding and of each drafter, policy and loop.

    Args:
        target: The target in float32.
        specs: The drafters by name.
        prompts: The prompts.
        max_tokens: The most tokens of an answer.
        with_auto: True to run the budget, whose costs are measured first.
    """
    reference, expected = answer_plainly(str(target.directory), prompts, max_tokens)
    context = max(len(prompt.ids) for prompt in prompts) + max_tokens
    plain = Comparison(Engine(target, (), SLOTS, context), reference, list(prompts), max_tokens, expected)
    for loop in LOOPS:
        outputs = plain.run(loop, None)
        yield plain.compare(f"equal answers: no drafter, {loop} loop", {o.request.id: o.token_ids for o in outputs})
    engine = Engine(target, (), SLOTS, context, copies=CopyFinder(0))
    for loop in LOOPS:
        outputs = replace(plain, engine=engine).run(loop, AllCopies())
        found = {output.request.id: output.token_ids for output in outputs}
        told = f"acceptance length {acceptance_length(output.rounds for output in outputs if output.accepted):.2f}"
        yield plain.compare(f"equal answers: copies, {loop} loop", found, told)
    for name, spec in specs.items():
        engine = Engine(target, [spec], SLOTS, context)
        comparison = replace(plain, engine=engine)
        for policy, make_policy in list_policies(spec, engine, with_auto).items():
            for loop in LOOPS:
                print(f"words: {name}, {policy}, {loop} loop", file=sys.stderr, flush=True)
                outputs = comparison.run(loop, make_policy())
                length = acceptance_length(output.rounds for output in outputs if output.accepted)
                found = {output.request.id: output.token_ids for output in outputs}
                told = f"acceptance length {length:.2f}"
                yield comparison.compare(f"equal answers: {name}, {policy}, {loop} loop", found, told)
        check_engine(engine)
