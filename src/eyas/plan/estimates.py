"""What the stages work on: counted where it is finished, else estimated from the first prompts.

Rates of this machine: a few seconds of work like that of each stage, on the recipe's own target and random tokens.

B answers at once, T tokens of a row, D hidden, L = 3D captured features.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import islice

import torch

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, is_finished
from eyas.chat.conversation import Message, read_conversations
from eyas.chat.render import render_prompt
from eyas.costs.config import PlanConfig
from eyas.costs.cost_model import Amounts, Rates
from eyas.data.answers.respond import LEDGER_FILE
from eyas.data.prompts import PROMPTS_FILE
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import Source, read_shard
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList
from eyas.engine.request import Request, StopCriteria
from eyas.engine.scheduler import PREFILL_CHUNK, RoundWork
from eyas.features.capture import prefill_attention
from eyas.features.layout import Row, teacher_positions
from eyas.features.reader import Features
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.recipe import STAGES, Run
from eyas.train.config import build_head_config
from eyas.train.loss import Teacher
from eyas.train.optimizer import MasterWeightOptimizer
from eyas.train.trainer import compute_batch_loss
from eyas.train.ttt import pack_rows

SAMPLE_PROMPTS = 64  # prompts whose length is taken for that of all


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
class SampledPrompt:
    """A prompt that stands for `weight` prompts."""

    messages: tuple[Message, ...]
    task: str | None
    weight: float

    @property
    def turns(self) -> int:
        return sum(message.role == "user" for message in self.messages)


def configured_amounts(config: PlanConfig) -> Amounts:
    """Those of the recipe's table [plan], for hardware that is not here."""
    count, means = config.conversations, (config.prompt_tokens, config.answer_tokens)
    assert count is not None, "PlanConfig asks for it"
    prompt_tokens, answer_tokens = (round(count * mean) for mean in means if mean is not None)
    return Amounts(count, round(count * config.turns), prompt_tokens, answer_tokens, counted=True, answered=True)


