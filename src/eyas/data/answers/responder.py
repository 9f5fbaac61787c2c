"""The interface between `eyas respond` and the model, which takes questions from a queue and yields answers.

`engine_responder.EngineResponder` and `remote_responder.RemoteResponder` implement it.
"""

import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from eyas.chat.conversation import Finish, IdsSource, Message
from eyas.data.answers.respond_config import Decoding


@dataclass(frozen=True)
class Question:
    """A conversation that ends with a user turn, which the target should answer.

    Attributes:
        id: CONVERSATION/TURN, for example "gsm8k-train:17/0". It seeds the sampling, so that an answer does not depend
            on the other questions in flight.
        messages: The messages of the conversation.
        prompt_ids: The token ids of the messages, rendered with the target's chat template.
        decoding: The sampling parameters.
        template_variables: The variables of the chat template.
    """

    id: str
    messages: tuple[Message, ...]
    prompt_ids: list[int]
    decoding: Decoding
    template_variables: Mapping[str, Any] = field(default_factory=dict)


class QuestionQueue(Protocol):
    """The queue of questions that still need an answer."""

    def next(self) -> Question | None:
        """Returns the next question, or None if none is ready now. After an answer, there may be one again."""
        ...


@dataclass(frozen=True)
class Answered:
    """The answer to a question.

    Attributes:
        id: The id of the question.
        token_ids: The generated token ids, with the end-of-turn token if `finish` is "stop".
        finish: "stop" for a complete answer, "length" for one that was cut at max_tokens.
        message: The answer as a server split it into content, reasoning and tool calls; None: decode `token_ids`.
        ids_source: "generated"; or "rendered" if the server sent no ids and eyas tokenized the message.
    """

    id: str
    token_ids: Sequence[int]
    finish: Finish
    message: Message | None = None
    ids_source: IdsSource = "generated"


@dataclass(frozen=True)
class Refused:
    """A question without a usable answer. Its conversation is dropped, and the ledger counts it under `reason`."""

    id: str
    reason: str


@dataclass(frozen=True)
class Retried:
    """A failed request that is sent again. reason: a few words for the progress line."""

    reason: str


ResponderEvent = Answered | Refused | Retried


AnswerFunction = Callable[[QuestionQueue], Generator[ResponderEvent, None, None]]
"""A function that answers all questions of a queue. It yields an event for each answer, refusal and retry.

It returns when the queue gives no question and no request is in flight. It may call `QuestionQueue.next` only after the
caller has processed the last yielded event. If it cannot continue, it yields all finished answers and then raises
StageError.
"""


@dataclass(frozen=True)
class Responder:
    """The target as `eyas respond` uses it: its answer function, tokenizer and digests."""

    answer: AnswerFunction
    tokenizer: PreTrainedTokenizerBase
    max_positions: int  # the maximum number of tokens of prompt and answer together
    target_digest: str
    tokenizer_digest: str
    template_digest: str
    target_dtype: str | None = None  # decides near ties between tokens; None: unknown, on a server


def derive_seed(seed: int, name: str) -> int:
    """Returns the seed of one answer. It does not depend on the other questions in flight."""
    return zlib.crc32(f"{seed}/{name}".encode())
