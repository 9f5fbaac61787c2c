"""What Vertex AI asks of a container: a port and two routes from the environment, and bodies of two kinds.

    rawPredict   {"messages": [...]} or {"prompt": ...}            as the other endpoints take them, streams included
    predict      {"instances": [BODY, ...], "parameters": {...}}   ->   {"predictions": [REPLY, ...]}

Both come by the same route. A body may leave out `model`, for an endpoint has one alone. `parameters` are those of
every instance that does not say otherwise; a reply is the whole object that the other endpoints give. Source: Vertex
AI's "Custom container requirements for inference".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from eyas.base.errors import UsageError
from eyas.server.http_errors import bad_request, to_validation_error
from eyas.server.openai_requests import MAX_CHOICES, ChatRequest, CompletionRequest

PORT_VARIABLE, HEALTH_VARIABLE, PREDICT_VARIABLE = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"
STORAGE_VARIABLE = "AIP_STORAGE_URI"
KEYS = ("instances", "parameters")

Instances = Sequence[ChatRequest | CompletionRequest]


@dataclass(frozen=True)
class VertexConfig:
    """Where Vertex AI reaches the container; a route is None where it names none."""

    port: int
    health_route: str | None = None
    predict_route: str | None = None


def read_vertex_config(environment: Mapping[str, str]) -> VertexConfig | None:
    """The contract, None outside of Vertex AI. UsageError for a port or a route that is none."""
    text = environment.get(PORT_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise UsageError(f"{PORT_VARIABLE}={text}", "a port", "correct the container's ports")
    for name in (HEALTH_VARIABLE, PREDICT_VARIABLE):
        route = environment.get(name)
        if route is not None and (not route.startswith("/") or set(route) & set("{}?#* ")):
            raise UsageError(f"{name}={route}", "a path that starts with /", "correct the container's routes")
    health, predict = environment.get(HEALTH_VARIABLE), environment.get(PREDICT_VARIABLE)
    return VertexConfig(int(text), health, predict)


def is_predict_body(raw: Any) -> bool:
    """Whether a body is that of predict. ApiError where it is no object."""
    if not isinstance(raw, dict):
        raise bad_request("a body that is no object", "instances, messages or a prompt", "correct it")
    return "instances" in raw


def parse_body(raw: dict[str, Any], model: str, place: tuple[str | int, ...] = ()) -> ChatRequest | CompletionRequest:
    """One body, by whether it has messages or a prompt. ApiError that names the parameter, below `place`."""
    kind = ChatRequest if "messages" in raw else CompletionRequest
    if "messages" not in raw and "prompt" not in raw:
        found = f"neither messages nor a prompt in {_dotted(place) or 'the body'}"
        raise bad_request(found, "one of the two, or instances", "add it", code="missing_parameter")
    try:
        return kind.model_validate({"model": model, **raw})
    except ValidationError as error:
        whole: Any = raw
        for part in reversed(place):  # the errors are placed in the whole body
            whole = {part: whole} if isinstance(part, str) else [None] * part + [whole]
        errors = [{**one, "loc": ("body", *place, *one["loc"])} for one in error.errors(include_url=False)]
        raise to_validation_error(errors, whole, kind.model_fields) from None


def parse_instances(raw: dict[str, Any], model: str) -> Instances:
    """The bodies of predict, one at least. ApiError."""
    unknown = next((key for key in raw if key not in KEYS), None)
    if unknown is not None:
        found = f"the unknown parameter {unknown[:60]} beside instances"
        raise bad_request(found, "parameters", "put it into parameters", param=unknown[:60], code="unknown_parameter")
    instances, parameters = raw["instances"], raw.get("parameters")
    if not isinstance(instances, list) or not all(isinstance(one, dict) for one in instances):
        raise bad_request("instances that are no objects", "a list of objects", "correct it", param="instances")
    if not 1 <= len(instances) <= MAX_CHOICES:
        found = f"{len(instances)} instances"
        raise bad_request(found, f"1 to {MAX_CHOICES}", "send several calls", param="instances")
    if parameters is not None and not isinstance(parameters, dict):
        raise bad_request("parameters that are no object", "an object", "correct it", param="parameters")
    bodies = []
    for number, one in enumerate(instances):
        body = parse_body({**(parameters or {}), **one}, model, ("instances", number))
        if body.stream:
            raise bad_request("stream = true in predict", "a single answer", "call streamRawPredict", param="stream")
        bodies.append(body)
    return bodies


def _dotted(place: tuple[str | int, ...]) -> str:
    return ".".join(map(str, place))
