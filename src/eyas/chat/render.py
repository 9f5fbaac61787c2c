"""Renders conversations to token ids and loss masks. Training and serving both call this module.

    prompt when serving    <|user|>hi<|end|><|assistant|>                 render_prompt(messages before the answer)
    row for training       <|user|>hi<|end|><|assistant|>hello<|end|>     the same ids, then the ids of the answer
    loss mask                                            ^^^^^^^^^^^^     True for the tokens of the answer

The target's chat template writes all text, so this module has no code for single model families. The template decides
how to write tool calls and how much of the reasoning of earlier answers to keep. Most templates drop it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import groupby
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from eyas.base.errors import InputError
from eyas.base.sequences import count_equal
from eyas.base.terminal import GREEN, make_printable, mark
from eyas.chat.conversation import Conversation, Message, TemplateMessage

FIX_TEMPLATE = "Correct the target's chat template"
# Parameters of transformers' functions, one of which is the template itself.
RESERVED_VARIABLES = frozenset({"messages"}).union(
    signature(PreTrainedTokenizerBase.apply_chat_template).parameters, signature(render_jinja_template).parameters
)


@dataclass(frozen=True)
class RenderedRow:
    """One row of token ids for training.

    Attributes:
        ids: The token ids.
        loss_mask: For each id, True if the assistant generated it and training supervises it.
        turn: The number of the only supervised assistant turn, from 0; None if all of them are supervised.
    """

    ids: list[int]
    loss_mask: list[bool]
    turn: int | None


@dataclass(frozen=True)
class _RenderedTurn:
    """One assistant turn: the ids of its prompt, the ids of the answer, and the loss mask of the answer's ids."""

    prompt: list[int]
    ids: list[int]
    loss_mask: list[bool]

    def to_row(self, number: int) -> RenderedRow:
        return RenderedRow(self.prompt + self.ids, [False] * len(self.prompt) + self.loss_mask, number)


# --- messages to ids -------------------------------------------------------------------------------------------------


