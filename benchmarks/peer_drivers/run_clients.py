"""Runs a task with each client that teams use, against a server at a URL. It runs in the environment of the clients.

    python run_clients.py --url http://127.0.0.1:8000/v1 --model NAME [--only CLIENT]

Prints one JSON object for each client: its version, what of the API the task uses, and null or the error. The tasks
need calls that the server enforces, so that they end with any model.
"""

# pyright: reportMissingImports=false

import argparse
import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, Field

ROSES = "Can you help me to plant 12 roses in Salmere?"
ORDER = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["count"],
    "additionalProperties": False,
}
FUNCTION = {"name": "order_roses", "description": "Orders roses.", "parameters": ORDER}
TOOL: Any = {"type": "function", "function": FUNCTION}
Count = Annotated[int, Field(ge=1, le=99)]
CLIENTS: dict[str, tuple[str, str, Callable[[str, str], None]]] = {}  # name -> package, what the task uses, task


def client(name: str, package: str, uses: str) -> Callable[[Callable[[str, str], None]], Callable[[str, str], None]]:
    """Registers a task, which raises if something is not as the client's users expect."""

    def register(task: Callable[[str, str], None]) -> Callable[[str, str], None]:
        CLIENTS[name] = (package, uses, task)
        return task

    return register


def check(condition: object, found: object) -> None:
    """Raises AssertionError with what was found if a condition does not hold."""
    if not condition:
        raise AssertionError(f"unexpected: {found!r}"[:300])


# --- OpenAI's client -------------------------------------------------------------------------------------------------


def _openai(url: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)


@client("openai: chat", "openai", "chat, its stream accumulator, parsed output, tool calls and their results")
def run_chat(url: str, model: str) -> None:

    class Order(BaseModel):
        count: Count

    api = _openai(url)
    messages: list[Any] = [{"role": "user", "content": ROSES}]
    asked = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 200}
    whole = api.chat.completions.create(**asked)
    with api.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check(final.choices[0].message.content == whole.choices[0].message.content, final)
    check(final.usage.completion_tokens == whole.usage.completion_tokens, final.usage)
    parsed = api.chat.completions.parse(**asked, response_format=Order)
    check(1 <= parsed.choices[0].message.parsed.count <= 99, parsed)
    with api.chat.completions.stream(**asked, tools=[TOOL], tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_completion().choices[0]
    check("tool_calls.function.arguments.done" in kinds, kinds)
    check(called.finish_reason == "tool_calls", called)
    calls = called.message.tool_calls
    check(1 <= json.loads(calls[0].function.arguments)["count"] <= 99, calls)
    messages += [called.message.model_dump(exclude_none=True, exclude={"parsed"})]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": '{"price": 3}'} for call in calls]
    answer = api.chat.completions.create(**asked, tools=[TOOL])
    check(answer.choices[0].finish_reason in ("stop", "tool_calls", "length"), answer)


@client("openai: responses", "openai", "responses, its stream, function calls and their outputs, parsed output")
def run_responses(url: str, model: str) -> None:

    class Order(BaseModel):
        count: Count

    api = _openai(url)
    tool: Any = {"type": "function", "strict": True, **FUNCTION}
    asked = {"model": model, "temperature": 0, "max_output_tokens": 200}
    whole = api.responses.create(**asked, input=ROSES)
    with api.responses.stream(**asked, input=ROSES) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    check(final.output_text == whole.output_text != "", final)
    items: list[Any] = [{"role": "user", "content": ROSES}]
    with api.responses.stream(**asked, input=items, tools=[tool], tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_response()
    check("response.function_call_arguments.done" in kinds, kinds)
    for call in called.output:
        check(call.type == "function_call" and 1 <= json.loads(call.arguments)["count"] <= 99, call)
        items += [call.model_dump(exclude_none=True, exclude={"parsed_arguments"})]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": '{"price": 3}'}]
    answer = api.responses.create(**asked, input=items, tools=[tool])
    check(answer.output, answer)
    parsed = api.responses.parse(**asked, input=ROSES, text_format=Order)
    check(1 <= parsed.output_parsed.count <= 99, parsed)


# --- frameworks ------------------------------------------------------------------------------------------------------


@client(
    "LangChain", "langchain-openai", "bind_tools with strict, structured output by call and by JSON schema, streams"
)
def run_langchain(url: str, model: str) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    class Order(BaseModel):
        """Orders roses and says when they come."""

        count: Count

    @tool
    def order_roses(count: Count) -> str:
        """Orders roses and says when they come."""
        return f"{count} roses are on their way."

    chat = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_tokens=200, max_retries=0)
    text = chat.invoke(ROSES).content
    pieces = "".join(str(chunk.content) for chunk in chat.stream(ROSES))
    check(text == pieces != "", (text, pieces))
    history: list[Any] = [HumanMessage(ROSES)]
    called = chat.bind_tools([order_roses], strict=True, tool_choice="any").invoke(history)
    check(isinstance(called, AIMessage) and called.tool_calls and not called.invalid_tool_calls, called)
    history += [called]
    history += [ToolMessage(order_roses.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
    chat.bind_tools([order_roses]).invoke(history)
    for method in ("function_calling", "json_schema"):
        order = chat.with_structured_output(Order, method=method, strict=True).invoke(ROSES)
        check(isinstance(order, Order) and 1 <= order.count <= 99, order)


@client("LiteLLM", "litellm", "hosted_vllm: chat, stream, tool calls, history with reasoning_content and nulls")
def run_litellm(url: str, model: str) -> None:
    import litellm

    litellm.suppress_debug_info = True
    asked: dict[str, Any] = {
        "model": f"hosted_vllm/{model}",
        "api_base": url,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 200,
    }
    messages: list[Any] = [{"role": "user", "content": ROSES}]
    named = {"type": "function", "function": {"name": FUNCTION["name"]}}
    whole = litellm.completion(**asked, messages=messages)
    chunks = list(litellm.completion(**asked, messages=messages, stream=True))
    built = litellm.stream_chunk_builder(chunks)
    check(built.choices[0].message.content == whole.choices[0].message.content, built)
    called = litellm.completion(**asked, messages=messages, tools=[TOOL], tool_choice=named)
    message = called.choices[0].message
    check(message.tool_calls, called)
    earlier = {**message.model_dump(), "reasoning_content": "Roses need sun.", "function_call": None}
    messages += [earlier]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "{}"} for call in message.tool_calls]
    check(litellm.completion(**asked, messages=messages, tools=[TOOL]).choices, "no choices")


def _async_openai(url: str) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


def _run_agent(build_model: Callable[[], Any]) -> str:
    """Runs an agent, and again with a stream. Each event loop needs a separate client and a separate model."""
    from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    counts: list[int] = []

    @function_tool
    def order_roses(count: Count) -> str:
        """Orders roses and says when they come."""
        counts.append(count)
        return f"{count} roses are on their way."

    settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=200, parallel_tool_calls=False)

    def build() -> Any:
        shared: dict[str, Any] = {"instructions": "Be short.", "tools": [order_roses], "model_settings": settings}
        return Agent("gardener", model=build_model(), **shared)

    result = Runner.run_sync(build(), ROSES, max_turns=4)
    check(counts, result)

    async def stream() -> int:
        run = Runner.run_streamed(build(), ROSES, max_turns=4)
        return len([event async for event in run.stream_events()])

    check(asyncio.run(stream()) > 2, "no events")
    return str(result.final_output)


