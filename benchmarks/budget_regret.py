"""Regret of the budget: the time per token that it loses to the best fixed arm, and to an oracle in each round.

    python benchmarks/budget_regret.py [--target DIR --head DIR] [--prompts FILE] [--streams N ...]

The texts are greedy answers of the target. A replay scores every arm at every position of them with the real head, in
float32, so that all arms see the same texts. The costs are those that this machine measures for the compiled pair: the
rounds of each arm, and the head's reads. A fresh budget then chooses the arm of each round of a simulated server. Each
stream starts its next answer when the last one ends. The measured time of a round, which the budget sees, differs from
the true one by NOISE. Nothing depends on the load of the machine after the costs are measured.

    regret       seconds per token of the budget - those of the other policy
    fixed arm    the same arm in every round; the best one is known only afterwards
    oracle       the arm with the most tokens per second in each round, given the true answer; its head has read
                 everything, for nothing: a bound, not a goal

The time in which the head reads is included: new prompts, and tokens of rounds without drafts. Prefills are left out.
On a server they are another cost of drafts: answers that draft end at different times, so that more forwards read
prompts (`speculation.read_costs`). So fixed arms that draft look better here than on a server with many streams.

Figures are medians of SEEDS simulations, over the first rounds and over the others. Prints one JSON object for each
row, and exits 1 if a row misses its target.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

import torch
from budget_speed import FIRST_OVER_BEST, FIRST_ROUNDS, OVER_BEST
from replay_texts import answer_greedily
from result_rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.workload import BUILTIN, Prompt, interleave_tasks, load_workload
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import CostProfiler, build_budget
from eyas.engine.engine import Engine
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.replay import AnswerSpan, true_continuation
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import StoredHead, read_head, resolve_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.speculation.acceptance_model import AcceptanceModel, AcceptancePrior
from eyas.speculation.acceptance_trace import AcceptanceTrace, trace_BC, trace_from_row
from eyas.speculation.arms import Arm, default_arms
from eyas.speculation.batch_load import BatchLoad, FixedArm, Policy, RoundReport
from eyas.speculation.budget import Budget
from eyas.speculation.round_costs import CostTable
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

NUM_PROMPTS, MAX_TOKENS = 64, 96
TOKENS = 6000  # of each stream and simulation
NOISE = 0.05  # of the logarithm of a round's measured seconds
SEEDS = 5
ARMS = default_arms()

Traces = dict[str, AcceptanceTrace]


@dataclass(frozen=True)
class Answer:
    """An answer, and what each arm accepts at each of its tokens.

    Attributes:
        prompt_tokens: The number of tokens of the prompt.
        traces: For each token of the answer but the last, the acceptance trace of each arm whose root is this token.
    """

    prompt_tokens: int
    traces: Sequence[Traces]

    def num_tokens(self, place: int, arm: Arm) -> int:
        """Returns the number of tokens of a round whose root is the token at `place`, up to the end of the answer."""
        found = 1 if arm.shape is None else len(self.traces[place][arm.name].min_nodes) + 1
        return min(found, len(self.traces) - place)


@dataclass(frozen=True)
class Costs:
    """The true seconds. table: those of rounds. read_s: those in which the head reads a number of tokens."""

    table: CostTable
    read_s: Callable[[int], float]

    def seconds(self, arm: Arm, load: BatchLoad, drafts: Sequence[bool]) -> float:
        """Returns the seconds of a round, with the reads before it. If some requests draft, they cost as if alone."""
        index = ARMS.index(arm)
        count = sum(drafts)
        lag = sum(lag for lag, one in zip(load.draft_lags, drafts, strict=True) if one)
        read_s = self.read_s(lag) if lag else 0.0
        if count in (0, len(drafts)):
            return self.table.seconds_for(index if count else 0, load) + read_s
        more_s = self.table.seconds_at(index, count) - self.table.seconds_at(0, count)
        return self.table.seconds_for(0, load) + more_s + read_s


class Oracle:
    """A policy that knows the answers, and whose head has read them: the arm with the most tokens per second runs."""

    arms = ARMS

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.streams: Sequence[Stream] = ()

    def choose(self, load: BatchLoad) -> Arm:
        """Returns the arm. `streams` are the requests of the round."""

        def rate(arm: Arm) -> float:
            tokens = sum(one.answer.num_tokens(one.place, arm) for one in self.streams)
            return tokens / self.costs.seconds(arm, load, [arm.shape is not None] * len(self.streams))

        return max(ARMS, key=rate)


@dataclass
class Stream:
    """A stream of answers. `place` is the root of its next round; `lag` counts tokens that the head has not read."""

    answers: Iterator[Answer]

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Starts the next answer."""
        self.answer = next(self.answers)
        self.place, self.lag, self.is_new = 0, self.answer.prompt_tokens, True


