"""Estimates the tokens of each stage, and measures the tokens/s of this machine, for `eyas plan`.

The amounts of a finished stage are counted; other amounts are estimated from the first prompts. Rates are measured for
a few seconds with the target of the recipe on random tokens.

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
from eyas.chat.conversation import Message, find_user_turns, read_conversations
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
from eyas.features.extract import prefill_attention
from eyas.features.layout import NUM_AUX_LAYERS, Row, teacher_positions
from eyas.features.reader import Features
from eyas.model.devices import DTYPES
from eyas.model.vocab import DraftVocab
from eyas.recipe import STAGES, Run
from eyas.train.config import build_head_config
from eyas.train.loss import Teacher
from eyas.train.optimizer import MasterWeightOptimizer
from eyas.train.trainer import compute_loss_by_kind
from eyas.train.ttt import pack_rows

SAMPLE_PROMPTS = 64  # prompts whose mean length is used for all
MEASURED_S = 1.0  # seconds of each measurement
MEASURED_TOKENS = 2048  # maximum number of tokens in one measured forward
MEASURED_PROMPT = 64  # prompt tokens of measured answers; the rate hardly depends on it
MEASURED_REQUESTS = 8  # measured answers of each slot, at most


def finished_stages(run: Run, prompts: StageInputs) -> set[str]:
    """Returns the stages that `eyas run` would skip. All stages after the first unfinished one would run."""
    finished: set[str] = set()
    for stage in STAGES:
        try:
            needed = stage != "train" or run.recipe.target.head is None
            origin = prompts if stage == "prompts" else run.build_inputs(stage)
            if needed and not is_finished(run.storage_path(stage), origin):
                return finished
        except InputError:  # an input of the stage is damaged, so `eyas run` stops or works there
            return finished
        finished.add(stage)
    return finished


@dataclass(frozen=True)
class SampledPrompt:
    """A sampled prompt. weight: the number of prompts that it represents."""

    messages: tuple[Message, ...]
    task: str | None
    weight: float

    @property
    def turns(self) -> int:
        """The number of answers."""
        return len(find_user_turns(self.messages))


def configured_amounts(config: PlanConfig) -> Amounts:
    """Returns the amounts that the recipe's table [plan] gives, for a plan of other hardware."""
    count, means = config.conversations, (config.prompt_tokens, config.answer_tokens)
    assert count is not None, "PlanConfig requires it"
    prompt_tokens, answer_tokens = (round(count * mean) for mean in means if mean is not None)
    return Amounts(count, round(count * config.turns), prompt_tokens, answer_tokens, counted=True, answered=True)


