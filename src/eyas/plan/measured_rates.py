"""Rates of this machine: a few seconds of work like that of each stage, on the recipe's own target and random tokens.

B answers at once, T tokens of a row, D hidden, L = 3D captured features.
"""

import statistics
import time
from collections.abc import Callable, Set

import torch

from eyas.costs.cost_model import Amounts, Rates
from eyas.engine.engine import PREFILL_CHUNK, Engine
from eyas.engine.loops import RequestList
from eyas.engine.request import Request, StopCriteria
from eyas.features.extract import PrefillAttend
from eyas.features.layout import Row, taught
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.recipe import Run
from eyas.train.config import head_config
from eyas.train.optimizer import Masters
from eyas.train.teacher import Teacher
from eyas.train.trainer import learn
from eyas.train.ttt import pack

MEASURED_S = 1.0  # of each rate
MEASURED_TOKENS = 2048  # at most so many in one measured forward
MEASURED_PROMPT = 64  # tokens in front of the measured answers; their length hardly matters to the rate
MEASURED_REQUESTS = 8  # for each slot: where answers are short, the measurement may be, too


def measure(run: Run, amounts: Amounts, to_run: Set[str]) -> Rates:
    """Of each stage that would run. A server is not measured: its rate is `plan.respond_tps`, or unknown."""
    positions = run.target.info.max_positions
    length = min(max(4, round(amounts.tokens / max(1, amounts.num_prompts))), positions)
    answer = min(max(2, round(length * amounts.answer_share)), length - 1)
    longest = round(amounts.answer_tokens / max(1, amounts.num_answers))
    reads = {"capture"} if run.recipe.respond.url is not None else {"respond", "capture"}
    reads |= {"train"} if run.recipe.capture.online else set()
    generator = torch.Generator().manual_seed(0)
    return Rates(
        read=_reading(run, length, generator) if to_run & reads else None,
        write=_write_rate(run, longest, generator) if "respond" in to_run else None,
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
    return torch.randint(0, target.info.vocab_size, shape, generator=generator)


def _reading(run: Run, length: int, generator: torch.Generator) -> float:
    """Tokens a second that capture reads."""
    target, most = run.target, min(run.recipe.capture.batch_tokens, MEASURED_TOKENS)
    ids_BT = _random_ids(target, (max(1, most // length), length), generator)
    positions_1T = torch.arange(length)[None]
    with torch.inference_mode():
        second = _seconds(lambda: target.forward(ids_BT, positions_1T, PrefillAttend(), want_aux=True))
    return ids_BT.numel() / second


def _write_rate(run: Run, longest: int, generator: torch.Generator) -> float | None:
    served = run.recipe.respond.url is not None
    return run.recipe.plan.respond_tps if served else _writing(run, longest, generator)


def _writing(run: Run, longest: int, generator: torch.Generator) -> float | None:
    """Tokens a second that respond writes with `respond.batch_size` answers at once, prefill left out.

    longest: tokens of an answer, the mean over the tasks of the most that each may have. None where no answer may be
    longer than the token that prefill gives.
    """
    target, config = run.target, run.recipe.respond
    room = target.info.max_positions
    most = min(max(1, longest), room // 2)
    # Short enough for the prompts of all answers to be read at once: every round is a full one.
    length = max(1, min(MEASURED_PROMPT, PREFILL_CHUNK // config.batch_size, room - most))
    engine = Engine(target, None, config.batch_size, length + most)
    prompts = _random_ids(target, (MEASURED_REQUESTS * config.batch_size, length), generator).tolist()
    stop = StopCriteria(ignore_eos=True)  # random tokens may end a turn at once, again and again
    source = RequestList(Request(str(index), tuple(ids), most, stop=stop) for index, ids in enumerate(prompts))
    num_tokens, spent_s = 0, 0.0
    while spent_s < MEASURED_S and (source.admit(engine, may_wait=False) or not engine.is_idle):
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
    dtype, hidden = DTYPES[config.dtype], target.info.hidden_size
    sizes = head_config(config, target.aux_layer_ids, target.info)
    counts_W = torch.ones(target.info.vocab_size, dtype=torch.int64)
    vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, target.info.eos_ids)
    head = Head.init(sizes, 0).to(dtype)
    masters = Masters(Head.init(sizes, 0), config.weight_decay, config.clip)
    masters.head = head
    teacher = Teacher(target.lm_head, vocab, dtype, target.logit_softcap)
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
