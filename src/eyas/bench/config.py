"""The recipe keys `bench.*` and `tune.*`, and the keys `client.*` of `eyas bench --url`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.base.errors import UsageError
from eyas.speculation.arms import default_arms
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

HEADLESS_ARM = re.compile(r"(lookup|model)([1-9])")  # an arm that drafts chains without the head
SYNTHETIC_WORDS = 256
LOAD_MINIMUM = {
    "synthetic_words": 1,
    "max_tokens": 2,  # an answer of one token has no TPOT
    "repeats": 1,
    "concurrency": 1,
    "requests_per_stream": 1,
}


@dataclass(frozen=True)
class Slo:
    """The limits of a request, in milliseconds. Goodput counts the requests that meet all; None sets no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """True if there is any limit."""
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.e2e_ms))


@dataclass(frozen=True)
class BenchConfig:
    """The keys `bench.*`. The dtype is not among them: the target is measured as it was loaded.

    prompts               None: the prompts held out from training; builtin:eval: the evaluation set of eyas; synthetic:
                          random words, synthetic_words of them; or a file of any form that `prompts.source` accepts
    prompts_per_task      prompts of each task, each measured alone
    max_tokens            longest answer, alone and under load
    repeats               runs over the prompts, of which the median per prompt and arm counts; blocks under load
    concurrency           numbers of streams of the closed loop, one point each; empty: not measured
    requests_per_stream   requests of each stream in a block of the closed loop
    rates                 requests per second of the open loop (Poisson), one point each; the engine has as many slots
                          as the largest concurrency (8 without one), further requests wait
    ramp                  first and last rate of an open loop whose rate grows over a block; None: not measured
    block_s               seconds in which an open loop sends the requests of a block
    slo                   limits for goodput
    arms                  further arms under load: a fixed tree or chain (chain3, tree16, ...; see serve.arm), or chains
                          of 3 drafted without the head by prompt lookup (lookup3) or by draft_model (model3)
    draft_model           directory or hub id of a small model with the target's vocabulary
    depth, top_k, nodes   the tree (see tree.shape)
    lossless_prompts      answers compared with the reference in float32; 0: no check
    lossless_tokens       longest of these answers
    lossless_slots        requests in flight while they are generated
    compile               on a CPU: compile the forwards of both arms, as `eyas serve` does; takes about a minute once
    seed                  of the bootstrap, the arrivals and synthetic prompts
    """

    prompts: str | None = None
    synthetic_words: int = SYNTHETIC_WORDS
    prompts_per_task: int = 12
    max_tokens: int = 128
    repeats: int = 3
    concurrency: tuple[int, ...] = (1, 4, 8)
    requests_per_stream: int = 4
    rates: tuple[float, ...] = ()
    ramp: tuple[float, float] | None = None
    block_s: float = 20.0
    slo: Slo = field(default_factory=Slo)
    arms: tuple[str, ...] = ()
    draft_model: str | None = None
    depth: int = 6
    top_k: int = 4
    nodes: int = 16
    lossless_prompts: int = 128
    lossless_tokens: int = 64
    lossless_slots: int = 8
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.shape
        own = {"prompts_per_task": 1, "lossless_prompts": 0, "lossless_tokens": 1, "lossless_slots": 1}
        _require_at_least("bench", self, LOAD_MINIMUM | own)
        _require_positive("bench", self, "rates", "ramp", "block_s")
        names = {arm.name for arm in default_arms()}
        for name in self.arms:
            if name not in names and HEADLESS_ARM.fullmatch(name) is None:
                raise UsageError(
                    f"bench.arms contains the unknown arm {name}",
                    f"Use {', '.join(sorted(names))}, lookup1 to lookup9 or model1 to model9",
                )
            if name.startswith("model") and self.draft_model is None:
                raise UsageError(f"The arm {name} in bench.arms needs a small model", "Set bench.draft_model=DIRECTORY")

    @property
    def shape(self) -> TreeShape:
        """The tree of the speculative arm at one stream."""
        return TreeShape(self.depth, self.top_k, self.nodes)


