"""Measures, on an idle engine, how many seconds rounds take on this machine. The budget starts from these seconds."""

import dataclasses
import platform
import statistics
from pathlib import Path

import torch

from eyas import __version__
from eyas.base.environment import count_cpus
from eyas.base.progress import Progress
from eyas.base.provenance import digest_json
from eyas.drafters.drafter import Drafter
from eyas.engine.copy_rows import CopyRows
from eyas.engine.cuda_graphs import RoundGraphs
from eyas.engine.engine import Engine
from eyas.engine.runner_data import RoundBatch
from eyas.kernels.cpu_linear import count_threads, is_packed
from eyas.model.head import DraftHead
from eyas.speculation.acceptance_model import DEFAULT_PRIOR, AcceptanceModel, AcceptancePrior
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.budget import Budget
from eyas.speculation.copy_budget import CopyBudget
from eyas.speculation.copy_index import COPY, Copy
from eyas.speculation.round_costs import CONTEXT, TIME_LIMIT_S, CostKey, CostTable, load_or_measure

COST_ROUNDS = 5  # rounds of an arm with each head, after a first one that is not counted
READ_ROWS = 256  # rows of text from which the cost of one row is derived


class CostProfiler:
    """A profiler that times rounds over artificial texts. Requirement: the engine has no requests.

    All request slots use the same KV slots, so profiling needs little KV memory.
    """

    def __init__(self, engine: Engine, drafter: int = 0) -> None:
        assert engine.is_idle, "profiling needs the engine to itself"
        self.engine = engine
        self.drafter = drafter
        pool = engine.kv_cache.pool
        self._columns = min(pool.num_slots, pool.req_to_token_RC.shape[1])

    @property
    def max_context(self) -> int:
        """The number of tokens of the longest text that can be profiled."""
        return self._columns - self.engine.lookahead_slots

    @property
    def head(self) -> DraftHead | None:
        """The profiled head; None if the engine has no head."""
        return self._drafter.head if self.engine.runner.drafters else None

    @property
    def acceptance_prior(self) -> AcceptancePrior:
        """The acceptance of the profiled head on its held-out answers; empty if the engine has no head."""
        return self._drafter.acceptance_prior if self.engine.runner.drafters else DEFAULT_PRIOR

    def measure_round_s(self, arm: Arm, batch: int, context: int) -> float:
        """Runs rounds of this arm for `batch` requests with `context` tokens each, and returns the seconds of the last.

        Rounds that are slower than later ones (before a CUDA graph is captured) run first and are not timed. An arm
        with the name of COPY drafts a copy of as many tokens as its chain.
        """
        nodes, drafts, copies = 0, (), None
        if arm.name == COPY.name:
            copy = Copy(context + 1, (0,) * arm.depth, 0, False, (1.0,) * arm.depth, 0.0)
            nodes, drafts, copies = arm.nodes * batch, (False,) * batch, CopyRows((copy,) * batch, 0, True)
        elif arm.shape is not None:
            nodes, drafts = arm.nodes * batch, (True,) * batch
        lags = (0,) * sum(drafts)
        work = RoundBatch(tuple(range(batch)), arm.shape, nodes, drafts, lags, drafter=self.drafter, copies=copies)
        while not self.engine.runner.is_warm(work):
            self._run(work, context)
        return self._run(work, context)

    def measure_read_s(self, rows: int) -> float:
        """Returns the seconds that the head takes to read `rows` tokens of one text; 0 without a head."""
        if not self.engine.runner.drafters:
            return 0.0
        self._write_texts(1, rows)
        return self.engine.stream.launch(lambda: self._drafter.read((0,), (rows,))).wait().seconds

    @property
    def _drafter(self) -> Drafter:
        return self.engine.runner.drafters[self.drafter]

    def _run(self, work: RoundBatch, context: int) -> float:
        self._write_texts(len(work.req_slots), context)
        seconds = self.engine.stream.launch(lambda: self.engine.runner.round(work)).wait().seconds
        for drafter in self.engine.runner.drafters:
            if drafter.node_scale is not None:  # artificial texts show nothing about acceptance
                self.engine.stream.launch(drafter.node_scale.counts_SDN2.zero_).wait()
        return seconds

    def _write_texts(self, batch: int, context: int) -> None:
        runner, pool = self.engine.runner, self.engine.kv_cache.pool
        ids = torch.arange(context + 1, device=pool.kv.device) % self.engine.target.info.vocab_size

        def write() -> None:
            pool.req_to_token_RC[:batch, : self._columns] = torch.arange(1, self._columns + 1, device=pool.kv.device)
            for req_slot in range(batch):
                runner.future_map.start_sequence(req_slot, ids, context)

        self.engine.stream.launch(write).wait()


