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
from eyas.server.access_log import Record
from eyas.server.auth import RECORD, Gate
from eyas.server.body_limits import JsonRoute
from eyas.server.chat_page import add_page
from eyas.server.generation import Call, unless_gone
from eyas.server.http_errors import ApiError, install, shutting_down
from eyas.server.metrics import CONTENT_TYPE, ServerMetrics
from eyas.server.observer import Watch
from eyas.server.openai_requests import ChatRequest, CompletionRequest, Generation, StreamOptions, TokenizeRequest
from eyas.server.openai_responses import ChatReply, CompletionReply, ErrorReply, Health, Model, Models, Reply, Tokens
from eyas.server.request_parser import Reader, require_model
from eyas.server.response_builder import ChatForm, CompletionForm, Envelope, Form
from eyas.server.sse import EventStream, events
from eyas.server.token_text import TokenTexts
from eyas.server.usage import Tally, metrics_of
from eyas.server.vertex import Contract, Instances, is_predict, read_body, read_instances

Result = TypeVar("Result")
Body = TypeVar("Body", bound=Generation)
Phase = Literal["warming", "ready", "draining"]

BODIES = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
}
COMMON_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorReply, "description": "No valid API key."},
    500: {"model": ErrorReply, "description": "The server failed."},
}
BODY_ERRORS = COMMON_ERRORS | {
    400: {"model": ErrorReply, "description": "A wrong parameter; the message says what to do."},
    404: {"model": ErrorReply, "description": "Another model than the one that is served."},
    413: {"model": ErrorReply, "description": "The body is too large."},
    415: {"model": ErrorReply, "description": "The body is not declared as JSON."},
    "4XX": {"model": ErrorReply, "description": "Any other refusal."},
}
WORK_ERRORS = BODY_ERRORS | {
    429: {"model": ErrorReply, "description": "Too many requests wait; Retry-After says when to come back."},
    503: {"model": ErrorReply, "description": "Not ready yet, or about to stop."},
}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorReply, "description": "Not now."}}
EVENT = {"type": "string", "description": "A chunk as JSON; the last event is [DONE]."}
STREAM = {  # itemSchema is OpenAPI 3.2's, for one event
    "text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": EVENT}, "required": ["data"]}}
}


@dataclass(frozen=True)
class ApiOptions:
    """served_name: the model's name for clients. keys: none lets everybody in. write: takes the lines of the log.

    vertex: the routes that Vertex AI asks for beside the others. page: whether there is GET /ui. watch: hears of every
    finished answer.
    """

    served_name: str
    keys: tuple[str, ...]
    write: Callable[[str], None]
    vertex: Contract | None = None
    page: bool = True
    watch: Watch | None = None


@dataclass(frozen=True)
class _Work:
    """What one body asks for, read but not handed in."""

    body: Generation
    call: Call
    tally: Tally
    form: Form


