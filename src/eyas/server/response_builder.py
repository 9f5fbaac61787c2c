"""Answers of the engine -> replies, whole or in pieces: one class for each of the two endpoints."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from eyas.engine.request import FinishReason, Request, RequestOutput, TokenLogprob
from eyas.server.generation import OutputDelta, RoundTokens
from eyas.server.openai_responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatResponse,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionResponse,
    Delta,
    ReplyFinishReason,
    ResponseMessage,
    ResponseMetrics,
    ResponseModel,
    RoundInfo,
    TokenLogprobs,
    TopLogprob,
    TreeInfo,
    Usage,
)
from eyas.server.token_text import TokenDecoder

MIN_LOGPROB = -9999.0  # OpenAI's number for "very unlikely"; JSON has no minus infinity


@dataclass(frozen=True)
class ResponseHeader:
    """What every reply and chunk of a call begins with, and whether the client wants token ids in it."""

    model: str
    wants_token_ids: bool
    token_decoder: TokenDecoder
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, prefix: Literal["chatcmpl", "cmpl"]) -> dict[str, Any]:
        """id, created and model."""
        return {"id": f"{prefix}-{self.id}", "created": self.created, "model": self.model}

    def token_fields(self, delta: OutputDelta) -> dict[str, Any]:
        """What a chunk's choice says beyond its text, where the client wants it."""
        found: dict[str, Any] = {"token_ids": delta.token_ids} if self.wants_token_ids else {}
        return found if delta.round is None else {**found, "round": self._round_info(delta.round)}

    def _round_info(self, part: RoundTokens) -> RoundInfo:
        tree = None
        if part.tree is not None:
            texts = [self.token_decoder.decode(token).text for token in part.tree.tokens]
            tree = TreeInfo(
                token_ids=list(part.tree.tokens),
                texts=texts,
                parents=list(part.tree.parents),
                path=list(part.tree.path),
            )
        return RoundInfo(texts=list(part.texts), drafted=list(part.drafted), tree=tree)


class ResponseBuilder(Protocol):
    """The shape of an endpoint's replies. usage: the keys `usage` and `metrics` of a chunk that has them."""

    header: ResponseHeader

    def build_response(
        self, answers: Sequence[RequestOutput], usage: Usage, metrics: ResponseMetrics | None
    ) -> ResponseModel:
        """The reply of a call that does not stream."""
        ...

    def build_chunk(self, piece: OutputDelta, request: Request, usage: dict[str, Any]) -> ResponseModel:
        """A chunk with what is new of one answer."""
        ...

    def build_usage_chunk(self, usage: dict[str, Any]) -> ResponseModel:
        """The chunk after all answers, which has no choice."""
        ...


