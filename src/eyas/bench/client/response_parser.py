"""What a server answered, read after the clock has stopped.

pieces -> events of the stream -> text, counts, the time of each step -> Sample
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from eyas.bench.client.http_connection import RawResponse

MOST_WORDS = 200  # of a server's message that are repeated


@dataclass(frozen=True)
class SpecDecodeStats:
    """How drafting went, for one answer or by the server's counters, in vLLM's words: steps that drafted, and by number
    of accepted draft tokens."""

    num_steps: int
    num_accepted: int
    histogram: tuple[int, ...] = ()

    @property
    def acceptance_length(self) -> float:
        """Tokens a step, the target's own included."""
        return 1 + self.num_accepted / self.num_steps


@dataclass(frozen=True)
class RequestSample:
    """One answer. Times are absolute, in seconds of one clock.

    steps_s: when each piece of text came; a step of a speculating server is several tokens. Empty where the server
    does not stream. output_tokens: as the server counts them; None where it does not.
    error: why it does not count; None: it does.
    """

    id: str
    sent_s: float
    end_s: float
    chunk_times_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    spec_decode: SpecDecodeStats | None = None
    error: str | None = None

    @property
    def e2e_s(self) -> float:
        """From sending to the last token; of an answer that was not streamed, to its last byte."""
        return (self.chunk_times_s[-1] if self.chunk_times_s else self.end_s) - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first token; None where the answer came whole."""
        return self.chunk_times_s[0] - self.sent_s if self.chunk_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """(end-to-end - TTFT) / (output tokens - 1), as SGLang and vLLM define it; None for a single token."""
        if self.ttft_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


def parse_response(question_id: str, received: RawResponse) -> RequestSample:
    """The answer to one question."""
    times = (received.sent_s, received.end_s)
    if received.error is not None:
        return RequestSample(question_id, *times, error=received.error)
    if received.status != 200:
        return RequestSample(question_id, *times, error=f"HTTP {received.status}{_said(received.body)}")
    is_stream = received.headers.get("content-type", "").startswith("text/event-stream")
    try:
        sample = _streamed(question_id, received) if is_stream else _whole(question_id, received)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return RequestSample(question_id, *times, error=f"an answer in another form ({type(error).__name__}: {error})")
    if sample.error is None and sample.output_tokens is None:
        return replace(sample, error="an answer without usage: its tokens are the server's to count")
    return sample


def split_events(received: RawResponse) -> Iterator[tuple[float, str]]:
    """(time of its last byte, data) of each event of a stream."""
    rest = b""
    for time_s, piece in received.chunks:
        rest += piece
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            lines = [line.removeprefix(b"data:").strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield time_s, b"\n".join(lines).decode()


def _streamed(question_id: str, received: RawResponse) -> RequestSample:
    steps_s: list[float] = []
    text: list[str] = []
    usage: dict[str, Any] = {}
    drafting: SpecDecodeStats | None = None
    finish: str | None = None
    for time_s, data in split_events(received):
        if data == "[DONE]":
            break
        value = json.loads(data)
        if value.get("error"):
            said = _said(data.encode())
            return RequestSample(question_id, received.sent_s, received.end_s, error=f"an error in the stream{said}")
        usage = value.get("usage") or usage
        drafting = _drafting(value) or drafting
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or {}
            # Text of a reasoning model comes under other names; it is generated like any other.
            thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
            words = thought + (delta.get("content") or choice.get("text") or "")
            if words:
                steps_s.append(time_s)
                text.append(words)
            finish = choice.get("finish_reason") or finish
    broken = None if finish else "a stream that broke off before its finish_reason"
    if not broken and not steps_s:
        broken = "an answer without text"
    return RequestSample(
        question_id,
        received.sent_s,
        received.end_s,
        tuple(steps_s),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        "".join(text),
        drafting,
        broken,
    )


def _whole(question_id: str, received: RawResponse) -> RequestSample:
    value = json.loads(received.body)
    choice, usage = value["choices"][0], value.get("usage") or {}
    message = choice.get("message") or {}
    return RequestSample(
        question_id,
        received.sent_s,
        received.end_s,
        (),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        message.get("content") or choice.get("text") or "",
        _drafting(value),
    )


def _drafting(value: dict[str, Any]) -> SpecDecodeStats | None:
    """vLLM's and eyas's `metrics.speculative_decoding`; SGLang's meta_info counts verifications and tokens.

    SGLang has it beside the choices of its own route, and in a choice of OpenAI's where `return_meta_info` was asked.
    """
    if told := (value.get("metrics") or {}).get("speculative_decoding"):
        steps = told.get("num_spec_steps") or 0
        histogram = tuple(told.get("acceptance_histogram") or ())
        return SpecDecodeStats(steps, told.get("num_accepted_draft_tokens") or 0, histogram) if steps else None
    choices = value.get("choices") or [{}]
    told = value.get("meta_info") or choices[0].get("meta_info") or {}
    steps, tokens = told.get("spec_verify_ct") or 0, told.get("completion_tokens") or 0
    return SpecDecodeStats(steps, tokens - steps) if steps and tokens > steps else None


def _said(body: bytes) -> str:
    """The server's own words, cut."""
    try:
        value = json.loads(body)
        error = value.get("error", value) if isinstance(value, dict) else value
        words = error.get("message") if isinstance(error, dict) else error
    except ValueError:
        words = body.decode("utf-8", "replace")
    return f": {' '.join(str(words).split())[:MOST_WORDS]}" if words else ""
