"""Who is asked: one server as it is, or two, or one eyas server that leaves speculation out when it is told to.

--url URL --baseline URL     baseline, speculative        two servers, with and without a head
--url URL, an eyas server    baseline, speculative        speculation "off" and "auto", request by request
--url URL, any other         server                       no claim is made
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.base.errors import InputError, StageError, UsageError
from eyas.bench.bench_prompts import ChatPrompt
from eyas.bench.client.config import ClientConfig
from eyas.bench.client.http_connection import Endpoint, TransferError
from eyas.bench.client.http_request_loops import ChatRequest, LoadGenerator
from eyas.bench.client.spec_decode_metrics import SpecDecodeCounters, parse_counters
from eyas.bench.single_stream import BASELINE, SPECULATIVE

ONLY_ARM = "server"
ASK_S = 30.0  # for a list of models, or counters
CHAT = "/chat/completions"


@dataclass(frozen=True)
class ServerArm:
    """A client, the model it names, and what else every request says.

    metrics: the route of the server's counters; None where there are none, or its answers say more.
    """

    load_generator: LoadGenerator
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    metrics_path: str | None = None

    def build_request(self, asked: ChatPrompt, number: int, config: ClientConfig) -> ChatRequest:
        """Request `number` of a run: the same seed in every arm."""
        body = {
            "model": self.model,
            "messages": [message.to_json() for message in asked.messages],
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed + number,
            **({"stream": True, "stream_options": {"include_usage": True}} if config.stream else {}),
            **({"ignore_eos": True} if config.ignore_eos else {}),
            **self.extra,
        }
        return ChatRequest(str(number), json.dumps(body).encode())

    def read_counters(self) -> SpecDecodeCounters | None:
        """As they stand now; None where they cannot be read."""
        return None if self.metrics_path is None else _counters(self.load_generator, self.metrics_path)


def discover_arms(
    url: str, baseline: str | None, config: ClientConfig, seen: Callable[[], None]
) -> dict[str, ServerArm]:
    """By name. InputError for a model that is not served or a key that is refused; StageError where nobody answers."""
    arm, is_eyas = _arm(url, config, seen)
    if baseline is not None:
        return {BASELINE: _arm(baseline, config, seen)[0], SPECULATIVE: arm}
    if is_eyas:
        return {
            BASELINE: ServerArm(arm.load_generator, arm.model, {"speculation": "off"}),
            SPECULATIVE: ServerArm(arm.load_generator, arm.model, {"speculation": "auto"}),
        }
    return {ONLY_ARM: arm}


def _arm(url: str, config: ClientConfig, seen: Callable[[], None]) -> tuple[ServerArm, bool]:
    """The arm, and whether eyas serves it."""
    server = Endpoint.parse(url)
    headers = {"Accept": "text/event-stream" if config.stream else "application/json", **_authorization(config)}
    client = LoadGenerator(server, headers, config.timeout_s, seen)
    models = _models(url, server, client)
    names = [str(model.get("id")) for model in models]
    if config.model is None and len(names) != 1:
        raise UsageError(
            f"{len(names)} models at {url}" + (f" ({', '.join(names[:5])})" if names else ", or no list of them"),
            "one, or the name to ask for",
            "set client.model",
        )
    if config.model is not None and names and config.model not in names:
        raise InputError(f"no model {config.model} at {url}", f"one of {', '.join(names[:5])}", "set client.model")
    model = config.model or names[0]
    is_eyas = any(one.get("owned_by") == "eyas" and one.get("id") == model for one in models)
    metrics = None if is_eyas else _metrics(server, client)
    return ServerArm(client, model, metrics_path=metrics), is_eyas


def _authorization(config: ClientConfig) -> dict[str, str]:
    if config.api_key_env is None:
        return {}
    if config.api_key_env not in os.environ:
        raise InputError(f"no environment variable {config.api_key_env}", "the server's key in it", "export it")
    return {"Authorization": f"Bearer {os.environ[config.api_key_env].strip()}"}


def _models(url: str, server: Endpoint, client: LoadGenerator) -> Sequence[Mapping[str, Any]]:
    """What the server lists; nothing where it has no such list and client.model must say."""
    head, found, query = server.target.partition(CHAT)
    if not found:
        return []
    try:
        received = client.get(f"{head}/models{query}", ASK_S)
    except TransferError as error:
        raise StageError(f"no answer from {url}: {error}", "a server that runs", "start it, or correct --url") from None
    if received.status in (401, 403):
        raise InputError(
            f"{url} that refuses the key (HTTP {received.status})",
            "a key that it takes, in the environment variable that client.api_key_env names",
            "set client.api_key_env",
        )
    if received.status != 200:
        return []
    try:
        models = json.loads(received.body)["data"]
        return [model for model in models if isinstance(model, dict)]
    except (ValueError, KeyError, TypeError):
        return []


def _metrics(server: Endpoint, client: LoadGenerator) -> str | None:
    """Where the API's address says that there should be counters, and some are."""
    head, found, _ = server.target.partition(f"/v1{CHAT}")
    target = f"{head}/metrics"
    return target if found and _counters(client, target) is not None else None


def _counters(client: LoadGenerator, target: str) -> SpecDecodeCounters | None:
    try:
        received = client.get(target, ASK_S)
    except TransferError:
        return None
    return parse_counters(received.body.decode("utf-8", "replace")) if received.status == 200 else None
