"""Models of the request bodies: OpenAI's parameters, and vLLM's additional ones. Unknown parameters are rejected.

As with OpenAI, null means the same as leaving the parameter out.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from eyas.engine.request import Speculation

MAX_CHOICES = 128  # OpenAI's bound on n; here on all outputs of one call
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_TOKENS = 2**31 - 1  # no context is longer


class StrictModel(BaseModel):
    """Base of the request models. It rejects unknown keys, strings in place of numbers, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


# --- messages --------------------------------------------------------------------------------------------------------


class TextPart(StrictModel):
    """A text part of a message."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = Field(None, description="Ignored.")


Content = Annotated[
    str | Annotated[list[TextPart], Field(min_length=1)],
    Field(description="Text, or text parts. The chat template gets the parts joined with line breaks."),
]


def content_text(content: Content | None) -> str | None:
    """Returns the content as one text, with line breaks between its parts."""
    if content is None or isinstance(content, str):
        return content
    return "\n".join(part.text for part in content)


class FunctionCall(StrictModel):
    """The function of a tool call. arguments: a JSON object as text; the chat template gets the object."""

    name: str
    arguments: str


class ToolCall(StrictModel):
    """A tool call that the assistant made earlier. index: ignored; clients copy it from streams."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class _NamedMessage(StrictModel):
    name: str | None = None


class SystemMessage(_NamedMessage):
    """Instructions to the model. A message with the role "developer" is rendered as a system message."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(_NamedMessage):
    """One question or instruction in a chat, with the role "user"."""

    role: Literal["user"]
    content: Content


class AssistantMessage(_NamedMessage):
    """An earlier response of the model: text, tool calls, or both.

    Clients send back whole responses, so the keys that eyas never fills are accepted if they are null.
    """

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = Field(None, description="The template keeps or drops earlier reasoning.")
    reasoning: str | None = Field(None, description="vLLM's name for reasoning_content.")
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and not self.tool_calls and not (self.reasoning_content or self.reasoning):
            raise ValueError("An assistant message has neither content nor tool_calls. Add one of them.")
        return self


class ToolMessage(_NamedMessage):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[ChatMessage], Field(min_length=1)]


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]


class Function(StrictModel):
    """A function that the model may call. strict: the arguments of every call fit the schema `parameters`."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool, as the chat template renders it."""

    type: Literal["function"] = "function"
    function: Function


class FunctionReference(StrictModel):
    """The name of a function."""

    name: FunctionName


class ToolReference(StrictModel):
    """One of the tools of the request. As `tool_choice`, the answer is a call of it."""

    type: Literal["function"]
    function: FunctionReference


class AllowedToolSet(StrictModel):
    """The tools that the model may call, out of those of the request. mode: as the `tool_choice` of that name."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Field(min_length=1)]


class AllowedTools(StrictModel):
    """A `tool_choice` that restricts the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolSet


ToolChoice = Literal["auto", "none", "required"] | Annotated[ToolReference | AllowedTools, Field(discriminator="type")]


# --- parameters ------------------------------------------------------------------------------------------------------


class StreamOptions(StrictModel):
    """Options of a streamed response.

    Attributes:
        include_usage: Sends a last chunk with the token counts.
        continuous_usage_stats: Adds the token counts so far to every chunk (a parameter of vLLM).
        include_rounds: Sends a chunk for every round, with its draft tree and the accepted nodes (only in eyas).
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_rounds: bool | None = None


class JsonSchema(StrictModel):
    """A JSON Schema for the output."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(StrictModel):
    """Output without a constraint."""

    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    """Output that is any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(StrictModel):
    """Output that is JSON of a given schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
Schema = dict[str, Any] | str
StopString = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]


