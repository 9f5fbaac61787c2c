"""What clients may send: OpenAI's parameters, and those that vLLM adds under its names. Unknown ones are refused.

A parameter that is null counts as left out, as with OpenAI.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from eyas.engine.request import Speculation

MAX_CHOICES = 128  # OpenAI's bound on n; here on all answers of one call
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_TOKENS = 2**31 - 1  # no context is longer


class StrictModel(BaseModel):
    """No unknown keys, no text for numbers, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


# --- messages --------------------------------------------------------------------------------------------------------


class TextPart(StrictModel):
    """A piece of a message."""

    type: Literal["text"]
    text: str


Content = Annotated[
    str | Annotated[list[TextPart], Field(min_length=1)],
    Field(description="Text, or text parts; the template gets the parts joined with line breaks."),
]


def content_text(content: Content | None) -> str | None:
    """The content as the template gets it."""
    if content is None or isinstance(content, str):
        return content
    return "\n".join(part.text for part in content)


class FunctionCall(StrictModel):
    """arguments: a JSON object as text; the template gets the object."""

    name: str
    arguments: str


class ToolCall(StrictModel):
    """A call that the assistant made earlier."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class _NamedMessage(StrictModel):
    name: str | None = None


class SystemMessage(_NamedMessage):
    """Instructions; a developer's message is rendered as the system's."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(_NamedMessage):
    """What the user said."""

    role: Literal["user"]
    content: Content


class AssistantMessage(_NamedMessage):
    """An earlier answer: text, tool calls, or both. Clients send it back with null for what it did not have."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.tool_calls is None:
            raise ValueError("an assistant's message with content or tool_calls")
        return self


class ToolMessage(_NamedMessage):
    """What a tool gave back."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[ChatMessage], Field(min_length=1)]


class Function(StrictModel):
    """A function that the model may call. strict cannot be promised, so only false is taken."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(StrictModel):
    """A tool as the template renders it."""

    type: Literal["function"] = "function"
    function: Function


# --- parameters ------------------------------------------------------------------------------------------------------


class StreamOptions(StrictModel):
    """include_usage: a last chunk with the usage. continuous_usage_stats (vLLM's): the usage so far in every chunk.

    include_rounds (eyas's): a chunk for every round, with what it drafted and what of that was accepted.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_rounds: bool | None = None


class JsonSchema(StrictModel):
    """A JSON Schema that the answer must obey."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(StrictModel):
    """No constraint."""

    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(StrictModel):
    """JSON of one schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
Schema = dict[str, Any] | str


class StructuredOutputs(StrictModel):
    """vLLM's name for constraints on the answer: one of json (a schema) and regex."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None


class GenerationRequest(StrictModel):
    """What chat and completions share."""

    model: Annotated[str, Field(description="The served model's name, as GET /v1/models has it.")]
    temperature: Annotated[float, Field(ge=0, le=2, description="Default 1, as OpenAI's; 0 is greedy.")] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, description="0 or -1: all tokens.")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = Field(None, description="Token id (as a string) to what is added to its logit.")
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED, description="Choice i uses seed + i.")] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES, description="Answers for each prompt.")] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS, description="Most tokens of the answer.")] | None = None
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOP_STRINGS)]
        | None
    ) = Field(None, description=f"Texts, at most {MAX_STOP_STRINGS}, before the first of which the answer is cut.")
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1000)] | None = None
    ignore_eos: bool | None = Field(None, description="Go on behind the end of turn; for measurements.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: Schema | None = Field(None, description="vLLM's: a JSON Schema for the answer.")
    guided_regex: str | None = Field(None, description="vLLM's: a regular expression for the answer.")
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = Field(None, description="vLLM's: prompt_token_ids and token_ids in the response.")
    speculation: Speculation | None = Field(None, description="auto (default): measured; off: none; max: always.")
    user: str | None = Field(None, description="Ignored.")
    metadata: dict[str, str] | None = Field(None, description="Ignored.")

    @field_validator("stream_options")
    @classmethod
    def _needs_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("stream = true where stream_options are given")
        return value


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: (
        Annotated[int, Field(ge=1, le=MAX_TOKENS, description="Another name of max_tokens.")] | None
    ) = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS, description="Needs logprobs.")] | None = None
    tools: list[Tool] | None = Field(None, description="For the template. The answer's text is not parsed for calls.")
    tool_choice: Literal["auto", "none"] | None = Field(None, description="none: the template sees no tools.")

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("logprobs = true where top_logprobs is given")
        return value

    @field_validator("max_completion_tokens")
    @classmethod
    def _equals_max_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("max_tokens") not in (None, value):
            raise ValueError("the same as max_tokens where both are given")
        return value


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
IdPrompts = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[str | Prompts | TokenIds | IdPrompts, Field(description="Text, texts, token ids, or lists of.")]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: Literal[False] | None = Field(None, description="Not supported.")
    suffix: None = Field(None, description="Not supported.")
    best_of: Literal[1] | None = Field(None, description="Not supported beyond 1.")


class TokenizeRequest(StrictModel):
    """POST /tokenize, as vLLM has it: a prompt as /v1/completions would read it, or messages as the chat would."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a prompt or messages")
        return self
