"""What the stages work on: counted where it is finished, else estimated from the first prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, is_finished
from eyas.chat.conversation import Message, read_conversations
from eyas.chat.render import render_prompt
from eyas.costs.config import PlanConfig
from eyas.costs.cost_model import Amounts
from eyas.data.answers.respond import LEDGER_FILE
from eyas.data.prompts import PROMPTS_FILE
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.records import read_shard
from eyas.data.sources.source import Source
from eyas.features.reader import Features
from eyas.recipe import STAGES, Run

SAMPLE = 64  # prompts whose length is taken for that of all


def finished_stages(run: Run, prompts: StageInputs) -> set[str]:
    """The stages that `eyas run` would skip; a stage behind one that would run would run as well."""
    finished: set[str] = set()
    for stage in STAGES:
        try:
            needed = stage != "train" or run.recipe.target.head is None
            origin = prompts if stage == "prompts" else run.origin(stage)
            if needed and not is_finished(run.place(stage), origin):
                return finished
        except InputError:  # something before it is damaged, so the run would stop or work there
            return finished
        finished.add(stage)
    return finished


@dataclass(frozen=True)
class Sampled:
    """A prompt that stands for `weight` prompts."""

    messages: tuple[Message, ...]
    task: str | None
    weight: float

    @property
    def turns(self) -> int:
        return sum(message.role == "user" for message in self.messages)


def told_amounts(config: PlanConfig) -> Amounts:
    """Those of the recipe's table [plan], for hardware that is not here."""
    count, means = config.conversations, (config.prompt_tokens, config.answer_tokens)
    assert count is not None, "PlanConfig asks for it"
    prompt_tokens, answer_tokens = (round(count * mean) for mean in means if mean is not None)
    return Amounts(count, round(count * config.turns), prompt_tokens, answer_tokens, counted=True, answered=True)


def amounts_of(run: Run, sources: Sequence[Source], finished: set[str]) -> Amounts:
    """Of what is finished, else from the first prompts. Each answer is taken as long as its task allows."""
    tokenizer, respond = run.target.tokenizer, run.recipe.respond
    count, prompts = _finished_prompts(run) if "prompts" in finished else _prompts_to_come(run, sources)
    if not prompts:
        raise InputError(
            f"no prompt among the first {SAMPLE} records",
            "records with messages, turns, prompt or question, and a user turn in them",
            "check the file",
        )
    few = prompts[:: -(-len(prompts) // SAMPLE)]
    prompt_tokens = round(count * _mean(few, [len(render_prompt(one.messages, tokenizer)) for one in few]))
    num_answers = round(count * _mean(prompts, [one.turns for one in prompts]))
    if "respond" not in finished:
        most = [one.turns * respond.decoding_for(one.task).max_tokens for one in prompts]
        answer_tokens = round(count * _mean(prompts, most))
        return Amounts(count, num_answers, prompt_tokens, answer_tokens, "prompts" in finished, False)
    ledger = json.loads((run.directory("respond") / LEDGER_FILE).read_bytes())
    if "capture" in finished:
        rows = Features(run.place("capture")).manifest.rows
        prompt_tokens = max(0, sum(row.length for row in rows) - ledger["tokens"])
    return Amounts(ledger["conversations"], ledger["answers"], prompt_tokens, ledger["tokens"], True, True)


def _mean(prompts: Sequence[Sampled], values: Sequence[float]) -> float:
    weights = [one.weight for one in prompts]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def _finished_prompts(run: Run) -> tuple[int, list[Sampled]]:
    prompts = read_conversations(run.directory("prompts") / PROMPTS_FILE)
    every = [Sampled(prompt.messages, prompt.tags.get("task"), 1.0) for prompt in prompts]
    return len(every), every


def _prompts_to_come(run: Run, sources: Sequence[Source]) -> tuple[int, list[Sampled]]:
    """How many at most, and some of all over the sources; what the screens will drop is not known yet."""
    found: list[Sampled] = []
    pieces = [(source, piece) for source in sources for piece in source.shards]
    chosen = pieces[:: -(-len(pieces) // SAMPLE)]
    for source, piece in chosen:
        some: list[tuple[tuple[Message, ...], str]] = []
        for record in islice(read_shard(source, piece), max(1, SAMPLE // len(chosen))):
            shaped = parse_record(record.value, source.config.keep_system) if record.is_json else None
            if isinstance(shaped, ParsedRecord):
                some.append((shaped.messages, source.config.task or record.task or record.source))
        found += [Sampled(messages, task, piece.num_records / len(some)) for messages, task in some]
    count = sum(source.num_records for source in sources)
    return min(count, run.recipe.prompts.limit or count), found
