"""The recipe keys `bench.*` and `tune.*`, and the keys `client.*` of `eyas bench --url`."""

import re
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from eyas.base.config import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from eyas.base.errors import UsageError
from eyas.speculation.arms import default_arms
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

HEADLESS_ARM = re.compile(r"(copies|lookup[1-9]|model([1-9]))")  # an arm that drafts chains without the head


@dataclass(frozen=True)
class Slo:
    """The service level objective (SLO): a request counts for goodput if it meets all of these limits.

    Attributes:
        ttft_ms: The maximum time to first token in milliseconds; by default there is no limit.
        tpot_ms: The maximum time per output token in milliseconds; by default there is no limit.
        e2e_ms: The maximum time from the request to the last token in milliseconds; by default there is no limit.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


@dataclass(frozen=True)
class LoadConfig:
    """The keys that `bench.*` and `client.*` have in common.

    Attributes:
        prompts: The prompts: a file of any form that `prompts.source` accepts, "builtin:eval" (eyas's evaluation set),
            "builtin:turns" (long texts, edits and loops of tool calls) or "synthetic" (random words).
        turns: The most answers of each conversation that are asked. Prompts of later answers contain the earlier ones:
            those of the file, or else the target's own. builtin:eval and synthetic ask one answer.
        synthetic_words: The number of words of a synthetic prompt.
        max_tokens: The maximum number of tokens of an answer.
        repeats: The number of runs over the prompts at one stream, whose median is reported, and the number of blocks
            of each point under load. In a block, every arm answers the same prompts, in rotated order.
        concurrency: The numbers of streams of the closed loop, one point for each number; an empty list measures no
            closed loop.
        requests_per_stream: The number of requests of each stream in a block of the closed loop.
        rates: The request rates to measure, in requests per second. Requests are sent at random times (Poisson), also
            if earlier requests still run (open loop). Empty measures none.
        ramp: The first and the last rate of a measurement in which the request rate grows; by default there is none.
        block_s: The number of seconds in which the requests of one block of `rates` or `ramp` are sent.
        seed: The seed of the bootstrap, of the arrivals, of synthetic prompts and of the requests to a server.
    """

    prompts: str | None = None
    turns: PositiveInt = 1
    synthetic_words: PositiveInt = 256
    max_tokens: Annotated[int, Field(ge=2)] = 128  # an answer of one token has no TPOT
    repeats: PositiveInt = 3
    concurrency: tuple[PositiveInt, ...] = (1, 4, 8)
    requests_per_stream: PositiveInt = 4
    rates: tuple[PositiveFloat, ...] = ()
    ramp: tuple[PositiveFloat, PositiveFloat] | None = None
    block_s: PositiveFloat = 20.0
    slo: Slo = field(default_factory=Slo)
    seed: int = 0


@dataclass(frozen=True)
class BenchConfig(LoadConfig):
    """The recipe keys `bench.*`. The target is measured in the dtype of `target.dtype`.

    Attributes:
        prompts: The prompts: a file of any form that `prompts.source` accepts, "builtin:eval" (eyas's evaluation set),
            "builtin:turns" (long texts, edits and loops of tool calls) or "synthetic" (random words); by default the
            prompts that were held out from training.
        rates: The request rates per second of the open loop (Poisson), one point each. The engine runs at most the
            largest number of `bench.concurrency` at once, or 8 if that list is empty; further requests wait.
        prompts_per_task: The number of conversations of each task that are measured, one prompt at a time.
        arms: Further arms that are measured under load: a fixed chain or tree of the head (chain3, tree16, ...), copies
            of earlier text without a head (copies; lookup3 is an old name), or a small model (model3). The number is
            that of draft tokens in a chain, or of nodes in a tree.
        draft_model: The directory or hub id of a small model with the target's vocabulary, for the model arms.
        depth: The number of levels of the draft tree below its root, for the measurement at one stream.
        top_k: The number of nodes that are expanded in each level, and the number of children that are scored for each
            expanded node.
        nodes: The number of nodes that the target verifies in a round, the root included.
        lossless_prompts: The number of answers that are compared with transformers `generate` in float32; 0 skips the
            check.
        lossless_tokens: The maximum number of tokens of an answer that is compared with transformers `generate`.
        lossless_slots: The number of requests that run at once while eyas generates the answers for this comparison.
        compile: Compiles the forwards of both arms, as `eyas serve` does. On a CPU the first run takes about a minute
            longer, on a GPU every run about half a minute.
    """

    prompts_per_task: PositiveInt = 12
    arms: tuple[str, ...] = ()
    draft_model: str | None = None
    depth: int = 6
    top_k: int = 4
    nodes: int = 16
    lossless_prompts: NonNegativeInt = 128
    lossless_tokens: PositiveInt = 64
    lossless_slots: PositiveInt = 8
    compile: bool = False

    def __post_init__(self) -> None:
        _ = self.shape
        names = {arm.name for arm in default_arms()}
        for name in self.arms:
            if name not in names and HEADLESS_ARM.fullmatch(name) is None:
                problem = f"bench.arms contains the unknown arm {name}"
                raise UsageError(problem, f"Use {', '.join(sorted(names))}, copies, or model1 to model9")
            if name.startswith("model") and self.draft_model is None:
                raise UsageError(f"The arm {name} in bench.arms needs a small model", "Set bench.draft_model=DIRECTORY")

    @property
    def shape(self) -> TreeShape:
        """The tree of the speculative arm at one stream."""
        return TreeShape(self.depth, self.top_k, self.nodes)


@dataclass(frozen=True)
class ClientConfig(LoadConfig):
    """The keys `client.*` of `eyas bench --url`.

    Attributes:
        limit: The number of conversations that are used from a file, or from each builtin family; by default all of a
            file, and 12 of each family.
        ignore_eos: Lets answers continue to max_tokens, so that their lengths do not depend on the text.
        model: The name of the model on the server; by default the model that the server lists, if it lists only one.
        stream: Reads answers as streams; false measures only end-to-end times, for a server that cannot stream.
        api_key_env: The environment variable that holds the API key.
        temperature: The sampling temperature; at 0 the answers of both arms are compared.
        one_stream: Measures each prompt alone, which gives the results by task.
        warm_up: The number of warm-up requests to each arm before each point; their times are not counted.
        timeout_s: The time limit of one request in seconds.
    """

    prompts: str = "builtin:eval"
    limit: PositiveInt | None = None
    ignore_eos: bool = False
    model: str | None = None
    stream: bool = True
    api_key_env: str | None = None
    temperature: NonNegativeFloat = 0.0
    one_stream: bool = True
    warm_up: NonNegativeInt = 2
    timeout_s: PositiveFloat = 600.0


@dataclass(frozen=True)
class TuneConfig:
    """The recipe keys `tune.*`: which heads and trees `eyas tune` compares, and at which concurrency.

    Attributes:
        heads: Directories of further heads of any kind that are compared with the head of the run.
        streams: The numbers of concurrent requests; `eyas tune` chooses the best tree for each.
        depth: The depth of the deepest tree and of the longest chain.
        top_k: The values of top_k that are compared; 1 compares chains, which have depth + 1 nodes whatever
            `tune.nodes` is. A block head has no top_k: any value but 1 compares its trees.
        nodes: The numbers of nodes that are compared.
        answers: The maximum number of held-out answers on which the trees are drafted.
        temperature: The temperature at which the target generates new answers to the held-out prompts; by default the
            stored answers are used.
        max_tokens: The maximum number of tokens of a new answer; without `tune.temperature` it has no effect.
        batch_tokens: The number of tokens of the texts in one forward, padding included.
        allowance_s: The number of seconds for measuring the rounds of each head. The times of batches that do not fit
            into these seconds are extrapolated from smaller batches.
        compile: Compiles the forwards, as `eyas serve` does. On a CPU the first run with a target and head takes a
            minute or two longer, on a GPU every run about half a minute.
        seed: The seed of the choice of held-out answers, of the bootstrap and of the sampling of new answers.
    """

    heads: tuple[str, ...] = ()
    streams: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16, 32)
    depth: PositiveInt = 8
    top_k: tuple[PositiveInt, ...] = (1, 2, 4, 8)
    nodes: tuple[Annotated[int, Field(ge=2)], ...] = (8, 16, 32, 64)
    answers: PositiveInt = 48
    temperature: float | None = None
    max_tokens: PositiveInt = 256
    batch_tokens: PositiveInt = 16384
    allowance_s: PositiveFloat = 60.0
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.sampling
        for name in ("heads", "streams", "top_k", "nodes"):
            values = getattr(self, name)
            if (not values and name != "heads") or len(set(values)) < len(values):
                raise UsageError(f"tune.{name}={list(values)} is empty or repeats a value", f"Change tune.{name}")
        if not self.shape_groups():
            sizes = f"top_k {list(self.top_k)} and nodes {list(self.nodes)}"
            fix = "Add 1 to tune.top_k for chains, or add other numbers to tune.nodes"
            raise UsageError(f"There is no tree of depth {self.depth} with {sizes}", fix)

    @property
    def sampling(self) -> SamplingParams | None:
        """The sampling of new answers; None: the stored answers are used."""
        return None if self.temperature is None else SamplingParams(self.temperature)

    def shape_groups(self, max_depth: int | None = None) -> list[list[TreeShape]]:
        """Returns the trees to compare, in lists that are drafted together. Omits trees that cannot branch.

        Args:
            max_depth: The slots of a block head, whose trees come from an exact search for each of `nodes`; None for an
                EAGLE-3 head, whose trees have each `top_k`.
        """
        depths = range(1, min(self.depth, max_depth or self.depth) + 1)
        groups = [[chain_shape(depth) for depth in depths]] if 1 in self.top_k else []
        branching = sorted(set(self.top_k) - {1})
        for top_k in branching if max_depth is None else branching[:1]:
            trees = [TreeShape(d, top_k if max_depth is None else n - 1, n) for d in depths for n in sorted(self.nodes)]
            groups.append([tree for tree in trees if tree.depth + 1 < tree.nodes <= tree.candidates + 1])
        return [group for group in groups if group]
