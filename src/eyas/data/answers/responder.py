"""The interface between `eyas respond` and the model: it pulls questions from a queue and yields answers in any order.

`engine_responder.EngineResponder` and `remote_responder.RemoteResponder` implement it.
"""

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from eyas.chat.conversation import Finish, IdsSource, Message
from eyas.data.answers.respond_config import Decoding


@dataclass(frozen=True)
class Question:
    """A conversation up to the answer that is wanted.

    id: permanent ("gsm8k-train:17/0": conversation/turn). It seeds sampling, so an answer does not depend on the other
    questions in flight. prompt_ids: the messages after the target's chat template.
    """

    id: str
    messages: tuple[Message, ...]
    prompt_ids: list[int]
    decoding: Decoding


class QuestionQueue(Protocol):
    """The queue of questions that are not asked yet, in order."""

    def next(self) -> Question | None:
        """Returns the next question. None: no question is ready, but a later answer may add the next turn."""
        ...


@dataclass(frozen=True)
class Answered:
    """The answer to a question.

    token_ids: the generated ids, with the end-of-turn token if finish is "stop". message: the answer split into
    content, reasoning and tool calls by a server; None to use the text of the ids. ids_source: "rendered" if the server
    sent no ids and eyas tokenized the message.
    """

    id: str
    token_ids: Sequence[int]
    finish: Finish
    message: Message | None = None
    ids_source: IdsSource = "generated"


@dataclass(frozen=True)
class Refused:
    """A question without a usable answer. Its conversation is dropped; `reason` says why."""

    id: str
    reason: str


@dataclass(frozen=True)
class Retried:
    """A failed attempt that is repeated. reason: a few words for the progress line."""

    reason: str


ResponderEvent = Answered | Refused | Retried


class AnswerFunction(Protocol):
    """A function that answers every question, and ends when none is left and none is in flight.

    It takes the next question only between two events, after the caller has processed them. It raises StageError if it
    cannot continue; all finished answers have been yielded then.
    """

    def __call__(self, questions: QuestionQueue) -> Generator[ResponderEvent, None, None]:
        """Yields the events of all questions."""
        ...


class AnswerScanner(Protocol):
    """A scanner for personal data and secrets in answers. It returns counts by kind for each text, never a value."""

    @property
    def digest(self) -> str:
        """A digest of the scanner's settings and word lists. It is part of the inputs of the stage."""
        ...

    def __call__(self, texts: list[str], languages: list[str]) -> list[dict[str, int]]:
        """Returns the counts of found values for each text, by kind."""
        ...


@dataclass(frozen=True)
class Responder:
    """The target that answers in `eyas respond`: its answer function, tokenizer and digests."""

    answer: AnswerFunction
    tokenizer: PreTrainedTokenizerBase
    max_positions: int  # of prompt and answer together
    target_digest: str
    tokenizer_digest: str
    template_digest: str
    target_dtype: str | None = None  # decides near ties, and with them answers; None: a server's, which is unknown


def derive_seed(seed: int, name: str) -> int:
    """Returns the seed of one answer. It does not depend on the other questions in flight."""
    return zlib.crc32(f"{seed}/{name}".encode())
