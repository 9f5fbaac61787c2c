"""Models of the request bodies: OpenAI's parameters, and vLLM's additional ones. Unknown parameters are rejected.

As with OpenAI, null means the same as leaving the parameter out.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from eyas.engine.request import Speculation
from eyas.server import openai_messages as wire
from eyas.server.schema_rules import any_of, at_most_one, given, null, rules

MAX_CHOICES = 128  # OpenAI's bound on n; here on all outputs of one call
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_TOKENS = 2**31 - 1  # no context is longer


class StreamOptions(wire.StrictModel):
    """Options of a streamed response.

    Attributes:
        include_usage: Sends a last chunk with the token counts.
        continuous_usage_stats: Adds the token counts so far to every chunk (a parameter of vLLM).
        include_obfuscation: Ignored.
        include_rounds: Sends a chunk for every round, with its draft tree and the accepted nodes (only in eyas).
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    include_rounds: bool | None = None


class JsonSchema(wire.StrictModel):
    """A JSON Schema for the output."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(wire.StrictModel):
    """Output without a constraint."""

    type: Literal["text"]


class JsonObjectFormat(wire.StrictModel):
    """Output that is any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(wire.StrictModel):
    """Output that is JSON of a given schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
Schema = dict[str, Any] | str
StopString = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0), wire.WHOLE]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[TokenKey, Bias], Field(json_schema_extra={"additionalProperties": False})]
NumTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS, description="A number of output tokens."), wire.WHOLE]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), wire.WHOLE]


class StructuredOutputs(wire.StrictModel):
    """Constraints on the output under vLLM's name `structured_outputs`: json (a schema) or regex."""

    model_config = rules(any_of(null("json"), null("regex")))
    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None


class IgnoredParameters(wire.StrictModel):
    """Parameters that clients send and that do not change the response. Other unknown parameters are rejected."""

    user: str | None = Field(None, description="With --copies key: drafts copy only from this user's outputs.")
    metadata: dict[str, str] | None = Field(None, description="Does not change the response.")
    store: bool | None = Field(None, description="false: with --copies key, no draft is copied from this output.")
    service_tier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored. Equal prefixes share their cache by themselves.")
    prompt_cache_retention: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Ignored.")


GRAMMAR_PARAMETERS: dict[str, dict[str, Any]] = {  # parameter -> schema of the values that ask for no grammar
    "response_format": {"properties": {"type": {"const": "text"}}},
    "guided_json": {"type": "null"},
    "guided_regex": {"type": "null"},
    "structured_outputs": null("json", "regex"),
}
NO_REGEX = {"guided_regex": {"type": "null"}, "structured_outputs": null("regex")}
NO_LENGTH = {"ignore_eos": {"enum": [False, None]}, "min_tokens": {"enum": [0, None]}}
ONE_GRAMMAR = at_most_one(GRAMMAR_PARAMETERS, NO_LENGTH)


class GenerationRequest(IgnoredParameters):
    """The parameters that chat and completions share."""

    model_config = rules(ONE_GRAMMAR)

    model: Annotated[str, Field(description="Name of the served model, as in GET /v1/models.")]
    temperature: Annotated[float, Field(ge=0, le=2, description="Default 1, as OpenAI's. 0 is greedy.")] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, description="0 or -1: all tokens."), wire.WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Biases | None = Field(None, description="Token id (as a string) -> value that is added to its logit.")
    seed: Annotated[int, wire.WHOLE] | None = Field(
        None, description="Any integer, modulo 2**62. Choice i uses seed + i."
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES, description="Choices for each prompt."), wire.WHOLE] | None = None
    max_tokens: NumTokens | None = Field(None, description="0: no output, only the usage of the prompt.")
    min_tokens: NumTokens | None = Field(None, description="No end of turn and no stop token before; max_tokens wins.")
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = Field(
        None, description=f"At most {MAX_STOP_STRINGS} texts. The output is cut before the first of them."
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1000)] | None = None
    ignore_eos: bool | None = Field(None, description="Continue after the end of turn; for measurements.")
    stream: bool | None = None
    stream_options: Annotated[StreamOptions, Field(description="Without stream they have no effect.")] | None = None
    response_format: ResponseFormat | None = None
    guided_json: Schema | None = Field(None, description="vLLM's: a JSON Schema for the output.")
    guided_regex: str | None = Field(None, description="vLLM's: a regular expression for the output.")
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = Field(None, description="vLLM's: prompt_token_ids and token_ids in the response.")
    speculation: Speculation | None = Field(None, description="auto (default): by measured speed-up; off; max.")
    skip_special_tokens: bool | None = Field(None, description="Default true. false: texts show special tokens.")