class StructuredOutputs(StrictModel):
    """Constraints on the output under vLLM's name `structured_outputs`: json (a schema) or regex."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None


class IgnoredParameters(StrictModel):
    """Parameters that clients send and that do not change the response. Other unknown parameters are rejected."""

    user: str | None = Field(None, description="Ignored.")
    metadata: dict[str, str] | None = Field(None, description="Does not change the response.")
    store: bool | None = Field(None, description="Ignored. The server stores no responses.")
    service_tier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored. Equal prefixes share their cache by themselves.")
    prompt_cache_retention: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Ignored.")


class GenerationRequest(IgnoredParameters):
    """The parameters that chat and completions share."""

    model: Annotated[str, Field(description="Name of the served model, as in GET /v1/models.")]
    temperature: Annotated[float, Field(ge=0, le=2, description="Default 1, as OpenAI's. 0 is greedy.")] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, description="0 or -1: all tokens.")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = Field(None, description="Token id (as a string) -> value that is added to its logit.")
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED, description="Choice i uses seed + i.")] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES, description="Choices for each prompt.")] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS, description="Maximum number of output tokens.")] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = Field(
        None, description=f"At most {MAX_STOP_STRINGS} texts. The output is cut before the first of them."
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1000)] | None = None
    ignore_eos: bool | None = Field(None, description="Continue after the end of turn; for measurements.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: Schema | None = Field(None, description="vLLM's: a JSON Schema for the output.")
    guided_regex: str | None = Field(None, description="vLLM's: a regular expression for the output.")
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = Field(None, description="vLLM's: prompt_token_ids and token_ids in the response.")
    speculation: Speculation | None = Field(None, description="auto (default): by measured speed-up; off; max.")
    skip_special_tokens: Literal[True] | None = Field(None, description="Output has no special tokens.")

    @field_validator("stream_options")
    @classmethod
    def _needs_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("stream_options works only with stream=true. Set stream=true or remove stream_options.")
        return value


def chosen_names(choice: ToolChoice | None) -> list[str] | None:
    """Returns the names of the functions that a `tool_choice` restricts calls to; None for all."""
    if isinstance(choice, ToolReference):
        return [choice.function.name]
    if isinstance(choice, AllowedTools):
        return [tool.function.name for tool in choice.allowed_tools.tools]
    return None


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ChatRequest(GenerationRequest):
    """The body of a request to POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS, description="Alias of max_tokens.")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS, description="Needs logprobs.")] | None = None
    tools: list[Tool] | None = Field(None, description="Functions that the model may call.")
    tool_choice: ToolChoice | None = Field(None, description="auto (default with tools); none: as without tools.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the target's chat template.")
    reasoning_effort: ReasoningEffort | None = Field(None, description="A variable of the template; none: no thoughts.")
    parallel_tool_calls: bool | None = Field(None, description="Default true. false: at most one call in an answer.")
    functions: Annotated[list[Any], Field(max_length=0, description="Only []. Send functions as tools.")] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, description="Text is the only one.")] | None = None

    @property
    def template_variables(self) -> dict[str, Any]:
        """The variables of the chat template. As in vLLM, an effort other than "none" turns thinking on."""
        effort = self.reasoning_effort
        variables = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return variables | (self.chat_template_kwargs or {})

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("top_logprobs works only with logprobs=true. Set logprobs=true or remove top_logprobs.")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _names_tools(cls, value: ToolChoice | None, info: ValidationInfo) -> ToolChoice | None:
        named = chosen_names(value)
        tools = info.data.get("tools") or []
        if value not in (None, "none") and not tools:
            raise ValueError("tool_choice works only with tools. Add tools or remove tool_choice.")
        unknown = set(named or ()) - {tool.function.name for tool in tools}
        if unknown:
            raise ValueError(f"tool_choice names {min(unknown)!r}, which is not one of the tools. Add it to tools.")
        return value

    @field_validator("max_completion_tokens")
    @classmethod
    def _equals_max_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("max_tokens") not in (None, value):
            raise ValueError("max_completion_tokens and max_tokens differ. Remove max_tokens.")
        return value


TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
IdPrompts = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]


class CompletionRequest(GenerationRequest):
    """The body of a request to POST /v1/completions."""

    prompt: Annotated[str | Prompts | TokenIds | IdPrompts, Field(description="Texts, or lists of token ids.")]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: Literal[False] | None = Field(None, description="Not supported.")
    suffix: Literal[""] | None = Field(None, description="Not supported beyond empty text.")
    best_of: Literal[1] | None = Field(None, description="Not supported beyond 1.")


class TokenizeRequest(StrictModel):
    """The body of a request to POST /tokenize, as in vLLM: a prompt, or messages as the chat route takes them."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("The request needs either prompt or messages. Send one of the two.")
        return self


class PredictRequest(StrictModel):
    """The body of Vertex AI's predict. Each instance is a body of /v1/chat/completions or /v1/completions."""

    instances: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_CHOICES)]
    parameters: dict[str, Any] | None = None
