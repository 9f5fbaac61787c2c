"""`eyas plan`: what of a run is finished, what would run, and what that takes. Nothing is written.

Amounts come from what is finished, else from the first prompts, each answer taken as long as it may become. Rates are
measured here, on the recipe's own target, for a few seconds.

B answers at once, T tokens of a row, D hidden, L = 3D captured features.
"""

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice

import torch

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import Origin, is_finished
from eyas.chat.conversation import Message, read
from eyas.chat.render import prompt_ids
from eyas.features.forward import PrefillAttend
from eyas.features.layout import Row, taught
from eyas.features.reader import Features
from eyas.features.store import token_bytes
from eyas.model.dtypes import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.recipe import STAGES, Run
from eyas.serve.engine import CHUNK, Engine
from eyas.serve.request import Request, Stop
from eyas.serve.scheduler import Given
from eyas.synth.prompts import PROMPTS_FILE, open_prompts
from eyas.synth.records import read_piece
from eyas.synth.respond import LEDGER_FILE
from eyas.synth.shapes import Shaped, read_shape
from eyas.synth.sources import Source
from eyas.train.config import head_config
from eyas.train.optimizer import Masters
from eyas.train.teacher import Teacher
from eyas.train.trainer import learn
from eyas.train.ttt import pack

SAMPLE = 64  # prompts whose length is taken for that of all
MEASURED_S = 1.0  # of each rate
MEASURED_TOKENS = 2048  # at most so many in one measured forward
MEASURED_PROMPT = 64  # tokens in front of the measured answers; their length hardly matters to the rate
MEASURED_REQUESTS = 8  # for each slot: where answers are short, the measurement may be, too


