"""The HTTP routes.

POST /v1/chat/completions, /v1/completions, /v1/responses (as a chat)
    request_body (limits) -> openai_requests (schema) -> request_parser -> generation (engine) -> response_builder
                                                                       -> JSON, or events of sse with stream=true
POST /tokenize      GET /v1/models  /health  /ready  /metrics  /ui      Vertex AI's routes, if it starts the server
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client.core import Metric

from eyas import __version__
from eyas.base.config import load_toml
from eyas.base.provenance import digest_bytes
from eyas.engine.async_engine import AsyncEngine
from eyas.engine.request import RequestOutput
from eyas.server import openai_responses as responses
from eyas.server.auth import RECORD_KEY, TENANT_KEY, AccessLogRecord, AuthMiddleware
from eyas.server.chat_page import add_ui_routes
from eyas.server.generation import Generation, cancel_on_disconnect
from eyas.server.http_errors import ApiError, install_error_handlers, shutting_down, unavailable
from eyas.server.metrics import CONTENT_TYPE, ServerMetrics
from eyas.server.openai_requests import ChatRequest, CompletionRequest, GenerationRequest, TokenizeRequest
from eyas.server.request_body import JsonRoute
from eyas.server.request_parser import RequestParser, check_model
from eyas.server.response_builder import ChatResponseBuilder, CompletionResponseBuilder, ResponseBuilder, ServedModel
from eyas.server.responses_api import ResponsesBuilder, ResponsesResponse, stream_response_events
from eyas.server.responses_api_requests import ResponsesRequest
from eyas.server.sse import EventStreamResponse, stream_events
from eyas.server.vertex import VertexConfig, is_predict_body, parse_body, parse_instances

Result = TypeVar("Result")
Phase = Literal["warming", "ready", "draining"]

REQUEST_MODELS = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
}


ERRORS: dict[str, dict[int | str, dict[str, Any]]] = {
    table: {status: {"model": responses.ErrorResponse, "description": text} for status, text in texts.items()}
    for table, texts in load_toml(Path(__file__).with_name("openapi_errors.toml")).items()
}
COMMON_ERRORS = ERRORS["common"]
BODY_ERRORS = COMMON_ERRORS | ERRORS["body"]
GENERATION_ERRORS = BODY_ERRORS | ERRORS["generation"]
REJECTIONS = {429: "queue_full", 503: "not_ready"}  # HTTP status -> reason
UNCOUNTED_PATHS = ("/metrics", "/health", "/ready")  # called by machines, all the time
EVENT_SCHEMA = {"type": "string", "description": "A chunk or event as JSON. The last chunk is [DONE]."}
STREAM_CONTENT = {  # itemSchema is OpenAPI 3.2's, for one event
    "text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": EVENT_SCHEMA}, "required": ["data"]}}
}


class OutputObserver(Protocol):
    """The interface of an observer of finished outputs that has its own metrics (see monitoring/prompt_sampler.py)."""

    def observe(self, body: GenerationRequest, index: int, output: RequestOutput) -> None:
        """Receives a finished output: number `index` among those of `body`. Requirement: returns without waiting."""
        ...

    def collect(self) -> Iterable[Metric]:
        """Returns the observer's metrics, as a collector of prometheus_client does."""
        ...


@dataclass(frozen=True)
class ApiOptions:
    """Options of the HTTP server, from the command line.

    served_name    the name of the model for clients
    api_keys       the valid keys; without any, every request is let in
    log            receives the lines of the access log
    vertex         the routes that Vertex AI calls beside the others
    has_ui         serve the chat page at /ui
    observer       receives every finished output
    metrics_key    the key of /metrics; None: it needs none
    metrics_port   the port on which /metrics is served without a key; here it needs one of api_keys then
    """

    served_name: str
    api_keys: tuple[str, ...]
    log: Callable[[str], None]
    vertex: VertexConfig | None = None
    has_ui: bool = True
    observer: OutputObserver | None = None
    metrics_key: str | None = None
    metrics_port: int | None = None


@dataclass(frozen=True)
class _PreparedCall:
    """A parsed body with its engine requests, which are not submitted yet."""

    body: GenerationRequest
    generation: Generation
    builder: ResponseBuilder
    build_response: Callable[[Sequence[RequestOutput], responses.Usage], responses.ResponseModel]


