"""Parses raw responses into samples, after the clock has stopped.

chunks -> server-sent events -> text, token counts, the time of each chunk of text -> RequestSample
"""

import json
from collections.abc import Iterator
from typing import Any

from eyas.base.openai_http import describe_error, error_type
from eyas.bench.client.http_connection import RawResponse
from eyas.bench.request_metrics import RequestSample, SpecDecodeStats

NAMES_STREAM = "its message names stream"


def parse_response(request_id: str, response: RawResponse) -> RequestSample:
    """Returns the sample of a response. A response that cannot be used gives a sample with an error."""
    try:
        return RequestSample(request_id, response.sent_s, response.end_s, **_parse_fields(response))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"the response has another form ({type(error).__name__})"
        return RequestSample(request_id, response.sent_s, response.end_s, error=reason)


def _parse_fields(response: RawResponse) -> dict[str, Any]:
    if response.error is not None:
        return {"error": response.error}
    if response.status != 200:
        error = describe_error(response.status, response.body)
        if 400 <= response.status < 500 and b"stream" in response.body:
            error += f"; {NAMES_STREAM}"
        return {"error": error}
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    fields = _parse_stream(response) if is_stream else _parse_whole(response)
    if "error" not in fields and fields["output_tokens"] is None:
        fields["error"] = "the response has no usage, so its tokens are not counted"
    return fields


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


def _parse_stream(response: RawResponse) -> dict[str, Any]:
    chunk_times_s: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    spec_decode: SpecDecodeStats | None = None
    finish: str | None = None
    for time_s, data in split_events(response):
        if data == "[DONE]":
            break
        value = json.loads(data)
        if value.get("error"):
            name = error_type(data.encode())
            return {"error": "the stream ends with an error" + (f" ({name})" if name else "")}
        usage = value.get("usage") or usage
        spec_decode = _parse_spec_decode(value) or spec_decode
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or {}
            # The text of a reasoning model has other keys; it is generated like any other.
            reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
            if text := reasoning + (delta.get("content") or choice.get("text") or ""):
                chunk_times_s.append(time_s)
                texts.append(text)
            finish = choice.get("finish_reason") or finish
    if not finish:
        error = {"error": "the stream broke off before its finish_reason"}
    else:
        error = {} if chunk_times_s else {"error": "the answer has no text"}
    return _sample_fields(usage, "".join(texts), spec_decode, tuple(chunk_times_s)) | error


def _parse_whole(response: RawResponse) -> dict[str, Any]:
    value = json.loads(response.body)
    choice, usage = value["choices"][0], value.get("usage") or {}
    message = choice.get("message") or {}
    return _sample_fields(usage, message.get("content") or choice.get("text") or "", _parse_spec_decode(value))


def _sample_fields(
    usage: dict[str, Any], text: str, spec_decode: SpecDecodeStats | None, chunk_times_s: tuple[float, ...] = ()
) -> dict[str, Any]:
    return {
        "chunk_times_s": chunk_times_s,
        "prompt_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "text": text,
        "spec_decode": spec_decode,
    }


def _parse_spec_decode(value: dict[str, Any]) -> SpecDecodeStats | None:
    """Parses `metrics.speculative_decoding` of vLLM and eyas, or SGLang's meta_info.

    SGLang puts meta_info beside the choices on its own route, and into a choice on OpenAI's if the request has
    `return_meta_info`. It counts verify steps and output tokens.
    """
    if metrics := (value.get("metrics") or {}).get("speculative_decoding"):
        steps = metrics.get("num_spec_steps") or 0
        histogram = tuple(metrics.get("acceptance_histogram") or ())
        return SpecDecodeStats(steps, metrics.get("num_accepted_draft_tokens") or 0, histogram) if steps else None
    choices = value.get("choices") or [{}]
    info = value.get("meta_info") or choices[0].get("meta_info") or {}
    steps, tokens = info.get("spec_verify_ct") or 0, info.get("completion_tokens") or 0
    return SpecDecodeStats(steps, tokens - steps) if steps and tokens > steps else None
