"""What the server answers: OpenAI's shapes, with vLLM's additions under its names.

Replies are written with `exclude_unset`: a key appears if it was given, also where its value is null.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ResponseModel(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def json_bytes(self) -> bytes:
        """As it goes out."""
        return self.model_dump_json(exclude_unset=True).encode()


class ErrorBody(ResponseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseModel):
    """Every response with a status from 400 on."""

    error: ErrorBody


# --- counts ----------------------------------------------------------------------------------------------------------


class PromptDetails(ResponseModel):
    cached_tokens: int


class Usage(ResponseModel):
    """Tokens as the server counted them. A prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class SpeculativeStats(ResponseModel):
    """How drafting went for one answer, in vLLM's words; AIPerf reads it. Steps are rounds in which nodes were drafted.

    mean_acceptance_length: 1 + accepted / steps. acceptance_histogram[j]: steps that accepted j draft tokens.
    num_spec_tokens: the deepest that a round may draft. A tree's draft tokens are its nodes, the root left out: on
    average those of the round's arm, for the batch shares them.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: list[int]
    per_step_drafted: list[int]


class CanarySpeculativeStats(SpeculativeStats):
    """The same, of an answer for which a canary head drafted: the key is ours."""

    head: Literal["canary"]


class ResponseMetrics(ResponseModel):
    """Null where there is no head, speculation is off, or the call has more than one answer."""

    speculative_decoding: CanarySpeculativeStats | SpeculativeStats | None


# --- rounds ----------------------------------------------------------------------------------------------------------


class TreeInfo(ResponseModel):
    """The draft tree that the target verified. A parent comes before its children; node 0 is the root, its own parent.

    The root is the token before those of the round. path: the accepted nodes below it that are part of the answer.
    texts: what each node reads by itself.
    """

    token_ids: list[int]
    texts: list[str]
    parents: list[int]
    path: list[int]


class RoundInfo(ResponseModel):
    """The tokens of a chunk one by one: eyas's answer to `include_rounds`. The first chunk's token is no round's.

    texts: joined, they are the chunk's text. drafted: an accepted draft token; else the target's own, the first of all
    or a round's bonus. tree: null where nothing was drafted.
    """

    texts: list[str]
    drafted: list[bool]
    tree: TreeInfo | None


# --- chat ------------------------------------------------------------------------------------------------------------


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    content: list[TokenLogprobs]
    refusal: None


class ResponseMessage(ResponseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


ReplyFinishReason = Literal["stop", "length"]


class ChatChoice(ResponseModel):
    index: int
    message: ResponseMessage
    logprobs: ChatLogprobs | None
    finish_reason: ReplyFinishReason
    token_ids: list[int] = Field(default=[])


class ChatResponse(ResponseModel):
    """POST /v1/chat/completions without stream."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: ResponseMetrics | None
    prompt_token_ids: list[int] = Field(default=[])


class Delta(ResponseModel):
    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatChunkChoice(ResponseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ReplyFinishReason | None
    token_ids: list[int] = Field(default=[])
    round: RoundInfo | None = None


class ChatChunk(ResponseModel):
    """One event of POST /v1/chat/completions with stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None
    prompt_token_ids: list[int] = Field(default=[])


# --- completions -----------------------------------------------------------------------------------------------------


class CompletionLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ReplyFinishReason
    token_ids: list[int] = Field(default=[])
    prompt_token_ids: list[int] = Field(default=[])


class CompletionResponse(ResponseModel):
    """POST /v1/completions without stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: ResponseMetrics | None


class CompletionChunkChoice(ResponseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ReplyFinishReason | None
    token_ids: list[int] = Field(default=[])
    prompt_token_ids: list[int] = Field(default=[])
    round: RoundInfo | None = None


class CompletionChunk(ResponseModel):
    """One event of POST /v1/completions with stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None


# --- the rest --------------------------------------------------------------------------------------------------------


class ModelCard(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(ResponseModel):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeResponse(ResponseModel):
    """POST /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class HealthResponse(ResponseModel):
    """GET /health and GET /ready."""

    status: Literal["up", "ready"]
