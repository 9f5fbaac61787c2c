"""One JSON line a request; never what it says."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from eyas.engine.request import RequestOutput
from eyas.tree.stats import acceptance_length


@dataclass
class AccessLogRecord:
    """What the log says about a request. Owned by the gate; the endpoint fills in what the engine did.

    ttft_ms and tpot_ms are those of the first answer; None where they do not exist. error: a fault of ours, with the
    calls that led to it.
    """

    id: str
    method: str
    path: str
    status: int | None = None
    duration_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    acceptance: float | None = None
    finish: str | None = None
    error: str | None = None
    started_s: float = field(default_factory=time.perf_counter)

    def add_outputs(
        self, prompt_tokens: int, output_tokens: int, outputs: Sequence[RequestOutput], is_complete: bool
    ) -> None:
        """The finished answers of a call; not complete: the others were cancelled."""
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        finishes = {str(answer.finish_reason) for answer in outputs} | (set() if is_complete else {"cancelled"})
        self.finish = ",".join(sorted(finishes))
        if outputs:
            self.ttft_ms = outputs[0].ttft_s * 1000
            self.tpot_ms = None if outputs[0].tpot_s is None else outputs[0].tpot_s * 1000
        rounds = [answer.rounds for answer in outputs if answer.accepted]
        self.acceptance = acceptance_length(rounds) if rounds else None

    def to_line(self) -> str:
        """JSON, without what does not apply."""
        self.duration_ms = (time.perf_counter() - self.started_s) * 1000
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        said = {key: value for key, value in asdict(self).items() if value is not None and key != "started_s"}
        figures = {key: round(value, 3) if isinstance(value, float) else value for key, value in said.items()}
        return json.dumps({"time": stamp, **figures})