@dataclass(frozen=True)
class Amounts:
    """What the stages work on. Where `answered` is false the answer tokens are the most there can be."""

    num_prompts: int
    num_answers: int
    prompt_tokens: int  # of all conversations, without the answers
    answer_tokens: int
    counted: bool  # the prompts are finished, so their number is known
    answered: bool

    @property
    def tokens(self) -> int:
        """Rows of features."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def prefill_tokens(self) -> int:
        """What the target reads while it answers: every turn reads the turns before it once more."""
        turns = self.num_answers / max(self.num_prompts, 1)
        return round(self.prompt_tokens * (turns + 1) / 2 + self.answer_tokens * (turns - 1) / 2)


@dataclass(frozen=True)
class Rates:
    """Tokens a second on this machine; None where the stage would not run."""

    read: float | None
    write: float | None
    learn: float | None


@dataclass(frozen=True)
class Line:
    """A stage in the plan. hours: None where nothing is known of its time."""

    stage: str
    state: str
    amount: str
    hours: float | None


def describe(run: Run, price_per_hour: float | None) -> str:
    """The plan in lines for the terminal. price_per_hour: of this machine, in any currency.

    InputError for what the run itself would refuse at its start: a missing source or target, no licence.
    """
    if price_per_hour is not None and not price_per_hour >= 0:
        raise UsageError(f"--price {price_per_hour}", "what an hour costs, 0 or more", "correct it")
    opened = open_prompts(run.recipe.prompts, run.acknowledgements)
    run.target.require_chat_template()
    finished = finished_stages(run, opened.origin)
    amounts = _amounts(run, opened.sources, finished)
    head = Head(head_config(run.train_config, run.target.aux_layer_ids, run.target.facts))
    rates = measure(run, amounts, set(STAGES) - finished)
    lines = list(_lines(run, amounts, rates, finished, head.num_parameters))
    return "\n".join([*_table(run, lines, price_per_hour), "", *_notes(run, amounts, rates, lines)])


# --- what is finished ------------------------------------------------------------------------------------------------


def finished_stages(run: Run, prompts: Origin) -> set[str]:
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


# --- amounts ---------------------------------------------------------------------------------------------------------


def _amounts(run: Run, sources: Sequence[Source], finished: set[str]) -> Amounts:
    """Of what is finished, else from the first prompts."""
    tokenizer, most = run.target.tokenizer, run.recipe.respond.max_tokens
    count, sample = _finished_prompts(run) if "prompts" in finished else _prompts_to_come(run, sources)
    if not sample:
        raise InputError(
            f"no prompt among the first {SAMPLE} records",
            "records with messages, turns, prompt or question, and a user turn in them",
            "check the file",
        )
    lengths = [len(prompt_ids(messages, tokenizer)) for messages in sample]
    turns = [sum(message.role == "user" for message in messages) for messages in sample]
    num_answers = round(count * statistics.fmean(turns))
    prompt_tokens = round(count * statistics.fmean(lengths))
    if "respond" not in finished:
        return Amounts(count, num_answers, prompt_tokens, num_answers * most, "prompts" in finished, False)
    ledger = json.loads((run.directory("respond") / LEDGER_FILE).read_bytes())
    if "capture" in finished:
        rows = Features(run.place("capture")).manifest.rows
        prompt_tokens = max(0, sum(row.length for row in rows) - ledger["tokens"])
    return Amounts(ledger["conversations"], ledger["answers"], prompt_tokens, ledger["tokens"], True, True)


def _finished_prompts(run: Run) -> tuple[int, list[tuple[Message, ...]]]:
    every = [prompt.messages for prompt in read(run.directory("prompts") / PROMPTS_FILE)]
    return len(every), every[:SAMPLE]


def _prompts_to_come(run: Run, sources: Sequence[Source]) -> tuple[int, list[tuple[Message, ...]]]:
    """How many at most, and some of each source; what the screens will drop is not known yet."""
    sample: list[tuple[Message, ...]] = []
    for source in sources:
        records = (record for piece in source.pieces for record in read_piece(source, piece))
        for record in islice(records, SAMPLE // len(sources)):
            shaped = read_shape(record.value, source.config.keep_system) if record.is_json else None
            sample += [shaped.messages] if isinstance(shaped, Shaped) else []
    count = sum(source.count for source in sources)
    return min(count, run.recipe.prompts.limit or count), sample


# --- rates -----------------------------------------------------------------------------------------------------------


def measure(run: Run, amounts: Amounts, to_run: Set[str]) -> Rates:
    """A few seconds of work like that of each stage that would run, on random tokens."""
    positions = run.target.facts.max_positions
    length = min(max(4, round(amounts.tokens / max(1, amounts.num_prompts))), positions)
    answer = min(max(2, round(length * amounts.answer_tokens / max(1, amounts.tokens))), length - 1)
    generator = torch.Generator().manual_seed(0)
    return Rates(
        read=_reading(run, length, generator) if to_run & {"respond", "capture"} else None,
        write=_writing(run, generator) if "respond" in to_run else None,
        learn=_learning(run, length, answer, generator) if "train" in to_run else None,
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
    return torch.randint(0, target.facts.vocab_size, shape, generator=generator)


def _reading(run: Run, length: int, generator: torch.Generator) -> float:
    """Tokens a second that capture reads."""
    target, most = run.target, min(run.recipe.capture.batch_tokens, MEASURED_TOKENS)
    ids_BT = _random_ids(target, (max(1, most // length), length), generator)
    positions_1T = torch.arange(length)[None]
    with torch.inference_mode():
        second = _seconds(lambda: target.forward(ids_BT, positions_1T, PrefillAttend(), want_aux=True))
    return ids_BT.numel() / second


def _writing(run: Run, generator: torch.Generator) -> float | None:
    """Tokens a second that respond writes with `respond.batch_size` answers at once, prefill left out.

    None where no answer may be longer than the token that prefill gives.
    """
    target, config = run.target, run.recipe.respond
    room = target.facts.max_positions
    most = min(config.max_tokens, room // 2)
    # Short enough for the prompts of all answers to be read at once: every round is a full one.
    length = max(1, min(MEASURED_PROMPT, CHUNK // config.batch_size, room - most))
    engine = Engine(target, None, config.batch_size, length + most)
    prompts = _random_ids(target, (MEASURED_REQUESTS * config.batch_size, length), generator).tolist()
    stop = Stop(ignore_eos=True)  # random tokens may end a turn at once, again and again
    source = Given(Request(str(index), tuple(ids), most, stop=stop) for index, ids in enumerate(prompts))
    num_tokens, spent_s = 0, 0.0
    while spent_s < MEASURED_S and (source.feed(engine, may_wait=False) or not engine.is_idle):
        began_s = time.perf_counter()
        step = engine.launch()
        assert step is not None, "one that waits or runs can go on"
        engine.process(step)
        if step.batch is not None:
            num_tokens += len(step.members)
            spent_s += time.perf_counter() - began_s
    return num_tokens / spent_s if num_tokens else None


def _learning(run: Run, length: int, answer: int, generator: torch.Generator) -> float:
    """Tokens a second, prompts included, of one micro-batch on random features and its share of an update."""
    target, config = run.target, run.recipe.train
    dtype, hidden = DTYPES[config.dtype], target.facts.hidden_size
    sizes = head_config(config, target.aux_layer_ids, target.facts)
    counts_W = torch.ones(target.facts.vocab_size, dtype=torch.int64)
    vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, target.facts.eos_ids)
    head = Head.init(sizes, 0).to(dtype)
    masters = Masters(Head.init(sizes, 0), config.weight_decay, config.clip)
    masters.head = head
    teacher = Teacher(target.lm_head, vocab, dtype, target.logit_cap)
    mask_T = torch.arange(length) >= length - answer
    num_taught = int(taught(mask_T).sum())

    def row() -> Row:
        aux_TL = torch.randn(length, 3 * hidden, generator=generator).to(dtype)
        hidden_UD = torch.randn(num_taught, hidden, generator=generator).to(dtype)
        return Row("", "", _random_ids(target, (length,), generator), mask_T, aux_TL, hidden_UD)

    rows = [row() for _ in range(max(1, min(config.micro_tokens, MEASURED_TOKENS) // length))]

    def micro() -> None:
        graded = learn(head, pack(rows, config.steps, dtype), teacher, target, config.decay, config.loss)
        graded.loss.backward()
        masters.collect()

    share = len(rows) * answer / config.batch_tokens  # of an update
    second = _seconds(micro) + share * _seconds(lambda: masters.update(config.learning_rate))
    return len(rows) * length / second


# --- the text --------------------------------------------------------------------------------------------------------


def _feature_bytes(run: Run, amounts: Amounts) -> float:
    """One position is taught for each answer token."""
    share = amounts.answer_tokens / max(1, amounts.tokens)
    return amounts.tokens * token_bytes(run.recipe.capture.dtype, run.target.facts.hidden_size, share)


def _hours(tokens: float, rate: float | None) -> float | None:
    return None if rate is None else tokens / rate / 3600


def _lines(run: Run, amounts: Amounts, rates: Rates, finished: set[str], num_parameters: int) -> Iterator[Line]:
    recipe, facts = run.recipe, run.target.facts
    upto, most = "" if amounts.counted else "at most ", "" if amounts.answered else "at most "
    num_bytes = _feature_bytes(run, amounts)
    num_held_out = max(1, round(amounts.num_prompts * recipe.capture.held_out))
    reading, writing = _hours(amounts.prefill_tokens, rates.read), _hours(amounts.answer_tokens, rates.write)
    seen = amounts.tokens * (1 - recipe.capture.held_out) * recipe.train.epochs
    if recipe.train.updates is not None:
        seen = recipe.train.updates * recipe.train.batch_tokens * amounts.tokens / max(1, amounts.answer_tokens)
    share = num_parameters / facts.num_parameters
    what = {
        "prompts": (f"{upto}{amounts.num_prompts:,} prompts", 0.0),
        "respond": (
            f"{upto}{amounts.num_answers:,} answers, {most}{amounts.answer_tokens:,} answer tokens",
            None if reading is None or writing is None else reading + writing,
        ),
        "capture": (
            f"{most}{amounts.tokens:,} tokens, {_size(num_bytes)} of features",
            _hours(amounts.tokens, rates.read),
        ),
        "train": (
            f"{most}{seen:,.0f} tokens; the head has {num_parameters:,} parameters, {share:.1%} of the target",
            _hours(seen, rates.learn),
        ),
        "eval": (f"about {num_held_out:,} held-out conversations", None),
        "bench": ("baseline and speculation, the report", None),
    }
    if recipe.target.head is not None:
        what["train"] = (f"nothing: target.head is {recipe.target.head}", 0.0)
    for stage, (amount, hours) in what.items():
        done = stage in finished
        yield Line(stage, "finished" if done else "would run", amount, 0.0 if done else hours)


def _table(run: Run, lines: Sequence[Line], price_per_hour: float | None) -> list[str]:
    facts = run.target.facts
    head = (
        f"recipe {run.recipe.name}, run directory {run.out}, "
        f"target {facts.name} ({facts.num_parameters:,} parameters, {run.recipe.target.dtype})"
    )
    width = max(len(line.amount) for line in lines)
    rows = [f"{line.stage:<9}{line.state:<11}{line.amount:<{width + 2}}{_time(line.hours):>12}" for line in lines]
    total = sum(line.hours for line in lines if line.hours is not None)
    money = "" if price_per_hour is None else f"  {total * price_per_hour:,.2f} at {price_per_hour:,.2f} an hour"
    return [head, "", *rows, f"{'total':<{width + 22}}{_time(total):>12}{money}"]


def _notes(run: Run, amounts: Amounts, rates: Rates, lines: Sequence[Line]) -> Iterator[str]:
    measured = {
        "the target reads {:,.0f} tokens/s": rates.read,
        f"it writes {{:,.0f}} tokens/s, {run.recipe.respond.batch_size} answers at once": rates.write,
        "training goes through {:,.0f} tokens/s": rates.learn,
    }
    known = [text.format(rate) for text, rate in measured.items() if rate is not None]
    if known:
        threads = torch.get_num_threads()
        yield f"measured on this machine for a few seconds, {threads} threads: {'; '.join(known)}"
    estimated = []
    if not amounts.counted:
        estimated.append("the number of prompts (what the screens drop is not known yet)")
    if not amounts.answered:
        estimated.append(f"lengths, from the first {SAMPLE} prompts, each answer as long as respond.max_tokens allows")
    if known:
        estimated.append("all times, from these rates")
    if estimated:
        yield f"estimated: {'; '.join(estimated)}"
    unknown = [line.stage for line in lines if line.hours is None]
    if unknown:
        yield f"not in the total: {', '.join(unknown)}, whose time is not estimated"
    if any(line.stage == "capture" and line.state != "finished" for line in lines):
        need = _feature_bytes(run, amounts)
        place = next(parent for parent in (run.out.resolve(), *run.out.resolve().parents) if parent.is_dir())
        free = shutil.disk_usage(place).free
        lack = "" if free > need else ": too little for the features"
        yield f"free on the disk of {run.out}: {_size(free)}{lack}"


def _time(hours: float | None) -> str:
    if hours is None:
        return "?"
    if hours == 0:
        return "-"
    seconds = hours * 3600
    return f"{hours:.2f} h" if hours >= 0.1 else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
