"""Builds response bodies and chunks from outputs of the engine: one class for chats and one for completions."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from eyas.chat.render import decode_ids
from eyas.engine.canary import CANARY
from eyas.engine.request import Request, RequestOutput, TokenLogprob
from eyas.server import openai_responses as responses
from eyas.server.generation import OutputDelta
from eyas.server.tool_use import AnswerParser, ToolUse

Json = dict[str, Any]
MIN_LOGPROB = -9999.0  # OpenAI's number for "very unlikely"; JSON has no minus infinity
REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class TokenText:
    """A token as text and as bytes. raw_bytes: None if unknown, as for some tokens that are parts of a character."""

    text: str
    raw_bytes: list[int] | None


class TokenDecoder:
    """A decoder of single tokens, for log-probabilities and draft trees. The engine detokenizes whole outputs.

    Some tokenizers strip the space of the first token of a text. So each token is decoded after an anchor, which is
    then removed:

        decode("a" " cat")  ->  "a cat"  ->  " cat"
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_text = decode_ids(self._anchor, tokenizer)
        self._byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}

    def decode(self, token: int) -> TokenText:
        """Returns text and bytes of a token. A token that is a part of a character has the text U+FFFD."""
        text = decode_ids([*self._anchor, token], self.tokenizer).removeprefix(self._anchor_text)
        return TokenText(text, self._partial_bytes(token) if REPLACEMENT_CHARACTER in text else list(text.encode()))

    def _partial_bytes(self, token: int) -> list[int] | None:
        name = self.tokenizer.convert_ids_to_tokens(token)
        assert isinstance(name, str), "one id names one token"
        if len(name) == 6 and name.startswith("<0x"):  # a byte token of SentencePiece: <0xE2>
            return [int(name[3:5], 16)]
        if all(letter in self._byte_of for letter in name):  # byte-level BPE: a letter for each byte
            return [self._byte_of[letter] for letter in name]
        return None


