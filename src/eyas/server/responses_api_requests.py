"""Models of the bodies of POST /v1/responses, OpenAI's newer API, and their conversion to chat requests.

The server keeps no responses: clients send the whole conversation as `input`, and get output items that fit there.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from eyas.server import openai_messages as chat
from eyas.server import openai_requests as requests
from eyas.server.schema_rules import any_of, given, rules

LOGPROBS = "message.output_text.logprobs"
Status = Literal["in_progress", "completed", "incomplete"]
Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class InputText(chat.StrictModel):
    """A text part of an item. Clients copy `annotations` and `logprobs` from responses."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "text"]
    text: str
    annotations: list[Any] | None = Field(None, description="Ignored.")
    logprobs: list[Any] | None = Field(None, description="Ignored.")


InputTexts = Annotated[list[InputText], Field(min_length=1)]


class _Item(chat.StrictModel):
    id: str | None = None
    status: Status | None = None


class MessageItem(_Item):
    """A text that a user, the system or the model wrote. Its type may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: str | InputTexts
    phase: str | None = Field(None, description="Ignored.")


class CallItem(_Item):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | InputTexts


class ReasoningItem(_Item):
    """Earlier reasoning. The chat template keeps or drops it."""

    type: Literal["reasoning"]
    summary: list[InputText] | None = None
    content: list[InputText] | None = None
    encrypted_content: str | None = Field(None, description="Ignored.")


def _item_type(value: Any) -> str:
    found = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "message")
    return found if isinstance(found, str) else ""


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_item_type),
]


class NamedTool(chat.StrictModel):
    """A function by its name."""

    type: Literal["function"]
    name: chat.FunctionName


class FunctionTool(NamedTool):
    """A function that the model may call. strict: default false, as in the chat API."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTools(chat.StrictModel):
    """A `tool_choice` that restricts the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class SchemaFormat(chat.StrictModel):
    """Output that is JSON of a given schema."""

    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


ToolChoice = Literal["auto", "none", "required"] | Annotated[NamedTool | NamedTools, Field(discriminator="type")]
Format = Annotated[requests.TextFormat | requests.JsonObjectFormat | SchemaFormat, Field(discriminator="type")]


class TextConfig(chat.StrictModel):
    """The form of the text. verbosity: ignored."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(chat.StrictModel):
    """The effort of the thoughts. No summary is written; the thoughts themselves are in the response."""

    effort: requests.ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="Ignored.")
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="Ignored.")


class ResponsesStreamOptions(chat.StrictModel):
    """Options of a streamed response. include_obfuscation: ignored."""

    include_obfuscation: bool | None = None


class ResponsesRequest(requests.IgnoredParameters):
    """The body of a request to POST /v1/responses."""

    model_config = rules(
        any_of({"properties": {"tool_choice": {"enum": ["none", "auto", None]}}}, given("tools", chat.SOME))
    )

    model: Annotated[str, Field(description="Name of the served model, as in GET /v1/models.")]
    input: Annotated[str | Annotated[list[InputItem], Field(min_length=1)], Field(description="The conversation.")]
    instructions: str | None = Field(None, description="A system message in front of the conversation.")
    max_output_tokens: Annotated[int, Field(ge=1, le=requests.MAX_TOKENS), chat.WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, description="Default 1. 0 is greedy.")] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=requests.MAX_LOGPROBS), chat.WHOLE] | None = None
    include: list[Include] | None = Field(None, description=f"{LOGPROBS}: log-probabilities of the text.")
    tools: list[FunctionTool] | None = Field(None, description="Functions that the model may call.")
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="Default true. false: at most one call.")
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    truncation: Literal["disabled"] | None = Field(None, description="Not supported beyond disabled.")
    background: Literal[False] | None = Field(None, description="Not supported beyond false.")
    previous_response_id: None = Field(None, description="Not supported. Send the whole conversation as input.")
    conversation: None = Field(None, description="Not supported. Send the whole conversation as input.")

    @field_validator("previous_response_id", "conversation", mode="before")
    @classmethod
    def _is_stateless(cls, value: Any) -> None:
        if value is not None:
            raise ValueError("The server keeps no responses. Send the whole conversation as input.")

    @field_validator("tool_choice")
    @classmethod
    def _names_tools(cls, value: Any, info: ValidationInfo) -> Any:
        is_named = isinstance(value, NamedTool | NamedTools)
        named = [tool.name for tool in getattr(value, "tools", [value])] if is_named else []
        if is_named or value == "required":
            requests.check_tool_choice(named, [tool.name for tool in info.data.get("tools") or ()])
        return value

    def to_chat(self) -> requests.ChatRequest:
        """Returns the chat request with the same meaning."""
        has_logprobs = LOGPROBS in (self.include or ())
        shared = ("model", "temperature", "top_p", "parallel_tool_calls", "stream", "user", "metadata", "store")
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        parameters = {name: getattr(self, name) for name in shared} | {
            "messages": [*system, *_to_messages(self.input)],
            "max_tokens": self.max_output_tokens,
            "logprobs": has_logprobs or None,
            "top_logprobs": self.top_logprobs if has_logprobs else None,
            "tools": None if self.tools is None else [_nest(tool) for tool in self.tools],
            "tool_choice": _nest(self.tool_choice) if self.tools else None,
            "response_format": None if self.text is None else _nest(self.text.format),
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
        }
        return requests.ChatRequest.model_validate(parameters)


def _text(content: str | list[InputText] | None) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


def _to_messages(items: str | list[InputItem]) -> list[dict[str, Any]]:
    """Returns the chat messages. Reasoning, text and calls of one turn become one message of the assistant."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] = {}

    def end_turn() -> None:
        if turn:
            content = turn.pop("content", None if "tool_calls" in turn else "")  # reasoning may be empty, and alone
            messages.append({"role": "assistant", "content": content, **turn})
            turn.clear()

    for item in items:
        if not isinstance(item, CallItem) and ("content" in turn or "tool_calls" in turn):
            end_turn()
        if isinstance(item, ReasoningItem):
            thoughts = _text(item.content) or _text(item.summary)
            turn["reasoning_content"] = "\n".join(filter(None, (turn.get("reasoning_content"), thoughts)))
        elif isinstance(item, CallItem):
            call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
            turn["tool_calls"] = [*turn.get("tool_calls", ()), call]
        elif isinstance(item, MessageItem) and item.role == "assistant":
            turn["content"] = _text(item.content)
        else:
            end_turn()
            messages.append(_to_message(item))
    end_turn()
    return messages


def _to_message(item: MessageItem | CallOutputItem) -> dict[str, Any]:
    if isinstance(item, CallOutputItem):
        return {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
    return {"role": item.role, "content": _text(item.content)}


def _nest(value: Any) -> Any:
    """Puts the fields beside `type` into an object with the name of the type, as the chat API has them."""
    if not isinstance(value, FunctionTool | NamedTool | NamedTools | SchemaFormat):
        return value
    fields = value.model_dump(exclude={"type", "tools"}, exclude_none=True, by_alias=True)
    if isinstance(value, NamedTools):
        fields["tools"] = [_nest(tool) for tool in value.tools]
    return {"type": value.type, value.type: fields}
