"""What rounds cost on this machine, measured on an engine before it serves: the numbers that the budget starts from."""

import dataclasses
import platform
import statistics
from pathlib import Path

import torch

from eyas import __version__
from eyas.base.environment import count_cpus
from eyas.base.provenance import digest_json
from eyas.drafters.eagle3 import Eagle3Drafter
from eyas.engine.engine import Engine
from eyas.engine.model_runner import RoundBatch
from eyas.speculation.arms import Arm
from eyas.speculation.budget import Budget
from eyas.speculation.round_costs import CONTEXT, CostKey, load_or_measure

COST_ROUNDS = 5  # of an arm with each head, beside a first one
READ_ROWS = 256  # rows of text from which the price of one is taken


class CostProfiler:
    """Runs rounds over texts that nobody wrote. All lines share the same slots, so that they need little memory."""

    def __init__(self, engine: Engine, is_canary: bool = False) -> None:
        """is_canary: with the engine's other head."""
        assert engine.is_idle, "a rehearsal needs the engine to itself"
        self.engine = engine
        self.is_canary = is_canary
        pool = engine.kv_cache.pool
        self._columns = min(pool.num_slots, pool.req_to_token_RC.shape[1])

    @property
    def max_context(self) -> int:
        """The longest text that rounds can be rehearsed with."""
        return self._columns - self.engine.lookahead_slots

    def measure_round_s(self, arm: Arm, batch: int, context: int) -> float:
        """Seconds of one round of this arm for so many requests with so many tokens each."""
        nodes, drafts = arm.nodes * batch, (True,) * batch
        if arm.shape is None:
            nodes, drafts = 0, ()
        work = RoundBatch(tuple(range(batch)), arm.shape, nodes, drafts, (0,) * len(drafts), is_canary=self.is_canary)
        while not self.engine.runner.is_warm(work):
            self._run(work, context)
        return self._run(work, context)

    def _run(self, work: RoundBatch, context: int) -> float:
        self._prepare(len(work.req_slots), context)
        return self.engine.stream.launch(lambda: self.engine.runner.round(work)).wait().seconds

    def measure_read_s(self, rows: int) -> float:
        """Seconds in which the head reads so many rows of one text."""
        drafter = self.drafter
        self._prepare(1, rows)
        return self.engine.stream.launch(lambda: drafter.read((0,), (rows,))).wait().seconds

    @property
    def drafter(self) -> Eagle3Drafter:
        """Of the head that is rehearsed."""
        drafter = self.engine.runner.drafter
        assert isinstance(drafter, Eagle3Drafter), "an engine with a head"
        return drafter.of(self.is_canary)

    def _prepare(self, batch: int, context: int) -> None:
        runner, pool = self.engine.runner, self.engine.kv_cache.pool
        ids = torch.arange(context + 1, device=pool.kv.device) % self.engine.target.info.vocab_size

        def prepare() -> None:
            pool.req_to_token_RC[:batch, : self._columns] = torch.arange(1, self._columns + 1, dtype=torch.int32)
            for line in range(batch):
                runner.future_map.start_sequence(line, ids, context)

        self.engine.stream.launch(prepare).wait()


def build_budget(
    engine: Engine, arms: tuple[Arm, ...], cache: Path | None, seed: int = 0, is_canary: bool = False
) -> Budget:
    """A budget over these arms, its costs measured on the engine or read from the cache directory."""
    rehearsal, facts = CostProfiler(engine, is_canary), engine.target.info
    key = CostKey(
        machine=machine_name(engine.kv_cache.pool.kv.device),
        target=digest_json(dataclasses.asdict(facts) | {"name": ""}),
        head=digest_json(dataclasses.asdict(rehearsal.drafter.head.config)),
        dtype=str(engine.kv_cache.pool.kv.dtype),
        threads=torch.get_num_threads(),
        compiled=engine.target.compiled_forward is not None,
        version=f"{__version__}, torch {torch.__version__}",
    )
    table = load_or_measure(key, arms, engine.max_running, rehearsal.max_context, rehearsal.measure_round_s, cache)
    rows = min(READ_ROWS, rehearsal.max_context)
    few_s, many_s = (min(rehearsal.measure_read_s(count) for _ in range(2)) for count in (1, rows))
    row_s = max(many_s - few_s, 0.0) / max(rows - 1, 1)
    return Budget(arms, table, lambda count: few_s + row_s * count, seed)


def canary_costs(engine: Engine, arms: tuple[Arm, ...]) -> dict[str, float]:
    """By arm, seconds of one request's round with the other head over those with the first; {} for equal sizes."""
    rehearsals = [CostProfiler(engine, is_canary) for is_canary in (False, True)]
    configs = [rehearsal.drafter.head.config for rehearsal in rehearsals]
    if configs[0] == configs[1]:
        return {}
    found: dict[str, float] = {}
    for arm in arms:
        if arm.shape is not None:
            context = min(CONTEXT, rehearsals[0].max_context)
            # In turn, so that a machine that slows down slows both.
            turns = [
                [rehearsal.measure_round_s(arm, 1, context) for rehearsal in rehearsals] for _ in range(COST_ROUNDS + 1)
            ]
            main_s, canary_s = (statistics.median(times) for times in zip(*turns[1:], strict=True))
            found[arm.name] = canary_s / main_s
    return found


def machine_name(device: torch.device) -> str:
    """What decides speed: the device's name, and on a CPU how many cores this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {platform.processor()} {count_cpus()} cores"
