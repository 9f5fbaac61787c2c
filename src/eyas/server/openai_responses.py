"""Models of the response bodies: OpenAI's keys, and vLLM's additional ones.

A key that was not passed to the constructor is left out of the JSON (`exclude_unset`). A key that was passed as None is
written as null.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ResponseModel(BaseModel):
    """A JSON object of a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def json_bytes(self) -> bytes:
        """Returns the object as JSON, without keys that were not passed."""
        return self.model_dump_json(exclude_unset=True).encode()


class ErrorBody(ResponseModel):
    """The error of a response, as OpenAI's.

    Attributes:
        message: What is wrong and what to do.
        type: OpenAI's class of errors, for example "invalid_request_error".
        param: The path of the wrong parameter, for example "messages.0.content"; null if there is none.
        code: A name of the error for programs, for example "queue_full".
    """

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseModel):
    """Every response with a status from 400 on."""

    error: ErrorBody


# --- counts ----------------------------------------------------------------------------------------------------------


class PromptDetails(ResponseModel):
    """The number of prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(ResponseModel):
    """The output tokens that are thoughts, without their markers."""

    reasoning_tokens: int


class Usage(ResponseModel):
    """The token counts of one call. The tokens of a prompt are counted once, also with n > 1.

    completion_tokens_details: left out in completions, and where the answers of the model have no thoughts.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = CompletionDetails(reasoning_tokens=0)


class SpeculativeStats(ResponseModel):
    """Statistics of speculative decoding of one output, with vLLM's keys; AIPerf reads them.

    A step is a round that drafted. The draft tokens of a tree are its nodes without the root. Their number is an
    average over the batch, because the requests of a batch share the nodes of a round.

    Attributes:
        mean_acceptance_length: 1 + num_accepted_draft_tokens / num_spec_steps.
        draft_acceptance_rate: num_accepted_draft_tokens / num_draft_tokens.
        acceptance_histogram: Element j is the number of steps that accepted j draft tokens.
        num_spec_steps: The number of steps.
        num_accepted_draft_tokens: The accepted draft tokens of all steps.
        num_draft_tokens: The draft tokens of all steps.
        num_spec_tokens: The maximum number of draft tokens that a step can accept.
        per_step_accepted: The accepted draft tokens of each step.
        per_step_drafted: The draft tokens of each step.
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
    """Speculative decoding of one output that the canary head drafted. The key `head` is eyas's own."""

    head: Literal["canary"]


class ResponseMetrics(ResponseModel):
    """The key `metrics` of a response, as vLLM's.

    It is null on a server without a head, with speculation "off", and if the call has more than one output.
    """

    speculative_decoding: CanarySpeculativeStats | SpeculativeStats | None


# --- rounds ----------------------------------------------------------------------------------------------------------


class TreeInfo(ResponseModel):
    """The draft tree that the target verified. A parent comes before its children; node 0 is the root, its own parent.

    The root is the token before those of the round. path: the accepted nodes below it that are part of the output.
    texts: the text of each node by itself.
    """

    token_ids: list[int]
    texts: list[str]
    parents: list[int]
    path: list[int]


class RoundInfo(ResponseModel):
    """The tokens of a chunk one by one, sent with `include_rounds`. The first chunk holds the token of the prefill.

    texts: joined, they are the text of the chunk. drafted: true for an accepted draft token, false for a token that
    the target sampled (the first one, or the bonus token of a round). copied: true for an accepted draft token that a
    copy of earlier text also proposed. tree: null where the round drafted nothing.
    """

    texts: list[str]
    drafted: list[bool]
    copied: list[bool]
    tree: TreeInfo | None


# --- chat ------------------------------------------------------------------------------------------------------------


class ResponseHeader(ResponseModel):
    """The keys with which every response and chunk begins. object: its type, for example "chat.completion"."""

    id: str
    object: str
    created: int
    model: str


class TopLogprob(ResponseModel):
    """A token with its log-probability. bytes: null if the tokenizer hides the bytes of a partial character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(TopLogprob):
    """An output token with the likeliest tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    """Log-probabilities of a chat choice."""

    content: list[TokenLogprobs]
    refusal: None


class CalledFunction(ResponseModel):
    """The function of a tool call. arguments: a JSON object as text. In a stream, the name comes first."""

    name: str = ""
    arguments: str


class AnswerToolCall(ResponseModel):
    """A call in an answer. Only a streamed one has an index; its id and type are sent once."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int = 0


class ResponseMessage(ResponseModel):
    """The message of a chat choice. content: null if there are only calls. The reasoning has two common names."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[AnswerToolCall] = Field(default=[])


ReplyFinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(ResponseModel):
    """One output of a chat request."""

    index: int
    message: ResponseMessage
    logprobs: ChatLogprobs | None
    finish_reason: ReplyFinishReason
    token_ids: list[int] = Field(default=[])


class ChatResponse(ResponseHeader):
    """The body of a response to POST /v1/chat/completions without stream."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: ResponseMetrics | None
    prompt_token_ids: list[int] = Field(default=[])


class Delta(ResponseModel):
    """The new part of a streamed message."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[AnswerToolCall] = Field(default=[])


class ChatChunkChoice(ResponseModel):
    """The new part of one output."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ReplyFinishReason | None
    token_ids: list[int] = Field(default=[])
    round: RoundInfo | None = None


class ChatChunk(ResponseHeader):
    """One event of POST /v1/chat/completions with stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None
    prompt_token_ids: list[int] = Field(default=[])


# --- completions -----------------------------------------------------------------------------------------------------


class CompletionLogprobs(ResponseModel):
    """Log-probabilities of a completion choice. text_offset: where each token begins, in characters of the output."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    """One output of a completion request."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ReplyFinishReason
    token_ids: list[int] = Field(default=[])
    prompt_token_ids: list[int] = Field(default=[])


class CompletionResponse(ResponseHeader):
    """The body of a response to POST /v1/completions without stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    metrics: ResponseMetrics | None


class CompletionChunkChoice(CompletionChoice):
    """The new part of one output."""

    finish_reason: ReplyFinishReason | None
    round: RoundInfo | None = None


class CompletionChunk(ResponseHeader):
    """One event of POST /v1/completions with stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None


# --- the other routes ------------------------------------------------------------------------------------------------


class ModelCard(ResponseModel):
    """The served model. max_model_len: its context in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(ResponseModel):
    """The body of a response to GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeResponse(ResponseModel):
    """The body of a response to POST /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class HealthResponse(ResponseModel):
    """The body of a response to GET /health and GET /ready."""

    status: Literal["up", "ready"]