def capture_graphs(engine: Engine, arms: tuple[Arm, ...]) -> None:
    """Captures the CUDA graphs of all arms and batch sizes, so that no request waits for it. Does nothing on a CPU.

    It prints its progress. Rounds with sampling are captured at their second use, because there are too many
    combinations of settings.

    Args:
        engine: an idle engine.
        arms: the arms that its policies may choose.
    """
    if engine.runner.graphs is None:
        return
    sizes = sorted({min(RoundGraphs.padded_size(n + 1), engine.max_running) for n in range(engine.max_running)})
    profilers = [CostProfiler(engine, drafter) for drafter in range(max(len(engine.runner.drafters), 1))]
    rounds = [(profiler, arm, size) for size in reversed(sizes) for arm in arms for profiler in profilers]
    with Progress("capture", len(rounds), "CUDA graphs") as bar:
        for profiler, arm, size in rounds:  # the largest first: its memory serves all others
            profiler.measure_round_s(arm, size, 1)
            bar.advance()


def build_budget(
    engine: Engine, arms: tuple[Arm, ...], cache: Path | None, drafter: int = 0, time_limit_s: float = TIME_LIMIT_S
) -> Budget:
    """Returns a budget that chooses among these arms. Measures their costs, or reads them from the cache.

    The budget takes over the acceptance that an earlier budget of this head has learned.

    Args:
        engine: an idle engine. It has a head, or it copies earlier text.
        arms: the arms, ordered by `Arm.nodes`; the first is `off`, and without a head it is the only one.
        cache: directory of cached costs; None to measure always.
        drafter: index of the head that drafts.
        time_limit_s: the time limit of measuring the costs, in seconds; 0 for a rough measurement, which takes a second
            and is not cached.
    """
    profiler, pool = CostProfiler(engine, drafter), engine.kv_cache.pool
    layers = "packed" if is_packed(engine.target.model) else "plain"
    before = engine.policies[drafter]
    known = before.acceptance_model if isinstance(before, Budget) and before.arms == arms else None
    key = CostKey(
        machine=machine_name(pool.kv.device),
        target=digest_json(dataclasses.asdict(engine.target.info) | {"name": ""}),
        head=digest_json(None if profiler.head is None else dataclasses.asdict(profiler.head.config)),
        dtype=str(pool.kv.dtype),
        threads=count_threads(),
        compiled=engine.target.compiled_forward is not None,
        version=f"{__version__}, torch {torch.__version__}, {layers} layers",
    )

    def measure(rounds: tuple[Arm, ...]) -> CostTable:
        limits, time_s = (engine.max_running, profiler.max_context), time_limit_s * len(rounds) / len(arms)
        table = load_or_measure(key, rounds, *limits, profiler.measure_round_s, cache, min(time_s, time_limit_s))
        return table if engine.runner.graphs is None else dataclasses.replace(table, pad=RoundGraphs.padded_size)

    table = measure(arms)
    rows = min(READ_ROWS, profiler.max_context)
    few_s, many_s = (min(profiler.measure_read_s(count) for _ in range(2)) for count in (1, rows))
    row_s = max(many_s - few_s, 0.0) / max(rows - 1, 1)
    model = known or AcceptanceModel(arms, profiler.acceptance_prior)
    if engine.copies is None:
        return Budget(arms, table, lambda count: few_s + row_s * count, acceptance_model=model)
    return CopyBudget(arms, table, lambda count: few_s + row_s * count, measure((OFF, COPY)), acceptance_model=model)


def canary_costs(engine: Engine, arms: tuple[Arm, ...]) -> dict[str, float]:
    """Measures, for each of these arms, the seconds of a round with the second head / those with the first head.

    Args:
        engine: An engine with two heads.
        arms: Arms that draft.

    Returns:
        The ratio by the arm's name; empty if both heads have the same configuration, so that all ratios are 1.
    """
    main, canary = CostProfiler(engine, 0), CostProfiler(engine, 1)
    if main.head is not None and canary.head is not None and main.head.config == canary.head.config:
        return {}
    context = min(CONTEXT, main.max_context)
    costs: dict[str, float] = {}
    for arm in arms:
        # Alternately, so that a machine that slows down slows both.
        seconds = [
            (main.measure_round_s(arm, 1, context), canary.measure_round_s(arm, 1, context))
            for _ in range(COST_ROUNDS + 1)
        ]
        main_s, canary_s = (statistics.median(times) for times in zip(*seconds[1:], strict=True))
        costs[arm.name] = canary_s / main_s
    return costs


def machine_name(device: torch.device) -> str:
    """Returns the GPU's name, or the processor's name and the number of cores that this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {platform.processor()} {count_cpus()} cores"