@dataclass(frozen=True)
class ServedModel:
    """The served model, as responses describe it.

    Attributes:
        name: Its name for clients.
        tokenizer: The target's tokenizer.
        max_draft_tokens: The maximum number of draft tokens that a round can accept; 0 without a head.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    max_draft_tokens: int

    @cached_property
    def decoder(self) -> TokenDecoder:
        """Decodes single tokens."""
        return TokenDecoder(self.tokenizer)


class ResponseBuilder(ABC):
    """Base of the classes that build the response, or the chunks, of one HTTP call. All chunks share its id."""

    id_prefix: ClassVar[str]

    def __init__(self, model: ServedModel, wants_token_ids: bool) -> None:
        self.model = model
        self.wants_token_ids = wants_token_ids
        self.call_id = uuid.uuid4().hex
        self.header: Json = {"id": f"{self.id_prefix}-{self.call_id}", "created": int(time.time()), "model": model.name}

    @abstractmethod
    def build_response(self, outputs: Sequence[RequestOutput], usage: responses.Usage) -> responses.ResponseModel:
        """Builds the response of a call without stream."""

    @abstractmethod
    def build_chunks(self, delta: OutputDelta, request: Request, extra: Json) -> Sequence[responses.ResponseModel]:
        """Builds the chunks of a delta. extra: additional top-level keys of the chunks, for example usage."""

    @abstractmethod
    def build_usage_chunk(self, usage: responses.Usage, outputs: Sequence[RequestOutput]) -> responses.ResponseModel:
        """Builds the last chunk, which has the token counts and an empty list of choices."""

    @abstractmethod
    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> responses.ResponseModel:
        """Builds the log-probabilities of a choice."""

    def _metrics(self, outputs: Sequence[RequestOutput]) -> responses.ResponseMetrics | None:
        return build_metrics(outputs, self.model.max_draft_tokens)

    def _prompt_ids(self, request: Request) -> Json:
        return {"prompt_token_ids": request.prompt_ids} if self.wants_token_ids else {}

    def _choice_fields(self, index: int, source: RequestOutput | OutputDelta, request: Request) -> Json:
        """Returns the keys that every choice has, of a response and of a chunk."""
        fields: Json = {"index": index, "finish_reason": source.finish_reason}
        fields["logprobs"] = None if request.logprobs is None else self._logprobs(index, source.logprobs)
        if self.wants_token_ids:
            fields["token_ids"] = source.token_ids
        if isinstance(source, OutputDelta) and source.token_texts is not None:
            fields["round"] = self._round_info(source, source.token_texts)
        return fields

    def _round_info(self, delta: OutputDelta, token_texts: tuple[str, ...]) -> responses.RoundInfo:
        tree = None
        if delta.draft_tree is not None:
            ids, parents, path = map(list, (delta.draft_tree.tokens, delta.draft_tree.parents, delta.draft_tree.path))
            texts = [self.model.decoder.decode(token).text for token in ids]
            tree = responses.TreeInfo(token_ids=ids, texts=texts, parents=parents, path=path)
        drafted, copied = list(delta.is_draft), list(delta.is_copy)
        return responses.RoundInfo(texts=list(token_texts), drafted=drafted, copied=copied, tree=tree)


class ChatResponseBuilder(ResponseBuilder):
    """The builder of the bodies of /v1/chat/completions."""

    id_prefix = "chatcmpl"

    def __init__(self, model: ServedModel, wants_token_ids: bool, tool_use: ToolUse | None = None) -> None:
        super().__init__(model, wants_token_ids)
        self._tool_use = tool_use
        self._answers: dict[int, AnswerParser] = {}
        self._started: set[int] = set()  # the outputs whose first chunk has been built

    def build_response(self, outputs: Sequence[RequestOutput], usage: responses.Usage) -> responses.ChatResponse:
        """Builds a chat.completion."""
        choices = []
        for index, output in enumerate(outputs):
            fields = self._choice_fields(index, output, output.request)
            message: Json = {"content": output.text}
            if self._tool_use is not None:
                answer = self._answers[index] = AnswerParser(self._tool_use, output.request)
                message = answer.message(output.text)
                fields["finish_reason"] = answer.finish_reason(output.finish_reason)
            reply = responses.ResponseMessage(role="assistant", refusal=None, **message)
            choices.append(responses.ChatChoice(**fields, message=reply))
        keys = {**self.header, "object": "chat.completion", **self._prompt_ids(outputs[0].request)}
        details = {"usage": self.add_details(usage, outputs), "metrics": self._metrics(outputs)}
        return responses.ChatResponse(**keys, choices=choices, **details)

    def add_details(self, usage: responses.Usage, outputs: Sequence[RequestOutput]) -> responses.Usage:
        """Returns the counts with the number of tokens that are thoughts, if answers may have thoughts."""
        if self._tool_use is None or not self._tool_use.format.reasons:
            return usage
        counts = [self._answers[index].count_thought_tokens(output) for index, output in enumerate(outputs)]
        details = responses.CompletionDetails(reasoning_tokens=sum(counts))
        return usage.model_copy(update={"completion_tokens_details": details})

    def build_chunks(self, delta: OutputDelta, request: Request, extra: Json) -> Sequence[responses.ChatChunk]:
        """Builds chat.completion.chunks. The first one of an output has the role, the very first the prompt's ids.

        An answer with tool calls has its finish reason in a chunk of its own.
        """
        deltas: list[Json] = [{"content": delta.text}]
        reason: str | None = delta.finish_reason
        if self._tool_use is not None:
            if delta.index not in self._answers:
                self._answers[delta.index] = AnswerParser(self._tool_use, request)
            answer = self._answers[delta.index]
            deltas = answer.deltas(delta.text, reason is not None)
            reason = answer.finish_reason(reason)
            has_news = delta.logprobs or delta.token_texts is not None or self.wants_token_ids or extra.get("usage")
            if reason is not None and answer.has_calls:
                deltas.append({})
            is_silent = delta.index in self._started and reason is None and not has_news
            deltas = deltas or ([] if is_silent else [{}])
        is_first = delta.index not in self._started
        self._started.add(delta.index)
        role: Json = {"role": "assistant"} if is_first else {}
        keys = {**self.header, "object": "chat.completion.chunk", **extra}
        if is_first and len(self._started) == 1:
            keys |= self._prompt_ids(request)
        chunks = []
        fields = self._choice_fields(delta.index, delta, request)
        for number, part in enumerate(deltas, 1):
            fields["finish_reason"] = reason if number == len(deltas) else None
            choice = responses.ChatChunkChoice(**fields, delta=responses.Delta(**role, **part))
            chunks.append(responses.ChatChunk(**keys, choices=[choice]))
            fields, role = {"index": delta.index, "logprobs": None}, {}
            keys.pop("prompt_token_ids", None)
        return chunks

    def build_usage_chunk(self, usage: responses.Usage, outputs: Sequence[RequestOutput]) -> responses.ChatChunk:
        """Builds a chat.completion.chunk without a choice."""
        keys = {**self.header, "object": "chat.completion.chunk"}
        details = {"usage": self.add_details(usage, outputs), "metrics": self._metrics(outputs)}
        return responses.ChatChunk(**keys, choices=[], **details)

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> responses.ChatLogprobs:
        content = []
        for entry in logprobs:
            own = self._top_logprob(entry.token, entry.logprob).model_dump()
            top = [self._top_logprob(token, value) for token, value in entry.top]
            content.append(responses.TokenLogprobs(**own, top_logprobs=top))
        return responses.ChatLogprobs(content=content, refusal=None)

    def _top_logprob(self, token: int, logprob: float) -> responses.TopLogprob:
        decoded = self.model.decoder.decode(token)
        return responses.TopLogprob(token=decoded.text, logprob=max(logprob, MIN_LOGPROB), bytes=decoded.raw_bytes)


class CompletionResponseBuilder(ResponseBuilder):
    """The builder of the bodies of /v1/completions."""

    id_prefix = "cmpl"

    def __init__(self, model: ServedModel, wants_token_ids: bool, echoed: Sequence[str] = ()) -> None:
        """Starts the response to one call. echoed: for each output, the text to begin it with; empty for none."""
        super().__init__(model, wants_token_ids)
        self.header["object"] = "text_completion"
        self._echoed = echoed
        self._num_chars: dict[int, int] = {}  # index of an output -> characters of its tokens so far

    def build_response(self, outputs: Sequence[RequestOutput], usage: responses.Usage) -> responses.CompletionResponse:
        """Builds a text_completion."""
        choices = []
        for index, output in enumerate(outputs):
            fields = {**self._choice_fields(index, output, output.request), **self._prompt_ids(output.request)}
            choices.append(responses.CompletionChoice(**fields, text=self._echo(index) + output.text))
        return responses.CompletionResponse(**self.header, choices=choices, usage=usage, metrics=self._metrics(outputs))

    def build_chunks(self, delta: OutputDelta, request: Request, extra: Json) -> Sequence[responses.CompletionChunk]:
        """Builds a chunk. The first one of an output has the ids of its prompt."""
        is_first = delta.index not in self._num_chars
        self._num_chars.setdefault(delta.index, 0)
        fields = {**self._choice_fields(delta.index, delta, request), **(self._prompt_ids(request) if is_first else {})}
        text = self._echo(delta.index) + delta.text if is_first else delta.text
        choice = responses.CompletionChunkChoice(**fields, text=text)
        return [responses.CompletionChunk(**self.header, **extra, choices=[choice])]

    def build_usage_chunk(self, usage: responses.Usage, outputs: Sequence[RequestOutput]) -> responses.CompletionChunk:
        """Builds a chunk without a choice."""
        return responses.CompletionChunk(**self.header, choices=[], usage=usage, metrics=self._metrics(outputs))

    def _echo(self, index: int) -> str:
        return self._echoed[index] if self._echoed else ""

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> responses.CompletionLogprobs:
        decode = self.model.decoder.decode
        tokens = [decode(entry.token).text for entry in logprobs]
        starts = []
        for token in tokens:
            starts.append(self._num_chars.get(index, 0))
            self._num_chars[index] = starts[-1] + len(token)
        pairs = [[*entry.top, (entry.token, entry.logprob)] for entry in logprobs]
        # Two tokens may have the same text, partial characters mostly: the likelier one gets the key.
        tops = [{decode(token).text: max(value, MIN_LOGPROB) for token, value in reversed(part)} for part in pairs]
        values = [max(entry.logprob, MIN_LOGPROB) for entry in logprobs]
        return responses.CompletionLogprobs(tokens=tokens, token_logprobs=values, top_logprobs=tops, text_offset=starts)


def build_metrics(outputs: Sequence[RequestOutput], max_draft_tokens: int) -> responses.ResponseMetrics | None:
    """Builds the key `metrics`; None without a head, with speculation "off", and for more than one output."""
    if max_draft_tokens == 0 or len(outputs) != 1 or outputs[0].request.speculation == "off":
        return None
    return responses.ResponseMetrics(speculative_decoding=build_speculative_stats(outputs[0], max_draft_tokens))


def build_speculative_stats(output: RequestOutput, max_draft_tokens: int) -> responses.SpeculativeStats:
    """Builds the statistics of the rounds that drafted. Other rounds are not counted, as in vLLM."""
    steps = [(kept - 1, nodes) for kept, nodes in zip(output.accepted, output.proposed, strict=True) if nodes]
    accepted, drafted = [step[0] for step in steps], [step[1] for step in steps]
    stats = responses.SpeculativeStats(
        mean_acceptance_length=1 + sum(accepted) / max(len(steps), 1),
        draft_acceptance_rate=sum(accepted) / max(sum(drafted), 1),
        acceptance_histogram=np.bincount(accepted, minlength=max_draft_tokens + 1).tolist(),
        num_spec_steps=len(steps),
        num_accepted_draft_tokens=sum(accepted),
        num_draft_tokens=sum(drafted),
        num_spec_tokens=max_draft_tokens,
        per_step_accepted=accepted,
        per_step_drafted=drafted,
    )
    return responses.CanarySpeculativeStats(**stats.model_dump(), head="canary") if output.drafter == CANARY else stats
