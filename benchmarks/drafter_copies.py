"""Copies of earlier text: tokens per round on texts of others, and output tokens per second beside the head alone.

    replay     reference answers, no model: each round drafts the copy alone, and yields what the reference accepts, and
               one token more. Cold: from the request's own text. Warm: also from the answers before it, of one tenant
    forced     the engine with every token made that of the reference answer: drafts, forwards and their seconds are
               real, the target's choices are not. It shows what copies bring for a target that edits well. Warm: the
               reference answers to the other prompts of the set are earlier outputs of the same tenant
    answered   the target's own answers to the prompts of the same sets. Answers that repeat themselves are left out
    own        answers of the target itself, on ordinary prompts: what searching for copies costs

The sets are EditEval, HumanEvalFix and GSM8K, and tool loops that copied_texts.py draws: one call for each of several
records. In engines, copies come from the request's own text only, unless a row says warm, so a block that was seen
before helps no later one. Both engines run with `auto` and take turns in rotated order; each first runs a block that is
not measured. `prove_drafters.py` calls this.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from copied_texts import tool_loops
from prove_engine import outside_forwards
from result_rows import Row
from torch import Tensor

from eyas.bench.engine_load import build_auto_engine, build_fixed_arm_engine
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.turns import ChatPrompt
from eyas.bench.workload import Prompt, tokenize_prompts
from eyas.chat.conversation import Message
from eyas.data.select.quality import is_looping_answer
from eyas.drafters import head_spec
from eyas.drafters.head_spec import HeadSpec
from eyas.engine.engine import Engine
from eyas.engine.engine_builder import POOL_TOKENS
from eyas.engine.request import Request
from eyas.engine.sampler import SamplerBatch
from eyas.model.target import Target
from eyas.speculation.arms import default_arms
from eyas.speculation.copy_index import MAX_COPY, Copy, CopyFinder, CopyIndex
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.intervals import median_interval
from eyas.tree.tree import Tree

HEAD, COPIES = "head", "copies"
TENANT = "tenant"
FORCED_TOKENS, LONGEST = 96, 1_000  # of a forced answer, and of its prompt at most
PER_TASK, HOST_PAIRS = 8, 3
MIN_ANSWER = 24
FILES = {  # set -> file, and the keys of request, text and answer
    "EditEval": ("editeval.jsonl", "instruction", "input", "output"),
    "HumanEvalFix": ("humanevalfix.jsonl", "instruction", "before", "after"),
    "GSM8K": ("gsm8k-test.jsonl", "question", None, "answer"),
}
LOOPS, LOOPS_SEED, NUM_LOOPS = "tool loops", 20, 60
LEAST = {"EditEval": 1.3, "HumanEvalFix": 1.3, LOOPS: 1.3}


@dataclass(frozen=True)
class Forced:
    """Reference answers by prompt, to which an engine is forced."""

    answers: Mapping[tuple[int, ...], Sequence[int]]

    def on(self, engine: Engine) -> Engine:
        """Makes the engine generate the reference answers, and returns it."""
        sampler, slots = engine.runner.sampler, engine.runner.pool.req_to_token_RC
        texts_RC = torch.zeros(slots.shape[0], slots.shape[1] * 2, dtype=torch.int64)
        admit, next_first, next_nodes = sampler.admit, sampler.next_B, sampler.next_BM

        def force(req_slot: int, request: Request, text: Sequence[int]) -> None:
            known = torch.tensor([*request.prompt_ids, *self.answers[request.prompt_ids]])
            texts_RC[req_slot, : len(known)] = known
            admit(req_slot, request, text)

        def first(logits_BW: Tensor, batch: SamplerBatch, positions_B: Tensor) -> Tensor:
            next_first(logits_BW, batch, positions_B)
            return texts_RC[batch.req_slots_B, positions_B]

        def nodes(
            logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, batch: SamplerBatch, lengths_B: Tensor
        ) -> Tensor:
            next_nodes(logits_TW, tree, rows_T, batch, lengths_B)
            return texts_RC[batch.req_slots_B[:, None], lengths_B[:, None] + 1 + tree.depths_BM]

        sampler.admit, sampler.next_B, sampler.next_BM = force, first, nodes
        return engine


def read_pairs(place: Path, name: str) -> list[tuple[str, str]]:
    """Returns the (prompt, reference answer) pairs of a set, shuffled with a fixed seed."""
    if name == LOOPS:
        return tool_loops(LOOPS_SEED, NUM_LOOPS)
    file, request, text, answer = FILES[name]
    found = [json.loads(line) for line in (place / file).read_text(encoding="utf-8").splitlines()]
    random.Random(0).shuffle(found)
    return [(one[request] if text is None else f"{one[request]}\n{one[text]}", one[answer]) for one in found]


def measure_replay(place: Path, target: Target) -> Iterator[Row]:
    """Yields the tokens per round of copies alone, for each set, with a cold and a warm index."""
    for name, (index, pool_tokens) in itertools.product((*FILES, LOOPS), (("cold", 0), ("warm", POOL_TOKENS))):
        finder, counts = CopyFinder(pool_tokens), []
        for number, (prompt, answer) in enumerate(read_pairs(place, name)):
            asked, told = (target.tokenizer.encode(text, add_special_tokens=False) for text in (prompt, answer))
            counts.append(replay(finder, asked, told))
            finder.store(TENANT, str(number), told)
        tokens, rounds, rows = (sum(column) for column in zip(*counts, strict=True))
        note = f"{rows / rounds:.1f} rows of a copy per round, {len(counts)} answers"
        figure = f"copies alone, {index}, replay of {name}: tokens per round"
        yield Row(figure, round(tokens / rounds, 2), "told", True, note=note)


def replay(finder: CopyFinder, asked: Sequence[int], told: Sequence[int]) -> tuple[int, int, int]:
    """Returns the tokens and rounds of an answer after its first token, and the rows of its copies."""
    index, text, rounds, rows = CopyIndex(), [*asked, *told[:1]], 0, 0
    end = len(asked) + len(told)
    while len(text) < end:
        copy, rest, hits = finder.propose(index, text, TENANT, 0), told[len(text) - len(asked) :], 0
        if copy is not None:
            rows += min(len(copy.tokens), MAX_COPY)
            hits = finder.grade(copy, text, rest[: MAX_COPY + 1])
        text += rest[: hits + 1]
        rounds += 1
    return len(told) - 1, rounds, rows


def forced_prompts(place: Path, target: Target, name: str) -> tuple[list[Prompt], Forced, list[Sequence[int]]]:
    """Returns prompts of a set, their reference answers of at least FORCED_TOKENS tokens, and the other answers."""
    pairs = read_pairs(place, name)
    asked = [ChatPrompt(str(number), (Message("user", prompt),)) for number, (prompt, _) in enumerate(pairs)]
    prompts: list[Prompt] = []
    answers: dict[tuple[int, ...], Sequence[int]] = {}
    others: list[Sequence[int]] = []
    for (_, answer), prompt in zip(pairs, tokenize_prompts({name: asked}, target.tokenizer)[name], strict=True):
        told = target.tokenizer.encode(answer, add_special_tokens=False)
        if len(told) >= FORCED_TOKENS and len(prompt.ids) < LONGEST and len(prompts) < PER_TASK:
            prompts.append(prompt)
            answers[prompt.ids] = told
        else:
            others.append(told)
    return prompts, Forced(answers), others


def answered_prompts(place: Path, target: Target, name: str) -> list[Prompt]:
    """Returns prompts of a set that the target answers with MIN_ANSWER tokens or more, without repeating itself."""
    pairs = read_pairs(place, name)[: 6 * PER_TASK]
    asked = [ChatPrompt(str(number), (Message("user", prompt),)) for number, (prompt, _) in enumerate(pairs)]
    fitting = [one for one in tokenize_prompts({name: asked}, target.tokenizer)[name] if len(one.ids) < LONGEST]
    engine = Engine(target, (), PER_TASK, LONGEST + FORCED_TOKENS)
    answers = run_closed_loop(engine, fitting, FORCED_TOKENS).answers
    good = [len(one.token_ids) >= MIN_ANSWER and not is_looping_answer(one.token_ids) for one in answers]
    return list(itertools.compress(fitting, good))[:PER_TASK]


def build_both(
    target: Target, draft: HeadSpec, streams: int, context: int, finder: CopyFinder | None = None
) -> dict[str, Engine]:
    """Returns an engine without copies and one with those of `finder` (None: a cold one), with fresh budgets."""
    finders = {HEAD: None, COPIES: finder or CopyFinder(0)}
    return {name: build_auto_engine(target, draft, streams, context, finder) for name, finder in finders.items()}


class WarmFinder(CopyFinder):
    """A finder whose pool has outputs from before the measurement. All requests belong to their tenant.

    It stores no further output: a block would otherwise copy the answers of the block before.
    """

    def __init__(self, outputs: Sequence[Sequence[int]]) -> None:
        """Fills the pool. outputs: the token ids of each output."""
        super().__init__(POOL_TOKENS)
        for number, tokens in enumerate(outputs):
            self.pools.add(TENANT, str(number), tokens)

    def propose(self, index: CopyIndex, text: Sequence[int], tenant: str, num_unread: int) -> Copy | None:
        """Returns the copy with the most expected tokens, from the text of the request or from the pool."""
        return super().propose(index, text, TENANT, num_unread)

    def store(self, tenant: str, request_id: str, tokens: Sequence[int]) -> None:
        """Does nothing."""


def measure_copies(
    target: Target,
    draft: HeadSpec,
    place: Path | None,
    own: Sequence[Prompt],
    where: str,
    blocks: int = 15,
    answers_edits: bool = False,
) -> Iterator[Row]:
    """Yields all rows of a pair.

    Args:
        target: The target.
        draft: Its head.
        place: The directory of FILES; None measures the target's answers to ordinary prompts only.
        own: The ordinary prompts.
        where: The beginning of the names of rows.
        blocks: The blocks of the ordinary prompts.
        answers_edits: True to measure the target's own answers to the sets, too.
    """
    if place is not None:
        yield from measure_replay(place, target)
    for streams in (1, 8):
        for name in LEAST if place is not None else ():
            assert place is not None, "there is no set without a directory"
            prompts, forced, others = forced_prompts(place, target, name)
            context = max(len(prompt.ids) for prompt in prompts) + FORCED_TOKENS
            for index, finder in (("warm, ", WarmFinder(others)), ("", CopyFinder(0))):
                both = build_both(target, draft, streams, context, finder)
                both = {one: forced.on(engine) for one, engine in both.items()}
                told = f"{where}, {name}, forced, {index}{at(streams)}"
                yield compare(both, prompts, 5, told, None if index else LEAST[name])
            if streams > 1:
                share = outside_forwards(both[COPIES], draft.head, prompts, HOST_PAIRS)
                told = f"{where}, {name}, forced, {at(streams)}, head and copies: share of time outside forwards"
                yield Row(told, round(share, 4), "at most 0.1", share <= 0.1)
            if answers_edits and (asked := answered_prompts(place, target, name)):
                both = build_both(target, draft, streams, LONGEST + FORCED_TOKENS)
                yield compare(both, asked, 5, f"{where}, {name}, {len(asked)} own answers, {at(streams)}", LEAST[name])
        context = max(len(prompt.ids) for prompt in own) + FORCED_TOKENS
        both = build_both(target, draft, streams, context)
        yield compare(both, own, blocks, f"{where}, own answers, {at(streams)}", 0.99)


def at(streams: int) -> str:
    """Returns the number of streams as text."""
    return f"{streams} streams" if streams > 1 else "1 stream"


def compare(
    engines: Mapping[str, Engine], prompts: Sequence[Prompt], blocks: int, where: str, least: float | None
) -> Row:
    """Returns the row of the ratio of tokens per second with copies over those without. least: its target."""
    names, ratios = list(engines), []
    for engine in engines.values():
        run_closed_loop(engine, prompts, FORCED_TOKENS)
    counters = engines[COPIES].counters
    counters.reset()
    for number in range(blocks):
        speeds = {}
        for name in names[number % 2 :] + names[: number % 2]:
            result = run_closed_loop(engines[name], prompts, FORCED_TOKENS).result
            speeds[name] = result.output_tokens / result.seconds
        ratios.append(speeds[COPIES] / speeds[HEAD])
        print(f"{where}, block {number + 1}: {speeds}", file=sys.stderr, flush=True)
    median, span = median_interval(ratios, seed=0)
    share = counters.copied_tokens / max(counters.output_tokens, 1)
    arms = ", ".join(
        f"{arm} {count}" for arm, count in sorted(counters.rounds_by_arm.items(), key=lambda one: -one[1])[:4]
    )
    note = f"{share:.0%} of the tokens copied; rounds: {arms}"
    interval = (round(span.low, 3), round(span.high, 3))
    figure = round(median, 3)
    target, is_met = ("told", True) if least is None else (f"at least {least}", median >= least)
    return Row(f"copies over the head alone, {where}", figure, target, is_met, interval, note)


def measure_context(target: Target, draft: HeadSpec, sets: Mapping[str, Sequence[Prompt]], where: str) -> Iterator[Row]:
    """Yields the acceptance length of tree16 beyond the length of training, with and without window and sink tokens.

    Args:
        target: The target.
        draft: A head that was trained on texts of at most `draft.head.window` tokens.
        sets: Prompts shorter than that ("short") and longer ("long").
        where: The beginning of the names of rows.
    """
    window, sinks, lengths = draft.head.window, head_spec.SINK_TOKENS, {}
    both = f"window of {window} and the first {sinks} tokens"
    arm = next(arm for arm in default_arms(draft.head.config.max_depth) if arm.name == "tree16")
    for name, prompts in sets.items():
        counts = [len(prompt.ids) for prompt in prompts]
        for limits, limit, count in (
            ("no window", None, sinks),
            (f"window of {window}", window, 0),
            (both, window, sinks),
        ):
            draft.head.limit_attention(limit)
            head_spec.SINK_TOKENS = count
            engine = build_fixed_arm_engine(target, draft, arm, 4, max(counts) + FORCED_TOKENS)
            answers = run_closed_loop(engine, prompts, FORCED_TOKENS).answers
            lengths[name, limits] = acceptance_length(answer.rounds for answer in answers)
            told = f"{where}, prompts of {min(counts)} to {max(counts)} tokens, {limits}: acceptance length"
            yield Row(told, round(lengths[name, limits], 2), "told", True)
    draft.head.limit_attention(window)
    ratio = lengths["long", both] / lengths["short", both]
    name = f"{where}, {both}: acceptance length of long prompts over that of short ones"
    yield Row(name, round(ratio, 2), "at least 0.8", ratio >= 0.8)
    lost = 1 - lengths["short", both] / lengths["short", "no window"]
    yield Row(f"{where}, {both}: lost on short prompts", round(lost, 3), "at most 0.01", lost <= 0.01)
