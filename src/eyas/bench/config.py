"""What a measurement does: the recipe keys `bench.*`."""

import re
from dataclasses import dataclass, field

from eyas.base.errors import UsageError
from eyas.bench.client.config import SYNTHETIC_WORDS, Slo, require_positive
from eyas.speculation.arms import default_arms
from eyas.tree.shape import TreeShape

OTHER_ARM = re.compile(r"(lookup|model)([1-9])")


@dataclass(frozen=True)
class BenchConfig:
    """The dtype is no key here: what is measured is the target as it was loaded, and the results name its dtype.

    prompts               None: those held out from training; builtin:eval: our own evaluation set; synthetic: words
                          without sense, synthetic_words of them; or a file of any shape that `prompts.source` takes
    prompts_per_task      prompts of each task at one stream
    max_tokens            longest answer at one stream and under load
    repeats               rounds over the prompts (one stream: the median per prompt and arm counts), blocks under load
    concurrency           streams of the closed loop, one point each; empty: not measured
    requests_per_stream   a block of the closed loop has this many requests for each stream
    rates                 requests a second of the open loop (Poisson), one point each; as many are answered at once as
                          the closed loop has streams at most (8 where there is none), the others wait
    ramp                  first and last rate of an open loop that grows from one to the other over a block; None: none
    block_s               seconds over which requests of a block of the open loop are sent
    slo                   for goodput
    arms                  fixed arms to measure beside the two under load: chain3, tree16, ... (see serve.arm); without
                          the head lookup3 (prompt lookup) and model3 (draft_model), chains of 3
    draft_model           directory or hub id of a small model of the target's vocabulary
    depth, top_k, nodes   the tree (see tree.shape)
    lossless_prompts      answers compared with the reference, in float32; 0: not checked
    lossless_tokens       longest of these answers
    lossless_slots        requests in flight while they are made
    compile               on a CPU: forwards run compiled in both arms, as `eyas serve` runs them; compiled first, which
                          takes about a minute, if they have not been before
    seed                  of the bootstrap, of arrivals, of synthetic prompts
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
        at_least = {
            "prompts_per_task": (self.prompts_per_task, 1),
            "synthetic_words": (self.synthetic_words, 1),
            "max_tokens": (self.max_tokens, 2),  # one token alone has no TPOT
            "repeats": (self.repeats, 1),
            "concurrency": (min(self.concurrency, default=1), 1),
            "requests_per_stream": (self.requests_per_stream, 1),
            "lossless_prompts": (self.lossless_prompts, 0),
            "lossless_tokens": (self.lossless_tokens, 1),
            "lossless_slots": (self.lossless_slots, 1),
        }
        for key, (value, least) in at_least.items():
            if value < least:
                raise UsageError(f"bench.{key} = {value}", f"at least {least}", f"raise bench.{key}")
        require_positive("bench", {"rates": self.rates, "ramp": self.ramp or (), "block_s": (self.block_s,)})

        names = {arm.name for arm in default_arms()}
        for name in self.arms:
            if name not in names and OTHER_ARM.fullmatch(name) is None:
                expected = f"of {', '.join(sorted(names))}, lookup1 to lookup9, model1 to model9"
                raise UsageError(f"bench.arms with {name}", expected, "correct bench.arms")
            if name.startswith("model") and self.draft_model is None:
                raise UsageError(f"bench.arms with {name}", "a small model", "name one: bench.draft_model=DIRECTORY")

    @property
    def shape(self) -> TreeShape:
        """The tree as the engine takes it."""
        return TreeShape(self.depth, self.top_k, self.nodes)
