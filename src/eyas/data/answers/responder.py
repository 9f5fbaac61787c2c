"""Who answers, as `respond` sees it: questions are taken when there is room for them, answers come in any order."""

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

    id names it for ever ("gsm8k-train:17/0": conversation/turn), so that sampling can be seeded by it: an answer must
    not depend on which questions are asked together. prompt_ids: what the target's template makes of the messages.
    """

    id: str
    messages: tuple[Message, ...]
    prompt_ids: list[int]
    decoding: Decoding


class QuestionQueue(Protocol):
    """What is to be asked, in order."""

    def next(self) -> Question | None:
        """The next question; None: none now. A finished answer may bring the next turn of its conversation."""
        ...


@dataclass(frozen=True)
class Answered:
    """The answer to a question. token_ids as generated, the end-of-turn token included where finish is "stop".

    message: the answer as a server split it; None: the text of the ids. ids: "rendered" where a server gave none.
    """

    id: str
    token_ids: Sequence[int]
    finish: Finish
    message: Message | None = None
    ids: IdsSource = "generated"


@dataclass(frozen=True)
class Refused:
    """A question that gets no answer that could be used: its conversation is dropped for this reason."""

    id: str
    reason: str


@dataclass(frozen=True)
class Retried:
    """An attempt that failed and is made again; why in a few words, for the progress line."""

    why: str


ResponderEvent = Answered | Refused | Retried


class AnswerFunction(Protocol):
    """Answers every question and ends when there is none left and none open.

    It asks for the next question only between two events, when the events before are dealt with. StageError where it
    cannot go on; what was answered has then been yielded.
    """

    def __call__(self, questions: QuestionQueue) -> Generator[ResponderEvent, None, None]: ...


class AnswerScanner(Protocol):
    """Personal data and secrets in answers: for each text how many of each kind were found, never what."""

    @property
    def digest(self) -> str:
        """Of its settings and lists, which decide what is dropped."""
        ...

    def __call__(self, texts: list[str], languages: list[str]) -> list[dict[str, int]]: ...


@dataclass(frozen=True)
class Responder:
    """The target as this room sees it."""

    answer: AnswerFunction
    tokenizer: PreTrainedTokenizerBase
    max_positions: int  # prompt and answer together
    target_digest: str
    tokenizer_digest: str
    template_digest: str
    target_dtype: str | None = None  # decides near ties, so it decides answers; None: a server's, which is not known


def derive_seed(seed: int, name: str) -> int:
    """A seed of its own for each answer, whatever else is asked with it."""
    return zlib.crc32(f"{seed}/{name}".encode())