def estimate_amounts(run: Run, sources: Sequence[Source], finished: set[str]) -> Amounts:
    """Returns the amounts of data. If `respond` is not finished, every answer counts with its maximum length.

    Raises:
        InputError: If the sources hold no prompt.
    """
    tokenizer, respond = run.target.tokenizer, run.recipe.respond
    if "prompts" in finished:
        records = read_conversations(run.directory("prompts") / PROMPTS_FILE)
        prompts = [SampledPrompt(record.messages, record.tags.get("task"), 1.0) for record in records]
        count = len(prompts)
    else:
        count = sum(source.num_records for source in sources)
        count, prompts = min(count, run.recipe.prompts.limit or count), _sample_sources(sources)
    if not prompts:
        problem = f"The first {SAMPLE_PROMPTS} records of the sources hold no prompt"
        raise InputError(problem, "Check the records: they need messages, turns, prompt or question with a user turn")
    weights, sample = [prompt.weight for prompt in prompts], prompts[:: -(-len(prompts) // SAMPLE_PROMPTS)]
    lengths = [len(render_prompt(prompt.messages, tokenizer)) for prompt in sample]
    prompt_tokens = round(count * statistics.fmean(lengths, [prompt.weight for prompt in sample]))
    num_answers = round(count * statistics.fmean([prompt.turns for prompt in prompts], weights))
    if "respond" not in finished:
        longest = [prompt.turns * respond.decoding_for(prompt.task).max_tokens for prompt in prompts]
        answer_tokens = round(count * statistics.fmean(longest, weights))
        return Amounts(count, num_answers, prompt_tokens, answer_tokens, "prompts" in finished, False)
    ledger = json.loads((run.directory("respond") / LEDGER_FILE).read_bytes())
    if "capture" in finished:
        rows = Features(run.storage_path("capture")).manifest.rows
        prompt_tokens = max(0, sum(row.length for row in rows) - ledger["tokens"])
    return Amounts(ledger["conversations"], ledger["answers"], prompt_tokens, ledger["tokens"], True, True)


def _sample_sources(sources: Sequence[Source]) -> list[SampledPrompt]:
    """Returns a sample of prompts, spread over all sources and before any screening."""
    prompts: list[SampledPrompt] = []
    shards = [(source, shard) for source in sources for shard in source.shards]
    chosen = shards[:: -(-len(shards) // SAMPLE_PROMPTS)]
    for source, shard in chosen:
        found: list[tuple[tuple[Message, ...], str]] = []
        for record in islice(read_shard(source, shard), max(1, SAMPLE_PROMPTS // len(chosen))):
            parsed = parse_record(record.value, source.config.keep_system)
            if isinstance(parsed, ParsedRecord):
                found.append((parsed.messages, source.config.task or record.task or record.source))
        prompts += [SampledPrompt(messages, task, shard.num_records / len(found)) for messages, task in found]
    return prompts


# --- rates -----------------------------------------------------------------------------------------------------------


def measure_rates(run: Run, amounts: Amounts, to_run: Set[str]) -> Rates:
    """Measures the rates of the stages in `to_run`. With `respond.url`, `write` is `plan.respond_tps`."""
    respond = run.recipe.respond
    length = max(4, round(amounts.tokens / max(1, amounts.num_prompts)))
    length = min(length, run.target.info.max_positions)
    answer = min(max(2, round(length * amounts.answer_share)), length - 1)
    reading = {"capture"} if respond.url is not None else {"respond", "capture"}
    reading |= {"train"} if run.recipe.capture.online else set()
    generator = torch.Generator().manual_seed(0)
    write = None
    if "respond" in to_run:
        longest = round(amounts.answer_tokens / max(1, amounts.num_answers))
        write = _measure_writing(run, longest, generator) if respond.url is None else run.recipe.plan.respond_tps
    return Rates(
        read=_measure_reading(run, length, generator) if to_run & reading else None,
        write=write,
        learn=_measure_training(run, length, answer, generator) if "train" in to_run else None,
    )


def _median_seconds(work: Callable[[], object]) -> float:
    """Returns the median seconds of a call. Calls `work` once as a warm-up, then repeatedly for MEASURED_S seconds."""
    work()
    times: list[float] = []
    while not times or sum(times) < MEASURED_S:
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def _random_ids(run: Run, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, run.target.info.vocab_size, shape, generator=generator)


def _measure_reading(run: Run, length: int, generator: torch.Generator) -> float:
    """Returns the tokens/s of the target's forward in `eyas capture`."""
    batch_tokens = min(run.recipe.capture.batch_tokens, MEASURED_TOKENS)
    ids_BT = _random_ids(run, (max(1, batch_tokens // length), length), generator)
    positions_1T = torch.arange(length)[None]
    with torch.inference_mode():
        forward_s = _median_seconds(lambda: run.target.forward(ids_BT, positions_1T, prefill_attention, want_aux=True))
    return ids_BT.numel() / forward_s


def _measure_writing(run: Run, longest: int, generator: torch.Generator) -> float | None:
    """Returns the tokens/s that respond generates with `respond.batch_size` answers at once, without prefill.

    Returns None if an answer has at most one token, which the prefill generates. longest: the tokens of an answer.
    """
    batch_size, max_positions = run.recipe.respond.batch_size, run.target.info.max_positions
    max_tokens = min(max(1, longest), max_positions // 2)
    # Short enough that one step reads all prompts, so that every round has all answers.
    length = max(1, min(MEASURED_PROMPT, PREFILL_CHUNK // batch_size, max_positions - max_tokens))
    engine = Engine(run.target, (), batch_size, length + max_tokens)
    prompts = _random_ids(run, (MEASURED_REQUESTS * batch_size, length), generator).tolist()
    stop = StopCriteria(ignore_eos=True)  # random tokens may end a turn at once
    requests = RequestList(Request(str(index), tuple(ids), max_tokens, stop=stop) for index, ids in enumerate(prompts))
    num_tokens, spent_s = 0, 0.0
    while spent_s < MEASURED_S and (requests.admit(engine, may_wait=False) or not engine.is_idle):
        start_s = time.perf_counter()
        step = engine.launch()
        assert step is not None, "a waiting or running request can continue"
        engine.process(step)
        if isinstance(step.work, RoundWork):
            num_tokens += len(step.work.members)
            spent_s += time.perf_counter() - start_s
    return num_tokens / spent_s if num_tokens else None


def _measure_training(run: Run, length: int, answer: int, generator: torch.Generator) -> float:
    """Returns the tokens/s, prompts included, of one micro-batch of random features and its share of an update."""
    target, config = run.target, run.recipe.train
    dtype, hidden_size = DTYPES[config.dtype], target.info.hidden_size
    sizes = build_head_config(config, target.aux_layer_ids, target.info)
    counts_W = torch.ones(target.info.vocab_size, dtype=torch.int64)
    vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, target.info.eos_ids)
    head = sizes.head_class.init(sizes, 0)
    optimizer = MasterWeightOptimizer(head, config.weight_decay, config.clip)
    head.to(dtype)
    teacher = Teacher(target.lm_head, vocab, dtype, target.logit_softcap)
    mask_T = torch.arange(length) >= length - answer
    num_teachers = int(teacher_positions(mask_T).sum())

    def random_row() -> Row:
        aux_TL = torch.randn(length, NUM_AUX_LAYERS * hidden_size, generator=generator).to(dtype)
        hidden_UD = torch.randn(num_teachers, hidden_size, generator=generator).to(dtype)
        return Row("", "", _random_ids(run, (length,), generator), mask_T, aux_TL, hidden_UD)

    rows = [random_row() for _ in range(max(1, min(config.micro_tokens, MEASURED_TOKENS) // length))]

    def train_micro_batch() -> None:
        packed = pack_rows(rows, config.num_steps, dtype, config.max_anchors)
        compute_loss_by_kind(head, packed, teacher, target, config).loss.backward()
        optimizer.accumulate_gradients()

    share = len(rows) * answer / config.batch_tokens  # of an update
    batch_s = _median_seconds(train_micro_batch) + share * _median_seconds(lambda: optimizer.step(config.learning_rate))
    return len(rows) * length / batch_s