def chosen_names(choice: wire.ToolChoice | None) -> list[str] | None:
    """Returns the names of the functions that a `tool_choice` restricts calls to; None for all."""
    if isinstance(choice, wire.ToolReference):
        return [choice.function.name]
    if isinstance(choice, wire.AllowedTools):
        return [tool.function.name for tool in choice.allowed_tools.tools]
    return None


def check_tool_choice(named: Sequence[str], tools: Sequence[str]) -> None:
    """Raises ValueError without tools, and PydanticCustomError if one that `tool_choice` names is missing."""
    if not tools:
        raise ValueError("tool_choice works only with tools. Add tools or remove tool_choice.")
    if unknown := set(named) - set(tools):
        text = "tool_choice names {name}, which is not one of the tools. Add it to tools."
        raise PydanticCustomError("unknown_tool", text, {"name": repr(min(unknown))})


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ChatRequest(GenerationRequest):
    """The body of a request to POST /v1/chat/completions."""

    model_config = rules(
        ONE_GRAMMAR,
        any_of(  # few branches in all: a generator of requests combines those of every rule
            given("tool_choice", {"const": "none"}),
            {"properties": {"tool_choice": {"type": "null"}, "tools": {"enum": [[], None]}}},
            {"properties": {"tools": wire.SOME, **NO_REGEX}, "required": ["tools"]},
        ),
        any_of(null("top_logprobs"), given("logprobs", {"const": True})),
    )

    messages: wire.Messages
    max_completion_tokens: NumTokens | None = Field(None, description="As max_tokens; it wins.")
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = Field(None, description="Needs logprobs.")
    tools: list[wire.Tool] | None = Field(None, description="Functions that the model may call.")
    tool_choice: wire.ToolChoice | None = Field(None, description="auto (default with tools); none: as without tools.")
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

    @field_validator("tool_choice")
    @classmethod
    def _names_tools(cls, value: wire.ToolChoice | None, info: ValidationInfo) -> wire.ToolChoice | None:
        if value not in (None, "none"):
            check_tool_choice(chosen_names(value) or (), [tool.function.name for tool in info.data.get("tools") or ()])
        return value


Prompt = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[Prompt], Field(min_length=1, max_length=MAX_CHOICES)]
IdPrompts = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]


class CompletionRequest(GenerationRequest):
    """The body of a request to POST /v1/completions."""

    model_config = rules(ONE_GRAMMAR, any_of({"properties": {"echo": {"enum": [False, None]}}}, null("logprobs")))

    prompt: Annotated[Prompt | Prompts | TokenIds | IdPrompts, Field(description="Texts, or lists of token ids.")]
    logprobs: NumLogprobs | None = None
    echo: bool | None = Field(None, description="The text begins with the prompt. Not with logprobs.")
    suffix: str | None = Field(None, description="The text behind the completion, for models with fill in the middle.")
    best_of: Literal[1] | None = Field(None, description="Not supported beyond 1.")


class TokenizeRequest(wire.StrictModel):
    """The body of a request to POST /tokenize, as in vLLM: a prompt, or messages as the chat route takes them."""

    model_config = rules(
        any_of(given("prompt", {"type": "string"}), given("messages", {"type": "array"})),
        any_of(null("prompt"), null("messages")),
    )
    model: str | None = None
    prompt: str | None = None
    messages: wire.Messages | None = None
    tools: list[wire.Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("The request needs either prompt or messages. Send one of the two.")
        return self


class PredictRequest(wire.StrictModel):
    """The body of Vertex AI's predict. Each instance is a body of /v1/chat/completions or /v1/completions."""

    instances: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_CHOICES)]
    parameters: dict[str, Any] | None = None