class ChatResponseBuilder:
    """/v1/chat/completions."""

    def __init__(self, envelope: ResponseHeader) -> None:
        self.header = envelope
        self._started: set[int] = set()

    def build_response(
        self, answers: Sequence[RequestOutput], usage: Usage, metrics: ResponseMetrics | None
    ) -> ChatResponse:
        rest: dict[str, Any] = {}
        if self.header.wants_token_ids:
            rest = {"prompt_token_ids": answers[0].request.prompt_ids}
        return ChatResponse(
            **self.header.fields("chatcmpl"),
            **rest,
            object="chat.completion",
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=usage,
            metrics=metrics,
        )

    def _choice(self, index: int, answer: RequestOutput) -> ChatChoice:
        rest = {"token_ids": answer.token_ids} if self.header.wants_token_ids else {}
        return ChatChoice(
            **rest,
            index=index,
            message=ResponseMessage(role="assistant", content=answer.text, refusal=None),
            logprobs=self._logprobs(answer.request, answer.logprobs),
            finish_reason=_finish_reason(answer.finish_reason),
        )

    def build_chunk(self, piece: OutputDelta, request: Request, usage: dict[str, Any]) -> ChatChunk:
        is_first = piece.index not in self._started
        self._started.add(piece.index)
        role: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if self.header.wants_token_ids and len(self._started) == 1 and is_first:
            usage = {**usage, "prompt_token_ids": request.prompt_ids}
        choice = ChatChunkChoice(
            **self.header.token_fields(piece),
            index=piece.index,
            delta=Delta(**role, content=piece.text),
            logprobs=self._logprobs(request, piece.logprobs),
            finish_reason=None if piece.finish is None else _finish_reason(piece.finish),
        )
        fields = self.header.fields("chatcmpl")
        return ChatChunk(**fields, **usage, object="chat.completion.chunk", choices=[choice])

    def build_usage_chunk(self, usage: dict[str, Any]) -> ChatChunk:
        return ChatChunk(**self.header.fields("chatcmpl"), **usage, object="chat.completion.chunk", choices=[])

    def _logprobs(self, request: Request, logprobs: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if request.logprobs is None:
            return None
        content = []
        for one in logprobs:
            top = [self._top(token, value) for token, value in one.top]
            content.append(TokenLogprobs(**self._top(one.token, one.logprob).model_dump(), top_logprobs=top))
        return ChatLogprobs(content=content, refusal=None)

    def _top(self, token: int, logprob: float) -> TopLogprob:
        read = self.header.token_decoder.decode(token)
        return TopLogprob(token=read.text, logprob=max(logprob, MIN_LOGPROB), bytes=read.raw_bytes)


class CompletionResponseBuilder:
    """/v1/completions."""

    def __init__(self, envelope: ResponseHeader) -> None:
        self.header = envelope
        self._offsets: dict[int, int] = {}  # answer -> characters of the tokens that went out

    def build_response(
        self, answers: Sequence[RequestOutput], usage: Usage, metrics: ResponseMetrics | None
    ) -> CompletionResponse:
        return CompletionResponse(
            **self.header.fields("cmpl"),
            object="text_completion",
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=usage,
            metrics=metrics,
        )

    def _choice(self, index: int, answer: RequestOutput) -> CompletionChoice:
        rest: dict[str, Any] = {}
        if self.header.wants_token_ids:
            rest = {"token_ids": answer.token_ids, "prompt_token_ids": answer.request.prompt_ids}
        return CompletionChoice(
            **rest,
            index=index,
            text=answer.text,
            logprobs=self._logprobs(index, answer.request, answer.logprobs),
            finish_reason=_finish_reason(answer.finish_reason),
        )

    def build_chunk(self, piece: OutputDelta, request: Request, usage: dict[str, Any]) -> CompletionChunk:
        ids = self.header.token_fields(piece)
        if self.header.wants_token_ids and piece.index not in self._offsets:
            ids["prompt_token_ids"] = request.prompt_ids
        self._offsets.setdefault(piece.index, 0)
        choice = CompletionChunkChoice(
            **ids,
            index=piece.index,
            text=piece.text,
            logprobs=self._logprobs(piece.index, request, piece.logprobs),
            finish_reason=None if piece.finish is None else _finish_reason(piece.finish),
        )
        return CompletionChunk(**self.header.fields("cmpl"), **usage, object="text_completion", choices=[choice])

    def build_usage_chunk(self, usage: dict[str, Any]) -> CompletionChunk:
        return CompletionChunk(**self.header.fields("cmpl"), **usage, object="text_completion", choices=[])

    def _logprobs(self, index: int, request: Request, logprobs: Sequence[TokenLogprob]) -> CompletionLogprobs | None:
        if request.logprobs is None:
            return None
        read = self.header.token_decoder.decode
        tokens = [read(one.token).text for one in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(token)
        # Two tokens may read the same, parts of characters mostly: the likelier one has the key. The chosen one is in.
        tops = [
            {
                read(token).text: max(value, MIN_LOGPROB)
                for token, value in reversed([*one.top, (one.token, one.logprob)])
            }
            for one in logprobs
        ]
        values = [max(one.logprob, MIN_LOGPROB) for one in logprobs]
        return CompletionLogprobs(tokens=tokens, token_logprobs=values, top_logprobs=tops, text_offset=offsets)


def _finish_reason(finish: FinishReason | None) -> ReplyFinishReason:
    assert finish in ("stop", "length"), finish
    return cast(ReplyFinishReason, finish)
