"""The endpoints."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from eyas import __version__
from eyas.base.errors import EyasError
from eyas.engine.async_engine import AsyncEngine
from eyas.engine.request import Request as EngineRequest
from eyas.server.access_log import AccessLogRecord
from eyas.server.auth import RECORD_KEY, AuthMiddleware
from eyas.server.chat_page import add_ui_routes
from eyas.server.generation import Generation, cancel_on_disconnect
from eyas.server.http_errors import ApiError, install_error_handlers, shutting_down_error
from eyas.server.metrics import CONTENT_TYPE, ServerMetrics
from eyas.server.observer import OutputObserver
from eyas.server.openai_requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
    TokenizeRequest,
)
from eyas.server.openai_responses import (
    ChatResponse,
    CompletionResponse,
    ErrorResponse,
    HealthResponse,
    ModelCard,
    ModelList,
    ResponseModel,
    TokenizeResponse,
)
from eyas.server.request_body import JsonRoute
from eyas.server.request_parser import RequestParser, check_model
from eyas.server.response_builder import ChatResponseBuilder, CompletionResponseBuilder, ResponseBuilder, ResponseHeader
from eyas.server.sse import EventStreamResponse, stream_events
from eyas.server.token_text import TokenDecoder
from eyas.server.usage import UsageCounter, build_metrics
from eyas.server.vertex import Instances, VertexConfig, is_predict_body, parse_body, parse_instances

Result = TypeVar("Result")
Body = TypeVar("Body", bound=GenerationRequest)
Phase = Literal["warming", "ready", "draining"]

REQUEST_MODELS = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
}
COMMON_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorResponse, "description": "No valid API key."},
    500: {"model": ErrorResponse, "description": "The server failed."},
}
BODY_ERRORS = COMMON_ERRORS | {
    400: {"model": ErrorResponse, "description": "A wrong parameter; the message says what to do."},
    404: {"model": ErrorResponse, "description": "Another model than the one that is served."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    415: {"model": ErrorResponse, "description": "The body is not declared as JSON."},
    "4XX": {"model": ErrorResponse, "description": "Any other refusal."},
}
GENERATION_ERRORS = BODY_ERRORS | {
    429: {"model": ErrorResponse, "description": "Too many requests wait; Retry-After says when to come back."},
    503: {"model": ErrorResponse, "description": "Not ready yet, or about to stop."},
}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorResponse, "description": "Not now."}}
EVENT_SCHEMA = {"type": "string", "description": "A chunk as JSON; the last event is [DONE]."}
STREAM_CONTENT = {  # itemSchema is OpenAPI 3.2's, for one event
    "text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": EVENT_SCHEMA}, "required": ["data"]}}
}


@dataclass(frozen=True)
class ApiOptions:
    """served_name: the model's name for clients. keys: none lets everybody in. write: takes the lines of the log.

    vertex: the routes that Vertex AI asks for beside the others. page: whether there is GET /ui. watch: hears of every
    finished answer.
    """

    served_name: str
    api_keys: tuple[str, ...]
    log: Callable[[str], None]
    vertex: VertexConfig | None = None
    has_ui: bool = True
    observer: OutputObserver | None = None


@dataclass(frozen=True)
class _PreparedCall:
    """What one body asks for, read but not handed in."""

    body: GenerationRequest
    generation: Generation
    usage: UsageCounter
    builder: ResponseBuilder


class Api:
    """The server's state beside the engine: its phase, its metrics, the thread that reads bodies."""

    def __init__(self, async_engine: AsyncEngine, options: ApiOptions) -> None:
        target = async_engine.engine.target
        self.async_engine = async_engine
        self.options = options
        self.phase: Phase = "warming"
        self.parser = RequestParser(target, async_engine.engine.max_context)
        self.token_decoder = TokenDecoder(target.tokenizer)
        self.metrics = ServerMetrics(options.served_name)
        self.created = int(time.time())
        self._parser_thread = ThreadPoolExecutor(1, "reader")

    def build_app(self) -> AuthMiddleware:
        """The ASGI application."""
        app = FastAPI(title="eyas", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
        app.router.route_class = JsonRoute
        install_error_handlers(app, REQUEST_MODELS)
        add = app.add_api_route
        open_paths = [*self._add_vertex(app), *(add_ui_routes(app) if self.options.has_ui else ())]
        chat = GENERATION_ERRORS | {
            200: {"model": ChatResponse, "content": STREAM_CONTENT, "description": "The answer."}
        }
        completion = GENERATION_ERRORS | {
            200: {"model": CompletionResponse, "content": STREAM_CONTENT, "description": "The answer."}
        }
        add("/v1/chat/completions", self.chat, methods=["POST"], responses=chat, response_model=None)
        add("/v1/completions", self.completions, methods=["POST"], responses=completion, response_model=None)
        add("/tokenize", self.tokenize, methods=["POST"], responses=BODY_ERRORS, response_model=TokenizeResponse)
        add("/v1/models", self.models, methods=["GET"], responses=COMMON_ERRORS, response_model=ModelList)
        add("/health", self.health, methods=["GET"], responses=NOT_READY, response_model=HealthResponse)
        add("/ready", self.ready, methods=["GET"], responses=NOT_READY, response_model=HealthResponse)
        page = COMMON_ERRORS | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Now."}}
        add("/metrics", self.render_metrics, methods=["GET"], responses=page, response_model=None)
        return AuthMiddleware(app, self.options.api_keys, self.options.log, open_paths)

    def _add_vertex(self, app: FastAPI) -> tuple[str, ...]:
        """Vertex AI's routes, first of all: it may ask for /health, and means by it that requests are welcome."""
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
        """Answer a conversation."""
        return await self._generate(body, request, self.parser.parse_chat, ChatResponseBuilder)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return await self._generate(body, request, self.parser.parse_completion, CompletionResponseBuilder)

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """The ids that the other endpoints would feed."""
        check_model(body.model, self.options.served_name)
        if body.messages is not None:
            ids = await self._run_parser(self.parser.encode_messages, body.messages, body.tools or [])
        else:
            ids = await self._run_parser(self.parser.encode_prompt, body.prompt or "")
        return _json(TokenizeResponse(tokens=list(ids), count=len(ids), max_model_len=self.parser.context))

    async def models(self) -> Response:
        """The one model that is served."""
        model = ModelCard(
            id=self.options.served_name,
            object="model",
            created=self.created,
            owned_by="eyas",
            max_model_len=self.parser.context,
        )
        return _json(ModelList(object="list", data=[model]))

    async def health(self) -> Response:
        """Whether the process works: 503 when the engine has failed and only a restart helps."""
        if self.async_engine.failure is not None:
            message = EyasError("an engine that failed", "one that runs", "restart the server")
            raise ApiError(503, str(message), kind="server_error", code="engine_failed")
        return _json(HealthResponse(status="up"))

    async def ready(self) -> Response:
        """Whether it takes requests."""
        self._require_ready()
        return _json(HealthResponse(status="ready"))

    async def render_metrics(self) -> Response:
        """Metrics in Prometheus' text format."""
        sampled = None if self.options.observer is None else self.options.observer.stats()
        return Response(self.metrics.render(self.async_engine.stats(), sampled), headers={"Content-Type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Vertex AI's predict and rawPredict, which come by one route and differ by their bodies."""
        raw = await request.json()
        if not is_predict_body(raw):
            body = parse_body(raw, self.options.served_name)
            if isinstance(body, ChatRequest):
                return await self.chat(body, request)
            return await self.completions(body, request)
        self._require_ready()
        instances: Instances = parse_instances(raw, self.options.served_name)
        work = []
        for body in instances:
            if isinstance(body, ChatRequest):
                work.append(await self._prepare(body, self.parser.parse_chat, ChatResponseBuilder))
            else:
                work.append(await self._prepare(body, self.parser.parse_completion, CompletionResponseBuilder))
        replies = await self._run_all(work, request)
        return Response(b'{"predictions":[' + b",".join(replies) + b"]}", media_type="application/json")

    async def _generate(
        self,
        body: Body,
        request: Request,
        read: Callable[[Body, str], list[EngineRequest]],
        form_of: Callable[[ResponseHeader], ResponseBuilder],
    ) -> Response:
        self._require_ready()
        work = await self._prepare(body, read, form_of)
        if not body.stream:
            (reply,) = await self._run_all([work], request)
            return Response(reply, media_type="application/json")
        call = work.generation
        call.submit()
        options = body.stream_options or StreamOptions()
        parts = stream_events(
            call,
            work.builder,
            work.usage,
            options,
            lambda: build_metrics(call.outputs, self.async_engine.max_draft_tokens),
        )
        return EventStreamResponse(parts, lambda: self._finish([work], request))

    async def _prepare(
        self,
        body: Body,
        read: Callable[[Body, str], list[EngineRequest]],
        form_of: Callable[[ResponseHeader], ResponseBuilder],
    ) -> _PreparedCall:
        check_model(body.model, self.options.served_name)
        envelope = ResponseHeader(self.options.served_name, bool(body.return_token_ids), self.token_decoder)
        requests = await self._run_parser(read, body, envelope.id)
        return _PreparedCall(
            body, Generation(self.async_engine, requests), UsageCounter(requests, body.n or 1), form_of(envelope)
        )

    async def _run_all(self, work: Sequence[_PreparedCall], request: Request) -> list[bytes]:
        """The replies to all bodies of one HTTP call, in order; all or none are handed in."""

        async def answers() -> list[bytes]:
            replies = []
            for one in work:  # the engine works on all of them at once
                done = await one.generation.collect(one.usage.add)
                metrics = build_metrics(done, self.async_engine.max_draft_tokens)
                replies.append(one.builder.build_response(done, one.usage.usage, metrics).json_bytes())
            return replies

        for number, one in enumerate(work):
            try:
                one.generation.submit()
            except ApiError:
                for earlier in work[:number]:
                    earlier.generation.cancel()
                raise
        try:
            return await cancel_on_disconnect(request.receive, answers())
        finally:
            self._finish(work, request)

    def _finish(self, work: Sequence[_PreparedCall], request: Request) -> None:
        """Cancel what is not finished, and tell the log and the metrics of what is."""
        for one in work:
            one.generation.cancel()
        usages = [one.usage.usage for one in work]
        done = [answer for one in work for answer in one.generation.outputs]
        record: AccessLogRecord = request.scope[RECORD_KEY]
        record.add_outputs(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            done,
            len(done) == sum(len(one.generation.requests) for one in work),
        )
        for answer in done:
            self.metrics.observe(answer)
        watch = self.options.observer
        if watch is not None:
            for one in work:
                for place, answer in one.generation.indexed_outputs:
                    watch.observe(one.body, place, answer)

    async def _run_parser(self, read: Callable[..., Result], *arguments: object) -> Result:
        """Read on the reader's thread, so that a long prompt holds up no other client's tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._parser_thread, read, *arguments)

    def _require_ready(self) -> None:
        if self.phase == "draining":
            raise shutting_down_error()
        if self.phase == "warming":
            message = EyasError("a server that warms up", "one that is ready", "wait for GET /ready")
            raise ApiError(503, str(message), kind="server_error", code="warming_up", headers={"Retry-After": "1"})


def _json(reply: ResponseModel) -> Response:
    return Response(reply.json_bytes(), media_type="application/json")
