"""Models of the messages and tools in request bodies, and what all request models share."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from eyas.server.schema_rules import any_of, given, rules


class StrictModel(BaseModel):
    """Base of the request models. It rejects unknown keys, strings in place of numbers, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


SOME: dict[str, Any] = {"type": "array", "minItems": 1}
TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
WHOLE = BeforeValidator(_whole)  # 4.0 is an integer in JSON Schema. Keep it behind Field, for bounds in the schema


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
    return "\n".join(part.text for part in content) if isinstance(content, list) else content


class FunctionCall(StrictModel):
    """The function of a tool call. arguments: a JSON object as text; the chat template gets the object."""

    name: str
    arguments: str
    parsed_arguments: Any = Field(default=None, description="Ignored. OpenAI's client adds it.")


class ToolCall(StrictModel):
    """A tool call that the assistant made earlier. index: ignored; clients copy it from streams."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Annotated[int, WHOLE] | None = None
    provider_specific_fields: Any = Field(default=None, description="Ignored. LiteLLM adds it.")


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
    provider_specific_fields: Any = Field(default=None, description="Ignored. LiteLLM adds it.")
    parsed: Any = Field(default=None, description="Ignored. OpenAI's client adds it.")
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    model_config = rules(
        any_of(
            given("content", {"type": ["string", "array"]}),
            given("tool_calls", SOME),
            given("reasoning_content", TEXT),
            given("reasoning", TEXT),
        )
    )

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


class FunctionReference(StrictModel):
    """The name of a function."""

    name: FunctionName


class Function(FunctionReference):
    """A function that the model may call. strict: the arguments of every call fit the schema `parameters`."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool, as the chat template renders it."""

    type: Literal["function"] = "function"
    function: Function


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