class Api:
    """The routes and their state: the phase of the server, its metrics, and the thread that parses bodies."""

    def __init__(self, async_engine: AsyncEngine, options: ApiOptions) -> None:
        target = async_engine.engine.target
        observers = () if options.observer is None else (options.observer,)
        self.async_engine = async_engine
        self.options = options
        self.phase: Phase = "warming"
        name, context = options.served_name, async_engine.engine.max_context
        self.parser = RequestParser(target, context)
        self.model = ServedModel(name, target.tokenizer, async_engine.max_draft_tokens)
        self.metrics = ServerMetrics(name, lambda: async_engine.stats(), context, observers)
        self.card = responses.ModelCard(
            id=name, object="model", created=int(time.time()), owned_by="eyas", max_model_len=context
        )
        self._parser_thread = ThreadPoolExecutor(1, "request-parser")

    def build_app(self) -> AuthMiddleware:
        """Builds the ASGI application."""
        app = FastAPI(title="eyas", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
        app.router.route_class = JsonRoute
        install_error_handlers(app, REQUEST_MODELS)
        add = app.add_api_route
        public_paths = [*self._add_vertex_routes(app), *(add_ui_routes(app) if self.options.has_ui else ())]
        success = {"content": STREAM_CONTENT, "description": "The response, or a stream of chunks."}
        chat = GENERATION_ERRORS | {200: {"model": responses.ChatResponse, **success}}
        completion = GENERATION_ERRORS | {200: {"model": responses.CompletionResponse, **success}}
        add("/v1/chat/completions", self.chat, methods=["POST"], responses=chat, response_model=None)
        add("/v1/completions", self.completions, methods=["POST"], responses=completion, response_model=None)
        tokens = responses.TokenizeResponse
        response = GENERATION_ERRORS | {200: {"model": ResponsesResponse, **success}}
        add("/v1/responses", self.create_response, methods=["POST"], responses=response, response_model=None)
        add("/tokenize", self.tokenize, methods=["POST"], responses=BODY_ERRORS, response_model=tokens)
        add("/v1/models", self.models, methods=["GET"], responses=COMMON_ERRORS, response_model=responses.ModelList)
        add("/v1/messages", self.refuse_messages, methods=["POST"], include_in_schema=False)
        add("/v1/models/{name:path}", self.model_card, methods=["GET"], include_in_schema=False)
        add("/health", self.health, methods=["HEAD"], include_in_schema=False)
        health, status = ERRORS["health"], responses.HealthResponse
        add("/health", self.health, methods=["GET"], responses=health, response_model=status)
        add("/ready", self.ready, methods=["GET"], responses=health, response_model=status)
        text = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "All metrics."}
        page = COMMON_ERRORS | {200: text}
        add("/metrics", self.render_metrics, methods=["GET"], responses=page, response_model=None)
        if self.options.metrics_key is None and self.options.metrics_port is None:
            public_paths.append("/metrics")
        handlers = frozenset(path for route in app.routes if (path := getattr(route, "path", None)))
        keys = {"/metrics": self.options.metrics_key} if self.options.metrics_key else {}
        return AuthMiddleware(app, self.options.api_keys, partial(self._log_response, handlers), public_paths, keys)

    def _log_response(self, handlers: frozenset[str], record: AccessLogRecord) -> None:
        """Logs a response and counts it. handlers: the paths of the routes."""
        self.options.log(record.to_line())
        handler = record.path if record.path in handlers else "none"
        if handler not in UNCOUNTED_PATHS and record.status is not None and record.duration_ms is not None:
            self.metrics.requests.count_response(record.method, handler, record.status, record.duration_ms / 1000)
            if record.status in REJECTIONS:
                self.metrics.requests.count_rejection(REJECTIONS[record.status])

    def _add_vertex_routes(self, app: FastAPI) -> tuple[str, ...]:
        """Adds Vertex AI's routes and returns those that need no key.

        They come first, because Vertex AI may call /health and expects 503 there until the server is ready.
        """
        vertex = self.options.vertex
        if vertex is None:
            return ()
        if vertex.predict_route is not None:
            app.add_api_route(vertex.predict_route, self.predict, methods=["POST"], include_in_schema=False)
        if vertex.health_route is None:
            return ()
        app.add_api_route(vertex.health_route, self.ready, methods=["GET"], include_in_schema=False)
        return (vertex.health_route,)

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Generates the next message of a conversation."""
        return await self._generate(body, request)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Continues a text."""
        return await self._generate(body, request)

    async def create_response(self, body: ResponsesRequest, request: Request) -> Response:
        """Generates the next items of a conversation."""
        self._require_ready()
        call = await self._prepare(body.to_chat(), request)
        assert isinstance(call.builder, ChatResponseBuilder), type(call.builder)
        builder = ResponsesBuilder(body, call.builder)
        events = stream_response_events(call.generation, builder) if body.stream else None
        return await self._respond(replace(call, build_response=builder.build_response), events, request)

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """Returns the token ids of a prompt or of rendered messages."""
        check_model(body.model, self.options.served_name)
        if body.messages is not None:
            parts = (body.messages, body.tools or [], body.chat_template_kwargs)
            ids = await self._on_parser_thread(self.parser.encode_messages, *parts)
        else:
            ids = await self._on_parser_thread(self.parser.encode_prompt, body.prompt or "")
        return _json(responses.TokenizeResponse(tokens=list(ids), count=len(ids), max_model_len=self.parser.context))

    async def refuse_messages(self) -> Response:
        """Refuses Anthropic's API by its name."""
        text = "This server does not have Anthropic's Messages API. Use POST /v1/chat/completions."
        raise ApiError(404, text, code="unknown_url")

    async def models(self) -> Response:
        """Returns the served model."""
        return _json(responses.ModelList(object="list", data=[self.card]))

    async def model_card(self, name: str) -> Response:
        """Returns the served model by its name."""
        check_model(name, self.options.served_name)
        return _json(self.card)

    async def health(self) -> Response:
        """Returns 200 while the engine works, and 503 after it has failed; the server must then be restarted."""
        if self.async_engine.failure is not None:
            text = "The engine stopped after an error. Restart the server; its log has the traceback."
            raise ApiError(503, text, kind="server_error", code="engine_failed")
        return _json(responses.HealthResponse(status="up"))

    async def ready(self) -> Response:
        """Returns 200 while the server accepts requests."""
        self._require_ready()
        return _json(responses.HealthResponse(status="ready"))

    async def render_metrics(self) -> Response:
        """Returns the metrics in Prometheus' text format."""
        return Response(self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Handles Vertex AI's predict and rawPredict, which share a route and differ by their bodies."""
        raw = await request.json()
        if not is_predict_body(raw):
            return await self._generate(parse_body(raw, self.options.served_name), request)
        self._require_ready()
        calls = [await self._prepare(body, request) for body in parse_instances(raw, self.options.served_name)]
        responses = await self._run_all(calls, request)
        return Response(b'{"predictions":[' + b",".join(responses) + b"]}", media_type="application/json")

    async def _generate(self, body: GenerationRequest, request: Request) -> Response:
        self._require_ready()
        call = await self._prepare(body, request)
        events = stream_events(call.generation, call.builder, body.stream_options) if body.stream else None
        return await self._respond(call, events, request)

    async def _respond(self, call: _PreparedCall, events: AsyncIterator[bytes] | None, request: Request) -> Response:
        """Submits a call. Streams its events, or waits for its response body if there are none."""
        if events is None:
            (content,) = await self._run_all([call], request)
            return Response(content, media_type="application/json")
        call.generation.submit()
        return EventStreamResponse(events, lambda: self._finish([call], request))

    async def _prepare(self, body: GenerationRequest, request: Request) -> _PreparedCall:
        check_model(body.model, self.options.served_name)
        builder: ResponseBuilder
        if isinstance(body, ChatRequest):
            tool_use = await self._on_parser_thread(self.parser.tool_use, body)
            builder = ChatResponseBuilder(self.model, bool(body.return_token_ids), tool_use)
        else:
            echoed = await self._on_parser_thread(self.parser.echoed_texts, body)
            builder = CompletionResponseBuilder(self.model, bool(body.return_token_ids), echoed)
        key = "" if body.store is False else request.scope[TENANT_KEY]
        tenant = key and f"{key}/{digest_bytes((body.user or '').encode())}"
        requests = await self._on_parser_thread(self.parser.parse, body, builder.call_id, tenant)
        generation = Generation(self.async_engine, requests, body.n or 1, self.metrics.requests.observe_tokens)
        return _PreparedCall(body, generation, builder, builder.build_response)

    async def _run_all(self, calls: Sequence[_PreparedCall], request: Request) -> list[bytes]:
        """Submits all calls or none, and returns their response bodies in order."""

        async def collect() -> list[bytes]:
            return [  # the engine runs them all at once
                call.build_response(await call.generation.collect(), call.generation.usage).json_bytes()
                for call in calls
            ]

        for number, call in enumerate(calls):
            try:
                call.generation.submit()
            except ApiError:
                for earlier in calls[:number]:
                    earlier.generation.cancel()
                raise
        try:
            return await cancel_on_disconnect(request.receive, collect())
        finally:
            self._finish(calls, request)

    def _finish(self, calls: Sequence[_PreparedCall], request: Request) -> None:
        """Cancels unfinished requests, and passes finished outputs to the access log, the metrics and the observer."""
        for call in calls:
            call.generation.cancel()
        generations = [call.generation for call in calls]
        outputs = [output for generation in generations for output in generation.finished_outputs]
        usages = [generation.usage for generation in generations]
        record: AccessLogRecord = request.scope[RECORD_KEY]
        counts = (sum(usage.prompt_tokens for usage in usages), sum(usage.completion_tokens for usage in usages))
        is_complete = len(outputs) == sum(len(generation.requests) for generation in generations)
        record.add_outputs(*counts, outputs, is_complete)
        for call, generation in zip(calls, generations, strict=True):
            self.metrics.requests.observe_call(generation.finished_outputs, generation.num_choices)
            for index, output in enumerate(generation.outputs):
                if output is None:
                    self.metrics.requests.count_aborted(generation.last_times_s[index] is not None)
                elif self.options.observer is not None:
                    self.options.observer.observe(call.body, index, output)

    async def _on_parser_thread(self, parse: Callable[..., Result], *arguments: object) -> Result:
        """Runs a method of the parser on its thread, so that the event loop keeps sending tokens to other clients."""
        return await asyncio.get_running_loop().run_in_executor(self._parser_thread, parse, *arguments)

    def _require_ready(self) -> None:
        if self.phase == "draining":
            raise shutting_down()
        if self.phase == "warming":
            raise unavailable("The server is warming up. Wait until GET /ready returns 200.", "warming_up")


def _json(response: responses.ResponseModel) -> Response:
    return Response(response.json_bytes(), media_type="application/json")
