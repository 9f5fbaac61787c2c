"""The arms of `eyas bench --url`: which servers and which extra request keys are measured.

--url URL --baseline URL     baseline, speculative        two servers, with and without a head
--url URL, an eyas server    baseline, speculative        speculation "off" and "auto" in the requests
--url URL, any other         server                       nothing to compare
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.openai_http import CHAT_PATH, auth_headers, describe_error, read_api_key
from eyas.bench.client.http_connection import Endpoint, TransferError
from eyas.bench.client.http_request_loops import ChatRequest, LoadGenerator
from eyas.bench.client.spec_decode_metrics import SpecDecodeCounters, parse_counters
from eyas.bench.config import ClientConfig
from eyas.bench.request_metrics import BASELINE, SPECULATIVE
from eyas.bench.workload import ChatPrompt

ONLY_ARM = "server"
INFO_TIMEOUT_S = 30.0  # for the list of models and the counters


@dataclass(frozen=True)
class ServerArm:
    """A load generator, the model that its requests name, and their extra keys.

    metrics_path: the route of the server's counters; None if it has none, or its answers report acceptance.
    """

    load_generator: LoadGenerator
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    metrics_path: str | None = None

    def build_request(self, prompt: ChatPrompt, number: int, config: ClientConfig) -> ChatRequest:
        """Returns request `number` of a run, with the same seed in every arm."""
        body = {
            "model": self.model,
            "messages": [message.to_json() for message in prompt.messages],
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed + number,
            **({"stream": True, "stream_options": {"include_usage": True}} if config.stream else {}),
            **({"ignore_eos": True} if config.ignore_eos else {}),
            **self.extra,
        }
        return ChatRequest(str(number), json.dumps(body).encode())

    def read_counters(self) -> SpecDecodeCounters | None:
        """Returns the current counters; None if they cannot be read."""
        if self.metrics_path is None:
            return None
        try:
            response = self.load_generator.get(self.metrics_path, INFO_TIMEOUT_S)
        except TransferError:
            return None
        return parse_counters(response.body.decode("utf-8", "replace")) if response.status == 200 else None


def discover_arms(
    url: str, baseline: str | None, config: ClientConfig, on_response: Callable[[], None]
) -> dict[str, ServerArm]:
    """Returns the arms by name.

    Raises:
        UsageError: A URL is invalid, or the model must be named.
        InputError: The server does not serve the model, or rejects the API key.
        StageError: The server does not answer.
    """
    arm, is_eyas = _build_arm(url, "--url", config, on_response)
    if baseline is not None:
        return {BASELINE: _build_arm(baseline, "--baseline", config, on_response)[0], SPECULATIVE: arm}
    if is_eyas:
        speculation = {BASELINE: "off", SPECULATIVE: "auto"}
        return {
            name: ServerArm(arm.load_generator, arm.model, {"speculation": value})
            for name, value in speculation.items()
        }
    return {ONLY_ARM: arm}


def _build_arm(url: str, flag: str, config: ClientConfig, on_response: Callable[[], None]) -> tuple[ServerArm, bool]:
    """Returns the arm, and True if eyas serves it."""
    endpoint = Endpoint.parse(url, flag)
    headers = {"Accept": "text/event-stream" if config.stream else "application/json"}
    headers |= auth_headers(read_api_key(config.api_key_env))
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
    arm = ServerArm(generator, model, metrics_path=_metrics_path(endpoint))
    if is_eyas or arm.read_counters() is None:
        arm = ServerArm(generator, model)
    return arm, is_eyas


def _metrics_path(endpoint: Endpoint) -> str | None:
    """Returns the route of the counters; None for a URL that is not that of an API."""
    head, found, _ = endpoint.target.partition(f"/v1{CHAT_PATH}")
    return f"{head}/metrics" if found else None


def _list_models(url: str, endpoint: Endpoint, generator: LoadGenerator) -> Sequence[Mapping[str, Any]]:
    """Returns the models that the server lists; none if it has no such list."""
    head, found, query = endpoint.target.partition(CHAT_PATH)
    if not found:
        return []
    try:
        response = generator.get(f"{head}/models{query}", INFO_TIMEOUT_S)
    except TransferError as error:
        reason = error.reason
        raise StageError(f"The server at {url} does not answer: {reason}", "Start it, or correct --url") from None
    if response.status in (401, 403):
        raise InputError(
            f"The server at {url} rejects the API key: {describe_error(response.status, response.body)}",
            "Set client.api_key_env to the environment variable that holds the key",
        )
    try:
        models = json.loads(response.body)["data"] if response.status == 200 else []
        return [model for model in models if isinstance(model, dict)]
    except (ValueError, KeyError, TypeError):
        return []