def render_prompt(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[dict[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Returns the ids of the prompt after which the target generates the next answer.

    Args:
        messages: The conversation so far.
        tokenizer: The target's tokenizer, with a chat template.
        tools: The definitions of tools, as JSON objects, that the template writes into the prompt.
        variables: More variables of the template, for example {"enable_thinking": False}.

    Raises:
        InputError: The tokenizer has no chat template, the template rejects the messages, or a variable is reserved.
    """
    return _encode(render_text(messages, tokenizer, generate=True, tools=tools, variables=variables), tokenizer)


def render(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[RenderedRow]:
    """Returns the training rows of a conversation: one row for all assistant turns, or one row for each turn.

    One row is enough if the prompt of each turn begins with the ids of all earlier turns. That is not so if the
    template changes earlier turns (for example drops their reasoning), or if the generated ids of an answer differ from
    the ids of its text. Text that the template writes after the end-of-turn token is not supervised.

    Raises:
        InputError: The conversation has no answer, the template does not write the answer after its generation prompt,
            or a loss mask is all True or all False.
    """
    places = [i for i, message in enumerate(conversation.messages) if message.role == "assistant"]
    if not places:
        raise InputError(f"Conversation {conversation.id} has no answer", "Run `eyas respond` first")
    assert not conversation.turns or len(conversation.turns) == len(places), "one turn for each assistant message"
    turns = [_render_turn(conversation, turn, place, tokenizer) for turn, place in enumerate(places)]
    joined = _join_turns(turns)
    rows = [turn.to_row(number) for number, turn in enumerate(turns)] if joined is None else [joined]
    for row in rows:
        if len(set(row.loss_mask)) == 1:
            kind = "true" if row.loss_mask[0] else "false"
            problem = f"The loss mask of conversation {conversation.id} is all {kind}: the chat template must write"
            raise InputError(f"{problem} both the prompt and the answer", FIX_TEMPLATE)
    return rows


def render_answer(
    before: Sequence[Message],
    answer: Message,
    tokenizer: PreTrainedTokenizerBase,
    has_end_of_turn: bool,
    variables: Mapping[str, Any] | None = None,
) -> list[int] | None:
    """Returns the ids of an answer of which only the text is known. They follow the ids of `render_prompt(before)`.

    Args:
        before: The messages before the answer.
        answer: The answer as text, with its reasoning and tool calls.
        tokenizer: The target's tokenizer.
        has_end_of_turn: True if the model ended the answer, so that its last id is the end-of-turn token. False if a
            token limit cut the answer.
        variables: As in `render_prompt`.

    Returns:
        The ids. None if the template changes the prompt before an answer, or drops the answer's reasoning or tool
        calls, because its text then differs from what the model generated.
    """
    prompt_text = render_text(before, tokenizer, generate=True, variables=variables)
    answered = [*before, answer]
    text = render_text(answered, tokenizer, generate=False, variables=variables)
    shown = text.removeprefix(prompt_text)
    reasoning = (answer.reasoning or "").strip()
    if any(part not in shown for part in (reasoning, *(call.name for call in answer.tool_calls))):
        return None
    if has_end_of_turn:
        ids = _ids_after_prompt(prompt_text, text, tokenizer)
        return None if ids is None else ids[: _count_supervised(ids, answered, tokenizer, variables)]
    text = text.removesuffix(turn_suffix(answered, tokenizer, variables))
    if not answer.content and not answer.tool_calls and reasoning:
        text = text[: text.rindex(reasoning) + len(reasoning)]  # cut inside the reasoning, which the template closed
    return _ids_after_prompt(prompt_text, text, tokenizer)


def _join_turns(turns: Sequence[_RenderedTurn]) -> RenderedRow | None:
    """Joins all turns to one row. Returns None if the prompt of a turn does not begin with the ids before that turn.

    Example of two turns. The prompt of turn 1 contains the prompt of turn 0, answer 0 and the next user message.

        row          prompt of turn 0 | answer 0 | next user message | answer 1
        loss mask    False            | True     | False             | True
    """
    ids: list[int] = []
    mask: list[bool] = []
    for turn in turns:
        if turn.prompt[: len(ids)] != ids:
            return None
        mask += [False] * (len(turn.prompt) - len(ids)) + turn.loss_mask
        ids = turn.prompt + turn.ids
    return RenderedRow(ids, mask, None)


def _render_turn(
    conversation: Conversation, turn: int, place: int, tokenizer: PreTrainedTokenizerBase
) -> _RenderedTurn:
    before, answered = conversation.messages[:place], conversation.messages[: place + 1]
    variables = conversation.template_variables
    prompt_text = render_text(before, tokenizer, generate=True, variables=variables)
    prompt = _encode(prompt_text, tokenizer)
    if conversation.turns:
        generated = conversation.turns[turn]
        return _RenderedTurn(prompt, list(generated.token_ids), list(generated.loss_mask))
    text = render_text(answered, tokenizer, generate=False, variables=variables)
    ids = _ids_after_prompt(prompt_text, text, tokenizer)
    if ids is None:
        problem = f"The chat template does not put the answer of conversation {conversation.id} after"
        raise InputError(f"{problem} its generation prompt, but serving does", FIX_TEMPLATE)
    num_supervised = _count_supervised(ids, answered, tokenizer, variables)
    return _RenderedTurn(prompt, ids, [i < num_supervised for i in range(len(ids))])


def _ids_after_prompt(prompt_text: str, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
    """Returns the ids of the text after the prompt; None if the text does not begin with the prompt."""
    prompt, ids = _encode(prompt_text, tokenizer), _encode(text, tokenizer)
    if ids[: len(prompt)] == prompt:
        return ids[len(prompt) :]
    if text.startswith(prompt_text):
        # The answer's first characters merged with the prompt's last ones ("\n" + "\n"). The model answers after the
        # prompt's ids, so the answer is tokenized alone, if its tokenizer can do that without adding a space.
        alone = _encode(text[len(prompt_text) :], tokenizer)
        if decode_ids(prompt + alone, tokenizer) == decode_ids(ids, tokenizer):
            return alone
    return None


def _count_supervised(
    ids: list[int], answered: Sequence[Message], tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any] | None
) -> int:
    r"""Returns the number of supervised ids of an answer: all ids up to the end-of-turn token, which is included.

    The end-of-turn token is the first special token of the suffix, the text that the template writes after every
    answer. The text of the answer may also contain special tokens. So the function counts the special tokens of the
    suffix and takes as many from the end of the ids. Example, in which the result is 2:

        ids      hello <|im_end|> "\n"
        suffix         <|im_end|> "\n"     has one special token
    """
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*tokenizer.all_special_ids, *(token for token, entry in added.items() if entry.special)}
    in_suffix = sum(token in special for token in _encode(turn_suffix(answered, tokenizer, variables), tokenizer))
    places = [i for i, token in enumerate(ids) if token in special]
    if in_suffix == 0 or len(places) < in_suffix:
        return len(ids)  # a template without end-of-turn token: the model has to write all that it writes
    return places[-in_suffix] + 1


def turn_suffix(
    answered: Sequence[Message], tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any] | None = None
) -> str:
    """Returns the text that the template writes after an answer: the common end of two different answers."""
    pair = ([*answered[:-1], Message("assistant", text)] for text in ("0", "1"))
    first, second = (render_text(messages, tokenizer, generate=False, variables=variables) for messages in pair)
    return first[len(first) - count_equal(reversed(first), reversed(second)) :]


def render_text(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    generate: bool,
    tools: Sequence[dict[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Returns the text that the chat template makes of the messages. Raises InputError, like `render_prompt`."""
    reserved = sorted(RESERVED_VARIABLES & set(variables or ()))
    if reserved:
        problem = f"The chat template's variable {reserved[0]} is set by eyas, so it cannot be given"
        raise InputError(problem, "Remove it from chat_template_kwargs")
    if not isinstance(tokenizer.chat_template, str) or not tokenizer.chat_template.strip():
        fix = "Use an instruction-tuned target, or add its chat_template.jinja to the target's directory"
        raise InputError("The target's tokenizer has no chat template", fix)
    conversation = [_to_template_message(message) for message in messages]
    try:
        text: Any = tokenizer.apply_chat_template(
            conversation,
            tools=list(tools) or None,  # templates test `if tools`
            tokenize=False,
            add_generation_prompt=generate,
            **(variables or {}),
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        # TemplateError itself is what a template raises by raise_exception: its author's own words.
        reason = f" ({error})" if type(error) is TemplateError else ""
        roles = ", ".join(message.role for message in messages)
        problem = f"The chat template rejects the messages {roles}{reason}"
        raise InputError(problem, "Drop the system message or the turn that it does not support") from None
    assert isinstance(text, str), type(text)
    return text


def _to_template_message(message: Message) -> dict[str, Any]:
    """Returns the message for a template: reasoning under both common keys, valid tool arguments as JSON objects."""
    value = message.to_json()
    if isinstance(message, TemplateMessage):
        return value
    if "reasoning_content" in value:
        value["reasoning"] = value["reasoning_content"]
    for call in value.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):  # templates serialize arguments themselves
            call["function"]["arguments"] = arguments
    return value


def _encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    # The template writes the begin-of-text token itself, so the tokenizer must not add a second one.
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def decode_ids(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = False) -> str:
    """Returns the text of token ids, unchanged."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))


# --- rows to text ----------------------------------------------------------------------------------------------------


def highlight_supervised(row: RenderedRow, tokenizer: PreTrainedTokenizerBase, color: bool) -> str:
    """Returns the text of the row for a terminal, with the supervised tokens marked.

    Args:
        row: The row.
        tokenizer: The target's tokenizer.
        color: True prints supervised tokens in green, False encloses them in ⟦ ⟧.
    """
    parts = []
    start = 0
    for supervised, run in groupby(row.loss_mask):
        end = start + len(list(run))
        text = make_printable(_decode_span(row.ids, start, end, tokenizer))
        parts.append(mark(text, GREEN if color else None) if supervised else text)
        start = end
    return "".join(parts)


def _decode_span(ids: list[int], start: int, end: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Decodes ids[start:end] as a part of the row. Decoded alone, the ids may lose their first space."""
    before, whole = (decode_ids(ids[:stop], tokenizer) for stop in (start, end))
    return whole[len(before) :] if whole.startswith(before) else decode_ids(ids[start:end], tokenizer)
