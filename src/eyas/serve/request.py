"""What is asked for and what comes back."""

from dataclasses import dataclass, field
from typing import Literal

from eyas.tree.sampling import Sampling
from eyas.tree.stats import RequestRounds

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """One prompt, as token ids of the target's chat template."""

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0


@dataclass
class Answer:
    """A request's tokens as they come; complete when `finish` is set.

    drafted[i] says whether token i was an accepted draft token (False: the target's own, first or bonus).
    Times in seconds after the request was handed in; time_s[i] belongs to token i, several share a round's end.
    """

    request: Request
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def rounds(self) -> RequestRounds:
        """The rounds after the prefill, for `tree.stats`."""
        return RequestRounds(tuple(self.accepted), tuple(self.offered))

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.time_s[0]

    @property
    def tpot_s(self) -> float | None:
        """(end-to-end - TTFT) / (output tokens - 1), as SGLang and vLLM define it; None for a single token."""
        if len(self.time_s) < 2:
            return None
        return (self.time_s[-1] - self.time_s[0]) / (len(self.time_s) - 1)
