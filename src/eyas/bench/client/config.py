"""What `eyas bench --url` does: the keys `client.*`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eyas.base.errors import UsageError

SYNTHETIC_WORDS = 256


def require_positive(table: str, values: Mapping[str, Sequence[float]]) -> None:
    """UsageError for what has to be above 0 and is not."""
    for key, some in values.items():
        if any(value <= 0 for value in some):
            raise UsageError(f"{table}.{key} = {list(some)}", "above 0", f"raise {table}.{key}")


@dataclass(frozen=True)
class Slo:
    """A request counts for goodput if it keeps all of these, in milliseconds; None asks nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is anything to keep."""
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.e2e_ms))


@dataclass(frozen=True)
class ClientConfig:
    """The keys `client.*`.

    prompts               builtin:eval, synthetic, or a file: JSON lines of any shape that `prompts.source` takes
    limit                 prompts of a file, or of each family of builtin:eval; None: all of a file, 12 of a family
    synthetic_words       of a synthetic prompt, and
    ignore_eos            answers go on to max_tokens; for lengths that do not depend on the words
    model                 as the server names it; None: the only one that it lists
    stream                answers piece by piece; false for a server that refuses: then no times within an answer
    api_key_env           the environment variable that holds the key
    max_tokens            longest answer
    temperature           0: answers are compared between arms
    repeats               blocks of each point; a block runs in every arm, in rotated order, on the same prompts
    one_stream            each prompt alone, for the figures by task
    concurrency           streams of the closed loop, one point each
    rates                 requests a second of the open loop (Poisson), one point each
    ramp                  first and last rate of an open loop that grows from one to the other over a block; None: none
    requests_per_stream   of a block of the closed loop
    block_s               seconds over which requests of a block of the open loop are sent
    warm_up               requests of each arm before a point, not counted
    slo                   for goodput
    timeout_s             of one request
    seed                  of requests, arrivals, and the bootstrap
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
        at_least = {
            "limit": (1 if self.limit is None else self.limit, 1),
            "synthetic_words": (self.synthetic_words, 1),
            "max_tokens": (self.max_tokens, 2),  # one token alone has no TPOT
            "temperature": (self.temperature, 0),
            "repeats": (self.repeats, 1),
            "concurrency": (min(self.concurrency, default=1), 1),
            "requests_per_stream": (self.requests_per_stream, 1),
            "warm_up": (self.warm_up, 0),
        }
        for key, (value, least) in at_least.items():
            if value < least:
                raise UsageError(f"client.{key} = {value}", f"at least {least}", f"raise client.{key}")
        above = {
            "block_s": (self.block_s,),
            "timeout_s": (self.timeout_s,),
            "rates": self.rates,
            "ramp": self.ramp or (),
        }
        require_positive("client", above)