@client(
    "openai-agents: responses", "openai-agents", "its default, the Responses API: a strict tool, its result, streams"
)
def run_agents(url: str, model: str) -> None:
    from agents import OpenAIResponsesModel

    check(_run_agent(lambda: OpenAIResponsesModel(model=model, openai_client=_async_openai(url))), "empty answer")


@client("openai-agents: chat", "openai-agents", "the chat API: a strict tool, its result, streams")
def run_agents_chat(url: str, model: str) -> None:
    from agents import OpenAIChatCompletionsModel

    check(_run_agent(lambda: OpenAIChatCompletionsModel(model=model, openai_client=_async_openai(url))), "empty answer")


@client("pydantic-ai", "pydantic-ai-slim", "an agent with an output type: by tool call, by JSON schema, streamed")
def run_pydantic_ai(url: str, model: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Order(BaseModel):
        count: Count

    chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="none"))
    settings: Any = {"temperature": 0, "max_tokens": 200}
    for output in (Order, NativeOutput(Order, strict=True)):
        order = Agent(chat, output_type=output, model_settings=settings, retries=0).run_sync(ROSES).output
        check(1 <= order.count <= 99, order)
    agent = Agent(chat, model_settings=settings)

    async def stream() -> str:
        async with agent.run_stream(ROSES) as run:
            return await run.get_output()

    text = agent.run_sync(ROSES).output
    check(text == asyncio.run(stream()) != "", text)


@client("instructor", "instructor", "response models by tool call and by JSON schema")
def run_instructor(url: str, model: str) -> None:
    import instructor

    class Order(BaseModel):
        """Orders roses and says when they come."""

        count: Count

    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        order = instructor.from_openai(_openai(url), mode=mode).chat.completions.create(
            model=model,
            response_model=Order,
            messages=[{"role": "user", "content": ROSES}],
            temperature=0,
            max_tokens=200,
            max_retries=0,
        )
        check(1 <= order.count <= 99, (mode, order))


# --- running ---------------------------------------------------------------------------------------------------------


def main() -> int:
    """Runs the tasks and prints a row for each. Returns 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--only", choices=CLIENTS)
    parsed = parser.parse_args()
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    failed = False
    for name, (package, uses, task) in CLIENTS.items():
        if parsed.only not in (None, name):
            continue
        error = None
        try:
            task(parsed.url, parsed.model)
        except Exception as raised:
            failed = True
            error = f"{type(raised).__name__}: {' '.join(str(raised).split())}"[:400]
            traceback.print_exc()
        print(json.dumps({"client": name, "version": version(package), "uses": uses, "error": error}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