def estimate_amounts(run: Run, sources: Sequence[Source], finished: set[str]) -> Amounts:
    """Of what is finished, else from the first prompts. Each answer is taken as long as its task allows."""
    tokenizer, respond = run.target.tokenizer, run.recipe.respond
    count, prompts = _read_finished_prompts(run) if "prompts" in finished else _sample_sources(run, sources)
    if not prompts:
        raise InputError(
            f"no prompt among the first {SAMPLE_PROMPTS} records",
            "records with messages, turns, prompt or question, and a user turn in them",
            "check the file",
        )
    few = prompts[:: -(-len(prompts) // SAMPLE_PROMPTS)]
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


def _mean(prompts: Sequence[SampledPrompt], values: Sequence[float]) -> float:
    weights = [one.weight for one in prompts]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def _read_finished_prompts(run: Run) -> tuple[int, list[SampledPrompt]]:
    prompts = read_conversations(run.directory("prompts") / PROMPTS_FILE)
    every = [SampledPrompt(prompt.messages, prompt.tags.get("task"), 1.0) for prompt in prompts]
    return len(every), every


def _sample_sources(run: Run, sources: Sequence[Source]) -> tuple[int, list[SampledPrompt]]:
    """How many at most, and some of all over the sources; what the screens will drop is not known yet."""
    found: list[SampledPrompt] = []
    pieces = [(source, piece) for source in sources for piece in source.shards]
    chosen = pieces[:: -(-len(pieces) // SAMPLE_PROMPTS)]
    for source, piece in chosen:
        some: list[tuple[tuple[Message, ...], str]] = []
        for record in islice(read_shard(source, piece), max(1, SAMPLE_PROMPTS // len(chosen))):
            shaped = parse_record(record.value, source.config.keep_system) if record.is_json else None
            if isinstance(shaped, ParsedRecord):
                some.append((shaped.messages, source.config.task or record.task or record.source))
        found += [SampledPrompt(messages, task, piece.num_records / len(some)) for messages, task in some]
    count = sum(source.num_records for source in sources)
    return min(count, run.recipe.prompts.limit or count), found


MEASURED_S = 1.0  # of each rate
MEASURED_TOKENS = 2048  # at most so many in one measured forward
MEASURED_PROMPT = 64  # tokens in front of the measured answers; their length hardly matters to the rate
MEASURED_REQUESTS = 8  # for each slot: where answers are short, the measurement may be, too


def measure_rates(run: Run, amounts: Amounts, to_run: Set[str]) -> Rates:
    """Of each stage that would run. A server is not measured: its rate is `plan.respond_tps`, or unknown."""
    positions = run.target.info.max_positions
    length = min(max(4, round(amounts.tokens / max(1, amounts.num_prompts))), positions)
    answer = min(max(2, round(length * amounts.answer_share)), length - 1)
    longest = round(amounts.answer_tokens / max(1, amounts.num_answers))
    reads = {"capture"} if run.recipe.respond.url is not None else {"respond", "capture"}
    reads |= {"train"} if run.recipe.capture.online else set()
    generator = torch.Generator().manual_seed(0)
    return Rates(
        read=_measure_reading(run, length, generator) if to_run & reads else None,
        write=_write_rate(run, longest, generator) if "respond" in to_run else None,
        learn=_measure_training(run, length, answer, generator) if "train" in to_run else None,
    )


def _seconds(work: Callable[[], object]) -> float:
    """Median time of one call, after one to warm up; about MEASURED_S in all, at least one call."""
    work()
    times: list[float] = []
    while not times or sum(times) < MEASURED_S:
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


def _random_ids(target: Target, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, target.info.vocab_size, shape, generator=generator)


def _measure_reading(run: Run, length: int, generator: torch.Generator) -> float:
    """Tokens a second that capture reads."""
    target, most = run.target, min(run.recipe.capture.batch_tokens, MEASURED_TOKENS)
    ids_BT = _random_ids(target, (max(1, most // length), length), generator)
    positions_1T = torch.arange(length)[None]
    with torch.inference_mode():
        second = _seconds(lambda: target.forward(ids_BT, positions_1T, prefill_attention, want_aux=True))
    return ids_BT.numel() / second


def _write_rate(run: Run, longest: int, generator: torch.Generator) -> float | None:
    served = run.recipe.respond.url is not None
    return run.recipe.plan.respond_tps if served else _measure_writing(run, longest, generator)


def _measure_writing(run: Run, longest: int, generator: torch.Generator) -> float | None:
    """Tokens a second that respond writes with `respond.batch_size` answers at once, prefill left out.

    longest: tokens of an answer, the mean over the tasks of the most that each may have. None where no answer may be
    longer than the token that prefill gives.
    """
    target, config = run.target, run.recipe.respond
    room = target.info.max_positions
    most = min(max(1, longest), room // 2)
    # Short enough for the prompts of all answers to be read at once: every round is a full one.
    length = max(1, min(MEASURED_PROMPT, PREFILL_CHUNK // config.batch_size, room - most))
    engine = Engine(target, (), config.batch_size, length + most)
    prompts = _random_ids(target, (MEASURED_REQUESTS * config.batch_size, length), generator).tolist()
    stop = StopCriteria(ignore_eos=True)  # random tokens may end a turn at once, again and again
    source = RequestList(Request(str(index), tuple(ids), most, stop=stop) for index, ids in enumerate(prompts))
    num_tokens, spent_s = 0, 0.0
    while spent_s < MEASURED_S and (source.admit(engine, may_wait=False) or not engine.is_idle):
        began_s = time.perf_counter()
        step = engine.launch()
        assert step is not None, "one that waits or runs can go on"
        engine.process(step)
        if isinstance(step.work, RoundWork):
            num_tokens += len(step.work.members)
            spent_s += time.perf_counter() - began_s
    return num_tokens / spent_s if num_tokens else None


def _measure_training(run: Run, length: int, answer: int, generator: torch.Generator) -> float:
    """Tokens a second, prompts included, of one micro-batch on random features and its share of an update."""
    target, config = run.target, run.recipe.train
    dtype, hidden = DTYPES[config.dtype], target.info.hidden_size
    sizes = build_head_config(config, target.aux_layer_ids, target.info)
    counts_W = torch.ones(target.info.vocab_size, dtype=torch.int64)
    vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, target.info.eos_ids)
    head = Head.init(sizes, 0).to(dtype)
    masters = MasterWeightOptimizer(Head.init(sizes, 0), config.weight_decay, config.clip)
    masters.head = head
    teacher = Teacher(target.lm_head, vocab, dtype, target.logit_softcap)
    mask_T = torch.arange(length) >= length - answer
    num_taught = int(teacher_positions(mask_T).sum())

    def row() -> Row:
        aux_TL = torch.randn(length, 3 * hidden, generator=generator).to(dtype)
        hidden_UD = torch.randn(num_taught, hidden, generator=generator).to(dtype)
        return Row("", "", _random_ids(target, (length,), generator), mask_T, aux_TL, hidden_UD)

    rows = [row() for _ in range(max(1, min(config.micro_tokens, MEASURED_TOKENS) // length))]

    def micro() -> None:
        graded = compute_batch_loss(
            head, pack_rows(rows, config.steps, dtype), teacher, target, config.decay, config.loss
        )
        graded.loss.backward()
        masters.accumulate_gradients()

    share = len(rows) * answer / config.batch_tokens  # of an update
    second = _seconds(micro) + share * _seconds(lambda: masters.step(config.learning_rate))
    return len(rows) * length / second