def simulate(policy: Policy | Oracle, answers: Sequence[Answer], costs: Costs, streams: int, seed: int) -> list[float]:
    """Returns the seconds per token over the first rounds of a server, and over the others."""
    random, order = Random(seed), Random(1000 + seed)

    def endless() -> Iterator[Answer]:
        while True:
            yield order.choice(answers)

    running = [Stream(endless()) for _ in range(streams)]
    for stream in running:  # in the middle of their answers, as on a server that has run for some time
        stream.place = order.randrange(len(stream.answer.traces))
        stream.lag, stream.is_new = stream.answer.prompt_tokens + stream.place, False
    tokens, seconds, rounds = [0, 0], [0.0, 0.0], 0
    while sum(tokens) < TOKENS * streams:
        new = [one for one in running if one.is_new]
        load = BatchLoad(
            tuple(one.answer.prompt_tokens + one.place for one in running),
            tuple(one.lag for one in running),
            new_prompt_tokens=sum(one.lag for one in new),
            num_new=len(new),
        )
        if isinstance(policy, Oracle):
            policy.streams, load = running, replace(load, draft_lags=(0,) * streams)
            decision = FixedArm(policy.choose(load)).decide(load)
        else:
            decision = policy.decide(load)
        arm = decision.arm
        spent_s = costs.seconds(arm, load, decision.drafts)
        traces, count = [], 0
        for stream, drafts in zip(running, decision.drafts, strict=True):
            got = stream.answer.num_tokens(stream.place, arm) if drafts else 1
            if drafts:
                traces.append(stream.answer.traces[stream.place][arm.name])
            stream.place, stream.lag, stream.is_new = stream.place + got, 0 if drafts else stream.lag + got, False
            count += got
            if stream.place >= len(stream.answer.traces):
                stream.begin()
        part = int(rounds >= FIRST_ROUNDS)
        tokens[part], seconds[part], rounds = tokens[part] + count, seconds[part] + spent_s, rounds + 1
        if not isinstance(policy, Oracle):
            measured_s = spent_s * math.exp(random.gauss(0, NOISE))
            policy.observe(RoundReport(decision, measured_s, count, tuple(traces)))
    return [spent / max(got, 1) for spent, got in zip(seconds, tokens, strict=True)]


def rows_at(streams: int, answers: Sequence[Answer], costs: Costs, prior: AcceptancePrior) -> Iterator[Row]:
    """Yields the rows of one number of streams."""

    def run(build: Callable[[int], Policy | Oracle]) -> list[list[float]]:
        return [simulate(build(seed), answers, costs, streams, seed) for seed in range(SEEDS)]

    fixed = {arm.name: run(lambda _, arm=arm: FixedArm(arm)) for arm in ARMS}
    oracle = run(lambda _: Oracle(costs))
    auto = run(lambda seed: Budget(ARMS, costs.table, costs.read_s, seed, AcceptanceModel(ARMS, prior)))
    at = f"{streams} streams" if streams > 1 else "1 stream"
    for part, (when, least) in enumerate((("first rounds", FIRST_OVER_BEST), ("later rounds", OVER_BEST))):
        best = min(fixed, key=lambda name: median(one[part] for one in fixed[name]))
        against: Mapping[str, list[list[float]]] = {
            f"the best fixed arm ({best})": fixed[best],
            "the oracle of each round": oracle,
        }
        for name, other in against.items():
            lost = [one[part] - its[part] for one, its in zip(auto, other, strict=True)]
            share = median(its[part] / one[part] for one, its in zip(auto, other, strict=True))
            is_goal = other is not oracle
            yield Row(
                f"regret against {name}, {when}, {at}, microseconds a token",
                round(1e6 * median(lost), 1),
                f"at least {least} of its tokens per second" if is_goal else "none: a bound",
                share >= least if is_goal else True,
                (round(1e6 * min(lost), 1), round(1e6 * max(lost), 1)),
                f"{share:.3f} of its tokens per second; the budget takes {1e6 * median(one[part] for one in auto):.0f}",
            )


