"""What somebody outside may hear of finished answers, and what it says of itself in /metrics (`eyas.monitoring`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from eyas.engine.request import RequestOutput
from eyas.server.openai_requests import ChatRequest, GenerationRequest

OUTCOMES = ("unjudged", "well", "kept", "repeated", "refused", "unreadable", "full", "missed", "failed")
"""unjudged: too few drafted rounds; missed: came while too many waited; failed: the disk."""


@dataclass(frozen=True)
class PromptRecord:
    """A prompt as the client wrote it, a JSON value with the key messages or rendered; None for token ids."""

    record: Any
    task: str | None


@dataclass(frozen=True)
class SamplingStats:
    """outcomes: answers by what became of their prompts. prompts, num_bytes: what lies in the file."""

    outcomes: Mapping[str, int]
    prompts: int
    num_bytes: int


class OutputObserver(Protocol):
    """`monitoring.prompt_sampler.Sampler`."""

    def observe(self, body: GenerationRequest, index: int, output: RequestOutput) -> None:
        """A finished answer to the place-th request of a body; returns at once."""
        ...

    def stats(self) -> SamplingStats:
        """What was done so far."""
        ...


def read_prompt(body: GenerationRequest, index: int) -> PromptRecord:
    """What the `place`-th request of a call answers."""
    task = (body.metadata or {}).get("task")
    if isinstance(body, ChatRequest):
        return PromptRecord({"messages": [message.model_dump(exclude_none=True) for message in body.messages]}, task)
    prompt = getattr(body, "prompt", None)
    if isinstance(prompt, list):
        prompt = prompt[index // (body.n or 1)] if isinstance(prompt[0], str) else None
    return PromptRecord(None if prompt is None else {"rendered": prompt}, task)
