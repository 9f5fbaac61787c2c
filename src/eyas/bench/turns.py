"""Turns conversations into prompts, one for each answer that is asked. Later prompts contain the answers before them.

    conversation of the file   user 1   user 2           user 1   assistant 1   user 2   assistant 2
    prompt of turn 1           user 1                    user 1
    prompt of turn 2           user 1   ANSWER   user 2  user 1   assistant 1   user 2

An answer of the file stays in the history. Where the file has none, the target's own greedy answer is used. A turn is
an answer of the assistant: in a loop of tool calls, each call and the last answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from eyas.chat.conversation import Message
from eyas.chat.render import render_prompt
from eyas.chat.tool_format import ToolFormat
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.model.target import Target


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt as messages, for a server, which applies the chat template. Or a conversation, before `ask_turns`.

    Attributes:
        id: The id of the prompt. `conversation_id` computes that of the conversation.
        messages: The messages.
        tools: The definitions of the tools that the answer may call.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()

    @cached_property
    def turn(self) -> int:
        """The number of the answer in its conversation, from 1."""
        return 1 + sum(message.role == "assistant" for message in self.messages)


Chats = Mapping[str, Sequence[ChatPrompt]]
"""The prompts of each task, as messages."""
Ask = Callable[[ChatPrompt], Message | None]
"""A function that returns the target's answer to a prompt; None for a prompt that has no answer."""


def prompt_id(conversation: str, turn: int) -> str:
    """Appends the turn to the id of a conversation. The first prompt has the id of the conversation."""
    return conversation if turn == 1 else f"{conversation}/{turn}"


def conversation_id(prompt: str, turn: int) -> str:
    """Removes the turn from the id of a prompt, if it has one."""
    return prompt.removesuffix(f"/{turn}")


def ask_turns(chat: ChatPrompt, turns: int, ask: Ask) -> Iterator[ChatPrompt]:
    """Yields the prompts of the first `turns` answers of a conversation. It ends after a prompt without an answer."""
    prompt = replace(chat, messages=())
    for piece in _split_turns(chat.messages)[:turns]:
        if prompt.messages and piece[0].role != "assistant":
            if (answer := ask(prompt)) is None:
                return
            prompt = replace(prompt, messages=(*prompt.messages, answer))
        prompt = replace(prompt, messages=(*prompt.messages, *piece))
        yield replace(prompt, id=prompt_id(chat.id, prompt.turn))


def _split_turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Splits a conversation before each answer, and between two questions, where an answer is missing.

    The last part ends with a question or the result of a tool.
    """
    parts: list[list[Message]] = [[]]
    for message, following in zip_longest(messages, messages[1:]):
        if message.role != "assistant" or len(parts) > 1:  # templates want a question first
            parts[-1].append(message)
        if message.role in ("user", "tool") and (following is None or following.role in ("user", "assistant")):
            parts.append([])
    return parts[:-1]


def ask_target(target: Target, max_tokens: int, prompt: ChatPrompt) -> Message | None:
    """Returns the greedy answer of a target without a head; None if the prompt is too long."""
    ids = tuple(render_prompt(prompt.messages, target.tokenizer, prompt.tools))
    if len(ids) + max_tokens > target.info.max_positions:
        return None
    engine = Engine(target, (), 1, len(ids) + max_tokens)
    (answer,) = plain_loop(engine, RequestList([Request(prompt.id, ids, max_tokens)]))
    return ToolFormat(target.tokenizer).read_answer(ids, answer.token_ids, prompt.tools)[0]