@torch.inference_mode()
def score(prompts: Sequence[Prompt], target: Target, stored: StoredHead) -> list[Answer]:
    """Returns the greedy answers with the traces of every arm. target, stored: in float32."""
    rows, spans = answer_greedily(target, prompts, MAX_TOKENS)
    traces: list[list[Traces]] = [[{} for _ in range(span.end - 1 - span.start)] for span in spans]
    for arm in ARMS:
        if arm.shape is None:
            continue
        drafter = build_head_drafter(stored.head, stored.vocab, target, arm.shape, rows)
        for place in range(max(map(len, traces))):
            some = [number for number, own in enumerate(traces) if place < len(own)]
            positions = [spans[number].start - 1 + place for number in some]
            tree = drafter.draft(some, positions)
            for index, (number, position) in enumerate(zip(some, positions, strict=True)):
                traces[number][place][arm.name] = trace(arm, tree, index, spans[number], position)
        print(f"scored {arm.name}", file=sys.stderr, flush=True)
    return [Answer(span.start, own) for span, own in zip(spans, traces, strict=True) if own]


def trace(arm: Arm, trees: Tree, index: int, span: AnswerSpan, position: int) -> AcceptanceTrace:
    """Returns what one of the trees shows. Tokens after the end of the answer are rejected."""
    one = slice(index, index + 1)
    tree = Tree(
        trees.tokens_BM[one],
        trees.parents_BM[one],
        trees.depths_BM[one],
        trees.scores_BM[one],
        trees.valid_BM[one],
        trees.depth,
    )
    truth_1S = true_continuation(span, position, tree.depth + 1)[None]
    path = verify(tree, truth_1S.gather(1, tree.depths_BM))
    length = int(path.lengths_B[0])
    row = [] if arm.is_chain else trace_BC(tree, path, 1)[0].tolist()
    return trace_from_row(arm, position + 1, length, row)


def main() -> int:
    """Scores the arms, measures the costs and prints all rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 32])
    parsed = parser.parse_args()
    head_dir = resolve_head(parsed.head)
    exact = read_head(head_dir, torch.float32)
    target = Target.load(parsed.target, torch.float32, exact.config.aux_layer_ids)
    require_fit(exact, target.info, target.digest)
    config = BenchConfig(prompts=parsed.prompts, prompts_per_task=NUM_PROMPTS, max_tokens=MAX_TOKENS)
    prompts = interleave_tasks(load_workload(config, None, target)[0])[:NUM_PROMPTS]
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    answers = score(prompts, target, exact)
    costs, prior = measure_costs(parsed.target, head_dir, max(parsed.streams), context)
    return print_rows(row for streams in parsed.streams for row in rows_at(streams, answers, costs, prior))


def measure_costs(target_dir: str, head_dir: Path, streams: int, context: int) -> tuple[Costs, AcceptancePrior]:
    """Returns the costs of the compiled pair in bfloat16, and the acceptance of the head on its held-out answers."""
    stored = read_head(head_dir, torch.bfloat16)
    target = Target.load(target_dir, torch.bfloat16, stored.config.aux_layer_ids)
    draft = replace(Eagle3Spec.on(target.model.device, stored, TreeShape(6, 4, 16)), arms=ARMS)
    compile_pair(target, draft.head)
    engine = Engine(target, [draft], streams, context)
    with tempfile.TemporaryDirectory() as directory:
        budget = build_budget(engine, ARMS, Path(directory))
    return Costs(budget.latency_model.table, budget.read_costs.seconds), CostProfiler(engine, 0).acceptance_prior


if __name__ == "__main__":
    sys.exit(main())
