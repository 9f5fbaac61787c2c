"""Implements what Vertex AI requires of a container: a port and two routes from environment variables, and two bodies.

    rawPredict   {"messages": [...]} or {"prompt": ...}            as the other routes take them, streams included
    predict      {"instances": [BODY, ...], "parameters": {...}}   ->   {"predictions": [RESPONSE, ...]}

Both kinds of body come to the same route. A body may leave out `model`, because an endpoint has only one model.
`parameters` apply to every instance that does not set them. Each prediction is a whole response of
/v1/chat/completions or /v1/completions. Source: Vertex AI's "Custom container requirements for inference".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from eyas.base.errors import UsageError
from eyas.server.http_errors import bad_request, to_validation_error
from eyas.server.openai_messages import StrictModel
from eyas.server.openai_requests import ChatRequest, CompletionRequest, PredictRequest

PORT_VARIABLE, HEALTH_VARIABLE, PREDICT_VARIABLE = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"
STORAGE_VARIABLE = "AIP_STORAGE_URI"

Model = TypeVar("Model", bound=StrictModel)


@dataclass(frozen=True)
class VertexConfig:
    """The port and the routes that Vertex AI calls; a route is None where Vertex AI names none."""

    port: int
    health_route: str | None = None
    predict_route: str | None = None


def read_vertex_config(environment: Mapping[str, str]) -> VertexConfig | None:
    """Reads port and routes from the environment variables that Vertex AI sets; None if it has not set a port.

    Raises:
        UsageError: a variable has no valid value.
    """
    text = environment.get(PORT_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        problem = f"The environment variable {PORT_VARIABLE} is {text!r}, not a port"
        raise UsageError(problem, "Set it to a number from 0 to 65535")
    for name in (HEALTH_VARIABLE, PREDICT_VARIABLE):
        route = environment.get(name)
        if route is not None and (not route.startswith("/") or set(route) & set("{}?#* ")):
            problem = f"The environment variable {name} is {route!r}, not a path"
            raise UsageError(problem, "Set it to a path such as /predict")
    return VertexConfig(int(text), environment.get(HEALTH_VARIABLE), environment.get(PREDICT_VARIABLE))


def is_predict_body(raw: Any) -> bool:
    """Returns True for a body of predict, False for a body of rawPredict. Raises ApiError if it is no JSON object."""
    if not isinstance(raw, dict):
        raise bad_request("The request body is not a JSON object. Send instances, messages or a prompt.")
    return "instances" in raw


def parse_body(raw: dict[str, Any], model: str, path: tuple[str | int, ...] = ()) -> ChatRequest | CompletionRequest:
    """Parses one body as a chat if it has messages, else as a completion.

    Args:
        raw: the body.
        model: the name of the served model, for a body without `model`.
        path: the path of `raw` in the body of predict, for error messages: ("instances", 0). Empty for rawPredict.

    Raises:
        ApiError: names the wrong parameter.
    """
    if "messages" not in raw and "prompt" not in raw:
        where = ".".join(map(str, path)) or "The request body"
        raise bad_request(f"{where} has neither messages nor a prompt. Add one of them.", code="missing_parameter")
    return _validate(ChatRequest if "messages" in raw else CompletionRequest, {"model": model, **raw}, path)


def parse_instances(raw: dict[str, Any], model: str) -> Sequence[ChatRequest | CompletionRequest]:
    """Parses the instances of a body of predict. Raises ApiError that names the wrong parameter."""
    request = _validate(PredictRequest, raw)
    bodies = []
    for index, instance in enumerate(request.instances):
        body = parse_body({**(request.parameters or {}), **instance}, model, ("instances", index))
        if body.stream:
            raise bad_request("predict does not stream. Call streamRawPredict, or set stream=false.", param="stream")
        bodies.append(body)
    return bodies


def _validate(kind: type[Model], raw: dict[str, Any], path: tuple[str | int, ...] = ()) -> Model:
    """Validates a JSON object that stands at `path` of the whole body."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        whole: Any = raw
        for part in reversed(path):  # errors are located in the whole body
            whole = {part: whole} if isinstance(part, str) else [None] * part + [whole]
        errors = [{**entry, "loc": ("body", *path, *entry["loc"])} for entry in error.errors(include_url=False)]
        raise to_validation_error(errors, whole, kind, len(path)) from None