@dataclass(frozen=True)
class ClientConfig:
    """The keys `client.*`.

    prompts               builtin:eval, synthetic, or a file: JSON lines of any form that `prompts.source` accepts
    limit                 prompts of a file, or of each family of builtin:eval; None: all of a file, 12 of a family
    synthetic_words       words of a synthetic prompt
    ignore_eos            answers continue to max_tokens, so that their lengths do not depend on the text
    model                 its name on the server; None: the only one that the server lists
    stream                answers as streams; false for a server that cannot: then only end-to-end times are measured
    api_key_env           environment variable with the API key
    max_tokens            longest answer
    temperature           at 0, the answers of both arms are compared
    repeats               blocks of each point; a block runs in every arm, in rotated order, on the same prompts
    one_stream            measure each prompt alone, for the results by task
    concurrency           numbers of streams of the closed loop, one point each
    rates                 requests per second of the open loop (Poisson), one point each
    ramp                  first and last rate of an open loop whose rate grows over a block; None: not measured
    requests_per_stream   requests of each stream in a block of the closed loop
    block_s               seconds in which an open loop sends the requests of a block
    warm_up               requests to each arm before a point, not counted
    slo                   limits for goodput
    timeout_s             of one request, in seconds
    seed                  of requests, arrivals and the bootstrap
    """

    prompts: str = "builtin:eval"
    limit: int | None = None
    synthetic_words: int = SYNTHETIC_WORDS
    ignore_eos: bool = False
    model: str | None = None
    stream: bool = True
    api_key_env: str | None = None
    max_tokens: int = 128
    temperature: float = 0.0
    repeats: int = 3
    one_stream: bool = True
    concurrency: tuple[int, ...] = (1, 4, 8)
    rates: tuple[float, ...] = ()
    ramp: tuple[float, float] | None = None
    requests_per_stream: int = 4
    block_s: float = 20.0
    warm_up: int = 2
    slo: Slo = field(default_factory=Slo)
    timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require_at_least("client", self, LOAD_MINIMUM | {"limit": 1, "temperature": 0, "warm_up": 0})
        _require_positive("client", self, "rates", "ramp", "block_s", "timeout_s")


@dataclass(frozen=True)
class TuneConfig:
    """The keys `tune.*`: which trees `eyas tune` compares, and at which concurrency.

    streams        requests at once, one result each
    depth          of the deepest tree and the longest chain
    top_k, nodes   of the trees; top_k 1 stands for chains, whose nodes are their depth and the root
    answers        at most so many held-out answers, on which the trees are drafted
    temperature    None: the stored answers; a number: answers sampled again at it, of at most max_tokens
    batch_tokens   padded tokens of the texts in one forward
    allowance_s    seconds for measuring rounds; batches that do not fit are extrapolated from smaller ones
    compile        on a CPU: compile the forwards, as `eyas serve` does; takes a minute or two once for a pair
    seed           of the choice of answers, their bootstrap and their sampling
    """

    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    depth: int = 8
    top_k: tuple[int, ...] = (1, 2, 4, 8)
    nodes: tuple[int, ...] = (8, 16, 32, 64)
    answers: int = 48
    temperature: float | None = None
    max_tokens: int = 256
    batch_tokens: int = 16384
    allowance_s: float = 60.0
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.sampling
        minimum = {"streams": 1, "depth": 1, "top_k": 1, "nodes": 2, "answers": 1, "max_tokens": 1, "batch_tokens": 1}
        _require_at_least("tune", self, minimum)
        _require_positive("tune", self, "allowance_s")
        for name in ("streams", "top_k", "nodes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise UsageError(f"tune.{name}={list(values)} is empty or repeats a value", f"Change tune.{name}")
        if not self.shapes_by_top_k:
            raise UsageError(
                f"There is no tree of depth {self.depth} with top_k {list(self.top_k)} and nodes {list(self.nodes)}",
                "Add 1 to tune.top_k for chains, or add other numbers to tune.nodes",
            )

    @property
    def sampling(self) -> SamplingParams | None:
        """The sampling of new answers; None keeps the stored ones."""
        return None if self.temperature is None else SamplingParams(self.temperature)

    @property
    def shapes_by_top_k(self) -> dict[int, list[TreeShape]]:
        """The trees to compare: each has more nodes than a chain of its depth, and no more than can exist."""
        shapes: dict[int, list[TreeShape]] = {}
        if 1 in self.top_k:
            shapes[1] = [chain_shape(depth) for depth in range(1, self.depth + 1)]
        for top_k in sorted(set(self.top_k) - {1}):
            trees = [TreeShape(d, top_k, n) for d in range(1, self.depth + 1) for n in sorted(self.nodes)]
            if possible := [tree for tree in trees if tree.depth + 1 < tree.nodes <= tree.candidates + 1]:
                shapes[top_k] = possible
        return shapes


def _require_at_least(table: str, config: Any, minimum: Mapping[str, float]) -> None:
    """Raises UsageError for a value below its minimum. A key without a value passes."""
    for key, least in minimum.items():
        if any(value < least for value in _values(config, key)):
            raise UsageError(f"{table}.{key}={getattr(config, key)} is below {least}", f"Raise {table}.{key}")


def _require_positive(table: str, config: Any, *keys: str) -> None:
    for key in keys:
        if any(not 0 < value < math.inf for value in _values(config, key)):
            raise UsageError(f"{table}.{key}={getattr(config, key)} is not above 0", f"Change {table}.{key}")


def _values(config: Any, key: str) -> tuple[float, ...]:
    value = getattr(config, key)
    return value if isinstance(value, tuple) else () if value is None else (value,)