class Api:
    """The server's state beside the engine: its phase, its metrics, the thread that reads bodies."""

    def __init__(self, service: AsyncEngine, options: ApiOptions) -> None:
        target = service.engine.target
        self.service = service
        self.options = options
        self.phase: Phase = "warming"
        self.reader = Reader(target, service.engine.max_context)
        self.texts = TokenTexts(target.tokenizer)
        self.metrics = ServerMetrics(options.served_name)
        self.created = int(time.time())
        self._thread = ThreadPoolExecutor(1, "reader")

    def app(self) -> Gate:
        """The ASGI application."""
        app = FastAPI(title="eyas", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
        app.router.route_class = JsonRoute
        install(app, BODIES)
        add = app.add_api_route
        open_paths = [*self._add_vertex(app), *(add_page(app) if self.options.page else ())]
        chat = WORK_ERRORS | {200: {"model": ChatReply, "content": STREAM, "description": "The answer."}}
        completion = WORK_ERRORS | {200: {"model": CompletionReply, "content": STREAM, "description": "The answer."}}
        add("/v1/chat/completions", self.chat, methods=["POST"], responses=chat, response_model=None)
        add("/v1/completions", self.completions, methods=["POST"], responses=completion, response_model=None)
        add("/tokenize", self.tokenize, methods=["POST"], responses=BODY_ERRORS, response_model=Tokens)
        add("/v1/models", self.models, methods=["GET"], responses=COMMON_ERRORS, response_model=Models)
        add("/health", self.health, methods=["GET"], responses=NOT_READY, response_model=Health)
        add("/ready", self.ready, methods=["GET"], responses=NOT_READY, response_model=Health)
        page = COMMON_ERRORS | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Now."}}
        add("/metrics", self.prometheus, methods=["GET"], responses=page, response_model=None)
        return Gate(app, self.options.keys, self.options.write, open_paths)

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
        return await self._answer(body, request, self.reader.chat, ChatForm)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return await self._answer(body, request, self.reader.completions, CompletionForm)

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """The ids that the other endpoints would feed."""
        require_model(body.model, self.options.served_name)
        if body.messages is not None:
            ids = await self._read(self.reader.messages, body.messages, body.tools or [])
        else:
            ids = await self._read(self.reader.text, body.prompt or "")
        return _json(Tokens(tokens=list(ids), count=len(ids), max_model_len=self.reader.context))

    async def models(self) -> Response:
        """The one model that is served."""
        model = Model(
            id=self.options.served_name,
            object="model",
            created=self.created,
            owned_by="eyas",
            max_model_len=self.reader.context,
        )
        return _json(Models(object="list", data=[model]))

    async def health(self) -> Response:
        """Whether the process works: 503 when the engine has failed and only a restart helps."""
        if self.service.failure is not None:
            message = EyasError("an engine that failed", "one that runs", "restart the server")
            raise ApiError(503, str(message), kind="server_error", code="engine_failed")
        return _json(Health(status="up"))

    async def ready(self) -> Response:
        """Whether it takes requests."""
        self._require_ready()
        return _json(Health(status="ready"))

    async def prometheus(self) -> Response:
        """Metrics in Prometheus' text format."""
        sampled = None if self.options.watch is None else self.options.watch.sampled()
        return Response(self.metrics.text(self.service.stats(), sampled), headers={"Content-Type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Vertex AI's predict and rawPredict, which come by one route and differ by their bodies."""
        raw = await request.json()
        if not is_predict(raw):
            body = read_body(raw, self.options.served_name)
            if isinstance(body, ChatRequest):
                return await self.chat(body, request)
            return await self.completions(body, request)
        self._require_ready()
        instances: Instances = read_instances(raw, self.options.served_name)
        work = []
        for body in instances:
            if isinstance(body, ChatRequest):
                work.append(await self._begin(body, self.reader.chat, ChatForm))
            else:
                work.append(await self._begin(body, self.reader.completions, CompletionForm))
        replies = await self._whole(work, request)
        return Response(b'{"predictions":[' + b",".join(replies) + b"]}", media_type="application/json")

    async def _answer(
        self,
        body: Body,
        request: Request,
        read: Callable[[Body, str], list[EngineRequest]],
        form_of: Callable[[Envelope], Form],
    ) -> Response:
        self._require_ready()
        work = await self._begin(body, read, form_of)
        if not body.stream:
            (reply,) = await self._whole([work], request)
            return Response(reply, media_type="application/json")
        call = work.call
        call.submit()
        options = body.stream_options or StreamOptions()
        parts = events(
            call, work.form, work.tally, options, lambda: metrics_of(call.done, self.service.max_draft_tokens)
        )
        return EventStream(parts, lambda: self._end([work], request))

    async def _begin(
        self,
        body: Body,
        read: Callable[[Body, str], list[EngineRequest]],
        form_of: Callable[[Envelope], Form],
    ) -> _Work:
        require_model(body.model, self.options.served_name)
        envelope = Envelope(self.options.served_name, bool(body.return_token_ids), self.texts)
        requests = await self._read(read, body, envelope.id)
        return _Work(body, Call(self.service, requests), Tally(requests, body.n or 1), form_of(envelope))

    async def _whole(self, work: Sequence[_Work], request: Request) -> list[bytes]:
        """The replies to all bodies of one HTTP call, in order; all or none are handed in."""

        async def answers() -> list[bytes]:
            replies = []
            for one in work:  # the engine works on all of them at once
                done = await one.call.finished(one.tally.add)
                metrics = metrics_of(done, self.service.max_draft_tokens)
                replies.append(one.form.whole(done, one.tally.usage, metrics).json_bytes())
            return replies

        for number, one in enumerate(work):
            try:
                one.call.submit()
            except ApiError:
                for earlier in work[:number]:
                    earlier.call.cancel()
                raise
        try:
            return await unless_gone(request.receive, answers())
        finally:
            self._end(work, request)

    def _end(self, work: Sequence[_Work], request: Request) -> None:
        """Cancel what is not finished, and tell the log and the metrics of what is."""
        for one in work:
            one.call.cancel()
        usages = [one.tally.usage for one in work]
        done = [answer for one in work for answer in one.call.done]
        record: Record = request.scope[RECORD]
        record.add(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            done,
            len(done) == sum(len(one.call.requests) for one in work),
        )
        for answer in done:
            self.metrics.observe(answer)
        watch = self.options.watch
        if watch is not None:
            for one in work:
                for place, answer in one.call.placed:
                    watch.hear(one.body, place, answer)

    async def _read(self, read: Callable[..., Result], *arguments: object) -> Result:
        """Read on the reader's thread, so that a long prompt holds up no other client's tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, read, *arguments)

    def _require_ready(self) -> None:
        if self.phase == "draining":
            raise shutting_down()
        if self.phase == "warming":
            message = EyasError("a server that warms up", "one that is ready", "wait for GET /ready")
            raise ApiError(503, str(message), kind="server_error", code="warming_up", headers={"Retry-After": "1"})


def _json(reply: Reply) -> Response:
    return Response(reply.json_bytes(), media_type="application/json")
