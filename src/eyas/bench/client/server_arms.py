"""Chooses the arms of `eyas bench --url`: each arm is a server and the extra keys of its requests.

flags                            arms                     how the arms differ
--url URL --baseline URL         baseline, speculative    two servers, without and with a head
--url URL of an eyas server      baseline, speculative    the request key speculation="off" or "auto"
--url URL of another server      server                   one arm only, no comparison

If the answers do not report acceptance, it is computed from the counters of the server's /metrics (Prometheus):

server    counters                                                       acceptance length
vLLM      draft steps, accepted draft tokens in total and by position    1 + accepted / steps
SGLang    verify steps, and tokens of finished answers                   tokens / steps

The counters are read before and after a block. Their difference includes requests that other clients sent during the
block. SGLang's gauge `sglang:spec_accept_length` is not read, because it covers only the last few steps.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.openai_http import CHAT_PATH, auth_headers, describe_error, read_api_key
from eyas.bench.client.http_connection import Endpoint
from eyas.bench.client.load_generator import LoadGenerator
from eyas.bench.config import ClientConfig
from eyas.bench.load_test import LoadBlock
from eyas.bench.request_metrics import BASELINE, SPECULATIVE, BlockResult, SpecDecodeStats
from eyas.bench.turns import ChatPrompt
from eyas.chat.conversation import Message

ONLY_ARM = "server"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
VERIFICATIONS = "sglang:spec_verify_calls_total"
TOKENS = "sglang:generation_tokens_total"

SpecDecodeCounters = Counter[str | int]
"""Counter name -> count since the server started, summed over labels. BY_POSITION has the position as key."""


@dataclass(frozen=True)
class ServerArm:
    """One arm: a server, and the keys of the requests to it.

    Attributes:
        load_generator: The client of the server.
        model: The value of `model` in every request.
        extra: Further keys of every request.
        metrics_path: The path of the server's counters. None: the server has none, or its answers report acceptance.
    """

    load_generator: LoadGenerator
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    metrics_path: str | None = None

    def run_block(self, block: LoadBlock[ChatPrompt], config: ClientConfig) -> BlockResult:
        """Sends the requests of a block and measures the responses. Request i has the same seed in every arm."""
        bodies = [self._build_body(prompt, block.first + i, config) for i, prompt in enumerate(block.prompts)]
        before = self.read_counters()
        result = self.load_generator.run_block(bodies, block)
        return replace(result, spec_decode=counter_difference(before, self.read_counters()))

    def ask(self, config: ClientConfig, prompt: ChatPrompt) -> Message | None:
        """Returns the content of the answer, without thoughts and tool calls; None if the request failed."""
        (sample,) = self.run_block(LoadBlock([prompt]), config).samples
        return None if sample.error is not None else Message("assistant", sample.content)

    def _build_body(self, prompt: ChatPrompt, number: int, config: ClientConfig) -> bytes:
        body = {
            "model": self.model,
            "messages": [message.to_json() for message in prompt.messages],
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed + number,
            **({"stream": True, "stream_options": {"include_usage": True}} if config.stream else {}),
            **({"ignore_eos": True} if config.ignore_eos else {}),
            **({"tools": prompt.tools} if prompt.tools else {}),
            **self.extra,
        }
        return json.dumps(body).encode()

    def read_counters(self) -> SpecDecodeCounters | None:
        """Returns the current counters; None if they cannot be read."""
        if self.metrics_path is None:
            return None
        response = self.load_generator.get(self.metrics_path)
        if response.error is not None or response.status != 200:
            return None
        return parse_counters(response.body.decode("utf-8", "replace"))


def parse_counters(page: str) -> SpecDecodeCounters | None:
    """Parses a /metrics page. Returns None if it is not of vLLM or SGLang. A missing counter is 0."""
    if "vllm:" not in page and "sglang:" not in page:
        return None
    counters = SpecDecodeCounters()
    try:
        for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
            if sample.name in (DRAFTS, ACCEPTED, VERIFICATIONS, TOKENS):
                counters[sample.name] += int(sample.value)
            elif sample.name == BY_POSITION:
                counters[int(sample.labels["position"])] += int(sample.value)
    except (ValueError, KeyError):  # not in the format of Prometheus
        return None
    return counters


def counter_difference(before: SpecDecodeCounters | None, after: SpecDecodeCounters | None) -> SpecDecodeStats | None:
    """Returns the difference of two readings; None if nothing was drafted or the server restarted between them."""
    if before is None or after is None:
        return None
    counts = SpecDecodeCounters({key: count - before[key] for key, count in after.items()})
    # A server has the counters of one engine; those of the other are 0.
    steps = counts[DRAFTS] + counts[VERIFICATIONS]
    accepted = counts[ACCEPTED] + counts[TOKENS] - counts[VERIFICATIONS]
    if steps <= 0 or accepted < 0:
        return None
    last = max((key for key in counts if isinstance(key, int)), default=-1)
    reached = [counts[position] for position in range(last + 1)]
    histogram = tuple(a - b for a, b in pairwise([steps, *reached, 0])) if reached else ()
    return SpecDecodeStats(steps, accepted, histogram if all(count >= 0 for count in histogram) else ())


def discover_arms(
    url: str, baseline: str | None, config: ClientConfig, on_response: Callable[[], None]
) -> dict[str, ServerArm]:
    """Returns the arms by name, as in the table of the module docstring.

    Args:
        url: The URL of `--url`.
        baseline: The URL of `--baseline`; None without it.
        config: The keys `client.*`.
        on_response: See `LoadGenerator.on_response`.

    Raises:
        UsageError: A URL is invalid, or the server lists several models and client.model is not set.
        InputError: The server does not serve the model, or rejects the API key.
        StageError: The server does not answer.
    """
    arm, is_eyas = _build_arm(url, "--url", config, on_response)
    if baseline is not None:
        return {BASELINE: _build_arm(baseline, "--baseline", config, on_response)[0], SPECULATIVE: arm}
    if is_eyas:
        speculation = {BASELINE: "off", SPECULATIVE: "auto"}
        return {name: replace(arm, extra={"speculation": value}) for name, value in speculation.items()}
    return {ONLY_ARM: arm}


def _build_arm(url: str, flag: str, config: ClientConfig, on_response: Callable[[], None]) -> tuple[ServerArm, bool]:
    """Returns the arm of a server, and True if it is an eyas server. flag: the flag that gives `url`."""
    endpoint = Endpoint.parse(url, flag)
    headers = {"Accept": "text/event-stream" if config.stream else "application/json"}
    headers |= auth_headers(read_api_key(config.api_key_env, url))
    generator = LoadGenerator(endpoint, headers, config.timeout_s, on_response)
    models = _list_models(url, endpoint, generator)
    names = [str(model.get("id")) for model in models]
    if config.model is None and len(names) != 1:
        found = f"lists {len(names)} models ({', '.join(names[:5])})" if names else "lists no models"
        raise UsageError(f"The server at {url} {found}", "Set client.model=NAME")
    if config.model is not None and names and config.model not in names:
        raise InputError(f"The server at {url} does not serve the model {config.model}", f"Set client.model={names[0]}")
    model = config.model or names[0]
    is_eyas = any(one.get("owned_by") == "eyas" and one.get("id") == model for one in models)
    head, is_api, _ = endpoint.target.partition(f"/v1{CHAT_PATH}")
    arm = ServerArm(generator, model, metrics_path=f"{head}/metrics" if is_api else None)
    if is_eyas or arm.read_counters() is None:
        arm = replace(arm, metrics_path=None)
    return arm, is_eyas


def _list_models(url: str, endpoint: Endpoint, generator: LoadGenerator) -> Sequence[Mapping[str, Any]]:
    """Returns the models that the server lists at /v1/models; [] if it has no such list."""
    head, found, query = endpoint.target.partition(CHAT_PATH)
    if not found:
        return []
    response = generator.get(f"{head}/models{query}")
    if response.error is not None:
        raise StageError(f"The server at {url} does not answer: {response.error}", "Start it, or correct --url")
    if response.status in (401, 403):
        problem = f"The server at {url} rejects the API key: {describe_error(response.status, response.body)}"
        raise InputError(problem, "Set client.api_key_env to the environment variable that holds the key")
    try:
        models = json.loads(response.body)["data"] if response.status == 200 else []
        return [model for model in models if isinstance(model, dict)]
    except (ValueError, KeyError, TypeError):
        return []
