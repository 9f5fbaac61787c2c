"""Parses raw responses into samples, after the measurement of a block.

chunks -> server-sent events -> text, token counts, the time of each chunk of text -> RequestSample
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from eyas.base.openai_http import describe_error, error_type
from eyas.bench.client.http_connection import RawResponse
from eyas.bench.request_metrics import RequestSample, SpecDecodeStats

NAMES_STREAM = "its message names stream"  # appended to the error of a 4xx response that contains the word "stream"


def parse_response(request_id: str, response: RawResponse) -> RequestSample:
    """Returns the sample of a response. For a failed response, the sample has an `error`."""
    sample = RequestSample(request_id, response.sent_s, response.end_s, error=response.error)
    if sample.error is not None:
        return sample
    if response.status != 200:
        reason = describe_error(response.status, response.body)
        if 400 <= response.status < 500 and b"stream" in response.body:
            reason += f"; {NAMES_STREAM}"
        return replace(sample, error=reason)
    try:
        return _parse_answer(sample, response)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return replace(sample, error=f"the response is not a chat completion ({type(error).__name__})")


def split_events(response: RawResponse) -> Iterator[tuple[float, str]]:
    """Yields the data of each server-sent event with the arrival time of its last byte."""
    rest = b""
    for time_s, chunk in response.chunks:
        rest += chunk
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *events, rest = rest.split(b"\n\n")
        for event in events:
            lines = [line.removeprefix(b"data:").strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield time_s, b"\n".join(lines).decode()


def _parse_answer(sample: RequestSample, response: RawResponse) -> RequestSample:
    """Returns `sample` with the text and token counts of the answer. Raises if the body is not a chat completion."""
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    texts: list[str] = []
    contents: list[str] = []
    chunk_times_s: list[float] = []
    usage: dict[str, Any] = {}
    spec_decode: SpecDecodeStats | None = None
    finish: str | None = None
    for time_s, data in split_events(response) if is_stream else [(response.end_s, response.body.decode())]:
        if data == "[DONE]":
            break
        value = json.loads(data)
        if is_stream and value.get("error"):
            name = error_type(data.encode())
            return replace(sample, error="the stream ends with an error" + (f" ({name})" if name else ""))
        usage = value.get("usage") or usage
        spec_decode = _parse_spec_decode(value) or spec_decode
        for choice in (value.get("choices") or []) if is_stream else [value["choices"][0]]:
            message = choice.get("delta") or choice.get("message") or {}
            # The text of a reasoning model has other keys; it is generated like any other.
            reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
            contents.append(message.get("content") or choice.get("text") or "")
            functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
            calls = [one.get(key) or "" for one in functions for key in ("name", "arguments")]
            if text := "".join([reasoning, contents[-1], *calls]):
                chunk_times_s.append(time_s)
                texts.append(text)
            finish = choice.get("finish_reason") or finish
    error = None
    if is_stream and not finish:
        error = "the stream broke off before its finish_reason"
    elif is_stream and not texts:
        error = "the answer has no text"
    elif usage.get("completion_tokens") is None:
        error = "the response has no usage, so its tokens are not counted"
    return replace(
        sample,
        chunk_times_s=tuple(chunk_times_s) if is_stream else (),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        text="".join(texts),
        content="".join(contents),
        spec_decode=spec_decode,
        error=error,
    )


def _parse_spec_decode(value: dict[str, Any]) -> SpecDecodeStats | None:
    """Parses `metrics.speculative_decoding` of vLLM and eyas, or SGLang's meta_info.

    On SGLang's /generate route, meta_info is beside `choices`. On its OpenAI route, meta_info is in a choice, if the
    request has `return_meta_info`. meta_info holds the number of verify steps and of output tokens.

    Args:
        value: The JSON of a response or of one server-sent event.

    Returns:
        The counts; None if `value` has none.
    """
    if metrics := (value.get("metrics") or {}).get("speculative_decoding"):
        steps = metrics.get("num_spec_steps") or 0
        histogram = tuple(metrics.get("acceptance_histogram") or ())
        return SpecDecodeStats(steps, metrics.get("num_accepted_draft_tokens") or 0, histogram) if steps else None
    choices = value.get("choices") or [{}]
    info = value.get("meta_info") or choices[0].get("meta_info") or {}
    steps, tokens = info.get("spec_verify_ct") or 0, info.get("completion_tokens") or 0
    return SpecDecodeStats(steps, tokens - steps) if steps and tokens > steps else None
